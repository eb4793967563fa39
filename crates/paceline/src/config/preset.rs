//! The preset `openai-app`: the limits of an application that is configured by six variables.

use super::environment::Environment;
use super::error::{Error, Source};
use super::schema::{RetrySection, UpstreamSection};
use super::setting::Setting;
use super::units;

/// The preset's name, which is also a pace.
pub(crate) const OPENAI_APP: &str = "openai-app";

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

/// The preset as two layers: what the variables say, and the preset's own values below the file. Without a variable
/// it says nothing, unless the pace asks for it by name.
pub(crate) fn openai_app(env: &Environment, wanted: bool) -> Result<Option<(UpstreamSection, UpstreamSection)>, Error> {
    if let Some(variable) =
        env.names().find(|name| FAMILIES.iter().any(|family| name.starts_with(family)) && !is_known(name))
    {
        let names = VARIABLES.map(|(name, _)| name).join(", ");
        return Err(Error::UnknownVariable {
            variable: variable.to_owned(),
            expected: format!("expected one of {names}"),
        });
    }
    let set = VARIABLES.map(|(variable, _)| env.get(variable).map(|text| from_variable(variable, text)));
    if !wanted && set.iter().all(Option::is_none) {
        return Ok(None);
    }
    check(&set)?;
    let own = VARIABLES.map(|(_, default)| Some(preset(default)));
    let lower = UpstreamSection { pace: Some(preset("fixed")), ..section(own) };
    let jitter = Some(preset("[0.1, 1.0]"));
    let retry = lower.retry.map(|retry| RetrySection { jitter, ..retry });
    Ok(Some((section(set), UpstreamSection { retry, ..lower })))
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

/// The bounds that are the variables' own; whether the values fit together is looked at with everything else.
fn check(set: &[Option<Setting>; 6]) -> Result<(), Error> {
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
