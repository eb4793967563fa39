//! Four worker processes on one Postgres, beside a bare loop of `FOR UPDATE SKIP LOCKED` on the same tables.
//!
//! The bare loop is what people write: take so many items, do each, and say of each that it is done, in a transaction of
//! its own. It has no leases, no fence, no decisions and no due times other than in its query. Its batched form says of all
//! in one statement that they are done.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use paceline_store::work::{NewItem, PostgresStore, Scheduler, SchedulerConfig, State, WorkClock, WorkStore};
use tokio_postgres::{Client, NoTls};

use crate::Outcome;

const PROCESSES: usize = 4;
const ITEMS: usize = 20_000;
const ROUNDS: usize = 3;

/// As many as the bare loop takes at a time, and as ours works on at a time.
const AT_A_TIME: usize = 100;

/// Of one worker: its items, and their groups.
const GROUPED: usize = 50_000;
const GROUPS: usize = 10_000;

/// The bars: of the bare loop's throughput, and of an equal share.
const RATIO: f64 = 0.5;
const SHARE: f64 = 0.25;

pub(crate) async fn compare(address: &str) -> Outcome<()> {
    let client = connect(address).await?;
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    let (mut least, mut doubles) = (1.0_f64, 0);
    for round in 0..ROUNDS {
        for (kind, rates) in ["ours", "single", "batched"].into_iter().zip(&mut rates) {
            let done = one_round(&client, address, kind, &format!("bench_{kind}_{round}")).await?;
            rates.push(ITEMS as f64 / done.seconds);
            if kind == "ours" {
                least = done
                    .shares
                    .iter()
                    .map(|items| *items as f64 * PROCESSES as f64 / ITEMS as f64)
                    .fold(least, f64::min);
                doubles += done.doubles;
            }
        }
    }
    let [ours, single, batched] = rates.map(median);
    let verdict = |met| if met { "met" } else { "MISSED" };
    for (title, bare) in [("one at a time", single), ("batched", batched)] {
        println!(
            "measure work, 4 processes on Postgres beside a bare loop, {title}: items={ITEMS} bare_per_second={bare:.0} \
             per_second={ours:.0} ratio={:.2} bar={RATIO} {}",
            ours / bare,
            verdict(ours / bare >= RATIO),
        );
    }
    println!(
        "measure work, the same: recorded twice={doubles} smallest_share={least:.2} of an equal one, bar: none twice, {SHARE} {}",
        verdict(doubles == 0 && least >= SHARE),
    );
    Ok(())
}

/// One worker whose items are in one group, and in as many as may be.
pub(crate) async fn groups(address: &str) -> Outcome<()> {
    let client = connect(address).await?;
    let mut seconds = Vec::new();
    for groups in [1, GROUPS] {
        let schema = format!("bench_groups_{groups}");
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await?;
        let store = Arc::new(PostgresStore::open_in(address, &schema).await?);
        for from in (0..GROUPED).step_by(1_000) {
            let item =
                |n| NewItem { group: format!("group-{}", n % groups), ..NewItem::new(format!("item-{n}"), "{}") };
            store.insert((from..from + 1_000).map(item).collect()).await?;
        }
        client.batch_execute("VACUUM ANALYZE").await?;
        let policy = SchedulerConfig { concurrency: AT_A_TIME, ..SchedulerConfig::default() };
        let clock = WorkClock::system();
        let began = clock.now();
        let summary = Scheduler::new(store, policy, WorkClock::system())?.run(|_| async { Ok(()) }).await?;
        seconds.push((clock.now() - began).as_secs_f64());
        if summary.calls != GROUPED as u64 {
            return Err("items were left undone".into());
        }
        client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    }
    println!(
        "measure work, groups on Postgres: items={GROUPED} groups={GROUPS} seconds={:.1} in_one_group={:.1} ratio={:.2}",
        seconds[1],
        seconds[0],
        seconds[1] / seconds[0],
    );
    Ok(())
}

/// What one round of workers did.
struct Round {
    seconds: f64,
    /// The items that each recorded.
    shares: Vec<usize>,
    /// Records beyond one for each item.
    doubles: usize,
}

async fn one_round(client: &Client, address: &str, kind: &str, schema: &str) -> Outcome<Round> {
    let store = PostgresStore::open_in(address, schema).await?;
    for from in (0..ITEMS).step_by(1_000) {
        let item = |n| NewItem::new(format!("item-{n}"), format!("{{\"of\":\"item-{n}\"}}"));
        store.insert((from..from + 1_000).map(item).collect()).await?;
    }
    if kind != "ours" {
        // The index that suits its query, in place of ours.
        let index =
            format!("DROP INDEX {schema}.item_due; CREATE INDEX ON {schema}.item (not_before_ms, id) WHERE state = 0");
        client.batch_execute(&index).await?;
    }
    client.batch_execute("VACUUM ANALYZE").await?;
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(Worker::start(kind, address, schema)?);
    }
    workers.iter_mut().try_for_each(|worker| worker.hear("ready").map(drop))?;
    let clock = WorkClock::system();
    let began = clock.now();
    workers.iter_mut().try_for_each(Worker::begin)?;
    let shares = workers.iter_mut().map(|worker| worker.hear("done")).collect::<Outcome<Vec<_>>>()?;
    let seconds = (clock.now() - began).as_secs_f64();
    for worker in &mut workers {
        worker.child.wait()?;
    }
    if store.counts().await?.of(State::Succeeded) != ITEMS as u64 {
        return Err(format!("{kind} left items undone").into());
    }
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    let doubles = shares.iter().sum::<usize>() - ITEMS;
    Ok(Round { seconds, shares, doubles })
}

/// This very program as a worker.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(kind: &str, address: &str, schema: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", kind, address, schema]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, lines })
    }

    fn begin(&mut self) -> Outcome<()> {
        Ok(writeln!(self.child.stdin.as_ref().ok_or("no input")?, "begin")?)
    }

    /// The number behind that word.
    fn hear(&mut self, word: &str) -> Outcome<usize> {
        let line = self.lines.next().ok_or("a worker ended")??;
        Ok(line.strip_prefix(word).ok_or("another word")?.trim().parse()?)
    }
}

/// The other side: says `ready 0`, waits for a line, works, and says how many items it recorded.
pub(crate) async fn worker(kind: &str, address: &str, schema: &str) -> Outcome<()> {
    let wait = || {
        println!("ready 0");
        std::io::stdin().read_line(&mut String::new())
    };
    let done = if kind == "ours" {
        let store = Arc::new(PostgresStore::open_in(address, schema).await?);
        let policy = SchedulerConfig { concurrency: AT_A_TIME, ..SchedulerConfig::default() };
        let scheduler = Scheduler::new(store, policy, WorkClock::system())?;
        wait()?;
        let summary = scheduler.run(|_| async { Ok(()) }).await?;
        usize::try_from(summary.calls - summary.lost)?
    } else {
        let client = connect(address).await?;
        client.batch_execute(&format!("SET search_path = {schema}")).await?;
        wait()?;
        bare(&client, kind == "batched").await?
    };
    println!("done {done}");
    Ok(())
}

async fn bare(client: &Client, batched: bool) -> Outcome<usize> {
    let claim = client
        .prepare(
            "WITH taken AS (
                 UPDATE item SET state = 1 WHERE id IN (
                     SELECT id FROM item WHERE state = 0 AND not_before_ms <= now_ms()
                     ORDER BY not_before_ms, id LIMIT $1 FOR UPDATE SKIP LOCKED)
                 RETURNING id)
             SELECT id, body FROM taken JOIN payload ON payload.item = taken.id",
        )
        .await?;
    let one = client.prepare("UPDATE item SET state = 2 WHERE id = $1").await?;
    let all = client.prepare("UPDATE item SET state = 2 WHERE id = ANY ($1)").await?;
    let left = client.prepare("SELECT EXISTS (SELECT 1 FROM item WHERE state = 0)").await?;
    let mut done = 0;
    loop {
        let rows = client.query(&claim, &[&i64::try_from(AT_A_TIME)?]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if batched {
            client.execute(&all, &[&ids]).await?;
        } else {
            for id in &ids {
                client.execute(&one, &[id]).await?;
            }
        }
        done += ids.len();
        if ids.is_empty() && !client.query_one(&left, &[]).await?.get::<_, bool>(0) {
            return Ok(done);
        }
    }
}

async fn connect(address: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    // It ends with its client.
    tokio::spawn(connection);
    Ok(client)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
