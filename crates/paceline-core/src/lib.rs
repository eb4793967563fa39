#![doc = include_str!("../README.md")]
#![no_std]

extern crate alloc;

mod adaptive;
mod admit;
mod alike;
mod background;
mod backoff;
mod breaker;
mod breakers;
mod concurrency;
mod condition;
mod config;
mod cost;
mod divided;
mod error;
pub mod fleet;
mod flight;
mod gate;
mod handed;
mod hold;
#[cfg(feature = "serde")]
mod millis;
mod outcome;
mod pacer;
mod places;
mod queue;
mod quota;
mod refused;
mod repeats;
mod request;
mod responsive;
pub mod retry;
mod rng;
mod scope;
mod server_limits;
mod silence;
mod slots;
mod snapshot;
mod spacing;
mod state;
mod time;
mod turns;
mod units;
mod unpaced;
mod witnesses;

pub use adaptive::{GateState, RateEstimate, SharedRate, Trend};
pub use admit::{Admit, Level, MaxWait, PauseCause, WaitCause, WaitReason};
pub use alike::Alike;
pub use backoff::{Backoff, Growth, Jitter};
pub use concurrency::{ConcurrencySnapshot, GrowthPhase};
pub use condition::Trouble;
pub use config::{
    Background, BreakerConfig, Concurrency, Limits, Pace, PacerConfig, Quota, QuotaShape, Retry, part_of_tier,
    tier_and_part,
};
pub use cost::{Cost, Dimension, TokenPrice};
pub use divided::{AloneShare, DividedLimit};
pub use error::{ConfigError, TooLarge};
pub use fleet::{FleetShare, FleetSnapshot};
pub use handed::Handed;
pub use outcome::{Class, Hint, LimitReport, LimitScope, Outcome, RefillMode, UnknownOutcome};
pub use pacer::{Lease, Pacer};
pub use quota::{BucketLevel, BucketRule, LimitCounts};
pub use request::{Enqueued, Event, GiveUp, NextAction, Request, ScopeId, Ticket};
pub use responsive::{Responsive, ResponsiveConfig, ResponsiveCounters, exponential_delay, linear_delay};
pub use rng::Rng;
pub use silence::{AwaitedCall, Silence, Silent};
pub use snapshot::{Explanation, Fault, QuotaSnapshot, ScopeAnswers, ScopeSnapshot, ScopeState, Snapshot, Totals};
pub use state::{
    Announcement, AnswerLength, LearntState, LevelState, NewerState, PacerState, PauseState, TakenState, WindowState,
};
pub use time::{Instant, Timestamp};
pub use turns::Turns;
pub use units::{
    LONGEST_DURATION, format_duration, format_money, format_window, leading_number, money_digits, parse_duration,
};
pub use unpaced::Unpaced;
pub use witnesses::{Belief, Refused, Witnesses};
