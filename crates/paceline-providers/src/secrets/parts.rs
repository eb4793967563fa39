//! A key that comes in parts, each in another text of a body: in another event of a stream, in another line of JSON.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::SECRET;

/// The texts of one name, one behind the other: of a stream the members of that name in all its events, such as `content`.
#[derive(Default)]
struct Joined {
    text: Vec<u8>,
    /// Where each of them begins in `text`, and where it stands in the body.
    pieces: Vec<(usize, Range<usize>)>,
}

/// A body without what `find` finds in its texts, joined by name: [`SECRET`] stands where the first part stood, and nothing in
/// place of the others.
pub(super) fn without(body: Bytes, find: impl Fn(&[u8]) -> Vec<Range<usize>>) -> Bytes {
    let mut parts: Vec<(Range<usize>, bool)> = texts_of(&body)
        .values()
        .flat_map(|joined| find(&joined.text).into_iter().flat_map(|key| joined.parts(key)))
        .collect();
    if parts.is_empty() {
        return body;
    }
    parts.sort_by_key(|(part, _)| (part.start, std::cmp::Reverse(part.end)));
    let (mut kept, mut end) = (Vec::with_capacity(body.len()), 0);
    for (part, is_first) in parts {
        // Where keys overlap, what the one before has taken is gone.
        if part.start >= end {
            kept.extend_from_slice(&body[end..part.start]);
            kept.extend_from_slice(if is_first { SECRET.as_bytes() } else { b"" });
        }
        end = end.max(part.end);
    }
    kept.extend_from_slice(&body[end..]);
    kept.into()
}

impl Joined {
    /// Where the parts of a key stand in the body, and whether each is its first.
    fn parts(&self, key: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> {
        let first = self.pieces.partition_point(|(from, _)| *from <= key.start).saturating_sub(1);
        let overlapping = self.pieces[first..].iter().take_while(move |(from, _)| *from < key.end);
        overlapping.map(move |(from, place)| {
            let start = place.start + key.start.saturating_sub(*from);
            let end = place.end.min(place.start + (key.end - from));
            (start..end, *from <= key.start)
        })
    }
}

/// The texts of a body by name. The data of an event that are no JSON are a text without a name.
fn texts_of(body: &[u8]) -> BTreeMap<&[u8], Joined> {
    let mut texts: BTreeMap<&[u8], Joined> = BTreeMap::new();
    let mut add = |name, place: Range<usize>| {
        let joined = texts.entry(name).or_default();
        joined.pieces.push((joined.text.len(), place.clone()));
        joined.text.extend_from_slice(&body[place]);
    };
    let mut next = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let (start, end) = (next, next + line.trim_ascii_end().len());
        next += line.len();
        let is_data = line.starts_with(b"data:");
        let head = if line.starts_with(b"data: ") { 6 } else { 5 * usize::from(is_data) };
        let text = start + head..end.max(start + head);
        match body[text.clone()].trim_ascii_start().first() {
            Some(b'{' | b'[' | b'"') => strings(body, text, &mut add),
            _ if is_data => add(b"", text),
            _ => {}
        }
    }
    texts
}

/// The texts in a line of JSON, each with the name of the member that holds it.
fn strings<'a>(body: &'a [u8], line: Range<usize>, add: &mut impl FnMut(&'a [u8], Range<usize>)) {
    let (mut at, mut name) = (line.start, &b""[..]);
    while let Some(quote) = memchr::memchr(b'"', &body[at..line.end]) {
        let start = at + quote + 1;
        let Some(end) = end_of_string(&body[..line.end], start) else { return };
        at = end + 1;
        if body[at..line.end].trim_ascii_start().starts_with(b":") {
            name = &body[start..end];
        } else {
            add(name, start..end);
        }
    }
}

/// The quote that ends a string.
fn end_of_string(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}
