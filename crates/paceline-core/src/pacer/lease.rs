//! Leases: calls that are promised together, and counted when the promise ends.
//!
//! A caller that reports no outcomes needs no ticket, and no lock where its driver can count down by itself. So the pacer
//! promises all that the limits have left, grants nothing else meanwhile, and is told at the end how many calls have left. They
//! count as of the end, which is later than any of them and, for a window, in the same slot: no window ever holds one too many,
//! and none holds a call longer.

use core::time::Duration;

use super::Pacer;
use crate::outcome::Class;
use crate::request::Request;
use crate::time::Instant;

/// A bucket counts calls as of the end of a lease, so it is short: what is refilled into a full bucket meanwhile is lost.
const LONGEST: Duration = Duration::from_millis(1);

/// A promise of [`Pacer::lease`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what leaves under it counts once it is ended"]
#[non_exhaustive]
pub struct Lease {
    /// So many calls, at least one, may leave.
    pub calls: u64,
    /// They have to leave before this.
    pub until: Instant,
}

/// A promise is no longer than this, so that sums stay far from the edge of the integers.
const MOST: u64 = 1 << 32;

impl Pacer {
    /// Promises calls like this one, whose outcomes are not reported. None where a caller waits, where any rule does not admit
    /// the call now, or where the pace follows from every call. It does not under [`Pace::Fixed`](crate::Pace::Fixed) and
    /// [`Pace::None`](crate::Pace::None), nor under [`Pace::Auto`](crate::Pace::Auto) as long as configured limits are
    /// believed.
    ///
    /// Before any other input, and before any question, the lease has to be ended by [`end_lease`](Self::end_lease): till then
    /// it may have promised all that there is.
    pub fn lease(&mut self, now: Instant, request: &Request) -> Option<Lease> {
        let now = self.advance(now);
        let place = self.scopes.find(&request.scope)?;
        if request.cost.is_guess() || !self.scopes[place].only_counts() || !self.leaves_at_once(now, place, request) {
            return None;
        }
        let (quotas, own, cost) = (&self.quotas, self.scopes[place].quotas(), &request.cost);
        let calls = quotas.calls_left(now, cost).min(own.calls_left(now, cost)).min(MOST);
        let until =
            quotas.slot_end(now, cost).min(own.slot_end(now, cost)).min(now + LONGEST).min(self.divided.until());
        (calls > 0 && until > now).then_some(Lease { calls, until })
    }

    /// Ends a lease for such calls, of which so many have left, the last of them by `now` and before its end.
    pub fn end_lease(&mut self, now: Instant, request: &Request, lease: &Lease, calls: u64) {
        let left = self.advance(now.min(lease.until.saturating_sub(Duration::from_nanos(1))));
        let Some(place) = self.scopes.find(&request.scope).filter(|_| calls > 0) else { return };
        let scope = &mut self.scopes[place];
        scope.count_calls(left, &request.cost, calls);
        self.quotas.count_calls(left, &request.cost, calls);
        for totals in [&mut scope.totals, &mut self.totals] {
            totals.sends += calls;
            totals.by_class[Class::Abandoned as usize] += calls;
        }
        self.scopes.note_changed(place);
    }
}
