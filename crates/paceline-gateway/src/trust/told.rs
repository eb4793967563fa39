//! Waits of up to a minute that clients were told: how long the others wait, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Instant;

/// Up to so long a wait is soon over: no one is believed about another one than the present.
pub(super) const SHORT: Duration = Duration::from_secs(60);

/// Where one client alone was told to wait, the others wait for a sixth of it, and where two were for a third: one that asks for
/// waits again and again leaves them five sixths of the time. What three were told is a wait of all.
const PARTS: [u32; 3] = [6, 3, 1];

/// So many places are kept: clients choose the names of scopes. In others each client counts as the first.
const MOST: usize = 1_000;

/// The clients that were told to wait, by scope, or in the account.
#[derive(Debug, Default)]
pub(super) struct Told {
    some: AtomicBool,
    places: Mutex<BTreeMap<Option<Arc<str>>, Clients>>,
}

/// They were told one after another, and no call of another one has passed since.
#[derive(Debug)]
struct Clients {
    /// Three at the most.
    clients: Vec<u64>,
    /// When the last of them was told so, ...
    since: Instant,
    /// ... and when the last of these waits is over.
    until: Instant,
}

impl Told {
    /// For how long all wait, where that client was told to wait so long. Of two clients in all (`has_thirds` is none of them)
    /// each is half of all.
    pub(super) fn for_all(
        &self,
        place: Option<&Arc<str>>,
        client: u64,
        wait: Duration,
        now: Instant,
        has_thirds: bool,
    ) -> Duration {
        let mut places = self.places();
        places.retain(|_, told| told.until > now);
        let place = place.cloned();
        let mut clients = if places.len() < MOST || places.contains_key(&place) {
            let none = || Clients { clients: Vec::new(), since: now, until: now };
            let told = places.entry(place).or_insert_with(none);
            if !told.clients.contains(&client) && told.clients.len() < PARTS.len() {
                told.clients.push(client);
            }
            (told.since, told.until) = (now, told.until.max(now + wait));
            told.clients.len()
        } else {
            1
        };
        self.some.store(true, Ordering::Relaxed);
        if clients == 2 && !has_thirds {
            clients = PARTS.len();
        }
        wait / PARTS[clients - 1]
    }

    /// A call of that client has passed in that scope, which left then: what others were told is theirs.
    pub(super) fn passed(&self, scope: &Arc<str>, client: Option<u64>, sent: Instant) {
        let Some(client) = client.filter(|_| self.some.load(Ordering::Relaxed)) else { return };
        let mut places = self.places();
        places.retain(|place, told| {
            let is_elsewhere = place.as_ref().is_some_and(|place| place != scope);
            is_elsewhere || sent < told.since || told.clients.contains(&client)
        });
        self.some.store(!places.is_empty(), Ordering::Relaxed);
    }

    /// Forgets them all.
    pub(super) fn forget(&self) {
        self.places().clear();
        self.some.store(false, Ordering::Relaxed);
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Option<Arc<str>>, Clients>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_three_clients_were_told_is_a_wait_of_all_unless_a_call_of_another_passed() {
        let (told, scope) = (Told::default(), Arc::from("m"));
        let of = |client, second| told.for_all(Some(&scope), client, WAIT, at(second), true).as_secs();
        assert_eq!([of(1, 0), of(1, 1), of(1, 29)], [5; 3], "one alone, however often");
        assert_eq!([of(2, 30), of(1, 31), of(3, 32), of(4, 33), of(1, 34)], [10, 10, 30, 30, 30]);
        told.passed(&scope, Some(2), at(35));
        told.passed(&Arc::from("other"), Some(5), at(35));
        told.passed(&scope, Some(5), at(33));
        told.passed(&scope, None, at(35));
        assert_eq!(of(1, 36), 30, "one of them, another scope, one that left before, one without a key");
        told.passed(&scope, Some(5), at(36));
        assert_eq!([of(1, 37), of(2, 37)], [5, 10]);
        assert_eq!(of(3, 68), 5, "the waits of the others are over");
    }

    #[test]
    fn two_clients_that_are_all_are_believed() {
        let (told, scope) = (Told::default(), Arc::from("m"));
        let of = |client| told.for_all(Some(&scope), client, WAIT, at(0), false).as_secs();
        assert_eq!([of(1), of(2)], [5, 30]);
    }

    #[test]
    fn a_call_of_any_scope_speaks_of_a_wait_of_the_account_and_names_take_no_memory_without_end() {
        let told = Told::default();
        let of = |place: Option<&Arc<str>>| told.for_all(place, 1, WAIT, at(0), true).as_secs();
        assert_eq!(of(None), 5);
        told.passed(&Arc::from("m"), Some(2), at(1));
        assert!(told.places().is_empty());
        (0..3 * MOST).for_each(|name| assert_eq!(of(Some(&Arc::from(name.to_string()))), 5));
        assert_eq!(told.places().len(), MOST);
    }
}
