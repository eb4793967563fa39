//! The fallback of items that were given up because what they call stayed down.

use std::sync::Arc;

use paceline_store::work::{self, DecisionRecord, Task};
use tokio::process::Command;

use super::Work;
use super::program;
use super::shutdown::Shutdown;
use crate::fallback::{Fallback, Question, WhyDown, json_or_text};

/// As the scheduler calls it.
pub(super) fn of(fallback: &Arc<Fallback>, work: &Work, shutdown: &Shutdown) -> work::Fallback {
    let (fallback, work, shutdown) = (Arc::clone(fallback), work.clone(), shutdown.clone());
    Arc::new(move |task, decided| {
        let (fallback, work, shutdown) = (Arc::clone(&fallback), work.clone(), shutdown.clone());
        Box::pin(async move { stand_in(&fallback, &work, &task, &decided, &shutdown).await })
    })
}

/// Does the work of an item some other way.
async fn stand_in(
    fallback: &Fallback,
    work: &Work,
    task: &Task,
    decided: &DecisionRecord,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let DecisionRecord { failure, reason, .. } = decided;
    let reason = reason.as_deref().unwrap_or_default();
    let error = WhyDown {
        reason,
        class: Some(failure.class.as_str()),
        status: failure.status,
        code: failure.code.as_deref(),
        message: &failure.message,
    };
    let answer = |question: Vec<u8>, is_result| async move {
        let environment = |command: &mut Command| program::describe(command, task);
        fallback.answer(&question, is_result, environment, shutdown.aborting()).await
    };
    match work {
        Work::Command(..) => {
            let payload = Some(json_or_text(task.payload().as_bytes())?);
            let (key, group) = (task.key(), Some(task.group()));
            let question = Question { key, group, request: None, payload, metadata: None, error };
            answer(question.line()?, false).await.map(drop)
        }
        Work::Requests(requests) => {
            let output = answer(requests.question(task, error)?, true).await?;
            requests.keep_fallback(task, reason, &failure.message, &output).await
        }
    }
}
