//! Escaping of untrusted text, such as a server's errors, an input's keys and the names of files, for a line and for Markdown.

use std::borrow::Cow;

/// Text as part of a line: a character that could move the cursor, colour the screen, begin a new line or change the reading
/// direction becomes a space or `\u{FFFD}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    let shown = |c: char| match c {
        '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_control() || turns(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    if text.chars().all(|c| shown(c) == c) { text.into() } else { text.chars().map(shown).collect() }
}

/// [`printable`] for a text of several lines.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// Text in Markdown, also in a table: nothing of it is markup.
pub fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
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
    fn untrusted_text_cannot_take_over_the_terminal() {
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
