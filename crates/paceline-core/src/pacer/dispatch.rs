//! Dispatch: which request is granted next, and when the timer is due.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Pacer;
use super::agenda::Wants;
use super::defer::{ALL, PAUSES};
use crate::admit::Admit;
use crate::queue::{Place, Slot};
use crate::request::{Event, Request, Ticket};
use crate::scope::Scope;
use crate::slots::{Entry, Kept, Stage};
use crate::time::{Instant, earlier};

/// For so many heads that may leave later, the timer also respects the account. For the others it uses the time of the scope:
/// a timer that is too early changes nothing.
const HEADS_ASKED: usize = 4;

/// Among so many waiters one is chosen that may be sent to a server that may be down, ...
const CANDIDATES: usize = 8;

/// ... and among so many one that tests a server that is. An hour takes about 130 tests.
const PROBE_CANDIDATES: usize = 256;

/// So many requests of callers that alone fail are passed over for those of others.
pub(super) const PASSED_OVER: usize = 4_096;

impl Pacer {
    /// The request of a scope that leaves next.
    ///
    /// A server that may be down is not tested with an item that has no retry left, if another has: a test is a call like any
    /// other, and an outage costs no item. One that is down is tested with one of the items that failed least, here and there:
    /// those that failed may fail for ever, and so may their neighbours, and would keep out the others, whose success shows that
    /// the server works. After two such tests in vain one of those tests it that failed before and may be sent again: a server
    /// may fail what it was never asked for. So that items which fail for ever keep no others out, every other call is one of an
    /// item that has not failed, where a pace is learnt and the server has refused calls. Those that failed hold half of the
    /// places at most while others wait, since they may hang again. And where a call that went first was told to wait again, or
    /// the server names waits that say nothing, those go that were not told to wait.
    /// A caller whose calls alone fail keeps no other one out: what another waits for goes first.
    pub(super) fn head(&self, now: Instant, scope: &Scope) -> Option<Place> {
        let head = self.head_of_all(scope)?;
        let passes_from = |slot| {
            let from = scope.passes_from(now, self.slots.at(slot).request.caller);
            (from.is_none(), from)
        };
        if !scope.tells_callers_apart() || passes_from(head.2) == (false, Some(now)) {
            return Some(head);
        }
        scope.queue.first_with_least(PASSED_OVER, |slot| {
            let from = passes_from(slot);
            let attempts = self.slots.at(slot).request.attempts;
            (from, if from == (false, Some(now)) { 0 } else { attempts })
        })
    }

    /// The same where all callers are alike.
    fn head_of_all(&self, scope: &Scope) -> Option<Place> {
        let tried = |slot| {
            let Request { attempts, max_retries, .. } = self.slots.at(slot).request;
            (*attempts >= self.config.retry.most(*max_retries), *attempts)
        };
        let may_be_down = scope.may_be_down();
        if may_be_down && scope.is_down() {
            let by_turn = |slot| {
                let (has_no_retry, attempts) = tried(slot);
                (has_no_retry, scope.tests_again() != (attempts > 0), attempts)
            };
            return scope.queue.one_with_least(PROBE_CANDIDATES, scope.totals.probes, by_turn);
        }
        if scope.told_lets_others_go() {
            return scope.queue.first_but(PROBE_CANDIDATES, |slot| self.slots.at(slot).request.deferrals > 0);
        }
        let told_alone = |slot| scope.is_told_alone(self.slots.at(slot).request.number());
        if scope.told_wait() && scope.queue.head().is_some_and(|head| told_alone(head.2)) {
            return scope.queue.first_but(PROBE_CANDIDATES, told_alone);
        }
        let new_first =
            scope.learns_from_refusals() && scope.totals.sends % 2 == 1 || scope.repeats_enough(self.in_flight.limit());
        let new = || scope.queue.first_but(PROBE_CANDIDATES, |slot| tried(slot).1 > 0);
        match new_first.then(new).flatten().filter(|place| tried(place.2).1 == 0) {
            Some(new) => Some(new),
            None if may_be_down => scope.queue.first_but(CANDIDATES, |slot| tried(slot).0),
            None => scope.queue.head(),
        }
    }

    /// Grants all requests that may leave, and sets the timer. It processes only scopes that an input has touched or that have a
    /// time up to `now`.
    pub(super) fn pump(&mut self, now: Instant) {
        if self.hold.expire(now) {
            self.quotas.forget_burst(now);
            self.set_clocks(now);
        }
        if self.agenda.is_due(now) {
            let due: Vec<u32> = self.agenda.due_scopes(now).collect();
            due.into_iter().for_each(|place| self.scopes.touch(place));
        }
        let touched = self.scopes.take_touched();
        touched.iter().for_each(|place| self.reopen(now, *place));
        for place in &touched {
            if self.scopes[*place].queue.len() > 0 {
                self.promote(now, *place);
                self.expire_or_defer(now, *place);
            }
            self.reschedule(now, *place);
        }
        self.scopes.done(touched);
        if self.none_waits() {
            self.wake = None;
            self.evict_idle(now);
            return;
        }
        // Only the smallest bound is checked: when its request has left, the next.
        loop {
            self.expire_in_account(now);
            self.defer_in_account(now);
            let Some((head, place)) = self.first_to_leave(now) else { break };
            let probe = self.grant(now, head, place);
            self.events.push_back(Event::Granted { ticket: self.slots.ticket(head.2), probe });
            self.expire_or_defer(now, place);
            self.reschedule(now, place);
            self.come_forward(now);
        }
        self.wake = self.next_wake(now);
        self.evict_idle(now);
    }

    /// [`pump`](Self::pump) where a call of that scope has ended, or its answer begins.
    #[inline(always)]
    pub(super) fn pump_after(&mut self, now: Instant, place: u32) {
        if self.is_quiet(place) {
            self.note_quiet(now, place);
            self.wake = None;
        } else {
            self.scopes.touch(place);
            self.pump(now);
        }
    }

    /// Whether no scope is to be processed, no request waits and neither a scope nor the account has a time: then of a scope from
    /// which a call has left, or of which one has ended, [`note_quiet`](Self::note_quiet) notes all that there is to be noted.
    #[inline(always)]
    fn is_quiet(&self, place: u32) -> bool {
        let scope = &self.scopes[place];
        self.none_waits()
            && !self.scopes.are_touched()
            && !self.hold.is_active()
            && self.agenda.is_quiet(place)
            && self.failing.is_empty()
            && scope.failing_since().is_none()
            && scope.is_open()
    }

    /// A call of a scope left or ended that waits for nothing, or its answer began.
    #[inline(always)]
    fn note_quiet(&mut self, now: Instant, place: u32) {
        self.note_opened(place);
        let scope = &mut self.scopes[place];
        scope.note_demand(now);
        scope.note_idle(now);
        self.scopes.note_changed(place);
        self.evict_idle(now);
    }

    /// Whether a new request may leave without a place in the queue: none waits, no time of a scope or of the account has come
    /// since the last input, and every rule admits it. Then all else that [`pump`](Self::pump) does would change nothing.
    #[inline]
    pub(super) fn leaves_at_once(&self, now: Instant, place: u32, request: &Request) -> bool {
        let scope = &self.scopes[place];
        self.none_waits()
            && !self.scopes.are_touched()
            && !self.hold.is_active()
            && !self.agenda.is_due(now)
            && scope.is_open()
            && request.not_before.is_none_or(|due| due <= now)
            && request.deadline.is_none_or(|deadline| deadline > now)
            && self.admits(now, place, &self.ask_of(request))
    }

    /// Grants a request that is in no queue. Returns whether it is a probe.
    #[inline(always)]
    pub(super) fn grant_at_once(&mut self, now: Instant, from: Place, place: u32, deadline: Option<Instant>) -> bool {
        let probe = self.depart(now, now, from, place, deadline);
        self.note_quiet(now, place);
        probe
    }

    /// Whether each request in the pacer is in flight.
    fn none_waits(&self) -> bool {
        self.slots.len() == self.in_flight.now() as usize
    }

    /// Moves requests that have become due to the ready ones.
    fn promote(&mut self, now: Instant, place: u32) {
        for in_queue in self.scopes[place].queue.promote(now) {
            self.bounded_waits.add(place, self.slots.at(in_queue.2).request.max_wait, in_queue.2);
            self.falls_behind(place, in_queue);
        }
    }

    /// Ends the hold and the closure of a scope that are over.
    fn reopen(&mut self, now: Instant, place: u32) {
        if self.scopes[place].reopens(now) {
            self.quotas.forget_burst(now);
            self.set_clock(now, place);
        }
    }

    /// Recomputes the times of a scope on the agenda.
    pub(super) fn reschedule(&mut self, now: Instant, place: u32) {
        self.note_opened(place);
        let scope = &mut self.scopes[place];
        scope.note_demand(now);
        scope.note_idle(now);
        match scope.failing_since() {
            Some(since) => drop(self.failing.insert(place, since)),
            None => drop(self.failing.remove(&place)),
        }
        let reopens = scope.next_reopening();
        let wants = match scope.queue.len() {
            0 => Wants { reopens, ..Wants::default() },
            _ => Wants { reopens, ..self.wants(now, place) },
        };
        self.scopes.note_changed(place);
        self.agenda.set(place, wants);
    }

    /// The times of the waiters of a scope.
    fn wants(&mut self, now: Instant, place: u32) -> Wants {
        let head = self.head(now, &self.scopes[place]);
        if let Some(head) = head {
            self.ask_for_canary(now, place);
            self.guess_anew(head.2);
            self.draw_for(now, place, head);
        }
        let answer = head.map(|head| self.admit_scope(now, place, &self.ask(head)));
        if let Some(answer) = &answer {
            self.note_short(answer);
        }
        let scope = &mut self.scopes[place];
        let full = matches!(&answer, Some(Admit::At { cause, .. } | Admit::OnRelease { cause }) if cause.is_full());
        if full {
            scope.note_full();
        }
        let (ready, starts) = match answer {
            Some(Admit::Now) => (head, None),
            Some(Admit::At { at, .. }) => (None, Some(at)),
            Some(Admit::OnRelease { .. }) | None => (None, None),
        };
        let deadline = match scope.queue.next_deadline() {
            Some((reading, _)) if !scope.clock.is_standing() => Some(scope.clock.deadline(now, reading)),
            _ => None,
        };
        Wants { ready, head: starts, due: scope.queue.next_due(), deadline, full, reopens: None }
    }

    /// Removes the requests of a scope that expire or whose known wait is too long; behind each the next is checked.
    pub(super) fn expire_or_defer(&mut self, now: Instant, place: u32) {
        // What is set aside for a pause has its time after that.
        self.defer(now, place, PAUSES);
        self.expire(now, place);
        while self.defer(now, place, ALL) {
            self.expire(now, place);
        }
    }

    /// Expires requests whose deadline has passed, or certainly passes before the scope admits them.
    fn expire(&mut self, now: Instant, place: u32) {
        loop {
            let scope = &self.scopes[place];
            let Some((reading, slot)) = scope.queue.next_deadline() else { return };
            let start = self.start_in_scope(now, scope, self.slots.at(slot).request);
            if scope.clock.deadline(now, reading) > start.unwrap_or(now) {
                return;
            }
            self.give_up_waiting(now, slot, place);
        }
    }

    /// Expires a new request whose deadline certainly comes before its start. Returns whether it did.
    pub(super) fn expire_at_once(&mut self, now: Instant, slot: Slot, place: u32) -> bool {
        let request = self.slots.at(slot).request;
        let Some(deadline) = request.deadline else { return false };
        let earliest = self.certain_start(now, &self.scopes[place], request);
        let expires = earliest.is_some_and(|earliest| deadline <= earliest);
        if expires {
            self.give_up_waiting(now, slot, place);
        }
        expires
    }

    /// Expires requests by the limits of the account, which apply to every scope. Only the nearest deadline of all is checked, so
    /// that no input pays for scopes that it does not touch.
    pub(super) fn expire_in_account(&mut self, now: Instant) {
        while let Some((deadline, place)) = self.agenda.first_deadline() {
            let (_, slot) =
                self.scopes[place].queue.next_deadline().expect("the agenda knows the deadline of its queue");
            if self.start_in_account(now, &self.slots.at(slot).request.cost) < deadline {
                return;
            }
            self.give_up_waiting(now, slot, place);
            self.expire_or_defer(now, place);
            self.reschedule(now, place);
        }
    }

    fn give_up_waiting(&mut self, now: Instant, slot: Slot, place: u32) {
        let earliest = self.certain_start(now, &self.scopes[place], self.slots.at(slot).request);
        let (ticket, request) = self.take_out(slot, place);
        self.events.push_back(Event::Expired { ticket, request: Box::new(request), earliest });
    }

    /// Removes a waiting request from the scope in that place.
    pub(super) fn take_out(&mut self, slot: Slot, place: u32) -> (Ticket, Request) {
        let ticket = self.slots.ticket(slot);
        let Some(Kept { request: Some(request), stage: Stage::Waiting { place: in_queue, deadline, .. } }) =
            self.slots.remove(ticket).map(|kept| *kept)
        else {
            unreachable!("a queue holds only waiting requests");
        };
        self.scopes[place].queue.remove(in_queue, request.not_before, deadline);
        self.bounded_waits.remove(place, request.max_wait, slot);
        self.is_behind_no_more(place, in_queue);
        (ticket, request)
    }

    /// The first ready head that may take a place, if the account admits it.
    fn first_to_leave(&self, now: Instant) -> Option<(Place, u32)> {
        if self.in_flight.free() == 0 {
            return None;
        }
        let first = self.first_ready(now)?;
        self.admit_account(now, &self.ask(first.0)).is_now().then_some(first)
    }

    /// Grants a waiting request. Returns whether it is a probe.
    fn grant(&mut self, now: Instant, head: Place, place: u32) -> bool {
        self.is_behind_no_more(place, head);
        let Entry { request, stage: Stage::Waiting { deadline, since, .. } } = self.slots.at(head.2) else {
            unreachable!("a queue holds only waiting requests");
        };
        let (deadline, since) = (*deadline, *since);
        self.scopes[place].queue.remove(head, request.not_before, deadline);
        self.bounded_waits.remove(place, request.max_wait, head.2);
        let probe = self.depart(now, since, head, place, deadline);
        self.note_untaken(head.2);
        probe
    }

    /// The call of a request leaves that came at `since` and is in no queue any more. Returns whether it is a probe.
    fn depart(&mut self, now: Instant, since: Instant, from: Place, place: u32, deadline: Option<Instant>) -> bool {
        self.owes(from);
        self.note_pace(place);
        let scope = &mut self.scopes[place];
        let (request, stage) = self.slots.at_mut(from.2);
        let wanted = since.max(request.not_before.unwrap_or(since));
        let flight = stage.leaves(deadline);
        let held = scope.held_places();
        scope.send(now, wanted, request, flight);
        self.active.hold(held, scope.held_places());
        self.in_flight.take(request.is_background());
        self.active.note(now, place, scope.is_mute());
        self.answers.sent(place, &request.cost);
        self.out.add(&request.cost);
        self.pots.take(now, &scope.name, &request.cost);
        self.quotas.take(now, wanted, &request.cost);
        let (resends, probes) = (u64::from(request.sends() > 0), u64::from(flight.probe));
        for totals in [&mut scope.totals, &mut self.totals] {
            totals.sends += 1;
            totals.resends += resends;
            totals.probes += probes;
        }
        if now > since {
            let waited = now - since;
            scope.totals.waited += waited;
            self.totals.waited += waited;
        }
        flight.probe
    }

    /// When a waiter may leave, becomes due or expires, if that time is known.
    fn next_wake(&mut self, now: Instant) -> Option<Instant> {
        let mut wake = self.agenda.next_due();
        // While the account has no known time, only an input lets a head leave.
        if self.hold.stopped().is_some() || self.in_flight.free() == 0 {
            self.note_short_of_places();
            return wake;
        }
        if self.agenda.is_full() {
            self.quotas.note_full();
        }
        wake = earlier(wake, self.first_ready_at(now));
        if let Some((_, place)) = self.first_ready(now) {
            wake = earlier(wake, self.starts(now, now, place));
        }
        for n in 0..HEADS_ASKED {
            let Some((at, place)) = self.agenda.later(n) else { return wake };
            if wake.is_some_and(|wake| wake <= at) {
                return wake;
            }
            wake = earlier(wake, self.starts(now, at, place));
        }
        earlier(wake, self.agenda.later(HEADS_ASKED).map(|(at, _)| at))
    }

    /// When the head of a scope may leave that its scope admits at `own`, if that time is known.
    fn starts(&mut self, now: Instant, own: Instant, place: u32) -> Option<Instant> {
        let Some(head) = self.head(now, &self.scopes[place]) else { return Some(own) };
        let answer = self.admit_account(now, &self.ask(head));
        self.note_short(&answer);
        let (at, cause) = match answer {
            Admit::At { at, cause } if at > own => (at, cause),
            Admit::At { .. } | Admit::Now => return Some(own),
            Admit::OnRelease { .. } => return None,
        };
        if cause.is_full() {
            self.quotas.note_full();
            self.scopes[place].note_full();
        }
        Some(at)
    }
}
