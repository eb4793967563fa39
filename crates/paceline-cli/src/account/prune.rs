//! The files of an account are removed when it was not used for a day and nothing of it counts any more.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use paceline::clock;
use paceline_core::{LONGEST_DURATION, Timestamp};

use super::departed::notes_of;
use super::ledger::{self, Ledger};
use super::lock;
use super::{IN_USE, NEXT, TURN};
use crate::call_notes::{self, CallNotes};
use crate::reserve::RESERVE;

/// How long the files of an unused account stay at least.
const KEPT: Duration = Duration::from_hours(24);

/// Removes the files of such accounts. Files that cannot be read or removed stay.
pub(super) fn unused(folder: &Path) {
    let removed = names(folder).and_then(|names| names.iter().try_for_each(|name| remove(folder, name)));
    if let Err(error) = removed {
        tracing::debug!("old files in {} stay: {error}", folder.display());
    }
}

/// Accounts without a file that was written in the last day.
fn names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let (mut old, mut used) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let written = entry.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = Timestamp::from_millis(i64::try_from(written.as_millis()).unwrap_or(i64::MAX));
        let Some(name) = entry.path().file_stem().and_then(|name| Some(name.to_str()?.to_owned())) else { continue };
        let is_old = clock::wall().saturating_since(written) > KEPT;
        (if is_old { &mut old } else { &mut used }).insert(name);
    }
    Ok(&old - &used)
}

/// Removes the files of an account, under its locks: another process may be about to begin.
fn remove(folder: &Path, name: &str) -> io::Result<()> {
    let mut locks = Vec::new();
    for end in [NEXT, TURN, IN_USE] {
        let Some(lock) = lock::take(&folder.join(name).with_extension(end))? else { return Ok(()) };
        locks.push(lock);
    }
    let ledger = Ledger::new(folder, name);
    let counts = match ledger.read() {
        Ok(runs) => !runs.is_empty() || ledger.turn_of()?.is_some_and(|run| may_count(folder, name, &run)),
        Err(error) if error.kind() == ErrorKind::InvalidData => false,
        Err(error) => return Err(error),
    };
    if counts {
        return Ok(());
    }
    let [notes, more_notes] = call_notes::FILES;
    for end in [ledger::FILE, ledger::NEW, ledger::BAD, RESERVE, notes, more_notes, NEXT, TURN, IN_USE] {
        match fs::remove_file(folder.join(name).with_extension(end)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether that run, which was killed in its turn, noted a call that may still count: under which limits is not known here.
fn may_count(folder: &Path, name: &str, run: &str) -> bool {
    let now = clock::wall();
    let notes = CallNotes::beside(&folder.join(name)).read();
    // No configured limit has a longer window.
    notes_of(run, &notes).any(|(_, note)| now.saturating_since(note.at()) < LONGEST_DURATION)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn old_accounts_are_forgotten_once_nothing_of_them_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path();
        let window = r#"{"dimension":"requests","limit":5,"window_ms":172800000,"shape":"sliding","taken":[{"ago_ms":0,"units":1}]}"#;
        let ledger = |at: i64| {
            format!(
                r#"{{"version":1,"runs":[{{"run":"a","version":1,"at_ms":{at},"account":{{"windows":[{window}]}}}}]}}"#
            )
        };
        let now = clock::wall().as_millis();
        let days = |count: i64| now - count * 86_400_000;
        let old = UNIX_EPOCH + Duration::from_millis(days(2) as u64);
        let killed = |at: i64| format!("{{\"key\":\"a b\",\"at_ms\":{at},\"units\":{{\"requests\":1}}}}\n");
        let turn = || r#"{"version":1,"turn_of":"a","runs":[]}"#.to_owned();
        let texts = [
            ("killed.json", turn(), true),
            ("killed.notes-1", killed(days(2)), true),
            ("forgotten.json", turn(), true),
            ("forgotten.notes-2", killed(days(367)), true),
            ("over.json", ledger(days(3)), true),
            ("over.turn", String::new(), true),
            ("counts.json", ledger(days(1)), true),
            ("held.lock", String::new(), true),
            ("used.json", ledger(days(3)), false),
            ("broken.json", "no JSON".to_owned(), true),
        ];
        for (name, text, is_old) in &texts {
            fs::write(folder.join(name), text).expect("writable");
            if *is_old {
                File::options()
                    .write(true)
                    .open(folder.join(name))
                    .and_then(|file| file.set_modified(old))
                    .expect("set");
            }
        }
        let held = File::open(folder.join("held.lock")).expect("there");
        held.try_lock().expect("free");
        unused(folder);
        let left = |end: &str| -> Vec<&str> {
            let there = texts.iter().filter(|(name, ..)| name.ends_with(end) && folder.join(name).exists());
            there.map(|(name, ..)| *name).collect()
        };
        assert_eq!(left("json"), ["killed.json", "counts.json", "used.json"]);
        assert_eq!((left("notes-1"), left("notes-2")), (vec!["killed.notes-1"], vec![]));
        assert_eq!((left("turn"), left("lock")), (vec![], vec!["held.lock"]));
        assert!(!folder.join("over.next").exists());
    }
}
