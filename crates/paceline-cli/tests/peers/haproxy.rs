//! HAProxy `http_req_rate(10s)`: an estimate of a sliding window in which refused calls count too, so that a client
//! which keeps asking is never let in again. Its own statistics say what it refused.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use super::counting::Counting;
use super::free_ports::free_ports;
use super::job::{Job, burst};
use super::measure;
use crate::bounded::{self, TestBound};

/// Calls that HAProxy lets through in 10 s.
const LIMIT: usize = 200;

/// What the job is told: 4 % less, because the rate that HAProxy computes is an estimate: the calls since its window
/// began, plus those of the window before, weighted by what is left of it.
const TOLD: [&str; 2] = ["--limit", "192/10s"];

const SERVICE: Duration = Duration::from_millis(30);

/// HAProxy in a folder of its own, stopped with the value.
pub(crate) struct Haproxy {
    folder: tempfile::TempDir,
    port: u16,
}

#[test]
fn haproxy_really_limits() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let haproxy = Haproxy::start(&counting, 1);
    let answers = burst(&haproxy.url(), 260);
    // One less where its window turns over in the middle: what is left of the one before is rounded up.
    let taken = answers.get(&200).copied().unwrap_or_default();
    assert!((LIMIT - 1..=LIMIT).contains(&taken), "{answers:?}");
    assert_eq!(answers.get(&429), Some(&(260 - taken)), "{answers:?}");
    assert_eq!(haproxy.counts(), (260, 260 - taken as u64));
}

#[test]
fn told_its_rate_haproxy_refuses_almost_nothing() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let haproxy = Haproxy::start(&counting, 1);
    let items = measure::items();
    let job = Job::new(items, &haproxy.base_url(), &TOLD);
    let ended = job.run();
    job.assert_complete(&ended);
    let (sends, refused) = haproxy.counts();
    measure::pace("haproxy told", items, sends, refused, ended.seconds, oracle(items), Some(0.85));
    assert_eq!(ended.count("calls"), sends, "the summary counts what HAProxy counted: {}", ended.summary);
    assert_eq!(ended.count("throttled"), refused);
    measure::assert_few_refused(sends, refused);
    assert_eq!(counting.arrivals(), items as u64, "an accepted item is never sent again");
}

#[test]
fn untold_the_rate_is_learnt_at_haproxy() {
    let _bound = TestBound::new();
    // The window is 10 s: one frontend says so, the other claims that a second is enough.
    std::thread::scope(|scope| {
        scope.spawn(|| untold("haproxy untold, honest hint", 10));
        scope.spawn(|| untold("haproxy untold, hint too short", 1));
    });
}

fn untold(name: &str, retry_after: u32) {
    let counting = Counting::start(SERVICE);
    let haproxy = Haproxy::start(&counting, retry_after);
    // Up to 64 calls are in flight when the first window turns out to be used up, and all of them may be refused: the price of
    // learning is that of three windows, in which it is paid once.
    let items = measure::items().max(3 * LIMIT);
    let job = Job::new(items, &haproxy.base_url(), &["--concurrency", "64"]);
    let ended = job.run();
    let (sends, refused) = haproxy.counts();
    measure::pace(name, items, sends, refused, ended.seconds, oracle(items), None);
    job.assert_complete(&ended);
    assert_eq!(ended.count("calls"), sends, "the summary counts what HAProxy counted: {}", ended.summary);
    assert_eq!(counting.arrivals(), items as u64, "an accepted item is never sent again");
    // The window is used up at once by a client that does not know it, and what is refused then counts in the next one.
    measure::assert_learnt(items, refused, 15);
}

/// HAProxy weighs the window before by what is left of it: no client gets more than the limit per window, on average.
pub(crate) fn oracle(items: usize) -> f64 {
    items as f64 / LIMIT as f64 * 10.0 + SERVICE.as_secs_f64()
}

impl Haproxy {
    /// Returns when HAProxy listens: as a daemon it goes to the background only after that, so nothing polls.
    pub(crate) fn start(upstream: &Counting, retry_after: u32) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut stderr = Vec::new();
        for _ in 0..5 {
            let [port] = free_ports();
            let file = folder.path().join("haproxy.cfg");
            fs::write(&file, config(&folder, port, upstream, retry_after)).expect("writing haproxy.cfg");
            let output = bounded::output_of(Command::new("haproxy").arg("-D").arg("-f").arg(&file));
            let output = output.expect("haproxy is on the PATH (scripts/test installs it)");
            if output.status.success() {
                return Self { folder, port };
            }
            stderr = output.stderr;
        }
        panic!("haproxy does not start: {}", String::from_utf8_lossy(&stderr));
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn base_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// All calls, and those answered with a 4xx, by HAProxy's statistics of the frontend.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let mut socket = UnixStream::connect(self.folder.path().join("stats")).expect("the statistics socket");
        socket.write_all(b"show stat\n").expect("asking for statistics");
        let mut table = String::new();
        socket.read_to_string(&mut table).expect("reading statistics");
        let mut rows = table.trim_start_matches("# ").lines();
        let columns: Vec<&str> = rows.next().expect("a header").split(',').collect();
        let row: Vec<&str> = rows.next().expect("the frontend comes first").split(',').collect();
        let cell = |name| {
            let at = columns.iter().position(|column| *column == name).expect("a known column");
            row[at].parse().expect("a number")
        };
        (cell("req_tot"), cell("hrsp_4xx"))
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        if let Ok(process) = fs::read_to_string(self.folder.path().join("pid")) {
            let _ = Command::new("kill").arg(process.trim()).status();
        }
    }
}

fn config(folder: &tempfile::TempDir, port: u16, upstream: &Counting, retry_after: u32) -> String {
    let (folder, upstream) = (folder.path().display(), upstream.address());
    format!(
        r#"
global
    maxconn 1000
    pidfile {folder}/pid
    stats socket {folder}/stats
defaults
    mode http
    # A client may open a connection that it then does not need; without this the empty connection counts as a call.
    option http-ignore-probes
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend limited
    bind 127.0.0.1:{port}
    stick-table type string len 128 size 10k expire 60s store http_req_rate(10s)
    http-request track-sc0 req.hdr(authorization),sha1,hex
    acl limited sc_http_req_rate(0) gt {LIMIT}
    http-request return status 429 content-type application/json hdr Retry-After {retry_after} string '{{"error":{{"message":"slow down"}}}}' if limited
    default_backend counting
backend counting
    server counting {upstream}
"#
    )
}
