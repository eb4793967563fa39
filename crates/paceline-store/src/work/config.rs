//! The scheduler's configuration, and what follows from a failure within its bounds.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::retry::{self, Counted, Then, Tried};
use paceline_core::{Backoff, Class, ConfigError, GiveUp, Growth, Hint, Jitter, Pace, Retry, Rng};

use super::item::{ClaimOutcome, Claimed, DecisionRecord, Failure, ItemTime, Transition};
use super::judge::Judgement;
use crate::scope::ScopeStatus;

/// The bounds of a run and of its items. Each default is that of `paceline tasks`.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Items that may be worked on at a time. Default 10.
    pub concurrency: usize,
    /// How often an item is tried again after a transient or overloaded answer; it is sent once more than that. Default 3.
    pub max_retries: u32,
    /// How often an item may be throttled before it is given up. Default: as often as its deadline permits.
    pub max_deferrals: Option<u32>,
    /// The wait before each retry of an item, counted for that item alone. Default 5 s, doubling to 300 s, without jitter,
    /// so that the worst case is known beforehand.
    pub backoff: Backoff,
    /// The policy that decides how fast the work begins. Under [`Pace::Auto`] a limiter in the work also decides when an item
    /// goes again that was throttled for the first time without a hint. Default [`Pace::Fixed`]: it waits its backoff.
    pub pace: Pace,
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
    /// How long a run waits for tries in flight after a request to end. Default 30 s.
    pub grace: Duration,
    /// The lease of a worker: how long it keeps its items without a heartbeat. Default 30 s; a worker sends one every third of
    /// it.
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

impl Default for SchedulerConfig {
    fn default() -> Self {
        let growth =
            Growth::Exponential { base: Duration::from_secs(5), multiplier: 2.0, cap: Duration::from_secs(300) };
        Self {
            concurrency: 10,
            max_retries: 3,
            max_deferrals: None,
            pace: Pace::Fixed,
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

/// What follows for a group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupAction {
    Stop,
    Hold(Duration),
}

impl GroupAction {
    /// As a state, at a time of the store's clock.
    pub(crate) fn state(&self, now: paceline_core::Timestamp, reason: String) -> ScopeStatus {
        match self {
            Self::Stop => ScopeStatus::Stopped { reason },
            Self::Hold(wait) => ScopeStatus::Held { until: now + *wait, reason },
        }
    }
}

impl SchedulerConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is invalid.
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

    /// What follows from a failure for the item, and perhaps for its group. `judged` is what a judge decided, and its name, if
    /// there was one; `age` is the time since the item's first try.
    pub(crate) fn apply_rules(
        &self,
        claimed: &Claimed,
        failure: Failure,
        judged: Option<(Judgement, &str)>,
        age: Duration,
        rng: &mut Rng,
    ) -> (ClaimOutcome, Option<GroupAction>) {
        let by = judged.as_ref().map_or("rules", |(_, name)| name).to_owned();
        let judged = judged.map(|(judgement, _)| judgement);
        let retry::Decision { counted, retried, then } = self.decide(claimed, &failure, judged.as_ref(), age, rng);
        let stop = |wait| (Transition::Retry(wait), "abort", Some(GroupAction::Stop));
        let stayed_down = matches!(then, Then::GiveUp(reason) if reason.stayed_down(failure.class));
        let left = (Transition::NextRun, "next_run", None);
        let ((next, action, group), why) = match (judged, then) {
            (Some(Judgement::Fail { reason }), _) => ((Transition::Failed, "fail", None), reason),
            (Some(Judgement::Skip { reason }), _) => ((Transition::Skipped, "skip", None), reason),
            (Some(Judgement::Abort { reason }), _) => (stop(Duration::ZERO), reason),
            (_, Then::Again(wait)) if failure.class == Class::Account => {
                (if failure.spares_group { left } else { stop(wait) }, Some(failure.message.clone()))
            }
            (judged, Then::Again(wait)) => {
                let action = if counted == Counted::Deferral { "defer" } else { "retry" };
                let reason = judged.and_then(|judgement| judgement.reason().map(str::to_owned));
                ((Transition::Retry(wait), action, failure.is_for_group.then_some(GroupAction::Hold(wait))), reason)
            }
            (None, Then::GiveUp(GiveUp::Refused(_))) if failure.spares_group => (left, Some(failure.with_its_status())),
            (_, Then::GiveUp(reason @ (GiveUp::Refused(_) | GiveUp::Unknown | GiveUp::Held))) => {
                ((Transition::Failed, "fail", None), Some(reason.as_str().into()))
            }
            (_, Then::GiveUp(reason)) => {
                let (next, action) = self.over_bound_transition();
                ((next, action, None), Some(reason.as_str().to_owned()))
            }
            (_, Then::Done) => unreachable!("a failure is no success"),
        };
        let (id, fence) = (claimed.item.id, claimed.fence);
        let stayed_down = stayed_down && next == Transition::Failed;
        let time = match next {
            // Of what is left to the next run for its bounds or its account all begins anew.
            Transition::NextRun if !failure.class.is_final() => ItemTime::Anew,
            // It counts against no other bound: a server that is gone must not keep an item for ever.
            _ if failure.probe.is_some() || failure.unsent => ItemTime::GoesOn,
            _ => ItemTime::of(claimed),
        };
        let decided = Some(DecisionRecord { failure, action, reason: why, by, stayed_down });
        (ClaimOutcome { id, fence, counted, retried, next, time, waits_for: None, decided, answered: None }, group)
    }

    /// The decision of the rules about a failure, with the wait that a judge chose for a retry: that is capped.
    fn decide(
        &self,
        claimed: &Claimed,
        failure: &Failure,
        judged: Option<&Judgement>,
        age: Duration,
        rng: &mut Rng,
    ) -> retry::Decision {
        let (item, history) = (&claimed.item, claimed.history.iter().rev());
        let left = item.deadline.unwrap_or(self.deadline).saturating_sub(age);
        let code = failure.code.as_ref().filter(|_| failure.unsent);
        let free = history.clone().take_while(|event| code.is_some() && event.failure.code.as_ref() == code).count();
        let used_up = history.take_while(|event| event.failure.class == Class::QuotaExhausted).count();
        let tried = Tried {
            attempts: item.attempts.saturating_sub(item.forgiven.attempts),
            deferrals: item.deferrals.saturating_sub(item.forgiven.deferrals),
            max_retries: None,
            quotas: used_up as u32,
            // Only those in a row that failed alike: the store does not count what counts against no bound.
            free: free as u32,
            left: Some(left),
            // That of a host that is held goes on.
            stands_still: failure.is_for_group,
            probe: failure.probe,
            chosen: judged.and_then(Judgement::delay).map(|delay| delay.min(self.backoff.cap())),
            at_least: Duration::ZERO,
        };
        let class = match failure.class {
            // Whatever class it reports, it failed.
            Class::Success => Class::Transient,
            // A judge that wants another try overrules the class.
            Class::Invalid | Class::Filtered if judged.is_some() => Class::Transient,
            class => class,
        };
        let hint = failure.retry_after.map(|wait| Hint::new(wait, true));
        // Items begin here as they become due, whether they have retries left or not: an outage must cost none.
        let unsent = failure.unsent || failure.probe.is_some();
        let Failure { unknown, retried, .. } = *failure;
        let ended = paceline_core::Outcome { hint, unsent, unknown, retried, ..paceline_core::Outcome::new(class) };
        let (max_retries, max_deferrals, backoff) = (self.max_retries, self.max_deferrals, self.backoff);
        retry::decide(&Retry { max_retries, max_deferrals, backoff, deadline: None }, self.pace, &tried, &ended, rng)
    }

    /// The transition of an item that is over its bound.
    const fn over_bound_transition(&self) -> (Transition, &'static str) {
        match self.over_bound {
            OverBound::Fail => (Transition::Failed, "fail"),
            OverBound::NextRun => (Transition::NextRun, "next_run"),
        }
    }

    /// The end of an item whose workers died too often.
    pub(crate) fn too_many_crashes(&self, claimed: &Claimed) -> Option<ClaimOutcome> {
        let crashes = claimed.item.crashes;
        if self.max_crashes.is_none_or(|bound| crashes <= bound) {
            return None;
        }
        let times = if crashes == 1 { "once".to_owned() } else { format!("{crashes} times") };
        let message = format!("its worker died {times} while it had this item");
        let failure = Failure { code: Some("crash".to_owned()), ..Failure::new(Class::Transient, message) };
        Some(self.over_bound_outcome(claimed, failure, "max_crashes", false))
    }

    /// How long an item that does not begin has until its deadline; none while that does not count. An item whose last call was
    /// cut off is not judged by its age, for that call may have been answered, nor one that is owed a call.
    fn left(&self, claimed: &Claimed, age: Duration) -> Option<Duration> {
        let item = &claimed.item;
        // Of an item that was left to the next run no try counts, and its time goes on.
        let counts = item.sends() > item.forgiven.attempts.saturating_add(item.forgiven.deferrals);
        let was_tried = counts || !claimed.age.is_zero();
        let is_cut_off = item.may_be_done || item.crashes > 0;
        let deadline = item.deadline.unwrap_or(self.deadline);
        let due = item.not_before.zip(item.first).map_or(Duration::ZERO, |(due, first)| due.saturating_since(first));
        let is_owed_a_call = retry::owes_a_call(due, claimed.age, deadline);
        (was_tried && !is_cut_off && !is_owed_a_call).then(|| deadline.saturating_sub(age))
    }

    /// How long an item waits in the store that may not begin before `after`, and what for: no longer than until its deadline.
    pub(crate) fn waits(
        &self,
        claimed: &Claimed,
        age: Duration,
        after: Duration,
        why: Arc<str>,
    ) -> (Duration, Arc<str>) {
        match self.left(claimed, age).map(at_its_end).filter(|end| *end < after) {
            Some(end) => (end, ENDS_FIRST.into()),
            None => (after, why),
        }
    }

    /// The end of an item whose deadline passed while it waited for more than its due time.
    pub(crate) fn past_deadline(&self, claimed: &Claimed, age: Duration) -> Option<ClaimOutcome> {
        let item = &claimed.item;
        if self.left(claimed, age).is_none_or(|left| !left.is_zero()) {
            return None;
        }
        let waited = "its deadline passed while it waited";
        let failure = match &item.last {
            Some(last) => Failure { message: format!("{waited}; before: {}", last.message), ..last.clone() },
            None => Failure::new(Class::Transient, waited),
        };
        let stayed_down = GiveUp::Deadline.stayed_down(failure.class);
        Some(self.over_bound_outcome(claimed, failure, GiveUp::Deadline.as_str(), stayed_down))
    }

    fn over_bound_outcome(&self, claimed: &Claimed, failure: Failure, reason: &str, stayed_down: bool) -> ClaimOutcome {
        let (next, action) = self.over_bound_transition();
        let (reason, stayed_down) = (Some(reason.to_owned()), stayed_down && next == Transition::Failed);
        let decided = DecisionRecord { failure, action, reason, by: "rules".to_owned(), stayed_down };
        let time = if next == Transition::NextRun { ItemTime::Anew } else { ItemTime::of(claimed) };
        ClaimOutcome { next, time, decided: Some(decided), ..ClaimOutcome::back(claimed) }
    }
}

/// When an item ends that has so long until its deadline: a store counts whole milliseconds.
const fn at_its_end(left: Duration) -> Duration {
    left.saturating_add(Duration::from_millis(2))
}

/// What such an item waits for, for people.
const ENDS_FIRST: &str = "its deadline: it ends then, before its server takes calls again";

/// A shorter lease would be renewed all the time, and lost whenever a disk is busy.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
