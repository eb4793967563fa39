//! What the processes of a fleet tell each other about a learnt pace: numbers, for the board of a ledger keeps no others.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

/// A rate as a number: so many millionths of a call a second.
const MILLIONTHS: f64 = 1e6;

/// What the process that decides tells all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Belief {
    /// The era in which calls leave from now on.
    pub(crate) era: u64,
    /// Calls a second of all processes.
    pub(crate) rate: f64,
    /// Calls a second of a process for each unit of its weight; none: the rate does not act, for configured limits are trusted.
    pub(crate) level: Option<f64>,
    /// The number of the beat now: there is one for each call.
    pub(crate) beat: f64,
    /// The weights of the processes that want more than they get.
    pub(crate) wanting: u64,
    /// The tokens of an average call, where tokens are what the limit counts.
    pub(crate) tokens: Option<f64>,
    /// No refusal has ended the start yet.
    pub(crate) starting: bool,
    /// For how long nothing leaves.
    pub(crate) pause: Duration,
}

impl Belief {
    pub(crate) fn values(&self) -> Vec<u64> {
        let Self { era, rate, level, beat, wanting, tokens, starting, pause } = *self;
        let (level, tokens) = (level.map_or(0, number), tokens.map_or(0, number));
        vec![era, number(rate), level, number(beat), wanting, tokens, starting.into(), millis(pause)]
    }

    pub(crate) fn read(values: &[u64]) -> Option<Self> {
        let &[era, rate, level, beat, wanting, tokens, starting, pause, ..] = values else { return None };
        let some = |number: u64| (number > 0).then(|| read(number));
        Some(Self {
            era,
            rate: some(rate)?,
            level: some(level),
            beat: read(beat),
            wanting,
            tokens: some(tokens),
            starting: starting > 0,
            pause: Duration::from_millis(pause),
        })
    }
}

/// What another process tells the one that decides: sums since it began, so that one that is lost or comes twice does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// The era in which its calls leave.
    pub(crate) era: u64,
    /// Calls that have left, and the tokens that they are believed to cost.
    pub(crate) sent: u64,
    pub(crate) tokens: u64,
    /// Of them, those that only the rate had held back.
    pub(crate) held: u64,
    /// Calls that count as admitted.
    pub(crate) admitted: u64,
    /// Of those that left in the present era.
    pub(crate) run: u64,
    /// Calls that were refused, whenever they left.
    pub(crate) refused: u64,
    /// Of those that left in the present era, because of too many calls, and because the server lacked capacity.
    pub(crate) throttled: u64,
    pub(crate) overloaded: u64,
    /// How long ago the first of these left, and what it cost.
    pub(crate) ago: Duration,
    pub(crate) cost: u64,
    /// Calls that are neither refused nor counted as admitted yet.
    pub(crate) pending: u64,
    /// Calls wait that only the rate holds back.
    pub(crate) wants: bool,
    /// Calls a second that have left lately.
    pub(crate) rate: f64,
    pub(crate) weight: u64,
}

impl Report {
    pub(crate) fn values(&self) -> Vec<u64> {
        vec![
            self.era,
            self.sent,
            self.tokens,
            self.held,
            self.admitted,
            self.run,
            self.refused,
            self.throttled,
            self.overloaded,
            millis(self.ago),
            self.cost,
            self.pending,
            self.wants.into(),
            number(self.rate),
            self.weight,
        ]
    }

    pub(crate) fn read(values: &[u64]) -> Option<Self> {
        let &[era, sent, tokens, held, admitted, run, refused, throttled, overloaded, ref more @ ..] = values else {
            return None;
        };
        let &[ago, cost, pending, wants, rate, weight, ..] = more else { return None };
        Some(Self {
            era,
            sent,
            tokens,
            held,
            admitted,
            run,
            refused,
            throttled,
            overloaded,
            ago: Duration::from_millis(ago),
            cost,
            pending,
            wants: wants > 0,
            rate: read(rate),
            weight: weight.clamp(1, 16),
        })
    }

    /// What has come since an earlier report of that process; without one only the refusals of the present era are news.
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let known = Self {
            throttled: 0,
            overloaded: 0,
            refused: self.refused.saturating_sub(self.throttled + self.overloaded),
            ..*self
        };
        let before = before.filter(|before| before.sent <= self.sent).unwrap_or(&known);
        let same_era = before.era == self.era;
        let of_era = |now: u64, then: u64| if same_era { now.saturating_sub(then) } else { now };
        Self {
            sent: self.sent - before.sent,
            tokens: self.tokens.saturating_sub(before.tokens),
            held: self.held.saturating_sub(before.held),
            admitted: self.admitted.saturating_sub(before.admitted),
            run: of_era(self.run, before.run),
            refused: self.refused.saturating_sub(before.refused),
            throttled: of_era(self.throttled, before.throttled),
            overloaded: of_era(self.overloaded, before.overloaded),
            ..*self
        }
    }
}

fn number(value: f64) -> u64 {
    // No note has a number of 2^53 or more.
    (value * MILLIONTHS).clamp(1.0, 9e15) as u64
}

fn read(number: u64) -> f64 {
    number as f64 / MILLIONTHS
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_as_it_was_meant() {
        let belief = Belief {
            era: 7,
            rate: 20.5,
            level: Some(1.25),
            beat: 1_000.5,
            wanting: 16,
            tokens: None,
            starting: true,
            pause: Duration::from_millis(50),
        };
        assert_eq!(Belief::read(&belief.values()), Some(belief));
        let unbound = Belief { level: None, tokens: Some(500.0), starting: false, ..belief };
        assert_eq!(Belief::read(&unbound.values()), Some(unbound));
        assert_eq!(Belief::read(&[1, 2]), None, "of another version");
        let report =
            Report { era: 3, sent: 90, held: 40, throttled: 1, refused: 2, rate: 0.5, weight: 2, ..Report::default() };
        assert_eq!(Report::read(&report.values()), Some(report));
        let later: Vec<u64> = report.values().into_iter().chain([1, 2, 3]).collect();
        assert_eq!(Report::read(&later), Some(report), "what a later version adds changes nothing");
    }

    #[test]
    fn every_sum_of_a_report_arrives_and_its_news_are_what_was_added() {
        let sums = |n: u64| Report {
            era: 3,
            sent: n,
            tokens: 2 * n,
            held: 3 * n,
            admitted: 4 * n,
            run: 5 * n,
            refused: 6 * n,
            throttled: 7 * n,
            overloaded: 8 * n,
            ago: Duration::from_millis(9),
            cost: 10,
            pending: 11,
            wants: true,
            rate: 0.5,
            weight: 12,
        };
        assert_eq!(Report::read(&sums(2).values()), Some(sums(2)));
        assert_eq!(sums(5).since(Some(&sums(3))), sums(2));
        let next = Report { era: 4, ..sums(5) };
        let of_era = Report { run: 25, throttled: 35, overloaded: 40, ..Report { era: 4, ..sums(2) } };
        assert_eq!(next.since(Some(&sums(3))), of_era, "those of an era begin with it");
        let again = Report { sent: 1, ..sums(5) };
        let first = Report { sent: 0, tokens: 0, held: 0, admitted: 0, run: 0, ..sums(0) };
        let refused = Report { refused: 30, throttled: 35, overloaded: 40, ..first };
        assert_eq!(again.since(Some(&sums(3))), refused, "it has begun anew: the refusals of the era are news");
        assert_eq!(Report::read(&Report { weight: 0, ..sums(1) }.values()).map(|it| it.weight), Some(1));
        assert_eq!(Report::read(&Report { weight: 99, ..sums(1) }.values()).map(|it| it.weight), Some(16));
        assert_eq!(Report::read(&sums(1).values()[..14]), None);
        let idle = Belief { rate: 0.0, level: Some(0.0), ..Belief::read(&[1; 8]).unwrap() };
        assert_eq!(Belief::read(&idle.values()).map(|it| it.level.is_some()), Some(true), "no rate is none");
        assert_eq!(Belief::read(&[1, 0, 1, 1, 1, 1, 1, 1]), None, "one without a rate says nothing");
    }

    #[test]
    fn a_report_that_was_lost_or_comes_twice_does_no_harm() {
        let report =
            |era, sent, run, throttled, refused| Report { era, sent, run, throttled, refused, ..Report::default() };
        let (first, last) = (report(1, 10, 4, 0, 0), report(1, 30, 14, 1, 2));
        let news = last.since(Some(&first));
        assert_eq!((news.sent, news.run, news.throttled, news.refused), (20, 10, 1, 2));
        let again = last.since(Some(&last));
        assert_eq!((again.sent, again.run, again.throttled, again.refused), (0, 0, 0, 0));
        let next = report(2, 35, 3, 1, 4).since(Some(&last));
        assert_eq!((next.sent, next.run, next.throttled, next.refused), (5, 3, 1, 2), "of another era all are new");
        let unknown = last.since(None);
        assert_eq!((unknown.sent, unknown.run, unknown.throttled, unknown.refused), (0, 0, 1, 1));
    }
}
