//! What a worker tells the store of scopes that may not send.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use paceline::Limiter;
use paceline_core::{Class, ScopeAnswers, ScopeSnapshot, ScopeState, Timestamp};

use super::{Stopped, StoppedScopes, Why};
use crate::tasks::closed_scopes::{APART, BY_EACH, ClosedScope};

/// A shorter hold is none to tell of.
const SHORT: Duration = Duration::from_secs(1);

/// What fails at more addresses of a scope is its server's.
const FEW: usize = 2;

/// So many addresses of a scope are remembered as failing.
const MOST_FAILING: usize = 50;

/// The addresses of a scope whose last calls failed, and with which status the last of them did.
#[derive(Debug, Default)]
pub(super) struct Failing {
    addresses: BTreeSet<Arc<str>>,
    last: Option<u16>,
}

impl StoppedScopes {
    /// A call to an address of a scope has ended so.
    pub(in crate::tasks::run) fn ended_at(&self, scope: &str, address: &str, class: Class, status: Option<u16>) {
        let mut stopped = self.lock();
        if matches!(class, Class::Transient | Class::Overloaded) {
            let failing = stopped.failing.entry(scope.into()).or_default();
            failing.last = status;
            if failing.addresses.len() < MOST_FAILING {
                failing.addresses.insert(address.into());
            }
        } else if class != Class::Abandoned
            && let Some(failing) = stopped.failing.get_mut(scope)
            && failing.addresses.remove(address)
            && failing.addresses.is_empty()
        {
            stopped.failing.remove(scope);
        }
    }
}

/// By which the receiver behind an address is known apart from others of its host.
pub(in crate::tasks::run) fn number_of(address: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

impl Stopped {
    /// Why calls of a scope fail that is not held, for people, if they do.
    fn why_it_fails(&self, scope: &ScopeSnapshot) -> Option<String> {
        let hangs = scope.answers == ScopeAnswers::Missing;
        let failing = self.failing.get(&*scope.name);
        let is_apart =
            |address: &&Arc<str>| scope.fails_for.is_empty() || scope.fails_for.contains(&number_of(address));
        let addresses = failing.into_iter().flat_map(|failing| &failing.addresses);
        let apart: Vec<&str> = addresses.filter(is_apart).take(FEW + 1).map(|address| &**address).collect();
        let apart = if apart.len() > FEW { Vec::new() } else { apart };
        let last = failing.and_then(|failing| failing.last);
        let last = last.map(|status| format!(", the last with {status}")).unwrap_or_default();
        Some(match scope.failing_since {
            None if !scope.fails_for.is_empty() || (hangs && !apart.is_empty()) => {
                let whose =
                    if apart.is_empty() { "one or two of its addresses".to_owned() } else { apart.join(" and ") };
                format!("calls to {whose} fail{last}; {APART}")
            }
            _ if hangs => "it does not answer; one item at a time is tried, and the others wait".to_owned(),
            Some(_) => format!("its calls fail{last}; one item at a time is tried, and the others wait"),
            None => scope.no_success_since.map(|_| format!("its calls fail{last}; {BY_EACH}"))?,
        })
    }

    /// The scopes that may not send: stopped ones, those that are still to be tested, and those that a server holds. `wall`: the
    /// time by the clock of the store.
    pub(super) fn closed(&mut self, wall: Timestamp, limiter: &Limiter) -> Vec<ClosedScope> {
        let now = limiter.now();
        let is_stopped = |name: &str| self.scopes.contains_key(name) || self.suspects.contains_key(name);
        let mut held = BTreeMap::new();
        let mut closed = Vec::new();
        let scopes = if self.are_groups { Vec::new() } else { limiter.snapshot().scopes };
        for scope in scopes {
            let hold = match scope.state {
                ScopeState::Held { until, cause } => Some((until, cause)),
                _ => scope.closed_until.zip(scope.closed_for),
            };
            if is_stopped(&scope.name) {
                continue;
            }
            let Some((until, cause)) = hold.filter(|(until, _)| *until > now + SHORT) else {
                if let Some(reason) = self.why_it_fails(&scope) {
                    let hangs = scope.answers == ScopeAnswers::Missing;
                    let places = hangs.then_some(scope.concurrency.in_flight);
                    let (name, why) = (scope.name.to_string(), Some(Why::Failing));
                    closed.push(ClosedScope { name, why, reason, places, ..ClosedScope::default() });
                }
                continue;
            };
            let until = wall + (until - now);
            let known = self.held.get(&scope.name).filter(|(known, _)| known.saturating_since(until) < SHORT);
            let known = known.filter(|(known, noted)| until.saturating_since(*known) < SHORT && *noted <= wall);
            let (until, noted) = *known.unwrap_or(&(until, wall));
            let (name, reason) = (scope.name.to_string(), cause.explanation().to_string());
            let (until_ms, noted_ms) = (Some(until.as_millis()), Some(noted.as_millis()));
            closed.push(ClosedScope { name, until_ms, noted_ms, reason, ..ClosedScope::default() });
            held.insert(scope.name, (until, noted));
        }
        self.held_before.retain(|name, scope| {
            let is_over = scope.until_ms.is_none_or(|until| until <= wall.as_millis());
            !is_over && !is_stopped(name) && !held.contains_key(name.as_str())
        });
        closed.extend(self.held_before.values().cloned());
        self.held = held;
        let stopped = self.scopes.iter().filter(|(_, stop)| !stop.is_of_another).chain(&self.suspects);
        let stopped = stopped.map(|(name, stop)| ClosedScope {
            name: name.to_string(),
            why: Some(stop.why),
            reason: stop.reason.clone(),
            advice: stop.advice.clone(),
            refusals: stop.refusals.clone(),
            ..ClosedScope::default()
        });
        stopped.chain(closed).collect()
    }
}
