//! Calls of which nothing tells whether they were done: a second one might do it twice.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_store::work::{NewItem, State};
use paceline_store::{CustomId, ResultBody, encode_line};
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Job, Reply, Server, finish, start};
use crate::tasks_run::{Ran, Store, ran, until};

/// Longer than the answer of a server that answers.
const TIMEOUT: [&str; 2] = ["--timeout", "500ms"];

fn charge(method: &str) -> Value {
    json!({"custom_id": "a", "method": method, "url": "/charges", "body": {"item": "a"}})
}

/// Takes the first call of each item and says nothing.
fn silent_at_first() -> Server {
    Server::new(|arrival| if arrival.before == 0 { Reply::ok().never() } else { Reply::ok() })
}

fn store(method: &str) -> Store {
    let store = Store::new();
    store.put(vec![NewItem::new("a", charge(method).to_string())]);
    store
}

fn tasks(store: &Store, server: &Server, flags: &[&str]) -> Ran {
    let mut command = store.command();
    ran(command.args(["--http", "--base-url", &server.url()]).args(TIMEOUT).args(flags))
}

#[test]
fn a_charge_that_may_have_been_made_is_made_again_only_when_a_person_says_so() {
    let (server, job) = (silent_at_first(), Job::with_input(&charge("POST").to_string()));
    for _ in 0..2 {
        let (code, log) = finish(job.run(&server).args(TIMEOUT));
        assert_eq!((code, server.count()), (1, 1), "{log}");
        assert!(
            log.contains("held: 1 failed item, because the call may have been executed")
                && log.contains("--retry-failed"),
            "{log}"
        );
        assert_eq!(job.summary()["held"], 1);
    }
    let row = &job.lines("out.report.jsonl")[0];
    assert_eq!(
        [&row["state"], &row["reason"], &row["code"]],
        [&json!("failed"), &json!("unknown_outcome_held"), &json!("timeout")]
    );
    let stats = job.paceline().args(["stats", "out.jsonl"]).ended_with_output();
    assert!(String::from_utf8_lossy(&stats.stdout).contains("held: 1 failed item"), "{stats:?}");
    let (code, log) = finish(job.run(&server).arg("--retry-failed"));
    assert_eq!((code, server.count()), (0, 2), "{log}");
    assert_eq!(job.summary()["held"], 0);
    job.assert_adds_up(1);
}

#[test]
fn one_that_fails_for_good_is_not_sent_by_retry_failed_either() {
    let (server, job) = (silent_at_first(), Job::with_input(&charge("PATCH").to_string()));
    let mut command = job.run(&server);
    let (code, log) = finish(command.args(TIMEOUT).args(["--unknown-outcome", "fail"]));
    assert_eq!((code, &job.lines("out.report.jsonl")[0]["reason"]), (1, &json!("unknown_outcome")), "{log}");
    assert!(log.contains(" reason=\"unknown_outcome\""), "{log}");
    let (code, log) = finish(job.run(&server).arg("--retry-failed"));
    assert_eq!((code, server.count()), (1, 1), "{log}");
    job.assert_adds_up(1);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_may_be_repeated_is_sent_again_by_itself() {
    let prompt = json!({"custom_id": "a", "url": "/v1/chat/completions", "body": {"item": "a"}});
    let mut keyed = charge("POST");
    keyed["headers"] = json!({"Idempotency-Key": "of the line"});
    let header: &[&str] = &["--idempotency-header", "Idempotency-Key"];
    for (line, flags) in [
        (charge("PUT"), &[][..]),
        (charge("DELETE"), &[]),
        (prompt, &[]),
        (charge("POST"), &["--unknown-outcome", "resend"]),
        (charge("POST"), header),
        (keyed, header),
    ] {
        let (server, job) = (silent_at_first(), Job::with_input(&line.to_string()));
        let (code, log) = finish(job.run(&server).args(TIMEOUT).args(flags));
        assert_eq!((code, server.count()), (0, 2), "{line} {flags:?}: {log}");
        let keys: Vec<_> = server.arrivals().iter().map(|call| call.headers.get("idempotency-key").cloned()).collect();
        assert_eq!((keys[0].is_some(), &keys[0]), (flags == header, &keys[1]), "the same at each try");

        let (server, store) = (silent_at_first(), Store::new());
        store.put(vec![NewItem::new("a", line.to_string())]);
        let Ran { code, log, .. } = tasks(&store, &server, flags);
        assert_eq!((code, server.count()), (0, 2), "{line} {flags:?}: {log}");
    }
}

#[test]
fn an_answer_that_was_cut_off_is_no_proof_that_nothing_was_done() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(b"{}").expect("in memory");
    let whole = encoder.finish().expect("in memory");
    let cut = move |_: &_| {
        let half = whole[..whole.len() - 4].to_vec();
        Reply::text(200, "application/json", half).with_header("content-encoding", "gzip")
    };
    let (server, job) = (Server::new(cut), Job::with_input(&charge("POST").to_string()));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (1, 1), "{log}");
    assert_eq!(job.lines("out.report.jsonl")[0]["code"], "truncated");
}

#[test]
fn what_failed_is_sent_again_without_what_is_held() {
    let server = Server::new(|arrival| match &*arrival.path {
        "/charges" => Reply::ok().never(),
        _ => Reply::error(404, "gone"),
    });
    let page = json!({"custom_id": "b", "method": "GET", "url": "/page"});
    let job = Job::with_input(&format!("{}\n{page}", charge("POST")));
    let (code, log) = finish(job.run(&server).args(TIMEOUT));
    let advice = "the same command with --retry-failed --only-status not_held sends 1 failed item again";
    assert!(code == 1 && server.count() == 2 && log.contains(advice), "{log}");
    let (code, log) = finish(job.run(&server).args(TIMEOUT).args(["--retry-failed", "--only-status", "not_held"]));
    let paths: Vec<_> = server.arrivals().iter().map(|call| call.path.clone()).collect();
    assert_eq!((code, paths.iter().filter(|path| *path == "/page").count(), paths.len()), (1, 2, 3), "{log}");
}

#[test]
fn a_status_of_no_class_is_no_proof_either() {
    for status in [520, 600, 999] {
        let answers = move || Server::new(move |_| Reply::error(status, "denied"));
        let (server, job) = (answers(), Job::with_input(&charge("POST").to_string()));
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!((code, server.count()), (1, 1), "{status}: {log}");
        assert_eq!(job.lines("out.report.jsonl")[0]["reason"], "unknown_outcome_held", "{status}");

        let (server, store) = (answers(), store("POST"));
        let Ran { log, .. } = tasks(&store, &server, &[]);
        assert_eq!((server.count(), store.item("a").state), (1, State::Failed), "{status}: {log}");
    }
}

#[test]
fn what_the_server_refused_or_never_took_is_sent_again() {
    let refuses = |status| {
        Server::new(move |arrival| if arrival.before == 0 { Reply::error(status, "busy") } else { Reply::ok() })
    };
    for status in [429, 500, 503] {
        let (server, job) = (refuses(status), Job::with_input(&charge("POST").to_string()));
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!((code, server.count()), (0, 2), "{status}: {log}");
    }
}

#[test]
fn a_kill_leaves_what_may_have_been_sent_to_a_person() {
    let (server, job) = (silent_at_first(), Job::with_input(&charge("POST").to_string()));
    let mut killed = start(&mut job.run(&server));
    server.wait_for(1);
    killed.kill().expect("it runs");
    killed.ended();
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count(), &job.summary()["held"]), (1, 1, &json!(1)), "{log}");
    let (code, log) = finish(job.run(&server).arg("--retry-failed"));
    assert_eq!((code, server.count()), (0, 2), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_kill_leaves_none_to_a_person_that_had_only_waited() {
    const CALLS: usize = 4;
    let silent = Arc::new(AtomicBool::new(true));
    let speaks = Arc::clone(&silent);
    let server = Server::new(move |_| if silent.load(Relaxed) { Reply::ok().never() } else { Reply::ok() });
    let line =
        |n: usize| json!({"custom_id": n.to_string(), "method": "POST", "url": "/x", "body": {"item": n}}).to_string();
    let lines = |numbers: Vec<usize>| numbers.into_iter().map(line).collect::<Vec<_>>().join("\n");
    for changed in [false, true] {
        speaks.store(true, Relaxed);
        let (job, before) = (Job::with_input(&lines((0..40).collect())), server.count());
        let mut killed = start(job.run(&server).args(["--pace", "fixed", "--concurrency", "4"]));
        server.wait_for(before + CALLS);
        killed.kill().expect("it runs");
        killed.ended();
        speaks.store(false, Relaxed);
        let mut run = job.run(&server);
        if changed {
            // Every item has another place in it.
            std::fs::write(job.path("in.jsonl"), lines((0..41).rev().collect())).expect("writable");
            run.arg("--accept-changed-input");
        }
        let items = 40 + usize::from(changed);
        for _ in 0..2 {
            let (code, log) = finish(&mut run);
            assert_eq!((code, server.count() - before, &job.summary()["held"]), (1, items, &json!(CALLS)), "{log}");
            job.assert_adds_up(items);
        }
        let (code, log) = finish(job.run(&server).arg("--retry-failed"));
        assert_eq!((code, server.count() - before), (0, items + CALLS), "{log}");
    }
}

#[test]
fn a_call_that_was_cut_off_keeps_its_key_wherever_its_line_stands() {
    let header = ["--idempotency-header", "Idempotency-Key", "--accept-changed-input"];
    let charge =
        |n: &str| json!({"custom_id": n, "method": "POST", "url": "/charges", "body": {"item": n}}).to_string();
    let input = |items: &[&str]| items.iter().map(|item| charge(item)).collect::<Vec<_>>().join("\n");
    let silent = Arc::new(AtomicBool::new(true));
    let speaks = Arc::clone(&silent);
    let server = Server::new(move |_| if silent.load(Relaxed) { Reply::ok().never() } else { Reply::ok() });
    let job = Job::with_input(&input(&["a", "b"]));
    let (mut arrived, mut cut_off) = (0, 2);
    // The second time a line is gone, and what was sent stands where another item stood.
    for before in [&["x", "a", "b"][..], &["b", "y", "a"]] {
        let mut killed = start(job.run(&server).args(header));
        arrived += cut_off;
        server.wait_for(arrived);
        killed.kill().expect("it runs");
        killed.ended();
        std::fs::write(job.path("in.jsonl"), input(before)).expect("writable");
        cut_off = 3;
    }
    speaks.store(false, Relaxed);
    let (code, log) = finish(job.run(&server).args(header));
    assert_eq!((code, server.count()), (0, 8), "{log}");
    let keys: BTreeSet<_> = server
        .arrivals()
        .iter()
        .map(|call| (call.item.clone(), call.headers["idempotency-key"].to_str().expect("text").to_owned()))
        .collect();
    let distinct: BTreeSet<_> = keys.iter().map(|(_, key)| key).collect();
    assert_eq!((keys.len(), distinct.len()), (4, 4), "one key for each item, and none for two: {keys:?}");
}

/// Its id is that of its line, so the item that was sent cannot be found by it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_call_that_was_cut_off_is_held_where_its_line_has_no_id_and_stands_elsewhere() {
    let header = ["--idempotency-header", "Idempotency-Key"];
    for flags in [&header[..], &[]] {
        let rows = |items: &[&str]| {
            let row = |item: &&str| format!("POST,/charges,\"{{\"\"item\"\":\"\"{item}\"\"}}\"\n");
            "method,url,body\n".to_owned() + &items.iter().map(row).collect::<String>()
        };
        let (server, job) = (silent_at_first(), Job::with_input(""));
        let run = || {
            let mut command = job.paceline();
            command.args([
                "run",
                "in.csv",
                "-o",
                "out.jsonl",
                "--summary",
                "summary.json",
                "--base-url",
                &server.url(),
            ]);
            command.args(["--pace", "none"]).args(flags);
            command
        };
        std::fs::write(job.path("in.csv"), rows(&["a", "b"])).expect("writable");
        let mut killed = start(&mut run());
        server.wait_for(2);
        // Notes of calls that carry a key are written with the next snapshot.
        until(|| {
            let items = job.paceline().args(["stats", "out.jsonl", "--items"]).ended_with_output();
            String::from_utf8_lossy(&items.stdout).matches("in_flight").count() == 4
        });
        killed.kill().expect("it runs");
        killed.ended();
        std::fs::write(job.path("in.csv"), rows(&["x", "a", "b"])).expect("writable");
        let (code, log) = finish(run().args(["--accept-changed-input", "--timeout", "500ms", "--max-retries", "0"]));
        assert_eq!((code, job.summary()["held"].as_u64()), (1, Some(if flags.is_empty() { 3 } else { 2 })), "{log}");
        assert_eq!(server.by_item(), [("a", 1), ("b", 1), ("x", 1)].map(|(item, n)| (item.to_owned(), n)).into());
    }
}

#[test]
fn the_same_holds_for_requests_of_a_store() {
    let (server, store) = (silent_at_first(), store("POST"));
    let Ran { code, log, .. } = tasks(&store, &server, &[]);
    assert_eq!((code, server.count()), (1, 1), "{log}");
    let item = store.item("a");
    assert_eq!((item.state, item.reason.as_deref()), (State::Failed, Some("unknown_outcome_held")));
    let report = store.job.paceline().args(["tasks", "report", "--store", "work.db"]).ended_with_output();
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(
        report.contains("held: 1 failed item") && report.contains("`paceline tasks retry --store work.db KEY`"),
        "{report}"
    );
    assert!(report.contains("--state failed --may-be-done") && report.contains("--idempotency-header"), "{report}");
    let (code, log) = finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "a"]));
    assert_eq!(code, 0, "{log}");
    let Ran { code, log, .. } = tasks(&store, &server, &[]);
    assert_eq!((code, server.count()), (0, 2), "{log}");
}

/// The answer was kept and the run killed before the store knew of it, or a person retries what was held for that.
#[test]
fn a_request_whose_answer_was_kept_before_a_kill_is_done() {
    for held in [false, true] {
        let (server, store) = (silent_at_first(), store("POST"));
        let flags = ["--http", "--base-url", &server.url(), "-o", "out.jsonl"];
        let mut killed = start(store.command().args(flags));
        server.wait_for(1);
        killed.kill().expect("it runs");
        killed.ended();
        let custom_id = CustomId::from("a");
        let answer = ResultBody::Response { status: 200, request_id: "", headers: None, body: b"{}" };
        let line = encode_line(store.item("a").id, 1, &custom_id, &answer);
        std::fs::write(store.job.path("out.jsonl"), line).expect("writable");
        if held {
            let Ran { code, log, .. } = tasks(&store, &server, &[]);
            assert_eq!(code, 1, "{log}");
            assert_eq!(finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "a"])).0, 0);
        }
        let Ran { code, log, .. } = tasks(&store, &server, &["-o", "out.jsonl"]);
        assert_eq!((code, server.count(), store.item("a").state), (0, 1, State::Succeeded), "{log}");
        assert_eq!(store.job.lines("out.jsonl").len(), 1, "{log}");
    }
}

/// The rate is 2 a second at first: most claimed items wait for a permit.
#[test]
fn a_kill_leaves_no_request_to_a_person_that_had_only_waited() {
    let silent = Arc::new(AtomicBool::new(true));
    let speaks = Arc::clone(&silent);
    let server = Server::new(move |_| if silent.load(Relaxed) { Reply::ok().never() } else { Reply::ok() });
    let store = Store::new();
    let charge = |n: usize| json!({"method": "POST", "url": "/charges", "body": {"item": n.to_string()}}).to_string();
    store.put((0..20).map(|n| NewItem::new(n.to_string(), charge(n))).collect());
    let mut command = store.command();
    let mut killed = start(command.args(["--http", "--base-url", &server.url(), "--concurrency", "20"]));
    server.wait_for(2);
    killed.kill().expect("it runs");
    killed.ended();
    let sent = server.by_item();
    speaks.store(false, Relaxed);
    let Ran { code, log, .. } = tasks(&store, &server, &["--pace", "none"]);
    assert_eq!((code, log.matches("failed: unknown_outcome_held").count()), (1, sent.len()), "{log}");
    assert_eq!(server.count(), 20, "{log}");
    let report = store.job.paceline().args(["tasks", "report", "--store", "work.db", "--json"]).ended_with_output();
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!((&report["calls"], &report["abandoned"]), (&json!(20), &json!(sent.len())), "calls cut off are calls");
    let report = store.job.paceline().args(["tasks", "report", "--store", "work.db"]).ended_with_output();
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(report.contains(&format!("20 calls, {} cut off", sent.len())), "{report}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn one_that_fails_for_good_is_retried_by_its_key_alone() {
    let (server, store) = (silent_at_first(), Store::new());
    let other = json!({"method": "PUT", "url": "/charges", "body": {"item": "other"}});
    store.put(vec![NewItem::new("a", charge("PATCH").to_string()), NewItem::new("other", other.to_string())]);
    let Ran { code, log, .. } = tasks(&store, &server, &["--unknown-outcome", "fail", "--max-retries", "0"]);
    assert_eq!((code, store.item("a").reason.as_deref()), (1, Some("unknown_outcome")), "{log}");
    let retry = |words: &[&str]| {
        let mut command = store.job.paceline();
        let output = command.args(["tasks", "retry", "--store", "work.db"]).args(words).ended_with_output();
        (String::from_utf8_lossy(&output.stdout).into_owned(), store.item("a").state, store.item("other").state)
    };
    let (text, a, other) = retry(&["--all"]);
    assert!(text.starts_with("1 item is due again; left out: 1 item whose call may have been executed"), "{text}");
    assert_eq!((a, other), (State::Failed, State::Waiting));
    assert_eq!(
        retry(&["--state", "failed", "--json"]).0,
        "{\"changed\":0,\"cancelled\":0,\"may_be_done\":0,\"left_out\":1}\n"
    );
    assert_eq!(retry(&["--all", "--may-be-done"]).1, State::Waiting);
}

#[test]
fn one_that_is_cancelled_under_way_is_retried_by_its_key_alone() {
    let (server, store) = (silent_at_first(), store("POST"));
    let mut command = store.command();
    let mut killed = start(command.args(["--http", "--base-url", &server.url(), "--unknown-outcome", "fail"]));
    server.wait_for(1);
    let of_store = |words: &[&str]| {
        let mut command = store.job.paceline();
        let output = command.arg("tasks").args(words).args(["--store", "work.db", "--all"]).ended_with_output();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(of_store(&["cancel"]), "1 item cancelled\n");
    killed.kill().expect("it runs");
    killed.ended();
    let text = of_store(&["retry"]);
    assert!(text.starts_with("nothing is retried; left out: 1 item whose call may have been executed"), "{text}");
    assert_eq!(store.item("a").state, State::Cancelled);
}

#[test]
fn a_kill_leaves_requests_of_a_store_to_a_person_too() {
    let (server, store) = (silent_at_first(), store("POST"));
    let mut command = store.command();
    let mut killed = start(command.args(["--http", "--base-url", &server.url()]));
    server.wait_for(1);
    killed.kill().expect("it runs");
    killed.ended();
    let Ran { code, log, .. } = tasks(&store, &server, &[]);
    assert_eq!((code, server.count()), (1, 1), "{log}");
    assert_eq!(store.item("a").reason.as_deref(), Some("unknown_outcome_held"));
}
