//! Text in the columns of a terminal: wide letters take two of them, accents that join a letter none.

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

use super::printable;

/// What every terminal has.
pub(crate) const WIDTH: usize = 80;

/// More than a letter with all that belongs to it takes, but any number of accents fits into one column.
const BYTES_A_COLUMN: usize = 32;

/// The columns of a text.
pub(crate) fn width(content: &str) -> usize {
    content.width()
}

/// At most `width` columns; what was cut off leaves an ellipsis.
pub(crate) fn cut(content: &str, width: usize) -> String {
    if width == 0 {
        return String::new();
    }
    if content.width() <= width && content.len() <= width * BYTES_A_COLUMN {
        return content.to_owned();
    }
    let (mut column, mut end) = (0, 0);
    for letter in content.graphemes(true) {
        column += letter.width();
        if column >= width || end + letter.len() > width * BYTES_A_COLUMN {
            break;
        }
        end += letter.len();
    }
    format!("{}…", &content[..end])
}

/// At least `width` columns: a shorter text is padded with spaces.
pub(crate) fn padded(content: &str, width: usize) -> String {
    let pad = width.saturating_sub(content.width());
    format!("{content}{:pad$}", "")
}

/// Exactly `width` columns.
pub(crate) fn cell(content: &str, width: usize) -> String {
    padded(&cut(content, width), width)
}

/// At most so many lines of `width` columns, broken between words; what has no room there leaves an ellipsis.
pub(crate) fn in_lines(content: &str, width: usize, most: usize) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), content.trim());
    while lines.len() + 1 < most && rest.width() > width {
        let spaces = rest.match_indices(' ').map(|(at, _)| at);
        let Some(end) = spaces.take_while(|at| rest[..*at].width() <= width).last() else { break };
        lines.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    lines.push(cut(rest, width));
    lines
}

/// Wraps the content behind `start`, in lines that begin below it. A word that is longer than a line, as a sentence without
/// spaces is, continues in the next.
pub(crate) fn wrapped(text: &mut String, start: &str, content: &str) {
    let indent = start.width();
    let next_line = format!("\n{:indent$}", "");
    let content = printable(content);
    let mut column = indent;
    text.push_str(start);
    for word in content.split_whitespace() {
        if column > indent && column + 1 + word.width() > WIDTH {
            text.push_str(&next_line);
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        for letter in word.graphemes(true) {
            if column > indent && column + letter.width() > WIDTH {
                text.push_str(&next_line);
                column = indent;
            }
            text.push_str(letter);
            column += letter.width();
        }
    }
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_as_wide_as_its_column() {
        for (content, expected) in [
            ("", "      "),
            ("abc", "abc   "),
            ("abcdef", "abcdef"),
            ("abcdefg", "abcde…"),
            ("日本語", "日本語"),
            ("日本語文", "日本… "),
            ("e\u{301}tude", "e\u{301}tude "),
            ("e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e", "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}…"),
            ("👩\u{200d}👩\u{200d}👧👍🏽🇩🇪", "👩\u{200d}👩\u{200d}👧👍🏽🇩🇪"),
            ("👩\u{200d}👩\u{200d}👧👍🏽a🇩🇪", "👩\u{200d}👩\u{200d}👧👍🏽a…"),
        ] {
            let cell = cell(content, 6);
            assert_eq!((cell.as_str(), width(&cell)), (expected, 6), "{content}");
        }
        assert_eq!((cut("日本", 1).as_str(), cut("日本", 0).as_str()), ("…", ""));
    }

    #[test]
    fn a_sentence_is_broken_between_words_and_what_has_no_room_is_cut() {
        for (content, most, expected) in [
            ("one two three", 1, &["one t…"][..]),
            ("one two three", 2, &["one", "two t…"]),
            ("one two three", 9, &["one", "two", "three"]),
            ("ab cd", 2, &["ab cd"]),
            ("longerthan six", 2, &["longe…"]),
            ("", 2, &[""]),
        ] {
            assert_eq!(in_lines(content, 6, most), expected, "{content}");
        }
    }

    #[test]
    fn accents_without_end_do_not_fill_a_log() {
        let piled = "e".to_owned() + &"\u{301}".repeat(1_000_000);
        assert!(cut(&piled, 80).len() < 80 * BYTES_A_COLUMN + 4);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_nothing_of_a_sentence_is_lost() {
        let (latin, chinese) = ("word ".repeat(40), "服务器太忙,请稍后再试。".repeat(9));
        for content in [latin.clone(), chinese.clone(), latin + &chinese, "x".repeat(300), "e\u{301}".repeat(99)] {
            let mut text = String::new();
            wrapped(&mut text, "  状态 ", &content);
            assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(letters(&text), "状态".to_owned() + &letters(&content));
        }
        let mut text = String::new();
        wrapped(&mut text, &" ".repeat(WIDTH), "日本");
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["日", "本"], "however little room there is");
    }
}
