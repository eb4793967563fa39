//! What answers mean that are no plain success and no plain error.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish, line};

#[test]
fn a_200_that_is_no_answer_is_tried_again_and_never_a_result() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-0", 0) => Reply::text(200, "text/html", "<html>we are being updated</html>"),
        ("item-1", 0) => Reply::text(200, "application/json", "{not json"),
        ("item-2", 0) => Reply::text(200, "application/json", ""),
        ("item-3", 0) => Reply::error(200, "server_error"),
        ("item-4", _) => Reply::text(200, "text/plain", "upstream connect error"),
        ("item-5", _) => Reply::new(200, &json!({"error": {"message": "m", "type": "invalid_request_error"}})),
        _ => Reply::ok(),
    });
    let job = Job::new(6);
    let (code, log) = finish(job.run(&server).args(["--upstream", "openai", "--max-retries", "1"]));
    assert_eq!(code, 1, "{log}");
    assert_eq!(server.by_item().into_values().collect::<Vec<_>>(), [2, 2, 2, 2, 2, 1]);
    assert_eq!(job.lines("out.jsonl").len(), 4);
    job.assert_adds_up(6);
    let rows = job.lines("out.report.jsonl");
    let row = |item: &str| rows.iter().find(|row| row["custom_id"] == item).expect("a row");
    assert_eq!(
        (&row("item-4")["code"], &row("item-4")["class"], &row("item-4")["last_error"]),
        (&json!("not_json"), &json!("transient"), &json!("the answer is not JSON: upstream connect error"))
    );
    assert_eq!(row("item-5")["class"], "invalid");
}

/// The row of the only item of a job that failed after one call.
fn refused_at_once(server: &Server) -> Value {
    let job = Job::new(1);
    let (code, log) = finish(&mut job.run(server));
    assert_eq!((code, server.count()), (1, 1), "{log}");
    job.assert_adds_up(1);
    job.lines("out.report.jsonl").remove(0)
}

#[test]
fn a_redirect_that_is_not_followed_says_where_it_points_and_why() {
    let elsewhere = Server::new(|_| Reply::ok());
    for status in [301, 302, 307, 308] {
        let target = format!("{}/v1/chat/completions?token=secret", elsewhere.url());
        let server = Server::new(move |_| Reply::text(status, "text/html", "moved").with_header("location", &target));
        let row = refused_at_once(&server);
        assert_eq!(
            (&row["class"], &row["code"], &row["status_code"], &row["fatal"]),
            (&json!("invalid"), &json!("redirect"), &json!(status), &json!(true))
        );
        let error = row["last_error"].as_str().expect("a message");
        assert!(
            error.contains(&format!(
                "a redirect to {}; redirects are not followed; if this is the right place",
                elsewhere.url()
            )),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
    assert_eq!(elsewhere.count(), 0);
    let server = Server::new(|_| Reply::text(307, "text/html", "").with_header("location", "/v2/chat?token=secret"));
    let error = refused_at_once(&server)["last_error"].to_string();
    assert!(error.contains("a redirect to /v2/chat?token=[key]; redirects are not followed;"), "{error}");
}

#[test]
fn headers_without_end_are_named_and_asked_for_once() {
    let long = "a".repeat(2 << 20);
    let row = refused_at_once(&Server::new(move |_| Reply::ok().with_header("x-long", &long)));
    assert_eq!((&row["class"], &row["code"]), (&json!("invalid"), &json!("response_too_large")));
    let error = row["last_error"].as_str().expect("a message");
    assert!(error.contains("headers of the answer are larger than 400 KiB"), "{error}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn compressed_answers_are_decompressed_and_their_size_is_still_bounded() {
    let gzip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    };
    let (small, bomb) = (gzip(br#"{"object":"chat.completion"}"#), gzip(&vec![b' '; 40 << 20]));
    let server = Server::new(move |arrival| {
        let body = match arrival.item.as_str() {
            "item-0" => small.clone(),
            "item-1" => bomb.clone(),
            "item-3" => b"no gzip at all".to_vec(),
            "item-4" => [gzip(br#"{"object":"chat"#), gzip(br#".completion"}"#)].concat(),
            "item-5" => [&small[..], b"rubbish behind the last member"].concat(),
            "item-6" => [&small[..], &small[..small.len() - 4]].concat(),
            _ => small[..small.len() - 4].to_vec(),
        };
        Reply::text(200, "application/json", body).with_header("content-encoding", "gzip")
    });
    let job = Job::new(7);
    let (code, log) = finish(job.run(&server).args(["--max-retries", "1"]));
    assert_eq!((code, server.count()), (1, 11), "{log}");
    let accepted = server.arrivals()[0].headers["accept-encoding"].to_str().expect("text").to_owned();
    assert!(accepted.contains("gzip") && accepted.contains("br"), "{accepted}");
    let results = job.lines("out.jsonl");
    assert_eq!(results.len(), 2, "of one member, and of two");
    assert!(results.iter().all(|result| result["response"]["body"]["object"] == "chat.completion"), "{results:?}");
    let errors = job.lines("out.errors.jsonl");
    let code = |id: &str| &errors.iter().find(|line| line["custom_id"] == id).expect("an error")["error"]["code"];
    assert_eq!((code("item-1"), code("item-2")), (&json!("response_too_large"), &json!("truncated")));
    let [cut, damaged] = ["the response was cut off", "the response cannot be decompressed"];
    for (item, message) in [("item-2", cut), ("item-3", damaged), ("item-5", damaged), ("item-6", cut)] {
        let row = job.lines("out.report.jsonl").into_iter().find(|row| row["custom_id"] == item).expect("a row");
        assert!(row["last_error"].as_str().is_some_and(|error| error.starts_with(message)), "{row}");
    }
}

/// The same request four times, as a stream and whole, at every endpoint of the mock.
fn streamed_and_whole() -> Vec<Value> {
    let endpoints = ["chat/completions", "completions", "responses", "messages"];
    let both = endpoints.into_iter().flat_map(|endpoint| [(endpoint, true), (endpoint, false)]);
    both.map(|(endpoint, stream)| {
        let messages = json!([{"role": "user", "content": "Hello there"}]);
        let mut body = json!({"model": "m", "messages": messages, "input": "Hello", "max_tokens": 9});
        if stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        json!({"custom_id": format!("{endpoint} {stream}"), "url": format!("/v1/{endpoint}"), "body": body})
    })
    .collect()
}

#[test]
fn a_streamed_answer_becomes_the_object_that_it_would_have_been() {
    let lines: Vec<String> = streamed_and_whole().iter().map(Value::to_string).collect();
    let job = Job::with_input(&lines.join("\n"));
    let mut run = job.paceline();
    run.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--upstream", "mock"]);
    let (code, log) = finish(&mut run);
    assert_eq!(code, 0, "{log}");
    let results = job.lines("out.jsonl");
    let body = |id: String| {
        let result = results.iter().find(|result| result["custom_id"] == *id).expect("a result");
        let mut body = result["response"]["body"].clone();
        // They number the calls and tell the time.
        for place in ["/id", "/created", "/created_at", "/output/0/id"] {
            body.pointer_mut(place).map(Value::take);
        }
        body
    };
    let mut tokens = 0;
    for endpoint in ["chat/completions", "completions", "responses", "messages"] {
        let (streamed, whole) = (body(format!("{endpoint} true")), body(format!("{endpoint} false")));
        assert_eq!(streamed, whole, "{endpoint}");
        let usage = &whole["usage"];
        tokens += 2 * usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64()).expect("a count");
    }
    assert_eq!(job.summary()["tokens_out"], tokens);
}

#[test]
fn a_stream_that_is_cut_or_breaks_off_with_an_error_is_no_result() {
    let chunk = json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hel"}}]});
    let (cut, whole) = (format!("data: {chunk}\n\n"), format!("data: {chunk}\n\ndata: [DONE]\n\n"));
    let error = json!({"error": {"message": "cannot", "type": "invalid_request_error", "code": null}});
    let late = format!("{cut}data: {error}\n\n");
    let server = Server::new(move |arrival| match (arrival.item.as_str(), arrival.before) {
        ("late", _) => Reply::text(200, "text/event-stream", late.clone()),
        ("once", 0) | ("always", _) => Reply::text(200, "text/event-stream", cut.clone()),
        _ => Reply::text(200, "text/event-stream", whole.clone()),
    });
    let job = Job::with_input(&["late", "once", "always"].map(line).join("\n"));
    let (code, log) = finish(job.run(&server).args(["--max-retries", "1"]));
    assert_eq!(code, 1, "{log}");
    assert_eq!(
        server.by_item().into_iter().collect::<Vec<_>>(),
        [("always".into(), 2), ("late".into(), 1), ("once".into(), 2)]
    );
    job.assert_adds_up(3);
    let result = &job.lines("out.jsonl")[0];
    assert_eq!(
        (&result["custom_id"], &result["response"]["body"]["object"]),
        (&json!("once"), &json!("chat.completion"))
    );
    let errors = job.lines("out.errors.jsonl");
    let of = |id: &str| errors.iter().find(|line| line["custom_id"] == id).expect("an error");
    let body = &of("late")["response"]["body"];
    assert_eq!(
        (&body["error"]["message"], &body["choices"][0]["message"]["content"]),
        (&json!("cannot"), &json!("Hel"))
    );
    assert!(of("always")["response"]["body"].as_str().is_some_and(|text| text.starts_with("data: ")));
    let rows = job.lines("out.report.jsonl");
    let row = |id: &str| rows.iter().find(|row| row["custom_id"] == id).expect("a row");
    assert_eq!((&row("late")["class"], &row("late")["last_error"]), (&json!("invalid"), &json!("cannot")));
    assert_eq!((&row("always")["class"], &row("always")["code"]), (&json!("transient"), &json!("truncated")));
}

#[test]
fn what_is_not_http_is_no_connection_that_broke() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut call, _) = listener.accept().expect("a call");
        let _ = call.read(&mut [0; 4_096]).expect("a request");
        call.write_all(b"220 mail.example.com ESMTP\r\n").expect("it reads");
    });
    let job = Job::new(1);
    let (code, log) =
        finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl", "--max-retries", "0", "--base-url", &url]));
    server.join().expect("it answers");
    let error = &job.lines("out.errors.jsonl")[0]["error"];
    assert_eq!((code, &error["code"]), (1, &json!("malformed")), "{log}");
    assert!(log.contains("the response is not HTTP: "), "{log}");
}

#[test]
fn a_header_field_over_two_lines_is_read_as_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut call, _) = listener.accept().expect("a call");
        let _ = call.read(&mut [0; 4_096]).expect("a request");
        call.write_all(b"HTTP/1.1 200 OK\r\nx-request-id: one\r\n two\r\ncontent-length: 2\r\n\r\n{}")
            .expect("it reads");
    });
    let job = Job::new(1);
    let (code, log) =
        finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl", "--max-retries", "0", "--base-url", &url]));
    // Only now, for a run that makes no call would keep the server for ever.
    assert_eq!(code, 0, "{log}");
    server.join().expect("it answers");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["request_id"], "one two");
}

/// What a generic API answers at an item's first call.
fn at_first(body: &'static str, content_type: &'static str) -> Server {
    Server::new(move |arrival| match arrival.before {
        0 => Reply::text(200, content_type, body),
        _ => Reply::ok(),
    })
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn where_json_is_expected_a_page_or_half_an_object_is_no_success() {
    for (body, content_type, code) in [
        ("<html>please log in</html>", "text/html", "not_json"),
        (r#"{"rates": [1, 2"#, "application/json", "not_json"),
        ("", "application/json", "empty_answer"),
    ] {
        let job = Job::new(1);
        let server = at_first(body, content_type);
        let (exit, log) = finish(&mut job.run(&server));
        assert_eq!((exit, server.count()), (0, 1), "a generic API may answer anything: {log}");
        let job = Job::new(1);
        let server = at_first(body, content_type);
        let (exit, log) = finish(job.run(&server).args(["--expect", "json"]));
        assert_eq!((exit, server.count()), (0, 2), "{body}: {log}");
        let job = Job::new(1);
        let server = at_first(body, content_type);
        let (exit, _) = finish(job.run(&server).args(["--expect", "json", "--max-retries", "0"]));
        let row = &job.lines("out.report.jsonl")[0];
        assert_eq!((exit, &row["code"], &row["class"]), (1, &code.into(), &"transient".into()), "{row}");
    }
    for body in ["[1]", "7", r#"{"a": 1}"#, "\u{feff}{\"a\": 1}"] {
        let job = Job::new(1);
        let server = at_first(body, "application/json");
        assert_eq!((finish(job.run(&server).args(["--expect", "json"])).0, server.count()), (0, 1), "{body}");
    }
}

/// A login page comes from a server that works: it opens no breaker before the pages behind it.
#[test]
fn pages_that_are_not_what_is_expected_hold_no_others_up() {
    let url = |n: usize| if n < 30 { "login" } else { "data" };
    let line = |n: usize| json!({"custom_id": n.to_string(), "method": "GET", "url": format!("/{}/{n}", url(n))});
    let input: String = (0..60).map(|n| line(n).to_string() + "\n").collect();
    let server = Server::new(|arrival| match arrival.path.starts_with("/login") {
        true => Reply::text(200, "text/html", "<html>please log in</html>"),
        false => Reply::ok(),
    });
    let flags = ["--expect", "json", "--max-retries", "1", "--scope", "all", "--concurrency", "4"];
    let job = Job::with_input(&input);
    let (code, log) = finish(job.run(&server).args(flags).args(["--stop-after-same", "0"]));
    assert_eq!((code, &job.summary()["succeeded"], server.count()), (1, &json!(30), 90), "{log}");
    assert!(log.contains("will be sent again: refused by --expect (each retry may be billed)"), "{log}");
    let job = Job::with_input(&input);
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, &job.summary()["stopped"]), (3, &json!("same_failure")), "{log}");
    assert!(log.contains("correct what --expect asks for, the requests, or the key and its header"), "{log}");
    assert!(log.contains("the answer is not JSON: please log in"), "{log}");
}

#[test]
fn a_call_without_a_body_is_asked_for_no_json() {
    let line = |method: &str| json!({"custom_id": method, "method": method, "url": "/x"}).to_string() + "\n";
    let server = Server::new(|arrival| match arrival.method {
        http::Method::HEAD => Reply::text(200, "text/html", ""),
        _ => Reply::text(304, "text/html", ""),
    });
    let job = Job::with_input(&(line("HEAD") + &line("GET")));
    let (code, log) = finish(job.run(&server).args(["--expect", "json"]));
    assert_eq!((code, server.count()), (0, 2), "{log}");
}

#[test]
fn a_rule_may_say_what_an_answer_that_is_no_json_means() {
    let job = Job::new(1);
    let rule = "[[upstream.generic.rule]]\nmatch = { status = 200, body = 'not_json' }\nclass = 'account'\n";
    std::fs::write(job.path("paceline.toml"), rule).expect("writable");
    let server = at_first("<html>please log in</html>", "text/html");
    let (exit, log) = finish(&mut job.run(&server));
    assert_eq!((exit, server.count()), (3, 1), "{log}");
    let (exit, log) = finish(&mut job.run(&server));
    assert_eq!((exit, server.count()), (0, 2), "JSON is a success: {log}");
}
