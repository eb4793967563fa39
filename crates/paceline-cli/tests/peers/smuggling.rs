//! nginx as a second reader of odd requests: what the gateway and nginx both take they take for the same requests, also where
//! one stands before the other.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::gateway::Gateway;
use super::nginx::Nginx;
use crate::bounded::TestBound;

#[path = "../../../paceline-gateway/tests/gateway/attacks/cases.rs"]
mod cases;

/// What nginx refuses and RFC 9112 lets a server take: chunks beside a length by the chunks alone, with the connection closed
/// behind them (6.1), and a length that is there twice (6.3); a tab is white space (5.1).
const TAKEN: [&str; 5] = [
    "length before chunks (CL.TE)",
    "chunks before length (TE.CL)",
    "chunks, and a length that is none",
    "the same length twice",
    "a tab behind the colon",
];

/// A server that keeps the first line and the body of each request that it gets.
struct Keeps {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

impl Keeps {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, all) = (stream.expect("a connection"), Arc::clone(&all));
                std::thread::spawn(move || keep(stream, &all));
            }
        });
        Self { address, seen }
    }

    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.seen.lock().expect("no panic"))
    }
}

/// Takes each request by its length, or by its chunks.
fn keep(mut stream: TcpStream, all: &Mutex<Vec<(String, String)>>) {
    let (mut came, mut piece) = (String::new(), [0; 65_536]);
    loop {
        while let Some((head, rest)) = came.split_once("\r\n\r\n") {
            let lower = head.to_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let end = if lower.contains("transfer-encoding: chunked") {
                rest.find("0\r\n\r\n").map(|end| end + 5)
            } else {
                Some(length.unwrap_or(0)).filter(|length| rest.len() >= *length)
            };
            let Some(end) = end else { break };
            // nginx says HTTP/1.0 to servers behind it.
            let line = head.lines().next().unwrap_or_default().rsplit_once(' ').map_or("", |(line, _)| line).to_owned();
            let body = if rest.contains("hello") { "hello" } else { &rest[..end] };
            all.lock().expect("no panic").push((line, body.to_owned()));
            came = rest[end..].to_owned();
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").is_err() {
                return;
            }
        }
        match stream.read(&mut piece) {
            Ok(read) if read > 0 => came += &String::from_utf8_lossy(&piece[..read]),
            _ => return,
        }
    }
}

/// The statuses of all answers to these bytes.
fn answers(address: &str, bytes: &[u8]) -> Vec<u16> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    // It may close the connection before it has read all.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let text = String::from_utf8_lossy(&all).into_owned();
    let statuses = text.split("HTTP/1.").skip(1).filter_map(|rest| rest.get(2..5)?.parse().ok());
    statuses.filter(|status| *status >= 200).collect()
}

#[test]
fn nginx_and_the_gateway_see_the_same_requests() {
    let _bound = TestBound::new();
    let keeps = Keeps::start();
    let (gateway, nginx) =
        (Gateway::start(&format!("http://{}/v1", keeps.address), "[upstream.first]\n"), Nginx::before(keeps.address));
    let behind = nginx_before(&gateway);
    let through = Gateway::start(&nginx.base_url(), "[upstream.first]\n");
    let address = |url: &str| url.trim_start_matches("http://").to_owned();
    let ways = [address(&gateway.url), address(&nginx.url()), address(&behind.url()), address(&through.url)];
    let odd = cases::ODD.iter().map(|(name, case, _)| (*name, *case));
    let (mut findings, mut lenient) = (Vec::new(), Vec::new());
    for (name, case) in odd.chain(cases::WRONG.iter().copied()) {
        let bytes = String::from_utf8(cases::named(case)).expect("text").replace("/api/", "/first/v1/");
        let seen = ways.each_ref().map(|way| {
            let statuses = answers(way, bytes.as_bytes());
            let mut seen = keeps.take();
            seen.iter_mut().for_each(|(line, _)| *line = line.replace("/first/v1/", "/v1/"));
            (statuses, seen)
        });
        let [(_, gateways), (_, nginxs), (_, behinds), (_, throughs)] = &seen;
        // One may refuse what the other takes; what both take is the same.
        let differ =
            |one: &[(String, String)], other: &[(String, String)]| !one.is_empty() && !other.is_empty() && one != other;
        let is_smuggled = |seen: &[(String, String)]| {
            !name.starts_with("two requests") && seen.iter().any(|(line, _)| line.contains("smuggled"))
        };
        if differ(gateways, nginxs)
            || differ(gateways, behinds)
            || differ(gateways, throughs)
            || [gateways, behinds, throughs].iter().any(|seen| is_smuggled(seen))
        {
            findings.push((name, seen.clone()));
        }
        if !gateways.is_empty() && nginxs.is_empty() {
            lenient.push(name);
        }
    }
    assert!(findings.is_empty(), "{findings:#?}");
    assert_eq!(lenient, TAKEN, "the gateway takes what nginx refuses");
}

fn nginx_before(gateway: &Gateway) -> Nginx {
    Nginx::before(gateway.url.trim_start_matches("http://").parse().expect("an address"))
}
