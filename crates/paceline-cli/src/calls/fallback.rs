//! The items of a run for which the fallback stands in: they wait for its command, as many at once as there are processors.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use paceline_store::{ClaimedItem, Tally};
use tokio::process::Command;
use tokio::task::{Id, JoinSet};

use crate::calls::item::Context;
use crate::fallback::{Fallback, Question, Request, WhyDown, json_or_text};
use crate::stops::fail_fast::Failed;

/// So many items may wait for the command before no further ones are sent: each of them is in memory.
const LONGEST_QUEUE: usize = 1_000;

/// An item that has no answer because the API stayed down.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) item: ClaimedItem,
    pub(crate) without: Without,
}

/// What becomes of an item without a fallback.
#[derive(Debug)]
pub(crate) enum Without {
    /// It fails.
    Fails(Box<Failed>),
    /// It waits for the next run, because this one ended for that reason.
    Waits(&'static str),
}

impl Down {
    /// Why there is no answer, as a code.
    pub(crate) fn reason(&self) -> &str {
        match &self.without {
            Without::Fails(failed) => failed.finished.reason.as_deref().unwrap_or_default(),
            Without::Waits(reason) => reason,
        }
    }

    /// The last failure.
    pub(crate) fn message(&self) -> &str {
        let last = self.tally().last.as_ref().and_then(|last| last.message.as_deref());
        last.unwrap_or("the run ended before the API could be asked")
    }

    /// The item's sends.
    pub(crate) fn tally(&self) -> &Tally {
        match &self.without {
            Without::Fails(failed) => &failed.finished.tally,
            Without::Waits(_) => &self.item.tally,
        }
    }
}

/// A command that has ended, or will not be asked.
pub(crate) type Answered = (Down, Result<Vec<u8>, String>);

/// The items that wait for the command, and the commands that run.
#[derive(Default)]
pub(crate) struct Fallbacks {
    fallback: Option<Arc<Fallback>>,
    waiting: VecDeque<Down>,
    tasks: JoinSet<Result<Vec<u8>, String>>,
    running: HashMap<Id, Down>,
}

impl Fallbacks {
    pub(crate) fn new(fallback: Option<Arc<Fallback>>) -> Self {
        Self { fallback, ..Self::default() }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.fallback.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Whether no further item should be sent before some of these have ended.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= LONGEST_QUEUE
    }

    /// Takes items in, and begins as many commands as there are processors.
    pub(crate) fn add(&mut self, context: &Arc<Context>, down: impl IntoIterator<Item = Down>) {
        self.waiting.extend(down);
        let Some(fallback) = &self.fallback else { return };
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        while self.running.len() < most
            && let Some(down) = self.waiting.pop_front()
        {
            let (fallback, question) = (Arc::clone(fallback), question(context, &down));
            let task = self.tasks.spawn(async move {
                let (key, question) = question?;
                let environment = |command: &mut Command| _ = command.env("PACELINE_KEY", key);
                fallback.answer(&question, true, environment, std::future::pending()).await
            });
            self.running.insert(task.id(), down);
        }
    }

    /// The next command that ends; waits for ever where none runs.
    pub(crate) async fn next(&mut self) -> Answered {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, answer))) => (self.running.remove(&id).expect("each has an item"), answer),
            Some(Err(error)) => {
                (self.running.remove(&error.id()).expect("each has an item"), Err("the run ended".to_owned()))
            }
            None => std::future::pending().await,
        }
    }

    /// Kills the commands that run, which [`next`](Self::next) then returns, and hands back what waits.
    pub(crate) fn abort(&mut self) -> VecDeque<Down> {
        self.tasks.abort_all();
        std::mem::take(&mut self.waiting)
    }
}

/// The key of an item, and what the command is told of it.
fn question(context: &Context, down: &Down) -> Result<(String, Vec<u8>), String> {
    let (echo, call) = context.request_of(&down.item).map_err(|error| error.to_string())?;
    let last = down.tally().last.as_ref();
    let key = echo.custom_id.to_string();
    let question = Question {
        key: &key,
        group: None,
        request: Some(Request { method: call.method.as_str(), url: &call.url, body: json_or_text(&call.body)? }),
        payload: None,
        metadata: echo.metadata.as_deref(),
        error: WhyDown {
            reason: down.reason(),
            class: last.map(|last| last.class.as_str()),
            status: last.and_then(|last| last.status),
            code: last.and_then(|last| last.code.as_deref()),
            message: down.message(),
        },
    };
    let line = question.line()?;
    Ok((key, line))
}
