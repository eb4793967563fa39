//! What is kept of the key of a client.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// What is kept of a client's key. A key is 256 random bits, so no one can find it by trying: a slow hash, as for passwords
/// that people choose, would cost each request time and protect nothing more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// What each key begins with.
    pub const PREFIX: &str = "pl_";

    /// So many random bytes of a key follow, in hexadecimal digits: nothing finds 256 random bits by trying.
    pub const RANDOM: usize = 32;

    /// That of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// From its hexadecimal digits; none from any other text.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let is_whole = digits.len() == 64 && digits.is_ascii();
        for (byte, at) in bytes.iter_mut().zip((0..digits.len()).step_by(2)).filter(|_| is_whole) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        is_whole.then_some(Self(bytes))
    }

    /// The beginning of it.
    pub(super) fn number(self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("eight bytes"))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}
