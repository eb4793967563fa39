//! Waits of a day that one client is told, or two: whom they hold, and for how long.

use std::time::Duration;

use axum::extract::Request;
use paceline_gateway::Bounds;
use serde_json::Value;

use crate::OK;
use crate::support::{Served, answer, client, serve_to, upstream};

const SLOW_DOWN: &str = r#"{"error":{"message":"slow down","code":"x"}}"#;

async fn served(settings: &str) -> Served {
    let at = upstream(|request: Request| async move {
        let day = [("retry-after", "86400")];
        match request.headers().get("x-told").map(|told| told.as_bytes()) {
            Some(b"429") => answer(429, &day, SLOW_DOWN),
            Some(b"503") => answer(503, &day, SLOW_DOWN),
            Some(b"quota") => answer(429, &[], r#"{"error":{"message":"no credit","code":"insufficient_quota"}}"#),
            _ => answer(200, &[], OK),
        }
    });
    let served = Served::new(at.await, settings, Bounds::default());
    serve_to(&served, ["big", "other", "third", "last"].map(|name| client(name, &[])).into());
    served
}

/// The status, the calls that were made, and the message.
async fn post(served: &Served, key: &str, model: &str, told: &str) -> (u16, String, String) {
    let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
    let request = served.post().body(body).header("x-paceline-key", format!("pk-{key}")).header("x-told", told);
    let got = request.send().await.expect("an answer");
    let (status, calls) =
        (got.status().as_u16(), got.headers()["x-paceline-attempts"].to_str().expect("a number").to_owned());
    let body: Value = got.json().await.expect("JSON");
    (status, calls, body["error"]["message"].as_str().unwrap_or_default().to_owned())
}

fn is_a_day(message: &str) -> bool {
    message.contains("the request must wait 1d 0h more") || message.contains("the request must wait 23h 59m")
}

#[tokio::test]
async fn a_wait_of_a_day_holds_the_client_that_was_told_it_alone_until_another_is_told_so() {
    for (told, status) in [("429", 429), ("503", 503)] {
        let served = served("").await;
        let refused = post(&served, "big", "m", told).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, "1"), "{told}");
        assert_eq!(post(&served, "other", "m", "well").await.0, 200, "no other client waits for that");
        let (status, calls, message) = post(&served, "big", "m", "well").await;
        assert_eq!((status, calls.as_str()), (429, "0"), "it would only be refused again: {message}");
        assert!(is_a_day(&message), "{message}");
        assert_eq!(post(&served, "big", "another", "well").await.0, 200, "another scope");
        // A success of another one in between speaks against the first.
        for key in ["other", "third"] {
            assert_eq!(post(&served, key, "m", told).await.1, "1", "{told}");
        }
        let (status, calls, message) = post(&served, "last", "m", "well").await;
        assert_eq!((status, calls.as_str()), (429, "0"), "two clients are believed: {message}");
        assert!(message.contains("must wait 5m 00s more") || message.contains("must wait 4m 59s more"), "{message}");
    }
}

#[tokio::test]
async fn two_keys_of_one_program_hold_the_others_until_a_call_tests_it_and_cannot_do_so_again() {
    for told in ["429", "503"] {
        let served = served("").await;
        for key in ["big", "other"] {
            post(&served, key, "m", told).await;
        }
        assert_eq!(post(&served, "last", "m", "well").await.0, 429);
        // The five minutes are over.
        let until = served.limiter.now() + Duration::from_secs(1);
        served.limiter.resume(None);
        served.limiter.resume(Some(&served.limiter.scope("/v1/chat/completions m")));
        assert!(served.limiter.now() < until);
        for key in ["big", "other"] {
            let (status, calls, message) = post(&served, key, "m", told).await;
            assert_eq!((status, calls.as_str(), is_a_day(&message)), (429, "0", true), "{told}: {message}");
        }
        assert_eq!(post(&served, "last", "m", "well").await.0, 200, "{told}");
        assert_eq!(post(&served, "third", "m", "well").await.0, 200, "{told}");
    }
}

/// A quota without an end is held by the limiter's own guess, and no one stays away.
#[tokio::test]
async fn two_keys_that_another_client_speaks_against_are_not_believed_again() {
    let served = served("").await;
    let resume = || {
        served.limiter.resume(None);
        served.limiter.resume(Some(&served.limiter.scope("/v1/chat/completions m")));
    };
    for key in ["big", "other"] {
        post(&served, key, "m", "quota").await;
    }
    assert_eq!(post(&served, "last", "m", "well").await.1, "0", "two are believed at first");
    resume();
    assert_eq!(post(&served, "last", "m", "well").await.0, 200);
    for _ in 0..3 {
        for key in ["big", "other"] {
            assert_eq!(post(&served, key, "m", "quota").await.1, "1");
        }
        assert_eq!(post(&served, "last", "m", "well").await.0, 200, "they hold no one any more");
    }
}

#[tokio::test]
async fn a_client_that_is_told_to_wait_in_very_many_scopes_stays_away_from_all() {
    let served = served("").await;
    for number in 0..101 {
        assert_eq!(post(&served, "big", &format!("m{number}"), "503").await.1, "1");
    }
    let (status, calls, message) = post(&served, "big", "fresh", "well").await;
    assert_eq!((status, calls.as_str(), is_a_day(&message)), (429, "0", true), "{message}");
    assert_eq!(post(&served, "other", "fresh", "well").await.0, 200);
    let (_, calls, _) = post(&served, "big", "m0", "well").await;
    assert_eq!(calls, "0", "no earlier one is forgotten for a later one");
}

#[tokio::test]
async fn a_fallback_takes_the_place_of_an_upstream_that_tells_one_client_to_wait_for_a_day() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("answer.json");
    std::fs::write(&file, "{}").expect("writable");
    for told in ["429", "503"] {
        let served = served(&format!("fallback_to = [\"static:203:{}\"]", file.display())).await;
        assert_eq!(post(&served, "big", "m", told).await.0, 203, "{told}");
    }
}
