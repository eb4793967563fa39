//! The targets: one for each parser, one for the whole classifier, one for the command.

use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_config::{Config, Environment, Overrides};
use paceline_core::{Rng, Timestamp};
use paceline_providers::{Answer, Dialect, Provider, Reading, TokenRatio, collect, joined, read, remainder};

use crate::corpus::{Corpus, Recording};
use crate::explain;
use crate::mutate::{LONG, below, changed};

const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// Something to hand arbitrary input to.
pub(crate) struct Target {
    /// As the command line has it.
    pub(crate) name: &'static str,
    /// One of so many inputs is a long one.
    pub(crate) long_every: u64,
    /// Makes an input from the corpus.
    pub(crate) input: fn(&Corpus, &mut Rng, bool) -> Recording,
    /// Hands it over.
    pub(crate) execute: fn(&Recording, &mut Rng),
}

pub(crate) const TARGETS: [Target; 9] = [
    Target { name: "classifier", long_every: 500, input: answer, execute: classify },
    Target { name: "times", long_every: 5_000, input: times, execute: classify },
    Target { name: "rate_limits", long_every: 5_000, input: rate_limits, execute: classify },
    Target { name: "messages", long_every: 500, input: messages, execute: classify },
    Target { name: "bodies", long_every: 500, input: bodies, execute: classify },
    Target { name: "streams", long_every: 500, input: streams, execute: put_together },
    Target { name: "requests", long_every: 500, input: requests, execute: charge },
    Target { name: "configuration", long_every: 500, input: configurations, execute: configure },
    Target { name: "explain", long_every: 50, input: answer, execute: explain::run },
];

impl Recording {
    /// Bytes of all its parts.
    pub(crate) fn len(&self) -> usize {
        self.body.len() + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    fn of_body(status: u16, body: Vec<u8>) -> Self {
        Self { status, headers: Vec::new(), body }
    }
}

/// A recorded answer with changes in its status, its headers and its body.
fn answer(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    let mut answer = corpus.answers[below(rng, corpus.answers.len())].clone();
    if below(rng, 4) == 0 {
        answer.status = 100 + below(rng, 600) as u16;
    }
    for _ in 0..below(rng, 4) {
        if !answer.headers.is_empty() {
            let value = answer.headers[below(rng, answer.headers.len())].1.clone();
            let name = answer.headers[below(rng, answer.headers.len())].0.clone();
            answer.headers.push((name, changed(&value, rng, 3, false)));
        }
    }
    answer.body = changed(&answer.body, rng, 5, long);
    answer
}

/// A header that holds a time, with a value like one.
fn times(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    const NAMES: [&str; 12] = [
        "date",
        "retry-after",
        "retry-after-ms",
        "x-amz-retry-after",
        "x-ratelimit-reset",
        "x-ratelimit-reset-requests",
        "x-ratelimit-reset-after",
        "x-rate-limit-reset-tokens",
        "anthropic-ratelimit-unified-reset",
        "anthropic-ratelimit-tokens-reset",
        "x-shopify-shop-api-call-limit",
        "age",
    ];
    let mut headers = vec![
        ("x-ratelimit-remaining".to_owned(), b"0".to_vec()),
        ("x-ratelimit-remaining-requests".to_owned(), b"0".to_vec()),
        ("anthropic-ratelimit-unified-status".to_owned(), b"rejected".to_vec()),
    ];
    for _ in 0..=below(rng, 3) {
        let value = &corpus.times[below(rng, corpus.times.len())];
        headers.push((NAMES[below(rng, NAMES.len())].to_owned(), changed(value, rng, 3, long)));
    }
    Recording { status: 429, headers, body: Vec::new() }
}

/// The IETF's fields.
fn rate_limits(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    const NAMES: [&str; 5] =
        ["ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    let field = |index: usize, rng: &mut Rng| {
        let value = &corpus.rate_limits[below(rng, corpus.rate_limits.len())];
        (NAMES[index].to_owned(), changed(value, rng, 3, long))
    };
    let mut headers = vec![field(0, rng), field(1, rng)];
    for _ in 0..below(rng, 3) {
        let index = below(rng, NAMES.len());
        headers.push(field(index, rng));
    }
    Recording { status: 429, headers, body: Vec::new() }
}

/// An error whose message is like one that tells a wait or a limit.
fn messages(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    let message = changed(&corpus.messages[below(rng, corpus.messages.len())], rng, 4, long);
    let message = String::from_utf8_lossy(&message);
    let quoted = format!("\"{}\"", message.escape_default());
    let status = [429, 400, 403, 503, 200][below(rng, 5)];
    Recording::of_body(status, format!("{{\"error\":{{\"message\":{quoted}}}}}").into_bytes())
}

/// A body alone; a long one may be an array of very many objects.
fn bodies(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    const SMALL: [&str; 5] =
        ["{},", "{\"usage\":{}},", "{\"error\":null},", "{\"choices\":[{}]},", "{\"a\":{\"a\":0}},"];
    let base = &corpus.answers[below(rng, corpus.answers.len())];
    let mut body = changed(&base.body, rng, 8, long);
    if long && below(rng, 2) == 0 {
        let part = SMALL[below(rng, SMALL.len())];
        body = format!("[{}{{}}]", part.repeat(LONG / part.len())).into_bytes();
    }
    Recording::of_body(if below(rng, 2) == 0 { 200 } else { base.status }, body)
}

/// Server-sent events.
fn streams(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    let streams: Vec<&Recording> = corpus
        .answers
        .iter()
        .filter(|answer| answer.body.starts_with(b"data:") || answer.body.starts_with(b"event:"))
        .collect();
    let base = streams[below(rng, streams.len())];
    Recording::of_body(200, changed(&base.body, rng, 6, long))
}

/// Bodies of requests.
fn requests(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    let base = &corpus.requests[below(rng, corpus.requests.len())];
    Recording::of_body(200, changed(base, rng, 5, long))
}

/// Configuration files; the longest that are read.
fn configurations(corpus: &Corpus, rng: &mut Rng, long: bool) -> Recording {
    // The parser's stack frames are ten times as large without optimisation.
    const LONGEST: usize = if cfg!(debug_assertions) { 8 << 10 } else { 64 << 10 };
    let base = &corpus.configurations[below(rng, corpus.configurations.len())];
    let mut text = changed(base, rng, 5, long);
    text.truncate(LONGEST);
    Recording::of_body(200, text)
}

fn provider(rng: &mut Rng) -> Provider {
    Provider::ALL[below(rng, Provider::ALL.len())]
}

fn headers(recording: &Recording) -> HeaderMap {
    let field = |(name, value): &(String, Vec<u8>)| {
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in recording.headers.iter().filter_map(field) {
        headers.append(name, value);
    }
    headers
}

fn classify(recording: &Recording, rng: &mut Rng) {
    let (headers, now) = (headers(recording), Timestamp::from_millis(rng.next_u64() as i64));
    let answer = Answer { status: recording.status, headers: &headers, body: &recording.body, path: "/v1/messages" };
    let reading = read(provider(rng), &answer, now);
    check(&reading, recording);
}

/// A wait that is too long, or words that move a terminal's cursor.
fn check(reading: &Reading, recording: &Recording) {
    let resets = reading.limits.iter().flat_map(|limit| [limit.reset, limit.window]).flatten();
    for wait in resets.chain(reading.wait) {
        assert!(wait <= LONGEST_WAIT, "{recording:?}\n{reading:?}");
    }
    let message = reading.message.as_deref().unwrap_or_default();
    assert!(message.len() < 1_000 && !message.contains(char::is_control), "{recording:?}\n{reading:?}");
    assert!(reading.limits.len() <= 32, "{recording:?}");
    _ = reading.outcome();
}

fn put_together(recording: &Recording, rng: &mut Rng) {
    let headers = headers(recording);
    let answer = Answer { status: 200, headers: &headers, body: &recording.body, path: "/v1/chat/completions" };
    check(&read(provider(rng), &answer, Timestamp::from_millis(0)), recording);
    collect(&answer);
}

fn charge(recording: &Recording, rng: &mut Rng) {
    const PATHS: [&str; 5] =
        ["/v1/chat/completions", "/", "/graphql", "/model/anthropic.claude-sonnet-4-5/converse", "/v1/files"];
    let (dialect, path, body) = (Dialect::from(provider(rng)), PATHS[below(rng, PATHS.len())], &recording.body[..]);
    dialect.charge(path, body, &TokenRatio::default());
    dialect.scope_name(path, None, body);
    let _ = (remainder(body, body), joined(body, body));
}

/// A file is read or refused with words.
fn configure(recording: &Recording, _: &mut Rng) {
    let text = String::from_utf8_lossy(&recording.body);
    let config = Config::parse(Path::new("paceline.toml"), &text, Environment::default(), Overrides::default());
    if let Err(error) = config.and_then(|config| config.upstream()) {
        assert!(!error.to_string().is_empty());
    }
}
