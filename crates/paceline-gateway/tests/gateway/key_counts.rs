//! What a call counts with under the limits of its client, however its server answers and its client goes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use futures_util::StreamExt as _;
use http::Response;
use paceline::{Clock, Dimension, Instant, PauseCause};
use paceline_gateway::Bounds;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Served, answer, client, counted, serve_to, upstream};

async fn served(
    limit: &str,
    settings: &str,
    answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
) -> Served {
    let api = upstream(move |_: Request| std::future::ready(answer())).await;
    let served = Served::new(api, settings, Bounds::default());
    serve_to(&served, vec![client("ci", &[limit])]);
    served
}

/// What is counted for the client, once nothing of it is under way.
async fn used(served: &Served) -> u64 {
    loop {
        let clients = served.gateway.clients();
        let account = clients.limiters().map(|(_, limiter)| limiter.snapshot().account).next().expect("one client");
        if account.concurrency.in_flight == 0 {
            return account.quotas[0].limit - account.quotas[0].remaining;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn prompt(served: &Served, max_tokens: u64) -> reqwest::RequestBuilder {
    let body = json!({"model": "m", "max_tokens": max_tokens, "messages": []}).to_string();
    served.post().header("x-paceline-key", "pk-ci").header("x-paceline-deadline", "2s").body(body)
}

#[tokio::test]
async fn an_answer_without_usage_counts_with_its_text_where_the_server_ignores_the_bound() {
    for (words, most) in [(96_000, 125_000), (480_000, 610_000)] {
        let text = json!({"choices": [{"index": 0, "message": {"content": "word ".repeat(words)}}]}).to_string();
        let served =
            served("2M tokens per 1h", "", move || answer(200, &[("content-type", "application/json")], text.clone()))
                .await;
        let got = prompt(&served, 5).send().await.expect("an answer").bytes().await.expect("whole");
        let used = used(&served).await;
        assert!((got.len() as u64 / 4 - 100..most).contains(&used), "{} bytes count with {used}", got.len());
        assert_eq!(served.limiter.snapshot().account.totals.by_class[0], 1, "it is a success, however long");
    }
    let text = json!({"id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine, thanks."}, "finish_reason": "stop"}]});
    let served = served("2M tokens per 1h", "", move || answer(200, &[], text.to_string())).await;
    prompt(&served, 5).send().await.expect("an answer").bytes().await.expect("whole");
    let used = used(&served).await;
    assert!((5..20).contains(&used), "its bound and its prompt: {used}");
}

/// The server holds the upstream for longer than the client's window; what got room under the limit meanwhile leaves after it.
#[tokio::test]
async fn what_waits_for_its_upstream_counts_when_it_leaves() {
    let (arrivals, clock): (Arc<Mutex<Vec<Instant>>>, _) = (Arc::default(), Arc::new(Clock::new()));
    let seen = Arc::clone(&arrivals);
    let api = upstream(move |_: Request| {
        let mut arrivals = seen.lock().expect("no panic");
        arrivals.push(clock.now());
        let first = arrivals.len() == 1;
        std::future::ready(if first { answer(429, &[("retry-after", "3")], "") } else { answer(200, &[], "{}") })
    })
    .await;
    let served = Served::new(api, "pace = 'fixed'", Bounds::default());
    serve_to(&served, vec![client("ci", &["3 per 1s"])]);
    let ask = || served.post().header("x-paceline-key", "pk-ci").body("{}").send();
    let answers = futures_util::future::join_all((0..12).map(|_| ask())).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.status() == 200)), "{answers:?}");
    let arrivals = arrivals.lock().expect("no panic").split_off(1);
    // They leave a window apart, and arrive as the machine lets them.
    let closest = arrivals.windows(4).map(|four| four[3] - four[0]).min().expect("twelve");
    assert!(closest > Duration::from_millis(500), "{closest:?}: {arrivals:?}");
}

/// A server of one's own may never send the end.
#[tokio::test]
async fn a_stream_without_its_end_counts_with_what_came_and_with_the_usage_that_it_told() {
    let delta = |name: &str| json!({"choices": [{"index": 0, "delta": {name: "abcd ".repeat(4_000)}}]});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 5_000, "completion_tokens": 5_000}});
    for (event, least, most) in
        [(delta("content"), 4_000, 7_000), (delta("reasoning_content"), 4_000, 7_000), (usage, 10_000, 10_000)]
    {
        for end in ["", "data: [DONE]\n\n"] {
            let text = format!("data: {event}\n\n{end}");
            let kind = [("content-type", "text/event-stream")];
            let served = served("100k tokens per 1h", "", move || answer(200, &kind, text.clone())).await;
            let got = prompt(&served, 16).header("x-paceline-retries", "0").send().await.expect("an answer");
            got.bytes().await.expect("whole");
            let used = used(&served).await;
            assert!((least..=most).contains(&used), "{end:?}: {used}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_made_already_counts_whole_though_its_client_hangs_up() {
    let more = Arc::new(Semaphore::new(0));
    let goes_on = Arc::clone(&more);
    let served = served("10k tokens per 1h", "", move || {
        let goes_on = Arc::clone(&goes_on);
        let first =
            futures_util::stream::iter([Ok::<_, io::Error>(r#"{"choices":[{"message":{"content":"w"#.to_owned())]);
        let rest = futures_util::stream::once(async move {
            goes_on.acquire().await.expect("it is open").forget();
            Ok(r#"ord"}}],"usage":{"prompt_tokens":10,"completion_tokens":890}}"#.to_owned())
        });
        answer(200, &[("content-type", "application/json")], Body::from_stream(first.chain(rest)))
    })
    .await;
    for number in 1..=2 {
        let mut got = prompt(&served, 5).send().await.expect("an answer");
        assert!(got.chunk().await.expect("a piece").is_some());
        drop(got);
        more.add_permits(1);
        assert_eq!(used(&served).await, 900 * number);
    }
}

#[tokio::test]
async fn each_call_that_leaves_counts_as_a_request_and_no_other_does() {
    let (api, calls) = counted(|_| answer(500, &[], "{}")).await;
    let settings = "retry = { max_retries = 9, base = \"1ms\", cap = \"2ms\" }";
    let served = Served::new(api, settings, Bounds::default());
    serve_to(&served, vec![client("ci", &["4 per 1h"])]);
    let got = prompt(&served, 5).send().await.expect("an answer");
    assert_eq!((got.status().as_u16(), calls.count()), (500, 4), "what the server said last");
    assert_eq!(used(&served).await, 4);
    let got = prompt(&served, 5).send().await.expect("an answer");
    assert_eq!((got.status().as_u16(), calls.count()), (429, 4));
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_refusal_counts_as_a_request_and_gives_its_tokens_back() {
    let settings = "retry = { max_retries = 0 }";
    for (status, expected) in [(400, 0), (429, 0), (500, 1_000)] {
        let served =
            served("10k tokens per 1h", settings, move || answer(status, &[], r#"{"error":{"message":"no"}}"#)).await;
        let got = prompt(&served, 1_000).header("x-paceline-deadline", "300ms").send().await.expect("an answer");
        assert_eq!(got.status().as_u16(), status);
        let used = used(&served).await;
        assert!((expected..expected + 50).contains(&used), "{status}: {used}");
    }
}

/// What would count for the client if the gateway were killed now.
fn kept(served: &Served) -> u64 {
    let clients = served.gateway.clients();
    let state = clients.states().map(|(_, state)| state.pacer.account).next().expect("one client");
    state.windows.iter().flat_map(|window| &window.taken).map(|taken| taken.units).sum()
}

/// Waiting requests were forgotten by no kill, and counted though they had never left.
#[tokio::test]
async fn of_requests_that_wait_nothing_is_kept() {
    let served = served("40 per 24h", "", || answer(200, &[], "{}")).await;
    let noted = Arc::new(AtomicU64::new(0));
    let notes = Arc::clone(&noted);
    served.gateway.clients().note_uses(move |_, cost| {
        notes.fetch_add(cost.get(&Dimension::Requests), Ordering::Relaxed);
    });
    let is_kept = || (kept(&served), noted.load(Ordering::Relaxed));
    prompt(&served, 5).send().await.expect("an answer").bytes().await.expect("whole");
    assert_eq!(is_kept(), (1, 1));
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(100), PauseCause::Program);
    let post = || served.post().header("x-paceline-key", "pk-ci").header("x-paceline-deadline", "200s").send();
    let waiting: Vec<_> = (0..35).map(|_| tokio::spawn(post())).collect();
    while served.limiter.snapshot().account.waiting < 35 {
        tokio::task::yield_now().await;
    }
    let counted = |served: &Served| {
        let clients = served.gateway.clients();
        let remaining = clients.limiters().map(|(_, limiter)| limiter.snapshot().account.quotas[0].remaining).next();
        remaining.expect("one client")
    };
    assert_eq!(counted(&served), 4, "they count for the next request");
    assert_eq!(is_kept(), (1, 1), "and a kill forgets them");
    served.limiter.resume(None);
    for answered in waiting {
        assert_eq!(answered.await.expect("it ends").expect("an answer").status().as_u16(), 200);
    }
    assert_eq!(is_kept(), (36, 36));
}

#[tokio::test]
async fn what_came_of_an_answer_that_goes_on_is_kept_and_counts_once() {
    let more = Arc::new(Semaphore::new(0));
    let goes_on = Arc::clone(&more);
    let event = json!({"choices": [{"index": 0, "delta": {"content": "word ".repeat(1_600)}}]});
    let first = format!("data: {event}\n\n");
    let served = served("1M tokens per 1h", "", move || {
        let (goes_on, first) = (Arc::clone(&goes_on), first.clone());
        let begins = futures_util::stream::iter([Ok::<_, io::Error>(first)]);
        let rest = futures_util::stream::once(async move {
            goes_on.acquire().await.expect("it is open").forget();
            Ok("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2400}}\n\ndata: [DONE]\n\n"
                .to_owned())
        });
        answer(200, &[("content-type", "text/event-stream")], Body::from_stream(begins.chain(rest)))
    })
    .await;
    for number in 0..3 {
        let mut got = served.post().header("x-paceline-key", "pk-ci").send().await.expect("an answer");
        assert!(got.chunk().await.expect("a piece").is_some());
        let clients = served.gateway.clients();
        let before = 2_410 * number;
        while !(2_000..2_420).contains(&(kept(&served) - before)) {
            clients.limits_change().await;
        }
        more.add_permits(1);
        while got.chunk().await.expect("a piece").is_some() {}
        assert_eq!(used(&served).await, before + 2_410);
        while kept(&served) != before + 2_410 {
            clients.limits_change().await;
        }
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_makes_a_prompt_a_call_without_tokens() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 890}}).to_string();
    for path in ["/models/chat/completions", "/models/chat/completion%73", "/models/chat/%2563ompletions/"] {
        let usage = usage.clone();
        let served = served("10k tokens per 1h", "", move || answer(200, &[], usage.clone())).await;
        let request = served.client.post(served.url.clone() + path).header("x-paceline-key", "pk-ci");
        let got = request.body(r#"{"model":"m","messages":[]}"#).send().await.expect("an answer");
        assert_eq!(got.status().as_u16(), 200);
        drop(got.bytes().await);
        assert_eq!(used(&served).await, 900, "{path}");
    }
}

#[tokio::test]
async fn a_stream_that_is_given_up_counts_with_the_prompt_that_its_server_told() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 5_000, "output_tokens": 1}}});
    let first = format!("event: message_start\ndata: {start}\n\n");
    let served = served("100k tokens per 1h", "provider = \"anthropic\"", move || {
        let begins = futures_util::stream::iter([Ok::<_, io::Error>(first.clone())]);
        answer(
            200,
            &[("content-type", "text/event-stream")],
            Body::from_stream(begins.chain(futures_util::stream::pending())),
        )
    })
    .await;
    let body =
        json!({"model": "m", "max_tokens": 5, "stream": true, "messages": [{"content": [{"type": "document"}]}]});
    let request = served.client.post(format!("{}/v1/messages", served.url)).header("x-paceline-key", "pk-ci");
    let mut got = request.body(body.to_string()).send().await.expect("an answer");
    assert!(got.chunk().await.expect("a piece").is_some());
    drop(got);
    let used = used(&served).await;
    assert!((5_000..5_100).contains(&used), "{used}");
}

/// All keys read the decisions: one with a prompt in it is for its client alone, also where the server has it in its code.
#[tokio::test]
async fn what_a_server_says_of_a_request_is_told_to_its_client_alone() {
    for (error, told) in [
        (r#"{"message":"Invalid value: 'Jane Doe, 42'","code":"invalid_value"}"#, "invalid_value"),
        (r#"{"message":"no","type":"Jane Doe is no name","code":"Invalid value: 'Jane Doe'"}"#, "status 400"),
    ] {
        let body = format!("{{\"error\":{error}}}");
        let served = served("50 per 1h", "", move || answer(400, &[], body.clone())).await;
        let refused = prompt(&served, 5).send().await.expect("an answer").text().await.expect("whole");
        assert!(refused.contains("Jane Doe"), "{refused}");
        let url = served.origin() + "/api/state";
        let state = served.client.get(url).header("x-paceline-key", "pk-ci").send().await.expect("an answer");
        let state = state.text().await.expect("whole");
        assert!(state.contains(told) && !state.contains("Jane Doe"), "{state}");
    }
}

/// One who bills teams by what is shown would take the others for free.
#[tokio::test]
async fn what_a_client_is_shown_to_cost_has_the_calls_of_which_no_answer_tells_their_use() {
    let (api, _) = counted(|number| match number % 5 {
        0 => answer(200, &[], r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#),
        1 => answer(200, &[], r#"{"choices":[{"index":0,"message":{"content":"Fine, thanks."}}]}"#),
        2 => answer(200, &[], r#"{"choices":[{"message":{"content":"Fine."}}],"usage":{"prompt_tokens":7}}"#),
        3 => answer(502, &[], "<html>Bad gateway</html>"),
        _ => answer(400, &[], r#"{"error":{"message":"no"}}"#),
    })
    .await;
    let settings = "price = \"in=1000000,out=1000000\"\nretry = { max_retries = 0 }";
    let served = Served::new(api, settings, Bounds::default());
    serve_to(&served, vec![client("ci", &["1M tokens per 1h"]), client("free", &[])]);
    for key in ["pk-ci", "pk-free"] {
        for _ in 0..5 {
            let body = json!({"model": "m", "max_tokens": 50, "messages": []}).to_string();
            served
                .post()
                .header("x-paceline-key", key)
                .body(body)
                .send()
                .await
                .expect("an answer")
                .bytes()
                .await
                .unwrap();
        }
    }
    let used = used(&served).await;
    let state = served.client.get(format!("{}/api/state", served.origin())).header("x-paceline-key", "pk-ci").send();
    let state: serde_json::Value = state.await.expect("an answer").json().await.expect("JSON");
    let rows = state["clients"].as_array().expect("rows");
    for row in rows {
        let [tokens_in, tokens_out, estimated] =
            ["tokens_in", "tokens_out", "tokens_estimated"].map(|name| row[name].as_u64().expect("a count"));
        assert_eq!(tokens_in + tokens_out, used, "what the limit counts: {row}");
        assert_eq!(estimated, used - 7 - 5 - 7, "of it all but what the answers told: {row}");
        let [cost, of_it] = ["cost", "cost_estimated"].map(|name| row[name].as_f64().expect("a sum"));
        assert_eq!([cost, of_it].map(|sum| sum as u64), [used, estimated], "{row}");
        assert!(estimated > 100, "the bounds of two of them: {row}");
    }
    assert_eq!(rows.len(), 2, "{state}");
    let metrics = served
        .client
        .get(format!("{}/metrics", served.origin()))
        .header("x-paceline-key", "pk-ci")
        .send()
        .await
        .expect("an answer");
    let metrics = metrics.text().await.expect("a page");
    let sum = |name: &str| -> f64 {
        let of_it = metrics.lines().filter(|line| line.starts_with(name));
        of_it.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    assert_eq!(sum("paceline_tokens_total") as u64, 2 * 19, "{metrics}");
    assert_eq!(sum("paceline_tokens_estimated_total") as u64, 2 * (used - 19));
}
