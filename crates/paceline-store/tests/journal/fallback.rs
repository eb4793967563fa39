//! Items for which a fallback stands in: done, counted apart, and the API's again when a person wants that.

use std::fs;

use crate::support::{Job, NOW, failure, finish, id, success};
use paceline_core::Class;
use paceline_store::{
    End, FinishStatus, Finished, JournalError, LastAnswer, LineForm, Recovery, ReportRow, ResultBody, ResultLine, Rows,
    State, Tally,
};

fn fell_back(ordinal: u64) -> Finished {
    let answer = ResultBody::Fallback { code: "max_retries", message: "down", output: b"7" };
    let custom_id = id(ordinal);
    let line = ResultLine { ordinal, call: 1, custom_id: &custom_id, metadata: None, form: LineForm::OpenAi };
    let last = Some(LastAnswer::new(Class::Overloaded));
    Finished {
        tally: Tally { attempts: 1, last, ..Tally::default() },
        reason: Some("max_retries".to_owned()),
        ..Finished::new(ordinal, End::FellBack, line.encode(End::FellBack, &answer))
    }
}

fn counted(journal: &paceline_store::Journal) -> (u64, u64, u64, u64) {
    let counts = journal.counts(NOW).unwrap();
    assert_eq!(counts.input(), 4);
    (counts.succeeded, counts.fallback, counts.failed, counts.waiting + counts.in_flight)
}

#[test]
fn they_are_counted_apart_and_recovered_as_what_they_are() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    let early = job.copy();
    finish(&journal, success(0, 1));
    finish(&journal, fell_back(1));
    assert_eq!(finish(&journal, fell_back(1)), FinishStatus::AlreadyEnded);
    assert_eq!(counted(&journal), (1, 1, 0, 2));
    // A journal that a power cut has left behind its results.
    fs::copy(&job.paths.output, &early.paths.output).unwrap();
    let (resumed, recovery) = early.resume();
    assert_eq!(recovery.recorded, 2);
    assert_eq!(counted(&resumed), (1, 1, 0, 2));
    let mut rows: Vec<ReportRow> = Vec::new();
    let each = |row| {
        rows.push(row);
        Ok::<_, JournalError>(())
    };
    resumed.report(NOW, Rows::NotSimplySucceeded, each).unwrap();
    let row = rows.iter().find(|row| row.ordinal == 1).unwrap();
    assert!(row.fell_back() && row.state == State::Succeeded && row.reason.as_deref() == Some("max_retries"));
    assert_eq!(row.tally.last.as_ref().map(|last| last.class), None, "the line has no class, and none is made up");
}

#[test]
fn they_wait_again_with_those_that_failed_and_their_lines_are_gone() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    finish(&journal, success(0, 1));
    finish(&journal, fell_back(1));
    finish(&journal, success(2, 1));
    finish(&journal, failure(3));
    assert_eq!(journal.retry_failed().unwrap(), 2);
    assert_eq!(counted(&journal), (2, 0, 0, 2));
    assert_eq!(fs::read(&job.paths.output).unwrap(), [success(0, 1).line, success(2, 1).line].concat());
    let dead = job.copy();
    let (resumed, recovery) = dead.resume();
    assert_eq!(recovery, Recovery::default());
    dead.complete(&resumed);
    dead.assert_each_once(4);
    assert_eq!(counted(&resumed), (4, 0, 0, 0));
    assert_eq!(resumed.retry_failed().unwrap(), 0);
}
