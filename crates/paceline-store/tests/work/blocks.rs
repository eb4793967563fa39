//! One job on many hosts: who has which lines, and each result once, whatever happens to workers and connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Rng;
use paceline_store::blocks::{
    Block, BlockStore, Held, HostId, Joined, KeptResult, NewBlock, Offer, Settings, SharedJob,
};
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::cluster::{self, Cluster};

const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn settings() -> Settings {
    [("input", "3 lines"), ("provider", "openai")].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A job of so many lines in blocks of so many, in a schema of its own.
pub(crate) struct Bench {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) store: BlockStore,
    pub(crate) job: i64,
    pub(crate) watch: Client,
}

impl Bench {
    async fn of(url: String, lines: u64, in_a_block: u64) -> Self {
        let schema = cluster::schema();
        let store = BlockStore::open_in(&url, &schema).await.unwrap();
        let job = joined(&store).await.id;
        load(&store, job, lines, in_a_block).await;
        let watch = cluster::connect(&url).await;
        Self { url, schema, store, job, watch }
    }

    pub(crate) async fn new(lines: u64, in_a_block: u64) -> Self {
        Self::of(cluster::shared().url(), lines, in_a_block).await
    }

    pub(crate) async fn another(&self) -> BlockStore {
        BlockStore::open_in(&self.url, &self.schema).await.unwrap()
    }

    /// From now on the database's clock stands still, until it is turned.
    pub(crate) async fn stop_clock(&self) {
        let schema = &self.schema;
        let sql = format!(
            "CREATE TABLE {schema}.turned AS SELECT {schema}.now_ms() AS ms;
             CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT ms FROM {schema}.turned'"
        );
        self.watch.batch_execute(&sql).await.unwrap();
    }

    pub(crate) async fn turn(&self, by_ms: i64) {
        let sql = format!("UPDATE {}.turned SET ms = ms + $1", self.schema);
        self.watch.execute(&sql, &[&by_ms]).await.unwrap();
    }

    /// Time passes, in which this worker gives word every few seconds.
    pub(crate) async fn pass(&self, ms: i64, worker: HostId) {
        for step in (0..ms).step_by(5_000) {
            self.turn(5_000.min(ms - step)).await;
            assert!(self.store.heartbeat(worker).await.unwrap().is_some());
        }
    }

    pub(crate) async fn worker(&self, name: &str) -> HostId {
        self.store.register(self.job, name, LEASE).await.unwrap().unwrap()
    }

    pub(crate) async fn claim(&self, worker: HostId, most: u32) -> Vec<Block> {
        self.store.claim(worker, most).await.unwrap().expect("its lease goes on").blocks
    }

    pub(crate) async fn offer(&self, offers: &[Offer]) -> u64 {
        self.store.offer(self.job, offers.to_vec()).await.unwrap()
    }

    pub(crate) async fn results(&self) -> Vec<KeptResult> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let page = self.store.results(self.job, from, 7).await.unwrap();
            let Some(last) = page.last() else { return all };
            from = last.line + 1;
            all.extend(page);
        }
    }

    /// The sum of a column of the blocks.
    async fn sum(&self, column: &str) -> i64 {
        let sql = format!("SELECT sum({column})::bigint FROM {}.block", self.schema);
        cluster::connect(&self.url).await.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// All lines have one result, in order, and the counts say so.
    pub(crate) async fn assert_each_once(&self, lines: u64) {
        let found: Vec<u64> = self.results().await.iter().map(|result| result.line).collect();
        assert_eq!(found, (0..lines).collect::<Vec<_>>());
        let [status] = &self.store.jobs().await.unwrap()[..] else { panic!("one job") };
        assert_eq!((status.lines, status.ok + status.failed, status.open), (lines, lines, 0));
    }
}

async fn joined(store: &BlockStore) -> SharedJob {
    match store.join("requests", &settings()).await.unwrap() {
        Joined::Job(job) => job,
        Joined::Differs(differences) => panic!("{differences:?}"),
    }
}

/// As a host does that has the input, alone or not.
pub(crate) async fn load(store: &BlockStore, job: i64, lines: u64, in_a_block: u64) {
    let mut next = 0;
    while next < lines {
        let count = in_a_block.min(lines - next);
        let block = NewBlock { lines: count, body: format!("{next}+{count}").into() };
        next = store.append(job, next, vec![block]).await.unwrap().unwrap();
    }
    assert!(store.complete(job, lines).await.unwrap());
}

pub(crate) fn more() -> Vec<NewBlock> {
    vec![NewBlock { lines: 1, body: b"more".to_vec() }]
}

pub(crate) fn offer(held: Held, line: u64, ok: bool, body: &str) -> Offer {
    Offer { held, line, ok, body: body.into() }
}

/// What is still to do of a block, as successes.
pub(crate) fn successes(block: &Block, body: &str) -> Vec<Offer> {
    let lines = block.held.first..block.held.first + block.lines;
    lines.filter(|line| !block.have.contains(line)).map(|line| offer(block.held, line, true, body)).collect()
}

#[tokio::test]
async fn a_host_with_other_settings_is_told_each_with_both_values() {
    let on = Bench::new(3, 1).await;
    let mut others = settings();
    others.insert("provider".to_owned(), "groq".to_owned());
    others.insert("model".to_owned(), "m".to_owned());
    others.remove("input");
    let Joined::Differs(told) = on.store.join("requests", &others).await.unwrap() else { panic!("joined") };
    let told: Vec<(&str, Option<&str>, Option<&str>)> =
        told.iter().map(|one| (&*one.key, one.there.as_deref(), one.here.as_deref())).collect();
    let expected =
        [("input", Some("3 lines"), None), ("model", None, Some("m")), ("provider", Some("openai"), Some("groq"))];
    assert_eq!(told, expected);
    assert_eq!(on.store.find("requests").await.unwrap(), Some(joined(&on.store).await));
    assert_eq!(on.store.find("unknown").await.unwrap(), None);
}

#[tokio::test]
async fn a_lost_worker_costs_the_lines_without_a_result_and_its_late_successes_count() {
    let on = Bench::new(6, 3).await;
    on.stop_clock().await;
    let lost = on.worker("lost").await;
    let block = on.claim(lost, 1).await.remove(0);
    assert_eq!(on.offer(&[offer(block.held, 1, true, "early")]).await, 1);
    on.turn(29_999).await;
    let next = on.worker("next").await;
    let [rest] = &on.claim(next, 9).await[..] else { panic!("the other block alone") };
    assert_eq!(rest.held.first, 3);
    on.turn(1).await;
    assert_eq!(on.store.claim(lost, 1).await.unwrap(), None, "its lease ran out");
    on.pass(29_998, next).await;
    assert_eq!(on.claim(next, 9).await, [], "the next one has not listened for a whole lease");
    on.pass(1, next).await;
    let [again] = &on.claim(next, 9).await[..] else { panic!("the block of the lost worker") };
    assert_eq!((again.have.clone(), again.lost), (vec![1], 1));
    assert!(again.held.fence > block.held.fence);
    assert_eq!(on.store.heartbeat(lost).await.unwrap(), None);
    let late =
        [offer(block.held, 0, false, "late"), offer(block.held, 1, true, "late"), offer(block.held, 2, true, "late")];
    assert_eq!(on.offer(&late).await, 1, "line 2: line 1 has a result, and a failure is the other's to decide");
    assert_eq!(on.offer(&successes(again, "next")).await, 1);
    assert_eq!(on.offer(&successes(rest, "next")).await, 3);
    let bodies: Vec<String> =
        on.results().await.into_iter().map(|result| String::from_utf8(result.body).unwrap()).collect();
    assert_eq!(bodies, ["next", "early", "late", "next", "next", "next"]);
    on.assert_each_once(6).await;
    assert!(on.store.claim(next, 1).await.unwrap().unwrap().ended);
}

#[tokio::test]
async fn a_failure_of_a_lost_worker_counts_while_nobody_else_has_the_line() {
    let on = Bench::new(1, 1).await;
    on.stop_clock().await;
    let lost = on.worker("lost").await;
    let block = on.claim(lost, 1).await.remove(0);
    on.turn(30_000).await;
    let other = on.worker("other").await;
    assert_eq!(on.offer(&[offer(block.held, 0, false, "refused")]).await, 1);
    assert!(on.store.claim(other, 1).await.unwrap().unwrap().ended);
    assert_eq!(on.store.retry_failed(on.job, None).await.unwrap(), 1);
    let again = on.claim(other, 1).await.remove(0);
    assert_eq!(on.offer(&[offer(block.held, 0, false, "once more")]).await, 0, "another claim");
    assert_eq!(on.offer(&successes(&again, "done")).await, 1);
    on.assert_each_once(1).await;
}

#[tokio::test]
async fn a_failure_that_is_tried_again_takes_the_block_from_its_worker() {
    let on = Bench::new(2, 2).await;
    let worker = on.worker("a").await;
    let block = on.claim(worker, 1).await.remove(0);
    assert_eq!(on.offer(&[offer(block.held, 0, false, "refused")]).await, 1);
    assert_eq!(on.store.retry_failed(on.job, None).await.unwrap(), 1);
    assert_eq!(
        on.store.resume(worker, &[block.held]).await.unwrap(),
        [],
        "it would not know that line 0 is to be sent"
    );
    let again = on.claim(worker, 1).await.remove(0);
    assert_eq!((again.have.len(), again.lost), (0, 0));
    assert_eq!(on.offer(&successes(&again, "done")).await, 2);
    on.assert_each_once(2).await;
}

#[tokio::test]
async fn a_worker_that_returns_has_the_blocks_that_nobody_claimed() {
    let on = Bench::new(3, 1).await;
    on.stop_clock().await;
    let before = on.worker("before").await;
    let held: Vec<Held> = on.claim(before, 2).await.iter().map(|block| block.held).collect();
    // At once, while the former lease goes on, and after it ran out: that of the former id ends without them.
    let back = on.worker("back").await;
    assert_eq!(on.store.resume(back, &held).await.unwrap(), held);
    on.turn(29_999).await;
    assert_eq!(on.store.heartbeat(back).await.unwrap(), Some(held.clone()));
    on.turn(1).await;
    assert_eq!(on.store.heartbeat(back).await.unwrap(), Some(held.clone()));
    let other = on.worker("other").await;
    on.pass(30_000, other).await;
    assert_eq!(on.claim(other, 1).await[0].held.first, 0);
    let again = on.worker("again").await;
    assert_eq!(on.store.resume(again, &held).await.unwrap(), held[1..], "the other has the first");
    assert_eq!(on.store.resume(back, &held).await.unwrap(), [], "without a lease");
    on.store.deregister(again).await.unwrap();
    let free: Vec<(u64, u64)> = on.claim(other, 9).await.iter().map(|block| (block.held.first, block.lost)).collect();
    assert_eq!(free, [(1, 1), (2, 0)], "given back in good order: only the first loss is in doubt");
}

/// The database believes that it is an hour earlier.
#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_lease_longer() {
    let on = Bench::new(1, 1).await;
    on.stop_clock().await;
    let lost = on.worker("lost").await;
    on.claim(lost, 1).await;
    on.turn(-3_600_000).await;
    let next = on.worker("next").await;
    on.store.heartbeat(next).await.unwrap();
    on.pass(29_999, next).await;
    assert_eq!(on.claim(next, 1).await, []);
    on.pass(1, next).await;
    assert_eq!(on.claim(next, 1).await.len(), 1);
}

#[tokio::test]
async fn a_job_is_removed_whole_once_nobody_works_on_it() {
    let on = Bench::new(20, 2).await;
    on.stop_clock().await;
    let worker = on.worker("a").await;
    let block = on.claim(worker, 1).await.remove(0);
    on.offer(&successes(&block, "done")).await;
    assert!(!on.store.forget("requests").await.unwrap(), "a worker is on it");
    on.turn(30_000).await;
    assert!(on.store.forget("requests").await.unwrap());
    assert!(!on.store.forget("requests").await.unwrap(), "there is none");
    assert_eq!(on.offer(&successes(&block, "late")).await, 0);
    assert_eq!(on.store.register(on.job, "b", LEASE).await.unwrap(), None);
    assert_eq!(on.store.append(on.job, 20, more()).await.unwrap(), None);
    for table in ["job", "block", "result", "worker"] {
        let sql = format!("SELECT count(*) FROM {}.{table}", on.schema);
        assert_eq!(on.watch.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 0, "{table}");
    }
}

/// Works until the job has ended, with `meanwhile` while it has a block; returns the lines whose results were new.
async fn work(store: BlockStore, job: i64, name: String, meanwhile: impl AsyncFn()) -> u64 {
    work_under(LEASE, store, job, name, meanwhile).await
}

/// The same under a lease of that length.
pub(crate) async fn work_under(
    lease: Duration,
    store: BlockStore,
    job: i64,
    name: String,
    meanwhile: impl AsyncFn(),
) -> u64 {
    let (mut kept, mut worker) = (0, None);
    loop {
        let id = match worker {
            Some(id) => id,
            None => *worker.insert(store.register(job, &name, lease).await.unwrap().unwrap()),
        };
        let lives = store.heartbeat(id).await.unwrap().is_some();
        let Some(claim) = store.claim(id, 2).await.unwrap().filter(|_| lives) else {
            worker = None;
            continue;
        };
        for block in &claim.blocks {
            meanwhile().await;
            let offers = successes(block, &name);
            let (first, rest) = offers.split_at(offers.len() / 2);
            kept += store.offer(job, first.to_vec()).await.unwrap();
            kept += store.offer(job, [first, rest].concat()).await.unwrap();
        }
        if claim.ended {
            store.deregister(id).await.unwrap();
            return kept;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_workers_share_a_job_and_each_result_is_kept_once() {
    let on = Bench::new(2_000, 10).await;
    let mut workers = Vec::new();
    for n in 0..4 {
        workers.push(tokio::spawn(work(on.another().await, on.job, format!("worker-{n}"), async || {})));
    }
    let mut kept = Vec::new();
    for worker in workers {
        kept.push(worker.await.unwrap());
    }
    assert_eq!(kept.iter().sum::<u64>(), 2_000, "{kept:?}");
    assert!(kept.iter().all(|kept| *kept > 0), "{kept:?}");
    on.assert_each_once(2_000).await;
    assert_eq!(on.sum("fence").await, 200, "each block was claimed once");
}

/// What cuts the connections of workers.
struct Cutter {
    cluster: Cluster,
    watch: Client,
    blocks: u32,
    cuts: i64,
}

impl Cutter {
    /// One of all connections for each fifth block that is worked on, in the middle of a claim, of an offer or between them; once
    /// the server is stopped as by a crash.
    async fn note_block(&mut self) {
        self.blocks += 1;
        if self.blocks == 150 {
            self.cluster.tell("stop");
            self.cluster.tell("start");
            self.watch = cluster::connect(&self.cluster.url()).await;
        } else if self.blocks.is_multiple_of(5) {
            let cut = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                 WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 1) AS one";
            self.cuts += self.watch.query_one(cut, &[]).await.unwrap().get::<_, i64>(0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_and_a_server_that_restarts_cost_no_result() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let on = Bench::of(url.clone(), 3_000, 10).await;
    let cutter = Mutex::new(Cutter { cluster, watch: cluster::connect(&url).await, blocks: 0, cuts: 0 });
    let meanwhile = async || cutter.lock().await.note_block().await;
    let stores = (on.another().await, on.another().await, on.another().await);
    let worker = |store: BlockStore, name: &str| work(store, on.job, name.to_owned(), meanwhile);
    tokio::join!(worker(stores.0, "a"), worker(stores.1, "b"), worker(stores.2, "c"));
    let cuts = cutter.lock().await.cuts;
    assert!(cuts > 40, "{cuts} cuts");
    on.assert_each_once(3_000).await;
    assert_eq!(on.sum("lost").await, 0, "a claim whose answer was lost is found again");
}

/// What a worker of the model knows.
#[derive(Default)]
struct Known {
    id: Option<HostId>,
    blocks: Vec<Block>,
}

/// Claims, results, doubled and late ones, lost leases and returns, at random, beside a model that keeps the first
/// success of each line, else its first failure.
#[tokio::test]
async fn random_hosts_do_as_the_model_does() {
    const LINES: u64 = 40;
    for seed in 0..12_u64 {
        let on = Bench::new(LINES, 4).await;
        on.stop_clock().await;
        let mut rng = Rng::new(seed);
        let mut below = move |bound: u64| rng.next_u64() % bound;
        let mut workers: [Known; 3] = Default::default();
        let mut model = BTreeMap::<u64, (bool, Vec<u8>)>::new();
        let mut fences = BTreeMap::<u64, i64>::new();
        for step in 0..150 {
            let who = below(3) as usize;
            let worker = &mut workers[who];
            match (below(10), worker.id) {
                (0, Some(id)) => {
                    on.store.deregister(id).await.unwrap();
                    worker.id = None;
                }
                (1, _) => on.turn(below(20_000) as i64).await,
                (2..=4, Some(id)) => match on.store.claim(id, 1 + below(2) as u32).await.unwrap() {
                    None => worker.id = None,
                    Some(claim) => {
                        for block in claim.blocks {
                            let last = fences.insert(block.held.first, block.held.fence);
                            assert!(last.is_none_or(|last| last < block.held.fence), "seed {seed}, step {step}");
                            let lines = block.held.first..block.held.first + block.lines;
                            let have: Vec<u64> = model.range(lines).map(|(line, _)| *line).collect();
                            assert_eq!(block.have, have, "seed {seed}, step {step}");
                            worker.blocks.push(block);
                        }
                    }
                },
                (5, Some(id)) => worker.id = on.store.heartbeat(id).await.unwrap().map(|_| id),
                (_, None) => {
                    let id = on.worker(&who.to_string()).await;
                    let held: Vec<Held> = worker.blocks.iter().map(|block| block.held).collect();
                    on.store.resume(id, &held).await.unwrap();
                    worker.id = Some(id);
                }
                _ if worker.blocks.is_empty() => {}
                // Of a block that may be its own no longer, and of lines that may have a result.
                _ => {
                    let block = &worker.blocks[below(worker.blocks.len() as u64) as usize];
                    let lines: BTreeSet<u64> = (0..3).map(|_| block.held.first + below(block.lines)).collect();
                    let offers: Vec<Offer> = lines
                        .iter()
                        .map(|line| offer(block.held, *line, below(3) > 0, &format!("{who} {step}")))
                        .collect();
                    let mut new = 0;
                    for one in &offers {
                        let counts = one.ok || fences[&one.held.first] == one.held.fence;
                        if counts && model.get(&one.line).is_none_or(|(ok, _)| one.ok && !ok) {
                            model.insert(one.line, (one.ok, one.body.clone()));
                            new += 1;
                        }
                    }
                    assert_eq!(on.offer(&offers).await, new, "seed {seed}, step {step}");
                }
            }
        }
        let kept = on.results().await.into_iter().map(|result| (result.line, (result.ok, result.body)));
        assert_eq!(kept.collect::<BTreeMap<_, _>>(), model, "seed {seed}");
        let last = on.worker("last").await;
        on.pass(30_000, last).await;
        on.store.deregister(last).await.unwrap();
        work(on.another().await, on.job, "last".to_owned(), async || {}).await;
        on.assert_each_once(LINES).await;
    }
}

/// A store is shared by what feeds a worker and what sends its results.
#[tokio::test]
async fn a_store_serves_several_tasks() {
    let on = Bench::new(30, 3).await;
    let store = Arc::new(on.another().await);
    let worker = on.worker("a").await;
    let claims = (0..5).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(worker, 1).await.unwrap().unwrap().blocks.remove(0).held.first })
    });
    let mut firsts = BTreeSet::new();
    for claim in claims.collect::<Vec<_>>() {
        firsts.insert(claim.await.unwrap());
    }
    assert_eq!(firsts.into_iter().collect::<Vec<_>>(), [0, 3, 6, 9, 12]);
}
