//! A fleet of `paceline run` for minutes, whatever becomes of its processes, of its store and of the way to it: no window at the
//! server ever holds more calls than the limit, no item is lost, and the limit is used again within a lease and a window.
//!
//! `PACELINE_SOAK=1`: 16 processes and five minutes (`FLEET_SECONDS`) for each server.

use std::process::Child;
use std::time::Duration;

use paceline_core::Instant;

use super::counting::Counting;
use super::fleet::signal;
use super::haproxy::Haproxy;
use super::job::Job;
use super::measure;
use super::mock::Mock;
use super::nginx::{Limit, Nginx};
use super::postgres_server::PostgresServer;
use super::proxy::{Proxy, Weather};
use super::redis_server::RedisServer;
use super::sentinel_set::SentinelSet;
use crate::bounded::{Bounded, TestBound};

/// After this and a window the others have what a killed process held.
const LEASE: Duration = Duration::from_secs(3);

/// A ledger keeps leases so much longer than it says.
const AHEAD: Duration = Duration::from_secs(1);

/// What a busy machine adds to a recovery: it begins processes and servers, too.
const SLACK: Duration = Duration::from_secs(6);

/// The calls of processes are under way for differently long, longer where sixteen wait for two cores: a window of their starts
/// is so much shorter at the server, and windows are long here. The first window is not looked at: sixteen that begin together
/// keep two cores busy for longer.
const UNDER_WAY: Duration = Duration::from_millis(600);

/// How long the fleet may stand still before the test gives up.
const PATIENCE: Duration = Duration::from_secs(90);

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A process is killed, and begins anew.
    Kill,
    /// One is suspended past its lease.
    Suspend,
    /// The store loses what it has.
    Flush,
    /// It is killed, and begins anew.
    Restart,
    /// Its replica takes over.
    Failover,
    /// The way to it is bad for a while.
    Network(Weather),
}

const PROCESSES: [Trouble; 2] = [Trouble::Kill, Trouble::Suspend];

const REDIS: [Trouble; 9] = [
    Trouble::Kill,
    Trouble::Network(Weather::Slow(Duration::from_millis(150))),
    Trouble::Flush,
    Trouble::Network(Weather::RepliesLost),
    Trouble::Suspend,
    Trouble::Network(Weather::Cut),
    Trouble::Restart,
    Trouble::Network(Weather::Silent),
    Trouble::Failover,
];

enum Store {
    Redis(RedisServer, Proxy),
    Sentinels(SentinelSet),
    Postgres(PostgresServer),
}

impl Store {
    /// Behind a proxy, which lives in that runtime.
    fn redis(runtime: &tokio::runtime::Runtime) -> Self {
        let server = on_port(&[]);
        let proxy = runtime.block_on(Proxy::start(server.socket()));
        Self::Redis(server, proxy)
    }

    /// A replica that has all so far takes over, once the master is dead.
    fn fails_over(server: &mut RedisServer, proxy: &Proxy) {
        let port = server.ask(&["CONFIG", "GET", "port"]).lines().last().expect("a port").to_owned();
        let mut replica = on_port(&["--replicaof", "127.0.0.1", &port]);
        while !replica.ask(&["INFO", "replication"]).contains("master_link_status:up") {
            std::thread::yield_now();
        }
        server.stop();
        replica.promote();
        proxy.lead_to(replica.socket());
        *server = replica;
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(_, proxy) => proxy.url(),
            Self::Sentinels(set) => set.url(),
            Self::Postgres(server) => server.url(),
        }
    }

    fn suffers(&mut self, trouble: Trouble) {
        match (self, trouble) {
            (Self::Redis(server, _), Trouble::Flush) => server.command(&["FLUSHALL"]),
            (Self::Redis(server, _), Trouble::Restart) => {
                server.stop();
                server.begin();
            }
            (Self::Redis(server, proxy), Trouble::Failover) => Self::fails_over(server, proxy),
            (Self::Redis(_, proxy), Trouble::Network(weather)) => {
                proxy.set(weather);
                std::thread::sleep(LEASE / 2);
                proxy.set(Weather::Fair);
            }
            (Self::Postgres(server), Trouble::Restart) => {
                server.tell("stop");
                server.tell("start");
            }
            (Self::Sentinels(set), Trouble::Failover) => set.master.stop(),
            (_, trouble) => unreachable!("no {trouble:?} of this store"),
        }
    }
}

/// A fleet and the server behind all.
struct Fleet {
    store: Store,
    counting: Counting,
    jobs: Vec<Job>,
    children: Vec<Child>,
    limit: u64,
    window: Duration,
    /// When troubles were over.
    over: Vec<(Trouble, Instant)>,
}

/// One on a port of loopback, which replicas need.
fn on_port(options: &[&str]) -> RedisServer {
    let [port] = super::free_ports::free_ports();
    let port = port.to_string();
    RedisServer::start(
        &[&["--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0", "--port", &port], options].concat(),
    )
}

fn processes() -> usize {
    if measure::soak() { 16 } else { 4 }
}

fn time() -> Duration {
    let given = std::env::var("FLEET_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(if measure::soak() { 300 } else { 20 }))
}

impl Fleet {
    /// They call `base_url`, behind which is the counting server, under so many calls in a window.
    fn start(store: Store, counting: Counting, base_url: &str, limit: u64, window: Duration) -> Self {
        let (told, url) = (format!("{limit} per {}s", window.as_secs()), store.url());
        let environment = [("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", format!("{}s", LEASE.as_secs()).into())];
        let flags = ["--upstream", "openai", "--pace", "fixed", "--limit", &told, "--fleet", &url];
        // While troubles last a part of the limit is used.
        let calls = limit as f64 * time().as_secs_f64() / window.as_secs_f64() * 0.8;
        let items = (calls / processes() as f64) as usize + 20;
        let job = || Job::new(items, base_url, &flags).with_environment(&environment);
        let jobs: Vec<Job> = (0..processes()).map(|_| job()).collect();
        let children = jobs.iter().map(Job::spawn).collect();
        let fleet = Self { store, counting, jobs, children, limit, window, over: Vec::new() };
        fleet.goes_on();
        fleet
    }

    /// As much as a window holds is sent.
    fn goes_on(&self) {
        let until = self.counting.arrivals() + self.limit;
        let goes_on = self.counting.wait_for_events(2 * until, PATIENCE);
        let logs = || self.jobs.iter().map(Job::log).collect::<Vec<_>>().join("\n");
        assert!(goes_on, "the fleet stands still after {}: {}", self.counting.arrivals(), logs());
    }

    /// One trouble after the other, for as long as the test is to last and there is work.
    fn suffers(&mut self, troubles: &[Trouble]) {
        let until = self.counting.now() + time().mul_f64(0.7);
        for (round, trouble) in troubles.iter().cycle().enumerate() {
            let (place, is_first) = (round % self.jobs.len(), round < troubles.len());
            if self.counting.now() >= until && !is_first {
                return;
            }
            match trouble {
                Trouble::Kill => {
                    self.children[place].kill().expect("SIGKILL");
                    self.children[place].ended();
                    self.children[place] = self.jobs[place].spawn();
                }
                Trouble::Suspend => {
                    signal(&self.children[place], "STOP");
                    std::thread::sleep(LEASE + AHEAD + Duration::from_secs(1));
                    signal(&self.children[place], "CONT");
                }
                trouble => self.store.suffers(*trouble),
            }
            self.over.push((*trouble, self.counting.now()));
            std::thread::sleep(LEASE + AHEAD + self.window);
            if !self.has_work() {
                return;
            }
            self.goes_on();
        }
    }

    /// Whether there is more to send than the next trouble takes.
    fn has_work(&self) -> bool {
        let total = self.jobs.len() as u64 * self.jobs[0].items() as u64;
        self.counting.arrivals() + 6 * self.limit < total
    }

    /// After each trouble: until eight tenths of the limit were used again in a window. Not where the work had ended before.
    fn recoveries(&self) -> Vec<(Trouble, Duration)> {
        let times = self.counting.times();
        let full = (self.limit * 8 / 10) as usize;
        let recovered = |after: Instant| {
            let from = times.partition_point(|at| *at < after);
            let ends = (from.max(full)..times.len()).find(|n| times[*n] - times[*n - full] <= self.window)?;
            Some(times[ends] - after)
        };
        self.over.iter().filter_map(|(trouble, at)| Some((*trouble, recovered(*at)?))).collect()
    }

    /// Calls of each second, and what was over in it.
    fn course(&self) -> String {
        let times = self.counting.times();
        let Some(first) = times.first().copied() else { return String::new() };
        let second = |at: Instant| (at - first).as_secs();
        let mut words = String::new();
        for n in 0..=times.last().map_or(0, |last| second(*last)) {
            let calls = times.iter().filter(|at| second(**at) == n).count();
            let over = self.over.iter().filter(|(_, at)| second(*at) == n).map(|(trouble, _)| format!(" {trouble:?}"));
            words.push_str(&format!("{n}: {calls}{}\n", over.collect::<String>()));
        }
        words
    }

    /// All jobs end, and are complete; then what was counted.
    fn ends(mut self, name: &str, refused: impl FnOnce() -> Option<u64>) {
        for (job, child) in self.jobs.iter().zip(&mut self.children) {
            assert!(child.ended().success(), "{}", job.log());
            job.assert_complete(&job.run());
        }
        let (worst, half) = (
            self.counting.worst_after(self.window, self.window - UNDER_WAY.min(self.window * 3 / 10)),
            self.counting.worst_after(self.window, self.window / 2),
        );
        let recoveries = self.recoveries();
        let slowest = recoveries.iter().max_by_key(|(_, took)| *took);
        let refused = refused();
        let (trouble, took) =
            slowest.map_or((String::new(), Duration::ZERO), |(trouble, took)| (format!("{trouble:?}"), *took));
        measure::say(&format!(
            "fleet, {name}: processes={} items={} sends={} troubles={} worst={worst} of {} half={half} refused={refused:?} \
             slowest_recovery={:.1} ({trouble}) of {:.1}",
            self.jobs.len(),
            self.jobs.len() * self.jobs[0].items(),
            self.counting.arrivals(),
            self.over.len(),
            self.limit,
            took.as_secs_f64(),
            (LEASE + AHEAD + self.window).as_secs_f64(),
        ));
        let shorter = [2, 3, 4].map(|part| self.counting.worst_after(self.window, self.window * part / 5));
        assert!(worst <= self.limit, "{worst} calls in a window, {shorter:?} in parts of it:\n{}", self.course());
        assert_eq!(refused.unwrap_or(0), 0, "calls that the server refused");
        assert!(took <= LEASE + AHEAD + self.window + SLACK, "{trouble} took {took:?}:\n{}", self.course());
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime")
}

const WINDOW: Duration = Duration::from_secs(6);

const LIMIT: u64 = 300;

fn counting() -> (Counting, String) {
    let counting = Counting::start(Duration::from_millis(5));
    let base_url = format!("http://{}/v1", counting.address());
    (counting, base_url)
}

#[test]
fn a_limit_holds_whatever_becomes_of_redis_and_of_the_way_to_it() {
    let _bound = TestBound::new();
    let (runtime, (counting, base_url)) = (runtime(), counting());
    let mut fleet = Fleet::start(Store::redis(&runtime), counting, &base_url, LIMIT, WINDOW);
    fleet.suffers(if measure::soak() { &REDIS } else { &REDIS[..4] });
    fleet.ends("redis", || None);
}

#[test]
fn a_limit_holds_over_a_failover_by_sentinels() {
    let _bound = TestBound::new();
    let (counting, base_url) = counting();
    let mut fleet = Fleet::start(Store::Sentinels(SentinelSet::start()), counting, &base_url, LIMIT, WINDOW);
    fleet.suffers(&[Trouble::Failover]);
    fleet.over.truncate(1);
    fleet.ends("sentinels", || None);
}

#[test]
fn a_limit_holds_on_postgres_whatever_becomes_of_it() {
    let _bound = TestBound::new();
    let (counting, base_url) = counting();
    let mut fleet = Fleet::start(Store::Postgres(PostgresServer::start()), counting, &base_url, LIMIT, WINDOW);
    fleet.suffers(if measure::soak() {
        &[Trouble::Kill, Trouble::Restart, Trouble::Suspend]
    } else {
        &[Trouble::Restart]
    });
    fleet.ends("postgres", || None);
}

/// Its bucket of 20 a second takes 20 at once.
#[test]
fn nginx_refuses_no_call_of_a_fleet() {
    let _bound = TestBound::new();
    let runtime = runtime();
    let counting = Counting::start(Duration::from_millis(5));
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let mut fleet = Fleet::start(Store::redis(&runtime), counting, &nginx.base_url(), 20, Duration::from_secs(1));
    fleet.suffers(if measure::soak() { &REDIS } else { &PROCESSES[..1] });
    fleet.ends("nginx", || Some(nginx.counts().1));
}

/// What it takes for the calls of 10 s are those since its window began, and of the window before by what is left of it: with
/// half of its 200 it never finds more, wherever in their windows calls came.
#[test]
fn haproxy_refuses_no_call_of_a_fleet() {
    let _bound = TestBound::new();
    let runtime = runtime();
    let counting = Counting::start(Duration::from_millis(5));
    let haproxy = Haproxy::start(&counting, 1);
    let mut fleet = Fleet::start(Store::redis(&runtime), counting, &haproxy.base_url(), 100, Duration::from_secs(10));
    fleet.suffers(if measure::soak() { &REDIS } else { &PROCESSES[..1] });
    fleet.ends("haproxy", || Some(haproxy.counts().1));
}

/// Told by headers alone: what the mock announces to one process all share.
#[test]
fn the_mock_refuses_almost_no_call_of_a_fleet_that_its_headers_tell() {
    let _bound = TestBound::new();
    let (_mock, base_url) = Mock::start();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let items = if measure::soak() { 400 } else { 100 };
    let flags = ["--upstream", "openai", "--concurrency", "64", "--fleet", &url];
    let jobs: Vec<Job> = (0..processes()).map(|_| Job::new(items, &base_url, &flags)).collect();
    let children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    for (job, mut child) in jobs.iter().zip(children) {
        assert!(child.ended().success(), "{}", job.log());
    }
    let count = |key: &str| jobs.iter().map(|job| job.summed(key)).sum::<u64>();
    let (sends, refused) = (count("calls"), count("throttled"));
    measure::say(&format!(
        "fleet, told by the mock's headers: processes={} items={} sends={sends} refused={refused}",
        jobs.len(),
        jobs.len() * items
    ));
    jobs.iter().for_each(|job| drop(job.assert_all_succeeded(&job.run())));
    assert!(refused * 100 <= sends, "{refused} of {sends} calls were refused, more than 1 %");
}
