//! `run --store` over the pages of several hosts, some of which take no calls: what a host of the job cannot send holds up no
//! other line.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::bounded::{Bounded, BoundedOutput, TestBound};
use crate::postgres_server::PostgresServer;

/// Answers for every address of the loopback network, at one port: the host `127.0.0.N` by its number.
struct Pages {
    port: u16,
    calls: Arc<Mutex<BTreeMap<u8, usize>>>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// The status of an answer, and its `Retry-After`.
type Answer = (u16, Option<&'static str>);

impl Pages {
    fn start(answer: fn(u8) -> Answer) -> Self {
        let calls: Arc<Mutex<BTreeMap<u8, usize>>> = Arc::default();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let counted = Arc::clone(&calls);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
                sender.send(listener.local_addr().expect("it is bound").port()).expect("the test is waiting");
                tokio::select! {
                    () = serve(listener, counted, answer) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port: receiver.recv().expect("the server thread starts"), calls, _stop: stop }
    }

    fn wait_for(&self, host: u8, calls: usize) {
        while self.calls_to(host) < calls {
            std::thread::yield_now();
        }
    }

    fn calls_to(&self, host: u8) -> usize {
        self.calls.lock().expect("no holder panics").get(&host).copied().unwrap_or_default()
    }

    /// So many pages of each of these hosts, in turns.
    fn of(&self, hosts: &[u8], pages: usize) -> String {
        let page = |page: usize| hosts.iter().map(move |host| format!("http://127.0.0.{host}:{}/p{page}\n", self.port));
        (0..pages).flat_map(page).collect()
    }
}

async fn serve(listener: TcpListener, calls: Arc<Mutex<BTreeMap<u8, usize>>>, answer: fn(u8) -> Answer) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let host = stream.local_addr().ok().and_then(|address| match address.ip() {
            std::net::IpAddr::V4(address) => Some(address.octets()[3]),
            std::net::IpAddr::V6(_) => None,
        });
        let (host, calls) = (host.expect("an address of version 4"), Arc::clone(&calls));
        let service = service_fn(move |_: Request<Incoming>| {
            *calls.lock().expect("no holder panics").entry(host).or_default() += 1;
            let (status, wait) = answer(host);
            let mut answer = Response::new(Full::new(Bytes::from_static(b"<p>a page</p>")));
            *answer.status_mut() = status.try_into().expect("a status");
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html"));
            wait.map(|wait| headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(wait)));
            // A refusal comes later than a host that shares its processors needs to record the one before.
            let after = Duration::from_millis(if status < 400 { 0 } else { 200 });
            async move {
                tokio::time::sleep(after).await;
                Ok::<_, Infallible>(answer)
            }
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// A host of the job.
struct Host(tempfile::TempDir, Command);

impl Host {
    fn new(pages: &Pages, postgres: &PostgresServer, lines: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("pages.txt"), lines).expect("a new file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        let base_url = format!("http://127.0.0.1:{}", pages.port);
        command.args(["run", "pages.txt", "-o", "out.jsonl", "--summary", "summary.json", "--base-url", &base_url]);
        command.args(["--store", &postgres.url(), "--scope", "host", "--id-column", "url"]).args(flags);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder.path());
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(folder, command)
    }

    fn spawn(&mut self) -> Child {
        let log = fs::File::create(self.0.path().join("log")).expect("a new file");
        self.1.stderr(log).spawn().expect("the binary starts")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.path().join("log")).unwrap_or_default()
    }

    /// Its exit code, what it said, and the counts of the whole job: succeeded, failed, left.
    fn run(mut self) -> (Option<i32>, String, [u64; 3]) {
        let Output { status, stderr, .. } = self.1.ended_with_output();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned(), self.job())
    }

    fn job(&self) -> [u64; 3] {
        let summary = fs::read(self.0.path().join("summary.json")).unwrap_or_default();
        let summary: Value = serde_json::from_slice(&summary).unwrap_or_default();
        ["succeeded", "failed", "left"].map(|key| summary["job"][key].as_u64().unwrap_or(u64::MAX))
    }
}

#[test]
fn a_host_of_a_job_ends_where_all_that_is_left_is_stopped() {
    let _bound = TestBound::new();
    let pages = Pages::start(|host| if host == 3 { (403, None) } else { (200, None) });
    let postgres = PostgresServer::start();
    let refused: String = (0..30).map(|page| format!("http://127.0.0.9:1/p{page}\n")).collect();
    let lines = pages.of(&[2, 3], 30) + &refused;
    let (code, log, job) = Host::new(&pages, &postgres, &lines, &["--max-wait", "3s"]).run();
    assert_eq!((code, job), (Some(3), [30, 0, 60]), "{log}");
    assert!(
        log.contains("127.0.0.3") && log.contains("403") && log.contains("127.0.0.9"),
        "each has its reason: {log}"
    );
}

#[test]
fn a_hold_of_hours_holds_up_no_line_that_is_in_another_block() {
    let _bound = TestBound::new();
    let pages = Pages::start(|host| if host == 2 { (429, Some("7200")) } else { (200, None) });
    let postgres = PostgresServer::start();
    let lines = pages.of(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 60);
    let (code, log, job) = Host::new(&pages, &postgres, &lines, &["--max-wait", "5s"]).run();
    assert_eq!((code, job), (Some(3), [540, 0, 60]), "{log}");
}

/// A loop that begins the command again and again never got there: each run ended before it had waited for a lease.
#[test]
fn the_lines_of_a_host_that_was_killed_are_taken_though_all_that_is_left_here_is_held() {
    let _bound = TestBound::new();
    let pages = Pages::start(|host| if host == 2 { (429, Some("7200")) } else { (200, None) });
    let postgres = PostgresServer::start();
    let lines = pages.of(&[3], 200) + &pages.of(&[2], 4);
    let mut killed = Host::new(&pages, &postgres, &lines, &["--limit", "1rps"]);
    let mut child = killed.spawn();
    pages.wait_for(3, 3);
    child.kill().expect("it runs");
    child.ended();
    let (code, log, job) = Host::new(&pages, &postgres, &lines, &["--max-wait", "5m"]).run();
    assert_eq!((code, job), (Some(3), [200, 0, 4]), "{log}");
}

/// Where it may not wait for so long, it says what it has left to whom.
#[test]
fn a_host_that_may_not_wait_for_the_lines_of_a_lost_one_says_that_they_are_left() {
    let _bound = TestBound::new();
    let pages = Pages::start(|host| if host == 2 { (403, None) } else { (200, None) });
    let postgres = PostgresServer::start();
    let lines = pages.of(&[3], 40) + &pages.of(&[2], 30);
    let mut killed = Host::new(&pages, &postgres, &lines, &["--limit", "1rps"]);
    let mut child = killed.spawn();
    pages.wait_for(3, 3);
    child.kill().expect("it runs");
    child.ended();
    let (code, log, job) = Host::new(&pages, &postgres, &lines, &["--max-wait", "3s"]).run();
    assert_eq!((code, job[1]), (Some(3), 0), "{log}");
    assert!(job[2] > 30 && !log.contains("nothing else is left to send"), "{job:?}: {log}");
    assert!(log.contains(&format!("paceline collect --store '{}' --job ", postgres.url())), "it can be pasted: {log}");
    let told = "at another worker, last heard of ";
    assert!(log.contains(&format!("not finished: {} {told}", job[2] - 30)), "{job:?}: {log}");
}

#[test]
fn the_pages_of_a_banned_host_wait_again_whichever_hosts_of_the_job_have_them() {
    let _bound = TestBound::new();
    let pages = Pages::start(|host| if host == 3 { (403, None) } else { (200, None) });
    for hosts in [1, 2] {
        let postgres = PostgresServer::start();
        let lines = pages.of(&[2, 3, 4], 60);
        let mut hosts: Vec<Host> = (0..hosts)
            .map(|_| Host::new(&pages, &postgres, &lines, &["--max-wait", "20s", "--concurrency", "2"]))
            .collect();
        let children: Vec<Child> = hosts.iter_mut().map(Host::spawn).collect();
        let codes: Vec<Option<i32>> = children.into_iter().map(|mut child| child.ended().code()).collect();
        let logs: String = hosts.iter().map(Host::log).collect();
        assert!(codes.iter().all(|code| *code == Some(3)), "{codes:?}: {logs}");
        let last = hosts.iter().map(Host::job).min_by_key(|[_, _, left]| *left);
        assert_eq!(last, Some([120, 0, 60]), "{logs}");
    }
    assert!(pages.calls_to(3) <= 3 * 25, "each host of the job has to see some: {}", pages.calls_to(3));
}

#[test]
fn a_host_of_a_job_warns_of_what_does_not_act_as_a_run_alone_does() {
    let _bound = TestBound::new();
    let (pages, postgres) = (Pages::start(|_| (200, None)), PostgresServer::start());
    let host = |flags: &[&str]| {
        let host = Host::new(&pages, &postgres, &pages.of(&[1, 2], 2), flags);
        let tier = |tier: &str| format!("[[upstream.generic.tier]]\n{tier}\nlimits = ['600rpm']\n");
        let file = tier("host = 'gone.example'") + &tier("match = '/'");
        fs::write(host.0.path().join("paceline.toml"), file).expect("a new file");
        host.run()
    };
    let (code, log, job) = host(&["--header", "Cookie: sid=1"]);
    assert_eq!((code, job), (Some(0), [4, 0, 0]), "{log}");
    for warning in [
        "the limits of this run hold on this machine alone",
        "no line of the input matches tier host=gone.example",
        "the header cookie goes to 127.0.0.1",
        "a line for another host may have its own in `headers`",
    ] {
        assert!(log.contains(warning), "{warning}: {log}");
    }
    let (code, log, _) = host(&["--fleet", &postgres.url(), "--job", "again"]);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("in a fleet all hosts of tier / share its limits and its pauses"), "{log}");
    assert!(!log.contains("the limits of this run hold on this machine alone"), "the fleet shares them: {log}");
}
