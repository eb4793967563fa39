//! Providers in virtual time: what a rate-limited API does with the calls that reach it.
//!
//! The model reads no clock and starts no thread: the present is an argument and randomness comes from a seed. The
//! simulator drives it with virtual time, `paceline mock` puts it behind HTTP, so a provider's limiter exists once.

mod chance;
mod compare;
mod engine;
mod hints;
mod ideal;
mod latency;
mod limiter;
mod measures;
mod oracle;
mod phases;
mod plan;
pub mod policy;
mod provider;
mod record;
mod responsive;
mod scaling;
mod scenario;
mod schedule;
mod setup;
mod sharing;
mod tenants;
mod too_good;
mod trace;

pub use chance::Chance;
pub use compare::{Failed, Figures, Median, compare, compare_each, medians};
pub use engine::{simulate, simulate_traced, simulate_until};
pub use hints::{Hints, ToldWait};
pub use latency::Latency;
pub use limiter::{Limit, LimitState};
pub use measures::Measures;
pub use oracle::Job;
pub use phases::Phase;
pub use plan::{Plan, plan};
pub use policy::Wait;
pub use provider::{Admission, Cause, Provider, ProviderConfig, ProviderError, Refusal};
pub use responsive::{Course, Paced, Requirement};
pub use scenario::{CostOf, Duty, Item, Scenario, ScenarioError, Workers};
pub use schedule::{Scaling, Schedule, Step};
pub use setup::{Setup, SimError};
pub use sharing::{Overload, Service};
pub use tenants::Tenants;
pub use too_good::TooGood;
pub use trace::{PaceNow, Span, Trace};
