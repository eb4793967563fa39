//! Learnt paces of a fleet: for each scope one process decides for all, and each goes on by itself where there is no ledger.

use std::time::Duration;

use paceline_core::fleet::{LEASE, MemberState};
use paceline_core::{Class, Cost, Event, Outcome, RateEstimate, Request, SharedRate};

use super::fleet::{Fleet, MS, S, is_post, is_take};

fn success() -> Outcome {
    Outcome::new(Class::Success)
}

fn throttled() -> Outcome {
    Outcome::new(Class::Throttled)
}

fn estimate(fleet: &mut Fleet, place: usize) -> RateEstimate {
    fleet.snapshot(place, "a").estimate.expect("it learns")
}

fn shared(fleet: &mut Fleet, place: usize) -> Option<SharedRate> {
    estimate(fleet, place).shared
}

/// Words have six digits.
fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-5 * a
}

fn decides(fleet: &mut Fleet) -> Vec<Option<bool>> {
    (0..fleet.processes.len()).map(|place| shared(fleet, place).map(|shared| shared.decides)).collect()
}

/// Each process calls whenever it may, and is answered 50 ms later.
fn work(fleet: &mut Fleet, time: Duration) {
    let end = fleet.now + time;
    while fleet.now < end {
        for place in 0..fleet.processes.len() {
            if fleet.snapshot(place, "a").waiting < 3 {
                fleet.call(place, "a", 3);
            }
        }
        fleet.run(50 * MS);
        for place in 0..fleet.processes.len() {
            while !fleet.processes[place].left.is_empty() {
                fleet.answer(place, success());
            }
        }
    }
}

/// So many processes that have worked for so long. The first one decides.
fn working(processes: usize, time: Duration) -> Fleet {
    let mut fleet = Fleet::that_learns(processes);
    fleet.call(0, "a", 1);
    work(&mut fleet, time);
    fleet
}

/// A call of that process is refused as soon as one leaves.
fn refuse(fleet: &mut Fleet, place: usize) {
    fleet.call(place, "a", 1);
    for _ in 0..1_000 {
        if fleet.processes[place].left.is_empty() {
            fleet.run(10 * MS);
        }
    }
    fleet.answer(place, throttled());
}

#[test]
fn the_first_that_calls_decides_and_all_go_by_its_word() {
    let mut fleet = Fleet::that_learns(3);
    assert_eq!(fleet.asked, [], "no process calls");
    fleet.call(1, "a", 1);
    assert_eq!(fleet.asked, [], "one call wants no pace");
    fleet.call(1, "a", 1);
    assert_eq!((fleet.count("reader a", is_take), fleet.count("pace a", is_post)), (1, 1), "at once");
    (0..3).for_each(|place| fleet.call(place, "a", 1));
    assert_eq!(decides(&mut fleet), [Some(false), Some(true), Some(false)]);
    let known = [0, 1, 2].map(|place| fleet.processes[place].pacer.fleet(fleet.now).unwrap());
    let reader = Some(known[1].member);
    assert_eq!(known.map(|known| (known.reader, known.reads)), [(reader, 0), (reader, 1), (reader, 0)]);
    work(&mut fleet, 3 * S);
    let told: Vec<_> = (0..3).map(|place| (estimate(&mut fleet, place).rate, shared(&mut fleet, place))).collect();
    let [(rate, Some(first)), (same, Some(second)), (_, Some(third))] = told[..] else { panic!("{told:?}") };
    assert!(alike(rate, same) && first.share == third.share && first.era == second.era, "{told:?}");
    let sum: f64 = [first, second, third].iter().filter_map(|shared| shared.share).sum();
    assert!((0.9..1.1).contains(&(sum / rate)), "{sum} of {rate}");
}

#[test]
fn what_one_is_refused_the_one_that_decides_hears_at_once_and_all_slow_down() {
    let mut fleet = working(3, 5 * S);
    let (before, era) = (estimate(&mut fleet, 0).rate, shared(&mut fleet, 0).map(|it| it.era));
    fleet.processes.iter_mut().for_each(|process| process.events.clear());
    refuse(&mut fleet, 1);
    let rates = [0, 1, 2].map(|place| estimate(&mut fleet, place).rate);
    assert!(rates[0] < 0.9 * before && rates.iter().all(|rate| alike(*rate, rates[0])), "{before} to {rates:?}");
    assert!(shared(&mut fleet, 2).map(|it| it.era) > era);
    let slower = |event: &Event| matches!(event, Event::LimitDecreased { scope, .. } if **scope.name() == *"a");
    assert_eq!(
        fleet.processes.iter().map(|it| it.events.iter().filter(|it| slower(it)).count()).collect::<Vec<_>>(),
        [1, 0, 0]
    );
}

/// Whichever of them is refused.
#[test]
fn where_everything_is_refused_the_one_that_decides_closes_the_gates_of_all() {
    for refused in [0, 1] {
        let mut fleet = working(2, 5 * S);
        for _ in 0..300 {
            if fleet.count("gate a", is_post) == 0 {
                for place in 0..2 {
                    if fleet.left()[place] == 0 {
                        fleet.call(place, "a", 1);
                    }
                }
                fleet.run(50 * MS);
                while fleet.count("gate a", is_post) == 0 && fleet.left()[refused] > 0 {
                    fleet.answer(refused, throttled());
                }
            }
        }
        let closed = [0, 1].map(|place| fleet.snapshot(place, "a").closed_until);
        assert!(closed[0].is_some() && closed[0] == closed[1], "{closed:?}");
        assert_eq!(fleet.count("gate a", is_post), 1);
        let told = |event: &Event| matches!(event, Event::GateClosed { until, .. } if Some(*until) == closed[0]);
        assert!(fleet.processes.iter().all(|process| process.events.iter().filter(|event| told(event)).count() == 1));
    }
}

#[test]
fn where_no_process_calls_any_more_nothing_is_said() {
    let mut fleet = working(2, 5 * S);
    fleet.run(20 * S);
    while let Some(place) = (0..2).find(|place| !fleet.processes[*place].left.is_empty()) {
        fleet.answer(place, success());
    }
    fleet.run(20 * S);
    let asked = fleet.asked.len();
    fleet.run(60 * S);
    assert_eq!(fleet.asked.len(), asked);
    fleet.call(1, "a", 1);
    assert!(fleet.count("reader a", is_take) > 0 && fleet.asked.len() > asked, "until one calls");
    assert!(decides(&mut fleet)[1] == Some(true));
}

#[test]
fn a_scope_whose_name_no_store_keeps_has_its_pace_for_itself() {
    for (name, is_told) in [("x".repeat(170), true), ("x".repeat(171), false), ("a\nb".into(), false)] {
        let mut fleet = Fleet::that_learns(2);
        fleet.call(0, &name, 3);
        fleet.run(3 * S);
        fleet.answer(0, throttled());
        assert_eq!(fleet.asked.is_empty(), !is_told, "{name}");
        assert_eq!(fleet.snapshot(0, &name).estimate.unwrap().shared.is_some(), is_told);
        fleet.call(0, "b", 3);
        assert_eq!(fleet.asked.iter().any(|request| request.topic.contains(&name)), is_told, "nor with another");
    }
}

#[test]
fn no_process_decides_a_pace_that_is_not_learnt() {
    let mut fleet = Fleet::of(2);
    (0..2).for_each(|place| fleet.call(place, "a", 3));
    fleet.run(3 * S);
    fleet.answer(0, throttled());
    fleet.tell(1, "pace a", 600 * S, &[0; 9]);
    assert_eq!(fleet.asked, []);
    let process = &mut fleet.processes[1];
    let scope = process.pacer.scope("a");
    process.pacer.enqueue(fleet.now, Request::new(&scope, Cost::request())).expect("small enough");
    assert!(!process.pacer.has_news());
}

/// Runs until the first process is in that state, and no longer.
fn run_until(fleet: &mut Fleet, state: MemberState) {
    for _ in 0..60_000 {
        if fleet.processes[0].member.state() != state {
            fleet.run(MS);
        }
    }
    assert_eq!(fleet.processes[0].member.state(), state);
}

#[test]
fn without_a_lease_each_decides_for_itself_and_with_one_again_those_that_wait_are_led() {
    let mut fleet = working(2, 5 * S);
    let share = shared(&mut fleet, 0).and_then(|shared| shared.share).expect("it was told");
    fleet.processes.iter_mut().for_each(|process| process.is_cut = true);
    run_until(&mut fleet, MemberState::Alone);
    assert_eq!(decides(&mut fleet)[0], None, "at once");
    let alone = estimate(&mut fleet, 0).rate;
    assert!((0.5..1.01).contains(&(alone / share)), "with its share: {share} to {alone}");
    fleet.run(LEASE);
    assert_eq!(decides(&mut fleet), [None, None]);
    work(&mut fleet, 2 * S);
    // What waits, leaves or is refused without a lease is no news for others.
    let process = &mut fleet.processes[0];
    let scope = process.pacer.scope("a");
    for _ in 0..1_000 {
        process.pacer.enqueue(fleet.now, Request::new(&scope, Cost::request())).expect("there is no limit");
    }
    assert!(!process.pacer.has_news());
    fleet.run(S);
    let process = &mut fleet.processes[0];
    let ticket = process.left.pop_front().expect("calls left");
    process.pacer.complete(fleet.now, ticket, throttled());
    assert!(!process.pacer.has_news());
    let before = fleet.count("reader a", is_take);
    fleet.processes[0].is_cut = false;
    run_until(&mut fleet, MemberState::Live);
    assert_eq!(fleet.count("reader a", is_take), before + 1, "at once");
    fleet.processes[1].is_cut = false;
    fleet.call(1, "a", 1_000);
    fleet.run(2 * S);
    assert_eq!(decides(&mut fleet), [Some(true), Some(false)]);
}

#[test]
fn limits_that_are_not_shared_any_more_leave_the_pace_to_their_pacer() {
    let mut fleet = working(2, 5 * S);
    let now = fleet.now;
    fleet.processes[1].pacer.undivide(now);
    assert_eq!(shared(&mut fleet, 1), None);
    assert!(!fleet.processes[1].pacer.has_news());
}

/// One that comes while the others work is led at once; one that comes when all are gone goes on from what the last one believed.
#[test]
fn one_that_comes_later_goes_on_from_what_was_believed() {
    let mut fleet = working(2, 5 * S);
    let rate = estimate(&mut fleet, 0).rate;
    let third = fleet.join();
    fleet.run(MS * 300);
    fleet.call(third, "a", 1);
    let heard = estimate(&mut fleet, third);
    assert!(heard.rate >= rate && heard.shared.is_some_and(|shared| !shared.decides), "{rate}, {heard:?}");

    let mut fleet = working(1, 5 * S);
    refuse(&mut fleet, 0);
    let rate = estimate(&mut fleet, 0).rate;
    fleet.processes[0].is_cut = true;
    let mut later = |wait| {
        fleet.run(wait);
        let place = fleet.join();
        fleet.run(S);
        fleet.call(place, "a", 2);
        fleet.processes[place].is_cut = true;
        estimate(&mut fleet, place)
    };
    let (soon, late) = (later(10 * S), later(500 * S));
    assert!([&soon, &late].iter().all(|it| it.shared.is_some_and(|shared| shared.decides)), "no other process does");
    let rates = [rate, soon.rate, late.rate];
    assert!(rates.windows(2).all(|pair| (0.85..1.0).contains(&(pair[1] / pair[0]))), "{rates:?}");
}

/// What comes from the ledger may have been told long before.
#[test]
fn a_pause_that_is_told_holds_where_it_was_told_just_now() {
    for (ago, closed) in [(499 * MS, Some(5 * S)), (500 * MS, None)] {
        let mut fleet = Fleet::that_learns(1);
        fleet.tell(0, "pace a", 600 * S - ago, &[9, 20_000_000, 20_000_000, 1, 1, 0, 0, 5_000]);
        let (now, snapshot) = (fleet.now, fleet.snapshot(0, "a"));
        assert_eq!(snapshot.closed_until.map(|until| until - now), closed);
        assert!(snapshot.estimate.is_some_and(|it| (19.9..20.1).contains(&it.rate)), "and the rate in any case");
    }
}

#[test]
fn words_that_cannot_be_read_change_nothing() {
    let mut fleet = working(1, 5 * S);
    let before = fleet.snapshot(0, "a");
    for (topic, values) in [
        ("pace a", vec![1]),
        ("calls zz a", vec![0; 15]),
        ("calls 0000000000000009", vec![0; 15]),
        ("calls 0000000000000009 a", vec![1]),
        ("calls 0000000000000009 b", vec![0; 15]),
        ("paces a", vec![1]),
    ] {
        fleet.tell(0, topic, 600 * S, &values);
        assert_eq!(fleet.snapshot(0, "a"), before, "{topic}");
    }
    assert_eq!(fleet.snapshot(0, "a").estimate.map(|it| it.shared.is_some()), Some(true));
}

#[test]
fn each_scope_has_its_own_decider() {
    let mut fleet = Fleet::that_learns(2);
    fleet.call(0, "a", 2);
    fleet.call(1, "b", 2);
    fleet.call(0, "c", 2);
    assert_eq!(["reader a", "reader b", "reader c"].map(|topic| fleet.count(topic, is_take)), [1, 1, 1]);
    let decides = ["a", "b"].map(|scope| fleet.snapshot(1, scope).estimate.unwrap().shared.map(|it| it.decides));
    assert_eq!(decides[1], Some(true));
    assert!(decides[0] != Some(true));
}
