//! Two processes that share a learnt pace, and what they say to each other without a ledger between them.

use alloc::vec::Vec;

use super::super::Start;
use super::super::decision::Decision;
use super::*;
use crate::cost::Cost;
use crate::flight::Flight;

struct Side {
    gate: Gate,
    learnt: AdaptiveRate,
    rng: Rng,
    last: u64,
}

impl Side {
    fn new(now: Instant, id: u64) -> Self {
        let mut side = Self {
            gate: Gate::new(),
            learnt: AdaptiveRate::new(Start::At(20.0), Duration::from_secs(60)),
            rng: Rng::new(id),
            last: 0,
        };
        side.learnt.share(now, MemberId(id), 1, true);
        side
    }

    fn send(&mut self, now: Instant) -> Flight {
        self.last += 1;
        let (number, spent) = (self.last, Cost::zero());
        let mut flight = Flight {
            number,
            era: 0,
            sent: now,
            probe: false,
            in_flight: 1,
            tokens: 0,
            spent,
            server_limited: false,
            item: self.last,
            is_first: true,
        };
        flight.era = self.learnt.sent(now, &self.gate, &flight, false);
        flight
    }

    fn refused(&mut self, now: Instant, flight: &Flight) -> Reaction {
        self.learnt.refused(now, &mut self.gate, flight, self.last, Refusal::Throttled, &mut self.rng)
    }

    fn says(&mut self, now: Instant) -> Vec<Word> {
        self.learnt.words(now, &self.gate, 2).0.into_iter().flatten().collect()
    }

    fn hears(&mut self, now: Instant, from: u64, words: &[Word]) {
        for word in words {
            match word {
                Word::Office => {}
                Word::Belief(belief) => {
                    self.learnt.hears_belief(now, &mut self.gate, MemberId(from), *belief, Duration::ZERO);
                }
                Word::Report(report) => {
                    self.learnt.hears_report(now, &mut self.gate, MemberId(from), *report, &mut self.rng);
                }
            }
        }
    }

    fn share(&self) -> f64 {
        let (_, level) = self.learnt.told().expect("it was told");
        level.expect("the rate acts")
    }

    fn rate(&self) -> f64 {
        self.learnt.told().expect("it was told").0.rate
    }
}

const fn at(ms: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + ms * 1_000_000)
}

/// The first decides, and both have sent for ten seconds what it let them.
fn two() -> (Side, Side) {
    let (mut reader, mut other) = (Side::new(at(0), 1), Side::new(at(0), 2));
    assert_eq!(reader.says(at(0))[0], Word::Office);
    reader.learnt.office(at(1), Duration::ZERO);
    other.learnt.office(at(1), OFFICE);
    assert!(reader.learnt.reads() && other.learnt.follows());
    for ms in (0..10_000).step_by(100) {
        let now = at(2 + ms);
        reader.learnt.office(now, Duration::ZERO);
        let words = reader.says(now);
        other.hears(now, 1, &words);
        reader.send(now);
        other.send(now);
        let words = other.says(now);
        reader.hears(now, 2, &words);
    }
    let words = reader.says(at(10_003));
    other.hears(at(10_003), 1, &words);
    (reader, other)
}

#[test]
fn both_have_the_same_share_of_what_was_learnt_from_the_calls_of_both() {
    let (reader, other) = two();
    assert!((reader.share() - other.share()).abs() < 1e-6);
    assert!((reader.share() - reader.rate() / 2.0).abs() < 0.1, "{} of {}", reader.share(), reader.rate());
    let admitted = reader.learnt.evidence.admitted();
    assert!((180..=200).contains(&admitted), "{admitted} of 200 are known to be admitted");
}

/// Refusals of calls that left before the cut was heard of are the same event, at whichever process.
#[test]
fn one_event_cuts_once_whoever_sees_it() {
    let (mut reader, mut other) = two();
    let now = at(10_100);
    let flights = [other.send(now), other.send(now), other.send(now)];
    let own = reader.send(now);
    let before = reader.rate();
    assert_eq!(other.refused(at(10_150), &flights[0]), Reaction::Known);
    let words = other.says(at(10_200));
    reader.hears(at(10_200), 2, &words);
    let words = reader.says(at(10_200));
    other.hears(at(10_200), 1, &words);
    let cut = other.rate();
    assert!(cut < 0.85 * before && cut == reader.rate(), "{before} to {cut}");
    other.refused(at(10_210), &flights[1]);
    other.refused(at(10_210), &flights[2]);
    reader.refused(at(10_210), &own);
    let words = other.says(at(10_300));
    reader.hears(at(10_300), 2, &words);
    let words = reader.says(at(10_300));
    other.hears(at(10_300), 1, &words);
    assert!(other.rate() >= cut && reader.rate() >= cut, "{cut} to {}", reader.rate());
    (0..5).for_each(|_| drop(other.send(at(10_400))));
    let new = other.send(at(11_000));
    other.refused(at(11_050), &new);
    let words = other.says(at(11_100));
    reader.hears(at(11_100), 2, &words);
    reader.says(at(11_100));
    assert!(reader.rate() < 0.9 * cut, "a call of the new era opens the next");
}

#[test]
fn where_the_one_that_decides_falls_silent_another_goes_on_from_what_it_said() {
    let (reader, mut other) = two();
    let before = reader.rate();
    assert!(!other.says(at(12_000)).contains(&Word::Office), "it was heard two seconds ago");
    assert!(other.says(at(13_004)).contains(&Word::Office));
    other.learnt.office(at(13_005), Duration::ZERO);
    assert!(other.learnt.reads());
    let Some(Word::Belief(belief)) = other.says(at(13_006)).pop() else { panic!("it tells at once") };
    assert!((0.85 * before..=before).contains(&belief.rate), "{before} to {}", belief.rate);
    assert!(belief.era > reader.learnt.era(), "what left before is of the past");
}

#[test]
fn refusals_that_no_process_hears_slow_one_down_by_itself_until_one_decides_again() {
    let (mut reader, mut other) = two();
    let share = other.share();
    let mut refuse = |now| {
        let flight = other.send(now);
        other.refused(now + Duration::from_millis(50), &flight);
        other.share()
    };
    assert_eq!(refuse(at(10_050)), share, "the one that decides was heard just now");
    assert!(refuse(at(12_000)) < 0.81 * share);
    assert!(refuse(at(12_500)) > 0.79 * share, "once a second");
    assert!(refuse(at(13_500)) < 0.65 * share);
    reader.learnt.office(at(14_000), Duration::ZERO);
    let words = reader.says(at(14_000));
    other.hears(at(14_000), 1, &words);
    assert!(other.share() > 0.9 * share);
}

#[test]
fn the_word_of_one_that_decided_before_changes_nothing() {
    let (mut reader, mut other) = two();
    let Some(Word::Belief(old)) = reader.says(at(11_100)).pop() else { panic!("it says again what it believes") };
    let new = Belief { era: old.era + 1, rate: 7.0, level: Some(3.5), ..old };
    other.hears(at(11_200), 3, &[Word::Belief(new)]);
    other.hears(at(11_210), 1, &[Word::Belief(old)]);
    assert_eq!((other.rate(), other.learnt.era()), (7.0, new.era));
    reader.hears(at(11_220), 3, &[Word::Belief(new)]);
    assert!(reader.learnt.follows(), "another decides");
}

#[test]
fn while_configured_limits_are_trusted_no_process_is_held_back() {
    let mut sides = [1, 2].map(|id| Side::new(at(0), id));
    sides
        .iter_mut()
        .for_each(|side| side.learnt.decision = Decision::new(Start::Configured(None), Duration::from_secs(60)));
    let [reader, other] = &mut sides;
    reader.says(at(0));
    reader.learnt.office(at(1), Duration::ZERO);
    let words = reader.says(at(2));
    other.hears(at(2), 1, &words);
    assert!(other.learnt.admit(at(3), &other.gate, 0).is_now());
    assert_eq!((reader.learnt.acting_rate(), other.learnt.acting_rate()), (None, None));
    other.says(at(5_000));
    other.learnt.office(at(5_001), Duration::ZERO);
    assert_eq!(other.learnt.acting_rate(), None, "also where another goes on");
}

#[test]
fn a_process_that_wants_less_leaves_the_rest_to_the_others() {
    let (mut reader, mut other) = two();
    let own = other.learnt.report(at(10_050));
    let idle = Report { wants: false, rate: 1.0, sent: own.sent + 1, ..own };
    reader.hears(at(10_050), 2, &[Word::Report(idle)]);
    reader.send(at(10_060));
    let words = reader.says(at(10_100));
    other.hears(at(10_100), 1, &words);
    let most = reader.rate() - 1.0;
    assert!((reader.share() - most).abs() < 0.01, "{} of {}", reader.share(), reader.rate());
}

#[test]
fn without_a_ledger_each_goes_on_with_its_share() {
    let (mut reader, mut other) = two();
    let share = other.share();
    for side in [&mut reader, &mut other] {
        side.learnt.alone(at(10_100));
        let (_, rate) = side.learnt.limits();
        assert!((0.85 * share..=share + 1e-9).contains(&rate), "{share} to {rate}");
    }
}
