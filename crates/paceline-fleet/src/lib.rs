#![doc = include_str!("../README.md")]

mod answer;
mod config;
mod constants;
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
