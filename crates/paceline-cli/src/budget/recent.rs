//! What calls used, all of the job or the last ones, and what those to come would use by that: of a job whose first calls wrote a
//! cache, or had the longest prompts, the mean of all says too much.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use paceline_providers::Usage;

use super::words::ALIKE;
use super::{Budget, BudgetKind, Ledger, Sum, mean};

/// So many calls are kept; the later half of them is what the last calls used.
const KEPT: usize = 100;

/// Fewer calls say nothing.
const LEAST: usize = 8;

/// Items that are left, and what has ended of the job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    pub(crate) items: u64,
    /// The bytes of their lines in the input; 0 where that is not known.
    pub(crate) bytes: u64,
    /// Those of the lines that were sent and have ended.
    pub(crate) ended_bytes: u64,
    /// How many of the items ask for which model; empty where that is not known.
    pub(crate) by_model: BTreeMap<Arc<str>, u64>,
}

/// What a call used, or several together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Call {
    pub(super) all: Sum,
    /// What of that is its answer's.
    pub(super) answer: Sum,
    /// The bytes of its line in the input.
    pub(super) bytes: u64,
}

impl Call {
    fn and(mut self, other: &Self) -> Self {
        self.all.combine(&other.all, u64::saturating_add);
        self.answer.combine(&other.answer, u64::saturating_add);
        Self { bytes: self.bytes.saturating_add(other.bytes), ..self }
    }

    fn prompt(&self, purse: BudgetKind) -> u64 {
        self.all.of(purse).saturating_sub(self.answer.of(purse))
    }

    /// What those that are left would use if they did as these so many calls: prompts in proportion to the length of their lines,
    /// each rounded up.
    fn of_rest(&self, calls: u64, purse: BudgetKind, left: &Left) -> u64 {
        let all = self.all.of(purse);
        let needed = if self.bytes == 0 || left.bytes == 0 {
            u128::from(all / calls.max(1)) * u128::from(left.items)
        } else {
            share(self.prompt(purse), left.bytes, self.bytes) + share(self.answer.of(purse), left.items, calls)
        };
        u64::try_from(needed).unwrap_or(u64::MAX).saturating_add(left.items)
    }
}

fn share(part: u64, of: u64, all: u64) -> u128 {
    u128::from(part) * u128::from(of) / u128::from(all.max(1))
}

/// Lines that differ less in length say nothing of the form around their texts.
const UNLIKE: u64 = 2;

/// What those that are left would use if they did as these calls: where their lines are of many lengths, with so much for each
/// prompt and so much for each byte as fits these best. In proportion alone a long prompt says too much of short ones.
fn rest_of<'a>(calls: impl Iterator<Item = &'a Call> + Clone, purse: BudgetKind, left: &Left) -> u64 {
    let (all, number) = (calls.clone().fold(Call::default(), Call::and), calls.clone().count() as u64);
    let lengths = || calls.clone().map(|call| call.bytes);
    let is_unlike = lengths().max() > lengths().min().map(|least| least.saturating_mul(UNLIKE));
    if all.bytes == 0 || left.bytes == 0 || !is_unlike {
        return all.of_rest(number, purse, left);
    }
    let mean = |sum: u64| sum as f64 / number as f64;
    let (mean_bytes, mean_prompt) = (mean(all.bytes), mean(all.prompt(purse)));
    let (mut spread, mut together) = (0.0, 0.0);
    for call in calls {
        let off = call.bytes as f64 - mean_bytes;
        spread += off * off;
        together += off * (call.prompt(purse) as f64 - mean_prompt);
    }
    let each_byte = together / spread;
    let of_items = (mean_prompt - each_byte * mean_bytes) * left.items as f64;
    let prompts = (of_items + each_byte * left.bytes as f64).max(0.0).round() as u64;
    let answers = share(all.answer.of(purse), left.items, number);
    prompts.saturating_add(u64::try_from(answers).unwrap_or(u64::MAX)).saturating_add(left.items)
}

/// What calls of each model used over all runs, and how many they were.
#[derive(Debug, Default)]
pub(super) struct ByModel(BTreeMap<Arc<str>, (u64, Sum)>);

impl ByModel {
    pub(super) fn add(&mut self, model: &Arc<str>, calls: u64, used: &Sum) {
        let (all, sum) = self.0.entry(Arc::clone(model)).or_default();
        *all += calls;
        sum.combine(used, u64::saturating_add);
    }

    /// What those that are left would use if each did as its model's calls on average, where that is another mixture of models
    /// than was called, and all of them were.
    fn of_rest(&self, purse: BudgetKind, left: &Left) -> Option<u64> {
        let items: u64 = left.by_model.values().sum();
        if self.0.len() < 2 || items == 0 {
            return None;
        }
        let of_model = |(model, items): (&Arc<str>, &u64)| {
            let (calls, used) = self.0.get(model).filter(|(calls, _)| *calls > 0)?;
            Some(share(used.of(purse), *items, *calls))
        };
        let all = left.by_model.iter().map(of_model).sum::<Option<u128>>()?;
        let (calls, used) = self.0.values().fold((0, 0), |sum, (calls, used)| (sum.0 + calls, sum.1 + used.of(purse)));
        let (as_so_far, alike) = (share(used, items, calls), u128::from(ALIKE));
        if all.abs_diff(as_so_far) * alike <= all.max(as_so_far) {
            return None;
        }
        // Some of them may be counted otherwise.
        let all = all * u128::from(left.items) / u128::from(items);
        Some(u64::try_from(all).unwrap_or(u64::MAX).saturating_add(left.items))
    }
}

impl Budget {
    /// Whether the models that items ask for matter to what they are likely to use.
    pub(crate) fn tells_models_apart(&self) -> bool {
        self.ledger().by_model.0.len() > 1
    }
}

/// What calls of this run used, of the last of them.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Call>);

impl Recent {
    pub(super) fn add(&mut self, call: Call) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    /// Those of the later half.
    fn later(&self) -> impl Iterator<Item = &Call> + Clone {
        self.0.range(self.0.len() / 2..)
    }

    /// The mean of the later half; none before the first call.
    pub(super) fn mean(&self, purse: BudgetKind) -> Option<u64> {
        let all = self.later().fold(Call::default(), Call::and);
        all.all.of(purse).checked_div(self.later().count() as u64)
    }
}

impl Ledger {
    /// What a call has used so far on average: the guess for one whose answer has no bound of its own.
    pub(super) fn mean(&self) -> Usage {
        mean(&self.job.usage, self.calls)
    }

    /// What those that are left would use if they did as all calls of the job, and as the last ones of this run; none before the
    /// first call.
    pub(super) fn of_rest(&self, purse: BudgetKind, left: &Left) -> Option<[u64; 2]> {
        if let Some(rest) = self.by_model.of_rest(purse, left) {
            return Some([rest; 2]);
        }
        let all = (self.calls > 0).then(|| Call { all: self.job, answer: self.answers(), bytes: left.ended_bytes })?;
        let (kept, calls) = (&self.recent.0, self.recent.0.len() as u64);
        let all =
            if self.calls == calls { rest_of(kept.iter(), purse, left) } else { all.of_rest(self.calls, purse, left) };
        Some([all, if kept.len() >= LEAST { rest_of(self.recent.later(), purse, left) } else { all }])
    }
}

#[cfg(test)]
mod tests {
    use paceline_config::Prices;
    use paceline_store::ModelUsage;

    use super::*;
    use crate::budget::Limits;

    #[test]
    fn what_is_left_costs_as_its_models_do() {
        let used = |model: &str, calls, tokens_in| ModelUsage {
            model: model.into(),
            calls,
            tokens_in,
            ..ModelUsage::default()
        };
        let before = [used("small", 90, 900), used("large", 10, 10_000)];
        let budget = Budget::new(Limits::default(), Prices::default(), &before, false);
        let rest = |by_model: &[(&str, u64)]| {
            let by_model: BTreeMap<_, _> = by_model.iter().map(|(model, items)| (Arc::from(*model), *items)).collect();
            let left = Left { items: 100, by_model, ..Left::default() };
            budget.ledger().of_rest(BudgetKind::JobTokens, &left).expect("calls were made")
        };
        assert_eq!(rest(&[("large", 100)]), [100 * 1_000 + 100; 2]);
        assert_eq!(rest(&[("large", 10), ("small", 90)]), [10 * 1_000 + 90 * 10 + 100; 2]);
        for unknown in [&[][..], &[("new", 1), ("large", 99)]] {
            assert_eq!(rest(unknown), [109 * 100 + 100; 2], "the mean of all calls");
        }
        let budget = Budget::new(Limits::default(), Prices::default(), &before[..1], false);
        assert!(!budget.tells_models_apart());
    }

    #[test]
    fn what_is_left_costs_as_the_length_of_its_lines_says() {
        let of = |input_tokens, output_tokens| Sum {
            usage: Usage { input_tokens, output_tokens, ..Usage::default() },
            ..Sum::default()
        };
        // A token for four bytes, but for the 200 of the form.
        let call = |bytes: u64| Call { all: of((bytes - 200) / 4 + 7, 20), answer: of(0, 20), bytes };
        let rest = |calls: &[u64], left: Left| {
            let calls: Vec<_> = calls.iter().map(|bytes| call(*bytes)).collect();
            rest_of(calls.iter(), BudgetKind::JobTokens, &left)
        };
        let left = |items, bytes| Left { items, bytes, ..Left::default() };
        assert_eq!(rest(&[60_000, 340, 340, 340], left(100, 34_000)), 100 * (42 + 20 + 1));
        assert_eq!(rest(&[20_000, 19_000, 9_000], left(10, 10_000)), 10 * (207 + 20 + 1));
        assert_eq!(rest(&[340, 340], left(100, 34_000)), 100 * (42 + 20 + 1));
        assert_eq!(rest(&[340, 340], left(100, 0)), 100 * (62 + 1), "of lines of unknown length");
        assert_eq!(rest(&[340, 600], left(10, 4_000)), 149 * 4_000 / 940 + 200 + 10);
    }
}
