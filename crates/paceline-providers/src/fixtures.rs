//! Recorded answers, each with the reading that it must have.
//!
//! A fixture is a head line `example: ID provider: NAME`, the status, the headers, an empty line, the body, and
//! `=> CLASS wait=SECONDS|policy|- [scope=item|model|key] [limits=DIMENSION LIMIT/REMAINING reset=SECONDS; ...] [or CLASS]`.
//! Where no `Date` is given it is Fri, 20 Nov 2026 12:00:00 GMT.
//! A wait is right when it is not shorter, and at most 1 s + 10 % longer.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_core::{Class, LONGEST_DURATION, LimitReport, LimitScope, Timestamp};
use proptest::proptest;

use super::{Answer, Provider, Reading, read};

const FILES: [(&str, &str); 16] = [
    ("standards", include_str!("fixtures/standards.http")),
    ("openai", include_str!("fixtures/openai.http")),
    ("azure", include_str!("fixtures/azure.http")),
    ("anthropic", include_str!("fixtures/anthropic.http")),
    ("streams", include_str!("fixtures/streams.http")),
    ("compatible", include_str!("fixtures/compatible.http")),
    ("google", include_str!("fixtures/google.http")),
    ("aws", include_str!("fixtures/aws.http")),
    ("others", include_str!("fixtures/others.http")),
    ("attribution", include_str!("fixtures/attribution.http")),
    ("more", include_str!("fixtures/more.http")),
    ("traps", include_str!("fixtures/traps.http")),
    ("unusable", include_str!("fixtures/unusable.http")),
    ("inside", include_str!("fixtures/inside.http")),
    ("scopes", include_str!("fixtures/scopes.http")),
    ("gateway", include_str!("fixtures/gateway.http")),
];

/// A local clock that is an hour off: no fixture may depend on it.
const WRONG_CLOCK: Timestamp = Timestamp::from_millis(1_795_179_600_000);

struct Fixture {
    id: String,
    provider: Provider,
    status: u16,
    headers: HeaderMap,
    body: String,
    expected: String,
}

impl Fixture {
    fn parse(text: &str) -> Self {
        let (head, expected) = text.rsplit_once("\n=> ").expect("an expectation at the end");
        let (head, body) = head.split_once("\n\n").unwrap_or((head, ""));
        let mut lines = head.lines();
        let title: Vec<&str> = lines.next().expect("a head line").split_whitespace().collect();
        let ["example:", id, "provider:", provider] = title[..] else { panic!("head line {title:?}") };
        let status = lines.next().expect("a status").parse().expect("a number");
        let mut headers = HeaderMap::new();
        headers.insert("date", HeaderValue::from_static("Fri, 20 Nov 2026 12:00:00 GMT"));
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        for (name, value) in lines.map(|line| line.split_once(": ").expect("name: value")) {
            headers.insert(HeaderName::try_from(name).expect("a name"), value.parse().expect("a value"));
        }
        let provider = Provider::from_name(provider).expect("a known provider");
        let (body, expected) = (body.to_owned(), expected.lines().next().unwrap_or_default().to_owned());
        Self { id: id.to_owned(), provider, status, headers, body, expected }
    }

    fn read(&self) -> Reading {
        read(
            self.provider,
            &Answer { status: self.status, headers: &self.headers, body: self.body.as_bytes(), path: "" },
            WRONG_CLOCK,
        )
    }

    fn check(&self) -> Result<(), String> {
        let reading = self.read();
        let (expected, other) = self.expected.split_once(" or ").map_or((&*self.expected, None), |(e, o)| (e, Some(o)));
        let (expected, limits) = expected.split_once(" limits=").unwrap_or((expected, ""));
        let (expected, scope) = expected.split_once(" scope=").map_or((expected, None), |(e, scope)| (e, Some(scope)));
        let (class, wait) = expected.split_once(" wait=").expect("class wait=...");
        let class_ok = [Some(class), other].contains(&Some(reading.class.as_str()));
        let wait_ok = match (wait, reading.wait) {
            ("policy", None) => reading.wait_from == "policy",
            ("-", None) => reading.wait_from == "-",
            (seconds, Some(wait)) => seconds.parse().is_ok_and(|seconds| matches_wait(wait, seconds)),
            (_, None) => false,
        };
        let scope_ok = scope.is_none_or(|scope| scope == scope_of(&reading));
        let limits = limits.split("; ").filter(|limit| !limit.is_empty());
        let limits: Vec<&str> = limits.map(|limit| limit.trim_end_matches(" reset=?")).collect();
        let found: Vec<String> = reading.limits.iter().map(printed).collect();
        let limits_ok = limits.len() == found.len() && limits.iter().all(|limit| found.contains(&(*limit).to_owned()));
        if class_ok && wait_ok && scope_ok && limits_ok {
            Ok(())
        } else {
            Err(format!("{}: {}\n{reading:#?}", self.id, self.expected))
        }
    }
}

fn scope_of(reading: &Reading) -> &'static str {
    match reading.reach {
        LimitScope::Item => "item",
        LimitScope::Scope => "model",
        LimitScope::Account => "key",
    }
}

fn matches_wait(wait: Duration, expected: f64) -> bool {
    (expected..=expected * 1.1 + 1.0).contains(&wait.as_secs_f64())
}

fn printed(limit: &LimitReport) -> String {
    let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let reset = limit.reset.map_or(String::new(), |reset| format!(" reset={}", reset.as_secs_f64()));
    format!("{} {}/{}{reset}", limit.dimension, number(limit.limit), number(limit.remaining))
}

fn all() -> Vec<Fixture> {
    let texts = FILES.iter().flat_map(|(_, text)| text.split("example: ").skip(1));
    texts.map(|text| Fixture::parse(&format!("example: {}", text.trim_end()))).collect()
}

fn fixture(id: &str) -> Reading {
    all().iter().find(|fixture| fixture.id == id).expect("a fixture of that name").read()
}

#[test]
fn every_recorded_answer_is_read_as_it_must() {
    let fixtures = all();
    assert!(fixtures.len() >= 240, "only {} fixtures", fixtures.len());
    let wrong: Vec<String> = fixtures.iter().filter_map(|fixture| fixture.check().err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn derived_windows_of_the_recordings() {
    let windows = |id| fixture(id).limits.iter().map(|limit| limit.window.map(|w| w.as_secs())).collect::<Vec<_>>();
    assert_eq!(windows("openai-ok-day-limit"), [Some(86_400), Some(60)]);
    assert_eq!(windows("openai-tpm"), [Some(60), Some(60)]);
    assert_eq!(windows("anthropic-day-tokens")[1], Some(86_400));
    assert_eq!(windows("std-ietf-current"), [Some(60), Some(86_400)]);
}

#[test]
fn an_answer_that_names_no_error_is_named_by_what_is_wrong_with_it() {
    let named = |id| {
        let reading = fixture(id);
        (reading.code.unwrap_or_default(), reading.message.unwrap_or_default())
    };
    for (id, code, message) in [
        ("unusable-page", "not_json", "the answer is not JSON: Our service is being updated"),
        ("unusable-half-an-object", "not_json", "the answer is not JSON: {not json"),
        ("unusable-empty", "empty_answer", "the answer is empty"),
        ("sse-anthropic-cut", "truncated", "the stream ended early"),
        ("unusable-error-with-a-code", "server_error", "The server had an error."),
    ] {
        assert_eq!(named(id), (code.to_owned(), message.to_owned()), "{id}");
    }
}

#[test]
fn exactness_follows_the_unit() {
    assert!(fixture("openai-tpm").wait_exact);
    assert_eq!(fixture("openai-tpm").wait_from, "retry-after-ms");
    assert!(!fixture("anthropic-429").wait_exact);
    assert_eq!(fixture("openai-tpm-text-only").wait_from, "message");
}

#[test]
fn usage_is_read_from_the_recordings() {
    let usage = fixture("openai-ok-day-limit").usage.expect("usage");
    assert_eq!((usage.input_tokens, usage.output_tokens), (9, 2));
    let usage = fixture("anthropic-ok").usage.expect("usage");
    assert_eq!((usage.input_tokens, usage.output_tokens), (9_000, 1_000));
    assert_eq!(fixture("anthropic-ok").class, Class::Success);
}

proptest! {
    #[test]
    fn any_change_to_a_recording_still_reads(
        which: proptest::sample::Index, from: proptest::sample::Index, to: proptest::sample::Index,
        status in 100u16..700, value in "[ -~]{0,20}",
    ) {
        let fixtures = all();
        let mut changed = Fixture::parse("example: x provider: openai\n200\n\n=> success wait=-");
        let base = which.get(&fixtures);
        changed.provider = base.provider;
        changed.headers = base.headers.clone();
        let headers: Vec<HeaderName> = changed.headers.keys().cloned().collect();
        changed.headers.append(from.get(&headers), value.parse().expect("printable"));
        let bytes = base.body.as_bytes();
        let cut = &bytes[..to.index(bytes.len() + 1)];
        let answer = Answer { status, headers: &changed.headers, body: cut, path: "" };
        let reading = read(changed.provider, &answer, WRONG_CLOCK);
        assert!(reading.wait.is_none_or(|wait| wait <= LONGEST_DURATION), "{reading:?}");
        _ = reading.outcome();
    }
}
