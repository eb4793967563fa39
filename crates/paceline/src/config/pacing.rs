//! From settings to the pacer's knobs: pace, concurrency, retry, breaker.

use paceline_core::{Backoff, BreakerConfig, Concurrency, Growth, Jitter, Pace, Retry};

use super::effective::Ledger;
use super::error::{Error, Source};
use super::preset;
use super::schema::{BreakerSection, ConcurrencySection, RetrySection, UpstreamSection};
use super::setting::Setting;
use super::units::show_duration;

/// A pace by name, and the growth of the backoff that it implies.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PaceChoice {
    pub(crate) name: &'static str,
    pub(crate) pace: Pace,
    growth: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Constant,
    Linear,
    Exponential,
}

pub(crate) const PACES: [PaceChoice; 14] = [
    PaceChoice { name: "auto", pace: Pace::Auto, growth: Kind::Exponential },
    PaceChoice { name: "fixed", pace: Pace::Fixed, growth: Kind::Exponential },
    PaceChoice { name: "aimd", pace: Pace::Aimd, growth: Kind::Exponential },
    PaceChoice { name: "responsive", pace: Pace::Responsive, growth: Kind::Exponential },
    PaceChoice { name: "linear", pace: Pace::Linear, growth: Kind::Linear },
    PaceChoice { name: "exponential", pace: Pace::Exponential, growth: Kind::Exponential },
    PaceChoice { name: "none", pace: Pace::None, growth: Kind::Exponential },
    PaceChoice { name: "conservative", pace: Pace::Fixed, growth: Kind::Exponential },
    PaceChoice { name: "moderate", pace: Pace::Fixed, growth: Kind::Exponential },
    PaceChoice { name: "aggressive", pace: Pace::Fixed, growth: Kind::Exponential },
    PaceChoice { name: "adaptive", pace: Pace::Auto, growth: Kind::Exponential },
    PaceChoice { name: "aimd-classic", pace: Pace::Aimd, growth: Kind::Exponential },
    PaceChoice { name: "responsive-classic", pace: Pace::Responsive, growth: Kind::Exponential },
    PaceChoice { name: preset::OPENAI_APP, pace: Pace::Fixed, growth: Kind::Exponential },
];

/// More calls in flight than this are a mistake: a host has 65,535 ports.
const MOST_IN_FLIGHT: u32 = 100_000;

/// More sends of one item than this are a mistake.
const MOST_SENDS: u32 = 1_000_000;

/// Larger multipliers are a constant delay at the cap.
const LARGEST_MULTIPLIER: f64 = 1_000.0;

pub(crate) fn pace(section: &UpstreamSection, ledger: &mut Ledger) -> Result<PaceChoice, Error> {
    let read = |setting: &Setting, key: &str| {
        PACES.into_iter().find(|pace| pace.name == setting.text).ok_or_else(|| {
            let names = PACES.map(|pace| pace.name).join(", ");
            setting.refuse(key, format!("one of {names}"))
        })
    };
    ledger.settle("pace", section.pace.as_ref(), PACES[0], read, |pace| pace.name.to_owned())
}

/// `concurrent` is the number of a limit such as `50 concurrent`; it stands for `max`.
pub(crate) fn concurrency(
    section: &UpstreamSection,
    concurrent: Option<&Setting>,
    pace: &mut PaceChoice,
    ledger: &mut Ledger,
) -> Result<Concurrency, Error> {
    let nothing = ConcurrencySection::default();
    let given = section.concurrency.as_ref().unwrap_or(&nothing);
    let max_setting = maximum(given, concurrent, ledger)?;
    let kind = kind(given, *pace, ledger)?;
    ledger.note(
        "concurrency.kind",
        kind.as_str(),
        given.kind.as_ref().map_or(Source::Default, |kind| kind.source().clone()),
    );

    let Concurrency::Aimd { floor, start, max } = Concurrency::default() else {
        unreachable!("the default adapts");
    };
    let count = |setting: &Setting, key: &str| match &setting.text {
        text if text.ends_with("concurrent") => match text.parse() {
            Ok(super::Limit::Concurrent(n)) if n <= MOST_IN_FLIGHT => Ok(n),
            _ => Err(setting.refuse(key, format!("at most {MOST_IN_FLIGHT} concurrent"))),
        },
        _ => setting.count(key, 1, MOST_IN_FLIGHT),
    };
    let max = ledger.settle("concurrency.max", max_setting, max, count, u32::to_string)?;
    if kind == Adapts::No {
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
    if kind == Adapts::Classic {
        if let Some(start) = &given.start {
            return Err(start.refuse(&ledger.name("concurrency.start"), "nothing here: the classic kind starts at max"));
        }
        return Ok(Concurrency::Classic { floor, max });
    }
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

/// `concurrency.max` and `N concurrent` are the same knob.
fn maximum<'a>(
    given: &'a ConcurrencySection,
    concurrent: Option<&'a Setting>,
    ledger: &Ledger,
) -> Result<Option<&'a Setting>, Error> {
    match (given.max.as_ref(), concurrent) {
        (Some(max), Some(limit)) if max.source().rank() == limit.source().rank() => {
            let expected = format!("one number of calls in flight, and {} says {:?}", limit.source(), limit.text);
            Err(max.refuse(&ledger.name("concurrency.max"), expected))
        }
        (Some(max), Some(limit)) if max.source().rank() < limit.source().rank() => Ok(Some(limit)),
        (max, limit) => Ok(max.or(limit)),
    }
}

/// Whether and how the number of calls in flight adapts.
#[derive(Clone, Copy, PartialEq)]
enum Adapts {
    No,
    Aimd,
    Classic,
}

impl Adapts {
    const fn as_str(self) -> &'static str {
        match self {
            Self::No => "fixed",
            Self::Aimd => "aimd",
            Self::Classic => "classic",
        }
    }
}

/// How the number of calls in flight adapts: as told, else as a floor or a start implies, else as the pace does.
fn kind(given: &ConcurrencySection, pace: PaceChoice, ledger: &Ledger) -> Result<Adapts, Error> {
    let may = matches!(pace.pace, Pace::Auto | Pace::Fixed | Pace::Aimd);
    let Some(kind) = &given.kind else {
        let implied = may && (given.floor.is_some() || given.start.is_some());
        let adapts = implied || matches!(pace.pace, Pace::Auto | Pace::Aimd);
        return Ok(if adapts { Adapts::Aimd } else { Adapts::No });
    };
    let key = ledger.name("concurrency.kind");
    match kind.text.as_str() {
        "fixed" => Ok(Adapts::No),
        "aimd" if may => Ok(Adapts::Aimd),
        "classic" if may => Ok(Adapts::Classic),
        "aimd" | "classic" => {
            Err(kind.refuse(&key, format!("fixed: the pace {} does not adapt the calls in flight", pace.name)))
        }
        _ => Err(kind.refuse(&key, "aimd, classic or fixed")),
    }
}

pub(crate) fn retry(section: &UpstreamSection, pace: PaceChoice, ledger: &mut Ledger) -> Result<Retry, Error> {
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
    Ok(Retry { max_retries, max_deferrals, backoff: Backoff { growth, jitter } })
}

fn growth(given: &RetrySection, pace: PaceChoice, ledger: &mut Ledger) -> Result<Growth, Error> {
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
    let kind = ledger.settle("retry.kind", given.kind.as_ref(), pace.growth, read, show)?;
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

/// A knob that would do nothing is refused, unless it comes from a preset.
fn only_for(setting: &Option<Setting>, key: &str, what: &str, ledger: &Ledger) -> Result<(), Error> {
    match setting {
        Some(setting) if setting.source().rank() > Source::Preset("").rank() => {
            Err(setting.refuse(&ledger.name(key), format!("nothing here: only {what} has it (retry.kind)")))
        }
        _ => Ok(()),
    }
}

/// Blames the value that somebody set, not the default it collides with.
fn base_above_cap(given: &RetrySection, base: &str, cap: &str, ledger: &Ledger) -> Error {
    let rank = |setting: &Option<Setting>| setting.as_ref().map_or(0, |setting| setting.source().rank());
    let (setting, key, expected) = if rank(&given.base) >= rank(&given.cap) {
        (&given.base, "retry.base", format!("at most the cap, {cap}"))
    } else {
        (&given.cap, "retry.cap", format!("at least the base, {base}"))
    };
    setting.as_ref().expect("the defaults fit together").refuse(&ledger.name(key), expected)
}

fn read_jitter(setting: &Setting, key: &str) -> Result<Jitter, Error> {
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

pub(crate) fn breaker(section: &UpstreamSection, ledger: &mut Ledger) -> Result<BreakerConfig, Error> {
    let nothing = BreakerSection::default();
    let given = section.breaker.as_ref().unwrap_or(&nothing);
    let default = BreakerConfig::default();
    let read =
        |setting: &Setting, key: &str| setting.number(key, |n| n > 0.0 && n <= 1.0, "a number above 0 and at most 1");
    let share = ledger.settle("breaker.share", given.share.as_ref(), default.share, read, f64::to_string)?;
    let read = |setting: &Setting, key: &str| setting.count(key, 1, 10_000);
    let last = ledger.settle("breaker.last", given.last.as_ref(), default.last, read, u32::to_string)?;
    let read = |setting: &Setting, key: &str| setting.count(key, 1, last);
    let least = ledger.settle("breaker.least", given.least.as_ref(), default.least.min(last), read, u32::to_string)?;
    let within = ledger
        .settle("breaker.within", given.within.as_ref(), default.within, Setting::period, |d| show_duration(*d))?;
    let read = |setting: &Setting, key: &str| setting.count(key, 1, last);
    let items = ledger.settle("breaker.items", given.items.as_ref(), default.items.min(last), read, u32::to_string)?;
    let open =
        ledger.settle("breaker.open", given.open.as_ref(), default.open, Setting::period, |d| show_duration(*d))?;
    let read = |setting: &Setting, key: &str| {
        let longest = setting.period(key)?;
        let expected = || format!("at least breaker.open, which is {}", show_duration(open));
        if longest < open { Err(setting.refuse(key, expected())) } else { Ok(longest) }
    };
    let longest = default.open_max.max(open);
    let open_max = ledger.settle("breaker.open_max", given.open_max.as_ref(), longest, read, |d| show_duration(*d))?;
    Ok(BreakerConfig { share, last, least, within, items, open, open_max })
}
