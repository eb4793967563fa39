//! What people read at the end of a run and about a job, also where a server wrote parts of it.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[cfg(unix)]
use crate::bounded::BoundedOutput;
use crate::resume::interrupt;
use crate::support::{Job, Reply, Server, finish};
use crate::tasks_run::Store;

/// The summary in what a run wrote, without what differs at each run.
fn summary(log: &str, server: &Server) -> String {
    let words = ["SUCCESS  ", "PARTIAL  ", "FAILED  ", "DEFERRED  "];
    let start = words.iter().filter_map(|word| log.find(word)).min().expect("a summary");
    let lines = log[start..].lines().map(|line| match line.split_once("this run took ") {
        Some((before, _)) => format!("{before}this run took TIME\n"),
        None => {
            let line = line.replace(&server.url(), "URL").replace(env!("CARGO_BIN_EXE_paceline"), "paceline") + "\n";
            match line.strip_prefix("  continue after ").and_then(|rest| rest.split_once(" with: ")) {
                Some((_, command)) => format!("  continue after TIME with: {command}"),
                None => line,
            }
        }
    });
    let differs = ["  held: ", "estimated limit about", "stopped early: the next call can start"];
    lines.filter(|line| !differs.iter().any(|words| line.contains(words))).collect()
}

#[test]
fn of_a_summary_only_what_there_is_to_say() {
    let mut told = String::new();
    let mut tell = |what: &str, server: &Server, command: &mut std::process::Command, expected: i32| {
        let (code, log) = finish(command);
        assert_eq!(code, expected, "{log}");
        told += &format!("# {what}\n{}\n", summary(&log, server));
    };
    let good = Server::new(|_| Reply::ok());
    let job = Job::new(6);
    tell("the first part", &good, job.run(&good).args(["--max-items", "2"]), 3);
    tell("the rest", &good, &mut job.run(&good), 0);
    tell("nothing is left", &good, &mut job.run(&good), 0);

    let flaky = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-0", 0) => Reply::error(503, "oops"),
        ("item-1", 0) => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 2),
        ("item-2", _) => Reply::error(400, "never"),
        _ => Reply::text(200, "text/plain", "fine"),
    });
    tell("some calls went wrong", &flaky, &mut Job::new(6).run(&flaky), 1);

    let empty = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 7_200));
    tell("a rate limit that asks for two hours", &empty, Job::new(3).run(&empty).args(["--concurrency", "1"]), 3);
    tell("no journal", &good, Job::new(3).run(&good).args(["--no-journal", "--max-items", "1"]), 3);
    insta::assert_snapshot!("summaries", told);
}

#[test]
fn a_limit_below_the_requests_is_named_as_the_cause() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(30);
    let (code, log) = finish(job.run(&server).args(["--limit", "2 tpm"]));
    assert_eq!((code, server.count()), (3, 0), "{log}");
    assert!(log.contains("raise the limit or make the requests smaller"), "{log}");
    assert!(!log.contains("correct the requests"), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_call_that_is_sent_again_names_the_cause() {
    let job = Job::new(1);
    let (code, log) = finish(job.paceline().args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--base-url",
        "http://127.0.0.1:9",
        "--max-wait",
        "2s",
        "-v",
    ]));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("cause=\"no connection: "), "{log}");
    // How many calls: the line waits for its time, and another try may come before it.
    assert!(log.contains(" failed and will be sent again: transient failure; the last one: no connection: "), "{log}");
}

#[test]
fn words_of_others_cannot_take_over_the_terminal() {
    let hostile = "a\u{1b}[5m\n\u{202e}";
    let server = Server::new(|_| {
        let error = json!({"message": "sorry\n\u{1b}[2J\u{202e}", "code": "bad\u{1b}[31m", "type": "x"});
        Reply::new(400, &json!({"error": error}))
    });
    let body = json!({"model": hostile, "item": "x"});
    let line = json!({"custom_id": hostile, "url": "/v1/chat/completions", "body": body});
    let job = Job::with_input(&line.to_string());
    let bad = json!({"custom_id": 1, "url": format!("http://{hostile}"), "body": {"model": "m"}});
    std::fs::write(job.path("bad.jsonl"), bad.to_string()).expect("writable");
    let output = |args: &[&str]| {
        let output = job.paceline().args(args).ended_with_output();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let run = ["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url()];
    for args in [
        &[&run[..], &["--dry-run"]].concat()[..],
        &run,
        &["stats"],
        &["stats", "--items"],
        &["run", "bad.jsonl", "-o", "bad.out.jsonl", "--base-url", &server.url()],
    ] {
        let told = output(args);
        let taken = told.chars().any(|c| c.is_control() && c != '\n') || told.contains('\u{202e}');
        assert!(!taken, "{args:?}: {told:?}");
        assert!(!told.lines().any(|line| line.starts_with(['\u{fffd}', '['])), "no line of its own: {told:?}");
    }
    let row: Value = serde_json::from_str(&output(&["stats", "--items", "--json"])).expect("JSON");
    assert_eq!(
        (&row["custom_id"], &row["code"]),
        (&hostile.into(), &"bad\u{1b}[31m".into()),
        "scripts get it as it is"
    );
}

#[test]
fn a_table_of_items_keeps_its_columns_or_says_that_there_is_nothing() {
    let long = "x".repeat(100);
    let server = Server::new(|arrival| if arrival.item == "bad" { Reply::error(400, "never") } else { Reply::ok() });
    let line = |id: &str, item: &str| json!({"custom_id": id, "url": "/x", "body": {"item": item}}).to_string();
    let table = |job: &Job| {
        let output = job.paceline().args(["stats", "--items"]).ended_with_output();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let job = Job::with_input(&[line(&long, "bad"), line("fine", "good")].join("\n"));
    assert_eq!(finish(&mut job.run(&server)).0, 1);
    let cut = format!("{}… failed ", &long[..39]);
    assert!(table(&job).lines().nth(1).is_some_and(|row| row.starts_with(&cut)), "{}", table(&job));
    let job = Job::with_input(&line("fine", "good"));
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    assert_eq!(table(&job), "every item succeeded at its first call\n");
}

#[test]
fn scripts_find_the_status_first_and_the_scopes_last() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let text = std::fs::read_to_string(job.path("summary.json")).expect("a summary");
    assert!(text.starts_with("{\"status\":\"SUCCESS\",\"input\":2,"), "{text}");
    let keys: Vec<String> = job.summary().as_object().expect("an object").keys().cloned().collect();
    assert_eq!(keys.last().map(String::as_str), Some("scopes"));
    let stats = job.paceline().args(["stats", "--json"]).ended_with_output();
    let text = String::from_utf8_lossy(&stats.stdout);
    assert!(text.starts_with("{\"input\":2,\"succeeded\":2,"), "{text}");
}

#[test]
fn with_a_log_of_json_all_of_standard_error_is_json() {
    let server = Server::new(|_| Reply::ok());
    let lines = |command: &mut Command| -> Vec<Value> {
        let (_, log) = finish(command.args(["--log-format", "json"]));
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    };
    let job = Job::new(2);
    let run = lines(&mut job.run(&server));
    let last = run.last().expect("a summary");
    assert_eq!((&last["level"], &last["summary"]["succeeded"]), (&json!("INFO"), &json!(2)), "{run:?}");
    assert_eq!(last["message"], "SUCCESS  2 items: 2 succeeded, 0 failed, 0 skipped, 0 not finished");
    let refused = lines(job.run(&server).args(["--rpm", "none"]));
    let last = refused.last().expect("an error");
    assert!(last["level"] == "ERROR" && last["message"].to_string().contains("--rpm"), "{refused:?}");
    let store = Store::of(&["a"]);
    assert!(!lines(store.command().args(["--http", "--base-url", &server.url()])).is_empty());
}

#[test]
fn answers_that_were_cut_at_their_limit_are_counted() {
    let server = Server::new(|arrival| {
        let ending = if arrival.item == "item-0" { "stop" } else { "length" };
        Reply::new(200, &json!({"choices": [{"finish_reason": ending, "message": {"content": "x"}}]}))
    });
    let job = Job::new(3);
    let (code, log) = finish(&mut job.run(&server));
    assert!(
        code == 0 && log.contains("2 answers of this run ended at a bound on tokens (such as --max-output-tokens, "),
        "{log}"
    );
    assert_eq!(job.summary()["cut_at_token_limit"], 2);
}

/// Two outputs may have one name for their journal, and it is the only record of what was paid.
#[test]
fn a_journal_of_another_job_is_not_to_be_deleted() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    let run =
        |output: &str, base: &str| finish(job.paceline().args(["run", "in.jsonl", "-o", output, "--base-url", base]));
    for (first, second) in [("out", "out.jsonl"), ("b.jsonl", "b")] {
        assert_eq!(run(first, &server.url()).0, 0);
        let (code, log) = run(second, &server.url());
        let told = format!("seems to be that of the job -o {first}: go on with that one, or choose another -o");
        assert!(code == 2 && log.contains(&told) && !log.contains("delete"), "{log}");
    }
    let (code, log) = finish(job.paceline().args([
        "run",
        "in.jsonl",
        "-o",
        "c.jsonl",
        "--upstream",
        "openai",
        "--base-url",
        "http://127.0.0.1:9/v1/chat/completions/",
    ]));
    let told = "expected an address without /v1/chat/completions, which each call puts behind it: http://127.0.0.1:9";
    assert!(code == 2 && log.contains(told), "{log}");
}

#[test]
fn keys_of_lines_that_are_not_sent_are_told_once_before_the_first_call() {
    let server = Server::new(|_| Reply::ok());
    let line =
        |page: u32| json!({"custom_id": page, "method": "GET", "url": "/x", "params": {"page": page}}).to_string();
    let job = Job::with_input(&[1, 2, 3].map(line).join("\n"));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    let told = "3 lines have a key that is not sent, such as \"params\" in line 1: a request is made of method, url, headers and body";
    assert_eq!(log.matches(told).count(), 1, "{log}");
    assert!(log.contains("2 lines repeat an address of a line before, such as /x: each of them is a call"), "{log}");
    let job = Job::with_input("");
    let table = "url,note\n/a,x\n/b,y\n/a,z\n";
    std::fs::write(job.path("t.csv"), table).expect("writable");
    let (code, log) = finish(job.paceline().args(["run", "t.csv", "-o", "out.jsonl", "--base-url", &server.url()]));
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("1 line repeats an address of a line before, such as /a: each of them is a call"), "{log}");
    assert!(!log.contains("not sent"), "a table has columns for other ends: {log}");
    let flags = ["run", "t.csv", "-o", "ids.jsonl", "--id-column", "url", "--base-url", &server.url()];
    let (code, log) = finish(job.paceline().args(flags));
    assert!(code == 2 && log.contains("duplicate_custom_id"), "{log}");
    assert!(!log.contains("each of them is a call"), "none is: {log}");
}

#[test]
fn what_overwrite_deletes_is_told_before() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let (code, log) = finish(job.run(&server).arg("--overwrite"));
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("--overwrite deletes 2 results in ") && log.contains(", of 2 calls"), "{log}");
    assert!(!finish(Job::new(1).run(&server).arg("--overwrite")).1.contains("deletes"), "there is nothing");
    // They were paid for, whatever became of the journal.
    let told =
        |what: &str| format!("--overwrite {what} 2 results in out.jsonl, and no journal tells what they have cost");
    std::fs::remove_file(job.path("out.journal")).expect("it is there");
    let (_, log) = finish(job.run(&server).args(["--overwrite", "--dry-run"]));
    assert!(log.contains(&told("would delete")), "{log}");
    let (code, log) = finish(job.run(&server).arg("--overwrite"));
    assert!(code == 0 && log.contains(&told("deletes")), "{log}");
}

#[test]
fn another_input_than_that_of_the_job_is_told_as_that() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    std::fs::write(job.path("other.jsonl"), crate::support::line("other")).expect("writable");
    let mut command = job.paceline();
    let (code, log) = finish(command.args(["run", "other.jsonl", "-o", "out.jsonl", "--base-url", &server.url()]));
    assert_eq!(code, 2, "{log}");
    assert!(
        log.contains("other.jsonl is not the input that this job began with (") && log.contains("in.jsonl)"),
        "{log}"
    );
}

#[cfg(unix)]
#[test]
fn a_host_that_always_throttles_is_told_with_the_bound_that_would_end_it() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 1));
    let job = Job::new(1);
    let run = job.run(&server).stderr(Stdio::piped()).spawn().expect("it starts");
    server.wait_for(12);
    interrupt(run.id());
    let output = run.ended_with_output();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{log}");
    let told = "in this run with a rate limit: --max-deferrals 10 fails an item after so many";
    assert!(log.contains("the server answered each of its ") && log.contains(told), "{log}");
}

/// A job that is done is not told as one to go on with, and what only reports is not told as put off.
#[cfg(target_os = "linux")]
#[test]
fn an_output_that_cannot_be_written_is_told_as_that() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let told = |command: &mut Command| {
        let output = command.stdout(full()).ended_with_output();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    let (code, log) = told(job.run(&server).arg("--json"));
    assert_eq!(code, Some(3), "{log}");
    assert!(
        log.contains("cannot write to standard output: ") && log.contains("the job itself is done (SUCCESS)"),
        "{log}"
    );
    assert!(!log.contains("the results so far are kept"), "{log}");
    for report in [["check", "--base-url", "http://127.0.0.1:9"], ["stats", "out.jsonl", "--json"]] {
        let (code, log) = told(job.paceline().args(report));
        assert!(code == Some(2) && log.contains("cannot write to standard output"), "{log}");
    }
}

/// Not even the runtime has room there.
#[cfg(unix)]
#[test]
fn a_process_that_may_open_almost_no_file_says_what_to_raise() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    let mut command = Command::new("sh");
    let run = r#"ulimit -n 8; exec "$0" run in.jsonl -o out.jsonl --base-url "$1""#;
    command.current_dir(job.path("")).args(["-c", run, env!("CARGO_BIN_EXE_paceline"), &server.url()]);
    let (code, log) = finish(&mut command);
    assert!(code == 2 && log.contains("raise `ulimit -n`"), "{log}");
}
