//! What the other workers of a store have stopped, hold, and find open.

use std::sync::Arc;

use paceline::Limiter;
use paceline_core::Timestamp;

use super::{Stop, Stopped, Why};
use crate::tasks::closed_scopes::ClosedScopes;
use crate::text;

impl Stopped {
    /// What is stopped here or still to be tested, and the store knows no longer: another worker has found it open.
    pub(super) fn take_up_found_open(&mut self, kept: &ClosedScopes) {
        let (kept, told) = (kept.by_name(), self.told.by_name());
        let is_gone = |(name, stop): &(&Arc<str>, &Stop)| {
            (stop.is_of_another || told.contains_key(&***name)) && !kept.contains_key(&***name)
        };
        let closed = self.scopes.iter().chain(&self.suspects);
        let gone: Vec<Arc<str>> = closed.filter(is_gone).map(|(name, _)| Arc::clone(name)).collect();
        for name in gone {
            tracing::info!(scope = &*name, "another worker has found the scope open, and all of its items go on");
            let stops = [self.scopes.remove(&name), self.suspects.remove(&name)];
            stops.into_iter().flatten().for_each(|mut stop| self.take_up.append(&mut stop.left));
            self.found_open.insert(name);
        }
    }

    /// What other workers have stopped is not called here either, and what a server told them to leave alone is held. But not
    /// what a person has opened: another worker may not know yet. `wall`: the time by the clock of the store.
    pub(super) fn follow(&mut self, all: &ClosedScopes, wall: Timestamp, limiter: &Limiter) {
        let now = limiter.now();
        for scope in all.0.iter().filter(|scope| self.of_others.contains(scope.name.as_str())) {
            let (name, reason): (Arc<str>, _) = (scope.name.as_str().into(), &scope.reason);
            match (scope.why, scope.until_ms.map(Timestamp::from_millis)) {
                (Some(Why::Failing), _) | (None, None) => {}
                (Some(why), _) => {
                    if self.scopes.contains_key(&name) || self.suspects.contains_key(&name) {
                        continue;
                    }
                    let line = format!("another worker has stopped the scope: {reason}");
                    tracing::info!(scope = &*name, "{}", text::printable(&line));
                    let stop = Stop::new(why, reason.clone(), scope.advice.clone(), self.latest);
                    let refusals = scope.refusals.clone();
                    self.scopes.insert(name, Stop { is_of_another: true, refusals, ..stop });
                }
                (None, Some(until)) if !self.opened.contains(&scope.name) => {
                    let Some(cause) = scope.cause() else { continue };
                    let until = now + until.saturating_since(wall);
                    limiter.hold_for(Some(&limiter.scope(&name)), until, cause);
                }
                (None, Some(_)) => {}
            }
        }
    }
}
