//! Refusals without a time that one client gets again and again while calls of the others pass: they are of a limit of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Instant;

/// So many calls of others have to pass in the scope since the client was refused first, none refused and none of its own passed:
/// a limit that they share refuses calls of each of them.
const PASSED: u32 = 3;

/// The client waits for so long then, and twice as long each time, ...
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// ... up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A row of refusals ends with so long a pause.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// So many scopes and so many clients of each are kept: clients choose the names.
const MOST: usize = 1_000;
const MOST_CLIENTS: usize = 100;

/// Clients that are refused in a row, by scope.
#[derive(Debug, Default)]
pub(super) struct Own {
    some: AtomicBool,
    scopes: Mutex<BTreeMap<Arc<str>, Vec<Row>>>,
}

/// Refusals of one client, between which no call of it passed.
#[derive(Debug)]
struct Row {
    client: u64,
    /// Calls of others that have left since count.
    since: Instant,
    passed: u32,
    last: Instant,
    wait: Duration,
}

impl Own {
    /// A call of that client was refused at `now`, and no time was named. For how long the client alone is to wait, where that is
    /// its own matter.
    pub(super) fn refused(&self, scope: &Arc<str>, client: u64, now: Instant) -> Option<Duration> {
        let mut scopes = self.scopes();
        scopes.retain(|_, rows| {
            rows.retain(|row| now - row.last <= FORGOTTEN);
            !rows.is_empty()
        });
        self.some.store(true, Ordering::Relaxed);
        if scopes.len() >= MOST && !scopes.contains_key(scope) {
            return None;
        }
        let rows = scopes.entry(Arc::clone(scope)).or_default();
        let Some(row) = rows.iter_mut().find(|row| row.client == client) else {
            // It may be that of all: what passed before says nothing of now.
            rows.iter_mut().for_each(|row| (row.since, row.passed) = (now, 0));
            if rows.len() < MOST_CLIENTS {
                rows.push(Row { client, since: now, passed: 0, last: now, wait: FIRST_WAIT });
            }
            return None;
        };
        row.last = now;
        let next = (row.wait * 2).min(LONGEST_WAIT);
        (row.passed >= PASSED).then(|| std::mem::replace(&mut row.wait, next))
    }

    /// A call of that client has passed, which left then.
    pub(super) fn passed(&self, scope: &Arc<str>, client: u64, sent: Instant) {
        if !self.some.load(Ordering::Relaxed) {
            return;
        }
        let mut scopes = self.scopes();
        if let Some(rows) = scopes.get_mut(scope) {
            rows.retain(|row| row.client != client);
            rows.iter_mut().filter(|row| sent >= row.since).for_each(|row| row.passed = row.passed.saturating_add(1));
            if rows.is_empty() {
                scopes.remove(scope);
            }
        }
        self.some.store(!scopes.is_empty(), Ordering::Relaxed);
    }

    /// Forgets them all.
    pub(super) fn forget(&self) {
        self.scopes().clear();
        self.some.store(false, Ordering::Relaxed);
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Vec<Row>>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// Of calls each is that of a client at a second, and passes or not; for how long those that do not are to wait alone.
    fn waits(calls: &[(u64, u64, bool)]) -> Vec<Option<u64>> {
        let (own, scope) = (Own::default(), Arc::from("m"));
        let each = calls.iter().filter_map(|(client, second, passes)| match passes {
            true => {
                own.passed(&scope, *client, at(*second));
                None
            }
            false => Some(own.refused(&scope, *client, at(*second)).map(|wait| wait.as_secs())),
        });
        each.collect()
    }

    #[test]
    fn who_is_refused_again_and_again_while_others_pass_has_a_limit_of_its_own() {
        let others = |second| [(2, second, true), (3, second, true), (2, second, true)];
        let calls = [&[(1, 0, false), (1, 1, false)][..], &others(2), &[(1, 3, false), (1, 4, false), (1, 5, false)]];
        assert_eq!(waits(&calls.concat()), [None, None, Some(1), Some(2), Some(4)]);
        let row = (6..20).map(|second| (1, second, false));
        let long: Vec<_> = calls.concat().into_iter().chain(row).collect();
        assert_eq!(waits(&long).last(), Some(&Some(60)));
    }

    #[test]
    fn a_limit_that_clients_share_is_one_of_all() {
        let pass = |client, second| (client, second, true);
        // A call of its own passed in between.
        assert_eq!(
            waits(&[(1, 0, false), pass(2, 1), pass(2, 1), pass(2, 1), pass(1, 2), (1, 3, false), (1, 4, false)]),
            [None; 3]
        );
        // Another one is refused, too.
        let both = [(1, 0, false), pass(2, 1), pass(2, 1), pass(2, 1), (2, 2, false), (1, 3, false), (2, 4, false)];
        assert_eq!(waits(&both), [None; 4]);
        // They left before, or came long before.
        assert_eq!(waits(&[(1, 5, false), pass(2, 4), pass(2, 4), pass(2, 4), (1, 6, false)]), [None; 2]);
        assert_eq!(waits(&[(1, 0, false), pass(2, 1), pass(2, 1), pass(2, 1), (1, 200, false)]), [None; 2]);
    }

    #[test]
    fn two_clients_of_a_tier_have_a_limit_of_theirs() {
        let pass = |second| [(3, second, true); 3];
        let calls = [&[(1, 0, false), (2, 1, false)][..], &pass(2), &[(1, 3, false), (2, 4, false)]];
        assert_eq!(waits(&calls.concat()), [None, None, Some(1), Some(1)]);
    }

    #[test]
    fn names_take_no_memory_without_end() {
        let own = Own::default();
        (0..3 * MOST).for_each(|name| assert_eq!(own.refused(&Arc::from(name.to_string()), 1, at(0)), None));
        (0..3 * MOST_CLIENTS as u64).for_each(|client| _ = own.refused(&Arc::from("0"), client, at(0)));
        let (scopes, clients) = {
            let scopes = own.scopes();
            (scopes.len(), scopes["0"].len())
        };
        assert_eq!((scopes, clients), (MOST, MOST_CLIENTS));
        assert_eq!(own.refused(&Arc::from("new"), 1, at(500)), None);
        assert_eq!(own.scopes().len(), 1, "the others are forgotten");
    }
}
