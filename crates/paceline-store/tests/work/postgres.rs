//! What only the store in Postgres has: a server that comes and goes, and workers that do not know each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::{Class, Timestamp};
use paceline_store::work::{
    ClaimOutcome, ClaimRequest, Claimed, Failure, NewItem, PostgresStore, Scheduler, SchedulerConfig, SchedulerEvent,
    State, Status, WorkClock, WorkError, WorkStore as _,
};
use paceline_store::{ScopeRow, ScopeStatus};

use crate::cluster::{self, Cluster};
use crate::model::same;
use crate::support::{LEASE, S, START, again, item};

#[tokio::test]
async fn postgres_does_as_memory_does() {
    for seed in 0..16 {
        same(cluster::bench().await, seed).await;
    }
}

fn config() -> SchedulerConfig {
    SchedulerConfig { concurrency: 8, ..SchedulerConfig::default() }
}

async fn scheduler(url: &str, schema: &str) -> Scheduler {
    let store = Arc::new(PostgresStore::open_in(url, schema).await.unwrap());
    Scheduler::new(store, config(), WorkClock::system()).unwrap()
}

#[tokio::test]
async fn workers_share_and_none_starves() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert((0..400).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let recorded = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let recorded = recorded.clone();
        let observer = Arc::new(move |note: &SchedulerEvent<'_>| {
            if let SchedulerEvent::Succeeded(item) = note {
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
    assert!(calls.iter().all(|calls| *calls >= 20), "a worker starved: {calls:?}");
    let recorded = recorded.lock().unwrap();
    assert!(recorded.len() == 400 && recorded.values().all(|times| *times == 1));
}

/// As a store in a file tells of the worker before.
#[tokio::test]
async fn the_items_of_a_worker_that_was_killed_are_counted_by_the_one_that_takes_them_over() {
    let on = cluster::bench().await;
    on.add([item("a"), item("b"), item("c")]).await;
    let dies = on.register().await;
    assert_eq!(on.claim(dies, 2).await.items.len(), 2);
    on.forward(LEASE).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let told = told.clone();
        Arc::new(move |note: &SchedulerEvent<'_>| {
            if let SchedulerEvent::TakenOver(items) = note {
                told.lock().unwrap().push(*items);
            }
        })
    };
    let scheduler = Scheduler::new(on.store.clone(), config(), WorkClock::system()).unwrap().with_observer(observer);
    for (calls, taken_over) in [(3, 2), (0, 0)] {
        let summary = scheduler.run(|_| async { Ok(()) }).await.unwrap();
        assert_eq!((summary.status(), summary.calls, summary.taken_over), (Status::Success, calls, taken_over));
    }
    assert_eq!(*told.lock().unwrap(), [2]);

    on.add([item("d")]).await;
    let (dies, lives) = (on.store.register("dies", S).await.unwrap(), on.register().await);
    assert_eq!(on.keys(dies, 9).await, ["d"]);
    on.forward(S).await;
    assert!(on.store.heartbeat(lives).await.unwrap());
    assert_eq!((on.store.taken_over(), on.store.taken_over()), (1, 0), "those of a worker that dies later, too");
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

/// The database believes that it is 2023, this machine knows better.
#[tokio::test]
async fn a_group_is_held_by_the_clock_of_the_database() {
    let on = cluster::bench().await;
    on.add([item("a")]).await;
    let scheduler = Scheduler::new(on.store.clone(), config(), WorkClock::system()).unwrap();
    let tonight = S * 36_000;
    let used_up = move |_| async move { Err(Failure::new(Class::QuotaExhausted, "used up").with_retry_after(tonight)) };
    let summary = scheduler.run(used_up).await.unwrap();
    assert_eq!((summary.status(), summary.calls), (Status::Deferred, 1));
    let held = on.store.scopes().await.unwrap();
    let [ScopeRow { state: ScopeStatus::Held { until, .. }, .. }] = &held[..] else { panic!("{held:?}") };
    // The clock of the database stands still while the run lasts.
    assert!((START + tonight..START + tonight + S * 60).contains(until), "{until:?}");
}

/// The tables as the first version made them, with an item in them.
#[tokio::test]
async fn an_older_store_is_brought_up_to_date_and_a_newer_one_refused() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert(vec![item("a")]).await.unwrap();
    drop(store);
    let watch = cluster::connect(&url).await;
    let first = format!(
        "DROP TABLE {schema}.clock, {schema}.limiter, {schema}.pruned, {schema}.answers, {schema}.note;
         ALTER TABLE {schema}.item DROP CONSTRAINT is_due_time, DROP COLUMN sent, DROP COLUMN sent_for_ms, DROP COLUMN delivered_ms,
             DROP COLUMN tests, DROP COLUMN in_doubt;
         ALTER TABLE {schema}.event DROP COLUMN created_ms;
         UPDATE {schema}.item SET not_before_ms = -1; UPDATE {schema}.version SET found = 1"
    );
    watch.batch_execute(&first).await.unwrap();
    for _ in 0..2 {
        let store = PostgresStore::open_in(&url, &schema).await.unwrap();
        let worker = store.register("tester", S).await.unwrap();
        assert!(store.heartbeat(worker).await.unwrap());
        assert_eq!(store.counts().await.unwrap().total(), 1);
    }
    let due = |millis: i64| format!("UPDATE {schema}.item SET not_before_ms = {millis}");
    watch.batch_execute(&due(-1)).await.expect_err("no time");
    watch.batch_execute(&due(1)).await.unwrap();
    watch.batch_execute(&format!("UPDATE {schema}.version SET found = 99")).await.unwrap();
    let refused = PostgresStore::open_in(&url, &schema).await;
    assert!(matches!(refused, Err(WorkError::NewerVersion { found: 99, known: 12, .. })), "{refused:?}");
}

/// A server without room says so at the two-hundredth result, as it does when a disk is full.
#[tokio::test]
async fn a_server_without_room_ends_the_run_and_costs_no_item() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert((0..400).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let watch = cluster::connect(&url).await;
    let full = format!(
        "SET search_path = {schema};
         CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF (SELECT count(*) FROM {schema}.item WHERE state = 2) > 200 THEN
                 RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER full_disk AFTER UPDATE ON item FOR EACH ROW WHEN (new.state = 2) EXECUTE FUNCTION full_disk();"
    );
    watch.batch_execute(&full).await.unwrap();
    let words = scheduler(&url, &schema).await.run(|_| async { Ok(()) }).await.expect_err("no room").to_string();
    assert!(words.contains("No space left on device; make room on its disk, then run the same command"), "{words}");
    let recorded = store.counts().await.unwrap().of(State::Succeeded);
    assert!((1..=200).contains(&recorded), "{recorded}");
    watch.batch_execute("DROP TRIGGER full_disk ON item; UPDATE worker SET lease_until_ms = 0").await.unwrap();
    let summary = scheduler(&url, &schema).await.run(|_| async { Ok(()) }).await.unwrap();
    assert_eq!((summary.status(), summary.calls, summary.lost), (Status::Success, 400 - recorded, 0));
}

/// The rows of items that a connection of that name has read since the last time: by passing over the table, and by index.
async fn rows_read(watch: &tokio_postgres::Client, schema: &str, name: &str) -> (i64, i64) {
    // What a connection read is told when it has ended.
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    while watch.query_one(sql, &[&name]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    let sql = "SELECT (SELECT seq_tup_read FROM pg_stat_all_tables WHERE schemaname = $1 AND relname = 'item'),
        (SELECT sum(idx_tup_read)::bigint FROM pg_stat_all_indexes WHERE schemaname = $1 AND relname = 'item')";
    let row = watch.query_one(sql, &[&schema]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Plans show in what they read: with twenty thousand items that wait, work on a few reads a few.
#[tokio::test]
async fn no_query_reads_what_it_does_not_need_whatever_statistics_say() {
    // Of its own: while transactions of other tests run, the server keeps rows that are dead, and reads them.
    let cluster = Cluster::start();
    for analyzed in [false, true] {
        let schema = cluster::schema();
        let url = format!("{}&application_name={schema}", cluster.url());
        let watch = cluster::connect(&cluster.url()).await;
        let store = PostgresStore::open_in(&url, &schema).await.unwrap();
        let unseen = format!("ALTER TABLE {schema}.item SET (autovacuum_enabled = false)");
        watch.batch_execute(&unseen).await.unwrap();
        let far = Some(Timestamp::from_millis(250_000_000_000_000));
        let waiting = (0..20_000).map(|n| NewItem { not_before: far, ..item(&format!("waits-{n}")) });
        store.insert(waiting.collect()).await.unwrap();
        if analyzed {
            watch.batch_execute(&format!("ANALYZE {schema}.item; ANALYZE {schema}.lane")).await.unwrap();
        }
        drop(store);
        let before = rows_read(&watch, &schema, &schema).await;
        let store = PostgresStore::open_in(&url, &schema).await.unwrap();
        store.insert((0..100).map(|n| item(&format!("due-{n}"))).collect()).await.unwrap();
        let worker = store.register("tester", LEASE).await.unwrap();
        for round in 0..20 {
            let claim = store.claim(worker, ClaimRequest { limit: 10, ahead: S }).await.unwrap();
            assert_eq!(claim.items.len(), 10);
            let outcome = |claimed: &Claimed| {
                if round < 10 { again(claimed, Duration::ZERO) } else { ClaimOutcome::success(claimed) }
            };
            store.record(claim.items.iter().map(outcome).collect(), Vec::new()).await.unwrap();
            assert!(store.heartbeat(worker).await.unwrap());
        }
        store.deregister(worker).await.unwrap();
        drop(store);
        let after = rows_read(&watch, &schema, &schema).await;
        assert_eq!(after.0 - before.0, 0, "the table was passed over, analyzed: {analyzed}");
        let read = after.1 - before.1;
        assert!(read < 10_000, "{read} rows were read for 200 claims and 200 outcomes, analyzed: {analyzed}");
    }
}

#[tokio::test]
async fn a_claim_among_two_thousand_groups_asks_those_that_it_takes_from() {
    const GROUPS: usize = 2_000;
    let (cluster, schema) = (Cluster::start(), cluster::schema());
    let url = format!("{}&application_name={schema}", cluster.url());
    let watch = cluster::connect(&cluster.url()).await;
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    let in_groups = (0..2 * GROUPS).map(|n| NewItem { group: format!("group-{}", n % GROUPS), ..item(&n.to_string()) });
    store.insert(in_groups.collect()).await.unwrap();
    drop(store);
    let before = rows_read(&watch, &schema, &schema).await;
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    let worker = store.register("tester", LEASE).await.unwrap();
    let mut groups = BTreeMap::<String, u32>::new();
    for _ in 0..100 {
        let claim = store.claim(worker, ClaimRequest { limit: 10, ahead: S }).await.unwrap();
        assert_eq!((claim.items.len(), claim.next_due), (10, Some(Duration::ZERO)));
        claim.items.iter().for_each(|claimed| *groups.entry(claimed.item.group.to_string()).or_default() += 1);
        store.record(claim.items.iter().map(ClaimOutcome::success).collect(), Vec::new()).await.unwrap();
    }
    assert_eq!(groups.len(), 1_000, "groups take turns");
    drop(store);
    let read = rows_read(&watch, &schema, &schema).await.1 - before.1;
    assert!(read < 5 * GROUPS as i64 + 10 * 1_000, "{read} rows of items were read for 1,000 items and their outcomes");
}

/// Two workers with their own view of the lanes: what one makes wait, the other takes in its turn.
#[tokio::test]
async fn a_worker_hears_of_more_urgent_items_that_another_adds() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    let other = PostgresStore::open_in(&url, &schema).await.unwrap();
    store.insert((0..100).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
    let worker = store.register("tester", LEASE).await.unwrap();
    let ask = ClaimRequest { limit: 10, ahead: S };
    for _ in 0..2 {
        assert_eq!(store.claim(worker, ask).await.unwrap().items.len(), 10);
    }
    let heard = store.changed();
    other.insert(vec![NewItem { priority: 9, group: "urgent".into(), ..item("urgent") }]).await.unwrap();
    heard.await.unwrap();
    let claim = store.claim(worker, ask).await.unwrap();
    assert_eq!((claim.items.len(), &*claim.items[0].item.key), (10, "urgent"));
}
