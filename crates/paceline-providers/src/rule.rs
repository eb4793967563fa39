//! Rules about what answers mean: the user's, which come before everything, and those of the tables.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use paceline_core::{Class, LimitScope};
use serde_json::Value;

use super::body::Body;
use super::names;

/// An answer that looks like this is of that class.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Statuses that match; all when absent.
    pub status: Option<RangeInclusive<u16>>,
    /// A place of the answer that must be there, or hold a value; none when absent.
    pub place: Option<Place>,
    /// The values of which the place must hold one, compared as text. Empty: anything but `null` and `false`.
    pub equals: Vec<String>,
    /// A phrase that the error's message must contain; none when absent.
    pub phrase: Option<Phrase>,
    /// What such an answer is.
    pub class: Class,
    /// How far it reaches.
    pub reach: LimitScope,
    /// The wait, instead of whatever the answer asks for.
    pub wait: Option<Duration>,
}

/// Where a rule looks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A JSON pointer into the body: `/error/code`.
    Pointer(String),
    /// A header.
    Header(HeaderName),
    /// The code or type of the error, wherever the answer carries it.
    Code,
    /// A body that is no JSON: a page, half an object, nothing at all. There is no value to compare.
    NotJson,
    /// A text that stands as it is in the first 64 KiB of the body, whatever that is.
    Text(String),
}

/// A phrase of a message, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phrase {
    /// Anywhere.
    Contains(String),
    /// At its beginning.
    Starts(String),
}

impl Rule {
    /// Whether the first of these rules that may match an answer takes it for a success by its head alone, whatever its body
    /// says.
    pub fn success_by_head(rules: &[Self], status: u16, headers: &HeaderMap) -> bool {
        let mut by_head = rules.iter().take_while(|rule| !rule.reads_bodies());
        let first = by_head.find(|rule| rule.matches(status, headers, &Body::of_refusal(b"", "")));
        first.is_some_and(|rule| rule.class == Class::Success)
    }

    /// Whether it looks at more than status and headers.
    pub(crate) const fn reads_bodies(&self) -> bool {
        self.phrase.is_some() || !matches!(self.place, None | Some(Place::Header(_)))
    }

    /// Whether it may decide about a success.
    pub(crate) fn may_match_success(&self) -> bool {
        self.status.as_ref().is_none_or(|status| *status.start() < 300 && *status.end() >= 200)
    }

    /// Whether an answer of that status looks as this rule says.
    pub(super) fn matches(&self, status: u16, headers: &HeaderMap, body: &Body<'_>) -> bool {
        self.status.as_ref().is_none_or(|statuses| statuses.contains(&status))
            && self.place.as_ref().is_none_or(|place| match place {
                Place::Pointer(pointer) => body.at(pointer).is_some_and(|found| self.accepts(found)),
                Place::Header(name) => self.matches_header(name, headers),
                Place::NotJson => !body.is_json(),
                Place::Text(text) => body.contains(text),
                Place::Code => names::all(headers, body).any(|name| self.equals.iter().any(|known| *known == name)),
            })
            && self.phrase.as_ref().is_none_or(|phrase| {
                let message = body.message().to_ascii_lowercase();
                match phrase {
                    Phrase::Contains(text) => message.contains(text),
                    Phrase::Starts(text) => message.starts_with(text),
                }
            })
    }

    fn accepts(&self, found: &Value) -> bool {
        match found {
            Value::Null => false,
            _ if self.equals.is_empty() => *found != false,
            Value::String(found) => self.equals.contains(found),
            _ => serde_json::to_string(found).is_ok_and(|found| self.equals.contains(&found)),
        }
    }

    fn matches_header(&self, name: &HeaderName, headers: &HeaderMap) -> bool {
        let known = |found: &[u8]| self.equals.iter().any(|expected| expected.as_bytes() == found.trim_ascii());
        headers.get_all(name).iter().any(|found| self.equals.is_empty() || known(found.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::Wanted;
    use super::*;

    fn rule(place: Option<Place>, equals: Option<&str>) -> Rule {
        let equals = equals.map(str::to_owned).into_iter().collect();
        let (class, reach) = (Class::Transient, LimitScope::Item);
        Rule { status: Some(400..=499), place, equals, phrase: None, class, reach, wait: None }
    }

    fn matches(rule: &Rule, status: u16, headers: &HeaderMap, body: &[u8]) -> bool {
        rule.matches(status, headers, &Body::of_refusal(body, ""))
    }

    #[test]
    fn every_part_of_a_rule_must_match() {
        let mut headers = HeaderMap::new();
        headers.insert("x-reason", " busy ".parse().expect("a value"));
        let pointer = |text: &str| Some(Place::Pointer(text.to_owned()));
        let header = |name: &'static str| Some(Place::Header(HeaderName::from_static(name)));
        let body = br#"{"error":{"code":"badNonce","n":7,"off":false,"nil":null},"rest":[{"of":"it"}]}"#;
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
            (pointer("/rest/0/of"), Some("it"), 400, true),
            (header("x-reason"), Some("busy"), 400, true),
            (header("x-reason"), Some("BUSY"), 400, false),
            (header("x-reason"), None, 400, true),
            (header("x-other"), None, 400, false),
            (Some(Place::Code), Some("badNonce"), 400, true),
            (Some(Place::Code), Some("it"), 400, false),
            (Some(Place::NotJson), None, 400, false),
        ] {
            let rule = rule(place, equals);
            assert_eq!(matches(&rule, status, &headers, body), expected, "{rule:?} {status}");
        }
    }

    #[test]
    fn phrases_are_searched_in_the_message_alone() {
        let with = |phrase| Rule { phrase: Some(phrase), ..rule(None, None) };
        let body = br#"{"error":{"code":"paused","message":"It is Paused now"}}"#;
        for (phrase, expected) in [
            (Phrase::Contains("paused".to_owned()), true),
            (Phrase::Contains("code".to_owned()), false),
            (Phrase::Starts("it is".to_owned()), true),
            (Phrase::Starts("paused".to_owned()), false),
        ] {
            assert_eq!(matches(&with(phrase.clone()), 400, &HeaderMap::new(), body), expected, "{phrase:?}");
        }
    }

    #[test]
    fn a_text_is_searched_as_it_is_in_the_beginning_of_any_body() {
        let rule = Rule { status: None, ..rule(Some(Place::Text("Please log in".to_owned())), None) };
        let page = |before: usize| [vec![b' '; before], b"<h1>Please log in</h1>".to_vec()].concat();
        let begin = |body: &[u8]| [&b"<p>"[..], body].concat();
        for (body, expected) in [
            (page(0), true),
            (begin(&page(60_000)), true),
            (begin(&page(70_000)), false),
            (b"<h1>please log in</h1>".to_vec(), false),
            (br#"{"title":"Please log in"}"#.to_vec(), true),
            (b"data: Please log in\n\n".to_vec(), true),
            (b"caf\xe9 Please log in".to_vec(), true),
            (b"Please log".to_vec(), false),
            (Vec::new(), false),
        ] {
            let wanted = Wanted { keys: Some(&[]), arrays: false };
            let headers = HeaderMap::new();
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(rule.matches(200, &headers, &Body::of_success(&body, "text/html", wanted)), expected, "{shown}");
            assert_eq!(matches(&rule, 403, &headers, &body), expected, "{shown}");
        }
    }

    #[test]
    fn a_body_that_is_no_json_has_no_places() {
        let rule = rule(Some(Place::Pointer("/error".to_owned())), None);
        assert!(!matches(&rule, 400, &HeaderMap::new(), b"<html>"));
        let rule = Rule { place: Some(Place::NotJson), ..rule };
        for (body, expected) in [
            (&b"<html>"[..], true),
            (b"{\"a\":1", true),
            (b"", true),
            (b" [1]\n", false),
            (b"\"x\"", false),
            (b"7", false),
        ] {
            assert_eq!(matches(&rule, 400, &HeaderMap::new(), body), expected, "{}", body.escape_ascii());
        }
    }
}
