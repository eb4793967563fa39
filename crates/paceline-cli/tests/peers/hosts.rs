//! One job on many hosts: four `paceline run --store` on one Postgres, of which some are killed and one is suspended, while
//! Postgres stops and comes back. Each line has one result, and none is missing.

use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;

use super::counting::Counting;
use super::job::{Ended, Job, name};
use super::measure;
use super::postgres::Postgres;

const PATIENCE: Duration = Duration::from_secs(120);

fn hosts(number: usize, items: usize, postgres: &Postgres, counting: &Counting) -> Vec<Job> {
    let (base_url, store) = (format!("http://{}/v1", counting.address()), postgres.url());
    let flags = ["--upstream", "openai", "--store", &store];
    (0..number).map(|_| Job::new(items, &base_url, &flags)).collect()
}

/// Each line of the job has one result in the store, that of its own question, and every host says so.
fn assert_each_once(postgres: &Postgres, items: usize, ended: &[Ended]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let collected = folder.path().join("all.jsonl").display().to_string();
    let output = postgres.command(&["collect"], &["--job", "requests.jsonl", "-o", &collected]).output();
    let output = output.expect("the binary starts");
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

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn hosts_that_are_killed_suspended_and_cut_off_lose_and_double_no_result() {
    let items = if measure::soak() { 20_000 } else { 3_000 };
    let counting = Counting::start(Duration::from_millis(150));
    let mut postgres = Postgres::start();
    let jobs = hosts(4, items, &postgres, &counting);
    let mut children: Vec<Child> = jobs.iter().map(Job::spawn).collect();
    let total = items as u64;
    let goes_on = |parts: u64| {
        let until = (total * parts / 10).max(1);
        assert!(counting.wait_for_events(2 * until, PATIENCE), "the job stands still after {}", counting.arrivals());
    };
    goes_on(1);
    children[0].kill().expect("SIGKILL");
    children[0].wait().expect("it is ours");
    signal(&children[1], "STOP");
    goes_on(2);
    children[2].kill().expect("SIGKILL");
    children[2].wait().expect("it is ours");
    goes_on(3);
    postgres.tell("stop");
    std::thread::sleep(Duration::from_secs(2));
    postgres.tell("start");
    // One of those that were killed comes back with the same command, one does not.
    children[0] = jobs[0].spawn();
    assert!(children[0].wait().expect("it is ours").success(), "{}", jobs[0].log());
    assert!(children[3].wait().expect("it is ours").success(), "{}", jobs[3].log());
    signal(&children[1], "CONT");
    assert!(children[1].wait().expect("it is ours").success(), "{}", jobs[1].log());

    // What has ended is told again, and nothing is sent.
    let arrivals = counting.arrivals();
    let ended: Vec<Ended> = [0, 1, 3].map(|host: usize| jobs[host].run()).into();
    assert_each_once(&postgres, items, &ended);
    assert_eq!(counting.arrivals(), arrivals, "the job has ended");
    let twice = arrivals - total;
    measure::say(&format!("hosts: lines={items} hosts=4 killed=2 suspended=1 calls={arrivals} twice={twice}"));
}
