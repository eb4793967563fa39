//! The minutes of a job, and looking at it.

use paceline_store::{DeferReason, Departure, Journal, JournalError, Minute, Opened, Options, Reader};

use crate::support::{Job, NOW, later, usage, wait};

#[test]
fn minutes_add_up_over_runs() {
    let job = Job::new();
    let path = job.paths.journal.clone().unwrap();
    let add = |journal: &paceline_store::Journal, minutes| wait(|reply| journal.add_history(minutes, reply)).unwrap();
    let journal = job.start(1);
    add(&journal, vec![Minute { sends: 2, ..Minute::of(NOW) }]);
    journal.close().unwrap();
    let (journal, _) = job.resume();
    let next = Minute { sends: 1, throttled: 1, ..Minute::of(later(60)) };
    add(&journal, vec![Minute { sends: 3, ..Minute::of(NOW) }, next.clone()]);
    assert_eq!(Reader::open(&path).unwrap().history().unwrap(), [Minute { sends: 5, ..Minute::of(NOW) }, next]);
}

#[test]
fn looking_at_a_journal_at_rest_leaves_no_files_beside_it() {
    let job = Job::new();
    job.start(3).close().unwrap();
    let files = || std::fs::read_dir(&job.folder).unwrap().count();
    let before = files();
    assert_eq!(Reader::open(job.paths.journal.as_ref().unwrap()).unwrap().counts(NOW).unwrap().waiting, 3);
    assert_eq!(files(), before);
    let (journal, _) = job.resume();
    let looking = Reader::open(job.paths.journal.as_ref().unwrap()).unwrap();
    looking.counts(NOW).unwrap();
    journal.close().unwrap();
    assert_eq!(looking.counts(NOW).unwrap().waiting, 3, "no reader is kept from looking");
}

#[test]
fn items_are_claimed_by_name_whatever_they_wait_for_and_once() {
    let job = Job::new();
    let journal = job.start(4);
    let claim = |ordinals: &[u64]| {
        let claim = wait(|reply| journal.claim_items(ordinals.to_vec(), reply)).unwrap();
        claim.items.iter().map(|item| item.ordinal).collect::<Vec<_>>()
    };
    assert_eq!(claim(&[2, 0]), [2, 0]);
    assert_eq!(claim(&[2, 3, 9]), [3]);
    journal.close().unwrap();
    assert!(matches!(wait(|reply| journal.claim_items(vec![1], reply)), Err(JournalError::Closed)));
}

/// Of calls that a kill cut off, and of those that may be lost.
#[test]
fn who_looks_at_a_job_before_its_next_run_is_told_what_that_will_count() {
    for (awaits_notes, noted, lost) in [(false, 1, true), (false, 2, false), (true, 1, false)] {
        let job = Job::new();
        drop(job.start(2));
        let begin = |job: &Job| match Journal::open(Options { awaits_notes, ..job.options() }).unwrap() {
            Opened::Resumed { journal, .. } => journal,
            other => panic!("{other:?}"),
        };
        let journal = begin(&job);
        journal.claim_now(NOW, 2).unwrap();
        for ordinal in 0..noted {
            let departure = Departure { ordinal, reserved: usage("m", 10, 100), durable: false };
            wait(|reply| journal.leaves(departure, reply)).unwrap();
        }
        let dead = job.copy();
        let told = Reader::open(dead.paths.journal.as_ref().unwrap()).unwrap().counts_at_rest(NOW).unwrap();
        assert_eq!((told.calls_lost, told.calls_unsure), (lost, noted));
        let not_started = told.deferred.iter().filter(|group| group.reason == DeferReason::NotStarted);
        assert_eq!(not_started.map(|group| group.items).sum::<u64>(), 2 - noted, "{told:?}");
        let counted = begin(&dead).counts(NOW).unwrap();
        assert_eq!((counted.calls_lost, counted.calls_unsure, counted.deferred), (lost, noted, told.deferred));
    }
}
