//! Files that are rewritten: in the order of the input, and without the items that are to be tried again.

use std::fs;
use std::io::Read;

use crate::support::{Job, NOW, failure, finish, id, ordinals, read, success};
use paceline_core::Class;
use paceline_store::{
    End, FinishStatus, Finished, Journal, JournalError, LoadedLine, Loader, Opened, Options, Recovery, RefusedLine,
    ResultBody, encode_line,
};

const ITEMS: u64 = 60;

/// A finished job whose items ended in an order of their own; every seventh failed, every eleventh was skipped.
fn finished_job() -> (Job, Journal) {
    let job = Job::new();
    let journal = job.start(ITEMS);
    journal.claim_now(NOW, ITEMS as usize).unwrap();
    for n in 0..ITEMS {
        finish(&journal, end_of(n * 37 % ITEMS));
    }
    (job, journal)
}

fn end_of(ordinal: u64) -> Finished {
    match ordinal {
        n if n % 7 == 3 => failure(n),
        n if n % 11 == 5 => skipped(n),
        n => success(n, 1),
    }
}

fn skipped(ordinal: u64) -> Finished {
    let answer = ResultBody::Error { code: "skipped", message: "not wanted" };
    Finished::new(ordinal, End::Skipped, encode_line(ordinal, 1, &id(ordinal), &answer))
}

/// What the lines of such a job are in the order of the input.
fn in_order(succeeded: bool) -> Vec<u8> {
    let ends = (0..ITEMS).map(end_of).filter(|end| (end.end == End::Succeeded) == succeeded);
    ends.flat_map(|end| end.line).collect()
}

fn assert_ordered(job: &Job) {
    assert_eq!(fs::read(&job.paths.output).unwrap(), in_order(true));
    assert_eq!(fs::read(&job.paths.errors).unwrap(), in_order(false));
}

#[test]
fn ordered_files_are_those_of_the_journal_and_are_not_ordered_twice() {
    let (job, journal) = finished_job();
    let before = read(&job.paths.output);
    journal.order().unwrap();
    assert_ordered(&job);
    assert_ne!(read(&job.paths.output), before);
    journal.close().unwrap();

    let touched = fs::metadata(&job.paths.output).unwrap().modified().unwrap();
    let (journal, recovery) = job.resume();
    assert_eq!(recovery, Recovery::default());
    journal.order().unwrap();
    assert_eq!(fs::metadata(&job.paths.output).unwrap().modified().unwrap(), touched);
}

#[test]
fn lines_are_appended_to_ordered_files() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    finish(&journal, success(2, 1));
    finish(&journal, success(0, 1));
    journal.order().unwrap();
    finish(&journal, success(1, 1));
    finish(&journal, failure(3));
    assert_eq!(
        fs::read(&job.paths.output).unwrap(),
        [success(0, 1).line, success(2, 1).line, success(1, 1).line].concat()
    );
    let dead = job.copy();
    let (resumed, recovery) = dead.resume();
    assert_eq!(recovery, Recovery::default());
    resumed.order().unwrap();
    let lines: Vec<u8> = (0..3).flat_map(|n| success(n, 1).line).collect();
    assert_eq!(fs::read(&dead.paths.output).unwrap(), lines);
}

/// The moments of a replacement that a crash can leave: before its transaction, and after it with the old name still in
/// place or with the new one.
#[test]
fn a_replacement_that_dies_is_undone_or_completed() {
    let (job, journal) = finished_job();
    journal.flush().unwrap();
    let before = job.copy();
    journal.order().unwrap();
    let after = job.copy();
    journal.close().unwrap();

    let half = in_order(true)[..99].to_owned();
    let written = before.copy();
    fs::write(fresh(&written), &half).unwrap();
    let recorded = after.copy();
    fs::rename(&recorded.paths.output, fresh(&recorded)).unwrap();
    fs::copy(&before.paths.output, &recorded.paths.output).unwrap();
    note(&recorded, "results");
    let renamed = after.copy();
    note(&renamed, "results");

    for (what, dead) in [("written", written), ("recorded", recorded), ("renamed", renamed)] {
        let (resumed, recovery) = dead.resume();
        assert_eq!(recovery, Recovery::default(), "{what}");
        assert!(!fresh(&dead).exists(), "{what}");
        dead.assert_each_once(ITEMS);
        resumed.order().unwrap();
        assert_ordered(&dead);
        resumed.close().unwrap();
        dead.resume();
    }
}

fn fresh(job: &Job) -> std::path::PathBuf {
    job.folder.join("results.jsonl.new")
}

/// As the journal stands between the transaction of a replacement and the note that it is complete.
fn note(job: &Job, replacing: &str) {
    let conn = rusqlite::Connection::open(job.paths.journal.as_ref().unwrap()).unwrap();
    conn.execute("UPDATE run SET replacing = ?1", [replacing]).unwrap();
}

#[test]
fn a_file_that_was_changed_meanwhile_is_not_replaced() {
    let (job, journal) = finished_job();
    let mut results = fs::read(&job.paths.output).unwrap();
    results[60] ^= 1;
    fs::write(&job.paths.output, &results).unwrap();
    assert!(matches!(journal.order(), Err(JournalError::Damaged { offset: 0, .. })));
    assert_eq!(fs::read(&job.paths.output).unwrap(), results);
    assert!(!fresh(&job).exists());
}

#[test]
fn failed_items_wait_again_and_their_lines_are_gone() {
    let (job, journal) = finished_job();
    let before = journal.counts(NOW).unwrap();
    assert_eq!((before.failed, before.skipped), (9, 4));
    assert_eq!(journal.retry_failed().unwrap(), 9);
    let skipped: Vec<u8> =
        (0..ITEMS).map(end_of).filter(|end| end.end == End::Skipped).flat_map(|end| end.line).collect();
    assert_eq!(fs::read(&job.paths.errors).unwrap(), skipped);

    let dead = job.copy();
    let (resumed, recovery) = dead.resume();
    assert_eq!(recovery, Recovery::default());
    let claim = resumed.claim_now(NOW, 99).unwrap();
    assert!(ordinals(&claim).iter().all(|ordinal| ordinal % 7 == 3));
    let item = &claim.items[0];
    assert_eq!((item.tally.sends(), item.forgiven.attempts), (1, 1), "sends stay counted, and their budget is whole");
    assert_eq!(item.tally.last.as_ref().unwrap().class, Class::Invalid);
    for item in &claim.items {
        assert_eq!(finish(&resumed, success(item.ordinal, 2)), FinishStatus::Recorded);
    }
    dead.assert_each_once(ITEMS);
    assert_eq!(resumed.retry_failed().unwrap(), 0);
    assert_eq!(resumed.counts(NOW).unwrap().totals.calls, before.totals.calls + 9);
}

#[test]
fn a_job_that_goes_on_proves_the_files_that_it_may_need() {
    let mut job = Job::new();
    drop(job.start(2));
    job.paths.errors = job.folder.join("away/errors.jsonl");
    let told = job.open().expect_err("there is no such folder").to_string();
    assert!(told.starts_with("cannot create ") && told.contains("away/errors.jsonl"), "{told}");
}

#[test]
fn errors_without_lines_are_no_file() {
    let job = Job::new();
    let journal = job.start(1);
    journal.claim_now(NOW, 1).unwrap();
    finish(&journal, failure(0));
    assert_eq!(journal.retry_failed().unwrap(), 1);
    assert!(!job.paths.errors.exists());
    let dead = job.copy();
    dead.complete(&dead.resume().0);
    dead.assert_each_once(1);
    assert!(!dead.paths.errors.exists());
}

/// The items keep their lines, whose numbers are those of the input as it was.
#[test]
fn lines_of_an_input_that_moved_are_known_by_their_ids() {
    const MOVED: u64 = 6;
    let job = Job::new();
    let Opened::New(loader) = job.open().unwrap() else { panic!("a new job") };
    let journal = load(loader, 0..MOVED);
    let refused = journal.refused(9).unwrap();
    journal.claim_now(NOW, 9).unwrap();
    for end in [success(0, 1), success(3, 1), refusal(refused[0].ordinal), failure(2), failure(4)] {
        finish(&journal, end);
    }
    journal.close().unwrap();

    fs::write(job.folder.join("requests.jsonl"), "moved").unwrap();
    let Opened::Changed { loader, .. } = Journal::open(Options { accept_changed: true, ..job.options() }).unwrap()
    else {
        panic!("the change went unnoticed")
    };
    let journal = load(loader, (0..MOVED).rev());
    journal.order().unwrap();
    let lines = |ends: &[Finished]| ends.iter().flat_map(|end| end.line.clone()).collect::<Vec<_>>();
    assert_eq!(fs::read(&job.paths.output).unwrap(), lines(&[success(3, 1), success(0, 1)]));
    assert_eq!(fs::read(&job.paths.errors).unwrap(), lines(&[failure(4), failure(2), refusal(1)]));
    assert_eq!(journal.retry_failed().unwrap(), 2);
    assert_eq!(fs::read(&job.paths.errors).unwrap(), refusal(1).line);
}

/// Items by their numbers; 1 is a line that cannot be sent.
fn load(mut loader: Loader, numbers: impl Iterator<Item = u64>) -> Journal {
    for number in numbers {
        let (custom_id, line) = (&id(number), number + 1);
        if number == 1 {
            let (code, message) = ("invalid_url", "missing");
            let custom_id = Some(custom_id);
            loader.add_refused(&RefusedLine { custom_id, line, src_off: 0, src_len: 1, bytes: b"", code, message })
        } else {
            loader.add(&LoadedLine { custom_id, line, src_off: 0, src_len: 1, body: b"", scope: "chat" })
        }
        .unwrap();
    }
    loader.finish().unwrap()
}

fn refusal(ordinal: u64) -> Finished {
    let answer = ResultBody::Refused { code: "invalid_url", message: "missing", line: 2 };
    Finished::new(ordinal, End::Failed, encode_line(ordinal, 0, &id(1), &answer))
}

fn unpacked(job: &Job) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = fs::File::open(job.paths.packed()).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

fn compressing(mut job: Job) -> Job {
    job.paths.compress = true;
    job
}

#[test]
fn compressed_results_are_proved_and_unpacked_to_go_on() {
    let (job, journal) = finished_job();
    journal.close().unwrap();
    let job = compressing(job);
    job.resume().0.order().unwrap();
    assert!(!job.paths.output.exists());
    assert_eq!(unpacked(&job), in_order(true));

    let (again, recovery) = job.resume();
    assert_eq!(recovery, Recovery::default());
    again.order().unwrap();
    again.close().unwrap();

    let damaged = compressing(job.copy());
    let mut bytes = fs::read(damaged.paths.packed()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(damaged.paths.packed(), bytes).unwrap();
    assert!(matches!(damaged.open(), Err(JournalError::Damaged { .. })));
    fs::remove_file(damaged.paths.packed()).unwrap();
    assert!(matches!(damaged.open(), Err(JournalError::JournalWithoutOutput { .. })));

    let (again, _) = job.resume();
    assert_eq!(again.retry_failed().unwrap(), 9);
    assert!(!job.paths.packed().exists());
    assert_eq!(fs::read(&job.paths.output).unwrap(), in_order(true));
    job.complete(&again);
    job.assert_each_once(ITEMS);
    again.order().unwrap();
    assert_eq!(unpacked(&job).iter().filter(|byte| **byte == b'\n').count(), ITEMS as usize - 4);
}

#[test]
fn compressed_results_are_unpacked_when_they_are_wanted_plain() {
    let (job, journal) = finished_job();
    journal.close().unwrap();
    let mut job = compressing(job);
    job.resume().0.order().unwrap();
    job.paths.compress = false;
    fs::write(&job.paths.output, "the user's").unwrap();
    assert!(matches!(job.open(), Err(JournalError::OutputExists { .. })));
    fs::remove_file(&job.paths.output).unwrap();
    let (_, recovery) = job.resume();
    assert_eq!(recovery, Recovery::default());
    assert_ordered(&job);
    assert!(!job.paths.packed().exists());
}

#[test]
fn a_stranger_is_not_compressed_over() {
    let (job, journal) = finished_job();
    journal.close().unwrap();
    let job = compressing(job);
    fs::write(job.paths.packed(), "the user's").unwrap();
    assert!(matches!(job.open(), Err(JournalError::OutputExists { .. })));
    assert!(compressing(Job::new()).open().is_ok());
}
