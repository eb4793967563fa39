//! Gates of a fleet: a pause that a server asked of one process holds for all of them, and one call of them all tests its end.

use std::time::Duration;

use paceline_core::fleet::LEASE;
use paceline_core::{Class, Event, LimitScope, Outcome, PauseCause, WaitCause};

use super::fleet::{Fleet, MS, S, is_post, is_release, is_take};

const ASKED: PauseCause = PauseCause::Throttled { asked: true };

fn throttled(wait: Duration) -> Outcome {
    Outcome::new(Class::Throttled).with_hint(wait, true)
}

fn success() -> Outcome {
    Outcome::new(Class::Success)
}

fn of_account(outcome: Outcome) -> Outcome {
    Outcome { reach: LimitScope::Account, ..outcome }
}

/// So many processes with three calls each that wait in the scope `a`, of which the first was asked to wait 20 s just now.
fn closed(processes: usize) -> Fleet {
    let mut fleet = Fleet::of(processes);
    fleet.call(0, "a", 1);
    fleet.answer(0, throttled(20 * S));
    (0..processes).for_each(|place| fleet.call(place, "a", 3));
    fleet
}

/// For how long a scope of a process is closed, and why.
fn gate(fleet: &mut Fleet, place: usize, scope: &str) -> Option<(Duration, PauseCause)> {
    let snapshot = fleet.snapshot(place, scope);
    snapshot.closed_until.map(|until| until - fleet.now).zip(snapshot.closed_for)
}

fn all_left(fleet: &Fleet) -> usize {
    fleet.left().iter().sum()
}

/// The process whose call left, where it is the only one.
fn tester(fleet: &Fleet) -> usize {
    assert_eq!(all_left(fleet), 1);
    fleet.left().iter().position(|left| *left == 1).expect("one has left")
}

#[test]
fn a_pause_that_one_process_was_asked_for_holds_for_all_and_for_no_other_scope() {
    let mut fleet = closed(3);
    for place in 0..3 {
        assert_eq!(gate(&mut fleet, place, "a"), Some((20 * S, ASKED)));
        assert_eq!(gate(&mut fleet, place, "b"), None);
    }
    let until = fleet.now + 20 * S;
    let is_it = |event: &Event| matches!(event, Event::GateClosed { scope, until: at } if **scope.name() == *"a" && *at == until);
    assert!(fleet.processes.iter().all(|process| process.events.iter().filter(|event| is_it(event)).count() == 1));
    fleet.run(19 * S);
    assert_eq!(fleet.left(), [0, 0, 0]);
}

#[test]
fn a_pause_of_the_account_closes_every_scope_of_all() {
    let mut fleet = Fleet::of(2);
    assert_eq!(["a", "b"].map(|scope| gate(&mut fleet, 1, scope)), [None; 2]);
    fleet.call(0, "a", 1);
    fleet.answer(0, of_account(throttled(20 * S)));
    assert_eq!(["a", "b"].map(|scope| gate(&mut fleet, 1, scope)), [Some((20 * S, ASKED)); 2]);
    // And one call of all goes first in each.
    (0..2).for_each(|place| fleet.call(place, "a", 1));
    fleet.run(21 * S);
    assert_eq!(all_left(&fleet), 1);
}

#[test]
fn a_used_up_quota_holds_all_for_its_cause() {
    for reach in [LimitScope::Scope, LimitScope::Account] {
        let mut fleet = Fleet::of(2);
        fleet.call(0, "a", 1);
        assert_eq!(["a", "b"].map(|scope| gate(&mut fleet, 1, scope)), [None; 2]);
        let used_up = Outcome::new(Class::QuotaExhausted).with_hint(600 * S, true);
        fleet.answer(0, Outcome { reach, ..used_up });
        assert_eq!(gate(&mut fleet, 1, "a"), Some((600 * S, PauseCause::QuotaUsedUp)));
        assert_eq!(gate(&mut fleet, 1, "b").is_some(), reach == LimitScope::Account);
        let of_account = reach == LimitScope::Account;
        let is_it = |event: &Event| matches!(event, Event::Held { scope, .. } if scope.is_none() == of_account);
        assert!(fleet.processes[1].events.iter().any(is_it));
    }
}

/// Calls in flight together are refused together, at many processes.
#[test]
fn pauses_that_end_almost_together_are_told_once_and_one_that_ends_later_is_told_anew() {
    let mut fleet = Fleet::of(2);
    (0..2).for_each(|place| fleet.call(place, "a", 5));
    fleet.answer(0, throttled(20 * S));
    fleet.answer(1, throttled(20 * S));
    fleet.answer(1, throttled(20 * S + 100 * MS));
    fleet.answer(0, throttled(19 * S));
    assert_eq!(fleet.count("gate a", is_post), 1);
    fleet.answer(0, throttled(20 * S + 101 * MS));
    assert_eq!(fleet.count("gate a", is_post), 2);
    assert_eq!(gate(&mut fleet, 1, "a"), Some((20 * S + 101 * MS, ASKED)));
    // Once it is over the next is another.
    fleet.run(21 * S);
    fleet.answer(0, throttled(5 * S));
    assert_eq!(fleet.count("gate a", is_post), 3);
    // One that is over already is none.
    fleet.answer(0, throttled(Duration::ZERO));
    assert_eq!(fleet.count("gate a", is_post), 3);
}

#[test]
fn a_short_pause_that_follows_another_is_told() {
    let mut fleet = Fleet::of(2);
    fleet.call(0, "a", 2);
    fleet.answer(0, throttled(20 * S));
    fleet.run(20 * S);
    fleet.answer(0, throttled(50 * MS));
    assert_eq!(fleet.count("gate a", is_post), 2, "the first is over");
}

#[test]
fn one_call_of_all_tests_the_end_and_its_answer_opens_every_gate() {
    let mut fleet = closed(3);
    fleet.run(20 * S + 500 * MS);
    let first = tester(&fleet);
    let other = (first + 1) % 3;
    // Where the process that tests dies, another one does.
    let Some((WaitCause::Canary, Some(until))) = fleet.snapshot(other, "a").waits_for else {
        panic!("it may not test")
    };
    assert!(until - fleet.now > 9 * S && until - fleet.now <= 10 * S);
    fleet.run(9 * S);
    assert_eq!((all_left(&fleet), fleet.count("canary a", is_take)), (1, 3), "each has asked once");
    fleet.answer(first, success());
    fleet.run(S);
    assert_eq!(all_left(&fleet), 8, "all have left");
    assert_eq!((fleet.count("gate a", is_post), fleet.count("canary a", is_release)), (2, 2));
    // All is as before: nothing more is asked.
    let asked = fleet.asked.len();
    fleet.call(other, "a", 1);
    fleet.run(30 * S);
    assert_eq!((fleet.asked.len(), all_left(&fleet)), (asked, 9));
}

#[test]
fn a_test_that_is_refused_closes_the_gates_of_all_again() {
    let mut fleet = closed(3);
    fleet.run(21 * S);
    let first = tester(&fleet);
    fleet.answer(first, throttled(30 * S));
    assert!((0..3).all(|place| gate(&mut fleet, place, "a") == Some((30 * S, ASKED))));
    fleet.run(29 * S);
    assert_eq!(fleet.left(), [0, 0, 0]);
    fleet.run(2 * S);
    assert_eq!(all_left(&fleet), 1, "and one tests the end of that");
}

#[test]
fn where_the_process_that_tests_dies_another_one_tests() {
    let mut fleet = closed(2);
    fleet.run(20 * S + 500 * MS);
    let first = tester(&fleet);
    fleet.processes[first].is_cut = true;
    fleet.run(9 * S);
    assert_eq!(fleet.left()[1 - first], 0);
    fleet.run(S);
    assert_eq!(fleet.left()[1 - first], 1);
}

/// A call of another process that left long ago is refused.
#[test]
fn a_process_that_is_told_a_longer_pause_gives_the_test_back() {
    for topic in ["gate a", "gate"] {
        let mut fleet = closed(2);
        fleet.run(20 * S + 500 * MS);
        let first = tester(&fleet);
        let before = fleet.count("canary a", is_release);
        fleet.tell(first, "gate b", 90 * S, &[1, 1]);
        assert_eq!(fleet.count("canary a", is_release), before, "another scope");
        fleet.tell(first, topic, 90 * S, &[1, 1]);
        assert_eq!(fleet.count("canary a", is_release), before + 1, "{topic}");
        assert_eq!(gate(&mut fleet, first, "a"), Some((30 * S, ASKED)));
        fleet.tell(1 - first, topic, 90 * S, &[1, 1]);
        assert_eq!(fleet.count("canary a", is_release), before + 1, "one that does not test has nothing to give back");
    }
}

/// It waits for what it was told itself.
#[test]
fn another_process_opens_no_gate_that_is_closed_for_longer() {
    let mut fleet = Fleet::of(2);
    (0..2).for_each(|place| fleet.call(place, "a", 1));
    fleet.answer(0, throttled(20 * S));
    fleet.answer(1, throttled(20 * S + 90 * MS));
    fleet.call(0, "a", 1);
    fleet.run(20 * S + 20 * MS);
    assert_eq!(fleet.left(), [1, 0]);
    fleet.answer(0, success());
    assert_eq!(gate(&mut fleet, 1, "a"), Some((70 * MS, ASKED)));
    fleet.call(1, "a", 1);
    fleet.run(60 * MS);
    assert_eq!(fleet.left()[1], 0);
    fleet.run(S);
    assert_eq!(fleet.left()[1], 1);
}

#[test]
fn without_a_lease_a_process_tests_its_gates_by_itself() {
    let mut fleet = closed(2);
    fleet.processes[0].is_cut = true;
    fleet.run(21 * S);
    assert_eq!(fleet.left(), [0, 1], "it has one, and asks");
    fleet.run(LEASE - 20 * S);
    assert_eq!(fleet.left(), [1, 1], "by its own answer it goes on");
    fleet.answer(0, success());
    fleet.run(15 * S);
    assert_eq!(fleet.left(), [2, 1]);
}

#[test]
fn limits_that_are_not_shared_any_more_leave_gates_to_their_pacer() {
    let mut fleet = closed(2);
    fleet.run(21 * S);
    let other = 1 - tester(&fleet);
    let now = fleet.now;
    let process = &mut fleet.processes[other];
    assert_eq!(process.pacer.poll_event(), None);
    process.pacer.undivide(now);
    let Some(Event::Granted { ticket, .. }) = process.pacer.poll_event() else { panic!("it asks no ledger") };
    process.pacer.complete(now, ticket, throttled(5 * S));
    assert!(!process.pacer.has_news(), "and tells no other process");
}

#[test]
fn a_process_that_comes_during_a_pause_obeys_it_and_one_that_comes_after_it_does_not() {
    let mut fleet = closed(2);
    let until = fleet.now + 20 * S;
    fleet.run(10 * S);
    let early = fleet.join();
    fleet.run(S);
    assert_eq!(gate(&mut fleet, early, "a"), Some((until - fleet.now, ASKED)));
    fleet.run(12 * S);
    let late = fleet.join();
    fleet.run(S);
    assert_eq!(gate(&mut fleet, late, "a"), None);
    assert_eq!(fleet.processes[late].events, []);
}

/// Words of a later version, and of no version.
#[test]
fn what_a_process_cannot_read_changes_nothing() {
    let unknown = [
        ("gate a", vec![1]),
        ("gate a", vec![1, 7]),
        ("gate a", vec![3, 0]),
        ("gates", vec![1, 0]),
        ("door a", vec![1, 0]),
    ];
    for (topic, values) in unknown {
        let mut fleet = Fleet::of(1);
        fleet.tell(0, topic, 100 * S, &values);
        assert_eq!(gate(&mut fleet, 0, "a"), None, "{topic} {values:?}");
        assert_eq!(fleet.processes[0].events, [], "{topic} {values:?}");
    }
    // And of a pause that ends just now.
    let mut fleet = Fleet::of(1);
    [1, 2].iter().for_each(|what| fleet.tell(0, "gate a", 60 * S, &[*what, 1]));
    assert_eq!(fleet.processes[0].events, []);
    fleet.tell(0, "gate a", 100 * S, &[1, 6, 8]);
    assert_eq!(gate(&mut fleet, 0, "a"), Some((40 * S, PauseCause::Program)), "more numbers than are known");
}

#[test]
fn a_scope_whose_name_no_store_keeps_has_its_gate_for_itself() {
    for (name, is_told) in [("x".repeat(190), true), ("x".repeat(191), false), ("a\nb".into(), false)] {
        let mut fleet = Fleet::of(2);
        assert_eq!(gate(&mut fleet, 1, &name), None);
        fleet.call(0, &name, 1);
        fleet.answer(0, throttled(20 * S));
        assert_eq!(gate(&mut fleet, 0, &name), Some((20 * S, ASKED)));
        assert_eq!(gate(&mut fleet, 1, &name).is_some(), is_told);
        assert_eq!(fleet.asked.is_empty(), !is_told);
        // A pause of the account is told; the test of that scope is its own.
        fleet.call(0, "b", 1);
        fleet.answer(0, of_account(throttled(30 * S)));
        assert_eq!(gate(&mut fleet, 1, &name), Some((30 * S, ASKED)));
        (0..2).for_each(|place| fleet.call(place, &name, 1));
        fleet.run(31 * S);
        assert_eq!(all_left(&fleet), if is_told { 1 } else { 2 });
    }
}

/// The answer to who tests comes after the word that the gate is open.
#[test]
fn a_test_of_a_gate_that_is_open_is_given_back() {
    let mut fleet = closed(1);
    fleet.run(20 * S - MS);
    fleet.processes[0].is_cut = true;
    fleet.run(2 * MS);
    assert_eq!(fleet.left(), [0], "its call was not answered");
    fleet.tell(0, "gate a", 60 * S, &[0, 0]);
    fleet.run(MS);
    let before = fleet.count("canary a", is_release);
    fleet.processes[0].is_cut = false;
    fleet.run(S);
    assert_eq!((fleet.count("canary a", is_take), fleet.count("canary a", is_release)), (1, before + 1));
    assert_eq!(fleet.left(), [3]);
}
