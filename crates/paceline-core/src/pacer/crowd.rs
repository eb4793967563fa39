//! Which scope may take a place among the calls in flight, where several want one.

use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::places;
use crate::queue::Place;
use crate::time::Instant;

/// A scope is alone when no other has had a call in flight for so long: a caller that keeps its own queue asks for one call at a
/// time.
const ALONE: Duration = Duration::from_secs(2);

/// The scopes of which calls left or ended last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Active {
    all: Latest,
    /// Without mute scopes, whose last call waited for its answer in vain.
    answering: Latest,
    /// Places that mute scopes hold.
    mute: u32,
    /// Others may come, of which nothing is known yet.
    expects: bool,
    /// When the first call left since that was said.
    began: Option<Instant>,
}

/// A scope and the latest other one, by their places.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    latest: Option<(u32, Instant)>,
    other: Option<(u32, Instant)>,
}

impl Active {
    /// A call of that scope left or ended.
    pub(super) fn note(&mut self, now: Instant, scope: u32, is_mute: bool) {
        self.all.note(now, scope);
        if !is_mute {
            self.answering.note(now, scope);
        }
        if self.expects {
            self.began.get_or_insert(now);
        }
    }

    /// When a call of another scope than this one was known of last, where these are the known ones.
    fn other(&self, of: &Latest, scope: u32) -> Option<Instant> {
        of.other_than(scope).or(self.began)
    }

    /// What a scope holds mutely has changed from so many places to so many.
    pub(super) const fn hold(&mut self, before: u32, after: u32) {
        self.mute = self.mute.saturating_sub(before).saturating_add(after);
    }
}

impl Latest {
    fn note(&mut self, now: Instant, scope: u32) {
        if self.latest.is_some_and(|(latest, _)| latest != scope) {
            self.other = self.latest;
        }
        self.latest = Some((scope, now));
    }

    /// When a call of another scope than this one left or ended last.
    fn other_than(&self, scope: u32) -> Option<Instant> {
        let latest = self.latest.filter(|(latest, _)| *latest != scope);
        latest.or(self.other).map(|(_, at)| at)
    }
}

impl Pacer {
    /// For a caller that keeps its own queue and looks at a part of it at a time: other scopes than those asked for so far may
    /// wait there. So a scope whose calls are not answered takes few places in the first 2 s of calls from now, in which the
    /// caller meets them. Without this a scope that was the only one so far takes all at once.
    pub const fn expect_scopes(&mut self) {
        (self.active.expects, self.active.began) = (true, None);
    }

    /// A scope whose calls are not answered takes few places, unless it is alone; those whose last call waited in vain take few
    /// together; and requests behind all others leave some.
    pub(super) fn admit_place(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        let leaves = self.in_flight.admit_under(self.in_flight.limit(), ask);
        if !leaves.is_now() {
            return leaves;
        }
        let scope = &self.scopes[place];
        let held = scope.in_flight.now();
        if scope.is_mute() && !places::may_take(self.active.mute, self.in_flight.free()) {
            // Where no other scope has work, they may have all places.
            let other = self.active.other(&self.active.answering, place);
            return other.map_or(Admit::Now, |at| Admit::at(at + ALONE, now, || WaitCause::Concurrency));
        }
        if places::may_take(held, self.in_flight.free()) || !scope.is_silent(now) {
            return Admit::Now;
        }
        if self.slots.len() > scope.queue.len() + held as usize {
            return Admit::OnRelease { cause: WaitCause::Concurrency };
        }
        match self.active.other(&self.active.all, place) {
            Some(at) => Admit::at(at + ALONE, now, || WaitCause::Concurrency),
            None => Admit::Now,
        }
    }

    /// The first of the heads that their scopes let leave that may take a place.
    pub(super) fn first_ready(&self, now: Instant) -> Option<(Place, u32)> {
        self.agenda.ready().find(|(head, place)| self.admit_place(now, *place, &self.ask(*head)).is_now())
    }

    /// When the first of these heads may take a place, if that is later and known: then it is of the only scope left.
    pub(super) fn first_ready_at(&self, now: Instant) -> Option<Instant> {
        let (head, place) = self.agenda.ready().next()?;
        match self.admit_place(now, place, &self.ask(head)) {
            Admit::At { at, .. } => Some(at),
            Admit::Now | Admit::OnRelease { .. } => None,
        }
    }
}
