//! Thousands of prompts through `async-openai`, which stays as it is: its client sends through one that is paced.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use async_openai::types::chat::{CreateChatCompletionRequest, CreateChatCompletionResponse};
use futures_util::{Stream, StreamExt as _, stream};
use paceline::{Limiter, Request};
use paceline_http::PaceMiddleware;
use paceline_providers::{Provider, TokenRatio};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tower::{BoxError, service_fn};

/// A client whose requests wait for their turn, cost their tokens and are sent again where that helps. Streams pass through it.
pub fn paced(http: reqwest::Client, limiter: &Limiter) -> ClientBuilder {
    let limiter = limiter.clone().with_provider(Provider::OpenAi);
    ClientBuilder::new(http).with(PaceMiddleware::new(limiter).describe(charged))
}

/// What a request costs is estimated from its body, and each model has limits of its own.
fn charged(limiter: &Limiter, request: &reqwest::Request) -> Request {
    let (path, body) = (request.url().path(), request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default());
    let model = serde_json::from_slice::<serde_json::Value>(body).ok();
    let model = model.as_ref().and_then(|body| body["model"].as_str());
    let dialect = limiter.dialect();
    Request::new(
        limiter.scope(&dialect.scope_name(path, model, body)),
        dialect.charge(path, body, &TokenRatio::default()),
    )
}

/// `async-openai` on that client. A service of one's own also switches its own retries off.
pub fn openai(config: OpenAIConfig, http: ClientWithMiddleware) -> Client<OpenAIConfig> {
    Client::with_config(config).with_http_service(service_fn(move |request: HttpRequestFactory| {
        let http = http.clone();
        async move { Ok::<_, BoxError>(http.execute(request.build().await?).await?) }
    }))
}

/// The answers as they come. All prompts ask for a place at once: the limiter knows how many may leave.
pub fn answers(
    client: &Client<OpenAIConfig>,
    prompts: Vec<CreateChatCompletionRequest>,
) -> impl Stream<Item = Result<CreateChatCompletionResponse, OpenAIError>> {
    stream::iter(prompts).map(async |prompt| client.chat().create(prompt).await).buffer_unordered(500)
}
