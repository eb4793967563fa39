//! Requests that wait for a limit of their client's key: what they are told, where they are shown, and that nothing stays.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use paceline::Limiter;
use paceline_gateway::{Bounds, Clients};
use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::support::{Served, answer, client, counted, serve_to, upstream};
use crate::{OK, bounds};

fn keyed(request: RequestBuilder) -> RequestBuilder {
    request.header("x-paceline-key", "pk-ci")
}

async fn get(served: &Served, path: &str) -> String {
    keyed(served.client.get(served.origin() + path)).send().await.expect("an answer").text().await.expect("a text")
}

async fn state(served: &Served) -> Value {
    serde_json::from_str(&get(served, "/api/state").await).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_counted_with_the_limit_and_until_when_and_go_with_their_clients() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["1 per 20s"])]);
    assert_eq!(keyed(served.post()).send().await.unwrap().status().as_u16(), 200);
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(keyed(served.post()).send())).collect();
    let held = async |count: u64| loop {
        let state = state(&served).await;
        // Its parts are of slightly different moments.
        if [&state["clients"][0]["held"], &state["upstreams"][0]["account"]["waiting"]] == [&Value::from(count); 2] {
            return state;
        }
    };
    let shown = held(2).await;
    let row = &shown["clients"][0];
    assert_eq!((&row["client"], &row["waiting"]), (&"ci".into(), &2.into()), "{row}");
    assert_eq!(row["waits_for"], "the limit of this key, 1 request per 20s");
    assert!(row["until"].is_string(), "{row}");
    let left = serde_json::json!([{"dimension": "requests", "limit": 1, "remaining": 0, "window_s": 20.0}]);
    assert_eq!(row["limits"], left, "what is left of its limits");
    let account = &shown["upstreams"][0]["account"];
    assert_eq!((&account["waiting"], &account["held_by_keys"]), (&2.into(), &2.into()), "{account}");
    assert_eq!(account["explain"], "requests of the key ci wait for the limit of this key, 1 request per 20s");
    let page = get(&served, "/metrics").await;
    assert!(page.contains(r#"paceline_waiting_for_key{client="ci",upstream="api"} 2"#), "{page}");

    let refused = keyed(served.post()).header("x-paceline-deadline", "25s").send().await.unwrap();
    let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let body: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert!((40..=60).contains(&after), "behind two of 20 s each: {after} {body}");
    assert_eq!(body["error"]["limit"], "the limit of this key, 1 request per 20s");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("more for the limit of this key, 1 request per 20s, and its deadline"), "{message}");

    for one in waiting {
        one.abort();
        let _ = one.await;
    }
    assert_eq!(held(0).await["upstreams"][0]["account"]["waiting"], 0);
    let known = served.gateway.clients();
    assert!(known.limiters().all(|(_, limiter)| limiter.snapshot().account.waiting == 0));
    assert_eq!((calls.count(), served.limiter.snapshot().account.waiting), (1, 0));
}

/// An API that says of each call that it came, and answers as many as may go.
fn holds(go: &Arc<Semaphore>, came: &Arc<Semaphore>) -> impl Future<Output = SocketAddr> + use<> {
    let (go, came) = (Arc::clone(go), Arc::clone(came));
    upstream(move |_: Request| {
        let (go, came) = (Arc::clone(&go), Arc::clone(&came));
        async move {
            came.add_permits(1);
            go.acquire().await.expect("it stays open").forget();
            answer(200, &[], OK)
        }
    })
}

/// One waits for a limit of its key, one for a limit of the upstream; the key's other request is in flight.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_are_refused_once_their_key_is_revoked() {
    let (go, calls) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let api = holds(&go, &calls);
    let served = Served::new(api.await, "limits = ['2 per 1h']", Bounds::default());
    serve_to(&served, vec![client("ci", &[]), client("other", &["1 per 1h"])]);
    let send = |key: &str| {
        let request = served.post().header("x-paceline-key", key).header("x-paceline-deadline", "7200s");
        tokio::spawn(request.send())
    };
    let in_flight = [send("pk-ci"), send("pk-other")];
    calls.acquire_many(2).await.expect("both have left").forget();
    let waiting = [send("pk-ci"), send("pk-other")];
    let known = served.gateway.clients();
    let waits = |limiter: &Limiter| limiter.snapshot().account.waiting == 1;
    while !(waits(&served.limiter) && known.limiters().any(|(_, limiter)| waits(limiter))) {
        tokio::task::yield_now().await;
    }
    let again = Clients::with_keys(vec![client("third", &[])], &known).expect("limits");
    served.gateway.replace_clients(again);
    for one in waiting {
        let refused = one.await.expect("no panic").expect("an answer");
        assert_eq!(refused.status().as_u16(), 401);
        assert!(refused.text().await.expect("a text").contains("the key was revoked while the request waited"));
    }
    go.add_permits(2);
    for one in in_flight {
        assert_eq!(
            one.await.expect("no panic").expect("an answer").status().as_u16(),
            200,
            "what is in flight is answered"
        );
    }
    assert_eq!(calls.available_permits(), 0, "nothing else was sent");
}

/// Of eight places one client has seven at the most, though it waits for more, and the eighth is another's at once. Once that has
/// gone, it goes on with seven.
#[tokio::test(flavor = "multi_thread")]
async fn one_client_leaves_a_place_in_flight_to_the_others() {
    let (go, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let api = holds(&go, &came);
    let served = Served::new(api.await, "pace = \"fixed\"\nconcurrency = 8", Bounds::default());
    serve_to(&served, vec![client("ci", &[]), client("other", &[])]);
    let send = |key: &str| tokio::spawn(served.post().header("x-paceline-key", key).send());
    let of_one: Vec<_> = (0..20).map(|_| send("pk-ci")).collect();
    came.acquire_many(7).await.expect("seven have left").forget();
    while !get(&served, "/api/state").await.contains("requests of the key ci wait for its share of the calls in flight")
    {
        tokio::task::yield_now().await;
    }
    let other = send("pk-other");
    came.acquire().await.expect("it has left beside them").forget();
    assert_eq!(came.available_permits(), 0, "the first client has seven");
    go.add_permits(21);
    assert_eq!(other.await.expect("no panic").expect("an answer").status().as_u16(), 200);
    for one in of_one {
        assert_eq!(one.await.expect("no panic").expect("an answer").status().as_u16(), 200);
    }
    assert_eq!(came.available_permits(), 13, "each was sent once");
}

/// Of many requests without a bound that come at once, how many tokens were answered.
async fn tokens_of_a_crowd(settings: &str, key: Option<&str>) -> u64 {
    const ANSWER: &str =
        r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":190}}"#;
    let api = upstream(|_: Request| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        answer(200, &[], ANSWER)
    });
    let served = Served::new(api.await, settings, Bounds::default());
    key.into_iter().for_each(|limit| serve_to(&served, vec![client("ci", &[limit])]));
    let all: Vec<_> = (0..40).map(|_| tokio::spawn(keyed(served.post()).send())).collect();
    let mut passed = 0;
    for one in all {
        let got = one.await.expect("no panic").expect("an answer");
        passed += u64::from(got.status() == 200);
        drop(got.bytes().await);
    }
    200 * passed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_without_bounds_keeps_to_the_tokens_of_its_key_and_of_its_upstream() {
    for tokens in [
        tokens_of_a_crowd("", Some("1000 tokens per 1h")).await,
        tokens_of_a_crowd("limits = ['1000 tokens per 1h']", None).await,
        // Where the provider reserves nothing for answers, the key does.
        tokens_of_a_crowd("provider = \"anthropic\"", Some("1000 tokens per 1h")).await,
    ] {
        assert!((400..=1_200).contains(&tokens), "{tokens}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_to_read_counts_under_limits_on_tokens_by_its_length() {
    let padded = format!(r#"{{"model":"m","max_tokens":5{}}}"#, " ".repeat(100_000));
    for (settings, key) in [("", Some("1000 tokens per 1h")), ("limits = ['1000 tokens per 1h']", None)] {
        let (api, calls) = counted(|_| answer(200, &[], OK)).await;
        let served = Served::new(api, settings, bounds(|bounds| bounds.largest_body = 1_000));
        key.into_iter().for_each(|limit| serve_to(&served, vec![client("ci", &[limit])]));
        let send = |path: &str| keyed(served.client.post(served.url.clone() + path)).body(padded.clone()).send();
        // A key with a limit on tokens may send no model what is not read.
        let refused = if key.is_some() { 403 } else { 413 };
        assert_eq!(send("/v1/chat/completions").await.unwrap().status().as_u16(), refused);
        assert_eq!(calls.count(), 0);
        assert_eq!(send("/v1/images/edits").await.unwrap().status().as_u16(), 200, "no model reads it");
    }
}
