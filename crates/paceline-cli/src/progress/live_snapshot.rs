//! A full snapshot of the limiter, kept up to date by its changes.

use std::collections::{BTreeMap, BTreeSet};
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

    /// The full snapshot; none before the first update.
    pub(crate) const fn latest(&self) -> Option<&Snapshot> {
        self.view.as_ref()
    }

    /// The full snapshot without some of its scopes.
    pub(crate) fn without<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) -> Option<Snapshot> {
        let names: BTreeSet<&Arc<str>> = names.collect();
        let view = self.view.as_ref().filter(|_| !names.is_empty())?;
        let mut rest = view.clone();
        rest.scopes.retain(|scope| !names.contains(&scope.name));
        Some(rest)
    }

    /// Applies changes.
    pub(crate) fn update(&mut self, mut changes: Snapshot) {
        let scopes = std::mem::take(&mut changes.scopes);
        let view = match &mut self.view {
            Some(view) => {
                view.account = changes.account;
                view
            }
            none => none.insert(changes),
        };
        for scope in scopes {
            match self.places.get(&scope.name) {
                Some(place) => view.scopes[*place] = scope,
                None => {
                    self.places.insert(scope.name.clone(), view.scopes.len());
                    view.scopes.push(scope);
                }
            }
        }
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
            standing.update(pacer.changes(Instant::ZERO));
            assert_eq!(standing.latest(), Some(&pacer.snapshot(Instant::ZERO)));
        }
    }
}
