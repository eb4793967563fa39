//! The snapshot of one scope.

use alloc::vec::Vec;

use super::Scope;
use crate::admit::{Admit, WaitCause};
use crate::config::Pace;
use crate::hold::Hold;
use crate::quota::Quotas;
use crate::server_limits::ServerLimits;
use crate::snapshot::{QuotaSnapshot, ScopeSnapshot, ScopeState};
use crate::time::Instant;

impl Scope {
    pub(crate) fn snapshot(&self, now: Instant, next: Admit) -> ScopeSnapshot {
        let estimate = (self.pace == Pace::Auto).then(|| self.learnt.estimate(now, &self.gate));
        let mut concurrency = self.in_flight.snapshot(self.queue.len() > 0);
        if let Some(cap) = estimate.as_ref().and_then(|estimate| estimate.cap) {
            concurrency.current_limit = concurrency.current_limit.min(cap);
        }
        ScopeSnapshot {
            name: self.name.clone(),
            state: state(&self.hold, &next),
            quotas: quotas(&self.quotas, now),
            announced: self.announced.iter().map(|limit| self.announced_snapshot(now, limit)).collect(),
            fleet: None,
            burst: self.quotas.burst_left(now),
            concurrency,
            estimate,
            delay: self.spacing.delay(),
            responsive: self.spacing.counters(),
            totals: self.totals.clone(),
            waiting: self.queue.len() as u64,
            waiting_by_priority: self.queue.by_priority(),
            next_due: self.next_due(now, &next),
            waits_for: waits_for(next),
            closed_until: self.gate.closed_until(now),
            closed_for: self.gate.closed_for(now),
            failing_since: self.failing_since(),
            no_success_since: self.breaker.all().no_success_since(),
            refused_since: self.breaker.all().refused_since(),
            refuses_all_since: self.breaker.all().refuses_all_since(),
            fails_for: self.breaker.at_fault(),
            answers: self.answers.known(),
            silent: None,
            fault: None,
        }
    }

    /// Since when nothing has succeeded, if the breaker opened.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.breaker.all().failing_since()
    }

    fn next_due(&self, now: Instant, next: &Admit) -> Option<Instant> {
        let head = self.queue.head().map(|_| match next {
            Admit::At { at, .. } => *at,
            Admit::Now | Admit::OnRelease { .. } => now,
        });
        match (head, self.queue.next_due()) {
            (Some(head), Some(due)) => Some(head.min(due)),
            (head, due) => head.or(due),
        }
    }

    fn announced_snapshot(&self, now: Instant, limit: &ServerLimits) -> QuotaSnapshot {
        let spent = self.spent.get(&limit.dimension);
        let next_free = match limit.admit(now, 1, spent) {
            Admit::At { at, .. } => at,
            Admit::Now | Admit::OnRelease { .. } => now,
        };
        let remaining = limit.remaining_after(spent);
        QuotaSnapshot {
            dimension: limit.dimension.clone(),
            limit: limit.limit,
            used: limit.limit.saturating_sub(remaining),
            remaining,
            window: limit.window,
            next_free,
            taken: Vec::new(),
        }
    }
}

pub(crate) fn state(hold: &Hold, next: &Admit) -> ScopeState {
    match (hold.stopped(), hold.until(), next) {
        (Some(reason), _, _) => ScopeState::Stopped { reason: reason.clone() },
        (None, Some((until, cause)), _) => ScopeState::Held { until, cause },
        (None, None, Admit::Now) => ScopeState::Open,
        (None, None, Admit::At { .. } | Admit::OnRelease { .. }) => ScopeState::Paced,
    }
}

fn waits_for(next: Admit) -> Option<(WaitCause, Option<Instant>)> {
    match next {
        Admit::Now => None,
        Admit::At { at, cause } => Some((cause, Some(at))),
        Admit::OnRelease { cause } => Some((cause, None)),
    }
}

pub(crate) fn quotas(quotas: &Quotas, now: Instant) -> Vec<QuotaSnapshot> {
    quotas
        .counters()
        .map(|(quota, counter)| {
            let used = counter.used(now);
            QuotaSnapshot {
                dimension: quota.dimension.clone(),
                limit: quota.limit,
                used,
                remaining: quota.limit.saturating_sub(used),
                window: Some(quota.window),
                next_free: counter.fits_in(quota, now, 1),
                taken: counter.taken(now),
            }
        })
        .collect()
}
