//! Export and restore of a pacer: its state goes on in another one, for the same account after a restart.

use alloc::string::ToString;
use core::time::Duration;

use super::Pacer;
use crate::cost::Cost;
use crate::request::{ScopeId, Ticket};
use crate::slots::{Entry, Stage};
use crate::state::{LevelState, NewerState, PacerState};
use crate::time::Instant;

impl Pacer {
    /// Exports the state of the account and of every scope with state, for another pacer of the same account. The cost is linear
    /// in the number of scopes.
    pub fn export(&self, now: Instant) -> PacerState {
        self.export_of(now, self.scopes.iter().map(|(_, scope)| &*scope.name))
    }

    /// Exports the account and the scopes with those names alone, for a program that stores what has changed
    /// ([`changes`](Self::changes)). Such parts are restored one after the other.
    pub fn export_of<'a>(&self, now: Instant, names: impl IntoIterator<Item = &'a str>) -> PacerState {
        let now = now.max(self.now);
        let account = LevelState {
            windows: self.quotas.export(now),
            held: self.hold.export(now),
            stopped: self.hold.stopped().map(ToString::to_string),
            ..LevelState::default()
        };
        let scopes = names.into_iter().filter_map(|name| {
            let place = self.scopes.named(name)?.place;
            let beyond_bounds = self.answers.beyond_bounds(place);
            Some(LevelState { beyond_bounds, ..self.scopes[place].export(now) }).filter(|known| !known.is_empty())
        });
        PacerState { account, scopes: scopes.collect(), ..PacerState::default() }
    }

    /// [`export`](Self::export) as if these calls, which were granted and have not left yet, had been taken back: the windows of
    /// the account count nothing of them. A program that keeps permits for a while has so what a crash must not forget, and no
    /// more. Tickets that are not in flight change nothing.
    pub fn export_without(&self, now: Instant, unsent: impl IntoIterator<Item = Ticket>) -> PacerState {
        let mut state = self.export(now);
        let granted = |ticket| match self.slots.get(ticket)? {
            Entry { request, stage: Stage::InFlight { flight, .. } } => Some((flight.counted, &request.cost)),
            Entry { stage: Stage::Waiting { .. }, .. } => None,
        };
        let mut unsent = unsent.into_iter().filter_map(granted).peekable();
        if unsent.peek().is_some() {
            let (now, mut quotas) = (now.max(self.now), self.quotas.clone());
            unsent.for_each(|(counted, cost)| quotas.settle(now, counted, cost, &Cost::zero()));
            state.account.windows = quotas.export(now);
        }
        state
    }

    /// Restores the state that another pacer of the same account exported `since` ago. To be called before the first request.
    ///
    /// - Windows continue by the rule of [`reconfigure`](Self::reconfigure), also where the limit, its window or its shape has
    ///   changed. Their units are added to those counted here. Calls before the origin of the clock count as if sent at the
    ///   origin.
    /// - Announced limits keep their age, until an answer announces newer ones.
    /// - A learnt pace that is old is tried carefully: from a rate halved for every ten minutes, and from there back to it in a
    ///   rush. A cap and the unit are forgotten after an hour. It is ignored in a scope that has sent a call.
    /// - A server that did not keep to the bounds of requests is not believed: one call with such a bound is under way at first,
    ///   and reserves what its answers had. It is ignored in a scope that has sent such a call.
    /// - A server that was failing is tested by one call at a time, also where its breaker was closed: its calls may be too slow
    ///   to open one. It is ignored in a scope that has sent a call.
    /// - Holds and pauses last as long as they had left, and are over when `since` is longer. Stops stay until
    ///   [`resume`](Self::resume).
    ///
    /// What else a breaker had counted, and the paces `aimd`, `responsive`, `linear` and `exponential`, have no exported state:
    /// they begin anew.
    ///
    /// # Errors
    /// When the value is of a later version than this pacer knows; then nothing has changed.
    pub fn restore(&mut self, now: Instant, state: &PacerState, since: Duration) -> Result<(), NewerState> {
        state.check()?;
        let now = self.advance(now);
        self.quotas.restore(now, &state.account.windows, since);
        self.restore_pauses(now, None, &state.account, since);
        for level in &state.scopes {
            let id = self.scope(&level.name);
            self.scopes[&id].restore(now, level, since);
            self.answers.restore(id.place, level.beyond_bounds);
            self.restore_pauses(now, Some(id), level, since);
        }
        self.pump(now);
        Ok(())
    }

    fn restore_pauses(&mut self, now: Instant, scope: Option<ScopeId>, level: &LevelState, since: Duration) {
        if let Some((left, held)) = level.held.and_then(|held| Some((held.after(since)?, held))) {
            self.hold_until(now, scope.clone(), now + left, held.cause);
        }
        if let Some(reason) = &level.stopped {
            self.stop_for(now, scope, reason.as_str().into());
        }
    }
}
