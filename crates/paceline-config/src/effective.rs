//! Every value in force, with its source.

use paceline_providers::secrets::hidden;

use super::error::{SettingError, Source};
use super::setting::Setting;

/// A value in force: a row of `paceline check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveValue {
    /// The setting, as in the upstream's part of the configuration file: `retry.base`.
    pub key: String,
    /// The value, as the file would have it.
    pub value: String,
    /// Where it was set.
    pub source: Source,
}

/// Writes down each value as it is settled.
pub(crate) struct Ledger {
    /// What stands before every key in an error: `upstream.openai`.
    place: String,
    rows: Vec<EffectiveValue>,
    idle: Vec<EffectiveValue>,
}

impl Ledger {
    pub(crate) fn new(place: String) -> Self {
        Self { place, rows: Vec::new(), idle: Vec::new() }
    }

    /// An empty one for settings of which it is not clear yet whether they act.
    pub(crate) fn beside(&self) -> Self {
        Self::new(self.place.clone())
    }

    /// Adds the rows of settings that act. Of the others those are kept apart that the user set.
    pub(crate) fn take_over(&mut self, other: Self, acts: impl Fn(&EffectiveValue) -> bool) {
        for row in other.rows {
            if acts(&row) {
                self.rows.push(row);
            } else if row.source != Source::Default {
                self.idle.push(row);
            }
        }
    }

    /// The setting's full name, for errors.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.place)
    }

    /// A value that looks like a secret is hidden: the user may have put a key in the wrong place.
    pub(crate) fn note(&mut self, key: impl Into<String>, value: impl AsRef<str>, source: Source) {
        let value = hidden(value.as_ref()).into_owned();
        self.rows.push(EffectiveValue { key: key.into(), value, source });
    }

    /// A value that the user set and that does not act.
    pub(crate) fn idle(&mut self, key: &str, value: &str, source: Source) {
        self.idle.push(EffectiveValue { key: key.to_owned(), value: hidden(value).into_owned(), source });
    }

    /// Resolves a setting: the configured value, or the default.
    pub(crate) fn settle<T>(
        &mut self,
        key: &str,
        setting: Option<&Setting>,
        default: T,
        read: impl FnOnce(&Setting, &str) -> Result<T, SettingError>,
        show: impl FnOnce(&T) -> String,
    ) -> Result<T, SettingError> {
        let (value, source) = match setting {
            Some(setting) => (read(setting, &self.name(key))?, setting.source().clone()),
            None => (default, Source::Default),
        };
        self.note(key, show(&value), source);
        Ok(value)
    }

    /// What is in force, and what the user set that is not.
    pub(crate) fn into_rows(self) -> (Vec<EffectiveValue>, Vec<EffectiveValue>) {
        (self.rows, self.idle)
    }
}
