//! The words of others, such as a server's errors, an input's keys and the names of files: shown, but not obeyed.

use std::borrow::Cow;

/// Words as part of a line: what could move the cursor, colour the screen, begin a new line or turn the reading direction is
/// shown as a space or as `\u{FFFD}`.
pub fn printable(words: &str) -> Cow<'_, str> {
    let shown = |c: char| match c {
        '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_control() || turns(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    if words.chars().all(|c| shown(c) == c) { words.into() } else { words.chars().map(shown).collect() }
}

/// The same where several lines are meant.
pub fn printable_lines(words: &str) -> String {
    let lines: Vec<_> = words.split('\n').map(printable).collect();
    lines.join("\n")
}

/// Words in Markdown, where nothing of them is markup: not even in a table.
pub fn markdown(words: &str) -> String {
    let mut escaped = String::with_capacity(words.len());
    for c in printable(words).chars() {
        if matches!(c, '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '~' | '!' | '#') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Whether a character changes in which direction others are read.
const fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_take_over_the_terminal() {
        assert_eq!(printable("caf\u{e9} \u{1f600} | `x`, as it is"), "café 😀 | `x`, as it is");
        assert_eq!(
            printable("a\u{1b}[5m\r\nerror: b\u{7f}\u{9b}c\u{2028}"),
            "a\u{fffd}[5m  error: b\u{fffd}\u{fffd}c "
        );
        assert_eq!(printable("exe\u{202e}txt\u{2066}.\u{200f}"), "exe\u{fffd}txt\u{fffd}.\u{fffd}");
        assert_eq!(printable_lines("one\n  two\u{1b}[2J"), "one\n  two\u{fffd}[2J");
        assert_eq!(markdown("a|b\n`c` <d> [e](f) \\|"), r"a\|b \`c\` \<d\> \[e\](f) \\\|");
    }
}
