//! Rate-limited APIs in virtual time: what a provider does with the calls that reach it.
//!
//! The model reads no clock and starts no thread: the present is an argument and randomness comes from a seed. The
//! simulator drives it with virtual time, `paceline mock` puts it behind HTTP, so a provider's limiter exists once.
//!
//! ```
//! use paceline_core::{Cost, Instant, Quota};
//! use paceline_model::{Admission, ProviderModel, ProviderConfig};
//!
//! let limits = vec![Quota::per_minute(1).into()];
//! let mut provider = ProviderModel::new(ProviderConfig { limits, ..ProviderConfig::default() }, 1)?;
//! let now = Instant::ZERO;
//! assert!(matches!(provider.arrive(now, &Cost::request()), Admission::Admitted(_)));
//! assert!(matches!(provider.arrive(now, &Cost::request()), Admission::Refused(_)));
//! # Ok::<(), paceline_model::ProviderError>(())
//! ```

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

pub use chance::Chance;
pub use hints::{Hints, ToldWait};
pub use latency::Latency;
pub use limiter::{LimitState, ModelLimit};
pub use oracle::Job;
pub use provider::{Admission, Cause, ProviderConfig, ProviderError, ProviderModel, Refusal};
pub use schedule::{Scaling, Schedule, Step};
pub use sharing::{Overload, Service};
pub use tenants::Tenants;
