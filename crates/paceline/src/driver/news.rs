//! What is found out under the lock and told without it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::PauseCause;
use tokio::sync::oneshot;

use super::Driver;
use super::permit::Within;
use crate::error::Error;
use crate::log::Rounded;
use crate::sync;

/// What a caller that waits is answered.
pub(super) type Answer = Result<Within, Error>;

/// Answers, lines of the log and alarms, in the order in which they are told.
#[derive(Default)]
pub(super) struct News {
    /// The timer's thread, or its task, must look again.
    pub(super) ring_thread: bool,
    pub(super) ring_task: bool,
    /// The timer's task is to be started.
    pub(super) start_task: bool,
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
    notes: Vec<Note>,
}

/// A line of the log.
pub(super) enum Note {
    Stopped { scope: Arc<str>, reason: Arc<str> },
    Held { scope: Arc<str>, wait: Duration, cause: PauseCause },
}

impl News {
    pub(super) fn answer(&mut self, to: oneshot::Sender<Answer>, answer: Answer) {
        self.answers.push((to, answer));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Tells all of it, also when a waker or a subscriber of the log panics; the last such panic is the error.
    pub(super) fn deliver(self, driver: &Arc<Driver>) -> Result<(), Box<dyn Any + Send>> {
        let mut result = Ok(());
        let mut tell = |work: &mut dyn FnMut()| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                result = Err(panic);
            }
        };
        if self.ring_thread {
            driver.alarm.notify_one();
        }
        if self.start_task {
            tell(&mut || driver.start_task());
        }
        if self.ring_task {
            tell(&mut || driver.task_alarm.notify_one());
        }
        for (sender, answer) in self.answers {
            let mut message = Some((sender, answer));
            tell(&mut || message.take().into_iter().for_each(|(sender, answer)| send(sender, answer)));
        }
        for note in self.notes {
            tell(&mut || note.log());
        }
        result
    }
}

/// The caller may have gone meanwhile: then no call was made.
fn send(sender: oneshot::Sender<Answer>, answer: Answer) {
    sync::others_may_run();
    if let Err(Ok(Within::Granted(permit))) = sender.send(answer) {
        permit.withdraw();
    }
}

impl Note {
    fn log(&self) {
        match self {
            Self::Stopped { scope, reason } => tracing::info!(scope = &**scope, reason = &**reason, "stopped"),
            Self::Held { scope, wait, cause } => {
                tracing::info!(scope = &**scope, "held for {}: {}", Rounded(*wait), cause.explanation());
            }
        }
    }
}
