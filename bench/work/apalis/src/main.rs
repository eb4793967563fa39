//! So many empty jobs on apalis-sqlite: `work-apalis FILE JOBS AT_A_TIME` prints the seconds until all were added, and from
//! then until the last was called.
//!
//! What apalis still has to record then does not count against it. The pool has its own settings, which
//! `SqliteStorage::setup` makes: a write-ahead log, and no syncs on that connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteStorage};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, jobs, at_a_time] = &arguments[..] else { return Err("work-apalis FILE JOBS AT_A_TIME".into()) };
    let (jobs, at_a_time): (usize, usize) = (jobs.parse()?, at_a_time.parse()?);
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(file).create_if_missing(true)).await?;
    SqliteStorage::setup(&pool).await?;
    let config = Config::default().queue("empty").batch_size(at_a_time);
    let mut backend = SqliteStorage::new(&pool).with_config(config).poll_with_interval(Duration::from_millis(1));

    let began = Instant::now();
    for from in (0..jobs).step_by(1_000) {
        backend.push_bulk((from..jobs.min(from + 1_000)).collect()).await?;
    }
    let added = began.elapsed();

    let (called, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let work = {
        let (called, all) = (called.clone(), all.clone());
        move |_: usize| {
            if called.fetch_add(1, Ordering::SeqCst) + 1 == jobs {
                all.notify_one();
            }
            std::future::ready(Ok::<(), BoxDynError>(()))
        }
    };
    let began = Instant::now();
    let worker = WorkerBuilder::new("empty").backend(backend).concurrency(at_a_time).build(work);
    tokio::select! {
        ended = worker.run() => ended?,
        () = all.notified() => {}
    }
    println!("{:.6} {:.6}", added.as_secs_f64(), began.elapsed().as_secs_f64());
    Ok(())
}
