//! The bounds of a run, and what follows from a failure within them.

use std::time::Duration;

use paceline_core::{Backoff, Class, ConfigError, Growth, Jitter, Rng};

use super::item::{Claimed, Decided, Failure, Next, Outcome, Sent};
use super::judge::{Decision, by_class};
use crate::scope::ScopeState;

/// The bounds of a run and of its items. Each default is that of `paceline tasks`.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Items that may be worked on at a time. Default 10.
    pub concurrency: usize,
    /// How often an item is tried again after a transient or overloaded answer; it is sent once more than that. Default 3.
    pub max_retries: u32,
    /// How often an item may be throttled before it is given up. Default: as often as its deadline permits.
    pub max_deferrals: Option<u32>,
    /// The wait before each retry of an item, counted for that item alone. Default 5 s, doubling to 300 s, without jitter,
    /// so that the worst case can be told beforehand.
    pub backoff: Backoff,
    /// How often the worker of an item may die or lose its lease while it has the item, before that is given up. Items that
    /// were in flight beside the one that is to blame count theirs too, so no more are claimed than can begin. Default: no
    /// bound.
    pub max_crashes: Option<u32>,
    /// How long after its first try an item without a deadline of its own is given up. Default 24 h.
    pub deadline: Duration,
    /// What becomes of an item over its bound. Default [`OverBound::Fail`].
    pub over_bound: OverBound,
    /// Nothing begins after that time. Default: no bound.
    pub max_run_duration: Option<Duration>,
    /// The run ends when nothing can start for that long. Default 1 h.
    pub max_wait: Duration,
    /// How long a run that is told to end waits for what is in flight. Default 30 s.
    pub grace: Duration,
    /// For how long a worker that gives no sign of life keeps its items. Default 30 s; it gives one every third of it.
    pub lease: Duration,
    /// How long a judge may think. Default 5 s.
    pub judge_timeout: Duration,
    /// What to do when everything has ended. Default [`Idle::End`].
    pub idle: Idle,
}

/// What becomes of an item whose retries, deferrals or time are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverBound {
    /// It fails.
    #[default]
    Fail,
    /// It is left to the next run, which begins with it and counts anew.
    NextRun,
}

/// What a run does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// It ends.
    #[default]
    End,
    /// It waits for work.
    Stay,
}

impl Default for Policy {
    fn default() -> Self {
        let growth =
            Growth::Exponential { base: Duration::from_secs(5), multiplier: 2.0, cap: Duration::from_secs(300) };
        Self {
            concurrency: 10,
            max_retries: 3,
            max_deferrals: None,
            max_crashes: None,
            backoff: Backoff { growth, jitter: Jitter::None },
            deadline: Duration::from_secs(24 * 3_600),
            over_bound: OverBound::default(),
            max_run_duration: None,
            max_wait: Duration::from_secs(3_600),
            grace: Duration::from_secs(30),
            lease: Duration::from_secs(30),
            judge_timeout: Duration::from_secs(5),
            idle: Idle::default(),
        }
    }
}

/// What follows from a failure: for the item, and perhaps for its group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ruling {
    pub(crate) outcome: Outcome,
    pub(crate) group: Option<GroupRuling>,
}

/// What follows for a group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupRuling {
    Stop,
    Hold(Duration),
}

impl GroupRuling {
    /// As a state, at a time of the store's clock.
    pub(crate) fn state(&self, now: paceline_core::Timestamp, reason: String) -> ScopeState {
        match self {
            Self::Stop => ScopeState::Stopped { reason },
            Self::Hold(wait) => ScopeState::Held { until: now + *wait, reason },
        }
    }
}

impl Policy {
    /// Whether the knobs make sense together.
    ///
    /// # Errors
    /// Names the first knob that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: String, expected| Err(ConfigError { key: key.to_owned(), value, expected });
        if self.concurrency == 0 {
            return wrong("concurrency", "0".to_owned(), "at least 1");
        }
        if self.lease < SHORTEST_LEASE {
            return wrong("lease", format!("{:?}", self.lease), "at least 1s");
        }
        self.backoff.check()
    }

    /// What follows from a failure. `decision` is that of a judge, if there was one; `age` is the time since the item's
    /// first try.
    pub(crate) fn rule(
        &self,
        claimed: &Claimed,
        failure: Failure,
        decision: Option<(Decision, &str)>,
        age: Duration,
        rng: &mut Rng,
    ) -> Ruling {
        let sent = match failure.class {
            Class::Throttled | Class::QuotaExhausted | Class::Account | Class::Partial => Sent::Deferral,
            Class::Abandoned => Sent::Abandoned,
            Class::Overloaded | Class::Transient if failure.is_probe => Sent::Not,
            Class::Success | Class::Overloaded | Class::Transient | Class::Invalid | Class::Filtered => Sent::Attempt,
        };
        let by = decision.as_ref().map_or("rules", |(_, name)| name).to_owned();
        let decision = decision.map_or_else(|| by_class(&failure), |(decision, _)| decision);
        let (next, action, reason, group) = match decision {
            Decision::Retry { delay, reason } => {
                let (next, action, over) = self.again(claimed, &failure, sent, delay, age, rng);
                let hold = (failure.class == Class::QuotaExhausted || failure.is_for_group).then_some(next);
                let group = hold.and_then(|next| match next {
                    Next::Again(wait) => Some(GroupRuling::Hold(wait)),
                    _ => None,
                });
                (next, action, over.map(str::to_owned).or(reason), group)
            }
            Decision::Fail { reason } => (Next::Failed, "fail", reason, None),
            Decision::Skip { reason } => (Next::Skipped, "skip", reason, None),
            Decision::Abort { reason } => (Next::Again(Duration::ZERO), "abort", reason, Some(GroupRuling::Stop)),
        };
        let (id, fence) = (claimed.item.id, claimed.fence);
        let decided = Some(Decided { failure, action, reason, by });
        Ruling { outcome: Outcome { id, fence, sent, next, decided }, group }
    }

    /// Another try, unless a bound is in the way. A server's hint is never shortened; a judge's delay is capped.
    fn again(
        &self,
        claimed: &Claimed,
        failure: &Failure,
        sent: Sent,
        delay: Option<Duration>,
        age: Duration,
        rng: &mut Rng,
    ) -> (Next, &'static str, Option<&'static str>) {
        let item = &claimed.item;
        let (action, before, bound, bound_name) = match sent {
            Sent::Deferral => (
                "defer",
                item.deferrals - item.forgiven.deferrals.min(item.deferrals),
                self.max_deferrals,
                "max_deferrals",
            ),
            Sent::Attempt | Sent::Abandoned | Sent::Not => {
                let before = item.attempts - item.forgiven.attempts.min(item.attempts);
                ("retry", before, Some(self.max_retries).filter(|_| sent == Sent::Attempt), "max_retries")
            }
        };
        if bound.is_some_and(|bound| before >= bound) {
            return self.over(bound_name);
        }
        let chosen = match delay {
            Some(delay) => delay.min(self.backoff.cap()),
            None => self.backoff.delay(before, rng),
        };
        let chosen = match failure.class {
            Class::QuotaExhausted if failure.retry_after.is_none() => chosen.max(UNTOLD_QUOTA),
            _ => chosen,
        };
        let wait = failure.retry_after.map_or(chosen, |hint| hint.max(chosen));
        // A wait that the server asked for is no time of the item: others of its scope wait as long.
        let told = sent == Sent::Deferral && failure.class != Class::Partial && failure.retry_after.is_some();
        let own = if told || failure.class == Class::QuotaExhausted { Duration::ZERO } else { wait };
        if age.saturating_add(own) > item.deadline.unwrap_or(self.deadline) {
            return self.over("deadline");
        }
        (Next::Again(wait), action, None)
    }

    /// What becomes of an item that is over that bound.
    const fn over(&self, bound: &'static str) -> (Next, &'static str, Option<&'static str>) {
        match self.over_bound {
            OverBound::Fail => (Next::Failed, "fail", Some(bound)),
            OverBound::NextRun => (Next::NextRun, "next_run", Some(bound)),
        }
    }

    /// The end of an item that took too many workers with it.
    pub(crate) fn too_many_crashes(&self, claimed: &Claimed) -> Option<Outcome> {
        let crashes = claimed.item.crashes;
        if self.max_crashes.is_none_or(|bound| crashes <= bound) {
            return None;
        }
        let (next, action, reason) = self.over("max_crashes");
        let times = if crashes == 1 { "once".to_owned() } else { format!("{crashes} times") };
        let words = format!("its worker died {times} while it had this item");
        let failure = Failure { code: Some("crash".to_owned()), ..Failure::new(Class::Transient, words) };
        let decided = Decided { failure, action, reason: reason.map(str::to_owned), by: "rules".to_owned() };
        let (id, fence) = (claimed.item.id, claimed.fence);
        Some(Outcome { id, fence, sent: Sent::Not, next, decided: Some(decided) })
    }
}

/// A quota that is used up for an unknown time is tested again after that, as the pace does it.
const UNTOLD_QUOTA: Duration = Duration::from_secs(300);

/// A shorter lease would be renewed all the time, and lost whenever a disk is busy.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
