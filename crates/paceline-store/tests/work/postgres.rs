//! What only the store in Postgres has: a server that comes and goes, and workers that do not know each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_store::work::{Clock, Note, Policy, PostgresStore, Scheduler, State, Status, WorkError, WorkStore as _};

use crate::cluster::{self, Cluster};
use crate::model::same;
use crate::support::item;

#[tokio::test]
async fn postgres_does_as_memory_does() {
    for seed in 0..6 {
        same(cluster::bench().await, seed).await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_without_its_password() {
    let refused = PostgresStore::open("postgres://me:secret@127.0.0.1:1/jobs").await;
    let words = refused.expect_err("nobody listens there").to_string();
    assert!(words.starts_with("cannot reach the store on 127.0.0.1/jobs: ") && !words.contains("secret"), "{words}");
    let refused = PostgresStore::open("postgres://me@[::bad/jobs").await;
    assert!(matches!(refused, Err(WorkError::Address { .. })), "{refused:?}");
    let refused = PostgresStore::open_in(&cluster::shared().url(), "bad; DROP TABLE item").await;
    assert!(matches!(refused, Err(WorkError::Address { .. })), "{refused:?}");
}

fn policy() -> Policy {
    Policy { concurrency: 8, ..Policy::default() }
}

async fn scheduler(url: &str, schema: &str) -> Scheduler {
    let store = Arc::new(PostgresStore::open_in(url, schema).await.unwrap());
    Scheduler::new(store, policy(), Clock::system()).unwrap()
}

#[tokio::test]
async fn workers_share_and_nobody_starves() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert((0..400).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let recorded = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let recorded = recorded.clone();
        let observer = Arc::new(move |note: &Note<'_>| {
            if let Note::Succeeded(item) = note {
                *recorded.lock().unwrap().entry(item.key.clone()).or_default() += 1;
            }
        });
        let scheduler = scheduler(&url, &schema).await.with_observer(observer);
        workers.push(tokio::spawn(async move {
            scheduler
                .run(|_| async {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok(())
                })
                .await
                .unwrap()
        }));
    }
    let mut calls = Vec::new();
    for worker in workers {
        let summary = worker.await.unwrap();
        assert_eq!((summary.status(), summary.lost), (Status::Success, 0));
        calls.push(summary.calls);
    }
    assert_eq!(calls.iter().sum::<u64>(), 400, "{calls:?}");
    assert!(calls.iter().all(|calls| *calls >= 20), "somebody starved: {calls:?}");
    let recorded = recorded.lock().unwrap();
    assert!(recorded.len() == 400 && recorded.values().all(|times| *times == 1));
}

/// The server is stopped as by a crash while items are in flight, and started again.
#[tokio::test]
async fn a_server_that_restarts_costs_no_item() {
    let mut cluster = Cluster::start();
    let (url, schema) = (cluster.url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert((0..300).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (restart, restarted) = tokio::sync::watch::channel(false);
    let keeper = std::thread::spawn(move || {
        stopped.recv().unwrap();
        cluster.tell("stop");
        cluster.tell("start");
        restart.send(true).unwrap();
        cluster
    });
    let calls = Arc::new(AtomicU32::new(0));
    let scheduler = scheduler(&url, &schema).await;
    let summary = scheduler
        .run(|_| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            let (stop, mut restarted) = (stop.clone(), restarted.clone());
            async move {
                if call == 100 {
                    stop.send(()).unwrap();
                }
                // Some end while the server is away, others after it.
                if call >= 100 && call.is_multiple_of(2) {
                    restarted.wait_for(|done| *done).await.unwrap();
                }
                Ok(())
            }
        })
        .await
        .unwrap();
    let cluster = keeper.join().unwrap();
    assert_eq!((summary.status(), summary.counts.of(State::Succeeded)), (Status::Success, 300));
    drop(cluster);
}
