//! Clients that hold connections and send nothing, or little, and what a gateway that ends does with connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::impatient;
use super::raw::{OK, Raw, connected, statuses};
use crate::support::{OnDrop, Served, upstream};

/// Returns once the gateway has closed the connection.
async fn closed(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    all
}

/// Reads the answer to one request.
async fn answered(stream: &mut TcpStream) {
    let mut all = Vec::new();
    while !all.ends_with(b"{}") {
        assert_ne!(stream.read_buf(&mut all).await.expect("it is there"), 0);
    }
    assert!(all.starts_with(b"HTTP/1.1 200 OK"));
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn connections_without_a_request_are_closed_whatever_they_say() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for beginning in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n",
        b"GET ",
        b"GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nX",
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x10\x01",
    ] {
        let mut stream = connected(&served).await;
        stream.write_all(beginning).await.unwrap();
        closed(stream).await;
    }
    assert_eq!(raw.paths(), [""; 0]);
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_must_be_there_in_time() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let mut stream = connected(&served).await;
    let mut every = tokio::time::interval(Duration::from_millis(20));
    let head = format!("GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {}", "x".repeat(1_000));
    for byte in head.bytes() {
        every.tick().await;
        if stream.write_all(&[byte]).await.is_err() {
            assert_eq!(raw.paths(), [""; 0]);
            return;
        }
    }
    panic!("it was not closed");
}

#[tokio::test]
async fn a_connection_that_is_kept_open_is_closed_once_it_is_idle() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let mut stream = connected(&served).await;
    let request = b"GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(request).await.unwrap();
        answered(&mut stream).await;
    }
    closed(stream).await;
    assert_eq!(raw.seen().len(), 3);
}

#[tokio::test]
async fn a_head_has_bounds() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let many = |count: usize| (0..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    let head = |fields: &str| format!("GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{fields}\r\n");
    for (request, expected) in [
        (head(&many(80)), 200),
        (head(&many(10_000)), 431),
        (head(&format!("X: {}\r\n", "y".repeat(1 << 20))), 431),
        (head(&format!("{}: y\r\n", "x".repeat(70_000))), 431),
        (head(&format!("X: {}\r\n", "y".repeat(60_000))), 200),
        (head(&format!("X: {}\r\n", "y".repeat(66_000))), 431),
        (format!("GET /api/{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "x".repeat(70_000)), 431),
        (format!("{} /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "X".repeat(1 << 20)), 431),
    ] {
        let text = super::raw::told(&served, request.as_bytes()).await;
        assert!(statuses(&text).first().is_none_or(|status| *status == expected), "{expected}: {text:.200}");
        assert!(expected != 200 || text.contains("200 OK"));
    }
    assert_eq!(raw.seen().len(), 2);
}

#[tokio::test]
async fn a_request_that_is_on_its_way_when_the_gateway_ends_is_answered() {
    let raw = Raw::new(|_| OK.to_vec());
    let mut served = Served::new(raw.address, "", impatient());
    let request = b"GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    // One connection was used before, one was just made, one waits in the system for the gateway to accept it.
    let mut kept = connected(&served).await;
    kept.write_all(request).await.unwrap();
    answered(&mut kept).await;
    let fresh = connected(&served).await;
    tokio::task::yield_now().await;
    served.end();
    let waiting = std::net::TcpStream::connect(served.origin().strip_prefix("http://").unwrap()).unwrap();
    waiting.set_nonblocking(true).unwrap();
    let waiting = TcpStream::from_std(waiting).unwrap();
    let mut streams = [kept, fresh, waiting];
    // All at once: none is on its way for longer than the others.
    for stream in &mut streams {
        stream.write_all(request).await.unwrap();
    }
    for stream in streams {
        let text = String::from_utf8(closed(stream).await).unwrap();
        assert!(text.contains("HTTP/1.1 200 OK") && text.contains("connection: close"), "{text}");
    }
    (&mut served.ended).await.unwrap();
    assert_eq!(raw.seen().len(), 4);
}

/// Of a client that is gone TCP shows the same, until something is written to it.
#[tokio::test]
async fn a_client_that_ends_its_side_after_its_request_has_hung_up() {
    let (gone, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (dropped, arrived) = (Arc::clone(&gone), Arc::clone(&came));
    let api = upstream(move |_| {
        let (guard, arrived) = (OnDrop(Arc::clone(&dropped)), Arc::clone(&arrived));
        async move {
            let _kept = guard;
            arrived.add_permits(1);
            std::future::pending().await
        }
    });
    let served = Served::new(api.await, "", impatient());
    let mut stream = connected(&served).await;
    stream.write_all(b"POST /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    came.acquire().await.unwrap().forget();
    stream.shutdown().await.unwrap();
    gone.acquire().await.unwrap().forget();
    assert_eq!(closed(stream).await, b"", "it is answered no more");
}
