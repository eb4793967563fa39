//! Failures that have nothing to do with the rate do not starve the pace `auto`; those that do still slow it down.

use std::error::Error;

use paceline_sim::{Measures, Scenario, Setup, compare};

type Tested = Result<(), Box<dyn Error>>;

/// Two seeds of each scenario; one where nothing limits: 200,000 calls and more.
fn runs(names: &[&str], clients: u32) -> Result<Vec<Measures>, Box<dyn Error>> {
    let seeds = if names.iter().any(|name| name.contains("n50")) { 1 } else { 2 };
    let scenarios: Vec<_> = names.iter().map(|name| Scenario::named(name)).collect::<Result<_, _>>()?;
    let setup = Setup { clients, share: false, ..Setup::new("auto") };
    Ok(compare(&scenarios, &[setup], seeds, 2, |_| {})?)
}

fn mean(runs: &[Measures], name: &str, of: fn(&Measures) -> f64) -> f64 {
    let of_it: Vec<f64> = runs.iter().filter(|run| run.scenario == name).map(of).collect();
    of_it.iter().sum::<f64>() / of_it.len() as f64
}

/// Each scenario reaches that part of the oracle, and loses nothing.
fn reaches(bars: &[(&str, f64)]) -> Tested {
    let names: Vec<_> = bars.iter().map(|(name, _)| *name).collect();
    let runs = runs(&names, 1)?;
    for (name, bar) in bars {
        let goodput = mean(&runs, name, |run| run.goodput);
        assert!(goodput >= *bar, "{name}: {goodput:.3}, not {bar}");
    }
    assert!(runs.iter().all(|run| run.undone == 0.0), "every item is done");
    Ok(())
}

/// Each job takes at most so many times as long as the first.
fn takes(bars: &[(&str, f64)]) -> Tested {
    let names: Vec<_> = bars.iter().map(|(name, _)| *name).collect();
    let runs = runs(&names, 1)?;
    let clean = mean(&runs, names[0], |run| run.makespan);
    for (name, bar) in bars {
        let times = mean(&runs, name, |run| run.makespan) / clean;
        assert!(times <= *bar, "{name}: {times:.2} times the clean time, not {bar}");
    }
    Ok(())
}

#[test]
fn a_job_takes_hardly_longer_where_some_calls_fail_by_chance() -> Tested {
    takes(&[
        ("job-503-0", 1.0),
        ("job-503-0.005", 1.5),
        ("job-503-0.02", 1.5),
        ("job-503-0.05", 1.5),
        ("job-503-0.20", 3.5),
        ("job-429-0.01", 3.0),
    ])
}

#[test]
fn a_refused_first_call_does_not_end_the_start() -> Tested {
    takes(&[
        ("first-503-0", 1.0),
        ("first-503-1", 1.5),
        ("first-429-1", 1.5),
        ("first-503-5", 2.0),
        ("first-429-5", 3.0),
    ])
}

#[test]
fn overloads_by_chance_do_not_starve_a_rate_without_a_limit() -> Tested {
    reaches(&[("noise-503-0.05-n50", 0.92), ("noise-503-0.20-n500", 0.82)])
}

#[test]
fn throttles_by_chance_do_not_starve_a_rate_without_a_limit() -> Tested {
    reaches(&[("noise-429-0.01-n500", 0.8)])
}

#[test]
fn overloads_by_chance_over_a_limit_leave_the_limit_used() -> Tested {
    reaches(&[
        ("noise-503-0.02-b20", 0.95),
        ("noise-503-0.20-b20", 0.85),
        ("noise-503-0.02-w60", 0.85),
        ("noise-503-0.20-w60", 0.85),
        ("noise-503-0.02-c8", 0.85),
        ("noise-503-0.02-tpm", 0.85),
        ("noise-503-0.20-tpm", 0.85),
    ])
}

#[test]
fn a_wait_told_by_chance_holds_its_item_alone() -> Tested {
    reaches(&[
        ("noise-503-0.02-n500-told", 0.95),
        ("noise-429-0.003-n50-told", 0.6),
        ("noise-429-0.01-n500-told", 0.7),
        ("noise-429-0.02-n500-told", 0.6),
    ])
}

#[test]
fn five_seconds_of_failures_are_over_when_they_are_over() -> Tested {
    reaches(&[("burst-503-b20", 0.9), ("burst-503-c8", 0.9), ("burst-429-b20", 0.9)])
}

#[test]
fn many_processes_with_a_small_limit_do_not_take_each_other_for_chance() -> Tested {
    let sixteen = runs(&["tb-slow"], 16)?;
    assert!(mean(&sixteen, "tb-slow", |run| run.waste) <= 0.2, "{sixteen:?}");
    Ok(())
}

#[test]
fn an_overload_of_our_own_still_slows_down() -> Tested {
    let alone = runs(&["overload", "brownout"], 1)?;
    assert!(mean(&alone, "overload", |run| run.waste) <= 0.02, "{alone:?}");
    assert!(mean(&alone, "brownout", |run| run.waste) <= 0.02, "{alone:?}");
    let four = runs(&["overload"], 4)?;
    assert!(mean(&four, "overload", |run| run.waste) <= 0.06, "{four:?}");
    Ok(())
}
