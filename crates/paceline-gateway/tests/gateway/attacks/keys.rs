//! Keys that must reach no client: what an upstream repeats of its key, in a head, a body, trailers, and in parts.

use super::raw::{Raw, told};
use crate::support::{KEY, Served};

/// The key alone.
fn key() -> &'static str {
    KEY.trim_start_matches("Bearer ")
}

/// What a client gets of such an answer.
async fn got(answer: String) -> String {
    let raw = Raw::new(move |_| answer.clone().into_bytes());
    let served = Served::new(raw.address, "", super::impatient());
    let head = "GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nTE: trailers\r\nConnection: close\r\n\r\n";
    told(&served, head.as_bytes()).await
}

#[tokio::test]
async fn a_success_that_repeats_the_key_gives_it_to_no_client() {
    let key = key();
    let length = format!(r#"{{"you":"sent {key}"}}"#).len();
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let (first, second) = key.split_at(5);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-echo\r\n\r\n";
    for answer in [
        format!("HTTP/1.1 200 OK\r\nx-echo: {KEY}\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("HTTP/1.1 200 {key}\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("HTTP/1.1 400 {key}\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("HTTP/1.1 200 OK\r\nx-{key}: yes\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("HTTP/1.1 400 Bad Request\r\nx-{key}: yes\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("HTTP/1.1 302 Found\r\nlocation: http://h/?key={key}\r\ncontent-length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{{\"you\":\"sent {key}\"}}"),
        format!("{chunked}{}{}0\r\n\r\n", chunk(&format!("you sent {first}")), chunk(&format!("{second} today"))),
        format!("{chunked}{}0\r\n\r\n", key.chars().map(|letter| chunk(&letter.to_string())).collect::<String>()),
        format!("{chunked}{}0\r\nx-echo: {key}\r\n\r\n", chunk("you")),
        format!("{chunked}{}0\r\nx-echo: {key}\r\n\r\n", chunk(&format!("you sent {first}"))),
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {first}"),
    ] {
        let text = got(answer.clone()).await;
        let letters: String =
            text.split("\r\n").filter(|line| !line.chars().all(|c| c.is_ascii_hexdigit() && line.len() < 3)).collect();
        assert!(!text.contains(key) && !letters.contains(key), "{answer}\n{text}");
    }
}

#[tokio::test]
async fn nor_does_one_that_is_cut_off() {
    let (cut, shown) = (&key()[..12], &key()[..8]);
    let (head, chunked) = ("HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n");
    let error = format!(r#"{{"error":{{"message":"you sent {cut}","shown":"{shown}"}}}}"#);
    for answer in [
        format!("{head}content-length: 21\r\n\r\nyou sent {}", key()),
        format!("HTTP/1.1 400 Bad Request\r\ncontent-length: 21\r\n\r\nyou sent {}", key()),
        format!("{head}connection: close\r\n\r\ndata: {cut}"),
        format!("{head}content-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {cut}\n\n"),
        format!("{chunked}\r\nc\r\n{cut}\r\n0\r\n\r\n"),
        format!("{chunked}trailer: x-echo\r\n\r\nc\r\n{cut}\r\n0\r\nx-echo: {cut}...\r\n\r\n"),
        format!("{head}x-sent: {cut}\r\ncontent-length: 0\r\n\r\n"),
        format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-11/16\r\ncontent-length: 12\r\n\r\n{cut}"),
        format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {}\r\n\r\n{error}", error.len()),
        format!("{head}content-length: {}\r\n\r\n{error}", error.len()),
    ] {
        let text = got(answer.clone()).await;
        assert!(text.contains("[key]") && !text.contains(cut), "{answer}\n{text}");
        assert_eq!(text.contains(shown), answer.contains(&error), "{answer}\n{text}");
    }
}

#[tokio::test]
async fn nor_does_the_end_of_one_or_a_field_that_is_called_so() {
    let (cut, shown) = (&key()[4..], &key()[6..]);
    let (head, chunked) = ("HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    let said = format!(r#"{{"message":"you sent ...{cut}","shown":"{shown}"}}"#);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let letters: String = said.chars().map(|letter| chunk(&letter.to_string())).collect();
    for answer in [
        format!("{head}content-length: {}\r\n\r\n{said}", said.len()),
        format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {}\r\n\r\n{said}", said.len()),
        format!("{head}x-sent: ...{cut}\r\nx-shown: {shown}\r\ncontent-length: 0\r\n\r\n"),
        format!("{chunked}{letters}0\r\n\r\n"),
        format!("{chunked}{}0\r\n\r\n", [said.split_at(30).0, said.split_at(30).1].map(chunk).concat()),
    ] {
        let text = got(answer.clone()).await;
        let letters = if answer.starts_with(chunked) { letters_of(&text) } else { text };
        assert!(letters.contains("[key]") && !letters.contains(cut) && letters.contains(shown), "{answer}\n{letters}");
    }
    let percent: String = key().bytes().map(|byte| format!("%{byte:02x}")).collect();
    for name in [&percent, &percent.replace('%', "%25"), cut, &percent[12..]] {
        for status in ["200 OK", "400 Bad Request"] {
            let text =
                got(format!("HTTP/1.1 {status}\r\nx-{name}: 1\r\nx-{shown}: 1\r\ncontent-length: 0\r\n\r\n")).await;
            assert!(!text.contains(name) && text.contains(shown), "{text}");
        }
    }
}

#[tokio::test]
async fn nor_does_one_in_utf_16() {
    for order in [u16::to_le_bytes, u16::to_be_bytes] {
        let wide = |text: &str| text.encode_utf16().flat_map(order).map(char::from).collect::<String>();
        let (first, second) = key().split_at(5);
        let body = format!("{}{}{}", wide("you sent "), wide(first), wide(second));
        let parts = [wide("you sent ") + &wide(first), wide(second)];
        let chunks: String = parts.iter().map(|part| format!("{:x}\r\n{part}\r\n", part.len())).collect();
        for answer in [
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
            format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
        ] {
            let letters = got(answer).await.replace('\0', "");
            assert!(letters.contains("[key]") && !letters.contains(second), "{letters}");
        }
    }
}

#[tokio::test]
async fn every_other_byte_of_an_answer_stays() {
    let key = key();
    let half = &key[..7];
    let body = format!("{half} {half}{key}{half}x{key}{half}");
    let expected = body.replace(key, &format!("[key]{}", "*".repeat(key.len() - 5)));
    let text = got(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    assert_eq!(text.split_once("\r\n\r\n").unwrap().1, expected);
    let parts: String = body.chars().map(|letter| format!("1\r\n{letter}\r\n")).collect();
    let text = got(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{parts}0\r\n\r\n")).await;
    assert_eq!(letters_of(&text), expected);
}

/// A body that came in chunks.
fn letters_of(text: &str) -> String {
    let mut lines = text.split_once("\r\n\r\n").expect("a head").1.split("\r\n");
    let mut came = String::new();
    while let (Some(_), Some(part)) = (lines.next().filter(|size| *size != "0"), lines.next()) {
        came += part;
    }
    came
}
