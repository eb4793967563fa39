//! Held and stopped scopes outlive the process: they are stored when they happen, and looked at before anything is sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline::{Limiter, ScopeSnapshot, ScopeState};
use paceline_core::{Policy, Timestamp};
use paceline_store::{ACCOUNT, Error, Journal, ScopeState as Stored};

use crate::run::calls::acknowledge::Acknowledge;
use crate::run::calls::item::Context;
use crate::text;

/// A closure that is over before a next run has begun.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// The holds and stops of a run as the journal has them: each is written once, however many answers tell it.
#[derive(Debug)]
pub(crate) struct Holds {
    journal: Journal,
    acknowledge: Acknowledge,
    stored: BTreeMap<Arc<str>, Stored>,
}

impl Holds {
    /// Nothing is known of this run yet.
    pub(crate) const fn new(journal: Journal, acknowledge: Acknowledge) -> Self {
        Self { journal, acknowledge, stored: BTreeMap::new() }
    }

    /// Stores the scopes that are held, stopped or closed for long now. True when the whole account is stopped.
    pub(crate) fn store(&mut self, context: &Context) -> bool {
        let view = context.limiter.snapshot();
        if let Some(state) = stored(context, &view.account) {
            self.set(&ACCOUNT.into(), state);
        }
        for scope in &view.scopes {
            if let Some(state) = stored(context, scope) {
                self.set(&scope.name, state);
            }
        }
        matches!(view.account.state, ScopeState::Stopped { .. })
    }

    /// Stores that a scope is closed until then.
    pub(crate) fn close(&mut self, scope: &Arc<str>, until: Timestamp) {
        let longer = |known: &Stored| matches!(known, Stored::Held { until: known, .. } if *known >= until);
        if !self.stored.get(scope).is_some_and(longer) {
            self.set(scope, closed(until));
        }
    }

    fn set(&mut self, scope: &Arc<str>, state: Stored) {
        if self.stored.get(scope) != Some(&state) {
            self.journal.set_scope(scope, state.clone(), self.acknowledge.reply());
            self.stored.insert(Arc::clone(scope), state);
        }
    }
}

fn stored(context: &Context, scope: &ScopeSnapshot) -> Option<Stored> {
    match &scope.state {
        ScopeState::Held { until } => {
            Some(Stored::Held { until: context.timestamp(*until), reason: Policy::Held.to_string() })
        }
        ScopeState::Stopped { reason } => Some(Stored::Stopped { reason: reason.to_string() }),
        ScopeState::Open | ScopeState::Paced => {
            let until = scope.closed_until.filter(|until| *until > context.limiter.now() + SHORT)?;
            Some(closed(context.timestamp(until)))
        }
    }
}

fn closed(until: Timestamp) -> Stored {
    Stored::Held { until, reason: Policy::Gate.to_string() }
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
                limiter.hold(scope().as_ref(), limiter.now() + until.saturating_since(now));
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
