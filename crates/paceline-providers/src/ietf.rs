//! The RateLimit fields of the IETF, in the three syntaxes that are deployed.
//!
//! A `"` at the start of an item is the current one (a structured-field list of named limits), `limit=` the seventh
//! draft, and separate `RateLimit-Limit`, `-Remaining` and `-Reset` fields are the drafts before it.

use std::time::Duration;

use http::HeaderMap;
use paceline_core::{Dimension, LimitReport, RefillMode};

use super::{header, shape};

/// The limits that these fields announce; a malformed field announces nothing.
pub(super) fn limits(headers: &HeaderMap) -> Vec<LimitReport> {
    let Some(items) = list(headers, "ratelimit") else { return Vec::new() };
    let policies = list(headers, "ratelimit-policy").unwrap_or_default();
    match items.first() {
        Some(first) if first.named => items.iter().filter_map(|item| current(item, &policies)).collect(),
        Some(_) => draft_07(&items, &policies).into_iter().collect(),
        None => draft_03(headers, policies).into_iter().collect(),
    }
}

/// `"burst";r=42;t=12`, with the policy of the same name: `"burst";q=100;w=60`.
fn current(item: &Item<'_>, policies: &[Item<'_>]) -> Option<LimitReport> {
    let policy = policies.iter().find(|policy| policy.named && policy.value == item.value);
    let unit = policy.and_then(|policy| policy.text("qu")).unwrap_or("requests");
    Some(LimitReport {
        dimension: match unit.trim_matches('"') {
            "requests" => Dimension::Requests,
            "content-bytes" => Dimension::Bytes,
            "concurrent-requests" => Dimension::Named("concurrency".into()),
            other => Dimension::Named(other.into()),
        },
        limit: policy.and_then(|policy| policy.number("q")),
        remaining: Some(item.number("r")?),
        reset: item.seconds("t"),
        window: policy.and_then(|policy| policy.seconds("w")),
        restores: RefillMode::AtOnce,
    })
}

/// `limit=100, remaining=50, reset=5`
fn draft_07(items: &[Item<'_>], policies: &[Item<'_>]) -> Option<LimitReport> {
    let number = |name: &str| {
        let value = items.iter().find_map(|item| item.value.strip_prefix(name)?.strip_prefix('='));
        value.and_then(header::whole)
    };
    unnamed(number("limit"), number("remaining"), number("reset"), policies)
}

/// `RateLimit-Limit: 100, 100;w=10` (the limit, then policies), `RateLimit-Remaining: 50`, `RateLimit-Reset: 5`
fn draft_03<'a>(headers: &'a HeaderMap, mut policies: Vec<Item<'a>>) -> Option<LimitReport> {
    let limits = list(headers, "ratelimit-limit")?;
    let limit = limits.first().and_then(|item| header::whole(item.value));
    policies.extend(limits.into_iter().skip(1));
    let reset = header::values(headers, "ratelimit-reset").filter_map(header::whole).max();
    unnamed(limit, header::count(headers, "ratelimit-remaining"), reset, &policies)
}

/// One limit without a name: its window is that of the policy with the same quota, unless the reset is beyond it.
fn unnamed(
    limit: Option<u64>,
    remaining: Option<u64>,
    reset: Option<u64>,
    policies: &[Item<'_>],
) -> Option<LimitReport> {
    if limit.is_none() && remaining.is_none() {
        return None;
    }
    let same = policies.iter().filter(|policy| limit.is_some() && header::whole(policy.value) == limit);
    let reset = reset.and_then(shape::seconds);
    Some(LimitReport {
        dimension: Dimension::Requests,
        limit,
        remaining,
        reset,
        window: same.filter_map(|policy| policy.seconds("w")).find(|window| Some(*window) >= reset),
        restores: RefillMode::AtOnce,
    })
}

/// A member of a structured-field list: a value and its parameters.
struct Item<'a> {
    /// Without its quotes.
    value: &'a str,
    /// Whether the value was a quoted string.
    named: bool,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Item<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = split(text, ';');
        let value = parts.next()?.trim();
        let named = value.starts_with('"');
        let value = if named { value.strip_prefix('"')?.strip_suffix('"')? } else { value };
        let parameters = parts.map(|part| part.trim().split_once('=')).collect::<Option<_>>()?;
        (!value.is_empty()).then_some(Self { value, named, parameters })
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(header::whole)
    }

    fn seconds(&self, name: &str) -> Option<Duration> {
        self.number(name).and_then(shape::seconds)
    }
}

/// No API has more limits for one call; a longer list is a server's mistake or joke.
const MOST_MEMBERS: usize = 32;

/// The first members of a list field, over all its lines; `None` when one of them is malformed.
fn list<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<Vec<Item<'a>>> {
    let members =
        header::values(headers, name).flat_map(|line| split(line, ',')).filter(|member| !member.trim().is_empty());
    members.take(MOST_MEMBERS).map(Item::parse).collect()
}

/// The parts of `text` between separators that stand outside quoted strings.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::proptest;

    fn read(rate_limit: &str, policy: &str) -> Vec<LimitReport> {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", HeaderValue::from_str(rate_limit).expect("printable"));
        headers.insert("ratelimit-policy", HeaderValue::from_str(policy).expect("printable"));
        limits(&headers)
    }

    #[test]
    fn names_may_hold_separators_and_partition_keys_are_skipped() {
        let limits = read(r#""a,b;c";r=4;t=9;pk=:dXNlcjE=:"#, r#""a,b;c";q=10;qu="content-bytes";w=60;pk=:dXNlcjE=:"#);
        let [limit] = &limits[..] else { panic!("{limits:?}") };
        assert_eq!((limit.limit, limit.remaining), (Some(10), Some(4)));
        assert_eq!((limit.reset, limit.window), (Some(Duration::from_secs(9)), Some(Duration::from_secs(60))));
        assert_eq!(limit.dimension, Dimension::Bytes);
    }

    #[test]
    fn a_malformed_field_is_ignored() {
        for field in [r#""open;r=1"#, r#""x";r"#, r#""x";t=5"#, r#"";r=5"#, r#""x";r=-1"#] {
            assert_eq!(read(field, ""), [], "{field}");
        }
    }

    #[test]
    fn a_window_shorter_than_the_reset_is_not_this_limits() {
        let window = |policy| read("limit=100, remaining=50, reset=30", policy)[0].window;
        assert_eq!(window("100;w=10"), None);
        assert_eq!(window("100;w=10, 100;w=60"), Some(Duration::from_secs(60)));
        assert_eq!(window("99;w=60"), None);
    }

    proptest! {
        #[test]
        fn never_panics(field in "[ -~]{0,60}", policy in "[ -~]{0,60}") {
            read(&field, &policy);
        }
    }
}
