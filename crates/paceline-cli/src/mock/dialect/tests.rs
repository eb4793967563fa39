//! The headers and errors of every dialect, and whether a client understands them.

use super::*;
use paceline::Class;
use paceline_providers::{Answer, read};
use serde_json::json;

const OPENAI: Dialect = Dialect(Provider::OpenAi);
const ANTHROPIC: Dialect = Dialect(Provider::Anthropic);

const MS: Duration = Duration::from_millis(1);
const NOON: Timestamp = Timestamp::from_millis(1_795_176_000_000);

fn state() -> LimitState {
    LimitState {
        dimension: Dimension::Requests,
        limit: 20,
        remaining: 0,
        reset: 850 * MS,
        per_window: 1_200,
        window: Duration::from_secs(60),
    }
}

fn headers(dialect: Dialect, hints: Hints, wait: Option<ToldWait>) -> Vec<String> {
    let mut headers = HeaderMap::new();
    dialect.add_limits(&mut headers, &[state()], hints, NOON);
    if let Some(wait) = wait {
        let cause = Cause::Limit { state: state(), requested: 1 };
        dialect.add_wait(&mut headers, &cause, wait);
    }
    headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII"))).collect()
}

#[test]
fn openai_tells_go_durations_and_milliseconds() {
    let wait = ToldWait { wait: 1_386 * MS, exact: true };
    let states = [
        "x-ratelimit-limit-requests: 20",
        "x-ratelimit-remaining-requests: 0",
        "x-ratelimit-reset-requests: 850ms",
        "retry-after: 2",
        "retry-after-ms: 1386",
    ];
    assert_eq!(headers(OPENAI, Hints::Honest, Some(wait)), states);
    let coarse = ToldWait { wait: 2_000 * MS, exact: false };
    assert_eq!(headers(OPENAI, Hints::Coarse, Some(coarse))[2..], ["x-ratelimit-reset-requests: 1s", "retry-after: 2"]);
    assert!(headers(OPENAI, Hints::None, None).is_empty());
}

#[test]
fn anthropic_tells_dates_and_whole_seconds() {
    let wait = ToldWait { wait: 1_386 * MS, exact: true };
    let states = [
        "anthropic-ratelimit-requests-limit: 20",
        "anthropic-ratelimit-requests-remaining: 0",
        "anthropic-ratelimit-requests-reset: 2026-11-20T12:00:00.85Z",
        "retry-after: 2",
    ];
    assert_eq!(headers(ANTHROPIC, Hints::Honest, Some(wait)), states);
    assert_eq!(headers(ANTHROPIC, Hints::Coarse, None)[2], "anthropic-ratelimit-requests-reset: 2026-11-20T12:00:01Z");
}

#[test]
fn the_figures_of_a_message_fit_its_wait() {
    let cause = Cause::Limit { state: state(), requested: 1 };
    let message = |hints, wait| {
        let failed = OPENAI.refusal(&cause, "m", hints, wait);
        assert_eq!((failed.status.as_u16(), &failed.body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
        failed.body["error"]["message"].as_str().expect("a text").to_owned()
    };
    let start = "Rate limit reached for m in organization org-mock on requests per min (RPM)";
    // (1200 + 1 - 1200) / 1200 of a minute.
    let honest = format!("{start}: Limit 1200, Used 1200, Requested 1. Please try again in 50ms.");
    assert_eq!(message(Hints::Honest, Some(50 * MS)), honest);
    assert_eq!(message(Hints::None, None), format!("{start}."));
}

#[test]
fn every_dialect_tells_its_limits_in_its_own_way() {
    let wait = Some(ToldWait { wait: 1_386 * MS, exact: true });
    for (provider, states) in [
        (Provider::GitHub, "x-ratelimit-limit: 20, x-ratelimit-remaining: 0, x-ratelimit-reset: 1795176001"),
        (
            Provider::Discord,
            "x-ratelimit-limit: 20, x-ratelimit-remaining: 0, x-ratelimit-reset-after: 0.85, \
             x-ratelimit-reset: 1795176000.85, retry-after: 2",
        ),
        (Provider::Shopify, "x-shopify-shop-api-call-limit: 20/20, retry-after: 2"),
        (
            Provider::Generic,
            "ratelimit: \"requests\";r=0;t=1, ratelimit-policy: \"requests\";q=20;w=60, retry-after: 2",
        ),
        (Provider::Gemini, ""),
        (Provider::DynamoDb, ""),
    ] {
        assert_eq!(headers(Dialect(provider), Hints::Honest, wait).join(", "), states, "{provider}");
    }
}

/// A client must read an answer of the mock as what happened in it, whichever provider it mimics.
#[test]
fn the_readers_of_this_project_understand_every_dialect() {
    let limit = Cause::Limit { state: state(), requested: 1 };
    let too_large = Cause::TooLarge { state: state(), requested: 21 };
    let wait = 850 * MS;
    for provider in Provider::ALL {
        let dialect = Dialect(provider);
        let read = |failed: &Failed, cause: Option<&Cause>| {
            let mut headers = failed.headers.clone();
            dialect.add_limits(&mut headers, &[state()], Hints::Honest, NOON);
            if let Some(cause) = cause {
                dialect.add_wait(&mut headers, cause, ToldWait { wait, exact: true });
            }
            let body = failed.body.to_string();
            let (status, body) = (failed.status.as_u16(), body.as_bytes());
            read(provider, &Answer { status, headers: &headers, body, path: "" }, NOON)
        };
        let refused = |cause: &Cause| dialect.refusal(cause, "m", Hints::Honest, Some(wait));
        let throttled = read(&refused(&limit), Some(&limit));
        assert_eq!(throttled.class, Class::Throttled, "{provider}: {throttled:#?}");
        assert!(throttled.wait.is_none_or(|states| states >= wait), "{provider}: {throttled:#?}");
        assert_eq!(read(&refused(&too_large), None).class, Class::Invalid, "{provider}");
        let busy = read(&refused(&Cause::Overloaded), None).class;
        assert!(matches!(busy, Class::Overloaded | Class::Transient), "{provider}: {busy}");
        assert_eq!(read(&dialect.fault(), None).class, Class::Transient, "{provider}");
        assert_eq!(read(&dialect.invalid(400, "no object"), None).class, Class::Invalid, "{provider}");
    }
}
