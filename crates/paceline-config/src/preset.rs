//! Presets: a name for several settings, below the file and above the defaults.
//!
//! `openai-app` is more than that: six variables of the environment belong to it.

use super::environment::Environment;
use super::error::{SettingError, Source};
use super::names::OPENAI_APP;
use super::schema::{ConcurrencySection, ResponsiveSection, RetrySection, UpstreamSection};
use super::setting::Setting;
use super::units;

/// Several settings under one name, which is also the name of a pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// For scraping a small host: a token bucket of 0.5 requests per second, one call in flight.
    Conservative,
    /// For scraping: 2 requests per second, a burst of 4, 4 calls in flight.
    Moderate,
    /// For scraping a large host: 10 requests per second, a burst of 20, 16 calls in flight.
    Aggressive,
    /// For scraping: one request per second at first, faster as the answers permit, at most 20 per second.
    Adaptive,
    /// No wait at all but those that the server asks for.
    None,
    /// An application's usual limits: 50 requests per minute, 1,000 per hour, a burst of 10.
    OpenAiApp,
    /// As `aimd`, from the most calls in flight down, as such limits used to begin.
    AimdClassic,
    /// The responsive delay by its classic rule.
    ResponsiveClassic,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Conservative,
        Self::Moderate,
        Self::Aggressive,
        Self::Adaptive,
        Self::None,
        Self::OpenAiApp,
        Self::AimdClassic,
        Self::ResponsiveClassic,
    ];

    /// The name, as `pace` takes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conservative => "conservative",
            Self::Moderate => "moderate",
            Self::Aggressive => "aggressive",
            Self::Adaptive => "adaptive",
            Self::None => "none",
            Self::OpenAiApp => OPENAI_APP,
            Self::AimdClassic => "aimd-classic",
            Self::ResponsiveClassic => "responsive-classic",
        }
    }

    /// The preset of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == name)
    }

    /// The preset as a layer. Of `openai-app` only what is its own: the variables are another layer.
    pub(crate) fn section(self) -> UpstreamSection {
        match self {
            Self::Conservative => self.scraping("0.5", "1", "1"),
            Self::Moderate => self.scraping("2", "4", "4"),
            Self::Aggressive => self.scraping("10", "20", "16"),
            Self::Adaptive => self.paced(
                "auto",
                UpstreamSection {
                    start: Some(self.setting("1")),
                    rps: Some(self.setting("20")),
                    shape: Some(self.setting("bucket")),
                    ..UpstreamSection::default()
                },
            ),
            Self::None => self.paced("none", UpstreamSection::default()),
            Self::OpenAiApp => openai_app_section(),
            Self::AimdClassic => {
                let start = Some(self.setting("50"));
                let concurrency = Some(ConcurrencySection { start, ..ConcurrencySection::default() });
                self.paced("aimd", UpstreamSection { concurrency, ..UpstreamSection::default() })
            }
            Self::ResponsiveClassic => {
                let compat = Some(self.setting("true"));
                let responsive = Some(ResponsiveSection { compat, ..ResponsiveSection::default() });
                self.paced("responsive", UpstreamSection { responsive, ..UpstreamSection::default() })
            }
        }
    }

    fn scraping(self, rps: &str, burst: &str, in_flight: &str) -> UpstreamSection {
        let max = Some(self.setting(in_flight));
        self.paced(
            "fixed",
            UpstreamSection {
                rps: Some(self.setting(rps)),
                burst: Some(self.setting(burst)),
                shape: Some(self.setting("bucket")),
                concurrency: Some(ConcurrencySection { max, ..ConcurrencySection::default() }),
                ..UpstreamSection::default()
            },
        )
    }

    fn paced(self, pace: &str, section: UpstreamSection) -> UpstreamSection {
        UpstreamSection { pace: Some(self.setting(pace)), ..section }
    }

    fn setting(self, text: &str) -> Setting {
        Setting::new(text, Source::Preset(self.as_str()))
    }
}

/// The upstream that the variables are about.
pub(crate) const OPENAI: &str = "openai";

/// The six variables and their defaults: per minute, per hour, burst, and the backoff's first delay, cap and growth.
pub(crate) const VARIABLES: [(&str, &str); 6] = [
    ("OPENAI_REQUESTS_PER_MINUTE", "50"),
    ("OPENAI_REQUESTS_PER_HOUR", "1000"),
    ("OPENAI_BURST_LIMIT", "10"),
    ("OPENAI_BACKOFF_MIN", "1.0"),
    ("OPENAI_BACKOFF_MAX", "60.0"),
    ("OPENAI_BACKOFF_MULTIPLIER", "2.0"),
];

/// Names that begin so can only mean one of the six; any other is a slip that would go unnoticed.
const FAMILIES: [&str; 3] = ["OPENAI_REQUESTS_PER_", "OPENAI_BURST_", "OPENAI_BACKOFF_"];

/// The longest backoff that this preset accepts, in seconds.
const LONGEST_BACKOFF: f64 = 300.0;

/// The preset as two layers: the variables, and the preset's own values below the file. Without a variable
/// it is empty, unless the pace names it.
pub(crate) fn openai_app(
    env: &Environment,
    wanted: bool,
) -> Result<Option<(UpstreamSection, UpstreamSection)>, SettingError> {
    if let Some(variable) =
        env.names().find(|name| FAMILIES.iter().any(|family| name.starts_with(family)) && !is_known(name))
    {
        let names = VARIABLES.map(|(name, _)| name).join(", ");
        return Err(SettingError::UnknownVariable {
            variable: variable.to_owned(),
            expected: format!("expected one of {names}"),
        });
    }
    let set = VARIABLES.map(|(variable, _)| env.get(variable).map(|text| from_variable(variable, text)));
    if !wanted && set.iter().all(Option::is_none) {
        return Ok(None);
    }
    check(&set)?;
    Ok(Some((section(set), openai_app_section())))
}

/// The preset's own values.
fn openai_app_section() -> UpstreamSection {
    let own = VARIABLES.map(|(_, default)| Some(preset(default)));
    let lower = UpstreamSection { pace: Some(preset("fixed")), ..section(own) };
    let jitter = Some(preset("[0.1, 1.0]"));
    let retry = lower.retry.map(|retry| RetrySection { jitter, ..retry });
    UpstreamSection { retry, ..lower }
}

fn is_known(name: &str) -> bool {
    VARIABLES.iter().any(|(known, _)| *known == name)
}

fn from_variable(variable: &str, text: &str) -> Setting {
    Setting::new(text, Source::Environment(variable.to_owned()))
}

fn preset(text: &str) -> Setting {
    Setting::new(text, Source::Preset(OPENAI_APP))
}

fn section([rpm, rph, burst, base, cap, multiplier]: [Option<Setting>; 6]) -> UpstreamSection {
    let retry = Some(RetrySection { base, cap, multiplier, ..RetrySection::default() });
    UpstreamSection { rpm, rph, burst, retry, ..UpstreamSection::default() }
}

/// The bounds that are the variables' own; whether the values fit together is checked with everything else.
fn check(set: &[Option<Setting>; 6]) -> Result<(), SettingError> {
    for ((variable, _), setting) in VARIABLES.iter().zip(set) {
        let Some(setting) = setting else { continue };
        match *variable {
            "OPENAI_BURST_LIMIT" => setting.whole(variable, 1, u64::MAX).map(drop)?,
            "OPENAI_BACKOFF_MULTIPLIER" => {
                setting.number(variable, |n| (1.0..=1_000.0).contains(&n), "a number from 1 to 1000").map(drop)?;
            }
            "OPENAI_BACKOFF_MIN" | "OPENAI_BACKOFF_MAX" => {
                let seconds = units::duration(&setting.text).map(|length| length.as_secs_f64());
                if !seconds.is_some_and(|seconds| seconds > 0.0 && seconds <= LONGEST_BACKOFF) {
                    return Err(setting.refuse(variable, "a number of seconds above 0 and at most 300"));
                }
            }
            _ => setting.number(variable, |n| n > 0.0, "a number above 0").map(drop)?,
        }
    }
    Ok(())
}
