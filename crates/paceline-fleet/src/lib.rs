//! One key's limits over many processes: the allowance of a [`Limiter`] comes from a ledger on Redis, Valkey or Postgres.
//!
//! No call waits for the store: a task in the background asks for what the waiting calls need, and gives back what they do not.
//! `paceline_core::fleet` has the rules and why they are exact; this crate carries the messages.
//!
//! ```no_run
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use paceline::{Limiter, Quota};
//! use paceline_fleet::{Fleet, FleetConfig};
//!
//! let limiter = Limiter::new(Quota::per_minute(600))?;
//! let config = FleetConfig::new("redis://127.0.0.1:6379", "api.example.org, the key of the crawlers");
//! let fleet = Fleet::join(&limiter, config).await?;
//! limiter.run(|| async { Ok::<_, std::io::Error>(()) }).await?;
//! fleet.leave().await;
//! # Ok(()) }
//! ```
//!
//! [`Limiter`]: paceline::Limiter

mod answer;
mod config;
mod error;
mod ledger_name;
#[cfg(feature = "client")]
mod place;
#[cfg(feature = "client")]
mod postgres;
mod reconnect;
#[cfg(feature = "client")]
mod redis;
mod script;
#[cfg(feature = "client")]
mod sentinel;
#[cfg(feature = "client")]
mod store;
#[cfg(feature = "client")]
mod task;

pub use config::FleetConfig;
pub use error::FleetError;
pub use paceline_core::fleet::{MemberState, OnLoss};
#[cfg(feature = "client")]
pub use place::Fleet;

pub mod wire {
    //! What a [`Member`](paceline_core::fleet::Member) and a ledger on Redis say to each other, for a client of one's own. It
    //! carries what is here, and neither reads nor makes any of it.

    pub use crate::answer::{LedgerAnswer, Notice};
    pub use crate::ledger_name::LedgerName;
    pub use crate::reconnect::Reconnect;
    pub use crate::script::{RedisAnswer, RedisCommand, RedisScript};
}

#[cfg(feature = "client")]
#[doc(hidden)]
pub mod conformance {
    //! The ledgers of the stores, one request at a time, for the tests that compare them.

    pub use crate::postgres::PostgresLedger;
    pub use crate::redis::RedisLedger;
    pub use crate::store::Link;
    pub use crate::wire::{LedgerAnswer, LedgerName};
}
