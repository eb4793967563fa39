//! How the decision reacts to a refusal that our rate caused.

use core::time::Duration;

use super::super::cap::Explains;
use super::super::evidence::{Event, Evidence, Refused};
use super::super::rate::{FEW, FIRST_CALLS};
use super::super::{Reaction, Refusal};
use super::{Excused, RateDecision};
use crate::gate::Gate;
use crate::rng::Rng;
use crate::time::Instant;

/// Before that time has passed since its first call, a configured limit is not refuted by one refusal. The server counts from
/// when the first call arrived, which took longest, so that a later one may come too soon though it left in time.
const FIRST: Duration = Duration::from_secs(1);

impl RateDecision {
    /// A call was refused because of our rate. Returns how the scope reacts.
    pub(in super::super) fn refused(
        &mut self,
        now: Instant,
        evidence: &mut Evidence,
        gate: &mut Gate,
        call: &Refused,
        rng: &mut Rng,
    ) -> Reaction {
        let event = evidence.refused(call.era, call.later);
        if event == (Event::Belongs { all_refused: false })
            && self.rate.trusts_config()
            && let Some(Excused { era, run }) = self.excused()
            && era == evidence.era()
        {
            return self.slows_down(now, evidence, gate, call, run, rng);
        }
        match event {
            Event::Belongs { all_refused } => {
                self.rate.refused_again();
                if let Some(out) = self.refusals.as_mut().and_then(|refusals| refusals.out.as_mut()) {
                    out.refused();
                }
                self.all_refused |= all_refused;
                if all_refused && gate.is_open() {
                    self.close(now, evidence, gate, rng);
                }
                Reaction::Known
            }
            // While others pass, an item that is refused repeatedly says nothing about the rate.
            Event::Opens { run } if call.why == Refusal::Again && run as f64 >= FEW && gate.is_open() => {
                Reaction::Known
            }
            Event::Opens { run } if self.is_excused(now, evidence, gate, call) => {
                self.refusals.get_or_insert_default().excused = Some(Excused { era: evidence.era(), run });
                Reaction::Known
            }
            Event::Opens { run } => self.slows_down(now, evidence, gate, call, run, rng),
        }
    }

    fn excused(&self) -> Option<Excused> {
        self.refusals.as_ref().and_then(|refusals| refusals.excused)
    }

    /// Whether a refusal, the first, leaves the configured limits as they are: it is of the first of several calls.
    fn is_excused(&self, now: Instant, evidence: &Evidence, gate: &Gate, call: &Refused) -> bool {
        let is_early = self.reopened.is_some_and(|(_, began)| now <= began + FIRST);
        let others = evidence.admitted() + call.pending;
        let throttled = call.why != Refusal::Overloaded && gate.is_open();
        self.rate.trusts_config() && self.excused().is_none() && is_early && throttled && others >= FIRST_CALLS
    }

    /// A refusal slows the scope down.
    fn slows_down(
        &mut self,
        now: Instant,
        evidence: &mut Evidence,
        gate: &mut Gate,
        call: &Refused,
        run: u64,
        rng: &mut Rng,
    ) -> Reaction {
        self.rate.epoch_opened();
        self.strikes = if run < 1 { self.strikes + 1 } else { 0 };
        let tried = self
            .refusals
            .iter_mut()
            .flat_map(|refusals| &mut refusals.shares)
            .fold(false, |tried, share| share.void() | tried);
        if tried && call.why != Refusal::Overloaded && gate.is_open() {
            self.rate.void();
        }
        self.epoch_opened(now, evidence, gate, call, run, rng);
        Reaction::Slower
    }

    fn epoch_opened(
        &mut self,
        now: Instant,
        evidence: &mut Evidence,
        gate: &mut Gate,
        call: &Refused,
        run: u64,
        rng: &mut Rng,
    ) {
        let overloaded = call.why == Refusal::Overloaded;
        if let Some(refusals) = self.refusals.as_mut().filter(|refusals| self.strikes == 0 || refusals.before.is_none())
        {
            refusals.before = Some(self.rate.clone());
        }
        self.contradict(now, evidence);
        if !gate.is_open() {
            self.rate.still_refused(now);
            self.rate.stop_trying();
            return self.close(now, evidence, gate, rng);
        }
        if !overloaded {
            if run >= 1 {
                self.unit.refused(call.tokens);
            }
            if self.cap.refused(call.in_flight, run, &mut self.rate) == Explains::All {
                return evidence.decide();
            }
        }
        let undecided_calls = self.rate.per_second() * evidence.silence().as_secs_f64();
        if self.strikes > u32::from(undecided_calls <= 1.0) {
            return self.close(now, evidence, gate, rng);
        }
        if self.strikes == 0 {
            gate.begins(call.sent);
        }
        let admitted = self.admitted_rate(now, evidence).filter(|_| self.cap.limit().is_none());
        self.rate.bound(admitted);
        let before = self.rate.per_second();
        let start_ended =
            !(overloaded && self.rate.overloaded(now, run)) && self.rate.cut(now, evidence.admitted(), run);
        if let Some(refusals) = self.refusals.as_mut().filter(|_| start_ended) {
            refusals.out = evidence.out(call.sent, call.pending, before);
        }
        // The calls in flight are decided first.
        let action = if start_ended || evidence.is_undecided() { evidence.known_after() } else { Duration::ZERO };
        gate.hold(now + self.rate.gap().max(action));
    }
}
