//! A turn of the store: what is told to it and asked of it in one go, and what it brought.

use std::future::Future;
use std::pin::Pin;

use super::{AHEAD, Run};
use crate::scope::ScopeRow;
use crate::work::error::WorkError;
use crate::work::item::{Ask, Claim, ClaimOutcome, Failure, Kept, WorkerId};
use crate::work::scheduler::window::Held;
use crate::work::scheduler::{Note, Start, Task};

/// A turn of the store.
pub(super) type Turn = Pin<Box<dyn Future<Output = Result<Turned, WorkError>> + Send>>;

/// What a turn of the store brought.
pub(super) struct Turned {
    renewed: bool,
    /// Anew, because the lease had run out.
    enlisted: Option<WorkerId>,
    settled: Vec<(Held, ClaimOutcome)>,
    kept: Vec<Kept>,
    scopes: Vec<ScopeRow>,
    claim: Option<Claim>,
}

/// The end of the turn, if one is taken; else never.
pub(super) async fn taken(turn: &mut Option<Turn>) -> Result<Turned, WorkError> {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

impl<W, F> Run<'_, W>
where
    W: Fn(Task) -> Start<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    /// What is to be told to the store and asked of it, if anything: all in one go, so that it is one transaction.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        let now = self.scheduler.clock.now();
        let limit = self.room();
        let look = limit > 0 && self.looks_at().is_some_and(|at| at <= now);
        let renew = self.renew_at <= now;
        if !look && !renew && self.settled.is_empty() && self.scopes.is_empty() {
            return None;
        }
        let settled = std::mem::take(&mut self.settled);
        let scopes = std::mem::take(&mut self.scopes);
        let (scheduler, worker) = (self.scheduler.clone(), self.worker);
        Some(Box::pin(async move {
            let (store, policy) = (&scheduler.store, &scheduler.policy);
            let mut enlisted = None;
            if renew && !store.renew(worker).await? {
                tracing::warn!("the lease of this worker ran out; its items go to others, and it goes on");
                enlisted = Some(store.rejoin(&scheduler.name, policy.lease).await?);
            }
            let record = async {
                if settled.is_empty() && scopes.is_empty() {
                    return Ok(Vec::new());
                }
                store.record(settled.iter().map(|(_, outcome)| outcome.clone()).collect(), scopes.clone()).await
            };
            let claim = async {
                if !look || enlisted.is_some() {
                    return Ok(None);
                }
                store.claim(worker, Ask { limit, ahead: AHEAD }).await.map(Some)
            };
            let (kept, claim) = tokio::join!(record, claim);
            let (kept, claim) = (kept?, claim?);
            Ok(Turned { renewed: renew, enlisted, settled, kept, scopes, claim })
        }))
    }

    pub(super) fn turned(&mut self, turned: Turned) {
        self.turn = None;
        let now = self.scheduler.clock.now();
        self.pace.turned();
        let Turned { renewed, enlisted, settled, kept, scopes, claim } = turned;
        if let Some(worker) = enlisted {
            // Another worker has our items by now: what is at hand is dropped, and what runs will be refused.
            self.window.take(None);
            self.worker = worker;
            self.expect(now);
        }
        if renewed {
            self.renew_at = now + self.scheduler.policy.lease / 3;
        }
        let asked = claim.is_some();
        // What was claimed before an outcome was recorded knows nothing of when that is due.
        if let Some(claim) = claim {
            self.take(claim);
        }
        for ((held, outcome), kept) in settled.iter().zip(kept) {
            self.recorded(held, outcome, kept);
        }
        scopes.iter().for_each(|row| self.scheduler.tell(&Note::Scope(row)));
        // Whether others still have items is only known from a claim: who has just ended its last asks once more.
        if !asked && (renewed || !settled.is_empty()) && self.waits_for_others() {
            self.expect(now);
        }
    }
}
