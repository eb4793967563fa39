//! Held and stopped scopes are stored when they begin, for the next run, and keep calls back in this one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline::{Level, PauseCause, ScopeSnapshot, ScopeState};
use paceline_core::Timestamp;
use paceline_store::{ACCOUNT, Journal, ScopeRow, ScopeStatus as Stored};

use crate::calls::item::{Context, Pause};
use crate::job::acknowledge::Acknowledge;
use crate::job::holds::{Held, SHORT, name, same_hold};

/// The holds and stops of a run as the journal has them: each is written once, however many answers cause it.
#[derive(Debug)]
pub(crate) struct Holds {
    journal: Journal,
    acknowledge: Acknowledge,
    stored: BTreeMap<Arc<str>, Stored>,
    /// Scopes that this run does not try any more because their server fails: the next run looks for itself.
    given_up: BTreeSet<Arc<str>>,
}

impl Holds {
    /// Of this run nothing is known yet; holds of earlier runs keep their reasons.
    pub(crate) fn new(journal: Journal, acknowledge: Acknowledge) -> Self {
        let rows = journal.scopes().unwrap_or_default();
        let held = rows.into_iter().filter(|row| matches!(row.state, Stored::Held { .. }));
        let stored = held.map(|row| (row.name, row.state)).collect();
        Self { journal, acknowledge, stored, given_up: BTreeSet::new() }
    }

    /// This run tries nothing of the scope any more, before `until` at the earliest. That is no hold for the next one.
    pub(crate) fn give_up(&mut self, scope: &Arc<str>, until: Timestamp) {
        self.journal.hold_for_this_run(scope, Some(until));
        self.given_up.insert(Arc::clone(scope));
    }

    /// The scopes of which this run tries nothing any more.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = &Arc<str>> {
        self.given_up.iter()
    }

    /// Whether this run tries nothing of the scope any more.
    pub(crate) fn has_given_up(&self, scope: &str) -> bool {
        self.given_up.contains(scope)
    }

    /// Whether the scope makes no more calls before a person has acted.
    pub(crate) fn has_stopped(&self, scope: &str) -> bool {
        matches!(self.stored.get(scope), Some(Stored::Stopped { .. }))
    }

    /// Stores the scope if it is held, stopped or closed for long now. No other can be: there are many of them. True when that
    /// was not stored yet.
    pub(crate) fn store(&mut self, context: &Context, scope: &str) -> bool {
        context
            .limiter
            .scope_snapshot(&context.limiter.scope(scope))
            .is_some_and(|scope| self.store_one(context, &scope))
    }

    /// Stores the account and all scopes that are held, stopped or closed for long now. True when the whole account is
    /// stopped.
    pub(crate) fn store_all(&mut self, context: &Context) -> bool {
        let view = context.limiter.snapshot();
        if let Some(state) = stored(context, &view.account) {
            self.set(context, &ACCOUNT.into(), state);
        }
        for scope in &view.scopes {
            self.store_one(context, scope);
        }
        matches!(view.account.state, ScopeState::Stopped { .. })
    }

    fn store_one(&mut self, context: &Context, scope: &ScopeSnapshot) -> bool {
        // A stop lasts for all of the run, longer than the hold of a scope that was given up.
        let lasts = |state: &Stored| matches!(state, Stored::Stopped { .. }) || !self.given_up.contains(&scope.name);
        let state = stored(context, scope).filter(lasts);
        state.is_some_and(|state| self.set(context, &scope.name, state))
    }

    /// When the hold of a scope ends, or that of the account; in the past where there is none.
    pub(crate) fn held_until(&self, scope: &Arc<str>) -> Timestamp {
        let known = [&**scope, ACCOUNT].into_iter().filter_map(|name| self.stored.get(name).and_then(held_until));
        known.max().unwrap_or_default()
    }

    /// Stores that a scope is closed, or the account.
    pub(crate) fn close(&mut self, context: &Context, scope: &Arc<str>, pause: Pause) {
        let Pause { until, cause, level } = pause;
        let name = if level == Level::Account { &ACCOUNT.into() } else { scope };
        let longer = |known: &Stored| matches!(known, Stored::Held { until: known, .. } if *known >= until);
        if !self.stored.get(name).is_some_and(longer) {
            self.set(context, name, closed(until, cause));
        }
    }

    fn set(&mut self, context: &Context, scope: &Arc<str>, state: Stored) -> bool {
        let known = self.stored.get(scope);
        let is_new = known.is_none_or(|known| *known != state && !same_hold(known, &state));
        if is_new {
            if let Stored::Held { until, .. } = state {
                let before = known.and_then(held_until).unwrap_or_default();
                self.journal.stands_still(scope, before.max(context.now()), until);
            }
            self.journal.set_scope(scope, state.clone(), self.acknowledge.reply());
            self.stored.insert(Arc::clone(scope), state);
        }
        is_new
    }
}

fn stored(context: &Context, scope: &ScopeSnapshot) -> Option<Stored> {
    match &scope.state {
        ScopeState::Held { until, cause } => Some(closed(context.timestamp(*until), *cause)),
        ScopeState::Stopped { reason } => Some(Stored::Stopped { reason: reason.to_string() }),
        _ => {
            let until = scope.closed_until.filter(|until| *until > context.limiter.now() + SHORT)?;
            Some(closed(context.timestamp(until), scope.closed_for?))
        }
    }
}

const fn held_until(state: &Stored) -> Option<Timestamp> {
    match state {
        Stored::Held { until, .. } => Some(*until),
        _ => None,
    }
}

fn closed(until: Timestamp, cause: PauseCause) -> Stored {
    Stored::Held { until, reason: cause.to_string() }
}

/// What keeps the calls of a job back, by the limiter: the account or the scope that opens first, or a server that fails.
pub(crate) fn keeps_back(context: &Context, scopes: &[ScopeRow]) -> Option<String> {
    let limiter = &context.limiter;
    let own = scopes.iter().filter_map(|row| limiter.scope_snapshot(&limiter.scope(&row.name)));
    let views: Vec<_> = own.chain([limiter.snapshot().account]).collect();
    let held = |view: &ScopeSnapshot| match stored(context, view)? {
        Stored::Held { until, reason } => Some(Held { until, name: Arc::clone(&view.name), reason }),
        _ => None,
    };
    let failing = views.iter().find(|view| view.failing_since.is_some());
    let failing = failing.map(|view| format!("{}: {}", name(&view.name), PauseCause::ServerFails.explanation()));
    let by_gateway = context.sender.config().gateway.is_some();
    views.iter().filter_map(held).min().map(|held| held.describe(by_gateway)).or(failing)
}
