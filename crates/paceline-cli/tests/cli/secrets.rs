//! Keys: a server that repeats them, users who write them where they do not belong, and who else can read them.

use serde_json::Value;

use crate::support::{Job, Reply, Server, finish};

const KEY: &str = "abcd/efgh/SECRET+1234";

/// Every spelling in which a key was seen to come back: PHP's JSON, JSON in JSON, a query, base64.
const SPELLED: [&str; 5] = [
    r#"{"error":{"message":"Incorrect API key provided: abcd\/efgh\/SECRET+1234"}}"#,
    r#"{"error":{"message":"Incorrect API key provided: \u0061bcd/efgh/\u0053ECRET+1234","code":"abcd/efgh/SECRET+1234"}}"#,
    r#"{"error":{"message":"{\"key\":\"\\u0061bcd\\\/efgh\\\/SECRET+1234\"}"}}"#,
    r#"{"error":{"message":"no access to /?key=abcd%2Fefgh%2fSECRET%2B1234"}}"#,
    r#"{"error":{"message":"YWJjZC9lZmdoL1NFQ1JFVCsxMjM0 is no key"}}"#,
];

fn holds_key(text: &str) -> bool {
    ["SECRET", r"\u0053ECRET", "YWJjZC9lZmdo"].iter().any(|part| text.contains(part))
}

#[test]
fn a_key_that_is_repeated_escaped_is_not_stored_and_json_stays_json() {
    let server = Server::new(|arrival| {
        let item: usize = arrival.item.trim_start_matches("item-").parse().expect("a number");
        let status = if item < SPELLED.len() { 400 } else { 200 };
        let repeated = arrival.headers["authorization"].to_str().expect("text").to_owned();
        Reply::text(status, "application/json", SPELLED[item % SPELLED.len()]).with_header("x-request-id", repeated)
    });
    let job = Job::new(2 * SPELLED.len());
    let mut command = job.run(&server);
    command.args(["--api-key-env", "MY_KEY", "--log-format", "json"]).env("MY_KEY", KEY);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 1, "{log}");
    assert!(!holds_key(&log) && log.contains("Incorrect API key provided: [key]"), "{log}");
    assert_eq!(job.lines("out.errors.jsonl").len() + job.lines("out.jsonl").len(), 2 * SPELLED.len());
    for line in job.lines("out.jsonl").iter().chain(&job.lines("out.errors.jsonl")) {
        let message = line.pointer("/response/body/error/message").and_then(Value::as_str).expect("JSON within");
        assert!(message.contains("[key]"), "{line}");
        assert_eq!(line["response"]["request_id"], "Bearer [key]");
    }
    for file in ["out.jsonl", "out.errors.jsonl", "out.report.jsonl", "out.journal", "summary.json"] {
        let bytes = std::fs::read(job.path(file)).expect("written");
        assert!(!holds_key(&String::from_utf8_lossy(&bytes)), "{file}");
    }
}
