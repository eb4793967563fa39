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

mod config;
mod error;
mod ledger_name;
mod postgres;
mod redis;
mod store;
mod task;

pub use config::{Fleet, FleetConfig};
pub use error::FleetError;
pub use paceline_core::fleet::{MemberState, OnLoss};

#[doc(hidden)]
pub mod conformance {
    //! The ledgers of the stores, one request at a time, for the tests that compare them.

    pub use crate::ledger_name::LedgerName;
    pub use crate::postgres::PostgresLedger;
    pub use crate::redis::RedisLedger;
    pub use crate::store::{LedgerAnswer, Link};
}
