//! A copy of an input that cannot be read twice, or not at any place, or holds no requests yet: pipes, compressed files, tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, FileTimes};
use std::io::{self, BufRead as _, BufReader, BufWriter, ErrorKind, IsTerminal as _, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use paceline_store::private_file;

use crate::lines::convert::Converter;
use crate::lines::error::InputError;
use crate::lines::table;
use crate::text;

/// Between what a file is known by and what its requests are made by.
const MADE: &str = ", made by ";

/// What an earlier copy means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// A job works on it: what comes now must be the same, or nothing.
    MustMatch,
    /// The same, and it was made from the compressed file that is known by this, with these flags.
    From { packed: String, made: BTreeMap<String, String> },
    /// The same, nothing, or another one: lines of failed items may be repaired.
    MayBeRepaired,
    /// It may be replaced.
    MayDiffer,
}

/// A copy that is complete. One that was not settled is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Spool {
    lasting: PathBuf,
    /// Where it is until the job begins; none once it has its lasting name.
    fresh: Option<PathBuf>,
    /// By what the compressed file is known from which it was made.
    packed: Option<String>,
    /// The flags by which its requests are made of rows.
    made: BTreeMap<String, String>,
}

impl Spool {
    /// Copies `source` to a place beside `lasting` if it is a pipe or a `*.gz`. What a job works on already is used when
    /// it is the same, and also when nothing comes through the pipe or standard input is a terminal: a user who goes on need
    /// not send it again.
    ///
    /// # Errors
    /// An error of the file system or of the unpacking; [`InputError::Differs`].
    pub(crate) fn fill(
        source: &Path,
        lasting: &Path,
        earlier: &Earlier,
        converter: Option<&Converter>,
    ) -> Result<Option<Self>, InputError> {
        // Dropped, it removes what is at its fresh place: also what a killed run left there.
        let now = converter.map(Converter::made_by).unwrap_or_default();
        let fresh = Some(fresh_beside(lasting));
        let mut spool = Self { lasting: lasting.to_owned(), fresh, packed: None, made: now.clone() };
        let settled = |packed| Ok(Some(Self { lasting: lasting.to_owned(), fresh: None, packed, made: now.clone() }));
        if matches!(earlier, Earlier::MustMatch | Earlier::MayBeRepaired) && is_typed(source) && lasting.exists() {
            return settled(None);
        }
        let Some(mut from) = Source::open(source, converter)? else { return Ok(None) };
        spool.packed.clone_from(&from.packed);
        if matches!(earlier, Earlier::From { packed, .. } if from.packed.as_ref() == Some(packed)) && lasting.exists() {
            return settled(from.packed);
        }
        let copied = from.copy_to(spool.path(), converter)?;
        let unreadable = InputError::unreadable(lasting);
        if lasting.exists() {
            let goes_on = *earlier != Earlier::MayDiffer;
            let nothing_came = goes_on && copied == 0 && from.packed.is_none();
            if nothing_came || same_bytes(spool.path(), lasting).map_err(unreadable)? {
                return settled(from.packed);
            }
            if goes_on && *earlier != Earlier::MayBeRepaired {
                if let Earlier::From { packed, made } = earlier
                    && from.is_made_otherwise(packed)
                {
                    return Err(InputError::MadeOtherwise {
                        source_path: source.to_owned(),
                        changed: changed(made, &now),
                    });
                }
                return Err(InputError::Differs { source_path: source.to_owned(), spool: lasting.to_owned() });
            }
        }
        Ok(Some(spool))
    }

    /// Gives it its lasting name.
    ///
    /// # Errors
    /// [`InputError::Copy`].
    pub(crate) fn settle(&mut self) -> Result<(), InputError> {
        if let Some(fresh) = &self.fresh {
            std::fs::rename(fresh, &self.lasting).map_err(cannot_write(&self.lasting))?;
            self.fresh = None;
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.fresh.as_ref().unwrap_or(&self.lasting)
    }

    /// By what the compressed file is known from which it was made; none for a pipe.
    pub(crate) fn packed(&self) -> Option<&str> {
        self.packed.as_deref()
    }

    /// The flags by which its requests are made of rows.
    pub(crate) const fn made(&self) -> &BTreeMap<String, String> {
        &self.made
    }

    /// Where it will be.
    pub(crate) fn lasting(&self) -> &Path {
        &self.lasting
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Some(fresh) = &self.fresh {
            // What cannot be removed is overwritten by the next copy.
            let _ = std::fs::remove_file(fresh);
        }
    }
}

/// Which flags differ, with both values; none where nothing is known of the earlier ones.
pub(crate) fn changed(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Option<String> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).filter(|_| !before.is_empty()).collect();
    let value = |flags: &'_ BTreeMap<String, String>, key: &String| flags.get(key).cloned();
    let both = keys.into_iter().map(|key| (key, value(before, key), value(now, key)));
    let words =
        both.filter(|(_, was, is)| was != is).map(|(key, was, is)| text::changed(key, was.as_deref(), is.as_deref()));
    Some(words.collect::<Vec<_>>().join("; ")).filter(|words| !words.is_empty())
}

/// Whether the input is a terminal: a user who resumes a job means the copy.
fn is_typed(source: &Path) -> bool {
    source == Path::new("-") && io::stdin().is_terminal()
}

/// Where a copy is made from.
struct Source {
    path: PathBuf,
    reader: Box<dyn Read>,
    /// By what a compressed file is known: its length and hash. None for a pipe.
    packed: Option<String>,
    /// When a compressed file was last changed. Its copy gets the same time: made again, it is the same to its job.
    changed: Option<SystemTime>,
}

impl Source {
    /// None for a plain file, which needs no copy.
    fn open(path: &Path, converter: Option<&Converter>) -> Result<Option<Self>, InputError> {
        if path == Path::new("-") {
            return Ok(Some(Self {
                path: path.to_owned(),
                reader: Box::new(io::stdin().lock()),
                packed: None,
                changed: None,
            }));
        }
        let about = path.metadata().map_err(InputError::unreadable(path))?;
        let compressed = path.extension().is_some_and(|extension| extension == "gz");
        if about.is_dir() || (about.is_file() && !compressed && converter.is_none()) {
            return Ok(None);
        }
        let mut file = File::open(path).map_err(InputError::unreadable(path))?;
        let changed = about.modified().ok().filter(|_| about.is_file());
        let packed = about.is_file().then(|| known_by(&mut file)).transpose().map_err(InputError::unreadable(path))?;
        let made = converter.map_or_else(String::new, |converter| format!("{MADE}{}", converter.known_by()));
        let packed = packed.map(|packed| packed + &made);
        let reader: Box<dyn Read> =
            if compressed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
        Ok(Some(Self { path: path.to_owned(), reader, packed, changed }))
    }

    /// Whether it is the file of an earlier copy, of which other requests are made now.
    fn is_made_otherwise(&self, earlier: &str) -> bool {
        let file = |known: &str| known.split_once(MADE).map(|(file, _)| file.to_owned());
        self.packed.as_deref().and_then(file).is_some_and(|now| file(earlier) == Some(now))
    }

    /// Writes everything to a new file, and returns its length once it is on disk.
    fn copy_to(&mut self, path: &Path, converter: Option<&Converter>) -> Result<u64, InputError> {
        let mut file = private_file().create(true).truncate(true).open(path).map_err(cannot_write(path))?;
        let head = head(&mut self.reader).map_err(|error| self.failed(error))?;
        InputError::of_columns(&self.path, &head)?;
        // Without a header too: of a table nothing came.
        let converter = converter.filter(|_| !head.is_empty());
        let rest = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        self.reader = Box::new(io::Cursor::new(head).chain(rest));
        let copied = match converter {
            Some(converter) => self.convert(converter, &mut file, path)?,
            None => self.copy(&mut file, path)?,
        };
        if let Some(changed) = self.changed {
            file.set_times(FileTimes::new().set_modified(changed)).map_err(cannot_write(path))?;
        }
        file.sync_all().map_err(cannot_write(path))?;
        Ok(copied)
    }

    fn convert(&mut self, converter: &Converter, file: &mut File, path: &Path) -> Result<u64, InputError> {
        let mut writer = BufWriter::new(file);
        let copied = converter.copy(&mut self.reader, &mut writer).map_err(|error| match error {
            table::Error::Read(error) => self.failed(error),
            table::Error::Write(error) => cannot_write(path)(error),
            table::Error::Table(message) => InputError::Table { path: self.path.clone(), message },
        })?;
        writer.flush().map_err(cannot_write(path))?;
        Ok(copied)
    }

    fn copy(&mut self, file: &mut File, path: &Path) -> Result<u64, InputError> {
        let (mut copied, mut buffer) = (0, vec![0; 1 << 18]);
        loop {
            match self.reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    file.write_all(&buffer[..read]).map_err(cannot_write(path))?;
                    copied += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(copied)
    }

    fn failed(&self, source: io::Error) -> InputError {
        let path = self.path.clone();
        match source.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData => {
                InputError::Gzip { path, source }
            }
            _ => InputError::Unreadable { path, source },
        }
    }
}

/// The first bytes of a file, by which some kinds are known.
///
/// # Errors
/// An error of the file system.
pub(crate) fn head(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(4).read_to_end(&mut head)?;
    Ok(head)
}

/// The length and hash of a file, which is read once for it and then stands at its front again. Its name and its time of
/// change say nothing: both may be those of another content.
fn known_by(file: &mut File) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let (mut len, mut buffer) = (0, vec![0; 1 << 18]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        len += read;
    }
    file.rewind()?;
    Ok(format!("{len} bytes, {}", hasher.finalize()))
}

/// Where a copy is until it is complete.
fn fresh_beside(lasting: &Path) -> PathBuf {
    let mut fresh = lasting.as_os_str().to_owned();
    fresh.push(".new");
    fresh.into()
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> InputError {
    move |source| InputError::Copy { path: path.to_owned(), source }
}

fn same_bytes(a: &Path, b: &Path) -> io::Result<bool> {
    if std::fs::metadata(a)?.len() != std::fs::metadata(b)?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (BufReader::new(File::open(a)?), BufReader::new(File::open(b)?));
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let n = left.len().min(right.len());
        if n == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left[..n] != right[..n] {
            return Ok(false);
        }
        a.consume(n);
        b.consume(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressed(path: &Path, text: &str) {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory");
        std::fs::write(path, encoder.finish().expect("memory")).expect("writable");
    }

    #[test]
    fn a_copy_stays_only_when_it_is_settled_and_is_made_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, lasting) = (folder.path().join("in.jsonl.gz"), folder.path().join("results.input"));
        let fill = |earlier: &Earlier| {
            Spool::fill(&source, &lasting, earlier, None).map(|spool| spool.expect("it is no plain file"))
        };

        compressed(&source, "one");
        drop(fill(&Earlier::MustMatch).expect("good data"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing but the source");

        let mut spool = fill(&Earlier::MustMatch).expect("good data");
        spool.settle().expect("writable");
        assert_eq!(std::fs::read(&lasting).expect("settled"), b"one");
        let packed = spool.packed().expect("it is compressed").to_owned();
        let known = Earlier::From { packed, made: BTreeMap::new() };

        // What a job works on is not made again from the same file: this would be noticed otherwise.
        std::fs::write(&lasting, "the copy").expect("writable");
        assert_eq!(fill(&known).expect("the same file").path(), lasting);
        assert!(matches!(fill(&Earlier::MustMatch), Err(InputError::Differs { .. })));

        compressed(&source, "two");
        assert!(matches!(fill(&known), Err(InputError::Differs { .. })));
        let spool = fill(&Earlier::MayDiffer).expect("it may differ");
        assert_eq!(std::fs::read(spool.path()).expect("a copy"), b"two");
        assert_eq!(std::fs::read(&lasting).expect("still there"), b"the copy");
    }

    #[test]
    fn what_a_killed_run_left_goes_whatever_the_input_is_now() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, lasting) = (folder.path().join("in.jsonl"), folder.path().join("results.input"));
        std::fs::write(&source, "plain").expect("writable");
        std::fs::write(fresh_beside(&lasting), "half").expect("writable");
        assert!(Spool::fill(&source, &lasting, &Earlier::MayDiffer, None).expect("a plain file").is_none());
        assert!(!fresh_beside(&lasting).exists());
    }
}
