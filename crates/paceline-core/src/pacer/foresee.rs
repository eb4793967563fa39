//! What can be said about a start that lies ahead: what is certain, and what is to be expected.

use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, Level, MaxWait, WaitCause, WaitReason};
use crate::cost::Cost;
use crate::request::Request;
use crate::scope::Scope;
use crate::time::Instant;

/// All that is certain counts.
const ANYTHING: MaxWait = MaxWait::Known(Duration::ZERO);

impl Pacer {
    /// What keeps a request out, and until when, where no call, answer or cancellation can bring that nearer: of a pause, an open
    /// breaker and full windows, what `counts`. The request is looked at as if it were the first of its scope. A person can bring
    /// it nearer: one who resumes the scope or raises the limit. Where the account and a scope are shut equally long, it is the
    /// account.
    pub(super) fn shut(
        &self,
        now: Instant,
        scope: &Scope,
        counts: MaxWait,
        cost: &Cost,
    ) -> Option<(Instant, WaitReason)> {
        let account = timed(self.shut_in_account(now, counts, cost)).map(|(at, cause)| (at, Level::Account, cause));
        let own = timed(scope.shut(now, counts, cost)).map(|(at, cause)| {
            let level = if matches!(cause, WaitCause::Quota { .. }) { Level::Tier } else { Level::Scope };
            (at, level, cause)
        });
        let longest = [own, account].into_iter().flatten().max_by_key(|(at, ..)| *at);
        longest.map(|(at, level, cause)| (at, WaitReason { level, cause }))
    }

    /// The same of the account alone.
    pub(super) fn shut_in_account(&self, now: Instant, counts: MaxWait, cost: &Cost) -> Admit {
        let held = self.hold.admit(now);
        match counts {
            MaxWait::Pause(_) => held,
            MaxWait::Known(_) => held.strictest(self.quotas.full(now, cost, &self.out)),
        }
    }

    /// The earliest start of a waiting request, where that lies ahead: its own due time, and what keeps it out.
    ///
    /// None while the scope is held or stopped: deadlines stand still then, so such a wait never makes one impossible.
    pub(super) fn certain_start(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let start = self.start_in_scope(now, scope, request)?.max(self.start_in_account(now, &request.cost));
        (start > now).then_some(start)
    }

    /// The same as far as its scope is concerned: nothing but an input to the scope changes that.
    pub(super) fn start_in_scope(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let due = request.not_before.unwrap_or(now);
        (!scope.clock.is_standing()).then(|| start(now, scope.shut(now, ANYTHING, &request.cost)).max(due))
    }

    /// The same as far as the account is concerned.
    pub(super) fn start_in_account(&self, now: Instant, cost: &Cost) -> Instant {
        start(now, self.shut_in_account(now, ANYTHING, cost))
    }

    /// When it is the turn of a request with so many `ahead` of it in its scope, if its `own` start is a matter of time. The
    /// account's limits also serve those who wait in other scopes.
    pub(super) fn turn(&self, now: Instant, scope: &Scope, cost: &Cost, ahead: u64, own: &Admit) -> Admit {
        let unknown = Admit::OnRelease { cause: WaitCause::Queue };
        let start = match own {
            Admit::Now => now,
            Admit::At { at, .. } => *at,
            Admit::OnRelease { .. } => return unknown,
        };
        let waiting = (self.slots.len() as u64).saturating_sub(u64::from(self.in_flight.now())).max(ahead);
        let in_scope = scope.passes_at(now, start, cost, ahead);
        let at = in_scope.max(self.quotas.passes_at(now, cost, waiting.saturating_add(1)));
        if at > now { Admit::At { at, cause: WaitCause::Queue } } else { unknown }
    }
}

/// When that is over, where it has a time.
fn timed(shut: Admit) -> Option<(Instant, WaitCause)> {
    match shut {
        Admit::At { at, cause } => Some((at, cause)),
        Admit::Now | Admit::OnRelease { .. } => None,
    }
}

fn start(now: Instant, shut: Admit) -> Instant {
    timed(shut).map_or(now, |(at, _)| at)
}
