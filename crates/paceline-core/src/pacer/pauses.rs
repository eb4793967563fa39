//! Holds until a known time, and stops until a person acts: of the account and of scopes, by the program and after refusals.

use alloc::sync::Arc;

use super::Pacer;
use crate::admit::PauseCause;
use crate::request::{Event, ScopeId};
use crate::scope::Scope;
use crate::time::Instant;

impl Pacer {
    /// Nothing of the scope, or of the account when `None`, leaves before `until`; then one call goes first. Requests
    /// wait with the cause [`PauseCause::Program`].
    pub fn hold(&mut self, now: Instant, scope: Option<&ScopeId>, until: Instant) {
        self.hold_for(now, scope, until, PauseCause::Program);
    }

    /// [`hold`](Self::hold) with that cause.
    pub fn hold_for(&mut self, now: Instant, scope: Option<&ScopeId>, until: Instant, cause: PauseCause) {
        let now = self.advance(now);
        let scope = scope.map(|id| self.own(id));
        self.hold_until(now, scope, until, cause);
        self.pump(now);
    }

    /// One call of the scope goes first; when `None`, of each scope, also of those that are not known yet, until one call
    /// has succeeded: what an earlier process stopped may not be mended.
    pub fn test_first(&mut self, now: Instant, scope: Option<&ScopeId>) {
        let now = self.advance(now);
        if let Some(id) = scope {
            let id = self.own(id);
            self.scopes[&id].expect_canary(now, PauseCause::Program);
        } else {
            self.untested = true;
            self.scopes.iter_mut().for_each(|scope| scope.expect_canary(now, PauseCause::Program));
        }
        self.pump(now);
    }

    /// A person expects a failing server to be back: the next call of the scope tests it, though the pause of its breaker is not
    /// over. It is one call, and where it fails the pause begins anew. `caller`: of whom the call is, where callers are known
    /// apart. Returns whether there was such a pause.
    pub fn test_now(&mut self, now: Instant, scope: &ScopeId, caller: Option<u64>) -> bool {
        let now = self.advance(now);
        let id = self.own(scope);
        let was_open = self.scopes[&id].test_now(caller);
        self.pump(now);
        was_open
    }

    /// Nothing of the scope, or of the account when `None`, leaves before [`resume`](Self::resume).
    pub fn stop(&mut self, now: Instant, scope: Option<&ScopeId>, reason: Arc<str>) {
        let now = self.advance(now);
        let scope = scope.map(|id| self.own(id));
        self.stop_for(now, scope, reason);
        self.pump(now);
    }

    /// Ends holds, stops and closed gates of the scope, or of everything when `None`. Where the server refused everything for a
    /// while, a learnt rate returns fast to nine tenths of the one before: its cause is mended.
    pub fn resume(&mut self, now: Instant, scope: Option<&ScopeId>) {
        let now = self.advance(now);
        match scope {
            Some(id) => {
                let id = self.own(id);
                self.scopes[&id].resume();
                self.set_clock(now, id.place);
            }
            None => {
                self.hold.resume();
                self.untested = false;
                self.scopes.iter_mut().for_each(Scope::resume);
                self.set_clocks(now);
            }
        }
        self.pump(now);
    }

    pub(super) fn hold_until(&mut self, now: Instant, scope: Option<ScopeId>, until: Instant, cause: PauseCause) {
        let renewed =
            scope.as_ref().map_or(&self.hold, |id| &self.scopes[id].hold).is_held_about_until(now, until, cause);
        match &scope {
            Some(id) => {
                self.scopes[id].hold_until(until, cause);
                self.set_clock(now, id.place);
            }
            None => {
                self.hold.hold(until, cause);
                self.scopes.iter_mut().for_each(|scope| scope.expect_canary(until, cause));
                self.set_clocks(now);
            }
        }
        self.events.push_back(Event::Held { scope, until, cause, renewed });
    }

    pub(super) fn stop_for(&mut self, now: Instant, scope: Option<ScopeId>, reason: Arc<str>) {
        match &scope {
            Some(id) => {
                self.scopes[id].hold.stop(reason.clone());
                self.set_clock(now, id.place);
            }
            None => {
                self.hold.stop(reason.clone());
                self.set_clocks(now);
            }
        }
        self.events.push_back(Event::Stopped { scope, reason });
    }

    /// Ends all stops, for a person has mended their cause; holds and closed gates go on.
    pub fn end_stops(&mut self, now: Instant) {
        let now = self.advance(now);
        self.hold.end_stop();
        self.scopes.iter_mut().for_each(|scope| scope.hold.end_stop());
        self.set_clocks(now);
        self.pump(now);
    }

    /// The clocks of deadlines stand still in a held or stopped account.
    pub(super) fn set_clocks(&mut self, now: Instant) {
        let all = self.hold.is_active();
        self.scopes.iter_mut().for_each(|scope| scope.set_clock(now, all));
    }

    /// The clock of deadlines stands still in a held or stopped scope.
    pub(super) fn set_clock(&mut self, now: Instant, place: u32) {
        self.scopes[place].set_clock(now, self.hold.is_active());
    }
}
