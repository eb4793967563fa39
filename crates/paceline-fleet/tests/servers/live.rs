//! Limiters that share limits through real servers: no window of all their calls together ever holds more than the limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use paceline::{
    Class, Clock, Cost, Dimension, Hint, Instant, Limiter, Limits, Outcome, Pace, PacerConfig, Quota, Request,
};
use paceline_fleet::{Fleet, FleetConfig, FleetError, MemberState};

use crate::free_ports::free_ports;
use crate::postgres_server::PostgresServer;
use crate::proxy::{Proxy, Weather};
use crate::redis_server::RedisServer;
use crate::sentinel_set::SentinelSet;

pub(crate) const LEASE: Duration = Duration::from_secs(3);

pub(crate) const WINDOW: Duration = Duration::from_secs(2);

/// Between a grant and its call the scheduler of a busy machine may take so long: windows are that much shorter here.
const UNDER_WAY: Duration = Duration::from_millis(100);

pub(crate) const LIMIT: u64 = 200;

/// The server's side: how many calls any window held at most.
#[derive(Clone, Default)]
pub(crate) struct Api {
    clock: Arc<Clock>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) window: VecDeque<Instant>,
    pub(crate) worst: usize,
    pub(crate) calls: u64,
}

impl Api {
    fn call(&self) {
        let mut seen = self.seen();
        // Read under the lock, so that calls are in order.
        let now = self.clock.now();
        while seen.window.front().is_some_and(|first| *first + (WINDOW - UNDER_WAY) <= now) {
            seen.window.pop_front();
        }
        seen.window.push_back(now);
        (seen.worst, seen.calls) = (seen.worst.max(seen.window.len()), seen.calls + 1);
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no call panics")
    }
}

fn limiter() -> Limiter {
    let quota = Quota::sliding(Dimension::Requests, LIMIT, WINDOW);
    let limits = Limits { quotas: vec![quota], burst: Some(LIMIT) };
    Limiter::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }).expect("a limit")
}

pub(crate) fn config(url: &str, account: &str) -> FleetConfig {
    let mut config = FleetConfig::new(url, account);
    config.lease = LEASE;
    config
}

/// A process: a limiter in the fleet whose callers always want more.
pub(crate) struct Process {
    fleet: Fleet,
    pub(crate) limiter: Limiter,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Process {
    async fn start(url: &str, api: &Api) -> Self {
        Self::join(config(url, "live"), api).await
    }

    pub(crate) async fn join(config: FleetConfig, api: &Api) -> Self {
        Self::with_callers(4, config, api).await
    }

    /// With so many callers, each with one call after the other.
    pub(crate) async fn with_callers(callers: u64, config: FleetConfig, api: &Api) -> Self {
        let limiter = limiter();
        let fleet = Fleet::join(&limiter, config).await.expect("it joins");
        let callers = (0..callers).map(|_| {
            let (limiter, api) = (limiter.clone(), api.clone());
            tokio::spawn(async move {
                loop {
                    let request = Request::new(limiter.scope("calls"), Cost::request());
                    let permit = limiter.acquire(request).await.expect("it is open");
                    api.call();
                    permit.complete(Outcome::new(Class::Success));
                }
            })
        });
        Self { callers: callers.collect(), limiter, fleet }
    }

    pub(crate) fn state(&self) -> MemberState {
        self.fleet.view().expect("it is in one").state
    }

    /// As a crash would.
    pub(crate) fn kill(self) {
        self.callers.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

pub(crate) async fn until(within: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let comes = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(within, comes).await.unwrap_or_else(|_| panic!("not within {within:?}: {what}"));
}

pub(crate) async fn used(api: &Api, within: Duration) {
    let before = api.seen().calls;
    until(within, "the limit is used", || api.seen().calls >= before + 2 * LIMIT).await;
}

async fn story(url: &str, mut breaks: impl FnMut(&str)) {
    let api = Api::default();
    let recovers = LEASE + Duration::from_secs(1) + WINDOW + Duration::from_secs(4);
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::start(url, &api).await);
    }
    used(&api, recovers + 2 * WINDOW).await;
    let known = processes[0].limiter.snapshot().account.fleet.expect("it is in one");
    assert_eq!((known.state, known.members), (MemberState::Live, 3), "{known:?}");
    assert!(known.shares[0].units > 0 && known.lease_ends > Some(processes[0].limiter.now()), "{known:?}");
    let all = processes.iter().map(|process| process.fleet.view().expect("it is in one").member);
    assert_eq!(all.collect::<std::collections::BTreeSet<_>>().len(), 3, "each is a member of its own");

    processes.pop().expect("three").kill();
    used(&api, recovers + 2 * WINDOW).await;
    let last = processes.pop().expect("two");
    last.fleet.leave().await;
    let held = last.limiter.snapshot().account.totals.sends;
    used(&api, recovers + 2 * WINDOW).await;
    assert_eq!(last.limiter.snapshot().account.totals.sends, held, "nothing leaves after a bye");
    for what in ["lose", "restart"] {
        processes.push(Process::start(url, &api).await);
        breaks(what);
        used(&api, 2 * recovers + 2 * WINDOW).await;
    }
    assert!(api.seen().worst <= usize::try_from(LIMIT).expect("small"), "{} in a window", api.seen().worst);
    processes.into_iter().for_each(Process::kill);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_on_redis() {
    let mut server = RedisServer::start(&[]);
    let url = server.url();
    story(&url, |what| match what {
        "lose" => server.command(&["FLUSHALL"]),
        _ => {
            server.stop();
            server.begin();
        }
    })
    .await;
}

/// The network delays, loses replies, falls silent and cuts; then a replica that has missed some writes takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_in_a_bad_network_and_over_a_failover() {
    let [port] = free_ports();
    let port = port.to_string();
    let mut master = RedisServer::start(&["--port", &port]);
    let mut replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]);
    let proxy = Proxy::start(master.socket()).await;
    let (api, url) = (Api::default(), proxy.url());
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Process::start(&url, &api).await);
    }
    let recovers = 2 * (LEASE + Duration::from_secs(1) + WINDOW) + Duration::from_secs(8);
    used(&api, recovers).await;
    let weathers = [Weather::Slow(Duration::from_millis(150)), Weather::RepliesLost, Weather::Silent, Weather::Cut];
    for weather in weathers {
        proxy.set(weather);
        tokio::time::sleep(LEASE / 2).await;
        // Who comes now waits, or asks for what the others hold.
        processes.push(Process::start(&url, &api).await);
        tokio::time::sleep(LEASE).await;
        proxy.set(Weather::Fair);
        used(&api, recovers).await;
    }
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    used(&api, recovers).await;
    master.stop();
    replica.promote();
    proxy.lead_to(replica.socket());
    used(&api, recovers).await;
    let worst = api.seen().worst;
    assert!(worst <= usize::try_from(LIMIT).expect("small"), "{worst} in a window");
    processes.into_iter().for_each(Process::kill);
}

/// For less than the time after which a request fails: from then on each reply comes for an earlier request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_goes_on_where_some_replies_were_lost_and_the_others_come_on_the_same_connection() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.socket()).await;
    let (api, url) = (Api::default(), proxy.url());
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Process::start(&url, &api).await);
    }
    let recovers = LEASE + Duration::from_secs(1) + WINDOW + Duration::from_secs(8);
    used(&api, recovers).await;
    for lost in [600, 1_100, 1_700] {
        proxy.set(Weather::RepliesLost);
        tokio::time::sleep(Duration::from_millis(lost)).await;
        proxy.set(Weather::Fair);
        tokio::time::sleep(LEASE).await;
        used(&api, recovers).await;
        let live =
            processes.iter().all(|process| process.fleet.view().is_some_and(|fleet| fleet.state == MemberState::Live));
        assert!(live, "replies were lost for {lost} ms");
    }
    processes.into_iter().for_each(Process::kill);
}

/// The master is killed under load, and the Sentinels name its replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_over_a_failover_by_sentinels() {
    let mut set = SentinelSet::start();
    let (api, url) = (Api::default(), set.url());
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Process::start(&url, &api).await);
    }
    let recovers = 2 * (LEASE + Duration::from_secs(1) + WINDOW) + Duration::from_secs(8);
    used(&api, recovers).await;
    set.master.stop();
    processes.push(Process::start(&url, &api).await);
    used(&api, recovers).await;
    let live = || {
        processes.iter().all(|process| {
            let fleet = process.limiter.snapshot().account.fleet;
            fleet.is_some_and(|fleet| fleet.state == MemberState::Live && fleet.members == 5)
        })
    };
    until(recovers, "all are members on the new master", live).await;
    used(&api, recovers).await;
    let worst = api.seen().worst;
    assert!(worst <= usize::try_from(LIMIT).expect("small"), "{worst} in a window");
    processes.into_iter().for_each(Process::kill);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_on_postgres() {
    let mut server = PostgresServer::start();
    let url = server.url();
    story(&url, |what| {
        if what == "restart" {
            server.tell("stop");
            server.tell("start");
        }
    })
    .await;
}

/// Until the first call of a process that joins.
async fn begins(url: &str, account: &str) -> Duration {
    let (limiter, clock) = (limiter(), Clock::new());
    let began = clock.now();
    let fleet = Fleet::join(&limiter, config(url, account)).await.expect("it joins");
    let permit = limiter.acquire(Request::new(limiter.scope("calls"), Cost::request())).await.expect("it is open");
    let took = clock.now() - began;
    permit.complete(Outcome::new(Class::Success));
    fleet.leave().await;
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_process_of_all_waits_on_a_server_that_has_just_begun_and_on_no_other() {
    let server = RedisServer::start(&[]);
    let recovers = LEASE + Duration::from_secs(1) + WINDOW;
    assert!(begins(&server.url(), "first").await >= LEASE, "it may have lost what others hold");
    assert!(begins(&server.url(), "first").await < LEASE, "the ledger is there");
    let up = || {
        let info = server.ask(&["INFO", "server"]);
        let seconds = info.lines().find_map(|line| line.trim().strip_prefix("uptime_in_seconds:")?.parse().ok());
        Duration::from_secs(seconds.expect("it says so"))
    };
    // It rounds, and what it says is believed but for 2 s.
    until(3 * recovers, "it is up", || up() > recovers + Duration::from_secs(3)).await;
    assert!(begins(&server.url(), "second").await < LEASE, "it has given nothing of that");
    for account in ["third", "fourth", "fifth"] {
        let url = server.url();
        let all = std::iter::repeat_n(url, 8).map(|url| async move { begins(&url, account).await });
        let slowest = all.collect::<tokio::task::JoinSet<_>>().join_all().await.into_iter().max();
        assert!(slowest < Some(LEASE), "all that begin at once on {account}: {slowest:?}");
    }
    server.command(&["FLUSHALL"]);
    assert!(begins(&server.url(), "second").await >= LEASE, "it may have given all of that");
}

#[tokio::test]
async fn a_store_that_refuses_says_so_at_the_start_and_one_that_is_away_is_waited_for() {
    let server = RedisServer::start(&["--requirepass", "secret"]);
    let refused = Fleet::join(&limiter(), config(&server.url(), "a")).await.expect_err("it wants a password");
    assert!(matches!(refused, FleetError::Refused { .. }), "{refused}");
    let url = format!("{}?pass=secret", server.url());
    let first = Fleet::join(&limiter(), config(&url, "a")).await.expect("it has the password");
    let others = Limiter::new(Quota::per_minute(7)).expect("a limit");
    let refused = Fleet::join(&others, config(&url, "a")).await.expect_err("it has other limits");
    let words = refused.to_string();
    assert!(words.contains("200 requests per 2s") && words.contains("7 requests per 60s"), "{words}");
    assert!(!words.contains("secret"), "{words}");
    first.leave().await;

    let waits = limiter();
    let away = Fleet::join(&waits, config("redis://127.0.0.1:1", "a")).await.expect("it waits");
    let known = waits.snapshot().account.fleet.expect("it wants to be in one");
    assert!(away.problem().is_some() && known.state == MemberState::Out && known.shares[0].units == 0, "{known:?}");
    let unlimited = Limiter::new(PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() }).expect("no limit");
    let refused = Fleet::join(&unlimited, config(&url, "a")).await.expect_err("there is nothing to divide");
    assert!(refused.to_string().contains("configured limit"), "{refused}");
}

/// A process that begins anew with a larger limit goes on at once, and beside one with another limit as soon as that has ended.
async fn adopts(url: &str) {
    let twice = || {
        let quota = Quota::sliding(Dimension::Requests, 2 * LIMIT, WINDOW);
        let limits = Limits { quotas: vec![quota], burst: Some(2 * LIMIT) };
        Limiter::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }).expect("a limit")
    };
    let (first, second) = (limiter(), twice());
    let place = Fleet::join(&first, config(url, "adopts")).await.expect("the first");
    first.acquire(request(&first)).await.expect("a share").complete(Outcome::new(Class::Success));
    let refused = Fleet::join(&twice(), config(url, "adopts")).await;
    assert!(matches!(refused, Err(FleetError::OtherLimits { .. })), "{refused:?}");
    let mut patient = config(url, "adopts");
    patient.asks_again = true;
    let waits = Fleet::join(&second, patient).await.expect("it waits");
    until(LEASE, "it knows why", || waits.problem().is_some_and(|why| why.contains("other limits"))).await;
    let words = || second.snapshot().account.explain(second.now());
    until(LEASE, "so do people", || words().contains("the fleet divides other limits")).await;
    place.leave().await;
    // What the first has sent counts for a window yet, under the new limit.
    let permits = async {
        for _ in 0..2 * LIMIT - 1 {
            second.acquire(request(&second)).await.expect("a share").complete(Outcome::new(Class::Success));
        }
    };
    tokio::time::timeout(2 * LEASE, permits).await.expect("it goes on");
    assert_eq!(waits.problem(), None);
    waits.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_units_are_adopted_once_no_other_process_lives() {
    let redis = RedisServer::start(&[]);
    let first = limiter();
    // The ledger is there once it has recovered.
    let place = Fleet::join(&first, config(&redis.url(), "adopts")).await.expect("the first");
    first.acquire(request(&first)).await.expect("a share").complete(Outcome::new(Class::Success));
    place.leave().await;
    adopts(&redis.url()).await;
    adopts(&PostgresServer::start().url()).await;
}

/// A limit that is added waits for its window, or for that of the limit that was there: not for a day.
async fn adds(url: &str) {
    let of = |added: &[(u64, u64)]| {
        let added = added.iter().map(|(units, seconds)| (*units, Duration::from_secs(*seconds)));
        let quotas =
            added.chain([(LIMIT, WINDOW)]).map(|(units, window)| Quota::sliding(Dimension::Requests, units, window));
        let limits = Limits { quotas: quotas.collect(), burst: None };
        Limiter::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }).expect("limits")
    };
    for (added, calls) in [(&[][..], 1), (&[(10, 3_600)], 10), (&[(10, 3_600), (4, 1)], 1)] {
        let limiter = of(added);
        let place = Fleet::join(&limiter, config(url, "adds")).await.expect("its limits are adopted");
        let permits = async {
            for _ in 0..calls {
                limiter.acquire(request(&limiter)).await.expect("a share").complete(Outcome::new(Class::Success));
            }
        };
        // A server that has just begun waits before its first. All ten of the hour are used by the second, and the third gets
        // none.
        let patience = if added.is_empty() { 20 * LEASE } else { 2 * LEASE };
        let left = tokio::time::timeout(patience, permits).await.is_ok();
        assert_eq!(left, added.len() < 2, "{added:?}");
        place.leave().await;
    }
    let refused = Fleet::join(&of(&[]), config(url, "adds")).await;
    assert!(
        matches!(refused, Err(FleetError::OtherLimits { .. })),
        "an hour that goes would come back empty: {refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_are_added_stop_nothing_for_longer_than_what_was_there() {
    adds(&RedisServer::start(&[]).url()).await;
    adds(&PostgresServer::start().url()).await;
}

fn request(limiter: &Limiter) -> Request {
    Request::new(limiter.scope("calls"), Cost::request())
}

fn is_closed(limiter: &Limiter) -> bool {
    let now = limiter.now();
    limiter.snapshot().scopes.iter().any(|scope| scope.closed_until.is_some_and(|until| until > now))
}

/// What the server tells one process all obey, also one that comes later; one call tests whether it is over, then all go on.
async fn pause(url: &str) {
    let mut processes = Vec::new();
    for _ in 0..3 {
        let limiter = limiter();
        let fleet = Fleet::join(&limiter, config(url, "pause")).await.expect("it joins");
        limiter.acquire(request(&limiter)).await.expect("it is open").complete(Outcome::new(Class::Success));
        processes.push((limiter, fleet));
    }
    let (first, _) = &processes[0];
    let wait = Duration::from_millis(2_500);
    let refused = Outcome { hint: Some(Hint::new(wait, false)), ..Outcome::new(Class::Throttled) };
    first.acquire(request(first)).await.expect("it is open").complete(refused);
    until(Duration::from_secs(1), "all obey", || processes.iter().all(|(limiter, _)| is_closed(limiter))).await;
    let late = limiter();
    let fleet = Fleet::join(&late, config(url, "pause")).await.expect("it joins");
    processes.push((late, fleet));
    until(Duration::from_secs(1), "the last obeys", || is_closed(&processes[3].0)).await;

    let (granted, mut permits) = tokio::sync::mpsc::unbounded_channel();
    for (limiter, _) in &processes {
        let (limiter, granted) = (limiter.clone(), granted.clone());
        tokio::spawn(async move {
            let permit = limiter.acquire(request(&limiter)).await.expect("it is open");
            granted.send(permit).expect("the test goes on");
        });
    }
    let canary = tokio::time::timeout(2 * wait, permits.recv()).await.expect("the pause ends").expect("a permit");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(permits.try_recv().is_err(), "one call goes first");
    canary.complete(Outcome::new(Class::Success));
    for _ in 1..processes.len() {
        let permit = tokio::time::timeout(Duration::from_secs(2), permits.recv()).await;
        permit.expect("all go on").expect("a permit").complete(Outcome::new(Class::Success));
    }
    for (_, fleet) in processes {
        fleet.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_one_process_is_told_holds_all_on_redis() {
    pause(&RedisServer::start(&[]).url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_one_process_is_told_holds_all_on_postgres() {
    pause(&PostgresServer::start().url()).await;
}
