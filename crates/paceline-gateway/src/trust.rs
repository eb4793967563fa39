//! Whether a refusal of the key, the account or a quota of it, which one client got, stops an upstream for all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline::{Class, Instant};
use paceline_core::{LimitScope, Refused, Witnesses};
use paceline_providers::Reading;

use crate::backend::Backend;

/// What is known of the key of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// It has been good for a call.
    has_answered: AtomicBool,
    /// Some refusals may wait for a second one: a call that succeeds looks at nothing else.
    some: AtomicBool,
    witnesses: Mutex<Witnesses>,
    /// Some of these are kept: no other call looks at them.
    some_away: AtomicBool,
    /// Until when clients with keys stay away from scopes: by the limiter's clock.
    away: Mutex<BTreeMap<u64, Away>>,
}

/// Where one client stays away, and until when.
#[derive(Debug, Default)]
struct Away {
    scopes: BTreeMap<Arc<str>, Instant>,
    from_all: Option<Instant>,
}

/// So many scopes of one client are kept: clients choose their names. One that is refused in more stays away from all.
const MOST_AWAY: usize = 100;

/// A server that is overloaded for longer than a pause, by what two clients were told, is tested after so long.
const TESTED: Duration = Duration::from_secs(300);

/// Who sent a call, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// The number of a client with a key.
    pub(crate) client: Option<u64>,
    pub(crate) name: &'a str,
    pub(crate) scope: &'a Arc<str>,
    /// When the call left, by the stopwatch.
    pub(crate) left: Instant,
}

impl Trust {
    /// A refusal of the key, the account or its quota, or a wait longer than a pause, that is not believed yet becomes one of
    /// this request alone. What two clients were told holds the others no longer than until a call tests it, and those two as
    /// long as they were told: what one program gets by several keys of its own is tested by the call of another.
    pub(crate) fn weigh(&self, upstream: &Backend, reading: &mut Reading, asker: Asker<'_>) {
        // A pause of an hour is soon over.
        let longest = upstream.sending.dialect.longest_pause();
        let asked = reading.wait.filter(|wait| asker.client.is_some() && *wait > longest);
        match reading.class {
            Class::Success => return self.passed(asker),
            Class::Account => {}
            Class::QuotaExhausted if reading.wait.is_none() => {}
            Class::QuotaExhausted | Class::Throttled | Class::Overloaded | Class::Transient if asked.is_some() => {}
            _ => return,
        }
        let Asker { client, scope, left: sent, .. } = asker;
        let of_scope = upstream.limiter().scope_snapshot(&upstream.scope(scope));
        let refused = Refused {
            scope,
            reach: reading.reach,
            client,
            sent,
            scope_has_answered: of_scope.is_some_and(|of| of.totals.by_class[Class::Success as usize] > 0),
            account_has_answered: self.has_answered.load(Ordering::Relaxed),
        };
        let (reach, is_news) = {
            let mut witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
            let before = witnesses.count();
            let reach = witnesses.reach(upstream.stopwatch.now(), refused);
            self.some.store(witnesses.count() > 0, Ordering::Relaxed);
            (reach, witnesses.count() > before)
        };
        reading.reach = reach;
        if is_news {
            let second = if client.is_some() { "another client" } else { "a later call" };
            tracing::warn!(
                upstream = upstream.name(),
                scope = &**scope,
                client = asker.name,
                "a refusal goes to its client and stops nothing, unless {second} gets one, too: {}",
                reading.reason()
            );
        }
        if let Some((client, wait)) = client.zip(asked) {
            let scope = (refused.reach != LimitScope::Account).then_some(scope);
            self.stays_away(client, scope, upstream.limiter().now(), wait);
            // A quota without an end is tested by one call.
            reading.wait = (reading.class != Class::QuotaExhausted).then_some(TESTED);
        }
        if reach == LimitScope::Item {
            reading.class = Class::Invalid;
        }
    }

    /// A client is refused for so long, in that scope or in all.
    fn stays_away(&self, client: u64, scope: Option<&Arc<str>>, now: Instant, wait: Duration) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let Away { scopes, from_all } = away.entry(client).or_default();
        scopes.retain(|_, until| *until > now);
        match scope.filter(|scope| scopes.len() < MOST_AWAY || scopes.contains_key(*scope)) {
            Some(scope) => drop(scopes.insert(Arc::clone(scope), now + wait)),
            None => *from_all = (*from_all).max(Some(now + wait)),
        }
        self.some_away.store(true, Ordering::Relaxed);
    }

    /// Until when a client alone is to stay away from a scope, whose upstream has asked that of it.
    pub(crate) fn not_before(&self, client: Option<u64>, scope: &Arc<str>) -> Option<Instant> {
        let client = client.filter(|_| self.some_away.load(Ordering::Relaxed))?;
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let Away { scopes, from_all } = away.get(&client)?;
        scopes.get(scope).copied().max(*from_all)
    }

    fn passed(&self, asker: Asker<'_>) {
        if !self.has_answered.load(Ordering::Relaxed) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if self.some.load(Ordering::Relaxed) {
            let mut witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
            witnesses.passed(asker.scope, asker.left, asker.client);
            self.some.store(witnesses.count() > 0, Ordering::Relaxed);
        }
    }
}
