//! The exported state of a pacer, as one plain value that outlives it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::admit::PauseCause;
use crate::config::Quota;
use crate::outcome::LimitReport;

/// The version of [`PacerState`] that this pacer writes, and the newest that it reads.
const VERSION: u32 = 1;

/// The state of a pacer, for another one of the same account: [`Pacer::export`](crate::Pacer::export) makes it,
/// [`Pacer::restore`](crate::Pacer::restore) takes it.
///
/// All times are durations before or after the export, so no clock is needed to read it. With the feature `serde` it can be
/// written and read; durations are whole milliseconds there, and what may be empty may be missing.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PacerState {
    /// Of the value: a field that is only added leaves it as it is, any other change raises it. This pacer writes and knows 1.
    pub version: u32,
    /// The ceiling over everything; its name is empty.
    #[cfg_attr(feature = "serde", serde(default))]
    pub account: LevelState,
    /// The scopes with state, in any order.
    #[cfg_attr(feature = "serde", serde(default))]
    pub scopes: Vec<LevelState>,
}

/// The state of the account or of one scope.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct LevelState {
    /// The scope; empty for the account.
    pub name: String,
    /// The counts of the windows of configured limits.
    pub windows: Vec<WindowState>,
    /// The last limits that the server's headers announced.
    pub announced: Vec<Announcement>,
    /// The learnt pace, under [`Pace::Auto`](crate::Pace::Auto).
    pub learnt: Option<LearntState>,
    /// The length of answers where the server does not keep to the bounds of requests.
    pub beyond_bounds: Option<AnswerLength>,
    /// The server failed, and nothing has succeeded since: one call at a time tests it.
    pub failing: bool,
    /// A hold; deadlines stand still meanwhile.
    pub held: Option<PauseState>,
    /// A pause that the server asked for, or that follows refusals.
    pub closed: Option<PauseState>,
    /// Nothing leaves until a person acts, for that reason.
    pub stopped: Option<String>,
}

/// The counts of a window of a configured limit.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowState {
    /// The limit.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub quota: Quota,
    /// Oldest first, in about 60 parts at most; one part where the shape is not [`Shape::Sliding`](crate::QuotaShape::Sliding).
    pub taken: Vec<TakenState>,
}

/// Units that a window counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TakenState {
    /// How long before the export they left, at most.
    #[cfg_attr(feature = "serde", serde(rename = "ago_ms", with = "crate::millis"))]
    pub ago: Duration,
    /// So many.
    pub units: u64,
}

/// The last announcement of a limit by the server's headers, and the units sent since.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Announcement {
    /// The reported numbers.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub report: LimitReport,
    /// The age of the call that brought it.
    #[cfg_attr(feature = "serde", serde(rename = "ago_ms", with = "crate::millis"))]
    pub ago: Duration,
    /// Units sent after that call.
    pub spent_since: u64,
}

/// The pace that a scope had learnt.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LearntState {
    /// Calls a second. One that is not a positive number is ignored.
    pub rate: f64,
    /// The same in tokens a second, where tokens are what the limit counts.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tokens: Option<f64>,
    /// Calls in flight, where refusals follow their number.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cap: Option<u32>,
    /// For how long before the export no call had tried it.
    #[cfg_attr(feature = "serde", serde(rename = "ago_ms", with = "crate::millis"))]
    pub ago: Duration,
}

/// How long answers are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AnswerLength {
    /// In the mean.
    pub mean: u64,
    /// By how much they differ from that, in the mean.
    pub deviation: u64,
}

/// A pause: nothing leaves until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PauseState {
    /// How long after the export it ends.
    #[cfg_attr(feature = "serde", serde(rename = "left_ms", with = "crate::millis"))]
    pub left: Duration,
    /// What for.
    pub cause: PauseCause,
}

impl PacerState {
    /// # Errors
    /// When it is of a later version than this pacer knows.
    pub(crate) const fn check(&self) -> Result<(), NewerState> {
        if self.version > VERSION { Err(NewerState { version: self.version }) } else { Ok(()) }
    }
}

impl Default for PacerState {
    /// The state of a new pacer.
    fn default() -> Self {
        Self { version: VERSION, account: LevelState::default(), scopes: Vec::new() }
    }
}

impl LevelState {
    /// Whether it equals the state of a new level.
    pub fn is_empty(&self) -> bool {
        *self == Self { name: self.name.clone(), ..Self::default() }
    }
}

impl PauseState {
    /// The remaining time `since` after the export; none if it is over.
    pub(crate) fn after(&self, since: Duration) -> Option<Duration> {
        Some(self.left.saturating_sub(since)).filter(|left| !left.is_zero())
    }
}

/// A [`PacerState`] of a later version than this program knows. Nothing of it was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewerState {
    /// Its version.
    pub version: u32,
}

impl fmt::Display for NewerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version } = self;
        write!(
            f,
            "the state has version {version}, and this program knows none after {VERSION}: nothing of it is restored"
        )
    }
}

impl core::error::Error for NewerState {}

/// Serialization of enums as their text.
#[cfg(feature = "serde")]
mod as_text {
    use alloc::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::admit::PauseCause;
    use crate::cost::Dimension;

    impl Serialize for Dimension {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(self.as_str())
        }
    }

    impl<'de> Deserialize<'de> for Dimension {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            Ok(Self::from_name(&Cow::<str>::deserialize(from)?))
        }
    }

    impl Serialize for PauseCause {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(self)
        }
    }

    /// An unknown text comes from another program version: the pause holds all the same.
    impl<'de> Deserialize<'de> for PauseCause {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            Ok(Self::from_text(&Cow::<str>::deserialize(from)?).unwrap_or(Self::Program))
        }
    }
}
