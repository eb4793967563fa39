//! One key in the spellings that encoders give it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::{memchr3, memchr3_iter, memrchr3};

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

/// The key in hexadecimal, in small and in capital letters.
pub(super) fn in_hexadecimal(key: &[u8]) -> impl Iterator<Item = Vec<u8>> + use<> {
    let written = |digits: &[u8; 16]| {
        key.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|half| digits[usize::from(half)]).collect()
    };
    [written(b"0123456789abcdef"), written(b"0123456789ABCDEF")].into_iter()
}

/// The key in UTF-16 and UTF-32, whose letters have one and three zeros between them in either order of bytes.
pub(super) fn in_wide_letters(key: &[u8]) -> impl Iterator<Item = Vec<u8>> + use<> {
    let apart = |zeros: usize| key.iter().map(|letter| vec![*letter]).collect::<Vec<_>>().join(&[0; 3][..zeros]);
    [apart(1), apart(3)].into_iter()
}

/// The end of a text, as much as is looked through for a key of so many letters that has begun: programs spell `&` in 9 bytes as
/// `&amp;amp;`, and in 13 in JSON in JSON in JSON, as `\\\\\\\\u0026`.
pub(super) fn end_of(text: &[u8], letters: usize) -> &[u8] {
    let most = (letters * 16).min(MOST_HELD).max(letters) + LONGEST_ESCAPE;
    &text[text.len() - text.len().min(most)..]
}

/// No more of a part is looked through for a spelling that has begun, and kept back: a server may send it byte by byte.
const MOST_HELD: usize = 4 << 10;

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
        let mut from = 0;
        while let Some(at) = memchr3(b'\\', b'%', b'&', &text[from..]).map(|at| from + at) {
            let itself = (char::from(text[at]), 1);
            let mut readings = std::iter::once(itself).chain(escapes(&text[at..]));
            if readings.any(|(char, len)| match char {
                // A letter behind a backslash is a line break or the like, which no key holds.
                '\\' => {
                    let next = text.get(at + len).filter(|next| !next.is_ascii_alphabetic());
                    self.has('\\') || next.is_some_and(|next| self.0[usize::from(*next)])
                }
                char => len > 1 && self.has(char),
            }) {
                return true;
            }
            from = at + 1;
        }
        false
    }

    /// The same of a text that goes on, where an escape may be cut off.
    pub(super) fn may_be_in(&self, text: &[u8]) -> bool {
        self.are_in(text) || memrchr3(b'\\', b'%', b'&', text).is_some_and(|at| is_cut_off(&text[at..]))
    }

    fn has(&self, char: char) -> bool {
        let mut buffer = [0; 4];
        char.encode_utf8(&mut buffer).bytes().all(|byte| self.0[usize::from(byte)])
    }
}

pub(super) fn may_hold_escapes(text: &[u8]) -> bool {
    memchr3(b'\\', b'%', b'&', text).is_some()
}

/// A text as it is read, and where its letters stand in it.
pub(super) struct Text<'a> {
    pub(super) letters: Cow<'a, [u8]>,
    /// Where the letters stand in another place than the one before lets expect.
    spans: Vec<Span>,
}

/// The letters from one on.
struct Span {
    letter: usize,
    /// Where it stands in the text.
    at: usize,
    /// So many bytes of the text spell this letter, where they are an escape; of others each is a byte.
    escape: Option<usize>,
}

impl<'a> Text<'a> {
    /// Byte by byte.
    pub(super) const fn as_it_is(text: &'a [u8]) -> Self {
        Self { letters: Cow::Borrowed(text), spans: Vec::new() }
    }

    /// With what escapes stand for in their place, through all layers of them. Backslashes count for nothing: they are how
    /// encoders escape, once, or twice where JSON stands in JSON.
    pub(super) fn without_escapes(text: &[u8]) -> Self {
        let (mut letters, mut spans, mut from) = (Vec::with_capacity(text.len()), Vec::new(), 0);
        while let Some(at) = memchr3(b'\\', b'%', b'&', &text[from..]).map(|at| from + at) {
            letters.extend_from_slice(&text[from..at]);
            let itself = (char::from(text[at]), 1);
            let (char, len) = escapes(&text[at..]).last().unwrap_or(itself);
            from = at + len;
            if char != '\\' {
                spans.push(Span { letter: letters.len(), at, escape: Some(len) });
                letters.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
            spans.push(Span { letter: letters.len(), at: from, escape: None });
        }
        letters.extend_from_slice(&text[from..]);
        Self { letters: Cow::Owned(letters), spans }
    }

    /// Where these letters stand in the text.
    pub(super) fn place(&self, letters: Range<usize>) -> Range<usize> {
        self.letter(letters.start).start..self.letter(letters.end - 1).end
    }

    fn letter(&self, letter: usize) -> Range<usize> {
        let known = self.spans.partition_point(|span| span.letter <= letter);
        match self.spans[..known].last() {
            None => letter..letter + 1,
            Some(Span { at, escape: Some(len), .. }) => *at..at + len,
            Some(span) => span.at + letter - span.letter..span.at + letter - span.letter + 1,
        }
    }
}

/// Where an escape ends that began before a place of a text, and stands for such a character: there, or behind it.
pub(super) fn end_of_escape(text: &[u8], at: usize, is_such: impl Fn(char) -> bool) -> Option<usize> {
    if let [.., b'\\', b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'0'] = text[..at] {
        return Some(at);
    }
    let from = at - at.min(LONGEST_ESCAPE);
    let mut begun = memchr3_iter(b'\\', b'%', b'&', &text[from..at]).map(|lead| from + lead);
    begun.find_map(|lead| {
        let (char, len) = escapes(&text[lead..]).last()?;
        (lead + len >= at && is_such(char)).then_some(lead + len)
    })
}

/// How many bytes at the end of a text are the beginning of an escape.
pub(super) fn cut_off_in(text: &[u8]) -> usize {
    let end = text.len() - text.len().min(LONGEST_ESCAPE);
    let cut_off = memchr3_iter(b'\\', b'%', b'&', &text[end..]).find(|at| is_cut_off(&text[end + at..]));
    cut_off.map_or(0, |at| text.len() - super::cut::before_backslashes(text, end + at))
}

/// More bytes than programs take for an escape, also of an escape.
const LONGEST_ESCAPE: usize = 64;

/// Where a text begins to spell the key, and where that ends. Backslashes count for nothing, in the text as in the key: they
/// are how encoders escape, once, or twice where JSON stands in JSON.
pub(super) fn find(key: &[u8], text: &[u8]) -> Option<Range<usize>> {
    let key = without_backslashes(key);
    let first = *key.first()?;
    let may_begin = |byte: &u8| *byte == first || matches!(byte, b'\\' | b'%' | b'&');
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(may_begin) {
        let at = from + at;
        if let Some(len) = spelled(&key, &text[at..]) {
            return Some(at..at + len);
        }
        from = at + backslashes(&text[at..]).max(1);
    }
    None
}

/// How many bytes at the end of a text may begin to spell the key, where the rest is in the next part.
pub(super) fn begun_in(key: &[u8], text: &[u8]) -> usize {
    let key = without_backslashes(key);
    let Some(first) = key.first() else { return 0 };
    let mut from = text.len() - end_of(text, key.len()).len();
    let may_begin = |byte: &u8| byte == first || matches!(byte, b'\\' | b'%' | b'&');
    while let Some(at) = text[from..].iter().position(may_begin) {
        let at = from + at;
        if longest(&key, &text[at..]).goes_on {
            return text.len() - at;
        }
        from = at + backslashes(&text[at..]).max(1);
    }
    0
}

fn without_backslashes(key: &[u8]) -> Vec<u8> {
    key.iter().copied().filter(|byte| *byte != b'\\').collect()
}

/// How many bytes of a text's beginning are backslashes, in whatever spelling, and the code behind the last of them: what begins
/// among them begins at the first, and nothing begins in the middle of `\u0073`.
fn backslashes(text: &[u8]) -> usize {
    let mut run = 0;
    loop {
        let rest = &text[run..];
        let spelled = escapes(rest).filter(|(char, _)| *char == '\\').last().map(|(_, len)| len);
        match spelled.or(rest.starts_with(b"\\").then_some(1)) {
            Some(len) => run += len,
            None if run == 0 => return 0,
            None => return run + stands_for('\\', rest).map_or(0, |(_, len)| len),
        }
    }
}

/// How much of a text's beginning spells the key.
fn spelled(key: &[u8], text: &[u8]) -> Option<usize> {
    let read = longest(key, text);
    (read.letters == key.len()).then_some(read.len)
}

/// What a text's beginning spells of a key.
#[derive(Default)]
struct Read {
    letters: usize,
    /// So much of the text spells them.
    len: usize,
    /// The text ends before the key does, or in an escape.
    goes_on: bool,
}

/// How much of the key a text's beginning spells at most. A key may hold what looks like an
/// escape: `%20` in a text is then its `%20`, and `%2520` too, where in another key both are a blank. All readings are tried; the
/// next letter of the key ends most of them.
fn longest(key: &[u8], text: &[u8]) -> Read {
    let (mut next, mut others, mut seen) = (Some((0, 0)), Vec::new(), BTreeSet::new());
    let mut most = Read::default();
    while let Some((read, at)) = next {
        if read > most.letters {
            (most.letters, most.len) = (read, at);
        }
        let (rest, text) = (&key[read..], &text[at..]);
        if rest.is_empty() {
            break;
        }
        most.goes_on |= is_cut_off(text);
        next = match text.first() {
            Some(b'\\') => Some((read, at + 1)),
            Some(byte) if *byte == rest[0] => Some((read + 1, at + 1)),
            _ => None,
        };
        let known = others.len();
        for (char, len) in escapes(text) {
            let (mut buffer, is_nothing) = ([0; 4], char == '\\');
            let bytes = if is_nothing { &[][..] } else { char.encode_utf8(&mut buffer).as_bytes() };
            if rest.starts_with(bytes) {
                others.extend(next.replace((read + bytes.len(), at + len)));
            }
        }
        // Where two readings meet, one of them goes on.
        if others.len() > known && !seen.insert((read, at)) {
            others.truncate(known);
            next = None;
        }
        next = next.or_else(|| others.pop());
    }
    most
}

/// What an escape at the beginning of a text stands for, and its length: `\u0073`, `%73`, `&#x73;`. An encoder may have escaped
/// what another has escaped, so `%2573` is `%` and `s`: every layer is one more reading.
fn escapes(text: &[u8]) -> impl Iterator<Item = (char, usize)> {
    /// More layers than programs put over each other; a bound, so that no text takes time that grows faster than it.
    const LAYERS: usize = 8;
    let mut last = text.first().map(|byte| (char::from(*byte), 1));
    let layers = std::iter::from_fn(move || {
        let (lead, taken) = last?;
        last = stands_for(lead, &text[taken..]).map(|(char, len)| (char, taken + len));
        last
    });
    layers.take(LAYERS)
}

/// Whether a text ends here, or in an escape: what it stands for, the next part tells.
fn is_cut_off(text: &[u8]) -> bool {
    let Some(first) = text.first() else { return true };
    let itself = (char::from(*first), 1);
    std::iter::once(itself).chain(escapes(text)).any(|(lead, taken)| {
        let behind = &text[taken..];
        let are_digits = |digits: &[u8], all| digits.len() < all && digits.iter().all(u8::is_ascii_hexdigit);
        match (lead, behind) {
            ('%', digits) | ('\\', [b'x', digits @ ..]) => are_digits(digits, 2),
            ('\\', [b'u', digits @ ..]) => are_digits(digits, 4),
            ('\\', []) => true,
            ('&', name) => name.len() < LONGEST_NAME && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'#'),
            _ => false,
        }
    })
}

/// What stands behind the first letter of an escape stands for, and the length of that.
fn stands_for(lead: char, behind: &[u8]) -> Option<(char, usize)> {
    let code = |text, digits| hexadecimal(text, digits).and_then(char::from_u32);
    match lead {
        '%' => Some((code(behind, 2).filter(char::is_ascii)?, 2)),
        '&' => named(behind),
        '\\' => match behind {
            [b'u', digits @ ..] => Some((code(digits, 4)?, 5)),
            [b'x', digits @ ..] => Some((code(digits, 2)?, 3)),
            _ => None,
        },
        _ => None,
    }
}

/// So many bytes of a reference are read behind its `&`: the largest number of a character has seven digits, and zeros may stand
/// before them.
const LONGEST_NAME: usize = 12;

/// The character of a reference behind its `&`, and the length of that.
fn named(text: &[u8]) -> Option<(char, usize)> {
    const NAMES: [(&[u8], char); 17] = [
        (b"amp", '&'),
        (b"quot", '"'),
        (b"apos", '\''),
        (b"lt", '<'),
        (b"gt", '>'),
        (b"plus", '+'),
        (b"sol", '/'),
        (b"equals", '='),
        (b"lowbar", '_'),
        (b"colon", ':'),
        (b"percnt", '%'),
        (b"bsol", '\\'),
        (b"num", '#'),
        (b"excl", '!'),
        (b"dollar", '$'),
        (b"commat", '@'),
        (b"ast", '*'),
    ];
    let end = text.iter().take(LONGEST_NAME).position(|byte| *byte == b';')?;
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
