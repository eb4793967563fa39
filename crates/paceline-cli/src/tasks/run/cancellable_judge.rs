//! A judge that a second signal cancels: a user who interrupts a run twice does not wait for it.

use std::sync::Arc;

use paceline_store::work::{Case, Judge, JudgeFuture};

use crate::signals::SignalCount;

/// Cancels the decisions of a judge, and asks it no more, once items in flight are given up.
pub(super) struct CancellableJudge {
    judge: Arc<dyn Judge>,
    signals: SignalCount,
}

impl CancellableJudge {
    pub(super) fn new(judge: Arc<dyn Judge>, signals: SignalCount) -> Self {
        Self { judge, signals }
    }
}

impl Judge for CancellableJudge {
    fn name(&self) -> &str {
        self.judge.name()
    }

    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.signals.second() => None,
                decision = self.judge.decide(case) => decision,
            }
        })
    }
}
