//! A fleet never exceeds a limit, uses it, and shares it alike. The long form is `crates/paceline-sim/examples/fleet.rs`,
//! which `scripts/soak` runs.

use std::time::Duration;

use paceline_sim::{
    Demand, Fencing, FleetJob, GateFigures, fleet_gates, fleet_story, fleet_story_of_places, fleet_use,
};

#[test]
fn no_window_of_a_fleet_holds_more_than_its_limit_whatever_happens() {
    let broken: Vec<u64> = (0..40).filter(|seed| fleet_story(*seed, Fencing::ByLease) > 0).collect();
    assert!(broken.is_empty(), "seeds {broken:?}");
}

/// What a silent member holds, freed once all that it had reported has left the window: it went on meanwhile.
#[test]
fn a_share_that_is_freed_by_the_last_report_breaks_the_limit() {
    assert!((0..40).any(|seed| fleet_story(seed, Fencing::ByLastReport) > 0));
}

#[test]
fn demand_that_moves_finds_the_units() {
    let job = FleetJob {
        units: 100,
        window: Duration::from_secs(10),
        members: 20,
        weights: &[1],
        demand: Demand::Moves { every: Duration::from_secs(30) },
        time: Duration::from_secs(60),
    };
    let figures = fleet_use(&job, 1);
    assert!(figures.used >= 0.97 && figures.over == 0, "{figures:?}");
    let short = FleetJob { window: Duration::from_secs(1), ..job };
    let figures = fleet_use(&short, 1);
    assert!(figures.used >= 0.9 && figures.over == 0, "{figures:?}");
}

/// No minute holds more than the limit, those by the clock included: the server may count either.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn demand_that_moves_finds_the_units_of_a_minute() {
    let (window, time) = (Duration::from_mins(1), Duration::from_mins(4));
    for (units, members, every) in [(600, 20, 30), (3_000, 16, 30), (3_000, 16, 90)] {
        let demand = Demand::Moves { every: Duration::from_secs(every) };
        let job = FleetJob { units, window, members, weights: &[1], demand, time };
        let figures = fleet_use(&job, 1);
        assert!(figures.used >= 0.97 && figures.over == 0, "{job:?}: {figures:?}");
    }
}

/// Also where the units of a part are no whole number.
#[test]
fn members_are_served_by_their_weights() {
    let (demand, window) = (Demand::Equal, Duration::from_secs(10));
    let job = FleetJob { units: 210, window, members: 6, weights: &[1, 2, 4], demand, time: 3 * window };
    for (units, weights) in [(210, &[1, 2, 4][..]), (100, &[1, 16])] {
        let figures = fleet_use(&FleetJob { units, weights, time: 2 * job.time, ..job }, 1);
        assert!(figures.jain >= 0.99 && figures.used >= 0.97 && figures.over == 0, "{units}: {figures:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn members_are_served_by_their_weights_also_by_less_than_a_unit_each() {
    let (demand, window) = (Demand::Equal, Duration::from_secs(10));
    for (units, members, weights) in [(10, 6, &[1, 3, 5][..]), (5, 6, &[1, 3, 5]), (20, 12, &[1, 3, 5])] {
        let figures = fleet_use(&FleetJob { units, window, members, weights, demand, time: 40 * window }, 1);
        assert!(figures.jain >= 0.97 && figures.over == 0, "{units} among {weights:?}: {figures:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn equal_demand_is_served_alike_also_by_less_than_a_unit_each() {
    let (demand, window) = (Demand::Equal, Duration::from_secs(10));
    let equal = FleetJob { units: 100, window, members: 20, weights: &[1], demand, time: 3 * window };
    let figures = fleet_use(&equal, 1);
    assert!(figures.jain >= 0.99 && figures.over == 0, "{figures:?}");
    let few = FleetJob { units: 20, members: 30, time: 20 * window, ..equal };
    let figures = fleet_use(&few, 1);
    assert!(figures.jain >= 0.97 && figures.over == 0, "{figures:?}");
}

/// While its members join, one of them had a part that went round slowly.
#[test]
fn no_member_waits_longer_for_its_turn_for_one_that_it_had_among_fewer_members() {
    let (demand, window) = (Demand::Equal, Duration::from_secs(1));
    let job = FleetJob { units: 20, window, members: 30, weights: &[1], demand, time: 20 * window };
    for seed in [1, 2, 7, 15] {
        let figures = fleet_use(&job, seed);
        assert!(figures.jain >= 0.99 && figures.over == 0, "seed {seed}: {figures:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn what_one_of_a_hundred_processes_is_told_all_obey_and_one_call_tests_the_end() {
    for seed in 1..6 {
        let GateFigures { late, canaries, after } = fleet_gates(100, seed);
        assert_eq!((late, canaries), (0, 1), "seed {seed}");
        assert!(after >= 100, "all go on: {after}");
    }
}

#[test]
fn no_more_calls_of_a_fleet_are_in_flight_than_its_limit_whatever_happens() {
    // In 8386 a host was suspended beyond its lease, and its ledger is lost before it wakes up.
    let seeds = (0..60).chain([8_386]);
    let broken: Vec<u64> = seeds.filter(|seed| fleet_story_of_places(*seed, Fencing::ByLease) > 0).collect();
    assert!(broken.is_empty(), "seeds {broken:?}");
}

/// A member that falls silent may have begun a call since its last report.
#[test]
fn places_that_are_freed_by_the_last_report_break_the_limit() {
    assert!((0..60).any(|seed| fleet_story_of_places(seed, Fencing::ByLastReport) > 0));
}
