//! What left of a run since it wrote its counts last, for the run that takes the turn of one that was killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use paceline::{LevelState, Limiter, LimiterState, PacerConfig, PacerState, Quota, TakenState, WindowState, clock};
use paceline_core::tier_and_part;

use crate::call_notes::{CallNotes, Note};

/// The notes of the runs of an account. Of those that have no turn they are superfluous, and go with the others: the ledger has
/// these calls already.
#[derive(Debug)]
pub(super) struct Departed {
    notes: Arc<CallNotes>,
    /// The limits of the account, whose name is empty, and of tiers.
    levels: Vec<(Arc<str>, Vec<Quota>)>,
}

impl Departed {
    /// Those beside the files of an account, under these limits.
    pub(super) fn beside(files: &Path, config: &PacerConfig) -> Self {
        let account = (Arc::from(""), config.limits.quotas.clone());
        let tiers = config.tiers.iter().map(|(name, limits)| (Arc::clone(name), limits.quotas.clone()));
        let levels: Vec<_> = std::iter::once(account).chain(tiers).collect();
        let quotas = levels.iter().flat_map(|(_, quotas)| quotas);
        let counted: BTreeSet<_> = quotas.map(|quota| quota.dimension.clone()).collect();
        Self { notes: Arc::new(CallNotes::beside(files).counting(counted.into_iter().collect())), levels }
    }

    /// Notes from now on each call of a run, as it leaves.
    pub(super) fn follow(&self, run: &str, limiter: &Limiter) {
        let (run, notes) = (run.to_owned(), Arc::clone(&self.notes));
        limiter.note_departures(move |request| notes.add(&format!("{run} {}", request.scope.name()), &request.cost));
    }

    /// What that run noted.
    pub(super) fn of(&self, run: &str) -> LimiterState {
        let notes = self.notes.read();
        let notes: Vec<_> =
            notes.iter().filter_map(|note| Some((note.key.strip_prefix(run)?.strip_prefix(' ')?, note))).collect();
        let mut pacer = PacerState::default();
        for (level, quotas) in &self.levels {
            let mut scopes: Vec<&str> =
                notes.iter().map(|(scope, _)| *scope).filter(|scope| counts_in(level, scope)).collect();
            scopes.sort_unstable();
            scopes.dedup();
            if level.is_empty() {
                pacer.account.windows = windows(quotas, notes.iter().map(|(_, note)| *note));
                continue;
            }
            // Each part of a tier has its limits for itself.
            pacer.scopes.extend(scopes.into_iter().map(|scope| {
                let of_it = notes.iter().filter(|(of, _)| *of == scope).map(|(_, note)| *note);
                LevelState { name: scope.to_owned(), windows: windows(quotas, of_it), ..LevelState::default() }
            }));
        }
        LimiterState { at: clock::wall(), pacer }
    }

    /// What is noted from now on is after the counts that are made next. Returns the place of what was noted before.
    pub(super) fn turn(&self) -> Option<usize> {
        self.notes.turn()
    }

    /// The counts are written: what was noted before them is in them.
    pub(super) fn forget(&self, place: Option<usize>) {
        place.into_iter().for_each(|place| self.notes.forget(place));
    }

    /// All that was noted is in the ledger.
    pub(super) fn clear(&self) {
        self.notes.clear();
    }
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
