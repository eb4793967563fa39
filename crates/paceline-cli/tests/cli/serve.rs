//! `paceline serve`: how it begins, what it keeps over restarts, and how it ends.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::batches::{Service, input};
use crate::bounded::{Bounded, read_line};
use crate::serve_keys::{keys, told};
use crate::serve_operation::{configure, configured, wait_for_log};
use crate::support::{Job, Reply, Server, finish};

/// A gateway at work, killed with the value.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// The rest of what it prints.
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl Gateway {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::logging(command, Stdio::null())
    }

    /// One whose log lines go there.
    pub(crate) fn logging(command: &mut Command, log: impl Into<Stdio>) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary runs");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        read_line(&child, &mut stdout, &mut line);
        let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Self { child, url, stdout }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The next two lines that it prints.
    pub(crate) fn next_two_lines(&mut self) -> [String; 2] {
        [(); 2].map(|()| {
            let mut line = String::new();
            read_line(&self.child, &mut self.stdout, &mut line);
            line.trim_end().to_owned()
        })
    }

    /// Waits for its end, and returns its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.ended().code()
    }

    /// Posts a prompt, and returns the status and the body.
    pub(crate) fn post(&self, path: &str, deadline: &str) -> (u16, String) {
        post(&format!("{}{path}", self.url), deadline)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        self.child.ended();
    }
}

pub(crate) fn post(url: &str, deadline: &str) -> (u16, String) {
    send(url, |client, url| client.post(url).header("x-paceline-deadline", deadline).body(r#"{"model":"m"}"#))
}

/// The status and the body of a page.
pub(crate) fn get(url: &str) -> (u16, String) {
    send(url, |client, url| client.get(url))
}

pub(crate) fn send(url: &str, request: impl FnOnce(reqwest::Client, &str) -> reqwest::RequestBuilder) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = paceline_http::client_to(url).build().expect("a client");
        let answer = request(client, url).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    })
}

pub(crate) fn serve(job: &Job, server: &Server, flags: &[&str]) -> Command {
    let mut command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--base-url", &server.url()]).args(flags);
    command
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes half a minute: scripts/test runs it")]
fn an_end_that_cuts_off_what_is_in_flight_is_no_clean_one() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().never()));
    let mut service = Service::start(&job, &server, &[]);
    service.create(&input(2), "24h");
    let mut client = TcpStream::connect(service.gateway.url.trim_start_matches("http://")).expect("it listens");
    client.write_all(b"GET /generic/v1/things HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    server.wait_for(3);
    service.signal(Signal::TERM);
    assert_eq!(service.gateway.ended(), Some(3), "{}", job.text("gateway.log"));
    let log = job.text("gateway.log");
    assert!(log.contains("WARN requests that were cut off: 1, whose answers took longer than 30s"), "{log}");
    assert!(log.contains("WARN calls of batches that were cut off: 2"), "{log}");
}

#[test]
fn what_it_cannot_serve_it_refuses_before_it_listens() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let config = "[upstream.a]\nbase_url = \"http://127.0.0.1:1\"\n[upstream.b]\nbase_url = \"http://127.0.0.1:2\"\n";
    std::fs::write(job.path("two.toml"), config).expect("writable");
    std::fs::write(job.path("v1.toml"), config.replace("upstream.a", "upstream.v1")).expect("writable");
    let by_case = config.replace("upstream.a", "upstream.openai").replace("upstream.b", "upstream.OpenAI");
    std::fs::write(job.path("case.toml"), by_case).expect("writable");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("it listens").to_string();
    for (flags, expected) in [
        (&["--listen", "0.0.0.0:4747"][..], "--listen 0.0.0.0:4747: others could spend your key there"),
        (&["--listen", &taken, "--base-url", &server.url()], "another program listens there"),
        (&["--config", "two.toml", "--limit", "5rpm"], "--limit is for one upstream, and there are 2: a, b"),
        (&["--config", "two.toml", "--rpm", "5"], "--rpm is for one upstream, and there are 2: a, b"),
        (&["--config", "two.toml", "--max-retries", "1"], "set it in paceline.toml (retry.max_retries), or choose"),
        (&["--upstream", "openai"], "OPENAI_API_KEY is not set"),
        (&["--config", "v1.toml"], "upstream.v1: the gateway answers /v1 itself; expected another name than healthz"),
        (
            &["--config", "case.toml"],
            "upstream.openai: upstream.OpenAI is the same name but for the case of its letters, which a host such as openai.localhost",
        ),
        (
            &["--listen", "127.0.0.1:4747", "--base-url", "http://localhost:4747/generic"],
            "upstream generic: base_url = \"http://localhost:4747/generic\" (from flag --base-url) is this gateway itself",
        ),
        (&["--base-url", &server.url(), "--scope", "host"], "unexpected argument '--scope'"),
        (
            &["--base-url", &server.url(), "--proxy", "socks5://127.0.0.1:9"],
            "an address such as http://proxy.example.com:3128, or none",
        ),
        (&["--base-url", &server.url(), "--limit", "many"], "--limit"),
        (&["--base-url", &server.url(), "--ca-file", "none.pem"], "none.pem"),
    ] {
        let (code, log) = finish(job.paceline().arg("serve").args(flags));
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn limits_and_holds_outlive_the_process() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let command = || serve(&job, &server, &["--limit", "2 per 1h", "--state", "state"]);
    let mut gateway = Gateway::start(&mut command());
    for _ in 0..2 {
        assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    }
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let gateway = Gateway::start(&mut command());
    let (status, body) = gateway.post("/generic/v1/things", "1s");
    let error: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, error["error"]["code"].as_str()), (429, Some("wait_too_long")), "{body}");
    assert!(error["error"]["limit"].as_str().expect("a limit").contains("2 requests per 1h"), "{body}");
    assert_eq!(server.count(), 2);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_person_may_lift_a_hold() {
    let (job, server) = (
        Job::new(0),
        Server::new(|arrival| match arrival.before < 2 {
            true => Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 86_400),
            false => Reply::ok(),
        }),
    );
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 429);
    kill_process(Pid::from_child(&gateway.child), Signal::TERM).expect("it runs");
    assert_eq!(gateway.child.ended().code(), Some(0));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 429, "it is kept");
    let command = |args: &[&str]| {
        let mut command = job.paceline();
        command.args(["serve", "lift-holds", "--state", "state"]).args(args);
        command
    };
    let lift = |args: &[&str]| finish(&mut command(args));
    let (code, log) = lift(&["--upstream", "other"]);
    assert!(code == 2 && log.contains("no gateway that serves other runs on the state folder state"), "{log}");
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 429, "of another upstream");
    // While it runs.
    assert_eq!(told(&mut command(&["--upstream", "generic"])), "lifted: generic: 1 hold");
    assert_eq!(told(&mut command(&[])), "lifted: generic: nothing");
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 429, "the server refuses a second time");
    drop(gateway);
    let gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state", "--lift-holds"]));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    assert_eq!(server.count(), 3);
}

#[test]
fn to_lift_the_holds_of_a_folder_that_is_not_there_says_what_to_do() {
    let job = Job::new(0);
    let (code, log) = finish(job.paceline().args(["serve", "lift-holds", "--state", "wrong"]));
    assert!(
        code == 2 && log.contains("no gateway runs on the state folder wrong; name its folder with --state"),
        "{log}"
    );
}

/// The file came later than the configuration that names it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_file_that_only_a_refused_configuration_names_is_read_once_it_is_there() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "");
    let settings = |key: &str| {
        let more = format!("[upstream.more]\nbase_url = \"{}\"\napi_key_file = \"{key}\"\n", server.url());
        configure(&job, &server, &format!("{more}fallback_to = [\"static:503:sorry.txt\"]\n"));
    };
    // A folder is no key; it holds up no later configuration.
    std::fs::create_dir(job.path("folder")).expect("writable");
    settings("folder");
    wait_for_log(&job, "/folder", 1);
    settings("later");
    wait_for_log(&job, "/later", 1);
    std::fs::write(job.path("later"), "sk-later").expect("writable");
    wait_for_log(&job, "sorry.txt", 1);
    assert_eq!(gateway.post("/more/v1/things", "1s").0, 404);
    std::fs::write(job.path("sorry.txt"), "sorry").expect("writable");
    wait_for_log(&job, "new: more", 1);
    assert_eq!(gateway.post("/more/v1/things", "1s").0, 200);
    std::fs::write(job.path("later"), "sk-latest").expect("writable");
    wait_for_log(&job, "changed: more, its key", 1);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_signal_ends_it_once_requests_under_way_are_answered() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().after(Duration::from_millis(300))));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &[]));
    let url = format!("{}/generic/v1/things", gateway.url);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || post(&url, "60s").0)
        })
        .collect();
    server.wait_for(20);
    gateway.signal(Signal::TERM);
    for call in calls {
        assert_eq!(call.join().expect("no panic"), 200);
    }
    assert_eq!(gateway.ended(), Some(0));
}

/// A program without a key must not be the first to learn of it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn the_first_key_that_closes_a_gateway_is_told_and_says_nothing_of_upstreams() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    told(&mut keys(&job, &["add", "tb"]));
    let closes = "WARN from now on only programs with a key may call (1 key: tb)";
    wait_for_log(&job, closes, 1);
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 401);
    told(&mut keys(&job, &["revoke", "tb"]));
    wait_for_log(&job, "WARN from now on no program may call: no key is left", 1);
    gateway.signal(Signal::HUP);
    wait_for_log(&job, "first; nothing has changed", 1);
    let log = job.text("log");
    assert_eq!([closes, "nothing has changed"].map(|words| log.matches(words).count()), [1, 1], "{log}");
}

#[test]
fn a_second_signal_that_cuts_nothing_off_is_a_clean_end() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &[]));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    gateway.signal(Signal::TERM);
    gateway.signal(Signal::INT);
    assert_eq!(gateway.ended(), Some(0));
}

#[test]
fn a_reload_that_ends_a_stop_says_so() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::error(401, "invalid_api_key"),
        _ => Reply::ok(),
    });
    let job = Job::new(0);
    let gateway = configured(&job, &server, "");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 401);
    wait_for_log(&job, "nothing leaves until a person acts", 1);
    for reload in 1..=2 {
        gateway.signal(Signal::HUP);
        wait_for_log(&job, "first; nothing has changed", reload);
    }
    assert_eq!(job.text("log").matches("the stop of first ended: calls go again").count(), 1, "{}", job.text("log"));
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
}

#[test]
fn an_upstream_whose_lines_only_moved_in_the_file_has_not_changed() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "max_deferrals = 3\nrpm = 600\n");
    let read = |says: &str, settings: &str| {
        configure(&job, &server, settings);
        gateway.signal(Signal::HUP);
        wait_for_log(&job, &format!("the configuration was read again; upstreams: first; {says}\n"), 1);
    };
    read("nothing has changed", "# how often\nmax_deferrals = 3\n\nrpm = 600\n");
    read("changed: first", "# how often\nmax_deferrals = 4\n\nrpm = 600\n");
}
