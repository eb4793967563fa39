//! The mock over real HTTP on loopback. Latencies are zero, and no test waits for a clock.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use paceline_core::{Class, LimitReport, Timestamp};
use paceline_model::{Admission, Latency, ModelLimit, Overload};
use paceline_providers::{Answer, Provider};
use serde_json::{Value, json};

use super::call::Call;
use super::*;

const PROMPT: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hello there"}],"max_tokens":6}"#;

struct Client {
    server: MockServer,
    http: reqwest::Client,
}

impl Client {
    async fn new(mut config: MockConfig) -> Self {
        // The crypto provider may have been installed by another test of this process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if config.provider.latency == ProviderConfig::default().latency {
            config.provider.latency = Latency::Uniform { low: Duration::ZERO, high: Duration::ZERO };
        }
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { server: spawn(config).await.expect("a free port"), http }
    }

    async fn with_limit(limit: impl Into<ModelLimit>, hints: Hints) -> Self {
        let provider = ProviderConfig { limits: vec![limit.into()], ..ProviderConfig::default() };
        Self::new(MockConfig { provider, hints, ..MockConfig::default() }).await
    }

    async fn post(&self, path: &str, body: &str) -> reqwest::Response {
        let url = format!("{}{path}", self.server.url());
        self.http.post(url).body(body.to_owned()).send().await.expect("an answer")
    }

    async fn stats(&self) -> Value {
        let url = format!("{}/stats", self.server.url());
        json_of(self.http.get(url).send().await.expect("an answer")).await
    }
}

async fn json_of(response: reqwest::Response) -> Value {
    serde_json::from_slice(&response.bytes().await.expect("a body")).expect("JSON")
}

fn header(response: &reqwest::Response, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().expect("ASCII").to_owned())
}

#[tokio::test]
async fn every_endpoint_answers_in_its_own_shape_with_and_without_v1() {
    let client = Client::new(MockConfig::default()).await;
    let embeddings = r#"{"input":["abcd","efgh"]}"#;
    for (path, body, pointer, value) in [
        ("chat/completions", PROMPT, "/usage/total_tokens", json!(10)),
        ("chat/completions", PROMPT, "/choices/0/finish_reason", json!("length")),
        ("completions", r#"{"prompt":"abcd"}"#, "/object", json!("text_completion")),
        ("embeddings", embeddings, "/data/1/index", json!(1)),
        ("embeddings", embeddings, "/usage/prompt_tokens", json!(2)),
        ("responses", r#"{"input":"abcd","max_output_tokens":3}"#, "/usage/output_tokens", json!(3)),
        ("messages", PROMPT, "/usage/input_tokens", json!(4)),
        ("messages", PROMPT, "/stop_reason", json!("max_tokens")),
        ("anything/else", "{}", "/object", json!("mock.answer")),
    ] {
        for prefix in ["/v1/", "/"] {
            let response = client.post(&format!("{prefix}{path}"), body).await;
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(json_of(response).await.pointer(pointer), Some(&value), "{path} {pointer}");
        }
    }
}

#[tokio::test]
async fn streams_end_with_the_usage_and_count_as_answered() {
    let client = Client::new(MockConfig::default()).await;
    for (path, extra, ends) in [
        ("/v1/chat/completions", r#""stream_options":{"include_usage":true},"#, "data: [DONE]\n\n"),
        ("/v1/messages", "", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
    ] {
        let body = PROMPT.replacen('{', &format!("{{\"stream\":true,{extra}"), 1);
        let response = client.post(path, &body).await;
        assert_eq!(header(&response, "content-type").as_deref(), Some("text/event-stream"));
        let text = response.text().await.expect("a stream");
        assert!(text.ends_with(ends), "{path}: {text}");
        assert!(text.contains(r#""completion_tokens":6"#) || text.contains(r#""output_tokens":6"#), "{path}: {text}");
    }
    let stats = client.stats().await;
    assert_eq!((&stats["ok"], &stats["in_flight"], &stats["abandoned"]), (&json!(2), &json!(0), &json!(0)));
}

/// Two an hour, so that no token comes back during the test.
fn two_an_hour() -> Quota {
    let shape = QuotaShape::Bucket { burst: 2 };
    Quota { dimension: Dimension::Requests, limit: 2, window: Duration::from_secs(3_600), shape }
}

#[tokio::test]
async fn a_refusal_says_when_and_counts_in_stats() {
    let client = Client::with_limit(two_an_hour(), Hints::Honest).await;
    let first = client.post("/v1/chat/completions", PROMPT).await;
    assert_eq!(header(&first, "x-ratelimit-limit-requests").as_deref(), Some("2"));
    assert_eq!(header(&first, "x-ratelimit-remaining-requests").as_deref(), Some("1"));
    assert_eq!(header(&first, "x-ratelimit-reset-requests").as_deref(), Some("30m0s"));
    assert_eq!(client.post("/v1/chat/completions", PROMPT).await.status(), 200);
    let third = client.post("/v1/chat/completions", "{}").await;
    assert_eq!((third.status().as_u16(), header(&third, "retry-after").as_deref()), (429, Some("1800")));
    let millis: f64 = header(&third, "retry-after-ms").expect("a wait").parse().expect("a number");
    assert!((1_700_000.0..=1_800_000.0).contains(&millis), "{millis}");
    assert_eq!(client.post("/v1/chat/completions", "no object").await.status(), 400);
    assert_eq!(
        client.stats().await,
        json!({
            "calls": 4, "ok": 2, "throttled": 1, "overloaded": 0, "faults": 0, "invalid": 1, "abandoned": 0,
            "in_flight": 0, "in_flight_peak": 1, "items": {"seen": 3, "repeated": 1},
        })
    );
}

/// The mock adds nothing to the model that simulations use: the same arrivals get the same answers.
#[tokio::test]
async fn it_answers_like_the_model_in_virtual_time() {
    let shapes = [QuotaShape::Bucket { burst: 12 }, QuotaShape::Fixed, QuotaShape::Sliding];
    for (seed, shape) in (5..).zip(shapes) {
        let window = Duration::from_secs(3_600);
        let limit = Quota { dimension: Dimension::Requests, limit: 12, window, shape };
        let latency = Latency::Uniform { low: Duration::ZERO, high: Duration::ZERO };
        let provider = ProviderConfig { limits: vec![limit.into()], fault: 0.4, latency, ..ProviderConfig::default() };
        let mut model = paceline_model::ProviderModel::new(provider.clone(), seed).expect("a sound provider");
        let client = Client::new(MockConfig { provider, seed, ..MockConfig::default() }).await;
        let (mut announced, mut answered) = (Vec::new(), Vec::new());
        for _ in 0..16 {
            let now = paceline_core::Instant::ZERO;
            announced.push(match model.arrive(now, &paceline_core::Cost::request()) {
                Admission::Admitted(service) => {
                    model.finish(now);
                    if service.fault { 500 } else { 200 }
                }
                Admission::Refused(_) => 429,
            });
            answered.push(client.post("/v1/chat/completions", PROMPT).await.status().as_u16());
        }
        assert_eq!(answered, announced, "{shape:?}");
        assert!([200, 429, 500].iter().all(|status| announced.contains(status)), "{announced:?}");
    }
}

#[tokio::test]
async fn hints_can_be_absent() {
    let client = Client::with_limit(two_an_hour(), Hints::None).await;
    for status in [200, 200, 429] {
        let response = client.post("/v1/chat/completions", PROMPT).await;
        assert_eq!(response.status(), status);
        let names: Vec<&str> = response.headers().keys().map(http::HeaderName::as_str).collect();
        assert!(!names.iter().any(|name| name.contains("ratelimit") || name.contains("retry")), "{names:?}");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_place() {
    let hour = Duration::from_secs(3_600);
    let latency = Latency::Uniform { low: hour, high: hour };
    let provider = ProviderConfig { concurrency: Some(1), latency, ..ProviderConfig::default() };
    let client = Client::new(MockConfig { provider, ..MockConfig::default() }).await;
    let url = format!("{}/v1/chat/completions", client.server.url());
    let call = tokio::spawn(client.http.post(url).body(PROMPT).send());
    while client.stats().await["in_flight"] == 0 {}
    assert_eq!(client.post("/v1/chat/completions", PROMPT).await.status(), 429);
    call.abort();
    while client.stats().await["in_flight"] == 1 {}
    let stats = client.stats().await;
    assert_eq!((&stats["abandoned"], &stats["throttled"], &stats["ok"]), (&json!(1), &json!(1), &json!(0)));
}

#[tokio::test]
async fn faults_and_overload_speak_the_dialect() {
    for (dialect, path, kind) in [
        (Dialect(Provider::OpenAi), "/error/type", "server_error"),
        (Dialect(Provider::Anthropic), "/error/type", "api_error"),
        (Dialect(Provider::Anthropic), "/request_id", "req_mock_1"),
    ] {
        let provider = ProviderConfig { fault: 1.0, ..ProviderConfig::default() };
        let client = Client::new(MockConfig { provider, dialect, ..MockConfig::default() }).await;
        let response = client.post("/v1/messages", PROMPT).await;
        assert_eq!(response.status(), 500);
        assert_eq!(json_of(response).await.pointer(path), Some(&json!(kind)));
        assert_eq!(client.stats().await["faults"], 1);
    }
}

#[test]
fn a_stream_collects_to_the_object_that_is_answered_without() {
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        for body in [
            json!({"model": "m", "prompt": "p", "stream_options": {"include_usage": true}}),
            json!({"model": "m", "prompt": "p", "stream_options": {"include_usage": true}, "max_tokens": 3}),
        ] {
            let parts = http::Request::post(path).body(()).expect("a request").into_parts().0;
            let call = Call::read(&parts, body.to_string().as_bytes()).expect("an object");
            let now = Timestamp::from_millis(1_795_176_000_000);
            let events = answer::stream(&call, 7, now).concat();
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))]);
            let stream = Answer { status: 200, headers: &headers, body: events.as_bytes(), path };
            assert_eq!(paceline_providers::collect(&stream), Some(answer::object(&call, 7, now)), "{path} {body}");
        }
    }
}

/// What this project's own reader makes of an answer: class, exact wait and the announced (dimension, limit, remaining).
async fn reading(
    client: &Client,
    provider: Provider,
    body: &str,
) -> (Class, Option<Duration>, Vec<(String, u64, u64)>) {
    let response = client.post("/v1/chat/completions", body).await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.bytes().await.expect("a body");
    let answer = Answer { status, headers: &headers, body: &body, path: "" };
    let reading = paceline_providers::read(provider, &answer, paceline::clock::wall());
    let announced = |limit: &LimitReport| Some((limit.dimension.to_string(), limit.limit?, limit.remaining?));
    (reading.class, reading.wait, reading.limits.iter().filter_map(announced).collect())
}

#[tokio::test]
async fn the_readers_of_this_project_understand_it() {
    for (dialect, provider) in
        [(Dialect(Provider::OpenAi), Provider::OpenAi), (Dialect(Provider::Anthropic), Provider::Anthropic)]
    {
        let limits = vec![two_an_hour().into(), bucket(Dimension::Tokens, 60, 60).into()];
        let model = ProviderConfig { limits, overload: None, ..ProviderConfig::default() };
        let client = Client::new(MockConfig { provider: model, dialect, ..MockConfig::default() }).await;
        let requests = |remaining| ("requests".to_owned(), 2, remaining);
        let (class, wait, announced) = reading(&client, provider, PROMPT).await;
        assert_eq!((class, wait), (Class::Success, None));
        assert!(
            announced.contains(&requests(1))
                && announced.iter().any(|(name, limit, _)| name == "tokens" && *limit == 60)
        );
        reading(&client, provider, PROMPT).await;
        let (class, wait, announced) = reading(&client, provider, PROMPT).await;
        assert_eq!(class, Class::Throttled);
        assert!(wait.is_some_and(|wait| (1_700..=1_800).contains(&wait.as_secs())), "{wait:?}");
        assert!(announced.contains(&requests(0)), "{announced:?}");
        let long = format!(r#"{{"prompt":"{}"}}"#, "a ".repeat(200));
        assert_eq!(reading(&client, provider, &long).await.0, Class::Invalid, "more than a limit ever holds");

        let overload = Some(Overload { capacity: 1, queue: 1.0, degrade: 0.0 });
        let hour = Duration::from_secs(3_600);
        let latency = Latency::Uniform { low: hour, high: hour };
        let busy = ProviderConfig { overload, latency, ..ProviderConfig::default() };
        let client = Client::new(MockConfig { provider: busy, dialect, ..MockConfig::default() }).await;
        let url = format!("{}/v1/chat/completions", client.server.url());
        let call = tokio::spawn(client.http.post(url).body(PROMPT).send());
        while client.stats().await["in_flight"] == 0 {}
        assert_eq!(reading(&client, provider, PROMPT).await.0, Class::Overloaded);
        call.abort();
    }
}
