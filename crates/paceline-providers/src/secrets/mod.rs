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
use percent_encoding::percent_decode_str;

use cut::{Found, Key, Keys};
pub use shapes::{SECRET, hidden, hidden_header, is_secret_header, is_secret_name, looks_random, looks_secret};
use spelling::{Escapes, Text};

/// A shorter key is no secret, and taking it out would spoil answers that have nothing to do with it.
const SHORTEST: usize = 8;

/// The keys that calls carry in their headers, to be taken out of what a server says: the values, of `Bearer KEY` only KEY,
/// of `Basic ...` also what it encodes and the password in it. They are found as they are, with the escapes of JSON, also of
/// JSON within JSON, with those of HTML, percent-encoded, in base64, in hexadecimal, and in UTF-16 and UTF-32, also where a key
/// holds what looks like an escape, such as `%3D`: then with and without it. [`SECRET`] takes their place, and that of a key that
/// is cut off at its end, its beginning or both, from half of it and 12 letters on, of a login from 12 letters of its password
/// on. Keys below 8 bytes are words, and stay.
#[derive(Clone, Default)]
pub struct Secrets {
    keys: Keys,
    /// In small letters, as they stand in the name of a header field.
    in_names: Keys,
    /// Those that hold what an escape begins with: it may be one, or be meant as it is.
    like_escapes: Vec<Vec<u8>>,
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
        let escapes = Escapes::of(all.iter().flat_map(|key| &key.text).copied());
        let in_names: Vec<_> = all.iter().map(Key::in_small_letters).collect();
        let (keys, in_names) = (Keys::of(&all), Keys::of(&in_names));
        let like_escapes = all.into_iter().map(|key| key.text).filter(|key| spelling::may_hold_escapes(key)).collect();
        Self { keys, in_names, like_escapes, escapes }
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
            let whole = self.found_in(text, true).into_iter().filter(|found| found.is_whole);
            apart(whole.map(|found| found.place).collect())
        })
    }

    /// A part of a body, or its last, of the same length without them: [`SECRET`] and asterisks take their place. For a body
    /// whose length is told already.
    pub fn masked_in(&self, part: Bytes, is_last: bool) -> Bytes {
        self.replaced_in(part, is_last, |len, kept| {
            kept.extend(SECRET.bytes().chain(std::iter::repeat(b'*')).take(len));
        })
    }

    /// How many bytes at the end of a part may be the beginning of a key, or of what is left of one, as it is or in escapes,
    /// whose rest is in the next part.
    pub fn begun_in(&self, part: &[u8]) -> usize {
        let end = spelling::end_of(part, self.keys.longest());
        let begun = |text: &[u8], read: &Text<'_>| self.keys.begun_in(read, text).map_or(0, |at| text.len() - at);
        let as_it_is = begun(end, &Text::as_it_is(end));
        if !self.escapes.may_be_in(end) {
            return as_it_is;
        }
        let cut_off = spelling::cut_off_in(end);
        let whole = &end[..end.len() - cut_off];
        let begun = match begun(whole, &Text::without_escapes(whole)) {
            0 => cut_off,
            begun => begun + cut_off,
        };
        let like_escapes = self.like_escapes.iter().map(|key| spelling::begun_in(key, end)).max();
        begun.max(as_it_is).max(like_escapes.unwrap_or(0))
    }

    /// A body in which `mark` writes something for so many bytes of a key. What may go on in the next part is not cut off.
    fn replaced_in(&self, body: Bytes, is_last: bool, mark: impl Fn(usize, &mut Vec<u8>)) -> Bytes {
        let found = self.found_in(&body, is_last);
        if found.is_empty() {
            return body;
        }
        let end = body.len() - if is_last { 0 } else { self.begun_in(&body) };
        let places = found.into_iter().map(|found| match found.is_whole {
            true => found.place,
            false => found.place.start..found.place.end.min(end),
        });
        without(&body, apart(places.collect()), mark)
    }

    /// Where they stand in a text, as they are and in escapes.
    fn found_in(&self, text: &[u8], is_last: bool) -> Vec<Found> {
        if !self.keys.may_be_in(text) {
            return Vec::new();
        }
        let found = |read: &Text<'_>| self.keys.found_in(read, text, is_last).collect::<Vec<_>>();
        let mut all = found(&Text::as_it_is(text));
        if self.escapes.are_in(text) {
            all.extend(found(&Text::without_escapes(text)));
            let like_escapes = self.like_escapes.iter().flat_map(|key| every(text, |rest| spelling::find(key, rest)));
            all.extend(like_escapes.map(|place| Found { place, is_whole: true }));
        }
        all
    }

    /// A text without them.
    pub fn removed_from_text(&self, text: String) -> String {
        String::from_utf8_lossy(&self.removed_from(text.into())).into_owned()
    }

    /// Headers without them. A field that has one in its name is left out.
    pub fn remove_from_headers(&self, headers: &mut HeaderMap) {
        let has_one = |name: &&HeaderName| {
            let name = name.as_str().as_bytes();
            let decoded = Text::without_escapes(name).letters.to_ascii_lowercase();
            self.in_names.are_in(name) || self.in_names.are_in(&decoded)
        };
        let may_be = |name: &&HeaderName| self.in_names.may_be_in(name.as_str().as_bytes());
        let with_one: Vec<_> = headers.keys().filter(may_be).filter(has_one).cloned().collect();
        with_one.iter().for_each(|name| drop(headers.remove(name)));
        for value in headers.values_mut().filter(|value| self.keys.may_be_in(value.as_bytes())) {
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
        f.debug_struct("Secrets").field("spellings", &self.keys.count()).finish_non_exhaustive()
    }
}

/// All that `find` finds in a text, again and again.
fn every(text: &[u8], find: impl Fn(&[u8]) -> Option<Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let found = find(&text[from..])?;
        let found = from + found.start..from + found.end;
        from = found.end;
        Some(found)
    })
}

/// These places in their order, those that overlap as one.
fn apart(mut places: Vec<Range<usize>>) -> Vec<Range<usize>> {
    places.retain(|place| !place.is_empty());
    places.sort_unstable_by_key(|place| place.start);
    places.dedup_by(|next, place| {
        let overlaps = next.start < place.end;
        place.end = if overlaps { place.end.max(next.end) } else { place.end };
        overlaps
    });
    places
}

/// A body in which `mark` takes the place of what stands at these places.
fn without(body: &[u8], places: Vec<Range<usize>>, mark: impl Fn(usize, &mut Vec<u8>)) -> Bytes {
    let (mut kept, mut end) = (Vec::with_capacity(body.len()), 0);
    for place in places {
        kept.extend_from_slice(&body[end..place.start]);
        mark(place.len(), &mut kept);
        end = place.end;
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

/// The login in an address such as `http://NAME:PASSWORD@proxy:3128`, as calls carry it, for [`Secrets::of`].
pub fn login_of(address: &str) -> Option<HeaderValue> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (login, _) = rest.split('/').next()?.rsplit_once('@')?;
    let (name, password) = login.split_once(':').unwrap_or((login, ""));
    let [name, password] = [name, password].map(|part| percent_decode_str(part).decode_utf8_lossy());
    HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))).ok()
}

#[cfg(test)]
mod tests;
