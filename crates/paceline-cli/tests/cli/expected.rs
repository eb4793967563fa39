//! What a success has to be where `--expect` names a schema.

use paceline_store::work::{NewItem, State};
use serde_json::json;

use crate::support::{Job, Reply, Server, finish};
use crate::tasks_run::{Store, ran};

const WRONG: &str = r#"{"rates": [{"usd": 1}, {"usd": "a"}]}"#;
const WORDS: &str = "the answer does not match the schema: /rates/1/usd: want number, but got string";

/// Answers at an item's first call with a rate that is no number.
fn rates() -> Server {
    Server::new(|arrival| {
        let body = if arrival.before == 0 { WRONG } else { r#"{"rates": [{"usd": 1.5}]}"# };
        Reply::text(200, "application/json", body)
    })
}

fn with_schema(job: &Job) {
    let rate = json!({"type": "object", "required": ["usd"], "properties": {"usd": {"type": "number"}}});
    let schema = json!({"type": "object", "required": ["rates"], "properties": {"rates": {"items": rate}}});
    std::fs::write(job.path("schema.json"), schema.to_string()).expect("writable");
}

#[test]
fn an_answer_that_does_not_match_is_no_success_and_the_report_says_where() {
    let (job, server) = (Job::new(1), rates());
    with_schema(&job);
    let (code, log) = finish(job.run(&server).args(["--expect", "schema.json"]));
    assert_eq!((code, server.count()), (0, 2), "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["body"]["rates"][0]["usd"], 1.5);
    let job = Job::new(1);
    with_schema(&job);
    let (code, log) = finish(job.run(&rates()).args(["--expect", "schema.json", "--max-retries", "0"]));
    let row = &job.lines("out.report.jsonl")[0];
    assert_eq!((code, &row["code"], &row["class"]), (1, &json!("schema_mismatch"), &json!("transient")), "{log}");
    assert_eq!(row["last_error"], WORDS);
    assert_eq!(job.lines("out.errors.jsonl")[0]["response"]["body"]["rates"][1]["usd"], "a", "what came is kept");
}

#[test]
fn a_refused_answer_is_paid_and_counted() {
    let server = Server::new(|arrival| {
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
        let rate = if arrival.before < 2 && arrival.item == "item-0" { json!("a") } else { json!(1) };
        Reply::new(200, &json!({"object": "chat.completion", "usage": usage, "rates": [{"usd": rate}]}))
    });
    let job = Job::new(2);
    with_schema(&job);
    let run = |flags: &[&str]| finish(job.run(&server).args(["--expect", "schema.json"]).args(flags));
    let tokens = || (job.summary()["tokens_in"].clone(), job.summary()["tokens_out"].clone());
    let (code, log) = run(&["--max-retries", "1"]);
    assert_eq!((code, server.count(), tokens()), (1, 3, (json!(9), json!(6))), "{log}");
    let (code, log) = run(&["--retry-failed"]);
    assert_eq!((code, server.count(), tokens()), (0, 4, (json!(12), json!(8))), "{log}");
    assert!(log.contains("12 tokens in, 8 out"), "{log}");
}

#[test]
fn an_item_of_a_store_fails_likewise() {
    let (store, server) = (Store::new(), rates());
    with_schema(&store.job);
    store.add("a", &json!({"url": "/v1/completions", "body": {}}));
    let flags = ["--http", "--base-url", &server.url(), "--expect", "schema.json", "--max-retries", "0"];
    assert_eq!(ran(store.command().args(flags)).code, 1);
    let item = store.item("a");
    assert_eq!((item.state, item.last.expect("a failure").message.as_str()), (State::Failed, WORDS));
}

#[test]
fn a_schema_that_no_answer_matches_ends_the_run_before_it_has_cost_every_try() {
    let server = Server::new(|_| Reply::text(200, "application/json", WRONG));
    let flags = ["--expect", "schema.json", "--concurrency", "2"];
    let job = Job::new(30);
    with_schema(&job);
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, &job.summary()["stopped"], job.lines("out.errors.jsonl").len()), (3, &json!("same_failure"), 0));
    assert!(log.contains(&format!("the first 20 items all failed the same way with status 200: {WORDS}")), "{log}");
    assert!(log.contains("correct what --expect asks for, the requests, or the key and its header"), "{log}");
    assert!(
        log.contains("the refused answers may be billed, and are in no file; --expect checks the whole body"),
        "{log}"
    );
    assert!(log.contains("left for the next run (last try: a server error, no connection, no answer in time or one that cannot be used)"), "{log}");

    let store = Store::of(&[]);
    with_schema(&store.job);
    store
        .put((0..30).map(|n| NewItem::new(format!("item-{n}"), r#"{"url": "/v1/completions", "body": {}}"#)).collect());
    let run = ran(store.command().args(["--http", "--base-url", &server.url()]).args(flags));
    assert_eq!((run.code, &run.summary["stopped"]), (3, &json!("same_failure")), "{}", run.log);
    assert_eq!(store.item("item-0").state, State::Deferred, "{}", run.log);
}

/// Each answer is paid for, in each run of the job.
#[test]
fn a_schema_that_no_answer_matches_costs_twenty_calls_a_run_however_often_items_are_tried() {
    for retries in ["0", "1", "7"] {
        let server = Server::new(|_| Reply::text(200, "application/json", WRONG));
        let job = Job::new(200);
        with_schema(&job);
        let run = |flags: &[&str]| finish(job.run(&server).args(["--expect", "schema.json"]).args(flags));
        // An item that has failed says no more than that.
        let (code, log) = run(&["--stop-after-same", "0", "--max-items", "1", "--max-retries", "0"]);
        assert_eq!((code, server.count(), job.ended_ids().len()), (3, 1, 1), "{log}");
        for calls in [21, 41] {
            let (code, log) = run(&["--max-retries", retries]);
            assert_eq!((code, server.count(), job.ended_ids().len()), (3, calls, 1), "{retries} retries: {log}");
        }
    }
}

#[test]
fn a_schema_that_cannot_be_used_is_refused_before_the_first_request() {
    let (store, server) = (Store::of(&[]), rates());
    store.add("a", &json!({"url": "/v1/completions", "body": {}}));
    for (content, expected) in [
        (None, "--expect schema.json: expected json, or the file of a JSON schema, which cannot be read: No such file"),
        (Some("{\"type\":"), "--expect schema.json: the file is no JSON: EOF while parsing a value at line 1 column 8"),
        (
            Some(r#"{"properties": {"a": {"type": "strnig"}}}"#),
            "--expect schema.json: the file is no JSON schema: /properties/a/type: value must be one of",
        ),
    ] {
        let job = Job::new(1);
        for job in [&job, &store.job] {
            content.map_or(Ok(()), |content| std::fs::write(job.path("schema.json"), content)).expect("writable");
        }
        let http = ["--http", "--base-url", &server.url()];
        for command in [&mut job.run(&server), store.command().args(http)] {
            let (code, log) = finish(command.args(["--expect", "schema.json"]));
            assert_eq!(code, 2, "{log}");
            assert!(log.contains(expected), "{log}");
        }
    }
    assert_eq!(server.count(), 0);
}
