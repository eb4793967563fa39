//! A gateway that is killed while it holds requests: the next one knows what has left.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::bounded::Bounded as _;
use crate::serve::{Gateway, send, serve};
use crate::support::{Job, Reply, Server};

const REQUESTS: usize = 500;
const LIMIT: usize = 200;

/// Posts all of them at once; `and` may count the answers meanwhile. Returns how many got which status; 0 where the gateway was
/// gone.
fn post_all(url: &str, deadline: &'static str, and: impl FnOnce(&AtomicUsize)) -> BTreeMap<u16, usize> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let client = paceline_http::client_to(url).timeout(Duration::from_secs(60)).build().expect("a client");
    let answered = Arc::new(AtomicUsize::new(0));
    let send = || {
        let request = client.post(format!("{url}/generic/v1/things")).header("x-paceline-deadline", deadline);
        let answered = Arc::clone(&answered);
        runtime.spawn(async move {
            let answer = request.body(r#"{"model":"m"}"#).send().await;
            answered.fetch_add(usize::from(answer.is_ok()), Ordering::Relaxed);
            answer
        })
    };
    let sent: Vec<_> = (0..REQUESTS).map(|_| send()).collect();
    and(&answered);
    let mut answers = BTreeMap::new();
    for answer in sent {
        let answer = runtime.block_on(answer).expect("no panic");
        *answers.entry(answer.map_or(0, |answer| answer.status().as_u16())).or_default() += 1;
    }
    answers
}

/// A gateway whose disk of one MiB fills up behind its first call: two calls later it is killed, and begins anew.
pub(crate) struct FullDisk<'a> {
    /// The folder that the disk is, and the variable that names it or another one, where that is so.
    pub(crate) disk: &'a str,
    pub(crate) variable: (&'a str, &'a str),
    /// What is done before it begins.
    pub(crate) first: &'a str,
    pub(crate) flags: &'a str,
    /// Wait until one call is kept, and until three are.
    pub(crate) kept: [String; 2],
}

impl FullDisk<'_> {
    /// Of a limit of five calls in an hour, five leave. `post`: makes one at that address.
    pub(crate) fn holds_five(self, job: &Job, server: &Server, post: impl Fn(&str) -> u16) {
        let Self { disk, variable: (name, folder), first, flags, kept: [one, three] } = self;
        let paceline = env!("CARGO_BIN_EXE_paceline");
        let serve = format!("{paceline} serve --listen 127.0.0.1:0 --state state --base-url {} {flags}", server.url());
        let script = format!(
            "mkdir {disk} && mount -t tmpfs -o size=1m tmpfs {disk} || exit 99
             {first}
             {serve} > one 2> log &
             read called; {one}
             head -c 2m /dev/zero > {disk}/filler; echo > full
             read called; {three}
             kill -9 $!; wait
             {serve} > two 2> log &
             read ended; kill $!; wait"
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script]).current_dir(job.path("")).env_clear().stdin(Stdio::piped());
        command.env(name, job.path(folder)).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut running = command.spawn().expect("unshare is there");
        let text_of = |name: &str| loop {
            match std::fs::read_to_string(job.path(name)) {
                Ok(text) if text.ends_with('\n') => break text.lines().next().unwrap_or_default().to_owned(),
                _ => std::thread::yield_now(),
            }
        };
        let url = |name: &str| text_of(name).trim_start_matches("listening on ").to_owned();
        let mut goes_on = running.stdin.take().expect("it is piped");
        let mut go_on = || goes_on.write_all(b"\n").expect("it reads");
        let first = url("one");
        assert_eq!(post(&first), 200);
        go_on();
        text_of("full");
        assert_eq!([(); 2].map(|()| post(&first)), [200; 2]);
        go_on();
        let second = url("two");
        assert_eq!([(); 4].map(|()| post(&second)), [200, 200, 429, 429]);
        go_on();
        assert!(running.ended().success(), "{}", job.text("log"));
        assert_eq!(server.count(), 5);
    }
}

/// The counts and a reserve beside them take turns.
#[test]
fn what_was_sent_on_a_full_disk_counts_after_a_kill() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let kept = [1, 3].map(|units| {
        format!(
            "for i in $(seq 1000); do
                 sum=0; for n in $(grep -oh '\"units\":[0-9]*' home/paceline/*.json); do sum=$((sum + ${{n#*:}})); done
                 [ $sum = {units} ] && break
             done"
        )
    });
    let (variable, flags) = (("XDG_STATE_HOME", "home"), "--limit '5 per 1h'");
    FullDisk { disk: "home", variable, first: "", flags, kept }.holds_five(&job, &server, |url| {
        send(&format!("{url}/generic/v1/things"), |client, url| client.post(url).header("x-paceline-deadline", "30s")).0
    });
}

/// The units that the user's counts have of the limit.
fn written(job: &Job) -> u64 {
    let files = std::fs::read_dir(job.path("home/paceline")).into_iter().flatten().filter_map(Result::ok);
    let counts = files.map(|file| file.path()).find(|path: &PathBuf| path.extension().is_some_and(|end| end == "json"));
    let counts: Value =
        counts.and_then(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).unwrap_or_default();
    let taken = counts["runs"].as_array().into_iter().flatten().flat_map(|run| {
        run["account"]["windows"][0]["taken"].as_array().into_iter().flatten().filter_map(|part| part["units"].as_u64())
    });
    taken.sum()
}

#[test]
fn what_was_sent_before_a_kill_counts_after_it_and_what_was_held_was_not_sent() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let limit = format!("{LIMIT} per 60s");
    let command = || -> Command {
        let mut command = serve(&job, &server, &["--limit", &limit, "--state", "state"]);
        command.env("PACELINE_UPSTREAM__GENERIC__BURST", LIMIT.to_string()).env("XDG_STATE_HOME", job.path("home"));
        command
    };
    let mut gateway = Gateway::start(&mut command());
    let answers = post_all(&gateway.url.clone(), "200s", |answered| {
        while answered.load(Ordering::Relaxed) < LIMIT || written(&job) < LIMIT as u64 {
            std::thread::yield_now();
        }
        gateway.signal(Signal::KILL);
        gateway.ended();
    });
    assert_eq!(answers, BTreeMap::from([(200, LIMIT), (0, REQUESTS - LIMIT)]), "the held ones were told nothing");
    assert_eq!(server.count(), LIMIT);

    let gateway = Gateway::start(&mut command());
    let answers = post_all(&gateway.url, "1s", |_| {});
    assert_eq!((answers, server.count()), (BTreeMap::from([(429, REQUESTS)]), LIMIT), "none leaves beyond the limit");
    let (status, body) = gateway.post("/generic/v1/things", "1s");
    let error: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, error["error"]["code"].as_str()), (429, Some("wait_too_long")), "{body}");
    assert!(error["error"]["limit"].as_str().is_some_and(|limit| limit.contains("200 requests per")), "{body}");
}
