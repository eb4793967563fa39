//! `run --fallback`: a command stands in for an API that stays down.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Arrival, Job, Reply, Server, finish, line, start};
use crate::tasks_run::until;

/// A letter, whatever the item is.
const LETTER: &str = r#"/bin/sh -c 'echo "{\"kind\": \"letter\"}"'"#;

/// Answers 503 until it is back.
fn down() -> (Server, Arc<AtomicBool>) {
    let back = Arc::new(AtomicBool::new(false));
    let is_back = Arc::clone(&back);
    (Server::new(move |_| if is_back.load(Relaxed) { Reply::ok() } else { Reply::error(503, "down") }), back)
}

fn with_fallback(job: &Job, server: &Server, command: &str) -> Command {
    let mut run = job.run(server);
    run.args(["--max-retries", "1", "--fallback", command]);
    run
}

fn of<'a>(lines: &'a [Value], id: &str) -> &'a Value {
    lines.iter().find(|line| line["custom_id"] == id).expect("a line of the item")
}

#[test]
fn what_fails_with_the_server_gets_the_result_of_the_command_until_the_api_answers() {
    let back = Arc::new(AtomicBool::new(false));
    let is_back = Arc::clone(&back);
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "item-1" if !is_back.load(Relaxed) => Reply::error(503, "down"),
        "item-2" => Reply::error(400, "bad"),
        _ => Reply::ok(),
    });
    let job = Job::new(4);
    for calls in [5, 5] {
        let (code, log) = finish(with_fallback(&job, &server, LETTER).args(["--extract", "/object"]));
        assert_eq!((code, server.count()), (1, calls), "{log}");
        assert!(log.contains("PARTIAL  4 items: 2 succeeded, 1 by the fallback, 1 failed"), "{log}");
        job.assert_adds_up(4);
    }
    assert_eq!([&job.summary()["status"], &job.summary()["fallback"]], [&json!("PARTIAL"), &json!(1)]);
    let lines = job.lines("out.jsonl");
    let fallen = of(&lines, "item-1");
    assert_eq!(fallen["source"], "fallback");
    assert_eq!(fallen["output"], json!({"kind": "letter"}));
    assert_eq!((&fallen["response"], &fallen["error"]["code"]), (&Value::Null, &json!("max_retries")));
    assert!(of(&lines, "item-0")["source"].is_null(), "an answer has no source");
    let report = job.lines("out.report.jsonl");
    let row = of(&report, "item-1");
    assert_eq!(
        [&row["state"], &row["reason"], &row["class"]],
        ["fallback", "max_retries", "overloaded"].map(|it| json!(it)).each_ref()
    );
    assert_eq!((&row["retryable"], &row["status_code"]), (&json!(true), &json!(503)));
    let flat = job.lines("out.flat.jsonl");
    assert_eq!(*of(&flat, "item-1"), json!({"custom_id": "item-1", "source": "fallback", "value": {"kind": "letter"}}));
    assert_eq!(*of(&flat, "item-0"), json!({"custom_id": "item-0", "value": "chat.completion"}));
    let stats = job.paceline().args(["stats", "out.jsonl", "--json"]).ended_with_output();
    let stats: Value = serde_json::from_slice(&stats.stdout).expect("JSON");
    assert_eq!([&stats["succeeded"], &stats["fallback"], &stats["failed"]], [2, 1, 1].map(|it| json!(it)).each_ref());

    back.store(true, Relaxed);
    let (code, log) = finish(with_fallback(&job, &server, LETTER).arg("--retry-failed"));
    assert_eq!((code, server.count()), (1, 7), "{log}");
    job.assert_adds_up(4);
    let lines = job.lines("out.jsonl");
    assert_eq!((of(&lines, "item-1")["response"]["status_code"].as_u64(), lines.len()), (Some(200), 3));
    assert_eq!(job.summary()["fallback"], 0);
}

#[test]
fn the_command_gets_the_item_and_why_there_is_no_answer_and_no_key() {
    let (server, _) = down();
    let job = Job::new(1);
    let (code, log) = finish(&mut with_fallback(&job, &server, "/bin/cat"));
    assert_eq!(code, 1, "{log}");
    let question = &job.lines("out.jsonl")[0]["output"];
    assert_eq!(question["key"], "item-0");
    assert_eq!(question["request"]["url"], "/v1/chat/completions");
    assert_eq!(question["request"]["body"], json!({"model": "m", "item": "item-0"}));
    assert_eq!(
        question["error"],
        json!({"reason": "max_retries", "class": "overloaded", "status": 503, "code": "down", "message": "it is down"})
    );

    let job = Job::new(1);
    let shown = "/bin/sh -c 'echo \"${MINE-none} $PACELINE_KEY\"'";
    let (code, log) =
        finish(with_fallback(&job, &server, shown).args(["--api-key-env", "MINE"]).env("MINE", "sk-0123456789"));
    assert_eq!(code, 1, "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["output"], "none item-0", "text stays text");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_command_without_a_result_leaves_its_item_as_it_was() {
    let (server, _) = down();
    for (command, why) in [
        ("/bin/sh -c 'echo no patterns >&2; exit 3'", "exit status: 3: no patterns"),
        ("/bin/sh -c 'kill -9 $$'", "signal: 9"),
        ("/bin/true", "it wrote nothing"),
        ("/bin/sh -c 'head -c 1073741824 /dev/zero'", "it wrote more than 1048576 bytes"),
        ("/bin/sh -c 'sleep 600 & sleep 600'", "it did not end within 300ms (--fallback-timeout)"),
    ] {
        let job = Job::new(2);
        let (code, log) = finish(
            with_fallback(&job, &server, command).args(["--fallback-timeout", "300ms"]).env("PATH", "/usr/bin:/bin"),
        );
        // The gigabyte may be killed by the clock first.
        let told = log.contains(why) || (why.contains("1048576") && log.contains("did not end within"));
        assert!(code == 1 && told, "{command}: {log}");
        assert_eq!((job.lines("out.jsonl").len(), job.lines("out.errors.jsonl").len()), (0, 2), "{command}");
        assert_eq!(job.summary()["status"], "FAILED");
        job.assert_adds_up(2);
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_stopped_account_and_a_used_up_quota_leave_no_item_undone() {
    let used_up = |_: &Arrival| Reply::error(429, "daily_limit").with_header("retry-after", 7_200);
    for (server, reason) in
        [(Server::new(|_| Reply::error(401, "bad_key")), "account"), (Server::new(used_up), "max_wait")]
    {
        let job = Job::new(300);
        let (code, log) = finish(with_fallback(&job, &server, "/bin/echo 7").args(["--max-wait", "1s"]));
        assert_eq!(code, 1, "{log}");
        assert_eq!([&job.summary()["fallback"], &job.summary()["deferred"]], [&json!(300), &json!(0)], "{log}");
        job.assert_adds_up(300);
        let report = job.lines("out.report.jsonl");
        let others = report.iter().find(|row| row["state"] != "fallback" || row["reason"] != reason);
        assert_eq!((report.len(), others), (300, None));
    }
}

#[test]
fn a_server_that_is_not_there_is_stood_in_for() {
    let job = Job::new(30);
    let mut run = job.paceline();
    run.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--base-url", "http://127.0.0.1:9"]);
    let (code, log) = finish(run.args(["--max-wait", "500ms", "--fallback", LETTER]));
    assert_eq!((code, &job.summary()["fallback"]), (1, &json!(30)), "{log}");
    job.assert_adds_up(30);
}

#[test]
fn a_bound_of_the_run_and_a_wait_for_a_limit_are_no_outage() {
    let server = Server::new(|_| Reply::ok());
    for bound in [&["--max-items", "2"][..], &["--limit", "2 per 1h", "--max-wait", "1s"], &["--max-tokens", "1"]] {
        let job = Job::new(5);
        let (code, log) = finish(with_fallback(&job, &server, LETTER).args(bound));
        assert_eq!((code, &job.summary()["fallback"]), (3, &json!(0)), "{bound:?}: {log}");
        job.assert_adds_up(5);
    }
}

#[test]
fn a_call_that_may_have_been_executed_is_held_and_bad_requests_stop_as_without_it() {
    let server = Server::new(|_| Reply::ok().never());
    let charge = json!({"custom_id": "a", "method": "POST", "url": "/charges", "body": {"item": "a"}});
    let job = Job::with_input(&charge.to_string());
    let (code, log) = finish(with_fallback(&job, &server, LETTER).args(["--timeout", "300ms"]));
    assert_eq!((code, &job.summary()["held"], &job.summary()["fallback"]), (1, &json!(1), &json!(0)), "{log}");

    let (server, job) = (Server::new(|_| Reply::error(400, "bad")), Job::new(30));
    let (code, log) = finish(&mut with_fallback(&job, &server, LETTER));
    assert_eq!(
        (code, &job.summary()["fallback"], &job.summary()["stopped"]),
        (3, &json!(0), &json!("same_failure")),
        "{log}"
    );
}

#[cfg(unix)]
#[test]
fn an_interruption_kills_the_command_and_fails_the_item_and_a_kill_loses_nothing() {
    let (server, back) = down();
    let charge = json!({"custom_id": "a", "method": "POST", "url": "/charges", "body": {"item": "a"}});
    let job = Job::with_input(&charge.to_string());
    // It tells that it runs. What a kill of the run leaves behind ends by itself.
    let hangs = format!("/bin/sh -c 'echo begun > {}; exec sleep 30'", job.path("begun").display());
    let begun = |run: &mut Command| {
        let _ = std::fs::remove_file(job.path("begun"));
        let mut child = start(run.env("PATH", "/usr/bin:/bin"));
        while !job.path("begun").exists() {
            assert!(child.try_wait().expect("it can be asked").is_none(), "the run ended before");
            std::thread::yield_now();
        }
        child
    };
    let mut child = begun(&mut with_fallback(&job, &server, &hangs));
    // A kill before that would leave a call whose outcome is unknown.
    until(|| {
        let stats = job.paceline().args(["stats", "out.jsonl", "--json"]).ended_with_output();
        serde_json::from_slice::<Value>(&stats.stdout).is_ok_and(|stats| stats["calls"] == 2)
    });
    child.kill().expect("it runs");
    child.ended();
    assert!(job.lines("out.jsonl").is_empty() && job.lines("out.errors.jsonl").is_empty());

    assert_eq!(server.count(), 2);

    // The server has refused it: nothing is unknown, and nothing held. All its retries are used up.
    let mut child = begun(&mut with_fallback(&job, &server, &hangs));
    assert_eq!(server.count(), 3);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    assert_eq!(child.ended().code(), Some(1));
    job.assert_adds_up(1);
    assert_eq!(
        [&job.summary()["failed"], &job.summary()["held"], &job.summary()["calls"]],
        [1, 0, 3].map(|it| json!(it)).each_ref()
    );

    back.store(true, Relaxed);
    let (code, log) = finish(with_fallback(&job, &server, LETTER).arg("--retry-failed"));
    assert_eq!((code, job.lines("out.jsonl").len()), (0, 1), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn compressed_results_in_order_are_asked_for_again() {
    let (server, back) = down();
    let job = Job::with_input(&[line("b"), line("a"), line("c")].join("\n"));
    let run = |flags: &[&str]| {
        let mut run = job.paceline();
        run.args([
            "run",
            "in.jsonl",
            "-o",
            "out.jsonl.gz",
            "--ordered",
            "--summary",
            "summary.json",
            "--max-retries",
            "0",
        ]);
        run.args(["--base-url", &server.url(), "--fallback", LETTER]).args(flags);
        finish(&mut run)
    };
    let (code, log) = run(&[]);
    assert_eq!((code, &job.summary()["fallback"]), (1, &json!(3)), "{log}");
    assert!(job.path("out.jsonl.gz").exists());
    back.store(true, Relaxed);
    let (code, log) = run(&["--retry-failed"]);
    assert_eq!((code, &job.summary()["succeeded"]), (0, &json!(3)), "{log}");
}

#[test]
fn the_switch_acts_and_mistakes_stop_the_run_before_its_first_call() {
    const SWITCH: &str = "ENABLE_FALLBACK_PROCESSING";
    let (server, _) = down();
    let job = Job::new(1);
    for (command, switch, expected) in [
        (Some("no-such-command-7"), None, "--fallback \"no-such-command-7\": cannot execute"),
        (Some("/bin/sh -c 'open"), None, "its quotes are not closed"),
        (Some(" "), None, "it names no command"),
        (None, Some("true"), "expected --fallback COMMAND, or fallback under [upstream.generic]"),
        (Some(LETTER), Some("maybe"), "expected true or false"),
    ] {
        let mut run = job.run(&server);
        command.into_iter().for_each(|command| _ = run.args(["--fallback", command]));
        switch.into_iter().for_each(|switch| _ = run.env(SWITCH, switch));
        let (code, log) = finish(&mut run);
        assert!(code == 2 && log.contains(expected), "{command:?} {switch:?}: {log}");
    }
    assert_eq!(server.count(), 0);

    let (code, log) = finish(with_fallback(&job, &server, LETTER).env(SWITCH, "false"));
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(1)), "{log}");
    let file = format!(
        "[upstream.mine]\nbase_url = {:?}\nretry = {{ max_retries = 0 }}\nfallback = '/bin/echo 7'\n",
        server.url()
    );
    std::fs::write(job.path("paceline.toml"), file).expect("writable");
    let mut run = job.paceline();
    run.args(["run", "in.jsonl", "-o", "other.jsonl", "--summary", "summary.json"]).env(SWITCH, "True");
    let (code, log) = finish(&mut run);
    assert_eq!((code, &job.lines("other.jsonl")[0]["output"]), (1, &json!(7)), "{log}");
}
