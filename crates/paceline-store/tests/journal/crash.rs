//! Whatever moment a process dies: nothing acknowledged is lost, nothing is recorded twice.

use std::fs;
use std::path::Path;

use crate::support::{Job, NOW, failure, finish, id, ordinals, read, reschedule, retry, success, usage, wait};
use paceline_store::{
    CallTotals, CustomId, CutOff, Departure, Duplicate, FinishStatus, Journal, JournalError, LoadedLine, Loader,
    ModelUsage, Opened, Options, Reader, Recovery, ResultBody, Rows, ScopeStatus, State, encode_line,
};

const ITEMS: u64 = 12;

#[test]
fn dying_after_any_turn_loses_and_doubles_nothing() {
    let job = Job::new();
    let journal = job.start(ITEMS);
    let mut acknowledged = 0;
    for ordinal in ordinals(&journal.claim_now(NOW, 9).unwrap()) {
        match ordinal % 3 {
            0 => finish(&journal, success(ordinal, 1)),
            1 => finish(&journal, failure(ordinal)),
            _ => reschedule(&journal, retry(ordinal, 60)),
        };
        acknowledged += usize::from(ordinal % 3 != 2);
        let dead = job.copy();
        let (resumed, recovery) = dead.resume();
        assert_eq!((recovery.recorded, recovery.cut), (0, 0), "what was acknowledged is in the journal");
        assert_eq!(recovery.interrupted, 8 - ordinal);
        assert_eq!(dead.ids().len(), acknowledged);
        dead.complete(&resumed);
        dead.assert_each_once(ITEMS);
    }
}

/// The journal of an early moment beside results of a late one, cut at every byte: what a power cut leaves, since the
/// results are synced and the journal is not.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn results_ahead_of_the_journal_are_taken_over_up_to_the_torn_line() {
    let job = Job::new();
    let journal = job.start(ITEMS);
    journal.claim_now(NOW, 8).unwrap();
    finish(&journal, success(0, 1));
    finish(&journal, failure(1));
    let early = job.copy();
    let covered = read(&early.paths.output).len();
    for ordinal in 2..4 {
        finish(&journal, success(ordinal, 1));
    }
    let results = fs::read(&job.paths.output).unwrap();
    let last_line = results.len() - success(3, 1).line.len();
    for (cut, zeros) in
        (covered..last_line).step_by(11).chain(last_line..=results.len()).flat_map(|cut| [(cut, 0), (cut, 512)])
    {
        let dead = early.copy();
        // A file that grew before its bytes were written has zeros at its end.
        fs::write(&dead.paths.output, [&results[..cut], &[0; 512][..zeros]].concat()).unwrap();
        let (resumed, recovery) = dead.resume();
        let tail = &results[covered..cut];
        let torn = tail.iter().rev().take_while(|byte| **byte != b'\n').count();
        let whole = tail.iter().filter(|byte| **byte == b'\n').count() as u64;
        let (torn, interrupted) = ((torn + zeros) as u64, 6 - whole);
        let expected = Recovery { recorded: whole, cut: torn, interrupted, in_flight: 0, calls_lost: interrupted > 0 };
        assert_eq!(recovery, expected, "cut at byte {cut}, {zeros} zeros");
        let counts = resumed.counts(NOW).unwrap();
        assert_eq!((counts.succeeded, counts.failed, counts.tokens_in), (1 + whole, 1, 5 + 5 * whole));
        assert_eq!((counts.totals.calls, counts.totals.resends), (1 + whole, 0), "each line is of a call");
        let usage: u64 = resumed.usage().unwrap().iter().map(|usage| usage.tokens_in).sum();
        assert_eq!(usage, 5 + 5 * whole, "and used its tokens");
        // Once more, to see that the recovery itself is durable.
        resumed.close().unwrap();
        let (resumed, recovery) = dead.resume();
        assert_eq!(recovery, Recovery::default());
        dead.complete(&resumed);
        dead.assert_each_once(ITEMS);
    }
}

#[test]
fn a_recovered_failure_says_what_its_line_says() {
    let job = Job::new();
    let journal = job.start(3);
    journal.claim_now(NOW, 3).unwrap();
    let early = job.copy();
    let skipped = ResultBody::Error { code: "skipped", message: "not wanted" };
    let lines = [failure(1).line, encode_line(2, 1, &id(2), &skipped)].concat();
    fs::write(&early.paths.errors, lines).unwrap();
    let (resumed, recovery) = early.resume();
    assert_eq!((recovery.recorded, recovery.interrupted), (2, 1));
    let mut states = Vec::new();
    resumed
        .report::<JournalError>(NOW, Rows::All, |row| {
            states.push((row.state, row.tally.attempts));
            Ok(())
        })
        .unwrap();
    assert_eq!(states, [(State::Waiting, 0), (State::Failed, 1), (State::Skipped, 1)]);
}

/// A power cut may take the record of a retry with that of the end.
#[test]
fn calls_that_only_a_line_tells_of_are_counted_once() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    reschedule(&journal, retry(0, 1));
    let early = job.copy();
    let lines: Vec<u8> = [(0, 2), (1, 1), (2, 3)].into_iter().flat_map(|(n, call)| success(n, call).line).collect();
    fs::write(&early.paths.output, lines).unwrap();
    let (resumed, recovery) = early.resume();
    assert_eq!(recovery.recorded, 3);
    let totals = resumed.counts(NOW).unwrap().totals;
    assert_eq!((totals.calls, totals.resends), (2 + 1 + 3, 1 + 2));
    resumed.close().unwrap();
    let totals = early.resume().0.counts(NOW).unwrap().totals;
    assert_eq!((totals.calls, totals.resends), (6, 3), "a later run finds them recorded");
}

#[test]
fn foreign_torn_and_repeated_lines_end_the_recovery() {
    let whole = |ordinal| String::from_utf8(success(ordinal, 1).line).unwrap();
    let other_id =
        encode_line(1, 1, &id(2), &ResultBody::Response { status: 200, request_id: "", headers: None, body: b"{}" });
    for (what, bad) in [
        ("a repeated line", whole(0)),
        ("a line of another job", String::from_utf8(other_id).unwrap()),
        ("an item beyond the input", whole(99)),
        ("a changed body", whole(1).replace("1 by call", "2 by call")),
        ("zeros", "\0".repeat(100)),
        ("an empty line", "\n".to_owned()),
        ("text", "hello\n".to_owned()),
    ] {
        let job = Job::new();
        let journal = job.start(4);
        journal.claim_now(NOW, 4).unwrap();
        finish(&journal, success(0, 1));
        let dead = job.copy();
        let good = whole(3);
        let kept = read(&dead.paths.output) + &good;
        fs::write(&dead.paths.output, format!("{kept}{bad}{}", whole(2))).unwrap();
        let (resumed, recovery) = dead.resume();
        assert_eq!(recovery.recorded, 1, "{what}");
        assert_eq!(recovery.cut, (bad.len() + whole(2).len()) as u64, "{what}");
        assert_eq!(read(&dead.paths.output), kept, "{what}");
        dead.complete(&resumed);
        dead.assert_each_once(4);
    }
}

#[test]
fn damage_in_the_recorded_part_is_an_error_that_names_the_byte() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    for ordinal in 0..3 {
        finish(&journal, success(ordinal, 1));
    }
    journal.close().unwrap();
    let results = fs::read(&job.paths.output).unwrap();
    let line = success(0, 1).line.len();
    let damaged_at = |results: &[u8]| {
        let dead = job.copy();
        fs::write(&dead.paths.output, results).unwrap();
        let before = dead.copy();
        let Err(JournalError::Damaged { offset, path, .. }) = dead.open() else { panic!("the damage went unnoticed") };
        assert_eq!(path, dead.paths.output);
        assert_eq!(fs::read(&dead.paths.output).unwrap(), results, "nothing is changed");
        drop(before);
        offset
    };
    for cut in (0..results.len()).step_by(13) {
        assert_eq!(damaged_at(&results[..cut]), cut as u64, "a shorter file is damaged where it ends");
    }
    let mut changed = results.clone();
    changed[2 * line - 40] ^= 1;
    assert_eq!(damaged_at(&changed), line as u64, "the second line");
    changed = results.clone();
    changed.rotate_left(line);
    assert_eq!(damaged_at(&changed), 0, "lines that changed places");
}

#[test]
fn missing_and_unexpected_files_are_refused() {
    let job = Job::new();
    let journal = job.start(2);
    journal.claim_now(NOW, 2).unwrap();
    finish(&journal, success(0, 1));
    finish(&journal, failure(1));
    journal.close().unwrap();

    for (missing, covered) in [(&job.paths.output, success(0, 1)), (&job.paths.errors, failure(1))] {
        let copy = job.copy();
        let gone = copy.folder.join(missing.file_name().unwrap());
        fs::remove_file(&gone).unwrap();
        let Err(JournalError::JournalWithoutOutput { output, covered: bytes, .. }) = copy.open() else {
            panic!("a missing file went unnoticed")
        };
        assert_eq!((output, bytes), (gone, covered.line.len() as u64));
    }

    let copy = job.copy();
    fs::remove_file(copy.paths.journal.as_ref().unwrap()).unwrap();
    assert!(matches!(copy.open(), Err(JournalError::OutputWithoutJournal { .. })));
    assert!(!copy.paths.journal.as_ref().unwrap().exists(), "the refusal leaves no empty journal behind");

    let mut copy = job.copy();
    copy.paths = copy.paths.clone().without_journal();
    assert!(matches!(copy.open(), Err(JournalError::OutputExists { .. })));
}

#[test]
fn a_changed_input_is_refused() {
    let job = Job::new();
    job.start(2).close().unwrap();
    let input = |copy: &Job| copy.folder.join("requests.jsonl");
    let text = read(&input(&job));
    let touched = fs::metadata(input(&job)).unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
    for (change, text) in [("length", format!("{text}more\n")), ("beginning", text.replacen('t', "T", 1))] {
        let copy = job.copy();
        fs::write(input(&copy), text).unwrap();
        fs::File::options().write(true).open(input(&copy)).unwrap().set_modified(touched).unwrap();
        let Err(JournalError::InputChanged { what, .. }) = copy.open() else { panic!("{change} went unnoticed") };
        assert_eq!(what, change);
    }
}

#[test]
fn other_files_and_newer_formats_are_no_journal() {
    let job = Job::new();
    let path = job.paths.journal.clone().unwrap();
    fs::write(&path, "a text that is longer than the header of a database, and then some more of it".repeat(9))
        .unwrap();
    assert!(matches!(job.open(), Err(JournalError::NotAJournal { .. })));
    fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(job.open(), Err(JournalError::NotAJournal { .. })));
    drop(foreign);

    let job = Job::new();
    job.start(1).close().unwrap();
    let newer = rusqlite::Connection::open(job.paths.journal.as_ref().unwrap()).unwrap();
    newer.pragma_update(None, "user_version", 7).unwrap();
    drop(newer);
    assert!(matches!(job.open(), Err(JournalError::NewerVersion { found: 7, known: 1, .. })));
}

#[test]
fn a_load_that_dies_starts_over_and_one_that_is_refused_leaves_nothing() {
    let job = Job::new();
    let Ok(Opened::New(mut loader)) = job.open() else { panic!("a new job") };
    let add = |loader: &mut Loader, custom_id: &CustomId, line| {
        loader.add(&LoadedLine { custom_id, line, src_off: 0, src_len: 1, body: b"", scope: "s" }).unwrap();
    };
    add(&mut loader, &id(0), 1);
    let dead = job.copy();
    let filled = dead.folder.join("results.journal.new");
    assert!(filled.exists() && !dead.paths.journal.as_ref().unwrap().exists(), "no run takes it for a job");
    dead.start(3).close().unwrap();
    assert!(!filled.exists());
    assert_eq!(Reader::open(dead.paths.journal.as_ref().unwrap()).unwrap().counts(NOW).unwrap().waiting, 3);

    add(&mut loader, &id(1), 3);
    add(&mut loader, &id(0), 4);
    add(&mut loader, &serde_json::from_str("7").unwrap(), 5);
    add(&mut loader, &"7".into(), 6);
    let found = loader.duplicates(1).unwrap();
    assert_eq!((found.first, found.count), (vec![Duplicate { line: 4, first_line: 1 }], 2));
    assert_eq!(loader.duplicates(9).unwrap().first[1], Duplicate { line: 6, first_line: 5 });
    let Err(error @ JournalError::Duplicates { line: 4, count: 2, .. }) = loader.finish() else {
        panic!("they went unnoticed")
    };
    assert!(error.to_string().starts_with("line 4 repeats the custom_id of line 1"), "{error}");
    assert!(!job.paths.journal.as_ref().unwrap().exists());
    assert!(!job.paths.output.exists());
    job.start(2);
}

#[test]
fn a_second_run_is_refused_until_the_first_ends() {
    let job = Job::new();
    let journal = job.start(2);
    let Err(JournalError::Locked { pid, .. }) = job.open() else { panic!("two runs at once") };
    assert_eq!(pid, Some(std::process::id()));
    journal.close().unwrap();
    let (again, recovery) = job.resume();
    assert_eq!(recovery, Recovery::default());
    assert!(matches!(journal.claim_now(NOW, 1), Err(JournalError::Closed)), "a closed journal says so");
    fs::remove_file(&job.paths.lock).unwrap();
    assert!(matches!(job.open(), Err(JournalError::Locked { .. })), "the results are locked too");
    drop(again);
    job.resume();
}

#[test]
fn a_job_whose_lock_file_is_deleted_while_it_is_loaded_begins_once() {
    let job = Job::new();
    let Opened::New(first) = job.open().unwrap() else { panic!("there was a job already") };
    fs::remove_file(&job.paths.lock).unwrap();
    let second = job.start(2);
    assert!(matches!(first.finish(), Err(JournalError::Locked { .. })));
    second.close().unwrap();
}

#[test]
fn two_journals_cannot_write_one_file_of_results() {
    let mut job = Job::new();
    let beside = job.paths.clone();
    let journal = job.start(2);
    for other in ["other.journal", "./results.journal"] {
        job.paths = beside.clone().with_journal(job.folder.join(other));
        assert!(matches!(job.open(), Err(JournalError::Locked { .. })), "{other}");
        assert!(matches!(
            Journal::open(Options { overwrite: true, ..job.options() }),
            Err(JournalError::Locked { .. })
        ));
    }
    assert!(beside.output.exists());
    journal.close().unwrap();
    job.paths = beside.with_journal(job.folder.join(".").join("results.journal"));
    job.resume();
}

#[test]
fn results_that_are_removed_replaced_or_cut_short_stop_the_job() {
    let takings: [fn(&Path); 4] = [
        |results| fs::remove_file(results).unwrap(),
        |results| {
            fs::remove_file(results).unwrap();
            fs::write(results, "").unwrap();
        },
        // As `logrotate` does with `copytruncate`, and a shell with `: > results.jsonl`.
        |results| fs::write(results, "").unwrap(),
        |results| fs::write(results, read(results).split_at(5).0).unwrap(),
    ];
    for take in takings {
        let job = Job::new();
        let journal = job.start(3);
        journal.claim_now(NOW, 3).unwrap();
        finish(&journal, success(0, 1));
        let whole = read(&job.paths.output);
        take(&job.paths.output);
        let refused = wait(|reply| journal.finish(success(1, 1), reply));
        let Err(JournalError::Stopped { cause }) = refused else { panic!("it went unnoticed") };
        assert!(matches!(*cause, JournalError::OutputTaken { .. }), "{cause}");
        drop(journal);
        assert!(job.open().is_err(), "it is not there");
        // Once it is back, the job goes on.
        fs::write(&job.paths.output, whole).unwrap();
        let (journal, _) = job.resume();
        job.complete(&journal);
        journal.close().unwrap();
        job.assert_each_once(3);

        // A line of the other file, and no line at all, notice it too, and so does the end of the job.
        type Step = fn(&Journal) -> Result<(), JournalError>;
        let steps: [Step; 3] = [
            |journal| wait(|reply| journal.finish(failure(1), reply)).map(drop),
            |journal| wait(|reply| journal.set_scope("chat", ScopeStatus::Open, reply)),
            Journal::close,
        ];
        for step in steps {
            let job = Job::new();
            let journal = job.start(2);
            journal.claim_now(NOW, 2).unwrap();
            finish(&journal, success(0, 1));
            take(&job.paths.output);
            assert!(matches!(step(&journal), Err(JournalError::Stopped { .. })));
        }
    }
}

#[test]
fn what_a_killed_load_left_goes_at_the_next_start() {
    let job = Job::new();
    job.start(1).close().unwrap();
    let Ok(Opened::New(loader)) = Journal::open(Options { overwrite: true, ..job.options() }) else { panic!("anew") };
    let dead = job.copy();
    drop(loader);
    let left = |job: &Job| fs::read_dir(&job.folder).unwrap().filter(|entry| is_new(entry.as_ref().unwrap())).count();
    assert!(left(&dead) > 0);
    dead.resume();
    assert_eq!(left(&dead), 0);

    fs::write(dead.folder.join("results.journal.new"), "not ours, and longer than nothing".repeat(99)).unwrap();
    dead.resume();
    assert_eq!(left(&dead), 1, "what is no journal is not removed");
    let anew = Journal::open(Options { overwrite: true, ..dead.options() });
    assert!(matches!(anew, Err(JournalError::NotAJournal { .. })));
}

fn is_new(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("results.journal.new")
}

#[test]
fn a_damaged_journal_is_told_as_such_and_can_be_overwritten() {
    let job = Job::new();
    job.start(500).close().unwrap();
    let path = job.paths.journal.as_ref().unwrap();
    let mut bytes = fs::read(path).unwrap();
    // All but the header, which says what kind of file it is.
    bytes[100..].fill(0xa5);
    fs::write(path, bytes).unwrap();
    assert!(matches!(job.open(), Err(JournalError::DamagedJournal { .. })));
    assert!(matches!(Journal::open(Options { overwrite: true, ..job.options() }), Ok(Opened::New(_))));
}

#[test]
fn a_write_that_fails_stops_the_journal_and_keeps_what_was_acknowledged() {
    let job = Job::new();
    let journal = job.start(3);
    journal.claim_now(NOW, 3).unwrap();
    assert_eq!(finish(&journal, success(0, 1)), FinishStatus::Recorded);
    fs::create_dir(&job.paths.errors).unwrap();
    let refused = wait(|reply| journal.finish(failure(1), reply));
    assert!(matches!(refused, Err(JournalError::Stopped { .. })));
    assert!(matches!(journal.claim_now(NOW, 1), Err(JournalError::Stopped { .. })));
    assert!(matches!(journal.close(), Err(JournalError::Stopped { .. })));
    fs::remove_dir(&job.paths.errors).unwrap();
    let (resumed, recovery) = job.resume();
    assert_eq!(recovery, Recovery { interrupted: 2, calls_lost: true, ..Recovery::default() });
    job.complete(&resumed);
    job.assert_each_once(3);
}

#[test]
fn a_call_that_was_cut_off_counts_once_and_as_much_as_it_reserved() {
    let job = Job::new();
    let journal = job.start(5);
    journal.claim_now(NOW, 5).unwrap();
    reschedule(&journal, retry(1, 0));
    journal.claim_now(NOW, 1).unwrap();
    for ordinal in 0..4 {
        // A write of the prompt costs 2.5 tokens more, rounded up.
        let reserved = ModelUsage { cache_price: 250, ..usage("m", 10, 100) };
        let departure = Departure { ordinal, reserved, durable: ordinal == 0 };
        // What no caller awaits is written with the next record.
        match ordinal % 2 {
            0 => wait(|reply| journal.leaves(departure, reply)).unwrap(),
            _ => journal.leaves_unawaited(departure),
        }
    }
    finish(&journal, success(2, 1));
    reschedule(&journal, retry(3, 60));
    let (before, mut counted) = (journal.usage().unwrap(), journal.sums().unwrap().totals);
    counted = CallTotals { calls: counted.calls + 2, resends: 1, abandoned: 2, ..counted };
    let of_cache = ModelUsage { cache_price: 600, written_tokens: 20, written_price: 600, ..ModelUsage::default() };
    let used =
        [ModelUsage { calls: 5, tokens_in: before[0].tokens_in + 20, tokens_out: 200, model: "m".into(), ..of_cache }];
    // Another crash before the items come again counts nothing more.
    let mut dead = job.copy();
    for (interrupted, in_flight) in [(3, 2), (0, 0)] {
        let (resumed, recovery) = dead.resume();
        assert_eq!(recovery.in_flight, in_flight, "the third was begun and not sent");
        let sums = resumed.sums().unwrap();
        assert_eq!((recovery.interrupted, sums.totals), (interrupted, counted));
        assert_eq!((sums.calls_unsure, sums.under_way), (2, 0), "they were noted, and may not have left");
        assert_eq!(
            (&resumed.usage().unwrap()[..], resumed.unanswered().unwrap()),
            (&used[..], vec![cut_off(0), cut_off(1)])
        );
        dead = dead.copy();
    }
    let (resumed, _) = dead.resume();
    let calls: Vec<u32> = resumed.claim_now(NOW, 2).unwrap().items.iter().map(|item| item.tally.sends()).collect();
    assert_eq!(calls, [1, 2], "of the item too");
    finish(&resumed, success(0, 2));
    assert_eq!((resumed.unanswered().unwrap(), resumed.sums().unwrap().calls_unsure), (vec![cut_off(1)], 2));
}

fn cut_off(ordinal: u64) -> CutOff {
    CutOff { ordinal, moved: false }
}

/// Of an item that was begun without a note nothing tells whether its call left, unless each call waits for its note.
#[test]
fn calls_may_be_lost_where_they_did_not_wait_for_their_notes() {
    for (awaits_notes, noted, lost) in [(false, 1, true), (false, 2, false), (true, 1, false)] {
        let job = Job::new();
        drop(job.start(2));
        let begin = |job: &Job| match Journal::open(Options { awaits_notes, ..job.options() }).unwrap() {
            Opened::Resumed { journal, recovery } => (journal, recovery.calls_lost),
            other => panic!("{other:?}"),
        };
        let (journal, _) = begin(&job);
        journal.claim_now(NOW, 2).unwrap();
        for ordinal in 0..noted {
            let departure = Departure { ordinal, reserved: usage("m", 10, 100), durable: false };
            wait(|reply| journal.leaves(departure, reply)).unwrap();
        }
        assert!(!journal.sums().unwrap().calls_lost);
        let dead = job.copy();
        let (next, lost_then) = begin(&dead);
        assert_eq!((next.sums().unwrap().calls_lost, lost_then), (lost, lost));
        drop(next);
        assert_eq!(begin(&dead).0.sums().unwrap().calls_lost, lost, "and stay so");
    }
}
