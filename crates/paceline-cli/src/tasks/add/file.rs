//! A file of items. It is read twice: to check all of it, and to add its items.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::path::Path;

use paceline_core::Timestamp;
use paceline_store::is_disk_full;
use paceline_store::work::NewItem;

use super::line;
use crate::exit::Failure;
use crate::lines::not_sent::NotSent;

/// The most invalid lines that are listed.
const TOLD: usize = 20;

/// The longest line. A payload may have 16 MiB, and be written with blanks.
const LINE_BYTES: u64 = 64 << 20;

/// Items that are added together, and how long their payloads may be then.
const TOGETHER: (usize, usize) = (1_000, 8 << 20);

/// The items of a file that has been checked.
#[derive(Debug)]
pub(super) struct Items {
    lines: Lines,
    count: u64,
    bytes: u64,
    /// When they are added, by the clock of the store.
    now: Timestamp,
}

impl Items {
    /// Checks every line, and where they `are_requests` whether they could be sent. Standard input, and what else cannot be read
    /// twice, is copied first.
    ///
    /// # Errors
    /// Names the lines that are no items, and keys that stand there twice.
    pub(super) fn check(path: &Path, are_requests: bool) -> Result<Self, Failure> {
        let unreadable = |error| match is_disk_full(&error) {
            // What cannot be read twice is copied first.
            true => Failure::DiskFull(format!("nothing was added: cannot copy the items: {error}")),
            false => Failure::refused(format!("cannot read {}: {error}", path.display())),
        };
        let mut lines = Lines::new(seekable(path).map_err(unreadable)?);
        let (mut wrong, mut not_sent) = (Vec::new(), NotSent::default());
        let mut keys: HashMap<[u8; 16], u64> = HashMap::new();
        let (mut items, mut wrongs) = (0_u64, 0_u64);
        // Whatever it is, a line is an item or none.
        let now = Timestamp::from_millis(0);
        while let Some((number, text)) = lines.next().map_err(unreadable)? {
            let parsed = text
                .and_then(|text| line::read(text, now))
                .and_then(|item| repeated(&mut keys, &item, number).map(|()| item));
            let parsed = parsed.and_then(|item| match are_requests {
                true => line::refuse_no_request(&item.payload).map_err(|why| format!("payload: {why}")),
                false => Ok(None),
            });
            match parsed {
                Ok(key) => {
                    items += 1;
                    key.into_iter().for_each(|key| not_sent.note(key, number));
                }
                Err(message) => {
                    wrongs += 1;
                    if wrong.len() < TOLD {
                        wrong.push(format!("\n  line {number}: {message}"));
                    }
                }
            }
        }
        let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
        if wrongs > 0 {
            let more = wrongs - wrong.len() as u64;
            wrong.extend((more > 0).then(|| format!("\n  and {more} more")));
            return Err(Failure::refused(format!(
                "nothing was added, because lines of {name} are wrong:{}",
                wrong.concat()
            )));
        }
        if items == 0 {
            return Err(Failure::refused(format!("nothing was added: {name} has no lines")));
        }
        not_sent.tell();
        let bytes = lines.position;
        lines.rewind().map_err(unreadable)?;
        Ok(Self { lines, count: items, bytes, now })
    }

    /// The same, added at that time.
    pub(super) fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }

    /// How many there are.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// How long the file is.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of it was handed out.
    pub(super) const fn position(&self) -> u64 {
        self.lines.position
    }

    /// The next items; none at the end.
    ///
    /// # Errors
    /// The file cannot be read, or was changed since it was checked.
    pub(super) fn next_together(&mut self) -> Result<Option<Vec<NewItem>>, Failure> {
        let broken = |message: String| {
            Failure::interrupted(format!("the file was changed while it was added: {message}; add it again"))
        };
        let (mut together, mut bytes) = (Vec::new(), 0);
        while together.len() < TOGETHER.0 && bytes < TOGETHER.1 {
            let Some((number, text)) = self.lines.next().map_err(|error| broken(error.to_string()))? else { break };
            let item = text.and_then(|text| line::read(text, self.now));
            let item = item.map_err(|message| broken(format!("line {number}: {message}")))?;
            bytes += item.payload.len();
            together.push(item);
        }
        Ok((!together.is_empty()).then_some(together))
    }
}

/// Two lines of one key would be one item, whose payload is that of the first.
fn repeated(keys: &mut HashMap<[u8; 16], u64>, item: &NewItem, number: u64) -> Result<(), String> {
    let hash = blake3::hash(item.key.as_bytes());
    let (short, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    match keys.insert(*short, number) {
        None => Ok(()),
        Some(before) => Err(format!("line {before} has the same key, {:?}", item.key)),
    }
}

fn seekable(path: &Path) -> io::Result<File> {
    let mut from: Box<dyn io::Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path)?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Box::new(file)
    };
    let mut copy = tempfile::tempfile()?;
    io::copy(&mut from, &mut copy)?;
    copy.rewind()?;
    Ok(copy)
}

/// The lines of a file, blank ones left out.
#[derive(Debug)]
struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    position: u64,
}

impl Lines {
    fn new(file: File) -> Self {
        Self { file: BufReader::new(file), line: Vec::new(), number: 0, position: 0 }
    }

    fn rewind(&mut self) -> io::Result<()> {
        (self.number, self.position) = (0, 0);
        self.file.rewind()
    }

    /// The next line and its number, from 1; what is wrong with it when it is no text.
    fn next(&mut self) -> io::Result<Option<(u64, Result<&str, String>)>> {
        loop {
            self.line.clear();
            let read = self.file.by_ref().take(LINE_BYTES).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.position += read as u64;
            if read as u64 == LINE_BYTES && !self.line.ends_with(b"\n") {
                self.position += self.file.skip_until(b'\n')? as u64;
                return Ok(Some((self.number, Err("longer than 64 MiB".to_owned()))));
            }
            let is_first = self.number == 1;
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            let text = std::str::from_utf8(&self.line).map_err(|_| "not UTF-8".to_owned());
            let text = text.map(|text| if is_first { text.trim_start_matches('\u{feff}') } else { text }.trim());
            return Ok(Some((self.number, text)));
        }
    }
}
