//! `paceline serve` as those who run it see it: its metrics, its log, and how it ends.

use std::fs::File;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::serve::{Gateway, get, post, send, serve};
use crate::serve_keys::{certify, keys, told};
use crate::support::{Job, Reply, Server, finish};

#[test]
fn metrics_can_have_an_address_of_their_own() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--metrics-listen", "127.0.0.1:0"]));
    let told = gateway.next_two_lines();
    let metrics = told[1].strip_prefix("metrics at ").expect("the second line says where they are");
    assert_eq!(post(&format!("{}/generic/v1/things", gateway.url), "1s").0, 200);
    let (status, page) = get(metrics);
    assert!(status == 200 && page.contains("paceline_requests_total{class=\"success\""), "{page}");
    let at = metrics.trim_end_matches("/metrics");
    assert_eq!([get(&format!("{at}/readyz")).0, get(&format!("{at}/api/state")).0], [200, 404]);
    let (status, text) = get(&format!("{}/metrics", gateway.url));
    assert!(status == 404 && text.contains(&format!("the metrics are at {metrics}\"")), "{text}");
    assert_eq!(get(&format!("{}/readyz", gateway.url)).0, 200);
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
    assert!(log().contains("the gateway ends: no call is in flight"), "{}", log());
}

#[test]
fn requests_that_no_upstream_gets_are_logged_and_counted_too() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let flags = ["--log-requests", "--log-format", "json", "--metrics-listen", "127.0.0.1:0"];
    let log = || std::fs::read_to_string(job.path("log")).expect("a log");
    let mut command = serve(&job, &server, &flags);
    let mut gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    let told = gateway.next_two_lines();
    let metrics = told[1].strip_prefix("metrics at ").expect("the second line says where they are");
    let secret = "sk-that-stands-where-a-name-should-be";
    for (path, status) in [("/nowhere/sk-in-the-path?key=sk-in-the-query", 404), (&*format!("/{secret}"), 404)] {
        assert_eq!(gateway.post(path, "1s").0, status);
    }
    assert_eq!(send(&gateway.url, |client, url| client.get(url.to_owned() + "/v1/files")).0, 200);
    let page = get(metrics).1;
    assert!(page.contains("paceline_refusals_total{code=\"unknown_route\",upstream=\"\"} 2"), "{page}");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let lines: Vec<Value> = log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let requests = lines.iter().filter(|line| line["message"] == "request");
    let of = |line: &Value| ["path", "status", "code", "class"].map(|name| line[name].clone());
    let logged: Vec<_> = requests.map(of).collect();
    let unknown = |path: &str| [json!(path), json!(404), json!("unknown_route"), json!("refused")];
    let own = [json!("/v1"), json!(200), Value::Null, json!("own")];
    assert_eq!(logged, [unknown("/nowhere"), unknown("/..."), own], "{}", log());
    assert!(!log().contains("sk-") && log().contains("\"peer\":\"127.0.0.1:"), "{}", log());
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
    assert_eq!(gateway.ended(), Some(128 + 15), "a request was cut off");
}

/// A gateway to the upstream `first`, with that configuration, whose key is in a file.
pub(crate) fn configured(job: &Job, server: &Server, settings: &str) -> Gateway {
    configure(job, server, settings);
    std::fs::write(job.path("key"), "sk-first").expect("writable");
    let mut command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "paceline.toml", "--state", "state"]);
    Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"))
}

pub(crate) fn configure(job: &Job, server: &Server, settings: &str) {
    let upstream = format!("[upstream.first]\nprovider = \"openai\"\nbase_url = \"{}\"\n", server.url());
    std::fs::write(job.path("paceline.toml"), format!("{upstream}api_key_file = \"key\"\n{settings}"))
        .expect("writable");
}

/// Waits until the log has that many lines with those words.
pub(crate) fn wait_for_log(job: &Job, words: &str, count: usize) {
    while std::fs::read_to_string(job.path("log")).expect("a log").matches(words).count() < count {
        std::thread::yield_now();
    }
}

fn state(gateway: &Gateway) -> Value {
    serde_json::from_str(&get(&format!("{}/api/state", gateway.url)).1).expect("JSON")
}

const READ: &str = "the configuration was read again; upstreams";

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_changed_configuration_acts_without_a_restart_and_what_was_sent_still_counts() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "limits = [\"2 per 1h\"]\n");
    for _ in 0..2 {
        assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    }
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 429);
    configure(&job, &server, "limits = [\"3 per 1h\"]\n[upstream.more]\nbase_url = \"http://127.0.0.1:1\"\n");
    gateway.signal(Signal::HUP);
    wait_for_log(&job, READ, 1);
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200, "one more than before");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 429, "the first two still count");
    let names = |state: &Value| -> Vec<Value> {
        state["upstreams"].as_array().expect("a list").iter().map(|upstream| upstream["name"].clone()).collect()
    };
    assert_eq!(names(&state(&gateway)), [json!("first"), json!("more")]);
    configure(&job, &server, "");
    wait_for_log(&job, READ, 2);
    wait_for_log(&job, "WARN the new configuration has no limit on requests any more; if you did not mean that", 1);
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200, "without a limit, and without a signal");
    assert_eq!(names(&state(&gateway)), [json!("first")]);
    assert_eq!(get(&format!("{}/more/things", gateway.url)).0, 404);
    configure(&job, &server, "limits = [\"5 per 1h\"]\n");
    wait_for_log(&job, READ, 3);
    let statuses = [(); 2].map(|()| gateway.post("/first/v1/things", "1s").0);
    assert_eq!((statuses, server.count()), ([200, 429], 5), "what left without a limit counts, too");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_wrong_configuration_is_told_and_the_former_one_stays() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "rpm = 600\n");
    configure(&job, &server, "rpm = \"many\"\n");
    gateway.signal(Signal::HUP);
    wait_for_log(&job, "the former one stays", 1);
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("rpm = \"many\"") && log.contains("paceline.toml"), "{log}");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    has_metric(&gateway, "paceline_reload_refused 1");
    has_metric(&gateway, "paceline_reloads_total{outcome=\"refused\"} ");
    let ready =
        "ready\nthe last change of the configuration, a key or a certificate was refused, and the former ones stay\n";
    assert_eq!(get(&format!("{}/readyz", gateway.url)), (200, ready.to_owned()));
    assert_eq!(state(&gateway)["upstreams"][0]["account"]["quotas"][0]["limit"], 600);
    configure(&job, &server, "rpm = 700\n");
    has_metric(&gateway, "paceline_reload_refused 0");
    has_metric(&gateway, "paceline_reloads_total{outcome=\"taken\"} 1");
}

/// Waits for a line of the metrics that begins so.
fn has_metric(gateway: &Gateway, line: &str) {
    while !get(&format!("{}/metrics", gateway.url)).1.lines().any(|each| each.starts_with(line)) {
        std::thread::yield_now();
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn counts_that_cannot_be_written_are_a_metric() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "rpm = 600\n");
    has_metric(&gateway, "paceline_unwritten_files 0");
    std::fs::rename(job.path("state"), job.path("elsewhere")).expect("movable");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    has_metric(&gateway, "paceline_unwritten_files 1");
    let (status, text) = get(&format!("{}/readyz", gateway.url));
    assert_eq!(
        (status, &*text),
        (200, "ready\nthe state of limits and holds cannot be written, and a restart may forget some of it\n")
    );
    std::fs::rename(job.path("elsewhere"), job.path("state")).expect("movable");
    has_metric(&gateway, "paceline_unwritten_files 0");
}

#[test]
fn what_is_no_file_any_more_is_not_read_again_and_holds_up_no_request() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = configured(&job, &server, "rpm = 600\n");
    for (count, name) in [(1, "paceline.toml"), (2, "key")] {
        std::fs::rename(job.path(name), job.path("aside")).expect("movable");
        match name {
            // A pipe that nothing is written to, and a device that never ends.
            "key" => std::os::unix::fs::symlink("/dev/zero", job.path(name)).expect("writable"),
            _ => assert!(std::process::Command::new("mkfifo").arg(job.path(name)).ended().success()),
        }
        gateway.signal(Signal::HUP);
        wait_for_log(&job, "nothing is read again, and all stays as it was", count);
        assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
        std::fs::rename(job.path("aside"), job.path(name)).expect("movable");
    }
    gateway.signal(Signal::HUP);
    wait_for_log(&job, READ, 1);
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_new_key_lifts_the_stop_of_a_bad_one_and_no_request_is_dropped() {
    let (job, server) = (
        Job::new(0),
        Server::new(|arrival| match arrival.headers["authorization"].to_str() {
            Ok("Bearer sk-second") => Reply::ok(),
            _ => Reply::error(401, "invalid_api_key"),
        }),
    );
    let gateway = configured(&job, &server, "");
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 401);
    let (status, text) = gateway.post("/first/v1/things", "1s");
    assert!(status == 503 && text.contains("scope_stopped"), "{text}");
    assert_eq!(get(&format!("{}/readyz", gateway.url)).0, 503);
    std::fs::write(job.path("key"), "sk-second").expect("writable");
    wait_for_log(&job, READ, 1);
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    assert_eq!((get(&format!("{}/readyz", gateway.url)).0, server.count()), (200, 2));
    wait_for_log(&job, "INFO the upstream answers again, after ", 1);
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert_eq!(
        log.matches("ERROR nothing leaves until a person acts: ").count(),
        1,
        "one line, not one each request: {log}"
    );
    assert!(log.contains(" client="), "who sent the call that was refused: {log}");
    assert_eq!(log.matches("INFO the upstream answers again, after ").count(), 1, "{log}");
}

#[test]
fn a_state_that_is_damaged_is_kept_and_told() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut command = serve(&job, &server, &["--state", "state", "--limit", "500rpm"]);
    let mut gateway = Gateway::start(&mut command);
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let files = std::fs::read_dir(job.path("state")).expect("a folder").map(|file| file.expect("a file").path());
    let is_state = |file: &std::path::PathBuf| {
        file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"generic-"))
    };
    let state = files.into_iter().find(is_state).expect("what is known of the limits");
    std::fs::write(&state, "{\"half").expect("writable");
    let mut gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let kept = format!("{}.bad", state.display());
    assert_eq!(std::fs::read_to_string(&kept).expect("it is kept"), "{\"half");
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    let words = "cannot be used: what is known of the limits of its upstream begins anew, as if nothing had been sent";
    assert!(log.contains(words) && log.contains(".json.bad has it as it was"), "{log}");
}

#[test]
fn a_request_that_has_begun_ends_with_the_upstream_that_it_began_with() {
    let server = Server::new(|_| Reply::ok().after(std::time::Duration::from_millis(300)));
    let job = Job::new(0);
    let mut gateway = configured(&job, &server, "concurrency = 1\n");
    let url = format!("{}/first/v1/things", gateway.url);
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || post(&url, "60s").0)
        })
        .collect();
    while state(&gateway)["upstreams"][0]["account"]["waiting"] != 2 {
        std::thread::yield_now();
    }
    std::fs::write(job.path("paceline.toml"), "[upstream.other]\nbase_url = \"http://127.0.0.1:1\"\n")
        .expect("writable");
    gateway.signal(Signal::HUP);
    wait_for_log(&job, READ, 1);
    assert_eq!(get(&format!("{}/first/v1/things", gateway.url)).0, 404);
    for call in calls {
        assert_eq!(call.join().expect("no panic"), 200, "in flight, and held");
    }
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
}

#[test]
fn check_says_what_would_be_served_and_sends_nothing() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    configure(&job, &server, "rpm = 600\n");
    let check =
        || finish(job.paceline().args(["serve", "check", "--config", "paceline.toml", "--listen", "127.0.0.1:0"]));
    let (code, told) = check();
    assert!(code == 2 && told.contains("key"), "the key file is missing: {told}");
    std::fs::write(job.path("key"), "sk-first").expect("writable");
    let check_there = ["serve", "check", "--config", "paceline.toml", "--listen", "127.0.0.1:0", "--state", "none/yet"];
    let output = job.paceline().args(check_there).ended_with_output();
    let told = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{told}");
    let expected = format!(
        "first at http://127.0.0.1:0/first: {}, the key in key, limits: 600 requests per 60s\nstate: none/yet\n",
        server.url()
    );
    assert!(
        told.contains(&expected)
            && told.starts_with("clients: programs of this machine, without keys\n")
            && told.ends_with("all is well: paceline.toml; nothing was sent\n"),
        "{told}"
    );
    assert!(!job.path("none").exists(), "a check makes nothing");
    configure(&job, &server, "rpm = -1\n");
    let (code, told) = check();
    assert!(code == 2 && told.contains("rpm"), "{told}");
    assert_eq!(server.count(), 0);
}

/// systemd keeps the port open over a restart, and is told when the gateway is ready and when it ends.
#[test]
fn a_socket_of_systemd_takes_the_place_of_the_address() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("it listens");
    let told = UnixDatagram::bind(job.path("notify")).expect("a socket");
    let command = |sockets: u32| {
        // A shell moves the socket to the place where systemd puts it, and names the process as systemd does.
        let script = format!(r#"LISTEN_PID=$$ LISTEN_FDS={sockets} exec "$0" "$@" 3<&0 4<&0 0</dev/null"#);
        let paceline = serve(&job, &server, &[]);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(paceline.get_program()).args(paceline.get_args());
        command.current_dir(job.path("")).env("NOTIFY_SOCKET", job.path("notify"));
        for (name, value) in paceline.get_envs() {
            value.map(|value| command.env(name, value));
        }
        command.stdin(OwnedFd::from(port.try_clone().expect("a copy")));
        command
    };
    let two = command(2).output().expect("it starts");
    let why = String::from_utf8_lossy(&two.stderr);
    assert!(two.status.code() == Some(2) && why.contains("2 sockets") && why.contains("ListenStream"), "{why}");
    let state = || {
        let mut text = [0; 99];
        let length = told.recv(&mut text).expect("a word");
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    for _ in 0..2 {
        let mut gateway = Gateway::start(&mut command(1));
        assert_eq!((gateway.url.as_str(), state().as_str()), (&*format!("http://{address}"), "READY=1"));
        assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
        gateway.signal(Signal::TERM);
        assert_eq!((gateway.ended(), state().as_str()), (Some(0), "STOPPING=1"));
        assert!(TcpStream::connect(address).is_ok(), "clients wait there for the next process");
    }
}

/// The same command as a process that may have few files.
fn with_few_files(job: &Job, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    limited.arg(command.get_program()).args(command.get_args()).current_dir(job.path("."));
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

/// Each connection is a file, and the process may have few.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn connections_without_a_request_make_room_for_those_with_one() {
    for has_tls in [false, true] {
        let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
        certify(&job);
        let tls = ["--tls-cert", "tls.pem", "--tls-key", "tls.key"];
        let mut limited = with_few_files(&job, &serve(&job, &server, if has_tls { &tls } else { &[] }));
        let gateway = Gateway::logging(&mut limited, File::create(job.path("log")).expect("writable"));
        let (_, address) = gateway.url.split_once("://").expect("an address");
        let idle: Vec<_> = (0..300).map(|_| TcpStream::connect(address).expect("the system takes it")).collect();
        let url = format!("{}/generic/v1/things", gateway.url);
        let trusting = || reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build();
        let answered =
            send(&url, |_, url| trusting().expect("a client").post(url).body("{}").timeout(Duration::from_secs(20)));
        assert_eq!(answered.0, 200, "{}", answered.1);
        let log = std::fs::read_to_string(job.path("log")).expect("a log");
        assert!(log.contains("connections wait to be accepted"), "{log}");
        assert!(!log.contains("Too many open files"), "some files are left to all else: {log}");
        drop(idle);
    }
}

/// A client with a right key sends requests, again and again, on as many connections as the system takes: heads without bodies,
/// whole ones that wait for a limit of its own, or ones that no server answers.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn requests_of_one_client_leave_files_to_other_clients_and_to_the_state() {
    for (limit, length, to) in [
        ("1 per 1h,1 concurrent", 300_000, "generic"),
        ("1M per 1h,1 concurrent", 2, "hangs"),
        ("1M per 1h", 2, "hangs"),
    ] {
        let (job, server, hangs) = (Job::new(0), Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok().never()));
        let upstream = |name, server: &Server| format!("[upstream.{name}]\nbase_url = \"{}\"\n", server.url());
        let config = upstream("generic", &server) + &upstream("hangs", &hangs);
        std::fs::write(job.path("paceline.toml"), config).expect("writable");
        let small = told(&mut keys(&job, &["add", "small", "--limit", limit]));
        let other = told(&mut keys(&job, &["add", "other", "--limit", "1M per 1h"]));
        let mut serves = job.paceline();
        serves.args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]);
        let log = File::create(job.path("log")).expect("writable");
        let mut gateway = Gateway::logging(&mut with_few_files(&job, &serves), log);
        let (_, address) = gateway.url.split_once("://").expect("an address");
        let head = format!("POST /{to}/v1/things HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {small}\r\n");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{{}}");
        let holds = || {
            let mut stream = TcpStream::connect(address).expect("the system takes it");
            // A connection that was closed meanwhile is the gateway's good right.
            let _ = stream.write_all(request.as_bytes());
            stream
        };
        let mut held: Vec<_> = (0..300).map(|_| holds()).collect();
        let url = format!("{}/generic/v1/things", gateway.url);
        for _ in 0..5 {
            let (status, body) = send(&url, |client, url| {
                client.post(url).bearer_auth(&other).body("{}").timeout(Duration::from_secs(60))
            });
            assert_eq!(status, 200, "{limit}: {body}");
            held.extend((0..20).map(|_| holds()));
        }
        assert_eq!(server.count(), 5);
        gateway.signal(Signal::TERM);
        drop(held);
        assert_eq!(gateway.ended(), Some(0));
        let log = std::fs::read_to_string(job.path("log")).expect("a log");
        let words =
            if length > 2 { "connections wait to be accepted" } else { "requests are refused: those of all clients" };
        assert!(log.contains(words), "{limit}: {log}");
        assert!(!log.contains("Too many open files") && !log.contains("cannot be written"), "{limit}: {log}");
        let kept = std::fs::read_to_string(job.path("state/client-limits.json")).expect("it is written");
        assert!(kept.contains("\"units\":"), "{kept}");
    }
}

#[test]
fn names_that_a_client_invents_fill_no_log() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::error(403, "model_not_allowed")));
    let client = told(&mut keys(&job, &["add", "a"]));
    told(&mut keys(&job, &["add", "b"]));
    told(&mut keys(&job, &["add", "c"]));
    let config = format!("[upstream.openai]\nbase_url = \"{}\"\napi_key_env = \"KEY\"\n", server.url());
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let mut command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]).env("KEY", "sk-of-the-upstream");
    let mut gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    for model in 0..60 {
        let body = json!({ "model": format!("invented-{model}") }).to_string();
        let (status, _) = send(&format!("{}/openai/v1/chat/completions", gateway.url), |http, url| {
            http.post(url).header("authorization", format!("Bearer {client}")).body(body)
        });
        assert_eq!(status, 403);
    }
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let log = job.text("log");
    let lines = log.lines().filter(|line| line.contains("a refusal goes to its client")).count();
    assert_eq!(lines, 20, "{log}");
}
