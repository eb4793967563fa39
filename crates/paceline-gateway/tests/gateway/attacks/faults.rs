//! Upstreams that hang, break, lie, or send more than there is room for.

use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_gateway::Bounds;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::impatient;
use super::raw::{connected, statuses};
use crate::support::{HTTPS, Served, answer, client, counted, serve_to, upstream};

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n";

const ONCE: &str = "retry = { max_retries = 0 }";

/// A server that does that with each connection, once a head has come.
async fn faulty<Ends>(fault: impl Fn(TcpStream) -> Ends + Send + Sync + 'static) -> SocketAddr
where
    Ends: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let fault = Arc::new(fault);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let fault = Arc::clone(&fault);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                fault(stream).await;
            });
        }
    });
    address
}

/// Writes these bytes again and again, until the gateway has enough.
async fn endless(mut stream: TcpStream, first: &[u8], again: &[u8]) {
    let again = again.repeat((64 << 10) / again.len() + 1);
    if stream.write_all(first).await.is_ok() {
        while stream.write_all(&again).await.is_ok() {}
    }
}

/// The status, the code and the message of a refusal.
async fn refused(served: &Served) -> (u16, String, String) {
    let got = served.client.get(format!("{}/x", served.url)).send().await.expect("it is there");
    let status = got.status().as_u16();
    let body: Value = serde_json::from_slice(&got.bytes().await.expect("it is there")).expect("it is there");
    let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("message"))
}

#[tokio::test]
async fn an_upstream_that_breaks_before_its_answer_is_a_502_or_504() {
    type Fault = fn(TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    let faults: [(&str, Fault, u16); 8] = [
        ("closes", |_| Box::pin(async {}), 502),
        ("resets", |stream| Box::pin(async move { stream.set_zero_linger().unwrap() }), 502),
        (
            "hangs",
            |stream| {
                Box::pin(async move {
                    let _kept = stream;
                    std::future::pending().await
                })
            },
            504,
        ),
        (
            "half a head",
            |mut stream| Box::pin(async move { stream.write_all(b"HTTP/1.1 200 OK\r\ncont").await.unwrap() }),
            502,
        ),
        ("garbage", |stream| Box::pin(endless(stream, b"\x16\x03\x01", b"\0\xff\r\n\r\n")), 502),
        ("an endless head", |stream| Box::pin(endless(stream, b"HTTP/1.1 200 OK\r\nx: ", b"y")), 502),
        ("endless fields", |stream| Box::pin(endless(stream, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n")), 502),
        (
            "an upgrade",
            |stream| Box::pin(endless(stream, b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", b"x")),
            502,
        ),
    ];
    for (name, fault, expected) in faults {
        let served = Served::new(faulty(fault).await, ONCE, impatient());
        let (status, code, message) = refused(&served).await;
        assert_eq!((status, code.as_str()), (expected, "no_answer"), "{name}: {message}");
        assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0, "{name}");
    }
}

/// It may have been done, and a generic API knows no repetition.
#[tokio::test]
async fn a_post_without_an_answer_is_sent_once_though_retries_are_left() {
    const AGAIN: &str = "provider = \"generic\"\nretry = { base = \"1ms\", cap = \"2ms\", max_retries = 3 }";
    let calls = Arc::new(AtomicUsize::new(0));
    for hangs in [true, false] {
        let seen = Arc::clone(&calls);
        let api = faulty(move |stream| {
            seen.fetch_add(1, Ordering::SeqCst);
            async move {
                let _kept = stream;
                if hangs {
                    std::future::pending::<()>().await;
                }
            }
        });
        let served = Served::new(api.await, AGAIN, impatient());
        let request = |method: http::Method| served.client.request(method, format!("{}/orders", served.url)).body("{}");
        let got = request(http::Method::POST).send().await.expect("an answer");
        let status = if hangs { 504 } else { 502 };
        assert_eq!((got.status().as_u16(), calls.swap(0, Ordering::SeqCst)), (status, 1), "hangs: {hangs}");
        assert_eq!(got.headers()["x-paceline-unknown"], "1");
        if !hangs {
            let got = request(http::Method::PUT).send().await.expect("an answer");
            assert_eq!((got.status().as_u16(), calls.swap(0, Ordering::SeqCst)), (status, 4), "idempotent");
        }
    }
}

/// They took the thread for as long as more of them were there, and the gateway answered no other client.
#[tokio::test]
async fn endless_1xx_end_their_call_and_hold_up_no_other() {
    let ended = Arc::new(Semaphore::new(0));
    let seen = Arc::clone(&ended);
    let evil = faulty(move |stream| {
        let seen = Arc::clone(&seen);
        async move {
            endless(stream, b"", EARLY_HINTS).await;
            seen.add_permits(1);
        }
    });
    let (api, _) = counted(|_| answer(200, &[], "{}")).await;
    let served = Served::all(&[("api", api, ""), ("evil", evil.await, ONCE)], Bounds::default());
    let flooded: Vec<_> =
        (0..4).map(|_| tokio::spawn(served.client.get(format!("{}/evil/x", served.origin())).send())).collect();
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 200);
    for call in flooded {
        let text = call.await.unwrap().unwrap().text().await.unwrap();
        assert!(text.contains("the server sent more than 1000 informational answers (1xx), and no other"), "{text}");
    }
    ended.acquire_many(4).await.expect("the gateway has closed the connections").forget();
}

#[tokio::test]
async fn some_1xx_before_an_answer_are_no_failure() {
    let answer = [EARLY_HINTS.repeat(1_000), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec()].concat();
    let raw = super::raw::Raw::new(move |_| answer.clone());
    let served = Served::new(raw.address, ONCE, Bounds::default());
    assert_eq!(served.client.get(format!("{}/x", served.url)).send().await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn tls_is_no_reason_at_an_address_that_has_answered_without() {
    let calls = Arc::new(AtomicUsize::new(0));
    let second_answers = move |mut stream: TcpStream| {
        let is_second = calls.fetch_add(1, Ordering::SeqCst) == 1;
        async move {
            if is_second {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                stream.write_all(answer).await.unwrap();
            }
        }
    };
    let served = Served::new(faulty(second_answers).await, ONCE, impatient());
    let hint = "; if the server speaks TLS there, write https://";
    let (_, _, message) = refused(&served).await;
    assert!(message.contains(hint), "{message}");
    assert_eq!(served.client.get(format!("{}/x", served.url)).send().await.unwrap().status().as_u16(), 200);
    let (_, _, message) = refused(&served).await;
    assert!(message.contains("connection lost") && !message.contains(hint), "{message}");
}

#[tokio::test]
async fn an_upstream_that_hangs_before_its_tls_has_got_no_call() {
    let hangs = faulty(|_| std::future::pending()).await;
    let served = Served::new(hangs, &[HTTPS, ONCE].concat(), impatient());
    // Without a connection it is tried again for as long as the request may wait.
    let got =
        served.client.get(format!("{}/x", served.url)).header("x-paceline-deadline", "500ms").send().await.unwrap();
    let (status, body) = (got.status().as_u16(), got.text().await.unwrap());
    assert!(status == 502 && body.contains("no_connection"), "{status}: {body}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_breaks_off_at_the_client_too() {
    for (name, answer) in [
        ("a length", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"),
        ("chunks", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
        ("a wrong chunk", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nZZ\r\n\r\n"),
        (
            "events",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        ),
    ] {
        let api = faulty(move |mut stream| async move { stream.write_all(answer.as_bytes()).await.unwrap() });
        let served = Served::new(api.await, ONCE, impatient());
        let got = served.client.get(format!("{}/x", served.url)).send().await.unwrap();
        assert_eq!(got.status().as_u16(), 200, "{name}");
        assert!(got.bytes().await.is_err(), "{name}: no client takes half an answer for a whole one");
        assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0, "{name}");
    }
}

/// The client had no head, and an SDK would have sent the request again.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn an_answer_that_breaks_with_its_head_is_none_and_one_that_breaks_later_has_its_head() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const LENGTH: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n";
    for (answer, expected) in [
        (format!("{HEAD}ZZ\r\n"), 502),
        (format!("{HEAD}fffffffffffffffff\r\nhello"), 502),
        (LENGTH.to_owned(), 502),
        (format!("{HEAD}5\r\nhello\r\nZZ\r\n"), 200),
        (format!("{LENGTH}hello"), 200),
    ] {
        let sent = answer.clone();
        let at = faulty(move |mut stream| {
            let answer = sent.clone();
            async move { stream.write_all(answer.as_bytes()).await.unwrap() }
        });
        let served = Served::new(at.await, ONCE, impatient());
        for version in [http::Version::HTTP_11, http::Version::HTTP_2] {
            let client = reqwest::Client::builder().no_proxy();
            let client = if version == http::Version::HTTP_2 { client.http2_prior_knowledge() } else { client };
            let request = client.build().expect("a client").post(format!("{}/v1/x", served.url)).body("{}");
            let got = request.send().await.unwrap_or_else(|error| panic!("{version:?} {answer}: {error:?}"));
            let field = |name: &str| got.headers().get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
            let (status, is_unknown) = (got.status().as_u16(), field("x-paceline-unknown"));
            assert_eq!((status, field("x-paceline-attempts")), (expected, Some(1)), "{version:?} {answer}");
            assert_eq!(is_unknown, (expected == 502).then_some(1), "{version:?} {answer}");
            match got.text().await {
                Ok(text) => assert!(expected == 502 && text.contains("no_answer"), "{text}"),
                Err(error) => assert!(expected == 200, "{error}"),
            }
        }
        assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0, "{answer}");
    }
}

#[tokio::test]
async fn an_answer_that_falls_silent_is_cut_off() {
    let api = faulty(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
        std::future::pending().await
    });
    let served = Served::new(api.await, ONCE, impatient());
    let got = served.client.get(format!("{}/x", served.url)).send().await.unwrap();
    assert!(got.bytes().await.is_err());
    assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0);
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn an_endless_answer_passes_through_and_is_not_held() {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = [&b"100000\r\n"[..], &[b'x'; 1 << 20], b"\r\n"].concat();
    let api = faulty(move |stream| {
        let chunk = chunk.clone();
        async move { endless(stream, head, &chunk).await }
    });
    let served = Served::new(api.await, ONCE, impatient());
    let mut stream = connected(&served).await;
    stream.write_all(b"GET /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let (mut piece, mut came) = (vec![0; 1 << 20], 0);
    while came < 256 << 20 {
        came += stream.read(&mut piece).await.unwrap();
    }
    drop(stream);
    while served.limiter.snapshot().account.concurrency.in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_failure_is_read_up_to_a_bound_also_where_it_is_packed() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0; 1 << 20];
    (0..64).for_each(|_| packed.write_all(&zeros).unwrap());
    let bomb = packed.finish().unwrap();
    let (api, _) = counted(move |_| answer(500, &[("content-encoding", "gzip")], bomb.clone())).await;
    let served = Served::new(api, ONCE, Bounds::default());
    let (status, code, message) = refused(&served).await;
    assert_eq!((status, code.as_str()), (500, "too_long"), "{message}");
    let api = faulty(|stream| endless(stream, b"HTTP/1.1 500 No\r\n\r\n", b"x"));
    let served = Served::new(api.await, ONCE, Bounds::default());
    let (status, code, message) = refused(&served).await;
    assert_eq!((status, code.as_str()), (500, "too_long"), "{message}");
}

/// `Transfer-Encoding: gzip`: the field does not go on, so a client could not read the body, and the key would not be found.
#[tokio::test]
async fn what_is_packed_for_its_way_alone_is_unpacked_or_refused() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(br#"{"choices":[],"you":"Bearer a3f8c9d2e1b04711"}"#).unwrap();
    let gzip = gzip.finish().unwrap();
    for (status, kind, coding, expected) in [
        (200, "application/json", "gzip", 200),
        (200, "text/event-stream", "gzip", 200),
        (206, "application/json", "x-gzip", 206),
        (200, "application/json", "GZIP, chunked", 200),
        (404, "application/json", "gzip", 404),
        (500, "application/json", "gzip, chunked", 500),
        (200, "application/json", "deflate", 502),
        (200, "application/json", "br, chunked", 502),
        (200, "application/json", "gzip, gzip", 502),
        (200, "application/json", "chunked", 200),
    ] {
        let mut answer =
            format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: {coding}\r\n\r\n").into_bytes();
        let is_plain = coding == "chunked";
        let body = if is_plain { &b"{}"[..] } else { &gzip };
        match coding.ends_with("chunked") {
            true => {
                answer.extend(format!("{:x}\r\n", body.len()).bytes());
                answer.extend(body);
                answer.extend(b"\r\n0\r\n\r\n");
            }
            false => answer.extend(body),
        }
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let api = faulty(move |mut stream| {
            counted.fetch_add(1, Ordering::Relaxed);
            let answer = answer.clone();
            async move { stream.write_all(&answer).await.unwrap() }
        });
        let served = Served::new(api.await, ONCE, impatient());
        let got = served.post().send().await.expect("an answer");
        let (got, text) = (got.status().as_u16(), got.text().await.expect("a text"));
        assert_eq!(got, expected, "{status} {coding}: {text}");
        match (expected, is_plain) {
            (502, _) => assert!(text.contains("\"unreadable\""), "{coding}: {text}"),
            (_, true) => assert_eq!(text, "{}"),
            _ => assert_eq!(text, r#"{"choices":[],"you":"Bearer [key]"}"#, "{status} {coding}"),
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1, "{coding}: it was done");
    }
}

/// Bodies of answers where there may be none: what follows is no answer to the next request.
#[tokio::test]
async fn an_answer_without_a_body_has_none() {
    for (method, answer) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 38\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 38\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let raw = super::raw::Raw::new(move |_| answer.into());
        let served = Served::new(raw.address, ONCE, impatient());
        let request = format!("{method} /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        let last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let text = super::raw::told(&served, format!("{request}{last}").as_bytes()).await;
        let status: u16 = answer[9..12].parse().unwrap();
        assert_eq!(statuses(&text), [status, status], "{answer}: {text}");
    }
}

/// The connection of a prompt is not watched: what has come behind its answer ends it all the same.
#[tokio::test]
async fn what_stands_behind_an_answer_to_a_prompt_that_has_no_body_is_no_answer_to_the_next_one() {
    for status in ["204 No Content", "304 Not Modified"] {
        let raw = super::raw::Raw::new(move |_| {
            format!("HTTP/1.1 {status}\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").into()
        });
        let served = Served::new(raw.address, ONCE, impatient());
        for _ in 0..3 {
            let got = served.post().send().await.expect("an answer");
            assert_eq!(got.status().as_u16().to_string(), status[..3]);
        }
    }
}

/// Strict clients, and proxies before them, take a list for no length.
#[tokio::test]
async fn a_length_that_an_upstream_repeats_is_one_for_the_client() {
    for fields in ["content-length: 2, 2", "content-length: 2\r\ncontent-length: 2"] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{{}}");
        let raw = super::raw::Raw::new(move |_| answer.clone().into());
        let served = Served::new(raw.address, ONCE, impatient());
        let text =
            super::raw::told(&served, b"GET /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").await;
        let lengths: Vec<_> = text.lines().filter(|line| line.starts_with("content-length")).collect();
        assert_eq!(lengths, ["content-length: 2"], "{text}");
    }
}

/// Behind such answers the next bytes may be the rest of this one, which the next client would get.
#[tokio::test]
async fn a_connection_whose_answer_has_no_body_or_came_before_that_of_its_request_carries_no_other_call() {
    let bodyless = |status: &'static str| format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n");
    for (method, answer, sent) in [
        ("HEAD", bodyless("200 OK"), ""),
        ("GET", bodyless("304 Not Modified"), ""),
        ("DELETE", "HTTP/1.1 204 No Content\r\n\r\n".to_owned(), ""),
        ("POST", bodyless("200 OK") + "{}", "more than is held"),
    ] {
        let raw = super::raw::Raw::new(move |seen| match seen.path().ends_with("/after") {
            true => super::raw::OK.to_vec(),
            false => answer.clone().into(),
        });
        let mut bounds = impatient();
        bounds.largest_body = 4;
        let served = Served::new(raw.address, ONCE, bounds);
        for (method, path, body) in [[(method, "x", sent), ("GET", "after", "")]; 5].concat() {
            let request = served.client.request(method.parse().expect("a method"), format!("{}/{path}", served.url));
            request.body(body).send().await.expect("it is there").bytes().await.expect("it is there");
        }
        let connections: Vec<_> = raw.seen().iter().map(|seen| seen.connection).collect();
        assert!(connections.chunks(2).all(|two| two[0] < two[1]), "{method}: {connections:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_hangs_does_not_hold_up_another() {
    let hangs = faulty(|stream| async move {
        let _kept = stream;
        std::future::pending().await
    })
    .await;
    let (api, calls) = counted(|_| answer(200, &[], "{}")).await;
    let bounds = Bounds::default();
    let served = Served::all(&[("api", api, ""), ("hangs", hangs, "concurrency = 4")], bounds);
    let stuck: Vec<_> =
        (0..50).map(|_| tokio::spawn(served.client.get(format!("{}/hangs/x", served.origin())).send())).collect();
    for _ in 0..20 {
        assert_eq!(served.post().send().await.unwrap().status().as_u16(), 200);
    }
    assert_eq!(calls.count(), 20);
    stuck.iter().for_each(tokio::task::JoinHandle::abort);
}

/// One client's prompts that make the server fail opened the breaker for all, and its own older requests were the tests of that.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn one_client_whose_calls_fail_takes_the_server_from_no_other_one() {
    let api = |request: axum::extract::Request| async move {
        let fails = request.headers().contains_key("x-fails");
        answer(if fails { 500 } else { 200 }, &[], "{}")
    };
    let served = Served::new(upstream(api).await, "", Bounds::default());
    serve_to(&served, vec![client("faulty", &[]), client("right", &[]), client("third", &[])]);
    let post = |name: &str| served.post().header("x-paceline-key", format!("pk-{name}"));
    let waiting: Vec<_> = (0..40)
        .map(|_| tokio::spawn(post("faulty").header("x-fails", "1").header("x-paceline-deadline", "60s").send()))
        .collect();
    let is_open = || served.limiter.snapshot().scopes.iter().any(|scope| scope.failing_since.is_some());
    while !is_open() {
        tokio::task::yield_now().await;
    }
    for name in ["right", "third"].repeat(5) {
        let got = post(name).header("x-paceline-deadline", "500ms").send().await.expect("it is there");
        assert_eq!(got.status().as_u16(), 200, "{name}: {}", got.text().await.expect("a body"));
    }
    assert!(!is_open());
    let state = served.client.get(served.origin() + "/api/state").header("x-paceline-key", "pk-right");
    let state: Value = serde_json::from_slice(&state.send().await.unwrap().bytes().await.unwrap()).unwrap();
    let rows = state["clients"].as_array().expect("clients").iter();
    let told: Vec<_> = rows.map(|row| (row["client"].as_str(), row["waits_for"].is_string())).collect();
    assert!(told.contains(&(Some("faulty"), true)) && told.contains(&(Some("right"), false)), "{state}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
