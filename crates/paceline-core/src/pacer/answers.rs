//! Calls whose answers have no bound, or one that their server may ignore: how long they are is learnt, and reserved under limits
//! that count them. Prompts that hold more than text, such as pictures: what they have is learnt in the same way.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::alike::Alike;
use crate::cost::{Cost, Dimension};
use crate::outcome::{Class, Outcome};
use crate::queue::Slot;
use crate::state::AnswerLength;

/// The last answers weigh in with at least this share, so that a changed kind of answer is learnt.
const LEAST_WEIGHT: f64 = 0.05;

/// An answer beside others reserves the mean length and so many mean deviations. Where one in twenty takes two fifths of the
/// limit, half of the limit is used with 3 and 0.58 with 2, which exceeds it by 45 % in the worst minute of a job, and 3 by 29 %.
const DEVIATIONS: f64 = 3.0;

/// Where nothing is known of a server, its answers are taken for no longer than a quarter of this, in tokens: as many calls
/// as a limit holds so many tokens take a quarter of it, whatever bounds the server ignores.
const UNKNOWN: u64 = 4 * 4_096;

/// So long is an answer that a caller may ask for, whatever its last ones had: an answer without a bound of a chat.
const LONG: u64 = 4_096;

/// So many calls are believed however small their limit is: they take little together.
const LEAST_BELIEVED: u64 = 4;

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

/// What is known of the answers of one scope.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// To calls without a bound.
    open: Lengths,
    /// To calls with a bound that the server may ignore.
    bounded: Lengths,
    /// Calls whose prompts hold more than text.
    mixed: Alike,
    /// One of those was longer than its bound: none is believed any more.
    beyond: bool,
    /// So many of those have kept to their bounds since the last one that did not.
    kept: u32,
}

impl Known {
    /// Those to calls of that cost; none where the cost says all.
    const fn lengths(&self, cost: &Cost) -> Option<&Lengths> {
        if cost.is_open_ended() {
            Some(&self.open)
        } else if cost.is_unproven() {
            Some(&self.bounded)
        } else {
            None
        }
    }

    const fn lengths_mut(&mut self, cost: &Cost) -> Option<&mut Lengths> {
        if cost.is_open_ended() {
            Some(&mut self.open)
        } else if cost.is_unproven() {
            Some(&mut self.bounded)
        } else {
            None
        }
    }

    /// How many calls like this one may be under way together, under a limit on so many tokens: a short first answer does not
    /// speak for all, and a server may keep to bounds at first. So each answer speaks for one more, and they double from round
    /// to round. Of a large limit a few that ignore their bounds take little.
    fn most_open(&self, cost: &Cost, limit: u64) -> u32 {
        let answered = match cost.is_unproven() {
            true if self.beyond => self.kept,
            true => self.kept.max(u32::try_from(limit / UNKNOWN).unwrap_or(u32::MAX)),
            false => self.open.known,
        };
        answered.max(1)
    }
}

/// How long answers are, by the places of their scopes.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    scopes: BTreeMap<u32, Known>,
    /// To calls without a bound of all scopes: for one of which nothing is known.
    all: Lengths,
}

impl Answers {
    /// A call left.
    pub(super) fn sent(&mut self, place: u32, cost: &Cost) {
        if cost.is_open_ended() || cost.is_unproven() || cost.is_mixed() {
            let known = self.scopes.entry(place).or_default();
            if cost.is_mixed() {
                known.mixed.sent();
            }
            known.lengths_mut(cost).into_iter().for_each(|lengths| lengths.open += 1);
        }
    }

    /// A call is no longer under way.
    pub(super) fn ended(&mut self, place: u32, cost: &Cost) {
        let Some(known) = self.scopes.get_mut(&place) else { return };
        if cost.is_mixed() {
            known.mixed.ended();
        }
        if let Some(lengths) = known.lengths_mut(cost) {
            lengths.open = lengths.open.saturating_sub(1);
        }
    }

    /// A call was answered, or ended without an answer.
    pub(super) fn learn(&mut self, place: u32, cost: &Cost, outcome: &Outcome) {
        self.ended(place, cost);
        // What is counted for an answer that was given up shows the length of none.
        if outcome.class == Class::Abandoned {
            return;
        }
        let Some(known) = self.scopes.get_mut(&place) else { return };
        let of = |dimension| outcome.usage.as_ref().map(|usage| usage.get(&dimension)).filter(|tokens| *tokens > 0);
        let told = of(Dimension::OutputTokens);
        let is_answered = told.is_some() || outcome.class == Class::Success;
        if cost.is_mixed() && is_answered {
            known.mixed.answered(1, of(Dimension::InputTokens).unwrap_or(0), told.unwrap_or(0));
        }
        let Some(lengths) = known.lengths_mut(cost) else { return };
        if is_answered {
            lengths.known = lengths.known.saturating_add(1);
        }
        told.into_iter().for_each(|tokens| lengths.add(tokens));
        if cost.is_open_ended() {
            told.into_iter().for_each(|tokens| self.all.add(tokens));
        } else if told.is_some_and(|tokens| tokens > cost.get(&Dimension::OutputTokens)) {
            (known.beyond, known.kept) = (true, 0);
        } else if is_answered {
            known.kept = known.kept.saturating_add(1);
        }
    }

    /// How long the answers are of that scope, where its server does not keep to bounds.
    pub(super) fn beyond_bounds(&self, place: u32) -> Option<AnswerLength> {
        let Known { bounded, .. } = self.scopes.get(&place).filter(|known| known.beyond)?;
        Some(AnswerLength { mean: bounded.mean as u64, deviation: bounded.deviation as u64 })
    }

    /// The same as another pacer knew it; calls of this one know better.
    pub(super) fn restore(&mut self, place: u32, length: Option<AnswerLength>) {
        if let (Some(AnswerLength { mean, deviation }), false) = (length, self.scopes.contains_key(&place)) {
            let (mean, deviation) = (mean as f64, deviation as f64);
            let bounded = Lengths { told: 1, mean, deviation, ..Lengths::default() };
            self.scopes.insert(place, Known { bounded, beyond: true, ..Known::default() });
        }
    }

    /// The scope in that place is gone.
    pub(super) fn forget(&mut self, place: u32) {
        self.scopes.remove(&place);
    }

    /// What the answer to a call of that cost is expected to have, where its own bound does not say that.
    fn expected(&self, place: u32, cost: &Cost) -> Option<u64> {
        let known = self.scopes.get(&place);
        if cost.is_unproven() {
            let known = known.filter(|known| known.beyond)?;
            return known.bounded.expected(known.bounded.open);
        }
        if !cost.is_open_ended() {
            return None;
        }
        let beside = known.map_or(0, |known| known.open.open);
        known.and_then(|known| known.open.expected(beside)).or_else(|| self.all.expected(beside))
    }

    /// How many calls without a bound are under way.
    fn open(&self, place: u32) -> u64 {
        self.scopes.get(&place).map_or(0, |known| known.open.open.into())
    }

    fn may_leave(&self, place: u32, cost: &Cost, limit: u64) -> bool {
        let known = self.scopes.get(&place).copied().unwrap_or_default();
        let knows_prompt = !cost.is_mixed() || known.mixed.may_leave();
        knows_prompt && known.lengths(cost).is_none_or(|lengths| lengths.open < known.most_open(cost, limit))
    }

    /// The most tokens that a prompt of that scope had which holds more than text; 0 where the prompt of that cost does not.
    fn longest_mixed(&self, place: u32, cost: &Cost) -> u64 {
        let known = self.scopes.get(&place).filter(|_| cost.is_mixed());
        known.map_or(0, |known| known.mixed.longest_input())
    }
}

impl Pacer {
    /// The fewest tokens that a configured limit of that scope lets pass at once, by what each counts of them.
    fn fewest(&self, place: u32, tokens: impl Fn(&Dimension, u64) -> Option<u64>) -> Option<u64> {
        [&self.quotas, self.scopes[place].quotas()].into_iter().filter_map(|quotas| quotas.fewest(&tokens)).min()
    }

    /// The tokens of such calls for which the smallest limit has room that counts those of answers.
    fn most_answers(&self, place: u32, cost: &Cost) -> Option<u64> {
        self.fewest(place, |limited, most| cost.most_within(limited, most))
    }

    /// The tokens that the limits leave to the prompt of such a call, or to its answer.
    fn left_to(&self, part: &Dimension, place: u32, cost: &Cost) -> u64 {
        self.fewest(place, |limited, most| cost.tokens_within(part, limited, most)).unwrap_or(u64::MAX)
    }

    /// Has a cost reserve what answers of its scope have shown. What only answers speak for is no more than a limit allows: then
    /// the call leaves alone.
    pub(super) fn guess_answer(&self, place: u32, cost: &mut Cost) {
        let (all, own) = (&self.quotas, self.scopes[place].quotas());
        cost.fit_learnt(|dimension| [all.most_of(dimension), own.most_of(dimension)].into_iter().flatten().min());
        let (expected, output) = (self.answers.expected(place, cost), cost.get(&Dimension::OutputTokens));
        // A prompt that only others speak for makes no call impossible either.
        let fits = self.left_to(&Dimension::InputTokens, place, cost);
        cost.guess_prompt(self.answers.longest_mixed(place, cost).min(fits));
        if cost.is_open_ended() {
            let is_doubted = self.config.doubts_answers
                && self
                    .most_answers(place, cost)
                    .is_some_and(|most| self.answers.open(place) >= LEAST_BELIEVED.max(most / LONG));
            let expected = expected.unwrap_or(output).max(if is_doubted { LONG } else { 0 });
            cost.guess_answer(expected.min(self.left_to(&Dimension::OutputTokens, place, cost)));
        } else if let Some(expected) = expected {
            cost.guess_answer(output.max(expected.min(self.left_to(&Dimension::OutputTokens, place, cost))));
        }
    }

    /// The same for a request that waits: answers have come since.
    pub(super) fn guess_anew(&mut self, slot: Slot) {
        if let Cow::Owned(cost) = self.cost_of(slot) {
            self.slots.at_mut(slot).0.cost = cost;
        }
    }

    /// What a request that waits reserves, as far as is known now.
    pub(super) fn cost_of(&self, slot: Slot) -> Cow<'_, Cost> {
        let request = self.slots.at(slot).request;
        self.cost_in(request.scope.place, &request.cost)
    }

    /// What a call of that cost reserves in that scope.
    pub(super) fn cost_in<'a>(&self, place: u32, cost: &'a Cost) -> Cow<'a, Cost> {
        if !cost.is_guess() {
            return Cow::Borrowed(cost);
        }
        let mut guessed = cost.clone();
        self.guess_answer(place, &mut guessed);
        Cow::Owned(guessed)
    }

    /// Before an answer has shown how long they are, or that the server keeps to bounds, calls leave one at a time under a limit
    /// that counts their answers; then no more of them are under way than answers can speak for.
    #[inline(always)]
    pub(super) fn admit_open_ended(&self, place: u32, cost: &Cost) -> Admit {
        // The cost of most calls says how long their answers are: for them nothing is looked for.
        let is_guessed = cost.is_open_ended() || cost.is_unproven() || cost.is_mixed();
        match is_guessed.then(|| self.most_answers(place, cost)).flatten() {
            Some(limit) if !self.answers.may_leave(place, cost, limit) => {
                Admit::OnRelease { cause: WaitCause::Answers }
            }
            _ => Admit::Now,
        }
    }
}
