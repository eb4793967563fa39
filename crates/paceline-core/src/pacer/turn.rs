//! Pacers of one account in several processes: one at a time lets calls leave, and knows then what all the others have counted.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::quota::Quotas;
use crate::snapshot::Totals;
use crate::state::{LevelState, NewerState, PacerState};
use crate::time::Instant;

/// The least that a turn of another pacer is taken to last.
const SHORT: Duration = Duration::from_millis(10);

/// Whose turn it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// Since when it is another's.
    other: Option<Instant>,
    /// How many calls had left when its turn began.
    sends: u64,
    /// What had been sent and answered when the others were told last.
    told: Option<Totals>,
}

impl Turn {
    /// The turn of another is taken to last as long again as it has lasted: so a caller that bounds its wait ends it when the
    /// other pacer does not go on.
    pub(super) fn admit(&self, now: Instant) -> Admit {
        let Some(since) = self.other else { return Admit::Now };
        Admit::At { at: now + (now - since).max(SHORT), cause: WaitCause::Turn }
    }
}

impl Pacer {
    /// Nothing leaves until [`take_turn`](Self::take_turn): another pacer of the account counts meanwhile, and may let as much
    /// leave as the limits have room for.
    pub fn yield_turn(&mut self, now: Instant) {
        let now = self.advance(now);
        self.turn.other.get_or_insert(now);
        self.pump(now);
    }

    /// Calls leave again. Of each of the others, what its windows counted ([`own_windows`](Self::own_windows)) and how long ago
    /// it said so: that is counted beside the calls of this pacer, in place of what this one was told of others before. Where no
    /// two pacers ever have the turn at once, and each passes on what it counted before it yields, no window holds more than its
    /// limit over all of them.
    ///
    /// # Errors
    /// When a value is of a later version than this pacer knows; then nothing has changed, and it is still the turn of another.
    pub fn take_turn(&mut self, now: Instant, others: &[(PacerState, Duration)]) -> Result<(), NewerState> {
        others.iter().try_for_each(|(state, _)| state.check())?;
        let now = self.advance(now);
        let account: Vec<_> = others.iter().map(|(state, since)| (&*state.account.windows, *since)).collect();
        self.quotas.share(now, &account);
        for name in self.tiers.keys().cloned().collect::<Vec<_>>() {
            let tier = others.iter().filter_map(|(state, since)| {
                let level = state.scopes.iter().find(|level| *level.name == *name)?;
                Some((&*level.windows, *since))
            });
            let tier: Vec<_> = tier.collect();
            if !tier.is_empty() || self.scopes.named(&name).is_some() {
                let id = self.scope(&name);
                self.scopes[&id].share(now, &tier);
            }
        }
        (self.turn.other, self.turn.sends) = (None, self.totals.sends);
        self.pump(now);
        Ok(())
    }

    /// When a request leaves that waits for room in a window, where none has left since this pacer took its turn. A pacer that
    /// passes the turn on before may never get that room, for the others take it as it comes; a large request needs much of it.
    pub fn waits_for_room(&self, now: Instant) -> Option<Instant> {
        let now = now.max(self.now);
        let head = |place: u32| self.head(&self.scopes[place]).map(|head| &self.slots.at(head.2).request.cost);
        let ready = self.agenda.first_ready().map(|(_, place)| place);
        let later = self.agenda.later(0).map(|(_, place)| place);
        let starts = [ready, later].into_iter().flatten().filter_map(|place| {
            match self.admit_cost(now, &self.scopes[place], head(place)?) {
                Admit::At { at, cause: WaitCause::Quota { .. } } => Some(at),
                _ => None,
            }
        });
        starts.min().filter(|_| self.totals.sends == self.turn.sends)
    }

    /// What this pacer itself has counted in its windows, for the others; none where that is as it was when it was asked last.
    pub fn own_windows(&mut self, now: Instant) -> Option<PacerState> {
        let now = now.max(self.now);
        if self.turn.told.as_ref() == Some(&self.totals) {
            return None;
        }
        self.turn.told = Some(self.totals.clone());
        let level = |name: &str, quotas: &Quotas| {
            let windows = quotas.export_own(now);
            LevelState { name: name.to_string(), windows, ..LevelState::default() }
        };
        let tiers = self.tiers.keys().filter_map(|name| Some(&self.scopes[self.scopes.named(name)?.place]));
        let scopes = tiers.map(|scope| level(&scope.name, scope.quotas())).filter(|level| !level.is_empty()).collect();
        Some(PacerState { account: level("", &self.quotas), scopes, ..PacerState::default() })
    }
}
