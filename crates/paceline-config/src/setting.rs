//! One value as the user wrote it, and where: what every layer of the configuration is made of.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use paceline_providers::secrets::SECRET;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::error::{KEY_PLACE, SettingError, Source};
use super::units;

/// A value as written. Numbers, words and short lists all keep their text, so that file, environment and flags share
/// one parser for each kind of value, and an error can show what was written.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) text: String,
    origin: Origin,
}

/// The place in a text that is still being read, or the source once it is known.
#[derive(Clone, Debug)]
enum Origin {
    Span(Range<usize>),
    Known(Source),
}

impl Setting {
    pub(crate) fn new(text: impl Into<String>, source: Source) -> Self {
        Self { text: text.into(), origin: Origin::Known(source) }
    }

    /// A value in a text that is still being read.
    pub(crate) fn at(text: String, span: Range<usize>) -> Self {
        Self { text, origin: Origin::Span(span) }
    }

    pub(crate) fn source(&self) -> &Source {
        match &self.origin {
            Origin::Known(source) => source,
            Origin::Span(_) => unreachable!("every layer locates its settings before they are used"),
        }
    }

    pub(crate) fn locate(&mut self, locator: &Locator<'_>) {
        if let Origin::Span(span) = &self.origin {
            self.origin = Origin::Known(locator.source(span));
        }
    }

    /// An error about this value.
    pub(crate) fn refuse(&self, key: &str, expected: impl Into<String>) -> SettingError {
        let (key, value, origin) = (key.to_owned(), self.text.clone(), self.source().clone());
        SettingError::Value { key, value, origin, expected: expected.into() }
    }

    /// The file that it names. In a configuration file a relative path begins at the folder of that file, wherever the program
    /// was begun; in a flag or a variable at the present folder.
    pub(crate) fn path(&self) -> PathBuf {
        self.beside(&self.text)
    }

    /// The same for a file that is a part of the value.
    pub(crate) fn beside(&self, file: &str) -> PathBuf {
        match self.source() {
            Source::File { path, .. } => path.parent().unwrap_or(Path::new("")).join(file),
            _ => PathBuf::from(file),
        }
    }

    /// A whole number of at least `least`; `10k` and `1_000` are understood.
    pub(crate) fn whole(&self, key: &str, least: u64, most: u64) -> Result<u64, SettingError> {
        let number = units::number(&self.text).filter(|n| n.fract() == 0.0).map(|n| n as u64);
        number.filter(|n| (least..=most).contains(n)).ok_or_else(|| match most {
            u64::MAX => self.refuse(key, format!("a whole number of at least {least}")),
            _ => self.refuse(key, format!("a whole number from {least} to {most}")),
        })
    }

    /// [`Self::whole`] for counts that fit 32 bits.
    pub(crate) fn count(&self, key: &str, least: u32, most: u32) -> Result<u32, SettingError> {
        let number = self.whole(key, u64::from(least), u64::from(most))?;
        Ok(u32::try_from(number).expect("bounded by `most`"))
    }

    /// A finite number that `accept` accepts.
    pub(crate) fn number(&self, key: &str, accept: impl Fn(f64) -> bool, expected: &str) -> Result<f64, SettingError> {
        units::number(&self.text).filter(|n| accept(*n)).ok_or_else(|| self.refuse(key, expected))
    }

    /// A duration, 0 to 366 days.
    pub(crate) fn duration(&self, key: &str) -> Result<Duration, SettingError> {
        units::duration(&self.text).ok_or_else(|| self.refuse(key, units::EXPECTED_DURATION))
    }

    /// A duration above 0.
    pub(crate) fn period(&self, key: &str) -> Result<Duration, SettingError> {
        let duration = self.duration(key)?;
        if duration.is_zero() { Err(self.refuse(key, "a duration above 0")) } else { Ok(duration) }
    }

    /// An absolute address without credentials: it appears in logs and in journals.
    pub(crate) fn web_address(&self, key: &str, example: &str) -> Result<String, SettingError> {
        let expected = &format!("an address such as {example}, without query");
        let with_secret = |shown: &str, expected: &str| {
            let hidden = Self::new(format!("{shown}{SECRET}"), self.source().clone());
            Err(hidden.refuse(key, format!("{expected}; {KEY_PLACE}")))
        };
        if self.text.contains('@') {
            return with_secret("", "an address without a user name and a password");
        }
        if let Some((address, _)) = self.text.split_once('?') {
            return with_secret(&format!("{address}?"), "an address without query");
        }
        let text = self.text.trim_end_matches('/');
        if !text.contains("://") && !text.is_empty() {
            return Err(self.refuse(key, format!("http:// or https:// before it: an address such as {example}")));
        }
        let uri: Uri = text.parse().map_err(|_| self.refuse(key, expected))?;
        let web = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = uri.host().unwrap_or_default();
        let after_host =
            uri.authority().and_then(|authority| authority.as_str().strip_prefix(host)).unwrap_or_default();
        let port = after_host.is_empty() || uri.port_u16().is_some_and(|port| port > 0);
        if web && !host.is_empty() && port && uri.query().is_none() && !text.contains('#') {
            return Ok(text.to_owned());
        }
        Err(self.refuse(key, expected))
    }
}

/// The operations on every part of a layer.
pub(crate) trait Layered: Sized {
    /// Its own values, and those of a lower layer where it has none.
    fn over(self, lower: Self) -> Self;
    /// Sets the source of every value.
    fn locate(&mut self, locator: &Locator<'_>);
}

impl Layered for Setting {
    fn over(self, _lower: Self) -> Self {
        self
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        Self::locate(self, locator);
    }
}

impl<T: Layered> Layered for Option<T> {
    fn over(self, lower: Self) -> Self {
        match (self, lower) {
            (Some(own), Some(lower)) => Some(own.over(lower)),
            (own, lower) => own.or(lower),
        }
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        if let Some(part) = self {
            part.locate(locator);
        }
    }
}

/// Tiers and rules are lists whose order means something: a higher layer replaces them whole.
impl<T: Layered> Layered for Vec<T> {
    fn over(self, _lower: Self) -> Self {
        self
    }

    fn locate(&mut self, locator: &Locator<'_>) {
        for part in self {
            part.locate(locator);
        }
    }
}

/// Turns a place in a text into a [`Source`].
pub(crate) enum Locator<'a> {
    /// A configuration file and its text.
    File(&'a Path, &'a str),
    /// One environment variable.
    Variable(&'a str),
}

impl Locator<'_> {
    fn source(&self, span: &Range<usize>) -> Source {
        match self {
            Self::File(path, text) => {
                let before = text.get(..span.start).unwrap_or_default();
                Source::File { path: path.to_path_buf(), line: Some(before.matches('\n').count() + 1) }
            }
            Self::Variable(name) => Source::Environment((*name).to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Spanned::<Written>::deserialize(deserializer)?;
        let span = written.span();
        Ok(Self::at(written.into_inner().0, span))
    }
}

/// The text of a number, a word or a list of them.
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Written;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, a text or a list of them")
            }

            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Written, E> {
                Ok(Written(value.to_string()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Written, A::Error> {
                let mut texts = Vec::new();
                while let Some(Written(text)) = list.next_element()? {
                    if text.starts_with('[') {
                        return Err(A::Error::custom("a list within a list means nothing here"));
                    }
                    texts.push(text);
                }
                Ok(Written(format!("[{}]", texts.join(", "))))
            }
        }

        deserializer.deserialize_any(Text)
    }
}
