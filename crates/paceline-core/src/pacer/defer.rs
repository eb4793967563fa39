//! A request that is known to be kept out for longer than it takes leaves the queue, and its caller is told.
//!
//! A wait that is known only gets shorter as time passes. So requests are looked at when an input may have lengthened it, and of
//! them only the least patient: where it stays, all do. Limits are the exception, since they depend on the cost: behind a less
//! patient request for which there is room, the next is looked at when that one has left.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, MaxWait};
use crate::queue::Slot;
use crate::request::Event;
use crate::time::Instant;

/// The requests that are due and take no wait however long: of each scope, by its place, and of the account, which has none. The
/// least patient of each kind come first.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience {
    waiting: BTreeSet<(Option<u32>, MaxWait, Slot)>,
    /// How many were looked at so far.
    #[cfg(test)]
    pub(super) asked: core::cell::Cell<u64>,
}

impl Patience {
    /// A request of the scope in that place waits, and is due.
    pub(super) fn add(&mut self, place: u32, max_wait: Option<MaxWait>, slot: Slot) {
        if let Some(max_wait) = max_wait {
            self.waiting.extend([Some(place), None].map(|place| (place, max_wait, slot)));
        }
    }

    /// It waits no longer.
    pub(super) fn remove(&mut self, place: u32, max_wait: Option<MaxWait>, slot: Slot) {
        if let Some(max_wait) = max_wait {
            [Some(place), None].iter().for_each(|place| _ = self.waiting.remove(&(*place, max_wait, slot)));
        }
    }

    /// The least patient of each kind. Most pacers have none, and are asked at every input.
    fn least(&self, place: Option<u32>) -> impl Iterator<Item = (MaxWait, Slot)> {
        let kinds: &[fn(Duration) -> MaxWait] =
            if self.waiting.is_empty() { &[] } else { &[MaxWait::Known, MaxWait::Pause] };
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
    /// Puts requests off that their scope keeps out for too long. Says whether there was one.
    pub(super) fn defer(&mut self, now: Instant, place: u32) -> bool {
        let mut any = false;
        // When a stopped account goes on is not known.
        while self.hold.stopped().is_none() {
            let too_long = |(max_wait, slot): &(MaxWait, Slot)| {
                let cost = &self.slots.at(*slot).request.cost;
                outlasts(&self.scopes[place].shut(now, *max_wait, cost), now, *max_wait)
            };
            let Some((_, slot)) = self.patience.least(Some(place)).find(too_long) else { break };
            self.put_off(now, slot, place);
            any = true;
        }
        any
    }

    /// Puts requests off that the account keeps out for too long. No input pays for scopes that it does not touch.
    pub(super) fn defer_in_account(&mut self, now: Instant) {
        loop {
            let too_long = |(max_wait, slot): &(MaxWait, Slot)| {
                let cost = &self.slots.at(*slot).request.cost;
                outlasts(&self.shut_in_account(now, *max_wait, cost), now, *max_wait)
            };
            let Some((_, slot)) = self.patience.least(None).find(too_long) else { return };
            let place = self.slots.at(slot).request.scope.place;
            self.put_off(now, slot, place);
            self.let_go(now, place);
            self.look(now, place);
        }
    }

    /// Puts a request off that has just come, where it is kept out for too long.
    pub(super) fn defer_at_once(&mut self, now: Instant, slot: Slot, place: u32) {
        let (scope, request) = (&self.scopes[place], &self.slots.at(slot).request);
        let is_due = request.not_before.is_none_or(|due| due <= now);
        let Some(max_wait) = request.max_wait.filter(|_| is_due && self.hold.stopped().is_none()) else { return };
        let shut = self.shut(now, scope, max_wait, &request.cost);
        if shut.is_some_and(|(until, _)| until > now + max_wait.duration()) {
            self.put_off(now, slot, place);
        }
    }

    fn put_off(&mut self, now: Instant, slot: Slot, place: u32) {
        let (ticket, request) = self.take_out(slot, place);
        let max_wait = request.max_wait.expect("one that takes any wait is not put off");
        let shut = self.shut(now, &self.scopes[place], max_wait, &request.cost);
        let (until, reason) = shut.expect("something keeps it out");
        self.events.push_back(Event::Deferred { ticket, request: Box::new(request), until, reason });
    }
}

fn outlasts(shut: &Admit, now: Instant, max_wait: MaxWait) -> bool {
    matches!(shut, Admit::At { at, .. } if *at > now + max_wait.duration())
}
