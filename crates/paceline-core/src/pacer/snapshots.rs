//! Snapshots of a pacer, for people and dashboards.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::cost::Cost;
use crate::fleet::FleetSnapshot;
use crate::request::ScopeId;
use crate::scope;
use crate::snapshot::{ScopeAnswers, ScopeSnapshot, ScopeState, Snapshot};
use crate::time::Instant;

impl Pacer {
    /// A snapshot of the account and every scope. The cost is linear in the number of scopes.
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let now = now.max(self.now);
        let scopes = self.scopes.iter().map(|(place, scope)| scope.snapshot(now, self.next_of(now, place))).collect();
        self.with_account(now, scopes)
    }

    /// A snapshot of the account, and of those scopes that have changed since the last call or in which a request waits; the
    /// first call returns all. In the others only what depends on the present has changed: ages, and that a pause or a window is
    /// over. They cost nothing, so this is for one reader that polls and keeps earlier snapshots. An evicted scope is not
    /// reported.
    pub fn changes(&mut self, now: Instant) -> Snapshot {
        let now = now.max(self.now);
        let changed = self.scopes.take_changed();
        let snapshot = |place: &u32| self.scopes[*place].snapshot(now, self.next_of(now, *place));
        let scopes: Vec<_> = changed.iter().map(snapshot).collect();
        for (place, _) in changed.iter().zip(&scopes).filter(|(_, scope)| scope.waiting > 0) {
            self.scopes.note_changed(*place);
        }
        self.with_account(now, scopes)
    }

    /// A snapshot of one scope; none if there is none of that name. The others cost nothing.
    pub fn scope_snapshot(&self, now: Instant, scope: &ScopeId) -> Option<ScopeSnapshot> {
        let (now, place) = (now.max(self.now), self.scopes.find(scope)?);
        Some(self.scopes[place].snapshot(now, self.next_of(now, place)))
    }

    /// The state of the account, as a snapshot has it. The cost does not depend on the number of scopes.
    pub fn account_state(&self, now: Instant) -> ScopeState {
        let next = self.admit_account(now.max(self.now), &Ask::of(&Cost::request()));
        scope::state(&self.hold, &next)
    }

    /// What a process of a fleet has of its limits; none where it is in no fleet. The cost does not depend on the number of
    /// scopes.
    pub fn fleet(&self, now: Instant) -> Option<FleetSnapshot> {
        let known = self.divided.snapshot(now.max(self.now))?;
        let (reader, reads) = self.paces.readers();
        Some(FleetSnapshot { reader, reads, ..known })
    }

    /// When the next waiter of a scope may leave: its head, else a call of one request.
    fn next_of(&self, now: Instant, place: u32) -> Admit {
        let scope = &self.scopes[place];
        let next = match self.head(now, scope) {
            Some(head) => self.admit_ask(now, place, &self.ask(head)),
            None => match scope.queue.next_due() {
                Some(due) => Admit::at(due, now, || WaitCause::NotBefore),
                None => self.admit_ask(now, place, &Ask::of(&Cost::request())),
            },
        };
        self.divided.dated(now, next)
    }

    /// Adds the snapshot of the account. `scopes`: at least those in which a request waits.
    fn with_account(&self, now: Instant, scopes: Vec<ScopeSnapshot>) -> Snapshot {
        let first = scopes.iter().filter(|scope| scope.waiting > 0).min_by_key(|scope| scope.next_due);
        let waiting = self.slots.len() as u64 - u64::from(self.in_flight.now());
        let in_flight = self.in_flight.snapshot(waiting > 0);
        let account = ScopeSnapshot {
            name: "".into(),
            state: self.account_state(now),
            quotas: scope::quotas(&self.quotas, now),
            announced: Vec::new(),
            fleet: self.fleet(now).map(Box::new),
            burst: self.quotas.burst_left(now),
            estimate: None,
            delay: Duration::ZERO,
            responsive: None,
            totals: self.totals.clone(),
            waiting,
            waiting_by_priority: by_priority(&scopes),
            concurrency: in_flight,
            waits_for: first.and_then(|scope| scope.waits_for.clone()),
            next_due: first.and_then(|scope| scope.next_due),
            closed_until: None,
            closed_for: None,
            failing_since: self.failing.values().min().copied(),
            no_success_since: None,
            refused_since: None,
            refuses_all_since: None,
            fails_for: Vec::new(),
            answers: ScopeAnswers::Unknown,
            silent: None,
            fault: None,
        };
        Snapshot { account, scopes }
    }
}

/// The sums of all scopes.
fn by_priority(scopes: &[ScopeSnapshot]) -> Vec<(i32, u64)> {
    let mut sums = BTreeMap::<_, u64>::new();
    for (priority, count) in scopes.iter().flat_map(|scope| &scope.waiting_by_priority) {
        *sums.entry(Reverse(*priority)).or_default() += count;
    }
    sums.into_iter().map(|(Reverse(priority), count)| (priority, count)).collect()
}
