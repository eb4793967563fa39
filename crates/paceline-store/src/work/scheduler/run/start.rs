//! Starts due items, and delays those that the work declines.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Instant;
use paceline_core::retry::Counted;

use super::{AHEAD, Run};
use crate::scope::ScopeStatus;
use crate::work::item::{ClaimOutcome, Failure, Transition};
use crate::work::judge::{Case, Judgement, is_arguable};
use crate::work::scheduler::window::HeldClaim;
use crate::work::scheduler::{Scheduler, SchedulerEvent, StartDecision, StartDelay, Task};

impl<W, F> Run<'_, W>
where
    W: Fn(Task) -> StartDecision<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    /// Starts due items while there are places.
    pub(super) fn start_due(&mut self) {
        let now = self.scheduler.clock.now();
        while self.ending.is_none()
            && self.blocked_until.is_none()
            && self.in_flight.len() < self.scheduler.config.concurrency
        {
            let Some(held) = self.window.pop_due(now) else { return };
            let id = held.claimed.item.id;
            if self.in_flight.range((id, i64::MIN)..=(id, i64::MAX)).next().is_some() {
                // A user cancelled it and let it wait again: one item is worked on once at a time.
                let scope = Arc::clone(&held.claimed.item.group);
                let wait = StartDelay {
                    after: None,
                    why: "its last try".into(),
                    scope,
                    for_all: false,
                    at_hand: true,
                    in_this_run: false,
                };
                self.window.park(held, wait);
                continue;
            }
            let (config, age) = (&self.scheduler.config, held.claimed.age + now.saturating_since(held.since));
            let crashed = config.too_many_crashes(&held.claimed);
            if let Some(outcome) = crashed.or_else(|| config.past_deadline(&held.claimed, age)) {
                self.conclude(held, outcome);
                continue;
            }
            match (self.work)(held.task()) {
                StartDecision::Now(work) => self.start(held, work),
                StartDecision::Later(wait) => self.delay(held, wait, now),
                StartDecision::Left { why, time_stands_still } => {
                    let outcome = ClaimOutcome::left(&held.claimed, why, time_stands_still);
                    self.outcomes.push((held, outcome));
                }
                StartDecision::Never(failure) => self.apply_rules(held, failure, None, Some(Counted::Nothing)),
                StartDecision::Stopped(reason) => {
                    self.window.put_back(held.clone());
                    self.close_group(&held.claimed.item.group, ScopeStatus::Stopped { reason });
                }
            }
        }
    }

    /// Delays a declined item: a short wait is spent in the window, a longer one in the store.
    fn delay(&mut self, held: HeldClaim, wait: StartDelay, now: Instant) {
        let after = match wait.after {
            Some(after) => after,
            None if self.in_flight.is_empty() => AHEAD,
            // One that ends may let it begin.
            None if wait.for_all => return self.window.park(held, wait),
            None if wait.at_hand => {
                self.window.park(held, wait);
                let crowded_out = self.window.crowd_out(self.scheduler.config.concurrency);
                return crowded_out.into_iter().for_each(|(held, wait)| self.wait_for_place(held, wait, now));
            }
            // Of a group whose calls are not answered it could be for long.
            None => return self.wait_for_place(held, wait, now),
        };
        let (until, far) = (now + after.max(TICK), after > AHEAD);
        self.note_declined(until, &wait.why);
        if wait.for_all {
            self.blocked_until = Some(until);
            self.window.put_back(held);
            if far {
                self.release(None);
            }
        } else if far {
            self.awaited.note(&held, wait.in_this_run);
            self.wait_in_store(held, after, wait.why, now);
        } else {
            self.window.delay(held, until);
        }
    }

    /// An item waits in the store for a place.
    fn wait_for_place(&mut self, held: HeldClaim, wait: StartDelay, now: Instant) {
        self.awaited.note(&held, wait.in_this_run);
        let after = self.turns.next(now, wait.scope);
        self.note_declined(now + after, &wait.why);
        self.wait_in_store(held, after, wait.why, now);
    }

    fn wait_in_store(&mut self, held: HeldClaim, after: Duration, why: Arc<str>, now: Instant) {
        self.no_claim_before = self.no_claim_before.max(now) + TICK;
        let age = held.claimed.age + now.saturating_since(held.since);
        let (after, why) = self.scheduler.config.waits(&held.claimed, age, after, why);
        let (next, waits_for) = (Transition::Retry(after), Some(why));
        let outcome = ClaimOutcome { next, waits_for, ..ClaimOutcome::back(&held.claimed) };
        self.outcomes.push((held, outcome));
    }

    fn note_declined(&mut self, until: Instant, why: &Arc<str>) {
        if self.declined.as_ref().is_none_or(|(known, _)| until < *known) {
            self.declined = Some((until, why.clone()));
        }
    }

    fn start(&mut self, held: HeldClaim, work: F) {
        let claimed = held.claimed.clone();
        let claim_id = (claimed.item.id, claimed.fence);
        self.summary.calls += 1;
        self.summary.resends += u64::from(claimed.item.calls() > 0);
        self.scheduler.notify(&SchedulerEvent::Started(&claimed.item));
        let scheduler = self.scheduler.clone();
        let task = self.running.spawn(async move {
            match work.await {
                Ok(()) => Ok(()),
                Err(failure) => {
                    let decision = judged(&scheduler, &claimed, &failure).await;
                    Err((failure, decision))
                }
            }
        });
        self.tasks.insert(task.id(), claim_id);
        self.in_flight.insert(claim_id, held);
    }

    /// Notifies the observer of what the next start waits for, once for each wait.
    pub(super) fn notify_wait(&mut self) {
        let now = self.scheduler.clock.now();
        let full = self.in_flight.len() >= self.scheduler.config.concurrency;
        let due = [self.window.next_due(), self.earliest()].into_iter().flatten().min();
        let waits = match (&self.declined, due) {
            _ if full || self.ending.is_some() => None,
            (Some((until, why)), due) if due.is_none_or(|due| *until <= due || due <= now) => {
                Some((*until, Some(why.clone())))
            }
            (_, Some(due)) if due > now => Some((due, None)),
            _ => None,
        };
        if let Some((until, why)) = &waits
            && self.last_wait != waits
        {
            let wait = until.saturating_since(now);
            self.scheduler.notify(&SchedulerEvent::Waiting { wait, why: why.as_deref() });
        }
        self.last_wait = waits;
    }
}

/// The judge's decision, if there is a judge and it decides in time.
async fn judged(scheduler: &Scheduler, claimed: &Arc<crate::work::Claimed>, failure: &Failure) -> Option<Judgement> {
    let judge = scheduler.judge.as_ref().filter(|_| is_arguable(failure))?;
    let item = &claimed.item;
    let retry = (item.attempts - item.forgiven.attempts.min(item.attempts)).saturating_add(1);
    let max_retries = scheduler.config.max_retries;
    let case = Case { item, payload: &claimed.payload, failure, retry, max_retries, history: &claimed.history };
    let answer = tokio::time::timeout(scheduler.config.judge_timeout, judge.decide(case)).await;
    answer.unwrap_or_else(|_| {
        tracing::warn!(item = item.key, judge = judge.name(), "the judge gave no answer in time; the rules decide");
        scheduler.notify(&SchedulerEvent::JudgeTimedOut(item));
        None
    })
}

/// Items that begin in this run, however short its longest wait is: from when they are put back into the store until the store
/// hands them out again.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    items: BTreeSet<u64>,
    /// When the last of those that the store has is due.
    until: Option<Instant>,
}

impl Awaited {
    fn note(&mut self, held: &HeldClaim, is_awaited: bool) {
        if is_awaited {
            self.items.insert(held.claimed.item.id);
        }
    }

    /// The store has it that an item is due then.
    pub(super) fn recorded(&mut self, item: u64, due: Instant) {
        if self.items.contains(&item) {
            self.until = self.until.max(Some(due));
        }
    }

    /// The store handed an item out.
    pub(super) fn claimed(&mut self, item: u64) {
        self.items.remove(&item);
    }

    /// Whether one of them is still to come. One that a person cancelled, or another worker took, never comes.
    pub(super) fn is_any(&self, now: Instant) -> bool {
        !self.items.is_empty() && self.until.is_some_and(|until| now <= until + OVERDUE)
    }
}

/// How much later than at its time the store may hand out an item that the run awaits: what a busy disk or a far store takes.
const OVERDUE: Duration = Duration::from_secs(10);

/// The shortest wait of a declined item, and the pause before the next claim after one goes back into the store.
pub(super) const TICK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a claim took makes the store's times look later than they are.
    #[test]
    fn what_a_run_awaits_is_awaited_until_it_is_handed_out() {
        let due = Instant::from_nanos(1_000_000_000);
        let mut awaited = Awaited { items: BTreeSet::from([1, 2]), until: None };
        assert!(!awaited.is_any(due), "the store does not have them yet");
        awaited.recorded(1, due);
        awaited.recorded(2, due);
        awaited.recorded(3, due + Duration::from_secs(3_600));
        assert!(awaited.is_any(due + Duration::from_secs(1)));
        awaited.claimed(1);
        assert!(awaited.is_any(due + Duration::from_secs(1)));
        assert!(!awaited.is_any(due + OVERDUE + TICK), "a person cancelled it");
        awaited.claimed(2);
        assert!(!awaited.is_any(due));
    }
}
