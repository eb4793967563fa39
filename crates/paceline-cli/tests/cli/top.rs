//! `paceline top`: once, on a terminal, and where there is no gateway.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};

use rustix_openpty::rustix::termios::Winsize;
use serde_json::Value;

use crate::bounded::{Bounded, BoundedOutput, reading};
use crate::serve::{Gateway, get, serve};
use crate::support::{Job, Reply, Server, finish};

fn once(job: &Job, url: &str) -> (Option<i32>, String) {
    let output = job.paceline().args(["top", url]).ended_with_output();
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn into_a_pipe_it_prints_the_state_once() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().with_header("x-ratelimit-limit-requests", 5)));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--limit", "1 per 1h"]));
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 429, "it would wait too long");
    let (code, text) = once(&job, &gateway.url);
    assert_eq!(code, Some(0));
    for expected in [
        &*format!("at {}: 0 in flight, 0 waiting, 1 answer in the last minute\n", gateway.url),
        "the next call waits ",
        " for the limit of 1 request per 1h",
        "recent decisions\n",
        "refused: upstream generic: the request must wait ",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let (_, state) = get(&format!("{}/api/state", gateway.url));
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["batches"], Value::Array(Vec::new()));
}

#[test]
fn where_there_is_no_gateway_it_says_so() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let keys = job.path("keys.json").to_string_lossy().into_owned();
    let (code, log) = finish(job.paceline().args(["serve", "keys", "add", "ops", "--client-keys", &keys]));
    assert_eq!(code, 0, "{log}");
    let locked = Gateway::start(&mut serve(&job, &server, &["--client-keys", &keys]));
    for (args, expected) in [
        (&["top", &*format!("http://{free}")][..], "no gateway answers at http://127.0.0.1:"),
        (&["top", &server.url()], "answers with status 200 OK, and not as a gateway of this version does"),
        (
            &["top", "localhost:4747"],
            "\"localhost:4747\" is no address of a gateway: expected one such as http://127.0.0.1:4747",
        ),
        (
            &["top", &locked.url],
            "this gateway asks for a key; put one that `paceline serve keys add` printed into an environment",
        ),
        (
            &["top", &locked.url, "--api-key-env", "HOME"],
            "the variable of --api-key-env has no key that this gateway takes",
        ),
        (&["top", "--api-key-env", "NONE"], "--api-key-env NONE: the variable is not set"),
    ] {
        let (code, log) = finish(job.paceline().args(args));
        assert!(code == 2 && log.contains(expected), "{expected}: {log}");
    }
}

#[test]
fn on_a_terminal_it_follows_the_gateway_until_q() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--limit", "1 per 1h"]));
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = rustix_openpty::openpty(None, Some(&size)).expect("a terminal");
    let end = || Stdio::from(pty.user.try_clone().expect("a handle"));
    let mut command = job.paceline();
    command.args(["top", &gateway.url]).env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().expect("the binary runs");
    drop((std::mem::replace(&mut command, Command::new("true")), pty.user));
    let cells = |count| NonZeroU16::new(count).expect("a size");
    let mut terminal = File::from(pty.controller);
    let mut seen = vt100::Parser::new(cells(24), cells(80), 0);
    let mut shows = |terminal: &mut File, expected: &str| {
        let mut buffer = [0; 4096];
        while !seen.screen().contents().contains(expected) {
            let read = reading(&child, "more of the screen", || terminal.read(&mut buffer)).expect("it goes on");
            seen.process(&buffer[..read]);
        }
    };
    shows(&mut terminal, "all is well: no call waits");
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    shows(&mut terminal, " for the limit of 1 request per 1h");
    terminal.write_all(b"s").expect("a key");
    shows(&mut terminal, "s sort: waiting");
    drop(gateway);
    shows(&mut terminal, "What is shown is old, since ");
    terminal.write_all(b"q").expect("a key");
    assert_eq!(child.ended().code(), Some(0));
}

#[test]
fn a_key_in_the_wrong_place_is_not_printed() {
    let (job, key) = (Job::new(0), "sk-MARK-0123456789abcdef");
    let [user, query] = [format!("https://x:{key}@127.0.0.1:1"), format!("http://127.0.0.1:1/?key={key}")];
    for arguments in [&["--api-key-env", key, "http://127.0.0.1:1"][..], &[key], &[&user], &[&query]] {
        let (code, log) = finish(job.paceline().args(["top", "--once"]).args(arguments));
        assert!(code == 2 && !log.contains(key), "{log}");
    }
}
