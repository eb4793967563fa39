//! A grant asks no store: the system's calls of the thread that is granted permits, by strace, which has to be installed.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use paceline::{Class, Limiter, Outcome, Pace, PacerConfig, Quota};
use paceline_fleet::Fleet;

use crate::live::{config, until};
use crate::redis_server::RedisServer;

const ADDRESS: &str = "PACELINE_TEST_REDIS";

/// What memory and a lock take. Time is read without the system.
const OF_MEMORY_AND_LOCKS: [&str; 7] = ["brk", "futex", "madvise", "mmap", "mremap", "munmap", "sched_yield"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_in_a_fleet_makes_no_call_of_the_system() {
    let server = RedisServer::start(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace");
    let output = Command::new("strace")
        .args(["-f", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "no_io::grants_under_strace", "--ignored", "--nocapture"])
        .env(ADDRESS, server.url())
        .output()
        .expect("strace is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read_to_string(trace).expect("it was written");
    let lines: Vec<_> = trace.lines().filter_map(|line| line.split_once(char::is_whitespace)).collect();
    let says = |what: &str| lines.iter().position(|(_, call)| call.contains("write(") && call.contains(what));
    let (begin, end) = (says("grants begin").expect("they begin"), says("grants end").expect("they end"));
    let thread = lines[begin].0;
    let calls = lines[begin + 1..end].iter().filter(|(who, _)| *who == thread).map(|(_, call)| call.trim());
    let is_other =
        |call: &&str| !OF_MEMORY_AND_LOCKS.iter().any(|name| call.trim_start_matches("<... ").starts_with(name));
    let others: Vec<_> = calls.filter(is_other).collect();
    assert!(others.is_empty(), "{} calls of the system, such as {:?}", others.len(), &others[..others.len().min(5)]);
}

/// What is looked at: 20,000 calls of a process in a fleet, on one thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above"]
async fn grants_under_strace() {
    let url = std::env::var(ADDRESS).expect("the address of a server");
    let limiter =
        Limiter::new(PacerConfig::from(Quota::per_second(10_000_000)).with_pace(Pace::Fixed)).expect("a limit");
    let fleet = Fleet::join(&limiter, config(&url, "no io")).await.expect("it joins");
    // Enough for all of them: what it is turned away for it is given.
    let share = || limiter.fleet().map_or(0, |fleet| fleet.shares[0].units);
    until(Duration::from_secs(20), "a share", || {
        let _ = limiter.try_acquire("calls");
        share() >= 5_000_000
    })
    .await;
    let say = |what: &str| std::io::stderr().write_all(what.as_bytes()).expect("standard error is there");
    let grants = move || {
        say("grants begin\n");
        for _ in 0..20_000 {
            let permit = limiter.try_acquire("calls").expect("there is enough");
            permit.complete(Outcome::new(Class::Success));
        }
        say("grants end\n");
    };
    std::thread::spawn(grants).join().expect("all are granted");
    fleet.leave().await;
}
