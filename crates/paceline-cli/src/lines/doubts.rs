//! What rows let doubt before any is asked: that they are lines of JSON, and that their prompts have what they need.

use crate::lines::table::{Error, Place};
use crate::text;

/// Refuses a line within which others end: all of them would be one prompt.
pub(super) fn one_line(text: &str) -> Result<&str, String> {
    match text.contains('\r') {
        true => {
            Err("a carriage return stands within the line; end each line with a line feed (tr '\\r' '\\n')".to_owned())
        }
        false => Ok(text),
    }
}

/// Refuses an input whose first lines are no JSON objects at all, where nothing said that it has any: each of its lines would be
/// wrong.
#[derive(Default)]
pub(super) struct FirstLines {
    seen: u32,
    objects: u32,
}

impl FirstLines {
    /// So many tell what an input is.
    const TELLING: u32 = 2;

    /// Looks at the next line that is not blank.
    ///
    /// # Errors
    /// None of the first is a JSON object.
    pub(super) fn see(&mut self, text: &Result<&str, String>) -> Result<(), Error> {
        self.seen += 1;
        self.objects += u32::from(text.as_ref().is_ok_and(|text| text.trim_start().starts_with('{')));
        if self.seen == Self::TELLING { self.check() } else { Ok(()) }
    }

    /// Looks at an input that has no more lines.
    ///
    /// # Errors
    /// The same.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.seen == 0 || self.objects > 0 || self.seen > Self::TELLING {
            return Ok(());
        }
        Err(Error::Table(
            "its first lines are no JSON objects: if each line is a web address or a prompt, add --format text; if it is a table, --format csv".to_owned(),
        ))
    }
}

/// Rows that have nothing where their prompt needs something.
#[derive(Default)]
pub(super) struct Gaps {
    rows: u64,
    /// The line of the first, and the column.
    first: Option<(u64, String)>,
}

impl Gaps {
    /// Looks at the next row: the column in which it has nothing, if it has to be asked all the same.
    pub(super) fn see(&mut self, place: Place, column: Option<String>) {
        if let Some(column) = column {
            self.rows += 1;
            self.first.get_or_insert((place.line, column));
        }
    }

    /// Tells of them once.
    pub(super) fn tell(&self) {
        let Some((line, column)) = &self.first else { return };
        let column = text::printable(column);
        match self.rows {
            1 => {
                tracing::warn!("line {line} has nothing in {column}, which its prompt needs; it is asked all the same")
            }
            rows => tracing::warn!(
                "{} have nothing in a column that their prompts need (the first, line {line}, in {column}); they are asked all the same",
                text::counted(rows, "row")
            ),
        }
    }
}
