//! Reading header fields: names in any case, several equal fields, rubbish.

use http::header::AsHeaderName;
use http::{HeaderMap, HeaderName};

/// The lengths of the names in a head, as bits. Nearly all fields that a limit or a request id may stand in are absent, and their
/// length says so for a fraction of what it costs to look for them by their hash.
#[derive(Clone, Copy)]
pub(super) struct Lengths(u64);

impl Lengths {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |lengths, name| lengths | Self::bit(name)))
    }

    /// False where no field has that name.
    pub(super) fn may_have(self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name) != 0
    }

    fn bit(name: &HeaderName) -> u64 {
        1 << (name.as_str().len() % 64)
    }
}

/// The readable values of a field, trimmed. A field may come several times.
pub(super) fn values(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).map(str::trim)
}

/// The first readable value of a field.
pub(super) fn first(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    values(headers, name).next()
}

/// A count: the smallest of several, because the strictest one binds. Negative and other values were not reported.
pub(super) fn count(headers: &HeaderMap, name: impl AsHeaderName) -> Option<u64> {
    values(headers, name).filter_map(whole).min()
}

/// A whole number, or the whole part of a decimal one.
pub(super) fn whole(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    whole.parse().ok()
}

/// Whether a field has that value, in any case.
pub(super) fn is(headers: &HeaderMap, name: impl AsHeaderName, value: &str) -> bool {
    values(headers, name).any(|found| found.eq_ignore_ascii_case(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn of_several_counts_the_strictest_binds() {
        let mut headers = HeaderMap::new();
        for value in ["20", "-1", "7", "many", "1e3"] {
            headers.append("x-left", HeaderValue::from_static(value));
        }
        assert_eq!(count(&headers, "x-left"), Some(7));
        assert_eq!(count(&headers, "x-limit"), None);
    }

    #[test]
    fn whole_numbers() {
        for (text, expected) in
            [("0", Some(0)), ("39.5", Some(39)), ("-1", None), ("+1", None), ("", None), (".5", None)]
        {
            assert_eq!(whole(text), expected, "{text:?}");
        }
        assert_eq!(whole(&"9".repeat(400)), None);
    }
}
