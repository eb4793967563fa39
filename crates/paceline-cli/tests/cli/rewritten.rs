//! Results in the order of the input, and failed items sent again.

use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish, line};

const ITEMS: usize = 40;

/// Answers in an order that is not that of the input; item-5 and item-20 fail, as often as they come.
fn disorderly(arrival: &crate::support::Arrival) -> Reply {
    let number: u64 = arrival.item["item-".len()..].parse().expect("a number");
    match number {
        5 | 20 => Reply::error(404, "model_not_found"),
        _ => Reply::ok().after(Duration::from_millis(number * 7 % 13)),
    }
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["custom_id"].as_str().expect("text")).collect()
}

fn succeeding() -> Vec<String> {
    (0..ITEMS).filter(|n| ![5, 20].contains(n)).map(|n| format!("item-{n}")).collect()
}

#[test]
fn ordered_results_stand_as_the_input_does_and_a_rerun_changes_nothing() {
    let server = Server::new(disorderly);
    let job = Job::new(ITEMS);
    let (code, log) = finish(job.run(&server).args(["--ordered", "--pace", "fixed"]));
    assert_eq!(code, 1, "{log}");
    job.assert_adds_up(ITEMS);
    assert_eq!(ids(&job.lines("out.jsonl")), succeeding());
    assert_eq!(ids(&job.lines("out.errors.jsonl")), ["item-5", "item-20"]);
    let changed = || job.path("out.jsonl").metadata().expect("there").modified().expect("a time");
    let (before, calls) = (changed(), server.count());
    let (code, log) = finish(job.run(&server).arg("--ordered"));
    assert_eq!((code, changed(), server.count()), (1, before, calls), "{log}");
}

#[test]
fn ordered_results_can_be_compressed_and_nothing_else() {
    let server = Server::new(disorderly);
    let job = Job::new(ITEMS);
    let run = |flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl.gz", "--base-url", &server.url(), "--pace", "fixed"]);
        finish(command.args(flags))
    };
    let (code, log) = run(&[]);
    assert_eq!(
        (code, log.as_str()),
        (
            2,
            "error: -o out.jsonl.gz is compressed, and only ordered results can be: add --ordered, or write to \
             out.jsonl\n"
        )
    );
    assert_eq!(server.count(), 0);

    let (code, log) = run(&["--ordered"]);
    assert_eq!(code, 1, "{log}");
    assert!(!job.path("out.jsonl").exists());
    assert_eq!(ids(&packed_lines(&job)), succeeding());
    assert_eq!(ids(&job.lines("out.errors.jsonl")), ["item-5", "item-20"]);
    let calls = server.count();
    assert_eq!(run(&["--ordered"]).0, 1);
    assert_eq!(server.count(), calls);
    assert_eq!(run(&["--ordered", "--retry-failed"]).0, 1);
    assert_eq!(server.count(), calls + 2);
    assert_eq!(ids(&packed_lines(&job)), succeeding());
    assert!(!job.path("out.jsonl").exists());
}

#[test]
fn compressed_results_take_no_place_of_another_file() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let run = |input: &str, flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", input, "-o", "out.jsonl.gz", "--ordered", "--base-url", &server.url()]);
        finish(command.args(flags))
    };
    std::fs::copy(job.path("in.jsonl"), job.path("out.jsonl.gz")).expect("writable");
    let (code, log) = run("out.jsonl.gz", &["--overwrite"]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("the compressed results and the input are the same file"), "{log}");
    let (code, log) = run("in.jsonl", &[]);
    assert_eq!((code, server.count()), (2, 0), "{log}");
    assert!(log.contains("out.jsonl.gz exists"), "{log}");
    let (code, log) = run("in.jsonl", &["--overwrite"]);
    assert_eq!(code, 0, "{log}");
    assert_eq!(packed_lines(&job).len(), 3);
}

fn packed_lines(job: &Job) -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(job.path("out.jsonl.gz")).expect("there");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn retried_items_are_those_that_failed_and_their_sends_stay_counted() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-5", 0..=3) => Reply::error(503, "unavailable"),
        ("item-20", _) => Reply::error(404, "model_not_found"),
        _ => Reply::ok(),
    });
    let job = Job::new(ITEMS);
    let run = |flags: &[&str]| finish(job.run(&server).args(["--max-retries", "2"]).args(flags));
    let (code, log) = run(&[]);
    assert_eq!((code, server.count()), (1, ITEMS + 2), "{log}");
    let (code, log) = run(&["--retry-failed"]);
    assert_eq!((code, server.count()), (1, ITEMS + 2 + 2 + 1), "two tries of item-5 and one of item-20: {log}");
    assert!(log.contains("2 items that failed before"), "{log}");
    job.assert_adds_up(ITEMS);
    assert_eq!(ids(&job.lines("out.errors.jsonl")), ["item-20"]);
    let summary = job.summary();
    assert_eq!((&summary["calls"], &summary["resends"]), (&json!(ITEMS + 5), &json!(5)));
    let rows = job.lines("out.report.jsonl");
    let attempts: Vec<_> = rows.iter().map(|row| (row["custom_id"].as_str(), row["attempts"].as_u64())).collect();
    assert_eq!(attempts, [(Some("item-5"), Some(5)), (Some("item-20"), Some(2))]);

    let (code, _) = run(&[]);
    assert_eq!((code, server.count()), (1, ITEMS + 5));
}

#[test]
fn a_failed_item_is_sent_as_its_line_stands_now() {
    // A misspelt model fails, and so does a line that is no request.
    let server = Server::new(|arrival| match String::from_utf8_lossy(&arrival.body).contains("gtp-4o") {
        true => Reply::error(404, "model_not_found"),
        false => Reply::ok(),
    });
    let good = |n: usize| line(&format!("item-{n}"));
    let wrong = |n: usize| good(n).replace("\"m\"", "\"gtp-4o\"");
    let job = Job::with_input(&[good(0), wrong(1), "{".to_owned(), wrong(3), good(4)].join("\n"));
    let run = |flags: &[&str]| finish(job.run(&server).arg("--skip-bad-lines").args(flags));
    let (code, log) = run(&[]);
    assert_eq!((code, server.count(), job.lines("out.errors.jsonl").len()), (1, 4, 3), "{log}");
    let results = std::fs::read(job.path("out.jsonl")).expect("results");

    let rewrite = |lines: &[String]| std::fs::write(job.path("in.jsonl"), lines.join("\n") + "\n").expect("writable");
    let one = "1 line of in.jsonl changed although its item has not failed, so no request was sent";
    for (lines, told, expected) in [
        (vec![wrong(0), good(1), good(2), wrong(3), good(4)], one, "line 1: the request changed, its id did not"),
        (vec![good(0), good(1), good(2), wrong(3), good(4), good(5)], one, "line 6: its id is new"),
        (
            vec![good(0), good(2), wrong(3), good(4)],
            "2 lines of in.jsonl changed otherwise than --retry-failed allows (the line of a failed item may be corrected, and not removed)",
            "the id of the former line 2 is gone",
        ),
    ] {
        rewrite(&lines);
        let (code, log) = run(&["--retry-failed"]);
        assert_eq!((code, server.count()), (2, 4), "{log}");
        // Of an item that has succeeded no flag takes another line.
        let may_not_have_ended = log.contains("add --accept-changed-input if ");
        assert!(log.contains(told) && log.contains(expected), "{log}");
        assert_eq!(may_not_have_ended, !expected.starts_with("line 1: "), "{log}");
        assert_eq!(job.lines("out.errors.jsonl").len(), 3);
    }
    // The last of these lacks the line of an item that failed, which no flag takes.
    let (code, log) = run(&["--accept-changed-input"]);
    let advice = "\nrestore those lines, or use another output for the new input";
    assert!(code == 2 && log.contains(advice), "{log}");

    rewrite(&[good(0), good(1), good(2), wrong(3), good(4)]);
    assert_eq!(run(&[]).0, 2, "without the flag the input must not change");
    let (code, log) = run(&["--accept-changed-input"]);
    let advice =
        "\nrestore those lines, add --retry-failed if their items failed, or use another output for the new input";
    assert!(code == 2 && log.contains("items that ended can no longer be found") && log.contains(advice), "{log}");
    let (code, log) = run(&["--retry-failed"]);
    assert_eq!((code, server.count()), (1, 7), "the three that failed: {log}");
    assert!(log.contains("3 items that failed before"), "{log}");
    job.assert_adds_up(5);
    assert_eq!(ids(&job.lines("out.errors.jsonl")), ["item-3"]);
    assert!(std::fs::read(job.path("out.jsonl")).expect("results").starts_with(&results), "what succeeded stays");

    // With both flags a line may come as well.
    rewrite(&[good(0), good(1), good(2), good(3), good(4), good(5)]);
    let (code, log) = run(&["--retry-failed", "--accept-changed-input"]);
    assert_eq!((code, server.count()), (0, 9), "{log}");
    job.assert_adds_up(6);
    let (code, log) = run(&[]);
    assert_eq!((code, server.count()), (0, 9), "it is the job's input now: {log}");
}

fn refuses_what_is_wrong() -> Server {
    Server::new(|arrival| match String::from_utf8_lossy(&arrival.body).contains("wrong") {
        true => Reply::error(400, "bad_request"),
        false => Reply::ok(),
    })
}

fn run_table(job: &Job, server: &Server, table: &str, flags: &[&str]) -> (i32, String) {
    std::fs::write(job.path("in.csv"), table).expect("writable");
    let mut command = job.paceline();
    command.args(["run", "in.csv", "-o", "out.jsonl", "--base-url", &server.url(), "--model", "m"]);
    finish(command.args(["--endpoint", "/v1/chat/completions"]).args(flags))
}

/// A table is copied as requests, and so is what it is compared with.
#[test]
fn a_repaired_table_is_looked_at_before_it_is_sent() {
    let (server, job) = (refuses_what_is_wrong(), Job::new(0));
    let run = |table: &str, flags: &[&str]| run_table(&job, &server, table, flags);
    assert_eq!(run("id,prompt\na,one\nb,wrong\n", &[]).0, 1);
    let repaired = "id,prompt\na,one\nb,two\n";
    let copy = std::fs::read(job.path("out.input")).expect("the copy");
    for flags in [&["--retry-failed", "--dry-run"][..], &["--retry-failed", "--accept-changed-input", "--dry-run"]] {
        let (code, log) = run(repaired, flags);
        assert_eq!((code, server.count()), (0, 2), "{log}");
        assert_eq!(std::fs::read(job.path("out.input")).expect("the copy"), copy, "the job is as it was");
    }
    let (code, log) = run("id,prompt\na,other\nb,two\n", &["--retry-failed", "--dry-run"]);
    assert!(code == 2 && log.contains("line 2: the request changed, its id did not"), "{log}");
    let (code, log) = run(repaired, &["--retry-failed"]);
    assert_eq!((code, server.count()), (0, 3), "{log}");
    assert!(log.contains("1 item that failed before will be sent again"), "{log}");
}

/// A row that gets another line moves those behind it, and what they are called does not change.
#[test]
fn a_bad_row_of_a_table_is_known_below_a_row_that_became_longer() {
    let (server, job) = (refuses_what_is_wrong(), Job::new(0));
    let run = |table: &str, flags: &[&str]| run_table(&job, &server, table, &[&["--skip-bad-lines"], flags].concat());
    let (code, log) = run("id,prompt\na,wrong\nb\nc,three\nd\ne,five\n", &[]);
    assert_eq!((code, server.count(), job.lines("out.errors.jsonl").len()), (1, 3, 3), "{log}");
    assert_eq!(ids(&job.lines("out.errors.jsonl")), ["row-2", "row-4", "a"]);

    let (code, log) = run("id,prompt\na,\"one\n\nmore\"\nb\nc,three\nd\ne,five\n", &["--retry-failed"]);
    assert_eq!((code, server.count()), (1, 4), "the bad rows are as they were: {log}");
    let (code, log) = run("id,prompt\na,\"one\n\nmore\"\nb,two\nc,three\nd,four\ne,five\n", &["--retry-failed"]);
    assert_eq!((code, server.count()), (0, 6), "and go once they are repaired: {log}");
    let mut results = job.lines("out.jsonl");
    results.sort_by_key(|line| line["custom_id"].to_string());
    assert_eq!(ids(&results), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_pipe_may_be_repaired_or_left_out() {
    let server = Server::new(|arrival| match String::from_utf8_lossy(&arrival.body).contains("gtp-4o") {
        true => Reply::error(404, "model_not_found"),
        false => Reply::ok(),
    });
    let job = Job::new(0);
    let run = |text: &str, flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url()]).args(flags);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it runs");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), text.as_bytes()).expect("read");
        let output = child.ended_with_output();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let wrong = line("a").replace("\"m\"", "\"gtp-4o\"");
    assert_eq!(run(&wrong, &[]).0, Some(1));
    let (code, log) = run("", &["--retry-failed"]);
    assert_eq!((code, server.count()), (Some(1), 2), "nothing comes: the same again: {log}");
    let (code, log) = run(&line("a"), &["--retry-failed"]);
    assert_eq!((code, server.count()), (Some(0), 3), "{log}");
}
