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
    /// Until when a client with a key stays away from a scope: by the limiter's clock.
    away: Mutex<BTreeMap<(u64, Arc<str>), Instant>>,
}

/// So many of those are kept: clients choose the names of scopes. What comes beyond holds no client back.
const MOST_AWAY: usize = 1_000;

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
    /// A refusal of the key, the account or its quota that is not believed yet becomes one of this request alone.
    pub(crate) fn weigh(&self, upstream: &Backend, reading: &mut Reading, asker: Asker<'_>) {
        match reading.class {
            Class::Success => return self.passed(asker),
            Class::Account => {}
            Class::QuotaExhausted if reading.wait.is_none() => {}
            // A pause of an hour is soon over.
            Class::QuotaExhausted
                if asker.client.is_some() && reading.wait > Some(upstream.sending.dialect.longest_pause()) => {}
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
        if reach == LimitScope::Item {
            reading.class = Class::Invalid;
            if let Some((client, wait)) = client.zip(reading.wait) {
                self.stays_away(client, scope, upstream.limiter().now(), wait);
            }
        }
    }

    /// A client is refused for so long, and no other is.
    fn stays_away(&self, client: u64, scope: &Arc<str>, now: Instant, wait: Duration) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.retain(|_, until| *until > now);
        if away.len() < MOST_AWAY {
            away.insert((client, Arc::clone(scope)), now + wait);
            self.some_away.store(true, Ordering::Relaxed);
        }
    }

    /// Until when a client alone is to stay away from a scope, whose upstream has asked that of it.
    pub(crate) fn not_before(&self, client: Option<u64>, scope: &Arc<str>) -> Option<Instant> {
        let client = client.filter(|_| self.some_away.load(Ordering::Relaxed))?;
        self.away.lock().unwrap_or_else(PoisonError::into_inner).get(&(client, Arc::clone(scope))).copied()
    }

    fn passed(&self, asker: Asker<'_>) {
        if !self.has_answered.load(Ordering::Relaxed) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if self.some.load(Ordering::Relaxed) {
            let mut witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
            witnesses.passed(asker.scope, asker.left);
            self.some.store(witnesses.count() > 0, Ordering::Relaxed);
        }
    }
}
