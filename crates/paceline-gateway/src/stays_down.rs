//! Which scopes of an upstream are known to stay down, so that requests with a fallback wait for them no more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Instant;
use tokio::sync::Notify;

/// So many calls of a client's own, after which its requests fell back, say that a scope stays down for it, also where too few
/// calls failed for the server to count as failing.
const FAILED: u32 = 5;

/// One call tests the scope so long after a request has fallen back, ...
const FIRST_TEST: Duration = Duration::from_secs(1);

/// ... and each that fails doubles the time until the next, up to this: as long as a breaker stays open at most.
const LONGEST: Duration = Duration::from_secs(30);

/// Of a scope for which no request has come for so long nothing is known.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// So many scopes are kept at once, and so many clients of each: clients choose the names.
const MOST: usize = 1_000;
const MOST_CLIENTS: usize = 100;

/// What is known of the scopes of an upstream.
#[derive(Debug, Default)]
pub(crate) struct StaysDown {
    /// Some are kept: where none is, no request looks further.
    some: AtomicBool,
    scopes: Mutex<BTreeMap<Arc<str>, Down>>,
    changed: Notify,
}

/// A scope that a request fell back from, and in which no call has been answered since.
#[derive(Debug)]
struct Down {
    /// Calls that failed before requests of a client fell back.
    failed: BTreeMap<u64, u32>,
    /// The last time that something was known.
    seen: Instant,
    test: Instant,
    until_next: Duration,
    is_tested: bool,
}

/// What a request with a fallback does at a scope.
#[derive(Debug)]
pub(crate) enum Standing<'a> {
    /// It waits for its turn, as any request.
    Waits,
    /// It makes one call, which tests the scope.
    Tests(Test<'a>),
    /// It goes to its fallback at once.
    FallsBack,
}

/// A call that tests a scope, until dropped.
#[derive(Debug)]
pub(crate) struct Test<'a> {
    of: &'a StaysDown,
    scope: Arc<str>,
    /// When it began: a scope that it leaves down is tested again after the time from then.
    began: Instant,
    was_made: bool,
}

impl Test<'_> {
    /// It could not leave now: the next request may make it.
    pub(crate) fn was_not_made(mut self) {
        self.was_made = false;
    }
}

impl StaysDown {
    /// What a request of that client does. `is_failing` says whether the server of the scope is, and is asked where that
    /// decides.
    pub(crate) fn standing(
        &self,
        scope: &Arc<str>,
        client: u64,
        now: Instant,
        is_failing: impl FnOnce() -> bool,
    ) -> Standing<'_> {
        if !self.is_known(scope, client, now, is_failing) {
            return Standing::Waits;
        }
        match self.scopes().get_mut(scope) {
            None => Standing::Waits,
            Some(down) if down.is_tested || now < down.test => Standing::FallsBack,
            Some(down) => {
                down.is_tested = true;
                Standing::Tests(Test { of: self, scope: Arc::clone(scope), began: now, was_made: true })
            }
        }
    }

    /// Whether the scope is known to stay down for requests of that client.
    fn is_known(&self, scope: &str, client: u64, now: Instant, is_failing: impl FnOnce() -> bool) -> bool {
        if !self.some.load(Ordering::Relaxed) {
            return false;
        }
        let mut scopes = self.scopes();
        let Some(down) = scopes.get_mut(scope) else { return false };
        if now - down.seen > FORGOTTEN {
            self.remove(scopes, scope);
            return false;
        }
        down.seen = now;
        let is_own = down.failed.get(&client).is_some_and(|failed| *failed >= FAILED);
        drop(scopes);
        is_own || is_failing()
    }

    /// Ready once the scope is known to stay down for requests of that client.
    pub(crate) async fn is_known_of(
        &self,
        scope: &str,
        client: u64,
        now: impl Fn() -> Instant,
        is_failing: impl Fn() -> bool,
    ) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_known(scope, client, now(), &is_failing) {
                return;
            }
            changed.await;
        }
    }

    /// A request of that client fell back, after so many calls of its own had failed.
    pub(crate) fn fell_back(&self, scope: &Arc<str>, client: u64, calls: u32, now: Instant) {
        let mut scopes = self.scopes();
        if scopes.len() >= MOST {
            scopes.retain(|_, down| now - down.seen <= FORGOTTEN);
        }
        if scopes.len() >= MOST && !scopes.contains_key(scope) {
            return;
        }
        let down = scopes.entry(Arc::clone(scope)).or_insert_with(|| Down {
            failed: BTreeMap::new(),
            seen: now,
            test: now + FIRST_TEST,
            until_next: FIRST_TEST,
            is_tested: false,
        });
        down.seen = now;
        if calls > 0 && (down.failed.len() < MOST_CLIENTS || down.failed.contains_key(&client)) {
            let failed = down.failed.entry(client).or_default();
            *failed = failed.saturating_add(calls);
        }
        self.some.store(true, Ordering::Relaxed);
        drop(scopes);
        self.changed.notify_waiters();
    }

    /// The server of the scope answers.
    pub(crate) fn answers(&self, scope: &str) {
        if self.some.load(Ordering::Relaxed) {
            self.remove(self.scopes(), scope);
        }
    }

    fn remove(&self, mut scopes: MutexGuard<'_, BTreeMap<Arc<str>, Down>>, scope: &str) {
        scopes.remove(scope);
        self.some.store(!scopes.is_empty(), Ordering::Relaxed);
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&self) {
        self.scopes().clear();
        self.some.store(false, Ordering::Relaxed);
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Down>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Test<'_> {
    fn drop(&mut self) {
        if let Some(down) = self.of.scopes().get_mut(&self.scope) {
            down.is_tested = false;
            if !self.was_made {
                return;
            }
            down.until_next = (down.until_next * 2).min(LONGEST);
            down.test = self.began + down.until_next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn scope() -> Arc<str> {
        "m".into()
    }

    #[test]
    fn what_a_request_fell_back_from_is_tested_by_one_call_ever_more_seldom() {
        let down = StaysDown::default();
        assert!(matches!(down.standing(&scope(), 1, at(0), || true), Standing::Waits), "no request has fallen back");
        down.fell_back(&scope(), 1, 1, at(0));
        let mut tests = Vec::new();
        for second in 0..100 {
            if let Standing::Tests(test) = down.standing(&scope(), 2, at(second), || true) {
                assert!(
                    matches!(down.standing(&scope(), 1, at(second), || true), Standing::FallsBack),
                    "one at a time"
                );
                tests.push(second);
                drop(test);
            }
        }
        assert_eq!(tests, [1, 3, 7, 15, 31, 61, 91]);
        down.answers("m");
        assert!(matches!(down.standing(&scope(), 1, at(100), || true), Standing::Waits));
    }

    #[test]
    fn a_client_whose_calls_fail_says_nothing_to_the_others() {
        let down = StaysDown::default();
        let falls = |client| !matches!(down.standing(&scope(), client, at(0), || false), Standing::Waits);
        (1..FAILED).for_each(|_| down.fell_back(&scope(), 1, 1, at(0)));
        assert!(!falls(1), "too few calls");
        down.fell_back(&scope(), 1, 1, at(0));
        assert!(falls(1) && !falls(2));
        assert!(!matches!(down.standing(&scope(), 2, at(0), || true), Standing::Waits), "unless the server is failing");
    }

    #[test]
    fn what_no_request_has_come_for_is_forgotten() {
        let down = StaysDown::default();
        down.fell_back(&scope(), 1, FAILED, at(0));
        assert!(matches!(down.standing(&scope(), 1, at(300), || false), Standing::Tests(_)));
        assert!(matches!(down.standing(&scope(), 1, at(601), || false), Standing::Waits));
        assert!(!down.some.load(Ordering::Relaxed));
    }

    #[test]
    fn few_scopes_and_clients_are_kept() {
        let down = StaysDown::default();
        (0..2 * MOST).for_each(|number| down.fell_back(&number.to_string().into(), 1, 1, at(0)));
        (0..2 * MOST_CLIENTS as u64).for_each(|client| down.fell_back(&"0".into(), client, 1, at(0)));
        let scopes = down.scopes();
        assert_eq!((scopes.len(), scopes["0"].failed.len()), (MOST, MOST_CLIENTS));
    }
}
