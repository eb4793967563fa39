//! `paceline serve` behind a proxy, which passes bytes on or reads the requests.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use serde_json::json;

use crate::serve::{Gateway, serve};
use crate::support::{Job, Reply, Server};
use crate::tls::Authority;

/// `me:sesame`, as a client tells it.
const CALLER: &str = "Basic bWU6c2VzYW1l";

/// A proxy that connects callers that it knows, and what it was asked.
struct Tunnels {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Tunnels {
    fn new(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://me:sesame@{}", listener.local_addr().expect("it listens"));
        let heads = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&heads);
        spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = Arc::clone(&told);
                spawn(move || tunnel(stream, answer, &told));
            }
        });
        Self { url, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }
}

/// Reads the head of a request, answers it, and passes bytes on to where it asked for.
fn tunnel(mut client: TcpStream, answer: &str, told: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    told.lock().expect("no panic").push(head.clone());
    client.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).ok()?;
    let to = head.strip_prefix("CONNECT ")?.split(' ').next()?;
    let mut server = TcpStream::connect(to).ok()?;
    let mut answers = server.try_clone().ok()?;
    spawn(move || io::copy(&mut answers, &mut client));
    io::copy(&mut reader, &mut server).ok().map(drop)
}

fn gateway(job: &Job, server: &Server, proxy: &str) -> Gateway {
    Gateway::start(&mut serve(job, server, &["--proxy", proxy, "--ca-file", "ca.pem", "--max-retries", "0"]))
}

#[test]
fn an_upstream_with_tls_is_reached_by_a_tunnel_that_cannot_be_read() {
    let authority = Authority::new();
    let server = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let job = Job::new(0);
    authority.put_into(&job);
    let proxy = Tunnels::new("200 Connection established");
    let gateway = gateway(&job, &server, &proxy.url);
    for _ in 0..2 {
        assert_eq!(gateway.post("/generic/chat/completions", "5s").0, 200);
    }
    let (heads, port) = (proxy.heads(), server.url().rsplit(':').next().expect("a port").to_owned());
    assert_eq!(heads.len(), 1, "the connection is kept: {heads:?}");
    assert!(heads[0].starts_with(&format!("CONNECT localhost:{}", port.trim_end_matches("/v1"))), "{heads:?}");
    assert!(heads[0].to_lowercase().contains(&format!("proxy-authorization: {}", CALLER.to_lowercase())), "{heads:?}");
    assert_eq!(server.count(), 2);
    assert!(server.arrivals().iter().all(|call| !call.headers.contains_key("proxy-authorization")));
}

#[test]
fn a_proxy_that_refuses_is_named_and_no_server_was_asked() {
    let authority = Authority::new();
    let server = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let job = Job::new(0);
    authority.put_into(&job);
    for (answer, expected) in [
        ("407 Proxy Authentication Required", "the proxy asks for a name and a password (407)"),
        ("403 Forbidden", "the proxy refused to connect to the server"),
    ] {
        let proxy = Tunnels::new(answer);
        let (status, body) = gateway(&job, &server, &proxy.url).post("/generic/chat/completions", "1s");
        assert!(status >= 500 && body.contains(expected) && !body.contains("sesame"), "{status}: {body}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn without_tls_the_proxy_reads_the_requests_and_who_calls() {
    let job = Job::new(0);
    Authority::new().put_into(&job);
    let proxy = Server::new(|call| match call.headers.get("proxy-authorization") {
        Some(caller) if caller == CALLER => Reply::new(200, &json!({"host": call.headers["host"].to_str().ok()})),
        _ => Reply::error(407, "who_are_you"),
    });
    let origin = proxy.url().trim_end_matches("/v1").to_owned();
    let start = |caller: &str| {
        let proxy = origin.replacen("http://", &format!("http://{caller}"), 1);
        let flags = ["serve", "--listen", "127.0.0.1:0", "--base-url", "http://api.invalid/v1", "--proxy", &proxy];
        Gateway::start(job.paceline().args(flags).args(["--max-retries", "0"]))
    };
    let (status, body) = start("me:sesame@").post("/generic/chat/completions", "5s");
    assert_eq!((status, body.as_str()), (200, r#"{"host":"api.invalid"}"#));
    let (status, body) = start("").post("/generic/chat/completions", "1s");
    assert!(status >= 500 && body.contains("the proxy asks for a name and a password (407)"), "{status}: {body}");
}
