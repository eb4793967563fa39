//! The gate and the learnt pace of a scope that it shares with other processes.

use core::time::Duration;

use super::Scope;
use crate::adaptive::{Belief, Reaction, Report, Word};
use crate::admit::PauseCause;
use crate::config::Pace;
use crate::cost::Dimension;
use crate::fleet::{Announced, MemberId};
use crate::outcome::Hint;
use crate::rng::Rng;
use crate::time::Instant;

impl Scope {
    /// What another process was asked for: the closure begins now, where none has.
    pub(crate) fn obey_for_others(&mut self, now: Instant, hint: Hint, cause: PauseCause) {
        if self.gate.is_open() {
            self.gate.begins(now);
        }
        self.obey(now, hint, cause);
    }

    /// The call of another process was not refused. Returns whether that opened the gate: not where it is closed for longer.
    pub(crate) fn opened_elsewhere(&mut self, now: Instant) -> bool {
        let reopening = self.gate.opened_elsewhere(now);
        if let Some(reopening) = &reopening {
            self.learnt.reopened(now, reopening);
            self.quotas.forget_burst(now);
        }
        reopening.is_some()
    }

    /// Whether the gate waits for a call that goes first, and it may leave now.
    pub(crate) fn awaits_canary(&self, now: Instant) -> bool {
        self.gate.awaits_canary(now)
    }

    /// What it counts of the limits that its server has announced.
    pub(crate) fn announced_dimensions(&self) -> impl Iterator<Item = &Dimension> {
        self.announced.iter().map(|limit| &limit.dimension)
    }

    /// What its server has announced last, where that holds calls back; and which call brought it.
    pub(crate) fn announces(&self, now: Instant, dimension: &Dimension) -> Option<(u64, Announced)> {
        self.announced.iter().find(|limit| limit.dimension == *dimension)?.announces(now)
    }

    /// What its calls in flight reserved.
    pub(crate) fn reserved(&self, dimension: &Dimension) -> u64 {
        self.out.get(dimension)
    }

    /// Whether its pace is learnt.
    pub(crate) fn learns(&self) -> bool {
        self.pace == Pace::Auto
    }

    /// The process that decides its pace for several, as far as this one has heard.
    pub(crate) fn reader(&self) -> Option<MemberId> {
        self.learnt.reader()
    }

    /// Whether one process decides its pace for several.
    pub(crate) const fn shares_pace(&self) -> bool {
        self.learnt.is_shared()
    }

    /// Whether that is this one.
    pub(crate) const fn reads(&self) -> bool {
        self.learnt.reads()
    }

    /// From now on one process decides its pace for several.
    pub(crate) fn share_pace(&mut self, now: Instant, id: MemberId, weight: u64) {
        self.learnt.share(now, id, weight, self.queue.head().is_some());
    }

    /// This process decides by itself.
    pub(crate) fn unshare_pace(&mut self, now: Instant) {
        self.learnt.alone(now);
    }

    /// See [`AdaptiveRate::words`](crate::adaptive::AdaptiveRate::words).
    pub(crate) fn words(&mut self, now: Instant, members: u64) -> ([Option<Word>; 2], Option<Instant>) {
        self.learnt.words(now, &self.gate, members)
    }

    /// The ledger has said for how long another process decides; zero: this one does.
    pub(crate) fn office(&mut self, now: Instant, waits: Duration) {
        self.learnt.office(now, waits);
    }

    /// The process that decides tells what it believes.
    pub(crate) fn hears_belief(&mut self, now: Instant, from: MemberId, belief: Belief, late: Duration) {
        let Self { gate, learnt, .. } = self;
        gate.close_for(PauseCause::Throttled { asked: false }, |gate| {
            learnt.hears_belief(now, gate, from, belief, late);
        });
    }

    /// Another process reports what it has seen. Returns how the scope reacts, where this process decides.
    pub(crate) fn hears_report(
        &mut self,
        now: Instant,
        from: MemberId,
        report: Report,
        rng: &mut Rng,
    ) -> Option<Reaction> {
        let Self { gate, learnt, .. } = self;
        let cause = PauseCause::Throttled { asked: false };
        gate.close_for(cause, |gate| learnt.hears_report(now, gate, from, report, rng))
    }
}
