//! One learnt pace for all processes of a fleet: one of them reads what all have seen, decides, and tells the others.
//!
//! Each process judges its own calls, for it alone knows when they left. It reports sums; the reader adds them to its own
//! evidence and decides as if all calls were its own. What it believes it tells with the era: a refusal of a call that left in
//! an earlier era changes nothing, so that one event cuts once, whichever process sees it and whenever that is heard.
//!
//! All get the same *level*, in calls a second for each unit of weight: who wants less uses less, and what is left is for the
//! others. A rate is no quota: where it is divided a little wrongly for a moment, a call may be refused, and none is lost. So
//! there is no account of shares, no turn and no quarantine.

mod state;

use core::time::Duration;

pub(crate) use state::Shared;
use state::{Mine, Role, SILENT};

use super::AdaptiveRate;
use super::cap::Cap;
use super::evidence::Refused;
use super::schedule::Gaps;
use super::words::{Belief, Report};
use super::{Reaction, Refusal};
use crate::fleet::MemberId;
use crate::gate::Gate;
use crate::rng::Rng;
use crate::state::LearntState;
use crate::time::Instant;

/// The reader has its office for so long; where it falls silent, the rate stands for so long at most.
pub(crate) const OFFICE: Duration = Duration::from_secs(3);

/// It is renewed, and a belief or a report told again, after this.
const AGAIN: Duration = Duration::from_secs(1);

/// The time between two beliefs of one era, and between two reports of refusals.
const SOON: Duration = Duration::from_millis(50);

/// A rate that differs by less need not be told at once.
const ALIKE: f64 = 0.02;

/// A process waits so long for the first word of the reader.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// What was told so soon after a report does not know of it yet.
const HEARD_WITHIN: Duration = Duration::from_millis(10);

/// A process that is not further from the beat than so many calls comes nearer by one part in so many with each word: then words
/// that were under way for differently long do not make it uneven.
const OUT_OF_STEP: f64 = 2.0;
const WORDS: f64 = 8.0;

/// Where the reader has not been heard for so long beyond its second, refusals slow a process down by itself, ...
const UNANSWERED: Duration = Duration::from_millis(500);

/// ... by this factor, once a second.
const BRAKE: f64 = 0.8;

/// What a process has to say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// It wants to decide for all, for so long.
    Office,
    Belief(Belief),
    Report(Report),
}

impl AdaptiveRate {
    /// Whether another process may decide.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(&self.shared, Some(shared) if !matches!(shared.role, Role::Alone))
    }

    /// Whether this process decides for all.
    pub(crate) const fn reads(&self) -> bool {
        matches!(&self.shared, Some(shared) if matches!(shared.role, Role::Reads(_)))
    }

    /// The process that decides for all, as far as this one has heard.
    pub(crate) fn reader(&self) -> Option<MemberId> {
        let shared = self.shared.as_deref().filter(|_| self.is_shared())?;
        if self.reads() { Some(shared.id) } else { shared.reader }
    }

    pub(super) const fn follows(&self) -> bool {
        self.is_shared() && !self.reads()
    }

    /// What was told last, and the part of it that this process uses.
    pub(crate) fn told(&self) -> Option<(Belief, Option<f64>)> {
        let shared = self.shared.as_deref().filter(|_| self.is_shared())?;
        let (_, belief) = shared.told?;
        Some((belief, belief.level.map(|level| shared.level(level))))
    }

    /// From now on the decision is made for all processes of a fleet.
    pub(crate) fn share(&mut self, now: Instant, id: MemberId, weight: u64, queued: bool) {
        let shared = self.shared.get_or_insert_with(|| Shared::new(now, id, weight).into());
        shared.queued = queued;
        self.evidence.is_shared();
        if shared.role == Role::Alone {
            (shared.role, shared.asks) = (Role::Follows, now);
        }
        self.decision.cap = Cap::new();
    }

    /// There is no ledger any more: this process goes on by itself, at the pace that it had.
    pub(crate) fn alone(&mut self, now: Instant) {
        if !self.is_shared() {
            return;
        }
        let told = self.told();
        let Some(shared) = &mut self.shared else { return };
        shared.role = Role::Alone;
        if let Some((belief, Some(rate))) = told {
            let tokens = belief.tokens.map(|tokens| tokens * rate);
            let state = LearntState { rate, tokens, cap: None, ago: Duration::ZERO };
            self.decision.goes_on(now, &state, false, &self.evidence);
        }
    }

    /// How far apart the calls of this process leave.
    pub(super) fn gaps(&self) -> Gaps {
        let gaps = self.decision.rate.gaps();
        let Some(shared) = self.shared.as_deref().filter(|shared| shared.role != Role::Alone) else { return gaps };
        match shared.told {
            // The only one decides at every call.
            _ if self.reads() && shared.others.is_empty() => gaps,
            Some((_, belief)) => {
                let Some(level) = belief.level else { return Gaps { act: false, ..gaps } };
                let own = shared.level(level).max(1e-6);
                let usual = Duration::from_secs_f64(1.0 / own);
                let late = Duration::from_secs_f64(1.0 / belief.rate.max(1e-6)).min(usual);
                Gaps { usual, late, longest: Duration::MAX, unanswered: None, act: true, beat: shared.beat(own) }
            }
            None => gaps,
        }
    }

    /// Until when nothing leaves, because nothing was heard yet of those that decide.
    pub(super) fn waits_for_first_word(&self) -> Option<Instant> {
        let shared = self.shared.as_deref().filter(|shared| shared.role == Role::Follows && shared.told.is_none())?;
        Some(shared.since + FIRST_WORD)
    }

    /// A call of this process left.
    pub(super) fn note_sent(&mut self, now: Instant, tokens: u64, was_held_back: bool) {
        let Some(shared) = &mut self.shared else { return };
        let mine = &mut shared.mine;
        mine.sent += 1;
        mine.tokens = mine.tokens.saturating_add(tokens);
        mine.sent_at = Some(now);
        if was_held_back {
            mine.held += 1;
            mine.held_at = Some(now);
        }
    }

    /// A call of a process that does not decide was refused.
    pub(super) fn note_refused(&mut self, now: Instant, gate: &mut Gate, call: &Refused) -> Reaction {
        let overloaded = call.why == Refusal::Overloaded;
        self.evidence.note_refused(call.era, overloaded);
        if let Some(shared) = self.shared.as_mut().filter(|_| call.era == self.evidence.era()) {
            shared.mine.refused.get_or_insert((call.sent, call.tokens));
            // The reader says something each second, refused calls or not.
            let is_silent = shared.told.is_none_or(|(at, _)| at + AGAIN + UNANSWERED < now);
            if is_silent && !overloaded && shared.braked.is_none_or(|at| at + AGAIN < now) {
                shared.braked = Some(now);
                shared.brake *= BRAKE;
            }
        }
        if !gate.is_open() {
            // The reader says how much longer it stays closed.
            gate.hold_for_canary(now + UNANSWERED);
        }
        if overloaded { Reaction::Chance } else { Reaction::Known }
    }

    /// Calls of the other processes that may still be refused, and of them those that left after that, by the rate.
    pub(super) fn elsewhere(&self, now: Instant, sent: Instant) -> (u64, u64) {
        let Some(shared) = self.shared.as_ref().filter(|_| self.reads()) else { return (0, 0) };
        let pending = shared.lively(now).map(|report| report.pending).sum();
        (pending, left_since(self.decision.rate.per_second(), now - sent).min(pending))
    }

    /// Whether a caller wants to send a call from now on, here or elsewhere.
    #[inline]
    pub(super) fn note_queued(&mut self, now: Instant, any: bool) -> bool {
        if self.shared.is_none() { any } else { self.wants_here_or_there(now, any) }
    }

    fn wants_here_or_there(&mut self, now: Instant, any: bool) -> bool {
        let reads = self.reads();
        let Some(shared) = &mut self.shared else { return any };
        shared.queued = any;
        any || reads && shared.lively(now).any(|report| report.wants)
    }

    /// Whether calls wait that only the rate holds back.
    fn wants(&self, now: Instant) -> bool {
        let gaps = self.gaps();
        let recently = |at: Instant| at + AGAIN.max(gaps.usual.saturating_mul(2)) > now;
        let held_at = self.shared.as_ref().and_then(|shared| shared.mine.held_at);
        let queued = self.shared.as_ref().is_some_and(|shared| shared.queued);
        let waits = queued && gaps.act && self.schedule.due(gaps, now) > now;
        waits || held_at.is_some_and(recently)
    }

    /// What this process has seen.
    fn report(&self, now: Instant) -> Report {
        let Some(shared) = &self.shared else { return Report::default() };
        let Mine { sent, tokens, held, refused, .. } = shared.mine;
        let own = self.evidence.own();
        let mut report = Report {
            era: self.evidence.era(),
            sent,
            tokens,
            held,
            admitted: own.admitted,
            run: own.run,
            refused: own.refused,
            throttled: own.throttled,
            overloaded: own.overloaded,
            ago: refused.map_or(Duration::ZERO, |(sent, _)| now - sent),
            cost: refused.map_or(0, |(_, cost)| cost),
            pending: self.evidence.pending(),
            wants: self.wants(now),
            rate: 0.0,
            weight: shared.weight,
        };
        report.rate = match shared.reported {
            Some((at, before)) if now > at => {
                let lately = (sent - before.sent) as f64 / (now - at).as_secs_f64();
                0.5 * (lately + before.rate)
            }
            Some((_, before)) => before.rate,
            None => 0.0,
        };
        report
    }

    /// What all others are to be told.
    fn belief(&self, now: Instant, gate: &Gate) -> Belief {
        let gaps = self.decision.rate.gaps();
        let rate = 1.0 / gaps.usual.as_secs_f64().max(1e-9);
        let (mut weights, mut wanting, mut used) = (0, 0, 0.0);
        let own = self.report(now);
        let lively = self.shared.iter().flat_map(|shared| shared.lively(now));
        for report in lively.chain([&own]) {
            weights += report.weight;
            if report.wants {
                wanting += report.weight;
            } else {
                used += report.rate;
            }
        }
        let level = ((rate - used) / wanting.max(1) as f64).max(rate / weights as f64);
        Belief {
            era: self.evidence.era(),
            rate,
            level: gaps.act.then_some(level),
            beat: self.shared.as_ref().and_then(|shared| shared.beat(1.0)).map_or(0.0, |beat| beat.at(now)),
            wanting: wanting.max(1),
            tokens: self.decision.unit.tokens(1.0),
            starting: self.is_starting(),
            pause: if gate.is_open() { gate.until().saturating_since(now) } else { Duration::ZERO },
        }
    }

    /// What is to be said now, and when something is to be said again, if nothing happens. `members`: in the fleet.
    pub(crate) fn words(&mut self, now: Instant, gate: &Gate, members: u64) -> ([Option<Word>; 2], Option<Instant>) {
        let wants = self.wants(now);
        let Some(shared) = self.shared.as_deref_mut().filter(|shared| shared.role != Role::Alone) else {
            return ([None, None], None);
        };
        if matches!(shared.role, Role::Reads(until) if until <= now) {
            (shared.role, shared.asks) = (Role::Follows, now);
        }
        let busy = shared.queued || shared.is_busy(now, wants);
        let others = shared.lively(now).next().is_some();
        if let Role::Reads(_) = shared.role {
            return if busy || others { self.reader_words(now, gate) } else { ([None, None], None) };
        }
        if !busy {
            shared.is_counted = false;
            return ([None, None], None);
        }
        let is_led = shared.told.is_some_and(|(at, _)| at + OFFICE > now);
        let office = (!is_led && shared.asks <= now).then(|| {
            shared.asks = now + OFFICE;
            Word::Office
        });
        let asks = if is_led { shared.told.map_or(now, |(at, _)| at + OFFICE).max(shared.asks) } else { shared.asks };
        let every = shared.report_every(members, shared.told.is_some_and(|(_, belief)| belief.starting));
        let report = self.report(now);
        let Some(shared) = &mut self.shared else { return ([office, None], None) };
        let due = shared.reported.map_or(now, |(at, before)| {
            let refused = report.refused != before.refused;
            let first = report.wants && !before.wants;
            let news = report.sent != before.sent || report.admitted != before.admitted || report.era != before.era;
            let of_era = |report: &Report| report.throttled + report.overloaded;
            at + if of_era(&report) > 0 && (of_era(&before) == 0 || before.era != report.era) {
                // The others go on at this rate until they hear of it.
                Duration::ZERO
            } else if refused || first {
                SOON
            } else if news {
                every
            } else {
                AGAIN
            }
        });
        let told = (due <= now).then(|| {
            shared.reported = Some((now, report));
            Word::Report(report)
        });
        // A call that leaves meanwhile is no reason to look at once.
        let due = if due <= now { now + every } else { due.min(now + every) };
        ([office, told], Some(due.min(asks)))
    }

    fn reader_words(&mut self, now: Instant, gate: &Gate) -> ([Option<Word>; 2], Option<Instant>) {
        let belief = self.belief(now, gate);
        let report = self.report(now);
        let Some(shared) = &mut self.shared else { return ([None, None], None) };
        let office = (shared.asks <= now).then(|| {
            shared.asks = now + AGAIN;
            // So that its own rate is known.
            shared.reported = Some((now, report));
            Word::Office
        });
        let alike = |a: f64, b: f64| (a - b).abs() <= ALIKE * a.min(b);
        let due = shared.told.map_or(now, |(at, before)| {
            let same = before.wanting == belief.wanting
                && alike(before.rate, belief.rate)
                && alike(before.level.unwrap_or(0.0), belief.level.unwrap_or(0.0));
            match before.era == belief.era && before.level.is_some() == belief.level.is_some() {
                false => now,
                true if same => at + AGAIN,
                true => at + SOON,
            }
        });
        let told = (due <= now).then(|| {
            shared.told = Some((now, belief));
            shared.heard.get_or_insert(now);
            shared.takes_turn(now, shared.id);
            Word::Belief(belief)
        });
        let due = if due <= now { now + AGAIN } else { due };
        ([office, told], Some(due.min(shared.asks)))
    }

    /// The ledger has said for how long another process decides; zero: this one does, for [`OFFICE`] from when it asked.
    pub(crate) fn office(&mut self, now: Instant, waits: Duration) {
        let Some(shared) = self.shared.as_deref_mut().filter(|shared| shared.role != Role::Alone) else { return };
        if !waits.is_zero() {
            (shared.role, shared.asks) = (Role::Follows, now + waits);
            return;
        }
        // The answer took half a second at most: later it would have been asked again.
        let until = now + OFFICE.saturating_sub(UNANSWERED);
        let was_reader = matches!(shared.role, Role::Reads(_));
        shared.role = Role::Reads(until);
        if was_reader {
            return;
        }
        shared.asks = now + AGAIN;
        shared.brake = 1.0;
        let Some((at, belief)) = shared.told else { return self.evidence.takes_over(0) };
        self.evidence.takes_over(belief.era);
        if belief.level.is_none() {
            // Configured limits are trusted, here too.
            return;
        }
        let Belief { rate, tokens, starting, .. } = belief;
        let state = LearntState { rate, tokens: tokens.map(|tokens| tokens * rate), cap: None, ago: now - at };
        self.decision.goes_on(now, &state, starting, &self.evidence);
    }

    /// The reader tells what it believes. `late`: how long ago.
    pub(crate) fn hears_belief(
        &mut self,
        now: Instant,
        gate: &mut Gate,
        from: MemberId,
        belief: Belief,
        late: Duration,
    ) {
        let era = self.evidence.era();
        let Some(shared) = self.shared.as_deref_mut().filter(|shared| shared.role != Role::Alone) else { return };
        if matches!(shared.role, Role::Reads(_)) {
            if belief.era < era {
                return;
            }
            // Two decided for a moment: the later one goes on.
            shared.role = Role::Follows;
        } else if shared.told.is_some_and(|(at, told)| at + OFFICE > now && belief.era < told.era) {
            // The word of one that decided before.
            return;
        }
        let mut belief = belief;
        if let Some(own) =
            shared.beat(1.0).map(|beat| beat.at(now)).filter(|own| (belief.beat - own).abs() <= OUT_OF_STEP)
        {
            // Words take their time, each another.
            belief.beat = own + (belief.beat - own) / WORDS;
        }
        shared.told = Some((now.saturating_sub(late), belief));
        shared.reader = Some(from);
        shared.is_counted |= shared.reported.is_some_and(|(at, _)| at + HEARD_WITHIN < now);
        shared.heard.get_or_insert(now);
        shared.takes_turn(now, from);
        shared.brake = 1.0;
        if self.evidence.follows(belief.era) {
            shared.mine.refused = None;
        }
        self.decision.unit.is_told(belief.tokens);
        if !belief.pause.is_zero() && late.is_zero() {
            gate.hold(now + belief.pause);
        }
    }

    /// Another process tells what it has seen. Returns whether this one has to say something at once.
    pub(crate) fn hears_report(
        &mut self,
        now: Instant,
        gate: &mut Gate,
        from: MemberId,
        report: Report,
        rng: &mut Rng,
    ) -> Option<Reaction> {
        let shared = self.shared.as_deref_mut().filter(|shared| shared.role != Role::Alone)?;
        let before = shared.others.insert(from, (now, report)).map(|(_, report)| report);
        shared.others.retain(|_, (at, _)| *at + SILENT.saturating_mul(4) > now);
        let pending = self.evidence.pending() + shared.lively(now).map(|report| report.pending).sum::<u64>();
        if !matches!(shared.role, Role::Reads(_)) {
            return None;
        }
        let news = report.since(before.as_ref());
        let Self { evidence, decision, .. } = self;
        let is_now = news.era == evidence.era();
        decision.begins(now, evidence);
        evidence.hears(news.admitted, if is_now { news.run } else { 0 });
        if gate.closed_until(now).is_none() {
            decision.bounds_the_start(gate);
        }
        decision.take_passed(now, evidence);
        for _ in 0..news.held.min(10_000) {
            decision.rate.grow(evidence.run());
        }
        let dearer = decision.unit.sent_many(news.sent, news.tokens);
        decision.rate.dearer(dearer);
        let (throttled, overloaded) = if is_now { (news.throttled, news.overloaded) } else { (0, 0) };
        let old = news.refused.saturating_sub(throttled + overloaded);
        let mut worst = Reaction::Chance;
        let kinds = [
            (old, Refusal::Throttled, false),
            (throttled, Refusal::Throttled, true),
            (overloaded, Refusal::Overloaded, true),
        ];
        for (count, why, fresh) in kinds {
            for nth in 0..count.min(1_000) {
                let era = if fresh { news.era } else { u64::MAX };
                let (tokens, sent) =
                    if nth == 0 && fresh { (news.cost, now.saturating_sub(news.ago)) } else { (0, now) };
                let later = left_since(decision.rate.per_second(), now - sent).min(pending);
                let call = Refused { era, sent, later, pending, in_flight: 1, tokens, why };
                evidence.settle(now);
                if decision.is_ours(now, evidence, gate, &call) {
                    let reaction = decision.refused(now, evidence, gate, &call, rng);
                    if reaction == Reaction::Slower {
                        worst = reaction;
                    }
                }
            }
        }
        Some(worst)
    }
}

/// So many calls left in that time, at that rate.
fn left_since(rate: f64, time: Duration) -> u64 {
    (rate * time.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests;
