//! What a success has to be where `--expect` names a schema.

use paceline_store::work::{NewItem, State};
use serde_json::json;

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Job, Reply, Server, finish, start};
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
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_schema_that_no_answer_matches_ends_the_run_before_it_has_cost_every_try() {
    let server = Server::new(|_| Reply::text(200, "application/json", WRONG));
    let flags = ["--expect", "schema.json", "--concurrency", "2"];
    let job = Job::new(30);
    with_schema(&job);
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, &job.summary()["stopped"], job.lines("out.errors.jsonl").len()), (3, &json!("same_failure"), 0));
    assert!(log.contains(&format!("the first 20 items all failed the same way with status 200: {WORDS}")), "{log}");
    assert!(
        log.contains(
            "correct what --expect asks for, the requests, or the key and its header (their calls may be billed)"
        ),
        "{log}"
    );
    assert!(log.contains("--expect checks the whole body of an HTTP answer"), "{log}");
    assert!(
        log.contains(
            "once --expect is right, the same command with --done out.refused.jsonl takes over the answers that match"
        ),
        "{log}"
    );
    let kept = job.lines("out.refused.jsonl");
    assert_eq!(kept.len(), server.count(), "each answer that came is kept: {log}");
    assert!(log.contains(&format!("{} answers that --expect refused are in out.refused.jsonl", kept.len())), "{log}");
    assert!(log.contains("left for the next run (last answer: refused by --expect)"), "{log}");

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
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
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
            assert_eq!(job.lines("out.refused.jsonl").len(), calls, "{retries} retries: each answer is kept");
        }
    }
}

/// Their next tries come together, behind all that succeed.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn items_whose_answers_never_match_do_not_end_a_job_whose_others_do() {
    let is_bad = |item: &str| item.rsplit('-').next().and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n % 4 == 1);
    let server = Server::new(move |arrival| match is_bad(&arrival.item) {
        true => Reply::text(200, "text/html", "<html>no</html>"),
        false => Reply::ok(),
    });
    let job = Job::new(120);
    let (code, log) = finish(job.run(&server).args(["--expect", "json", "--max-retries", "2", "--concurrency", "4"]));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (1, &json!(90), &json!(30)), "{log}");
    assert!(server.by_item().iter().all(|(item, calls)| *calls == if is_bad(item) { 3 } else { 1 }), "{log}");
    job.assert_adds_up(120);
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

const LOGIN: &str = "<html><body>Log in</body></html>";

/// The items and calls of the answers that were refused, in the order of their lines.
fn kept(job: &Job) -> Vec<(String, u64)> {
    let lines = job.lines("out.refused.jsonl");
    let of = |line: &serde_json::Value| Some((line["custom_id"].as_str()?.to_owned(), line["attempt"].as_u64()?));
    lines.iter().map(|line| of(line).expect("an id and a call")).collect()
}

/// A page to log in, under 200, from a server that bills it.
#[test]
fn each_refused_answer_is_kept_whatever_becomes_of_its_item() {
    let server = Server::new(|arrival| match (&*arrival.item, arrival.before) {
        ("item-0", _) | ("item-1", 1..) => Reply::ok(),
        _ => Reply::text(200, "text/html", LOGIN),
    });
    let job = Job::new(3);
    let flags = ["--expect", "json", "--max-retries", "1", "--concurrency", "1"];
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, server.count()), (1, 5), "{log}");
    let mut answers = kept(&job);
    answers.sort_unstable();
    assert_eq!(answers, [("item-1".to_owned(), 1), ("item-2".to_owned(), 1), ("item-2".to_owned(), 2)]);
    for line in job.lines("out.refused.jsonl") {
        assert_eq!((&line["response"]["status_code"], &line["response"]["body"]), (&json!(200), &json!(LOGIN)));
        assert_eq!(line["error"]["code"], "not_json", "{line}");
    }
    assert!(log.contains("3 answers that --expect refused are in out.refused.jsonl (and may be billed)"), "{log}");
    assert_eq!(job.summary()["refused_answers"], 3);
    let (failed, row) = (&job.lines("out.errors.jsonl")[0], &job.lines("out.report.jsonl")[1]);
    assert_eq!(failed["response"]["body"], LOGIN);
    assert_eq!((&failed["error"]["code"], &failed["error"]["message"]), (&row["code"], &row["last_error"]), "{failed}");
    assert_eq!(row["code"], "not_json");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(job.path("out.refused.jsonl")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let (code, log) = finish(job.run(&server).args(flags).arg("--retry-failed"));
    assert_eq!((code, kept(&job).len()), (1, 5), "they are kept over all runs: {log}");
}

/// The answers were right, and the schema was not.
#[test]
fn refused_answers_are_taken_over_once_the_schema_is_corrected() {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
    let body = json!({"object": "chat.completion", "usage": usage, "rates": [{"usd": "1.5"}]});
    let server = Server::new(move |_| Reply::new(200, &body));
    let job = Job::new(3);
    with_schema(&job);
    let flags = ["--expect", "schema.json", "--max-retries", "1", "--max-items", "2", "--concurrency", "1"];
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, server.count(), kept(&job).len()), (3, 4, 4), "{log}");
    let tokens = job.summary()["tokens_in"].clone();
    let dry = job.run(&server).args(["--expect", "schema.json", "--retry-failed", "--dry-run"]).ended_with_output();
    let told = "2 of 2 items that failed are sent again: 2 with schema_mismatch\n";
    assert!(String::from_utf8_lossy(&dry.stdout).contains(told), "{dry:?}");
    std::fs::write(job.path("schema.json"), r#"{"type": "object", "required": ["rates"]}"#).expect("writable");
    let again = ["--expect", "schema.json", "--retry-failed", "--done", "out.refused.jsonl"];
    let (code, log) = finish(job.run(&server).args(again));
    assert!(log.contains("2 answers taken over from out.refused.jsonl; 2 lines more for the same items"), "{log}");
    assert_eq!((code, server.count(), &job.summary()["succeeded"]), (0, 5, &json!(3)), "{log}");
    assert_eq!((&job.summary()["tokens_in"], tokens), (&json!(15), json!(12)), "each call counts once: {log}");
    job.assert_adds_up(3);
}

#[test]
fn a_file_of_another_in_the_place_of_refused_answers_is_left_as_it_is() {
    let (job, server) = (Job::new(1), rates());
    std::fs::write(job.path("out.refused.jsonl"), "mine\n").expect("writable");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count(), &*job.text("out.refused.jsonl")), (2, 0, "mine\n"), "{log}");
    assert!(log.contains("out.refused.jsonl exists"), "{log}");
    let (code, log) =
        finish(job.paceline().args(["run", "out.refused.jsonl", "-o", "out.jsonl", "--base-url", &server.url()]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("the refused answers and the input are the same file"), "{log}");
}

/// Of the calls before the kill the answers that the journal knows are there, each once, and those after it are added.
#[test]
fn a_kill_loses_and_doubles_no_refused_answer_that_is_recorded() {
    let server = Server::new(|arrival| match (&*arrival.item, arrival.before) {
        ("item-3", 0) => Reply::ok().never(),
        (_, 0) => Reply::text(200, "text/html", LOGIN),
        _ => Reply::ok(),
    });
    let job = Job::new(5);
    let flags = ["--expect", "json", "--concurrency", "1", "--pace", "fixed"];
    let mut child = start(job.run(&server).args(flags));
    server.wait_until(|seen| seen.iter().any(|arrival| arrival.item == "item-3"));
    // Whatever moment it is, whole lines go before the journal's record of them.
    child.kill().expect("it runs");
    child.ended();
    let before = std::fs::read_to_string(job.path("out.refused.jsonl")).unwrap_or_default();
    let whole = &before[..before.rfind('\n').map_or(0, |end| end + 1)];
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!(code, 0, "{log}");
    assert!(job.text("out.refused.jsonl").starts_with(whole), "{log}");
    let mut answers = kept(&job);
    let all = answers.len();
    answers.sort_unstable();
    answers.dedup();
    assert_eq!((answers.len(), job.summary()["refused_answers"].as_u64()), (all, Some(all as u64)), "{log}");
    let refused = server.arrivals().iter().filter(|arrival| arrival.before == 0 && arrival.item != "item-3").count();
    assert!((whole.lines().count()..=refused).contains(&all), "{all} of {refused}: {log}");
    job.assert_adds_up(5);
}
