//! Looking at a job from outside.

use std::collections::BTreeSet;
use std::io::{BufReader, Read as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::bounded::{Bounded, BoundedOutput, read_line, reading};
use crate::support::{Job, Reply, Server, finish, start};
use crate::tasks_run::until;

fn output(command: &mut Command) -> String {
    let output = command.ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn fails_in_parts(arrival: &crate::support::Arrival) -> Reply {
    match (arrival.item.as_str(), arrival.before) {
        ("item-1", _) => Reply::error(400, "never"),
        ("item-2", 0) => Reply::error(503, "oops"),
        ("item-3", 0) => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 20),
        _ => Reply::ok(),
    }
}

#[test]
fn the_address_of_a_gateway_is_told_apart_from_a_journal() {
    let mut stats = Command::new(env!("CARGO_BIN_EXE_paceline"));
    let output = stats.args(["stats", "http://127.0.0.1:9"]).ended_with_output();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("a gateway has no journal: `paceline top ADDRESS`"), "{log}");
}

/// Forty paths that are paced by themselves are forty rows: those in trouble first, and none of them behind "and 10 more".
#[test]
fn each_host_has_a_row_and_those_in_trouble_come_first() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/17" => Reply::error(403, "banned"),
        "/23" => Reply::error(429, "slow down").with_header("retry-after", 7_200),
        "/31" => Reply::error(400, "never"),
        "/37" => Reply::text(400, "text/plain", ""),
        _ => Reply::ok(),
    });
    let line = |n: usize| {
        let id = format!("item-{n}");
        serde_json::json!({"custom_id": id, "method": "GET", "url": format!("/{}", n / 2 + 1)}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..80).map(line).collect::<String>());
    let rule = "[[upstream.generic.rule]]\nmatch = { status = 403 }\nclass = 'account'\n";
    std::fs::write(job.path("paceline.toml"), rule).expect("writable");
    let (code, log) = finish(job.run(&server).args(["--scope", "endpoint", "--max-wait", "10s"]));
    assert_eq!(code, 3, "{log}");
    let text = output(job.paceline().args(["stats", "--by-host"]));
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 41, "{text}");
    let words: Vec<_> = rows[0].split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["HOST", "SUCCEEDED", "FAILED NOT FINISHED", "CALLS", "WHY"], "the words of the summary");
    assert!(rows[1].starts_with("/17 ") && rows[1].contains("  stopped: "), "{text}");
    assert!(rows[2].starts_with("/23 ") && rows[2].contains("  held until "), "{text}");
    assert!(rows[3].starts_with("/31 ") && rows[3].contains("  last failure: 400 it is never"), "{text}");
    let figures = |row: &str| row.split_whitespace().skip(1).take(4).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(figures(rows[3]), ["0", "2", "0", "2"], "succeeded, failed, not finished, calls");
    assert!(rows[4].ends_with("  last failure: status 400 Bad Request"), "{text}");
    assert_eq!(figures(rows[5]), ["2", "0", "0", "2"], "{text}");
    let json = output(job.paceline().args(["stats", "--by-host", "--json"]));
    let first: Value = serde_json::from_str(json.lines().next().expect("a row")).expect("an object");
    let found = (first["trouble"].as_str(), first["left"].as_u64(), first["last_status"].as_u64());
    assert_eq!(found, (Some("stopped"), Some(2), Some(403)), "{first}");
}

#[test]
fn after_three_runs_each_item_has_one_row() {
    let server = Server::new(fails_in_parts);
    let job = Job::new(12);
    for _ in 0..3 {
        finish(job.run(&server).args(["--max-items", "3"]));
    }
    let rows: Vec<Value> = output(job.paceline().args(["stats", "--items", "--json"]))
        .lines()
        .map(|row| serde_json::from_str(row).expect("one object a line"))
        .collect();
    let ids: BTreeSet<&str> = rows.iter().filter_map(|row| row["custom_id"].as_str()).collect();
    assert_eq!((rows.len(), ids.len()), (6, 6), "one failed, two were sent again, three wait: {rows:?}");
    let report = job.lines("out.report.jsonl");
    assert_eq!(rows, report, "the same rows as in the report");

    let table = output(job.paceline().args(["stats", "--items"]));
    assert_eq!(table.lines().count(), 7, "{table}");
    let row = table.lines().find(|line| line.starts_with("item-1 ")).expect("a row");
    for word in ["failed", "400", "invalid", "never; it is never"] {
        assert!(row.contains(word), "{word} in {row}");
    }
}

/// One failed, one was sent again after a failure and one after a refusal; the second run takes what the first one left.
#[test]
fn the_figures_of_stats_are_those_of_the_summary() {
    let server = Server::new(fails_in_parts);
    let job = Job::new(12);
    finish(job.run(&server).args(["--max-items", "6"]));
    let (_, log) = finish(&mut job.run(&server));
    let told: Value = serde_json::from_str(&output(job.paceline().args(["stats", "--json"]))).expect("an object");
    let [input, succeeded, failed, calls, resends, retries, throttled, tokens_in, tokens_out] =
        ["input", "succeeded", "failed", "calls", "resends", "retries", "throttled", "tokens_in", "tokens_out"]
            .map(|key| told[key].as_u64().unwrap_or_else(|| panic!("{key} of {told}")));
    for part in [
        format!("PARTIAL  {input} items: {succeeded} succeeded, {failed} failed, 0 skipped, 0 not finished\n"),
        format!("  {calls} calls, 6 of them in this run: {resends} were repeats, {retries} of them after an error; "),
        format!("of all calls {throttled} rate-limited; "),
        format!("\n  {tokens_in} tokens in, {tokens_out} out\n"),
    ] {
        assert!(log.contains(&part), "{part} in {log}");
    }
    assert_eq!(calls, server.count() as u64);
}

#[test]
fn the_history_adds_up_to_the_totals() {
    let server = Server::new(fails_in_parts);
    let job = Job::new(12);
    finish(job.run(&server).args(["--max-items", "6"]));
    finish(&mut job.run(&server));
    let csv = output(job.paceline().args(["stats", "--history"]));
    assert!(csv.starts_with("minute,sends,successes,throttled,"), "{csv}");
    let minutes: Vec<Value> =
        serde_json::from_str(&output(job.paceline().args(["stats", "--history", "--json"]))).expect("an array");
    assert_eq!(minutes.len(), csv.lines().count() - 1);
    let sum = |key: &str| minutes.iter().filter_map(|minute| minute[key].as_u64()).sum::<u64>();
    let totals = ["sends", "successes", "throttled", "resends", "tokens_in", "tokens_out"].map(sum);
    assert_eq!(totals, [server.count() as u64, 11, 1, 2, 33, 22]);
    let delayed = minutes.iter().find(|minute| minute["delay_max_ms"].is_u64()).expect("two delays");
    assert!(delayed["delay_max_ms"].as_u64() >= Some(20), "{delayed}");
    assert!(minutes.iter().all(|minute| minute["limit_of"] == "learnt calls per minute"), "{minutes:?}");
}

#[test]
fn the_minute_that_is_under_way_has_a_line_and_is_marked() {
    let server = Server::new(|_| Reply::ok().never());
    let job = Job::new(1);
    let mut running = start(&mut job.run(&server));
    server.wait_for(1);
    let csv = output(job.paceline().args(["stats", "--history"]));
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines[0].ends_with(",limit_of,over") && lines[1].ends_with(",false"), "{csv}");
    let json = output(job.paceline().args(["stats", "--history", "--json"]));
    let minutes: Vec<Value> = serde_json::from_str(&json).expect("an array");
    let [minute] = &minutes[..] else { panic!("{json}") };
    assert_eq!((&minute["over"], &minute["sends"]), (&Value::Bool(false), &0.into()), "{minute}");
    running.kill().expect("it runs");
    running.ended();
    let json = output(job.paceline().args(["stats", "--history", "--json"]));
    assert_eq!(json.trim(), "[]", "nothing has happened, and nothing works on it");
}

#[test]
fn what_was_learnt_about_the_limit_is_told_by_stats_and_summary() {
    let server = Server::new(|arrival| match arrival.before {
        0 if arrival.item == "item-9" => Reply::error(429, "rate_limit_exceeded"),
        _ => Reply::ok(),
    });
    let job = Job::new(12);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    let learnt = log.lines().find(|line| line.contains("estimated limit about")).expect("a line of the summary");
    let stats: Value = serde_json::from_str(&output(job.paceline().args(["stats", "--json"]))).expect("JSON");
    for belief in [&stats["scopes"][0]["belief"], &job.summary()["scopes"][0]["belief"]] {
        let text = belief["text"].as_str().expect("a text");
        assert!(text.starts_with("estimated limit about ") && text.contains("/s (last refusal "), "{belief}");
        let figures = ["rate", "refused_ago_s", "refused_rate"].map(|key| belief[key].as_f64());
        assert!(figures.iter().all(|figure| figure.is_some_and(|figure| figure >= 0.0)), "{belief}");
        assert_eq!((belief["cap"].is_null(), &belief["gate"]), (true, &"open".into()), "{belief}");
    }
    assert!(learnt.starts_with("  estimated limit about ") && learnt.contains("last refusal"), "{learnt}");
    assert!(output(job.paceline().arg("stats")).lines().any(|line| line.starts_with("    estimated limit about ")));
    assert!(stats["account"]["belief"].is_null(), "a belief is a scope's");
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2_000);
    assert_eq!(finish(job.run(&server).args(["--max-items", "1"])).0, 3);
    for args in [&["stats", "--items", "--json"][..], &["stats", "--items"]] {
        let mut child =
            job.paceline().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        read_line(&child, &mut out, &mut first);
        drop(out);
        let mut log = String::new();
        let mut errors = child.stderr.take().expect("piped");
        reading(&child, "its log", || errors.read_to_string(&mut log)).expect("text");
        assert_eq!((child.ended().code(), log.as_str()), (Some(0), ""), "after {first}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn watching_ends_with_the_job_or_with_its_run() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    assert_eq!(finish(job.run(&server).args(["--max-items", "1"])).0, 3);
    // As a killed run leaves it.
    std::fs::write(job.path("out.journal.lock"), "4294967295\n").expect("writable");
    let output_text = output(job.paceline().args(["stats", "--watch"]));
    assert!(
        output_text.contains("2 waiting")
            && output_text.ends_with("no run works on this job; run the same command again to continue it\n"),
        "{output_text}"
    );
    let stats = |args: &[&str]| output(job.paceline().arg("stats").args(args));
    let running = |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["running"].clone();
    assert_eq!(running(&stats(&["--json"])), false);
    assert_eq!(running(stats(&["--watch", "--json"]).lines().last().expect("a line")), false);
    let slow = Server::new(|_| Reply::ok().never());
    let mut child = start(&mut job.run(&slow));
    slow.wait_for(2);
    assert_eq!(running(&stats(&["--json"])), true);
    child.kill().expect("a child");
    child.ended();
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let output_text = output(job.paceline().args(["stats", ".", "--watch"]));
    assert!(output_text.contains("3 succeeded") && !output_text.contains("no run works"), "{output_text}");
    assert_eq!(running(&stats(&["--watch", "--json"])), false, "one look at what has ended");
}

/// Where nothing can be written nothing was told.
#[cfg(target_os = "linux")]
#[test]
fn calls_under_way_are_told_as_such() {
    let server = Server::new(|_| Reply::ok().never());
    let job = Job::new(3);
    let mut run = start(job.run(&server).args(["--pace", "none", "--concurrency", "2"]));
    server.wait_for(2);
    let stats = |flags: &[&str]| output(job.paceline().args(["stats", "out.jsonl", "--json"]).args(flags));
    let states = || {
        let rows = stats(&["--items"]);
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
        rows.iter().map(|row| (row["state"].clone(), row["reason"].clone(), row["calls"].clone())).collect::<Vec<_>>()
    };
    // The notes of the calls are written with the next snapshot.
    let under_way = ("in_flight".into(), "in_flight".into(), 1.into());
    until(|| states().iter().filter(|state| **state == under_way).count() == 2);
    assert_eq!(states()[2], ("deferred".into(), "not_started".into(), 0.into()));
    let all = || serde_json::from_str::<Value>(&stats(&[])).expect("JSON");
    until(|| all()["in_flight"] == 2);
    assert_eq!((&all()["calls"], &all()["last_answer"]), (&2.into(), &Value::Null));
    run.kill().expect("it runs");
    run.ended();
    assert!(states().iter().all(|state| state.0 == "deferred"), "no process waits for their answers");
}

#[test]
fn a_full_disk_is_told_with_an_exit_code() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let store = ["--store", "tasks.db"];
    output(job.paceline().args(["tasks", "add"]).args(store).args(["--key", "k", "{}"]));
    let url = server.url();
    for (args, expected) in [
        (&["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &url, "--json"][..], 3),
        (&["stats", "--json"], 2),
        (&["stats"], 2),
        (&["stats", "--items"], 2),
        (&["tasks", "list", "--store", "tasks.db"], 2),
        (&["tasks", "report", "--store", "tasks.db"], 2),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let ended = job.paceline().args(args).stdout(full).stderr(Stdio::piped()).ended_with_output();
        let log = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(expected), "{args:?}: {log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("error: cannot write ") && last.contains("No space left on device"),
            "{args:?}: {log}"
        );
    }
}

#[test]
fn the_items_of_a_job_are_listed_from_any_folder() {
    let (server, job) = (Server::new(|_| Reply::error(400, "no")), Job::new(2));
    let (begun_in, other) = (job.path("begun"), job.path("other/deep"));
    for folder in [&begun_in, &other] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    let run = ["run", "../in.jsonl", "-o", "out.jsonl", "--base-url", &server.url()];
    assert_eq!(finish(job.paceline().current_dir(begun_in).args(run)).0, 1);
    let stats = ["stats", "--items", "../../begun/out.jsonl"];
    let output = job.paceline().current_dir(other).args(stats).ended_with_output();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("item-1"), "{output:?}");
}

#[test]
fn of_a_finished_job_nothing_is_open_or_in_flight() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(
        &["/a", "/b"].map(|path| crate::support::line(path).replace("/v1/chat/completions", path) + "\n").concat(),
    );
    for flags in [&[][..], &["--scope", "endpoint"], &["--limit", "900rpm"]] {
        assert_eq!(finish(job.run(&server).arg("--overwrite").args(flags)).0, 0);
        let text = output(job.paceline().arg("stats"));
        assert!(text.contains("2 items: 2 succeeded") && text.contains("0 in flight, 0 waiting"), "{text}");
        let scopes: Vec<_> = text.lines().skip(2).collect();
        assert!(!scopes.iter().any(|line| line.contains("in flight") || line.contains(": open")), "{text}");
    }
}
