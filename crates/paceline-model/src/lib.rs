#![doc = include_str!("../README.md")]

mod chance;
mod hints;
mod latency;
mod limiter;
pub mod lognormal;
mod oracle;
mod provider;
mod scaling;
mod schedule;
mod sharing;
mod tenants;
mod weighed;

pub use chance::Chance;
pub use hints::{Hints, ToldWait};
pub use latency::Latency;
pub use limiter::{LimitState, ModelLimit};
pub use oracle::Job;
pub use provider::{Admission, Cause, ProviderConfig, ProviderError, ProviderModel, Refusal};
pub use schedule::{Scaling, Schedule, Step};
pub use sharing::{Overload, Service};
pub use tenants::Tenants;
