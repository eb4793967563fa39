//! The rules of both levels, which together say when a call may leave.

use super::Pacer;
use crate::admit::{Admit, Hear, IsNow, strictest};
use crate::background::Ask;
use crate::cost::Cost;
use crate::error::TooLarge;
use crate::time::Instant;

impl Pacer {
    pub(super) fn admit_ask(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        strictest(|hear| self.ask_all(now, place, ask, hear))
    }

    /// By the rules of the scope, and of all processes that share its gate.
    pub(super) fn admit_scope(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        strictest(|hear| self.ask_scope(now, place, ask, hear))
    }

    pub(super) fn admit_account(&self, now: Instant, ask: &Ask<'_>) -> Admit {
        strictest(|hear| self.ask_account(now, ask, hear))
    }

    /// Whether every rule admits the call now.
    #[inline(always)]
    pub(super) fn admits(&self, now: Instant, place: u32, ask: &Ask<'_>) -> bool {
        self.ask_all(now, place, ask, &mut IsNow)
    }

    /// Asks all rules in turn, for as long as `hear` goes on. Returns whether it would.
    #[inline(always)]
    fn ask_all(&self, now: Instant, place: u32, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        self.ask_scope(now, place, ask, hear)
            && hear.hear(self.admit_place(now, place, ask))
            && self.ask_account(now, ask, hear)
    }

    #[inline(always)]
    fn ask_scope(&self, now: Instant, place: u32, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        self.scopes[place].ask(now, ask, hear)
            && hear.hear(self.admit_canary(now, place))
            && hear.hear(self.admit_pots(now, place, ask))
            && hear.hear(self.admit_open_ended(place, ask.cost))
    }

    #[inline(always)]
    fn ask_account(&self, now: Instant, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        if !hear.hear(self.hold.admit(now)) || !hear.hear(self.turn.admit(now)) || !hear.hear(self.in_flight.admit(ask))
        {
            return false;
        }
        // Without a share there is no room either, and when there will be some only the former estimates.
        let divided = self.divided.admit(now);
        if divided.is_now() { self.quotas.ask(now, ask, hear) } else { hear.hear(divided) }
    }

    /// Whether a call of that cost could never leave, by the limits of the account or of its scope.
    pub(super) fn too_large(&self, place: u32, cost: &Cost) -> Option<TooLarge> {
        self.quotas.too_large(cost).or_else(|| self.scopes[place].quotas().too_large(cost))
    }
}
