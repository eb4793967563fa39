//! Held and stopped scopes outlive the process: they are stored when they begin (`calls/holds.rs`), and restored before anything
//! is sent.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use paceline::{Limiter, PauseCause};
use paceline_core::Timestamp;
use paceline_store::{ACCOUNT, Journal, JournalError, ScopeRow, ScopeStatus as Stored, StoredSnapshot};
use serde::Deserialize;

use crate::job::acknowledge::Acknowledge;
use crate::text;

/// A closure that is over before a next run has begun.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// Whether that hold is stored already, restored from an earlier run: its cause is stored too.
pub(crate) fn same_hold(known: &Stored, now: &Stored) -> bool {
    let (Stored::Held { until: known, .. }, Stored::Held { until, .. }) = (known, now) else { return false };
    known.saturating_since(*until).max(until.saturating_since(*known)) <= SHORT
}

/// A scope, or the account, that sends nothing until a known time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) until: Timestamp,
    pub(crate) name: Arc<str>,
    /// As it is stored.
    pub(crate) reason: String,
}

/// Those of a journal, the first to open first.
pub(crate) fn held(rows: Vec<ScopeRow>, now: Timestamp) -> Vec<Held> {
    let still = |row: ScopeRow| match row.state {
        Stored::Held { until, reason } if until > now => Some(Held { until, name: row.name, reason }),
        _ => None,
    };
    let mut held: Vec<Held> = rows.into_iter().filter_map(still).collect();
    held.sort();
    held
}

impl Held {
    /// Which scope, until when and why. `by_gateway`: calls go through a gateway.
    pub(crate) fn describe(&self, by_gateway: bool) -> String {
        let why = match PauseCause::from_text(&self.reason) {
            Some(PauseCause::Throttled { asked: true }) if by_gateway => {
                "the gateway refused a call, by a limit of its own or of the provider, and asked for a pause".into()
            }
            _ => why(&self.reason),
        };
        format!("{} until {}: {why}", name(&self.name), text::end(self.until))
    }
}

/// A scope or the account, for people; the journal and the limiter call the account differently.
pub(crate) fn name(scope: &str) -> Cow<'_, str> {
    match scope {
        "" | ACCOUNT => "the account".into(),
        // The scope of an API that is not divided.
        "all" => "all calls".into(),
        name => text::printable(name),
    }
}

/// What a pause is waited for. A gateway asks for one by a limit of its own, such as of the key that it was shown, too.
pub(crate) fn pause_end(cause: PauseCause, by_gateway: bool) -> String {
    match cause {
        PauseCause::Throttled { asked: true } if by_gateway => {
            "the end of a pause that the gateway asked for (rate limit)".to_owned()
        }
        _ => cause.to_string(),
    }
}

/// A stored reason as a sentence.
pub(crate) fn why(reason: &str) -> Cow<'_, str> {
    PauseCause::from_text(reason).map_or_else(|| text::printable(reason), |cause| cause.explanation().into())
}

/// The same moment by two clocks, when the run before wrote its state last: holds are stored by the second.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Clocks {
    /// The wall clock.
    at: jiff::Timestamp,
    /// The clock of that run, which stepped with nothing.
    run_clock: jiff::Timestamp,
}

impl Clocks {
    /// Those of a snapshot; none in one of an older version.
    pub(crate) fn of(snapshot: &StoredSnapshot) -> Option<Self> {
        serde_json::from_str(&snapshot.job).ok()
    }

    /// How long a hold that was stored then still lasts: neither longer because the clock was set back, nor shorter because it
    /// was set forward during that run.
    pub(crate) fn left(&self, until: Timestamp, now: Timestamp) -> Duration {
        let [at, run_clock] = [self.at, self.run_clock].map(|clock| Timestamp::from_millis(clock.as_millisecond()));
        until.saturating_since(run_clock).saturating_sub(now.saturating_since(at))
    }
}

/// Restores the holds of earlier runs: they last until their time, by `clocks` also where the wall clock was set meanwhile. Where
/// calls go through a gateway (`by_gateway`), it is asked again, for a person may have lifted them there: a call that it refuses
/// costs nothing, and says for how long. A stop waited for a person, and a person has started this run: it is tried again, and
/// comes back with the first answer if nothing has changed. One of a scope of which this run sends nothing stays for the run that
/// does. Returns what is tried again, which [one call](test_first) tests.
///
/// # Errors
/// An error of the journal.
pub(crate) fn restore(
    journal: &Journal,
    limiter: &Limiter,
    now: Timestamp,
    clocks: Option<Clocks>,
    by_gateway: bool,
    sends_of: impl Fn(&str) -> bool,
    acknowledge: &Acknowledge,
) -> Result<Vec<Arc<str>>, JournalError> {
    let (mut tried_again, mut is_asked) = (Vec::new(), false);
    let left = |until: Timestamp| clocks.map_or_else(|| until.saturating_since(now), |clocks| clocks.left(until, now));
    for row in journal.scopes()? {
        let scope = || (*row.name != *ACCOUNT).then(|| limiter.scope(&row.name));
        match row.state {
            Stored::Open => {}
            Stored::Held { until, reason } if by_gateway && !left(until).is_zero() => {
                let held = Held { until: now + left(until), name: Arc::clone(&row.name), reason };
                tracing::info!(
                    scope = &*row.name,
                    "held since an earlier run: {}; asking the gateway again",
                    held.describe(true)
                );
                journal.set_scope(&row.name, Stored::Open, acknowledge.reply());
                is_asked = true;
                tried_again.push(row.name);
            }
            Stored::Held { until, reason } if !left(until).is_zero() => {
                let (left, cause) = (left(until), PauseCause::from_text(&reason).unwrap_or(PauseCause::Program));
                limiter.hold_for(scope().as_ref(), limiter.now() + left, cause);
                let held = Stored::Held { until: now + left, reason };
                if !same_hold(&Stored::Held { until, reason: String::new() }, &held) {
                    journal.set_scope(&row.name, held, acknowledge.reply());
                }
            }
            Stored::Held { .. } => journal.set_scope(&row.name, Stored::Open, acknowledge.reply()),
            Stored::Stopped { .. } if *row.name != *ACCOUNT && !sends_of(&row.name) => {}
            Stored::Stopped { reason } => {
                let line = match *row.name == *ACCOUNT {
                    true => format!("the last run was stopped ({reason}); trying again"),
                    false => format!("{} was stopped ({reason}); trying again", row.name),
                };
                tracing::info!(scope = &*row.name, "{}", text::printable(&line));
                journal.set_scope(&row.name, Stored::Open, acknowledge.reply());
                tried_again.push(row.name);
            }
        }
    }
    if is_asked {
        // Items that it refused wait for the end of its pause, too.
        journal.forget_waits()?;
    }
    Ok(tried_again)
}

/// Of what an earlier run stopped, one call goes first: the cause may not be mended.
pub(crate) fn test_first(limiter: &Limiter, stopped: &[Arc<str>]) {
    for name in stopped {
        let scope = (**name != *ACCOUNT).then(|| limiter.scope(name));
        limiter.test_first(scope.as_ref());
    }
}

/// Opens all scopes of a journal, where it is not for the journal to say which are closed.
///
/// # Errors
/// An error of the journal.
pub(crate) fn open_all<Reply>(journal: &Journal, reply: impl Fn() -> Reply) -> Result<(), JournalError>
where
    Reply: FnOnce(Result<(), JournalError>) + Send + 'static,
{
    for row in journal.scopes()?.into_iter().filter(|row| row.state != Stored::Open) {
        journal.set_scope(&row.name, Stored::Open, reply());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    #[test]
    fn a_hold_lasts_as_long_whatever_the_wall_clock_does() {
        let hours = |number: i64| NOW.as_millis() + number * 3_600_000;
        let left = |until: i64, run_clock: i64, at: i64, now: i64| {
            let moment = |hour| jiff::Timestamp::from_millisecond(hours(hour)).expect("a time");
            let clocks = Clocks { at: moment(at), run_clock: moment(run_clock) };
            clocks.left(Timestamp::from_millis(hours(until)), Timestamp::from_millis(hours(now))).as_secs() / 3_600
        };
        assert_eq!(left(5, 1, 1, 2), 3, "an hour later");
        assert_eq!(left(5, 1, 1, 9), 0, "long over");
        assert_eq!(left(5, 1, 1, -48), 4, "two days were set back between the runs");
        assert_eq!(left(53, 49, 1, 2), 3, "two days were set back during the run");
        assert_eq!(left(5, 1, 49, 50), 3, "it was set forward during the run");
    }
}
