//! Keys: a server that repeats them, users who write them where they do not belong, and who else can read them.

use paceline_store::work::NewItem;
use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish};
use crate::tasks_run::{Ran, Store, ran};

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

#[test]
fn a_key_that_comes_in_parts_or_escaped_for_html_is_not_stored() {
    let texts = |key: &str| {
        let (a, b) = key.split_at(9);
        let events = |member: &str| {
            let event = |text: &str| format!("data: {{\"{member}\": [{{\"text\": {}}}]}}\n\n", Value::from(text));
            ["your key is ", a, b, ""].map(event).concat()
        };
        [
            ("text/event-stream", events("x")),
            // Cut before its end: it becomes no object.
            ("text/event-stream", events("candidates")),
            ("text/event-stream", format!("data: {a}\n\ndata: {b}\n\n")),
            ("application/x-ndjson", format!("{{\"t\": \"{a}\"}}\n{{\"t\": \"{b}\"}}\n")),
            ("text/html", format!("<p>not {}</p>", key.replace('/', "&#x2F;").replace('+', "&#43;"))),
        ]
    };
    let server = Server::new(move |arrival| {
        let item: usize = arrival.item.trim_start_matches("item-").parse().expect("a number");
        let key = arrival.headers["authorization"].to_str().expect("text").trim_start_matches("Bearer ");
        let (content_type, body) = texts(key)[item].clone();
        Reply::text(200, content_type, body)
    });
    let job = Job::new(5);
    let mut command = job.run(&server);
    let (_, log) = finish(command.args(["--max-retries", "0", "--api-key-env", "MY_KEY"]).env("MY_KEY", KEY));
    let ended = job.text("out.jsonl") + &std::fs::read_to_string(job.path("out.errors.jsonl")).unwrap_or_default();
    assert_eq!((ended.lines().count(), ended.matches("[key]").count()), (5, 5), "{log}{ended}");
    for part in ["abcd/ef", "gh/SEC", "SECRET", "+1234"] {
        assert!(!ended.contains(part) && !log.contains(part), "{part}: {log}{ended}");
    }
}

#[test]
fn a_check_opens_the_key_file_and_says_where_it_looked() {
    let job = Job::new(1);
    let check = || finish(job.paceline().args(["check", "--upstream", "openai", "--api-key-file", "my.key"]));
    let (code, log) = check();
    let place = job.path("my.key").display().to_string();
    assert!(code == 2 && log.contains(&format!("the key file {place} cannot be read: ")), "{log}");
    std::fs::write(job.path("my.key"), KEY).expect("writable");
    let (code, log) = check();
    assert!(code == 0 && !holds_key(&log), "{log}");
    let (code, log) = finish(job.paceline().args(["check", "--upstream", "openai"]).env_remove("OPENAI_API_KEY"));
    assert!(code == 0 && log.contains("OPENAI_API_KEY, which has the key, is not set here"), "{log}");
}

#[test]
fn a_key_in_the_configuration_is_not_shown_and_the_right_place_is_named() {
    let job = Job::new(1);
    std::fs::write(job.path("paceline.toml"), "[upstream.openai]\napi_key = \"my own SECRET\"\n").expect("writable");
    let check = |flags: &[&str]| finish(job.paceline().arg("check").args(flags));
    let (code, log) = check(&[]);
    assert_eq!(code, 2, "{log}");
    assert!(!holds_key(&log) && log.contains("[key]") && log.contains("--api-key-file"), "{log}");
    std::fs::remove_file(job.path("paceline.toml")).expect("there");
    for (flags, told) in [
        (["--base-url", "https://api.example.com/v1?key=SECRET"], "without query; a key belongs in an environment"),
        (
            ["--base-url", "https://me:SECRET@api.example.com/v1"],
            "a password; a key belongs in an environment variable",
        ),
        (["--rpm", "SECRET"], ""),
    ] {
        let (code, log) = check(&flags);
        assert_eq!(code, 2, "{log}");
        assert!(!holds_key(&log) && log.contains(told), "{log}");
    }
    let mut command = job.paceline();
    command.args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--upstream",
        "openai",
        "--api-key-file",
        "sk-SECRET-0123456789",
    ]);
    let (code, log) = finish(&mut command);
    assert!(code == 2 && !holds_key(&log) && log.contains("[key]"), "{log}");
}

#[test]
fn a_key_that_would_go_unencrypted_is_warned_about() {
    let job = Job::new(1);
    let mut command = job.paceline();
    command.args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--upstream",
        "openai",
        "--max-wait",
        "1ms",
        "--max-retries",
        "0",
    ]);
    command.args(["--timeout", "1s", "--base-url", "http://unknown.invalid/v1"]).env("OPENAI_API_KEY", KEY);
    let (_, log) = finish(&mut command);
    assert_eq!(log.matches("unencrypted").count(), 1, "{log}");
    let mut through = job.paceline();
    through.args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--upstream",
        "openai",
        "--max-wait",
        "1ms",
        "--max-retries",
        "0",
    ]);
    let (_, log) = finish(through.args(["--timeout", "1s", "--via", "http://unknown.invalid"]));
    assert_eq!(log.matches("what calls say is sent to http://unknown.invalid/openai unencrypted").count(), 1, "{log}");
    let server = Server::new(|_| Reply::ok());
    let (code, log) = finish(Job::new(1).run(&server).args(["--upstream", "openai"]).env("OPENAI_API_KEY", KEY));
    assert!(code == 0 && !log.contains("unencrypted"), "loopback: {log}");
}

#[test]
#[cfg(unix)]
fn a_key_file_that_others_can_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Server::new(|_| Reply::ok());
    for (mode, warned) in [(0o600, false), (0o640, true), (0o604, true), (0o400, false)] {
        let job = Job::new(1);
        std::fs::write(job.path("key"), KEY).expect("writable");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(job.path("key"), permissions).expect("ours");
        let (code, log) = finish(job.run(&server).args(["--api-key-file", "key"]));
        assert_eq!(code, 0, "{log}");
        assert_eq!(log.matches("chmod 600 key").count(), usize::from(warned), "{mode:o}: {log}");
    }
    for (mode, warned) in [(0o440, false), (0o460, true), (0o444, true)] {
        let job = Job::new(1);
        let key = job.path("key");
        std::fs::write(&key, KEY).expect("writable");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("ours");
        let mut run = job.run(&server);
        run.env("CREDENTIALS_DIRECTORY", key.parent().expect("a folder")).arg("--api-key-file").arg(&key);
        let (code, log) = finish(&mut run);
        assert_eq!((code, log.contains("chmod 600")), (0, warned), "a credential of systemd, {mode:o}: {log}");
    }
}

#[test]
fn an_empty_key_file_is_told_with_its_folder() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(1));
    std::fs::write(job.path("key"), "\n").expect("writable");
    let (code, log) = finish(job.run(&server).args(["--api-key-file", "key"]));
    assert!(code == 2 && log.contains("no key for generic: /") && log.contains("/key is an empty file"), "{log}");
}

#[test]
fn a_key_is_hidden_also_where_it_does_not_belong_or_is_not_one() {
    let server = Server::new(|arrival| {
        Reply::error(400, &format!("you sent {}", arrival.headers["authorization"].to_str().expect("ASCII")))
    });
    let job = Job::new(1);
    std::fs::write(job.path("key"), format!("\u{feff}{KEY}\n")).expect("writable");
    let (code, log) = finish(job.run(&server).args(["--api-key-file", "key"]));
    assert!(code == 1 && log.contains("you sent Bearer [key]"), "a mark of the byte order is no part of it: {log}");
    let job = Job::new(1);
    std::fs::write(job.path("key"), "sesame-and-\u{e9}").expect("writable");
    let (code, log) = finish(job.run(&server).args(["--api-key-file", "key"]));
    assert!(code == 2 && log.contains("one beyond ASCII") && !log.contains("sesame"), "{log}");
    let (code, log) = finish(job.run(&server).args(["--proxy", "me:sesame@127.0.0.1:1"]));
    assert!(code == 2 && log.contains("--proxy \"[key]@127.0.0.1:1\"") && !log.contains("sesame"), "{log}");
    let config = "[upstream.openai]\napi_key_file = 'sk-sesame-and-long'\n";
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let (code, log) = finish(job.paceline().arg("check"));
    assert!(code == 2 && log.contains("the key file ") && !log.contains("sesame"), "{log}");
    for key in ["sk-sesame\"Q/+aB3cD4eF5gH6iJ7k&L8=m", "aB3cD4eF5gH6iJ7kL8mN9oP0qR1sT2uV"] {
        let (code, log) = finish(job.run(&server).args(["--api-key-file", key]));
        let told = format!("the key file {} cannot be read", job.path("[key]").display());
        assert!(code == 2 && log.contains(&told) && !log.contains("6iJ7k") && !log.contains("sesame"), "{log}");
    }
}

#[test]
#[cfg(unix)]
fn what_holds_prompts_belongs_to_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Server::new(|arrival| if arrival.item == "item-0" { Reply::error(400, "bad") } else { Reply::ok() });
    let job = Job::new(3);
    let mode = |file: &str| job.path(file).metadata().expect(file).permissions().mode() & 0o777;
    let input = std::fs::File::open(job.path("in.jsonl")).expect("there");
    let mut command = job.paceline();
    command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url()]).stdin(input);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 1, "{log}");
    for file in ["out.jsonl", "out.errors.jsonl", "out.report.jsonl", "out.journal", "out.input"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    // Who may read them is the user's to say, and stays so.
    for file in ["out.jsonl", "out.report.jsonl"] {
        std::fs::set_permissions(job.path(file), std::fs::Permissions::from_mode(0o640)).expect("ours");
    }
    let mut command = job.paceline();
    command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url(), "--retry-failed", "--ordered"]);
    let (code, log) = finish(command.stdin(std::process::Stdio::null()));
    assert_eq!(code, 1, "{log}");
    assert_eq!((mode("out.jsonl"), mode("out.report.jsonl")), (0o640, 0o640));
    let (code, log) = finish(job.paceline().args(["tasks", "add", "--store", "work.db", "\"a\""]));
    assert_eq!(code, 0, "{log}");
    assert_eq!(mode("work.db"), 0o600);
}

#[test]
fn the_mark_of_a_hidden_secret_is_no_secret() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    let (code, log) = finish(job.run(&server).args(["--header", "X-Tenant-Token: [key]"]));
    assert!(code == 2 && log.contains("[key] stands for a secret that was left out; write the secret there"), "{log}");
    assert_eq!(server.count(), 0);
}

/// A log of cron keeps what standard error says.
#[test]
fn a_key_in_a_wrong_place_is_neither_printed_nor_sent() {
    let server = Server::new(|_| Reply::ok());
    let (job, key) = (Job::new(2), "sk-proj-SECRETabcdefgh123");
    for (flags, expected) in [
        (&[key][..], "unexpected argument '[key]' found"),
        (&["--key-header", key], "the name of a header such as X-API-Key"),
        (&["--limit", key], "[key]"),
        (&["--price", key], "\"[key]\" is no price"),
        (&["--price", "in=2,out=sk-proj-SECRETabcdefgh123"], "is no price"),
        (&["--budget-cost", key], "\"[key]\" is no sum of money"),
        (&["--max-wait", key], "[key]"),
        (&["--timeout", key], "[key]"),
        (&["--config", key], "[key]"),
        (&["--done", key], "[key]"),
        (&["--expect", key], "[key]"),
    ] {
        let mut command = job.run(&server);
        let (code, log) = finish(command.args(flags).args(["--api-key-env", "MY_KEY"]).env("MY_KEY", KEY));
        assert!(code == 2 && log.contains(expected) && !log.contains("SECRET"), "{expected}: {log}");
    }
    for (wrong, expected) in [
        (format!("\"{KEY}\""), "the key in MY_KEY stands in quotes: leave them out"),
        (
            format!("Bearer {KEY}"),
            "the key in MY_KEY begins with the scheme (such as `Bearer`), which each call puts before it",
        ),
    ] {
        let (code, log) = finish(job.run(&server).args(["--api-key-env", "MY_KEY"]).env("MY_KEY", wrong));
        assert!(code == 2 && log.contains(expected) && !log.contains("SECRET"), "{expected}: {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn nor_does_a_store_keep_it() {
    let server = Server::new(|arrival| {
        let item: usize = arrival.item.trim_start_matches("item-").parse().expect("a number");
        let status = if item < SPELLED.len() { 400 } else { 200 };
        Reply::text(status, "application/json", SPELLED[item % SPELLED.len()])
    });
    let store = Store::new();
    let request = |n: usize| json!({"url": "/v1/x", "body": {"item": format!("item-{n}")}}).to_string();
    store.put((0..2 * SPELLED.len()).map(|n| NewItem::new(format!("item-{n}"), request(n))).collect());
    let mut command = store.command();
    command.args(["--http", "--base-url", &server.url(), "-o", "out.jsonl", "--summary", "summary.json", "-v"]);
    let Ran { code, log, .. } = ran(command.args(["--api-key-env", "MY_KEY"]).env("MY_KEY", KEY));
    assert_eq!((code, server.count()), (1, 2 * SPELLED.len()), "{log}");
    assert!(!holds_key(&log) && log.contains("[key]"), "{log}");
    for file in ["out.jsonl", "work.db", "summary.json"] {
        let bytes = std::fs::read(store.job.path(file)).expect("written");
        assert!(!holds_key(&String::from_utf8_lossy(&bytes)), "{file}");
    }
    assert!(store.job.lines("out.jsonl").iter().all(|line| line.to_string().contains("[key]")));
}

/// Nothing but the name of a field says that it is one.
#[test]
fn a_cookie_of_a_line_that_its_server_repeats_is_in_no_file_and_no_log() {
    let server = Server::new(|arrival| {
        let said = arrival.headers["cookie"].to_str().expect("text").to_owned();
        let session = said.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair").1;
        let status = if arrival.path == "/0" { 200 } else { 400 };
        let error = json!({"error": {"message": format!("no session {session} at {said}"), "code": session}});
        Reply::new(status, &error).with_header("x-request-id", session).with_header("link", said)
    });
    let line = |n: usize| {
        let cookie = format!("session=open-sesame-{n}; lang=english-{n}-sesame");
        let headers = json!({"cookie": cookie, "x-plain": "open"});
        json!({"custom_id": n, "method": "GET", "url": format!("/{n}"), "headers": headers}).to_string() + "\n"
    };
    let job = Job::with_input(&[line(0), line(1)].concat());
    let (code, log) = finish(job.run(&server).arg("-vv"));
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("no session [key] at ") && !log.contains("sesame"), "{log}");
    for file in ["out.jsonl", "out.errors.jsonl", "out.report.jsonl", "summary.json"] {
        let text = job.text(file);
        assert!(!text.contains("sesame"), "{file}: {text}");
    }
    assert_eq!(job.lines("out.errors.jsonl")[0]["response"]["body"]["error"]["code"], "[key]");
}
