//! The RateLimit fields of the IETF, in the three syntaxes that are deployed.
//!
//! A `"` at the start of an item is the current one (a structured-field list of named limits), `limit=` the seventh
//! draft, and separate `RateLimit-Limit`, `-Remaining` and `-Reset` fields are the drafts before it.

use http::HeaderMap;
use paceline_core::{Dimension, LimitReport, RefillMode};
use sfv::{BareItem, Dictionary, FieldType, Item, List, ListEntry, Parser};

use super::{header, shape};

/// The limits that these fields announce; a malformed field announces nothing.
pub(super) fn limits(headers: &HeaderMap) -> Vec<LimitReport> {
    // Of most answers that is all that is looked at.
    if !headers.keys().any(|name| name.as_str().starts_with("ratelimit")) {
        return Vec::new();
    }
    let policies = items(headers, "ratelimit-policy");
    if let Some(fields) = field::<Dictionary>(headers, "ratelimit").filter(|fields| !fields.is_empty()) {
        // `limit=100, remaining=50, reset=5`
        let number = |name: &str| match fields.get(name)? {
            ListEntry::Item(item) => whole(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        return unnamed(number("limit"), number("remaining"), number("reset"), &policies).into_iter().collect();
    }
    if headers.contains_key("ratelimit") {
        return items(headers, "ratelimit").iter().filter_map(|item| current(item, &policies)).collect();
    }
    // `RateLimit-Limit: 100, 100;w=10` (the limit, then policies), `RateLimit-Remaining: 50`, `RateLimit-Reset: 5`
    let limits = items(headers, "ratelimit-limit");
    let limit = limits.first().and_then(|item| whole(&item.bare_item));
    let reset = header::values(headers, "ratelimit-reset").filter_map(header::whole).max();
    let policies: Vec<Item> = policies.into_iter().chain(limits.into_iter().skip(1)).collect();
    unnamed(limit, header::count(headers, "ratelimit-remaining"), reset, &policies).into_iter().collect()
}

/// `"burst";r=42;t=12`, with the policy of the same name: `"burst";q=100;w=60`.
fn current(item: &Item, policies: &[Item]) -> Option<LimitReport> {
    let name = item.bare_item.as_string().filter(|name| !name.as_str().is_empty())?;
    let policy = policies.iter().find(|policy| policy.bare_item.as_string() == Some(name));
    let unit = policy.and_then(|policy| policy.params.get("qu")?.as_string());
    Some(LimitReport {
        dimension: match unit.map_or("requests", |unit| unit.as_str()) {
            "requests" => Dimension::Requests,
            "content-bytes" => Dimension::Bytes,
            "concurrent-requests" => Dimension::Named("concurrency".into()),
            other => Dimension::Named(other.into()),
        },
        limit: policy.and_then(|policy| number(policy, "q")),
        remaining: Some(number(item, "r")?),
        reset: number(item, "t").and_then(shape::seconds),
        window: policy.and_then(|policy| number(policy, "w")).and_then(shape::seconds),
        restores: RefillMode::AtOnce,
    })
}

/// One limit without a name: its window is that of the policy with the same quota, unless the reset is beyond it.
fn unnamed(limit: Option<u64>, remaining: Option<u64>, reset: Option<u64>, policies: &[Item]) -> Option<LimitReport> {
    if limit.is_none() && remaining.is_none() {
        return None;
    }
    let same = policies.iter().filter(|policy| limit.is_some() && whole(&policy.bare_item) == limit);
    let reset = reset.and_then(shape::seconds);
    Some(LimitReport {
        dimension: Dimension::Requests,
        limit,
        remaining,
        reset,
        window: same.filter_map(|policy| number(policy, "w").and_then(shape::seconds)).find(|w| Some(*w) >= reset),
        restores: RefillMode::AtOnce,
    })
}

fn number(item: &Item, parameter: &str) -> Option<u64> {
    item.params.get(parameter).and_then(whole)
}

fn whole(value: &BareItem) -> Option<u64> {
    value.as_integer().and_then(|number| i64::from(number).try_into().ok())
}

/// A field over all its lines; none where it is not there or malformed.
fn field<T: FieldType>(headers: &HeaderMap, name: &'static str) -> Option<T> {
    let lines: Vec<&str> = header::values(headers, name).collect();
    Parser::new(&lines.join(",")).parse().ok()
}

/// No API has more limits for one call; a longer list is a server's mistake or joke.
const MOST_MEMBERS: usize = 32;

/// The first members of a list field.
fn items(headers: &HeaderMap, name: &'static str) -> Vec<Item> {
    let members = field::<List>(headers, name).unwrap_or_default().into_iter().take(MOST_MEMBERS);
    members.filter_map(|member| if let ListEntry::Item(item) = member { Some(item) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::proptest;
    use std::time::Duration;

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
