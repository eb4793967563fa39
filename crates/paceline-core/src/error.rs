//! The error for an invalid configuration.

use alloc::string::String;
use core::fmt;

/// An invalid configuration: which setting, its value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting, as in the configuration file: `concurrency.floor`.
    pub key: String,
    /// What it was set to.
    pub value: String,
    /// The accepted values.
    pub expected: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.key, self.value, self.expected)
    }
}

impl core::error::Error for ConfigError {}
