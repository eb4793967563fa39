//! `paceline serve` before nginx and HAProxy: 64 clients that never retry get an answer each, and the proxies refuse little.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline::Clock;

use super::counting::Counting;
use super::haproxy::{self, Haproxy};
use super::measure;
use super::nginx::{BURST, Limit, Nginx, RATE, SERVICE};
use crate::bounded::{self, Bounded, TestBound};

/// Clients at once, each with one request after the other.
pub(crate) const CLIENTS: usize = 64;

/// What each of them asks.
pub(crate) const BODY: &str =
    r#"{"model":"peer","max_tokens":8,"messages":[{"role":"user","content":"Say a number."}]}"#;

/// `paceline serve`, stopped with the value.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) url: String,
    state: tempfile::TempDir,
}

#[test]
fn a_gateway_that_is_told_the_rate_holds_what_nginx_would_refuse() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let told = "[upstream.first]\nlimits = [\"20 rps\"]\nburst = 20\nshape = \"bucket\"\n";
    let counts = || nginx.counts();
    let oracle = oracle_of_nginx(200);
    let (_, sends, refused) =
        serve("gateway before nginx, told", &nginx.base_url(), told, 200, oracle, Some(0.9), counts);
    measure::assert_few_refused(sends, refused);
    assert_eq!(counting.arrivals(), 200, "nothing is sent twice");
}

#[test]
fn a_gateway_learns_the_rate_of_nginx() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let nginx = Nginx::start(&counting, Limit::Bucket);
    let (oracle, counts) = (oracle_of_nginx(200), || nginx.counts());
    let (_, _, refused) =
        serve("gateway before nginx, untold", &nginx.base_url(), "[upstream.first]\n", 200, oracle, Some(0.92), counts);
    assert_eq!(counting.arrivals(), 200, "nothing is sent twice");
    measure::assert_learnt(200, refused, 5);
}

/// A failure is neither a refusal nor a reason to slow down.
#[test]
fn random_failures_slow_a_gateway_down_by_little() {
    let _bound = TestBound::new();
    let run = |name: &str, failing: u64| {
        let counting = Counting::failing(SERVICE, failing);
        let nginx = Nginx::start(&counting, Limit::Bucket);
        let counts = || nginx.counts();
        let (seconds, _, refused) =
            serve(name, &nginx.base_url(), "[upstream.first]\n", 400, oracle_of_nginx(400), None, counts);
        measure::assert_learnt(400, refused, 5);
        (seconds, counting.arrivals())
    };
    let (clean, failing) = std::thread::scope(|scope| {
        let failing = scope.spawn(|| run("gateway before nginx, untold, 2 % fail", 2));
        (run("gateway before nginx, untold, none fails", 0), failing.join().expect("no panic"))
    });
    assert_eq!(clean.1, 400, "nothing is sent twice");
    assert!(failing.1 > 400, "what failed is sent again");
    measure::pace("random failures beside none", 400, failing.1, 0, failing.0, clean.0, Some(0.9));
}

#[test]
fn a_gateway_learns_the_rate_of_haproxy() {
    let _bound = TestBound::new();
    std::thread::scope(|scope| {
        for (name, hint) in [("honest hint", 10), ("hint too short", 1)] {
            scope.spawn(move || {
                let counting = Counting::start(SERVICE);
                let proxy = Haproxy::start(&counting, hint);
                let name = format!("gateway before haproxy, {name}");
                let counts = || proxy.counts();
                let oracle = haproxy::oracle(400);
                let (_, _, refused) =
                    serve(&name, &proxy.base_url(), "[upstream.first]\n", 400, oracle, Some(0.85), counts);
                assert_eq!(counting.arrivals(), 400, "nothing is sent twice");
                measure::assert_learnt(400, refused, 10);
            });
        }
    });
}

fn oracle_of_nginx(items: usize) -> f64 {
    (items as f64 - BURST) / RATE + SERVICE.as_secs_f64()
}

/// Sends that many requests through a gateway, and returns the seconds, the calls that the server counted, and those it refused.
fn serve(
    name: &str,
    base_url: &str,
    config: &str,
    items: usize,
    oracle: f64,
    bar: Option<f64>,
    counts: impl Fn() -> (u64, u64),
) -> (f64, u64, u64) {
    let gateway = Gateway::start(base_url, config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let clock = Clock::new();
    let began = clock.now();
    let answers = runtime.block_on(send_all(&gateway.url, items));
    let seconds = (clock.now() - began).as_secs_f64();
    let (sends, refused) = counts();
    measure::pace(name, items, sends, refused, seconds, oracle, bar);
    assert_eq!(answers, BTreeMap::from([(200, items)]), "every request is answered");
    (seconds, sends, refused)
}

pub(crate) async fn send_all(url: &str, items: usize) -> BTreeMap<u16, usize> {
    let client = paceline_http::client_to(url).timeout(Duration::from_secs(300)).build().expect("a client");
    let (next, url) = (Arc::new(AtomicUsize::new(0)), format!("{url}/first/v1/chat/completions"));
    let workers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (client, next, url) = (client.clone(), Arc::clone(&next), url.clone());
            tokio::spawn(async move {
                let mut answers = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < items {
                    let answer = client.post(&url).body(BODY).send().await.expect("the gateway answers");
                    answers.push(answer.status().as_u16());
                }
                answers
            })
        })
        .collect();
    let mut all = BTreeMap::new();
    for worker in workers {
        for status in worker.await.expect("a worker does not panic") {
            *all.entry(status).or_default() += 1;
        }
    }
    all
}

impl Gateway {
    /// To one upstream, `first`, which begins with `config`.
    pub(crate) fn start(base_url: &str, config: &str) -> Self {
        let state = tempfile::tempdir().expect("a temporary folder");
        let file = state.path().join("paceline.toml");
        let text = format!(
            "{config}provider = \"openai\"\nbase_url = \"{base_url}\"\napi_key_env = \"KEY\"\nconcurrency = {CLIENTS}\n"
        );
        std::fs::write(&file, text).expect("writing the configuration");
        let (child, url) = begin(state.path(), "127.0.0.1:0");
        Self { child, url, state }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.ended();
    }

    /// Kills it, and begins the next one at its address.
    pub(crate) fn kill_and_begin(&mut self) {
        self.kill();
        (self.child, self.url) = begin(self.state.path(), self.url.trim_start_matches("http://"));
    }
}

/// Begins a gateway with what is in that folder. Returns where it listens.
fn begin(state: &Path, listen: &str) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["serve", "--listen", listen, "--config"]).arg(state.join("paceline.toml"));
    command.arg("--state").arg(state).env("KEY", "sk-of-the-gateway").env("XDG_STATE_HOME", state);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    bounded::read_line(&child, &mut BufReader::new(stdout), &mut line);
    let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
    (child, url)
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
