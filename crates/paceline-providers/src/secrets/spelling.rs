//! One key in the spellings that encoders give it.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memchr3;

/// The key in base64, alone and behind other bytes: of each only those letters that no neighbour has a part in.
pub(super) fn in_base64(key: &[u8]) -> impl Iterator<Item = Vec<u8>> + use<> {
    let behind = |before: usize| {
        let bytes = [&[0; 2][..before], key].concat();
        // A letter stands for six bits.
        let letters = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)].map(|text| text[letters.clone()].into())
    };
    [behind(0), behind(1), behind(2)].into_iter().flatten()
}

/// Which bytes of keys an escape may stand for.
#[derive(Clone, Debug)]
pub(super) struct Escapes([bool; 256]);

impl Default for Escapes {
    fn default() -> Self {
        Self([false; 256])
    }
}

impl Escapes {
    pub(super) fn of(bytes: impl Iterator<Item = u8>) -> Self {
        let mut all = Self::default();
        bytes.for_each(|byte| all.0[usize::from(byte)] = true);
        all
    }

    /// Whether some of them are in a text as an escape: only then a key may be there that is not found as it is.
    pub(super) fn are_in(&self, text: &[u8]) -> bool {
        let (mut rest, mut found) = (text, false);
        while let Some(at) = memchr3(b'\\', b'%', b'&', rest).filter(|_| !found) {
            let (unit, len) = unit(&rest[at..]);
            found = match unit {
                Unit::Read(char) => self.has(char),
                // A letter behind a backslash is a line break or the like, which no key holds.
                Unit::Nothing => {
                    let next = rest.get(at + len).filter(|next| !next.is_ascii_alphabetic());
                    self.has('\\') || next.is_some_and(|next| self.0[usize::from(*next)])
                }
                Unit::Plain => false,
            };
            rest = &rest[at + len..];
        }
        found
    }

    fn has(&self, char: char) -> bool {
        let mut buffer = [0; 4];
        char.encode_utf8(&mut buffer).bytes().all(|byte| self.0[usize::from(byte)])
    }
}

/// Where a text begins to spell the key, and where that ends. Backslashes count for nothing, in the text as in the key: they
/// are how encoders escape, once, or twice where JSON stands in JSON.
pub(super) fn find(key: &[u8], text: &[u8]) -> Option<Range<usize>> {
    let key: Vec<u8> = key.iter().copied().filter(|byte| *byte != b'\\').collect();
    let first = *key.first()?;
    let may_begin = |byte: &u8| *byte == first || matches!(byte, b'\\' | b'%' | b'&');
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(may_begin) {
        let at = from + at;
        if let Some(len) = spelled(&key, &text[at..]) {
            return Some(at..at + len);
        }
        // A match may begin in the middle of letters, but not in the middle of an escape.
        from = at + unit(&text[at..]).1;
    }
    None
}

/// How much of a text's beginning spells the key.
fn spelled(key: &[u8], text: &[u8]) -> Option<usize> {
    let (mut key, mut at) = (key, 0);
    while !key.is_empty() {
        let (unit, len) = unit(text.get(at..)?);
        key = match unit {
            Unit::Nothing => key,
            Unit::Plain => key.strip_prefix(text.get(at..=at)?)?,
            Unit::Read(char) => key.strip_prefix(char.encode_utf8(&mut [0; 4]).as_bytes())?,
        };
        at += len;
    }
    Some(at)
}

/// What a text begins with.
enum Unit {
    /// A byte that stands for itself.
    Plain,
    /// Backslashes before what they escape, `%5C` too.
    Nothing,
    /// `\u0073`, `%73`, `&#x73;`.
    Read(char),
}

/// What a text begins with, and its length.
fn unit(text: &[u8]) -> (Unit, usize) {
    match text.first() {
        Some(b'\\') => {
            let mut run = 0;
            while let [b'\\', escaped @ ..] = &text[run..] {
                run += if escaped.starts_with(b"u005c") || escaped.starts_with(b"u005C") { 6 } else { 1 };
            }
            let code = text[run..].strip_prefix(b"u").and_then(|code| hexadecimal(code, 4));
            match code.and_then(char::from_u32) {
                None => (Unit::Nothing, run),
                // Some encoders of JSON escape what HTML has escaped.
                Some('&') => reference(&text[run + 5..], run + 5).unwrap_or((Unit::Read('&'), run + 5)),
                Some(char) => (Unit::Read(char), run + 5),
            }
        }
        Some(b'&') => reference(&text[1..], 1).unwrap_or((Unit::Plain, 1)),
        Some(b'%') => {
            // Encoded again, % is %25.
            let mut at = 1;
            while text[at..].starts_with(b"25") && hexadecimal(&text[at + 2..], 2).is_some() {
                at += 2;
            }
            let code = hexadecimal(&text[at..], 2).and_then(char::from_u32).filter(char::is_ascii);
            match code {
                Some('\\') => (Unit::Nothing, at + 2),
                Some(char) => (Unit::Read(char), at + 2),
                None => (Unit::Plain, 1),
            }
        }
        _ => (Unit::Plain, 1),
    }
}

/// What a reference of HTML stands for, whose `&` has taken so many bytes, and the length of both. Escaped again, `&` is `&amp;`.
fn reference(text: &[u8], taken: usize) -> Option<(Unit, usize)> {
    let mut again = 0;
    while text[again..].starts_with(b"amp;") {
        again += 4;
    }
    let (char, len) = match named(&text[again..]) {
        None if again > 0 => ('&', 0),
        named => named?,
    };
    Some((if char == '\\' { Unit::Nothing } else { Unit::Read(char) }, taken + again + len))
}

/// The character of a reference behind its `&`, and the length of that.
fn named(text: &[u8]) -> Option<(char, usize)> {
    const NAMES: [(&[u8], char); 9] = [
        (b"quot", '"'),
        (b"apos", '\''),
        (b"lt", '<'),
        (b"gt", '>'),
        (b"plus", '+'),
        (b"sol", '/'),
        (b"equals", '='),
        (b"lowbar", '_'),
        (b"colon", ':'),
    ];
    // The largest number of a character has seven digits; zeros may stand before them.
    let end = text.iter().take(12).position(|byte| *byte == b';')?;
    let char = match &text[..end] {
        [b'#', b'x' | b'X', code @ ..] => hexadecimal(code, code.len()).and_then(char::from_u32),
        [b'#', code @ ..] => str::from_utf8(code).ok()?.parse().ok().and_then(char::from_u32),
        name => NAMES.iter().find(|(known, _)| *known == name).map(|(_, char)| *char),
    };
    Some((char?, end + 1))
}

fn hexadecimal(text: &[u8], digits: usize) -> Option<u32> {
    let mut digits = text.get(..digits)?.iter().map(|digit| char::from(*digit).to_digit(16));
    digits.try_fold(0_u32, |number, digit| number.checked_mul(16)?.checked_add(digit?))
}
