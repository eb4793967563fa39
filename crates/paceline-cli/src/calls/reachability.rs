//! Ends a run, or its calls to one host, when no server answers at all.

use std::time::Duration;

use paceline_core::Instant;
use paceline_http::NoAnswer;

/// Watches whether the address answers at all. Calls that no server took count against no item, so they have to end here.
#[derive(Debug)]
pub(crate) struct Reachability {
    answered: bool,
    failures: u32,
    /// The first failure after the last answer.
    since: Option<Instant>,
    max_wait: Duration,
    /// So many connections must fail in a row where nothing ever answered.
    enough: u32,
}

impl Reachability {
    /// A job of one item makes no more calls than that in half a minute.
    const FEW: u32 = 3;
    /// Some of many hosts may be gone while others are there.
    const MANY: u32 = 20;
    /// They must fail for so long where nothing ever answered.
    const FOR: Duration = Duration::from_secs(30);

    /// A server that was there may be gone for so long.
    pub(crate) const fn new(max_wait: Duration) -> Self {
        Self { answered: false, failures: 0, since: None, max_wait, enough: Self::FEW }
    }

    /// The same watch over many hosts at once.
    pub(crate) const fn of_many_hosts(self) -> Self {
        Self { enough: Self::MANY, ..self }
    }

    /// The same watch over another address, of which nothing is known.
    pub(crate) const fn of_another(&self) -> Self {
        Self::new(self.max_wait)
    }

    /// Takes in the end of a call; true once no server seems to be there, and the call [says why](NoAnswer::unreached).
    pub(crate) fn gone<Answer>(&mut self, answer: &Result<Answer, NoAnswer>, now: Instant) -> bool {
        match answer {
            Err(NoAnswer::Tls(_) | NoAnswer::GivenUp | NoAnswer::NeverSent) => false,
            Err(error) if error.is_unreached() => self.failed(now),
            _ => {
                self.answered();
                false
            }
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
        *self = Self { answered: true, enough: self.enough, ..Self::new(self.max_wait) };
    }

    /// No connection; true when no server seems to be there.
    fn failed(&mut self, now: Instant) -> bool {
        let lasted = now - *self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        self.never_answered(now) || lasted >= self.max_wait
    }

    /// Whether no server has ever answered, for long enough and in enough calls.
    pub(crate) fn never_answered(&self, now: Instant) -> bool {
        let lasted = self.since.map_or(Duration::ZERO, |since| now - since);
        !self.answered && self.failures >= self.enough && lasted >= Self::FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!few.failed(at(0)) && !few.failed(at(20)) && !few.failed(at(29)));
        assert!(!few.never_answered(at(29)) && few.never_answered(at(30)), "no further call has to find that out");
        let mut two = Reachability::new(hour);
        assert!(!two.failed(at(0)) && !two.failed(at(100)));
        let mut many = Reachability::new(hour).of_many_hosts();
        assert!((0..19).all(|second| !many.failed(at(second * 10))) && many.failed(at(190)));
    }
}
