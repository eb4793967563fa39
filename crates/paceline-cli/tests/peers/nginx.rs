//! nginx `limit_req`: a leaky bucket per key, with its access log as the count of what it refused.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use super::counting::Counting;
use super::job::{Job, burst};
use super::measure;

const RATE: f64 = 20.0;
const BURST: f64 = 20.0;

/// Each call takes this long behind the proxies; it is the one median latency in every oracle.
const SERVICE: Duration = Duration::from_millis(30);

/// nginx in a folder of its own, stopped with the value.
struct Nginx {
    folder: tempfile::TempDir,
    port: u16,
}

#[test]
fn nginx_really_limits() {
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting);
    let answers = burst(&nginx.url(), 60);
    let passed = answers.get(&200).copied().unwrap_or(0);
    // The first call, the burst of 20, and what refills at 20/s while 60 connections are made.
    assert!((21..=40).contains(&passed), "{answers:?}");
    assert_eq!(answers.get(&429).copied(), Some(60 - passed), "{answers:?}");
}

#[test]
fn told_its_rate_nginx_refuses_almost_nothing() {
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting);
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
fn untold_nothing_is_lost_at_nginx() {
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting);
    let items = measure::items();
    let job = Job::new(items, &nginx.base_url(), &[]);
    let ended = job.run();
    let (sends, refused) = nginx.counts();
    let oracle = (items as f64 - BURST) / RATE + SERVICE.as_secs_f64();
    measure::pace("nginx untold", items, sends, refused, ended.seconds, oracle, None);
    job.assert_complete(&ended);
    assert_eq!(ended.count("calls"), sends, "the summary counts what nginx counted: {}", ended.summary);
    assert_eq!(counting.arrivals(), items as u64, "an accepted item is never sent again");
}

impl Nginx {
    /// Returns when nginx listens: as a daemon it goes to the background only after that, so nothing polls.
    fn start(upstream: &Counting) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for _ in 0..5 {
            let port = free_port();
            fs::write(folder.path().join("nginx.conf"), config(port, upstream)).expect("writing nginx.conf");
            if nginx(&folder, &[]) {
                return Self { folder, port };
            }
        }
        let words = fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
        panic!("nginx does not start: {words}");
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn base_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// All calls, and those answered 429, by the access log.
    fn counts(&self) -> (u64, u64) {
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

/// A port that was free a moment ago. Another process may take it first, so whoever uses it must be ready to ask again.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
    listener.local_addr().expect("a bound socket has an address").port()
}

fn nginx(folder: &tempfile::TempDir, arguments: &[&str]) -> bool {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).args(["-e", "error.log", "-c", "nginx.conf"]).args(arguments);
    command.status().expect("nginx is on the PATH (scripts/test installs it)").success()
}

fn config(port: u16, upstream: &Counting) -> String {
    let upstream = upstream.address();
    format!(
        r#"
master_process off;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    log_format status '$status';
    access_log access.log status;
    limit_req_zone $http_authorization zone=key:1m rate={RATE}r/s;
    limit_req_status 429;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            limit_req zone=key burst={BURST} nodelay;
            error_page 429 @limited;
            proxy_pass http://{upstream};
        }}
        location @limited {{
            default_type application/json;
            add_header Retry-After 1 always;
            return 429 '{{"error":{{"message":"slow down","type":"rate_limit","code":"rate_limited"}}}}';
        }}
    }}
}}
"#
    )
}
