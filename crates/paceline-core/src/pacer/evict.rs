//! Eviction of idle scopes without state worth keeping: a program may name a million scopes in a day.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use super::agenda::Wants;
use crate::quota::LimitCounts;
use crate::request::ScopeId;
use crate::scope::Scope;
use crate::time::Instant;

/// How often a scope is checked for eviction.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// At most so many scopes are checked per input: no input pays for all.
const CHECKS_PER_INPUT: usize = 4;

/// When each place of a scope is checked next. A place without a scope leaves the queue at its check.
#[derive(Clone, Debug, Default)]
pub(super) struct Evictions {
    queue: VecDeque<(Instant, u32)>,
    /// Whether a place is in the queue.
    is_queued: Vec<bool>,
}

impl Evictions {
    /// Queues a place for its first check, if it is not queued already.
    pub(super) fn schedule(&mut self, now: Instant, place: u32) {
        let index = place as usize;
        if self.is_queued.len() <= index {
            self.is_queued.resize(index + 1, false);
        }
        if !core::mem::replace(&mut self.is_queued[index], true) {
            self.queue.push_back((now + CHECK_INTERVAL, place));
        }
    }

    fn are_due(&self, now: Instant) -> bool {
        self.queue.front().is_some_and(|(due, _)| *due <= now)
    }

    fn next(&mut self, now: Instant) -> Option<u32> {
        let (_, place) = *self.queue.front().filter(|(due, _)| *due <= now)?;
        self.queue.pop_front();
        self.is_queued[place as usize] = false;
        Some(place)
    }
}

impl Pacer {
    /// Checks the scopes that are due.
    #[inline]
    pub(super) fn evict_idle(&mut self, now: Instant) {
        if self.evictions.are_due(now) {
            self.evict_due(now);
        }
    }

    fn evict_due(&mut self, now: Instant) {
        for _ in 0..CHECKS_PER_INPUT {
            let Some(place) = self.evictions.next(now) else { return };
            match self.scopes.get(place).map(|scope| scope.is_evictable(now)) {
                Some(true) => drop(self.evict(place)),
                Some(false) => self.evictions.schedule(now, place),
                None => {}
            }
        }
    }

    /// The scope of that name, where names are not those of the program, such as models that clients name: where there are
    /// `most` scopes and none of that name, it is the one that all further names share.
    pub fn scope_within(&mut self, name: &str, most: usize, shared: &str) -> ScopeId {
        let is_one_too_many = self.scopes.len() >= most && self.scopes.named(name).is_none();
        self.scope(if is_one_too_many { shared } else { name })
    }

    /// A new scope of that name, which goes on with what its limits have counted outside of the pacer; one that is there
    /// already stays as it is.
    pub fn scope_from(&mut self, name: Arc<str>, counts: LimitCounts) -> ScopeId {
        self.scopes.named(&name).unwrap_or_else(|| {
            let id = self.make(name);
            self.scopes[&id].set_quotas(counts.0);
            id
        })
    }

    /// Removes a scope in which no request waits or is in flight, which is open and has learnt nothing, and returns what its
    /// limits have counted, for [`scope_from`](Self::scope_from); none where the scope has to stay, also because a request
    /// outside of the pacer, or any other handle than this one, names it. For a scope that was evicted these are limits that
    /// are not used.
    pub fn release_scope(&mut self, now: Instant, scope: &ScopeId) -> Option<LimitCounts> {
        let now = self.advance(now);
        self.pump(now);
        let place = self.scopes.find(scope);
        // Beside the handle the scope itself and the index of the names know the name.
        let handles = 1 + if place.is_some() { 2 } else { 0 };
        if Arc::strong_count(&scope.name) > handles {
            return None;
        }
        match place {
            Some(place) => self.scopes[place].is_releasable(now).then(|| LimitCounts(self.evict(place).into_quotas())),
            None => Some(LimitCounts(self.fresh(scope.name.clone()).into_quotas())),
        }
    }

    fn evict(&mut self, place: u32) -> Scope {
        self.agenda.set(place, Wants::default());
        self.failing.remove(&place);
        self.answers.forget(place);
        let scope = self.scopes.remove(place);
        self.tier_parts.remove(&*scope.name);
        scope
    }
}
