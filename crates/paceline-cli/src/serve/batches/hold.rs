//! Why a batch does not go on at once.

use std::io;

use paceline_store::JournalError;

use crate::exit::Failure;
use crate::stops::stop::AGAIN;
use crate::stops::stop::StopReason;

/// Why a batch does not go on at once.
pub(super) enum Hold {
    /// The gateway ends.
    GatewayEnds,
    /// What held it may be mended: it goes on at once.
    Mended,
    /// Something is to be mended, or to pass.
    Waits(String),
    /// The same, and calls are stopped until that is mended.
    Stopped(String),
}

impl From<io::Error> for Hold {
    fn from(error: io::Error) -> Self {
        Self::Waits(format!("the gateway's state folder: {error}"))
    }
}

impl From<JournalError> for Hold {
    fn from(error: JournalError) -> Self {
        Self::Waits(error.to_string())
    }
}

impl From<Failure> for Hold {
    fn from(failure: Failure) -> Self {
        Self::Waits(failure.to_string().replace(AGAIN, "and the batch goes on"))
    }
}

impl From<StopReason> for Hold {
    fn from(stop: StopReason) -> Self {
        let advised = |advice: &str| stop.to_string().replace(AGAIN, advice);
        if stop.is_account() {
            return Self::Stopped(advised("then restart the gateway or send it SIGHUP, and the batch goes on"));
        }
        Self::Waits(advised("and the batch goes on"))
    }
}
