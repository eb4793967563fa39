//! What calls reserve, and what they count with.

use super::*;
use crate::stops::stop::StopReason;
use futures_util::FutureExt as _;
use paceline_config::Price;

pub(super) fn tokens(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

impl Budget {
    /// What is expected does not change while it waits.
    pub(super) async fn reserve(&self, expected: Expected) -> Result<Reserved<'_>, Exceeded> {
        self.reserve_as_known(|| expected.clone()).await
    }
}

/// So many tokens of input at a price of 1 cost what the prompts do.
fn priced_input(prices: &Prices, used: &ModelUsage) -> u64 {
    let of_prompt = Usage { output_tokens: 0, ..usage_of(used) };
    prices.of("").of_usage(&of_prompt).units() / 1_000_000_000_000
}

/// So many items, of lines of unknown length.
pub(super) fn left(items: u64) -> Left {
    Left { items, ..Left::default() }
}

pub(super) fn bounded(input_tokens: u64, output_tokens: u64) -> Expected {
    let usage = tokens(input_tokens, output_tokens);
    Expected { model: "m".into(), usage, bound: Some(output_tokens), ..Expected::default() }
}

#[test]
fn without_a_bound_nothing_waits() {
    let budget = Budget::default();
    let first = budget.reserve(Expected::default()).now_or_never().expect("at once").expect("no end");
    let second = budget.reserve(bounded(u64::MAX, 1)).now_or_never().expect("at once").expect("no end");
    assert_eq!(
        first.settle(Some(tokens(3, 2)), || 0),
        ModelUsage { model: "".into(), calls: 1, tokens_in: 3, tokens_out: 2, ..ModelUsage::default() }
    );
    assert_eq!(second.settle(None, || 0).tokens_in, u64::MAX, "as expected");
}

#[test]
fn tokens_are_reserved_until_they_are_known_and_never_exceed_the_budget() {
    let limits = Limits { run_tokens: Some(100), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let reserve = |tokens| budget.reserve(bounded(tokens, 0)).now_or_never();
    let first = reserve(60).expect("at once").expect("fits");
    assert!(reserve(60).is_none(), "the first may still turn out to be cheap");
    let exceeded = reserve(101).expect("at once").expect_err("never fits");
    assert_eq!((exceeded.purse, budget.needed(exceeded, &left(1))), (BudgetKind::RunTokens, [101; 2]));
    let mut waits = Box::pin(budget.reserve(bounded(60, 0)));
    assert!(waits.as_mut().now_or_never().is_none());
    first.settle(Some(tokens(40, 0)), || 0);
    let second = waits.as_mut().now_or_never().expect("woken").expect("fits now");
    drop(second);
    let third = reserve(10).expect("at once").expect("fits");
    assert_eq!(third.settle(None, || 0).tokens_in, 40, "as much as calls use here was reserved and taken");
    assert!(reserve(30).is_some_and(|refused| refused.is_err()));
    assert!(reserve(1).is_some_and(|refused| refused.is_err()), "calls use 40 here");
}

#[test]
fn what_earlier_runs_used_counts_for_the_job_alone() {
    let before = [ModelUsage { model: "m".into(), calls: 2, tokens_in: 600, tokens_out: 200, ..ModelUsage::default() }];
    let price: Prices = "in=1000000,out=500000".parse::<paceline_config::Price>().expect("a price").into();
    let used = |limits| Budget::new(limits, price.clone(), &before, false).used();
    let found = used(Limits { job_tokens: Some(1_000), job_cost: "1000".parse().ok(), run_tokens: Some(5_000) });
    assert_eq!(found.describe().collect::<Vec<_>>(), ["800 of 1,000 tokens", "700.00 of 1000.00 spent"]);
    assert_eq!(found.calls_left, Some(0), "350 a call, and 300 are left");
    assert_eq!(used(Limits::default()).describe().collect::<Vec<_>>(), ["700.00 spent"]);

    let limits = Limits { job_cost: "1000".parse().ok(), ..Limits::default() };
    let budget = Budget::new(limits, price, &before, false);
    let reserved = budget.reserve(bounded(1, 1)).now_or_never().expect("at once");
    let exceeded = reserved.expect_err("prompts cost 300 here");
    assert_eq!(exceeded.purse, BudgetKind::JobCost);
    let enough = budget.enough(exceeded.at_line(7), &left(1));
    assert_eq!((enough.flag, enough.amount.as_str()), ("--budget-cost", "1000.50"));
    assert_eq!(
        enough.words,
        "300.00 of 1000.00 left, and the next call (line 7) may use 300.50. The whole job: about --budget-cost 1000.50, as the \
         answers so far cost"
    );
}

#[test]
fn a_budget_that_was_exceeded_is_called_so() {
    let before = [ModelUsage { model: "m".into(), calls: 2, tokens_in: 600, tokens_out: 200, ..ModelUsage::default() }];
    let told = |budget: &Budget| {
        let exceeded = budget.reserve(bounded(1, 1)).now_or_never().expect("at once").expect_err("nothing is left");
        (StopReason::Budget(exceeded).to_string(), budget.enough(exceeded, &left(2)).words)
    };
    let of = |tokens, before: &[ModelUsage]| {
        Budget::new(Limits { job_tokens: Some(tokens), ..Limits::default() }, Prices::default(), before, false)
    };
    let (stop, words) = told(&of(700, &before));
    assert_eq!(stop, "--budget-tokens 700, the budget of all runs of this job, is used up");
    let expected = "the budget is exceeded, by the runs before: 800 of 700 tokens used, 100 too much. The whole \
                    job: about --budget-tokens 1516, as calls so far used, and a little more";
    assert!(words.starts_with(expected), "{words}");
    assert!(told(&of(800, &before)).1.starts_with("the budget is used up (800 of 800 tokens). "));
    let budget = of(1_000, &[]);
    let call = budget.reserve(bounded(10, 80)).now_or_never().expect("at once").expect("fits");
    call.settle(Some(tokens(10, 3_000)), || 0);
    let words = told(&budget).1;
    let expected = "the budget is exceeded, by answers that came longer than reserved for them (3,000 tokens where 80 were \
                    reserved): 3,010 of 1,000 tokens used, 2,010";
    assert!(words.starts_with(expected), "{words}");
    let used = budget.used();
    assert_eq!(used.describe().collect::<Vec<_>>(), ["3,010 of 1,000 tokens, 2,010 too many"]);
    assert_eq!(used.beside((10, 3_000)).json()["tokens"]["estimated"], 0);
    assert_eq!(
        used.beside((0, 10)).in_one_line().as_deref(),
        Some(
            "budget: 3,010 of 1,000 tokens, 2,010 too many; 3,000 of the tokens are estimated, for calls whose use is not known"
        )
    );
    let price: Prices = "in=1000000,out=500000".parse::<paceline_config::Price>().expect("a price").into();
    let used = Budget::new(Limits::default(), price, &before, false).used();
    assert_eq!(
        used.beside((500, 200)).in_one_line().as_deref(),
        Some("700.00 spent; 100.00 of it is estimated, for calls whose use is not known")
    );
    assert_eq!(used.beside((500, 200)).json()["cost"]["estimated"], 100.0);
}

#[test]
fn what_exceeds_a_budget_is_named_by_the_calls_that_did() {
    let told = |last: (u64, u64)| {
        let limits = Limits { job_tokens: Some(1_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let call = |used: (u64, u64)| {
            let call = budget.reserve(bounded(100, 50)).now_or_never().expect("at once").expect("fits");
            call.settle(Some(tokens(used.0, used.1)), || 0);
        };
        // What a call has used more than expected, and what another found room beside, is no cause.
        call((100, 300));
        call(last);
        let exceeded = budget.reserve(bounded(1, 1)).now_or_never().expect("at once").expect_err("nothing is left");
        budget.enough(exceeded, &left(1)).words
    };
    for (last, expected) in [
        ((1_636, 5), "by prompts that had more tokens than estimated (1,636 tokens where 100 were reserved): 2,041 of"),
        (
            (1_636, 301),
            "by prompts that had more tokens than estimated (1,636 tokens where 100 were reserved): 2,337 of",
        ),
        (
            (900, 900),
            "by prompts that had more tokens than estimated (900 tokens where 100 were reserved), 57 % of it and answers that came \
             longer than reserved for them (900 tokens where 300 were reserved), 42 % of it: 2,200 of",
        ),
        (
            (100, 3_000),
            "by answers that came longer than reserved for them (3,000 tokens where 300 were reserved): 3,500 of",
        ),
    ] {
        let words = told(last);
        assert!(words.starts_with("the budget is exceeded, ") && words.contains(expected), "{words}");
    }
}

#[test]
fn a_bound_of_a_run_below_one_call_says_what_the_call_may_use() {
    let budget = Budget::new(Limits { run_tokens: Some(50), ..Limits::default() }, Prices::default(), &[], false);
    let exceeded = budget.reserve(bounded(107, 5)).now_or_never().expect("at once").expect_err("more than all");
    let stop = StopReason::Budget(exceeded.at_line(2));
    assert_eq!(
        stop.to_string(),
        "the next call might exceed --max-tokens 50: it may use 112, and 50 are left to this run"
    );
    let enough = budget.enough(stop.exceeded_budget().expect("told as a budget"), &left(3));
    assert_eq!((enough.flag, enough.amount.as_str()), ("--max-tokens", "336"));
    assert_eq!(
        enough.words,
        "the next call (line 2) may use 112 tokens, and --max-tokens 50 is for all calls of a run (--max-output-tokens bounds each \
         answer). The whole job: about --max-tokens 336, if each call uses what this one may"
    );
    let budget = Budget::new(Limits { run_tokens: Some(150), ..Limits::default() }, Prices::default(), &[], false);
    let first = budget.reserve(bounded(107, 5)).now_or_never().expect("at once").expect("fits");
    first.settle(Some(tokens(107, 5)), || 0);
    let exceeded = budget.reserve(bounded(107, 5)).now_or_never().expect("at once").expect_err("38 are left");
    assert_eq!(StopReason::Budget(exceeded).exceeded_budget(), None, "the next run has the bound anew");
}

/// A call that was prepared before anything was known asks for as much as is known once it may leave.
#[test]
fn a_call_that_waits_learns_from_the_answers_that_come_meanwhile() {
    let limits = Limits { job_tokens: Some(100), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let likely = std::cell::Cell::new(10);
    let long =
        || Expected { prompt: PromptTokens { likely: likely.get(), ..PromptTokens::default() }, ..bounded(10, 5) };
    let first = budget.reserve(bounded(90, 5)).now_or_never().expect("at once").expect("fits");
    let mut waits = Box::pin(budget.reserve_as_known(long));
    assert!(waits.as_mut().now_or_never().is_none());
    likely.set(70);
    first.settle(Some(tokens(35, 5)), || 0);
    assert_eq!(waits.now_or_never().expect("woken").expect_err("75 of 60").next(), 75);
}

#[test]
fn prompts_hold_as_much_as_they_can_have_until_they_are_known() {
    let limits = Limits { job_tokens: Some(100), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let reserve = || {
        budget
            .reserve(Expected { prompt: PromptTokens { most: 60, ..PromptTokens::default() }, ..bounded(10, 5) })
            .now_or_never()
    };
    let first = reserve().expect("at once").expect("fits");
    assert!(reserve().is_none(), "65 are held, and not 15");
    assert_eq!(first.settle(Some(tokens(45, 5)), || 0).tokens_in, 45);
    let second = reserve().expect("alone").expect("50 are expected and left, though 65 could be used");
    assert!(reserve().is_none());
    assert_eq!(second.settle(None, || 0).tokens_in, 45, "what is expected counts, not what was held");
    assert!(reserve().is_some_and(|refused| refused.is_err()));
}

#[test]
fn no_more_answers_without_a_bound_are_awaited_than_have_come() {
    let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let reserve = || budget.reserve(Expected { bound: None, ..bounded(1, 0) }).now_or_never();
    let first = reserve().expect("at once").expect("fits");
    assert!(reserve().is_none(), "nothing is known of answers");
    first.settle(Some(tokens(1, 1)), || 0);
    let both = [reserve().expect("known").expect("fits"), reserve().expect("known").expect("fits")];
    assert!(reserve().is_none(), "one short answer does not speak for all");
    for call in both {
        call.settle(Some(tokens(1, 999)), || 0);
    }
    let four = [(); 4].map(|()| reserve().expect("known").expect("fits"));
    assert!(reserve().is_none(), "three have come");
    drop(four);
}

#[test]
fn the_first_answer_of_a_model_shows_whether_its_bound_holds() {
    let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let of = |model: &str| Expected { model: model.into(), ..bounded(10, 80) };
    let reserve = |model: &str| budget.reserve(of(model)).now_or_never();
    let first = reserve("a").expect("at once").expect("fits");
    assert!(reserve("a").is_none(), "nothing is known of the server");
    let other = reserve("b").expect("another model").expect("fits");
    other.settle(Some(tokens(10, 80)), || 20);
    let many = [(); 40].map(|()| reserve("b").expect("b keeps to its bound").expect("fits"));
    drop(many);
    first.settle(Some(tokens(10, 3_000)), || 0);
    let next = reserve("a").expect("at once").expect("fits");
    assert_eq!(next.expected().tokens_out, 3_000);
    let second = reserve("a").expect("two were answered").expect("fits");
    assert!(reserve("a").is_none(), "as for requests without a bound");
    drop((next, second));
}

#[test]
fn usage_that_is_reported_in_part_counts_no_less_than_estimated() {
    let limits = Limits { job_tokens: Some(100_000), ..Limits::default() };
    let settled = |is_bounded: bool, used, came| {
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let expected = Expected { bound: is_bounded.then_some(80), ..bounded(10, if is_bounded { 80 } else { 0 }) };
        let call = budget.reserve(expected).now_or_never().expect("at once").expect("fits");
        let counted = call.settle(used, || came);
        (counted.calls, counted.tokens_in, counted.tokens_out)
    };
    assert_eq!(settled(true, Some(tokens(0, 0)), 30), (1, 10, 80), "all zeros");
    assert_eq!(settled(false, Some(tokens(0, 0)), 30), (1, 10, 30));
    assert_eq!(settled(false, Some(tokens(12, 0)), 30), (1, 12, 30), "the prompt alone");
    assert_eq!(settled(false, Some(tokens(0, 7)), 30), (1, 10, 7), "the answer alone");
    assert_eq!(settled(true, Some(tokens(12, 7)), 30), (1, 12, 7));
    assert_eq!(settled(true, Some(tokens(0, 0)), 0), (0, 0, 0), "a refusal");
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let embedding = budget.reserve(bounded(10, 0)).now_or_never().expect("at once").expect("fits");
    assert_eq!(embedding.settle(Some(tokens(9, 0)), || 500).tokens_out, 0, "its answer has no tokens");
}

#[test]
fn answers_without_a_bound_come_one_by_one_until_one_is_known() {
    let limits = Limits { job_tokens: Some(100), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let reserve = || budget.reserve(Expected { bound: None, ..bounded(1, 0) }).now_or_never();
    let refused = reserve().expect("at once").expect("fits");
    assert!(reserve().is_none(), "nothing is known of answers");
    refused.settle(Some(Usage::default()), || 0);
    let first = reserve().expect("a refusal tells nothing, and is over").expect("fits");
    first.settle(Some(tokens(1, 39)), || 0);
    let second = reserve().expect("known").expect("40 of 60");
    assert!(reserve().is_none(), "40 are left when the second uses what the first did");
    second.settle(Some(tokens(1, 69)), || 0);
    let exceeded = reserve().expect("at once").expect_err("over");
    assert_eq!((exceeded.purse, budget.needed(exceeded, &left(1))), (BudgetKind::JobTokens, [55; 2]));
    assert_eq!(budget.needed(exceeded, &left(3)), [167; 2], "a call used 55, rounded up");
}

#[test]
fn calls_that_a_gateway_made_before_count_as_expected() {
    let limits = Limits { job_tokens: Some(1_000), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let call = budget.reserve(bounded(100, 50)).now_or_never().expect("at once").expect("fits");
    let lost = call.lost(2, Vec::new()).expect("two calls");
    assert_eq!((lost.calls, lost.tokens_in, lost.tokens_out), (2, 200, 100));
    let counted = call.settle(Some(tokens(90, 10)), || 0);
    assert_eq!((counted.calls, counted.tokens_in, counted.tokens_out), (1, 90, 10));
    assert_eq!(budget.used().tokens, Some((400, 1_000)));
}

#[test]
fn the_price_of_a_cache_is_kept_apart_from_its_tokens() {
    let price: Prices = "in=1000000,out=1000000".parse::<paceline_config::Price>().expect("a price").into();
    let limits = Limits { job_cost: "10000".parse().ok(), ..Limits::default() };
    let budget = Budget::new(limits, price.clone(), &[], false);
    let call = budget.reserve(bounded(100, 50)).now_or_never().expect("at once").expect("fits");
    let read = Usage { cached_tokens: 900, cached_price: -81_000, cache_price: -81_000, ..Usage::default() };
    let used = Usage { input_tokens: 10, uncounted_tokens: 900, output_tokens: 5, ..read };
    let counted = call.settle(Some(used), || 0);
    assert_eq!((counted.tokens_in, priced_input(&price, &counted)), (910, 100));
    let words = |budget: &Budget| budget.used().describe().next();
    assert_eq!(words(&budget).as_deref(), Some("105.00 of 10000.00 spent"));
    let later = |price: &str| {
        let price: Prices = price.parse::<Price>().expect("a price").into();
        words(&Budget::new(limits, price, std::slice::from_ref(&counted), false))
    };
    assert_eq!(later("in=1000000,out=1000000"), words(&budget), "in a later run too");
    let dearer = "465.00 of 10000.00 spent";
    assert_eq!(later("in=1000000,out=1000000,cached=500000").as_deref(), Some(dearer), "10, 900 at a half, and 5");
    assert_eq!(later("in=1000000,out=1000000,cached=0").as_deref(), Some("15.00 of 10000.00 spent"));
}

#[test]
fn a_prompt_that_may_be_written_into_a_cache_reserves_what_that_costs() {
    let price: Prices = "in=1000000,out=1000000".parse::<paceline_config::Price>().expect("a price").into();
    let limits = Limits { job_cost: "450".parse().ok(), ..Limits::default() };
    let budget = Budget::new(limits, price.clone(), &[], false);
    let reserve = || budget.reserve(Expected { dearer: 100, ..bounded(100, 0) }).now_or_never();
    let first = reserve().expect("at once").expect("200 of 450");
    let priced = |used: ModelUsage| priced_input(&price, &used);
    assert_eq!((first.expected().tokens_in, priced(first.expected())), (100, 200));
    let read = Usage { cache_price: -9_000, cached_price: -9_000, cached_tokens: 100, ..tokens(100, 0) };
    first.settle(Some(read), || 0);
    let second = reserve().expect("known").expect("200 of 440");
    let third = reserve().expect("known").expect("200 of 240 left");
    assert!(reserve().is_none(), "40 are left if both are written");
    assert_eq!(priced(second.settle(None, || 0)), 200, "an unknown end counts as a write");
    let written = Usage { cache_price: 10_000, ..tokens(100, 0) };
    third.settle(Some(written), || 0);
    let exceeded = reserve().expect("at once").expect_err("40 are left");
    assert_eq!((exceeded.purse, exceeded.used), (BudgetKind::JobCost, 410_000_000_000_000));
}

#[test]
fn writes_into_a_cache_are_named_as_a_cause_with_their_share() {
    let price: Prices = "in=1000000,out=1000000".parse::<paceline_config::Price>().expect("a price").into();
    let limits = Limits { job_cost: "150".parse().ok(), ..Limits::default() };
    let told = |used: Usage| {
        let budget = Budget::new(limits, price.clone(), &[], false);
        let call = budget.reserve(bounded(100, 50)).now_or_never().expect("at once").expect("fits");
        call.settle(Some(used), || 0);
        let exceeded = budget.reserve(bounded(1, 1)).now_or_never().expect("at once").expect_err("nothing is left");
        budget.enough(exceeded, &left(1)).words
    };
    let words = told(Usage { cache_price: 10_000, ..tokens(101, 50) });
    let expected =
        "the budget is exceeded, by writes into the provider's cache, which cost more than input: 251.00 of 150.00";
    assert!(words.starts_with(expected), "{words}");
    let words = told(Usage { cache_price: 3_000, ..tokens(110, 50) });
    let expected = "by writes into the provider's cache, which cost more than input, 75 % of it and prompts that had more tokens \
                    than estimated (110 tokens where 100 were reserved), 25 % of it: ";
    assert!(words.contains(expected), "{words}");
}

#[test]
fn what_the_whole_job_takes_is_told_by_the_last_calls_too() {
    let limits = Limits { job_tokens: Some(7_000), ..Limits::default() };
    let told = |uses: &[u64]| {
        let budget = Budget::new(limits, Prices::default(), &[], false);
        for used in uses {
            let call = budget.reserve(bounded(1, 0)).now_or_never().expect("at once").expect("fits");
            call.settle(Some(tokens(*used, 0)), || 0);
        }
        let exceeded = budget.reserve(bounded(9_000, 0)).now_or_never().expect("at once").expect_err("too much");
        let words = budget.enough(exceeded, &left(101)).words;
        words.split_once(". ").expect("two sentences").1.to_owned()
    };
    let (dear, cheap) = ([1_000; 5], [50; 10]);
    assert_eq!(
        told(&[&dear[..], &cheap].concat()),
        "The whole job: about 19600 to 51200, as calls so far used; take --budget-tokens 52114"
    );
    let few = told(&[&dear[..], &[50; 2]].concat());
    assert!(few.starts_with("The whole job: about --budget-tokens "), "seven calls have no later half: {few}");
    assert_eq!(told(&[100; 12]), "The whole job: about --budget-tokens 20682, as calls so far used, and a little more");
}

/// A server answers with 900 tokens where 20 are allowed, while 50 calls wait for their permits: they give back what they
/// reserved, and no more leave than fit.
#[tokio::test]
async fn calls_that_wait_for_their_permits_reserve_anew_once_an_answer_breaks_its_bound() {
    let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
    let budget = Budget::new(limits, Prices::default(), &[], false);
    let reserve = || budget.reserve(bounded(10, 20)).now_or_never();
    reserve().expect("at once").expect("fits").settle(Some(tokens(10, 20)), || 0);
    let first = reserve().expect("at once").expect("fits");
    let waiting: Vec<_> = (0..50).map(|_| reserve().expect("at once").expect("fits")).collect();
    assert!(waiting.iter().all(|call| call.is_outgrown(PromptTokens::default).now_or_never().is_none()));
    let mut outgrown = Box::pin(waiting[0].is_outgrown(PromptTokens::default));
    assert!(outgrown.as_mut().now_or_never().is_none());
    first.settle(Some(tokens(10, 900)), || 0);
    outgrown.as_mut().now_or_never().expect("it is woken");
    drop(outgrown);
    assert!(waiting.iter().all(|call| call.is_outgrown(PromptTokens::default).now_or_never().is_some()));
    drop(waiting);
    let mut left = Vec::new();
    while let Some(reserved) = reserve() {
        let reserved = reserved.expect("there is room");
        assert!(reserved.is_outgrown(PromptTokens::default).now_or_never().is_none(), "it holds enough");
        left.push(reserved);
    }
    assert_eq!(left.len(), 3, "of as many as were answered, and one more");
    left.remove(0).settle(Some(tokens(10, 900)), || 0);
    assert!(reserve().is_some(), "one more leaves");
}

#[test]
fn without_a_budget_no_call_reserves_anew() {
    let budget = Budget::default();
    let reserve = || budget.reserve(bounded(10, 20)).now_or_never().expect("at once").expect("no end");
    reserve().settle(Some(tokens(10, 900)), || 0);
    assert!(reserve().is_outgrown(PromptTokens::default).now_or_never().is_none());
}

/// OpenAI's cache: a part of the prompts, and a price of its own.
#[test]
fn input_from_the_cache_costs_its_own_price_where_that_is_known() {
    let price: Prices = "in=1000000,out=0,cached=500000".parse::<paceline_config::Price>().expect("a price").into();
    let limits = Limits { job_cost: "2000".parse().ok(), ..Limits::default() };
    let budget = Budget::new(limits, price.clone(), &[], false);
    let reserve = || budget.reserve(bounded(1_000, 0)).now_or_never().expect("at once").expect("fits");
    let priced = |used: &ModelUsage| priced_input(&price, used);
    let counted = reserve().settle(Some(Usage { cached_tokens: 900, ..tokens(1_000, 0) }), || 0);
    assert_eq!((counted.tokens_in, counted.cached_tokens, priced(&counted)), (1_000, 900, 550));
    assert_eq!(budget.used().describe().collect::<Vec<_>>(), ["550.00 of 2000.00 spent"]);
    drop(reserve());
    assert_eq!(priced(&reserve().settle(None, || 0)), 1_000, "of what is not known nothing was in the cache");
}

pub(super) fn table(prices: &[(&str, &str)]) -> Prices {
    prices.iter().map(|(model, price)| ((*model).to_owned(), price.parse().expect("a price"))).collect()
}

#[test]
fn a_price_of_cached_input_that_no_answer_uses_is_told() {
    let price: Prices = "in=1000000,cached=500000,out=1000000".parse::<Price>().expect("a price").into();
    let of = |calls: u64, cached_tokens: u64, price: &Prices| {
        let used = ModelUsage { calls, tokens_in: 600, cached_tokens, ..ModelUsage::default() };
        let words = Budget::new(Limits::default(), price.clone(), &[used], false).used().in_one_line();
        words.is_some_and(|words| {
            words.ends_with("; no answer told of input read from a cache, so cached= changes nothing")
        })
    };
    assert!(of(20, 0, &price) && !of(19, 0, &price) && !of(20, 1, &price));
    assert!(!of(20, 0, &table(&[("*", "in=1,out=1")])), "none is given");
}

#[test]
fn one_price_for_many_models_names_some_of_them() {
    let names: Vec<_> = (0..100).map(|n| format!("m{n}")).collect();
    let told = |prices, models: usize| one_price(prices, names[..models].iter().map(String::as_str));
    let one = table(&[("*", "in=1,out=1")]);
    let words = "one price for all models, such as m0, m1, m2, m3; `price` in paceline.toml can have one for each";
    assert_eq!(told(&one, 100).as_deref(), Some(words));
    assert_eq!(told(&one, 2), Some(words.replace(", m2, m3", "")));
    assert_eq!((told(&one, 1), told(&table(&[("m0", "in=1,out=1")]), 2)), (None, None));
}

/// Anthropic's `message_start` has the usage of the prompt, and nothing tells how long the answer came.
#[test]
fn a_stream_that_is_cut_off_counts_with_the_prompt_that_it_told() {
    let price: Prices = "in=1000000,out=1000000".parse::<Price>().expect("a price").into();
    let limits = Limits { job_cost: "10000".parse().ok(), ..Limits::default() };
    let budget = Budget::new(limits, price.clone(), &[], false);
    let call = |used: Usage, came: u64| {
        let expected = Expected { dearer: 25, ..bounded(1_000, 50) };
        let call = budget.reserve(expected).now_or_never().expect("at once").expect("fits");
        let counted = call.cut_off(true).settle(Some(used), || came);
        (priced_input(&price, &counted), counted.tokens_out)
    };
    let read = Usage { cached_tokens: 900, cached_price: -81_000, cache_price: -81_000, ..tokens(1_000, 0) };
    assert_eq!(call(read, 0), (190, 50), "the answer as reserved");
    assert_eq!(call(Usage { output_tokens: 7, ..read }, 7), (190, 7), "it told all of its answer, and not its end");
    assert_eq!(call(Usage::default(), 0), (0, 0), "it told nothing");
}
