//! What is no fault of an item: certificates that are not trusted, and a server that cannot be reached.

use std::net::TcpListener;

use serde_json::json;

use crate::support::{Job, Reply, Server, finish};
use crate::tls::Authority;

/// An address of this machine at which no server listens.
pub(crate) fn nowhere() -> String {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    format!("http://127.0.0.1:{port}")
}

#[test]
fn a_certificate_that_is_not_trusted_stops_the_job_and_costs_no_item() {
    let authority = Authority::new();
    let server = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let job = Job::new(30);
    authority.put_into(&job);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (3, 0), "{log}");
    for expected in [&server.url(), "signed by an authority that is not trusted here", "ca_file (--ca-file)"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(!log.contains("invalid peer certificate") && !log.contains("next try in"), "{log}");
    let summary = job.summary();
    assert_eq!((&summary["stopped"], &summary["deferred"], &summary["failed"]), (&json!("tls"), &json!(30), &json!(0)));
    let (code, log) = finish(job.run(&server).args(["--ca-file", "ca.pem"]));
    assert_eq!((code, server.count()), (0, 30), "{log}");
    job.assert_adds_up(30);
}

#[test]
fn a_certificate_of_one_host_of_several_is_not_called_a_key_that_was_refused() {
    let authority = Authority::new();
    let (well, untrusted) =
        (Server::new(|_| Reply::ok()), Server::tls(authority.server("localhost", false), |_| Reply::ok()));
    let page =
        |n: usize, server: &Server| json!({"custom_id": n, "method": "GET", "url": format!("{}/{n}", server.url())});
    let job = Job::with_input(&[page(1, &well), page(2, &untrusted)].map(|page| page.to_string()).join("\n"));
    let (code, log) = finish(job.run(&well).args(["--scope", "host"]));
    assert_eq!((code, well.count()), (3, 1), "{log}");
    assert!(log.contains("not finished: 1 waiting until the cause is fixed (last try: no connection)"), "{log}");
}

#[test]
fn what_is_wrong_with_a_certificate_is_said_in_plain_words() {
    let authority = Authority::new();
    let answer = |_: &_| Reply::ok();
    let plain = Server::new(answer);
    let other = Server::tls(authority.server("other.example", false), answer);
    let strict = Server::tls(authority.server("localhost", true), answer);
    for (url, expected) in [
        (plain.url().replace("http:", "https:"), "does not speak TLS there"),
        (other.url(), "is for another host"),
        (strict.url(), "asks for a client certificate"),
    ] {
        let job = Job::new(1);
        authority.put_into(&job);
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--ca-file", "ca.pem", "--base-url", &url]);
        let (code, log) = finish(&mut command);
        assert!(code == 3 && log.contains(expected), "{url}: {log}");
        assert!(log.contains("not finished: 1 waiting until the cause is fixed (last try: no connection)"), "{log}");
        assert!(!log.contains("refuses this account"), "{log}");
    }
}

#[test]
fn tasks_stop_at_a_certificate_too_and_keep_their_items() {
    let authority = Authority::new();
    let server = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let job = Job::new(0);
    authority.put_into(&job);
    let (code, log) =
        finish(job.paceline().args(["tasks", "add", "--store", "w.db", "--key", "a", r#"{"url":"/a","body":{}}"#]));
    assert_eq!(code, 0, "{log}");
    let run = |flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["tasks", "run", "--store", "w.db", "--max-retries", "0", "--http", "--base-url", &server.url()]);
        finish(command.args(flags))
    };
    let (code, log) = run(&[]);
    assert!(code == 3 && log.contains("ca_file (--ca-file)"), "{log}");
    let (code, log) = finish(job.paceline().args(["check", "--base-url", &server.url(), "--ca-file", "none.pem"]));
    assert!(code == 2 && log.contains("none.pem cannot be read"), "{log}");
    let (code, log) = finish(job.paceline().args(["tasks", "retry", "--store", "w.db", "a"]));
    assert_eq!(code, 0, "{log}");
    let (code, log) = run(&["--ca-file", "ca.pem"]);
    assert_eq!((code, server.count()), (0, 1), "{log}");
}

#[test]
fn a_call_without_tls_to_a_server_that_speaks_it_is_told_the_scheme() {
    let server = Server::tls(Authority::new().server("localhost", false), |_| Reply::ok());
    let (job, url) = (Job::new(1), server.url().replace("https://", "http://"));
    let mut command = job.paceline();
    let (code, log) =
        finish(command.args(["run", "in.jsonl", "-o", "out.jsonl", "--max-retries", "0", "--base-url", &url]));
    assert!(code == 1 && log.contains("; if the server speaks TLS there, write https://"), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_server_that_cannot_be_reached_fails_no_item() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let run = |url: &str| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", url, "--max-retries", "0"]);
        finish(command.args(["--max-wait", "300ms", "--timeout", "5s"]))
    };
    for url in [nowhere(), "http://unknown.invalid".to_owned()] {
        let (code, log) = run(&url);
        assert_eq!(code, 3, "{log}");
        assert!(log.contains("no server answers at") && log.contains(&url), "{log}");
        assert!(job.ended_ids().is_empty(), "{log}");
    }
    let rows = job.lines("out.report.jsonl");
    assert!(rows.iter().all(|row| row["attempts"] == 0 && row["state"] == "deferred"), "{rows:?}");
    let (code, log) = run(&server.url());
    assert_eq!((code, server.count()), (0, 3), "{log}");
}

#[test]
fn tasks_wait_for_a_server_that_cannot_be_reached() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    let (code, log) = finish(job.paceline().args(["tasks", "add", "--store", "w.db", r#"{"url":"/a","body":{}}"#]));
    assert_eq!(code, 0, "{log}");
    let run = |url: &str| {
        let mut command = job.paceline();
        command.args(["tasks", "run", "--store", "w.db", "--max-retries", "0", "--first-delay", "1ms", "--http"]);
        finish(command.args(["--max-wait", "300ms", "--summary", "summary.json", "--base-url", url]))
    };
    let (code, log) = run(&nowhere());
    assert!(code == 3 && log.contains("no server answers at"), "{log}");
    assert_eq!(job.summary()["stopped"], "unreachable", "{log}");
    let (code, log) = run(&server.url());
    assert_eq!((code, server.count()), (0, 1), "{log}");
}

/// Its calls are too few for the breaker, and their retries would be used up long after.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_server_that_only_fails_ends_the_run_after_the_longest_wait_though_its_calls_are_few() {
    let server = Server::new(|_| Reply::error(500, "broken"));
    let job = Job::new(6);
    let mut command = job.run(&server);
    for (knob, value) in
        [("RETRY__BASE", "300ms"), ("RETRY__CAP", "300ms"), ("RETRY__JITTER", "none"), ("BREAKER__WITHIN", "1ms")]
    {
        command.env(format!("PACELINE_UPSTREAM__GENERIC__{knob}"), value);
    }
    let (code, log) = finish(command.args(["--max-wait", "1s", "--max-retries", "15"]));
    assert_eq!((code, &job.summary()["failed"], &job.summary()["deferred"]), (3, &json!(0), &json!(6)), "{log}");
    assert!(log.contains("stopping: the server is failing: no call succeeded for 1s (--max-wait)"), "{log}");
    assert!(log.contains("(last try: 500)"), "{log}");
}
