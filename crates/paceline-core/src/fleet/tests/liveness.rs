//! What a fleet uses of its limit, and how it is shared, in fair weather.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::world::{FAIR, World};
use crate::fleet::LEASE;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Jain's index: 1 where all have the same.
fn jain(granted: &[u64]) -> f64 {
    let sum: f64 = granted.iter().map(|units| *units as f64).sum();
    let squares: f64 = granted.iter().map(|units| (*units as f64) * (*units as f64)).sum();
    sum * sum / (squares * granted.len() as f64)
}

fn fleet(limit: u64, window: Duration, members: usize, demand: f64) -> World {
    let mut world = World::new(7, limit, window, LEASE, FAIR);
    (0..members).for_each(|_| world.join(demand, 1));
    world
}

/// What was used of the limit, how alike, and how many requests each member sent in a second.
#[derive(Debug)]
struct Figures {
    used: f64,
    jain: f64,
    requests: f64,
}

fn run(world: &mut World, by: Duration, time: Duration) -> Figures {
    let before: Vec<u64> = world.nodes.iter().map(|node| node.granted).collect();
    let requests = world.requests;
    let end = world.now + time;
    while world.now < end {
        world.tick(by);
    }
    let granted: Vec<u64> = world.nodes.iter().zip(before).map(|(node, before)| node.granted - before).collect();
    let most = world.limit as f64 * time.as_secs_f64() / world.window.as_secs_f64();
    let used = granted.iter().sum::<u64>() as f64 / most;
    let requests = (world.requests - requests) as f64 / time.as_secs_f64() / world.nodes.len() as f64;
    Figures { used, jain: jain(&granted), requests }
}

#[test]
fn equal_demand_is_shared_alike_after_three_windows() {
    for (limit, window, members) in [(600, ms(60_000), 10), (600, ms(60_000), 50), (100, ms(1_000), 20)] {
        let mut world = fleet(limit, window, members, 2.0 * limit as f64 / window.as_secs_f64());
        run(&mut world, (window / 120).min(ms(100)), 3 * window);
        let figures = run(&mut world, (window / 120).min(ms(100)), 3 * window);
        super::std::println!("{limit}/{window:?}, {members} members: {figures:.4?}");
        assert!(figures.used >= 0.98 && figures.jain >= 0.99 && world.worst <= limit);
    }
}

#[test]
fn what_is_less_than_a_unit_each_goes_round() {
    for (limit, window, members, windows) in [(60, ms(60_000), 40, 20), (20, ms(1_000), 30, 60)] {
        let mut world = fleet(limit, window, members, 2.0 * limit as f64 / window.as_secs_f64());
        run(&mut world, (window / 60).min(ms(200)), 3 * window);
        let figures = run(&mut world, (window / 60).min(ms(200)), windows * window);
        super::std::println!("{limit}/{window:?}, {members} members: {figures:.4?}");
        assert!(figures.used >= 0.97 && figures.jain >= 0.97 && world.worst <= limit);
    }
}

/// 90 % of the demand is in 10 % of the members, and moves.
fn moving(limit: u64, window: Duration, every: Duration, moves: u32) -> f64 {
    let (members, hot) = (20, 2);
    let total = 1.5 * limit as f64 / window.as_secs_f64();
    let mut world = fleet(limit, window, members, 0.0);
    let begin = |world: &mut World, turn: u32| {
        for (place, node) in world.nodes.iter_mut().enumerate() {
            let is_hot = place / hot == turn as usize % (members / hot);
            let (share, among) = if is_hot { (0.9, hot) } else { (0.1, members - hot) };
            // What waited where the demand was does not stay behind.
            (node.demand, node.waiting) = (total * share / among as f64, 0);
        }
        run(world, (window / 200).min(ms(50)), every)
    };
    begin(&mut world, 0);
    let figures: Vec<Figures> = (1..=moves).map(|turn| begin(&mut world, turn)).collect();
    let used = figures.iter().map(|figures| figures.used).sum::<f64>() / f64::from(moves);
    let requests = figures.iter().map(|figures| figures.requests).sum::<f64>() / f64::from(moves);
    super::std::println!(
        "{limit}/{window:?}, moving every {every:?}: used {used:.3}, {requests:.2} requests a second each"
    );
    assert!(world.worst <= limit);
    used
}

#[test]
fn demand_that_moves_finds_the_units() {
    assert!(moving(600, ms(60_000), ms(30_000), 8) >= 0.97);
    assert!(moving(100, ms(10_000), ms(30_000), 4) >= 0.97);
    assert!(moving(100, ms(2_000), ms(30_000), 2) >= 0.95);
    assert!(moving(100, ms(1_000), ms(30_000), 2) >= 0.95);
    assert!(moving(100, ms(1_000), ms(5_000), 6) >= 0.9);
}

/// So many callers, each with one call of 50 ms at a time, have few in the queue, however many calls they make.
#[test]
fn callers_with_one_call_at_a_time_get_what_no_other_member_wants() {
    let minute = ms(60_000);
    for (limit, callers, least) in [(500, 4, 1_000), (5_000, 4, 9_000), (5_000, 1, 2_200)] {
        let mut world = fleet(limit, minute, 1, 0.0);
        let end = world.now + 2 * minute;
        while world.now < end {
            world.nodes[0].waiting = callers;
            world.tick(ms(50));
        }
        let (granted, requests) = (world.nodes[0].granted, world.requests);
        super::std::println!("{limit} a minute, {callers} callers: {granted} calls, {requests} requests");
        assert!(granted >= least && requests < 60 && world.worst <= limit);
    }
}

/// All is in use, evenly: the longest time until a process that begins has its first call, over some that begin at other times.
fn first_call_of_a_newcomer(limit: u64, window: Duration, members: usize) -> Duration {
    let mut world = fleet(limit, window, 0, 0.0);
    // Their calls are apart, so that units come free one after the other.
    let demand = 1.05 * limit as f64 / window.as_secs_f64() / members as f64;
    for _ in 0..members {
        world.join(demand, 1);
        world.tick(Duration::from_secs_f64(1.0 / demand / members as f64));
    }
    run(&mut world, (window / 240).min(ms(5)), 3 * window);
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        world.join(0.0, 1);
        let (begun, place) = (world.now, world.nodes.len() - 1);
        // It wants as much as each other has.
        world.nodes[place].waiting = limit / members as u64;
        while world.nodes[place].granted == 0 {
            world.tick(ms(5));
        }
        longest = longest.max(world.now - begun);
        world.leave(place);
        run(&mut world, (window / 240).min(ms(5)), window + window / 7);
    }
    assert!(world.worst <= limit);
    longest
}

#[test]
fn a_newcomer_has_its_first_call_within_half_a_second_where_all_is_in_use() {
    // At most 64 members are told at once that another one waits. Here eight units and more of theirs come free in a second.
    for (limit, window, members) in [(600, 60, 10), (500, 60, 16), (600, 60, 50), (6_000, 60, 100), (100, 1, 20)] {
        let longest = first_call_of_a_newcomer(limit, ms(1_000 * window), members);
        super::std::println!("{limit} in {window} s, {members} members: {longest:?}");
        assert!(longest <= ms(500), "{limit} in {window} s, {members} members: {longest:?}");
    }
}

/// One saves up for a large call, and leaves: what it had is in use again once the others are told.
#[test]
fn what_a_member_leaves_unused_is_with_the_others_within_a_second() {
    for (limit, window, call, large) in [(30_000, 60, 500, 20_000), (600, 60, 1, 200), (1_000, 2, 10, 600)] {
        let mut world = World::new(3, limit, ms(1_000 * window), LEASE, FAIR);
        (0..8).for_each(|_| world.join(2.0 * limit as f64 / (window * call) as f64 / 8.0, call));
        run(&mut world, ms(20), ms(3_000 * window));
        world.nodes[0].first = Some(large);
        run(&mut world, ms(20), ms(500 * window));
        world.nodes[0].first = None;
        let begun = world.now;
        world.leave(0);
        while world.ledger.pooled(0) < 2 * call {
            world.tick(ms(5));
        }
        let left = world.ledger.pooled(0);
        while world.ledger.pooled(0) >= 2 * call {
            world.tick(ms(5));
        }
        let took = world.now - begun;
        super::std::println!("{left} of {limit} in {window} s, left by one of 8: {took:?}");
        assert!(took <= ms(1_000), "{left} of {limit} in {window} s: {took:?}");
    }
}

/// Members with small calls, so many a second each, and after so many quarters of a window one of them has a call before those
/// that is larger than its part: how long the longest of these waits, in windows, and what was used.
fn with_large_calls(members: usize, demand: f64, large: u64, quarters: u32) -> (f64, Figures) {
    let (limit, window, step) = (30_000, ms(60_000), ms(250));
    let mut world = World::new(3, limit, window, LEASE, FAIR);
    (0..members).for_each(|_| world.join(demand, 500));
    run(&mut world, step, 3 * window);
    let (mut waits, mut longest) = (vec![Duration::ZERO; members], Duration::ZERO);
    let mut all = Vec::new();
    for turn in 0..120 / quarters {
        world.nodes[turn as usize % members].first.get_or_insert(large);
        for _ in 0..quarters * 60 {
            all.push(run(&mut world, step, step));
            for (node, wait) in world.nodes.iter().zip(&mut waits) {
                *wait = if node.first.is_some() { *wait + step } else { Duration::ZERO };
                longest = longest.max(*wait);
            }
        }
    }
    let used = all.iter().map(|figures| figures.used).sum::<f64>() / all.len() as f64;
    let granted: Vec<u64> = world.nodes.iter().map(|node| node.granted).collect();
    let figures = Figures { used, jain: jain(&granted), requests: 0.0 };
    assert!(world.worst <= limit, "{} in a window", world.worst);
    let longest = longest.as_secs_f64() / window.as_secs_f64();
    super::std::println!(
        "{large} of {limit}, {members} members, each {quarters} quarters: {longest:.2} windows, {figures:.3?}"
    );
    (longest, figures)
}

#[test]
fn a_call_larger_than_the_part_of_its_member_leaves_within_a_few_windows() {
    for (members, large, quarters, most) in
        [(8, 8_000, 40, 1.5), (8, 8_000, 8, 1.5), (8, 8_000, 2, 5.0), (8, 20_000, 8, 1.5), (20, 8_000, 8, 1.5)]
    {
        let (waits, figures) = with_large_calls(members, 4.0, large, quarters);
        assert!(waits <= most && figures.used >= 0.95 && figures.jain >= 0.98, "{waits} {figures:?}");
    }
    // The others want less than their parts, and leave less than the call costs.
    assert!(with_large_calls(8, 0.12, 8_000, 40).0 <= 1.5);
}
