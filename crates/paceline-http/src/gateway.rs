//! Calls through a gateway, `paceline serve`: what it is told of them, and what it tells.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use paceline_core::format_duration;
use paceline_providers::Reading;
use reqwest::Url;

use crate::exchange::is_unknown;
use crate::no_answer::NoAnswer;

/// A field of a request: how long it may be held.
pub const DEADLINE: &str = "x-paceline-deadline";

/// A field of a request: `interactive`, or `batch`, which waits behind.
pub const PRIORITY: &str = "x-paceline-priority";

pub use paceline_providers::GATEWAY_RETRIES as RETRIES;

/// A field of a request: any word that is one client's, which takes turns with others.
pub const CLIENT: &str = "x-paceline-client";

/// A field of an answer: how long its request was held, in milliseconds.
pub const WAITED: &str = "x-paceline-waited-ms";

/// A field of an answer: how many calls were made for it.
pub const ATTEMPTS: &str = "x-paceline-attempts";

/// A field of an answer: of how many of these calls nothing tells whether they were executed. There only if there are some.
pub const UNKNOWN: &str = "x-paceline-unknown";

/// A field of an answer: the steps of the gateway's fallback at which calls were made that count in [`UNKNOWN`].
pub const UNKNOWN_AT: &str = "x-paceline-unknown-at";

/// A field of an answer: what stood in for the upstream, which stayed down.
pub const FALLBACK: &str = "x-paceline-fallback";

/// How long a gateway may hold a call before it answers that it has to wait for longer: its own default.
pub const LONGEST_HOLD: Duration = Duration::from_secs(240);

/// What a gateway did for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) calls: u32,
    pub(crate) retried: u32,
    /// Of so many of the calls nothing tells whether they were executed.
    pub(crate) unknown: u32,
    pub(crate) waited: Duration,
    pub(crate) steps: Steps,
}

/// The steps of its fallback that a gateway names, as they are named: `NAME` or `NAME/MODEL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The one that answered.
    pub answered: Option<Box<str>>,
    /// Those at which calls were made of which it is unknown whether they were executed.
    pub unknown_at: Vec<Box<str>>,
}

impl Steps {
    const NONE: Self = Self { answered: None, unknown_at: Vec::new() };

    fn of(headers: &HeaderMap) -> Self {
        let texts = |name| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        let unknown_at = texts(UNKNOWN_AT).flat_map(|steps| steps.split(", ")).map(Into::into).collect();
        Self { answered: texts(FALLBACK).next().map(Into::into), unknown_at }
    }
}

impl Passed {
    /// One call that went straight to its API.
    pub(crate) const STRAIGHT: Self = Self::of_calls(1);

    /// None: it did not reach the gateway, which makes the calls.
    pub(crate) const NONE: Self = Self::of_calls(0);

    const fn of_calls(calls: u32) -> Self {
        Self { calls, retried: 0, unknown: 0, waited: Duration::ZERO, steps: Steps::NONE }
    }

    /// Of so many calls before the one that has this answer it is unknown whether they were executed. The head of a success tells
    /// nothing of its own end.
    pub(crate) fn unknown_before(&self, answer: &Result<Response<Bytes>, NoAnswer>, reading: &Reading) -> u32 {
        let counts_itself = answer.as_ref().is_ok_and(|answer| !answer.status().is_success());
        self.unknown.saturating_sub((counts_itself && is_unknown(answer, reading)).into())
    }

    /// As the head of an answer tells; one call where it is none of a gateway.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<u32>().ok();
        let Some(calls) = number(ATTEMPTS) else { return Self::STRAIGHT };
        Self {
            calls,
            retried: number(RETRIES).unwrap_or(0),
            unknown: number(UNKNOWN).unwrap_or(0).min(calls),
            waited: Duration::from_millis(number(WAITED).unwrap_or(0).into()),
            steps: Steps::of(headers),
        }
    }
}

/// What a sender knows of its gateway.
pub(crate) struct Link {
    /// A word that another client hardly has.
    client: HeaderValue,
    /// An answer came that no gateway sent.
    is_another: AtomicBool,
    /// One came in place of the API's.
    falls_back: AtomicBool,
    /// A gateway answers where the API's own address was to be.
    is_met: AtomicBool,
}

/// How many retries a gateway spent on the answer with this head; none where no gateway made it.
pub fn retried(headers: &HeaderMap) -> u32 {
    Passed::of(headers).retried
}

/// Tells a gateway how many `retries` are left, and how long it may hold the call. What the fields say already stands.
pub fn tell_bounds(headers: &mut HeaderMap, retries: u32, held: Duration) {
    tell_retries(headers, retries);
    let held = format!("{}ms", held.as_millis());
    headers.entry(DEADLINE).or_insert(held.parse().expect("digits and letters"));
}

/// Tells a gateway how many retries are left.
pub(crate) fn tell_retries(headers: &mut HeaderMap, retries: u32) {
    headers.entry(RETRIES).or_insert(retries.into());
}

impl Default for Link {
    fn default() -> Self {
        let random = RandomState::new().build_hasher().finish();
        let client = format!("{random:016x}").parse().expect("hexadecimal digits");
        let [is_another, falls_back, is_met] = [(); 3].map(|()| AtomicBool::new(false));
        Self { client, is_another, falls_back, is_met }
    }
}

impl Link {
    /// Tells the gateway who calls, and the bounds of a call: `retries` that are left, and how long it may take. Its own header
    /// fields come first.
    pub(crate) fn tell(&self, headers: &mut HeaderMap, retries: u32, within: Option<Duration>) {
        headers.entry(CLIENT).or_insert_with(|| self.client.clone());
        // It has to be sent and answered as well.
        tell_bounds(headers, retries, within.map_or(LONGEST_HOLD, |within| (within / 2).min(LONGEST_HOLD)));
    }

    /// Whether a gateway has answered where the API's own address was to be.
    pub(crate) fn is_met(&self) -> bool {
        self.is_met.load(Ordering::Relaxed)
    }

    /// What was done for the answer with this head: `through` a gateway, or by one that answers at the sender's own address. The
    /// fields of another server say nothing.
    pub(crate) fn passed<'a>(
        &self,
        headers: &HeaderMap,
        through: bool,
        own_address: impl FnOnce() -> Option<&'a str>,
    ) -> Passed {
        if through {
            self.check(headers);
        } else if headers.contains_key(ATTEMPTS)
            && let Some(address) = own_address()
        {
            self.meet(address);
        } else {
            return Passed::STRAIGHT;
        }
        Passed::of(headers)
    }

    /// Says once that a gateway answers at that address.
    fn meet(&self, address: &str) {
        if !self.is_met.swap(true, Ordering::Relaxed) {
            let origin =
                Url::parse(address).map_or_else(|_| "URL".to_owned(), |url| url.origin().ascii_serialization());
            tracing::warn!(
                "a gateway answers at this address, `paceline serve` ({ATTEMPTS} in its answers): the calls that it makes again count \
                 here too. With --via {origin}, in place of the address, it alone keeps limits, pace and key, may hold calls beyond the \
                 timeout, and lets interactive clients go first"
            );
        }
    }

    /// Warns, once, of an answer that is none of a gateway, for nothing paces the calls then, and of one that stands in for the
    /// API's.
    fn check(&self, headers: &HeaderMap) {
        if let Some(fallback) = headers.get(FALLBACK)
            && !self.falls_back.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the API stays down, and the gateway answers with its fallback {fallback:?}: the header {FALLBACK} marks such answers; a call \
                 waits for the API until it is known to stay down, and for {} at most, for less with --header '{DEADLINE}: 10s'",
                format_duration(LONGEST_HOLD)
            );
        }
        if !headers.contains_key(ATTEMPTS) && !self.is_another.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "what answers at the address of the gateway is not `paceline serve` (no {ATTEMPTS} in its answers): nothing paces \
                 these calls; check --via, or use --base-url for the API itself"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_told_what_it_may_spend_and_the_call_itself_knows_better() {
        let told = |own: &[(&'static str, &'static str)], within| {
            let field = |(name, value): &(&'static str, &'static str)| {
                (name.parse().expect("a name"), value.parse().expect("a value"))
            };
            let mut headers: HeaderMap = own.iter().map(field).collect();
            Link::default().tell(&mut headers, 3, within);
            let text = |name| headers[name].to_str().expect("text").to_owned();
            (text(RETRIES), text(DEADLINE))
        };
        let pair = |retries: &str, deadline: &str| (retries.to_owned(), deadline.to_owned());
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(told(&[], None), pair("3", "240000ms"));
        assert_eq!(told(&[], seconds(30)), pair("3", "15000ms"));
        assert_eq!(told(&[], seconds(9_000)), pair("3", "240000ms"));
        let clients = [(), ()].map(|()| Link::default().client);
        assert_ne!(clients[0], clients[1], "they take turns");
        assert_eq!(told(&[(RETRIES, "0"), (DEADLINE, "1s")], None), pair("0", "1s"));
    }

    #[test]
    fn what_is_not_told_is_one_call() {
        let of = |fields: &[(&'static str, &'static str)]| {
            Passed::of(&fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect())
        };
        assert_eq!(of(&[]), Passed::STRAIGHT);
        assert_eq!(of(&[(ATTEMPTS, "many"), (WAITED, "-1")]), Passed::STRAIGHT);
        let waited = Duration::from_millis(1_500);
        let passed = Passed { calls: 3, retried: 2, unknown: 1, waited, steps: Steps::NONE };
        assert_eq!(of(&[(ATTEMPTS, "3"), (RETRIES, "2"), (UNKNOWN, "1"), (WAITED, "1500")]), passed);
        assert_eq!(of(&[(ATTEMPTS, "2"), (UNKNOWN, "4000000000")]).unknown, 2);
        assert_eq!(
            of(&[(FALLBACK, "static"), (RETRIES, "7"), (UNKNOWN, "5")]),
            Passed::STRAIGHT,
            "no gateway says that"
        );
    }

    #[test]
    fn a_gateway_names_the_steps_of_its_fallback() {
        let mut headers = HeaderMap::new();
        headers.insert(FALLBACK, HeaderValue::from_static("third/mini"));
        headers.append(UNKNOWN_AT, HeaderValue::from_static("second/m, other"));
        headers.append(UNKNOWN_AT, HeaderValue::from_static("third/mini"));
        let steps = Steps::of(&headers);
        assert_eq!(steps.answered.as_deref(), Some("third/mini"));
        assert_eq!(
            steps.unknown_at.iter().map(|step| &**step).collect::<Vec<_>>(),
            ["second/m", "other", "third/mini"]
        );
    }
}
