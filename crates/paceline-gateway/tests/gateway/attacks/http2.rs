//! Floods of HTTP/2, frame by frame, and what must not come out of it as HTTP/1.1.

use std::time::Duration;

use paceline_gateway::Bounds;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::impatient;
use super::raw::{OK, Raw, connected};
use crate::support::Served;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as HPACK writes them without its table.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let length = text.len();
        let prefix = if length < 127 { vec![length as u8] } else { [&[127][..], &rest(length - 127)].concat() };
        [&prefix, text.as_bytes()].concat()
    };
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// What of a length does not fit in its first byte.
fn rest(mut length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while length >= 128 {
        bytes.push((length % 128 + 128) as u8);
        length /= 128;
    }
    bytes.push(length as u8);
    bytes
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "127.0.0.1"), (":path", "/api/x")];

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(&GET))
}

async fn begun(served: &Served) -> TcpStream {
    let mut stream = connected(served).await;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.expect("it is there");
    stream
}

/// The frames that come until the gateway closes the connection: kind, stream, payload.
async fn frames(mut stream: impl tokio::io::AsyncRead + Unpin) -> Vec<(u8, u32, Vec<u8>)> {
    let (mut all, mut frames) = (Vec::new(), Vec::new());
    let _ = stream.read_to_end(&mut all).await;
    let mut left = &all[..];
    while let [a, b, c, kind, _, stream @ ..] = left {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((number, rest)) = stream.split_first_chunk() else { break };
        let Some(payload) = rest.get(..length) else { break };
        frames.push((*kind, u32::from_be_bytes(*number), payload.to_vec()));
        left = &rest[length..];
    }
    frames
}

/// Sends a flood until the gateway has enough, and returns what it said; meanwhile another client is answered.
async fn flooded(
    served: &Served,
    first: Vec<u8>,
    again: impl Fn(u32) -> Vec<u8> + Send + 'static,
) -> Vec<(u8, u32, Vec<u8>)> {
    let (reads, mut writes) = begun(served).await.into_split();
    let floods = tokio::spawn(async move {
        if writes.write_all(&first).await.is_err() {
            return;
        }
        for n in 0..200_000 {
            if writes.write_all(&again(n)).await.is_err() {
                return;
            }
        }
    });
    let reads = tokio::spawn(frames(reads));
    for _ in 0..20 {
        assert_eq!(served.post().send().await.expect("it is there").status().as_u16(), 200);
    }
    floods.await.expect("it is there");
    reads.await.expect("it is there")
}

fn is_ended(frames: &[(u8, u32, Vec<u8>)]) -> bool {
    frames.iter().any(|(kind, ..)| *kind == GO_AWAY)
}

/// CVE-2023-44487: requests that are taken back at once.
#[tokio::test]
async fn a_rapid_reset_ends_the_connection_and_costs_few_calls() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "concurrency = 8", impatient());
    let said = flooded(&served, Vec::new(), |n| {
        let stream = 2 * n + 1;
        [get(stream), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    })
    .await;
    assert!(is_ended(&said), "{:?}", said.last());
    assert!(raw.seen().len() < 2_000, "{} calls", raw.seen().len());
    while served.limiter.snapshot().account.concurrency.in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

/// CVE-2025-8671: the client makes the server reset, by frames that are wrong.
#[tokio::test]
async fn resets_that_a_client_provokes_end_the_connection() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let said = flooded(&served, Vec::new(), |n| {
        let stream = 2 * n + 1;
        [get(stream), frame(WINDOW, 0, stream, &[0; 4])].concat()
    })
    .await;
    assert!(is_ended(&said), "{:?}", said.last());
}

/// CVE-2024-27316 and its kin (VU#421644): a head that never ends.
#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for again in [fields(&[("x", &"y".repeat(8_000))]), fields(&[("x", "y")]), Vec::new()] {
        let first = frame(HEADERS, END_STREAM, 1, &fields(&GET));
        let said = flooded(&served, first, move |_| frame(CONTINUATION, 0, 1, &again)).await;
        assert!(said.iter().all(|(kind, ..)| *kind != HEADERS), "{said:?}");
    }
    assert!(raw.seen().iter().all(|seen| seen.fields("x").next().is_none()));
}

/// CVE-2019-9512 and CVE-2019-9515: answers that the client asks for and does not read.
#[tokio::test]
async fn floods_of_pings_and_settings_hold_nothing() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for flood in [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])] {
        let mut stream = begun(&served).await;
        let floods = tokio::spawn(async move {
            let many = flood.repeat(1_000);
            while stream.write_all(&many).await.is_ok() {}
        });
        // Nothing is read: the gateway stops to read too, and closes the connection that asks for nothing.
        floods.await.unwrap();
        assert_eq!(served.post().send().await.unwrap().status().as_u16(), 200);
    }
}

/// CVE-2019-9518 (empty frames), CVE-2019-9517 (a window of nothing), and a table that is filled.
#[tokio::test]
async fn empty_frames_and_closed_windows_hold_nothing_for_long() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let mut post = GET;
    post[0].1 = "POST";
    let first = frame(HEADERS, END_HEADERS, 1, &fields(&post));
    let said = flooded(&served, first, |_| frame(DATA, 0, 1, &[])).await;
    assert!(!said.is_empty());
    // No byte of the answer may be sent.
    let mut stream = connected(&served).await;
    let closed = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    stream.write_all(&[PREFACE, &closed, &get(1)].concat()).await.unwrap();
    let said = frames(stream).await;
    assert!(said.iter().any(|(kind, stream, _)| (*kind, *stream) == (HEADERS, 1)), "{said:?}");
    assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0);
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn one_connection_has_a_bound_on_its_requests_at_once() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let opens = std::sync::Arc::clone(&gate);
    let api = crate::support::upstream(move |_| {
        let gate = std::sync::Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            crate::support::answer(200, &[], "{}")
        }
    })
    .await;
    let served = Served::new(api, "", paceline_gateway::Bounds::default());
    let (reads, mut writes) = begun(&served).await.into_split();
    let many: Vec<u8> = (0..400).flat_map(|n| get(2 * n + 1)).collect();
    writes.write_all(&many).await.unwrap();
    let reads = tokio::spawn(frames(reads));
    while served.limiter.snapshot().account.concurrency.in_flight < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 200);
    opens.add_permits(400);
    drop(writes);
    let said = reads.await.unwrap();
    let refused = said.iter().filter(|(kind, _, payload)| *kind == RESET && payload == &[0, 0, 0, 7]).count();
    assert_eq!(refused, 200, "REFUSED_STREAM: the client may send them again");
}

/// H2.CL, H2.TE and their kin (Kettle, "HTTP/2: The Sequel is Always Worse", 2021).
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn what_http_1_would_read_as_more_does_not_come_out_of_http_2() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for (name, head, body) in [
        (
            "a length that is too short",
            &[("content-length", "1")][..],
            "xGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        ),
        ("a length that is too long", &[("content-length", "100")], "x"),
        ("two lengths", &[("content-length", "1"), ("content-length", "2")], "x"),
        ("chunks", &[("transfer-encoding", "chunked")], "0\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("a connection", &[("connection", "close")], "x"),
        ("a line in a value", &[("x", "y\r\ntransfer-encoding: chunked")], "x"),
        ("a line in a name", &[("x: y\r\ntransfer-encoding", "chunked")], "x"),
        ("a colon in a name", &[("transfer-encoding:", "chunked")], "x"),
        ("a name in capitals", &[("Transfer-Encoding", "chunked")], "x"),
        ("a NUL in a value", &[("x", "a\0b")], "x"),
        ("a second path", &[(":path", "/api/smuggled")], "x"),
        ("a path behind a field", &[("x", "y"), (":path", "/api/smuggled")], "x"),
        ("an unknown pseudo field", &[(":x", "y")], "x"),
        ("two hosts", &[("host", "127.0.0.1"), ("host", "127.0.0.2")], "x"),
        ("another host", &[("host", "evil.example")], "x"),
        ("another host of this machine", &[("host", "localhost")], "x"),
    ] {
        let mut all = GET;
        all[0].1 = "POST";
        let head = [fields(&all), fields(head)].concat();
        let bytes = [frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, body.as_bytes())].concat();
        let mut stream = begun(&served).await;
        stream.write_all(&bytes).await.unwrap();
        let said = frames(stream).await;
        let succeeded = said.iter().any(|(kind, _, payload)| *kind == HEADERS && payload.first() == Some(&0x88));
        assert!(!succeeded, "{name}: {said:?}");
    }
    for (name, at, value) in [
        ("a request line in the path", 3, "/api/x HTTP/1.1\r\nhost: h\r\n\r\nGET /api/smuggled"),
        ("a blank in the path", 3, "/api/x HTTP/1.1 /y"),
        ("no path", 3, ""),
        ("a path that is none", 3, "api/x"),
        ("a request line in the method", 0, "GET /api/smuggled HTTP/1.1\r\nhost: h\r\n\r\nGET"),
        ("a blank in the method", 0, "GET /api/smuggled"),
        ("a line in the host", 2, "127.0.0.1\r\nx: y"),
        ("another host", 2, "evil.example"),
        ("a user in the host", 2, "evil.example@127.0.0.1"),
        ("another scheme", 1, "http://evil.example/?"),
        ("a tunnel", 0, "CONNECT"),
    ] {
        let mut all = GET;
        all[at].1 = value;
        let mut stream = begun(&served).await;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&all))).await.unwrap();
        let said = frames(stream).await;
        let succeeded = said.iter().any(|(kind, _, payload)| *kind == HEADERS && payload.first() == Some(&0x88));
        assert!(!succeeded, "{name}: {said:?}");
    }
    assert_eq!(raw.paths(), [""; 0]);
    let mut stream = begun(&served).await;
    stream.write_all(&get(1)).await.unwrap();
    let said = frames(stream).await;
    assert!(said.iter().any(|(kind, _, payload)| *kind == HEADERS && payload.first() == Some(&0x88)), "{said:?}");
}

#[tokio::test]
async fn a_head_has_no_more_fields_than_by_http_1() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let names: Vec<_> = (0..101).map(|n| format!("x-{n}")).collect();
    for (count, expected) in [(100, 200), (101, 431)] {
        let more: Vec<_> = names[..count].iter().map(|name| (name.as_str(), "y")).collect();
        let head = [fields(&GET), fields(&more)].concat();
        let mut stream = begun(&served).await;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await.unwrap();
        let said = frames(stream).await;
        let succeeded = said.iter().any(|(kind, _, payload)| *kind == HEADERS && payload.first() == Some(&0x88));
        let told = said.iter().any(|(kind, _, text)| {
            *kind == DATA && String::from_utf8_lossy(text).contains("the head has 101 fields: expected 100 at most")
        });
        assert_eq!((succeeded, told), (expected == 200, expected == 431), "{count} fields: {said:?}");
    }
    assert_eq!(raw.seen().len(), 1);
}

/// The next frame of that kind; one that resets a stream is none that may come before.
async fn next(stream: &mut TcpStream, kind: u8) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; length]).await.expect("its payload");
        assert_ne!(head[3], RESET, "the client still sends, and would not read its answer");
        if head[3] == kind {
            return;
        }
    }
}

/// curl and httpx take a stream that is reset while they send for a failure, and never read the answer.
#[tokio::test]
async fn the_rest_of_a_body_is_read_after_its_request_is_refused() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", Bounds::default());
    for path in ["/none/x", "/api/..%2fx"] {
        let mut stream = begun(&served).await;
        let head = [(":method", "POST"), (":scheme", "http"), (":authority", "127.0.0.1"), (":path", path)];
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &fields(&head))).await.unwrap();
        next(&mut stream, DATA).await;
        for _ in 0..3 {
            let sent = [frame(DATA, 0, 1, &[b'x'; 16 << 10]), frame(PING, 0, 0, &[0; 8])].concat();
            stream.write_all(&sent).await.unwrap();
            next(&mut stream, PING).await;
        }
        stream.write_all(&[frame(DATA, END_STREAM, 1, b"x"), frame(PING, 0, 0, &[0; 8])].concat()).await.unwrap();
        next(&mut stream, PING).await;
    }
    assert_eq!(raw.seen().len(), 0);
}
