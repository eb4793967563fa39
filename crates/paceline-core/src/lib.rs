//! The engine of Paceline: every policy, and the `Pacer` that composes them.
//!
//! Nothing here reads a clock, does IO or draws from a global source of randomness: the present, the outcomes and the
//! seed are arguments. The same inputs give the same outputs, bit for bit.
#![no_std]

extern crate alloc;

mod backoff;
mod config;
mod cost;
mod outcome;
mod rng;
mod time;

pub use backoff::{Backoff, Growth, Jitter};
pub use config::{BreakerConfig, Concurrency, ConfigError, Limits, Pace, PacerConfig, Quota, Retry, Shape};
pub use cost::{Cost, Dimension};
pub use outcome::{Class, Hint, LimitReport, Outcome, Reach, Restores};
pub use rng::Rng;
pub use time::{Instant, Timestamp};
