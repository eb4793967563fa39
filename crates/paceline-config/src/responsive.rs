//! The settings of the responsive delay.

use paceline_core::{ConfigError, Pace, Responsive, ResponsiveConfig};

use super::effective::Ledger;
use super::error::SettingError;
use super::names::PaceChoice;
use super::schema::{ResponsiveSection, UpstreamSection};
use super::setting::Setting;
use super::units::show_duration;

/// Reads the table `responsive`. Under another pace it is no part of what is in force: in a lower layer than the pace it
/// is passed over, beside it or above it is a mistake.
pub(crate) fn responsive(
    section: &UpstreamSection,
    pace: PaceChoice,
    ledger: &mut Ledger,
) -> Result<ResponsiveConfig, SettingError> {
    let nothing = ResponsiveSection::default();
    let given = section.responsive.as_ref().unwrap_or(&nothing);
    if pace.pace != Pace::Responsive {
        refuse_idle(given, section.pace.as_ref(), ledger)?;
        return Ok(ResponsiveConfig::default());
    }
    let usual = ResponsiveConfig::default();
    let show = |length: &std::time::Duration| show_duration(*length);
    let initial = ledger.settle("responsive.initial", given.initial.as_ref(), usual.initial, Setting::period, show)?;
    let max = ledger.settle("responsive.max", given.max.as_ref(), usual.max, Setting::period, show)?;
    let most = given.max_randomization.as_ref();
    let max_randomization =
        ledger.settle("responsive.max_randomization", most, usual.max_randomization, Setting::duration, show)?;
    let share = |setting: &Setting, key: &str| setting.number(key, |n| n < 1.0, "a number of at least 0 and below 1");
    let up = |setting: &Setting, key: &str| {
        setting.number(key, |n| n > 1.0 && n <= 1_000.0, "a number above 1 and at most 1000")
    };
    let down =
        |setting: &Setting, key: &str| setting.number(key, |n| n > 0.0 && n < 1.0, "a number above 0 and below 1");
    let up = ledger.settle("responsive.up", given.up.as_ref(), usual.up, up, f64::to_string)?;
    let down = ledger.settle("responsive.down", given.down.as_ref(), usual.down, down, f64::to_string)?;
    let randomization = given.randomization.as_ref();
    let randomization =
        ledger.settle("responsive.randomization", randomization, usual.randomization, share, f64::to_string)?;
    let count = |setting: &Setting, key: &str| setting.count(key, 1, u32::MAX);
    let threshold =
        ledger.settle("responsive.threshold", given.threshold.as_ref(), usual.threshold, count, u32::to_string)?;
    let min_delay =
        ledger.settle("responsive.min_delay", given.min_delay.as_ref(), usual.min_delay, Setting::duration, show)?;
    let half_life = ledger.settle(
        "responsive.idle_half_life",
        given.idle_half_life.as_ref(),
        None,
        |setting, key| setting.period(key).map(Some),
        |half_life| half_life.map_or_else(|| "none".to_owned(), show_duration),
    )?;
    let compat = |setting: &Setting, key: &str| match setting.text.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(setting.refuse(key, "true or false")),
    };
    let compat = ledger.settle("responsive.compat", given.compat.as_ref(), usual.compat, compat, bool::to_string)?;
    let config = ResponsiveConfig {
        initial,
        max,
        max_randomization,
        up,
        down,
        randomization,
        threshold,
        min_delay,
        idle_half_life: half_life,
        compat,
    };
    Responsive::new(config).map_err(|error| collision(given, &error, ledger))?;
    Ok(config)
}

/// What does not fit together; each value by itself was checked before. Names the value that the user set.
fn collision(given: &ResponsiveSection, error: &ConfigError, ledger: &Ledger) -> SettingError {
    let (initial, max) = (given.initial.as_ref(), given.max.as_ref());
    let rank = |setting: Option<&Setting>| setting.map_or(0, |setting| setting.source().rank());
    let (setting, key, expected) = match error.key.as_str() {
        "responsive.initial" if rank(initial) >= rank(max) => (initial, "initial", error.expected),
        "responsive.initial" => (max, "max", "at least responsive.initial"),
        _ => (given.idle_half_life.as_ref(), "idle_half_life", error.expected),
    };
    setting.expect("the defaults fit together").refuse(&ledger.name(&format!("responsive.{key}")), expected)
}

fn refuse_idle(given: &ResponsiveSection, pace: Option<&Setting>, ledger: &Ledger) -> Result<(), SettingError> {
    let rank = pace.map_or(0, |pace| pace.source().rank());
    let idle = given.settings().find(|(_, setting)| setting.source().rank() >= rank);
    match idle {
        Some((key, setting)) => {
            let expected = "nothing here: only the pace responsive has it (pace = \"responsive\")";
            Err(setting.refuse(&ledger.name(&format!("responsive.{key}")), expected))
        }
        None => Ok(()),
    }
}

impl ResponsiveSection {
    /// The settings that were given.
    fn settings(&self) -> impl Iterator<Item = (&'static str, &Setting)> {
        let knobs = [
            ("initial", &self.initial),
            ("max", &self.max),
            ("max_randomization", &self.max_randomization),
            ("up", &self.up),
            ("down", &self.down),
            ("randomization", &self.randomization),
            ("threshold", &self.threshold),
            ("min_delay", &self.min_delay),
            ("idle_half_life", &self.idle_half_life),
            ("compat", &self.compat),
        ];
        knobs.into_iter().filter_map(|(key, setting)| Some((key, setting.as_ref()?)))
    }
}
