//! What reading one answer costs: `cargo run --profile dist -p paceline-bench --bin classify`.
//!
//! Each figure is the best of several rounds, because noise only adds.

use std::hint::black_box;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline::Clock;
use paceline_providers::{Answer, Provider, read};

/// Short rounds, of which some run undisturbed.
const ROUNDS: usize = 200;

fn main() {
    let (headers, long) = (headers(), embedding(1 << 20));
    let completion = completion(1_000);
    let unread = format!(r#"{{"results":[{}]}}"#, "[0.0123456],".repeat(90_000) + "[0]");
    println!("{:<58}{:>12}", "ns per answer, best of rounds", "ns");
    row("openai: 200, 8 headers, 1 KB", 1_000, Provider::OpenAi, 200, &headers, &completion);
    row("generic: the same", 1_000, Provider::Generic, 200, &headers, &completion);
    row("openai: 429, message of 200 characters", 1_000, Provider::OpenAi, 429, &headers, REFUSED);
    row("openai: 200, 1 MB of vectors, its usage read", 5, Provider::OpenAi, 200, &headers, &long);
    row("stripe: 200, 1 MB, nothing in it can matter", 10, Provider::Stripe, 200, &HeaderMap::new(), &unread);
    row("generic: 200, 1 MB, looked through, not parsed", 10, Provider::Generic, 200, &HeaderMap::new(), &unread);
}

fn row(name: &str, calls: u32, provider: Provider, status: u16, headers: &HeaderMap, body: &str) {
    let clock = Clock::new();
    let answer = Answer { status, headers, body: body.as_bytes(), path: "/v1/chat/completions" };
    let now = paceline::clock::wall();
    let round = || {
        let start = clock.now();
        for _ in 0..calls {
            black_box(read(provider, black_box(&answer), now));
        }
        (clock.now() - start).as_nanos() as f64 / f64::from(calls)
    };
    let best = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
    println!("{name:<58}{best:>12.0}");
}

fn headers() -> HeaderMap {
    let fields = [
        ("date", "Fri, 20 Nov 2026 12:00:00 GMT"),
        ("content-type", "application/json"),
        ("x-ratelimit-limit-requests", "10000"),
        ("x-ratelimit-remaining-requests", "9998"),
        ("x-ratelimit-reset-requests", "17.28s"),
        ("x-ratelimit-limit-tokens", "200000"),
        ("x-ratelimit-remaining-tokens", "189000"),
        ("x-ratelimit-reset-tokens", "3.3s"),
    ];
    fields.into_iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn completion(bytes: usize) -> String {
    let content = "word ".repeat(bytes / 5 - 60);
    format!(
        r#"{{"id":"chatcmpl-9","object":"chat.completion","created":1795176000,"model":"gpt-4o-mini","choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":140,"total_tokens":149}}}}"#
    )
}

fn embedding(bytes: usize) -> String {
    let vector = "-0.0069292834,".repeat(bytes / 14);
    format!(
        r#"{{"object":"list","data":[{{"embedding":[{vector}0]}}],"usage":{{"prompt_tokens":8,"total_tokens":8}}}}"#
    )
}

const REFUSED: &str = r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-abc on tokens per min (TPM): Limit 30000, Used 27760, Requested 2933. Please try again in 1.386s. Visit the page of limits to learn more.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
