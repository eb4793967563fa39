//! A judge that is a command: one process for each question, one JSON object each way.
//!
//! Whatever goes wrong with it, the rules decide, and the item loses nothing. Each cause is logged once; a judge that
//! fails again and again is left in peace for a while.

mod args;
mod breaker;
mod process;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline_store::work::{Case, Judge, JudgeFuture, WorkClock, encode_request};

use crate::exit::Failure;
use crate::text;
pub(crate) use args::JudgeArgs;
use breaker::{FailureNotice, JudgeBreaker, OPEN_FOR};
use process::{Program, Silence};

/// How long a question may take. The scheduler's own bound lies behind it, because that is logged for each item: a judge that
/// hangs is logged here, once.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The judge of `--judge 'COMMAND'`.
#[derive(Debug)]
pub(crate) struct CommandJudge {
    program: Program,
    clock: WorkClock,
    breaker: Mutex<JudgeBreaker>,
}

impl CommandJudge {
    /// The judge that a command line names. Its words are split as a shell does it; a shell runs only when it is named.
    ///
    /// # Errors
    /// Refuses a line that is none, and a program that is not there or may not be executed.
    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let program = Program::parse(line).map_err(|why| Failure::refused(format!("--judge {line:?}: {why}")))?;
        Ok(Self { program, clock: WorkClock::system(), breaker: Mutex::default() })
    }

    #[cfg(test)]
    fn with_clock(mut self, clock: WorkClock) -> Self {
        self.clock = clock;
        self
    }

    fn with_breaker<T>(&self, act: impl FnOnce(&mut JudgeBreaker) -> T) -> T {
        act(&mut self.breaker.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn silent(&self, silence: &Silence) {
        let now = self.clock.now();
        let FailureNotice { is_first, opened } = self.with_breaker(|breaker| breaker.on_failure(silence.cause(), now));
        if is_first {
            let why = text::printable(&silence.to_string()).into_owned();
            tracing::warn!(judge = self.program.name(), "the judge gave no answer, the rules decide: {why}");
        }
        if opened {
            let (first, longest) = (text::duration(OPEN_FOR.0), text::duration(OPEN_FOR.1));
            tracing::warn!(
                judge = self.program.name(),
                "the judge fails again and again; it is not asked for {first}, then for ever longer, at most {longest} at a time"
            );
        }
    }
}

impl Judge for CommandJudge {
    fn name(&self) -> &str {
        "judge"
    }

    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a> {
        Box::pin(async move {
            if !self.with_breaker(|breaker| breaker.allow(self.clock.now())) {
                return None;
            }
            let answer = tokio::time::timeout(ANSWER_WITHIN, self.program.ask(encode_request(&case))).await;
            match answer.unwrap_or(Err(Silence::TooSlow)) {
                Ok(decision) => {
                    self.with_breaker(JudgeBreaker::on_success);
                    Some(decision)
                }
                Err(silence) => {
                    self.silent(&silence);
                    None
                }
            }
        })
    }
}

impl Drop for CommandJudge {
    /// Logs at the end what was not logged each time.
    fn drop(&mut self) {
        if let Some(summary) = self.with_breaker(|breaker| breaker.unreported()) {
            tracing::warn!(judge = self.program.name(), "the judge gave no answer again: {summary}; the rules decided");
        }
    }
}
