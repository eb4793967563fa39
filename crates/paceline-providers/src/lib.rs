#![doc = include_str!("../README.md")]
//!
//! [`Dialect`] is a provider's table as a configuration changes it; it also estimates what a request costs
//! ([`Dialect::charge`]) and collects a stream into an object ([`collect`]). [`Reading::outcome_of`] is the outcome for a pacer.
//! [`secrets`] removes keys from answers before anything else reads them, and [`escape`] makes texts of others safe to show.
//!
//! Nothing here does IO: a program hands in what its HTTP client received.

mod address;
mod answered;
mod aws;
mod body;
mod bounds;
mod case;
mod charge;
mod collect;
mod cost;
mod decide;
mod decimal;
mod dialect;
mod dynamodb;
mod ending;
pub mod escape;
mod expected;
#[cfg(test)]
mod fixtures;
mod frames;
mod gateway;
mod github;
mod google;
mod google_details;
mod graphql;
mod grpc;
mod header;
mod ietf;
mod inside;
mod kept;
#[cfg(test)]
mod known;
mod later;
mod limits;
mod models;
mod names;
mod openrouter;
mod outline;
#[cfg(test)]
mod pages;
mod partial;
mod path_model;
mod prompt;
mod prompts;
mod reading;
mod references;
mod refusal;
mod reported;
mod rule;
mod schema;
pub mod secrets;
mod settlement;
mod shape;
mod shopify;
mod stream;
pub mod table;
#[cfg(test)]
mod told;
mod twice;
mod units;
mod unreported;
mod untold;
mod usage;
mod wait;

use http::HeaderMap;
use paceline_core::Timestamp;

pub use address::{
    below, host, host_name, is_loopback, is_loopback_host, join_url, origin, path_before, path_of, without_dot,
};
pub use answered::{is_version_of, model_of_answer};
pub use bounds::bounds_are_plain;
pub use charge::SoFar;
pub use collect::{collect, comes_in_parts};
pub use dialect::Dialect;
pub use expected::{Expected, OF_EXPECTATION, SCHEMA_MISMATCH, is_of_expectation};
pub use gateway::{GATEWAY, GATEWAY_RETRIES};
pub use kept::kept_named;
pub use later::{answers_later, is_json, names_later};
pub use models::{models_of, names_models};
pub use outline::{Asked, model_of};
pub use partial::{joined, remainder};
pub use path_model::{billed_model, model_of_path, models_in_path};
pub use reading::{Action, NoResponse, Reading, no_response};
pub use references::{reference_to, references_of};
pub use rule::{Phrase, Place, Rule};
pub use schema::Schema;
#[cfg(feature = "schema")]
pub use schema::SchemaError;
pub use settlement::Settlement;
pub use stream::{event_from, is_made_of_events};
pub use table::Provider;
pub use units::Units;
pub use untold::{Untold, tokens_written};
pub use usage::{PromptSize, PromptTokens, TokenRatio, Usage};

/// An HTTP response, whole. The body of a stream is its events, up to the end or to where it was cut.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// All header fields.
    pub headers: &'a HeaderMap,
    /// The decoded body.
    pub body: &'a [u8],
    /// The path of the request, which decides whether a success must be JSON; empty when it is not known.
    pub path: &'a str,
}

/// Reads an answer by the table of a provider; see [`Dialect::read`].
pub fn read(provider: Provider, answer: &Answer<'_>, now: Timestamp) -> Reading {
    Dialect::from(provider).read(answer, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use paceline_core::{Class, Cost, Dimension, LimitScope, RefillMode};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    fn rule(status: u16, class: Class, wait: Option<Duration>) -> Rule {
        let (status, reach) = (Some(status..=status), LimitScope::Item);
        Rule { status, place: None, equals: Vec::new(), phrase: None, class, reach, wait }
    }

    #[test]
    fn a_rule_comes_before_everything_and_keeps_the_servers_wait() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", HeaderValue::from_static("9"));
        let body = br#"{"error":{"code":"insufficient_quota"}}"#;
        let answer = Answer { status: 429, headers: &headers, body, path: "" };
        assert_eq!(read(Provider::OpenAi, &answer, NOW).class, Class::Account);
        for (rules, class, wait) in [
            (vec![rule(429, Class::Throttled, None)], Class::Throttled, Some(9)),
            (vec![rule(429, Class::Transient, Some(Duration::ZERO))], Class::Transient, Some(0)),
            (vec![rule(400, Class::Success, None), rule(429, Class::Invalid, None)], Class::Invalid, None),
            (vec![rule(400, Class::Success, None)], Class::Account, None),
        ] {
            let reading = Dialect::from(Provider::OpenAi).with_rules(rules.clone()).read(&answer, NOW);
            assert_eq!((reading.class, reading.wait.map(|wait| wait.as_secs())), (class, wait), "{rules:?}");
        }
    }

    #[test]
    fn reach_follows_what_a_limit_belongs_to() {
        for (status, header, body, reach) in [
            (401, None, "", LimitScope::Account),
            (403, None, "", LimitScope::Scope),
            (429, None, "", LimitScope::Scope),
            (429, None, r#"{"error":{"code":"insufficient_quota"}}"#, LimitScope::Account),
            (429, None, "error code: 1015", LimitScope::Account),
            (429, Some(("anthropic-ratelimit-unified-status", "rejected")), "", LimitScope::Account),
            (400, None, "", LimitScope::Item),
            (503, None, "", LimitScope::Scope),
        ] {
            let mut headers = HeaderMap::new();
            if let Some((name, value)) = header {
                headers.insert(name, HeaderValue::from_static(value));
            }
            let answer = Answer { status, headers: &headers, body: body.as_bytes(), path: "" };
            assert_eq!(read(Provider::Generic, &answer, NOW).reach, reach, "{status} {body}");
        }
    }

    #[test]
    fn the_outcome_carries_what_the_pacer_needs() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-ratelimit-limit-tokens", "60000"),
            ("x-ratelimit-remaining-tokens", "57000"),
            ("x-ratelimit-reset-tokens", "3s"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let body = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
        let reading = read(Provider::Groq, &Answer { status: 200, headers: &headers, body, path: "" }, NOW);
        let reserved = Cost::request().with(Dimension::Bytes, 77).with(Dimension::Tokens, 500);
        let outcome = reading.outcome_of(&reserved);
        let usage = outcome.usage.expect("reported");
        assert_eq!((usage.get(&Dimension::Tokens), usage.get(&Dimension::Bytes)), (11, 77));
        assert_eq!(usage.get(&Dimension::Requests), 1);
        assert_eq!(outcome.limits[0].restores, RefillMode::Gradually);
        assert_eq!((outcome.class, outcome.hint, outcome.reason), (Class::Success, None, None));
    }

    #[test]
    fn a_429_of_discords_edge_is_a_ban_of_the_address() {
        for (via, reach) in [(Some("1.1 google"), LimitScope::Scope), (None, LimitScope::Account)] {
            let via = via.map(|via| (http::header::VIA, HeaderValue::from_static(via)));
            let headers: HeaderMap = via.into_iter().collect();
            let answer = Answer { status: 429, headers: &headers, body: b"", path: "" };
            assert_eq!(read(Provider::Discord, &answer, NOW).reach, reach);
        }
    }

    #[test]
    fn a_throttle_by_a_limit_of_a_day_is_known_by_the_limits_name() {
        let quota = |id: &str| {
            format!(
                r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","details":[
                {{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{{"quotaId":"{id}"}}]}},
                {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}}]}}}}"#
            )
        };
        let message = |message: &str| format!(r#"{{"error":{{"message":"{message}","code":"rate_limit_exceeded"}}}}"#);
        for (provider, body, expected) in [
            (Provider::Gemini, quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier"), true),
            (Provider::Gemini, quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"), false),
            (Provider::Groq, message("on tokens per day (TPD): Limit 100000. Please try again in 7m43.9s."), true),
            (Provider::Groq, message("on tokens per minute (TPM): Limit 6000. Please try again in 6.3s."), false),
        ] {
            let answer = Answer { status: 429, headers: &HeaderMap::new(), body: body.as_bytes(), path: "" };
            let reading = read(provider, &answer, NOW);
            assert_eq!((reading.class, reading.outcome().long_period), (Class::Throttled, expected), "{body}");
        }
    }

    #[test]
    fn only_an_answer_that_names_a_quota_tells_that_one_is_used_up() {
        let message = |message: &str| format!(r#"{{"error":{{"message":"{message}","code":"rate_limit_exceeded"}}}}"#);
        for (body, wait, unnamed, reported) in [
            (String::new(), "7200", true, Class::Throttled),
            (message("slow down"), "7200", true, Class::Throttled),
            (message("on requests per day (RPD): Limit 1000"), "7200", false, Class::QuotaExhausted),
            (r#"{"error":{"code":"1308","message":"usage limit"}}"#.to_owned(), "7200", false, Class::QuotaExhausted),
            (String::new(), "3600", false, Class::Throttled),
        ] {
            let headers: HeaderMap =
                [(http::header::RETRY_AFTER, HeaderValue::from_static(wait))].into_iter().collect();
            let answer = Answer { status: 429, headers: &headers, body: body.as_bytes(), path: "" };
            let reading = read(Provider::Generic, &answer, NOW);
            let class = if wait == "3600" { Class::Throttled } else { Class::QuotaExhausted };
            assert_eq!((reading.class, reading.outcome().unnamed), (class, unnamed), "{body}");
            assert_eq!(reading.reported_class(), reported, "{body}");
        }
    }

    #[test]
    fn without_a_response_nothing_is_known_but_that_it_may_pass() {
        for kind in
            [NoResponse::Connect, NoResponse::Reset, NoResponse::Timeout, NoResponse::Truncated, NoResponse::Malformed]
        {
            let reading = no_response(kind);
            assert_eq!((reading.class, reading.wait, reading.wait_from), (Class::Transient, None, "policy"));
            assert!(reading.code.is_some());
        }
    }
}
