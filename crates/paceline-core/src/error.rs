//! What is refused before it begins: an invalid configuration, and a request that can never start.

use alloc::string::String;
use core::fmt;

use crate::cost::Dimension;
use crate::quota::LARGEST_LIMIT;

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

/// A request that can never start: it alone exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLarge {
    /// What is counted.
    pub dimension: Dimension,
    /// What the request costs.
    pub cost: u64,
    /// What the limit allows at once.
    pub limit: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dimension, .. } = self;
        let [cost, limit] = [self.cost, self.limit].map(|units| dimension.amount(units));
        if self.cost > LARGEST_LIMIT {
            return write!(
                f,
                "the request asks for more {dimension} than any limit can allow, the limit is {limit}: it can never start"
            );
        }
        write!(f, "the request costs {cost} {dimension}, the limit is {limit}: it can never start")
    }
}

impl core::error::Error for TooLarge {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn a_cost_beyond_every_limit_is_told_in_words() {
        let told = |cost| TooLarge { dimension: Dimension::Tokens, cost, limit: 3_000 }.to_string();
        assert_eq!(told(4_834), "the request costs 4834 tokens, the limit is 3000: it can never start");
        let beyond = "the request asks for more tokens than any limit can allow, the limit is 3000: it can never start";
        assert_eq!([told(u64::MAX), told((1 << 48) + 1)], [beyond; 2]);
    }
}
