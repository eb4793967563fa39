//! What clients have used of their limits, as those who run `paceline serve` see it.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bounded::Bounded;
use crate::serve::{Gateway, send, serve};
use crate::serve_keys::{keys, post_with, told};
use crate::serve_killed::FullDisk;
use crate::support::{Job, Reply, Server, finish};

#[test]
fn what_a_client_has_used_is_listed_while_the_gateway_runs_and_after_it() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "a", "--limit", "5 per 1h,40 per 24h"]));
    told(&mut keys(&job, &["add", "free"]));
    let used = |times: u64| format!("used: {times} of 5 requests per 1h, {times} of 40 requests per 24h (as of 20");
    let listed = || told(&mut keys(&job, &["list"]));
    assert!(!listed().contains("used"), "{}", listed());
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    (0..2).for_each(|_| assert_eq!(post_with(&gateway.url, &key).0, 200));
    // What a call takes is noted before it leaves.
    assert!(listed().contains(&used(2)), "{}", listed());
    let reader = told(&mut keys(&job, &["add", "prometheus", "--paths", "/healthz"]));
    gateway.signal(Signal::HUP);
    while post_with(&gateway.url, &reader).0 != 403 {
        std::thread::yield_now();
    }
    let metrics = send(&format!("{}/metrics", gateway.url), |client, url| client.get(url).bearer_auth(&reader)).1;
    assert!(
        metrics.contains(
            "paceline_client_limit_remaining{client=\"a\",dimension=\"requests\",window_seconds=\"3600\"} 3\n"
        ),
        "{metrics}"
    );
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    assert!(listed().contains(&used(2)) && listed().matches("used").count() == 1, "{}", listed());
}

/// The counts and a reserve beside them take turns.
#[test]
fn what_a_client_has_used_is_kept_on_a_full_disk_over_a_kill() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let kept = [1, 3].map(|count| {
        format!(
            "for i in $(seq 100); do {paceline} serve keys list --state state | grep -q 'used: {count} of 5' && break; done"
        )
    });
    let first = format!("{paceline} serve keys add ci --limit '5 per 1h' --state state > key || exit 98");
    FullDisk { disk: "state", variable: ("HOME", ""), first: &first, flags: "", kept }.holds_five(
        &job,
        &server,
        |url| post_with(url, job.text("key").trim_end()).0,
    );
}

#[test]
fn a_key_that_used_more_than_its_limit_is_listed_with_all_that_it_used() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2990}});
    let (job, server) = (Job::new(0), Server::new(move |_| Reply::new(200, &usage)));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "1000 tokens per 1h"]));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    let (status, _) = send(&format!("{}/generic/v1/chat/completions", gateway.url), |client, url| {
        client.post(url).bearer_auth(&key).body(r#"{"model":"m","messages":[]}"#)
    });
    gateway.signal(Signal::TERM);
    assert_eq!((status, gateway.ended()), (200, Some(0)));
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.contains("used: 3000 of 1000 tokens per 1h"), "{listed}");
    let listed: Value = serde_json::from_str(&told(&mut keys(&job, &["list", "--json"]))).expect("JSON");
    let used = json!([{"dimension": "tokens", "limit": 1000, "used": 3000, "window_s": 3600.0}]);
    assert_eq!((&listed[0]["name"], &listed[0]["used"]), (&json!("ci"), &used), "{listed}");
    assert!(listed[0]["as_of"].is_string() && listed[0].get("sha256").is_none(), "{listed}");
}

#[test]
fn a_key_with_a_limit_in_money_is_listed_with_what_it_spent_over_a_kill_and_warned_of_without_prices() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}});
    let (job, server) = (Job::new(0), Server::new(move |_| Reply::new(200, &usage)));
    for limit in ["$5", "5 money", "$0 per 1h", "300k usd per 24h"] {
        let (code, log) = finish(&mut keys(&job, &["add", "ci", "--limit", limit]));
        assert!(code == 2 && log.contains(&format!("ci: {limit:?} is no limit: expected a number above 0")), "{log}");
    }
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "$1 per 1h"]));
    let flags = ["--state", "state"];
    let unpriced = told(job.paceline().args(["serve", "check", "--base-url", &server.url()]).args(flags));
    assert!(unpriced.contains("a key of a client has a limit in money, and no upstream has prices"), "{unpriced}");
    drop(Gateway::logging(&mut serve(&job, &server, &flags), File::create(job.path("log")).expect("writable")));
    assert!(job.text("log").contains("WARN a key of a client has a limit in money, and no upstream has prices"));
    std::fs::write(job.path("prices.toml"), "[upstream.generic]\nprice = \"in=2,out=10\"\n").expect("writable");
    let flags = ["--state", "state", "--config", "prices.toml"];
    let priced = told(job.paceline().args(["serve", "check", "--base-url", &server.url()]).args(flags));
    assert!(priced.contains("\nall is well: prices.toml"), "{priced}");
    let send_to = |gateway: &Gateway| {
        send(&format!("{}/generic/v1/chat/completions", gateway.url), |client, url| {
            client.post(url).bearer_auth(&key).body(r#"{"max_tokens":100,"messages":[]}"#)
        })
    };
    let mut gateway = Gateway::start(&mut serve(&job, &server, &flags));
    assert_eq!(send_to(&gateway).0, 200);
    gateway.child.kill().expect("it runs");
    gateway.child.ended();
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.contains("limits: $1 per 1h") && listed.contains("used: 0.0030 of 1.00 money per 1h"), "{listed}");
    let (code, log) = finish(&mut keys(&job, &["set", "ci", "--limit", "0.003 money per 1h"]));
    assert!(code == 0 && log.contains("which means: 0.0030 money per 1h"), "{log}");
    let gateway = Gateway::start(&mut serve(&job, &server, &flags));
    let (status, text) = send_to(&gateway);
    assert!(status == 429 && text.contains("0.0030 money per 1h (0.0030 of it is used)"), "{status}: {text}");
}

/// Under that limit six calls with a bound are believed at once, of a server of which nothing is known.
#[test]
fn a_server_that_ignores_bounds_is_believed_no_more_after_a_restart() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5000}});
    let calls = AtomicUsize::new(0);
    let server = Server::new(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::new(200, &usage),
        _ => Reply::ok().never(),
    });
    let job = Job::new(0);
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "100000 tokens per 1h"]));
    let body = r#"{"max_tokens":100,"messages":[]}"#;
    let ask = |gateway: &str, deadline: &str| {
        send(&format!("{gateway}/generic/v1/chat/completions"), |client, url| {
            client.post(url).bearer_auth(&key).header("x-paceline-deadline", deadline).body(body)
        })
    };
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    assert_eq!(ask(&gateway.url, "10s").0, 200);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    let mut stays = TcpStream::connect(gateway.url.trim_start_matches("http://")).expect("it listens");
    let head = format!("host: a\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n", body.len());
    write!(stays, "POST /generic/v1/chat/completions HTTP/1.1\r\n{head}\r\n{body}").expect("it reads");
    server.wait_for(2);
    for _ in 0..3 {
        let (status, text) = ask(&gateway.url, "100ms");
        assert!(status == 429 && server.count() == 2, "{status}: {text}");
    }
}

#[test]
fn a_limit_of_a_key_is_set_once() {
    let job = Job::new(0);
    told(&mut keys(&job, &["add", "ci", "--limit", "60rpm, 1000 rpd, 5 concurrent"]));
    for (limits, twice) in [
        ("60rpm, 90rpm", "\"90rpm\""),
        ("60rpm, 1 per 60s", "\"1 per 60s\""),
        ("5 concurrent, 1M tokens per 1h, 6 concurrent", "\"6 concurrent\""),
    ] {
        for command in [["set", "ci"], ["add", "other"]] {
            let (code, log) = finish(&mut keys(&job, &[&command[..], &["--limit", limits]].concat()));
            let expected = format!("--limit {twice}: expected this limit to be set once");
            assert!(code == 2 && log.contains(&expected), "{log}");
        }
    }
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.contains("limits: 60rpm, 1000 rpd, 5 concurrent  ") && !listed.contains("other"), "{listed}");
}

#[test]
fn paths_of_a_key_that_belong_to_no_upstream_are_told() {
    let job = Job::new(0);
    let added = |args: &[&str]| {
        let (code, log) = finish(&mut keys(&job, args));
        assert_eq!(code, 0, "{log}");
        log
    };
    let log = added(&["add", "ci", "--paths", "/opnai/v1"]);
    let expected = "--paths /opnai/v1: no upstream has the name opnai; those that are known are openai, azure, ";
    assert!(log.contains(expected), "{log}");
    std::fs::write(job.path("paceline.toml"), "[upstream.mine]\nbase_url = \"http://127.0.0.1:1\"\n")
        .expect("writable");
    let log = added(&["set", "ci", "--paths", "/mine/v1, /v1/batches, /metrics, /openai"]);
    let expected = "--paths /openai: no upstream has the name openai; those of paceline.toml are mine";
    assert!(log.contains(expected) && log.matches("no upstream").count() == 1, "{log}");
    assert!(!added(&["set", "ci", "--paths", "all"]).contains("no upstream"));
}
