//! Converts settings to the pacer's configuration: pace, start, retry, breaker.

use std::time::Duration;

use paceline_core::{Background, Backoff, BreakerConfig, Dimension, Growth, Jitter, Limits, Pace, Retry};

use super::effective::Ledger;
use super::error::{SettingError, Source};
use super::names::{PACES, PaceChoice};
use super::schema::{BreakerSection, RetrySection, UpstreamSection};
use super::setting::Setting;
use super::units::show_duration;

/// How the backoff grows.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Constant,
    Linear,
    Exponential,
}

/// More sends of one item than this are a mistake.
const MOST_SENDS: u32 = 1_000_000;

/// The usual time that an item may take.
const DEADLINE: Duration = Duration::from_secs(86_400);

/// A call a microsecond, in calls a second.
const FASTEST_START: f64 = 1_000_000.0;

/// Larger multipliers are a constant delay at the cap.
const LARGEST_MULTIPLIER: f64 = 1_000.0;

pub(crate) fn pace(section: &UpstreamSection, ledger: &mut Ledger) -> Result<PaceChoice, SettingError> {
    let read = |setting: &Setting, key: &str| {
        PACES.into_iter().find(|pace| pace.name == setting.text).ok_or_else(|| {
            let names = PACES.map(|pace| pace.name).join(", ");
            setting.refuse(key, format!("one of {names}"))
        })
    };
    ledger.settle("pace", section.pace.as_ref(), PACES[0], read, |pace| pace.name.to_owned())
}

/// The first learnt rate. Under a pace that learns none it is passed over in a lower layer than the pace; beside it or above
/// it, it is a mistake.
pub(crate) fn start(
    section: &UpstreamSection,
    pace: PaceChoice,
    limits: &Limits,
    ledger: &mut Ledger,
) -> Result<Option<f64>, SettingError> {
    let given = section.start.as_ref();
    if pace.pace != Pace::Auto {
        let rank = section.pace.as_ref().map_or(0, |pace| pace.source().rank());
        return match given.filter(|start| start.source().rank() >= rank) {
            Some(start) => {
                let expected = "nothing here: only the pace auto learns a rate (pace = \"auto\")";
                Err(start.refuse(&ledger.name("start"), expected))
            }
            None => Ok(None),
        };
    }
    let expected = format!("calls a second, a number above 0 and at most {FASTEST_START}");
    let read = |setting: &Setting, key: &str| {
        setting.number(key, |rate| rate > 0.0 && rate <= FASTEST_START, &expected).map(Some)
    };
    let is_limited = limits.quotas.iter().any(|quota| quota.dimension == Dimension::Requests);
    let usual = if is_limited { "twice the limit" } else { "2" };
    ledger.settle("start", given, None, read, |start| start.map_or_else(|| usual.to_owned(), |rate| rate.to_string()))
}

/// How a gateway's batches share the account with what is interactive.
pub(crate) fn background(section: &UpstreamSection, ledger: &mut Ledger) -> Result<Background, SettingError> {
    const USUAL: f64 = 0.05;
    let share = |most: std::ops::RangeInclusive<f64>, expected: &'static str| {
        move |setting: &Setting, key: &str| setting.number(key, |share| most.contains(&share), expected)
    };
    let below_one = share(0.0..=1.0_f64.next_down(), "a share of at least 0 and less than 1");
    let up_to_half = share(0.0..=0.5, "a share from 0 to 0.5");
    let reserve = section.interactive_reserve.as_ref();
    Ok(Background {
        reserve: ledger.settle("interactive_reserve", reserve, USUAL, below_one, f64::to_string)?,
        share: ledger.settle("batch_share", section.batch_share.as_ref(), USUAL, up_to_half, f64::to_string)?,
    })
}

pub(crate) fn retry(section: &UpstreamSection, pace: PaceChoice, ledger: &mut Ledger) -> Result<Retry, SettingError> {
    let nothing = RetrySection::default();
    let given = section.retry.as_ref().unwrap_or(&nothing);
    let default = Retry::default();
    let bound = |setting: &Setting, key: &str| setting.count(key, 0, MOST_SENDS);
    let max_retries =
        ledger.settle("retry.max_retries", given.max_retries.as_ref(), default.max_retries, bound, u32::to_string)?;
    let max_deferrals = ledger.settle(
        "max_deferrals",
        section.max_deferrals.as_ref(),
        None,
        |setting, key| bound(setting, key).map(Some),
        |bound| bound.map_or_else(|| "none".to_owned(), |n| n.to_string()),
    )?;
    let growth = growth(given, pace, ledger)?;
    let jitter =
        ledger.settle("retry.jitter", given.jitter.as_ref(), default.backoff.jitter, read_jitter, show_jitter)?;
    Ok(Retry { max_retries, max_deferrals, backoff: Backoff { growth, jitter }, deadline: None })
}

fn growth(given: &RetrySection, pace: PaceChoice, ledger: &mut Ledger) -> Result<Growth, SettingError> {
    let Growth::Exponential { base, multiplier, cap } = Backoff::default().growth else {
        unreachable!("the default grows exponentially");
    };
    let read = |setting: &Setting, key: &str| match setting.text.as_str() {
        "constant" => Ok(Kind::Constant),
        "linear" => Ok(Kind::Linear),
        "exponential" => Ok(Kind::Exponential),
        _ => Err(setting.refuse(key, "constant, linear or exponential")),
    };
    let show = |kind: &Kind| match kind {
        Kind::Constant => "constant".to_owned(),
        Kind::Linear => "linear".to_owned(),
        Kind::Exponential => "exponential".to_owned(),
    };
    let usual = if pace.pace == Pace::Linear { Kind::Linear } else { Kind::Exponential };
    let kind = ledger.settle("retry.kind", given.kind.as_ref(), usual, read, show)?;
    if kind != Kind::Exponential {
        only_for(&given.multiplier, "retry.multiplier", "exponential growth", ledger)?;
    }
    if kind == Kind::Constant {
        only_for(&given.cap, "retry.cap", "growing delays", ledger)?;
    }
    let base = ledger.settle("retry.base", given.base.as_ref(), base, Setting::period, |d| show_duration(*d))?;
    if kind == Kind::Constant {
        return Ok(Growth::Constant { delay: base });
    }
    let cap = ledger.settle("retry.cap", given.cap.as_ref(), cap, Setting::period, |d| show_duration(*d))?;
    if base > cap {
        return Err(base_above_cap(given, &show_duration(base), &show_duration(cap), ledger));
    }
    if kind == Kind::Linear {
        return Ok(Growth::Linear { step: base, cap });
    }
    let read = |setting: &Setting, key: &str| {
        let accept = |n| (1.0..=LARGEST_MULTIPLIER).contains(&n);
        setting.number(key, accept, "a number from 1 to 1000")
    };
    let multiplier = ledger.settle("retry.multiplier", given.multiplier.as_ref(), multiplier, read, f64::to_string)?;
    Ok(Growth::Exponential { base, multiplier, cap })
}

/// A setting without effect is refused, unless it comes from a preset.
fn only_for(setting: &Option<Setting>, key: &str, what: &str, ledger: &Ledger) -> Result<(), SettingError> {
    match setting {
        Some(setting) if setting.source().rank() > Source::Preset("").rank() => {
            Err(setting.refuse(&ledger.name(key), format!("nothing here: only {what} has it (retry.kind)")))
        }
        _ => Ok(()),
    }
}

/// The error names the value that the user set, not the default it conflicts with.
fn base_above_cap(given: &RetrySection, base: &str, cap: &str, ledger: &Ledger) -> SettingError {
    let rank = |setting: &Option<Setting>| setting.as_ref().map_or(0, |setting| setting.source().rank());
    let (setting, key, expected) = if rank(&given.base) >= rank(&given.cap) {
        (&given.base, "retry.base", format!("at most the cap, {cap}"))
    } else {
        (&given.cap, "retry.cap", format!("at least the base, {base}"))
    };
    setting.as_ref().expect("the defaults fit together").refuse(&ledger.name(key), expected)
}

fn read_jitter(setting: &Setting, key: &str) -> Result<Jitter, SettingError> {
    let between = |text: &str| {
        let (low, high) = text.trim_matches(['[', ']']).split_once(',')?;
        let (low, high) = (super::units::number(low)?, super::units::number(high)?);
        (low <= high && high <= 1.0).then_some(Jitter::Between(low, high))
    };
    match setting.text.as_str() {
        "full" => Ok(Jitter::Full),
        "equal" => Ok(Jitter::Equal),
        "none" => Ok(Jitter::None),
        text => between(text).ok_or_else(|| {
            setting.refuse(key, "full, equal, none or [low, high] with 0 <= low <= high <= 1, such as [0.1, 1.0]")
        }),
    }
}

fn show_jitter(jitter: &Jitter) -> String {
    match jitter {
        Jitter::None => "none".to_owned(),
        Jitter::Full => "full".to_owned(),
        Jitter::Equal => "equal".to_owned(),
        Jitter::Between(low, high) => format!("[{low:?}, {high:?}]"),
    }
}

/// How long an item may take from its first send.
pub(crate) fn deadline(section: &UpstreamSection, ledger: &mut Ledger) -> Result<Duration, SettingError> {
    let read = |setting: &Setting, key: &str| setting.period(key);
    ledger.settle("deadline", section.deadline.as_ref(), DEADLINE, read, |d| show_duration(*d))
}

pub(crate) fn breaker(section: &UpstreamSection, ledger: &mut Ledger) -> Result<BreakerConfig, SettingError> {
    let nothing = BreakerSection::default();
    let given = section.breaker.as_ref().unwrap_or(&nothing);
    let default = BreakerConfig::default();
    let read =
        |setting: &Setting, key: &str| setting.number(key, |n| n > 0.0 && n <= 1.0, "a number above 0 and at most 1");
    let failure_ratio =
        ledger.settle("breaker.share", given.share.as_ref(), default.failure_ratio, read, f64::to_string)?;
    let read = |setting: &Setting, key: &str| setting.count(key, 1, 10_000);
    let window_size = ledger.settle("breaker.last", given.last.as_ref(), default.window_size, read, u32::to_string)?;
    // More of the window than it has are never met.
    let of_window = |ledger: &mut Ledger, key, given: Option<&Setting>, default: u32| {
        let read = |setting: &Setting, key: &str| setting.count(key, 1, window_size);
        ledger.settle(key, given, default.min(window_size), read, u32::to_string)
    };
    let min_samples = of_window(ledger, "breaker.least", given.least.as_ref(), default.min_samples)?;
    let max_age = ledger
        .settle("breaker.within", given.within.as_ref(), default.max_age, Setting::period, |d| show_duration(*d))?;
    let min_distinct_items = of_window(ledger, "breaker.items", given.items.as_ref(), default.min_distinct_items)?;
    let open =
        ledger.settle("breaker.open", given.open.as_ref(), default.open, Setting::period, |d| show_duration(*d))?;
    let read = |setting: &Setting, key: &str| {
        let longest = setting.period(key)?;
        let expected = || format!("at least breaker.open, which is {}", show_duration(open));
        if longest < open { Err(setting.refuse(key, expected())) } else { Ok(longest) }
    };
    let longest = default.open_max.max(open);
    let open_max = ledger.settle("breaker.open_max", given.open_max.as_ref(), longest, read, |d| show_duration(*d))?;
    Ok(BreakerConfig { failure_ratio, window_size, min_samples, max_age, min_distinct_items, open, open_max })
}
