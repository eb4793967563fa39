//! A judge that is a command: one process for each question, one JSON object each way.
//!
//! Whatever goes wrong with it, the rules decide, and the item loses nothing. Each cause is logged once; a judge that
//! fails again and again is left in peace for a while.

mod args;
mod process;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline::{BreakerConfig, Class, Concurrency, Cost, Limiter, NotNow, Outcome, Pace, PacerConfig, Request};
use paceline_store::work::{Case, Judge, JudgeFuture, encode_request};

use crate::exit::Failure;
use crate::text;
pub(crate) use args::JudgeArgs;
use process::{Program, Silence};

/// How long a question may take. The scheduler's own bound lies behind it, because that is logged for each item: a judge that
/// hangs is logged here, once.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A judge that gives no answer so many times in a row is not asked for a while.
const BREAKER: BreakerConfig = BreakerConfig {
    failure_ratio: 1.0,
    window_size: 3,
    min_samples: 3,
    max_age: Duration::MAX,
    min_distinct_items: 3,
    open: Duration::from_secs(1),
    open_max: Duration::from_secs(60),
};

/// The judge of `--judge 'COMMAND'`.
#[derive(Debug)]
pub(crate) struct CommandJudge {
    program: Program,
    /// Only its breaker acts.
    limiter: Limiter,
    unanswered: Mutex<Unanswered>,
}

/// How often no answer came.
#[derive(Debug, Default)]
struct Unanswered {
    by_cause: BTreeMap<&'static str, u64>,
    /// Questions that were not asked, because the breaker was open.
    not_asked: u64,
}

impl CommandJudge {
    /// The judge that a command line names. Its words are split as a shell does it; a shell runs only when it is named.
    ///
    /// # Errors
    /// Refuses a line that is none, and a program that is not there or may not be executed.
    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let program = Program::parse(line).map_err(|why| Failure::refused(format!("--judge {line:?}: {why}")))?;
        let (pace, concurrency) = (Pace::None, Concurrency::Fixed { max: u32::MAX });
        let config = PacerConfig { pace, concurrency, breaker: BREAKER, ..PacerConfig::default() };
        let limiter = Limiter::new(config).expect("a constant configuration");
        Ok(Self { program, limiter, unanswered: Mutex::default() })
    }

    fn with_unanswered<T>(&self, act: impl FnOnce(&mut Unanswered) -> T) -> T {
        act(&mut self.unanswered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn silent(&self, silence: &Silence) {
        let times = self.with_unanswered(|unanswered| {
            let times = unanswered.by_cause.entry(silence.cause()).or_default();
            *times += 1;
            *times
        });
        if times == 1 {
            let why = text::printable(&silence.to_string()).into_owned();
            tracing::warn!(judge = self.program.name(), "no answer of the judge: {why}; the rules decide");
        }
    }

    /// The breaker is open, or a probe is under way.
    fn not_asked(&self) {
        let times = self.with_unanswered(|unanswered| {
            unanswered.not_asked += 1;
            unanswered.not_asked
        });
        if times == 1 {
            let (first, longest) = (text::duration(BREAKER.open), text::duration(BREAKER.open_max));
            tracing::warn!(
                judge = self.program.name(),
                "the judge keeps failing: it is not asked for {first}, then for longer and longer, up to {longest}"
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
            let request = Request::new(self.limiter.scope("judge"), Cost::request());
            let permit = match self.limiter.try_acquire(request) {
                Ok(permit) => permit,
                Err(NotNow::Wait { .. }) => {
                    self.not_asked();
                    return None;
                }
                Err(never) => unreachable!("nothing else is configured: {never}"),
            };
            let answer = tokio::time::timeout(ANSWER_WITHIN, self.program.ask(encode_request(&case))).await;
            match answer.unwrap_or(Err(Silence::TooSlow)) {
                Ok(decision) => {
                    permit.complete(Outcome::new(Class::Success));
                    Some(decision)
                }
                Err(silence) => {
                    permit.complete(Outcome::new(Class::Transient));
                    self.silent(&silence);
                    None
                }
            }
        })
    }
}

impl Unanswered {
    /// What was not logged, if there was anything.
    fn unreported(&self) -> Option<String> {
        let more = self.by_cause.iter().filter(|(_, times)| **times > 1);
        let mut parts: Vec<String> =
            more.map(|(cause, times)| format!("{cause} {}", text::counted(times - 1, "more time"))).collect();
        parts.extend((self.not_asked > 0).then(|| format!("not asked {}", text::counted(self.not_asked, "time"))));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl Drop for CommandJudge {
    /// Logs at the end what was not logged each time.
    fn drop(&mut self) {
        if let Some(summary) = self.with_unanswered(|unanswered| unanswered.unreported()) {
            tracing::warn!(judge = self.program.name(), "the judge gave no answer again: {summary}; the rules decided");
        }
    }
}
