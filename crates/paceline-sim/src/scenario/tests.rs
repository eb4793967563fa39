use super::*;

#[test]
fn every_built_in_scenario_can_be_read_and_has_its_own_name() {
    let names: Vec<&str> = Scenario::development().chain(Scenario::short_jobs()).collect();
    assert_eq!((Scenario::development().count(), names.len()), (19, 39));
    for name in names {
        let scenario = Scenario::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(scenario.name, name);
        assert!(!scenario.about.is_empty() && scenario.nominal_rate() > 0.0, "{name}");
    }
}

/// What the module's documentation shows can be read.
#[test]
fn the_documented_form_is_the_form() {
    let source = include_str!("../scenario.rs");
    let shown = source.split("```").nth(1).expect("an example").trim_start_matches("toml");
    let shown: Vec<&str> = shown.lines().map(|line| line.trim_start_matches("//!")).collect();
    let scenario = Scenario::from_toml(&shown.join("\n")).expect("the documented form");
    assert_eq!((scenario.name.as_str(), scenario.items, scenario.provider.limits.len()), ("mine", 2_000, 1));
}

#[test]
fn a_wrong_file_names_key_value_and_what_was_expected() {
    let error = |rest: &str| {
        let text = format!("name = \"mine\"\nitems = 10\n{rest}");
        Scenario::from_toml(&text).expect_err(rest).to_string()
    };
    let bucket = "service = \"llm\"\n[[limit]]\nshape = \"bucket\"\nlimit = 5\nper = 1\n";
    let fixed = bucket.replace("bucket", "fixed");
    for (rest, expected) in [
        ("service = \"slow\"", "service is \"llm\", \"fast\" or { p50"),
        ("service = \"llm\"\nfault = 1.5", "fault: a probability from 0 to 1"),
        ("service = \"llm\"\nlimits = 5", "unknown field `limits`"),
        ("service = \"llm\"\nduty = { on = 0, off = 1 }", "duty.on is 0, expected more than 0 seconds"),
        (&format!("{bucket}counts = \"cows\""), "limit[0].counts is cows, expected \"requests\" or \"tokens\""),
        (&format!("{fixed}phase = -1"), "limit[0].phase is -1, expected a duration such as 200ms"),
        (&format!("{fixed}phase = \"soon\""), "limit[0].phase is \"soon\", expected a duration such as 200ms"),
        (&format!("{bucket}phase = 1"), "limit[0].phase is set, expected none"),
        (&format!("{bucket}counts = \"tokens\""), "limit[0].counts is tokens, expected a `cost` too"),
        (&format!("{bucket}counts_refused = true"), "limit[0].counts_refused is true, expected none"),
        ("service = \"llm\"\nuntil = 1e17", "until is"),
        ("service = \"llm\"\ntenants = { base = 1e9, burst = 0, on = 0, period = 1 }", "at most 1,000,000 calls"),
        (&format!("{fixed}phase = true"), "expected a duration such as \"200ms\""),
        ("service = \"llm\"\nworkers = [{ at = \"1s\", count = 5 }]", "workers[0].at is 1s, expected 0"),
        ("service = \"llm\"\nworkers = [{ at = 0, count = 0 }]", "workers[0].count is 0, expected workers"),
        (
            "service = \"llm\"\nschedule = { scales = { factor = 4, after = 60, below = 0.5, back = 60 } }",
            "beside a limit",
        ),
        (&bucket.replace("bucket", "hat"), "unknown variant `hat`, expected one of `bucket`, `fixed`, `sliding`"),
    ] {
        assert!(error(rest).contains(expected), "{rest}: {}", error(rest));
    }
}

#[test]
fn items_are_the_same_for_the_same_seed_and_cost_what_they_should() {
    let shift = Scenario::named("tpm-shift").expect("built in");
    let items = shift.draw_items(7);
    assert_eq!(items, shift.draw_items(7));
    assert_ne!(items, shift.draw_items(8));
    let mean = |items: &[Item], cost: fn(&Item) -> &Cost| {
        items.iter().map(|item| cost(item).get(&Dimension::Tokens) as f64).sum::<f64>() / items.len() as f64
    };
    let (first, second) = items.split_at(15_000);
    let (cheap, dear) = (mean(first, |item| &item.cost), mean(second, |item| &item.cost));
    assert!((dear / cheap - 3.0).abs() < 0.1, "{cheap} {dear}");
    assert!((mean(&items, |item| &item.estimate) / mean(&items, |item| &item.cost) - 1.0).abs() < 0.02);
    assert!((mean(&items, |item| &item.cost) / shift.mean_cost() - 1.0).abs() < 0.03);
}

#[test]
fn work_begins_in_the_first_part_of_each_cycle() {
    let duty = Duty { on: Duration::from_secs(20), off: Duration::from_secs(10) };
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    assert_eq!([duty.opens(at(19)), duty.opens(at(20)), duty.opens(at(35))], [at(19), at(30), at(35)]);
}
