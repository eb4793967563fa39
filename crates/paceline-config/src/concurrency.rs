//! The calls in flight: how many, and whether that number adapts.

use paceline_core::{Concurrency, Pace};

use super::effective::Ledger;
use super::error::{SettingError, Source};
use super::names::PaceChoice;
use super::schema::{ConcurrencySection, UpstreamSection};
use super::setting::Setting;

/// More calls in flight than this are a mistake: a host has 65,535 ports.
const MOST_IN_FLIGHT: u32 = 100_000;

/// `concurrent` is the number of a limit such as `50 concurrent`; it stands for `max`.
///
/// Under the pace `auto` nothing but the maximum acts. The rest has to make sense all the same, so that a file may change
/// its pace, and is listed apart from the values in force.
pub(crate) fn concurrency(
    section: &UpstreamSection,
    concurrent: Option<&Setting>,
    pace: &mut PaceChoice,
    ledger: &mut Ledger,
) -> Result<Concurrency, SettingError> {
    if pace.pace != Pace::Auto {
        return settled(section, concurrent, pace, ledger);
    }
    let mut own = ledger.beside();
    let max = settled(section, concurrent, pace, &mut own)?.max();
    ledger.take_over(own, |row| row.key == "concurrency.max");
    Ok(Concurrency::Fixed { max })
}

fn settled(
    section: &UpstreamSection,
    concurrent: Option<&Setting>,
    pace: &mut PaceChoice,
    ledger: &mut Ledger,
) -> Result<Concurrency, SettingError> {
    let given = &effective(section, *pace);
    let max_setting = maximum(given, concurrent, ledger)?;
    let adapts = adapts(given, *pace, ledger)?;
    ledger.note(
        "concurrency.kind",
        if adapts { "aimd" } else { "fixed" },
        given.kind.as_ref().map_or(Source::Default, |kind| kind.source().clone()),
    );

    let Concurrency::Aimd { floor, start, max } = Concurrency::AIMD else {
        unreachable!("the default adapts");
    };
    let max = if pace.pace == Pace::Auto { Concurrency::default().max() } else { max };
    let count = |setting: &Setting, key: &str| match &setting.text {
        text if text.ends_with("concurrent") => match text.parse() {
            Ok(super::Limit::Concurrent(n)) if n <= MOST_IN_FLIGHT => Ok(n),
            _ => Err(setting.refuse(key, format!("at most {MOST_IN_FLIGHT} concurrent"))),
        },
        _ => setting.count(key, 1, MOST_IN_FLIGHT),
    };
    let max = ledger.settle("concurrency.max", max_setting, max, count, u32::to_string)?;
    if !adapts {
        if let Some((key, extra)) =
            [("floor", &given.floor), ("start", &given.start)].into_iter().find_map(|(k, s)| Some((k, s.as_ref()?)))
        {
            return Err(extra
                .refuse(&ledger.name(&format!("concurrency.{key}")), "nothing here: only a kind that adapts has one"));
        }
        return Ok(Concurrency::Fixed { max });
    }
    if pace.pace == Pace::Fixed {
        pace.pace = Pace::Aimd;
    }
    let bounded = |setting: &Setting, key: &str| {
        let n = count(setting, key)?;
        let overruled = max_setting.is_some_and(|max| max.source().rank() > setting.source().rank());
        match n <= max {
            true => Ok(n),
            false if overruled => Ok(max),
            false => Err(setting.refuse(key, format!("at most concurrency.max, which is {max}"))),
        }
    };
    let floor = ledger.settle("concurrency.floor", given.floor.as_ref(), floor.min(max), bounded, u32::to_string)?;
    let start = ledger.settle(
        "concurrency.start",
        given.start.as_ref(),
        start.clamp(floor, max.max(floor)),
        bounded,
        u32::to_string,
    )?;
    if start < floor {
        let setting = given.start.as_ref().expect("the default is no less than the floor");
        return Err(
            setting.refuse(&ledger.name("concurrency.start"), format!("at least concurrency.floor, which is {floor}"))
        );
    }
    Ok(Concurrency::Aimd { floor, start, max })
}

/// Only these paces may adapt the calls in flight.
const fn may_adapt(pace: PaceChoice) -> bool {
    matches!(pace.pace, Pace::Auto | Pace::Fixed | Pace::Aimd)
}

/// The section as it concerns the pace: adaptation that a lower layer than the pace asks for is passed over where the pace
/// has none.
fn effective(section: &UpstreamSection, pace: PaceChoice) -> ConcurrencySection {
    let given = section.concurrency.clone().unwrap_or_default();
    if may_adapt(pace) {
        return given;
    }
    let rank = section.pace.as_ref().map_or(0, |pace| pace.source().rank());
    let holds = |setting: &Setting| setting.source().rank() >= rank;
    ConcurrencySection {
        kind: given.kind.filter(holds),
        floor: given.floor.filter(holds),
        start: given.start.filter(holds),
        max: given.max,
    }
}

/// `concurrency.max` and `N concurrent` are the same knob.
fn maximum<'a>(
    given: &'a ConcurrencySection,
    concurrent: Option<&'a Setting>,
    ledger: &Ledger,
) -> Result<Option<&'a Setting>, SettingError> {
    match (given.max.as_ref(), concurrent) {
        (Some(max), Some(limit)) if max.source().rank() == limit.source().rank() => {
            let expected = format!("one number of calls in flight, and {} says {:?}", limit.source(), limit.text);
            Err(max.refuse(&ledger.name("concurrency.max"), expected))
        }
        (Some(max), Some(limit)) if max.source().rank() < limit.source().rank() => Ok(Some(limit)),
        (max, limit) => Ok(max.or(limit)),
    }
}

/// Whether the number of calls in flight adapts: as configured, else as a floor or a start implies, else as the pace does.
fn adapts(given: &ConcurrencySection, pace: PaceChoice, ledger: &Ledger) -> Result<bool, SettingError> {
    let may = may_adapt(pace);
    let Some(kind) = &given.kind else {
        let implied = may && (given.floor.is_some() || given.start.is_some());
        return Ok(implied || matches!(pace.pace, Pace::Auto | Pace::Aimd));
    };
    let key = ledger.name("concurrency.kind");
    match kind.text.as_str() {
        "fixed" => Ok(false),
        "aimd" if may => Ok(true),
        "aimd" => Err(kind.refuse(&key, format!("fixed: the pace {} does not adapt the calls in flight", pace.name))),
        _ => Err(kind.refuse(&key, "aimd or fixed")),
    }
}
