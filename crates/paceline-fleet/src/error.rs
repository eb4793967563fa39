//! Why a limiter cannot join a fleet.

use paceline_core::ConfigError;

/// Why a limiter cannot join a fleet. A store that is only away is none of these: it is waited for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The address is none of a store.
    #[error("{0}; expected redis://, rediss:// or postgres:// with a host")]
    Address(String),
    /// A setting cannot be: the limits cannot be divided, or the weight is out of bounds.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store refuses what a ledger needs, and goes on to do so.
    #[error("the store of the fleet on {server} refuses: {why}")]
    Refused {
        /// The store, without a password.
        server: String,
        /// Its words, or ours.
        why: String,
    },
    /// The members that are there have other limits.
    #[error(
        "the fleet on {server} divides other limits: {theirs}, and here {ours}; give all its processes the same: it takes these once \
         none with the others lives, where the limit with the longest window there stays, and else a lease and that window later"
    )]
    OtherLimits {
        /// The store, without a password.
        server: String,
        /// What is divided there.
        theirs: String,
        /// What was to be divided here.
        ours: String,
    },
    /// The store is away or does not answer. A limiter that has joined goes on under its lease, and asks again.
    #[error("the store of the fleet on {server} does not answer: {why}")]
    Away {
        /// The store, without a password.
        server: String,
        /// What happened to the connection.
        why: String,
    },
}

impl FleetError {
    /// Whether to ask again later may help.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Away { .. })
    }
}
