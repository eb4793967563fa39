//! How single values of a table are read.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use paceline_core::{Class, Dimension, RefillMode, parse_duration};
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

use super::Fields;

/// Header fields with their values.
pub type HeaderFields = Vec<(HeaderName, HeaderValue)>;

pub(super) fn authorization() -> HeaderName {
    http::header::AUTHORIZATION
}

pub(super) fn class<'de, D: Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
    let name = String::deserialize(from)?;
    Class::from_name(&name).ok_or_else(|| D::Error::custom(format!("{name} is no class")))
}

pub(super) fn dimension<'de, D: Deserializer<'de>>(from: D) -> Result<Dimension, D::Error> {
    String::deserialize(from).map(|name| Dimension::from_name(&name))
}

pub(super) fn restores<'de, D: Deserializer<'de>>(from: D) -> Result<RefillMode, D::Error> {
    match String::deserialize(from)?.as_str() {
        "gradually" => Ok(RefillMode::Gradually),
        "at_once" => Ok(RefillMode::AtOnce),
        "unknown" => Ok(RefillMode::Unknown),
        other => Err(D::Error::custom(format!("{other}: expected gradually, at_once or unknown"))),
    }
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let read = |text: String| parse_duration(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no duration")));
    text.map(read).transpose()
}

pub(super) fn header_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HeaderName>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

pub(super) fn header_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

pub(super) fn one_header_name<'de, D: Deserializer<'de>>(from: D) -> Result<HeaderName, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

pub(super) fn header_fields<'de, D: Deserializer<'de>>(from: D) -> Result<HeaderFields, D::Error> {
    let fields = BTreeMap::<String, String>::deserialize(from)?;
    let field = |(name, value): (String, String)| {
        let name = name.parse().map_err(D::Error::custom)?;
        Ok((name, value.parse().map_err(D::Error::custom)?))
    };
    fields.into_iter().map(field).collect()
}

pub(super) fn prefixes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    let paths = BTreeMap::<String, String>::deserialize(from)?;
    Ok(paths.into_iter().rev().collect())
}

pub(super) fn fields<'de, D: Deserializer<'de>>(from: D) -> Result<Fields, D::Error> {
    let mut names = VecDeque::from(header_names(from)?);
    let (limit, remaining) = (names.pop_front(), names.pop_front());
    Ok(Fields { limit, remaining, resets: names.into() })
}
