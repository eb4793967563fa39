//! Items that would fail because what they call stayed down, and the fallback that may stand in.

use std::future::Future;

use super::Run;
use crate::work::item::{ClaimOutcome, Failure, Transition};
use crate::work::scheduler::window::HeldClaim;
use crate::work::scheduler::{StartDecision, Task};
use paceline_core::Class;

impl<W, F> Run<'_, W>
where
    W: Fn(Task) -> StartDecision<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    /// An item ends so, unless the fallback is to try first.
    pub(super) fn conclude(&mut self, held: HeldClaim, outcome: ClaimOutcome) {
        let down = outcome.decided.as_ref().filter(|decided| decided.stayed_down && self.ending.is_none());
        let (Some(decided), Some(fallback)) = (down, &self.scheduler.fallback) else {
            return self.outcomes.push((held, outcome));
        };
        let work = fallback(held.task(), decided.clone());
        let failed = |message| (Failure::new(Class::Transient, message), None);
        let task = self.running.spawn(async move { work.await.map_err(failed) });
        let claim_id = (outcome.id, outcome.fence);
        self.tasks.insert(task.id(), claim_id);
        self.falling_back.insert(claim_id, outcome);
        self.in_flight.insert(claim_id, held);
    }

    /// The fallback of an item has ended.
    pub(super) fn fell_back(&mut self, held: HeldClaim, mut outcome: ClaimOutcome, tried: Result<(), Failure>) {
        match (&mut outcome.decided, tried) {
            (Some(decided), Ok(())) => {
                decided.action = "fallback";
                outcome.next = Transition::FellBack;
            }
            (_, Err(why)) => {
                let item = &held.claimed.item.key;
                tracing::warn!(item, "no result of the fallback: {}", why.message);
            }
            (None, Ok(())) => {}
        }
        self.outcomes.push((held, outcome));
    }
}
