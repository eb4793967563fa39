//! What calls may use: tokens of one run, and tokens and money of the job over all its runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_config::{Money, Prices};
use paceline_providers::Usage;
use paceline_store::ModelUsage;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::text;

/// A bound on what calls use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetKind {
    /// `--max-tokens`: of this run.
    RunTokens,
    /// `--budget-tokens`: of the job, over all its runs.
    JobTokens,
    /// `--budget-cost`: likewise, in money.
    JobCost,
}

impl BudgetKind {
    /// The flag that sets it.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::RunTokens => "--max-tokens",
            Self::JobTokens => "--budget-tokens",
            Self::JobCost => "--budget-cost",
        }
    }
}

/// A purse that the next call does not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) purse: BudgetKind,
    /// What that call would reserve, in the units of the purse.
    next: u64,
}

/// How large the purses are; none has no end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) run_tokens: Option<u64>,
    pub(crate) job_tokens: Option<u64>,
    pub(crate) job_cost: Option<Money>,
}

impl Limits {
    /// Whether they hold over all runs of the job, so that a kill must not lose what a call reserved.
    pub(crate) const fn are_of_job(self) -> bool {
        self.job_tokens.is_some() || self.job_cost.is_some()
    }

    fn all(self) -> impl Iterator<Item = (BudgetKind, u64)> {
        let tokens = [(BudgetKind::RunTokens, self.run_tokens), (BudgetKind::JobTokens, self.job_tokens)];
        let cost = (BudgetKind::JobCost, self.job_cost.map(Money::units));
        tokens.into_iter().chain([cost]).filter_map(|(purse, limit)| Some((purse, limit?)))
    }
}

/// What a call is expected to use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The model that its price is of; empty when it names none.
    pub(crate) model: Arc<str>,
    pub(crate) usage: Usage,
    /// The most tokens that its prompt can have: more than expected while no answer has told how long prompts are.
    pub(crate) longest_input: u64,
    /// The request sets a bound on its answer.
    pub(crate) bounded: bool,
}

/// What has been used of what there is, for people and scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Tokens of the job, and how many it may use.
    pub(crate) tokens: Option<(u64, u64)>,
    /// Money of the job where prices are known, and how much it may use.
    pub(crate) cost: Option<(Money, Option<Money>)>,
    /// Calls that all the purses are still good for, if they use what calls have used so far.
    pub(crate) calls_left: Option<u64>,
}

impl Used {
    /// Null where nothing is bounded and no price is known.
    pub(crate) fn json(&self) -> Value {
        if self.tokens.is_none() && self.cost.is_none() {
            return Value::Null;
        }
        json!({
            "tokens": self.tokens.map(|(used, of)| json!({ "used": used, "limit": of })),
            "cost": self.cost.map(|(used, of)| json!({ "used": used.as_f64(), "limit": of.map(Money::as_f64) })),
        })
    }

    /// `1,240 of 5,000 tokens`, `3.21 of 5.00 spent`.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        let tokens = self.tokens.map(|(used, of)| format!("{} of {} tokens", text::count(used), text::count(of)));
        let cost = self.cost.map(|(used, of)| match of {
            Some(of) => format!("{used} of {of} spent"),
            None => format!("{used} spent"),
        });
        tokens.into_iter().chain(cost)
    }
}

/// Keeps what calls use within the purses. A call reserves what it is expected to use before it waits for its permit, and
/// its answer replaces that by the actual usage.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: Limits,
    prices: Prices,
    /// A configured limit counts answers too: how long they are has to be known before calls leave side by side.
    learns: bool,
    ledger: Mutex<Ledger>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct Ledger {
    run: Sum,
    /// Over all runs.
    job: Sum,
    /// Calls of the job that used something, or may have.
    calls: u64,
    /// Calls that have ended, and told what calls use here if any does.
    known: u64,
    reserved: Sum,
    /// Calls that hold something.
    open: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    usage: Usage,
    cost: Money,
}

impl Sum {
    /// In the units of a purse.
    const fn of(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens | BudgetKind::JobTokens => self.usage.total(),
            BudgetKind::JobCost => self.cost.units(),
        }
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.usage.input_tokens = with(self.usage.input_tokens, other.usage.input_tokens);
        self.usage.output_tokens = with(self.usage.output_tokens, other.usage.output_tokens);
        self.cost = Money::from_units(with(self.cost.units(), other.cost.units()));
    }
}

impl Ledger {
    const fn used(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens => self.run.of(purse),
            BudgetKind::JobTokens | BudgetKind::JobCost => self.job.of(purse),
        }
    }

    /// What a call has used so far on average: the guess for one whose answer has no bound of its own.
    fn mean(&self) -> Usage {
        let Usage { input_tokens, output_tokens, .. } = self.job.usage;
        let mean = |tokens: u64| tokens.checked_div(self.calls).unwrap_or(0);
        Usage { input_tokens: mean(input_tokens), output_tokens: mean(output_tokens), units: 0 }
    }
}

impl Budget {
    /// A budget of a job whose runs before used `before`. It `learns` how long answers are where a configured limit counts them.
    pub(crate) fn new(limits: Limits, prices: Prices, before: &[ModelUsage], learns: bool) -> Self {
        let mut ledger = Ledger::default();
        for ModelUsage { model, calls, tokens_in, tokens_out } in before {
            let usage = Usage { input_tokens: *tokens_in, output_tokens: *tokens_out, units: 0 };
            let cost = prices.of(model).of(*tokens_in, *tokens_out);
            ledger.job.combine(&Sum { usage, cost }, u64::saturating_add);
            ledger.calls += calls;
            // Each run learns anew what a limit counts.
            ledger.known += if *tokens_out > 0 && !learns { *calls } else { 0 };
        }
        Self { limits, prices, learns, ledger: Mutex::new(ledger), settled: Notify::new() }
    }

    /// Whether calls may wait for it before they wait for a permit: it has an end, or something to learn first.
    pub(crate) fn may_wait(&self) -> bool {
        self.learns || self.has_an_end()
    }

    /// Whether calls are counted against anything.
    pub(crate) fn has_an_end(&self) -> bool {
        self.limits.all().next().is_some()
    }

    /// Whether a configured limit counts answers, whose length is learnt first.
    pub(crate) const fn learns(&self) -> bool {
        self.learns
    }

    /// Whether it [is of the job](Limits::are_of_job).
    pub(crate) const fn is_of_job(&self) -> bool {
        self.limits.are_of_job()
    }

    /// Takes what a call may use, waiting while calls under way hold so much that it might not fit; alone it leaves if what it is
    /// expected to use fits. Until an answer has shown what calls use here, those whose answers have no bound leave one by one,
    /// and under a budget no more of them are under way than were answered, lest a short first answer speak for all.
    ///
    /// # Errors
    /// The purse that it does not fit in any more: what has been used stays used.
    pub(crate) async fn reserve(&self, expected: Expected) -> Result<Reserved<'_>, Exceeded> {
        if !self.may_wait() {
            return Ok(Reserved { budget: self, expected, sum: Sum::default(), held: Sum::default() });
        }
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut ledger = self.ledger();
                let sum = self.sum(&expected.model, larger(expected.usage, ledger.mean()));
                let longest = Usage { input_tokens: expected.longest_input, ..Usage::default() };
                let held = self.sum(&expected.model, larger(sum.usage, longest));
                let is_new = ledger.known < ledger.open && (ledger.known == 0 || self.has_an_end());
                let mut waits = !expected.bounded && is_new;
                for (purse, limit) in self.limits.all() {
                    let (tokens, free) = (sum.of(purse), limit.saturating_sub(ledger.used(purse)));
                    if tokens > free || free == 0 {
                        return Err(Exceeded { purse, next: tokens });
                    }
                    waits |= ledger.open > 0 && ledger.reserved.of(purse).saturating_add(held.of(purse)) > free;
                }
                if !waits {
                    ledger.reserved.combine(&held, u64::saturating_add);
                    ledger.open += 1;
                    return Ok(Reserved { budget: self, expected, sum, held });
                }
            }
            settled.await;
        }
    }

    /// A purse that the rest of the job seems to fit into: what has been used by now, what the call would use that did not fit,
    /// and for each other item of those `left` what calls use here. A sum, as the flag of the purse takes it.
    pub(crate) fn enough(&self, exceeded: Exceeded, left: u64) -> String {
        let (ledger, Exceeded { purse, next }) = (self.ledger(), exceeded);
        let each = ledger.job.of(purse).checked_div(ledger.calls).map_or(next, |mean| mean.saturating_add(1));
        let others = each.saturating_mul(left.saturating_sub(1));
        let sum = ledger.used(purse).saturating_add(next).saturating_add(others);
        match purse {
            BudgetKind::RunTokens | BudgetKind::JobTokens => sum.to_string(),
            BudgetKind::JobCost => Money::from_units(sum).rounded_up().to_string(),
        }
    }

    /// What has been used.
    pub(crate) fn used(&self) -> Used {
        let ledger = self.ledger();
        let mean = self.limits.all().map(|(purse, limit)| {
            let used = ledger.used(purse);
            // Of this run alone it is not known how many calls there were; a call uses what those of the job use.
            let mean = ledger.job.of(purse).checked_div(ledger.calls).filter(|mean| *mean > 0)?;
            Some(limit.saturating_sub(used) / mean)
        });
        Used {
            tokens: self.limits.job_tokens.map(|limit| (ledger.job.usage.total(), limit)),
            cost: (!self.prices.is_empty()).then_some((ledger.job.cost, self.limits.job_cost)),
            calls_left: mean.flatten().min(),
        }
    }

    fn sum(&self, model: &str, usage: Usage) -> Sum {
        Sum { usage, cost: self.prices.of(model).of(usage.input_tokens, usage.output_tokens) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn larger(a: Usage, b: Usage) -> Usage {
    let (input_tokens, output_tokens) = (a.input_tokens.max(b.input_tokens), a.output_tokens.max(b.output_tokens));
    Usage { input_tokens, output_tokens, units: 0 }
}

/// What a call has taken from the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    budget: &'a Budget,
    expected: Expected,
    /// What it is expected to use.
    sum: Sum,
    /// What nothing else may use meanwhile.
    held: Sum,
}

impl Reserved<'_> {
    /// What the call counts with while its use is not known.
    pub(crate) fn expected(&self) -> ModelUsage {
        self.usage(larger(self.expected.usage, self.sum.usage), 1)
    }

    /// The call is over and used that; `None`: as much as expected, and where the request set no bound no less than the tokens
    /// that `came`. Returns what it counts with.
    pub(crate) fn settle(self, used: Option<Usage>, came: impl FnOnce() -> u64) -> ModelUsage {
        let counted = match used {
            Some(used) => self.usage(used, u64::from(used.total() > 0)),
            None if self.expected.bounded => self.expected(),
            None => {
                let expected = self.expected();
                ModelUsage { tokens_out: expected.tokens_out.max(came()), ..expected }
            }
        };
        let usage = Usage { input_tokens: counted.tokens_in, output_tokens: counted.tokens_out, units: 0 };
        let sum = self.budget.sum(&counted.model, usage);
        let mut ledger = self.budget.ledger();
        ledger.run.combine(&sum, u64::saturating_add);
        ledger.job.combine(&sum, u64::saturating_add);
        ledger.calls += counted.calls;
        ledger.known += counted.calls;
        counted
    }

    fn usage(&self, usage: Usage, calls: u64) -> ModelUsage {
        let Usage { input_tokens, output_tokens, .. } = usage;
        ModelUsage {
            model: Arc::clone(&self.expected.model),
            calls,
            tokens_in: input_tokens,
            tokens_out: output_tokens,
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.budget.may_wait() {
            let mut ledger = self.budget.ledger();
            ledger.reserved.combine(&self.held, u64::saturating_sub);
            ledger.open -= 1;
            drop(ledger);
            self.budget.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn tokens(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, units: 0 }
    }

    fn bounded(input_tokens: u64, output_tokens: u64) -> Expected {
        Expected { model: "m".into(), usage: tokens(input_tokens, output_tokens), longest_input: 0, bounded: true }
    }

    #[test]
    fn without_a_bound_nothing_waits() {
        let budget = Budget::default();
        let first = budget.reserve(Expected::default()).now_or_never().expect("at once").expect("no end");
        let second = budget.reserve(bounded(u64::MAX, 1)).now_or_never().expect("at once").expect("no end");
        assert_eq!(
            first.settle(Some(tokens(3, 2)), || 0),
            ModelUsage { model: "".into(), calls: 1, tokens_in: 3, tokens_out: 2 }
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
        assert_eq!((exceeded.purse, budget.enough(exceeded, 1)), (BudgetKind::RunTokens, "101".to_owned()));
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
        let before = [ModelUsage { model: "m".into(), calls: 2, tokens_in: 600, tokens_out: 200 }];
        let price: Prices = "in=1000000,out=500000".parse::<paceline_config::Price>().expect("a price").into();
        let used = |limits| Budget::new(limits, price.clone(), &before, false).used();
        let found = used(Limits { job_tokens: Some(1_000), job_cost: "1000".parse().ok(), run_tokens: Some(5_000) });
        assert_eq!(found.describe().collect::<Vec<_>>(), ["800 of 1,000 tokens", "700.00 of 1000.00 spent"]);
        assert_eq!(found.calls_left, Some(0), "350 a call, and 300 are left");
        assert_eq!(used(Limits::default()).describe().collect::<Vec<_>>(), ["700.00 spent"]);

        let limits = Limits { job_cost: "1000".parse().ok(), ..Limits::default() };
        let budget = Budget::new(limits, price, &before, false);
        let reserved = budget.reserve(bounded(1, 1)).now_or_never().expect("at once");
        let exceeded = reserved.expect_err("calls cost 350 here");
        assert_eq!((exceeded.purse, budget.enough(exceeded, 1)), (BudgetKind::JobCost, "1050.00".to_owned()));
    }

    #[test]
    fn prompts_hold_as_much_as_they_can_have_until_they_are_known() {
        let limits = Limits { job_tokens: Some(100), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let reserve = || budget.reserve(Expected { longest_input: 60, ..bounded(10, 5) }).now_or_never();
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
        let reserve = || budget.reserve(Expected { bounded: false, ..bounded(1, 0) }).now_or_never();
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
    fn answers_without_a_bound_come_one_by_one_until_one_is_known() {
        let limits = Limits { job_tokens: Some(100), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let reserve = || budget.reserve(Expected { bounded: false, ..bounded(1, 0) }).now_or_never();
        let refused = reserve().expect("at once").expect("fits");
        assert!(reserve().is_none(), "nothing is known of answers");
        refused.settle(Some(Usage::default()), || 0);
        let first = reserve().expect("a refusal tells nothing, and is over").expect("fits");
        first.settle(Some(tokens(1, 39)), || 0);
        let second = reserve().expect("known").expect("40 of 60");
        assert!(reserve().is_none(), "40 are left when the second uses what the first did");
        second.settle(Some(tokens(1, 69)), || 0);
        let exceeded = reserve().expect("at once").expect_err("over");
        assert_eq!((exceeded.purse, budget.enough(exceeded, 1)), (BudgetKind::JobTokens, "165".to_owned()));
        assert_eq!(budget.enough(exceeded, 3), "277", "a call used 55, rounded up");
    }
}
