//! A user who interrupts a run twice waits for no judge.

use std::sync::Arc;

use paceline_store::work::{Case, Judge, JudgeFuture};

use super::course::Told;

/// A judge that is asked no more, and waited for no longer, once what is in flight is given up.
pub(super) struct Hurried {
    judge: Arc<dyn Judge>,
    told: Told,
}

impl Hurried {
    pub(super) fn new(judge: Arc<dyn Judge>, told: Told) -> Self {
        Self { judge, told }
    }
}

impl Judge for Hurried {
    fn name(&self) -> &str {
        self.judge.name()
    }

    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.told.twice() => None,
                decision = self.judge.decide(case) => decision,
            }
        })
    }
}
