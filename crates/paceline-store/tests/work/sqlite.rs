//! What only the store in a file has: a file, its lock, and other programs that may write into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_store::work::{
    Amend, Filter, Scheduler, SchedulerConfig, SqliteStore, State, Task, WorkClock, WorkError, WorkStore as _,
};
use rusqlite::Connection;

use crate::support;
use crate::support::{Bench, LEASE, S, Turned, folder, item, keys};

#[tokio::test]
async fn one_process_works_and_others_add() {
    let (folder, clock) = (folder(), Turned::default());
    let path = folder.path().join("work.db");
    let works = SqliteStore::open(&path, clock.clock()).unwrap();
    let adds = SqliteStore::open(&path, clock.clock()).unwrap();
    let worker = works.register("one", LEASE).await.unwrap();
    works.register("another worker of the same process", LEASE).await.unwrap();
    let refused = adds.register("two", LEASE).await;
    assert!(matches!(&refused, Err(WorkError::Files(error)) if error.to_string().contains("is in use by process")));
    let changed = works.changed();
    adds.insert(vec![item("a")]).await.unwrap();
    changed.await.unwrap();
    let ask = paceline_store::work::ClaimRequest { limit: 9, ahead: S };
    assert_eq!(keys(&works.claim(worker, ask).await.unwrap().items), ["a"]);
}

#[tokio::test]
async fn what_the_dead_left_waits_again_at_once() {
    let (folder, clock) = (folder(), Turned::default());
    let path = folder.path().join("work.db");
    let dead = SqliteStore::open(&path, clock.clock()).unwrap();
    dead.insert(vec![item("a"), item("b")]).await.unwrap();
    let worker = dead.register("dies", LEASE).await.unwrap();
    let ask = paceline_store::work::ClaimRequest { limit: 1, ahead: S };
    dead.claim(worker, ask).await.unwrap();
    drop(dead);
    let next = SqliteStore::open(&path, clock.clock()).unwrap();
    let worker = next.register("lives", LEASE).await.unwrap();
    let ask = paceline_store::work::ClaimRequest { limit: 9, ahead: S };
    assert_eq!(keys(&next.claim(worker, ask).await.unwrap().items), ["b", "a"]);
}

#[tokio::test]
async fn a_due_time_that_is_none_is_refused_by_the_file() {
    let on = support::sqlite().await;
    on.add([item("a")]).await;
    let other_program = Connection::open(on.path()).unwrap();
    let set = |due: &str| other_program.execute_batch(&format!("UPDATE item SET not_before_ms = {due}"));
    for due in ["NULL", "12.5", "-1", "9e999", "1e300", "'tomorrow'", "''", "x'00ff'"] {
        set(due).expect_err(due);
    }
    set("9223372036854775807").unwrap();
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    assert_eq!((claim.items.len(), claim.next_due), (0, None));
    let listed = on.store.show("a").await.unwrap().unwrap().0;
    assert!(listed.state == State::Waiting && listed.not_before.is_some());
    set("0").unwrap();
    assert_eq!(on.keys(worker, 1).await, ["a"]);
}

#[test]
fn foreign_files_and_newer_stores_are_refused() {
    let (folder, clock) = (folder(), Turned::default());
    let path = folder.path().join("work.db");
    std::fs::write(&path, "this is no database, but it is long enough to be taken for one".repeat(20)).unwrap();
    assert!(matches!(SqliteStore::open(&path, clock.clock()), Err(WorkError::NotAStore { .. })));
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE item (id)").unwrap();
    assert!(matches!(SqliteStore::open(&path, clock.clock()), Err(WorkError::NotAStore { .. })));
    std::fs::remove_file(&path).unwrap();
    drop(SqliteStore::open(&path, clock.clock()).unwrap());
    drop(SqliteStore::open(&path, clock.clock()).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let refused = SqliteStore::open(&path, clock.clock());
    assert!(matches!(refused, Err(WorkError::NewerVersion { found: 99, .. })), "{refused:?}");
}

#[tokio::test]
async fn two_that_begin_a_store_together_both_may() {
    let folder = folder();
    let path = Arc::new(folder.path().join("work.db"));
    let openers: Vec<_> = (0..4)
        .map(|n| {
            let path = path.clone();
            std::thread::spawn(move || {
                let store = SqliteStore::open(path.as_path(), Turned::default().clock()).unwrap();
                tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap()
                    .block_on(store.insert(vec![item(&format!("item-{n}"))]))
                    .unwrap();
            })
        })
        .collect();
    openers.into_iter().for_each(|opener| opener.join().unwrap());
    let store = SqliteStore::open(path.as_path(), Turned::default().clock()).unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 4);
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn with_a_bound_on_crashes_no_more_is_claimed_than_can_begin() {
    let folder = folder();
    let store = Arc::new(SqliteStore::open(folder.path().join("work.db"), WorkClock::system()).unwrap());
    store.insert((0..2_000).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let config = SchedulerConfig { concurrency: 2, max_crashes: Some(1), ..SchedulerConfig::default() };
    let most = Arc::new(AtomicU64::new(0));
    let look = |_: Task| {
        let (store, most) = (store.clone(), most.clone());
        async move {
            most.fetch_max(store.counts().await.unwrap().of(State::InFlight), Ordering::Relaxed);
            Ok(())
        }
    };
    Scheduler::new(store.clone(), config, WorkClock::system()).unwrap().run(look).await.unwrap();
    assert_eq!(most.load(Ordering::Relaxed), 2);
}

/// A wall clock that was set back between two runs makes no item wait longer than was chosen for it.
#[tokio::test]
async fn a_clock_set_back_between_runs_starts_no_longer_wait() {
    let (folder, clock) = (folder(), Turned::default());
    clock.turn(S * 3_600);
    let path = folder.path().join("work.db");
    let before = SqliteStore::open(&path, clock.clock()).unwrap();
    before.insert(vec![item("a")]).await.unwrap();
    let bench = Bench::of(Arc::new(before), clock);
    let worker = bench.register().await;
    bench.fail_once(worker, S * 60).await;
    drop(bench);
    let bench = Bench::of(Arc::new(SqliteStore::open(&path, Turned::default().clock()).unwrap()), Turned::default());
    let worker = bench.register().await;
    assert_eq!(bench.claim(worker, 1).await.next_due, Some(S * 60));
}

/// The clock was set back by hours under a worker that stays, and goes on by the time that it had. A person sends for an item.
#[tokio::test]
async fn who_sends_for_an_item_after_the_clock_was_set_back_has_done_so_after_its_claim() {
    let (folder, ahead) = (folder(), Turned::default());
    ahead.turn(S * 3 * 3_600);
    let path = folder.path().join("work.db");
    let open = |clock: &Turned| Bench::of(Arc::new(SqliteStore::open(&path, clock.clock()).unwrap()), clock.clone());
    let on = open(&ahead);
    on.add([item("a")]).await;
    let worker = on.register().await;
    let claimed_at = on.claim(worker, 1).await.now;
    let person = open(&Turned::default());
    person.store.amend(Filter::keys(["a"]), Amend::Cancel).await.unwrap();
    for amend in [Amend::Retry, Amend::Again { as_new: false }] {
        person.store.amend(Filter::keys(["a"]), amend).await.unwrap();
        let sent_for = person.store.show("a").await.unwrap().unwrap().0.sent_for;
        assert!(sent_for > Some(claimed_at), "{amend:?}: {sent_for:?}");
    }
    drop((on, person));
    let on = open(&Turned::default());
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    assert!(claim.items[0].item.sent_for <= Some(claim.now), "a new start goes by the clock as it is");
}

#[tokio::test]
async fn a_restart_neither_shortens_a_wait_nor_begins_it_anew() {
    let (folder, clock) = (folder(), Turned::default());
    let open =
        || Bench::of(Arc::new(SqliteStore::open(folder.path().join("work.db"), clock.clock()).unwrap()), clock.clone());
    let on = open();
    on.add([item("a")]).await;
    let worker = on.register().await;
    on.fail_once(worker, S * 60).await;
    drop(on);
    for (down, left) in [(0, 60), (20, 40), (39, 1)] {
        clock.turn(S * down);
        let on = open();
        let worker = on.register().await;
        let claim = on.claim(worker, 1).await;
        assert_eq!((claim.items.len(), claim.next_due), (0, Some(S * left)));
    }
    clock.turn(S * 86_400);
    let on = open();
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    assert_eq!(keys(&claim.items), ["a"], "its time came while no process was there");
    assert_eq!(claim.items[0].history[0].waited, Some(S * (59 + 86_400)));
}
