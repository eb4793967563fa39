//! Keys of lines that are not sent, such as `header` for `headers`: told once for all lines.

use crate::text;

/// The lines that have such a key, and the first of them.
#[derive(Debug, Default)]
pub(crate) struct NotSent {
    lines: u64,
    first: Option<(String, u64)>,
}

impl NotSent {
    /// A line, by its number, whose request has that key.
    pub(crate) fn note(&mut self, key: String, line: u64) {
        self.lines += 1;
        self.first.get_or_insert((key, line));
    }

    pub(crate) fn tell(&self) {
        let Some((key, line)) = &self.first else { return };
        tracing::warn!(
            "{} {} a key that is not sent, such as {key:?} in line {line}: a request is made of method, url, headers and body, and its \
             parameters stand behind the ? of its url",
            text::counted(self.lines, "line"),
            if self.lines == 1 { "has" } else { "have" }
        );
    }
}
