//! The words of others, such as a CA's errors and the names of files: shown, but not obeyed.

use std::borrow::Cow;
use std::io::{self, Write};

/// Words as part of a line: what could move the cursor, colour the screen, begin a new line or turn the reading direction is
/// shown as a space or as `\u{FFFD}`.
pub(crate) fn printable(words: &str) -> Cow<'_, str> {
    let shown = |c: char| match c {
        '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_control() || turns(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    if words.chars().all(|c| shown(c) == c) { words.into() } else { words.chars().map(shown).collect() }
}

/// Words in Markdown, where nothing of them is markup: not even in a table.
pub(crate) fn escaped(words: &str) -> String {
    let mut escaped = String::with_capacity(words.len());
    for c in printable(words).chars() {
        if matches!(c, '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '~' | '!' | '#') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A log whose entries are a line each, whatever server made their words. An entry is written at once.
#[derive(Debug)]
pub(crate) struct Lines<W>(pub(crate) W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(entry);
        let line = format!("{}\n", printable(text.trim_end_matches('\n')));
        self.0.write_all(line.as_bytes())?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a character changes in which direction others are read.
const fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_shown_as_they_are_and_what_is_no_word_is_not() {
        assert_eq!(printable("zw\u{f6}lf Dom\u{e4}nen | `x`"), "zw\u{f6}lf Dom\u{e4}nen | `x`");
        assert_eq!(
            printable("a\u{1b}[5m\r\nb\u{7f}\u{9b}\u{2028}c\u{202e}"),
            "a\u{fffd}[5m  b\u{fffd}\u{fffd} c\u{fffd}"
        );
        assert_eq!(escaped("a|b\n`c` <d> [e](f) \\|"), r"a\|b \`c\` \<d\> \[e\](f) \\\|");
    }

    proptest! {
        #[test]
        fn an_entry_of_the_log_is_one_line(entry: String) {
            let mut log = Vec::new();
            Lines(&mut log).write_all((entry + "\n").as_bytes()).unwrap();
            let log = String::from_utf8(log).unwrap();
            prop_assert!(log.ends_with('\n') && log.chars().filter(|c| c.is_control()).count() == 1, "{log:?}");
        }
    }
}
