//! Pacers of one account in several processes: one at a time has the turn and grants calls, with the counts of all others.

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use super::settings::is_part;
use crate::admit::{Admit, WaitCause};
use crate::quota::Quotas;
use crate::snapshot::Totals;
use crate::state::{LevelState, NewerState, PacerState};
use crate::time::Instant;

/// The shortest estimate of a wait for other pacers.
pub(super) const SHORT: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// When this pacer yielded; none while it has the turn.
    yielded: Option<Instant>,
    /// How many calls this pacer had sent when its turn began.
    sends: u64,
    /// The totals as of the last export of the windows.
    exported: Option<Totals>,
    /// The parts of tiers that others had counted in this turn.
    shared_parts: Vec<Arc<str>>,
}

impl Turn {
    /// When the turn of another ends is not known: the estimate is that it lasts as long again as it has lasted. So a caller that
    /// bounds its wait does not wait for ever for a process that hangs.
    #[inline(always)]
    pub(super) fn admit(&self, now: Instant) -> Admit {
        let Some(since) = self.yielded else { return Admit::Now };
        Admit::At { at: now + (now - since).max(SHORT), cause: WaitCause::Turn }
    }

    /// The windows have changed, and the totals have not.
    pub(super) fn windows_changed(&mut self) {
        self.exported = None;
    }
}

impl Pacer {
    /// Grants nothing until [`take_turn`](Self::take_turn): another pacer of the account may use what the limits have left.
    pub fn yield_turn(&mut self, now: Instant) {
        let now = self.advance(now);
        self.turn.yielded.get_or_insert(now);
        self.pump(now);
    }

    /// Grants calls again. `others` are the [`own_windows`](Self::own_windows) of every other pacer, with the age of each: they
    /// replace those of the last turn and count beside the calls of this pacer. Where no two pacers have the turn at once, and
    /// each exports its windows after it has yielded, no window holds more than its limit over all pacers.
    ///
    /// # Errors
    /// A value of a later version than this pacer knows; then nothing has changed, and this pacer does not have the turn.
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
        self.share_parts(now, others);
        (self.turn.yielded, self.turn.sends) = (None, self.totals.sends);
        self.pump(now);
        Ok(())
    }

    /// The same for the parts of tiers, of which there may be many: those that others have counted, now or in the last turn.
    fn share_parts(&mut self, now: Instant, others: &[(PacerState, Duration)]) {
        let mut parts: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        let before = core::mem::take(&mut self.turn.shared_parts);
        parts.extend(before.iter().map(|name| (&**name, Vec::new())));
        for (state, since) in others {
            for level in state.scopes.iter().filter(|level| is_part(&level.name, &self.tiers)) {
                parts.entry(&*level.name).or_default().push((&*level.windows, *since));
            }
        }
        for (name, windows) in parts {
            if !windows.is_empty() {
                self.turn.shared_parts.push(name.into());
            } else if self.scopes.named(name).is_none() {
                continue;
            }
            let id = self.scope(name);
            self.scopes[&id].share(now, &windows);
        }
    }

    /// When the next request fits, if it waits for room in a window and this pacer has sent none in its turn. A pacer that yields
    /// before that may starve a large request: others take the room as soon as there is some.
    pub fn waits_for_room(&self, now: Instant) -> Option<Instant> {
        let now = now.max(self.now);
        let head = |place: u32| self.head(now, &self.scopes[place]).map(|head| self.ask(head));
        let ready = self.first_ready(now).map(|(_, place)| place);
        let later = self.agenda.later(0).map(|(_, place)| place);
        let starts =
            [ready, later].into_iter().flatten().filter_map(|place| match self.admit_ask(now, place, &head(place)?) {
                Admit::At { at, cause: WaitCause::Quota { .. } } => Some(at),
                _ => None,
            });
        starts.min().filter(|_| self.totals.sends == self.turn.sends)
    }

    /// The units of this pacer's own calls, for the others; none where they have not changed since the last export.
    pub fn own_windows(&mut self, now: Instant) -> Option<PacerState> {
        let now = now.max(self.now);
        if self.turn.exported.as_ref() == Some(&self.totals) {
            return None;
        }
        self.turn.exported = Some(self.totals.clone());
        let level = |name: &str, quotas: &Quotas| {
            let windows = quotas.export_own(now);
            LevelState { name: name.to_string(), windows, ..LevelState::default() }
        };
        let names = self.tiers.keys().chain(&self.tier_parts);
        let tiers = names.filter_map(|name| Some(&self.scopes[self.scopes.named(name)?.place]));
        let scopes = tiers.map(|scope| level(&scope.name, scope.quotas())).filter(|level| !level.is_empty()).collect();
        Some(PacerState { account: level("", &self.quotas), scopes, ..PacerState::default() })
    }
}
