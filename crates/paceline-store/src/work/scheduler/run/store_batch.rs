//! A batch of the store: outcomes, heartbeat and claim in one go, and their results.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;

use super::{AHEAD, Run};
use crate::scope::ScopeRow;
use crate::state::State;
use crate::work::error::WorkError;
use crate::work::item::{Claim, ClaimOutcome, ClaimRequest, Failure, Filter, RecordStatus, WorkerId};
use crate::work::scheduler::window::HeldClaim;
use crate::work::scheduler::{SchedulerEvent, StartDecision, Task};
use crate::work::store::WorkStore;

/// A batch that the store is working on.
pub(super) type StoreBatch = Pin<Box<dyn Future<Output = Result<StoreBatchResult, WorkError>> + Send>>;

/// The results of a batch.
pub(super) struct StoreBatchResult {
    heartbeat_sent: bool,
    /// The new id, if the lease had run out.
    registered: Option<WorkerId>,
    outcomes: Vec<(HeldClaim, ClaimOutcome)>,
    statuses: Vec<RecordStatus>,
    /// Of the items whose outcomes were not recorded, those that a person cancelled.
    cancelled: BTreeSet<u64>,
    scopes: Vec<ScopeRow>,
    claim: Option<Claim>,
}

/// Waits for the batch, if there is one; else forever.
pub(super) async fn completed(batch: &mut Option<StoreBatch>) -> Result<StoreBatchResult, WorkError> {
    match batch {
        Some(batch) => batch.await,
        None => std::future::pending().await,
    }
}

/// The numbers of those items of these keys that are cancelled.
async fn cancelled(store: &dyn WorkStore, keys: Vec<String>) -> Result<BTreeSet<u64>, WorkError> {
    if keys.is_empty() {
        return Ok(BTreeSet::new());
    }
    let limit = keys.len();
    let items = store.list(Filter { states: vec![State::Cancelled], group: None, keys }, 0, limit).await?;
    Ok(items.iter().map(|item| item.id).collect())
}

impl<W, F> Run<'_, W>
where
    W: Fn(Task) -> StartDecision<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    /// The next batch, if there is anything to record or to claim: all in one go, so that it is one transaction.
    pub(super) fn next_batch(&mut self) -> Option<StoreBatch> {
        let now = self.scheduler.clock.now();
        let limit = self.capacity();
        let look = limit > 0 && self.next_claim_at().is_some_and(|at| at <= now);
        let heartbeat = self.heartbeat_at <= now;
        if !look && !heartbeat && self.outcomes.is_empty() && self.scopes.is_empty() {
            return None;
        }
        let outcomes = std::mem::take(&mut self.outcomes);
        let scopes = std::mem::take(&mut self.scopes);
        let (scheduler, worker) = (self.scheduler.clone(), self.worker);
        Some(Box::pin(async move {
            let (store, config) = (&scheduler.store, &scheduler.config);
            let mut registered = None;
            if heartbeat && !store.heartbeat(worker).await? {
                tracing::warn!(
                    "this worker did not reach its store for {} s, so that other workers took its items; it continues",
                    config.lease.as_secs()
                );
                registered = Some(store.reregister(&scheduler.name, config.lease).await?);
            }
            let record = async {
                if outcomes.is_empty() && scopes.is_empty() {
                    return Ok(Vec::new());
                }
                store.record(outcomes.iter().map(|(_, outcome)| outcome.clone()).collect(), scopes.clone()).await
            };
            let claim = async {
                if !look || registered.is_some() {
                    return Ok(None);
                }
                store.claim(worker, ClaimRequest { limit, ahead: AHEAD }).await.map(Some)
            };
            let (statuses, claim) = tokio::join!(record, claim);
            let (statuses, claim) = (statuses?, claim?);
            let lost = outcomes.iter().zip(&statuses).filter(|(_, status)| **status == RecordStatus::Lost);
            let lost: Vec<String> = lost.map(|((held, _), _)| held.claimed.item.key.clone()).collect();
            let cancelled = cancelled(&**store, lost).await?;
            Ok(StoreBatchResult { heartbeat_sent: heartbeat, registered, outcomes, statuses, cancelled, scopes, claim })
        }))
    }

    pub(super) fn batch_done(&mut self, result: StoreBatchResult) {
        self.batch = None;
        let now = self.scheduler.clock.now();
        self.read_ahead.batch_done();
        let StoreBatchResult { heartbeat_sent, registered, outcomes, statuses, cancelled, scopes, claim } = result;
        if let Some(worker) = registered {
            // Other workers have our items by now: claimed ones are dropped, and outcomes of running ones will be refused.
            self.window.take(None);
            self.worker = worker;
            self.schedule_claim(now);
        }
        if heartbeat_sent {
            self.note_taken_over();
            self.heartbeat_at = now + self.scheduler.config.lease / 3;
        }
        let asked = claim.is_some();
        // The claim may be from before the outcomes were recorded, so its next due time does not include theirs.
        if let Some(claim) = claim {
            self.take(claim);
        }
        for ((held, outcome), status) in outcomes.iter().zip(statuses) {
            match status {
                RecordStatus::Recorded => self.recorded(held, outcome),
                RecordStatus::Lost => self.not_recorded(held, outcome, cancelled.contains(&outcome.id)),
            }
        }
        scopes.iter().for_each(|row| self.scheduler.notify(&SchedulerEvent::Scope(row)));
        // Whether other workers still have items, which may come back, is only known from a claim that finds none: a worker that
        // has just ended its last claims once more.
        if !asked && (heartbeat_sent || !outcomes.is_empty()) && self.has_nothing() {
            self.schedule_claim(now);
        }
    }
}

/// How many items are claimed beyond those that run: as many as end while the store works on a batch. Where the work takes longer
/// than that it is none, so that other workers can claim them.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    ended: usize,
    pub(super) ahead: usize,
}

/// The most items that are claimed ahead: memory is bounded, and so is what a dead worker holds up.
const MOST_AHEAD: usize = 1_000;

impl ReadAhead {
    /// An item ended while the store worked on a batch.
    pub(super) fn count(&mut self) {
        self.ended += 1;
    }

    /// The batch is done. Twice as many are wanted, since all that were claimed ahead may have ended; fewer are wanted by and by.
    pub(super) fn batch_done(&mut self) {
        let wanted = (std::mem::take(&mut self.ended) * 2).min(MOST_AHEAD);
        self.ahead = wanted.max((self.ahead * 3 + wanted) / 4);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::work::{MemoryStore, NewItem, Scheduler, SchedulerConfig, Transition, WorkClock};

    type Never = std::future::Pending<Result<(), Failure>>;

    /// An item that was claimed ahead when another learnt that none may begin for hours must not keep the run from its end.
    #[tokio::test]
    async fn what_the_store_hands_out_during_a_long_wait_of_all_goes_back() {
        let clock = WorkClock::system();
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(vec![NewItem::new("a", ""), NewItem::new("b", "")]).await.unwrap();
        let scheduler = Scheduler::new(store.clone(), SchedulerConfig::default(), clock.clone()).unwrap();
        let work = |_: Task| -> StartDecision<Never> { unreachable!("nothing may begin") };
        for (wait, expected) in [(AHEAD * 3_600, (0, 1)), (AHEAD / 2, (1, 0))] {
            let mut run = Run::begin(&scheduler, work).await.unwrap();
            run.blocked_until = Some(clock.now() + wait);
            let claim = store.claim(run.worker, ClaimRequest { limit: 1, ahead: Duration::ZERO }).await.unwrap();
            run.take(claim);
            assert_eq!((run.window.len(), run.outcomes.len()), expected, "{wait:?}");
            assert!(run.outcomes.iter().all(|(_, outcome)| outcome.next == Transition::Release));
        }
    }
}
