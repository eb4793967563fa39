//! Who leaves next, and when to look again.

use alloc::boxed::Box;

use super::Pacer;
use crate::admit::{Admit, Policy};
use crate::queue::Place;
use crate::request::Event;
use crate::slots::{Entry, Stage};
use crate::time::Instant;

impl Pacer {
    /// Grants all that may leave, and finds out when to look again.
    pub(super) fn pump(&mut self, now: Instant) {
        self.reopen(now);
        for index in 0..self.scopes.len() {
            self.scopes[index].queue.promote(now);
            self.expire(now, index);
            self.scopes[index].note_demand(now);
        }
        while let Some((place, index)) = self.first_to_leave(now) {
            self.grant(now, place, index);
            self.scopes[index].note_demand(now);
        }
        self.wake = (0..self.scopes.len()).filter_map(|index| self.next_wake(now, index)).min();
    }

    /// Ends the holds and closures whose time has come.
    fn reopen(&mut self, now: Instant) {
        let mut reopened = self.hold.expire(now);
        for scope in self.scopes.iter_mut() {
            reopened |= scope.reopens(now);
        }
        if reopened {
            self.quotas.forget_burst(now);
            self.set_clocks(now);
        }
    }

    fn expire(&mut self, now: Instant, index: usize) {
        let scope = &mut self.scopes[index];
        while let Some((reading, slot)) = scope.queue.next_deadline()
            && scope.clock.deadline(now, reading) <= now
        {
            let ticket = self.slots.ticket(slot);
            let Entry { request, stage } = self.slots.remove(ticket).expect("a deadline belongs to a waiting request");
            let Stage::Waiting { place, deadline, .. } = stage else {
                unreachable!("a granted request has left the queue");
            };
            scope.queue.remove(place, request.not_before, deadline);
            self.events.push_back(Event::Expired { ticket, request: Box::new(request) });
        }
    }

    fn first_to_leave(&self, now: Instant) -> Option<(Place, usize)> {
        let heads = self.scopes.iter().enumerate().filter_map(|(index, scope)| Some((scope.queue.head()?, index)));
        let may_leave = |(place, index): &(Place, usize)| {
            self.scopes[*index].admit(now, &self.slots.at(place.2).request.cost).is_now()
        };
        let first = heads.filter(may_leave).min()?;
        self.admit_account(now, &self.slots.at(first.0.2).request.cost).is_now().then_some(first)
    }

    fn grant(&mut self, now: Instant, place: Place, index: usize) {
        let scope = &mut self.scopes[index];
        let entry = self.slots.at_mut(place.2);
        let Stage::Waiting { deadline, since, .. } = entry.stage else {
            unreachable!("a queue holds only waiting requests");
        };
        let request = &entry.request;
        scope.queue.remove(place, request.not_before, deadline);
        let flight = scope.leave(now, &request.cost);
        self.in_flight.take();
        self.quotas.take(now, &request.cost);
        scope.totals.sends += 1;
        scope.totals.resends += u64::from(request.sends() > 0);
        scope.totals.probes += u64::from(flight.probe);
        scope.totals.waited += now - since;
        let probe = flight.probe;
        entry.stage = Stage::InFlight { flight, deadline };
        self.events.push_back(Event::Granted { ticket: self.slots.ticket(place.2), probe });
    }

    /// When a scope wants to be looked at again.
    fn next_wake(&mut self, now: Instant, index: usize) -> Option<Instant> {
        let head = self.head_start(now, index);
        let scope = &self.scopes[index];
        let deadline = match scope.queue.next_deadline() {
            Some((reading, _)) if !scope.clock.is_standing() => Some(scope.clock.deadline(now, reading)),
            _ => None,
        };
        [head, scope.queue.next_due(), deadline].into_iter().flatten().min()
    }

    /// When the head of a scope may leave, where that is a matter of time.
    fn head_start(&mut self, now: Instant, index: usize) -> Option<Instant> {
        let scope = &self.scopes[index];
        let cost = &self.slots.at(scope.queue.head()?.2).request.cost;
        let Admit::At { at, policy } = self.admit_cost(now, scope, cost) else { return None };
        if matches!(policy, Policy::Quota { .. }) {
            self.quotas.note_full();
            self.scopes[index].note_full();
        }
        Some(at)
    }
}
