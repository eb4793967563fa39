//! Tables of a user who classifies texts: how rows are named, what is added to each request, and what is no table.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

const REVIEWS: &str = "review_id,text\nr-1,\"good,\nreally\"\nr-2,bad\nr-3,so so\n";

const ASKED: [&str; 4] = ["--model", "m", "--prompt-template", "Good or bad? {{ text }}"];

fn job(name: &str, content: &str) -> Job {
    let job = Job::new(0);
    std::fs::write(job.path(name), content).expect("writable");
    job
}

fn run(job: &Job, server: &Server, name: &str, args: &[&str]) -> (i32, String) {
    let mut command = job.paceline();
    command.args(["run", name, "-o", "out.jsonl", "--base-url", &server.url(), "--endpoint", "/v1/chat/completions"]);
    finish(command.args(args))
}

fn ids(job: &Job) -> Vec<Value> {
    let mut ids: Vec<_> = job.lines("out.jsonl").iter().map(|line| line["custom_id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    ids
}

#[test]
fn rows_are_named_by_a_column_and_requests_have_what_flags_add() {
    let server = Server::new(|_| Reply::ok());
    let job = job("reviews.csv", REVIEWS);
    let args = ["--id-column", "review_id", "--body", r#"{"temperature": 0}"#, "--system-prompt", "One word."];
    let (code, log) = run(&job, &server, "reviews.csv", &[&ASKED[..], &args].concat());
    assert_eq!(code, 0, "{log}");
    assert_eq!(ids(&job), [json!("r-1"), json!("r-2"), json!("r-3")]);
    let bodies = server.arrivals();
    let body: Value = serde_json::from_slice(&bodies[0].body).expect("JSON");
    assert_eq!(
        (&body["temperature"], &body["messages"][0]),
        (&json!(0), &json!({"role": "system", "content": "One word."}))
    );
    assert_eq!(body["messages"][1]["role"], "user");
    // Other requests are another job.
    let other = r#"{"temperature": 1}"#;
    for (changed, flag) in [
        (&["--id-column", "review_id", "--body", other, "--system-prompt", "One word."][..], "--body"),
        (&["--id-column", "review_id", "--body", r#"{"temperature": 0}"#], "--system-prompt"),
        (&args[2..], "--id-column"),
    ] {
        let (code, log) = run(&job, &server, "reviews.csv", &[&ASKED[..], changed].concat());
        assert!(code == 2 && log.contains(&format!("the input of this job, but {flag} was ")), "{log}");
    }
    assert_eq!(server.count(), 3);
}

#[test]
fn flags_that_cannot_act_on_a_table_are_refused_before_the_first_call() {
    let server = Server::new(|_| Reply::ok());
    let job = job("reviews.csv", REVIEWS);
    std::fs::write(job.path("list.txt"), "one\ntwo\n").expect("writable");
    std::fs::write(job.path("gap.csv"), "review_id,text\n,good\nr-2,bad\n").expect("writable");
    for (input, args, expected) in [
        (
            "reviews.csv",
            &["--id-column", "id"][..],
            "it has no column \"id\", which --id-column names; its columns are review_id, text",
        ),
        ("list.txt", &["--id-column", "id"], "--id-column names a column of a table"),
        ("gap.csv", &["--id-column", "review_id"], "nothing in review_id, the column that names it (--id-column)"),
        ("reviews.csv", &["--body", r#"{"model": "other"}"#], "--body has \"model\", which --model makes"),
        ("reviews.csv", &["--body", r#"{"messages": []}"#], "--body has \"messages\", which the prompt makes"),
        ("reviews.csv", &["--body", "[1]"], "expected a JSON object, such as {\"temperature\": 0}"),
    ] {
        let (code, log) = run(&job, &server, input, &[&ASKED[..], args].concat());
        assert!(code == 2 && log.contains(expected), "{expected} in {log}");
    }
    let bound = ["--max-output-tokens", "5", "--body", r#"{"max_tokens": 9}"#];
    let (code, log) = run(&job, &server, "reviews.csv", &[&ASKED[..], &bound].concat());
    assert!(code == 2 && log.contains("--body has \"max_tokens\", which --max-output-tokens makes"), "{log}");
    let (code, log) = run(&job, &server, "in.jsonl", &["--id-column", "id"]);
    assert!(code == 2 && log.contains("--id-column names a column of a table"), "{log}");
    assert_eq!(server.count(), 0);
}

#[test]
fn a_table_without_the_name_of_one_is_told_with_the_flag_that_it_needs() {
    let server = Server::new(|_| Reply::ok());
    let table = job("reviews.CSV", REVIEWS);
    let (code, log) = run(&table, &server, "reviews.CSV", &ASKED);
    assert_eq!((code, server.count()), (0, 3), "a name in capitals is one too: {log}");
    let advice = "its first lines are no JSON objects: if each line is a web address or a prompt, add --format text; if it is a table, --format csv";
    for content in [REVIEWS, "text\n", "one\ntwo\n{\"text\": \"three\"}\n"] {
        let other = job("reviews.data", content);
        let (code, log) = run(&other, &server, "reviews.data", &ASKED);
        assert!(code == 2 && log.contains("reviews.data: ") && log.contains(advice), "{log}");
        assert!(!other.path("out.journal").exists() && !other.path("out.input").exists());
    }
    let piped = job("x", "");
    let mut command = piped.paceline();
    command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url(), "--endpoint", "/v1/chat/completions"]);
    let mut child = command.args(ASKED).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    child.stdin.take().expect("piped").write_all(REVIEWS.as_bytes()).expect("it reads");
    let output = child.ended_with_output();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && log.contains("standard input: ") && log.contains(advice), "{log}");
    // One line that is none among those that are stays one bad line.
    let lines = job("rows.data", "{\"text\": \"one\"}\nno JSON\n{\"text\": \"two\"}\n");
    let (code, log) = run(&lines, &server, "rows.data", &[&ASKED[..], &["--skip-bad-lines"]].concat());
    assert_eq!((code, server.count()), (1, 5), "{log}");
}

/// Nothing stands for the same lines, and a table of nothing has no header either.
#[test]
fn a_table_that_came_through_a_pipe_need_not_come_again() {
    let server = Server::new(|_| Reply::ok());
    let job = job("reviews.csv", REVIEWS);
    let run = |input: Stdio, more: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "-", "--format", "csv", "-o", "out.jsonl", "--base-url", &server.url()]).stdin(input);
        command.args(["--endpoint", "/v1/chat/completions", "--id-column", "review_id"]).args(ASKED);
        finish(command.args(more))
    };
    let (code, log) = run(Stdio::null(), &[]);
    assert!(code == 2 && log.contains("expected a header, and below it a row for each request"), "{log}");
    let table = std::fs::File::open(job.path("reviews.csv")).expect("it is there");
    assert_eq!(run(table.into(), &["--max-items", "1"]).0, 3);
    for more in ["--dry-run", "--retry-failed", "-q"] {
        let (code, log) = run(Stdio::null(), &[more]);
        assert_eq!(code, 0, "{more}: {log}");
    }
    assert_eq!((server.count(), ids(&job)), (3, vec![json!("r-1"), json!("r-2"), json!("r-3")]));
}

#[test]
fn blanks_at_the_ends_of_an_address_and_a_method_are_not_sent() {
    let server = Server::new(|_| Reply::ok());
    let job = job("pages.csv", &format!("method,url\n GET , {}/a \n", server.url()));
    let mut command = job.paceline();
    command.args(["run", "pages.csv", "-o", "out.jsonl", "--base-url", &server.url(), "--id-column", "url"]);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 0, "{log}");
    assert_eq!((server.arrivals()[0].path.as_str(), ids(&job)), ("/a", vec![json!(format!("{}/a", server.url()))]));
}

#[test]
fn an_empty_row_is_not_said_to_be_asked() {
    let server = Server::new(|_| Reply::ok());
    let job = job("rows.csv", "id,text\na,one\nb,\n");
    let (code, log) =
        run(&job, &server, "rows.csv", &["--model", "m", "--prompt-template", "{{ text }}", "--skip-bad-lines"]);
    assert_eq!((code, server.count()), (1, 1), "{log}");
    assert!(log.contains("its prompt is empty") && !log.contains("asked all the same"), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn rows_that_moved_are_counted_once_and_told_to_have_no_names() {
    let server = Server::new(|arrival| {
        if String::from_utf8_lossy(&arrival.body).contains("very") {
            Reply::error(400, "invalid_prompt")
        } else {
            Reply::ok()
        }
    });
    let rows = |bad: &str| format!("text\n{bad}\none\ntwo\n");
    let table = job("rows.csv", &rows("\"bad\nvery\""));
    assert_eq!(run(&table, &server, "rows.csv", &ASKED).0, 1);
    std::fs::write(table.path("rows.csv"), rows("good")).expect("writable");
    let (code, log) = run(&table, &server, "rows.csv", &[&ASKED[..], &["--retry-failed"]].concat());
    assert!(code == 2 && log.contains("2 lines of rows.csv changed although their items have not failed"), "{log}");
    assert!(log.contains("lines without an id are named by their numbers") && log.contains("or --id-column)"), "{log}");
    // With names the repaired row may have as many lines as it likes.
    let rows = |bad: &str| format!("id,text\na,{bad}\nb,one\nc,two\n");
    let named = job("rows.csv", &rows("\"bad\nvery\""));
    assert_eq!(run(&named, &server, "rows.csv", &ASKED).0, 1);
    std::fs::write(named.path("rows.csv"), rows("good")).expect("writable");
    let (code, log) = run(&named, &server, "rows.csv", &[&ASKED[..], &["--retry-failed"]].concat());
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_key_as_the_value_of_another_flag_is_refused_and_kept_nowhere() {
    let server = Server::new(|_| Reply::ok());
    let job = job("rows.csv", "text\none\n");
    let key = "sk-MARK-b8-7f3a/+=Zq9\"x";
    let mut command = job.paceline();
    command.args([
        "run",
        "rows.csv",
        "-o",
        "out.jsonl",
        "--base-url",
        &server.url(),
        "--endpoint",
        "/v1/chat/completions",
    ]);
    command.args(["--prompt-template", "{{ text }}", "--api-key-env", "MY_KEY", "--model", key]).env("MY_KEY", key);
    let (code, log) = finish(&mut command);
    assert_eq!((code, server.count()), (2, 0), "{log}");
    assert!(log.contains("the value of --model is the key of the upstream") && !log.contains("7f3a"), "{log}");
    assert!(!job.path("out.journal").exists() && !job.path("out.input").exists());
}
