//! What a call costs, what texts are prices, and whose they are.

use super::super::{Config, Overrides};
use super::*;

#[test]
fn a_price_is_of_a_million_tokens() {
    let price: Price = " in = 2.50, out=10 ".parse().expect("a price");
    assert_eq!(price.of(1_240, 0).to_string(), "0.0031");
    assert_eq!(price.of(1_000_000, 71_000).to_string(), "3.21");
    assert_eq!((price.to_string().as_str(), Money::default().to_string().as_str()), ("in=2.5,out=10", "0.00"));
    let small: Price = "in=0.0000025,out=0.000000001".parse().expect("a price");
    assert_eq!(small.to_string(), "in=0.0000025,out=0.000000001", "all that was given is told");
    assert_eq!(
        [(2, 0), (1, 0), (0, 1_000)].map(|(tokens_in, out)| small.of(tokens_in, out).units()),
        [5, 3, 1],
        "rounded up"
    );
    let rounded = [1, 99_999_999_999, 1_230_000_000_000, 1_230_000_000_001].map(|units| Money(units).rounded_up());
    assert_eq!(rounded.map(|money| money.to_string()), ["0.000001", "0.1000", "1.23", "1.24"]);
    let apart = |one, other| Money(one).apart(Money(other));
    assert_eq!(apart(820_000_000, 790_000_000), ["0.00082", "0.00079"]);
    assert_eq!(apart(820_000_000, 900_000_000), ["0.0008", "0.0009"]);
    assert_eq!(apart(820_000_000, 820_000_000), ["0.0008", "0.0008"]);
    assert_eq!(apart(820_000_001, 820_000_000), ["0.000820000001", "0.000820000000"]);
    assert_eq!(Money(10_000_000).to_string(), "0.000010", "what can be a budget is no zero");
    assert_eq!("0.000001".parse::<Money>().expect("a sum"), Money(1_000_000));
    for (doubtful, doubt) in [
        ("in=0.0000025,out=0.00001", Some("below 0.001")),
        ("in=0.1,out=0.0004", Some("below 0.001")),
        ("in=0,out=0.001", None),
        ("in=10000,out=0", None),
        ("in=2,out=20000", Some("above 10,000")),
    ] {
        let told = doubtful.parse::<Price>().expect("a price").doubt();
        assert_eq!(told.map(|told| told[..doubt.unwrap_or_default().len()].to_owned()).as_deref(), doubt, "{doubtful}");
    }
    let cached: Price = "in=2,cached=0.5,out=8".parse().expect("a price");
    let usage = |cached_tokens| Usage { input_tokens: 1_000, cached_tokens, ..Usage::default() };
    let units = |price: Price, usage: Usage| price.of_usage(&usage).units();
    assert_eq!([0, 800, 801].map(|tokens| units(cached, usage(tokens))), [2_000_000_000, 800_000_000, 798_500_000]);
    assert_eq!(units(price, usage(800)), 2_500_000_000);
    // A provider that sells them at a tenth, and 100 tokens that were written at 1.25.
    let known = Usage { cache_price: (-720 + 25) * 100, cached_price: -72_000, ..usage(800) };
    let odd = Usage { input_tokens: 7, cached_tokens: 5, output_tokens: 1, ..Usage::default() };
    let uneven: Price = "in=2,cached=0.7,out=8".parse().expect("a price");
    let ten = Usage { input_tokens: 70, cached_tokens: 50, output_tokens: 10, ..Usage::default() };
    assert_eq!(10 * uneven.of_usage(&odd).units(), uneven.of_usage(&ten).units(), "nothing is rounded");
    assert_eq!(uneven.of_usage(&odd).units(), 2 * 2_000_000 + 5 * 700_000 + 8_000_000);
    assert_eq!([price, cached].map(|price| units(price, known)), [762_500_000, 850_000_000]);
    let full: Price = "in=2,cached=2,out=8".parse().expect("a price");
    assert_eq!(units(full, known), 1_025 * 2_000_000);
}

#[test]
fn what_is_no_price_is_refused_with_what_is_wrong() {
    for wrong in [
        "in=1,out=2,cached=x",
        "in=1,out=2,cached_write=x",
        "in=1,cached_write=2",
        "in=0.15,out=0.6,cached=0.5",
        "in=1,cached=0.5",
        "",
        "2.5",
        "in=2.5",
        "in=1,out=-1",
        "in=0,out=0",
        "in=1,out=2,x=3",
        "in=1,out=$2",
        "in=1,out=2,",
    ] {
        let message = wrong.parse::<Price>().expect_err(wrong).to_string();
        assert!(message.contains("such as in=2.50,out=10"), "{message}");
    }
    for (wrong, fault) in [
        ("in=0.15,cached=0.5,out=0.6", "; cached=0.5 is more than in=0.15"),
        ("in=1, out=1, cached=.5", "; cached=.5 is no number such as 0.5"),
        ("in=1,out=,cached=0.5", "; out= is no number such as 0.5"),
        ("in=0.15", "; out= is missing"),
        ("0.15", "; in= and out= are missing"),
        ("in=1,out=2,x=3", "are optional)"),
    ] {
        let message = wrong.parse::<Price>().expect_err(wrong).to_string();
        assert!(message.ends_with(fault), "{message}");
    }
    for wrong in ["0", "0.0000001", "-1", "$5", "1e9", "2M", "nan"] {
        let message = wrong.parse::<Money>().expect_err(wrong).to_string();
        assert!(message.contains("a number from 0.000001 to 1,000,000"), "{message}");
    }
}

#[test]
fn what_a_write_into_a_cache_costs_can_be_given() {
    let price = |text: &str| text.parse::<Price>().expect("a price");
    let given = price("in=2, cached_write=3, out=8");
    assert_eq!(given.to_string(), "in=2,out=8,cached_write=3");
    assert_eq!(price("in=2,out=8,cached_write=0,cached=1").to_string(), "in=2,out=8,cached=1,cached_write=0");
    // 100 of 1,000 tokens were written at 1.25 and 800 read at a tenth; 5 are not billed.
    let (reads, writes) = (-72_000, 2_500);
    let usage = Usage {
        input_tokens: 1_000,
        cached_tokens: 800,
        cached_price: reads,
        written_tokens: 100,
        written_price: writes,
        cache_price: reads + writes - 500,
        output_tokens: 1,
        ..Usage::default()
    };
    for (price, units) in [
        ("in=2,out=8", 300 * 2_000_000),
        ("in=2,out=8,cached_write=3", 175 * 2_000_000 + 100 * 3_000_000),
        ("in=2,out=8,cached_write=0.5", 175 * 2_000_000 + 100 * 500_000),
        ("in=2,out=8,cached=1,cached_write=3", 95 * 2_000_000 + 800 * 1_000_000 + 100 * 3_000_000),
        ("in=0,out=8,cached_write=3", 100 * 3_000_000),
    ] {
        assert_eq!(price.parse::<Price>().expect("a price").of_usage(&usage).units(), units + 8_000_000, "{price}");
    }
    // Of 37 tokens 11 were read at a tenth and 18 written at 1.25.
    let read = Usage { cached_tokens: 11, cached_price: -990, cache_price: -540, ..Usage::default() };
    let usage = Usage { input_tokens: 37, written_tokens: 18, written_price: 450, ..read };
    assert_eq!(price("in=2.5,out=8").of_usage(&usage).units(), 316 * 250_000, "31.6 tokens");
    let fault = "in=1,out=2,cached_write=$3".parse::<Price>().expect_err("no number").to_string();
    assert!(fault.ends_with("; cached_write=$3 is no number such as 0.5"), "{fault}");
    assert!(price("in=1,out=1,cached_write=0.0005").doubt().is_some());
}

#[test]
fn an_answer_counts_as_the_model_that_it_is_of() {
    let price: Price = "in=1,out=1".parse().expect("a price");
    let of = |models: &[&str]| -> Prices { models.iter().map(|model| ((*model).to_owned(), price)).collect() };
    let table = of(&["gpt-4o-mini", "gpt-4o", "gpt-4o-2024-05-13", "*"]);
    for (asked, answered, expected) in [
        ("gpt-4o-mini", "gpt-4o-mini-2024-07-18", CountedAs::Asked),
        ("gpt-4o-mini", "gpt-4o-mini", CountedAs::Asked),
        ("gpt-4o-mini", "openai/gpt-4o-mini", CountedAs::Asked),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini", CountedAs::Priced("gpt-4o-mini")),
        ("gpt-4o-mini", "gpt-4o", CountedAs::Priced("gpt-4o")),
        ("gpt-4o-mini", "gpt-4o-2024-08-06", CountedAs::Priced("gpt-4o")),
        ("gpt-4o", "gpt-4o-2024-05-13", CountedAs::Priced("gpt-4o-2024-05-13")),
        ("gpt-4o-mini", "o3", CountedAs::Unpriced("o3")),
    ] {
        assert_eq!(table.counted_as(asked, answered), expected, "{answered} for {asked}");
    }
    assert_eq!(Prices::from(price).counted_as("a", "b"), CountedAs::Unpriced("b"));
    assert_eq!(Prices::default().counted_as("a-2024-01-02", "a"), CountedAs::Asked);
}

#[test]
fn a_table_has_a_price_for_each_model() {
    let upstream = |file: &str, variable: Option<(&str, &str)>| {
        let openai = Overrides { upstream: Some("openai".to_owned()), ..Overrides::default() };
        Config::parse("paceline.toml".as_ref(), file, variable.into_iter().collect(), openai)?.upstream()
    };
    let file = "[upstream.openai.price]\n'gpt-4o-mini' = 'in=0.15,out=0.60'\n'gpt-4o' = 'in=2.50,out=0.1'\n";
    let million = |prices: &Prices, model: &str| prices.of(model).of(1_000_000, 1_000_000).to_string();
    let found = upstream(file, None).expect("all well");
    assert_eq!(million(&found.prices, "gpt-4o-mini"), "0.7500");
    assert_eq!(million(&found.prices, "forgotten"), "3.10", "the dearest of both");
    assert_eq!(["gpt-4o", "forgotten"].map(|model| found.prices.knows(model)), [true, false]);
    assert_eq!(found.prices.only(), None);
    assert!(found.effective.iter().any(|row| row.key == "price.gpt-4o" && row.value == "in=2.5,out=0.1"));
    let found = upstream(&format!("{file}'*' = 'in=1,out=1'"), None).expect("all well");
    assert_eq!(million(&found.prices, "any other"), "2.00");
    let variable = Some(("PACELINE_UPSTREAM__OPENAI__PRICE", "in=3,out=4"));
    let found = upstream(file, variable).expect("all well");
    assert_eq!(million(&found.prices, "gpt-4o-mini"), "7.00", "one price is for all models, and replaces the table");
    let message = upstream("[upstream.openai]\nprice = { a = 'cheap' }", None).expect_err("no price").to_string();
    assert!(message.contains("upstream.openai.price.a = \"cheap\"") && message.contains("in=2.50,out=10"), "{message}");
}
