//! How a new request comes in: it leaves at once, or waits in the queue of its scope.
//!
//! It is decided about where it is kept: to move a request takes as long as to ask several rules.

use core::cmp::Reverse;

use super::Pacer;
use crate::admit::MaxWait;
use crate::error::TooLarge;
use crate::queue::{Place, Slot};
use crate::request::{Enqueued, Event, Request, Ticket};
use crate::slots::Stage;
use crate::time::Instant;

impl Pacer {
    /// Queues a request. It is granted at once or later, in an [`Event`].
    ///
    /// # Errors
    /// When it alone exceeds a configured limit: it could never start. A deadline that certainly comes first gives
    /// [`Event::Expired`] at once, and a known wait of more than its [`max_wait`](Request::max_wait) gives [`Event::Deferred`].
    pub fn enqueue(&mut self, now: Instant, request: Request) -> Result<Ticket, TooLarge> {
        match self.enqueue_or_grant(now, request)? {
            Enqueued::Granted { ticket, probe } => {
                self.note_untaken(ticket.slot);
                self.events.push_back(Event::Granted { ticket, probe });
                Ok(ticket)
            }
            Enqueued::Queued { ticket } => Ok(ticket),
        }
    }

    /// [`enqueue`](Self::enqueue), but where the request is granted without a place in the queue, the result says so, and no
    /// event.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    #[inline]
    pub fn enqueue_or_grant(&mut self, now: Instant, request: Request) -> Result<Enqueued, TooLarge> {
        let now = self.advance(now);
        let slot = self.slots.put(request);
        let place = self.adopt_at(slot);
        // What fits now is not too large.
        if !self.leaves_at_once(now, place, self.slots.at(slot).request) {
            return self.queue(now, place, slot);
        }
        let (ticket, in_queue, deadline) = self.keep(now, place, slot);
        let probe = self.grant_at_once(now, in_queue, place, deadline);
        Ok(Enqueued::Granted { ticket, probe })
    }

    /// What becomes of a new request that does not leave at once.
    fn queue(&mut self, now: Instant, place: u32, slot: Slot) -> Result<Enqueued, TooLarge> {
        if let Some(too_large) = self.too_large(place, &self.slots.at(slot).request.cost) {
            self.slots.discard(slot);
            return Err(too_large);
        }
        let (ticket, in_queue, deadline) = self.keep(now, place, slot);
        let (request, stage) = self.slots.at_mut(slot);
        *stage = Stage::Waiting { place: in_queue, deadline, since: now };
        let (not_before, max_wait) = (request.not_before, request.max_wait);
        self.note_pace(place);
        self.scopes.touch(place);
        self.scopes[place].queue.push(now, in_queue, not_before, deadline);
        if not_before.is_none_or(|due| due <= now) {
            self.bounded_waits.add(place, max_wait, slot);
            self.falls_behind(place, in_queue);
        }
        match max_wait {
            // What is set aside for a pause has its time after that.
            Some(MaxWait::Pause(_)) => {
                _ = self.defer_at_once(now, slot, place) || self.expire_at_once(now, slot, place)
            }
            _ => _ = self.expire_at_once(now, slot, place) || self.defer_at_once(now, slot, place),
        }
        self.pump(now);
        Ok(Enqueued::Queued { ticket })
    }

    /// The request in that slot is in the pacer from now on, with its number. Returns its place in the queue, and when its
    /// deadline is on the clock of its scope.
    #[inline(always)]
    fn keep(&mut self, now: Instant, place: u32, slot: Slot) -> (Ticket, Place, Option<Instant>) {
        let (ticket, request) = self.slots.keep(slot);
        let arrival = *request.arrival.get_or_insert(self.arrivals);
        self.arrivals = self.arrivals.max(arrival.saturating_add(1));
        request.item.get_or_insert(arrival);
        let deadline = request.deadline.map(|deadline| self.scopes[place].clock.read(now, deadline));
        (ticket, (Reverse(request.priority), arrival, slot), deadline)
    }

    /// [`adopt`](Self::adopt) for a new request, whose cost becomes what answers have shown where it is a guess.
    #[inline(always)]
    fn adopt_at(&mut self, slot: Slot) -> u32 {
        let Request { scope, cost, .. } = self.slots.at(slot).request;
        if self.scopes.is_own(scope) && !cost.is_guess() { scope.place } else { self.prepare(slot) }
    }

    fn prepare(&mut self, slot: Slot) -> u32 {
        let Request { mut scope, mut cost, .. } = self.slots.at(slot).request.clone();
        let place = self.adopt(&mut scope);
        if cost.is_guess() {
            self.guess_answer(place, &mut cost);
        }
        let request = self.slots.at_mut(slot).0;
        (request.scope, request.cost) = (scope, cost);
        place
    }
}
