//! Printing to standard output, whose reader may have seen enough.

use std::io::{self, BufWriter, Write};

use crate::exit::Failure;

/// Lets `write` print. A reader that closed its end (`| head`) ends it quietly.
///
/// # Errors
/// Whatever else keeps the text from being written.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    print_while_read(write).map(|_| ())
}

/// The same for a part of a long text; says whether anybody wants more of it.
///
/// # Errors
/// Likewise.
pub(crate) fn print_while_read(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<bool, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::interrupted(format!("cannot write to standard output: {error}")))
        }
        wrote => Ok(wrote.is_ok()),
    }
}
