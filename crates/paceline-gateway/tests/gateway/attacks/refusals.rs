//! Refusals of the key, the account and its credit that clients ask for on purpose, and those that are true.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::Request;
use http::Method;
use paceline_gateway::Bounds;

use crate::OK;
use crate::support::{Served, answer, client, serve_to, upstream};

const REFUSALS: [(u16, &str); 3] = [
    (401, r#"{"error":{"message":"Missing scopes: api.management.read","code":"missing_scope"}}"#),
    (402, r#"{"error":{"message":"Payment required"}}"#),
    (429, r#"{"error":{"message":"no credit","code":"insufficient_quota"}}"#),
];

/// An API that refuses an administrator's paths, what asks for it by a header, and once its key is revoked all but its models.
struct Api {
    served: Served,
    revoked: Arc<AtomicBool>,
    /// So many refusals were asked of it.
    refused: Arc<AtomicUsize>,
}

impl Api {
    async fn new(settings: &str, (status, body): (u16, &'static str)) -> Self {
        let (revoked, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_revoked, counts) = (Arc::clone(&revoked), Arc::clone(&refused));
        let at = upstream(move |request: Request| {
            let path = request.uri().path();
            let is_odd = path.contains("organization") || request.headers().contains_key("x-odd");
            let refuses = is_odd || (is_revoked.load(Ordering::SeqCst) && !path.ends_with("/models"));
            counts.fetch_add(usize::from(refuses), Ordering::SeqCst);
            std::future::ready(if refuses { answer(status, &[], body) } else { answer(200, &[], OK) })
        });
        let served = Served::new(at.await, settings, Bounds::default());
        serve_to(&served, ["atk", "atk2", "atk3", "victim", "ci", "web"].map(|name| client(name, &[])).into());
        Self { served, revoked, refused }
    }

    async fn get(&self, key: &str, path: &str) -> u16 {
        self.send(key, Method::GET, path, false).await
    }

    async fn chat(&self, key: &str) -> u16 {
        self.send(key, Method::POST, "/v1/chat/completions", false).await
    }

    /// The same with a header of its own, for which it alone is refused.
    async fn odd_chat(&self, key: &str) -> u16 {
        self.send(key, Method::POST, "/v1/chat/completions", true).await
    }

    async fn send(&self, key: &str, method: Method, path: &str, is_odd: bool) -> u16 {
        let request = self.served.client.request(method.clone(), self.served.url.clone() + path);
        let request = request.header("x-paceline-key", format!("pk-{key}")).header("x-paceline-deadline", "1s");
        let request = if is_odd { request.header("x-odd", "1") } else { request };
        let body = if method == Method::POST { r#"{"model":"m","messages":[]}"# } else { "" };
        request.body(body).send().await.expect("an answer").status().as_u16()
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// The moment is over for which two refusals hold the others.
    fn later(&self) {
        self.served.limiter.resume(None);
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn refusals_of_a_path_that_never_answered_stop_no_other() {
    for settings in ["", "provider = \"generic\""] {
        for refusal in REFUSALS {
            let api = Api::new(settings, refusal).await;
            assert_eq!(api.chat("victim").await, 200);
            for round in 0..3 {
                for key in ["atk", "atk2", "atk3"] {
                    api.get(key, &format!("/v1/organization/x{round}")).await;
                }
                assert_eq!(api.chat("victim").await, 200, "{settings} {refusal:?}");
            }
        }
    }
}

#[tokio::test]
async fn refusals_that_two_clients_ask_for_hold_the_others_for_a_moment_and_once() {
    for settings in ["", "provider = \"generic\""] {
        // A 402 of an API that is not known is one of the request.
        for refusal in REFUSALS.into_iter().filter(|(status, _)| settings.is_empty() || *status != 402) {
            let api = Api::new(settings, refusal).await;
            assert_eq!(api.chat("victim").await, 200);
            for key in ["atk", "atk2"] {
                assert_eq!(api.odd_chat(key).await, refusal.0);
            }
            assert_eq!(api.chat("victim").await, 429, "for ten seconds: {settings} {refusal:?}");
            api.later();
            assert_eq!(api.chat("victim").await, 200, "{settings} {refusal:?}");
            for _ in 0..3 {
                for key in ["atk", "atk2"] {
                    assert_eq!(api.odd_chat(key).await, 429, "it stays away from there for five minutes");
                }
                assert_eq!(api.chat("victim").await, 200, "{settings} {refusal:?}");
            }
            assert_eq!(api.refused(), 2);
        }
    }
}

#[tokio::test]
async fn a_revoked_key_stops_the_upstream_after_three_calls() {
    for refusal in &REFUSALS[..2] {
        let api = Api::new("", *refusal).await;
        for key in ["ci", "web", "victim"] {
            assert_eq!(api.chat(key).await, 200);
        }
        api.revoked.store(true, Ordering::SeqCst);
        for key in ["ci", "ci", "web"] {
            assert_eq!(api.chat(key).await, refusal.0);
        }
        api.later();
        assert_eq!((api.chat("ci").await, api.chat("web").await), (429, 429), "neither tests it");
        assert_eq!(api.chat("victim").await, refusal.0);
        for key in ["atk", "atk2", "victim"] {
            assert_eq!(api.chat(key).await, 503, "a person must act");
            assert_eq!(api.get(key, "/v1/models").await, 503, "the account is stopped");
        }
        assert_eq!(api.refused(), 4);
    }
}

#[tokio::test]
async fn what_both_of_two_clients_are_refused_needs_no_third() {
    let api = Api::new("", REFUSALS[0]).await;
    serve_to(&api.served, ["ci", "web"].map(|name| client(name, &[])).into());
    assert_eq!((api.chat("ci").await, api.chat("web").await), (200, 200));
    api.revoked.store(true, Ordering::SeqCst);
    assert_eq!((api.chat("ci").await, api.chat("web").await), (401, 401));
    assert_eq!((api.chat("ci").await, api.chat("web").await, api.refused()), (503, 503, 2), "a person must act");
}

#[tokio::test]
async fn what_the_provider_says_of_the_calls_of_some_clients_no_other_reads() {
    let api = Api::new("", REFUSALS[0]).await;
    serve_to(&api.served, ["ci", "web"].map(|name| client(name, &[])).into());
    assert_eq!((api.chat("ci").await, api.chat("web").await), (200, 200));
    api.revoked.store(true, Ordering::SeqCst);
    assert_eq!((api.chat("ci").await, api.chat("web").await, api.chat("ci").await), (401, 401, 503));
    let shown = async |url: String| {
        let answer = api.served.client.get(url).header("x-paceline-key", "pk-ci").send().await.expect("an answer");
        answer.text().await.expect("a text")
    };
    for url in [api.served.url.clone() + "/v1/models", api.served.origin() + "/api/state"] {
        let text = shown(url).await;
        assert!(text.contains("refused the key or the account (401)") && !text.contains("Missing scopes"), "{text}");
    }
}

/// Nor where the server lacks capacity, fails, or has had too much: a proxy may repeat a prompt in any of these.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn words_of_a_server_that_has_trouble_are_for_the_client_that_asked() {
    for status in [429, 500, 503, 529] {
        let api = Api::new("", (status, r#"{"error":{"message":"no room for: my patient John Doe"}}"#)).await;
        api.revoked.store(true, Ordering::SeqCst);
        for _ in 0..4 {
            assert!(api.chat("atk").await > 400);
        }
        for url in ["/api/state", "/readyz", "/metrics"] {
            let url = api.served.origin() + url;
            let answer = api.served.client.get(url).header("x-paceline-key", "pk-web").send().await.expect("an answer");
            let text = answer.text().await.expect("a text");
            assert!(!text.contains("John Doe"), "{status}: {text}");
        }
    }
}

/// A client that passes on purpose, by a path that needs no key, speaks for no other path.
#[tokio::test]
async fn a_banned_key_gets_few_calls_though_a_client_passes_elsewhere_on_purpose() {
    let api = Api::new("", REFUSALS[0]).await;
    for key in ["ci", "web", "victim"] {
        assert_eq!(api.chat(key).await, 200);
    }
    api.revoked.store(true, Ordering::SeqCst);
    for round in 0..20 {
        for key in ["ci", "web", "victim"] {
            api.chat(key).await;
            // What holds all for a moment is over, if it is not stopped.
            if round == 0 && key == "web" {
                api.later();
            }
            api.get("atk3", "/v1/models").await;
        }
    }
    assert_eq!(api.refused(), 3, "the prompts are stopped");
    assert_eq!(api.chat("atk2").await, 503);
}
