//! One job on many hosts: four `paceline run --store` on one Postgres, of which some are killed and one is suspended, while
//! Postgres stops and comes back. Each line has one result, and none is missing.

use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;

use super::counting::Counting;
use super::job::{Ended, Job, name};
use super::measure;
use crate::bounded::{Bounded, BoundedOutput, TestBound};
use crate::postgres_server::PostgresServer;

const PATIENCE: Duration = Duration::from_secs(120);

/// Longer than the blocks of a host stay its own after its last word, and until another has them.
const LEASE: Duration = Duration::from_secs(53);

fn hosts(number: usize, items: usize, postgres: &PostgresServer, counting: &Counting, flags: &[&str]) -> Vec<Job> {
    let (base_url, store) = (format!("http://{}/v1", counting.address()), postgres.url());
    let flags = [&["--upstream", "openai", "--store", &store], flags].concat();
    (0..number).map(|_| Job::new(items, &base_url, &flags)).collect()
}

/// Each line of the job has one result in the store, that of its own question, and every host says so.
pub(crate) fn assert_each_once(postgres: &PostgresServer, items: usize, ended: &[Ended]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let collected = folder.path().join("all.jsonl").display().to_string();
    let output = postgres.command(&["collect"], &["--job", "requests.jsonl", "-o", &collected]).ended_with_output();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(collected).expect("results");
    for (item, line) in text.lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let answer = line.pointer("/response/body/choices/0/message/content");
        assert_eq!((&line["custom_id"], answer), (&name(item).into(), Some(&name(item).into())));
    }
    assert_eq!(text.lines().count(), items);
    for ended in ended {
        let stderr = String::from_utf8_lossy(&ended.output.stderr);
        assert_eq!(ended.output.status.code(), Some(0), "{stderr}; summary: {}", ended.summary);
        let job = &ended.summary["job"];
        let counts = ["lines", "succeeded", "failed", "left"].map(|key| job[key].as_u64().unwrap_or(u64::MAX));
        assert_eq!(counts, [items as u64, items as u64, 0, 0], "{}", ended.summary);
    }
}

/// The job so far, as `paceline collect` lists it.
pub(crate) fn job_of(postgres: &PostgresServer) -> Value {
    let output = postgres.command(&["collect"], &["--json"]).ended_with_output();
    let listed = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(listed).unwrap_or_default()
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).ended();
    assert!(sent.success());
}

#[test]
fn hosts_that_are_killed_suspended_and_cut_off_lose_and_double_no_result() {
    let _bound = TestBound::new();
    let items = if measure::soak() { 20_000 } else { 3_000 };
    let counting = Counting::start(Duration::from_millis(150));
    let mut postgres = PostgresServer::start();
    let mut jobs = hosts(4, items, &postgres, &counting, &[]);
    // The one that is suspended has two calls at a time, so at that moment it is about to write two at most.
    jobs[1] = hosts(1, items, &postgres, &counting, &["--concurrency", "2"]).remove(0);
    let mut children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    let total = items as u64;
    let goes_on = |parts: u64| {
        let until = (total * parts / 10).max(1);
        assert!(counting.wait_for_events(2 * until, PATIENCE), "the job stands still after {}", counting.arrivals());
    };
    goes_on(1);
    children[0].kill().expect("SIGKILL");
    children[0].ended();
    signal(&children[1], "STOP");
    goes_on(2);
    children[2].kill().expect("SIGKILL");
    children[2].ended();
    goes_on(3);
    postgres.tell("stop");
    std::thread::sleep(Duration::from_secs(2));
    postgres.tell("start");
    // One of those that were killed comes back with the same command, one does not.
    children[0] = jobs[0].spawn();
    assert!(children[0].ended().success(), "{}", jobs[0].log());
    assert!(children[3].ended().success(), "{}", jobs[3].log());
    // It asks the store before it sends any more; what it was about to write at that moment may still leave.
    let before = counting.arrivals();
    signal(&children[1], "CONT");
    assert!(children[1].ended().success(), "{}", jobs[1].log());
    assert!(counting.arrivals() <= before + 2, "{before}, then {}", counting.arrivals());

    // What has ended is told again, and nothing is sent.
    let arrivals = counting.arrivals();
    let ended: Vec<Ended> = [0, 1, 3].map(|host: usize| jobs[host].run()).into();
    assert_each_once(&postgres, items, &ended);
    assert_eq!(counting.arrivals(), arrivals, "the job has ended");
    let twice = arrivals - total;
    measure::say(&format!("hosts: lines={items} hosts=4 killed=2 suspended=1 calls={arrivals} twice={twice}"));
}

/// Items a second from so many lines until so many have arrived.
fn rate(counting: &Counting, from: u64, to: u64) -> f64 {
    assert!(counting.wait_for_events(2 * from, 5 * PATIENCE), "it stands still after {}", counting.arrivals());
    let (began, before) = (counting.now(), counting.arrivals());
    assert!(counting.wait_for_events(2 * to, 5 * PATIENCE), "it stands still after {}", counting.arrivals());
    (counting.arrivals() - before) as f64 / counting.now().saturating_since(began).as_secs_f64()
}

/// A host has so many places that it is not the machine of the tests which bounds it.
#[test]
fn four_hosts_are_faster_than_one_and_the_two_that_are_killed_lose_nothing() {
    let _bound = TestBound::new();
    let [of_one, items] = if measure::soak() { [20_000, 100_000] } else { [500, 2_000] };
    let flags = ["--concurrency", "16"];
    let run = |number: usize, items: usize| {
        let (counting, postgres) = (Counting::start(Duration::from_millis(100)), PostgresServer::start());
        let jobs = hosts(number, items, &postgres, &counting, &flags);
        let children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
        let total = items as u64;
        (rate(&counting, total / 5, total / 2), counting, postgres, jobs, children)
    };
    let (one, _counting, postgres, jobs, mut children) = run(1, of_one);
    assert!(children[0].ended().success(), "{}", jobs[0].log());
    assert_each_once(&postgres, of_one, &[jobs[0].run()]);

    let (four, counting, postgres, jobs, mut children) = run(4, items);
    for killed in &mut children[..2] {
        killed.kill().expect("SIGKILL");
        killed.ended();
    }
    for host in [2, 3] {
        assert!(children[host].ended().success(), "{}", jobs[host].log());
    }
    let twice = counting.arrivals() - items as u64;
    assert_each_once(&postgres, items, &[jobs[2].run(), jobs[3].run()]);
    measure::say(&format!(
        "hosts: lines={items} killed=2 missing=0 twice={twice}; one host {one:.0} items/s, four hosts {four:.0} items/s, {:.2} x",
        four / one
    ));
}

#[test]
fn calls_that_must_not_be_made_twice_are_not_and_of_a_lost_host_those_under_way_are_in_doubt() {
    let _bound = TestBound::new();
    let (items, places) = (400, 4);
    let counting = Counting::start(Duration::from_millis(400));
    let postgres = PostgresServer::start();
    let jobs = hosts(
        3,
        items,
        &postgres,
        &counting,
        &["--unknown-outcome", "hold", "--idempotency-header", "none", "--concurrency", "4"],
    );
    let mut children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    assert!(counting.wait_for_events(40, PATIENCE), "none of them calls");
    children[0].kill().expect("SIGKILL");
    children[0].ended();
    signal(&children[1], "STOP");
    std::thread::sleep(LEASE);
    let while_suspended = job_of(&postgres);
    signal(&children[1], "CONT");
    for host in [1, 2] {
        let code = children[host].ended().code();
        assert_eq!(code, Some(1), "some lines are held: {}", jobs[host].log());
    }
    let seen = counting.items();
    let twice: Vec<_> = seen.iter().filter(|(_, seen)| seen.arrivals > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let ended = jobs[2].run();
    let job = &ended.summary["job"];
    let [succeeded, failed, left] = ["succeeded", "failed", "left"].map(|key| job[key].as_u64().expect("a count"));
    assert_eq!((succeeded + failed, left, &job["maybe_twice"]), (items as u64, 0, &0.into()), "{job}");
    // Those under way, and those that had just ended and were not in the store yet.
    assert!((1..=2 * places).contains(&failed), "those of the host that was killed: {job}");
    let held = while_suspended["failed"].as_u64().expect("a count");
    assert!((failed + 1..=4 * places).contains(&held), "the other one knew how its calls ended: {while_suspended}");
    measure::say(&format!("hosts: held={held}, then {failed} of {items} lines, calls={}", counting.arrivals()));
}

#[test]
fn a_host_that_is_interrupted_leaves_its_lines_to_the_others_at_once() {
    let _bound = TestBound::new();
    let items = 600;
    let counting = Counting::start(Duration::from_millis(100));
    let postgres = PostgresServer::start();
    let mut jobs = hosts(2, items, &postgres, &counting, &["--concurrency", "8"]);
    let mut first = jobs[0].spawn();
    assert!(counting.wait_for_events(100, PATIENCE), "{}", jobs[0].log());
    let joining = jobs.remove(1).without_input();
    let mut second = joining.spawn();
    assert!(counting.wait_for_events(300, PATIENCE), "{}", joining.log());
    signal(&first, "INT");
    assert_eq!(first.ended().code(), Some(3), "{}", jobs[0].log());
    assert!(second.ended().success(), "{}", joining.log());
    assert_eq!(counting.arrivals(), items as u64, "no line is sent twice");
    assert_each_once(&postgres, items, &[jobs[0].run(), joining.run()]);
}

#[test]
fn results_wait_in_the_journal_while_the_store_is_away() {
    let _bound = TestBound::new();
    let items = 400;
    let counting = Counting::start(Duration::from_millis(100));
    let mut postgres = PostgresServer::start();
    let flags = ["--concurrency", "8", "--max-wait", "4s"];
    let job = hosts(1, items, &postgres, &counting, &flags).remove(0);
    let mut child = job.spawn();
    assert!(counting.wait_for_events(100, PATIENCE), "{}", job.log());
    postgres.tell("stop");
    assert_eq!(child.ended().code(), Some(3), "{}", job.log());
    assert!(job.log().contains("the store has not answered for"), "{}", job.log());
    let before = counting.arrivals();
    postgres.tell("start");
    let ended = job.run();
    assert_each_once(&postgres, items, &[ended]);
    assert!(before > 50 && counting.arrivals() == items as u64, "{before}, then {}", counting.arrivals());
}

#[test]
fn lines_that_failed_on_any_host_are_sent_again_where_that_is_asked_for() {
    let _bound = TestBound::new();
    let items = 40;
    let counting = Counting::with_outage(Duration::from_millis(20), Duration::ZERO..Duration::from_secs(3));
    let postgres = PostgresServer::start();
    let flags = ["--stop-after-same", "0", "--pace", "none", "--concurrency", "40"];
    let host = |more: &[&str]| hosts(1, items, &postgres, &counting, &[&flags[..], more].concat()).remove(0);
    let (first, second) = (host(&["--max-retries", "0"]), host(&["--retry-failed", "--only-status", "5xx"]));
    let ended = first.run();
    let failed = ended.summary["job"]["failed"].as_u64().expect("a count");
    assert!(ended.output.status.code() == Some(1) && failed > 0, "{}", ended.summary);
    let first_words = String::from_utf8_lossy(&ended.output.stderr).into_owned();
    assert!(first_words.contains("the same command with --retry-failed"), "{first_words}");
    let none = host(&["--retry-failed", "--only-status", "400"]).run();
    let log = String::from_utf8_lossy(&none.output.stderr).into_owned();
    assert!(log.contains("0 lines of the job that failed before will be sent again"), "{log}");
    assert!(log.contains(&format!("{failed} lines of the job failed")), "whichever host they failed on: {log}");
    let ended = second.run();
    let log = String::from_utf8_lossy(&ended.output.stderr).into_owned();
    assert!(log.contains(&format!("{failed} lines of the job that failed before will be sent again")), "{log}");
    assert_eq!(ended.count("input"), failed, "what has succeeded is not sent again");
    let last = first.run();
    let log = String::from_utf8_lossy(&last.output.stderr).into_owned();
    assert!(log.contains("; these lines have succeeded since"), "{log}");
    assert_each_once(&postgres, items, &[ended, last]);
}

#[test]
fn a_host_without_the_input_waits_for_the_job() {
    let _bound = TestBound::new();
    let (items, counting, postgres) = (200, Counting::start(Duration::from_millis(20)), PostgresServer::start());
    let host = |flags: &[&str]| hosts(1, items, &postgres, &counting, flags).remove(0);
    let hasty = host(&["--max-wait", "1s"]).without_input().run();
    let log = String::from_utf8_lossy(&hasty.output.stderr).into_owned();
    assert_eq!(hasty.output.status.code(), Some(3), "{log}");
    assert!(log.contains("there is no job requests.jsonl in the store (there is: none)"), "{log}");
    let (early, maker) = (host(&[]).without_input(), host(&[]));
    let mut waits = early.spawn();
    while !early.log().contains("waiting up to 1h") {
        assert!(waits.try_wait().expect("it is ours").is_none(), "{}", early.log());
    }
    let ended = maker.run();
    assert!(waits.ended().success(), "{}", early.log());
    assert_each_once(&postgres, items, &[ended, early.run()]);
    assert_eq!(counting.arrivals(), items as u64);
    // Its results are of another job than the one that this would make.
    let refused = maker.with_flags(&["--job", "another"]).run();
    assert_eq!(refused.output.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.output.stderr));
    assert_eq!(job_of(&postgres)["job"], "requests.jsonl", "no job is made");
}

#[test]
fn a_host_that_would_send_lines_otherwise_is_refused() {
    let _bound = TestBound::new();
    let (items, counting, postgres) = (3, Counting::start(Duration::from_millis(1)), PostgresServer::start());
    let maker = hosts(1, items, &postgres, &counting, &[]).remove(0);
    assert_each_once(&postgres, items, &[maker.run()]);
    let refused = |job: Job| {
        let ended = job.run();
        assert_eq!(ended.output.status.code(), Some(2), "{}", ended.summary);
        String::from_utf8_lossy(&ended.output.stderr).into_owned()
    };
    let other = |flags: &[&str]| hosts(1, items, &postgres, &counting, flags).remove(0);
    for job in [other(&["--expect", "json"]), other(&["--expect", "json"]).without_input()] {
        let log = refused(job);
        assert!(log.contains("the job requests.jsonl differs: expect is none in the job, and json here"), "{log}");
    }
    let log = refused(hosts(1, items + 1, &postgres, &counting, &[]).remove(0));
    assert!(log.contains("input is 3 lines, ") && log.contains("and 4 lines, "), "{log}");
    assert_eq!(counting.arrivals(), items as u64);
}

#[test]
fn an_input_that_was_cut_off_on_its_way_into_the_store_goes_on_where_it_was_left() {
    let _bound = TestBound::new();
    let items = 4_000;
    let counting = Counting::start(Duration::from_millis(1));
    let postgres = PostgresServer::start();
    let (base_url, store) = (format!("http://{}/v1", counting.address()), postgres.url());
    let flags = ["--upstream", "openai", "--store", &store];
    let job = Job::with_long_lines(items, 10_000, &base_url, &flags);
    let mut child = job.spawn();
    let mut listed = job_of(&postgres);
    while listed["lines"].as_u64().is_none_or(|lines| lines == 0) {
        assert!(child.try_wait().expect("it is ours").is_none(), "{}", job.log());
        listed = job_of(&postgres);
    }
    child.kill().expect("SIGKILL");
    child.ended();
    let listed = job_of(&postgres);
    assert_eq!(listed["complete"], false, "it was too fast to be cut off: {listed}");
    let joining = Job::new(0, &base_url, &flags).without_input();
    let mut joined = joining.spawn();
    assert!(counting.wait_for_events(10, PATIENCE), "what is there is worked on: {}", joining.log());
    let ended = job.run();
    assert!(joined.ended().success(), "{}", joining.log());
    assert_each_once(&postgres, items, &[ended]);
}
