//! How much a gateway holds, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_http::gateway::LONGEST_HOLD;
use tokio::sync::Semaphore;

use crate::bodies::Bodies;
use crate::files::Files;

/// The bounds of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// How long a request may wait here where it names no deadline of its own. Default: 240 s, less than the 300 s after which
    /// Node.js gives up on the head of an answer.
    pub deadline: Duration,
    /// The most requests that wait for one upstream; further ones are refused. Default: 10,000.
    pub queue: usize,
    /// A larger body of a request is passed on as it comes, and sent once. Default: 32 MiB.
    pub largest_body: usize,
    /// The most bytes of bodies that are held at once; further requests are refused. Default: 512 MiB.
    pub held_bytes: u64,
    /// The longest time until the head of a request has come; a connection on which there is no request is closed after that, or
    /// an eighth later. Default: 30 s.
    pub slowest_head: Duration,
    /// In each such time 256 KiB of a request's body must come, or its end. Default: 30 s.
    pub slowest_body: Duration,
    /// The longest time until the head of an answer comes. Default: 600 s.
    pub first_byte: Duration,
    /// The longest time without a byte of an answer that has begun. Default: 300 s.
    pub idle: Duration,
    /// The longest time in which a client reads nothing of an answer that waits for it. Then, or an eighth later, the call is
    /// cancelled and its place is free. Default: 120 s.
    pub unread: Duration,
    /// How long answers under way may take once the gateway ends. Default: 30 s.
    pub drain: Duration,
    /// How long requests that wait for their turn go on waiting once the gateway ends; then they are refused. Default: 10 s.
    pub drain_held: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            deadline: LONGEST_HOLD,
            queue: 10_000,
            largest_body: 32 << 20,
            held_bytes: 512 << 20,
            slowest_head: seconds(30),
            slowest_body: seconds(30),
            first_byte: seconds(600),
            idle: seconds(300),
            unread: seconds(120),
            drain: seconds(30),
            drain_held: seconds(10),
        }
    }
}

/// Something that is looked at now and then, until it has stood still for long enough. What changes often so costs no timer and
/// no reading of a clock at each change.
#[derive(Debug, Default)]
pub(crate) struct Still(u32);

impl Still {
    /// So many looks in the longest time, which is exceeded by one of these parts at most.
    const LOOKS: u32 = 8;

    /// How long after the last look the next one comes.
    pub(crate) fn next_look(longest: Duration) -> Duration {
        longest / Self::LOOKS
    }

    /// Whether it has now stood still for so long, at each look.
    pub(crate) const fn stands(&mut self, is_as_before: bool) -> bool {
        self.0 = if is_as_before { self.0 + 1 } else { 0 };
        self.0 >= Self::LOOKS
    }
}

/// What requests hold of the process.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) bodies: Bodies,
    pub(crate) files: Files,
}

/// A number of things that are held, under a bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<AtomicU64>);

impl Held {
    /// Takes room for so many more; none where that would exceed the bound.
    pub(crate) fn take(&self, amount: u64, most: u64) -> Option<Room> {
        self.adds(amount, most).then(|| Room { held: Some(self.clone()), amount })
    }

    fn adds(&self, amount: u64, most: u64) -> bool {
        let fits = |held: u64| held.checked_add(amount).filter(|sum| *sum <= most);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of one client: its documents are made one after another.
#[derive(Clone, Debug)]
pub(crate) struct Turn(pub(crate) Arc<Semaphore>);

impl Default for Turn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// How much one client may hold of what all may hold `most` of, and hold `all` of now: so many `times` as much as is free. So one
/// alone leaves some to the others, and two leave less (dynamic thresholds: Choudhury and Hahne, 1998).
pub(crate) const fn share(all: u64, most: u64, times: u64) -> u64 {
    times.saturating_mul(most.saturating_sub(all))
}

/// Room that is taken until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// None of nothing: each request has several of these, which take no memory.
    held: Option<Held>,
    amount: u64,
}

impl Room {
    /// Takes room for so many more; false where that would exceed the bound.
    pub(crate) fn grow(&mut self, amount: u64, most: u64) -> bool {
        let grows = self.held.get_or_insert_default().adds(amount, most);
        self.amount += if grows { amount } else { 0 };
        grows
    }

    /// How many there are of that.
    pub(crate) fn count(&self) -> u64 {
        self.held.as_ref().map_or(0, Held::count)
    }

    /// Gives it back where all hold more than so many; whether it did.
    pub(crate) fn give_back_above(&mut self, most: u64) -> bool {
        let Some(held) = &self.held else { return false };
        let left = |held: u64| (held > most).then(|| held - self.amount);
        let gives = held.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok();
        if gives {
            self.amount = 0;
        }
        gives
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.0.fetch_sub(self.amount, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_up_to_the_bound_and_comes_back() {
        let held = Held::default();
        let first = held.take(6, 10).expect("there is room");
        assert!(held.take(5, 10).is_none() && held.take(u64::MAX, 10).is_none());
        let second = held.take(4, 10).expect("there is room");
        assert_eq!(held.count(), 10);
        drop(first);
        let mut second = second;
        assert!(!second.grow(7, 10) && second.grow(6, 10) && held.count() == 10);
        drop(second);
        assert_eq!(held.count(), 0);
    }

    #[test]
    fn room_of_nothing_takes_no_memory_and_grows_all_the_same() {
        let mut nothing = Room::default();
        assert!(nothing.held.is_none() && nothing.count() == 0 && !nothing.give_back_above(0));
        assert!(nothing.grow(3, 4) && !nothing.grow(2, 4) && nothing.count() == 3);
    }

    #[test]
    fn room_above_a_share_is_given_back_until_the_share_is_left() {
        let held = Held::default();
        let mut rooms: Vec<_> = (0..10).filter_map(|_| held.take(1, 10)).collect();
        let given = rooms.iter_mut().map(|room| room.give_back_above(3)).filter(|gives| *gives).count();
        assert_eq!((given, held.count()), (7, 3));
        drop(rooms);
        assert_eq!(held.count(), 0, "none is given back twice");
    }
}
