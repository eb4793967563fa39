//! nginx `limit_req`, a leaky bucket per key, and `limit_conn`, a number of calls in flight per key, with its access log
//! as the count of what it refused.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::counting::Counting;
use super::free_ports::free_ports;
use super::job::{Job, burst};
use super::measure;
use crate::bounded::{Bounded, TestBound};

pub(crate) const RATE: f64 = 20.0;
pub(crate) const BURST: f64 = 20.0;

/// Calls in flight that `limit_conn` lets through.
const IN_FLIGHT: usize = 8;

/// Each call takes this long behind the proxies; it is the one median latency in every oracle.
pub(crate) const SERVICE: Duration = Duration::from_millis(30);

/// What nginx limits.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// `RATE` a second with a burst of `BURST`; every refusal says `Retry-After: 1`.
    Bucket,
    /// `IN_FLIGHT` calls; a refusal says nothing.
    InFlight,
}

/// nginx in a folder of its own, stopped with the value.
pub(crate) struct Nginx {
    folder: tempfile::TempDir,
    port: u16,
}

#[test]
fn nginx_really_limits() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let answers = burst(&nginx.url(), 60);
    let passed = answers.get(&200).copied().unwrap_or(0);
    // The first call, the burst of 20, and what refills at 20/s while 60 connections are made.
    assert!((21..=40).contains(&passed), "{answers:?}");
    assert_eq!(answers.get(&429).copied(), Some(60 - passed), "{answers:?}");
}

#[test]
fn nginx_really_limits_calls_in_flight() {
    let _bound = TestBound::new();
    // So slow that all of them are there before the first one ends.
    let counting = Counting::start(Duration::from_secs(1));
    let nginx = Nginx::start(&counting, Limit::InFlight);
    let answers = burst(&nginx.url(), 20);
    assert_eq!(answers.get(&200), Some(&IN_FLIGHT), "{answers:?}");
    assert_eq!(answers.get(&429), Some(&(20 - IN_FLIGHT)), "{answers:?}");
}

#[test]
fn told_its_rate_nginx_refuses_almost_nothing() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let items = measure::items();
    let job = Job::new(items, &nginx.base_url(), &["--limit", "20 rps", "--burst", "20"]);
    let ended = job.run();
    job.assert_complete(&ended);
    let (sends, refused) = nginx.counts();
    let oracle = (items as f64 - BURST) / RATE + SERVICE.as_secs_f64();
    measure::pace("nginx told", items, sends, refused, ended.seconds, oracle, Some(0.9));
    assert_eq!(ended.count("calls"), sends, "the summary counts what nginx counted: {}", ended.summary);
    assert_eq!(ended.count("throttled"), refused);
    measure::assert_few_refused(sends, refused);
    assert_eq!(counting.arrivals(), items as u64, "an accepted item is never sent again");
}

#[test]
fn untold_the_rate_is_learnt_at_nginx() {
    let _bound = TestBound::new();
    let items = measure::items();
    let oracle = (items as f64 - BURST) / RATE + SERVICE.as_secs_f64();
    untold("nginx untold", Limit::Bucket, oracle);
}

#[test]
fn untold_the_calls_in_flight_are_learnt_at_nginx() {
    let _bound = TestBound::new();
    let items = measure::items();
    let oracle = (items as f64 / IN_FLIGHT as f64 + 1.0) * SERVICE.as_secs_f64();
    untold("nginx untold, calls in flight", Limit::InFlight, oracle);
}

fn untold(name: &str, limit: Limit, oracle: f64) {
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, limit);
    let items = measure::items();
    let job = Job::new(items, &nginx.base_url(), &["--concurrency", "64"]);
    let ended = job.run();
    let (sends, refused) = nginx.counts();
    measure::pace(name, items, sends, refused, ended.seconds, oracle, None);
    job.assert_complete(&ended);
    assert_eq!(ended.count("calls"), sends, "the summary counts what nginx counted: {}", ended.summary);
    assert_eq!(counting.arrivals(), items as u64, "an accepted item is never sent again");
    measure::assert_learnt(items, refused, 5);
}

impl Nginx {
    /// Returns when nginx listens: as a daemon it goes to the background only after that, so nothing polls.
    pub(crate) fn start(upstream: &Counting, limit: Limit) -> Self {
        Self::configured(|port| config(port, upstream, limit))
    }

    /// One that only passes requests on to that address.
    pub(crate) fn before(address: SocketAddr) -> Self {
        let location = format!("location / {{ proxy_pass http://{address}; }}");
        Self::configured(|port| http("access_log off;", port, &location))
    }

    /// One with the certificate of that folder that answers so by HTTP/2, and ends each connection after so many requests.
    pub(crate) fn of_http2(folder: &Path, requests: usize, answer: &str) -> Self {
        let folder = folder.display();
        let location = format!(
            "ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; \
             location / {{ default_type application/json; return 200 '{answer}'; }}"
        );
        let log = format!("log_format status '$status'; access_log access.log status; keepalive_requests {requests};");
        Self::configured(|port| http(&log, port, &location).replace(" backlog=1024;", " backlog=1024 ssl http2;"))
    }

    fn configured(config: impl Fn(u16) -> String) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for _ in 0..5 {
            let [port] = free_ports();
            fs::write(folder.path().join("nginx.conf"), config(port)).expect("writing nginx.conf");
            if nginx(&folder, &[]) {
                return Self { folder, port };
            }
        }
        let stderr = fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
        panic!("nginx does not start: {stderr}");
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn base_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// The same of one that shows a certificate.
    pub(crate) fn https_url(&self) -> String {
        format!("https://localhost:{}/v1", self.port)
    }

    /// All calls, and those answered 429, by the access log.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let log = fs::read_to_string(self.folder.path().join("access.log")).expect("an access log");
        let refused = log.lines().filter(|status| *status == "429").count();
        (log.lines().count() as u64, refused as u64)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        nginx(&self.folder, &["-s", "stop"]);
    }
}

fn nginx(folder: &tempfile::TempDir, arguments: &[&str]) -> bool {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).args(["-e", "error.log", "-c", "nginx.conf"]).args(arguments);
    command.ended().success()
}

fn config(port: u16, upstream: &Counting, limit: Limit) -> String {
    let upstream = upstream.address();
    let (zone, rule) = match limit {
        Limit::Bucket => (
            format!("limit_req_zone $http_authorization zone=key:1m rate={RATE}r/s; limit_req_status 429;"),
            format!("limit_req zone=key burst={BURST} nodelay; error_page 429 @limited;"),
        ),
        Limit::InFlight => (
            "limit_conn_zone $http_authorization zone=key:1m; limit_conn_status 429;".to_owned(),
            format!("limit_conn key {IN_FLIGHT};"),
        ),
    };
    let log = format!("log_format status '$status'; access_log access.log status; {zone}");
    let locations = format!(
        r#"
        location / {{
            {rule}
            proxy_pass http://{upstream};
        }}
        location @limited {{
            default_type application/json;
            add_header Retry-After 1 always;
            return 429 '{{"error":{{"message":"slow down","type":"rate_limit","code":"rate_limited"}}}}';
        }}"#
    );
    http(&log, port, &locations)
}

fn http(log: &str, port: u16, locations: &str) -> String {
    format!(
        r#"
master_process off;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    {log}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        client_header_timeout 1s;
        client_body_timeout 1s;
        {locations}
    }}
}}
"#
    )
}
