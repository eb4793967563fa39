//! Many `paceline run` share one key's limits through a real Redis, while they are killed and suspended and while Redis loses
//! what it knows: no window of calls at the server holds more than the limit, and no item is lost. Told nothing, they learn the
//! rate of nginx together.

use std::process::{Child, Command};
use std::time::Duration;

use paceline_config::{Config, Overrides};
use paceline_http::{Call, Profiles};

use super::counting::Counting;
use super::job::{Job, KEY};
use super::measure;
use super::nginx::{BURST, Limit, Nginx, RATE, SERVICE};
use super::redis_server::RedisServer;
use crate::bounded::{Bounded, BoundedOutput, TestBound};

pub(crate) const WINDOW: Duration = Duration::from_secs(2);

/// The calls of processes are under way for differently long, on a machine with two cores and four busy tests: a window of their
/// starts is so much shorter at the server.
pub(crate) const UNDER_WAY: Duration = Duration::from_millis(300);

pub(crate) const LIMIT: u64 = 100;

/// After this and a window the others have what a killed process held.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// How long the fleet may stand still before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn processes_on_one_key_keep_its_limit_whatever_becomes_of_them_and_of_redis() {
    let _bound = TestBound::new();
    let (processes, items) = if measure::soak() { (16, 1_000) } else { (4, 250) };
    let counting = Counting::start(Duration::from_millis(5));
    let mut redis = RedisServer::start(&[]);
    let base_url = format!("http://{}/v1", counting.address());
    let (limit, url) = (format!("{LIMIT} per {}s", WINDOW.as_secs()), redis.url());
    let environment = [("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", format!("{}s", LEASE.as_secs()).into())];
    let job = || {
        let flags = ["--upstream", "openai", "--pace", "fixed", "--limit", &limit, "--fleet", &url];
        Job::new(items, &base_url, &flags).with_environment(&environment)
    };
    let jobs: Vec<Job> = (0..processes).map(|_| job()).collect();
    let mut children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    let total = (processes * items) as u64;
    let goes_on = |calls: u64| {
        let until = (counting.arrivals() + calls).min(total);
        assert!(counting.wait_for_events(2 * until, PATIENCE), "the fleet stands still after {}", counting.arrivals());
    };
    let began = counting.now();
    goes_on(LIMIT);

    children[0].kill().expect("SIGKILL");
    children[0].ended();
    goes_on(LIMIT);
    signal(&children[1], "STOP");
    std::thread::sleep(LEASE + Duration::from_secs(2));
    signal(&children[1], "CONT");
    children[0] = jobs[0].spawn();
    goes_on(LIMIT);
    redis.command(&["FLUSHALL"]);
    goes_on(LIMIT);
    redis.stop();
    redis.begin();

    for (job, child) in jobs.iter().zip(&mut children) {
        assert!(child.ended().success(), "{}", job.log());
        job.assert_complete(&job.run());
    }
    let worst = counting.worst(WINDOW - UNDER_WAY);
    // What a ledger gives twice is too much in any part of a window; what was under way for longer is not in this one.
    let in_half = counting.worst(WINDOW / 2);
    let seconds = counting.now().saturating_since(began).as_secs_f64();
    measure::say(&format!(
        "fleet: processes={processes} items={total} sends={} worst={worst} of {LIMIT} in_half={in_half} \
         seconds={seconds:.1}",
        counting.arrivals()
    ));
    assert!(worst <= LIMIT, "{worst} calls in a window");
}

/// Redis has just begun, so it gives nothing for a lease and a window.
#[test]
fn a_run_that_gets_no_share_within_its_longest_wait_ends_and_leaves_its_items() {
    let _bound = TestBound::new();
    let counting = Counting::start(Duration::from_millis(5));
    let base_url = format!("http://{}/v1", counting.address());
    for limit in ["60rpm", "50 concurrent"] {
        let redis = RedisServer::start(&[]);
        let url = redis.url();
        let flags = ["--upstream", "openai", "--limit", limit, "--max-wait", "8s", "--fleet", &url];
        let ended = Job::new(3, &base_url, &flags).run();
        let log = String::from_utf8_lossy(&ended.output.stderr);
        assert_eq!(ended.output.status.code(), Some(3), "{log}");
        assert!(log.contains("the next call can start only at"), "{log}");

        let folder = tempfile::tempdir().expect("a folder");
        let line = "{\"key\": \"a\", \"payload\": {\"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"m\"}}}\n";
        std::fs::write(folder.path().join("in.jsonl"), line).expect("writable");
        let tasks = |command: &str, flags: &[&str]| {
            let mut tasks = Command::new(env!("CARGO_BIN_EXE_paceline"));
            tasks.args(["tasks", command, "--store", "work.db", "--http"]).args(flags).current_dir(&folder);
            tasks.env_clear().env("HOME", folder.path()).env("OPENAI_API_KEY", "a-key-of-a-test");
            tasks.ended_with_output()
        };
        let added = tasks("add", &["--from", "in.jsonl"]);
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        let ended = tasks("run", &[&flags[..], &["--base-url", &base_url]].concat());
        let log = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{log}");
        assert!(log.contains("no item can start within --max-wait"), "{log}");
    }
    assert_eq!(counting.arrivals(), 0);
}

/// How long the server has each call, and so its places: also those of a process that was killed.
const SERVED: Duration = Duration::from_millis(200);

const PLACES: u64 = 8;

#[test]
fn processes_on_one_key_have_no_more_calls_in_flight_than_its_limit_also_when_some_are_killed() {
    let _bound = TestBound::new();
    let (processes, items) = if measure::soak() { (16, 200) } else { (4, 60) };
    let counting = Counting::start(SERVED);
    let redis = RedisServer::start(&[]);
    let base_url = format!("http://{}/v1", counting.address());
    let (limit, url) = (format!("{PLACES} concurrent"), redis.url());
    let environment = [
        ("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", format!("{}s", LEASE.as_secs()).into()),
        ("PACELINE_UPSTREAM__OPENAI__FLEET_LONGEST_CALL", "1s".into()),
    ];
    let flags = ["--upstream", "openai", "--pace", "fixed", "--limit", &limit, "--fleet", &url];
    let job = || Job::new(items, &base_url, &flags).with_environment(&environment);
    let jobs: Vec<Job> = (0..processes).map(|_| job()).collect();
    let mut children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    let goes_on = |calls: u64| {
        let until = counting.arrivals() + calls;
        assert!(counting.wait_for_events(2 * until, PATIENCE), "the fleet stands still after {}", counting.arrivals());
    };
    let began = counting.now();
    goes_on(2 * PLACES);
    for killed in 0..processes / 2 {
        children[killed].kill().expect("SIGKILL");
        children[killed].ended();
        children[killed] = jobs[killed].spawn();
    }
    goes_on(2 * PLACES);
    redis.command(&["FLUSHALL"]);
    for (job, child) in jobs.iter().zip(&mut children) {
        assert!(child.ended().success(), "{}", job.log());
        job.assert_complete(&job.run());
    }
    let worst = counting.worst(SERVED);
    let seconds = counting.now().saturating_since(began).as_secs_f64();
    let oracle = (processes * items) as f64 / PLACES as f64 * SERVED.as_secs_f64();
    measure::say(&format!(
        "fleet, calls in flight: processes={processes} items={} sends={} worst={worst} of {PLACES} seconds={seconds:.1} \
         oracle={oracle:.1}",
        processes * items,
        counting.arrivals()
    ));
    assert!(worst <= PLACES, "{worst} calls in flight");
}

/// Each ends its job in about the same time, for each has the same share.
#[test]
fn processes_that_are_told_nothing_learn_the_rate_of_nginx_together() {
    let _bound = TestBound::new();
    let (processes, items) = if measure::soak() { (16, 200) } else { (6, 60) };
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let redis = RedisServer::start(&[]);
    let (base_url, url) = (nginx.base_url(), redis.url());
    let flags = ["--upstream", "openai", "--concurrency", "64", "--fleet", &url];
    let jobs: Vec<Job> = (0..processes).map(|_| Job::new(items, &base_url, &flags)).collect();
    let children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    let began = counting.now();
    let mut seconds = Vec::new();
    for (job, mut child) in jobs.iter().zip(children) {
        assert!(child.ended().success(), "{}", job.log());
        seconds.push(counting.now().saturating_since(began).as_secs_f64());
    }
    let (sends, refused) = nginx.counts();
    let total = processes * items;
    let oracle = (total as f64 - BURST) / RATE + SERVICE.as_secs_f64();
    let (first, last) = (seconds[0], *seconds.last().expect("there are some"));
    measure::pace(&format!("fleet untold, {processes} at nginx"), total, sends, refused, last, oracle, None);
    jobs.iter().for_each(|job| job.assert_complete(&job.run()));
    assert!(first >= 0.8 * last, "the first was served before the others: {seconds:?}");
    measure::assert_learnt(total, refused, 5);
}

pub(crate) fn signal(process: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.id().to_string()]).ended();
    assert!(status.success());
}

/// A program with the same configuration is a member of the fleet of `paceline run`, and gives back what it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_profile_of_a_program_and_runs_are_one_fleet() {
    let _bound = TestBound::new();
    let counting = Counting::start(Duration::from_millis(5));
    let redis = RedisServer::start(&["--save", ""]);
    let (base_url, url) = (format!("http://{}/v1", counting.address()), redis.url());
    let file = format!(
        "[upstream.openai]\nbase_url = '{base_url}'\nlimits = ['20 per 2s']\npace = 'fixed'\napi_key_env = 'PEER_KEY'\nfleet = '{url}'\nfleet_lease = '3s'\n"
    );
    let environment = [("PEER_KEY", KEY)].into_iter().collect();
    let config = Config::parse("paceline.toml".as_ref(), &file, environment, Overrides::default());
    let profiles = Profiles::new(config.expect("TOML")).expect("right");
    let client = profiles.join("openai").await.expect("a store is there");
    client.send(Call::post("/v1/chat/completions", "{\"model\":\"m\"}")).await.expect("a success");
    let fleet = || client.limiter().fleet().expect("it has joined");
    assert_eq!((fleet().state.as_str(), fleet().members), ("live", 1));
    let flags = ["--upstream", "openai", "--pace", "fixed", "--limit", "20 per 2s", "--fleet", &url];
    let job =
        Job::new(200, &base_url, &flags).with_environment(&[("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", "3s".into())]);
    let mut run = job.spawn();
    while fleet().members < 2 {
        assert!(run.try_wait().expect("it is ours").is_none(), "it has joined no fleet of two: {}", job.log());
        client.send(Call::post("/v1/chat/completions", "{\"model\":\"m\"}")).await.expect("a success");
    }
    run.kill().expect("SIGKILL");
    run.ended();
    profiles.leave().await;
    assert!(profiles.client("openai").is_err(), "it has left");
}
