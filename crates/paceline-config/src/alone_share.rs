//! What is set aside of an upstream's limits for processes that cannot reach the store of their fleet.

use paceline_core::{AloneShare, ConfigError, Dimension, DividedLimit, Limits, PacerConfig};

use super::effective::Ledger;
use super::error::SettingError;
use super::setting::Setting;
use super::units::{self, Limit, LimitError};

pub(crate) const KEY: &str = "alone_share";

const EXPECTED: &str = "what this process may use of what is set aside for all of them, such as 6 of 60rpm, 0 of 60rpm or \
                        2 of 10 concurrent";

/// What a process may use without the store of its fleet, as people write it: `6rpm, 2k tpm, 1 concurrent`.
///
/// # Errors
/// Anything else.
pub fn alone_shares(text: &str) -> Result<Vec<AloneShare>, LimitError> {
    let pieces = text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
    pieces.map(|piece| share(piece.parse()?).ok_or_else(|| LimitError::of(piece))).collect()
}

fn share(limit: Limit) -> Option<AloneShare> {
    match limit {
        Limit::Rate { dimension, units, window } if units >= 1.0 => {
            Some(AloneShare { units: units as u64, dimension, window: Some(window) })
        }
        Limit::Rate { .. } => None,
        Limit::Concurrent(most) => {
            Some(AloneShare { units: u64::from(most), dimension: Dimension::Requests, window: None })
        }
    }
}

/// `6 of 60rpm`: what this process may use of what is set aside for all, and which limit it is set aside of.
fn parse(text: &str) -> Option<(AloneShare, u64)> {
    let (own, all) = text.split_once(" of ")?;
    let own = units::number(own).filter(|own| own.fract() == 0.0)? as u64;
    let all = share(all.parse().ok()?)?;
    (own <= all.units).then(|| (AloneShare { units: own, ..all.clone() }, all.units))
}

fn read(setting: &Setting, key: &str) -> Result<(AloneShare, u64), SettingError> {
    parse(&setting.text).ok_or_else(|| setting.refuse(key, EXPECTED))
}

/// Checks what does not act.
pub(crate) fn check(given: &[Setting], ledger: &Ledger) -> Result<(), SettingError> {
    given.iter().try_for_each(|setting| read(setting, &ledger.name(KEY)).map(drop))
}

/// Takes what is set aside out of the limits, so that the fleet divides the rest. Returns what this process may use of it.
pub(crate) fn set_aside(
    given: &[Setting],
    pacer: &mut PacerConfig,
    ledger: &mut Ledger,
) -> Result<Vec<AloneShare>, SettingError> {
    let key = ledger.name(KEY);
    let mut known: Vec<AloneShare> = Vec::new();
    for setting in given {
        let (share, all) = read(setting, &key)?;
        if known.iter().any(|other| (&other.dimension, other.window) == (&share.dimension, share.window)) {
            return Err(setting.refuse(&key, "each limit once"));
        }
        let Limits { quotas, burst } = &mut pacer.limits;
        let window =
            quotas.iter_mut().find(|quota| quota.dimension == share.dimension && Some(quota.window) == share.window);
        let limit = match (&window, share.window, pacer.places) {
            (Some(quota), ..) => quota.limit,
            (None, None, Some(places)) => u64::from(places),
            _ => return Err(setting.refuse(&key, "a limit of the upstream, by what it counts and its window")),
        };
        let Some(rest) = limit.checked_sub(all).filter(|rest| *rest >= share.units.max(1)) else {
            let expected =
                format!("less than the limit, {limit}, and no share above what is left for the fleet to divide");
            return Err(setting.refuse(&key, expected));
        };
        match window {
            Some(quota) => quota.limit = rest,
            None => pacer.places = u32::try_from(rest).ok(),
        }
        if share.dimension == Dimension::Requests && share.window.is_some() {
            *burst = burst.map(|burst| burst.min(rest));
        }
        ledger.note(KEY, format!("{} (the fleet divides {rest})", setting.text), setting.source().clone());
        known.push(share);
    }
    known.retain(|share| share.units > 0);
    Ok(known)
}

/// Whether each limit of the account has a share, where any has: a call takes of all of them.
pub(crate) fn covers(
    shares: &[AloneShare],
    given: &[Setting],
    limits: &[DividedLimit],
    ledger: &Ledger,
) -> Result<(), SettingError> {
    let Some(last) = given.last() else { return Ok(()) };
    let refuse = |error: ConfigError| last.refuse(&ledger.name(KEY), format!("{}: {}", error.expected, error.value));
    AloneShare::of_each(limits, shares).map(drop).map_err(refuse)
}
