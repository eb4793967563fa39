//! Deferral: a request whose known wait exceeds its bound leaves the queue, with an event for its caller.
//!
//! A known wait only gets shorter as time passes. So requests are checked when an input may have lengthened it, and only the one
//! with the smallest bound: where it stays, all do. Limits are the exception, since they depend on the cost: behind a request
//! with a smaller bound that has room, the next is checked when that one has left.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, MaxWait};
use crate::queue::Slot;
use crate::request::Event;
use crate::time::Instant;

/// Which bounds are looked at.
type Kinds = &'static [fn(Duration) -> MaxWait];

/// All of them.
pub(super) const ALL: Kinds = &[MaxWait::Known, MaxWait::Pause];

/// Those on pauses alone: no deadline of such a request runs meanwhile ([`Request::sets_aside`](crate::Request::sets_aside)).
pub(super) const PAUSES: Kinds = &[MaxWait::Pause];

/// The due requests with a bound on their wait: of each scope, by its place, and of the account, which has none. The smallest
/// bound of each kind comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct BoundedWaits {
    waiting: BTreeSet<(Option<u32>, MaxWait, Slot)>,
    /// How many were checked so far.
    #[cfg(test)]
    pub(super) asked: core::cell::Cell<u64>,
}

impl BoundedWaits {
    /// A request of the scope in that place waits, and is due.
    pub(super) fn add(&mut self, place: u32, max_wait: Option<MaxWait>, slot: Slot) {
        if let Some(max_wait) = max_wait {
            self.waiting.extend([Some(place), None].map(|place| (place, max_wait, slot)));
        }
    }

    /// The request has left the queue.
    pub(super) fn remove(&mut self, place: u32, max_wait: Option<MaxWait>, slot: Slot) {
        if let Some(max_wait) = max_wait {
            [Some(place), None].iter().for_each(|place| _ = self.waiting.remove(&(*place, max_wait, slot)));
        }
    }

    /// The smallest bound of each of these kinds. Most pacers have none, and this is called at every input.
    fn shortest(&self, place: Option<u32>, kinds: Kinds) -> impl Iterator<Item = (MaxWait, Slot)> {
        let kinds = if self.waiting.is_empty() { &[] } else { kinds };
        kinds.iter().filter_map(move |kind| {
            let of_kind = (place, kind(Duration::ZERO), Slot::MIN)..=(place, kind(Duration::MAX), Slot::MAX);
            let (_, max_wait, slot) = self.waiting.range(of_kind).next()?;
            #[cfg(test)]
            self.asked.set(self.asked.get() + 1);
            Some((*max_wait, *slot))
        })
    }
}

impl Pacer {
    /// Defers requests whose scope has a known wait above their bound, of these kinds. Returns whether there was one.
    pub(super) fn defer(&mut self, now: Instant, place: u32, kinds: Kinds) -> bool {
        let mut any = false;
        // The end of a stop is not known.
        while self.hold.stopped().is_none() {
            let too_long = |(max_wait, slot): &(MaxWait, Slot)| {
                let cost = self.cost_of(*slot);
                let caller = self.slots.at(*slot).request.caller;
                outlasts(&self.scopes[place].known_wait(now, *max_wait, &cost, caller), now, *max_wait)
            };
            let Some((_, slot)) = self.bounded_waits.shortest(Some(place), kinds).find(too_long) else { break };
            self.take_out_deferred(now, slot, place);
            any = true;
        }
        any
    }

    /// Defers requests for which the account has a known wait above their bound. No input pays for scopes that it does not touch.
    /// Behind each the nearest deadline of all may be another, which is checked.
    pub(super) fn defer_in_account(&mut self, now: Instant) {
        loop {
            let too_long = |(max_wait, slot): &(MaxWait, Slot)| {
                let cost = self.cost_of(*slot);
                outlasts(&self.known_wait_in_account(now, *max_wait, &cost), now, *max_wait)
            };
            let Some((_, slot)) = self.bounded_waits.shortest(None, ALL).find(too_long) else { return };
            let place = self.slots.at(slot).request.scope.place;
            self.take_out_deferred(now, slot, place);
            self.expire_or_defer(now, place);
            self.reschedule(now, place);
            self.expire_in_account(now);
        }
    }

    /// Defers a new request whose known wait exceeds its bound. Returns whether it did.
    pub(super) fn defer_at_once(&mut self, now: Instant, slot: Slot, place: u32) -> bool {
        let (scope, request) = (&self.scopes[place], self.slots.at(slot).request);
        let is_due = request.not_before.is_none_or(|due| due <= now);
        let Some(max_wait) = request.max_wait.filter(|_| is_due && self.hold.stopped().is_none()) else { return false };
        let wait = self.known_wait(now, scope, max_wait, request);
        let is_too_long = wait.is_some_and(|(until, _)| until > now + max_wait.duration());
        if is_too_long {
            self.take_out_deferred(now, slot, place);
        }
        is_too_long
    }

    fn take_out_deferred(&mut self, now: Instant, slot: Slot, place: u32) {
        let (ticket, mut request) = self.take_out(slot, place);
        self.guess_answer(place, &mut request.cost);
        let max_wait = request.max_wait.expect("only a request with a bound is deferred");
        let wait = self.known_wait(now, &self.scopes[place], max_wait, &request);
        let (until, reason) = wait.expect("a deferred request has a known wait");
        self.events.push_back(Event::Deferred { ticket, request: Box::new(request), until, reason });
    }
}

fn outlasts(wait: &Admit, now: Instant, max_wait: MaxWait) -> bool {
    matches!(wait, Admit::At { at, .. } if *at > now + max_wait.duration())
}
