//! The network between a fleet's processes and its store.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::fleet::{BoardReply, MemberRequest, Note, SyncReply};
use paceline_core::{Instant, Rng};

/// A message that takes its time takes so many times as long as the others: it is overtaken, and comes after it was given up.
const SLOW: f64 = 12.0;

/// What happens to messages and clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weather {
    /// The share of messages that are lost.
    pub(crate) loss: f64,
    /// The share that comes twice, and the share that takes twelve times as long.
    pub(crate) doubled: f64,
    /// The longest time that the others take.
    pub(crate) delay: Duration,
    /// Clocks of processes run up to this share faster or slower.
    pub(crate) drift: f64,
}

impl Weather {
    /// Nothing is lost, and a message takes at most 4 ms.
    pub(crate) const FAIR: Self = Self { loss: 0.0, doubled: 0.0, delay: Duration::from_millis(4), drift: 0.0 };
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Request(MemberRequest),
    /// To the request of that number; none to a bye.
    Reply(u64, Option<SyncReply>),
    Answered(BoardReply),
    Note(Note),
    Hint,
}

/// Messages under way, by the process that they come from or go to.
pub(crate) struct Network {
    weather: Weather,
    rng: Rng,
    sent: u64,
    under_way: BTreeMap<(Instant, u64), (Option<u64>, usize, Message)>,
}

impl Network {
    pub(crate) const fn new(weather: Weather, seed: u64) -> Self {
        Self { weather, rng: Rng::new(seed), sent: 0, under_way: BTreeMap::new() }
    }

    /// When the next message arrives.
    pub(super) fn next(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((due, _), _)| *due)
    }

    /// Sends a message on a connection to that run of the store.
    pub(super) fn send(&mut self, now: Instant, run: u64, place: usize, message: &Message) {
        let Weather { loss, doubled, delay, .. } = self.weather;
        let copies = if self.rng.unit() < doubled { 2 } else { 1 };
        for _ in 0..copies {
            let lost = self.rng.unit() < loss;
            let factor = if self.rng.unit() < doubled { SLOW } else { 1.0 };
            let due = now + delay.mul_f64(self.rng.unit() * factor) + Duration::from_nanos(1);
            if !lost {
                self.put(due, Some(run), place, message.clone());
            }
        }
    }

    /// A message that has arrived is read later.
    pub(super) fn keep(&mut self, until: Instant, place: usize, message: Message) {
        self.put(until, None, place, message);
    }

    /// The next message that arrives by now, on a connection to that run of the store.
    pub(super) fn arrives(&mut self, now: Instant, run: u64) -> Option<(usize, Message)> {
        loop {
            let first = self.under_way.first_entry().filter(|first| first.key().0 <= now)?;
            let (of, place, message) = first.remove();
            if of.is_none_or(|of| of == run) {
                return Some((place, message));
            }
        }
    }

    fn put(&mut self, due: Instant, run: Option<u64>, place: usize, message: Message) {
        self.sent += 1;
        self.under_way.insert((due, self.sent), (run, place, message));
    }
}
