//! `--no-check`: the part of an input that is read while calls leave.

use std::io;

use paceline_config::Upstream;
use paceline_store::{Appended, AppendedLine, InputCursor, Journal, JournalError};

use crate::job::load::{Handed, hand_on};
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::lines::wrong::Wrong;

/// Lines appended to the journal together: each time is a sync of the disk, which results wait for.
const TOGETHER: usize = 5_000;

/// Loads the part of an input that is not in the journal yet.
pub(crate) struct BackgroundLoad<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) input: &'a Input,
    pub(crate) format: &'a Format,
    pub(crate) upstream: &'a Upstream,
    pub(crate) from: InputCursor,
}

/// Why the rest of an input cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// An error of the file system.
    #[error("cannot read {name}: {source}")]
    Input {
        /// The input.
        name: String,
        source: io::Error,
    },
    /// An error of the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl BackgroundLoad<'_> {
    /// Appends the lines to the journal, many at a time, until `go_on` returns false.
    ///
    /// # Errors
    /// An error of the file system, the journal or `go_on`.
    pub(crate) fn read(&self, mut go_on: impl FnMut(Appended) -> Result<bool, JournalError>) -> Result<(), LoadError> {
        let unreadable = |source| LoadError::Input { name: self.input.name(), source };
        let mut lines = self.input.lines_from(self.from).map_err(unreadable)?;
        loop {
            let mut together = Vec::with_capacity(TOGETHER);
            while together.len() < TOGETHER {
                let Some((number, span, bytes)) = lines.next_line().map_err(unreadable)? else { break };
                let (line, _) = hand_on(self.format, self.upstream, bytes, number, span, |handed| match handed {
                    Handed::Item(item, _) => AppendedLine::item(&item),
                    Handed::Refused(line) => AppendedLine::refused(&line),
                });
                together.push(line);
            }
            let input_cursor = (together.len() == TOGETHER).then(|| lines.position());
            let taken = self.journal.append(together, input_cursor, Wrong::REPEATED)?;
            if !go_on(taken)? || input_cursor.is_none() {
                return Ok(());
            }
        }
    }
}
