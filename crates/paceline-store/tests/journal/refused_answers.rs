//! Answers that the user's expectation refused: each is kept, and its call counts once, whatever moment a process dies.

use std::fs;

use crate::support::{Job, NOW, finish, id, later, ordinals, read, reschedule, retry, success, tally, wait};
use paceline_core::Class;
use paceline_store::{
    Departure, End, Finished, Journal, JournalError, ModelUsage, Opened, Options, Recovery, ResultBody, ResultLine,
    Rows, encode_line,
};
use rusqlite::Connection;

/// The answer to a call of an item, which used 5 tokens.
fn unusable(ordinal: u64) -> ResultBody<'static> {
    let body = [
        br#"{"page": "Log in", "usage": {"prompt_tokens": 5}}"#.as_slice(),
        br#"{"page": "Sign in", "usage": {"prompt_tokens": 5}}"#.as_slice(),
    ][(ordinal % 2) as usize];
    let (code, message) = ("schema_mismatch", "the answer does not match the schema");
    ResultBody::Unusable { status: 200, request_id: "r", headers: None, body, code, message }
}

fn line(ordinal: u64, call: u32) -> Vec<u8> {
    let custom_id = id(ordinal);
    let head = ResultLine { ordinal, call, custom_id: &custom_id, metadata: None, form: Default::default() };
    head.encode_refused(&unusable(ordinal))
}

/// The end of an item whose last answer was refused.
fn failed(ordinal: u64, call: u32) -> Finished {
    let mut finished =
        Finished::new(ordinal, End::Failed, encode_line(ordinal, call, &id(ordinal), &unusable(ordinal)));
    finished.tally = tally(call, Class::Transient);
    finished
}

fn keep(journal: &Journal, ordinal: u64, call: u32) {
    wait(|reply| journal.keep_refused(line(ordinal, call), reply)).unwrap();
}

/// The items and calls of the refused answers, in their order.
fn kept(job: &Job) -> Vec<(String, u64)> {
    let text = read(&job.paths.refused_answers);
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("whole lines only"));
    lines.map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line["attempt"].as_u64().unwrap())).collect()
}

fn sends(journal: &Journal) -> Vec<u32> {
    let mut sends = Vec::new();
    let visit = |row: paceline_store::ReportRow| {
        sends.push(row.tally.sends());
        Ok::<_, JournalError>(())
    };
    journal.report(NOW, Rows::All, visit).unwrap();
    sends
}

#[test]
fn a_line_has_the_answer_the_call_and_the_reason() {
    let line: serde_json::Value = serde_json::from_slice(&line(0, 2)).unwrap();
    assert_eq!((&line["custom_id"], &line["attempt"]), (&"item-0".into(), &2.into()));
    assert_eq!((&line["response"]["status_code"], &line["response"]["body"]["page"]), (&200.into(), &"Log in".into()));
    assert_eq!(line["error"]["code"], "schema_mismatch");
}

#[test]
fn dying_after_any_turn_loses_and_doubles_no_refused_answer() {
    const ITEMS: u64 = 6;
    let job = Job::new();
    let journal = job.start(ITEMS);
    let mut expected = Vec::new();
    for ordinal in ordinals(&journal.claim_now(NOW, ITEMS as usize).unwrap()) {
        journal.leaves_unawaited(Departure { ordinal, reserved: ModelUsage::default(), durable: false });
        keep(&journal, ordinal, 1);
        expected.push((id(ordinal).to_string(), 1));
        let between = job.copy();
        match ordinal % 2 {
            0 => reschedule(&journal, retry(ordinal, 60)),
            _ => finish(&journal, failed(ordinal, 1)),
        };
        for dead in [between, job.copy()] {
            let (resumed, recovery) = dead.resume();
            assert_eq!((recovery.recorded, recovery.cut), (0, 0), "what was acknowledged is in the journal");
            assert_eq!(kept(&dead), expected);
            assert_eq!(resumed.counts(NOW).unwrap().refused_answers, expected.len() as u64);
            assert_eq!(sends(&resumed)[ordinal as usize], 1, "the call of item {ordinal} counts once");
            dead.complete(&resumed);
            dead.assert_each_once(ITEMS);
        }
    }
}

/// The journal of an early moment beside a file of a late one, cut at every byte: what a power cut leaves.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn answers_ahead_of_the_journal_are_taken_over_up_to_the_torn_line() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    keep(&journal, 0, 1);
    reschedule(&journal, retry(0, 1));
    let early = job.copy();
    let covered = read(&early.paths.refused_answers).len();
    // The second call of the first item, then the first two of the second.
    let calls = [(0, 2), (1, 1), (1, 2)];
    calls.into_iter().for_each(|(ordinal, call)| keep(&journal, ordinal, call));
    let answers = fs::read(&job.paths.refused_answers).unwrap();
    for cut in covered..=answers.len() {
        let dead = early.copy();
        fs::write(&dead.paths.refused_answers, &answers[..cut]).unwrap();
        let (resumed, recovery) = dead.resume();
        let tail = &answers[covered..cut];
        let whole = tail.iter().filter(|byte| **byte == b'\n').count();
        let torn = tail.iter().rev().take_while(|byte| **byte != b'\n').count();
        let expected = Recovery { recorded: 0, cut: torn as u64, interrupted: 3, in_flight: 0, calls_lost: true };
        assert_eq!(recovery, expected, "cut at byte {cut}: an answer that was refused ends no item");
        let counts = resumed.counts(NOW).unwrap();
        assert_eq!((counts.refused_answers, counts.totals.calls), (1 + whole as u64, 1 + whole as u64));
        assert_eq!(counts.tokens_in, 5 * whole as u64, "each used its tokens");
        let last = |ordinal| calls[..whole].iter().filter(|(of, _)| *of == ordinal).map(|(_, call)| *call).max();
        assert_eq!(sends(&resumed), [last(0).unwrap_or(1), last(1).unwrap_or(0), 0, 0]);
        resumed.close().unwrap();
        let (resumed, recovery) = dead.resume();
        assert_eq!((recovery, kept(&dead).len()), (Recovery::default(), 1 + whole));
        dead.complete(&resumed);
        dead.assert_each_once(4);
    }
}

/// The end of the item is a line of its own, about the same call.
#[test]
fn a_call_that_two_lines_tell_of_counts_once() {
    let job = Job::new();
    let journal = job.start(2);
    journal.claim_now(NOW, 2).unwrap();
    let dead = job.copy();
    fs::write(&dead.paths.refused_answers, line(0, 1)).unwrap();
    fs::write(&dead.paths.errors, failed(0, 1).line).unwrap();
    let (resumed, recovery) = dead.resume();
    assert_eq!((recovery.recorded, recovery.cut), (1, 0));
    let counts = resumed.counts(NOW).unwrap();
    assert_eq!((counts.failed, counts.refused_answers), (1, 1));
    assert_eq!((counts.totals.calls, counts.tokens_in), (1, 5));
    let used: u64 = resumed.usage().unwrap().iter().map(|usage| usage.tokens_in).sum();
    assert_eq!(used, 5);
    let mut rows = Vec::new();
    let visit = |row: paceline_store::ReportRow| {
        rows.extend(row.tally.last.clone().and_then(|last| last.code));
        Ok::<_, JournalError>(())
    };
    resumed.report(NOW, Rows::All, visit).unwrap();
    assert_eq!(rows, ["schema_mismatch"], "the line says why");
}

/// What is recorded of such a call is its note alone, and the next run must see that.
#[test]
fn the_note_of_a_call_stays_whose_outcome_is_not_recorded() {
    let job = Job::new();
    let journal = job.start(1);
    journal.claim_now(NOW, 1).unwrap();
    wait(|reply| journal.leaves(Departure { ordinal: 0, reserved: ModelUsage::default(), durable: true }, reply))
        .unwrap();
    let dead = job.copy();
    fs::write(&dead.paths.refused_answers, line(0, 1)).unwrap();
    let (resumed, _) = dead.resume();
    let unanswered: Vec<u64> = resumed.unanswered().unwrap().iter().map(|call| call.ordinal).collect();
    assert_eq!(unanswered, [0]);
    let counts = resumed.counts(NOW).unwrap();
    assert_eq!((counts.totals.calls, counts.totals.abandoned), (1, 0), "its answer came");
}

#[test]
fn a_file_of_another_is_refused_and_left_as_it_is() {
    let strange = "mine\n";
    let job = Job::new();
    fs::write(&job.paths.refused_answers, strange).unwrap();
    let refused = job.open().unwrap_err();
    assert!(refused.to_string().contains("results.refused.jsonl exists"), "{refused}");
    assert_eq!(read(&job.paths.refused_answers), strange);

    let job = Job::new();
    job.start(1).close().unwrap();
    let conn = Connection::open(job.paths.journal.as_deref().unwrap()).unwrap();
    conn.execute_batch("DROP TABLE refused_answer").unwrap();
    drop(conn);
    fs::write(&job.paths.refused_answers, strange).unwrap();
    let refused = job.open().unwrap_err();
    assert!(refused.to_string().contains("results.refused.jsonl exists"), "of an older version: {refused}");
    assert_eq!(read(&job.paths.refused_answers), strange);
    fs::remove_file(&job.paths.refused_answers).unwrap();
    let (journal, _) = job.resume();
    keep(&journal, 0, 1);
    assert_eq!(kept(&job).len(), 1, "and goes on once it is moved away");
}

#[test]
fn a_rewritten_job_keeps_them_and_one_that_begins_again_does_not() {
    let job = Job::new();
    let journal = job.start(2);
    journal.claim_now(NOW, 2).unwrap();
    keep(&journal, 0, 1);
    finish(&journal, failed(0, 1));
    finish(&journal, success(1, 1));
    assert_eq!(journal.retry_failed().unwrap(), 1);
    journal.order().unwrap();
    assert_eq!(ordinals(&journal.claim_now(later(1), 2).unwrap()), [0]);
    keep(&journal, 0, 2);
    assert_eq!(kept(&job), [("item-0".to_owned(), 1), ("item-0".to_owned(), 2)]);
    journal.close().unwrap();
    let Opened::New(loader) = Journal::open(Options { overwrite: true, ..job.options() }).unwrap() else {
        panic!("it begins again");
    };
    loader.finish().unwrap().close().unwrap();
    assert!(!job.paths.refused_answers.exists());
}

/// One that was cut short behind the journal's back is not written on.
#[test]
fn a_recorded_answer_that_is_missing_is_an_error() {
    let job = Job::new();
    let journal = job.start(1);
    keep(&journal, 0, 1);
    journal.close().unwrap();
    fs::write(&job.paths.refused_answers, "").unwrap();
    assert!(matches!(job.open(), Err(JournalError::Damaged { .. })));
    fs::remove_file(&job.paths.refused_answers).unwrap();
    assert!(matches!(job.open(), Err(JournalError::JournalWithoutOutput { .. })));
}
