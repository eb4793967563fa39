//! Sixteen processes that are told nothing learn one rate, as one process would, and share it alike.

use std::error::Error;
use std::time::Duration;

use paceline_sim::{Figures, FleetSetup, FleetTrouble, Scenario, Setup, compare};

type Tested = Result<(), Box<dyn Error>>;

const SEEDS: u64 = 2;

fn one() -> Setup {
    Setup::new("auto")
}

fn sixteen(fleet: FleetSetup) -> Setup {
    Setup { clients: 16, fleet: Some(fleet), ..one() }
}

fn figures(scenario: &Scenario, setup: &Setup) -> Result<Figures, Box<dyn Error>> {
    let runs = compare(std::slice::from_ref(scenario), std::slice::from_ref(setup), SEEDS, 1, |_| {})?;
    Ok(Figures::mean(&runs).ok_or("no run")?)
}

/// Buckets as nginx has them, of 20 and of 50 a second, and a window of a second, of which one process uses 0.935.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn they_use_a_limit_as_one_process_does_with_no_more_refusals_and_alike() -> Tested {
    for (name, goodput) in [("n20-50", 0.92), ("tb-1s", 0.92), ("fw-short", 0.91)] {
        let scenario = Scenario::named(name)?;
        let (fleet, alone) = (figures(&scenario, &sixteen(FleetSetup::default()))?, figures(&scenario, &one())?);
        assert!(fleet.undone == 0.0 && fleet.goodput >= goodput && fleet.jain >= 0.97, "{name}: {fleet:?}");
        assert!(fleet.waste <= 0.02 && fleet.waste <= 1.2 * alone.waste, "{name}: {fleet:?} and {alone:?}");
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn they_overload_a_server_hardly_more_often_than_one_process_does() -> Tested {
    let overload = Scenario::named("overload")?;
    let (fleet, alone) = (figures(&overload, &sixteen(FleetSetup::default()))?, figures(&overload, &one())?);
    assert!(fleet.waste <= 1.5 * alone.waste && fleet.jain >= 0.97, "{fleet:?} and {alone:?}");
    Ok(())
}

/// Five minutes of more work than can be done, at 50 calls a second.
fn busy() -> Result<Scenario, Box<dyn Error>> {
    Ok(Scenario { items: 30_000, until: Some(Duration::from_secs(300)), ..Scenario::named("tb-1s")? })
}

fn after(troubles: &[(u64, FleetTrouble)]) -> FleetSetup {
    let troubles = troubles.iter().map(|(at, trouble)| (Duration::from_secs(*at), *trouble)).collect();
    FleetSetup { troubles, ..FleetSetup::default() }
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn the_rate_stands_when_the_process_is_killed_that_decides() -> Tested {
    let killed: Vec<_> = [40, 90, 140, 190].map(|at| (at, FleetTrouble::KillReader)).into();
    let fleet = figures(&busy()?, &sixteen(after(&killed)))?;
    assert!(fleet.goodput >= 0.92 && fleet.waste <= 0.02, "{fleet:?}");
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn who_comes_late_or_was_cut_off_has_its_share_soon() -> Tested {
    use FleetTrouble::{Cut, Kill, Late};
    let cut = Duration::from_secs(40);
    let troubles =
        [(20, Late(3)), (45, Late(4)), (100, Cut(5, cut)), (120, Cut(6, cut)), (200, Kill(7)), (220, Cut(8, cut))];
    let fleet = figures(&busy()?, &sixteen(after(&troubles)))?;
    assert!(fleet.goodput >= 0.92 && fleet.waste <= 0.02, "{fleet:?}");
    Ok(())
}

/// For half of a minute each slows down by itself, and for half of one, without a lease, each learns by itself.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn without_a_ledger_each_goes_on_with_its_share() -> Tested {
    use FleetTrouble::{CutAll, Lost};
    let troubles = [(60, CutAll(Duration::from_secs(60))), (160, Lost), (230, CutAll(Duration::from_secs(5)))];
    let fleet = figures(&busy()?, &sixteen(after(&troubles)))?;
    assert!(fleet.goodput >= 0.92 && fleet.waste <= 0.02, "{fleet:?}");
    Ok(())
}

#[test]
fn words_that_are_lost_or_late_do_little_harm() -> Tested {
    let fleet =
        figures(&busy()?, &sixteen(FleetSetup { delay: Duration::from_millis(60), loss: 0.05, troubles: Vec::new() }))?;
    assert!(fleet.goodput >= 0.92 && fleet.waste <= 0.02 && fleet.jain >= 0.97, "{fleet:?}");
    Ok(())
}

/// One process has 0.0004 refused. Without the ledger's pots each believed to have all that was left: 0.0072 and 0.0177.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn what_a_server_announces_to_one_process_all_share() -> Tested {
    for (name, goodput) in [("tb-1s", 0.98), ("fw-60s", 0.98)] {
        let told = Setup { hints: "hdr".to_owned(), ..sixteen(FleetSetup::default()) };
        let fleet = figures(&Scenario::named(name)?, &told)?;
        assert!(fleet.undone == 0.0 && fleet.goodput >= goodput && fleet.jain >= 0.97, "{name}: {fleet:?}");
        assert!(fleet.waste <= 0.002, "{name}: {fleet:?}");
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn what_is_announced_is_shared_over_kills_cuts_and_a_lost_ledger() -> Tested {
    use FleetTrouble::{Cut, Kill, Lost};
    let cut = Duration::from_secs(40);
    let troubles = [(40, Kill(7)), (80, Cut(5, cut)), (130, Lost), (200, Kill(2))];
    let told = Setup { hints: "hdr".to_owned(), ..sixteen(after(&troubles)) };
    let fleet = figures(&busy()?, &told)?;
    assert!(fleet.goodput >= 0.92 && fleet.waste <= 0.01, "{fleet:?}");
    Ok(())
}

/// A process whose ledger does not answer goes on as fast as it drew before. By their own headers alone, each for itself, sixteen
/// have 0.61 and 0.048.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn what_is_announced_holds_nothing_up_while_the_ledger_is_away() -> Tested {
    let away = FleetTrouble::CutAll(Duration::from_secs(25));
    let told = Setup { hints: "hdr".to_owned(), ..sixteen(after(&[(60, away), (150, away)])) };
    let fleet = figures(&busy()?, &told)?;
    assert!(fleet.goodput >= 0.84 && fleet.waste <= 0.01, "{fleet:?}");
    Ok(())
}
