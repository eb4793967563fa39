//! What can be said about a start that lies ahead: what is certain, and what is to be expected.

use super::Pacer;
use crate::admit::{Admit, Policy};
use crate::cost::Cost;
use crate::request::Request;
use crate::scope::Scope;
use crate::time::Instant;

impl Pacer {
    /// The earliest start of a waiting request, where that lies ahead and no call, answer or cancellation can bring it nearer:
    /// its own due time, a pause of its scope until a known time, and windows that are full even if all that is in flight were
    /// given back. A person can: one who resumes the scope or raises the limit.
    ///
    /// None while the scope is held or stopped: deadlines stand still then, so such a wait never makes one impossible.
    pub(super) fn certain_start(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let start = self.start_in_scope(now, scope, request)?.max(self.start_in_account(now, &request.cost));
        (start > now).then_some(start)
    }

    /// The same as far as its scope is concerned: nothing but an input to the scope changes that.
    pub(super) fn start_in_scope(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let due = request.not_before.unwrap_or(now);
        (!scope.clock.is_standing()).then(|| scope.certain_start(now, &request.cost).max(due))
    }

    /// The same as far as the limits of the account are concerned.
    pub(super) fn start_in_account(&self, now: Instant, cost: &Cost) -> Instant {
        self.quotas.full_until(now, cost, &self.out)
    }

    /// When it is the turn of a request with so many `ahead` of it in its scope, if its `own` start is a matter of time. The
    /// account's limits also serve those who wait in other scopes.
    pub(super) fn turn(&self, now: Instant, scope: &Scope, cost: &Cost, ahead: u64, own: &Admit) -> Admit {
        let unknown = Admit::OnRelease { policy: Policy::Queue };
        let start = match own {
            Admit::Now => now,
            Admit::At { at, .. } => *at,
            Admit::OnRelease { .. } => return unknown,
        };
        let waiting = (self.slots.len() as u64).saturating_sub(u64::from(self.in_flight.now())).max(ahead);
        let in_scope = scope.passes_at(now, start, cost, ahead);
        let at = in_scope.max(self.quotas.passes_at(now, cost, waiting.saturating_add(1)));
        if at > now { Admit::At { at, policy: Policy::Queue } } else { unknown }
    }
}
