//! The jobs that are recorded, and what must be true of their files after a power cut.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use paceline_core::{Class, Rng, Timestamp};
use paceline_store::{
    CallTotals, CustomId, End, FinishStatus, Finished, InputFingerprint, Journal, LastAnswer, LoadedLine, Loader,
    Opened, Options, Paths, ResultBody, Tally, encode_line,
};
use rusqlite::Connection;

use crate::trace::{ACKNOWLEDGED, FOLDER, INPUT};

const ITEMS: u64 = 240;
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// The number of the call whose answers are given after a cut: what has one was lost before.
const AFTERWARDS: u32 = 9;

/// What the outside has heard: `+7` item 7 succeeded, `-7` it failed, `?` failed items will be tried again.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    succeeded: BTreeSet<u64>,
    failed: BTreeSet<u64>,
}

impl Acknowledged {
    pub(crate) fn hear(&mut self, words: &str) {
        for word in words.split_whitespace() {
            match word.split_at(1) {
                ("+", item) => drop(self.succeeded.insert(item.parse().unwrap())),
                ("-", item) => drop(self.failed.insert(item.parse().unwrap())),
                _ => self.failed.clear(),
            }
        }
    }

    pub(crate) fn count(&self) -> u64 {
        (self.succeeded.len() + self.failed.len()) as u64
    }
}

#[derive(Clone)]
struct Outside(Arc<Mutex<fs::File>>);

impl Outside {
    fn at(folder: &Path) -> Self {
        Self(Arc::new(Mutex::new(fs::File::create(folder.join(ACKNOWLEDGED)).unwrap())))
    }

    fn hears(&self, word: &str) {
        self.0.lock().unwrap().write_all(format!("{word} ").as_bytes()).unwrap();
    }
}

/// Recorded, and else nothing: load, answers in groups, a restart, failed items once more, the files in order.
#[test]
fn journaled() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let outside = Outside::at(folder);
    let mut rng = Rng::new(1);
    let Opened::New(loader) = open(folder).unwrap() else { panic!("a new job") };
    let journal = load(loader);
    answer(&journal, &outside, &mut rng, 150, 1);
    journal.close().unwrap();
    let Opened::Resumed { journal, .. } = open(folder).unwrap() else { panic!("the job was forgotten") };
    answer(&journal, &outside, &mut rng, ITEMS as usize, 2);
    outside.hears("?");
    journal.retry_failed().unwrap();
    answer(&journal, &outside, &mut rng, ITEMS as usize, 3);
    journal.order().unwrap();
    journal.close().unwrap();
}

/// Lets `items` items end, most of them well, in groups of different sizes.
fn answer(journal: &Journal, outside: &Outside, rng: &mut Rng, items: usize, call: u32) {
    let claim = journal.claim_now(NOW, items).unwrap();
    let mut order: Vec<_> = claim.items.iter().map(|item| (rng.next_u64() % 64 + item.ordinal, item.ordinal)).collect();
    order.sort_unstable();
    for (_, ordinal) in order {
        let failed = ordinal % 5 == 2 && call < 3;
        let outside = outside.clone();
        journal.finish(end(ordinal, call, failed), move |kept| {
            kept.unwrap();
            outside.hears(&format!("{}{ordinal}", if failed { '-' } else { '+' }));
        });
        if rng.next_u64().is_multiple_of(4) {
            journal.flush().unwrap();
        }
    }
    journal.flush().unwrap();
}

/// Opens what a cut left, lets everything that waits end, and returns how many acknowledged answers are not those that
/// were acknowledged. Each item has one line at last.
pub(crate) fn check_journaled(folder: &Path, acknowledged: &Acknowledged) -> Result<u64, String> {
    let journal = match open(folder).map_err(|error| error.to_string())? {
        Opened::New(loader) => load(loader),
        Opened::Resumed { journal, .. } => journal,
        Opened::Changed { .. } => return Err("the input is the same".to_owned()),
    };
    let claim = journal.claim_now(NOW, ITEMS as usize).unwrap();
    for item in &claim.items {
        journal.finish(end(item.ordinal, AFTERWARDS, false), |kept| assert_eq!(kept.unwrap(), FinishStatus::Recorded));
    }
    journal.order().map_err(|error| error.to_string())?;
    journal.close().map_err(|error| error.to_string())?;

    let paths = Paths::beside(&folder.join("results.jsonl"));
    let (succeeded, failed) = (lines(&paths.output), lines(&paths.errors));
    let all: BTreeSet<_> = succeeded.iter().chain(&failed).map(|(item, _)| *item).collect();
    assert_eq!((all.len(), succeeded.len() + failed.len()), (ITEMS as usize, ITEMS as usize), "an item has two lines");
    let kept =
        |lines: &[(u64, u32)], item: &u64| lines.iter().any(|(ended, call)| ended == item && *call != AFTERWARDS);
    let lost = acknowledged.succeeded.iter().filter(|item| !kept(&succeeded, item)).count();
    // What failed may be on its way to be tried again, if the cut came after that was said.
    Ok((lost + acknowledged.failed.iter().filter(|item| !kept(&failed, item)).count()) as u64)
}

/// Item and call of each line.
fn lines(path: &Path) -> Vec<(u64, u32)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("whole lines only");
        let id = line["id"].as_str().unwrap().to_owned();
        let mut parts = id.split('-').skip(1);
        (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Recorded, and else nothing: the control, which keeps answers in a table.
#[test]
fn in_sqlite_alone() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let outside = Outside::at(folder);
    let conn = Connection::open(folder.join("answers.db")).unwrap();
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE answer (item INTEGER PRIMARY KEY, line BLOB);",
    )
    .unwrap();
    for item in 0..ITEMS {
        let line = end(item, 1, false).line;
        conn.execute("INSERT INTO answer VALUES (?1, ?2)", rusqlite::params![item as i64, line]).unwrap();
        outside.hears(&format!("+{item}"));
    }
}

/// How many acknowledged answers the table lacks.
pub(crate) fn check_sqlite_alone(folder: &Path, acknowledged: &Acknowledged) -> Result<u64, String> {
    let conn = Connection::open(folder.join("answers.db")).unwrap();
    let has = |item: &u64| conn.query_row("SELECT 1 FROM answer WHERE item = ?1", [*item as i64], |_| Ok(())).is_ok();
    Ok(acknowledged.succeeded.iter().filter(|item| !has(item)).count() as u64)
}

fn open(folder: &Path) -> Result<Opened, paceline_store::JournalError> {
    let paths = Paths::beside(&folder.join("results.jsonl"));
    Journal::open(Options::new(paths, InputFingerprint::of(&folder.join(INPUT))?, NOW))
}

fn load(mut loader: Loader) -> Journal {
    for ordinal in 0..ITEMS {
        let custom_id = id(ordinal);
        let (line, src_off) = (ordinal + 1, ordinal * 10);
        loader.add(&LoadedLine { custom_id: &custom_id, line, src_off, src_len: 9, body: b"", scope: "chat" }).unwrap();
    }
    loader.finish().unwrap()
}

fn end(ordinal: u64, call: u32, failed: bool) -> Finished {
    let body = format!("{{\"answer\":\"{}\"}}", "so it is ".repeat(ordinal as usize % 40));
    let status = if failed { 404 } else { 200 };
    let answer = ResultBody::Response { status, request_id: "r", headers: None, body: body.as_bytes() };
    let end = if failed { End::Failed } else { End::Succeeded };
    let mut finished = Finished::new(ordinal, end, encode_line(ordinal, call, &id(ordinal), &answer));
    let class = if failed { Class::Invalid } else { Class::Success };
    finished.tally = Tally { attempts: call, last: Some(LastAnswer::new(class)), ..Tally::default() };
    finished.adds = CallTotals { calls: 1, ..CallTotals::default() };
    finished
}

fn id(ordinal: u64) -> CustomId {
    CustomId::from(format!("item-{ordinal}").as_str())
}
