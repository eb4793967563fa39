//! A full snapshot of the limiter, kept up to date by its changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline::{ScopeSnapshot, Snapshot};

/// The limiter's snapshot with all changes so far.
#[derive(Debug, Default)]
pub(crate) struct LiveSnapshot {
    view: Option<Snapshot>,
    places: BTreeMap<Arc<str>, usize>,
}

impl LiveSnapshot {
    /// The scopes; none before the first update.
    pub(crate) fn scopes(&self) -> &[ScopeSnapshot] {
        self.view.as_ref().map_or(&[], |view| &view.scopes)
    }

    /// Applies changes, and returns the full snapshot.
    pub(crate) fn update(&mut self, mut changes: Snapshot) -> &Snapshot {
        let scopes = std::mem::take(&mut changes.scopes);
        match &mut self.view {
            Some(view) => view.account = changes.account,
            none => *none = Some(changes),
        }
        let view = self.view.as_mut().expect("it was just set where there was none");
        for scope in scopes {
            match self.places.get(&scope.name) {
                Some(place) => view.scopes[*place] = scope,
                None => {
                    self.places.insert(scope.name.clone(), view.scopes.len());
                    view.scopes.push(scope);
                }
            }
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Cost, Instant, Pacer, PacerConfig, Request};

    use super::*;

    #[test]
    fn what_is_kept_up_by_changes_is_what_a_whole_look_tells() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let mut standing = LiveSnapshot::default();
        for names in [&[][..], &["a", "b"], &["c", "b"], &["a"]] {
            for name in names {
                let scope = pacer.scope(name);
                pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("small enough");
            }
            assert_eq!(*standing.update(pacer.changes(Instant::ZERO)), pacer.snapshot(Instant::ZERO));
        }
    }
}
