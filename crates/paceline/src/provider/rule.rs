//! Rules of the user, which come before everything that is known about a provider.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use paceline_core::{Class, Reach};
use serde_json::Value;

use super::Answer;

/// An answer that looks like this is of that class.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Statuses that match; all when absent.
    pub status: Option<RangeInclusive<u16>>,
    /// A place of the answer that must be there, or hold a value; none when absent.
    pub place: Option<Place>,
    /// The value at the place, compared as text. Absent: anything but `null` and `false`.
    pub equals: Option<String>,
    /// What such an answer is.
    pub class: Class,
    /// How far it reaches.
    pub reach: Reach,
    /// The wait, instead of whatever the answer asks for.
    pub wait: Option<Duration>,
}

/// Where a rule looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A JSON pointer into the body: `/error/code`.
    Pointer(String),
    /// A header.
    Header(HeaderName),
}

impl Rule {
    /// Whether an answer looks as this rule says.
    pub fn matches(&self, answer: &Answer<'_>) -> bool {
        self.status.as_ref().is_none_or(|statuses| statuses.contains(&answer.status))
            && self.place.as_ref().is_none_or(|place| match place {
                Place::Pointer(pointer) => self.matches_body(pointer, answer.body),
                Place::Header(name) => self.matches_header(name, answer.headers),
            })
    }

    fn matches_body(&self, pointer: &str, body: &[u8]) -> bool {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (body.pointer(pointer), &self.equals) {
            (None | Some(Value::Null), _) => false,
            (Some(Value::String(found)), Some(expected)) => found == expected,
            (Some(found), Some(expected)) => serde_json::to_string(found).is_ok_and(|found| found == *expected),
            (Some(found), None) => *found != false,
        }
    }

    fn matches_header(&self, name: &HeaderName, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(name).iter();
        values.any(|found| {
            self.equals.as_ref().is_none_or(|expected| found.as_bytes().trim_ascii() == expected.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(place: Option<Place>, equals: Option<&str>) -> Rule {
        let equals = equals.map(str::to_owned);
        Rule { status: Some(400..=499), place, equals, class: Class::Transient, reach: Reach::Item, wait: None }
    }

    #[test]
    fn every_part_of_a_rule_must_match() {
        let mut headers = HeaderMap::new();
        headers.insert("x-reason", " busy ".parse().expect("a value"));
        let pointer = |text: &str| Some(Place::Pointer(text.to_owned()));
        let header = |name: &'static str| Some(Place::Header(HeaderName::from_static(name)));
        let body = br#"{"error":{"code":"badNonce","n":7,"off":false,"nil":null}}"#;
        for (place, equals, status, expected) in [
            (None, None, 400, true),
            (None, None, 500, false),
            (pointer("/error/code"), Some("badNonce"), 400, true),
            (pointer("/error/code"), Some("other"), 400, false),
            (pointer("/error/code"), Some("badNonce"), 503, false),
            (pointer("/error/n"), Some("7"), 429, true),
            (pointer("/error/n"), None, 429, true),
            (pointer("/error/off"), None, 400, false),
            (pointer("/error/off"), Some("false"), 400, true),
            (pointer("/error/nil"), None, 400, false),
            (pointer("/nothing"), None, 400, false),
            (header("x-reason"), Some("busy"), 400, true),
            (header("x-reason"), Some("BUSY"), 400, false),
            (header("x-reason"), None, 400, true),
            (header("x-other"), None, 400, false),
        ] {
            let rule = rule(place, equals);
            assert_eq!(
                rule.matches(&Answer { status, headers: &headers, body, path: "" }),
                expected,
                "{rule:?} {status}"
            );
        }
    }

    #[test]
    fn a_body_that_is_no_json_has_no_places() {
        let rule = rule(Some(Place::Pointer("/error".to_owned())), None);
        assert!(!rule.matches(&Answer { status: 400, headers: &HeaderMap::new(), body: b"<html>", path: "" }));
    }
}
