//! Which of the requests behind all others comes forward, so that they do not wait for ever.

use alloc::collections::BTreeSet;
use core::cmp::Reverse;

use super::Pacer;
use crate::background::Ask;
use crate::queue::Place;
use crate::request::Request;
use crate::slots::Stage;
use crate::time::Instant;

/// The due requests of a priority below 0, by scope, and what the others owe them.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    waiting: BTreeSet<(u32, Place)>,
    /// One may come forward for each whole call.
    owed: f64,
}

impl Behind {
    /// The first request of each scope.
    fn firsts(&self) -> impl Iterator<Item = (u32, Place)> {
        let first = |from| self.waiting.range((from, Place::default())..).next().copied();
        core::iter::successors(first(0), move |(scope, _)| first(scope.checked_add(1)?))
    }
}

impl Pacer {
    /// What a waiting request asks for.
    pub(super) fn ask(&self, place: Place) -> Ask<'_> {
        Ask::at(self.slots.at(place.2).request, place.0.0, &self.config.background)
    }

    /// What a request asks for that is in no queue.
    pub(super) fn ask_of<'a>(&self, request: &'a Request) -> Ask<'a> {
        Ask::at(request, request.priority, &self.config.background)
    }

    /// A request of the scope in that place waits, and is due.
    pub(super) fn falls_behind(&mut self, scope: u32, place: Place) {
        if place.0.0 < 0 && self.config.background.share > 0.0 {
            self.behind.waiting.insert((scope, place));
        }
    }

    /// It waits no more.
    pub(super) fn is_behind_no_more(&mut self, scope: u32, place: Place) {
        if place.0.0 < 0 {
            self.behind.waiting.remove(&(scope, place));
        }
    }

    /// A call left from that place in the queue. While others are behind it, it owes them their share.
    pub(super) fn owes(&mut self, place: Place) {
        if place.0.0 < 0 {
            self.behind.owed = 0.0;
        } else if !self.behind.waiting.is_empty() && self.slots.at(place.2).request.priority >= 0 {
            let share = self.config.background.share;
            self.behind.owed += share / (1.0 - share);
        }
    }

    /// Once a call is owed, the first of those behind that its scope lets wait for nothing but limits comes forward: it keeps its
    /// arrival, and goes as one of priority 0.
    pub(super) fn come_forward(&mut self, now: Instant) {
        if self.behind.owed < 1.0 {
            return;
        }
        self.behind.owed = 0.0;
        let may_come = |(scope, place): &(u32, Place)| {
            let (ask, waits) = (self.ask(*place), &self.scopes[*scope]);
            waits.is_open()
                && waits.in_flight.admit_under(waits.limits().0, &ask).is_now()
                && self.admit_place(now, *scope, &ask).is_now()
        };
        let Some((scope, from)) = self.behind.firsts().filter(may_come).min_by_key(|(_, place)| *place) else { return };
        let to = (Reverse(0), from.1, from.2);
        self.is_behind_no_more(scope, from);
        self.scopes[scope].queue.replace(from, to);
        if let Stage::Waiting { place, .. } = self.slots.at_mut(from.2).1 {
            *place = to;
        }
        self.reschedule(now, scope);
    }
}
