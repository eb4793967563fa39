//! A full disk: the run ends with an error about it, and the next one continues.

use crate::state::State;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::{Backoff, Class, Growth, Jitter};

use super::SqliteStore;
use super::log::make_room_beside;
use crate::DiskSpace;
use crate::disk_full::RESERVE;
use crate::work::{
    Failure, NewItem, Scheduler, SchedulerConfig, SchedulerEvent, Status, Summary, Task, WorkClock, WorkError,
    WorkStore as _,
};

/// Lets the file grow by so many pages more, and no further.
async fn room(store: &SqliteStore, pages: u32) {
    let limited = store.transact("limit", move |conn, _| {
        let present: u32 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
        conn.query_row(&format!("PRAGMA max_page_count = {}", present + pages), [], |_| Ok(()))
    });
    limited.await.unwrap();
}

/// Each item fails once, with a long message, and then succeeds.
fn once(task: &Task) -> Result<(), Failure> {
    if task.attempt() == 1 { Err(Failure::new(Class::Transient, "no luck ".repeat(50))) } else { Ok(()) }
}

#[derive(Default)]
struct Keys(Mutex<BTreeSet<String>>);

async fn run(store: &Arc<SqliteStore>, recorded: &Arc<Keys>) -> Result<Summary, WorkError> {
    let backoff = Backoff { growth: Growth::Constant { delay: Duration::from_millis(1) }, jitter: Jitter::None };
    let recorded = recorded.clone();
    let observer = Arc::new(move |note: &SchedulerEvent<'_>| {
        if let SchedulerEvent::Succeeded(item) = note {
            assert!(recorded.0.lock().unwrap().insert(item.key.clone()), "{} was recorded twice", item.key);
        }
    });
    let scheduler =
        Scheduler::new(store.clone(), SchedulerConfig { backoff, ..SchedulerConfig::default() }, WorkClock::system())
            .unwrap();
    scheduler.with_observer(observer).run(|task| async move { once(&task) }).await
}

#[tokio::test]
async fn a_full_disk_ends_the_run_and_costs_nothing() {
    // In memory where the system has such a folder: nothing here depends on syncs.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let open = || Arc::new(SqliteStore::open(folder.path().join("work.db"), WorkClock::system()).unwrap());
    let store = open();
    let items = 500;
    store.insert((0..items).map(|n| NewItem::new(format!("item-{n}"), "{}")).collect()).await.unwrap();
    let recorded = Arc::new(Keys::default());
    room(&store, 20).await;
    let message = run(&store, &recorded).await.expect_err("there is no room for what is to be written").to_string();
    let expected = "cannot write the store: database or disk is full; make room on its disk, then run the same command";
    assert!(message.starts_with(expected), "{message}");
    // The last records before the failure may not have been answered any more.
    let answered = recorded.0.lock().unwrap().len() as u64;
    let found = store.counts().await.unwrap().of(State::Succeeded);
    assert!(answered <= found && found < items, "{answered} answered, {found} recorded");
    drop(store);
    // The bound was one of that connection.
    let summary = run(&open(), &recorded).await.unwrap();
    assert_eq!((summary.status(), summary.counts.of(State::Succeeded)), (Status::Success, items));
    let again = recorded.0.lock().unwrap().len() as u64 - answered;
    assert_eq!(again, items - found, "what was recorded is not done again, and nothing else is missing");
}

#[tokio::test]
async fn what_finds_the_disk_full_is_done_again_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let disk = DiskSpace::of([&*path]);
    let store = SqliteStore::open_on(&path, WorkClock::system(), Some(disk)).unwrap();
    let full = |tried: u32| {
        let source = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None);
        WorkError::sqlite(if tried > 2 { "try a third time" } else { "write" })(source)
    };
    let mut tried = 0;
    let filled_for_a_moment = store.thread.submit(move |_| {
        tried += 1;
        if tried == 1 { Err(full(tried)) } else { Ok(tried) }
    });
    assert_eq!(filled_for_a_moment.await.unwrap(), 2);

    // The disk has space, as far as it says itself.
    let mut tried = 0;
    let always = store.thread.submit(move |_| -> Result<(), _> {
        tried += 1;
        Err(full(tried))
    });
    let message = always.await.unwrap_err().to_string();
    assert!(message.starts_with("cannot write the store") && message.contains("disk is full"), "{message}");
}

/// A disk for a store and a log of half a megabyte.
fn left_beside(folder: &Path) -> Option<u64> {
    let size = |file: &str| folder.join(file).metadata().map_or(0, |file| file.len());
    Some((RESERVE + (1 << 20)).saturating_sub(size("work.db") + size("work.db-wal")))
}

/// A log holds a page as often as it was changed.
#[tokio::test]
async fn the_log_goes_into_the_store_before_the_disk_counts_as_full() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("work.db");
    let disk = DiskSpace::with(vec![folder.path().to_owned()], left_beside);
    let store = SqliteStore::open_on(&path, WorkClock::system(), Some(disk.clone())).unwrap();
    let is_full = async {
        while disk.disk_full().is_none() {
            tokio::task::yield_now().await;
        }
    };
    let changes = async {
        for n in 0..1_000 {
            store.save_state("a", &n.to_string()).await.unwrap();
        }
    };
    tokio::select! {
        () = changes => {}
        () = is_full => panic!("{:?}", disk.disk_full()),
    }
    let log = || folder.path().join("work.db-wal").metadata().map_or(0, |log| log.len());
    assert!(log() < 1 << 20, "{}", log());

    // A worker was killed, and its log stays beside the store.
    let killed = folder.path().join("killed");
    std::fs::create_dir(&killed).unwrap();
    store.save_state("a", "killed").await.unwrap();
    for file in ["work.db", "work.db-wal"] {
        std::fs::copy(folder.path().join(file), killed.join(file)).unwrap();
    }
    let log_of_killed = killed.join("work.db-wal");
    assert!(log_of_killed.metadata().unwrap().len() > 0);
    make_room_beside(&killed.join("work.db"));
    assert_eq!(log_of_killed.metadata().map_or(0, |log| log.len()), 0);
    let store = SqliteStore::open(killed.join("work.db"), WorkClock::system()).unwrap();
    assert_eq!(store.load_state("a").await.unwrap().as_deref(), Some("killed"));
}
