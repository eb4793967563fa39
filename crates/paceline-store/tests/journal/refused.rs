//! Lines that cannot be sent: they are items from the start, never handed out, and end once.

use std::fs;

use paceline_core::Class;

use crate::support::{Job, NOW, finish, id, ordinals, read, wait};
use paceline_store::{
    Appended, AppendedLine, CustomId, End, Finished, InputCursor, Journal, JournalItem, LoadedLine, Opened,
    RefusedLine, ResultBody, Rows, State, encode_line,
};

fn good(custom_id: &CustomId, line: u64) -> LoadedLine<'_> {
    LoadedLine { custom_id, line, src_off: 0, src_len: 1, body: b"", scope: "chat" }
}

fn bad(custom_id: Option<&CustomId>, line: u64) -> RefusedLine<'_> {
    let (code, message) = ("invalid_url", "missing");
    RefusedLine { custom_id, line, src_off: 0, src_len: 1, bytes: b"{", code, message }
}

/// Items 0 and 3 can be sent; 1 has no id, 2 an id of its own, 4 repeats item 0 and 5 repeats item 2.
fn load(job: &Job) -> Journal {
    let Opened::New(mut loader) = job.open().unwrap() else { panic!("a new job") };
    loader.add(&good(&id(0), 1)).unwrap();
    loader.add_refused(&bad(None, 2)).unwrap();
    loader.add_refused(&bad(Some(&id(2)), 3)).unwrap();
    loader.add(&good(&id(3), 4)).unwrap();
    loader.add(&good(&id(0), 5)).unwrap();
    loader.add_refused(&bad(Some(&id(2)), 6)).unwrap();
    assert_eq!(loader.duplicates(9).unwrap().count, 2);
    loader.refuse_duplicates("duplicate_custom_id").unwrap();
    loader.finish().unwrap()
}

fn end(item: &JournalItem) -> Finished {
    let last = item.tally.last.clone().unwrap();
    let (code, message) = (last.code.unwrap(), last.message.unwrap());
    let custom_id = if item.ordinal == 2 { id(2) } else { CustomId::Absent };
    let answer = ResultBody::Refused { code: &code, message: &message, line: item.line };
    let mut finished = Finished::new(item.ordinal, End::Failed, encode_line(item.ordinal, 0, &custom_id, &answer));
    finished.tally = item.tally.clone();
    finished
}

#[test]
fn they_are_never_handed_out_and_say_what_is_wrong() {
    let job = Job::new();
    let journal = load(&job);
    let claim = journal.claim_now(NOW, 99).unwrap();
    assert_eq!((ordinals(&claim), claim.next_due), (vec![0, 3], None));
    let refused = journal.refused(99).unwrap();
    let words = |item: &JournalItem| item.tally.last.as_ref().and_then(|last| last.message.clone()).unwrap();
    assert_eq!(refused.iter().map(|item| item.ordinal).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert!(refused.iter().all(JournalItem::is_refused) && !claim.items[0].is_refused());
    assert_eq!(words(&refused[0]), "missing");
    assert_eq!(words(&refused[2]), "the same custom_id as in line 1");
    assert_eq!(words(&refused[3]), "the same custom_id as in line 3");
    assert_eq!(journal.refused(1).unwrap().len(), 1);
}

#[test]
fn their_lines_are_found_again_after_a_crash() {
    let job = Job::new();
    let journal = load(&job);
    let dead = job.copy();
    let refused = journal.refused(99).unwrap();
    for item in &refused {
        wait(|reply| journal.finish(end(item), reply)).unwrap();
    }
    let lines = read(&job.paths.errors);
    // The last line is torn, and a foreign one without an id must not end an item that can be sent.
    let foreign = encode_line(3, 0, &CustomId::Absent, &ResultBody::Error { code: "x", message: "y" });
    fs::write(&dead.paths.errors, &lines[..lines.len() - 9]).unwrap();
    let (resumed, recovery) = dead.resume();
    assert_eq!(recovery.recorded, 3);
    let left = resumed.refused(99).unwrap();
    assert_eq!(left.iter().map(|item| item.ordinal).collect::<Vec<_>>(), [5]);
    finish(&resumed, end(&left[0]));
    assert_eq!(read(&dead.paths.errors), lines, "each once, in the same words");
    let mut classes = Vec::new();
    let visit = |row: paceline_store::ReportRow| {
        if row.state == State::Failed {
            classes.push(row.tally.last.as_ref().map(|last| last.class));
        }
        Ok::<_, paceline_store::JournalError>(())
    };
    resumed.report(NOW, Rows::All, visit).unwrap();
    assert_eq!(classes, [Some(Class::Invalid); 4]);
    resumed.close().unwrap();

    fs::write(&dead.paths.errors, [lines.as_bytes(), &foreign].concat()).unwrap();
    let (resumed, recovery) = dead.resume();
    assert_eq!((recovery.recorded, recovery.cut), (0, foreign.len() as u64));
    drop(resumed);
}

#[test]
fn lines_that_come_while_the_job_runs_are_like_the_others() {
    let job = Job::new();
    let Opened::New(mut loader) = job.open().unwrap() else { panic!("a new job") };
    loader.add(&good(&id(0), 1)).unwrap();
    let from = InputCursor { offset: 10, lines: 1 };
    loader.leave(from);
    let journal = loader.finish().unwrap();
    assert_eq!(journal.input_cursor().unwrap(), Some(from));
    let further = [
        AppendedLine::item(&LoadedLine { scope: "another", ..good(&id(1), 2) }),
        AppendedLine::refused(&bad(None, 3)),
        AppendedLine::item(&good(&id(0), 4)),
        AppendedLine::refused(&bad(Some(&id(1)), 5)),
    ];
    let next = InputCursor { offset: 50, lines: 5 };
    let taken = journal.append(further.to_vec(), Some(next), "duplicate_custom_id").unwrap();
    assert_eq!(taken, Appended { items: 4, refused: 3 });
    assert_eq!(ordinals(&journal.claim_now(NOW, 99).unwrap()), [0, 1]);

    let dead = job.copy();
    let (journal, recovery) = dead.resume();
    assert_eq!((journal.input_cursor().unwrap(), recovery.interrupted), (Some(next), 2));
    let taken = journal.append(vec![AppendedLine::item(&good(&id(5), 6))], None, "duplicate_custom_id").unwrap();
    assert_eq!((taken, journal.input_cursor().unwrap()), (Appended { items: 1, refused: 0 }, None));
    assert_eq!(ordinals(&journal.claim_now(NOW, 99).unwrap()), [0, 1, 5], "interrupted ones in their places");
    let codes: Vec<_> = journal
        .refused(99)
        .unwrap()
        .iter()
        .map(|item| item.tally.last.as_ref().and_then(|last| last.code.clone()).unwrap())
        .collect();
    assert_eq!(codes, ["invalid_url", "duplicate_custom_id", "duplicate_custom_id"]);
}
