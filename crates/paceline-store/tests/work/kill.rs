//! Workers that are killed and frozen at random instants: every item is recorded once, whatever was worked on twice. The
//! control is the same without the guard, and must record items twice.

use std::time::Duration;

use paceline_core::Rng;
use paceline_store::work::{State, Status};
use rusqlite::Connection;

use crate::support::{folder, item};
use crate::workers::{Process, Said, open, work};

/// How often a worker is killed.
const KILLS: usize = 100;

/// How often one is frozen, which takes longer than its lease each time.
fn freezes() -> usize {
    if std::env::var_os("PACELINE_SOAK").is_some() { 100 } else { 4 }
}

const MILLI: Duration = Duration::from_millis(1);

/// Whether outcomes are taken by the fence of their claim only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    Fence,
    /// The fence stands still, so that every outcome is taken.
    None,
}

/// What the database itself wrote down about successes, in the transactions that recorded them.
#[derive(Debug, PartialEq, Eq)]
struct Ledger {
    items: usize,
    /// How often one item was recorded at most.
    most: usize,
}

/// Counts the rows of `ledger`, to which a trigger adds one for each success.
const READ_LEDGER: &str = "SELECT count(*), max(n) FROM (SELECT count(*) AS n FROM ledger GROUP BY item) AS times";

impl Ledger {
    fn of(counts: (i64, i64)) -> Self {
        Self { items: counts.0 as usize, most: counts.1 as usize }
    }

    fn assert(&self, guard: Guard, items: usize) {
        assert_eq!(self.items, items, "an item has no result");
        match guard {
            Guard::Fence => assert_eq!(self.most, 1, "an item was recorded twice"),
            Guard::None => assert!(self.most > 1, "without a guard nothing was recorded twice: the test shows nothing"),
        }
    }
}

/// Ends what is left, and looks at the whole.
async fn check(store: &str, said: &Said, items: usize) {
    let store = open(store).await;
    let heard = said.clone();
    let summary = work(store.clone(), MILLI, move |line| assert!(heard.hear(&line))).await.unwrap();
    assert_eq!(summary.status(), Status::Success);
    assert_eq!(store.counts().await.unwrap().of(State::Succeeded), items as u64);
}

/// What must hold of everything that was said, once no worker says anything any more.
fn assert_worked(said: &Said, items: usize) {
    assert_eq!(said.of("done").0, items, "every item was worked on");
    assert!(said.of("done").1 > 1, "nothing was worked on twice");
}

async fn fill(store: &str, items: usize) {
    open(store).await.insert((0..items).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
}

mod sqlite {
    use super::*;

    async fn filled(path: &str, items: usize, guard: Guard) -> Connection {
        fill(path, items).await;
        let conn = Connection::open(path).unwrap();
        conn.execute_batch(
            "CREATE TABLE ledger (item INTEGER NOT NULL);
             CREATE TRIGGER write_ledger AFTER UPDATE ON item WHEN new.state = 2
             BEGIN INSERT INTO ledger VALUES (new.id); END;",
        )
        .unwrap();
        if guard == Guard::None {
            let unguarded = "CREATE TRIGGER unguarded AFTER UPDATE ON item WHEN new.fence > old.fence
                BEGIN UPDATE item SET fence = old.fence WHERE id = new.id; END;";
            conn.execute_batch(unguarded).unwrap();
        }
        conn
    }

    fn ledger(conn: &Connection) -> Ledger {
        Ledger::of(conn.query_row(READ_LEDGER, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap())
    }

    #[tokio::test]
    #[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
    async fn killed_workers_lose_and_double_nothing() {
        let (folder, said, items) = (folder(), Said::default(), 3_000);
        let store = folder.path().join("work.db").display().to_string();
        let conn = filled(&store, items, Guard::Fence).await;
        let mut rng = Rng::new(8);
        for _ in 0..KILLS {
            let mut process = Process::start(&store, 1, MILLI);
            assert!(process.listen(&said, 1 + rng.next_u64() % 40), "the worker ended before it was killed");
            process.kill(&said);
        }
        check(&store, &said, items).await;
        assert_worked(&said, items);
        ledger(&conn).assert(Guard::Fence, items);
    }

    /// Files may not grow as far as is needed: as on a disk that is full, but the system says so in other words.
    #[tokio::test]
    async fn a_disk_that_takes_no_more_loses_and_doubles_nothing() {
        let (folder, said, items) = (folder(), Said::default(), 2_000);
        let store = folder.path().join("work.db").display().to_string();
        let conn = filled(&store, items, Guard::Fence).await;
        let size = std::fs::metadata(&store).unwrap().len();
        for _ in 0..3 {
            Process::start_with_files_of(size / 1_024 + 64, &store).end(&said);
        }
        let failed = said.all("failed");
        let expected =
            "cannot write the store: disk I/O error; check whether its disk is full or broken, then run again: ";
        assert!(failed.len() == 1 && failed[0].starts_with(expected), "{failed:?}");
        let (recorded, before) = (said.of("recorded").0, ledger(&conn));
        // What was recorded just before the failure may not have been said any more.
        assert!(recorded > 0 && recorded <= before.items && before.items < items, "{recorded} said, {before:?}");
        check(&store, &said, items).await;
        assert_eq!(said.of("done").0, items, "every item was worked on");
        ledger(&conn).assert(Guard::Fence, items);
    }

    /// Two workers of one process are frozen until both their leases are over. The first to wake takes the other's items,
    /// and both go on with them.
    async fn freeze(guard: Guard) {
        let (folder, said, items) = (folder(), Said::default(), 20);
        let store = folder.path().join("work.db").display().to_string();
        let conn = filled(&store, 0, guard).await;
        let leases_are_over = || {
            let sql = "SELECT max(lease_until_ms) < unixepoch('subsec') * 1000 FROM worker";
            conn.query_row(sql, [], |row| row.get::<_, bool>(0)).unwrap()
        };
        let mut rng = Rng::new(8);
        for round in 0..freezes() {
            // Hardly more than are in flight: what was taken from a worker goes behind all others.
            open(&store).await.insert((0..items).map(|n| item(&format!("item-{round}-{n}"))).collect()).await.unwrap();
            let mut process = Process::start(&store, 2, MILLI * 50);
            assert!(process.listen(&said, 1 + rng.next_u64() % 16), "the workers ended before they were frozen");
            process.signal("-STOP");
            while !leases_are_over() {
                std::thread::yield_now();
            }
            process.signal("-CONT");
            process.end(&said);
        }
        let items = items * freezes();
        check(&store, &said, items).await;
        assert_worked(&said, items);
        ledger(&conn).assert(guard, items);
    }

    #[tokio::test]
    #[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
    async fn frozen_workers_double_nothing() {
        freeze(Guard::Fence).await;
    }

    #[tokio::test]
    #[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
    async fn without_the_guard_frozen_workers_double_results() {
        freeze(Guard::None).await;
    }
}

#[cfg(feature = "postgres-tests")]
mod postgres {
    use tokio_postgres::Client;

    use super::*;
    use crate::cluster;

    /// A store of so many items, and who may look at it.
    async fn filled(items: usize, guard: Guard) -> (String, Client) {
        let (url, schema) = (cluster::shared().url(), cluster::schema());
        let store = format!("{url}#{schema}");
        fill(&store, items).await;
        let client = cluster::connect(&url).await;
        let tables = format!(
            "SET search_path = {schema};
             CREATE TABLE ledger (item bigint NOT NULL);
             CREATE FUNCTION write_ledger() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO ledger VALUES (new.id); RETURN NULL; END';
             CREATE TRIGGER write_ledger AFTER UPDATE ON item FOR EACH ROW WHEN (new.state = 2)
                 EXECUTE FUNCTION write_ledger();
             CREATE FUNCTION keep_fence() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN new.fence := old.fence; RETURN new; END';"
        );
        client.batch_execute(&tables).await.unwrap();
        if guard == Guard::None {
            let unguarded = "CREATE TRIGGER unguarded BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION keep_fence()";
            client.batch_execute(unguarded).await.unwrap();
        }
        (store, client)
    }

    async fn ledger(client: &Client) -> Ledger {
        let row = client.query_one(READ_LEDGER, &[]).await.unwrap();
        Ledger::of((row.get(0), row.get(1)))
    }

    #[tokio::test]
    async fn four_processes_share_and_none_starves() {
        let items = 2_000;
        let (store, client) = filled(items, Guard::Fence).await;
        let listeners: Vec<_> = (0..4)
            .map(|_| {
                let mut process = Process::start(&store, 1, MILLI * 4);
                std::thread::spawn(move || {
                    let said = Said::default();
                    process.end(&said);
                    said.of("recorded").0
                })
            })
            .collect();
        let shares: Vec<usize> = listeners.into_iter().map(|listener| listener.join().unwrap()).collect();
        ledger(&client).await.assert(Guard::Fence, items);
        assert_eq!(shares.iter().sum::<usize>(), items, "{shares:?}");
        assert!(shares.iter().all(|share| *share >= items / 20), "a worker starved: {shares:?}");
    }

    /// Of three workers one is killed or frozen at a time, and another one begins. The frozen ones go on when others have
    /// done everything, as if nothing had been.
    async fn kill_and_freeze(guard: Guard, kills: usize) {
        let (said, items) = (Said::default(), 30 * kills);
        let (store, client) = filled(items, guard).await;
        let start = || Process::start(&store, 1, MILLI * 2);
        let mut rng = Rng::new(8);
        let (mut at_work, mut frozen): (Vec<Process>, Vec<Process>) = ((0..3).map(|_| start()).collect(), Vec::new());
        for n in 0..kills {
            let mut process = at_work.swap_remove((rng.next_u64() % 3) as usize);
            process.listen(&said, 1 + rng.next_u64() % 40);
            if n % 10 == 5 {
                process.signal("-STOP");
                frozen.push(process);
            } else {
                process.kill(&said);
            }
            at_work.push(start());
        }
        at_work.iter_mut().for_each(|process| process.end(&said));
        check(&store, &said, items).await;
        for process in &mut frozen {
            process.signal("-CONT");
            process.end(&said);
        }
        assert_worked(&said, items);
        ledger(&client).await.assert(guard, items);
        let is_told = said.of("lost").0 > 0;
        assert_eq!(is_told, guard == Guard::Fence, "frozen workers are told what is not theirs any more");
    }

    #[tokio::test]
    async fn killed_and_frozen_workers_lose_and_double_nothing() {
        kill_and_freeze(Guard::Fence, KILLS).await;
    }

    #[tokio::test]
    async fn without_the_guard_they_double_results() {
        kill_and_freeze(Guard::None, 10 * freezes()).await;
    }

    /// A worker that is frozen until others have done its work, and then goes on as if nothing had been.
    #[tokio::test]
    async fn a_frozen_worker_records_nothing_that_others_have() {
        let (said, items) = (Said::default(), 400);
        let (store, client) = filled(items, Guard::Fence).await;
        // Long enough for it to be frozen in the middle.
        let mut frozen = Process::start(&store, 1, MILLI * 500);
        assert!(frozen.listen(&said, 1));
        frozen.signal("-STOP");
        check(&store, &said, items).await;
        frozen.signal("-CONT");
        frozen.end(&said);
        assert_worked(&said, items);
        ledger(&client).await.assert(Guard::Fence, items);
        assert_eq!(said.of("lost").1, 1, "the frozen worker was told, once for each item that it had");
    }
}
