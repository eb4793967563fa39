//! Several processes on one account, one after the other and at once.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::bounded::{Bounded, BoundedOutput};
use crate::serve::{Gateway, post};
use crate::support::{Job, Reply, Server, finish, line, start};
use crate::tasks_run::{Store, ran};

#[test]
fn the_second_process_on_a_key_is_warned_and_the_key_is_nowhere() {
    const KEY: &str = "sk-very-secret-0123456789";
    let server = Server::new(|arrival| if arrival.item == "item-0" { Reply::ok().never() } else { Reply::ok() });
    let (job, other) = (Job::new(1), Job::with_input(&crate::support::line("other")));
    let run = |on: &Job, key: &str| {
        let mut command = on.run(&server);
        // Both belong to one user, so they share a home.
        command.args(["--api-key-env", "THE_KEY"]).env("THE_KEY", key).env("HOME", job.path(""));
        command
    };
    let mut first = start(&mut run(&job, KEY));
    server.wait_for(1);
    let (code, log) = finish(&mut run(&other, KEY));
    assert_eq!(code, 0, "{log}");
    let warning = format!("process {} may call {} with the same key, too", first.id(), server.url());
    assert_eq!(log.matches(&warning).count(), 1, "{log}");
    let store = Store::of(&["a"]);
    let flags = ["--http", "--base-url", &server.url(), "--api-key-env", "THE_KEY"];
    let tasks = ran(store.command().args(flags).env("THE_KEY", KEY).env("HOME", job.path("")));
    assert_eq!(tasks.log.matches(&warning).count(), 1, "{}", tasks.log);
    let (_, log) = finish(&mut run(&Job::with_input(&crate::support::line("third")), "another key"));
    assert!(!log.contains("with the same key"), "{log}");
    for entry in std::fs::read_dir(job.path(".local/state/paceline")).expect("the locks") {
        let path = entry.expect("an entry").path();
        let text = format!("{}{}", path.display(), std::fs::read_to_string(&path).expect("text"));
        assert!(!text.contains("secret"), "{text}");
    }
    first.kill().expect("it runs");
    first.ended();
    let (_, log) = finish(&mut run(&Job::with_input(&crate::support::line("fourth")), KEY));
    assert!(!log.contains("with the same key"), "the dead hold nothing: {log}");
}

#[test]
fn the_warning_about_another_process_names_no_key_where_there_is_none() {
    let server = Server::new(|arrival| if arrival.item == "item-0" { Reply::ok().never() } else { Reply::ok() });
    let (job, other) = (Job::new(1), Job::with_input(&crate::support::line("other")));
    let mut first = start(job.run(&server).env("HOME", job.path("")));
    server.wait_for(1);
    let (code, log) = finish(other.run(&server).env("HOME", job.path("")));
    let warning = format!("process {} may call {}, both without a key, too", first.id(), server.url());
    assert_eq!((code, log.matches(&warning).count()), (0, 1), "{log}");
    first.kill().expect("it runs");
    first.ended();
}

/// The first had no room on its disk to say that it shares its limits.
#[test]
fn of_another_process_that_could_not_sign_nothing_is_said_that_a_later_line_contradicts() {
    let server = Server::new(|arrival| if arrival.item == "item-0" { Reply::ok().never() } else { Reply::ok() });
    let (job, other) = (Job::new(1), Job::with_input(&crate::support::line("other")));
    let run = |on: &Job| {
        let mut command = on.run(&server);
        command.args(["--limit", "100 per 1h", "--max-wait", "1s"]).env("HOME", job.path(""));
        command
    };
    let mut first = start(&mut run(&job));
    server.wait_for(1);
    let marks = std::fs::read_dir(job.path(".local/state/paceline")).expect("the locks");
    let marks =
        marks.map(|entry| entry.expect("an entry").path()).filter(|path| path.extension() == Some("lock".as_ref()));
    for mark in marks {
        std::fs::write(mark, "").expect("writable");
    }
    let (_, log) = finish(&mut run(&other));
    assert!(log.contains("it is not known yet whether it shares the configured limits"), "{log}");
    assert!(log.contains("both share the configured limits") && !log.contains("its own calls alone"), "{log}");
    first.kill().expect("it runs");
    first.ended();
}

/// A user whose jobs share a home.
struct User {
    home: Job,
    server: Server,
}

impl User {
    fn new() -> Self {
        Self { home: Job::new(0), server: Server::new(|_| Reply::ok()) }
    }

    /// A run of the job under that limit, which waits for no more than a second.
    fn run(&self, job: &Job, limit: &str) -> Command {
        self.patient(job, limit, "1s")
    }

    fn patient(&self, job: &Job, limit: &str, max_wait: &str) -> Command {
        let mut command = job.run(&self.server);
        command.args(["--limit", limit, "--max-wait", max_wait]).env("HOME", self.home.path(""));
        command
    }

    /// Another job of twenty calls, as far as it comes under that limit: its log, and the calls of all jobs so far.
    fn sends(&self, limit: &str) -> (usize, String) {
        let (_, log) = finish(&mut self.run(&Job::new(20), limit));
        (self.server.count(), log)
    }

    /// The file that says what was counted, once there is one.
    fn ledger(&self) -> Option<PathBuf> {
        let mut files = std::fs::read_dir(self.home.path(".local/state/paceline")).ok()?;
        files
            .find_map(|entry| Some(entry.ok()?.path()).filter(|path| path.extension().is_some_and(|end| end == "json")))
    }

    /// What that file counts.
    fn counted(&self) -> u64 {
        let Some(file) = self.ledger() else { return 0 };
        let file: Value = serde_json::from_slice(&std::fs::read(file).expect("readable")).expect("never a part");
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let windows = list(&file, "runs").into_iter().flat_map(|run| list(&run["account"], "windows"));
        windows.flat_map(|window| list(&window, "taken")).filter_map(|part| part["units"].as_u64()).sum()
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_configured_limit_holds_over_jobs() {
    let user = User::new();
    assert_eq!(user.sends("5 per 1h").0, 5);
    let job = Job::new(20);
    let (code, log) = finish(&mut user.run(&job, "5 per 1h"));
    assert_eq!((code, user.server.count()), (3, 5), "{log}");
    assert!(!job.summary().to_string().contains("turn"), "it waits for the hour and for no other run");
    assert!(log.contains("the next call can start only at ") && log.contains("later than --max-wait allows"), "{log}");
    for (limit, calls) in [("8 per 1h", 8), ("8 per 2h", 8), ("6 per 1h", 8), ("12 per 1d", 12)] {
        let (sent, log) = user.sends(limit);
        assert_eq!(sent, calls, "what was sent counts under {limit}: {log}");
    }
    let (_, log) = user.sends("12 per 1d");
    assert!(
        log.contains("other runs have used up the configured limits, and the next call can start only at "),
        "{log}"
    );
    let (code, log) =
        finish(user.run(&Job::new(20), "12 per 1d").env("THE_KEY", "another").args(["--api-key-env", "THE_KEY"]));
    assert_eq!((code, user.server.count()), (3, 24), "another account: {log}");
}

/// It was suspended in its turn, which nothing but its end or its going on passes on.
#[cfg(unix)]
#[test]
fn a_run_that_another_one_keeps_from_its_turn_says_so_and_names_no_time() {
    let silent = Server::new(|_| Reply::ok().never());
    let user = User { server: silent, ..User::new() };
    let (job, other) = (Job::new(1), Job::new(1));
    let mut first = start(&mut user.run(&job, "50 per 1h"));
    user.server.wait_for(1);
    let stopped = Command::new("kill").args(["-STOP", &first.id().to_string()]).ended();
    assert!(stopped.success());
    let (code, log) = finish(&mut user.patient(&other, "50 per 1h", "300ms"));
    assert!(log.contains(&format!("process {} is calling", first.id())), "{log}");
    first.kill().expect("it runs");
    first.ended();
    assert!(code == 3 && log.contains("another run with the same key holds the shared limits"), "{log}");
    assert!(!log.contains("can start only at"), "{log}");
    assert_eq!(other.summary()["stopped"], "max_wait");
}

#[test]
fn a_configured_limit_holds_over_runs_and_tasks() {
    let user = User::new();
    assert_eq!(user.sends("5 per 1h").0, 5);
    let tasks = |arguments: &[&str]| {
        let mut command = user.home.paceline();
        command.args(["tasks", arguments[0], "--store", "s.db"]).args(&arguments[1..]);
        finish(&mut command)
    };
    std::fs::write(user.home.path("items"), format!("{{\"key\": \"a\", \"payload\": {}}}", line("a")))
        .expect("writable");
    assert_eq!(tasks(&["add", "--from", "items"]).0, 0);
    let url = user.server.url();
    let run = ["run", "--http", "--base-url", &url, "--max-wait", "1s", "--limit"];
    for (limit, code, calls) in [("5 per 1h", 3, 5), ("6 per 1h", 0, 6)] {
        let (exit, log) = tasks(&[&run[..], &[limit]].concat());
        assert_eq!((exit, user.server.count()), (code, calls), "{limit}: {log}");
    }
    assert_eq!(user.sends("6 per 1h").0, 6, "and back");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_left_before_a_kill_counts_for_other_jobs() {
    let user = User::new();
    let job = Job::new(20);
    let mut killed = start(&mut user.patient(&job, "5 per 1h", "2h"));
    user.server.wait_for(5);
    while user.counted() < 5 {
        std::thread::yield_now();
    }
    killed.kill().expect("it runs");
    killed.ended();
    let (sent, log) = user.sends("5 per 1h");
    assert_eq!(sent, 5, "{log}");
    let (code, log) = finish(&mut user.run(&job, "6 per 1h"));
    assert_eq!(
        (code, user.server.count()),
        (3, 6),
        "journal and file know the same five calls, which count once: {log}"
    );
}

/// Most calls leave in the first moment of a run, before what it has counted is written.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_limit_holds_over_kills_at_any_moment() {
    const LIMIT: usize = 60;
    const KILLS: usize = 6;
    for concurrency in [512, 2] {
        let (user, job) = (User::new(), Job::new(200));
        let run = || {
            let mut command = user.run(&job, &format!("{LIMIT} per 1h"));
            command.args(["--concurrency", &concurrency.to_string()]);
            command
        };
        for kill in 1..=KILLS {
            let (before, mut killed) = (user.server.count(), start(&mut run()));
            // Ever later. One for which the others have left nothing ends by itself.
            while user.server.count() < before + kill && killed.try_wait().expect("it is ours").is_none() {
                std::thread::yield_now();
            }
            killed.kill().expect("it runs");
            killed.ended();
        }
        let (_, log) = finish(&mut run());
        let sent = user.server.count();
        assert!(sent <= LIMIT, "{sent} of {LIMIT}, {concurrency} at once: {log}");
        // What was on its way at a kill counts, for it may have arrived; and what leaves while the counts are written, twice.
        assert!(sent + KILLS * 2 * concurrency >= LIMIT, "{sent} of {LIMIT}, {concurrency} at once: {log}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn jobs_at_once_share_a_limit() {
    let user = User::new();
    let jobs = [Job::new(20), Job::new(20)];
    let pids = std::cell::Cell::new([0, 0]);
    let run = |limit: &str| {
        let running = jobs.iter().map(|job| {
            let mut command = user.patient(job, limit, "3s");
            command.stderr(Stdio::piped()).spawn().expect("the binary runs")
        });
        let running: Vec<_> = running.collect();
        pids.set([running[0].id(), running[1].id()]);
        let ends = running.into_iter().map(|job| job.ended_with_output());
        ends.map(|end| (end.status.code(), String::from_utf8_lossy(&end.stderr).into_owned())).collect::<Vec<_>>()
    };
    let ends = run("5 per 1h");
    assert_eq!(user.server.count(), 5, "{ends:?}");
    assert!(ends.iter().all(|(code, _)| *code == Some(3)), "{ends:?}");
    let shares = ", both without a key: both share the configured limits";
    assert!(ends.iter().any(|(_, log)| log.contains(shares)), "{ends:?}");
    for ((_, log), other) in ends.iter().zip(pids.get().into_iter().rev()) {
        assert!(!log.contains(shares) || log.contains(&format!("process {other} is calling ")), "{other}: {ends:?}");
    }
    assert!(ends.iter().all(|(_, log)| !log.contains("may exceed")), "{ends:?}");
    // Ordinary use: both end soon.
    let ends = run("600 per 1m");
    assert!(ends.iter().all(|(code, _)| *code == Some(0)), "{ends:?}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_file_that_cannot_be_read_is_set_aside() {
    for text in ["no JSON", "", "{\"version\": 2, \"runs\": []}", "{\"version\": 1, \"runs\": [{\"run\": \"a\"}]}"] {
        let user = User::new();
        assert_eq!(user.sends("5 per 1h").0, 5);
        let file = user.ledger().expect("a file");
        #[cfg(unix)]
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&file.metadata().expect("there").permissions()) & 0o777,
            0o600
        );
        std::fs::write(&file, text).expect("writable");
        let (sent, log) = user.sends("5 per 1h");
        assert_eq!((sent, log.matches("the file is kept as ").count()), (10, 1), "{text}: {log}");
        assert_eq!(std::fs::read_to_string(file.with_extension("bad")).expect("set aside"), text);
        assert_eq!(user.counted(), 5);
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn without_a_folder_each_job_keeps_its_limit_and_says_so() {
    let user = User::new();
    std::fs::write(user.home.path(".local"), "no folder").expect("writable");
    let warning = "the configured limits hold for this job alone";
    let job = Job::new(20);
    for _ in 0..2 {
        let (code, log) = finish(&mut user.run(&job, "5 per 1h"));
        assert_eq!((code, user.server.count(), log.matches(warning).count()), (3, 5, 1), "its journal counts: {log}");
    }
    let (code, log) = finish(user.run(&Job::new(20), "5 per 1h").env_remove("HOME"));
    assert_eq!((code, user.server.count(), log.matches(warning).count()), (3, 10, 1), "{log}");
    let (code, log) = finish(Job::new(1).run(&user.server).env_remove("HOME"));
    assert!(code == 0 && !log.contains(warning), "without limits there is nothing to keep: {log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_waits_at_one_upstream_of_a_gateway_holds_up_no_other_with_the_same_key() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let upstream = |(name, limit): (&str, &str)| {
        format!("[upstream.{name}]\nbase_url = \"{}\"\nlimits = [\"{limit}\"]\n", server.url())
    };
    let config = [("one", "2 per 1h"), ("two", "6000 per 60s")].map(upstream).concat();
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let log = std::fs::File::create(job.path("log")).expect("writable");
    let gateway = Gateway::logging(job.paceline().args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]), log);
    let of_one: Vec<_> = (0..5)
        .map(|_| {
            let url = format!("{}/one/v1/things", gateway.url);
            std::thread::spawn(move || post(&url, "1d"))
        })
        .collect();
    server.wait_for(2);
    for _ in 0..5 {
        let (status, text) = gateway.post("/two/v1/things", "1m");
        assert_eq!(status, 200, "{text}");
    }
    let log = job.text("log");
    assert!(
        log.contains("the upstreams one and two call one host with one key: they share the configured limits"),
        "{log}"
    );
    assert!(!log.contains("another process"), "{log}");
    drop(gateway);
    drop(of_one);
}

#[test]
fn another_process_on_a_key_is_told_once_by_a_gateway_however_often_it_reads_its_configuration() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let start = |state: &str| {
        let log = std::fs::File::create(job.path(&format!("log-{state}"))).expect("writable");
        let mut command = job.paceline();
        command.args(["serve", "--listen", "127.0.0.1:0", "--base-url", &server.url(), "--state", state]);
        Gateway::logging(&mut command, log)
    };
    let (_first, second) = (start("first"), start("second"));
    for times in 1..4 {
        second.signal(Signal::HUP);
        while job.text("log-second").matches("the configuration was read again").count() < times {
            std::thread::yield_now();
        }
    }
    assert_eq!(job.text("log-second").matches("together they may exceed").count(), 1, "{}", job.text("log-second"));
}

#[test]
fn a_gateway_and_a_run_share_a_limit() {
    let user = User::new();
    assert_eq!(user.sends("5 per 1h").0, 5);
    let mut command = crate::serve::serve(&user.home, &user.server, &["--limit", "7 per 1h"]);
    let mut gateway = Gateway::start(&mut command);
    let post = || gateway.post("/generic/v1/things", "1s");
    let statuses = [post(), post(), post()].map(|(status, _)| status);
    assert_eq!((statuses, user.server.count()), ([200, 200, 429], 7));
    gateway.signal(Signal::TERM);
    gateway.ended();
    assert_eq!(user.sends("8 per 1h").0, 8, "and back");
}
