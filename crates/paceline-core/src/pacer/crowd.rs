//! Which scope may take a place among the calls in flight, where several want one.

use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::places::{self, Held};
use crate::queue::Place;
use crate::request::ScopeId;
use crate::scope::Asks;
use crate::snapshot::ScopeAnswers;
use crate::time::Instant;

/// A scope is alone when no other has had a call in flight for so long: a caller that keeps its own queue asks for one call at a
/// time.
const ALONE: Duration = Duration::from_secs(2);

/// Where scopes are expected, one leaves half of the places to others of which a call left or ended so recently: theirs come
/// one by one, and each would wait as long as a call of a slow host takes.
const RECENT: Duration = Duration::from_secs(10);

/// The scopes of which calls left or ended last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Active {
    all: Latest,
    /// Without mute scopes, whose last call waited for its answer in vain.
    answering: Latest,
    /// Places of scopes whose calls may not be answered.
    held: Held,
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

    /// Whether others may come, of which nothing is known yet.
    pub(super) const fn expects(&self) -> bool {
        self.expects
    }

    /// When a call of another scope than this one was known of last, where these are the known ones.
    fn other(&self, of: &Latest, scope: u32) -> Option<Instant> {
        of.other_than(scope).or(self.began)
    }

    /// What a scope holds whose calls may not be answered has changed.
    #[inline(always)]
    pub(super) fn hold(&mut self, before: Held, after: Held) {
        if before != after {
            self.change_held(before, after);
        }
    }

    const fn change_held(&mut self, before: Held, after: Held) {
        let Held { mute, unproven } = self.held;
        self.held = Held {
            mute: mute.saturating_sub(before.mute).saturating_add(after.mute),
            unproven: unproven.saturating_sub(before.unproven).saturating_add(after.unproven),
        };
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
    /// caller meets them. Without this a scope that was the only one so far takes all at once. And scopes that have not answered,
    /// or whose last call waited in vain, share half of the places for as long as the pacer lives, each of the latter with one;
    /// all of the latter together with one, while calls of scopes are in flight that have neither answered nor been waited for in
    /// vain. A scope that answers slowly takes half of the places at most where calls of others left or ended in the last 10 s.
    pub const fn expect_scopes(&mut self) {
        (self.active.expects, self.active.began) = (true, None);
    }

    /// What an earlier process, or another one, knows of the answers of a scope. It counts where this one knows nothing yet: a
    /// scope that has answered need not wait for its place behind those of which nothing is known.
    pub fn recall_answers(&mut self, now: Instant, scope: &ScopeId, known: ScopeAnswers) {
        let now = self.advance(now);
        let id = self.own(scope);
        let scope = &mut self.scopes[&id];
        let held = scope.held_places();
        scope.recall_answers(known);
        let holds = scope.held_places();
        self.active.hold(held, holds);
        self.pump(now);
    }

    /// A scope whose calls are not answered takes few places, unless it is alone; those whose last call waited in vain take few
    /// together; and requests behind all others leave some. Where other scopes may come, those that have answered are left half,
    /// and none takes more than half beside others that answer.
    #[inline(always)]
    pub(super) fn admit_place(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        let scope = &self.scopes[place];
        let is_one_of_few = places::may_take(scope.in_flight.now(), self.in_flight.free());
        // Mostly nothing is to be shared.
        if is_one_of_few && !self.active.expects && !scope.is_mute() && !ask.leaves_places() {
            return Admit::Now;
        }
        self.admit_shared(now, place, ask)
    }

    fn admit_shared(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        let leaves = self.in_flight.admit_under(self.in_flight.limit(), ask);
        if !leaves.is_now() {
            return leaves;
        }
        let scope = &self.scopes[place];
        let Asks { held, is_mute, is_proven } = scope.asks_for_place(ask.caller);
        if self.active.expects && !is_proven && !self.may_share(is_mute, held) {
            return Admit::OnRelease { cause: WaitCause::Place { in_vain: is_mute } };
        }
        let is_recent = |at: Instant| now < at + RECENT;
        if self.active.expects
            && scope.in_flight.now() >= places::shared(self.in_flight.limit())
            && self.active.other(&self.active.answering, place).is_some_and(is_recent)
        {
            return Admit::OnRelease { cause: WaitCause::Place { in_vain: is_mute } };
        }
        if is_mute && !places::may_take(self.active.held.mute, self.in_flight.free()) {
            // Where no other scope has work, they may have all places.
            let other = self.active.other(&self.active.answering, place);
            return other.map_or(Admit::Now, |at| Admit::at(at + ALONE, now, || WaitCause::Silence));
        }
        if places::may_take(held, self.in_flight.free()) || !scope.is_silent(now) {
            return Admit::Now;
        }
        if self.slots.len() > scope.queue.len() + held as usize {
            return Admit::OnRelease { cause: WaitCause::Silence };
        }
        match self.active.other(&self.active.all, place) {
            Some(at) => Admit::at(at + ALONE, now, || WaitCause::Silence),
            None => Admit::Now,
        }
    }

    /// Whether a scope that may not answer, and holds so many places, may take another one of those that such scopes share: for
    /// the others none has to become free first.
    fn may_share(&self, is_mute: bool, held: u32) -> bool {
        let Held { mute, unproven } = self.active.held;
        // Where others are to show whether they answer, one of those that did not is enough.
        let is_room = mute == 0 || (unproven == mute && places::may_take(mute, self.in_flight.free()));
        let may_test = !is_mute || (held == 0 && is_room);
        may_test && unproven < places::shared(self.in_flight.limit())
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
