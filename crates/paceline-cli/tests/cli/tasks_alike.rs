//! A run that finds that everything fails alike, items that leave a store, and bare bodies.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_store::work::{NewItem, State};
use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Arrival, Reply, Server, finish};
use crate::tasks_run::{Ran, Store, ran};

fn numbered(count: usize) -> Store {
    let store = Store::new();
    let request = |n: usize| json!({"url": "/v1/x", "body": {"item": format!("item-{n}")}}).to_string();
    store.put((0..count).map(|n| NewItem::new(format!("item-{n}"), request(n))).collect());
    store
}

fn requests(store: &Store, server: &Server, flags: &[&str]) -> Ran {
    ran(store.command().args(["--http", "--base-url", &server.url(), "--concurrency", "4"]).args(flags))
}

fn commands(store: &Store, script: &str, flags: &[&str]) -> Ran {
    ran(store.command().args(["--concurrency", "4"]).args(flags).args(["--", "sh", "-c", script]))
}

fn states(store: &Store, count: usize, state: State) -> usize {
    (0..count).filter(|n| store.item(&format!("item-{n}")).state == state).count()
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn requests_that_are_all_refused_alike_stop_the_run_and_wait_again() {
    let server = Server::new(|_| Reply::error(404, "no_such_path"));
    let store = numbered(60);
    let Ran { code, summary, log } = requests(&store, &server, &[]);
    assert_eq!((code, &summary["stopped"], &summary["failed"]), (3, &json!("same_failure"), &json!(0)), "{log}");
    assert!((20..40).contains(&server.count()), "{}", server.count());
    let told =
        "the first 20 items all failed the same way, and wait (none is marked as failed): 404: it is no_such_path";
    assert!(log.contains(told) && log.contains("correct the requests, or let them fail"), "{log}");
    assert_eq!(states(&store, 60, State::Waiting) + states(&store, 60, State::Deferred), 60);
    let Ran { code, summary, .. } = requests(&store, &server, &["--stop-after-same", "0"]);
    assert_eq!((code, &summary["failed"]), (1, &json!(60)));
}

/// A ban that is told by a page to log in, and begins after a while.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn answers_that_turn_into_login_pages_keep_what_is_left() {
    for (scope, method) in [(&[][..], "GET"), (&["--scope", "host"], "GET"), (&[], "POST")] {
        let calls = AtomicUsize::new(0);
        let server = Server::new(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0..10 => Reply::ok(),
            _ => Reply::text(200, "text/html", "log in"),
        });
        // What is refused counts once it is recorded. Meanwhile calls go on: where a sync takes seconds, a dozen more.
        let store = Store::in_memory();
        let request = json!({"method": method, "url": "/v1/x", "body": null}).to_string();
        store.put((0..60).map(|n| NewItem::new(format!("item-{n}"), request.clone())).collect());
        // One at a time: no failure is recorded before an earlier success.
        let flags =
            ["--http", "--base-url", &server.url(), "--concurrency", "1", "--expect", "json", "--max-retries", "0"];
        let Ran { code, summary, log } = ran(store.command().args(flags).args(scope));
        assert_eq!(
            (code, &summary["succeeded"], &summary["stopped"]),
            (3, &json!(10), &json!("same_failure")),
            "{log}"
        );
        let asked = server.count() - 10;
        assert!((20..50).contains(&asked), "{asked}: {log}");
        // What was posted may have been done.
        let (failed, told) = match method {
            "GET" => (0, " items all failed the same way, and wait (none is marked as failed): "),
            _ => (asked, " items all failed the same way (they may have been done, so they stay failed): "),
        };
        assert_eq!(summary["failed"], failed, "{log}");
        let count = log.split_once(told).and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        assert!(count.is_some_and(|count: usize| (20..=asked).contains(&count)), "{log}");
        assert!(log.contains("the host may keep this machine out for a while"), "{log}");
    }
}

/// The pages of one customer are gone. Nothing of the other has been due yet.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn requests_of_one_group_that_are_all_refused_alike_stop_that_group_alone() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/gone" => Reply::error(410, "gone"),
        _ => Reply::ok(),
    });
    let store = Store::new();
    let item = |group: &str, path: &str, n: usize, priority| NewItem {
        group: group.into(),
        priority,
        ..NewItem::new(format!("{group}-{n}"), json!({"url": path, "body": {"item": n}}).to_string())
    };
    let gone = (0..40).map(|n| item("acme", "/gone", n, 5));
    store.put(gone.chain((0..30).map(|n| item("zeta", "/there", n, 0))).collect());
    let Ran { code, summary, log } = requests(&store, &server, &[]);
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(30), &json!(0)), "{log}");
    assert!(
        log.contains("the group is stopped, and its items wait: the first 20 items all failed the same way"),
        "{log}"
    );
    assert!(log.contains("group=\"acme\"") && !log.contains("stopping:"), "{log}");
    let (_, text) = tasks(&store, "work.db", &["report"]);
    assert!(text.contains("stopped: group acme: the first 20 items all failed the same way"), "{text}");
    assert_eq!(summary["stopped"], "same_failure");
    let (_, report) = tasks(&store, "work.db", &["report", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    for groups in [&summary["groups"], &report["groups"]] {
        assert_eq!((&groups[0]["name"], &groups[0]["state"]), (&json!("acme"), &json!("stopped")), "{log}");
    }
}

/// The model of one group is forbidden, which stops nothing else; then the key is refused.
#[test]
fn the_reason_of_a_stop_is_of_one_answer() {
    let server =
        Server::new(|arrival| match serde_json::from_slice::<Value>(&arrival.body).expect("JSON")["model"].as_str() {
            Some("ma") => Reply::error(403, "not_for_you"),
            _ => Reply::error(401, "bad_key"),
        });
    let store = Store::new();
    let item = |group: &str, model: &str, priority| NewItem {
        group: group.into(),
        priority,
        ..NewItem::new(format!("{group}-1"), json!({"url": "/v1/x", "body": {"model": model}}).to_string())
    };
    store.put(vec![item("forbidden", "ma", 2), item("refused", "mb", 1), item("later", "mc", 0)]);
    let mut command = store.command();
    command.args(["--http", "--base-url", &server.url(), "--api-key-env", "KEY", "--upstream", "openai"]);
    let Ran { code, log, summary } = ran(command.args(["--concurrency", "1"]).env("KEY", "k"));
    assert_eq!((code, server.count()), (3, 2), "{log}");
    let groups = summary["groups"].as_array().expect("a list");
    let reason = |name: &str| {
        groups.iter().find(|group| group["name"] == name).and_then(|group| group["reason"].as_str()).expect("a reason")
    };
    assert!(reason("forbidden").contains("not_for_you") && reason("forbidden").contains("status 403"), "{log}");
    for group in ["refused", "later"] {
        let of_one = reason(group).contains("bad_key (the answer to item refused-1 of group refused, status 401)");
        assert!(of_one, "{}", reason(group));
    }
}

#[test]
fn the_stop_of_all_groups_by_a_bad_key_names_the_key_and_is_told_once() {
    let server = Server::new(|_| Reply::error(401, "bad_key"));
    let store = Store::new();
    let item = |group: &str| NewItem {
        group: group.into(),
        ..NewItem::new(format!("{group}-1"), json!({"url": "/v1/x", "body": {}}).to_string())
    };
    store.put(vec![item("acme"), item("zeta")]);
    let flags = ["--upstream", "openai", "--concurrency", "1"];
    let mut command = store.command();
    command.args(["--http", "--base-url", &server.url(), "--api-key-env", "HOOK_KEY"]).args(flags).env("HOOK_KEY", "k");
    let Ran { code, log, .. } = ran(&mut command);
    assert_eq!((code, server.count()), (3, 1), "{log}");
    let stops: Vec<&str> = log.lines().filter(|line| line.contains("stopped, and the")).collect();
    assert!(stops.len() == 1 && stops[0].contains("all groups are stopped"), "{log}");
    assert!(!stops[0].contains("group=\""), "the group of the answer may be another: {log}");
    assert!(stops[0].contains("the key in HOOK_KEY is refused: "), "{log}");
    let whose = ["acme", "zeta"].map(|group| format!("the answer to item {group}-1 of group {group}, status 401"));
    assert!(whose.iter().any(|whose| stops[0].contains(whose)), "{log}");
    let (_, text) = tasks(&store, "work.db", &["report"]);
    assert_eq!(text.matches("stopped: 2 groups: the key in HOOK_KEY is refused: ").count(), 1, "{text}");
}

#[test]
fn calls_that_no_server_took_are_no_tries() {
    let store = numbered(1);
    let mut command = store.command();
    command.args(["--http", "--base-url", "http://127.0.0.1:1", "--max-wait", "1s", "-v"]);
    let Ran { code, summary, log } = ran(&mut command);
    assert!(
        log.contains("(no server took the call, so it does not count as a try)") && !log.contains("try 1"),
        "{log}"
    );
    assert_eq!((code, &summary["calls"]), (3, &summary["uncounted"]), "{log}");
}

#[test]
fn commands_that_only_fail_alike_stop_the_run() {
    let store = numbered(60);
    let Ran { code, summary, log } =
        commands(&store, "echo no module named x >&2; exit 1", &["--stop-after-same", "5"]);
    assert_eq!((code, &summary["stopped"], &summary["failed"]), (3, &json!("same_failure"), &json!(0)), "{log}");
    let calls = summary["calls"].as_u64().expect("a number");
    // Five items, each tried at most four times, and those in flight.
    assert!((5..25).contains(&calls), "{calls} tries");
    assert!(
        log.contains("the first 5 items all failed the same way, and wait (none is marked as failed): exit code 1: no module named x; correct the command"),
        "{log}"
    );
    assert_eq!(states(&store, 60, State::Waiting) + states(&store, 60, State::Deferred), 60);
}

/// As a host is.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_group_whose_commands_failed_alike_is_tested_by_one_command_of_each_later_run() {
    let store = Store::new();
    let item = |group: &str, n: usize, priority| NewItem {
        group: group.into(),
        priority,
        ..NewItem::new(format!("{group}-{n}"), "1")
    };
    store.put((0..30).map(|n| item("acme", n, 5)).chain((0..3).map(|n| item("zeta", n, 0))).collect());
    let script = "test $PACELINE_GROUP = zeta || { echo $PACELINE_KEY >> log; test -e mended; }";
    let flags = ["--stop-after-same", "5", "--max-retries", "0"];
    let begun = || store.job.text("log").lines().count();
    let Ran { code, summary, log } = commands(&store, script, &flags);
    assert_eq!((code, &summary["stopped"], &summary["succeeded"]), (3, &json!("same_failure"), &json!(3)), "{log}");
    assert!((5..30).contains(&begun()), "{}: {log}", begun());
    for _ in 0..2 {
        let before = begun();
        let Ran { code, summary, log } = commands(&store, script, &flags);
        assert_eq!((code, &summary["stopped"], &summary["failed"]), (3, &json!("same_failure"), &json!(0)), "{log}");
        assert_eq!(begun() - before, 1, "{log}");
        assert!(log.contains("acme was stopped (the first 5 items all failed the same way"), "{log}");
        let (_, text) = tasks(&store, "work.db", &["report"]);
        assert!(
            text.contains("stopped: acme: the first 5 items")
                && text.contains("is tested by one call when a run starts"),
            "{text}"
        );
    }
    std::fs::write(store.job.path("mended"), "").expect("writable");
    let Ran { code, summary, log } = commands(&store, script, &flags);
    assert_eq!((code, &summary["succeeded"]), (0, &json!(33)), "{log}");
}

/// The last line of standard error is kept, and may repeat a key.
#[test]
fn a_key_that_a_command_writes_is_kept_nowhere() {
    let store = numbered(1);
    let script = "echo wrong key sk-abcdefghijklmnop >&2; exit 65";
    let Ran { code, log, .. } = commands(&store, script, &[]);
    assert!(code == 1 && log.contains("wrong key [key]") && !log.contains("sk-abcdef"), "{log}");
    let last = store.item("item-0").last.expect("a failure").message;
    assert_eq!(last, "exit code 65: wrong key [key]");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_fares_otherwise_or_may_do_better_later_stops_nothing() {
    let quick = ["--stop-after-same", "5", "--max-retries", "1"];
    for script in [
        // Exit codes that differ; a moment that is bad, in two ways to say so.
        "exit $((PACELINE_ATTEMPT + $(echo $PACELINE_KEY | cut -c6-) % 2))",
        "test $PACELINE_ATTEMPT = 2 || exit 75",
        r#"test $PACELINE_ATTEMPT = 2 || { echo '{"class":"transient"}'; exit 1; }"#,
    ] {
        let Ran { summary, log, .. } = commands(&numbered(12), script, &quick);
        assert_eq!((&summary["stopped"], &summary["deferred"]), (&Value::Null, &json!(0)), "{script}: {log}");
    }
    // No more items than are looked at.
    let Ran { code, .. } = commands(&numbered(5), "exit 1", &quick);
    assert_eq!(code, 1);
}

/// `paceline tasks COMMAND` on the store, and what it prints.
pub(crate) fn tasks(store: &Store, file: &str, words: &[&str]) -> (i32, String) {
    let mut command: Command = store.job.paceline();
    let output = command.args(["tasks", words[0], "--store", file]).args(&words[1..]).ended_with_output();
    let text = String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().expect("a code"), text)
}

#[test]
fn a_retry_tells_of_a_group_that_is_held_all_the_same() {
    let store = numbered(3);
    let told = r#"echo '{"class":"throttled","retry_after_s":86400,"message":"slow down"}'; exit 1"#;
    let Ran { code, log, .. } = commands(&store, told, &["--max-wait", "1s"]);
    assert_eq!(code, 3, "{log}");
    let (code, text) = tasks(&store, "work.db", &["retry", "--all"]);
    assert!(code == 0 && text.starts_with("3 items are due again\nstill held: group default until "), "{text}");
    assert!(text.ends_with(" (sh: slow down); --open default tries its items all the same\n"), "{text}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn items_that_ended_long_ago_are_removed_and_the_file_shrinks() {
    let store = Store::new();
    let body = "x".repeat(4_000);
    store.put((0..500).map(|n| NewItem::new(format!("item-{n}"), json!(body).to_string())).collect());
    let Ran { code, .. } = commands(&store, "test $PACELINE_KEY != item-3", &["--max-retries", "0"]);
    assert_eq!(code, 1);
    let size = || std::fs::metadata(store.job.path("work.db")).expect("the store").len();
    let before = size();
    let (code, text) = tasks(&store, "work.db", &["prune", "--older-than", "30d"]);
    assert_eq!((code, text.as_str()), (0, "nothing to remove: no such item ended so long ago\n"));
    let (code, text) = tasks(&store, "work.db", &["prune", "--older-than", "0", "--state", "succeeded"]);
    assert_eq!((code, text.as_str()), (0, "499 items removed\n"));
    assert!(size() < before / 10, "{} of {before} bytes", size());
    assert_eq!(store.item("item-3").state, State::Failed);
    let (code, text) = tasks(&store, "work.db", &["prune", "--older-than", "0", "--state", "waiting"]);
    assert!(code == 2 && text.contains("expected one of succeeded, failed, skipped, cancelled"), "{text}");
    let (_, text) = tasks(&store, "work.db", &["prune", "--older-than", "0", "--json"]);
    assert_eq!(text, "{\"removed\":1,\"forgotten\":0,\"under_way\":0}\n");
    let add = || tasks(&store, "work.db", &["add", "--key", "item-3", "{}"]).1;
    assert!(add().contains("already"), "{}", add());
    let (_, text) = tasks(&store, "work.db", &["prune", "--older-than", "0", "--forget-keys"]);
    assert_eq!(text, "0 items removed, and 500 keys of items that were removed before forgotten\n");
    assert!(!add().contains("already"));
}

#[test]
fn exported_items_are_lines_that_add_takes() {
    let store = Store::new();
    let created = r#""created":"2026-01-02T03:04:05.678Z""#;
    let lines = [
        format!(r#"{{"key":"a","payload":{{"n":1.0}},"priority":-3,"deadline":7200.0,"group":"g",{created}}}"#),
        format!(r#"{{"key":"b","payload":"two","group":"default",{created}}}"#),
        format!(r#"{{"key":"c","payload":[3],"group":"default",{created},"may_be_done":true}}"#),
    ];
    std::fs::write(store.job.path("items.jsonl"), lines.join("\n")).expect("writable");
    assert_eq!(tasks(&store, "work.db", &["add", "--from", "items.jsonl"]).0, 0);
    let (_, all) = tasks(&store, "work.db", &["export"]);
    assert_eq!(all, lines.join("\n") + "\n");
    commands(&store, "test $PACELINE_KEY = b", &["--max-retries", "0"]);
    let (code, failed) = tasks(&store, "work.db", &["export", "--state", "failed"]);
    // It has an outcome since.
    let known = lines[2].replace(",\"may_be_done\":true", "");
    assert_eq!((code, failed.lines().collect::<Vec<_>>()), (0, vec![&*lines[0], &*known]));
    std::fs::write(store.job.path("failed.jsonl"), &failed).expect("writable");
    let (code, text) = tasks(&store, "other.db", &["add", "--from", "failed.jsonl"]);
    assert_eq!((code, text.as_str()), (0, "2 added\n"));
    assert_eq!(tasks(&store, "other.db", &["export"]).1, failed);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_charge_is_not_made_twice_in_another_store() {
    const KEYED: [&str; 4] = ["--idempotency-header", "Key", "--max-retries", "0"];
    let silent = |arrival: &Arrival| if arrival.item.starts_with("lost") { Reply::ok().never() } else { Reply::ok() };
    let (server, store) = (Server::new(silent), Store::new());
    let run = |file: &str, flags: &[&str]| {
        let mut command = store.job.paceline();
        command.args(["tasks", "run", "--store", file, "--http", "--base-url", &server.url(), "--timeout", "500ms"]);
        finish(command.args(flags))
    };
    for (group, flags) in [("plain", &[][..]), ("keyed", &KEYED)] {
        let charge = |what: &str| {
            // With blanks, as a program may add it.
            let payload = format!("{{ \"url\": \"/charges\",\n \"body\": {{\"item\": \"{what} {group}\"}} }}");
            NewItem { group: group.to_owned(), ..NewItem::new(format!("{what} {group}"), payload) }
        };
        store.put(["lost", "made"].map(charge).to_vec());
        assert_eq!(run("work.db", flags).0, 1);
        let (_, exported) = tasks(&store, "work.db", &["export", "--group", group]);
        std::fs::write(store.job.path("items.jsonl"), &exported).expect("writable");
        let file = format!("{group}.db");
        assert_eq!(tasks(&store, &file, &["add", "--from", "items.jsonl"]), (0, "2 added\n".to_owned()), "{exported}");
        let (code, log) = run(&file, flags);
        assert_eq!(
            (code, log.matches("unknown_outcome_held item=").count()),
            (1, if flags.is_empty() { 2 } else { 0 }),
            "{log}"
        );
    }
    let calls = server.arrivals();
    let keys = |item: String| calls.iter().filter(move |call| call.item == item).map(|call| call.headers.get("key"));
    for what in ["lost", "made"] {
        assert_eq!(keys(format!("{what} plain")).count(), 1, "the other store asks a person");
        let keyed: Vec<_> = keys(format!("{what} keyed")).collect();
        assert_eq!(
            (keyed.len(), keyed[0].is_some(), keyed[0]),
            (2, true, keyed[1]),
            "the API knows that it is the same"
        );
    }
}

#[test]
fn bare_bodies_go_to_the_endpoint() {
    let server = Server::new(|_| Reply::ok());
    let store = Store::new();
    store.add("bare", &json!({"item": "bare", "text": "hello"}));
    store.add("whole", &json!({"url": "/v2/own", "body": {"item": "whole"}}));
    let Ran { code, log, .. } = requests(&store, &server, &["--endpoint", "/v2/score"]);
    assert_eq!(code, 0, "{log}");
    let mut paths: Vec<_> = server.arrivals().into_iter().map(|arrival| (arrival.item, arrival.path)).collect();
    paths.sort();
    assert_eq!(paths, [("bare".to_owned(), "/v2/score".to_owned()), ("whole".to_owned(), "/v2/own".to_owned())]);
    for (flags, words) in [
        (&["--http", "--base-url", "http://127.0.0.1:9", "--endpoint", "no path"][..], "--endpoint"),
        (&["--endpoint", "/x", "--", "true"], "--endpoint applies to requests only"),
    ] {
        let output = store.command().args(flags).ended_with_output();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{log}");
        assert!(log.contains(words), "{log}");
    }
}

/// A twentieth of all calls meet with a failure of the server, and go again.
#[test]
fn retries_are_a_line_for_all_and_one_for_each_with_v() {
    let failing = || {
        Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
            ("item-7" | "item-27" | "item-47", 0) => Reply::error(503, "busy"),
            _ => Reply::ok(),
        })
    };
    for (flags, own) in [(&[][..], 0), (&["-v"], 3)] {
        let Ran { code, summary, log } = requests(&numbered(60), &failing(), flags);
        assert_eq!((code, &summary["resends"]), (0, &json!(3)), "{log}");
        let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
        assert_eq!(lines("server overloaded (try 1 of at most 4), next try in "), own, "{log}");
        let again = ": server overloaded; the last one: it is busy (-v shows each)";
        assert!((1..=2).contains(&lines(again)), "at once, and at the end: {log}");
        let told = log.lines().filter(|line| line.contains(again)).filter_map(|line| {
            line.split_once(" call").and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u32>().ok())
        });
        assert_eq!(told.sum::<u32>(), 3, "{log}");
    }
    let Ran { code, log, .. } = commands(&numbered(1), "test $PACELINE_ATTEMPT = 2", &[]);
    assert_eq!(code, 0, "{log}");
    let told = ": transient failure; the last one: exit code 1 (-v shows each)";
    assert!(log.contains("1 command failed and ") && log.contains(told) && !log.contains("next try in "), "{log}");
}
