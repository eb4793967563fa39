//! What left of a run since it wrote its counts last, for the run that takes the turn of one that was killed.

use std::path::Path;
use std::sync::Arc;

use paceline::{LevelState, Limiter, LimiterState, PacerState, Quota, TakenState, WindowState, clock};
use paceline_core::{Timestamp, tier_and_part};

use crate::call_notes::{CallNotes, Note};

/// The notes of the runs of an account. A run notes its calls in its turn alone: those that leave after it are in the ledger.
#[derive(Debug)]
pub(super) struct Departed {
    notes: Arc<CallNotes>,
    /// The place of notes that the next counts have which can be written.
    unforgotten: Option<usize>,
    /// Has the limits in force.
    limiter: Limiter,
}

impl Departed {
    /// Those beside the files of an account, under the limits of that limiter.
    pub(super) fn beside(files: &Path, limiter: Limiter) -> Self {
        let notes = CallNotes::beside(files);
        notes.rest();
        Self { notes: Arc::new(notes), unforgotten: None, limiter }
    }

    /// Notes each call of a run as it leaves, while it [has](Self::begin) the turn.
    pub(super) fn follow(&self, run: &str) {
        let (run, notes) = (run.to_owned(), Arc::clone(&self.notes));
        self.limiter.note_departures(move |request| notes.add(&key(&run, request.scope.name()), &request.cost));
    }

    /// What that run noted, but for what is in the counts that it wrote: the files may have it still.
    pub(super) fn of(&self, run: &str, counted_until: Option<Timestamp>) -> LimiterState {
        let notes = self.notes.read();
        let is_left = |(_, note): &(&str, &Note)| counted_until.is_none_or(|until| note.at() >= until);
        let notes: Vec<_> = notes_of(run, &notes).filter(is_left).collect();
        let mut pacer = PacerState::default();
        let config = self.limiter.config();
        pacer.account.windows = windows(&config.limits.quotas, notes.iter().map(|(_, note)| *note));
        for (tier, limits) in &config.tiers {
            let mut scopes: Vec<&str> =
                notes.iter().map(|(scope, _)| *scope).filter(|scope| counts_in(tier, scope)).collect();
            scopes.sort_unstable();
            scopes.dedup();
            // Each part of a tier has its limits for itself.
            pacer.scopes.extend(scopes.into_iter().map(|scope| {
                let of_it = notes.iter().filter(|(of, _)| *of == scope).map(|(_, note)| *note);
                LevelState { name: scope.to_owned(), windows: windows(&limits.quotas, of_it), ..LevelState::default() }
            }));
        }
        LimiterState { at: clock::wall(), pacer }
    }

    /// The turn begins: calls are noted.
    pub(super) fn begin(&mut self) {
        self.unforgotten = None;
        self.notes.go_on();
    }

    /// There is no turn any more, and the files are those of others.
    pub(super) fn rest(&mut self) {
        self.unforgotten = None;
        self.notes.rest();
    }

    /// What is noted from now on is after the counts that are made next, unless those before them could not be written.
    pub(super) fn turn(&mut self) {
        self.unforgotten = self.unforgotten.or_else(|| self.notes.turn());
    }

    /// The counts are written: what was noted before them is in them.
    pub(super) fn forget(&mut self) {
        self.unforgotten.take().into_iter().for_each(|place| self.notes.forget(place));
    }

    /// All that was noted is in the ledger.
    pub(super) fn clear(&mut self) {
        self.unforgotten = None;
        self.notes.clear();
    }
}

impl Drop for Departed {
    /// The limiter may go on under other limits, or in a fleet.
    fn drop(&mut self) {
        self.notes.rest();
    }
}

/// What the calls of a run in a scope are noted under.
fn key(run: &str, scope: &str) -> String {
    format!("{run} {scope}")
}

/// The notes of a run, each with the scope of its call.
pub(super) fn notes_of<'a>(run: &str, notes: &'a [Note]) -> impl Iterator<Item = (&'a str, &'a Note)> {
    notes.iter().filter_map(move |note| Some((note.key.strip_prefix(run)?.strip_prefix(' ')?, note)))
}

fn counts_in(tier: &str, scope: &str) -> bool {
    scope == tier || tier_and_part(scope).is_some_and(|(of, _)| of == tier)
}

/// The units of notes under limits, all as of the last of them.
fn windows<'a>(quotas: &[Quota], notes: impl Iterator<Item = &'a Note> + Clone) -> Vec<WindowState> {
    let now = clock::wall();
    let Some(ago) = notes.clone().map(|note| now.saturating_since(note.at())).min() else { return Vec::new() };
    let counted = quotas.iter().map(|quota| {
        let units = notes.clone().filter_map(|note| note.units(&quota.dimension)).fold(0, u64::saturating_add);
        WindowState { quota: quota.clone(), taken: vec![TakenState { ago, units }] }
    });
    counted.filter(|window| window.taken.iter().any(|taken| taken.units > 0)).collect()
}
