//! Printing to standard output, whose reader may stop early, reports in files, the summary of a job, and files set aside.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::exit::{Failure, Status};
use crate::logging;

/// Lets `write` print. A reader that closed its end (`| head`) ends it quietly.
///
/// # Errors
/// Whatever else keeps the text from being written: the command has not done what it was asked.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    print_while_read(write).map(|_| ())
}

/// The same for a part of a long text; returns whether the reader wants more of it.
///
/// # Errors
/// Likewise.
pub(crate) fn print_while_read(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<bool, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::refused(format!("cannot write to standard output: {error}")))
        }
        wrote => Ok(wrote.is_ok()),
    }
}

/// Lets `write` fill a file: a device or a pipe, or in the place of a file; a link goes on leading there.
///
/// # Errors
/// What keeps it from being written; a file that was there stays then.
pub(crate) fn write_report(
    path: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let written = if path.metadata().is_ok_and(|there| !there.is_file()) {
        File::options().write(true).open(path).and_then(|device| {
            let mut device = BufWriter::new(device);
            write(&mut device)?;
            device.flush()
        })
    } else {
        replace(&path.canonicalize().unwrap_or_else(|_| path.to_owned()), write)
    };
    written.map_err(|error| Failure::interrupted(format!("cannot write {}: {error}", path.display())))
}

/// Readers see the old file or the new one, never a part.
fn replace(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let mut fill = || {
        let mut file = BufWriter::new(File::create(&fresh)?);
        write(&mut file)?;
        file.flush()?;
        file.get_ref().sync_data()?;
        std::fs::rename(&fresh, path)
    };
    let written = fill();
    if written.is_err() {
        // On a full disk even a part is in the way.
        let _ = std::fs::remove_file(&fresh);
    }
    written
}

/// Gives a file that cannot be used another name, under which a person finds it: the first of nine that is free, else the last.
pub(crate) fn set_aside(path: &Path, named: impl Fn(u32) -> PathBuf) -> io::Result<PathBuf> {
    const MOST: u32 = 9;
    let aside = (1..MOST).map(&named).find(|name| !name.exists()).unwrap_or_else(|| named(MOST));
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// Refuses a summary that cannot be written, before anything begins. Under the lock of the job: what is made here for a
/// moment could otherwise be the summary of another run.
///
/// # Errors
/// An error of the file system.
pub(crate) fn try_summary(summary: Option<&Path>) -> Result<(), Failure> {
    let Some(summary) = summary else { return Ok(()) };
    let new = !summary.exists();
    let opened = OpenOptions::new().create(true).append(true).open(summary);
    opened
        .and_then(|_| if new { std::fs::remove_file(summary) } else { Ok(()) })
        .map_err(|error| Failure::refused(format!("cannot write the summary {}: {error}", summary.display())))
}

/// Removes the summary of an earlier run once this one begins: whatever ends it, that is never taken for its own.
///
/// # Errors
/// An error of the file system.
pub(crate) fn remove_summary(summary: Option<&Path>) -> Result<(), Failure> {
    // Names there are of open files, such as the log of a caller.
    let is_of_system = |path: &&Path| ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
    let Some(summary) = summary.filter(|path| path.is_file() && !is_of_system(path)) else { return Ok(()) };
    // A link goes on leading there.
    let removed = match summary.is_symlink() {
        true => OpenOptions::new().write(true).truncate(true).open(summary).map(drop),
        false => std::fs::remove_file(summary),
    };
    removed.map_err(|error| {
        Failure::refused(format!("cannot remove the summary {} of an earlier run: {error}", summary.display()))
    })
}

/// Where and how the summary of a job is printed.
pub(crate) struct SummaryOutput<'a> {
    /// As JSON on standard output, instead of on standard error in the form of the log.
    pub(crate) as_json: bool,
    /// No text.
    pub(crate) quiet: bool,
    /// As JSON in a file, too.
    pub(crate) file: Option<&'a Path>,
}

impl SummaryOutput<'_> {
    /// Prints it in each requested way.
    ///
    /// # Errors
    /// The first output that failed: its reader must not take a missing summary for a success. That of a job that is done says
    /// so.
    pub(crate) fn print(&self, status: Status, json: impl Fn() -> Value, text: &str) -> Result<(), Failure> {
        self.print_all(json, text).map_err(|failure| match status {
            Status::Deferred | Status::Killed(_) => Failure::interrupted(failure),
            done => Failure::Unsaid(format!(
                "{failure}; the job itself is done ({done}), and the same command sends nothing and prints its summary again"
            )),
        })
    }

    fn print_all(&self, json: impl Fn() -> Value, text: &str) -> Result<(), Failure> {
        // Only for a reader: of ten thousand scopes it takes three hundred megabytes.
        let line = if self.as_json || self.file.is_some() { format!("{}\n", json()) } else { String::new() };
        let written = self.file.map_or(Ok(()), |file| write_report(file, &mut |out| out.write_all(line.as_bytes())));
        if self.as_json {
            print(|out| out.write_all(line.as_bytes()))?;
        } else if !self.quiet {
            logging::tell_summary(text, json);
        }
        written
    }
}
