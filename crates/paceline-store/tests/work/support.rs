//! Engines on a clock that a test turns, and what every test wants to say in a line.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_core::{Class, Instant, Timestamp};
use paceline_store::work::{
    Claim, ClaimOutcome, ClaimRequest, Claimed, DecisionRecord, Failure, MemoryStore, NewItem, RecordStatus,
    SqliteStore, Transition, WorkClock, WorkStore, WorkerId,
};
use paceline_store::{ScopeRow, ScopeStatus};
use tempfile::TempDir;

/// When every test begins.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

pub(crate) const S: Duration = Duration::from_secs(1);

/// The lease of every worker that is not about leases.
pub(crate) const LEASE: Duration = Duration::from_secs(30 * 86_400);

/// A store and the clock that it goes by.
pub(crate) struct Bench {
    pub(crate) store: Arc<dyn WorkStore>,
    clock: Turned,
    folder: Option<TempDir>,
    /// Where the clock is the database's.
    #[cfg(feature = "postgres-tests")]
    remote: Option<crate::cluster::RemoteClock>,
}

/// A clock that stands still until it is turned, and whose wall clock may step.
#[derive(Clone, Default)]
pub(crate) struct Turned {
    passed: Arc<AtomicU64>,
    stepped: Arc<AtomicI64>,
}

impl Turned {
    pub(crate) fn clock(&self) -> WorkClock {
        let (monotonic, wall) = (self.clone(), self.clone());
        let shown = move || START.as_millis() + wall.passed().as_millis() as i64 + wall.stepped.load(Ordering::SeqCst);
        WorkClock::new(move || monotonic.now(), move || Timestamp::from_millis(shown()))
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.passed()
    }

    fn passed(&self) -> Duration {
        Duration::from_millis(self.passed.load(Ordering::SeqCst))
    }

    pub(crate) fn turn(&self, by: Duration) {
        self.passed.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    pub(crate) fn step(&self, by_ms: i64) {
        self.stepped.fetch_add(by_ms, Ordering::SeqCst);
    }
}

pub(crate) async fn memory() -> Bench {
    let clock = Turned::default();
    let store = Arc::new(MemoryStore::new(clock.clock()));
    Bench::of(store, clock)
}

pub(crate) async fn sqlite() -> Bench {
    let (clock, folder) = (Turned::default(), folder());
    let store = SqliteStore::open(folder.path().join("work.db"), clock.clock()).unwrap();
    Bench { folder: Some(folder), ..Bench::of(Arc::new(store), clock) }
}

/// In memory where the system has such a folder: the tests sync thousands of times, and none can cut the power.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Bench {
    pub(crate) fn of(store: Arc<dyn WorkStore>, clock: Turned) -> Self {
        Self {
            store,
            clock,
            folder: None,
            #[cfg(feature = "postgres-tests")]
            remote: None,
        }
    }

    /// The file of a store in a file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.as_ref().expect("the store has a file").path().join("work.db")
    }

    #[cfg(feature = "postgres-tests")]
    pub(crate) fn with_remote_clock(self, remote: crate::cluster::RemoteClock) -> Self {
        Self { remote: Some(remote), ..self }
    }

    pub(crate) async fn forward(&self, by: Duration) {
        self.clock.turn(by);
        #[cfg(feature = "postgres-tests")]
        if let Some(remote) = &self.remote {
            remote.turn(by.as_millis() as i64).await;
        }
    }

    /// Sets the wall clock, or that of the database.
    pub(crate) async fn step(&self, by_ms: i64) {
        self.clock.step(by_ms);
        #[cfg(feature = "postgres-tests")]
        if let Some(remote) = &self.remote {
            remote.turn(by_ms).await;
        }
    }

    pub(crate) async fn add(&self, items: impl IntoIterator<Item = NewItem>) {
        self.store.insert(items.into_iter().collect()).await.unwrap();
    }

    pub(crate) async fn register(&self) -> WorkerId {
        self.store.register("tester", LEASE).await.unwrap()
    }

    pub(crate) async fn claim(&self, worker: WorkerId, limit: usize) -> Claim {
        self.store.claim(worker, ClaimRequest { limit, ahead: Duration::ZERO }).await.unwrap()
    }

    /// Claims and tells the keys only.
    pub(crate) async fn keys(&self, worker: WorkerId, limit: usize) -> Vec<String> {
        keys(&self.claim(worker, limit).await.items)
    }

    pub(crate) async fn record(&self, outcome: ClaimOutcome) -> RecordStatus {
        self.store.record(vec![outcome], Vec::new()).await.unwrap()[0]
    }

    /// Claims the one item that is due, fails it and has it tried again after `delay`.
    pub(crate) async fn fail_once(&self, worker: WorkerId, delay: Duration) -> Claimed {
        let mut claim = self.claim(worker, 1).await;
        let claimed = claim.items.pop().expect("an item is due");
        assert_eq!(self.record(again(&claimed, delay)).await, RecordStatus::Recorded);
        claimed
    }
}

pub(crate) fn keys(items: &[Claimed]) -> Vec<String> {
    items.iter().map(|claimed| claimed.item.key.clone()).collect()
}

pub(crate) fn item(key: &str) -> NewItem {
    NewItem::new(key, format!("{{\"of\":\"{key}\"}}"))
}

pub(crate) fn of_group(key: &str, group: &str) -> NewItem {
    NewItem { group: group.to_owned(), ..item(key) }
}

pub(crate) fn decided(action: &'static str) -> DecisionRecord {
    let failure = Failure::new(Class::Transient, "no luck").with_status(503);
    DecisionRecord { failure, action, reason: Some("because".to_owned()), stayed_down: false, by: "rules".to_owned() }
}

pub(crate) fn outcome(claimed: &Claimed, counted: Counted, next: Transition, action: &'static str) -> ClaimOutcome {
    ClaimOutcome { counted, next, decided: Some(decided(action)), ..ClaimOutcome::back(claimed) }
}

pub(crate) fn again(claimed: &Claimed, delay: Duration) -> ClaimOutcome {
    outcome(claimed, Counted::Attempt, Transition::Retry(delay), "retry")
}

pub(crate) fn held(name: &str, until: Timestamp) -> ScopeRow {
    ScopeRow { name: name.into(), state: ScopeStatus::Held { until, reason: "quota".to_owned() } }
}

pub(crate) fn stopped(name: &str) -> ScopeRow {
    ScopeRow { name: name.into(), state: ScopeStatus::Stopped { reason: "bad key".to_owned() } }
}
