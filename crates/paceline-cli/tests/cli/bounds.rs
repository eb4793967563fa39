//! What a run may take, and how it goes on afterwards.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Job, Reply, Server, finish};

#[test]
fn max_items_begins_so_many_and_finishes_those() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-1", 0..2) => Reply::error(503, "oops"),
        _ => Reply::ok(),
    });
    let job = Job::new(10);
    let (code, log) = finish(job.run(&server).args(["--max-items", "3"]));
    assert_eq!(code, 3, "{log}");
    assert_eq!(server.by_item().into_keys().collect::<Vec<_>>(), ["item-0", "item-1", "item-2"]);
    let summary = job.summary();
    assert_eq!((&summary["succeeded"], &summary["stopped"]), (&3.into(), &"max_items".into()), "{log}");
    let waiting = |rows: &[serde_json::Value]| rows.iter().filter(|row| row["reason"] == "run_bound").count();
    assert_eq!(waiting(&job.lines("out.report.jsonl")), 7);
    let items = job.paceline().args(["stats", "--items", "--json"]).ended_with_output();
    let rows: Vec<_> =
        String::from_utf8_lossy(&items.stdout).lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(waiting(&rows), 7, "the journal remembers why");

    let (code, log) = finish(job.run(&server).args(["--max-items", "7"]));
    assert_eq!(code, 0, "as many as are left are no bound: {log}");
    assert_eq!(server.count(), 12);
    job.assert_adds_up(10);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn items_that_come_back_unsent_have_not_begun() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-0" | "item-1" if arrival.before == 0 => {
            Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 3)
        }
        _ => Reply::ok(),
    });
    let job = Job::new(12);
    let (code, log) = finish(job.run(&server).args(["--max-items", "5", "--concurrency", "2", "--pace", "fixed"]));
    assert_eq!(code, 3, "{log}");
    let summary = job.summary();
    assert_eq!((&summary["succeeded"], &summary["stopped"]), (&5.into(), &"max_items".into()), "{log}");
    assert_eq!((server.by_item().len(), server.count()), (5, 7), "{log}");
}

/// What has begun there waits for a person, and nothing else may begin.
#[test]
fn a_scope_that_is_stopped_ends_a_run_of_so_many_items() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/refused" => Reply::error(403, "forbidden"),
        _ => Reply::ok(),
    });
    let line =
        |n: usize, path| json!({"custom_id": format!("item-{n}"), "url": path, "body": {"item": format!("item-{n}")}});
    let lines: Vec<_> = (0..9).map(|n| line(n, if n < 3 { "/refused" } else { "/open" }).to_string()).collect();
    for items in ["1", "4"] {
        let job = Job::with_input(&(lines.join("\n") + "\n"));
        let flags = ["--scope", "endpoint", "--api-key-env", "KEY", "--concurrency", "1", "--max-items", items];
        let (code, log) = finish(job.run(&server).args(flags).env("KEY", "k"));
        assert_eq!((code, &job.summary()["stopped"]), (3, &"max_items".into()), "{log}");
        assert!(log.contains(" makes no more calls"), "{log}");
    }
}

#[test]
fn max_tokens_are_never_exceeded() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(40);
    // An answer says 5 tokens; before it is there a call counts with more.
    let (code, log) = finish(job.run(&server).args(["--max-tokens", "60"]));
    assert_eq!(code, 3, "{log}");
    let summary = job.summary();
    let used = summary["tokens_in"].as_u64().expect("a number") + summary["tokens_out"].as_u64().expect("a number");
    assert_eq!(used, 5 * server.count() as u64);
    assert!((45..=60).contains(&used), "{used}");
    assert_eq!((&summary["stopped"], &summary["abandoned"]), (&"max_tokens".into(), &0.into()));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 40), "{log}");
    job.assert_adds_up(40);
}

#[test]
fn after_max_duration_nothing_leaves_and_calls_in_flight_end() {
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(900)));
    let job = Job::new(10);
    let args = ["--max-duration", "600ms", "--concurrency", "2", "--pace", "fixed"];
    let (code, log) = finish(job.run(&server).args(args));
    assert_eq!(code, 3, "{log}");
    assert!(server.count() <= 2, "{}", server.count());
    let summary = job.summary();
    assert_eq!((&summary["stopped"], &summary["abandoned"]), (&"max_duration".into(), &0.into()), "{log}");
    assert_eq!(summary["succeeded"], server.count());
    job.assert_adds_up(10);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn an_interrupted_wait_ends_at_once_and_says_how_to_go_on() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let run = || {
        let mut command = job.run(&server);
        command.args(["--limit", "1 per 1h", "--max-wait", "2h"]).env("TZ", "CET-1").stderr(Stdio::piped());
        command
    };
    for expected in 1..=2 {
        let child = start_with_log(&mut run());
        server.wait_for(1);
        // The second run waits for an hour from its start; once its journal says so, it has nothing to do.
        wait_until_it_waits(&job);
        drop(Command::new("kill").args(["-TERM", &child.id().to_string()]).ended_with_output());
        let output = child.ended_with_output();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{log}");
        let again = format!("{} run in.jsonl -o out.jsonl", env!("CARGO_BIN_EXE_paceline"));
        assert!(log.contains(&format!("continue with: {again}")), "{log}");
        assert!(log.contains("--limit '1 per 1h' --max-wait 2h"), "{log}");
        assert_eq!((job.summary()["abandoned"].as_u64(), server.count()), (Some(0), 1), "run {expected}");
    }
    let args = ["--limit", "1 per 1h", "--max-wait", "1s"];
    let (code, log) = finish(job.run(&server).args(args).env("TZ", "CET-1"));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains(" UTC)") && log.contains("later than --max-wait allows"), "{log}");
}

fn start_with_log(command: &mut Command) -> std::process::Child {
    command.stdout(Stdio::null()).spawn().expect("the binary runs")
}

fn wait_until_it_waits(job: &Job) {
    loop {
        let stats = job.paceline().args(["stats", "--json"]).ended_with_output();
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap_or_default();
        if stats["stopped"].is_null() && stats["in_flight"] == 0 && stats["account"]["waiting"].as_u64() >= Some(1) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn bounds_of_nothing_are_refused() {
    let job = Job::new(1);
    for flag in ["--max-items", "--max-tokens", "--max-duration"] {
        let (code, log) = finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl", flag, "0"]));
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(flag), "{log}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn who_interrupts_again_does_not_wait_for_a_long_report() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(20_000);
    let mut run = job.run(&server);
    let mut child = start_with_log(run.args(["--limit", "1 per 1h", "--max-wait", "2h"]).stderr(Stdio::null()));
    server.wait_for(1);
    wait_until_it_waits(&job);
    // Until it ends: each is one too many, whatever it is doing.
    while child.try_wait().expect("a child").is_none() {
        drop(Command::new("kill").args(["-TERM", &child.id().to_string()]).ended_with_output());
    }
    assert_eq!(child.ended().code(), Some(3));
    assert!(!job.path("out.report.jsonl.new").exists());
    let rows = job.lines("out.report.jsonl").len();
    assert!(rows == 0 || rows == 19_999, "a part of {rows} rows");
    let stats = job.paceline().args(["stats", "--items", "--json"]).ended_with_output();
    assert_eq!(stats.stdout.iter().filter(|byte| **byte == b'\n').count(), 19_999);
}

#[test]
fn a_limit_on_tokens_holds_for_answers_without_a_bound() {
    let long = json!({"object": "chat.completion", "usage": {"prompt_tokens": 10, "completion_tokens": 490}});
    let server = Server::new(move |_| Reply::new(200, &long));
    let job = Job::new(20);
    let limited = |limit| {
        let mut run = job.run(&server);
        run.args(["--limit", limit, "--max-wait", "5s", "--overwrite"]);
        finish(&mut run)
    };
    let (code, log) = limited("1200 tokens per 1h");
    assert_eq!((code, server.count()), (3, 2), "500 each: {log}");
    assert!(log.contains("requests set no bound on them"), "{log}");
    let (code, log) = limited("100 requests per 1h");
    assert_eq!((code, server.count()), (0, 22), "{log}");
    assert!(!log.contains("set no bound"), "{log}");
}
