//! Why a model gave no usable decision.

use std::time::Duration;

use paceline_core::{Class, WaitReason};
use paceline_http::NoAnswer;
use paceline_store::work::InvalidDecision;

/// Why a case is left to the rules.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    /// Its own limits do not admit a call in time.
    #[error("it may not be asked for another {:.0} s ({reason})", wait.as_secs_f64())]
    Paced { wait: Duration, reason: WaitReason },
    /// Its call was not admitted in time, behind others.
    #[error("it could not be asked within {:.1} s: other questions, or its pace, came first", waited.as_secs_f64())]
    Crowded { waited: Duration },
    /// It got no permit: its scope is stopped.
    #[error("{0}")]
    NotAdmitted(#[from] paceline::Error),
    #[error("its API gave no whole answer: {0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("its API answered {status} ({})", class.as_str())]
    Refused { status: u16, class: Class },
    #[error("its API answered with something that is no completion")]
    NoCompletion,
    #[error(transparent)]
    InvalidDecision(#[from] InvalidDecision),
}

impl Silence {
    /// The name of its kind, for the log.
    pub(super) const fn cause(&self) -> &'static str {
        match self {
            Self::Paced { .. } | Self::Crowded { .. } | Self::NotAdmitted(_) => "paced",
            Self::NoAnswer(NoAnswer::TooLarge(_)) => "nonsense",
            Self::NoAnswer(_) => "silent",
            Self::NoCompletion | Self::InvalidDecision(_) => "nonsense",
            Self::Refused { .. } => "refused",
        }
    }
}
