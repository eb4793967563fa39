//! Forecasts of a start: the known wait, which is certain, and an estimate behind others.

use core::time::Duration;

use super::Pacer;
use super::dispatch::PASSED_OVER;
use crate::admit::{Admit, Level, MaxWait, WaitCause, WaitReason};
use crate::cost::Cost;
use crate::request::Request;
use crate::scope::Scope;
use crate::time::Instant;

/// Every known wait counts.
const ANYTHING: MaxWait = MaxWait::Known(Duration::ZERO);

impl Pacer {
    /// The known wait of a request, its end and its reason: the part that no call, answer or cancellation can shorten. Of pauses,
    /// an open breaker and full windows it takes what `counts`. The request is treated as the first of its scope. A person can
    /// shorten the wait by resuming the scope or raising the limit. Where account and scope wait equally long, the reason is the
    /// account's.
    pub(super) fn known_wait(
        &self,
        now: Instant,
        scope: &Scope,
        counts: MaxWait,
        request: &Request,
    ) -> Option<(Instant, WaitReason)> {
        let account = timed(self.known_wait_in_account(now, counts, &request.cost))
            .map(|(at, cause)| (at, Level::Account, cause));
        let own = timed(scope.known_wait(now, counts, &request.cost, request.caller)).map(|(at, cause)| {
            let level = if matches!(cause, WaitCause::Quota { .. }) { Level::Tier } else { Level::Scope };
            (at, level, cause)
        });
        let longest = [own, account].into_iter().flatten().max_by_key(|(at, ..)| *at);
        longest.map(|(at, level, cause)| (at, WaitReason { level, cause }))
    }

    /// The known wait for the account alone.
    pub(super) fn known_wait_in_account(&self, now: Instant, counts: MaxWait, cost: &Cost) -> Admit {
        let held = self.hold.admit(now);
        match counts {
            MaxWait::Pause(_) => held,
            MaxWait::Known(_) => held.strictest(self.quotas.earliest_room(now, cost, &self.out)),
        }
    }

    /// The earliest start of a waiting request, if it is later than `now`: its due time or the end of its known wait.
    ///
    /// None while the scope is held or stopped: deadlines stand still then, so such a wait never makes one impossible.
    pub(super) fn certain_start(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let start = self.start_in_scope(now, scope, request)?.max(self.start_in_account(now, &request.cost));
        (start > now).then_some(start)
    }

    /// The earliest start by the rules of its scope alone: only an input to the scope changes it.
    pub(super) fn start_in_scope(&self, now: Instant, scope: &Scope, request: &Request) -> Option<Instant> {
        let due = request.not_before.unwrap_or(now);
        (!scope.clock.is_standing())
            .then(|| start(now, scope.known_wait(now, ANYTHING, &request.cost, request.caller)).max(due))
    }

    /// The earliest start by the rules of the account alone.
    pub(super) fn start_in_account(&self, now: Instant, cost: &Cost) -> Instant {
        start(now, self.known_wait_in_account(now, ANYTHING, cost))
    }

    /// How many requests leave before a new one of its scope: those of callers that alone fail do not, where it is another's.
    pub(super) fn ahead_of(&self, now: Instant, scope: &Scope, request: &Request, arrival: u64) -> u64 {
        let waits = |caller| scope.passes_from(now, caller) != Some(now);
        if !scope.tells_callers_apart() || waits(request.caller) {
            return scope.queue.ahead_of(request.priority, arrival);
        }
        let leaves = |slot| !waits(self.slots.at(slot).request.caller);
        scope.queue.such_ahead_of(PASSED_OVER, request.priority, arrival, leaves)
    }

    /// Estimates the start of a request behind `ahead` others of its scope, if its `own` start has a known time. The account's
    /// limits also serve the requests of other scopes.
    pub(super) fn forecast(&self, now: Instant, scope: &Scope, cost: &Cost, ahead: u64, own: &Admit) -> Admit {
        let unknown = Admit::OnRelease { cause: WaitCause::Queue };
        let start = match own {
            Admit::Now => now,
            // While there is a ledger, it may give more at any moment.
            Admit::At { cause: WaitCause::Share { .. }, .. } if self.divided.admit(now).is_now() => return unknown,
            Admit::At { at, .. } => *at,
            Admit::OnRelease { .. } => return unknown,
        };
        let waiting = (self.slots.len() as u64).saturating_sub(u64::from(self.in_flight.now())).max(ahead);
        let in_scope = scope.forecast(now, start, cost, ahead);
        let at = in_scope.max(self.quotas.forecast(now, cost, waiting.saturating_add(1)));
        if at > now { Admit::At { at, cause: WaitCause::Queue } } else { unknown }
    }
}

/// The end of a wait and its cause, if the end is known.
fn timed(wait: Admit) -> Option<(Instant, WaitCause)> {
    match wait {
        Admit::At { at, cause } => Some((at, cause)),
        Admit::Now | Admit::OnRelease { .. } => None,
    }
}

fn start(now: Instant, wait: Admit) -> Instant {
    timed(wait).map_or(now, |(at, _)| at)
}
