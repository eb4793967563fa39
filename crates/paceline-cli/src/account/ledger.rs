//! The file with the units that runs have counted under the configured limits of an account: one entry for each run, which that
//! run alone changes. An entry goes when none of its units counts any more.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use paceline::{LevelState, LimiterState, PacerState, Quota, QuotaShape, TakenState, WindowState, clock};
use paceline_core::Timestamp;
use paceline_store::private_file;
use serde::{Deserialize, Serialize};

use super::bucket_levels::handed_on;
use crate::{files, output, reserve};

/// The version of the file that this program writes; it refuses later ones.
const VERSION: u32 = 1;

/// The extension of the file, ...
pub(super) const FILE: &str = "json";

/// ... of the next one while it is written, ...
pub(super) const NEW: &str = "new";

/// ... and of one that was set aside.
pub(super) const BAD: &str = "bad";

/// So many entries are kept: beyond that, the oldest of those with the same limits are merged.
const MOST: usize = 64;

/// A merged entry has its units in so many parts of each window.
const PARTS: u32 = 60;

/// The units that one run has counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    pub(super) run: String,
    /// What the run noted before that is in what it had counted. The time of the counts themselves is read once they are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) noted_until: Option<Timestamp>,
    #[serde(flatten)]
    pub(super) counted: LimiterState,
}

impl Entry {
    /// What is counted of runs that change it no more.
    const fn of_no_run(counted: LimiterState) -> Self {
        Self { run: String::new(), noted_until: None, counted }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Contents {
    version: u32,
    /// The run that has the turn. It goes on after this was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn_of: Option<String>,
    runs: Vec<Entry>,
}

impl Contents {
    const fn none() -> Self {
        Self { version: VERSION, turn_of: None, runs: Vec::new() }
    }
}

/// Such a file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
}

impl Ledger {
    pub(super) fn new(folder: &Path, account: &str) -> Self {
        Self { path: folder.join(account).with_extension(FILE) }
    }

    /// The entries of which something still counts.
    ///
    /// # Errors
    /// What the file system says, and [`ErrorKind::InvalidData`] for a file that this program does not understand.
    pub(super) fn read(&self) -> io::Result<Vec<Entry>> {
        Ok(as_of(clock::wall(), self.contents()?.runs))
    }

    fn contents(&self) -> io::Result<Contents> {
        let text = match files::with_spare(|| fs::read(&self.path)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::none()),
            Err(error) => return Err(error),
        };
        let not_understood = |error| io::Error::new(ErrorKind::InvalidData, error);
        let contents: Contents = serde_json::from_slice(&text).map_err(not_understood)?;
        let known = PacerState::default().version;
        if contents.version > VERSION || contents.runs.iter().any(|run| run.counted.pacer.version > known) {
            return Err(io::Error::new(ErrorKind::InvalidData, "it was written by a later version of this program"));
        }
        Ok(contents)
    }

    /// The same for the process that has the turn. A run that was killed in its turn has sent more than it wrote: what it `noted`
    /// since then counts too.
    ///
    /// # Errors
    /// As [`read_or_set_aside`](Self::read_or_set_aside).
    pub(super) fn take_over(
        &self,
        run: &str,
        noted: impl FnOnce(&str, Option<Timestamp>) -> LimiterState,
    ) -> io::Result<Vec<Entry>> {
        let (mut runs, turn_of) = self.read_or_set_aside()?;
        let killed = turn_of.filter(|name| name != run);
        let unwritten = killed.map(|killed| {
            let noted_until = runs.iter().find(|entry| entry.run == killed).and_then(|entry| entry.noted_until);
            handed_on(noted(&killed, noted_until), &runs)
        });
        let unwritten = unwritten.unwrap_or_default();
        let unwritten = unwritten.into_iter().map(Entry::of_no_run);
        runs.extend(unwritten.filter(|entry| counts(&entry.counted, entry.counted.at)));
        Ok(runs)
    }

    /// Whether something that still counts is known of earlier runs: by their entries, or by what the one `noted` that was killed
    /// in its turn, or has it now.
    pub(super) fn knows_runs(&self, noted: impl FnOnce(&str) -> LimiterState) -> bool {
        let Ok(Contents { runs, turn_of, .. }) = self.contents() else { return false };
        let noted = || turn_of.map(|run| noted(&run)).is_some_and(|noted| counts(&noted, noted.at));
        !as_of(clock::wall(), runs).is_empty() || noted()
    }

    /// The run that was killed in its turn, or has it now.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn turn_of(&self) -> io::Result<Option<String>> {
        Ok(self.contents()?.turn_of)
    }

    /// The same for the process that has the turn, and which run had it when that was written. A file that it does not
    /// understand is set aside, and counts begin anew. Where the clock was set back, the entries of the future are rewritten:
    /// else they would be as of now until the clock is there.
    ///
    /// # Errors
    /// What the file system says.
    fn read_or_set_aside(&self) -> io::Result<(Vec<Entry>, Option<String>)> {
        let Contents { runs: entries, turn_of, .. } = self.contents().or_else(|error| {
            if error.kind() != ErrorKind::InvalidData {
                return Err(error);
            }
            let aside = output::set_aside(&self.path, |number| self.bad(number))?;
            tracing::warn!(
                "cannot read how much was sent to this host with this key, so configured limits start from zero: \
                 {error}; the file is kept as {}",
                aside.display()
            );
            Ok(Contents::none())
        })?;
        let now = clock::wall();
        let is_later = entries.iter().any(|run| run.counted.at > now);
        let entries = as_of(now, entries);
        if is_later {
            self.write(entries.clone(), turn_of.as_deref())?;
        }
        Ok((entries, turn_of))
    }

    /// The names of files that were set aside. Each is removed like the files of an account.
    fn bad(&self, number: u32) -> PathBuf {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let stem = if number == 1 { stem } else { format!("{stem}-{number}").into() };
        self.path.with_file_name(format!("{stem}.{BAD}"))
    }

    /// For the process that has the turn. Readers see the old file or the new one, never a part. It is not synced: a crash of
    /// the machine, not of the process, may lose the last seconds, and a sync ten times a second would slow every disk.
    ///
    /// # Errors
    /// What the file system says; the old file stays then.
    pub(super) fn write(&self, runs: Vec<Entry>, turn_of: Option<&str>) -> io::Result<()> {
        let contents = Contents { version: VERSION, turn_of: turn_of.map(str::to_owned), runs };
        let text = reserve::with_room(serde_json::to_vec(&contents)?);
        reserve::write(&self.path, &text, |path, text| self.replace(path, text))
    }

    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let new = self.path.with_extension(NEW);
        let mut file = files::with_spare(|| private_file().create(true).truncate(true).open(&new))?;
        file.write_all(text)?;
        fs::rename(new, path)
    }
}

/// The entries of which something still counts, the oldest first. One of the future is as of now.
fn as_of(now: Timestamp, mut runs: Vec<Entry>) -> Vec<Entry> {
    runs.iter_mut().for_each(|run| run.counted.at = run.counted.at.min(now));
    runs.retain(|run| counts(&run.counted, now));
    runs.sort_by_key(|run| run.counted.at);
    while runs.len() > MOST && join_oldest(&mut runs) {}
    runs
}

/// Merges the oldest entry and the next one with the same limits. No run changes the result: if one of the two runs is still at
/// work, its calls count twice until they are over, never too little. Returns whether there were two.
fn join_oldest(runs: &mut Vec<Entry>) -> bool {
    let pair = (0..runs.len()).find_map(|first| {
        let like_it = |second: &usize| is_alike(&runs[first].counted, &runs[*second].counted);
        Some((first, (first + 1..runs.len()).find(like_it)?))
    });
    let Some((first, second)) = pair else { return false };
    let mut newer = runs.remove(second).counted;
    let older = runs.remove(first).counted;
    let (since, newer_at) = (newer.at.saturating_since(older.at), newer.at.as_millis());
    for (window, before) in windows_mut(&mut newer).zip(windows(&older)) {
        let before = before.taken.iter().map(|taken| TakenState { ago: taken.ago.saturating_add(since), ..*taken });
        let mut taken: Vec<_> = before.chain(window.taken.iter().copied()).collect();
        taken.sort_by_key(|taken| Reverse(taken.ago));
        // Parts of the clock's time, so that what is joined again and again stays where it is: each at its latest time.
        let length = (window.quota.window / PARTS).as_millis().max(1) as i64;
        let part = |taken: &TakenState| (newer_at - taken.ago.as_millis() as i64).div_euclid(length);
        let parts = taken.chunk_by(|one, next| part(one) == part(next)).filter_map(|part| {
            let units = part.iter().fold(0u64, |sum, taken| sum.saturating_add(taken.units));
            Some(TakenState { ago: part.last()?.ago, units })
        });
        window.taken = parts.collect();
    }
    runs.insert(0, Entry::of_no_run(newer));
    true
}

/// Whether both counted under the same limits, all of them sliding windows, whose units have times of their own.
fn is_alike(one: &LimiterState, other: &LimiterState) -> bool {
    let limits = |of: &LimiterState| -> Vec<(String, Vec<Quota>)> {
        let levels = std::iter::once(&of.pacer.account).chain(&of.pacer.scopes);
        let quotas = |level: &LevelState| level.windows.iter().map(|window| window.quota.clone()).collect();
        levels.map(|level| (level.name.clone(), quotas(level))).collect()
    };
    let is_sliding = |window: &WindowState| window.quota.shape == QuotaShape::Sliding;
    windows(one).all(is_sliding) && limits(one) == limits(other)
}

fn windows(state: &LimiterState) -> impl Iterator<Item = &WindowState> {
    std::iter::once(&state.pacer.account).chain(&state.pacer.scopes).flat_map(|level| &level.windows)
}

fn windows_mut(state: &mut LimiterState) -> impl Iterator<Item = &mut WindowState> {
    std::iter::once(&mut state.pacer.account).chain(&mut state.pacer.scopes).flat_map(|level| &mut level.windows)
}

/// Whether any unit of the state still counts.
fn counts(state: &LimiterState, now: Timestamp) -> bool {
    windows(state).any(|window| {
        // More than the limit is paid off over several windows, where the shape is not sliding.
        let units = window.taken.iter().fold(0u64, |sum, taken| sum.saturating_add(taken.units));
        let windows = u32::try_from(units.div_ceil(window.quota.limit.max(1)).max(1)).unwrap_or(u32::MAX);
        let newest = window.taken.iter().map(|taken| taken.ago).min();
        let since = now.saturating_since(state.at);
        newest.is_some_and(|ago| ago.saturating_add(since) < window.quota.window.saturating_mul(windows))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline::Dimension;

    use super::*;

    fn entry(run: &str, at: Timestamp, limit: u64, units: u64) -> Entry {
        let quota = Quota::sliding(Dimension::Requests, limit, Duration::from_hours(1));
        let taken = vec![TakenState { ago: Duration::from_secs(1), units }];
        let account = LevelState { windows: vec![WindowState { quota, taken }], ..LevelState::default() };
        let pacer = PacerState { account, ..PacerState::default() };
        let noted_until = Some(Timestamp::from_millis(at.as_millis() - 1));
        Entry { run: run.to_owned(), noted_until, counted: LimiterState { at, pacer } }
    }

    fn ledger(runs: Vec<Entry>) -> (tempfile::TempDir, Ledger) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ledger = Ledger::new(folder.path(), "account");
        ledger.write(runs, None).expect("writable");
        (folder, ledger)
    }

    fn units(runs: &[Entry]) -> Vec<u64> {
        let sum = |run: &Entry| windows(&run.counted).flat_map(|window| &window.taken).map(|taken| taken.units).sum();
        runs.iter().map(sum).collect()
    }

    #[test]
    fn what_is_over_is_forgotten_and_the_future_is_now() {
        let now = clock::wall();
        let ago = |minutes: i64| Timestamp::from_millis(now.as_millis() - minutes * 60_000);
        let later = now + Duration::from_hours(24);
        let runs = vec![entry("a", ago(61), 5, 1), entry("b", ago(59), 5, 2), entry("c", later, 5, 3)];
        let (_folder, ledger) = ledger(runs);
        let runs = ledger.read().expect("readable");
        assert_eq!(units(&runs), [2, 3]);
        assert!(runs[1].counted.at <= clock::wall(), "it does not count for a day and an hour");
        ledger.read_or_set_aside().expect("writable");
        let written = ledger.contents().expect("readable").runs;
        assert!(
            written.iter().all(|run| run.counted.at <= clock::wall()),
            "an hour from now, and not from each reading"
        );
    }

    #[test]
    fn a_thousand_short_runs_take_the_room_of_a_few() {
        let now = clock::wall();
        let at = |n: i64| Timestamp::from_millis(now.as_millis() - 2_000 * (1_000 - n));
        let mut runs: Vec<_> = (0..1_000).map(|n| entry("a", at(n), 5_000, 1)).collect();
        runs.insert(500, entry("b", at(500), 7, 3));
        let (_folder, ledger) = ledger(runs);
        let runs = ledger.read().expect("readable");
        assert_eq!((runs.len(), units(&runs).iter().sum::<u64>()), (MOST, 1_003));
        let joined = &runs[0].counted.pacer.account.windows[0].taken;
        assert!(joined.len() <= 1 + PARTS as usize && joined[0].ago > Duration::from_mins(30), "{joined:?}");
    }

    #[test]
    fn what_a_run_sent_after_its_last_entry_counts_once_it_was_killed() {
        let run = entry("a", clock::wall(), 100, 22);
        let (_folder, ledger) = ledger(vec![]);
        let after = |turn_of: Option<&str>| {
            ledger.write(vec![run.clone()], turn_of).expect("writable");
            let noted = |of: &str, noted_until: Option<Timestamp>| {
                assert_eq!(noted_until, run.noted_until, "what was noted before that is in it");
                entry(of, clock::wall(), 100, 11).counted
            };
            units(&ledger.take_over("b", noted).expect("readable")).iter().sum::<u64>()
        };
        assert_eq!((after(None), after(Some("b"))), (22, 22), "the turn was passed on");
        assert_eq!(after(Some("a")), 22 + 11, "it died in its turn");
    }

    #[test]
    fn a_run_is_known_by_what_it_noted_if_that_counts() {
        let (_folder, ledger) = ledger(vec![]);
        let knows = |turn_of: Option<&str>, units| {
            ledger.write(vec![], turn_of).expect("writable");
            ledger.knows_runs(|of| match units {
                0 => LimiterState { at: clock::wall(), pacer: PacerState::default() },
                units => entry(of, clock::wall(), 100, units).counted,
            })
        };
        assert_eq!([knows(None, 11), knows(Some("a"), 0), knows(Some("a"), 11)], [false, false, true]);
    }
}
