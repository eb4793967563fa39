//! The rules of a table, in the form that a user's configuration has, with lists.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use paceline_core::{Class, LimitScope};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::super::rule::{Phrase, Place, Rule};
use super::values::{class, duration, header_name};

/// A rule of a table, and why it is there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableRule {
    pub(crate) rule: Rule,
    pub(crate) note: Option<String>,
}

pub(super) fn rules<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<TableRule>, D::Error> {
    let files = Vec::<RuleFile>::deserialize(from)?;
    files.into_iter().map(|file| file.into_rule().map_err(D::Error::custom)).collect()
}

/// How far an answer of a class usually reaches.
pub(crate) const fn usual_reach(class: Class) -> LimitScope {
    match class {
        Class::Account => LimitScope::Account,
        Class::Throttled | Class::QuotaExhausted | Class::Overloaded | Class::Partial => LimitScope::Scope,
        Class::Success | Class::Transient | Class::Invalid | Class::Filtered | Class::Abandoned => LimitScope::Item,
    }
}

/// A rule as files write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(rename = "match")]
    matches: MatchFile,
    #[serde(deserialize_with = "class")]
    class: Class,
    scope: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    wait: Option<Duration>,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchFile {
    status: Option<Statuses>,
    code: Option<OneOrMany>,
    #[serde(default, deserialize_with = "header_name")]
    header: Option<HeaderName>,
    pointer: Option<String>,
    #[serde(default)]
    equals: OneOrMany,
    message: Option<String>,
    starts: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(u16),
    Range(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl From<OneOrMany> for Vec<String> {
    fn from(values: OneOrMany) -> Self {
        match values {
            OneOrMany::One(value) => vec![value],
            OneOrMany::Many(values) => values,
        }
    }
}

impl RuleFile {
    fn into_rule(self) -> Result<TableRule, String> {
        let MatchFile { status, code, header, pointer, equals, message, starts } = self.matches;
        let status = status.map(Statuses::range).transpose()?;
        let (place, equals) = match (code, header, pointer) {
            (Some(code), None, None) => (Some(Place::Code), code.into()),
            (None, Some(header), None) => (Some(Place::Header(header)), equals.into()),
            (None, None, Some(pointer)) => (Some(Place::Pointer(pointer)), equals.into()),
            (None, None, None) => (None, Vec::new()),
            _ => return Err("a rule looks at one of code, header and pointer".to_owned()),
        };
        let phrase = match (message, starts) {
            (None, None) => None,
            (Some(text), None) => Some(Phrase::Contains(text.to_ascii_lowercase())),
            (None, Some(text)) => Some(Phrase::Starts(text.to_ascii_lowercase())),
            (Some(_), Some(_)) => return Err("a rule has one of message and starts".to_owned()),
        };
        let reach = match self.scope.as_deref() {
            None => usual_reach(self.class),
            Some("item") => LimitScope::Item,
            Some("model") => LimitScope::Scope,
            Some("key") => LimitScope::Account,
            Some(other) => return Err(format!("{other} is no scope")),
        };
        let rule = Rule { status, place, equals, phrase, class: self.class, reach, wait: self.wait };
        Ok(TableRule { rule, note: self.note })
    }
}

impl Statuses {
    fn range(self) -> Result<RangeInclusive<u16>, String> {
        match self {
            Self::One(status) => Ok(status..=status),
            Self::Range(text) => {
                let ends = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                ends.map(|(first, last)| first..=last).ok_or_else(|| format!("{text} is no range of statuses"))
            }
        }
    }
}
