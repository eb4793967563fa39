//! What begins, and what becomes of items that are declined.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Instant;
use paceline_core::retry::Counted;

use super::{AHEAD, Run};
use crate::scope::ScopeStatus;
use crate::work::item::{ClaimOutcome, Failure, Transition};
use crate::work::judge::{Case, Judgement, is_arguable};
use crate::work::scheduler::window::Held;
use crate::work::scheduler::{Note, Scheduler, Start, Task, Wait};

impl<W, F> Run<'_, W>
where
    W: Fn(Task) -> Start<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    /// Starts what is due and may start, while there are places.
    pub(super) fn start_due(&mut self) {
        let now = self.scheduler.clock.now();
        while self.ending.is_none() && self.shut.is_none() && self.flights.len() < self.scheduler.policy.concurrency {
            let Some(held) = self.window.pop_due(now) else { return };
            let id = held.claimed.item.id;
            if self.flights.range((id, i64::MIN)..=(id, i64::MAX)).next().is_some() {
                // A user cancelled it and let it wait again: one item is worked on once at a time.
                self.window.park(held);
                continue;
            }
            if let Some(outcome) = self.scheduler.policy.too_many_crashes(&held.claimed) {
                self.settled.push((held, outcome));
                continue;
            }
            match (self.work)(Task(held.claimed.clone())) {
                Start::Now(work) => self.start(held, work),
                Start::Later(wait) => self.put_off(held, wait, now),
                Start::Never(failure) => self.rule(held, failure, None, Some(Counted::Nothing)),
                Start::Stopped(reason) => {
                    self.window.put_back(held.clone());
                    self.close(&held.claimed.item.group, ScopeStatus::Stopped { reason });
                }
            }
        }
    }

    /// A near wait is spent at hand, a far one in the store.
    fn put_off(&mut self, held: Held, wait: Wait, now: Instant) {
        let Wait { after, why, for_all } = wait;
        let Some(after) = after.or_else(|| self.flights.is_empty().then_some(AHEAD)) else {
            return self.window.park(held);
        };
        let (until, far) = (now + after.max(TICK), after > AHEAD);
        if self.declined.as_ref().is_none_or(|(known, _)| until < *known) {
            self.declined = Some((until, why));
        }
        if for_all {
            self.shut = Some(until);
            self.window.put_back(held);
            if far {
                self.give_back(None);
            }
        } else if far {
            self.look_after = self.look_after.max(now) + TICK;
            let outcome = ClaimOutcome { next: Transition::Again(after), ..ClaimOutcome::back(&held.claimed) };
            self.settled.push((held, outcome));
        } else {
            self.window.put_off(held, until);
        }
    }

    fn start(&mut self, held: Held, work: F) {
        let claimed = held.claimed.clone();
        let flight = (claimed.item.id, claimed.fence);
        self.summary.calls += 1;
        self.summary.resends += u64::from(claimed.item.sends() > 0);
        self.scheduler.tell(&Note::Started(&claimed.item));
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
        self.tasks.insert(task.id(), flight);
        self.flights.insert(flight, held);
    }

    /// Says what the next start waits for, once for each wait.
    pub(super) fn tell_wait(&mut self) {
        let now = self.scheduler.clock.now();
        let full = self.flights.len() >= self.scheduler.policy.concurrency;
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
            && self.told != waits
        {
            let wait = until.saturating_since(now);
            self.scheduler.tell(&Note::Waiting { wait, why: why.as_deref() });
        }
        self.told = waits;
    }
}

/// What a judge says, if there is one and it says something in time.
async fn judged(scheduler: &Scheduler, claimed: &Arc<crate::work::Claimed>, failure: &Failure) -> Option<Judgement> {
    let judge = scheduler.judge.as_ref().filter(|_| is_arguable(failure))?;
    let item = &claimed.item;
    let retry = (item.attempts - item.forgiven.attempts.min(item.attempts)).saturating_add(1);
    let max_retries = scheduler.policy.max_retries;
    let case = Case { item, payload: &claimed.payload, failure, retry, max_retries, history: &claimed.history };
    let answer = tokio::time::timeout(scheduler.policy.judge_timeout, judge.decide(case)).await;
    answer.unwrap_or_else(|_| {
        tracing::warn!(item = item.key, judge = judge.name(), "the judge gave no answer in time; the rules decide");
        scheduler.tell(&Note::JudgeSilent(item));
        None
    })
}

/// A declined item is not asked about again at the same moment. For as long the store is left alone after each that goes back.
const TICK: Duration = Duration::from_millis(1);
