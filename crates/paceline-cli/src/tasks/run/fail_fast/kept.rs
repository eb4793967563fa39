//! How the last items of each scope failed, as the store keeps it: over restarts, and for all of its workers together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::Timestamp;
use paceline_store::work::{Failure, NoteChange, ScopeNote, WorkError, WorkStore};

use super::alikeness;
use crate::stops::alike::{AlikeByScope, Enough, Row, Stops};

/// A stop of another worker is heard of within so many tellings, of which there are one a second or more.
const TELLINGS: u8 = 60;

/// What another worker notes may become visible so much later than its time says.
const LATE: Duration = Duration::from_secs(10);

/// So many changes of a scope are told at a time, the last ones.
const MOST: usize = 200;

/// The scopes of a store, each watched by itself. What happens here counts at once, and is then told to the store, by whose rows
/// the items count that fail in other workers.
#[derive(Debug)]
pub(super) struct KeptRows {
    rows: AlikeByScope<String>,
    /// What the store was not told yet.
    changes: Changes,
    /// Something of that is to be told before long.
    is_urgent: bool,
    /// Until where its rows were read.
    seen: Option<Timestamp>,
    /// Items that the store's row of their scope has no longer, since another worker changed it, and for how many more tellings
    /// they may be of a scope that it has stopped.
    dropped: Vec<(Arc<str>, BTreeSet<String>, u8)>,
}

type Changes = BTreeMap<Arc<str>, Vec<Change>>;

/// What happened in a scope.
#[derive(Clone, Debug)]
enum Change {
    Failed(String, Failure, Option<Arc<str>>),
    EndedOtherwise(Option<Arc<str>>),
    /// It was stopped, or an address of it.
    Taken(Option<Arc<str>>),
    Forgotten,
}

/// A scope or an address of it whose items in all workers are as many as stop it, or that this worker has stopped.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The items that are left for that.
    pub(super) keys: BTreeSet<String>,
    /// The address that is stopped; none where all of the scope is.
    pub(super) address: Option<Arc<str>>,
    /// The failure that stops it, and its item; none where it is stopped already.
    pub(super) stops: Option<(Failure, String)>,
}

impl KeptRows {
    /// A `limit` of 0 switches it off.
    pub(super) const fn new(limit: usize) -> Self {
        let rows = AlikeByScope::of_addresses(limit);
        Self { rows, changes: BTreeMap::new(), is_urgent: false, seen: None, dropped: Vec::new() }
    }

    /// An item failed; returns what has to be stopped. Of one that is not `told` no other worker learns.
    pub(super) fn failed(
        &mut self,
        scope: &Arc<str>,
        item: &str,
        failure: &Failure,
        address: &str,
        is_told: bool,
    ) -> Option<Stops> {
        let before = self.rows.row(scope).cloned();
        let stops = self.rows.failed(scope, item.to_owned(), alikeness(failure), Some(address));
        if is_told && self.rows.row(scope) != before.as_ref() {
            self.note(scope, Change::Failed(item.to_owned(), failure.clone(), Some(address.into())));
        }
        stops
    }

    /// An item ended otherwise.
    pub(super) fn ended_otherwise(&mut self, scope: &Arc<str>, address: &Arc<str>) {
        let before = self.rows.row(scope).cloned();
        self.rows.ended_otherwise(scope, Some(address));
        if self.rows.row(scope) != before.as_ref() {
            self.note(scope, Change::EndedOtherwise(Some(Arc::clone(address))));
        }
    }

    /// The scope is stopped, or an address of it: the items that failed alike last, which are forgotten.
    pub(super) fn take(&mut self, scope: &Arc<str>, address: Option<&Arc<str>>) -> BTreeSet<String> {
        let mut keys = self.rows.take(scope, address.map(|address| &**address));
        if !keys.is_empty() {
            self.note(scope, Change::Taken(address.cloned()));
        }
        let dropped = self.dropped.extract_if(.., |(of, ..)| of == scope);
        dropped.for_each(|(_, mut dropped, _)| keys.append(&mut dropped));
        keys
    }

    /// The scope is watched anew.
    pub(super) fn forget(&mut self, scope: &str) {
        if self.rows.row(scope).is_some() {
            self.rows.forget(scope);
            self.note(&scope.into(), Change::Forgotten);
        }
    }

    pub(super) fn has(&self, item: &String) -> bool {
        self.rows.has(item) || self.dropped.iter().any(|(_, keys, _)| keys.contains(item))
    }

    /// Where all that failed alike last went, if that is one address.
    pub(super) fn address(&self, scope: &str) -> Option<&str> {
        self.rows.row(scope)?.address()
    }

    pub(super) fn are_first(&self, scope: &str) -> bool {
        self.rows.are_first(scope)
    }

    /// Whether the store is to be told of a failure. That a host took an item is told with the next ones, or in a second: there
    /// may be thousands that have not taken one before.
    pub(super) const fn has_news(&self) -> bool {
        self.is_urgent
    }

    fn note(&mut self, scope: &Arc<str>, change: Change) {
        self.is_urgent |= matches!(change, Change::Failed(..) | Change::Taken(_));
        let changes = self.changes.entry(Arc::clone(scope)).or_default();
        changes.push(change);
        changes.drain(..changes.len().saturating_sub(MOST));
    }

    /// Whether scopes are watched.
    pub(super) fn are_watched(&self) -> bool {
        self.rows.enough().is_some()
    }

    /// What is to be told to the store, if there is anything.
    pub(super) fn begin_telling(&mut self) -> Option<Telling> {
        let enough = self.rows.enough()?;
        self.dropped.retain_mut(|(.., left)| {
            *left = left.saturating_sub(1);
            *left > 0
        });
        self.is_urgent = false;
        let changes = std::mem::take(&mut self.changes);
        (!changes.is_empty()).then(|| Telling { enough, changes: Arc::new(changes), told: Arc::default() })
    }

    /// The store was told, or could not be: then it is told again. Returns the scopes that are stopped for what all workers
    /// found.
    pub(super) fn told(&mut self, telling: &Telling, done: bool) -> Vec<(Arc<str>, Found)> {
        if !done {
            for (scope, before) in telling.changes.iter() {
                let since = self.changes.remove(scope).unwrap_or_default();
                self.changes.insert(Arc::clone(scope), before.iter().cloned().chain(since).collect());
            }
            return Vec::new();
        }
        let told = std::mem::take(&mut *telling.told.lock().unwrap_or_else(PoisonError::into_inner));
        let mut found = Vec::new();
        for (scope, (row, of_scope)) in told {
            self.take_over(&scope, row);
            let of_scope = of_scope.into_iter().filter(|found| !found.keys.is_empty());
            found.extend(of_scope.map(|found| (Arc::clone(&scope), found)));
        }
        found
    }

    /// Where the store's rows are to be read from.
    pub(super) fn unread(&self) -> Timestamp {
        let long_ago = Timestamp::from_millis(0);
        self.seen.map_or(long_ago, |seen| Timestamp::from_millis(seen.as_millis() - LATE.as_millis() as i64))
    }

    /// Takes in rows that other workers changed, or earlier runs.
    pub(super) fn read(&mut self, notes: Vec<ScopeNote>) {
        for ScopeNote { scope, text, noted } in notes {
            self.seen = self.seen.max(Some(noted));
            self.take_over(&scope, decode(&text));
        }
    }

    /// The row of the store, and what has happened here since.
    fn take_over(&mut self, scope: &Arc<str>, mut row: Row<String>) {
        if let Some(enough) = self.rows.enough() {
            let since = self.changes.get(scope).into_iter().flatten();
            since.for_each(|change| drop(change.apply(&mut row, enough)));
            let before = std::mem::replace(self.rows.row_mut(scope), row);
            let dropped = self.rows.row(scope).map(|now| before.not_in(now)).unwrap_or_default();
            if !dropped.is_empty() {
                self.dropped.push((Arc::clone(scope), dropped, TELLINGS));
            }
        }
    }
}

/// The rows of the store as they are then, and what was found.
type RowsAndFound = BTreeMap<Arc<str>, (Row<String>, Vec<Found>)>;

/// Changes on their way to the store.
#[derive(Debug)]
pub(super) struct Telling {
    enough: Enough,
    changes: Arc<Changes>,
    told: Arc<Mutex<RowsAndFound>>,
}

impl Telling {
    /// # Errors
    /// An error of the store.
    pub(super) async fn tell(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let (enough, changes, told) = (self.enough, Arc::clone(&self.changes), Arc::clone(&self.told));
        let change: NoteChange = Arc::new(move |scope, text| {
            let (mut row, mut found) = (decode(text), Vec::new());
            for change in changes.get(scope).into_iter().flatten() {
                found.extend(change.apply(&mut row, enough));
            }
            let text = serde_json::to_string(&row).expect("texts and numbers are always JSON");
            told.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.into(), (row, found));
            text
        });
        store.change_notes(self.changes.keys().cloned().collect(), change).await
    }
}

impl Change {
    /// Returns what is stopped.
    fn apply(&self, row: &mut Row<String>, enough: Enough) -> Option<Found> {
        match self {
            Self::Failed(item, failure, address) => {
                let stops = row.failed(enough, item.clone(), alikeness(failure), address.as_deref())?;
                let address = address.clone().filter(|_| stops == Stops::Address);
                let stops = Some((failure.clone(), item.clone()));
                Some(Found { keys: row.take(address.as_deref()), address, stops })
            }
            Self::EndedOtherwise(address) => {
                row.ended_otherwise(address.as_deref());
                None
            }
            Self::Taken(address) => {
                Some(Found { keys: row.take(address.as_deref()), address: address.clone(), stops: None })
            }
            Self::Forgotten => {
                *row = Row::default();
                None
            }
        }
    }
}

/// What cannot be read says nothing.
fn decode(text: &str) -> Row<String> {
    serde_json::from_str(text).unwrap_or_default()
}
