//! What is refused at construction.

use alloc::string::String;
use core::fmt;

/// A configuration that cannot be: which knob, its value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The knob, as in the configuration file: `concurrency.floor`.
    pub key: String,
    /// What it was set to.
    pub value: String,
    /// What would have been right.
    pub expected: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.key, self.value, self.expected)
    }
}

impl core::error::Error for ConfigError {}
