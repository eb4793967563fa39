//! How a limiter joins a fleet.

use std::time::Duration;

use paceline_core::fleet::{LEASE, OnLoss};
use paceline_core::{AloneShare, ConfigError};

/// How a limiter joins a fleet.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "the address may have a password")]
#[non_exhaustive]
pub struct FleetConfig {
    /// Where the ledger is: `redis://`, `rediss://` or `postgres://` with a host; or `redis+sentinel://` with the hosts of the
    /// Sentinels and the name of the server there.
    pub url: String,
    /// Whose limits are divided: the same words in every process that uses the key. They name the keys of the store, so they must
    /// not hold a secret: 1 to 200 bytes, without `{`, `}` and control characters.
    pub account: String,
    /// The part of this process where all want more than there is: 1 to 16. Default 1.
    pub weight: u64,
    /// What it does once the store has been away for a lease. Default [`OnLoss::Strict`]: nothing leaves.
    pub on_loss: OnLoss,
    /// How long this process may go on without a word of the store, the same in all of them: 3 s to 5 minutes. Default 30 s. What
    /// a process held that was killed comes back after a lease and a window.
    pub lease: Duration,
    /// What this process may use while it has no lease, in place of nothing; empty, or one for each limit of the account. It is
    /// set aside beforehand: the limits of the limiter are what the fleet divides, and they and the alone shares of all processes
    /// together are at most what the account has. Default empty.
    pub alone_share: Vec<AloneShare>,
    /// A store that refuses, or that divides other limits, is asked again until it takes this process, as one is that is away:
    /// nothing leaves before ([`Fleet::problem`](crate::Fleet::problem) says why). Default false: it ends the join with an error.
    pub asks_again: bool,
}

impl FleetConfig {
    /// The fleet of that account on that store, with defaults.
    pub fn new(url: impl Into<String>, account: impl Into<String>) -> Self {
        let (weight, on_loss, lease) = (1, OnLoss::default(), LEASE);
        let (url, account, alone_share) = (url.into(), account.into(), Vec::new());
        Self { url, account, weight, on_loss, lease, alone_share, asks_again: false }
    }

    /// Whether all settings but the address are within their bounds.
    ///
    /// # Errors
    /// The first setting that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: String, expected| Err(ConfigError { key: key.into(), value, expected });
        if !(1..=16).contains(&self.weight) {
            return wrong("weight", self.weight.to_string(), "a whole number from 1 to 16");
        }
        if !(Duration::from_secs(3)..=Duration::from_mins(5)).contains(&self.lease) {
            return wrong("lease", format!("{:?}", self.lease), "a duration from 3 s to 5 minutes");
        }
        let is_bad = |byte: u8| byte.is_ascii_control() || byte == b'{' || byte == b'}';
        if self.account.is_empty() || self.account.len() > 200 || self.account.bytes().any(is_bad) {
            return wrong("account", self.account.clone(), "1 to 200 bytes without braces and control characters");
        }
        Ok(())
    }
}
