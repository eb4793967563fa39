//! Header fields that a result line keeps.

use serde_json::{Value, json};

use crate::support::{Arrival, Job, Reply, Server, finish, line};

const NEXT: &str = "<https://api.example/items?page=2>; rel=\"next\"";

fn resource(arrival: &Arrival) -> Reply {
    let reply = Reply::new(200, &json!({"item": arrival.item})).with_header("set-cookie", "session=secret");
    match arrival.item.as_str() {
        "item-0" => reply
            .with_header("link", NEXT)
            .with_header("link", "</items>; rel=\"first\"")
            .with_header("etag", "W/\"7\"")
            .with_header("last-modified", "Mon, 23 Nov 2026 08:00:00 GMT")
            .with_header("location", "/items/caf\u{e9}")
            .with_header("x-github-request-id", "g-1"),
        "item-1" => reply.with_header("location", "x".repeat(4_097)),
        _ => reply,
    }
}

fn response(lines: &[Value], item: &str) -> Value {
    lines.iter().find(|line| line["custom_id"] == item).expect("its line")["response"].clone()
}

#[test]
fn fields_that_a_later_call_needs_are_kept_and_no_others() {
    let (job, server) = (Job::new(3), Server::new(resource));
    let (code, log) = finish(job.run(&server).args(["--ordered", "--concurrency", "1"]));
    assert_eq!(code, 0, "{log}");
    let lines = job.lines("out.jsonl");
    let kept = json!({
        "etag": "W/\"7\"",
        "last-modified": "Mon, 23 Nov 2026 08:00:00 GMT",
        "link": format!("{NEXT}, </items>; rel=\"first\""),
        "location": "/items/caf\u{e9}",
    });
    let first = response(&lines, "item-0");
    assert_eq!((&first["headers"], &first["request_id"]), (&kept, &json!("g-1")));
    for item in ["item-1", "item-2"] {
        assert_eq!(response(&lines, item).get("headers"), None, "too long, or none");
    }
    assert!(!std::fs::read_to_string(job.path("out.jsonl")).expect("results").contains("secret"));
    let again = Job::new(3);
    std::fs::copy(job.path("out.jsonl"), again.path("done.jsonl")).expect("copied");
    let (code, log) = finish(again.run(&server).args(["--done", "done.jsonl"]));
    assert_eq!((code, server.count()), (0, 3), "{log}");
    assert_eq!(response(&again.lines("out.jsonl"), "item-0")["headers"], kept, "taken over with the answer");
}

/// Compressed in a way that was not asked for, with the header that says so or without.
#[test]
fn a_body_that_is_no_text_is_kept_with_what_says_what_it_is() {
    let server = Server::new(|arrival| {
        let reply = Reply::text(200, "application/zip", &b"\x78\x9c\xab\xff"[..]);
        if arrival.item == "item-0" { reply.with_header("content-encoding", "deflate") } else { reply }
    });
    let job = Job::new(2);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let lines = job.lines("out.jsonl");
    let encoded = json!({"content-encoding": "deflate", "content-type": "application/zip"});
    assert_eq!(response(&lines, "item-0")["headers"], encoded);
    assert_eq!(response(&lines, "item-1")["headers"], json!({"content-type": "application/zip"}));
}

/// The bytes of ISO-2022-JP, and of UTF-16 without a mark, are UTF-8 too.
#[test]
fn a_text_in_another_charset_is_kept_with_its_name() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-0" => Reply::text(200, "text/html; charset=utf-16le", &b"<\0p\0>\0h\0i\0"[..]),
        "item-1" => Reply::text(200, "text/html;CHARSET=\"ISO-2022-JP\"", &b"<p>\x1b$BF|K\\\x1b(B</p>"[..]),
        "item-2" => Reply::text(200, "text/html; charset=\"UTF-8\"", &b"<p>"[..]),
        _ => Reply::text(200, "text/plain; format=flowed", &b"hi"[..]),
    });
    let job = Job::new(4);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let lines = job.lines("out.jsonl");
    let kept = |item| (response(&lines, item)["body"].clone(), response(&lines, item).get("headers").cloned());
    let utf_16 = json!({"content-type": "text/html; charset=utf-16le"});
    assert_eq!(kept("item-0"), (json!("<\0p\0>\0h\0i\0"), Some(utf_16)));
    let japanese = json!({"content-type": "text/html;CHARSET=\"ISO-2022-JP\""});
    assert_eq!(kept("item-1"), (json!("<p>\u{1b}$BF|K\\\u{1b}(B</p>"), Some(japanese)));
    assert_eq!([kept("item-2").1, kept("item-3").1], [None, None]);
}

/// A crash may come after a line was written and before the journal knows of it.
#[test]
fn a_line_with_headers_is_recorded_after_a_crash() {
    let (input, server) = (format!("{}\n{}\n", line("item-1"), line("item-0")), Server::new(resource));
    let whole = Job::with_input(&input);
    assert_eq!(finish(whole.run(&server).args(["--concurrency", "1"])).0, 0);
    let job = Job::with_input(&input);
    assert_eq!(finish(job.run(&server).args(["--max-items", "1"])).0, 3);
    std::fs::copy(whole.path("out.jsonl"), job.path("out.jsonl")).expect("copied");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 3), "nothing is sent again: {log}");
    assert_eq!(response(&job.lines("out.jsonl"), "item-0")["headers"]["location"], "/items/caf\u{e9}");
}

#[test]
fn the_target_of_a_redirect_is_kept_without_its_secrets() {
    for (target, kept) in [
        ("/v2/chat?page=2&token=sesame", "/v2/chat?page=2&token=[key]"),
        ("https://me:sesame@api.invalid/v2?page=2&x-sig=sesame", "https://[key]@api.invalid/v2?page=2&x-sig=[key]"),
    ] {
        let server = Server::new(move |_| Reply::text(307, "text/html", "").with_header("location", target));
        let job = Job::new(1);
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!(code, 1, "{log}");
        assert_eq!(response(&job.lines("out.errors.jsonl"), "item-0")["headers"]["location"], kept);
        for file in ["out.errors.jsonl", "out.journal"] {
            let bytes = std::fs::read(job.path(file)).expect("written");
            assert!(!String::from_utf8_lossy(&bytes).contains("sesame"), "{file}");
        }
    }
}
