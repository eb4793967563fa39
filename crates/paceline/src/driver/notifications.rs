//! Notifications: collected under the lock, delivered after its release.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{PauseCause, format_duration};
use tokio::sync::oneshot;

use super::Driver;
use super::permit::Within;
use crate::error::Error;
use crate::sync;

/// The answer to a waiting caller.
pub(super) type Answer = Result<Within, Error>;

/// Answers, log lines and alarms, in the order of delivery.
#[derive(Default)]
pub(super) struct Notifications {
    /// The timer's thread, or its task, must check the pacer again.
    pub(super) ring_thread: bool,
    pub(super) ring_task: bool,
    /// A call waits for more of a divided limit.
    pub(super) short: bool,
    /// There is something to tell the other processes.
    pub(super) news: bool,
    /// The timer's task is to be started.
    pub(super) start_task: bool,
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
    log_lines: Vec<LogLine>,
}

/// A line of the log.
pub(super) enum LogLine {
    Stopped { scope: Arc<str>, reason: Arc<str> },
    Held { scope: Arc<str>, wait: Duration, cause: PauseCause, renewed: bool },
}

impl Notifications {
    pub(super) fn answer(&mut self, to: oneshot::Sender<Answer>, answer: Answer) {
        self.answers.push((to, answer));
    }

    pub(super) fn log(&mut self, line: LogLine) {
        self.log_lines.push(line);
    }

    pub(super) fn is_empty(&self) -> bool {
        let alarms = self.ring_thread || self.ring_task || self.start_task || self.short || self.news;
        !alarms && self.answers.is_empty() && self.log_lines.is_empty()
    }

    /// Delivers all of it, also when a waker or a log subscriber panics; the last such panic is the error.
    pub(super) fn deliver(self, driver: &Arc<Driver>) -> Result<(), Box<dyn Any + Send>> {
        let mut result = Ok(());
        let mut run = |work: &mut dyn FnMut()| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                result = Err(panic);
            }
        };
        if self.ring_thread {
            driver.alarm.notify_one();
        }
        if self.start_task {
            run(&mut || driver.start_task());
        }
        if self.ring_task {
            run(&mut || driver.task_alarm.notify_one());
        }
        if self.short {
            run(&mut || driver.short.notify_one());
        }
        if self.news {
            run(&mut || driver.news.notify_one());
        }
        for (sender, answer) in self.answers {
            let mut message = Some((sender, answer));
            run(&mut || message.take().into_iter().for_each(|(sender, answer)| send(sender, answer)));
        }
        for line in self.log_lines {
            run(&mut || line.log(driver.name()));
        }
        result
    }
}

/// If the caller has been dropped meanwhile, the permit is withdrawn: no call was made.
fn send(sender: oneshot::Sender<Answer>, answer: Answer) {
    sync::others_may_run();
    if let Err(Ok(Within::Granted(permit))) = sender.send(answer) {
        permit.withdraw();
    }
}

/// The target of the lines about stops: a program that tells of them itself, with what to do, leaves these out.
const STOP: &str = "paceline::limiter::stop";

impl LogLine {
    fn log(&self, upstream: Option<&str>) {
        match self {
            Self::Stopped { scope, reason } => {
                tracing::info!(target: STOP, upstream, scope = &**scope, reason = &**reason, "stopped")
            }
            // A program that gives up a failing server says so itself, and renews the hold.
            Self::Held { scope, wait, cause, renewed } if *renewed || *cause == PauseCause::ServerFails => {
                tracing::debug!(upstream, scope = &**scope, "{}", no_calls(*wait, *cause));
            }
            Self::Held { scope, wait, cause, .. } => {
                tracing::info!(upstream, scope = &**scope, "{}", no_calls(*wait, *cause));
            }
        }
    }
}

fn no_calls(wait: Duration, cause: PauseCause) -> String {
    format!("no calls for {}: {}", format_duration(wait), cause.explanation())
}
