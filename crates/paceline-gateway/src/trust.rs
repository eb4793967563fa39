//! Whether a refusal of the key or the account, which one client got, stops an upstream for all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
}

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
        }
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
