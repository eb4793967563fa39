//! The rules of a scope, which together say when a call of it may leave.

use super::Scope;
use crate::admit::{Admit, Hear, strictest};
use crate::background::Ask;
use crate::config::Pace;
use crate::time::Instant;

impl Scope {
    /// When a call of that cost may leave, by the rules of this scope.
    pub(crate) fn admit(&self, now: Instant, ask: &Ask<'_>) -> Admit {
        strictest(|hear| self.ask(now, ask, hear))
    }

    /// Asks these rules in turn, for as long as `hear` goes on. Returns whether it would.
    #[inline(always)]
    pub(crate) fn ask(&self, now: Instant, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        hear.hear(self.hold.admit(now))
            && hear.hear(self.gate.admit(now, self.silence()))
            && hear.hear(self.lets_others_test(now, ask))
            && hear.hear(self.breaker.admit(now, ask.caller))
            && hear.hear(self.spacing.admit(now))
            && hear.hear(self.in_flight.admit_in_scope(ask))
            && self.quotas.ask(now, ask, hear)
            && (self.pace != Pace::Auto || self.ask_learnt(now, ask, hear))
    }

    /// The rules of the pace auto.
    fn ask_learnt(&self, now: Instant, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        let cap = || self.learnt.limits().0.map_or(Admit::Now, |cap| self.in_flight.admit_under(cap, ask));
        hear.hear(self.learnt.admit(now, &self.gate, self.in_flight.now()))
            && hear.hear(cap())
            && self.announced.iter().all(|limit| {
                let (units, spent) = (ask.cost.get(&limit.dimension), self.spent.get(&limit.dimension));
                hear.hear(limit.admit(now, limit.needs(units, ask), spent))
            })
    }
}
