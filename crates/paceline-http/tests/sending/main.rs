//! Calls to servers that answer with what they should not.
#![cfg(test)]

mod connections;
mod middleware;
mod own_client;
mod profiles;
mod support;
mod trust;
mod untaken;

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use paceline::{Class, Dimension, GiveUp, NextAction, Request, UnknownOutcome};
use paceline_http::{Call, NoAnswer, SenderConfig};
use paceline_providers::table::Scope;
use paceline_providers::{Expected, Provider, Schema};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use support::{Server, answer, limiter, ok, post, send, sender, with};

const KEY: &str = "Bearer sk-of-the-upstream";

#[tokio::test]
async fn an_answer_repeats_no_key_whether_it_was_marked_or_not() {
    let server = Server::new(|_| Some(with(ok(r#"{"you":"sk-of-the-upstream"}"#), "x-debug", KEY))).await;
    let mut config = server.config(Provider::Generic);
    config.headers.insert("authorization", HeaderValue::from_static(KEY));
    let sender = sender(config);
    let exchange = send(&sender, 1, &post("/a", "{}")).await;
    let answer = exchange.answer.unwrap();
    assert_eq!(
        (&answer.body()[..], answer.headers()["x-debug"].as_bytes()),
        (&br#"{"you":"[key]"}"#[..], &b"Bearer [key]"[..])
    );
    assert!(!format!("{sender:?} {:?}", sender.config()).contains("sk-of"));
}

#[tokio::test]
async fn a_call_to_another_host_carries_no_secret_of_the_sender() {
    let (ours, other) = (Server::new(|_| Some(ok("{}"))).await, Server::new(|_| Some(ok("{}"))).await);
    let mut config = ours.config(Provider::Generic);
    config.headers.insert("authorization", HeaderValue::from_static(KEY));
    config.headers.insert("x-team", HeaderValue::from_static("a"));
    let sender = sender(config);
    let to = |url: &str| Call { url: format!("{url}/a?b=1"), ..Call::default() };
    let mut with_its_own = to(&other.url);
    with_its_own.headers.insert("authorization", HeaderValue::from_static("Bearer its-own"));
    for call in [to(&ours.url), to(&other.url), with_its_own] {
        send(&sender, 1, &call).await.answer.unwrap();
    }
    let sent = |server: &Server, number: usize, name: &str| {
        server.arrivals()[number].headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(sent(&ours, 0, "authorization").as_deref(), Some(KEY));
    assert_eq!([sent(&other, 0, "authorization"), sent(&other, 0, "x-team")], [None, Some("a".to_owned())]);
    assert_eq!(sent(&other, 1, "authorization").as_deref(), Some("Bearer its-own"));
    assert_eq!(other.arrivals()[0].path, "/a?b=1");
}

#[tokio::test]
async fn a_call_replaces_headers_and_no_secret() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let mut config = server.config(Provider::OpenAi);
    config.headers.insert("authorization", HeaderValue::from_static(KEY));
    config.headers.insert("x-team", HeaderValue::from_static("a"));
    let sender = sender(config);
    let mut call = post("/a", "x");
    call.idempotency_key = Some(HeaderValue::from_static("job-7"));
    for (name, value) in [("authorization", "Bearer mine"), ("x-team", "b"), ("content-type", "text/plain")] {
        call.headers.insert(name, HeaderValue::from_static(value));
    }
    _ = send(&sender, 1, &call).await;
    call.headers.insert("idempotency-key", HeaderValue::from_static("my own"));
    _ = send(&sender, 1, &call).await;
    _ = send(&sender, 1, &Call { url: "/a".to_owned(), ..Call::default() }).await;
    let arrivals = server.arrivals();
    let sent = |number: usize, name: &str| arrivals[number].headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(
        ["authorization", "x-team", "content-type"].map(|name| sent(0, name).unwrap()),
        [KEY, "b", "text/plain"]
    );
    assert_eq!([sent(0, "idempotency-key"), sent(1, "idempotency-key")], [Some("job-7"), Some("my own")]);
    assert_eq!((&arrivals[2].method, sent(2, "content-type"), sent(2, "idempotency-key")), (&Method::GET, None, None));
    assert!(sent(0, "user-agent").unwrap().starts_with("paceline/"));
}

/// It would be as large the next time.
#[tokio::test]
async fn an_answer_is_read_up_to_the_bound_of_the_sender() {
    let server = Server::new(|arrival| Some(ok(&"x".repeat(arrival.body.len())))).await;
    let sender = sender(SenderConfig { largest_answer: 64 << 10, ..server.config(Provider::Generic) });
    let fits = send(&sender, 1, &post("/a", &"x".repeat(64 << 10))).await;
    assert_eq!(fits.answer.unwrap().body().len(), 64 << 10);
    let exchange = send(&sender, 1, &post("/a", &"x".repeat((64 << 10) + 1))).await;
    assert_eq!(exchange.reading.class, Class::Invalid);
    assert_eq!(exchange.answer.unwrap_err().to_string(), "the answer is larger than 64 KiB");
    let config = SenderConfig { needs_answers: false, largest_answer: 64 << 10, ..server.config(Provider::Generic) };
    let exchange = send(&self::sender(config), 1, &post("/a", &"x".repeat((64 << 10) + 1))).await;
    assert_eq!((exchange.reading.class, exchange.answer.unwrap().body().len()), (Class::Success, 0), "it was done");
}

/// A body in small parts, which is read as far as there is memory.
#[tokio::test]
async fn all_answers_together_take_no_more_memory_than_they_may() {
    let server = Server::new(|arrival| Some(ok(&"x".repeat(arrival.body.len())))).await;
    let sender = sender(SenderConfig { most_of_answers: 64 << 10, ..server.config(Provider::Generic) });
    let large = post("/a", &"x".repeat(48 << 10));
    let (first, beyond) = (send(&sender, 1, &large).await, send(&sender, 2, &large).await);
    let mut third = pin!(send(&sender, 3, &large));
    let empty = async {
        for item in 10..30 {
            assert!(send(&sender, item, &post("/a", "")).await.answer.is_ok());
        }
    };
    tokio::select! {
        biased;
        third = &mut third => panic!("there is no memory for it: {third:?}"),
        () = empty => {}
    }
    assert_eq!([first, beyond].map(|kept| kept.answer.unwrap().body().len()), [48 << 10; 2]);
    assert_eq!(third.await.answer.unwrap().body().len(), 48 << 10);
    let arrives = async |item| assert!(send(&sender, item, &large).await.answer.is_ok(), "none waits for another");
    futures_util::future::join_all((0..40).map(arrives)).await;
}

#[tokio::test]
async fn silence_is_waited_for_as_long_as_the_call_or_the_sender_says() {
    let server = Server::new(|_| None).await;
    let timeout = Duration::from_millis(40);
    let short = sender(SenderConfig { timeout, ..server.config(Provider::Generic) });
    let within = Call { within: Some(Duration::from_millis(30)), ..post("/a", "{}") };
    for (sender, call, expected) in [
        (short, post("/a", "{}"), "no answer within 40ms"),
        (server.sender(Provider::Generic), within, "no answer within 30ms"),
    ] {
        let exchange = send(&sender, 1, &call).await;
        assert_eq!((exchange.reading.class, exchange.used()), (Class::Transient, None));
        assert_eq!(exchange.answer.unwrap_err().to_string(), expected);
    }
}

/// As where a person stops a job for longer than a call may take, and goes on with it.
#[tokio::test]
async fn what_came_while_the_process_stood_still_is_read() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let timeout = Duration::from_millis(200);
    let sender = sender(SenderConfig { timeout, ..SenderConfig::new(format!("http://{address}"), Provider::Generic) });
    listener.set_nonblocking(true).unwrap();
    let still = async {
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        stream.set_nonblocking(true).unwrap();
        while std::io::Read::read(&mut stream, &mut [0; 4_096]).is_err() {
            tokio::task::yield_now().await;
        }
        // The only thread stands until the call has been answered and its time is over.
        let clock = paceline::Clock::new();
        let over = clock.now() + 2 * timeout;
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        while clock.now() < over {
            std::thread::yield_now();
        }
        stream
    };
    let call = post("/a", "{}");
    let (exchange, _stream) = tokio::join!(send(&sender, 1, &call), still);
    assert_eq!(exchange.answer.unwrap().body(), "{}");
}

/// The host drops what asks for a connection, as where a firewall stands before it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_call_that_found_no_connection_in_time_was_not_sent() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _the_only_one = tokio::net::TcpStream::connect(address).await.unwrap();
    let timeout = Duration::from_millis(400);
    let sender = sender(SenderConfig { timeout, ..SenderConfig::new(format!("http://{address}"), Provider::Generic) });
    let exchange = send(&sender, 1, &post("/charges", "{}")).await;
    assert!(exchange.reading.unsent, "{exchange:?}");
    assert!(matches!(exchange.action, NextAction::Retry { .. }), "{exchange:?}");
    assert_eq!(exchange.answer.unwrap_err().to_string(), "no connection: the host did not answer in time");
}

/// A charge to a card, and a prompt: a second one of these has no effect but its cost.
#[tokio::test]
async fn only_what_may_be_repeated_is_sent_again_after_silence() {
    let server =
        Server::new(|arrival| arrival.path.strip_prefix("/refused/").map(|code| answer(code.parse().unwrap(), "{}")))
            .await;
    let timeout = Duration::from_millis(40);
    let config = SenderConfig { timeout, ..server.config(Provider::Generic) };
    let keyed = SenderConfig { idempotency_header: Some("idempotency-key".parse().unwrap()), ..config.clone() };
    let failing = SenderConfig { unknown_outcome: Some(UnknownOutcome::Fail), ..config.clone() };
    let key = Some(HeaderValue::from_static("k"));
    for (config, call, ends) in [
        (&config, post("/charges", "{}"), Some(GiveUp::Held)),
        (&failing, post("/charges", "{}"), Some(GiveUp::Unknown)),
        (&config, Call { method: Method::PUT, ..post("/charges", "{}") }, None),
        (&failing, Call { method: Method::DELETE, ..post("/charges", "") }, None),
        (&config, post("/v1/chat/completions", "{}"), None),
        (&keyed, Call { idempotency_key: key.clone(), ..post("/charges", "{}") }, None),
        (&keyed, post("/charges", "{}"), Some(GiveUp::Held)),
        (&config, Call { idempotency_key: key, ..post("/charges", "{}") }, Some(GiveUp::Held)),
        (&config, post("/refused/503", "{}"), None),
        (&config, post("/refused/500", "{}"), None),
        (&config, post("/refused/502", "{}"), Some(GiveUp::Held)),
        (&config, post("/refused/408", "{}"), Some(GiveUp::Held)),
        (&failing, post("/refused/504", "{}"), Some(GiveUp::Unknown)),
        (&config, Call { method: Method::PUT, ..post("/refused/504", "{}") }, None),
    ] {
        let exchange = send(&sender(config.clone()), 1, &call).await;
        assert_eq!(exchange.unknown.ends(), ends, "{call:?}");
        let ended = match exchange.action {
            NextAction::GiveUp { reason, .. } => Some(reason),
            _ => None,
        };
        assert_eq!(ended, ends, "{call:?}");
    }
    let nowhere = sender(SenderConfig::new("http://127.0.0.1:1", Provider::Generic));
    assert_eq!(send(&nowhere, 1, &post("/charges", "{}")).await.unknown, UnknownOutcome::Resend);
}

#[tokio::test]
async fn an_answer_that_is_too_large_does_not_say_what_was_done() {
    let server = Server::new(|_| Some(ok("[1,2,3,4,5]"))).await;
    let sender = sender(SenderConfig { largest_answer: 4, ..server.config(Provider::Generic) });
    for (path, expected) in [("/charges", GiveUp::Held), ("/v1/chat/completions", GiveUp::Refused(Class::Invalid))] {
        let exchange = send(&sender, 1, &post(path, "{}")).await;
        assert!(matches!(exchange.action, NextAction::GiveUp { reason, .. } if reason == expected), "{exchange:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_teaches_nothing() {
    let arrived = Arc::new(Notify::new());
    let arrives = Arc::clone(&arrived);
    let server = Server::new(move |_| {
        arrives.notify_one();
        None
    })
    .await;
    let (limiter, sender) = (limiter(), server.sender(Provider::Generic));
    let permit = limiter.acquire(Request::new(limiter.scope("chat"), sender.charge("chat", &post("/a", "{}")))).await;
    let exchange = sender.send(permit.unwrap(), &post("/a", "{}"), ready(())).await;
    // There was no connection yet.
    assert_eq!((exchange.reading.class, exchange.unknown), (Class::Abandoned, UnknownOutcome::Resend));
    assert_eq!((exchange.reading.unsent, exchange.answer.unwrap_err()), (true, NoAnswer::NeverSent));
    let permit = limiter.acquire(Request::new(limiter.scope("chat"), sender.charge("chat", &post("/a", "{}")))).await;
    let exchange = sender.send(permit.unwrap(), &post("/a", "{}"), arrived.notified()).await;
    assert_eq!((exchange.unknown, exchange.answer.unwrap_err()), (UnknownOutcome::Hold, NoAnswer::GivenUp));
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
}

#[tokio::test]
async fn nothing_that_listens_is_a_call_that_never_left() {
    let exchange = send(&sender(SenderConfig::new("http://127.0.0.1:1", Provider::Generic)), 1, &post("/", "{}")).await;
    assert!(exchange.reading.unsent && exchange.used().is_some_and(|used| used.total() == 0));
    assert!(matches!(exchange.answer, Err(NoAnswer::Connect(_))));
}

#[tokio::test]
async fn tls_is_no_reason_at_an_address_that_has_answered_without() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sender = sender(SenderConfig::new(format!("http://{}", listener.local_addr().unwrap()), Provider::Generic));
    tokio::spawn(async move {
        for connection in 0.. {
            let mut stream = listener.accept().await.unwrap().0;
            stream.read_buf(&mut Vec::new()).await.unwrap();
            if connection == 1 {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                stream.write_all(answer).await.unwrap();
            }
        }
    });
    let mut told = Vec::new();
    for item in 0..3 {
        told.push(send(&sender, item, &post("/a", "{}")).await.answer.map_err(|error| error.to_string()));
    }
    let hint = "; if the server speaks TLS there, write https://";
    assert!(told[0].as_ref().is_err_and(|why| why.contains(hint)), "{told:?}");
    assert!(told[1].is_ok(), "{told:?}");
    assert!(told[2].as_ref().is_err_and(|why| why.contains("connection lost") && !why.contains(hint)), "{told:?}");
}

/// A connection that breaks, and a stream that ends before its end: the server bills both.
#[tokio::test]
async fn a_stream_that_is_cut_off_has_told_its_prompt() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 20, "cache_read_input_tokens": 2_000, "output_tokens": 1}}});
    let more = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "and so"}});
    let events = format!("event: message_start\ndata: {start}\n\nevent: content_block_delta\ndata: {more}\n\n");
    let all = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}});
    let without_end = format!("data: {all}\n\ndata: {usage}\n\n");
    for (provider, events, length, expected) in [
        (Provider::Anthropic, &events, 9_000, Some((2_020, 0))),
        (Provider::Anthropic, &events, events.len(), Some((2_020, 0))),
        (Provider::OpenAi, &without_end, 9_000, Some((9, 4))),
        (Provider::OpenAi, &"data: {\"choices\":[]}\n\n".to_owned(), 9_000, None),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sender = sender(SenderConfig::new(format!("http://{}", listener.local_addr().unwrap()), provider));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n");
        let answer = head + events;
        tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            stream.read_buf(&mut Vec::new()).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let exchange = send(&sender, 1, &post("/v1/messages", "{}")).await;
        let used = exchange.used().map(|usage| (usage.prompt_tokens(), usage.output_tokens));
        assert_eq!((used, exchange.told.is_some()), (expected, expected.is_some()), "{provider} {length}");
    }
}

/// Each model has its own tokenizer, and limits hold only if what leaves is counted as the server counts it.
#[tokio::test]
async fn what_a_call_is_charged_follows_what_answers_report() {
    let usage = json!({"usage": {"prompt_tokens": 2_000, "completion_tokens": 1}}).to_string();
    let server = Server::new(move |_| Some(ok(&usage))).await;
    let sender = server.sender(Provider::OpenAi);
    let call = post("/v1/completions", &json!({"prompt": "x".repeat(1_000), "max_tokens": 1}).to_string());
    let tokens = |scope: &str| sender.charge(scope, &call).get(&Dimension::InputTokens);
    let (guessed, other) = (tokens("chat"), tokens("other"));
    for _ in 0..10 {
        _ = send(&sender, 1, &call).await;
    }
    assert!(guessed < 400 && (1_900..2_100).contains(&tokens("chat")), "{guessed}, then {}", tokens("chat"));
    assert_eq!(tokens("other"), other, "another scope has learnt nothing");
}

#[tokio::test]
async fn the_rest_of_a_batch_is_what_is_left_of_its_item_and_its_answers_are_joined() {
    let (a, b) = (
        json!({"Responses": {"t": ["A"]}, "UnprocessedKeys": {"t": {"Keys": ["b"]}}}),
        json!({"Responses": {"t": ["B"]}}),
    );
    let server = Server::new(move |arrival| Some(ok(&if arrival.before == 0 { &a } else { &b }.to_string()))).await;
    let sender = server.sender(Provider::DynamoDb);
    let mut call = post("/", &json!({"RequestItems": {"t": {"Keys": ["a", "b"]}}}).to_string());
    assert_eq!(sender.rest_of(7), None);
    let first = send(&sender, 7, &call).await;
    assert!(matches!(
        (first.reading.class, first.action),
        (Class::Partial, NextAction::Retry { .. } | NextAction::Resend { .. })
    ));
    call.body = sender.rest_of(7).expect("something is left");
    assert_eq!(call.body, Bytes::from(json!({"RequestItems": {"t": {"Keys": ["b"]}}}).to_string()));
    let second = send(&sender, 7, &call).await.answer.unwrap();
    assert_eq!(second.body(), &Bytes::from(json!({"Responses": {"t": ["A", "B"]}}).to_string()));
    assert_eq!(sender.rest_of(7), None);
}

#[tokio::test]
async fn a_stream_comes_back_as_the_object_that_its_events_add_up_to() {
    let events = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let server = Server::new(|_| Some(with(ok(events), "content-type", "text/event-stream"))).await;
    let exchange = send(&server.sender(Provider::OpenAi), 1, &post("/v1/chat/completions", "{}")).await;
    let whole: serde_json::Value = serde_json::from_slice(exchange.answer.unwrap().body()).unwrap();
    assert_eq!(whole["choices"][0]["message"]["content"], "Hello");
}

/// No event holds the whole key.
#[tokio::test]
async fn a_key_that_a_stream_repeats_in_parts_is_hidden() {
    let said = |choice: serde_json::Value| format!("data: {}\n\n", json!({"choices": [choice]}));
    let events = said(json!({"index": 0, "delta": {"content": "It is open ses"}}))
        + &said(json!({"index": 0, "delta": {"content": "ame now"}, "finish_reason": "stop"}))
        + "data: [DONE]\n\n";
    let server = Server::new(move |_| Some(with(ok(&events), "content-type", "text/event-stream"))).await;
    let message = json!({"properties": {"message": {"properties": {"content": {"pattern": "^no$"}}}}});
    let schema = Schema::new(json!({"properties": {"choices": {"items": message}}})).unwrap();
    let mut config = server.config(Provider::OpenAi);
    config.headers.insert("authorization", HeaderValue::from_static("open sesame now"));
    config.dialect = config.dialect.expecting(Expected::Schema(schema));
    let exchange = send(&sender(config), 1, &post("/v1/chat/completions", "{}")).await;
    let whole: serde_json::Value = serde_json::from_slice(exchange.answer.unwrap().body()).unwrap();
    assert_eq!(whole["choices"][0]["message"]["content"], "It is [key]");
    let message = exchange.reading.message.unwrap();
    assert!(message.contains("It is [key]") && !message.contains("sesame"), "{message}");
}

#[tokio::test]
async fn no_redirect_is_followed_and_the_words_say_what_to_do() {
    let server = Server::new(|arrival| {
        let to = match arrival.path.as_str() {
            "/away" => "https://example.com/elsewhere?token=hush",
            "/page" => "/next?x=1&y=%C3%A9#part",
            "/caf%C3%A9" => "/caf\u{e9}/",
            _ => "/moved",
        };
        let mut answer = answer(307, "");
        answer.headers_mut().insert("location", HeaderValue::from_bytes(to.as_bytes()).unwrap());
        Some(answer)
    })
    .await;
    let keyless = server.config(Provider::Generic);
    let mut keyed = keyless.clone();
    keyed.headers.insert("authorization", HeaderValue::from_static(KEY));
    let other = SenderConfig { base_url: "http://127.0.0.1:1".to_owned(), ..keyed.clone() };
    let mut by_host = keyed.clone();
    by_host.dialect = by_host.dialect.with_scope(Scope::Host);
    let (host, uncounted) = (&server.url, "");
    let at = |path: &str| format!("{host}{path}");
    for (config, url, target, why, advice) in [
        (&keyed, "/away", "https://example.com", ", for the key would go there", "name it with --base-url"),
        (&keyless, "/away", "https://example.com", uncounted, "name it with --base-url"),
        (&keyed, "/old", "/moved", uncounted, "put it in place of the old one"),
        (&by_host, "/old", &at("/moved"), uncounted, "right address, put it in place of the old one"),
        (&other, &at("/old"), &at("/moved"), uncounted, "right address, put it in place of the old one"),
        (
            &other,
            &at("/away"),
            "https://example.com/elsewhere?token=[key]",
            uncounted,
            "its address is not shown whole",
        ),
        (&keyed, "/page", "/next?x=1&y=%C3%A9", uncounted, "put it in place of the old one"),
        (&other, &at("/page"), &at("/next?x=1&y=%C3%A9"), uncounted, "right address, put it in place of the old one"),
        (&other, &at("/caf\u{e9}"), &at("/caf%C3%A9/"), uncounted, "right address, put it in place of the old one"),
    ] {
        let reading = send(&sender(config.clone()), 1, &post(url, "{}")).await.reading;
        assert_eq!(reading.code.as_deref(), Some("redirect"));
        let message = reading.message.unwrap();
        let start = format!("answered with a redirect to {target}; redirects are not followed{why};");
        assert!(message.starts_with(&start) && message.contains(advice) && !message.contains("hush"), "{message}");
    }
    assert_eq!(server.arrivals().len(), 9);

    // No key goes to a host that a call names, but what its payload brings does. What tells calls apart is no secret.
    let numbered = SenderConfig { idempotency_header: Some(HeaderName::from_static("idempotency-key")), ..keyless };
    let (mut signed, mut number) = (post(&at("/away"), "{}"), post("/away", "{}"));
    signed.headers.insert("x-hub-signature-256", HeaderValue::from_static("sha256=0a"));
    number.idempotency_key = Some(HeaderValue::from_static("pl-1"));
    for (config, call, why) in
        [(other, signed, ", for its header x-hub-signature-256 would go there"), (numbered, number, "")]
    {
        let message = send(&sender(config), 1, &call).await.reading.message.unwrap();
        assert!(message.contains(&format!("; redirects are not followed{why}; ")), "{message}");
    }
}

#[tokio::test]
async fn a_caller_who_knows_more_has_the_last_word_before_the_pacer_hears_of_it() {
    let server = Server::new(|_| Some(answer(429, "{}"))).await;
    let (limiter, sender, call) = (limiter(), server.sender(Provider::Generic), post("/", "{}"));
    let permit = limiter.acquire(Request::new(limiter.scope("chat"), sender.charge("chat", &call))).await.unwrap();
    let judged = |answer: &Result<http::Response<Bytes>, NoAnswer>, reading| {
        assert_eq!(answer.as_ref().unwrap().status(), 429);
        paceline_providers::Reading { class: Class::Invalid, ..reading }
    };
    let exchange = sender.send_judged(permit, &call, pending(), judged).await;
    assert_eq!((exchange.reading.class, exchange.status()), (Class::Invalid, Some(429)));
    assert!(matches!(exchange.action, NextAction::GiveUp { .. }), "{:?}", exchange.action);
}

/// As an ACME client does: the directory has the addresses.
#[tokio::test]
async fn without_an_address_of_the_sender_each_call_names_its_own() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let sender = sender(SenderConfig::new("", Provider::Acme));
    _ = send(&sender, 1, &Call { url: format!("{}/directory?x=1", server.url), ..Call::default() }).await;
    assert_eq!(server.arrivals()[0].path, "/directory?x=1");
}
