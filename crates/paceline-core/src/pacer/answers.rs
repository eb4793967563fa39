//! Calls whose answers have no bound: how long they are is learnt, and reserved under limits that count them.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::cost::{Cost, Dimension};
use crate::outcome::{Class, Outcome};
use crate::queue::Slot;

/// The last answers weigh in with at least this share, so that a changed kind of answer is learnt.
const LEAST_WEIGHT: f64 = 0.05;

/// An answer beside others reserves the mean length and so many mean deviations. Where one in twenty takes two fifths of the
/// limit, half of the limit is used with 3 and 0.58 with 2, which exceeds it by 45 % in the worst minute of a job, and 3 by 29 %.
const DEVIATIONS: f64 = 3.0;

/// How long the answers of one scope are.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    /// Calls that were answered.
    known: u32,
    /// Answers that told their length.
    told: u32,
    mean: f64,
    deviation: f64,
    /// Calls under way.
    open: u32,
}

impl Lengths {
    fn add(&mut self, tokens: u64) {
        let tokens = tokens as f64;
        self.told = self.told.saturating_add(1);
        if self.told == 1 {
            (self.mean, self.deviation) = (tokens, tokens / 2.0);
            return;
        }
        let weight = (1.0 / f64::from(self.told)).max(LEAST_WEIGHT);
        let off = tokens - self.mean;
        self.deviation += (off.max(-off) - self.deviation) * weight;
        self.mean += off * weight;
    }

    /// What an answer reserves beside so many others; none before one told its length. One alone errs by no more than its own
    /// length.
    fn expected(&self, beside: u32) -> Option<u64> {
        let deviations = if beside == 0 { 0.0 } else { DEVIATIONS };
        // A part of a token counts as one.
        (self.told > 0).then(|| (self.mean + deviations * self.deviation) as u64 + 1)
    }
}

/// How long the answers of calls without a bound are, by the places of their scopes.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    scopes: BTreeMap<u32, Lengths>,
    /// Of all scopes: for one of which nothing is known.
    all: Lengths,
}

impl Answers {
    /// A call left.
    pub(super) fn sent(&mut self, place: u32, cost: &Cost) {
        if cost.is_open_ended() {
            self.scopes.entry(place).or_default().open += 1;
        }
    }

    /// A call is no longer under way.
    pub(super) fn ended(&mut self, place: u32, cost: &Cost) {
        if cost.is_open_ended()
            && let Some(lengths) = self.scopes.get_mut(&place)
        {
            lengths.open = lengths.open.saturating_sub(1);
        }
    }

    /// A call was answered, or ended without an answer.
    pub(super) fn learn(&mut self, place: u32, cost: &Cost, outcome: &Outcome) {
        self.ended(place, cost);
        if !cost.is_open_ended() {
            return;
        }
        let Some(lengths) = self.scopes.get_mut(&place) else { return };
        let told = outcome.usage.as_ref().map(|usage| usage.get(&Dimension::OutputTokens)).filter(|tokens| *tokens > 0);
        if told.is_some() || outcome.class == Class::Success {
            lengths.known = lengths.known.saturating_add(1);
        }
        if let Some(tokens) = told {
            lengths.add(tokens);
            self.all.add(tokens);
        }
    }

    /// The scope in that place is gone.
    pub(super) fn forget(&mut self, place: u32) {
        self.scopes.remove(&place);
    }

    fn expected(&self, place: u32) -> Option<u64> {
        let lengths = self.scopes.get(&place);
        let beside = lengths.map_or(0, |lengths| lengths.open);
        lengths.and_then(|lengths| lengths.expected(beside)).or_else(|| self.all.expected(beside))
    }

    fn may_leave(&self, place: u32) -> bool {
        let Lengths { known, open, .. } = self.scopes.get(&place).copied().unwrap_or_default();
        // A short first answer does not speak for all.
        open < known.max(1)
    }
}

impl Pacer {
    /// The smallest configured limit that counts the tokens of answers in that scope.
    fn most_tokens(&self, place: u32) -> Option<u64> {
        [self.quotas.most_tokens(), self.scopes[place].quotas().most_tokens()].into_iter().flatten().min()
    }

    /// Has a cost reserve what answers of its scope have shown. No more than a limit allows: then the call leaves alone.
    pub(super) fn guess_answer(&self, place: u32, cost: &mut Cost) {
        if !cost.is_open_ended() {
            return;
        }
        let Some(expected) = self.answers.expected(place) else { return };
        let input = cost.get(&Dimension::Tokens).saturating_sub(cost.get(&Dimension::OutputTokens));
        let most = self.most_tokens(place).map_or(u64::MAX, |most| most.saturating_sub(input));
        cost.guess_answer(expected.min(most));
    }

    /// The same for a request that waits: answers have come since.
    pub(super) fn guess_anew(&mut self, slot: Slot) {
        if let Cow::Owned(cost) = self.cost_of(slot) {
            self.slots.at_mut(slot).request.cost = cost;
        }
    }

    /// What a request that waits reserves, as far as is known now.
    pub(super) fn cost_of(&self, slot: Slot) -> Cow<'_, Cost> {
        let request = &self.slots.at(slot).request;
        self.cost_in(request.scope.place, &request.cost)
    }

    /// What a call of that cost reserves in that scope.
    pub(super) fn cost_in<'a>(&self, place: u32, cost: &'a Cost) -> Cow<'a, Cost> {
        if !cost.is_open_ended() {
            return Cow::Borrowed(cost);
        }
        let mut guessed = cost.clone();
        self.guess_answer(place, &mut guessed);
        Cow::Owned(guessed)
    }

    /// Before an answer has shown how long they are, calls without a bound leave one at a time under a limit that counts their
    /// answers, and then no more of them are under way than answers can speak for.
    pub(super) fn admit_open_ended(&self, place: u32, cost: &Cost) -> Admit {
        if !cost.is_open_ended() || self.answers.may_leave(place) || self.most_tokens(place).is_none() {
            return Admit::Now;
        }
        Admit::OnRelease { cause: WaitCause::Answers }
    }
}
