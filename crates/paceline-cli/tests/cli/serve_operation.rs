//! `paceline serve` as those who run it see it: its metrics, its log, and how it ends.

use std::fs::File;
use std::io::{BufRead as _, Read as _};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::serve::{Gateway, get, post, serve};
use crate::support::{Job, Reply, Server};

#[test]
fn metrics_can_have_an_address_of_their_own() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--metrics-listen", "127.0.0.1:0"]));
    let told: Vec<String> = gateway.stdout.by_ref().lines().take(2).map(|line| line.expect("a line")).collect();
    let metrics = told[1].strip_prefix("metrics at ").expect("the second line says where they are");
    assert_eq!(post(&format!("{}/generic/v1/things", gateway.url), "1s").0, 200);
    let (status, page) = get(metrics);
    assert!(status == 200 && page.contains("paceline_requests_total{class=\"success\""), "{page}");
    let at = metrics.trim_end_matches("/metrics");
    assert_eq!([get(&format!("{at}/readyz")).0, get(&format!("{at}/api/state")).0], [200, 404]);
    assert_eq!([get(&format!("{}/metrics", gateway.url)).0, get(&format!("{}/readyz", gateway.url)).0], [404, 200]);
}

#[test]
fn requests_are_logged_on_demand_without_their_query_and_keys() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let flags = ["--log-requests", "--log-format", "json"];
    let log = || std::fs::read_to_string(job.path("log")).expect("a log");
    let mut command = serve(&job, &server, &flags);
    let mut gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    gateway.post("/generic/v1/things?key=sk-in-the-query", "1s");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let lines: Vec<Value> = log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let requests: Vec<_> = lines.iter().filter(|line| line["message"] == "request").collect();
    let [line] = &requests[..] else { panic!("one line for each request: {}", log()) };
    for (name, expected) in [
        ("upstream", Value::from("generic")),
        ("path", "/v1/things".into()),
        ("status", 200.into()),
        ("class", "success".into()),
        ("attempts", 1.into()),
        ("bytes_in", 13.into()),
    ] {
        assert_eq!(line[name], expected, "{name}: {line}");
    }
    assert!(line["client"].is_string() && line["waited_ms"].is_u64() && line["bytes_out"].as_u64() > Some(0), "{line}");
    assert!(!log().contains("sk-in"), "{}", log());
    let mut gateway =
        Gateway::logging(&mut serve(&job, &server, &[]), File::create(job.path("log")).expect("writable"));
    gateway.post("/generic/v1/things", "1s");
    gateway.signal(Signal::TERM);
    assert_eq!((gateway.ended(), log().contains("request")), (Some(0), false), "nothing without the flag: {}", log());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().never()));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &[]));
    let mut client = TcpStream::connect(gateway.url.trim_start_matches("http://")).expect("it listens");
    std::io::Write::write_all(&mut client, b"GET /generic/v1/things HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    server.wait_for(1);
    gateway.signal(Signal::TERM);
    while TcpStream::connect(gateway.url.trim_start_matches("http://")).is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(gateway.child.try_wait().expect("it can be asked"), None, "it waits for the answer");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
}
