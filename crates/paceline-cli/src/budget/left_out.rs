//! Items whose calls do not fit into what is left, while others do: those go first, and these wait for a larger budget.

use paceline_config::Money;
use paceline_providers::Usage;

use super::{Amount, Budget, BudgetKind, Exceeded, Expected, Ledger, Sum};
use crate::text;

/// So many are left out by a run: each has to be read to find that out.
const MOST: u64 = 10_000;

/// The items that a run has left out so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    pub(super) items: u64,
    /// The bytes of their lines.
    pub(super) bytes: u64,
    /// What they use likely, all together.
    likely: Amount,
    /// The most that one of them has to find room for beyond that, once a prompt like its own was answered.
    beyond: Amount,
    /// The most that one has to find room for.
    largest: Amount,
    /// The first of them in the input.
    first: Option<Exceeded>,
}

impl LeftOut {
    pub(super) fn add(&mut self, exceeded: Exceeded) {
        self.items += 1;
        self.bytes = self.bytes.saturating_add(exceeded.bytes);
        self.likely.combine(&exceeded.likely, u64::saturating_add);
        let mut beyond = exceeded.once_known;
        beyond.combine(&exceeded.likely, u64::saturating_sub);
        self.beyond.combine(&beyond, u64::max);
        self.largest.combine(&exceeded.next, u64::max);
        if self.first.is_none_or(|first| exceeded.line < first.line) {
            self.first = Some(exceeded);
        }
    }

    /// What they need all together: the last of them has to find room for all that it may use, and each for what it asks for.
    pub(super) fn needs(&self, purse: BudgetKind) -> u64 {
        self.likely.of(purse).saturating_add(self.beyond.of(purse)).max(self.largest.of(purse))
    }

    /// Whether it is one of them.
    pub(super) fn has(&self, exceeded: &Exceeded) -> bool {
        self.first.is_some_and(|first| first.line == exceeded.line)
    }
}

impl Ledger {
    /// Whether what is free of a purse is enough for a usual call: as the last calls of this run asked for, or before the first
    /// of them as calls used.
    pub(super) fn has_room(&self, purse: BudgetKind, free: u64) -> bool {
        let usual = self.asked.mean(purse).or_else(|| self.job.of(purse).checked_div(self.calls));
        free > 0 && usual.unwrap_or(0) <= free
    }

    /// What a call uses here on average, rounded up.
    fn usual(&self) -> Sum {
        let Usage { input_tokens, output_tokens, .. } = self.mean();
        let cost = self.job.cost.units().checked_div(self.calls).unwrap_or(0);
        Sum {
            usage: Usage { input_tokens: input_tokens + 1, output_tokens: output_tokens + 1, ..Usage::default() },
            cost: Money::from_units(cost + 1),
        }
    }
}

/// A call that may use so many times what calls use here is of another kind; of less an estimate may be wrong.
const UNUSUAL: u64 = 4;

impl Budget {
    /// What a call uses likely that asks for so much: its answer is no longer than those of others; and what it would ask for
    /// once a prompt like its own was answered.
    pub(super) fn likely(&self, ledger: &Ledger, expected: &Expected, asked: &Sum) -> [Sum; 2] {
        if ledger.calls == 0 {
            return [*asked; 2];
        }
        let usual = ledger.usual();
        let input_tokens = match expected.prompt.greatest {
            Some(_) => expected.usage.input_tokens.max(expected.prompt.expected).min(asked.usage.input_tokens),
            None => asked.usage.input_tokens,
        };
        let once_known = self.expected(expected, Usage { input_tokens, ..asked.usage });
        let output_tokens = asked.usage.output_tokens.min(usual.usage.output_tokens);
        let likely = self.expected(expected, Usage { output_tokens, ..once_known.usage });
        let is_usual = likely.usage.total() <= usual.usage.total().saturating_mul(UNUSUAL);
        let mut likely = if is_usual { usual } else { likely };
        likely.combine(&once_known, u64::min);
        [likely, once_known]
    }

    /// Whether the item of a call that does not fit is left out, so that others go first: not where these do not fit either.
    pub(crate) fn leaves_out(&self, exceeded: Exceeded) -> bool {
        let mut ledger = self.ledger();
        if !exceeded.others_fit || ledger.left_out.items >= MOST {
            return false;
        }
        ledger.left_out.add(exceeded);
        let is_first = ledger.left_out.items == 1;
        drop(ledger);
        if is_first {
            let [next, left] = exceeded.next_and_left();
            let line = exceeded.line.map(|line| format!(" of line {line}")).unwrap_or_default();
            let waits_for = if exceeded.purse == BudgetKind::RunTokens { "the next run" } else { "a larger budget" };
            tracing::warn!(
                "the call{line} may use {next}, and {left} are left of {}: it waits for {waits_for}, and calls that fit go first",
                exceeded.flag()
            );
        }
        true
    }

    /// The first item in the input that was left out, with what is used by now.
    pub(crate) fn left_out(&self) -> Option<Exceeded> {
        let ledger = self.ledger();
        let first = ledger.left_out.first?;
        Some(Exceeded { used: ledger.used(first.purse), ..first })
    }

    /// That nothing of all that is `left` fits, or how many items do not, where that is more than one.
    pub(super) fn others_left_out(&self, left: u64) -> String {
        match self.ledger().left_out.items {
            0 | 1 => String::new(),
            items if items == left => format!("; none of the {} fits", text::counted(items, "item") + " that are left"),
            items => format!("; {} do not fit", text::counted(items, "item")),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use paceline_config::Prices;
    use paceline_providers::PromptTokens;

    use super::super::tests::{bounded, left, tokens};
    use super::super::{Limits, Reserved};
    use super::*;

    fn budget(limits: Limits) -> Budget {
        Budget::new(limits, Prices::default(), &[], false)
    }

    fn ask(budget: &Budget, expected: Expected) -> Result<Reserved<'_>, Box<Exceeded>> {
        budget.reserve(expected).now_or_never().expect("nothing is under way").map_err(Box::new)
    }

    /// Short prompts teach too few tokens for a long one.
    #[test]
    fn a_prompt_leaves_alone_only_if_what_it_likely_has_fits() {
        let budget = budget(Limits { job_tokens: Some(100), ..Limits::default() });
        let long = |likely| {
            let prompt = PromptTokens { likely, most: likely, ..PromptTokens::default() };
            Expected { prompt, ..bounded(10, 5) }
        };
        ask(&budget, bounded(10, 5)).expect("fits").settle(Some(tokens(10, 5)), || 0);
        let exceeded = ask(&budget, long(81)).expect_err("86 of 85");
        assert_eq!((exceeded.next(), exceeded.others_fit), (86, true));
        let call = ask(&budget, long(80)).expect("85 of 85");
        assert_eq!(call.settle(None, || 0).tokens_in, 10, "what is expected counts");
    }

    #[test]
    fn what_does_not_fit_lets_others_go_first_and_the_sum_of_it_is_told() {
        let budget = budget(Limits { job_tokens: Some(1_000), ..Limits::default() });
        let leave_out = |line| {
            let exceeded = ask(&budget, bounded(5_000, 80)).expect_err("it has 5,080").at_line(line);
            (budget.leaves_out(exceeded), exceeded)
        };
        assert!(leave_out(9).0, "before anything is known");
        for _ in 0..10 {
            ask(&budget, bounded(10, 80)).expect("fits").settle(Some(tokens(10, 10)), || 0);
        }
        assert!(leave_out(3).0 && leave_out(4).0);
        let first = budget.left_out().expect("three");
        assert_eq!((first.line, first.next_and_left()), (Some(3), ["5,080".to_owned(), "800".to_owned()]));
        // Before the first answer no answer was known to be shorter than its bound.
        let needed = 5_080 + 5_011 + 5_011 + 69;
        assert_eq!(budget.needed(first, &left(3)), [needed; 2], "and the last has room for the rest of its bound");
        assert_eq!(budget.needed(first, &left(5)), [needed + 2 * 21; 2]);
        let enough = budget.enough(first, &left(3));
        assert!(enough.words.contains("the next call (line 3) may use 5,080; none of the 3 items that are left fits."));
        assert_eq!(enough.amount, (200 + needed).to_string());
        assert!(budget.enough(first, &left(5)).words.contains("; 3 items do not fit."));
        // Nothing usual fits any more: the run ends.
        ask(&budget, bounded(10, 80)).expect("fits").settle(Some(tokens(10, 740)), || 0);
        let (is_left_out, exceeded) = leave_out(5);
        assert!(!is_left_out && !budget.ledger().left_out.has(&exceeded));
        let mean = (200 + 750_u64).div_ceil(11);
        assert!(budget.needed(exceeded, &left(5))[1] >= needed + 5_000 + 77 + mean);
    }

    /// Each run has all of it.
    #[test]
    fn a_bound_of_a_run_that_is_enough_has_no_room_for_what_was_used() {
        let budget = budget(Limits { run_tokens: Some(100), ..Limits::default() });
        ask(&budget, bounded(30, 10)).expect("fits").settle(Some(tokens(30, 10)), || 0);
        let exceeded = ask(&budget, bounded(300, 10)).expect_err("310 of 100").at_line(2);
        assert!(budget.leaves_out(exceeded));
        let enough = budget.enough(budget.left_out().expect("one"), &left(1));
        assert_eq!((enough.flag, enough.amount.as_str()), ("--max-tokens", "310"), "{}", enough.words);
    }
}
