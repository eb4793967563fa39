//! Interruptions: the same command goes on, nothing lost, nothing doubled.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Arrival, Job, Reply, Server, finish, line, start};

const CONCURRENCY: usize = 8;

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn killed_at_any_moment_it_goes_on() {
    const ITEMS: usize = 300;
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(4)));
    let job = Job::new(ITEMS);
    let run = || {
        let mut command = job.run(&server);
        command.args(["--concurrency", &CONCURRENCY.to_string(), "--pace", "fixed"]);
        command
    };
    let kills = [1, 20, 33, 90, 171];
    for (killed, more) in kills.iter().enumerate() {
        let mut child = start(&mut run());
        server.wait_for((*more).max(server.count() + 1 + 7 * killed));
        child.kill().expect("it runs");
        child.ended();
    }
    let (code, log) = finish(&mut run());
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(ITEMS);
    assert_eq!(server.by_item().len(), ITEMS);
    // In flight at each kill, or answered and not yet synced to disk then.
    let repeated = server.count() - ITEMS;
    assert!(repeated <= kills.len() * 4 * CONCURRENCY, "{repeated} calls repeated");
    let summary = job.summary();
    assert_eq!(summary["calls_at_least"], true, "{summary}");
    let number = |key: &str| summary[key].as_u64().expect("a number");
    let sure = (number("calls") - number("calls_unsure")) as usize;
    assert!(sure <= server.count(), "at least {sure} calls, of {}", server.count());
    assert!(log.contains("  at least "), "{log}");
    let cut_off = format!("  about {} call", number("abandoned"));
    assert_eq!(log.contains(&cut_off), number("calls_unsure") > 0, "{log}");
    assert_eq!(log.contains(" more that a kill or a full disk cut off"), number("calls_unsure") > 0, "{log}");
}

/// Under a budget each call waits until it is noted.
#[test]
fn a_kill_loses_no_call_that_a_budget_counts() {
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(4)));
    let job = Job::new(100);
    let run = || {
        let mut command = job.run(&server);
        command.args(["--concurrency", "4", "--pace", "none", "--budget-tokens", "1000000"]);
        command
    };
    let mut child = start(&mut run());
    server.wait_for(20);
    child.kill().expect("it runs");
    child.ended();
    let stats = |key: &str| {
        let stats = job.paceline().args(["stats", "--json", "out.jsonl"]).ended_with_output();
        serde_json::from_slice::<Value>(&stats.stdout).expect("JSON")[key].clone()
    };
    assert_eq!(stats("calls_at_least"), false, "each call is noted before it leaves");
    let (code, log) = finish(&mut run());
    assert_eq!(code, 0, "{log}");
    let summary = job.summary();
    assert_eq!((&summary["calls_at_least"], stats("calls_at_least")), (&json!(false), json!(false)));
    // A call that had not arrived when the run was killed has left all the same.
    assert!(summary["calls"].as_u64().expect("a number") >= server.count() as u64, "{summary}");
}

/// What the next run counts is told before it begins. Under a budget the others wait for the first answer.
#[test]
fn a_call_that_a_kill_cut_off_is_one_of_its_item() {
    let (server, job) = (Server::new(|_| Reply::ok().never()), Job::new(12));
    let mut child = start(job.run(&server).args(["--pace", "none", "--budget-tokens", "1000000"]));
    server.wait_for(1);
    child.kill().expect("it runs");
    child.ended();
    let stats = |more: &[&str]| {
        let output = job.paceline().args(["stats", "--json", "out.jsonl"]).args(more).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let whole: Value = serde_json::from_str(&stats(&[])).expect("JSON");
    let calls = ["calls", "calls_unsure", "calls_at_least"].map(|key| &whole[key]);
    assert_eq!(calls, [&json!(1), &json!(1), &json!(false)]);
    let items = stats(&["--items"]);
    let rows: Vec<Value> = items.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let of = |reason: &str, calls: u64| {
        rows.iter().filter(|row| row["reason"] == reason && row["calls"].as_u64() == Some(calls)).count()
    };
    assert_eq!((of("run_bound", 1), of("not_started", 0)), (1, 11), "{items}");
}

#[test]
fn a_first_interruption_waits_for_the_calls_and_a_second_one_gives_them_up() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(12);
    let run = || {
        let mut command = job.run(&server);
        command.args(["--concurrency", "3", "--pace", "fixed"]);
        command
    };
    let mut child = start(&mut run());
    server.wait_for(3);
    interrupt_until_it_ends(&mut child);
    assert_eq!(child.ended().code(), Some(3));
    let summary = job.summary();
    assert_eq!((summary["abandoned"].as_u64(), summary["deferred"].as_u64()), (Some(3), Some(12)));
    let rows = job.lines("out.report.jsonl");
    assert!(rows.iter().all(|row| row["attempts"] == 0 && row["state"] == "deferred"));

    let (code, log) = finish(run().args(["--timeout", "200ms"]));
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(12);
}

#[test]
fn an_interruption_before_the_first_call_sends_nothing_and_leaves_nothing() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    let mut command = job.paceline();
    command.args(["run", "-", "-o", "out.jsonl", "--json", "--summary", "summary.json", "--base-url", &server.url()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // It waits for the rest of its input.
    let stdin = child.stdin.take().expect("piped");
    while !job.path("out.input.new").exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    interrupt(child.id());
    let ended = child.ended_with_output();
    drop(stdin);
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!((ended.status.code(), server.count()), (Some(3), 0), "{text}");
    assert!(text.contains("nothing was sent"), "{text}");
    let printed: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("a summary");
    assert_eq!(printed, job.summary());
    let figures = ["status", "stopped", "input", "calls"].map(|key| &printed[key]);
    assert_eq!(figures, [&json!("DEFERRED"), &json!("interrupted"), &json!(0), &json!(0)], "{printed}");
    std::fs::remove_file(job.path("summary.json")).expect("there");
    let left: Vec<_> = std::fs::read_dir(job.path("")).expect("a folder").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left, ["in.jsonl"]);
}

#[test]
fn two_runs_of_one_job_are_not_possible() {
    let server = Server::new(|_| Reply::ok().never());
    let job = Job::new(2);
    let mut first = start(&mut job.run(&server));
    server.wait_for(2);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&first.id().to_string()), "{log}");
    std::fs::remove_file(job.path("out.journal.lock")).expect("the lock file of the first run");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (2, 2), "{log}");
    assert!(log.contains("out.jsonl is in use by another process"), "{log}");
    let stats = job.paceline().args(["stats", "out.jsonl", "--json"]).ended_with_output();
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).expect("JSON");
    assert_eq!(stats["running"], true, "the first one works on");
    first.kill().expect("it runs");
    first.ended();
}

#[test]
fn a_journal_that_is_removed_under_way_ends_the_run_at_once() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(2);
    let first = job.run(&server).args(["--timeout", "10s"]).stderr(Stdio::piped()).spawn().expect("the binary runs");
    server.wait_for(2);
    std::fs::remove_file(job.path("out.journal")).expect("the journal");
    let ended = first.ended_with_output();
    let log = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), server.count()), (Some(3), 2), "{log}");
    assert!(log.contains("out.journal was removed or replaced while this run wrote it"), "{log}");
    assert!(log.contains("--done RESULTS") && !log.contains("run the same command again"), "no run can go on: {log}");
    let summary = job.summary();
    assert_eq!([&summary["status"], &summary["stopped"]], [&json!("DEFERRED"), &json!("error")], "{summary}");
    assert_eq!((&summary["unread"], &summary["resume"]), (&json!(true), &Value::Null), "{summary}");
}

#[test]
fn a_run_whose_results_are_replaced_ends_with_its_summary_and_shows_none_before() {
    let server = Server::new(|arrival| if arrival.item == "b" { Reply::ok().never() } else { Reply::ok() });
    let job = Job::with_input(&line("a"));
    assert_eq!((finish(&mut job.run(&server)).0, &job.summary()["status"]), (0, &json!("SUCCESS")));
    let other = || {
        let mut command = job.run(&server);
        command.args(["--overwrite", "--json", "--timeout", "10s"]);
        command
    };
    std::fs::write(job.path("in.jsonl"), "{").expect("writable");
    assert_eq!(finish(&mut other()).0, 2);
    assert_eq!(job.summary()["status"], "SUCCESS", "a run that is refused leaves every file as it was");

    std::fs::write(job.path("in.jsonl"), [line("a"), line("b"), line("c")].join("\n")).expect("writable");
    let mut command = other();
    let run =
        command.args(["--concurrency", "2"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    server.wait_until(|seen| seen.iter().any(|arrival| arrival.item == "b"));
    assert!(!job.path("summary.json").exists(), "a run that has begun shows none of an earlier one");
    std::fs::rename(job.path("out.jsonl"), job.path("elsewhere.jsonl")).expect("it is there");
    std::fs::write(job.path("in.jsonl"), "").expect("writable");
    let ended = run.ended_with_output();
    let log = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{log}");
    let printed: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!((&printed["status"], &printed["stopped"]), (&json!("DEFERRED"), &json!("error")), "{printed}");
    assert_eq!((&printed["input"], &job.summary()["stopped"]), (&json!(3), &json!("error")), "{printed}");
}

#[test]
fn without_a_journal_the_results_are_the_same() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(10);
    let (code, log) = finish(job.run(&server).arg("--no-journal"));
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(10);
    assert!(!job.path("out.journal").exists());
    let items: BTreeSet<_> = server.arrivals().into_iter().map(|arrival| arrival.item).collect();
    assert_eq!(items.len(), 10);
}

#[test]
fn a_killed_run_goes_on_at_the_rate_that_it_had_learnt() {
    const BEFORE: usize = 40;
    let server = Server::new(|arrival| match line_number(arrival) {
        n if n < BEFORE || arrival.before > 0 => Reply::ok(),
        BEFORE => Reply::error(429, "rate_limit_exceeded"),
        _ => Reply::ok().never(),
    });
    let other = Server::new(|_| Reply::ok());
    let job = Job::new(60);
    let run = |server: &Server| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--seed", "1", "--base-url", &server.url()]);
        command
    };
    let belief = || {
        let stats = job.paceline().args(["stats", "--json"]).ended_with_output();
        let stats: Value = serde_json::from_slice(&stats.stdout).expect("JSON");
        let belief = &stats["scopes"][0]["belief"];
        (belief["rate"].as_f64().unwrap_or_default(), belief["trend"].as_str().unwrap_or_default().to_owned())
    };
    let mut child = start(&mut run(&server));
    server.wait_for(BEFORE);
    // Twice a second the journal learns what the run believes.
    while matches!(&*belief().1, "" | "starting") {
        std::thread::yield_now();
    }
    child.kill().expect("it runs");
    child.ended();
    let (learnt, _) = belief();
    assert!(learnt > 4.0, "{learnt}");
    let (code, log) = finish(run(&server).args(["--max-items", "1"]));
    assert_eq!(code, 3, "{log}");
    let (rate, trend) = belief();
    assert!(rate > 0.8 * learnt && trend != "starting", "{rate} {trend} after {learnt}");
    let (code, log) = finish(run(&other).args(["--max-items", "1"]));
    assert_eq!(code, 3, "{log}");
    assert_eq!(belief().1, "starting", "another address has another limit");
}

fn line_number(arrival: &Arrival) -> usize {
    arrival.item.strip_prefix("item-").and_then(|n| n.parse().ok()).expect("an item of the job")
}

pub(crate) fn interrupt(pid: u32) {
    // The process may have ended meanwhile.
    drop(Command::new("kill").args(["-TERM", &pid.to_string()]).ended_with_output());
}

/// Signals that arrive before the first one was heard are one signal, so the second is sent until it acts.
pub(crate) fn interrupt_until_it_ends(child: &mut Child) {
    while child.try_wait().expect("a child").is_none() {
        interrupt(child.id());
        std::thread::yield_now();
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn tiers_that_changed_between_runs_take_their_items() {
    let server = Server::new(|_| Reply::ok());
    let line = |n: usize| {
        let model = if n.is_multiple_of(2) { "slow" } else { "fast" };
        json!({"custom_id": n, "url": "/x", "body": {"model": model, "item": model}}).to_string()
    };
    let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
    let configure = |rest: &str| {
        let config = format!("[upstream.two]\nbase_url = \"{}\"\n{rest}", server.url());
        std::fs::write(job.path("paceline.toml"), config).expect("writable");
    };
    let run = || {
        finish(job.paceline().args([
            "run",
            "in.jsonl",
            "-o",
            "out.jsonl",
            "--max-wait",
            "1s",
            "--summary",
            "summary.json",
        ]))
    };
    configure("rph = 2\n");
    assert_eq!(run().0, 3);
    assert_eq!(server.count(), 2);
    let slow = server.by_item().get("slow").copied().unwrap_or_default();
    configure("[[upstream.two.tier]]\nmodel = \"slow\"\nrph = 3\n");
    let (code, log) = run();
    assert_eq!(code, 3, "{log}");
    assert!(log.contains(&format!("{} items moved to other scopes", 10 - slow)), "{log}");
    assert_eq!(server.by_item(), BTreeMap::from([("fast".to_owned(), 10), ("slow".to_owned(), slow + 3)]), "{log}");
    job.assert_adds_up(20);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_scope_that_changed_between_runs_takes_its_items() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/held" => Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 1_800),
        _ => Reply::ok(),
    });
    let line = |n: usize| {
        let url = if n.is_multiple_of(2) { "/held" } else { "/open" };
        json!({"custom_id": n, "url": url, "body": {"item": url}}).to_string()
    };
    let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
    let run = |rest: &str| {
        let config = format!("[upstream.two]\nbase_url = \"{}\"\nconcurrency = 1\n{rest}", server.url());
        std::fs::write(job.path("paceline.toml"), config).expect("writable");
        let rest = ["--max-wait", "1s", "--summary", "summary.json"];
        finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl"]).args(rest))
    };
    let (code, log) = run("");
    assert_eq!(code, 3, "{log}");
    let open = server.by_item().get("/open").copied().unwrap_or_default();
    assert!(open < 10, "one scope, which one call holds: {log}");
    let (code, log) = run("scope = \"endpoint\"\n");
    assert_eq!(code, 3, "{log}");
    assert!(log.contains(&format!("{} items moved to other scopes", 20 - open)), "{log}");
    assert_eq!(server.by_item()["/open"], 10, "{log}");
    job.assert_adds_up(20);
}

#[test]
fn what_one_account_was_told_does_not_hold_back_another() {
    let empty = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 86_400));
    let other = Server::new(|_| Reply::ok());
    let job = Job::new(10);
    assert_eq!(finish(&mut job.run(&empty)).0, 3);
    let (code, log) = finish(&mut job.run(&other));
    assert_eq!((code, other.count()), (0, 10), "{log}");
    assert!(log.contains("this job began with upstream generic at http://127.0.0.1:"), "{log}");
}

/// As `logrotate` does with `copytruncate`.
#[test]
fn results_that_are_cut_short_under_way_end_no_run_as_a_success() {
    let job = Job::new(6);
    let (results, copy) = (job.path("out.jsonl"), job.path("out.jsonl.1"));
    let (cut, saved) = (results.clone(), copy.clone());
    let server = Server::new(move |arrival| {
        // The last one: once the others are written, nothing is written behind it but its own line.
        if arrival.item == "item-5" && arrival.before == 0 {
            while std::fs::read_to_string(&cut).is_ok_and(|lines| lines.lines().count() < 5) {
                std::thread::yield_now();
            }
            std::fs::copy(&cut, &saved).expect("a copy");
            std::fs::write(&cut, "").expect("writable");
        }
        Reply::ok()
    });
    let (code, log) = finish(job.run(&server).args(["--concurrency", "1", "--pace", "none"]));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("out.jsonl was removed, replaced or cut short") && !log.contains("SUCCESS"), "{log}");
    assert!(log.contains("put it back as it was") && !log.contains("the results so far are kept"), "{log}");
    assert_eq!(std::fs::read(&results).expect("the results"), b"", "no line stands behind a gap");

    std::fs::rename(copy, results).expect("put back");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(6);
}
