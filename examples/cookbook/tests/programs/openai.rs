//! Prompts through `async-openai`, with an API in memory behind its client.

use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::CreateChatCompletionRequest;
use cookbook::openai::{answers, openai, paced};
use futures_util::StreamExt as _;
use http::Extensions;
use paceline::testing::{MockAnswer, MockApi, block_on};
use paceline::{Dimension, Limiter, PacerConfig, Quota};
use paceline_http::client_to;
use reqwest_middleware::{ClientBuilder, Error, Middleware, Next, Result};

const MINUTE: Duration = Duration::from_secs(60);

const COMPLETION: &str = r#"{"id":"1","object":"chat.completion","created":1,"model":"gpt-4o-mini",
    "choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],
    "usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#;

const STREAM: &str = "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-4o-mini\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// Stands behind all other middlewares, in place of the network.
struct InMemory(MockApi);

#[async_trait::async_trait]
impl Middleware for InMemory {
    async fn handle(&self, request: reqwest::Request, _: &mut Extensions, _: Next<'_>) -> Result<reqwest::Response> {
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let streams = body.windows(13).any(|part| part == br#""stream":true"#);
        let (text, kind) = if streams { (STREAM, "text/event-stream") } else { (COMPLETION, "application/json") };
        let mut answer = self.0.call().await.map_err(Error::middleware)?;
        if answer.status().is_success() {
            text.clone_into(answer.body_mut());
            answer.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
        }
        Ok(answer.into())
    }
}

/// It sends nothing: what is behind it answers.
fn http() -> reqwest::Client {
    client_to("http://localhost").build().expect("a client")
}

fn client(http: ClientBuilder, api: &MockApi) -> Client<OpenAIConfig> {
    openai(OpenAIConfig::new().with_api_key("none"), http.with(InMemory(api.clone())).build())
}

fn prompts(number: usize) -> Vec<CreateChatCompletionRequest> {
    let prompt =
        r#"{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Is this spam?"}],"max_completion_tokens":100}"#;
    vec![serde_json::from_str(prompt).expect("a request"); number]
}

#[test]
fn every_prompt_is_answered_and_no_limit_is_exceeded() {
    let api = MockApi::new(Quota::per_minute(50)).expect("a limit");
    api.answer_next([MockAnswer::status(503), MockAnswer::reset(), MockAnswer::status(429).header("retry-after", "7")]);
    block_on(async {
        let limiter =
            Limiter::new([Quota::per_minute(50), Quota::per_minute(100_000).of(Dimension::Tokens)]).expect("valid");
        let client = client(paced(http(), &limiter), &api);
        let texts: Vec<_> = answers(&client, prompts(200))
            .map(|answer| answer.expect("an answer").choices[0].message.content.clone())
            .collect()
            .await;
        assert!(texts.len() == 200 && texts.iter().all(|text| text.as_deref() == Some("yes")));
        let snapshot = limiter.snapshot();
        assert_eq!((snapshot.account.totals.sends, snapshot.account.totals.deferrals), (203, 1));
        assert_eq!(&*snapshot.scopes[0].name, "/v1/chat/completions gpt-4o-mini");
    });
    assert_eq!(api.calls().count(), 203);
    api.calls().assert_at_most(50, MINUTE);
}

/// OpenAI counts the tokens that a prompt may take, not those that it takes: 100 each.
#[test]
fn a_limit_on_tokens_holds_before_any_call_is_refused() {
    let api = MockApi::new(Quota::per_minute(1_000)).expect("a limit");
    block_on(async {
        let limiter = Limiter::new(Quota::per_minute(1_000).of(Dimension::Tokens)).expect("valid");
        let client = client(paced(http(), &limiter), &api);
        assert_eq!(answers(&client, prompts(50)).count().await, 50);
    });
    assert_eq!(api.calls().count(), 50);
    api.calls().assert_at_most(10, MINUTE);
}

#[test]
fn without_credit_nothing_more_is_sent() {
    let api = MockApi::new(Quota::per_minute(50)).expect("a limit");
    let unpaid = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    api.answer_next([MockAnswer::status(429).body(unpaid)]);
    block_on(async {
        let limiter = Limiter::new(PacerConfig::default().with_in_flight(1)).expect("valid");
        let client = client(paced(http(), &limiter), &api);
        let ends: Vec<String> =
            answers(&client, prompts(20)).map(|answer| answer.expect_err("no credit").to_string()).collect().await;
        assert!(ends[0].contains("You exceeded your current quota"), "{ends:?}");
        assert!(ends[1..].iter().all(|end| end.contains("stopped")), "{ends:?}");
    });
    assert_eq!(api.calls().count(), 1);
}

#[test]
fn streams_pass_through_the_same_client() {
    let api = MockApi::new(Quota::per_minute(50)).expect("a limit");
    api.answer_next([MockAnswer::status(503)]);
    block_on(async {
        let limiter = Limiter::new(Quota::per_minute(50)).expect("valid");
        let client = client(paced(http(), &limiter), &api);
        let stream = client.chat().create_stream(prompts(1).remove(0)).await.expect("a stream");
        let parts: Vec<_> = stream.map(|part| part.expect("a part").choices[0].delta.content.clone()).collect().await;
        assert_eq!(parts, [Some("yes".to_owned())]);
    });
    assert_eq!(api.calls().count(), 2);
}
