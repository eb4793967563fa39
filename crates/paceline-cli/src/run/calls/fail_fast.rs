//! Ends a job early: when its first items all fail with the same failure, and when no server answers at all.

use std::time::Duration;

use paceline_core::{Class, Instant};
use paceline_http::NoAnswer;
use paceline_store::Finished;

use crate::run::calls::alike::{Alike, Shows};
use crate::run::calls::stop::StopReason;

/// The code of an item that never left because it alone exceeds a limit.
pub(crate) const TOO_LARGE: &str = "request_too_large";

/// Watches whether the first items to end all fail alike. Until that is known their failures are not recorded, so that they are
/// pending with the rest when the run stops.
#[derive(Clone, Debug)]
pub(crate) struct FailFast {
    limit: usize,
    alike: Alike,
    held_back: Vec<Failed>,
}

/// The failure of an item, with what is logged when it is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) finished: Finished,
    pub(crate) item: String,
    pub(crate) scope: String,
    pub(crate) class: Class,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    pub(crate) message: String,
}

/// What to do with the end of an item.
#[derive(Debug)]
pub(crate) enum FailFastDecision {
    /// Nothing is known yet.
    HeldBack,
    /// These failures are to be recorded now.
    Record(Vec<Failed>),
    /// The run has to stop; the failures stay held back.
    Stop(StopReason),
}

impl FailFast {
    /// A watch over a job of `items`, of which `ended` have ended before. It only makes sense at the beginning of a job
    /// that is larger than the number looked at; a `limit` of 0 switches it off.
    pub(crate) fn new(limit: usize, items: u64, ended: u64) -> Self {
        Self { limit, alike: Alike::new(limit, items > limit as u64 && ended == 0), held_back: Vec::new() }
    }

    /// How many more must fail alike; none when not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.alike.undecided()
    }

    /// An item ended otherwise than by a final refusal: not everything fails alike.
    pub(crate) fn disarm(&mut self) -> Vec<Failed> {
        self.alike.disarm();
        if self.alike.is_watching() { Vec::new() } else { std::mem::take(&mut self.held_back) }
    }

    /// An answer does not match the schema, and is asked for again.
    pub(crate) fn mismatched(&mut self, status: Option<u16>, message: &str) -> Option<StopReason> {
        let stops = self.alike.mismatched() == Shows::Stop;
        stops.then(|| StopReason::SameFailure {
            what: "answers",
            count: self.limit,
            status,
            advice: "correct the schema of --expect or the requests",
            message: message.to_owned(),
        })
    }

    /// An item was refused for good.
    pub(crate) fn refused(&mut self, failed: Failed) -> FailFastDecision {
        let shows = self.alike.failed((failed.status, failed.code.clone()));
        let (status, message) = (failed.status, failed.message.clone());
        let too_large = status.is_none() && failed.code.as_deref() == Some(TOO_LARGE);
        self.held_back.push(failed);
        match shows {
            Shows::Nothing => FailFastDecision::Record(std::mem::take(&mut self.held_back)),
            Shows::TooFew | Shows::Stopped => FailFastDecision::HeldBack,
            Shows::Stop => {
                let advice =
                    if too_large { "raise the limit or make the requests smaller" } else { "correct the requests" };
                let (what, count) = ("items", self.limit);
                FailFastDecision::Stop(StopReason::SameFailure { what, count, status, advice, message })
            }
        }
    }

    /// The failures held back, at the end of the run.
    pub(crate) fn take_held_back(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.held_back)
    }
}

/// Watches whether the address answers at all. Calls that no server took count against no item, so they have to end here.
#[derive(Debug)]
pub(crate) struct Reachability {
    answered: bool,
    failures: u32,
    /// The first failure after the last answer.
    since: Option<Instant>,
    max_wait: Duration,
}

impl Reachability {
    /// So many connections must fail in a row, for so long, where nothing ever answered.
    const FAILURES: u32 = 20;
    const FOR: Duration = Duration::from_secs(30);

    /// A server that was there may be gone for so long.
    pub(crate) const fn new(max_wait: Duration) -> Self {
        Self { answered: false, failures: 0, since: None, max_wait }
    }

    /// Takes in the end of a call: why no server seems to be there, once that is so.
    pub(crate) fn gone<Answer>(&mut self, answer: &Result<Answer, NoAnswer>, now: Instant) -> Option<String> {
        match answer.as_ref().err() {
            Some(NoAnswer::Tls(_) | NoAnswer::GivenUp) => None,
            error => match error.and_then(NoAnswer::unreached) {
                Some(message) => self.failed(now).then_some(message),
                None => {
                    self.answered();
                    None
                }
            },
        }
    }

    /// Whether no call has found a server since the last answer, and at least one has tried.
    pub(crate) const fn is_failing(&self) -> bool {
        self.since.is_some()
    }

    /// Whether a server has answered in this run.
    pub(crate) const fn has_answered(&self) -> bool {
        self.answered
    }

    /// A server answered.
    const fn answered(&mut self) {
        *self = Self { answered: true, ..Self::new(self.max_wait) };
    }

    /// No connection; true when no server seems to be there.
    fn failed(&mut self, now: Instant) -> bool {
        let lasted = now - *self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        let never = !self.answered && self.failures >= Self::FAILURES && lasted >= Self::FOR;
        never || lasted >= self.max_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_store::End;

    fn failed(ordinal: u64, status: u16) -> Failed {
        Failed {
            finished: Finished::new(ordinal, End::Failed, Vec::new()),
            item: ordinal.to_string(),
            scope: String::new(),
            class: Class::Invalid,
            status: Some(status),
            code: None,
            message: "no".to_owned(),
        }
    }

    #[test]
    fn twenty_alike_stop_and_stay_held_back() {
        let mut watch = FailFast::new(20, 21, 0);
        for ordinal in 0..19 {
            assert!(matches!(watch.refused(failed(ordinal, 400)), FailFastDecision::HeldBack));
        }
        assert!(matches!(
            watch.refused(failed(19, 400)),
            FailFastDecision::Stop(StopReason::SameFailure { count: 20, .. })
        ));
        assert!(matches!(watch.refused(failed(20, 404)), FailFastDecision::HeldBack), "in flight when the run stopped");
        assert!(watch.disarm().is_empty());
        assert_eq!(watch.take_held_back().len(), 21);
    }

    #[test]
    fn one_that_differs_lets_all_be_recorded() {
        let mut watch = FailFast::new(20, 1_000, 0);
        assert!(matches!(watch.refused(failed(0, 400)), FailFastDecision::HeldBack));
        assert!(matches!(watch.refused(failed(1, 404)), FailFastDecision::Record(all) if all.len() == 2));
        assert!(matches!(watch.refused(failed(2, 400)), FailFastDecision::Record(all) if all.len() == 1));

        let mut watch = FailFast::new(20, 1_000, 0);
        assert!(matches!(watch.refused(failed(0, 400)), FailFastDecision::HeldBack));
        assert_eq!(watch.disarm().len(), 1);
        for ordinal in 1..40 {
            assert!(matches!(watch.refused(failed(ordinal, 400)), FailFastDecision::Record(_)));
        }
    }

    #[test]
    fn twenty_answers_that_match_no_schema_stop_before_any_item_has_used_its_tries() {
        let mut watch = FailFast::new(20, 21, 0);
        for _ in 0..19 {
            assert_eq!(watch.mismatched(Some(200), "no"), None);
        }
        assert_eq!(watch.undecided(), Some(1));
        assert!(matches!(watch.clone().mismatched(Some(200), "no"), Some(StopReason::SameFailure { .. })));
        watch.disarm();
        assert_eq!(watch.mismatched(Some(200), "no"), None, "one matched");
    }

    #[test]
    fn small_resumed_and_unwatched_jobs_record_at_once() {
        for mut watch in [FailFast::new(20, 20, 0), FailFast::new(20, 1_000, 1), FailFast::new(0, 1_000, 0)] {
            assert!(matches!(watch.refused(failed(0, 400)), FailFastDecision::Record(_)));
        }
    }

    #[test]
    fn an_address_is_given_up_only_when_it_never_answered() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let hour = Duration::from_secs(3_600);
        let mut silent = Reachability::new(hour);
        assert!((0..30).all(|_| !silent.failed(at(0))));
        assert!(silent.failed(at(30)));
        let mut flaky = Reachability::new(hour);
        flaky.answered();
        assert!((0..60).all(|second| !flaky.failed(at(second))));
        assert!(!flaky.failed(at(3_599)) && flaky.failed(at(3_600)), "it was there, and is gone for the longest wait");
        flaky.answered();
        assert!(!flaky.failed(at(7_200)), "it is back");
        let mut few = Reachability::new(hour);
        assert!(!few.failed(at(0)) && !few.failed(at(100)));
    }
}
