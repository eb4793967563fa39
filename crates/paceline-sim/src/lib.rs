//! Providers in virtual time: what a rate-limited API does with the calls that reach it.
//!
//! The model reads no clock and starts no thread: the present is an argument and randomness comes from a seed. The
//! simulator drives it with virtual time, `paceline mock` puts it behind HTTP, so a provider's limiter exists once.

mod hints;
mod latency;
mod limiter;
mod oracle;
mod provider;
mod schedule;
mod sharing;
mod tenants;

pub use hints::{Hints, ToldWait};
pub use latency::Latency;
pub use limiter::{Limit, LimitState};
pub use oracle::Job;
pub use provider::{Cause, Decision, Provider, ProviderConfig, ProviderError, Refusal};
pub use schedule::{Schedule, Step};
pub use sharing::{Overload, Service};
pub use tenants::Tenants;
