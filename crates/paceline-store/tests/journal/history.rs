//! The minutes of a job, and looking at it.

use paceline_store::{JournalError, Minute, Reader};

use crate::support::{Job, NOW, later, wait};

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
