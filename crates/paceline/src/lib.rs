#![doc = include_str!("../README.md")]
//!
//! [`Limiter::run`] takes a permit for every send, classifies the answer, reports it, and sends again what may succeed
//! later. Where that is too much, [`Limiter::acquire`] gives a [`Permit`], which must be answered with an [`Outcome`]. Where
//! there is no limit at all, [`retry()`] sends again without one.
//!
//! The engine behind it, [`paceline_core`], does no IO and reads no clock. This crate adds what an engine must not have:
//! the clock, the timer and the tasks that wait.
//!
//! # Features
//!
//! None is on by default.
//!
//! - `http`: [`Limiter::run`] reads `http::Response`s: status, headers and body, in the dialect of the provider that
//!   `Limiter::with_provider` names ([`Attempt`], `paceline-providers`). Without it, a program classifies
//!   each result itself with [`when`](Run::when) or [`read`](Run::read).
//! - `tower`: `PaceLayer`, which paces the calls of a service.
//! - `testing`: an API in memory and virtual time, for the tests of programs that use this crate (`paceline::testing`). It has
//!   `http`.
//! - `metrics`: `Limiter::record_metrics` gives what a limiter counts to the recorder of the `metrics` facade.
//! - `json`: `scope_json`, the snapshot of a scope as a JSON document.
//! - `serde`: what [`Limiter::export`] returns can be written and read by serde.

mod again;
mod blocking;
mod classify;
pub mod clock;
mod divided;
mod driver;
mod error;
mod fallback;
#[cfg(feature = "json")]
mod json;
mod keyed;
mod limiter;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod nested;
mod retry;
mod run;
mod sleeper;
mod state;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
mod tower;
mod turns;

pub use again::{Notify, Retrying};
pub use blocking::Blocking;
#[cfg(feature = "http")]
pub use classify::ByHead;
pub use classify::{AnswerReader, Attempt, ByError, ByHint, ByPredicate, Classified, Classify};
pub use clock::Clock;
pub use driver::{Permit, Unreported, Within};
pub use error::{Error, NotNow, RunError};
pub use fallback::{Sourced, WithFallback};
#[cfg(feature = "json")]
pub use json::{ToWall, scope_json};
pub use keyed::KeyedLimiter;
pub use limiter::Limiter;
pub use log::{BackingOff, Repeats};
pub use paceline_core::{
    Admit, AloneShare, Announcement, Background, Backoff, BreakerConfig, Class, Concurrency, ConfigError, Cost,
    Dimension, DividedLimit, Event, FleetShare, FleetSnapshot, GateState, GiveUp, Growth, GrowthPhase, Hint, Instant,
    Jitter, LearntState, Level, LevelState, LimitReport, LimitScope, Limits, MaxWait, NewerState, NextAction, Outcome,
    Pace, PacerConfig, PacerState, PauseCause, PauseState, Quota, QuotaShape, QuotaSnapshot, RateEstimate, RefillMode,
    Request, Responsive, ResponsiveConfig, ResponsiveCounters, Retry, Rng, ScopeAnswers, ScopeId, ScopeSnapshot,
    ScopeState, SharedRate, Snapshot, TakenState, Ticket, Timestamp, TooLarge, Totals, Trend, UnknownOutcome,
    WaitCause, WaitReason, WindowState, exponential_delay, linear_delay,
};
#[cfg(feature = "http")]
pub use paceline_providers::{Dialect, Provider};
pub use retry::{WithRetries, blocking_retry, retry};
pub use run::{BlockingCall, Run};
pub use sleeper::ResponsiveSleeper;
pub use state::LimiterState;
#[cfg(feature = "tower")]
pub use tower::{Describe, PaceLayer, PacedService};

/// The samples of these pages compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/library.md")]
    mod guide {}

    #[doc = include_str!("../../../docs/start/rust.md")]
    #[cfg(feature = "http")]
    mod start {}

    #[doc = include_str!("../../../docs/moving/governor.md")]
    mod from_governor {}

    #[doc = include_str!("../../../docs/moving/backon.md")]
    mod from_backon {}
}
