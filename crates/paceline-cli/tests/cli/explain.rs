//! `paceline explain`: answers that the user saved, and what they mean.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, finish};

const THROTTLE: &str = "HTTP/1.1 429 Too Many Requests\r\nDate: Fri, 20 Nov 2026 12:00:00 GMT\r\nRetry-After: 2\r\n\
    retry-after-ms: 1386\r\nX-RateLimit-Limit-Tokens: 30000\r\nx-ratelimit-remaining-tokens: 2240\r\n\
    x-ratelimit-reset-tokens: 55.52s\r\n\r\n\
    {\"error\":{\"message\":\"Rate limit reached\",\"type\":\"tokens\",\"code\":\"rate_limit_exceeded\"}}";

/// What the command prints for a text on its standard input, with its exit code and log.
fn explain(job: &Job, args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = job.paceline();
    command.arg("explain").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // A command that refuses its flags does not read: that is no failure here.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.ended_with_output();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

fn as_json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn json_has_the_keys_that_scripts_rely_on() {
    let (code, out, _) = explain(&Job::new(0), &["--provider", "openai", "--json"], THROTTLE);
    let limits = json!([{"dimension": "tokens", "limit": 30_000, "remaining": 2_240, "reset_ms": 55_520,
        "window_ms": 60_000}]);
    let found = as_json(&out);
    assert_eq!(code, 0);
    for (key, expected) in [
        ("class", json!("throttled")),
        ("action", json!("retry")),
        ("scope", json!("model")),
        ("wait_ms", json!(1_386)),
        ("wait_from", json!("retry-after-ms")),
        ("limits", limits),
        ("words", json!("Rate limit reached")),
    ] {
        assert_eq!(found[key], expected, "{key} of {out}");
    }
    assert!(found["steps"].as_array().is_some_and(|steps| !steps.is_empty()));
    let (_, out, _) = explain(&Job::new(0), &["--json"], "HTTP/1.1 503\n\n");
    let found = as_json(&out);
    assert_eq!((&found["wait_ms"], &found["wait_from"]), (&Value::Null, &json!("policy")));
}

#[test]
fn a_file_is_read_like_standard_input() {
    let job = Job::new(0);
    std::fs::write(job.path("answer.txt"), THROTTLE).expect("writable");
    let (code, from_file, _) = explain(&job, &["answer.txt", "--provider", "openai"], "");
    let (_, from_stdin, _) = explain(&job, &["--provider", "openai"], THROTTLE);
    assert_eq!((code, &from_file), (0, &from_stdin));
    assert!(from_file.contains("throttled") && from_file.contains("retry-after-ms: 1386"), "{from_file}");
}

#[test]
fn the_clock_of_an_answer_without_a_date_can_be_given() {
    let answer = "HTTP/1.1 429\nretry-after: Fri, 20 Nov 2026 12:00:45 GMT\n\n";
    let (_, out, _) = explain(&Job::new(0), &["--json", "--now", "2026-11-20T12:00:00Z"], answer);
    assert_eq!(as_json(&out)["wait_ms"], 45_000);
}

#[test]
fn many_answers_are_read_line_by_line() {
    let lines = [
        json!({"provider": "dynamodb", "status": 200, "headers": {}, "body": {"UnprocessedItems": {"t": [{}]}}}),
        json!({"provider": "github", "status": 403, "headers": {"Retry-After": "9"}, "body": "{}"}),
        json!({"provider": "somebody", "status": 429, "headers": {"retry-after": ["3", "5"]}, "body": ""}),
        json!({"status": 200, "body": {"usage": {}}}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (code, out, _) = explain(&Job::new(0), &["--jsonl"], &input);
    let found: Vec<Value> = out.lines().map(as_json).collect();
    let actions: Vec<_> = found.iter().map(|one| one["action"].as_str().unwrap_or_default()).collect();
    assert_eq!((code, &*actions), (0, &["retry_remainder", "retry", "retry", "record"][..]));
    let waits: Vec<_> = found.iter().map(|one| one["wait_ms"].as_u64()).collect();
    assert_eq!(waits, [None, Some(9_000), Some(5_000), None]);
    let (code, out, log) = explain(&Job::new(0), &["--jsonl"], &format!("{}\nnot json\n", lines[1]));
    assert_eq!((code, out.lines().count()), (2, 1));
    assert!(log.contains("line 2"), "{log}");
}

#[test]
fn an_upstream_of_the_configuration_brings_its_rules() {
    let job = Job::new(0);
    let config = "[upstream.mine]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\n\
        [[upstream.mine.rule]]\nmatch = { status = 400, code = \"badNonce\" }\nclass = \"transient\"\nwait = \"0s\"\n";
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let answer = "HTTP/1.1 400\n\n{\"error\":{\"code\":\"badNonce\"}}";
    let (_, out, _) = explain(&job, &["--provider", "mine", "--json"], answer);
    let found = as_json(&out);
    assert_eq!((&found["class"], &found["wait_ms"]), (&json!("transient"), &json!(0)));
    let (_, out, _) = explain(&job, &["--provider", "openai", "--json"], answer);
    assert_eq!(as_json(&out)["class"], "invalid");
}

#[test]
fn what_cannot_be_explained_is_refused_with_words() {
    for (args, input, expected) in [
        (&["--provider", "nobody"][..], THROTTLE, &["nobody", "openai", "paceline.toml"][..]),
        (&["missing.txt"], "", &["missing.txt", "cannot be read"]),
        (&[], "", &["standard input", "curl -i"]),
        (&[], "{\"error\":{}}", &["--jsonl"]),
        (&[], "hello", &["line 1", "hello"]),
        (&[], "HTTP/1.1 200\nno header\n", &["line 2", "no header"]),
        (&["--now", "noon"], THROTTLE, &["--now", "2026-11-20T12:00:00Z"]),
    ] {
        let (code, out, log) = explain(&Job::new(0), args, input);
        assert_eq!((code, &*out), (2, ""), "{args:?} {log}");
        assert!(expected.iter().all(|word| log.contains(word)), "{expected:?} in {log}");
    }
    let (code, _) = finish(Job::new(0).paceline().args(["explain", "--jsonl", "--bogus"]));
    assert_eq!(code, 2);
}

/// It is said to need `--base-url`, which this command has not.
#[test]
fn an_upstream_without_an_address_reads_answers_too() {
    let job = Job::new(0);
    std::fs::write(job.path("paceline.toml"), "[upstream.generic]\nscope = 'host'\n").expect("writable");
    let (code, out, log) = explain(&job, &["--json"], "HTTP/1.1 503\n\n");
    assert_eq!((code, &as_json(&out)["class"]), (0, &json!("overloaded")), "{log}");
}

#[test]
fn an_upstream_reads_answers_by_its_own_headers() {
    let job = Job::new(1);
    let config = "[upstream.legacy]\nbase_url = 'http://127.0.0.1:1'\nwait_headers = ['X-Come-Back-In']\n\
        longest_pause = '10m'\n[[upstream.legacy.header]]\nlimit = 'X-Quota'\nremaining = 'X-Quota-Left'\nwindow = '1h'\n";
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    std::fs::write(job.path("a.txt"), "HTTP/1.1 429\nX-Quota: 90\nX-Quota-Left: 0\nX-Come-Back-In: 900\n\n")
        .expect("writable");
    let explained = |provider: &str| -> Value {
        let output = job.paceline().args(["explain", "a.txt", "--json", "--provider", provider]).ended_with_output();
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let legacy = explained("legacy");
    assert_eq!(
        (&legacy["class"], &legacy["wait_ms"], &legacy["wait_from"]),
        (&json!("quota_exhausted"), &json!(900_000), &json!("header of the configuration"))
    );
    let limit = json!({"dimension": "requests", "limit": 90, "remaining": 0, "reset_ms": null, "window_ms": 3_600_000});
    assert_eq!(legacy["limits"], json!([limit]));
    assert_eq!(explained("generic")["wait_from"], "policy");
}

#[test]
fn of_several_waits_the_one_that_counted_is_named() {
    let answer = "HTTP/1.1 429\nRetry-After: -5\nRetry-After: 3\nRetry-After: 2\n\n";
    let (_, out, _) = explain(&Job::new(0), &[], answer);
    assert!(out.contains("from retry-after: 3\n"), "{out}");
}

#[test]
fn the_calls_that_wait_together_and_their_limits_are_named() {
    let job = Job::new(0);
    let config = "[upstream.mine]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nrpm = 500\nscope = \"endpoint\"\n\
        [[upstream.mine.tier]]\nmodel = \"large\"\nrpm = 60\n";
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let answer = "HTTP/1.1 429\nretry-after: 2\n\n{}";
    let (code, out, log) = explain(&job, &["--upstream", "mine"], answer);
    assert_eq!(code, 0, "{log}");
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "the calls of one path",
        "the limit of 500 requests per 60s over all scopes",
        "60 requests per 60s in the tier",
    ] {
        assert!(words.contains(expected), "{expected}: {out}");
    }
    let (_, out, _) = explain(&job, &["--upstream", "mine", "--json"], answer);
    assert_eq!((&as_json(&out)["scope"], &as_json(&out)["limited_together"]), (&json!("model"), &json!("endpoint")));
    let (_, out, _) = explain(&job, &["--upstream", "openai"], answer);
    assert!(out.contains("the calls of one path and one model") && !out.contains("limits "), "{out}");
    let (_, out, _) = explain(&job, &["--upstream", "openai", "--json"], answer);
    assert_eq!(
        (&as_json(&out)["limited_together"], &as_json(&out)["configured_limits"]),
        (&json!("model"), &json!([]))
    );
}
