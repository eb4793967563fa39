//! Two processes that share a learnt pace, and what they say to each other without a ledger between them.

use alloc::vec::Vec;

use super::super::Start;
use super::super::decision::RateDecision;
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
            caller: None,
            is_first: true,
            ..Flight::default()
        };
        flight.era = self.learnt.sent(now, &self.gate, &flight, false);
        flight
    }

    fn refused(&mut self, now: Instant, flight: &Flight) -> Reaction {
        self.learnt.refused(now, &mut self.gate, flight, self.last, Refusal::Throttled, &mut self.rng)
    }

    fn says(&mut self, now: Instant) -> Vec<Word> {
        self.says_until(now).0
    }

    /// What is said now, and when there is something to say by itself.
    fn says_until(&mut self, now: Instant) -> (Vec<Word>, Option<Instant>) {
        let (words, again) = self.learnt.words(now, &self.gate, 2);
        (words.into_iter().flatten().collect(), again)
    }

    /// The one report that it has to tell now.
    fn reports(&mut self, now: Instant) -> Option<Report> {
        self.says(now).iter().find_map(|word| if let Word::Report(report) = word { Some(*report) } else { None })
    }

    /// The one belief that it has to tell now.
    fn believes(&mut self, now: Instant) -> Option<Belief> {
        self.says(now).iter().find_map(|word| if let Word::Belief(belief) = word { Some(*belief) } else { None })
    }

    fn shared(&self) -> &Shared {
        self.learnt.shared.as_deref().expect("it is shared")
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

const MS: Duration = Duration::from_millis(1);

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
        .for_each(|side| side.learnt.decision = RateDecision::new(Start::Configured(None), Duration::from_secs(60)));
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

#[test]
fn the_first_refusal_of_an_era_is_reported_at_once_and_more_of_them_together() {
    let (_, mut other) = two();
    other.reports(at(10_100));
    let flights = [0, 1, 2].map(|_| other.send(at(10_110)));
    other.refused(at(10_120), &flights[0]);
    let first = other.reports(at(10_120)).expect("at once");
    assert_eq!((first.throttled, first.refused, first.ago), (1, 1, Duration::from_millis(10)));
    other.refused(at(10_130), &flights[1]);
    other.refused(at(10_140), &flights[2]);
    assert_eq!(other.says_until(at(10_140)), (Vec::new(), Some(at(10_170))), "50 ms after the first");
    assert_eq!(other.reports(at(10_170)).map(|report| (report.throttled, report.ago)), Some((3, 60 * MS)));
}

#[test]
fn calls_are_reported_four_times_a_second_and_nothing_new_once_a_second() {
    let (_, mut other) = two();
    let (belief, _) = other.learnt.told().expect("it was told");
    other.hears(at(10_005), 1, &[Word::Belief(Belief { starting: false, ..belief })]);
    other.send(at(10_050));
    let said = other.reports(at(10_200)).expect("a call left");
    other.learnt.share(at(10_201), MemberId(2), 1, false);
    other.send(at(10_210));
    assert_eq!(other.says_until(at(10_449)), (Vec::new(), Some(at(10_450))));
    let more = other.reports(at(10_450)).expect("a call left");
    assert_eq!((more.sent, more.era), (said.sent + 1, said.era));
    assert!(other.reports(at(11_449)).is_none() && other.reports(at(11_450)).is_some(), "it is there");
}

#[test]
fn that_calls_wait_again_is_told_soon() {
    let (_, mut other) = two();
    other.learnt.share(at(10_050), MemberId(2), 1, false);
    // Nothing was held back for longer than two of its gaps, and a second.
    let idle = other.reports(at(12_500)).expect("it is told");
    assert!(!idle.wants);
    other.learnt.share(at(12_510), MemberId(2), 1, true);
    other.send(at(12_510));
    assert_eq!(other.reports(at(12_549)), None);
    assert!(other.reports(at(12_550)).is_some_and(|report| report.wants));
}

#[test]
fn a_process_that_has_no_calls_says_nothing_and_counts_as_unknown_until_it_is_heard_again() {
    let (_, mut other) = two();
    assert!(other.shared().is_counted);
    other.learnt.share(at(10_050), MemberId(2), 1, false);
    let last = at(9_902);
    assert!(!other.says(last + (SILENT - MS)).is_empty(), "its last call left just now");
    assert_eq!(other.says_until(last + SILENT), (Vec::new(), None));
    assert!(!other.shared().is_counted);
}

#[test]
fn a_report_tells_what_was_seen_in_sums() {
    let (_, mut other) = two();
    other.send(at(10_050));
    let before = other.reports(at(10_100)).expect("a call left");
    let flights = [0, 1, 2].map(|_| other.send(at(10_200)));
    let mut dear = other.send(at(10_210));
    dear.tokens = 70;
    other.learnt.refused(at(10_215), &mut other.gate, &flights[0], other.last, Refusal::Overloaded, &mut other.rng);
    other.learnt.refused(at(10_220), &mut other.gate, &dear, other.last, Refusal::Throttled, &mut other.rng);
    let report = other.reports(at(10_300)).expect("refusals");
    assert_eq!((report.sent, report.weight), (before.sent + 4, 1));
    assert_eq!((report.throttled, report.overloaded, report.refused), (1, 1, 2));
    assert_eq!((report.ago, report.cost), (100 * MS, 0), "of the first of them");
    assert!((2..4).contains(&report.pending), "{} may still be refused", report.pending);
    // Four calls in 0.2 s, and what was known before.
    assert!((report.rate - 0.5 * (20.0 + before.rate)).abs() < 1e-9, "{} after {}", report.rate, before.rate);
    assert!((5.0..11.0).contains(&before.rate), "{}", before.rate);
}

#[test]
fn the_one_that_decides_tells_a_change_soon_and_a_new_era_at_once() {
    let (mut reader, _) = two();
    let wants = |weight| Report { era: 1, wants: true, weight, ..Report::default() };
    reader.hears(at(10_020), 2, &[Word::Report(wants(3))]);
    let told = reader.believes(at(10_060)).expect("the last word is long ago");
    reader.hears(at(10_070), 2, &[Word::Report(wants(5))]);
    assert_eq!(reader.says_until(at(10_080)), (Vec::new(), Some(at(10_110))), "50 ms after the last word");
    assert_eq!(reader.believes(at(10_110)).map(|belief| belief.wanting), Some(told.wanting + 2));
    let flight = reader.send(at(10_112));
    reader.refused(at(10_113), &flight);
    assert!(reader.believes(at(10_113)).is_some_and(|belief| belief.era > told.era));
}

#[test]
fn the_office_is_renewed_each_second_and_lost_where_no_ledger_confirms_it() {
    let mut reader = Side::new(at(0), 1);
    assert_eq!(reader.says(at(0))[0], Word::Office);
    assert!(
        !reader.says(at(2_999)).contains(&Word::Office),
        "not before the answer, or as long as it would have lasted"
    );
    reader.learnt.office(at(3_000), Duration::ZERO);
    reader.send(at(3_001));
    let asks = |reader: &mut Side, ms| reader.says(at(ms)).contains(&Word::Office);
    assert!(!asks(&mut reader, 3_999) && asks(&mut reader, 4_000) && !asks(&mut reader, 4_999));
    reader.learnt.office(at(5_000), Duration::ZERO);
    assert!(asks(&mut reader, 5_000), "a renewal is no reason to wait");
    reader.send(at(7_000));
    reader.says(at(7_499));
    assert!(reader.learnt.reads());
    // The answer took half a second at most.
    reader.says(at(7_500));
    assert!(reader.learnt.follows());
    let mut other = Side::new(at(0), 2);
    other.learnt.office(at(1), Duration::from_secs(2));
    assert!(!asks(&mut other, 2_000) && asks(&mut other, 2_001), "another one has it until then");
}

#[test]
fn a_process_waits_a_second_for_the_first_word() {
    let mut other = Side::new(at(0), 2);
    assert_eq!(other.learnt.waits_for_first_word(), Some(at(1_000)));
    let (mut reader, _) = two();
    assert_eq!(reader.learnt.waits_for_first_word(), None);
    let belief = reader.believes(at(11_003)).expect("once a second");
    other.hears(at(20), 1, &[Word::Belief(belief)]);
    assert_eq!(other.learnt.waits_for_first_word(), None);
    let mut alone = Side::new(at(0), 3);
    alone.learnt.alone(at(1));
    assert_eq!(alone.learnt.waits_for_first_word(), None);
}

#[test]
fn a_word_counts_a_process_once_the_one_that_decides_can_have_heard_of_it() {
    let (mut reader, _) = two();
    let belief = reader.believes(at(11_003)).expect("once a second");
    for (after, is_counted) in [(10, false), (11, true)] {
        let mut third = Side::new(at(0), 3);
        third.says(at(100));
        third.hears(at(100 + after), 1, &[Word::Belief(belief)]);
        assert_eq!(third.shared().is_counted, is_counted);
        // Until then it makes itself room: two want to send, and it is the third.
        let room = if is_counted { 1.0 } else { 2.0 / 3.0 };
        assert!((third.share() - room * belief.level.unwrap()).abs() < 1e-9, "{}", third.share());
    }
}

#[test]
fn of_two_that_decide_the_later_era_goes_on() {
    let (mut reader, _) = two();
    let own = reader.believes(at(11_003)).expect("once a second");
    reader.hears(at(11_010), 9, &[Word::Belief(Belief { era: own.era - 1, ..own })]);
    assert!(reader.learnt.reads(), "an earlier one");
    reader.hears(at(11_010), 9, &[Word::Belief(own)]);
    assert!(reader.learnt.follows());
    let older = Belief { era: own.era - 1, rate: 3.0, ..own };
    reader.hears(at(11_010) + (OFFICE - MS), 9, &[Word::Belief(older)]);
    assert!(reader.rate() != 3.0, "who has said that decides no more");
    reader.hears(at(11_010) + OFFICE, 9, &[Word::Belief(older)]);
    assert_eq!(reader.rate(), 3.0, "it is the only one");
}

#[test]
fn a_pause_holds_from_when_it_is_told_and_not_where_it_was_told_long_ago() {
    let (mut reader, mut other) = two();
    let belief = reader.believes(at(11_003)).expect("once a second");
    let paused = Belief { pause: Duration::from_secs(2), ..belief };
    other.learnt.hears_belief(at(11_010), &mut other.gate, MemberId(1), paused, MS);
    assert_eq!(other.gate.closed_until(at(11_010)), None);
    other.learnt.hears_belief(at(11_010), &mut other.gate, MemberId(1), paused, Duration::ZERO);
    assert_eq!(other.gate.closed_until(at(11_010)), Some(at(13_010)));
    reader.gate.hold(at(12_500));
    let told = reader.learnt.belief(at(12_003), &reader.gate);
    assert_eq!(told.pause, 497 * MS);
}

#[test]
fn processes_take_turns_in_the_order_of_their_numbers() {
    let report = |wants| Report { wants, weight: 1, ..Report::default() };
    let mut shared = Shared::new(at(0), MemberId(5), 1);
    for (id, ms, wants) in [(1, 0, true), (2, 1, true), (3, 1, false), (7, 1, true), (9, 1, true)] {
        shared.others.insert(MemberId(id), (at(ms), report(wants)));
    }
    // The first fell silent, and the third wants nothing: 2 comes before 5, then 7 and 9.
    shared.takes_turn(at(0) + SILENT, MemberId(9));
    assert_eq!(shared.turn, 0.25);
    shared.takes_turn(at(0) + SILENT, MemberId(1));
    assert_eq!(shared.turn, 0.4, "the one that tells is one of them");
    shared.takes_turn(at(0) + SILENT, MemberId(5));
    assert_eq!(shared.turn, 0.25);
    assert_eq!(shared.lively(at(0) + SILENT).count(), 4);
}

#[test]
fn many_processes_report_seldom_enough_for_the_store() {
    let shared = Shared::new(at(0), MemberId(5), 1);
    let every = [(2, false), (2, true), (60, false), (60, true), (1_000, false)];
    let expected = [250, 100, 300, 300, 1_000].map(Duration::from_millis);
    assert_eq!(every.map(|(members, starting)| shared.report_every(members, starting)), expected);
}

#[test]
fn the_one_that_decides_knows_of_calls_that_wait_or_are_under_way_elsewhere() {
    let (mut reader, mut other) = two();
    let (sent, rate) = (at(10_050), reader.learnt.decision.rate.per_second());
    assert!(!reader.learnt.note_queued(sent, false) || reader.shared().lively(sent).any(|report| report.wants));
    let report = Report { era: 1, pending: 5, wants: true, weight: 1, ..Report::default() };
    reader.hears(sent, 2, &[Word::Report(report)]);
    assert!(reader.learnt.note_queued(sent, false) && !other.learnt.note_queued(sent, false));
    assert!(!reader.learnt.note_queued(sent + SILENT, false), "it was not heard any more");
    let later = |side: &Side, time| side.learnt.elsewhere(sent + time, sent);
    let two_calls = Duration::from_secs_f64(2.5 / rate);
    assert_eq!(
        [Duration::ZERO, two_calls, SILENT - MS, SILENT].map(|time| later(&reader, time)),
        [(5, 0), (5, 2), (5, 5), (0, 0)]
    );
    assert_eq!(later(&other, two_calls), (0, 0), "who does not decide need not know");
}
