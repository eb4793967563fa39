//! A caller that waited may take late what it was granted: its runtime polls it when a thread has time for it. Its call leaves
//! then, so windows count it from then on; till then they count it as of its grant.
//!
//! What a window has forgotten meanwhile, it has given to others. Then the call needs room again: what is free, or what was
//! granted last to a caller that has not taken it either. So callers that are all late take as much as those in time, and a
//! caller that is never polled keeps nothing from the others.

use alloc::collections::BTreeMap;
use core::num::NonZeroU64;

use super::Pacer;

use crate::queue::Slot;
use crate::request::{Request, Ticket};
use crate::slots::{Entry, Stage};
use crate::time::Instant;

/// What was granted and counts in the windows, in that order, until it is taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Untaken {
    grants: u64,
    slots: BTreeMap<NonZeroU64, Slot>,
}

impl Untaken {
    /// A request was granted. Returns its number.
    fn granted(&mut self, slot: Slot) -> NonZeroU64 {
        let number = NonZeroU64::MIN.saturating_add(self.grants);
        self.grants += 1;
        self.slots.insert(number, slot);
        number
    }

    /// It is taken, or has ended.
    pub(super) fn remove(&mut self, number: NonZeroU64) {
        self.slots.remove(&number);
    }
}

impl Pacer {
    /// An event tells the caller of a request that it is granted: it may take it later.
    pub(super) fn note_untaken(&mut self, slot: Slot) {
        if let (_, Stage::InFlight { flight, .. }) = self.slots.at_mut(slot) {
            flight.untaken = Some(self.untaken.granted(slot));
        }
    }

    /// The caller of a request that was [granted at once](crate::Enqueued::Granted) goes on later: it is to be
    /// [taken](Self::take), as what an event grants.
    pub fn take_later(&mut self, ticket: Ticket) {
        if matches!(self.slots.get(ticket), Some(Entry { stage: Stage::InFlight { flight, .. }, .. }) if flight.untaken.is_none())
        {
            self.note_untaken(ticket.slot);
        }
    }

    /// The caller of a request takes what an [event](crate::Event::Granted) granted it: the call leaves now. Sliding windows
    /// count it from now on, so that no window holds more than its limit however late it is. A driver whose callers go on at
    /// once need not say so; for a ticket that was granted without an event and [not to be taken later](Self::take_later), or was
    /// taken before, nothing happens.
    ///
    /// Where its units count no longer, because others have left in its place, and there is no room for it, the request comes
    /// back: it counts as never sent, and is to be enqueued again. It keeps its arrival and its deadline.
    #[must_use = "it waits again"]
    pub fn take(&mut self, now: Instant, ticket: Ticket) -> Option<Request> {
        if self.leaves(now, ticket) { None } else { self.give_back(self.now, ticket) }
    }

    /// The same for a caller that keeps its permit to the end. Returns whether the call may leave: where others have left in its
    /// place it may not, and counts in no window. Then it is to be [cancelled](Self::cancel), and enqueued again.
    #[must_use = "it may not leave"]
    pub fn leaves(&mut self, now: Instant, ticket: Ticket) -> bool {
        let now = self.advance(now);
        let Some(Entry { request, stage: Stage::InFlight { flight, .. } }) = self.slots.get(ticket) else {
            return true;
        };
        let (Some(number), counted) = (flight.untaken, flight.counted) else { return true };
        let (place, cost) = (request.scope.place, &request.cost);
        self.untaken.remove(number);
        let all = [&self.quotas, &self.scopes[place].quotas];
        match counted.filter(|then| all.iter().all(|quotas| quotas.counts(*then, now, cost))) {
            Some(then) => self.postpone(then, now, ticket.slot, place),
            None if !self.take_anew(now, ticket.slot, place) => return false,
            None => {}
        }
        self.turn.windows_changed();
        if let (_, Stage::InFlight { flight, .. }) = self.slots.at_mut(ticket.slot) {
            (flight.untaken, flight.counted) = (None, Some(now));
        }
        true
    }

    /// The units of a call count as of now. That leaves no more room than before: only times become later.
    fn postpone(&mut self, then: Instant, now: Instant, slot: Slot, place: u32) {
        let cost = &self.slots.at(slot).request.cost;
        self.quotas.postpone(then, now, cost);
        let scope = &mut self.scopes[place];
        if scope.quotas.postpone(then, now, cost) && scope.queue.len() > 0 {
            self.scopes.touch(place);
        }
    }

    /// Takes the units of a call anew, if there is room for it. Returns whether there is.
    #[cold]
    fn take_anew(&mut self, now: Instant, slot: Slot, place: u32) -> bool {
        self.forgo(now, slot);
        while !self.has_room(now, slot, place) {
            let Some((_, other)) = self.untaken.slots.pop_last() else { return false };
            self.forgo(now, other);
        }
        let cost = &self.slots.at(slot).request.cost;
        self.quotas.count_anew(now, cost);
        self.scopes[place].quotas.count_anew(now, cost);
        // Its next request may have been found to fit, and wait for the account alone.
        self.scopes.touch(place);
        self.pump(now);
        true
    }

    fn has_room(&self, now: Instant, slot: Slot, place: u32) -> bool {
        let cost = &self.slots.at(slot).request.cost;
        self.quotas.has_room(now, cost) && self.scopes[place].quotas.has_room(now, cost)
    }

    /// What still counts of a call counts no longer: its caller has to ask again for room.
    fn forgo(&mut self, now: Instant, slot: Slot) {
        let (request, stage) = self.slots.at_mut(slot);
        let Stage::InFlight { flight, .. } = stage else { unreachable!("it was granted") };
        let (place, counted) = (request.scope.place, flight.counted.take());
        let Some(then) = counted else { return };
        self.quotas.forgo(then, now, &request.cost);
        self.scopes[place].quotas.forgo(then, now, &request.cost);
        self.scopes.touch(place);
    }

    /// The call has not left, and cannot.
    #[cold]
    fn give_back(&mut self, now: Instant, ticket: Ticket) -> Option<Request> {
        let deadline = match self.slots.get(ticket)? {
            Entry { request, stage: Stage::InFlight { deadline, .. } } => {
                deadline.map(|reading| self.scopes[request.scope.place].clock.deadline(now, reading))
            }
            Entry { stage: Stage::Waiting { .. }, .. } => None,
        };
        self.cancel(now, ticket).map(|request| Request { deadline, ..request })
    }
}
