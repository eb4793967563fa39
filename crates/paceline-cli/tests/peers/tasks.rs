//! Several `tasks run` on one Postgres: each item is done once, by whichever run; and in a fleet on one Redis.

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::counting::Counting;
use super::faked_clock::Clock;
use crate::bounded::{BoundedOutput, TestBound};
use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;

fn summary_of(output: &Output) -> Value {
    let [log, summary] = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}: {log}{summary}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn four_workers_share_what_there_is_and_do_nothing_twice() {
    let _bound = TestBound::new();
    const ITEMS: usize = 400;
    let postgres = PostgresServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let (items, done) = (folder.path().join("items.jsonl"), folder.path().join("done"));
    let lines: String = (0..ITEMS).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": n}))).collect();
    std::fs::write(&items, lines).expect("writable");
    let items = items.display().to_string();
    for expected in [
        json!({"added": ITEMS, "known": {}, "differing": 0, "key": null}),
        json!({"added": 0, "known": {"waiting": ITEMS}, "differing": 0, "key": null}),
    ] {
        let output = postgres.command(&["tasks", "add"], &["--from", &items, "--json"]).ended_with_output();
        assert_eq!(summary_of(&output), expected);
    }
    // Every item whose name ends in 7 fails once, and is tried again by the run that is free then.
    let script = "case $PACELINE_KEY.$PACELINE_ATTEMPT in *7.1) exit 75;; esac; echo $PACELINE_KEY >> \"$1\"";
    let done_path = done.display().to_string();
    let flags = ["--first-delay", "10ms", "--concurrency", "2", "--json", "--", "sh", "-c", script, "work", &done_path];
    let start = |_| postgres.command(&["tasks", "run"], &flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let workers: Vec<Child> = (0..4).map(start).collect::<Result<_, _>>().expect("the binary runs");
    let summaries: Vec<Value> = workers.into_iter().map(|worker| summary_of(&worker.ended_with_output())).collect();

    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for key in std::fs::read_to_string(done).expect("some are done").lines() {
        *times.entry(key.to_owned()).or_default() += 1;
    }
    assert!(times.len() == ITEMS && times.values().all(|times| *times == 1), "{times:?}");
    let calls: u64 = summaries.iter().filter_map(|summary| summary["calls"].as_u64()).sum();
    assert_eq!(calls as usize, ITEMS + ITEMS / 10, "{summaries:?}");
    let report = summary_of(&postgres.command(&["tasks", "report"], &["--json"]).ended_with_output());
    assert_eq!((&report["status"], &report["succeeded"]), (&"SUCCESS".into(), &ITEMS.into()));
    assert_eq!((&report["calls"], &report["resends"]), (&calls.into(), &(ITEMS / 10).into()));
    assert_eq!(report["items"].as_array().map(Vec::len), Some(ITEMS / 10), "those that were tried twice");
}

/// Items are added, sent, looked at and sent for again on a machine whose clock is an hour ahead, then as far behind.
#[test]
fn where_a_store_is_shared_its_database_alone_says_what_time_it_is() {
    let _bound = TestBound::new();
    let (postgres, clock) = (PostgresServer::start(), Clock::new());
    let tasks = |word: &str, flags: &[&str]| {
        let mut command = postgres.command(&["tasks", word], flags);
        let output = command.envs(clock.environment()).ended_with_output();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{word}: {}: {log}{printed}", output.status);
        printed
    };
    let json = |printed: String| serde_json::from_str::<Value>(&printed).unwrap_or_else(|_| panic!("{printed}"));
    for offset in ["+1h", "-1h"] {
        clock.shift(offset);
        let [soon, later, file] = ["soon", "later", "file"].map(|key| format!("{key} {offset}"));
        tasks("add", &["--key", &soon, "--not-before", "10ms", "1"]);
        tasks("add", &["--key", &later, "--not-before", "30m", "1"]);
        let lines = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&lines, json!({"key": file, "payload": 1, "not_before": "10ms"}).to_string()).expect("writable");
        tasks("add", &["--from", &lines.path().display().to_string()]);
        let summary = json(tasks("run", &["--max-wait", "10s", "--json", "--", "true"]));
        assert_eq!((&summary["calls"], &summary["stopped"]), (&json!(2), &json!("max_wait")), "{offset}: {summary}");
        let reasons = &summary["reasons"]["deferred"];
        assert_eq!(reasons, &json!({"not_before": summary["deferred"]}), "{offset}: what is said at its end");
        let listed: Vec<Value> = tasks("list", &["--state", "waiting", "--json"])
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert!(listed.iter().all(|item| item["reason"] == "not_before"), "{offset}: {listed:?}");
        let exported = tasks("export", &["--state", "waiting"]);
        assert!(exported.lines().all(|line| line.contains("not_before")), "{offset}: {exported}");
        let again = tasks("retry", &["--again", "--all", "--since", "10m", "--json"]);
        assert_eq!(json(again)["changed"], json!(2), "{offset}: those that have just succeeded");
        tasks("cancel", &[&soon, &file]);
        tasks("prune", &["--older-than", "0"]);
    }
}

/// They take what they can get at once, and leave no request behind that says how much they want.
#[test]
fn items_of_two_stores_share_a_limit_through_a_fleet() {
    let _bound = TestBound::new();
    const ITEMS: usize = 40;
    let (redis, counting) = (RedisServer::start(&[]), Counting::start(Duration::from_millis(5)));
    let (url, base_url) = (redis.url(), format!("http://{}/v1", counting.address()));
    let folder = tempfile::tempdir().expect("a folder");
    let request = json!({"url": "/v1/chat/completions", "body": {"model": "m", "messages": []}});
    let lines: String =
        (0..ITEMS).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": request}))).collect();
    std::fs::write(folder.path().join("items.jsonl"), lines).expect("writable");
    let tasks = |word: &str, store: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.current_dir(&folder).args(["tasks", word, "--store", store, "--http", "--json"]).args(flags);
        command.env("OPENAI_API_KEY", "sk-not-a-key").env("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", "3s");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let stores = ["one.db", "two.db"];
    for store in stores {
        summary_of(&tasks("add", store, &["--from", "items.jsonl"]).ended_with_output());
    }
    let flags =
        ["--upstream", "openai", "--base-url", &base_url, "--limit", "40 per 2s", "--fleet", &url, "--max-wait", "30s"];
    for worker in stores.map(|store| tasks("run", store, &flags)) {
        let summary = summary_of(&worker.ended_with_output());
        assert_eq!((&summary["status"], &summary["succeeded"]), (&json!("SUCCESS"), &json!(ITEMS)), "{summary}");
    }
    assert_eq!(counting.arrivals(), 2 * ITEMS as u64);
    assert!(counting.worst(Duration::from_millis(1_700)) <= 40, "{}", counting.worst(Duration::from_millis(1_700)));
}
