//! Waits of up to a minute that clients were told: how long the others wait, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Instant;

/// A wait of up to so long is soon over, and holds the others for a part of it. A longer one takes witnesses.
pub(super) const SHORT: Duration = Duration::from_secs(60);

/// Where one client alone was told to wait, the others wait for a sixth of it, and where two were for a third: one that asks for
/// waits again and again leaves them five sixths of the time. What three were told is a wait of all.
const PARTS: [u32; 3] = [6, 3, 1];

/// Answers that come so soon after each other are of one refusal: each may ask for a longer wait.
const TOGETHER: Duration = Duration::from_secs(1);

/// For so long a call may have been in flight with one that was refused.
const LONGEST: Duration = Duration::from_secs(600);

/// So many places are kept: clients choose the names of scopes. In others each client counts as the first.
const MOST: usize = 1_000;

/// So many clients of a place are kept.
const MOST_CLIENTS: usize = 100;

/// The clients that were told to wait, by scope, or in the account.
#[derive(Debug, Default)]
pub(super) struct ClientWaits {
    some: AtomicBool,
    places: Mutex<BTreeMap<Option<Arc<str>>, Vec<Waits>>>,
}

/// A client was told to wait.
#[derive(Debug)]
struct Waits {
    client: u64,
    /// When all began to wait for it.
    held: Instant,
    /// When it was told so last.
    told: Instant,
    /// When its wait is over; none once a call of another client has passed.
    until: Option<Instant>,
}

impl ClientWaits {
    /// For how long all wait, where that client was told at `now` to wait so long, by the answer to a call that left at `sent`.
    /// Of two clients in all (`has_thirds` is none of them) each is half of all. None: all have waited for this client since
    /// that call left, and its calls that were in flight together hold up all once.
    pub(super) fn for_all(
        &self,
        place: Option<&Arc<str>>,
        client: u64,
        wait: Duration,
        [sent, now]: [Instant; 2],
        has_thirds: bool,
    ) -> Option<Duration> {
        let mut places = self.places();
        places.retain(|_, clients| {
            clients.retain(|known| known.until.is_some_and(|until| until > now) || known.told + LONGEST > now);
            !clients.is_empty()
        });
        self.some.store(true, Ordering::Relaxed);
        let place = place.cloned();
        if places.len() >= MOST && !places.contains_key(&place) {
            return Some(wait / PARTS[0]);
        }
        let clients = places.entry(place).or_default();
        let waits = Waits { client, held: now, told: now, until: Some(now + wait) };
        let has_room = clients.len() < MOST_CLIENTS;
        match clients.iter_mut().find(|known| known.client == client) {
            Some(known) => {
                let is_new = now > known.held + TOGETHER;
                if is_new && sent < known.held {
                    known.told = now;
                    return None;
                }
                let held = if is_new { now } else { known.held };
                *known = Waits { held, ..waits };
            }
            None if has_room => clients.push(waits),
            None => {}
        }
        let wait_now = clients.iter().filter(|known| known.until.is_some_and(|until| until > now)).count();
        let part = match wait_now {
            2 if !has_thirds => PARTS.len(),
            count => count.clamp(1, PARTS.len()),
        };
        Some(wait / PARTS[part - 1])
    }

    /// A call of that client has passed in that scope, which left then: what others were told is theirs.
    pub(super) fn passed(&self, scope: &Arc<str>, client: Option<u64>, sent: Instant) {
        let Some(client) = client.filter(|_| self.some.load(Ordering::Relaxed)) else { return };
        let mut places = self.places();
        let here = places.iter_mut().filter(|(place, _)| place.as_ref().is_none_or(|place| place == scope));
        for (_, clients) in here {
            let is_one = |known: &Waits| known.client == client && known.until.is_some();
            if !clients.iter().any(is_one) && clients.iter().all(|known| known.told <= sent) {
                clients.iter_mut().for_each(|known| known.until = None);
            }
        }
        self.some.store(!places.is_empty(), Ordering::Relaxed);
    }

    /// Forgets them all.
    pub(super) fn forget(&self) {
        self.places().clear();
        self.some.store(false, Ordering::Relaxed);
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Option<Arc<str>>, Vec<Waits>>> {
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
        let (told, scope) = (ClientWaits::default(), Arc::from("m"));
        let of = |client, second| {
            told.for_all(Some(&scope), client, WAIT, [at(second), at(second)], true).expect("held").as_secs()
        };
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

    /// Else one client holds up all for as long as its slow calls take, one after another.
    #[test]
    fn calls_of_one_client_that_were_in_flight_together_hold_up_all_once() {
        let (told, scope) = (ClientWaits::default(), Arc::from("m"));
        let of =
            |sent, second| told.for_all(Some(&scope), 1, WAIT, [at(sent), at(second)], true).map(|wait| wait.as_secs());
        assert_eq!([of(2, 10), of(2, 11)], [Some(5); 2], "at once");
        told.passed(&scope, Some(2), at(14));
        assert_eq!([of(2, 15), of(3, 39), of(4, 60)], [None; 3], "also once a call of another has passed");
        assert_eq!([of(41, 70), of(42, 80)], [Some(5), None], "it left later than that");
    }

    #[test]
    fn two_clients_that_are_all_are_believed() {
        let (told, scope) = (ClientWaits::default(), Arc::from("m"));
        let of = |client| told.for_all(Some(&scope), client, WAIT, [at(0); 2], false).expect("held").as_secs();
        assert_eq!([of(1), of(2)], [5, 30]);
    }

    #[test]
    fn a_call_of_any_scope_speaks_of_a_wait_of_the_account_and_names_take_no_memory_without_end() {
        let told = ClientWaits::default();
        let of_client = |client| told.for_all(None, client, WAIT, [at(0); 2], true).expect("held").as_secs();
        assert_eq!([of_client(1), of_client(2)], [5, 10]);
        told.passed(&Arc::from("m"), Some(3), at(1));
        assert_eq!(of_client(1), 5);
        let of = |place: Option<&Arc<str>>| told.for_all(place, 1, WAIT, [at(0); 2], true).expect("held").as_secs();
        (0..3 * MOST).for_each(|name| assert_eq!(of(Some(&Arc::from(name.to_string()))), 5));
        assert_eq!(told.places().len(), MOST);
    }
}
