//! One process on a store in a file.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::Timestamp;
use paceline_store::work::{
    ClaimOutcome as What, ClaimRequest, NewItem, Scheduler, SchedulerConfig, SqliteStore, Status, WorkClock, WorkStore,
};

use crate::Outcome;
use crate::process::{memory_kib, processor};

/// As many as are added in one transaction.
const BATCH: usize = 1_000;

async fn add(store: &dyn WorkStore, items: impl Iterator<Item = NewItem>) -> Outcome<()> {
    let mut items = items.peekable();
    while items.peek().is_some() {
        store.insert(items.by_ref().take(BATCH).collect()).await?;
    }
    Ok(())
}

pub(crate) async fn jobs(file: &Path, jobs: usize, at_a_time: usize) -> Outcome<()> {
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open(file, clock.clone())?);
    let began = clock.now();
    add(&*store, (0..jobs).map(|n| NewItem::new(format!("job-{n}"), n.to_string()))).await?;
    let added = clock.now() - began;
    let policy = SchedulerConfig { concurrency: at_a_time, ..SchedulerConfig::default() };
    let began = clock.now();
    let summary = Scheduler::new(store, policy, clock.clone())?.run(|_| async { Ok(()) }).await?;
    let done = clock.now() - began;
    if summary.status() != Status::Success {
        return Err(format!("not every job succeeded: {summary:?}").into());
    }
    println!("{:.6} {:.6}", added.as_secs_f64(), done.as_secs_f64());
    Ok(())
}

/// Of the items beside those that wait.
const DUE: usize = 5_000;

pub(crate) async fn waiting(file: &Path, items: usize) -> Outcome<()> {
    let clock = WorkClock::system();
    let store = SqliteStore::open(file, clock.clone())?;
    let later = clock.wall() + Duration::from_secs(30 * 86_400);
    let waits = |n: usize| NewItem { not_before: Some(later), ..NewItem::new(format!("waits-{n}"), n.to_string()) };
    add(&store, (0..items).map(waits)).await?;
    let soon = clock.wall() + Duration::from_millis(1);
    let due = |n: usize| NewItem { not_before: Some(soon), ..NewItem::new(format!("due-{n}"), n.to_string()) };
    add(&store, (0..DUE).map(due)).await
}

pub(crate) async fn claim(file: &Path) -> Outcome<()> {
    let clock = WorkClock::system();
    let store = SqliteStore::open(file, clock.clone())?;
    let worker = store.register("bench", Duration::from_secs(600)).await?;
    let (mut claiming, mut left) = (Duration::ZERO, DUE);
    while left > 0 {
        let began = clock.now();
        let claim = store.claim(worker, ClaimRequest { limit: 100, ahead: Duration::ZERO }).await?;
        claiming += clock.now() - began;
        left = left.checked_sub(claim.items.len()).filter(|_| !claim.items.is_empty()).ok_or("not all were due")?;
        store.record(claim.items.iter().map(What::success).collect(), Vec::new()).await?;
    }
    println!("{:.3} {}", claiming.as_secs_f64() * 1e6 / DUE as f64, memory_kib(true)?);
    Ok(())
}

/// Items due over two seconds, one each fifth of a millisecond.
const SCHEDULED: i64 = 10_000;

pub(crate) async fn due(file: &Path) -> Outcome<()> {
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open(file, clock.clone())?);
    let first = clock.wall().as_millis() + 3_000;
    let at = |n: i64| Some(Timestamp::from_millis(first + n / 5));
    add(&*store, (0..SCHEDULED).map(|n| NewItem { not_before: at(n), ..NewItem::new(format!("due-{n}"), "{}") }))
        .await?;
    let (memory, used) = (memory_kib(false)?, processor()?);
    let late = Arc::new(Mutex::new(Vec::with_capacity(SCHEDULED as usize)));
    let heard = (late.clone(), clock.clone());
    let began = clock.now();
    let summary = Scheduler::new(store, SchedulerConfig::default(), clock.clone())?
        .run(move |task| {
            let due = task.item().not_before.map_or(0, Timestamp::as_millis);
            let late = heard.1.wall().as_millis() - due;
            heard.0.lock().unwrap_or_else(PoisonError::into_inner).push(late);
            async { Ok(()) }
        })
        .await?;
    let took = clock.now() - began;
    let used = (processor()? - used).as_secs_f64();
    let more = memory_kib(true)?.saturating_sub(memory) as f64 / 1024.0;
    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner).clone();
    late.sort_unstable();
    let quantile = |share: usize| late[(late.len() - 1) * share / 100];
    let cores = used / 2.0;
    let (status, early, p99) = (summary.status(), quantile(0) < 0, quantile(99));
    let met = status == Status::Success && !early && p99 <= 50 && cores < 1.0 && more < 64.0;
    println!(
        "measure work, due on time: items={SCHEDULED} over_s=2 earliest_ms={} p50_ms={} p99_ms={p99} latest_ms={} \
         seconds={:.1} cores={cores:.2} more_mib={more:.1} bar: none early, p99 50 ms, 1 core, 64 MiB {}",
        quantile(0),
        quantile(50),
        quantile(100),
        took.as_secs_f64(),
        if met { "met" } else { "MISSED" },
    );
    Ok(())
}
