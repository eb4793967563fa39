//! The files of collected results, which take their places once they are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_store::blocks::KeptResult;
use paceline_store::{Paths, create_in_place_of};

use crate::exit::Failure;

/// Successes, and failures beside them.
pub(super) struct Files {
    results: Fresh,
    /// None while there are none.
    errors: Option<Fresh>,
    errors_path: PathBuf,
}

/// A file that is being written under another name: readers see the old one or the new one.
struct Fresh {
    path: PathBuf,
    fresh: PathBuf,
    /// None once it has its place.
    out: Option<Out>,
}

enum Out {
    Plain(BufWriter<File>),
    Packed(GzEncoder<BufWriter<File>>),
}

impl Files {
    /// Makes the file of the results before anything is read.
    ///
    /// # Errors
    /// Refuses the files of a run on this machine, and those of an earlier collection unless they are to be replaced.
    pub(super) fn create(paths: &Paths, overwrite: bool) -> Result<Self, Failure> {
        let results = if paths.compress { paths.packed() } else { paths.output.clone() };
        if let Some(journal) = paths.journal.as_deref().filter(|journal| journal.exists()) {
            return Err(Failure::refused(format!(
                "{} belongs to a run of this machine, whose journal is {}: collect into another file",
                results.display(),
                journal.display()
            )));
        }
        for there in [&results, &paths.errors] {
            match there.metadata() {
                Ok(about) if !about.is_file() => {
                    return Err(Failure::refused(format!(
                        "{} is no file: expected a file or a new name",
                        there.display()
                    )));
                }
                Ok(_) if !overwrite => {
                    return Err(Failure::refused(format!(
                        "{} is there: name another file, or replace it with --overwrite",
                        there.display()
                    )));
                }
                _ => {}
            }
        }
        let opened = Fresh::create(&results, paths.compress);
        let results =
            opened.map_err(|error| Failure::refused(format!("cannot write {}: {error}", results.display())))?;
        Ok(Self { results, errors: None, errors_path: paths.errors.clone() })
    }

    /// Appends the line of a result to the file where it belongs.
    pub(super) fn write(&mut self, result: &KeptResult) -> Result<(), String> {
        let file = match (result.ok, &mut self.errors) {
            (true, _) => &mut self.results,
            (false, Some(errors)) => errors,
            (false, errors) => {
                let path = &self.errors_path;
                let opened = Fresh::create(path, false);
                errors.insert(opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?)
            }
        };
        file.line(&result.body).map_err(|error| file.cannot(&error))
    }

    /// Gives the files their names. The failures of an earlier collection go where there are none now.
    pub(super) fn finish(mut self) -> Result<(), String> {
        match &mut self.errors {
            Some(errors) => errors.finish()?,
            None => match std::fs::remove_file(&self.errors_path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("cannot remove {}: {error}", self.errors_path.display()));
                }
                _ => {}
            },
        }
        self.results.finish()
    }
}

impl Fresh {
    fn create(path: &Path, packed: bool) -> io::Result<Self> {
        // A link goes on leading there.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut fresh = path.clone().into_os_string();
        fresh.push(".new");
        let file = BufWriter::new(create_in_place_of(&path, Path::new(&fresh))?);
        let out = if packed { Out::Packed(GzEncoder::new(file, Compression::default())) } else { Out::Plain(file) };
        Ok(Self { path, fresh: fresh.into(), out: Some(out) })
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let out: &mut dyn Write = match self.out.as_mut().expect("it has not got its place yet") {
            Out::Plain(file) => file,
            Out::Packed(file) => file,
        };
        out.write_all(line.trim_ascii_end())?;
        out.write_all(b"\n")
    }

    fn finish(&mut self) -> Result<(), String> {
        let written = self.out.take().map_or(Ok(()), |out| {
            let file = match out {
                Out::Plain(file) => file,
                Out::Packed(file) => file.finish()?,
            };
            file.into_inner()?.sync_all()?;
            std::fs::rename(&self.fresh, &self.path)
        });
        written.map_err(|error| {
            let _ = std::fs::remove_file(&self.fresh);
            self.cannot(&error)
        })
    }

    fn cannot(&self, error: &io::Error) -> String {
        format!("cannot write {}: {error}; the files that were there are as they were", self.path.display())
    }
}

impl Drop for Fresh {
    /// What was not finished is in the way of nothing, on a full disk either.
    fn drop(&mut self) {
        if self.out.take().is_some() {
            let _ = std::fs::remove_file(&self.fresh);
        }
    }
}
