//! Limits that response headers announce: one row per header triple, whoever sends it.

use std::time::Duration;

use http::HeaderMap;
use paceline_core::{Dimension, LimitReport, Restores, Timestamp};

use super::api::Provider;
use super::{header, ietf, shape};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// The windows that providers use; a derived one is taken for the nearest within a quarter.
const WINDOWS: [Duration; 4] = [SECOND, MINUTE, Duration::from_secs(3_600), Duration::from_secs(86_400)];

/// Three headers that describe one limit, and what their sender documents about it.
struct Row {
    dimension: Known,
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    restores: Restores,
    /// The documented window, used where none can be derived.
    window: Option<Duration>,
}

/// A dimension that a constant can hold.
#[derive(Clone, Copy)]
enum Known {
    Requests,
    Tokens,
    InputTokens,
    OutputTokens,
    ProjectTokens,
    /// Counted apart from everything that a call reserves: shown only.
    Other(&'static str),
}

const fn row(
    dimension: Known,
    [limit, remaining, reset]: [&'static str; 3],
    restores: Restores,
    window: Option<Duration>,
) -> Row {
    Row { dimension, limit, remaining, reset, restores, window }
}

/// A row whose headers are `PREFIX-limit`, `PREFIX-remaining` and `PREFIX-reset`.
macro_rules! suffixed {
    ($prefix:literal) => {
        [concat!($prefix, "-limit"), concat!($prefix, "-remaining"), concat!($prefix, "-reset")]
    };
}

/// A row whose headers are `x-ratelimit-limit-SUFFIX`, `x-ratelimit-remaining-SUFFIX` and `x-ratelimit-reset-SUFFIX`.
macro_rules! prefixed {
    ($suffix:literal) => {
        [
            concat!("x-ratelimit-limit-", $suffix),
            concat!("x-ratelimit-remaining-", $suffix),
            concat!("x-ratelimit-reset-", $suffix),
        ]
    };
}

use Restores::{AtOnce, Gradually, Unknown};

/// OpenAI's headers and Anthropic's describe buckets that refill continuously: their reset is the time until full.
const ROWS: [Row; 13] = [
    row(Known::Requests, prefixed!("requests"), Gradually, None),
    row(Known::Tokens, prefixed!("tokens"), Gradually, Some(MINUTE)),
    row(Known::ProjectTokens, prefixed!("project-tokens"), Gradually, Some(MINUTE)),
    row(Known::Requests, suffixed!("anthropic-ratelimit-requests"), Gradually, None),
    row(Known::InputTokens, suffixed!("anthropic-ratelimit-input-tokens"), Gradually, None),
    row(Known::OutputTokens, suffixed!("anthropic-ratelimit-output-tokens"), Gradually, None),
    row(Known::Tokens, suffixed!("anthropic-ratelimit-tokens"), Gradually, None),
    row(Known::Other("priority_input_tokens"), suffixed!("anthropic-priority-input-tokens"), Unknown, None),
    row(Known::Other("priority_output_tokens"), suffixed!("anthropic-priority-output-tokens"), Unknown, None),
    row(Known::Other("fast_input_tokens"), suffixed!("anthropic-fast-input-tokens"), Unknown, None),
    row(Known::Other("fast_output_tokens"), suffixed!("anthropic-fast-output-tokens"), Unknown, None),
    row(Known::Requests, suffixed!("x-rate-limit"), AtOnce, None),
    row(Known::Requests, suffixed!("x-ratelimit"), AtOnce, None),
];

/// The field names of the last row, which a server may send beside the standard ones for the same limit.
const UNNAMED: &str = "x-ratelimit-limit";

/// Every limit that the headers announce. A response out of a cache says nothing about now.
pub(super) fn announced(provider: Provider, headers: &HeaderMap, now: Timestamp) -> Vec<LimitReport> {
    if header::count(headers, "age").is_some_and(|age| age > 0) {
        return Vec::new();
    }
    let mut limits = ietf::limits(headers);
    let standard = !limits.is_empty();
    let rows = ROWS.iter().filter(|row| !(standard && row.limit == UNNAMED));
    limits.extend(rows.filter_map(|row| row.read(provider, headers, now)));
    limits
}

impl Row {
    /// `None` unless the limit or what remains of it was reported: a lone reset is a placeholder.
    fn read(&self, provider: Provider, headers: &HeaderMap, now: Timestamp) -> Option<LimitReport> {
        let (limit, remaining) = (header::count(headers, self.limit), header::count(headers, self.remaining));
        if limit.is_none() && remaining.is_none() {
            return None;
        }
        let reset =
            header::values(headers, self.reset).filter_map(|value| shape::reset(value, now)).max_by_key(|r| r.duration);
        let reset = reset.map(|reset| reset.duration);
        let (restores, window) = match provider {
            // The same headers in minutes, but nobody says how they come back.
            Provider::Azure => (Unknown, Some(MINUTE)),
            _ if self.restores == Gradually => (Gradually, window(limit, remaining, reset).unwrap_or(self.window)),
            _ => (self.restores, self.window),
        };
        Some(LimitReport { dimension: self.dimension.into(), limit, remaining, reset, window, restores })
    }
}

/// The window of a bucket that is full after `reset`: `reset x limit / used`. `None` when nothing can be derived,
/// `Some(None)` when the numbers fit no usual window.
fn window(limit: Option<u64>, remaining: Option<u64>, reset: Option<Duration>) -> Option<Option<Duration>> {
    let (limit, reset) = (limit?, reset?);
    let used = limit.checked_sub(remaining?).filter(|used| *used > 0)?;
    let derived = reset.as_secs_f64() * limit as f64 / used as f64;
    Some(WINDOWS.into_iter().find(|window| (derived / window.as_secs_f64() - 1.0).abs() <= 0.25))
}

impl From<Known> for Dimension {
    fn from(known: Known) -> Self {
        match known {
            Known::Requests => Self::Requests,
            Known::Tokens => Self::Tokens,
            Known::InputTokens => Self::InputTokens,
            Known::OutputTokens => Self::OutputTokens,
            Known::ProjectTokens => Self::ProjectTokens,
            Known::Other(name) => Self::Named(name.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn one(provider: Provider, pairs: &[(&'static str, &'static str)]) -> LimitReport {
        let mut limits = announced(provider, &headers(pairs), NOW);
        assert_eq!(limits.len(), 1, "{limits:?}");
        limits.remove(0)
    }

    #[test]
    fn the_window_is_derived_from_what_was_recorded() {
        for (limit, remaining, reset, seconds) in [
            ("3500", "3499", "17ms", Some(60)),
            ("10000", "9999", "8.64s", Some(86_400)),
            ("14400", "14370", "2m59.56s", Some(86_400)),
            ("60", "59", "20ms", Some(1)),
            ("150000", "149984", "6m0s", None),
            ("100", "90", "4.6s", Some(60)),
            ("100", "90", "7.4s", Some(60)),
            ("100", "90", "4.4s", None),
            ("100", "90", "7.6s", None),
            ("100", "100", "0s", None),
            ("0", "0", "1s", None),
            ("100", "200", "1s", None),
        ] {
            let report = one(
                Provider::OpenAi,
                &[
                    ("x-ratelimit-limit-requests", limit),
                    ("x-ratelimit-remaining-requests", remaining),
                    ("x-ratelimit-reset-requests", reset),
                ],
            );
            assert_eq!(report.window.map(|window| window.as_secs()), seconds, "{limit}/{remaining} {reset}");
            assert_eq!(report.restores, Restores::Gradually);
        }
    }

    #[test]
    fn documented_windows_stand_in_only_where_nothing_can_be_derived() {
        let tokens = |remaining| {
            one(
                Provider::OpenAi,
                &[
                    ("x-ratelimit-limit-project-tokens", "60000"),
                    ("x-ratelimit-remaining-project-tokens", remaining),
                    ("x-ratelimit-reset-project-tokens", "3s"),
                ],
            )
        };
        assert_eq!(tokens("60000").window, Some(MINUTE));
        assert_eq!(tokens("57000").window, Some(MINUTE));
        assert_eq!(tokens("10").window, None);
        assert_eq!(tokens("10").dimension, Dimension::ProjectTokens);
    }

    #[test]
    fn azure_counts_in_minutes_of_unknown_kind() {
        let report = one(
            Provider::Azure,
            &[
                ("x-ratelimit-limit-tokens", "120000"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "19"),
            ],
        );
        assert_eq!((report.restores, report.window), (Restores::Unknown, Some(MINUTE)));
        assert_eq!(report.reset, Some(Duration::from_secs(19)));
    }

    #[test]
    fn placeholders_and_cached_answers_teach_nothing() {
        let placeholder = [
            ("x-ratelimit-limit-requests", "-1"),
            ("x-ratelimit-remaining-requests", "-1"),
            ("x-ratelimit-reset-requests", "0"),
        ];
        assert_eq!(announced(Provider::Azure, &headers(&placeholder), NOW), []);
        let cached = [("age", "3"), ("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0")];
        assert_eq!(announced(Provider::Generic, &headers(&cached), NOW), []);
        let fresh = [("age", "0"), ("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0")];
        assert_eq!(announced(Provider::Generic, &headers(&fresh), NOW).len(), 1);
    }

    #[test]
    fn equal_fields_bind_by_the_strictest_and_bad_ones_keep_their_siblings() {
        let report = one(
            Provider::Generic,
            &[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "50"),
                ("x-ratelimit-remaining", "3"),
                ("x-ratelimit-reset", "soon"),
                ("x-ratelimit-reset", "5"),
                ("x-ratelimit-reset", "9"),
            ],
        );
        assert_eq!((report.limit, report.remaining), (Some(60), Some(3)));
        assert_eq!(report.reset, Some(Duration::from_secs(9)));
        assert_eq!(report.restores, Restores::AtOnce);
    }

    #[test]
    fn one_limit_in_two_notations_is_reported_once() {
        let report = one(
            Provider::Generic,
            &[
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "7"),
                ("ratelimit-reset", "5"),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-reset", "1795176005"),
            ],
        );
        assert_eq!(report.reset, Some(Duration::from_secs(5)));
    }
}
