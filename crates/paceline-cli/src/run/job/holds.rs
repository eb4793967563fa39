//! Held and stopped scopes outlive the process: they are stored when they happen, and looked at before anything is sent.

use std::time::Duration;

use paceline::{Limiter, ScopeSnapshot, ScopeState};
use paceline_core::Timestamp;
use paceline_store::{ACCOUNT, Error, Journal, ScopeState as Stored};

use crate::run::calls::acknowledge::Acknowledge;
use crate::run::calls::item::Context;
use crate::text;

/// A closure that is over before a next run has begun.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// Stores the scopes that are held, stopped or closed for long now. True when the whole account is stopped.
pub(crate) fn store(context: &Context, journal: &Journal, acknowledge: &Acknowledge) -> bool {
    let view = context.limiter.snapshot();
    let account = (ACCOUNT, &view.account);
    let scopes = view.scopes.iter().map(|scope| (&*scope.name, scope));
    for (name, scope) in std::iter::once(account).chain(scopes) {
        if let Some(state) = stored(context, scope) {
            journal.set_scope(name, state, acknowledge.reply());
        }
    }
    matches!(view.account.state, ScopeState::Stopped { .. })
}

fn stored(context: &Context, scope: &ScopeSnapshot) -> Option<Stored> {
    match &scope.state {
        ScopeState::Held { until } => {
            Some(Stored::Held { until: context.timestamp(*until), reason: "a used-up quota".to_owned() })
        }
        ScopeState::Stopped { reason } => Some(Stored::Stopped { reason: reason.to_string() }),
        ScopeState::Open | ScopeState::Paced => {
            let until = scope.closed_until.filter(|until| *until > context.limiter.now() + SHORT)?;
            Some(Stored::Held { until: context.timestamp(until), reason: "the server asked for a pause".to_owned() })
        }
    }
}

/// Takes up what earlier runs left: holds go on until their time. A stop waited for a person, and a person has started
/// this run: it is tried again, and comes back with the first answer if nothing has changed.
///
/// # Errors
/// What the journal says.
pub(crate) fn restore(
    journal: &Journal,
    limiter: &Limiter,
    now: Timestamp,
    acknowledge: &Acknowledge,
) -> Result<(), Error> {
    for row in journal.scopes()? {
        let scope = || (*row.name != *ACCOUNT).then(|| limiter.scope(&row.name));
        match row.state {
            Stored::Open => {}
            Stored::Held { until, .. } if until > now => {
                limiter.hold(scope(), limiter.now() + until.saturating_since(now));
            }
            Stored::Held { .. } => journal.set_scope(&row.name, Stored::Open, acknowledge.reply()),
            Stored::Stopped { reason } => {
                let name = if *row.name == *ACCOUNT { "the account" } else { &*row.name };
                let words = format!("{name} was stopped ({reason}); trying again");
                tracing::info!(scope = &*row.name, "{}", text::printable(&words));
                journal.set_scope(&row.name, Stored::Open, acknowledge.reply());
            }
        }
    }
    Ok(())
}
