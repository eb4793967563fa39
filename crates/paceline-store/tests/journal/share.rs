//! A journal with a share of a job on many hosts: its items have the ordinals of the whole job, and blocks come and go.

use std::collections::BTreeSet;
use std::sync::Arc;

use paceline_store::{
    AppendedLine, EndedLine, FinishStatus, Journal, LeftBlock, LoadedLine, Opened, ScopeStatus, TakenBlock,
};

use crate::support::{Job, NOW, failure, finish, id, later, ordinals, success};

const FIRST: TakenBlock = TakenBlock { first: 40, lines: 4, fence: 1, lost: false };

fn line(ordinal: u64) -> (u64, AppendedLine) {
    let (custom_id, body) = (id(ordinal), format!("body {ordinal}"));
    let line = ordinal + 1;
    let item = LoadedLine { custom_id: &custom_id, line, src_off: 0, src_len: 9, body: body.as_bytes(), scope: "chat" };
    (ordinal, AppendedLine::item(&item))
}

fn take(journal: &Journal, block: TakenBlock, ordinals: impl IntoIterator<Item = u64>) -> u64 {
    let lines = ordinals.into_iter().map(line).collect();
    journal.take_blocks(vec![(block, lines)], "repeated").unwrap().items
}

fn begin(job: &Job) -> Journal {
    let mut options = job.options();
    options.id = Some("ofalljobs".to_owned());
    let Opened::New(loader) = Journal::open(options).unwrap() else { panic!("a new job") };
    loader.finish().unwrap()
}

fn ended(journal: &Journal, block: TakenBlock, known: &[u64], most: u64) -> (Vec<EndedLine>, u64) {
    let mut ended = journal.ended_lines(vec![(block, known.iter().copied().collect())], most, NOW).unwrap();
    let of_block = ended.remove(0);
    (of_block.lines, of_block.open)
}

#[test]
fn items_have_the_ordinals_and_the_id_of_the_whole_job() {
    let job = Job::new();
    let journal = begin(&job);
    assert_eq!(journal.id(), "ofalljobs");
    assert_eq!(take(&journal, FIRST, 40..44), 4);
    let claim = journal.claim_now(NOW, 9).unwrap();
    assert_eq!(ordinals(&claim), [40, 41, 42, 43]);
    assert_eq!(claim.items[2].key_number, 42, "the same on every host");
    let before = TakenBlock { first: 0, lines: 2, ..FIRST };
    assert_eq!(take(&journal, before, [0, 1]), 2, "blocks come in any order");
    assert_eq!(ordinals(&journal.claim_now(NOW, 9).unwrap()), [0, 1]);
    assert_eq!(journal.taken_blocks().unwrap(), [before, FIRST]);
}

#[test]
fn what_has_ended_is_told_until_it_is_known_and_a_kill_loses_none_of_it() {
    let job = Job::new();
    let journal = begin(&job);
    take(&journal, FIRST, 40..44);
    journal.claim_now(NOW, 9).unwrap();
    assert_eq!(finish(&journal, success(41, 1)), FinishStatus::Recorded);
    assert_eq!(finish(&journal, failure(40)), FinishStatus::Recorded);
    let (lines, open) = ended(&journal, FIRST, &[], 1 << 20);
    assert_eq!(lines.iter().map(|line| (line.ordinal, line.ok)).collect::<Vec<_>>(), [(40, false), (41, true)]);
    assert_eq!((&lines[1].body, open), (&success(41, 1).line, 2));
    assert_eq!(ended(&journal, FIRST, &[], 1).0.len(), 1, "one at least");
    assert_eq!(ended(&journal, FIRST, &[40], 1 << 20).0.len(), 1);

    let killed = job.copy();
    let (journal, _) = killed.resume();
    assert_eq!((journal.id(), journal.taken_blocks().unwrap()), ("ofalljobs", vec![FIRST]));
    let (lines, open) = ended(&journal, FIRST, &[], 1 << 20);
    assert_eq!((lines.len(), open), (2, 2));
    assert_eq!(ordinals(&journal.claim_now(NOW, 9).unwrap()), [42, 43]);
    journal.end_block(FIRST).unwrap();
    assert_eq!(journal.taken_blocks().unwrap(), []);
}

#[test]
fn a_block_that_another_host_has_leaves_what_has_begun_and_may_come_back() {
    let job = Job::new();
    let journal = begin(&job);
    take(&journal, FIRST, 40..44);
    assert_eq!(ordinals(&journal.claim_now(NOW, 1).unwrap()), [40]);
    assert_eq!(journal.leave_block(FIRST).unwrap(), LeftBlock { gone: 3, open: 1 });
    assert!(ordinals(&journal.claim_now(NOW, 9).unwrap()).is_empty());
    finish(&journal, success(40, 1));
    assert_eq!(journal.leave_block(FIRST).unwrap(), LeftBlock { gone: 0, open: 0 });
    assert_eq!(journal.sums().unwrap().input(), 1);
    journal.end_block(FIRST).unwrap();

    // The other host was lost in turn, with a result for 41.
    let again = TakenBlock { fence: 3, lost: true, ..FIRST };
    assert_eq!(take(&journal, again, [40, 42, 43]), 2, "40 has succeeded here");
    assert_eq!(journal.taken_blocks().unwrap(), [again]);
    assert_eq!(ordinals(&journal.claim_now(NOW, 9).unwrap()), [42, 43]);
    assert_eq!(ended(&journal, again, &[41], 1 << 20).0.len(), 1, "it is offered under the new claim");
    journal.end_block(FIRST).unwrap();
    assert_eq!(journal.taken_blocks().unwrap(), [again], "an old claim ends no new one");
}

#[test]
fn what_failed_here_and_has_no_result_is_tried_anew() {
    let job = Job::new();
    let journal = begin(&job);
    take(&journal, FIRST, 40..44);
    journal.claim_now(NOW, 9).unwrap();
    finish(&journal, failure(40));
    finish(&journal, success(41, 1));
    let again = TakenBlock { fence: 2, ..FIRST };
    assert_eq!(take(&journal, again, [40, 42, 43]), 1, "42 and 43 are under way");
    assert_eq!(ordinals(&journal.claim_now(NOW, 9).unwrap()), [40]);
    assert_eq!(finish(&journal, success(40, 2)), FinishStatus::Recorded);
    let (lines, open) = ended(&journal, again, &[41], 1 << 20);
    assert_eq!((lines.len(), lines[0].ok, open), (1, true, 2));
    journal.close().unwrap();
    let (journal, _) = job.resume();
    assert_eq!(journal.sums().unwrap().succeeded, 2);
}

#[test]
fn an_ordinary_job_has_no_blocks() {
    let job = Job::new();
    let journal = job.start(3);
    assert_eq!(journal.taken_blocks().unwrap(), []);
    assert_eq!(journal.ended_lines(vec![(FIRST, BTreeSet::new())], 9, NOW).unwrap()[0].lines, []);
}

#[test]
fn what_waits_in_a_scope_that_is_held_or_stopped_is_kept_back() {
    let job = Job::new();
    let journal = begin(&job);
    take(&journal, FIRST, 40..44);
    journal.claim_now(NOW, 1).unwrap();
    let kept = |now| journal.ended_lines(vec![(FIRST, BTreeSet::new())], 9, now).unwrap()[0].kept;
    assert_eq!(kept(NOW), 0);
    let set = |state| journal.set_scope(&Arc::from("chat"), state, |_| ());
    set(ScopeStatus::Held { until: later(60), reason: String::new() });
    assert_eq!((kept(NOW), kept(later(60))), (3, 0), "without the one that is under way");
    set(ScopeStatus::Stopped { reason: String::new() });
    assert_eq!(kept(later(60)), 3);
}
