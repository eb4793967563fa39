//! The members of an object of counts, and what is known of one: in the place of a number may stand what is none.

use serde_json::{Map, Value};

use crate::usage::MOST;

/// What an answer tells of one count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    #[default]
    Untold,
    /// What is no count: it may be any number.
    Garbled,
    /// It.
    Told,
}

impl Known {
    /// Of one that is there or not, and perhaps `is_garbled`.
    pub(super) const fn of(is_there: bool, is_garbled: bool) -> Self {
        match (is_garbled, is_there) {
            (true, _) => Self::Garbled,
            (false, true) => Self::Told,
            (false, false) => Self::Untold,
        }
    }

    /// Of a sum of two.
    pub(super) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Told, Self::Told) => Self::Told,
            (Self::Untold, Self::Untold) => Self::Untold,
            _ => Self::Garbled,
        }
    }

    /// Of one count that is told in two places.
    pub(super) const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Untold, known) | (known, Self::Untold) => known,
            (Self::Told, Self::Told) => Self::Told,
            _ => Self::Garbled,
        }
    }

    /// After a later event.
    pub(super) const fn updated(self, later: Self) -> Self {
        if matches!(later, Self::Untold) { self } else { later }
    }
}

/// Members of one object.
#[derive(Clone, Copy)]
pub(super) struct Members<'v>(pub(super) &'v Map<String, Value>);

impl<'v> Members<'v> {
    /// The value of that name. So few are found faster one by one than by their hashes.
    pub(super) fn get(self, key: &str) -> Option<&'v Value> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The count of the first of these names that has one.
    pub(super) fn first(self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| count_of(self.get(key)?))
    }

    /// All of those together.
    pub(super) fn sum(self, keys: &[&str]) -> u64 {
        keys.iter().filter_map(|key| count_of(self.get(key)?)).fold(0, u64::saturating_add)
    }

    /// Whether one of these names has a value that is no count.
    pub(super) fn is_garbled(self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.get(key).is_some_and(is_garbled))
    }

    /// The count of that name in an object of these.
    pub(super) fn inside(self, object: &str, key: &str) -> Option<u64> {
        count_of(self.get(object)?.get(key)?)
    }
}

/// A number of tokens; the largest, where several stand under one key.
pub(super) fn count_of(value: &Value) -> Option<u64> {
    let is_count = |tokens: &f64| (0.0..=MOST as f64).contains(tokens) && tokens.fract() == 0.0;
    match value {
        Value::Array(several) => several.iter().filter_map(count_of).max(),
        one => one.as_f64().filter(is_count).map(|tokens| tokens as u64),
    }
}

/// Whether it stands in the place of a number of tokens, and may be any.
pub(super) fn is_garbled(value: &Value) -> bool {
    !value.is_null() && (value.is_array() || count_of(value).is_none())
}
