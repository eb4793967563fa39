//! An in-memory index of the first waiting item of each scope, so that a claim reads only the scopes that it takes from.
//!
//! An entry is never later than the item that really is first, so no item is forgotten. It may be earlier: then the scope is
//! read in vain, and the entry is corrected.

use std::collections::{BTreeSet, HashMap};

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::scope::{Scope, account, by_id, opens};

/// The earliest retry of a scope.
const NEXT_RETRY: &str = "SELECT min(not_before_ms) FROM item WHERE state = 0 AND scope = ?1 AND not_before_ms > 0";

/// Retries whose time has come. `state = 0` stands there as in the index, which is then sorted already.
pub(crate) const DUE_RETRIES: &str = "SELECT id, not_before_ms, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms > 0 AND not_before_ms <= ?2
     ORDER BY not_before_ms, crash_attempts, id LIMIT ?3";

/// Items that wait for nothing: never tried, then interrupted by crashes.
pub(crate) const DUE_FRESH: &str = "SELECT id, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms = 0
     ORDER BY crash_attempts, id LIMIT ?2";

/// Those of them that one crash interrupted: they keep their place in the input. From the second crash on an item may be what
/// kills the process, so it goes behind the others.
pub(crate) const INTERRUPTED: &str = "SELECT id, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms = 0 AND crash_attempts = 1
     ORDER BY id LIMIT ?2";

/// The place of an item in a claim: retries before fresh ones, then by due time, then behind after several crashes, then by
/// id.
pub(crate) type Place = (bool, i64, i64, i64);

/// Read from the tables when first needed, and again after [`invalidate`](Self::invalidate).
#[derive(Debug, Default)]
pub(crate) struct Heads {
    known: bool,
    /// Due times.
    pub(crate) retries: Firsts<i64>,
    /// Of items without a due time: crashes from the second on, and id.
    pub(crate) fresh: Firsts<(i64, i64)>,
}

/// The first key of each scope, and the scopes in the order of these keys.
#[derive(Debug)]
pub(crate) struct Firsts<K> {
    of: HashMap<i64, K>,
    order: BTreeSet<(K, i64)>,
}

impl<K> Default for Firsts<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Firsts<K> {
    pub(crate) fn set(&mut self, scope: i64, first: Option<K>) {
        let before = match first {
            Some(first) => self.of.insert(scope, first),
            None => self.of.remove(&scope),
        };
        if before != first {
            self.order.extend(first.map(|first| (first, scope)));
            before.map(|before| self.order.remove(&(before, scope)));
        }
    }

    /// An item waits that may come before the first.
    pub(crate) fn lower(&mut self, scope: i64, to: K) {
        if self.of.get(&scope).is_none_or(|first| to < *first) {
            self.set(scope, Some(to));
        }
    }

    pub(crate) fn of(&self, scope: i64) -> Option<K> {
        self.of.get(&scope).copied()
    }

    /// The scopes in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, i64)> {
        self.order.iter().copied()
    }
}

impl Heads {
    /// Items were changed without an update of this index.
    pub(crate) fn invalidate(&mut self) {
        *self = Self::default();
    }

    /// An item of a scope waits again.
    pub(crate) fn add(&mut self, scope: i64, not_before: i64, id: i64) {
        match not_before {
            ..=0 => self.fresh.lower(scope, (0, id)),
            1.. => self.retries.lower(scope, not_before),
        }
    }

    /// Reads the index from the tables, unless that was done.
    pub(crate) fn read(&mut self, conn: &Connection, scopes: &[Scope]) -> rusqlite::Result<()> {
        if !self.known {
            for scope in scopes {
                let first = due(conn, scope.id, None, true, 1)?.first().map(|(_, _, crashes, id)| (*crashes, *id));
                self.fresh.set(scope.id, first);
                self.read_retries(conn, scope.id)?;
            }
            self.known = true;
        }
        Ok(())
    }

    pub(crate) fn read_retries(&mut self, conn: &Connection, scope: i64) -> rusqlite::Result<()> {
        let first = conn.prepare_cached(NEXT_RETRY)?.query_row([scope], |row| row.get(0))?;
        self.retries.set(scope, first);
        Ok(())
    }

    /// A claim took items of a scope: `next` is the first that is left; none if there is no other.
    pub(crate) fn claimed(&mut self, scope: i64, next: Option<Place>) {
        match next {
            Some((true, _, crashes, id)) => self.fresh.set(scope, Some((crashes, id))),
            // Due retries come before the first item without a due time, so that is not known.
            Some((false, ..)) => {}
            None => self.fresh.set(scope, None),
        }
    }

    /// The earliest that a waiting item may start, its scope and the account permitting, and that scope.
    pub(crate) fn next_due(&self, scopes: &[Scope]) -> Option<(Timestamp, i64)> {
        let account = opens(account(scopes))?;
        let fresh = self.fresh.iter().map(|(_, scope)| (0, scope));
        let mut earliest: Option<(Timestamp, i64)> = None;
        for (first, scope) in fresh.chain(self.retries.iter()) {
            let first = account.max(Timestamp::from_millis(first));
            if earliest.is_some_and(|(earliest, _)| earliest <= first) {
                break;
            }
            let opens = by_id(scopes, scope).and_then(|scope| opens(&scope.row.state));
            earliest = earliest.into_iter().chain(opens.map(|opens| (opens.max(first), scope))).min();
        }
        earliest
    }
}

/// The first of what is due in a scope: retries whose time has come `until` then, and, where what is new `may_begin`, behind
/// them what waits for nothing.
pub(crate) fn due(
    conn: &Connection,
    scope: i64,
    until: Option<Timestamp>,
    may_begin: bool,
    limit: usize,
) -> rusqlite::Result<Vec<Place>> {
    let mut places = Vec::new();
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    if let Some(until) = until {
        let mut retries = conn.prepare_cached(DUE_RETRIES)?;
        let mut rows = retries.query(params![scope, until.as_millis(), most])?;
        while let Some(row) = rows.next()? {
            places.push((false, row.get(1)?, row.get(2)?, row.get(0)?));
        }
    }
    for fresh in [INTERRUPTED, DUE_FRESH].into_iter().filter(|_| may_begin) {
        let mut fresh = conn.prepare_cached(fresh)?;
        let mut rows = fresh.query(params![scope, most])?;
        while let Some(row) = rows.next()? {
            places.push((true, 0, row.get::<_, i64>(1)?.saturating_sub(1).max(0), row.get(0)?));
        }
    }
    places.sort_unstable();
    places.dedup();
    places.truncate(limit);
    Ok(places)
}
