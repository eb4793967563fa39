//! When to look at which scope, and whose head may leave.
//!
//! A scope changes by an input or because a time of its own is reached. Its times are computed then and kept sorted here, so
//! that idle scopes cost nothing.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::queue::Place;
use crate::time::Instant;

/// The next times of a scope, valid until an input changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Wants {
    /// Its head may leave by the scope's own rules; that stays true as time passes.
    pub(super) ready: Option<Place>,
    /// When its head may leave.
    pub(super) head: Option<Instant>,
    /// When a waiter becomes due.
    pub(super) due: Option<Instant>,
    /// When the first deadline of a waiter passes.
    pub(super) deadline: Option<Instant>,
    /// When a closure or a hold ends. No timer is set for it: the next input handles it.
    pub(super) reopens: Option<Instant>,
    /// Its head waits for a quota of the scope.
    pub(super) full: bool,
}

/// The next times of all scopes, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Agenda {
    wants: Vec<Wants>,
    ready: BTreeSet<(Place, u32)>,
    heads: BTreeSet<(Instant, u32)>,
    dues: BTreeSet<(Instant, u32)>,
    deadlines: BTreeSet<(Instant, u32)>,
    reopenings: BTreeSet<(Instant, u32)>,
    /// How many there are of all of these.
    entries: usize,
    /// Scopes whose head waits for a quota of the scope.
    full: usize,
}

impl Agenda {
    /// Replaces the times of a scope.
    pub(super) fn set(&mut self, scope: u32, wants: Wants) {
        if self.wants.len() <= scope as usize {
            self.wants.resize(scope as usize + 1, Wants::default());
        }
        let known = core::mem::replace(&mut self.wants[scope as usize], wants);
        if known == wants {
            return;
        }
        replace(&mut self.ready, scope, known.ready, wants.ready);
        replace(&mut self.heads, scope, known.head, wants.head);
        replace(&mut self.dues, scope, known.due, wants.due);
        replace(&mut self.deadlines, scope, known.deadline, wants.deadline);
        replace(&mut self.reopenings, scope, known.reopens, wants.reopens);
        let times = [&self.heads, &self.dues, &self.deadlines, &self.reopenings];
        self.entries = self.ready.len() + times.into_iter().map(BTreeSet::len).sum::<usize>();
        self.full = self.full + usize::from(wants.full) - usize::from(known.full);
    }

    /// The scopes with a time up to `now`; each is returned until its times are replaced.
    pub(super) fn due_scopes(&self, now: Instant) -> impl Iterator<Item = u32> {
        let is_due = move |at: &&(Instant, u32)| at.0 <= now;
        let of = |times| BTreeSet::iter(times).take_while(is_due).map(|at: &(Instant, u32)| at.1);
        of(&self.heads).chain(of(&self.dues)).chain(of(&self.deadlines)).chain(of(&self.reopenings))
    }

    /// The heads that may leave by the rules of their scopes, in order.
    pub(super) fn ready(&self) -> impl Iterator<Item = (Place, u32)> {
        self.ready.iter().copied()
    }

    /// Whether the scope is known, and no scope has any time, nor a head that may leave.
    #[inline]
    pub(super) fn is_quiet(&self, scope: u32) -> bool {
        self.entries == 0 && self.full == 0 && self.wants.len() > scope as usize
    }

    /// Whether a scope has a time up to `now`.
    #[inline(always)]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_due = |times: &BTreeSet<(Instant, u32)>| times.first().is_some_and(|first| first.0 <= now);
        self.entries > 0
            && (is_due(&self.heads) || is_due(&self.dues) || is_due(&self.deadlines) || is_due(&self.reopenings))
    }

    /// The n-th of the heads that may leave later, by time.
    pub(super) fn later(&self, n: usize) -> Option<(Instant, u32)> {
        self.heads.iter().nth(n).copied()
    }

    /// When the next waiter becomes due, or its deadline passes.
    pub(super) fn next_due(&self) -> Option<Instant> {
        [self.dues.first(), self.deadlines.first()].into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// The nearest deadline of all waiters, and its scope.
    pub(super) fn first_deadline(&self) -> Option<(Instant, u32)> {
        self.deadlines.first().copied()
    }

    /// Whether a head waits for a quota of its scope.
    pub(super) const fn is_full(&self) -> bool {
        self.full > 0
    }
}

fn replace<T: Copy + Ord>(set: &mut BTreeSet<(T, u32)>, scope: u32, known: Option<T>, new: Option<T>) {
    if known == new {
        return;
    }
    if let Some(known) = known {
        set.remove(&(known, scope));
    }
    if let Some(new) = new {
        set.insert((new, scope));
    }
}
