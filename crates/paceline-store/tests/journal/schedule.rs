//! Who is handed out when, what is counted, and what a report says.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Job, NOW, failure, finish, later, ordinals, read, reschedule, retry, success, tally, usage, wait,
};
use paceline_core::{Class, Timestamp};
use paceline_store::{
    ACCOUNT, CallTotals, ClaimExcept, DeferReason, Departure, FinishStatus, Journal, JournalError, ModelUsage, Opened,
    Options, Reader, ReportRow, Rescheduled, Rows, ScopeStatus, SnapshotUpdate, State, StoredSnapshot, Tally,
    Unanswered,
};

fn set(journal: &Journal, scope: &str, state: ScopeStatus) {
    wait(|reply| journal.set_scope(scope, state, reply)).unwrap();
}

fn held(until: Timestamp) -> ScopeStatus {
    ScopeStatus::Held { until, reason: "daily limit".into() }
}

fn stopped() -> ScopeStatus {
    ScopeStatus::Stopped { reason: "bad key".into() }
}

#[test]
fn retries_go_first_by_due_time_then_new_items_by_place() {
    let job = Job::new();
    let journal = job.start_in(8, |ordinal| if ordinal % 2 == 0 { "even" } else { "odd" });
    assert_eq!(ordinals(&journal.claim_now(NOW, 4).unwrap()), [0, 1, 2, 3]);
    for (ordinal, seconds) in [(0, 30), (1, 20), (2, 10), (3, 900)] {
        assert_eq!(reschedule(&journal, retry(ordinal, seconds)), FinishStatus::Recorded);
    }
    let first = journal.claim_now(later(20), 3).unwrap();
    assert_eq!(ordinals(&first), [2, 1, 4]);
    assert_eq!(first.next_due, Some(Timestamp::from_millis(0)), "more is due than was asked for");
    let item = &first.items[0];
    assert_eq!((item.not_before, item.delay), (later(10), Duration::from_secs(10)));
    assert_eq!(item.tally, tally(1, Class::Transient));
    assert!(item.body_unchanged(b"body 2") && !item.body_unchanged(b"body 3"));
    assert_eq!((item.line, item.src_off, item.src_len, &*item.scope), (3, 20, 9, "even"));
    let rest = journal.claim_now(later(20), 99).unwrap();
    assert_eq!(ordinals(&rest), [5, 6, 7]);
    assert_eq!(rest.next_due, Some(later(30)));
    assert_eq!(journal.next_due().unwrap(), Some(later(30)));
}

#[test]
fn a_clock_that_was_set_back_lengthens_no_wait() {
    let job = Job::new();
    let journal = job.start(2);
    journal.claim_now(NOW, 2).unwrap();
    for (ordinal, seconds) in [(0, 30), (1, 900)] {
        reschedule(&journal, retry(ordinal, seconds));
    }
    journal.close().unwrap();
    let hour_ago = Timestamp::from_millis(NOW.as_millis() - 3_600_000);
    let Opened::Resumed { journal, .. } = Journal::open(Options { now: hour_ago, ..job.options() }).unwrap() else {
        panic!("the job was forgotten")
    };
    let due = journal.claim_now(hour_ago + Duration::from_secs(29), 9).unwrap();
    assert_eq!(
        (due.items.len(), due.next_due),
        (0, Some(hour_ago + Duration::from_secs(30))),
        "nor does it shorten one"
    );
    assert_eq!(ordinals(&journal.claim_now(hour_ago + Duration::from_secs(30), 9).unwrap()), [0]);
    assert_eq!(ordinals(&journal.claim_now(hour_ago + Duration::from_secs(900), 9).unwrap()), [1]);
}

#[test]
fn the_first_result_wins() {
    let job = Job::new();
    let journal = job.start(2);
    journal.claim_now(NOW, 2).unwrap();
    assert_eq!(finish(&journal, success(0, 1)), FinishStatus::Recorded);
    assert_eq!(finish(&journal, success(0, 2)), FinishStatus::AlreadyEnded);
    assert_eq!(finish(&journal, failure(0)), FinishStatus::AlreadyEnded);
    assert_eq!(reschedule(&journal, retry(0, 5)), FinishStatus::AlreadyEnded);
    assert_eq!(wait(|reply| journal.release(0, None, reply)).unwrap(), FinishStatus::AlreadyEnded);
    assert_eq!(read(&job.paths.output).into_bytes(), success(0, 1).line);
    assert!(!job.paths.errors.exists(), "made when first needed");
    let counts = journal.counts(NOW).unwrap();
    assert_eq!((counts.succeeded, counts.failed, counts.in_flight, counts.input()), (1, 0, 1, 2));
}

#[test]
fn of_two_results_in_one_group_only_the_first_leaves_a_line() {
    let job = Job::new();
    let journal = job.start(1);
    // The claim's reply keeps the writer busy while both results queue up behind it.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    journal.claim(NOW, 1, ClaimExcept::default(), move |_| gate.recv().unwrap());
    let (sender, kept) = std::sync::mpsc::channel();
    for call in [1, 2] {
        let sender = sender.clone();
        journal.finish(success(0, call), move |result| sender.send(result.unwrap()).unwrap());
    }
    go.send(()).unwrap();
    assert_eq!([kept.recv().unwrap(), kept.recv().unwrap()], [FinishStatus::Recorded, FinishStatus::AlreadyEnded]);
    assert_eq!(read(&job.paths.output).into_bytes(), success(0, 1).line);
}

#[test]
fn released_items_wait_as_before_and_those_interrupted_twice_go_to_the_back() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 3).unwrap();
    reschedule(&journal, retry(0, 10));
    wait(|reply| journal.release(1, None, reply)).unwrap();
    assert_eq!(ordinals(&journal.claim_now(later(10), 2).unwrap()), [0, 1]);
    wait(|reply| journal.release(0, None, reply)).unwrap();
    let again = journal.claim_now(later(9), 1).unwrap();
    assert_eq!(ordinals(&again), [3], "0 kept its due time through the release");

    let dead = job.copy();
    let (resumed, recovery) = dead.resume();
    assert_eq!(recovery.interrupted, 3);
    let claim = resumed.claim_now(later(10), 9).unwrap();
    assert_eq!(ordinals(&claim), [0, 1, 2, 3]);
    let crashes: Vec<_> = claim.items.iter().map(|item| item.crash_attempts).collect();
    assert_eq!(crashes, [0, 1, 1, 1]);

    // Killed again with 0 and 1 in flight: 1 has crashed twice and comes last.
    for ordinal in [2, 3] {
        wait(|reply| resumed.release(ordinal, None, reply)).unwrap();
    }
    let copy = dead.copy();
    let (resumed, _) = copy.resume();
    assert_eq!(ordinals(&resumed.claim_now(later(10), 9).unwrap()), [0, 2, 3, 1]);
}

#[test]
fn what_one_crash_interrupted_keeps_its_place_before_what_was_not_started() {
    let job = Job::new();
    let journal = job.start(6);
    assert_eq!(ordinals(&journal.claim_now(NOW, 3).unwrap()), [0, 1, 2]);
    let copy = job.copy();
    let (resumed, _) = copy.resume();
    assert_eq!(ordinals(&resumed.claim_now(NOW, 2).unwrap()), [0, 1]);
    assert_eq!(ordinals(&resumed.claim_now(NOW, 2).unwrap()), [2, 3]);
    assert_eq!(ordinals(&resumed.claim_now(NOW, 9).unwrap()), [4, 5], "each once");
}

#[test]
fn held_and_stopped_scopes_hand_out_nothing_and_stay_so() {
    let job = Job::new();
    let journal = job.start_in(6, |ordinal| ["a", "b", "c"][ordinal as usize % 3]);
    set(&journal, "a", held(later(60)));
    set(&journal, "b", stopped());
    let claim = journal.claim_now(NOW, 9).unwrap();
    assert_eq!((ordinals(&claim), claim.next_due), (vec![2, 5], Some(later(60))));
    journal.close().unwrap();

    let (journal, _) = job.resume();
    let states: Vec<_> = journal.scopes().unwrap().into_iter().map(|row| row.state).collect();
    assert_eq!(states, [held(later(60)), stopped(), ScopeStatus::Open]);
    assert_eq!(ordinals(&journal.claim_now(later(59), 9).unwrap()), [2, 5]);
    assert_eq!(ordinals(&journal.claim_now(later(60), 9).unwrap()), [0, 3]);
    assert_eq!(journal.next_due().unwrap(), None, "what waits is stopped");
    set(&journal, ACCOUNT, held(later(90)));
    set(&journal, "b", ScopeStatus::Open);
    let claim = journal.claim_now(later(60), 9).unwrap();
    assert_eq!((ordinals(&claim), claim.next_due), (vec![], Some(later(90))));
    set(&journal, ACCOUNT, stopped());
    assert_eq!(journal.claim_now(later(99), 9).unwrap(), paceline_store::ClaimedItems::default());
    set(&journal, ACCOUNT, ScopeStatus::Open);
    assert_eq!(ordinals(&journal.claim_now(later(60), 9).unwrap()), [1, 4]);
}

#[test]
fn a_scope_with_enough_waiting_is_left_out() {
    let job = Job::new();
    let journal = job.start_in(6, |ordinal| if ordinal < 4 { "slow" } else { "fast" });
    let except = ClaimExcept { all: vec![Arc::from("slow")], new: Vec::new() };
    let claim = wait(|reply| journal.claim(NOW, 2, except, reply)).unwrap();
    assert_eq!(ordinals(&claim), [4, 5]);
    assert_eq!(claim.next_due, Some(Timestamp::from_millis(0)));
}

#[test]
fn of_a_scope_with_enough_new_items_only_what_is_due_again_is_handed_out() {
    let job = Job::new();
    let journal = job.start(6);
    journal.claim_now(NOW, 3).unwrap();
    for (ordinal, due) in [(0, 60), (1, 30), (2, 90)] {
        reschedule(&journal, retry(ordinal, due));
    }
    let claim = |seconds| {
        let except = ClaimExcept { all: Vec::new(), new: vec![Arc::from("chat")] };
        wait(|reply| journal.claim(later(seconds), 9, except, reply)).unwrap()
    };
    assert_eq!((ordinals(&claim(0)), ordinals(&claim(60))), (vec![], vec![1, 0]));
    assert_eq!(ordinals(&journal.claim_now(later(60), 9).unwrap()), [3, 4, 5], "what is new is not forgotten");
    assert_eq!(ordinals(&claim(90)), [2]);
}

fn report(journal: &Journal, now: Timestamp, rows: Rows) -> Vec<ReportRow> {
    let mut all = Vec::new();
    journal
        .report::<JournalError>(now, rows, |row| {
            all.push(row);
            Ok(())
        })
        .unwrap();
    all
}

#[test]
fn every_item_is_counted_and_reported_with_its_reason() {
    let job = Job::new();
    let journal = job.start_in(7, |ordinal| ["main", "held", "stopped"][(ordinal as usize).saturating_sub(4)]);
    journal.claim_now(NOW, 4).unwrap();
    finish(&journal, success(0, 1));
    let mut failed = failure(1);
    failed.reason = Some("invalid".into());
    let last = failed.tally.last.as_mut().unwrap();
    (last.status, last.code, last.message) = (Some(404), Some("bad_model".into()), Some("é".repeat(1_000)));
    finish(&journal, failed);
    reschedule(&journal, retry(2, 60));
    let abandoned = CallTotals { calls: 1, abandoned: 1, ..CallTotals::default() };
    let mut sent = tally(0, Class::Abandoned);
    sent.abandoned = 1;
    wait(|reply| journal.release(3, Some(Unanswered { tally: sent, adds: abandoned, usage: Vec::new() }), reply))
        .unwrap();
    set(&journal, "held", held(later(60)));
    set(&journal, "stopped", stopped());

    let counts = journal.counts(NOW).unwrap();
    assert_eq!((counts.succeeded, counts.failed, counts.waiting, counts.input()), (1, 1, 5, 7));
    assert_eq!((counts.tokens_in, counts.totals), (5, CallTotals { calls: 3, abandoned: 1, ..CallTotals::default() }));
    let deferred = |reason, class| (reason, class, 1);
    assert_eq!(
        counts.deferred.iter().map(|group| (group.reason, group.class, group.items)).collect::<Vec<_>>(),
        [
            deferred(DeferReason::ScopeStopped, None),
            deferred(DeferReason::ScopeHeld, None),
            deferred(DeferReason::NotBefore, Some(Class::Transient)),
            deferred(DeferReason::NotStarted, None),
            deferred(DeferReason::RunBound, Some(Class::Abandoned)),
        ]
    );

    let rows = report(&journal, NOW, Rows::NotSimplySucceeded);
    let reasons: Vec<_> = rows.iter().map(|row| (row.ordinal, row.deferred)).collect();
    assert_eq!(
        reasons,
        [
            (1, None),
            (2, Some(DeferReason::NotBefore)),
            (3, Some(DeferReason::RunBound)),
            (4, Some(DeferReason::NotStarted)),
            (5, Some(DeferReason::ScopeHeld)),
            (6, Some(DeferReason::ScopeStopped)),
        ]
    );
    assert_eq!((rows[0].state, rows[0].reason.as_deref()), (State::Failed, Some("invalid")));
    let last = rows[0].tally.last.as_ref().unwrap();
    assert_eq!((last.class, last.status, last.code.as_deref()), (Class::Invalid, Some(404), Some("bad_model")));
    assert_eq!(last.message.as_ref().unwrap().chars().count(), 400);
    assert_eq!(rows[1].retry_not_before(NOW), Some(later(60)));
    assert_eq!(rows[1].retry_not_before(later(60)), None, "null once the wait is over");
    assert_eq!(report(&journal, NOW, Rows::All).len(), 7);
    finish(&journal, success(2, 2));
    let rows = report(&journal, NOW, Rows::NotSimplySucceeded);
    assert_eq!((rows[1].ordinal, rows[1].state), (2, State::Succeeded), "it took two calls");
}

#[test]
fn another_process_reads_while_the_run_writes() {
    let job = Job::new();
    let journal = job.start(1_500);
    let reader = Reader::open(job.paths.journal.as_ref().unwrap()).unwrap();
    assert_eq!(reader.snapshot().unwrap(), None);
    for (turn, job) in [r#"{"turn":1}"#, r#"{"turn":2}"#].into_iter().enumerate() {
        let update = SnapshotUpdate { job: job.to_owned(), first: true, ..SnapshotUpdate::default() };
        wait(|reply| journal.write_snapshot(update, reply)).unwrap();
        journal.claim_now(NOW, 10).unwrap();
        assert_eq!(reader.snapshot().unwrap(), Some(StoredSnapshot { job: job.to_owned(), scopes: vec![] }));
        assert_eq!(reader.counts(NOW).unwrap().in_flight, 10 * (turn as u64 + 1));
    }
    let mut rows = 0;
    reader
        .report::<JournalError>(NOW, Rows::All, |row| {
            assert_eq!(row.ordinal, rows);
            rows += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, 1_500, "over several pages");
    assert_eq!(reader.input().unwrap(), job.options().input);
    assert_eq!(reader.config_json().unwrap(), "{}");
}

#[test]
fn a_job_without_journal_works_the_same_but_for_resuming() {
    let mut job = Job::new();
    job.paths = job.paths.clone().without_journal();
    let journal = job.start(5);
    assert!(matches!(job.open(), Err(JournalError::Locked { .. })));
    job.complete(&journal);
    job.assert_each_once(5);
    journal.close().unwrap();
    assert!(matches!(job.open(), Err(JournalError::OutputExists { .. })));
}

#[test]
fn a_job_keeps_its_id_and_no_other_has_it() {
    let (one, other) = (Job::new(), Job::new());
    let first = one.start(1);
    assert_ne!(first.id(), other.start(1).id());
    let id = first.id().to_owned();
    first.close().unwrap();
    assert_eq!(one.resume().0.id(), id);
}

#[test]
fn a_hundred_thousand_items_are_loaded_and_handed_out_in_order() {
    const ITEMS: u64 = 100_000;
    let job = Job::new();
    let journal = job.start(ITEMS);
    assert_eq!(journal.counts(NOW).unwrap().waiting, ITEMS);
    for turn in 0..20 {
        let claim = journal.claim_now(NOW, 100).unwrap();
        assert_eq!(ordinals(&claim), (turn * 100..(turn + 1) * 100).collect::<Vec<_>>());
        for ordinal in ordinals(&claim) {
            journal.finish(success(ordinal, 1), |kept| assert_eq!(kept.unwrap(), FinishStatus::Recorded));
        }
    }
    journal.close().unwrap();
    let counts = job.resume().0.counts(NOW).unwrap();
    assert_eq!((counts.succeeded, counts.waiting, counts.tokens_in), (2_000, ITEMS - 2_000, 10_000));
}

#[test]
fn a_retry_that_is_interrupted_twice_goes_behind_new_items_too() {
    let job = Job::new();
    let journal = job.start(3);
    journal.claim_now(NOW, 1).unwrap();
    reschedule(&journal, retry(0, 10));
    assert_eq!(ordinals(&journal.claim_now(later(10), 1).unwrap()), [0]);
    let crashed = job.copy();
    let (resumed, _) = crashed.resume();
    assert_eq!(ordinals(&resumed.claim_now(later(10), 1).unwrap()), [0], "once: in its place");
    let copy = crashed.copy();
    let (resumed, _) = copy.resume();
    let claim = resumed.claim_now(later(10), 3).unwrap();
    assert_eq!(ordinals(&claim), [1, 2, 0]);
    assert_eq!(claim.items[2].tally, tally(1, Class::Transient), "its sends before the crash still count");
}

#[test]
fn a_snapshot_keeps_the_scopes_that_have_not_changed_and_a_new_run_begins_anew() {
    let job = Job::new();
    let journal = job.start(1);
    let reader = Reader::open(job.paths.journal.as_ref().unwrap()).unwrap();
    assert_eq!(journal.limiter_state().unwrap(), [""; 0]);
    let told = |first: bool, scopes: &[(&str, &str)]| {
        let texts = |of: &str| scopes.iter().map(|(name, text)| ((*name).into(), format!("{of}{text}"))).collect();
        let update = SnapshotUpdate { job: "{}".into(), scopes: texts(""), state: texts("state "), first };
        wait(|reply| journal.write_snapshot(update, reply)).unwrap();
        let read = reader.snapshot().unwrap().unwrap();
        assert_eq!(journal.snapshot().unwrap().as_ref(), Some(&read));
        let state = read.scopes.iter().map(|text| format!("state {text}"));
        assert_eq!(journal.limiter_state().unwrap(), state.collect::<Vec<_>>());
        read.scopes
    };
    assert_eq!(told(true, &[("b", "1"), ("a", "2")]), ["1", "2"]);
    assert_eq!(told(false, &[("a", "3"), ("c", "4")]), ["1", "3", "4"]);
    assert_eq!(told(false, &[]), ["1", "3", "4"]);
    assert_eq!(told(true, &[("c", "5")]), ["5"]);
}

#[test]
fn what_calls_used_is_kept_by_model_whatever_became_of_them() {
    let job = Job::new();
    let journal = job.start(4);
    journal.claim_now(NOW, 4).unwrap();
    finish(&journal, success(0, 1));
    reschedule(&journal, retry(1, 60));
    let (tally, adds) = (tally(0, Class::Abandoned), CallTotals::default());
    let given_up = Unanswered { tally, adds, usage: vec![usage("other", 7, 9)] };
    wait(|reply| journal.release(2, Some(given_up), reply)).unwrap();
    wait(|reply| journal.release(3, None, reply)).unwrap();
    let expected = [ModelUsage { calls: 2, ..usage("m", 10, 0) }, usage("other", 7, 9)];
    assert_eq!(journal.usage().unwrap(), expected);
    journal.close().unwrap();
    drop(journal);
    assert_eq!(Reader::open(job.paths.journal.as_ref().unwrap()).unwrap().usage().unwrap(), expected);

    // In a journal of an older version, what its items tell.
    let conn = rusqlite::Connection::open(job.paths.journal.as_ref().unwrap()).unwrap();
    conn.execute_batch("DROP TABLE spent").unwrap();
    drop(conn);
    assert_eq!(Reader::open(job.paths.journal.as_ref().unwrap()).unwrap().usage().unwrap(), []);
    let (resumed, _) = job.resume();
    assert_eq!(resumed.usage().unwrap(), [ModelUsage { calls_of_older: 1, ..usage("", 5, 0) }]);
}

/// As where the run ends while the call waits for its note. A call that an earlier run sent stays noted.
#[test]
fn a_note_goes_with_the_item_whose_call_has_not_left() {
    let job = Job::new();
    let journal = job.start(2);
    let leaves = |journal: &Journal, ordinal| {
        let departure = Departure { ordinal, reserved: usage("m", 10, 100), durable: true };
        wait(|reply| journal.leaves(departure, reply)).unwrap();
    };
    journal.claim_now(NOW, 2).unwrap();
    leaves(&journal, 0);
    leaves(&journal, 1);
    wait(|reply| journal.release(0, None, reply)).unwrap();
    assert_eq!(noted(&journal), [1]);
    let dead = job.copy();
    let (resumed, _) = dead.resume();
    assert_eq!(resumed.sums().unwrap().totals.abandoned, 1);
    resumed.claim_now(NOW, 2).unwrap();
    wait(|reply| resumed.release(1, None, reply)).unwrap();
    assert_eq!(noted(&resumed), [1]);
}

fn noted(journal: &Journal) -> Vec<u64> {
    journal.unanswered().unwrap().iter().map(|call| call.ordinal).collect()
}

#[test]
fn a_hold_makes_the_deadlines_later_of_what_waits_in_its_scope() {
    let job = Job::new();
    let journal = job.start_in(4, |ordinal| if ordinal == 3 { "mail" } else { "chat" });
    journal.claim_now(NOW, 4).unwrap();
    // The third waits by itself until the hold has ended.
    for (ordinal, seconds) in [(0, 0), (1, 10), (2, 30), (3, 0)] {
        let next = retry(ordinal, seconds);
        let tally = Tally { deadline: Some(later(20)), ..next.tally.clone() };
        reschedule(&journal, Rescheduled { tally, ..next });
    }
    journal.stands_still(&"chat".into(), NOW, later(30));
    let deadlines = |journal: &Journal| {
        let mut items = journal.claim_now(later(99), 9).unwrap().items;
        items.sort_by_key(|item| item.ordinal);
        items.into_iter().map(|item| item.tally.deadline.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(deadlines(&journal), [later(50), later(40), later(20), later(20)]);
    for ordinal in 0..4 {
        wait(|reply| journal.release(ordinal, None, reply)).unwrap();
    }
    journal.stands_still(&ACCOUNT.into(), later(30), later(35));
    journal.close().unwrap();
    let Opened::Resumed { journal, .. } = Journal::open(job.options()).unwrap() else {
        panic!("the job was forgotten")
    };
    assert_eq!(deadlines(&journal), [later(55), later(45), later(25), later(25)], "over a restart too");
}
