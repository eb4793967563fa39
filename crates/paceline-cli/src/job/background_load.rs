//! `--no-check`: calls leave while the input is still being read.

use std::io;
use std::sync::Arc;

use paceline_config::Upstream;
use paceline_store::{Appended, AppendedLine, InputCursor, Journal, JournalError};
use tokio::sync::mpsc;

use crate::calls::item::Context;
use crate::job::acknowledge::Acknowledge;
use crate::job::load::{Handed, hand_on};
use crate::job::refused;
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::lines::wrong::Wrong;
use crate::stops::stop::StopReason;

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

/// What a dispatcher hears while items come.
#[derive(Debug)]
pub(crate) enum Fed {
    /// Lines came.
    Lines(Appended),
    /// So many items that waited are another host's now.
    Gone(u64),
    /// No more come, and nothing can go on.
    Stop(StopReason),
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

/// Loads in a thread of its own and sends what was appended. It ends when the receiver is dropped; the next run continues from
/// there.
pub(crate) fn start(
    journal: Journal,
    context: Arc<Context>,
    upstream: Upstream,
    acknowledge: Acknowledge,
    from: InputCursor,
) -> mpsc::Receiver<Result<Fed, LoadError>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        let Context { input, format, .. } = &*context;
        let rest = BackgroundLoad { journal: &journal, input, format, upstream: &upstream, from };
        let end = rest.read(|taken| {
            if taken.refused > 0 {
                refused::settle(&journal, input, format.results(), &acknowledge)?;
            }
            Ok(sender.blocking_send(Ok(Fed::Lines(taken))).is_ok())
        });
        if let Err(error) = end {
            // A run that is over has dropped the receiver.
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}
