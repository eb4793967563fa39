//! Limits that answers announce: in header fields that the tables name, in the IETF's, and in bodies.

use std::cmp::Reverse;
use std::time::Duration;

use http::header::AGE;
use http::{HeaderMap, HeaderName};
use paceline_core::{LimitReport, RefillMode, Timestamp};

use super::body::Body;
use super::header::Lengths;
use super::table::{LimitHeaders, Table};
use super::{google_details, header, ietf, shape, shopify};

/// The windows that providers use; a derived one is taken for the nearest within a quarter.
const WINDOWS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(3_600), Duration::from_secs(86_400)];

/// Limits of one answer that are looked at.
const MOST: usize = 32;

/// Every limit that an answer announces. One out of a cache says nothing about now.
pub(super) fn announced(table: &Table, headers: &HeaderMap, body: &Body<'_>, now: Timestamp) -> Vec<LimitReport> {
    if header::count(headers, AGE).is_some_and(|age| age > 0) {
        return Vec::new();
    }
    let lengths = Lengths::of(headers);
    let mut limits = ietf::limits(headers);
    let standard = !limits.is_empty();
    let announced = |rows: &[LimitHeaders]| {
        let rows = rows.iter().filter(|row| !(standard && row.unless_standard));
        rows.filter_map(|row| read(row, headers, lengths, now)).collect::<Vec<_>>()
    };
    limits.extend(announced(&table.limits));
    if limits.is_empty() {
        limits = announced(&table.usual_limits);
    }
    limits.extend(shopify::limit(body));
    limits.extend(google_details::limits(body));
    limits.truncate(MOST);
    strictest_first(&mut limits);
    limits
}

/// Of several limits on the same units the one that is used up next stands first: a pacer obeys one for each.
fn strictest_first(limits: &mut [LimitReport]) {
    let strictness = |limit: &LimitReport| (limit.remaining.unwrap_or(u64::MAX), Reverse(limit.reset));
    for first in 0..limits.len() {
        for other in first + 1..limits.len() {
            let same = limits[first].dimension == limits[other].dimension;
            if same && strictness(&limits[other]) < strictness(&limits[first]) {
                limits.swap(first, other);
            }
        }
    }
}

/// `None` unless the limit or what remains of it was reported: a lone reset is a placeholder.
fn read(row: &LimitHeaders, headers: &HeaderMap, lengths: Lengths, now: Timestamp) -> Option<LimitReport> {
    let may_be_there = |field: &&HeaderName| lengths.may_have(field);
    let (limit, remaining, resets) = match &row.used_of_limit {
        Some(field) => {
            let (limit, remaining) = used_of_limit(headers, field)?;
            (Some(limit), Some(remaining), &[][..])
        }
        None => {
            let count = |field: &Option<HeaderName>| header::count(headers, field.as_ref().filter(may_be_there)?);
            let fields = &row.headers;
            (count(&fields.limit), count(&fields.remaining), &fields.resets[..])
        }
    };
    if limit.is_none() && remaining.is_none() {
        return None;
    }
    let waits = |field: &HeaderName| {
        let values = header::values(headers, field).filter_map(|value| shape::reset(value, now));
        values.map(|reset| reset.duration).max()
    };
    let reset = resets.iter().find_map(waits);
    let derived = (row.restores == RefillMode::Gradually).then(|| window(limit, remaining, reset)).flatten();
    Some(LimitReport {
        dimension: row.dimension.clone(),
        limit,
        remaining,
        reset,
        window: derived.unwrap_or(row.window),
        restores: row.restores,
    })
}

/// `32/40`: the limit and what is left of it, the strictest of several.
fn used_of_limit(headers: &HeaderMap, field: &HeaderName) -> Option<(u64, u64)> {
    let pairs = header::values(headers, field).filter_map(|value| {
        let (used, limit) = value.split_once('/')?;
        let (used, limit) = (header::whole(used.trim())?, header::whole(limit.trim())?);
        Some((limit, limit.saturating_sub(used)))
    });
    pairs.min_by_key(|(_, left)| *left)
}

/// The window of a bucket that is full after `reset`: `reset x limit / used`. `None` when nothing can be derived,
/// `Some(None)` when the numbers fit no usual window.
fn window(limit: Option<u64>, remaining: Option<u64>, reset: Option<Duration>) -> Option<Option<Duration>> {
    let (limit, reset) = (limit?, reset?);
    let used = limit.checked_sub(remaining?).filter(|used| *used > 0)?;
    let derived = reset.as_secs_f64() * limit as f64 / used as f64;
    Some(WINDOWS.into_iter().find(|window| (derived / window.as_secs_f64() - 1.0).abs() <= 0.25))
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::*;
    use http::HeaderValue;
    use paceline_core::Dimension;

    const MINUTE: Duration = Duration::from_secs(60);
    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn announced(provider: Provider, headers: &HeaderMap, now: Timestamp) -> Vec<LimitReport> {
        super::announced(Table::of(provider), headers, &Body::default(), now)
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
            assert_eq!(report.restores, RefillMode::Gradually);
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
    fn no_answer_announces_more_limits_than_any_api_has() {
        let many = (0..5_000).map(|n| format!(r#""l{n}";r={n}"#)).collect::<Vec<_>>().join(", ");
        let headers = HeaderMap::from_iter([(HeaderName::from_static("ratelimit"), many.parse().expect("printable"))]);
        assert_eq!(announced(Provider::Generic, &headers, NOW).len(), MOST);
        let quota = r#"{"quotaId":"GenerateRequestsPerMinute","quotaValue":"5"}"#;
        let details = format!(
            r#"{{"error":{{"details":[{{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{}]}}]}}}}"#,
            [quota; 5_000].join(",")
        );
        let body = Body::of_refusal(details.as_bytes(), "");
        let limits = super::announced(Table::of(Provider::Gemini), &HeaderMap::new(), &body, NOW);
        assert_eq!(limits.len(), MOST);
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
        assert_eq!((report.restores, report.window), (RefillMode::Unknown, Some(MINUTE)));
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
        assert_eq!(report.restores, RefillMode::AtOnce);
    }

    #[test]
    fn of_limits_on_the_same_units_the_next_to_bind_comes_first() {
        let first = |pairs: &[(&'static str, &'static str)], provider| {
            let limits = announced(provider, &headers(pairs), NOW);
            (limits.len(), limits[0].remaining, limits[0].reset.map(|reset| reset.as_secs()))
        };
        let fields = [("ratelimit", r#""burst";r=42;t=12, "daily";r=0;t=50400, "weekly";r=0;t=90000"#)];
        assert_eq!(first(&fields, Provider::Generic), (3, Some(0), Some(90_000)));
        let x = [
            ("x-rate-limit-limit", "900"),
            ("x-rate-limit-remaining", "890"),
            ("x-app-limit-24hour-limit", "1000"),
            ("x-app-limit-24hour-remaining", "7"),
            ("x-app-limit-24hour-reset", "1795186000"),
        ];
        assert_eq!(first(&x, Provider::X), (2, Some(7), Some(10_000)));
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
