//! Keys where they stand in a text, whole or cut off: at their end, at their beginning, or at both. Providers show a few letters
//! of a key on purpose, and those stay, as does the user name of a login.

use std::ops::Range;

use memchr::memchr_iter;

use super::{looks_random, spelling};
use spelling::Text;

/// A shorter part is what providers show of a key, so that a person knows it again.
const SHORTEST: usize = 12;

/// So many letters of a key are known at most: the fewer, the less often a text is looked at.
const MOST_KNOWN: usize = 5;

/// A key, or one spelling of it.
pub(super) struct Key {
    pub(super) text: Vec<u8>,
    /// So many letters at its beginning are no secret: of a login the user name and the colon.
    pub(super) name: usize,
}

impl Key {
    /// One that is secret from its first letter on.
    pub(super) fn new(text: &[u8]) -> Self {
        Self { text: text.into(), name: 0 }
    }

    /// A login, and the password in it.
    pub(super) fn of_login(login: Vec<u8>) -> (Self, Option<Self>) {
        let Some(colon) = login.iter().position(|byte| *byte == b':') else { return (Self::new(&login), None) };
        let (name, password) = (&login[..colon], &login[colon + 1..]);
        // Some APIs have their key in the place of the name, before nothing or a word, such as `api_token`.
        let is_word = password.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_');
        let is_name_secret =
            password.len() < super::SHORTEST || (is_word && str::from_utf8(name).is_ok_and(looks_random));
        let password = Self::new(password);
        (Self { name: if is_name_secret { 0 } else { colon + 1 }, text: login }, Some(password))
    }

    /// In another spelling, in which each letter takes as much as any other.
    pub(super) fn spelled(&self, text: Vec<u8>) -> Self {
        Self { name: (self.name * text.len()).div_ceil(self.text.len().max(1)), text }
    }

    /// One that holds what looks like an escape as a server has it that decodes what it is sent.
    pub(super) fn decoded(&self) -> Option<Self> {
        let decoded = |text| Text::without_escapes(text).letters.into_owned();
        let text = decoded(&self.text);
        (text != self.text).then(|| Self { name: decoded(&self.text[..self.name]).len(), text })
    }

    pub(super) fn in_small_letters(&self) -> Self {
        Self { text: self.text.to_ascii_lowercase(), name: self.name }
    }
}

/// One key among [`Keys`].
#[derive(Clone)]
struct Place {
    /// Its letters.
    letters: Range<usize>,
    /// Where those begin that are secret.
    secret: usize,
    /// So many of its letters give it away: half of it, and no fewer than are shown on purpose.
    least: usize,
}

/// Many keys, looked for at once. As a part of `least` letters gives a key away, a text is looked at only once in almost so many
/// letters: any `size` letters of any key are known there.
#[derive(Clone, Default)]
pub(super) struct Keys {
    /// Those of all keys, one behind the other.
    letters: Vec<u8>,
    places: Vec<Place>,
    /// By a hash of `size` letters: 64 bits, of which one tells of most of what a text has that it is no part of a key.
    is_known: Vec<u64>,
    /// By the same hash the last place of such letters among `letters`, from 1 on.
    last: Vec<u32>,
    /// Of each such place the one before it with the same hash.
    before: Vec<u32>,
    size: usize,
    /// The fewest letters that give one of them away.
    least: usize,
}

/// What of a key stands in a text.
struct Run<'a> {
    place: &'a Place,
    of_key: Range<usize>,
    of_text: Range<usize>,
}

impl Run<'_> {
    const fn is_begun(&self) -> bool {
        self.of_key.start == self.place.letters.start
    }

    const fn is_ended(&self) -> bool {
        self.of_key.end == self.place.letters.end
    }

    /// Whether it gives the key away: of a login by as many letters of its password as are not shown on purpose.
    fn is_enough(&self) -> bool {
        let secret = self.of_key.end.saturating_sub(self.of_key.start.max(self.place.secret));
        self.of_key.len() >= self.place.least && secret >= SHORTEST.min(self.place.letters.end - self.place.secret)
    }
}

/// A place of a text where a key stands.
pub(super) struct Found {
    pub(super) place: Range<usize>,
    pub(super) is_whole: bool,
}

impl Keys {
    pub(super) fn of<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Self {
        let mut all = Self::default();
        for key in keys {
            let (start, len) = (all.letters.len(), key.text.len());
            all.letters.extend_from_slice(&key.text);
            let least = len.div_ceil(2).max(SHORTEST).min(len);
            all.places.push(Place { letters: start..start + len, secret: start + key.name, least });
        }
        all.least = all.places.iter().map(|place| place.least).min().unwrap_or(0);
        all.size = (all.least / 2).min(MOST_KNOWN);
        all.is_known = vec![0; all.letters.len().next_power_of_two()];
        all.last = vec![0; all.letters.len().next_power_of_two()];
        all.before = vec![0; all.letters.len()];
        for place in all.places.iter().filter(|_| all.size > 0) {
            for at in place.letters.start..=place.letters.end - all.size {
                let (hash, bit) = all.hash(&all.letters[at..]);
                all.is_known[hash] |= bit;
                all.before[at] = std::mem::replace(&mut all.last[hash], u32::try_from(at + 1).unwrap_or(0));
            }
        }
        all
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    pub(super) fn longest(&self) -> usize {
        self.places.iter().map(|place| place.letters.len()).max().unwrap_or(0)
    }

    /// Whether a text may hold one of them.
    pub(super) fn may_be_in(&self, text: &[u8]) -> bool {
        !self.places.is_empty() && text.len() >= self.least
    }

    /// Whether as much of one as gives it away is anywhere in a text, also in the middle of a word.
    pub(super) fn are_in(&self, text: &[u8]) -> bool {
        self.runs(text).next().is_some()
    }

    /// Where they stand in a text, or in a part of it that is not the last: whole, or cut off where a word begins or ends.
    pub(super) fn found_in<'a>(
        &'a self,
        read: &'a Text<'_>,
        text: &'a [u8],
        is_last: bool,
    ) -> impl Iterator<Item = Found> + 'a {
        self.runs(&read.letters).filter_map(move |mut run| {
            if !run.is_begun() {
                let other = word_in(read, text, run.of_text.clone())?;
                (run.of_text.start, run.of_key.start) = (run.of_text.start + other, run.of_key.start + other);
            }
            let place = read.place(run.of_text.clone());
            let is_hidden = run.is_enough() && (run.is_ended() || is_end(text, place.end, is_last));
            // A backslash before it is part of an escape.
            let place = before_backslashes(text, place.start)..place.end;
            is_hidden.then(|| Found { place, is_whole: run.is_begun() && run.is_ended() })
        })
    }

    /// Where the last letters of a text begin that may be a part of a key whose rest is in the next part of the text.
    pub(super) fn begun_in(&self, read: &Text<'_>, text: &[u8]) -> Option<usize> {
        let last = *read.letters.last()?;
        let begun = memchr_iter(last, &self.letters).filter_map(|at| {
            let place = self.place_of(at);
            let len = 1 + same(self.letters[place.letters.start..at].iter().rev(), read.letters.iter().rev().skip(1));
            let (start, key, first) = (at + 1 - len, &place.letters, read.letters.len() - len);
            let other = match start == key.start {
                true => 0,
                false => word_in(read, text, first..read.letters.len())?,
            };
            let goes_on = at + 1 < key.end && (start == key.start || key.end - start - other >= place.least);
            goes_on.then_some(first + other)
        });
        begun.min().map(|first| before_backslashes(text, read.place(first..first + 1).start))
    }

    /// All that stands in a text of them and gives them away.
    fn runs<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = Run<'a>> {
        let step = self.least - self.size + 1;
        let ends = if self.may_be_in(text) { text.len() + 1 - self.size } else { 0 };
        let hashed = (0..ends).step_by(step).map(|at| (at, self.hash(&text[at..])));
        let known = hashed.filter(|(_, (hash, bit))| self.is_known[*hash] & bit != 0);
        known.flat_map(move |(at, (hash, _))| {
            let of_hash = |place: &u32| (*place as usize).checked_sub(1);
            let last = of_hash(&self.last[hash]);
            let known = std::iter::successors(last, move |letter| of_hash(&self.before[*letter]));
            known.filter_map(move |letter| self.run(text, at, letter, step))
        })
    }

    /// What of a key stands in a text, of which one letter is known in both. None where too little does, or where it was seen one
    /// step before.
    fn run(&self, text: &[u8], at: usize, letter: usize, step: usize) -> Option<Run<'_>> {
        if self.letters[letter..letter + self.size] != text[at..at + self.size] {
            return None;
        }
        let place = self.place_of(letter);
        let key = &place.letters;
        let before = same(self.letters[key.start..letter].iter().rev(), text[..at].iter().rev().take(step));
        if before == step {
            return None;
        }
        let len = before + same(self.letters[letter..key.end].iter(), text[at..].iter());
        let (of_key, of_text) = (letter - before..letter - before + len, at - before..at - before + len);
        Some(Run { place, of_key, of_text }).filter(Run::is_enough)
    }

    fn place_of(&self, letter: usize) -> &Place {
        &self.places[self.places.partition_point(|place| place.letters.end <= letter)]
    }

    /// Of the first `size` of these letters, and which bit of it is theirs.
    fn hash(&self, letters: &[u8]) -> (usize, u64) {
        let eight = letters.first_chunk().copied().unwrap_or_else(|| {
            let mut eight = [0; size_of::<u64>()];
            eight[..letters.len()].copy_from_slice(letters);
            eight
        });
        let unused = 8 * (size_of::<u64>() - self.size);
        let mixed = (u64::from_le_bytes(eight) << unused).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) as usize & (self.last.len() - 1), 1 << (mixed >> 26 & 63))
    }
}

/// How many letters are the same in both, from the first on.
fn same<'a>(one: impl Iterator<Item = &'a u8>, other: impl Iterator<Item = &'a u8>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).count()
}

/// Where the backslashes before a place begin.
pub(super) fn before_backslashes(text: &[u8], at: usize) -> usize {
    text[..at].iter().rposition(|byte| *byte != b'\\').map_or(0, |before| before + 1)
}

/// Where a word begins among letters that are also those of a key: at the first, or behind one that is in no word, also where
/// that is written as an escape. What stands behind letters of keys is another key. What stood before a part is not known, and a
/// word may begin there.
fn word_in(read: &Text<'_>, text: &[u8], run: Range<usize>) -> Option<usize> {
    let (letters, start) = (&read.letters[run.clone()], read.place(run.clone()).start);
    if start == 0 || !is_letter(text[start - 1]) {
        return letters.iter().position(|letter| *letter != b' ');
    }
    let is_none = |char| !u8::try_from(char).is_ok_and(is_letter);
    if let Some(end) = spelling::end_of_escape(text, start, is_none) {
        return (0..letters.len()).find(|other| read.place(run.start + other..run.end).start >= end);
    }
    // Those of UTF-16 are words in spite of their zeros.
    let in_word = |letter: &u8| is_letter(*letter) || *letter == 0;
    let other = letters.iter().position(|letter| !in_word(letter))?;
    Some(other + letters[other..].iter().position(in_word)?)
}

/// Whether a word ends there: what goes on in letters of keys is another key, or one whose rest comes in the next part.
fn is_end(text: &[u8], at: usize, is_last: bool) -> bool {
    text.get(at).map_or(is_last, |next| !is_letter(*next))
}

/// Whether it stands in words and in all keys.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests;
