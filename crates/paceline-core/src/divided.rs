//! A configured limit that several pacers have together.

use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::admit::WaitCause;
use crate::config::Quota;
use crate::cost::Dimension;
use crate::error::ConfigError;

/// A configured limit that is divided among pacers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DividedLimit {
    /// The tier whose limit it is; none for one of the account.
    pub tier: Option<Arc<str>>,
    /// The limit of all pacers together.
    pub quota: Quota,
    /// Whether it bounds the calls in flight: then the window is how long a call may be.
    pub in_flight: bool,
    /// Its place among those of its level.
    pub(crate) place: usize,
}

impl DividedLimit {
    /// The one for want of which nothing leaves without a lease, where each may be used so far: a limit of the account. One of a
    /// tier holds the calls of that tier alone, unless nothing may be used of any.
    pub(crate) fn lacking<'a>(parts: impl Iterator<Item = (&'a Self, u64)> + Clone) -> Option<&'a Self> {
        let has_any = parts.clone().any(|(_, units)| units > 0);
        parts.filter(|(limit, units)| *units == 0 && !(has_any && limit.tier.is_some())).map(|(limit, _)| limit).next()
    }

    /// What it counts, as a word for files and JSON: `concurrency` are calls in flight.
    pub fn dimension(&self) -> &str {
        if self.in_flight { "concurrency" } else { self.quota.dimension.as_str() }
    }

    /// What a call waits for that has no room in the share of its pacer.
    pub(crate) fn cause(&self) -> WaitCause {
        let Quota { dimension, limit, window, .. } = self.quota.clone();
        WaitCause::Share { dimension, limit, window, in_flight: self.in_flight }
    }
}

impl fmt::Display for DividedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quota { dimension, limit, window, .. } = &self.quota;
        match self.in_flight {
            true => write!(f, "{limit} concurrent"),
            false => write!(f, "{limit} {dimension} per {window:?}"),
        }
    }
}

/// What a process may use of a limit of the account while it has no lease of its fleet. It is set aside: what the fleet divides
/// of that limit, and what all processes may use so, are together at most what the account has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AloneShare {
    /// How much, at least 1.
    pub units: u64,
    /// What is counted; requests, where it is calls in flight.
    pub dimension: Dimension,
    /// The window of the limit; none for the calls in flight.
    pub window: Option<Duration>,
}

impl fmt::Display for AloneShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { units, dimension, window } = self;
        match window {
            Some(window) => write!(f, "{units} {dimension} per {window:?}"),
            None => write!(f, "{units} concurrent"),
        }
    }
}

impl AloneShare {
    fn is_of(&self, limit: &DividedLimit) -> bool {
        let is_same = match self.window {
            Some(window) => limit.quota.window == window && limit.quota.dimension == self.dimension,
            None => limit.in_flight,
        };
        is_same && limit.in_flight == self.window.is_none() && limit.tier.is_none()
    }

    /// The units of each divided limit, in order, for [`MemberConfig::alone_share`](crate::fleet::MemberConfig::alone_share);
    /// none of a tier's.
    ///
    /// # Errors
    /// One that names no divided limit, or more than that has; and a limit of the account that none names, for a call takes of
    /// all of them.
    pub fn of_each(limits: &[DividedLimit], shares: &[Self]) -> Result<Vec<u64>, ConfigError> {
        let refuse = |value, expected| Err(ConfigError { key: "alone_share".into(), value, expected });
        let mut units = vec![0; limits.len()];
        for share in shares {
            let Some(place) = limits.iter().position(|limit| share.is_of(limit)) else {
                return refuse(share.to_string(), "a limit of the account, by what it counts and its window");
            };
            if units[place] > 0 || share.units == 0 || share.units > limits[place].quota.limit {
                return refuse(share.to_string(), "each limit once, with 1 to what the fleet divides of it");
            }
            units[place] = share.units;
        }
        let left_out = limits.iter().zip(&units).find(|(limit, units)| limit.tier.is_none() && **units == 0);
        match left_out.filter(|_| !shares.is_empty()) {
            Some((limit, _)) => refuse(
                shares.iter().map(Self::to_string).collect::<Vec<_>>().join(", ")
                    + ", and nothing of "
                    + &limit.to_string(),
                "one for each limit of the account: a call takes of all of them",
            ),
            None => Ok(units),
        }
    }
}
