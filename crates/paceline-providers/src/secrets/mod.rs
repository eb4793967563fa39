//! A key must reach no file, no log and no screen: neither one that is known, in whatever spelling a server repeats it, nor what
//! only looks like one.

mod cut;
mod parts;
mod shapes;
mod spelling;

use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem::Finder;

use cut::{Key, Spelling};
pub use shapes::{SECRET, hidden, hidden_header, is_secret_header, is_secret_name, looks_random, looks_secret};
use spelling::Escapes;

/// A shorter key is no secret, and taking it out would spoil answers that have nothing to do with it.
const SHORTEST: usize = 8;

/// Where a text has a key in one of its spellings.
type Find<'a> = dyn Fn(&Spelling, &[u8]) -> Option<Range<usize>> + 'a;

/// The keys that calls carry in their headers, to be taken out of what a server says: the values, of `Bearer KEY` only KEY,
/// of `Basic ...` also what it encodes and the password in it. They are found as they are, with the escapes of JSON, also of
/// JSON within JSON, with those of HTML, percent-encoded, in base64, in hexadecimal, and in UTF-16 and UTF-32, also where a key
/// holds what looks like an escape, such as `%3D`: then with and without it. [`SECRET`] takes their place, and that of a key that
/// is cut off, from half of it and 12 letters on, of a login from 12 letters of its password on. Keys below 8 bytes are words,
/// and stay.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The longest first, so that a part does not spoil the whole.
    keys: Vec<Spelling>,
    /// In small letters, as they stand in the name of a header field.
    in_names: Vec<Finder<'static>>,
    escapes: Escapes,
}

impl Secrets {
    /// The keys of these values.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a HeaderValue>) -> Self {
        let keys = values.into_iter().flat_map(|value| keys_in(value.as_bytes()));
        let keys = keys.flat_map(|key| key.decoded().into_iter().chain([key]));
        let keys = keys.filter(|key| key.text.len() >= SHORTEST);
        let spelled = |key: Key| {
            let encoded = spelling::in_base64(&key.text).chain(spelling::in_hexadecimal(&key.text));
            let encoded = encoded.chain(spelling::in_wide_letters(&key.text));
            encoded.map(|text| key.spelled(text)).collect::<Vec<_>>().into_iter().chain([key])
        };
        let mut all: Vec<Key> = keys.flat_map(spelled).collect();
        // Of one that is a login and a key by itself all is secret.
        all.sort_unstable_by(|a, b| {
            b.text.len().cmp(&a.text.len()).then_with(|| (&a.text, a.name).cmp(&(&b.text, b.name)))
        });
        all.dedup_by(|a, b| a.text == b.text);
        let in_names = all.iter().map(|key| Finder::new(&key.text.to_ascii_lowercase()).into_owned()).collect();
        let keys = all.iter().map(Spelling::of).collect();
        Self { keys, in_names, escapes: Escapes::of(all.iter().flat_map(|key| &key.text).copied()) }
    }

    /// The keys of these fields, and of cookies each value.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>) -> Self {
        let values = fields.into_iter().flat_map(|(name, value)| {
            let cookies = value.to_str().ok().filter(|_| *name == COOKIE).unwrap_or_default().split(';');
            let cookies = cookies.filter_map(|pair| HeaderValue::from_str(pair.split_once('=')?.1.trim()).ok());
            cookies.chain([value.clone()]).collect::<Vec<_>>()
        });
        Self::of(&values.collect::<Vec<_>>())
    }

    /// A body without them. JSON stays JSON, where the key is not a number.
    pub fn removed_from(&self, body: Bytes) -> Bytes {
        self.replaced_in(body, true, |_, kept| kept.extend_from_slice(SECRET.as_bytes()))
    }

    /// A body of several texts, such as the events of a stream or lines of JSON, without a key that comes in parts, each in
    /// another text. One that stands in a single text is for [`removed_from`](Self::removed_from).
    pub fn removed_from_parts(&self, body: Bytes) -> Bytes {
        parts::without(body, |text| {
            let whole = self.keys.iter().flat_map(|key| all(text, |rest| as_it_is(&key.whole, rest)));
            let spelled = self.keys.iter().filter(|_| self.escapes.are_in(text));
            whole.chain(spelled.flat_map(|key| all(text, |rest| spelling::find(key.whole.needle(), rest)))).collect()
        })
    }

    /// A part of a body, or its last, of the same length without them: [`SECRET`] and asterisks take their place. For a body
    /// whose length is told already.
    pub fn masked_in(&self, part: Bytes, is_last: bool) -> Bytes {
        self.replaced_in(part, is_last, |len, kept| {
            kept.extend(SECRET.bytes().chain(std::iter::repeat(b'*')).take(len));
        })
    }

    /// How many bytes at the end of a part may be the beginning of a key, as it is or in escapes, whose rest is in the next part.
    pub fn begun_in(&self, part: &[u8]) -> usize {
        let begun = |key: &[u8]| {
            let longest = part.len().min(key.len().saturating_sub(1));
            (1..=longest).rev().find(|len| part.last() == Some(&key[len - 1]) && part.ends_with(&key[..*len]))
        };
        let keys = || self.keys.iter().map(|key| key.whole.needle());
        let as_it_is = keys().filter_map(begun).max().unwrap_or(0);
        let longest = self.keys.first().map_or(0, |key| spelling::longest_spelling(key.whole.needle().len()));
        let end = &part[part.len() - part.len().min(longest)..];
        if !self.escapes.may_be_in(end) {
            return as_it_is;
        }
        keys().map(|key| spelling::begun_in(key, end)).max().unwrap_or(0).max(as_it_is)
    }

    /// A body in which `mark` writes something for so many bytes of a key. Keys that are cut off come after the whole ones: one
    /// key may begin as another. What may go on in the next part is not cut off.
    fn replaced_in(&self, body: Bytes, is_last: bool, mark: impl Fn(usize, &mut Vec<u8>) + Copy) -> Bytes {
        if body.len() < self.shortest() {
            return body;
        }
        let (keys, is_begun) = (&self.keys, self.keys.iter().any(|key| key.head.find(&body).is_some()));
        let each =
            |body, find: &Find<'_>| keys.iter().fold(body, |body, key| without(body, |text| find(key, text), mark));
        let mut body = if is_begun { each(body, &|key, text| as_it_is(&key.whole, text)) } else { body };
        let is_spelled = |key: &Spelling| spelling::find(key.head.needle(), &body).is_some();
        if self.escapes.are_in(&body) && keys.iter().any(is_spelled) {
            body = each(body, &|key, text| spelling::find(key.whole.needle(), text));
            let begun = if is_last { 0 } else { self.begun_in(&body) };
            body = each(body, &|key, text| before(begun, text, key.cut_in_escapes(text, is_last)));
        }
        let begun = if is_last || !is_begun { 0 } else { self.begun_in(&body) };
        if is_begun { each(body, &|key, text| before(begun, text, key.cut_in(text, is_last))) } else { body }
    }

    /// The fewest bytes that are hidden.
    fn shortest(&self) -> usize {
        self.keys.iter().map(|key| key.head.needle().len()).min().unwrap_or(usize::MAX)
    }

    /// A text without them.
    pub fn removed_from_text(&self, text: String) -> String {
        String::from_utf8_lossy(&self.removed_from(text.into())).into_owned()
    }

    /// Headers without them. A field that has one in its name is left out.
    pub fn remove_from_headers(&self, headers: &mut HeaderMap) {
        // Most names are shorter than every key.
        let shortest = self.shortest();
        let has_one = |name: &&HeaderName| self.in_names.iter().any(|key| key.find(name.as_str().as_bytes()).is_some());
        let may_be = |name: &&HeaderName| name.as_str().len() >= shortest;
        let with_one: Vec<_> = headers.keys().filter(may_be).filter(has_one).cloned().collect();
        with_one.iter().for_each(|name| drop(headers.remove(name)));
        let may_have_one =
            |text: &[u8]| self.keys.iter().any(|key| key.head.find(text).is_some()) || self.escapes.are_in(text);
        for value in headers.values_mut().filter(|value| value.len() >= shortest && may_have_one(value.as_bytes())) {
            let said = Bytes::copy_from_slice(value.as_bytes());
            let kept = self.removed_from(said.clone());
            if kept != said {
                // What a header carried may be carried in parts, and so may the mark.
                *value = HeaderValue::from_maybe_shared(kept).unwrap_or(HeaderValue::from_static(SECRET));
            }
        }
    }
}

/// How many spellings there are, and none of them.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("spellings", &self.keys.len()).finish_non_exhaustive()
    }
}

/// What of a place stands before the last bytes of a text, so many of which may go on in the next part.
fn before(begun: usize, text: &[u8], place: Option<Range<usize>>) -> Option<Range<usize>> {
    let end = text.len().saturating_sub(begun);
    place.filter(|place| place.start < end).map(|place| place.start..place.end.min(end))
}

/// A key where it stands letter by letter. A backslash before it is part of an escape.
fn as_it_is(key: &Finder<'_>, text: &[u8]) -> Option<Range<usize>> {
    let at = key.find(text)?;
    Some(before_backslashes(text, at)..at + key.needle().len())
}

/// Where the backslashes before a place begin.
fn before_backslashes(text: &[u8], at: usize) -> usize {
    text[..at].iter().rposition(|byte| *byte != b'\\').map_or(0, |before| before + 1)
}

/// All that `find` finds in a text, again and again.
fn all(text: &[u8], find: impl Fn(&[u8]) -> Option<Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let found = find(&text[from..])?;
        let found = from + found.start..from + found.end;
        from = found.end;
        Some(found)
    })
}

/// A body in which `mark` takes the place of what `find` finds in it, again and again.
fn without(body: Bytes, find: impl Fn(&[u8]) -> Option<Range<usize>>, mark: impl Fn(usize, &mut Vec<u8>)) -> Bytes {
    let mut found = all(&body, find).peekable();
    if found.peek().is_none() {
        drop(found);
        return body;
    }
    let (mut kept, mut end) = (Vec::with_capacity(body.len()), 0);
    for key in found {
        kept.extend_from_slice(&body[end..key.start]);
        mark(key.len(), &mut kept);
        end = key.end;
    }
    kept.extend_from_slice(&body[end..]);
    kept.into()
}

/// What is secret in the value of a header: the second of two words, if it is long enough for a key; else the whole value, and of
/// several words also what follows the first, which may be a scheme.
fn keys_in(value: &[u8]) -> Vec<Key> {
    let (first, rest) = match value.iter().position(|byte| *byte == b' ') {
        Some(blank) => (&value[..blank], &value[blank + 1..]),
        None => (value, &[][..]),
    };
    let is_key = rest.len() >= SHORTEST;
    let mut keys: Vec<Key> = is_key.then(|| Key::new(rest)).into_iter().collect();
    if !is_key || rest.contains(&b' ') {
        keys.push(Key::new(value));
    }
    if first.eq_ignore_ascii_case(b"basic")
        && let Ok(login) = STANDARD.decode(rest)
    {
        let (login, password) = Key::of_login(login);
        keys = keys.into_iter().map(|key| login.spelled(key.text)).chain(password).collect();
        keys.push(login);
    }
    keys
}

#[cfg(test)]
mod tests;
