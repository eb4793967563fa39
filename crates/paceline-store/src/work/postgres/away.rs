//! What an error of the server means for who calls it, and how long the server is waited for.

use std::time::Duration;

use paceline_core::Instant;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::work::clock::WorkClock;
use crate::work::error::WorkError;

/// The first pause between two tries to connect; doubled each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long to try to reach a database again: longer than a restart takes.
pub(super) const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The connection is gone, or the server is not there yet.
    Broken,
    /// A deadlock or a serialization failure: the transaction is done again at once.
    Collided,
    /// The server refuses this user or has no such database, which may be so for a time, or for ever.
    Refused,
    /// Trying again would not help.
    Final,
}

pub(super) fn kind(error: &WorkError) -> Kind {
    match error {
        WorkError::Postgres { source, .. } => kind_of(source),
        WorkError::Silent { .. } => Kind::Broken,
        _ => Kind::Final,
    }
}

pub(super) fn kind_of(error: &Error) -> Kind {
    match error.code() {
        None if is_of_the_connection(error) => Kind::Broken,
        None => Kind::Final,
        // A server that stops, starts or has no place says so in these classes.
        Some(code) if code.code().starts_with("08") || code.code().starts_with("57P") => Kind::Broken,
        Some(&SqlState::TOO_MANY_CONNECTIONS) => Kind::Broken,
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) if is_unknown(error) => Kind::Refused,
        // This process was suspended within a transaction, and the server ended that; or the server is read-only, as one that is
        // about to take over is; or it lets this role, or any, not in at present.
        Some(code) if ["25P03", "25006", "28000", "55000"].contains(&code.code()) => Kind::Broken,
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_CATALOG_NAME) => Kind::Refused,
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE) => Kind::Collided,
        Some(_) => Kind::Final,
    }
}

/// Whether the server knows no such role: it says that of one that may not log in at present with the same code.
fn is_unknown(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.message().ends_with("does not exist"))
}

/// Whether the connection failed, not the protocol on it: a certificate that is not trusted stays so.
fn is_of_the_connection(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_refused = |cause: &std::io::Error| cause.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    error.is_closed() || cause.is_some_and(|cause| !is_refused(cause))
}

/// The pauses between the tries to reach a server, and when they end.
pub(super) struct Wait {
    until: Instant,
    pause: Duration,
}

impl Wait {
    pub(super) fn begin(clock: &WorkClock, timeout: Duration) -> Self {
        Self::until(clock.now() + timeout)
    }

    pub(super) const fn until(until: Instant) -> Self {
        Self { until, pause: Duration::from_millis(FIRST_PAUSE.as_millis() as u64 / 2) }
    }

    /// The pause before the next try; none when it was waited for long enough, by who does not stay.
    pub(super) fn next(&mut self, clock: &WorkClock, stays: bool) -> Option<Duration> {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (stays || clock.now() + self.pause <= self.until).then_some(self.pause)
    }

    pub(super) fn is_first(&self) -> bool {
        self.pause == FIRST_PAUSE
    }
}

/// Whether the server was not there, went away or let no role in: it may come back.
pub(crate) fn is_broken(error: &Error) -> bool {
    matches!(kind_of(error), Kind::Broken | Kind::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stays_waits_for_its_server_until_it_is_to_end() {
        let clock = WorkClock::starting_at(paceline_core::Timestamp::from_millis(1_700_000_000_000));
        let pauses = async |stays: bool, most: usize| {
            let mut wait = Wait::begin(&clock, RETRY_TIMEOUT);
            let mut pauses = 0;
            while pauses < most
                && let Some(pause) = wait.next(&clock, stays)
            {
                tokio::time::sleep(pause).await;
                pauses += 1;
            }
            (pauses, wait.next(&clock, false))
        };
        let (bounded, _) = pauses(false, 10_000).await;
        assert!((30..40).contains(&bounded), "a minute: {bounded}");
        assert_eq!(pauses(true, 10_000).await, (10_000, None), "five hours, and then no longer");
    }
}
