//! Runs of one account that take turns, in virtual time.

use std::io::{Seek as _, Write as _};

use paceline::{Admit, Class, Cost, Dimension, Limits, Outcome, Permit, Quota, QuotaShape, Request, WaitCause};

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn run(folder: &Path) -> SharedLimits {
    run_under(folder, vec![Quota::sliding(Dimension::Tokens, 100, HOUR)])
}

fn run_under(folder: &Path, quotas: Vec<Quota>) -> SharedLimits {
    let limits = Limits { quotas, burst: None };
    let config = PacerConfig { limits, ..PacerConfig::default() };
    let limiter = Limiter::new(config).expect("sensible");
    let account = Account::new("https://it", &http::HeaderMap::new());
    let turn_wait = TurnWait::default();
    let account = Some(SharedAccount::new(folder, &account, &limiter, turn_wait.clone()));
    SharedLimits { limiter, account, fleet: None, turn_wait }
}

fn call(limiter: &Limiter, tokens: u64) -> Request {
    Request::new(limiter.scope("a"), Cost::request().with(Dimension::Tokens, tokens))
}

async fn take_turn(run: &mut SharedLimits) {
    let account = run.account.as_mut().expect("shared");
    account.take_turn().await.expect("writable");
    account.count(&run.limiter);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_room_is_reported_as_that_from_the_beginning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut first, mut second) = (run(folder.path()), run(folder.path()));
    take_turn(&mut first).await;
    let _permit = first.limiter.try_acquire(call(&first.limiter, 100)).expect("room");
    assert!(first.account.as_mut().expect("shared").save(&first.limiter));
    second.begin();
    let wait = second.limiter.admit(&call(&second.limiter, 1));
    assert!(matches!(wait, Admit::At { cause: WaitCause::Quota { .. }, .. }), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_turn_of_another_is_told_with_that_process_until_it_is_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut first, mut second) = (run(folder.path()), run(folder.path()));
    let wait = second.turn_wait();
    take_turn(&mut first).await;
    second.begin();
    let _scope = second.limiter.admit(&call(&second.limiter, 1));
    let waits_for = second.limiter.snapshot().scopes[0].waits_for.clone();
    assert!(matches!(waits_for, Some((WaitCause::Turn, Some(_)))), "an estimate, for --max-wait: {waits_for:?}");
    let turn = first.account.as_mut().expect("shared").turn.take();
    let waiting = take_turn(&mut second);
    let later = async {
        assert_eq!(wait.get(), None);
        tokio::time::sleep(3 * TOLD_AFTER).await;
        // Both are of this process, which is not named to itself.
        assert_eq!(wait.get().expect("it waits").holder(), "another process");
        drop(turn);
    };
    tokio::join!(waiting, later);
    assert_eq!(wait.get(), None, "it has the turn");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_room_keeps_its_turn_but_from_no_neighbour_in_its_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 1, TURN_LASTS * 100)], burst: None };
    let mut first = run(folder.path());
    first.limiter.reconfigure(PacerConfig { limits, ..PacerConfig::default() }).expect("sensible");
    take_turn(&mut first).await;
    drop(first.limiter.try_acquire(call(&first.limiter, 1)).expect("room").complete(Outcome::new(Class::Success)));
    first.account.as_mut().expect("shared").turn = None;
    take_turn(&mut first).await;
    let (limiter, account) = (first.limiter.clone(), first.account.as_mut().expect("shared"));
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(call(&limiter, 1)).await.is_ok() }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(limiter.waits_for_room().is_some());
    let next = account.take(NEXT).expect("writable").expect("free");
    (&next).write_all(b"1 shares\n").expect("writable");
    assert!(!account.passes_turn_on(&limiter), "another process waits for it");
    (&next).rewind().expect("a file");
    lock::sign(&next, true).expect("writable");
    assert!(account.passes_turn_on(&limiter), "this one does");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn what_calls_used_after_the_last_turn_is_written_at_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut first, mut second) = (run(folder.path()), run(folder.path()));
    take_turn(&mut first).await;
    let permit = first.limiter.try_acquire(call(&first.limiter, 10)).expect("room");
    let account = first.account.as_mut().expect("shared");
    assert!(!account.passes_turn_on(&first.limiter), "no run waits");
    account.turn = None;
    first.limiter.yield_turn();
    let usage = Some(Cost::request().with(Dimension::Tokens, 60));
    permit.complete(Outcome { usage, ..Outcome::new(Class::Success) });
    first.end().await;
    take_turn(&mut second).await;
    assert!(!second.limiter.admit(&call(&second.limiter, 41)).is_now());
    assert!(second.limiter.admit(&call(&second.limiter, 40)).is_now());
}

#[tokio::test(start_paused = true)]
async fn what_left_before_a_kill_counts_once_and_nothing_else_does() {
    for written_before in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut killed, mut next) = (run(folder.path()), run(folder.path()));
        take_turn(&mut killed).await;
        let sent = |tokens| {
            let permit = killed.limiter.try_acquire(call(&killed.limiter, tokens)).expect("room");
            permit.departs();
            permit
        };
        let mut permits = vec![sent(20)];
        let account = killed.account.as_mut().expect("shared");
        if written_before {
            assert!(account.save(&killed.limiter));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        permits.push(sent(40));
        tokio::time::advance(Duration::from_secs(1)).await;
        // This one has not left.
        permits.push(killed.limiter.try_acquire(call(&killed.limiter, 5)).expect("room"));
        account.turn = None;
        for _ in 0..2 {
            assert!(next.know_earlier_runs(), "its copy in the journal of the job is not used");
            take_turn(&mut next).await;
            assert!(!next.limiter.admit(&call(&next.limiter, 41)).is_now(), "{written_before}");
            assert!(next.limiter.admit(&call(&next.limiter, 40)).is_now(), "{written_before}");
            next.account.as_mut().expect("shared").turn = None;
        }
    }
}

/// As after a reload of `serve`.
#[tokio::test(start_paused = true)]
async fn what_another_noted_before_a_kill_counts_under_the_limits_in_force() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut killed, mut next) = (run(folder.path()), run(folder.path()));
    let quotas = vec![Quota::sliding(Dimension::Tokens, 100, HOUR), Quota::sliding(Dimension::Requests, 3, HOUR)];
    let config = PacerConfig { limits: Limits { quotas, burst: None }, ..PacerConfig::default() };
    next.limiter.reconfigure(config).expect("sensible");
    take_turn(&mut killed).await;
    let sent = || killed.limiter.try_acquire(call(&killed.limiter, 10)).inspect(Permit::departs).expect("room");
    let _first = sent();
    tokio::time::advance(Duration::from_secs(1)).await;
    let _second = sent();
    killed.account.as_mut().expect("shared").turn = None;
    take_turn(&mut next).await;
    let _permit = next.limiter.try_acquire(call(&next.limiter, 10)).expect("the third of three");
    let wait = next.limiter.admit(&call(&next.limiter, 10));
    assert!(matches!(wait, Admit::At { cause: WaitCause::Quota { .. }, .. }), "{wait:?}");
}

/// The kill comes when the counts are written, and the notes that they have are still there.
#[tokio::test(start_paused = true)]
async fn what_is_written_and_noted_at_a_kill_counts_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut killed, mut next) = (run(folder.path()), run(folder.path()));
    take_turn(&mut killed).await;
    let _permit = killed.limiter.try_acquire(call(&killed.limiter, 20)).inspect(Permit::departs).expect("room");
    // What is noted in the millisecond in which the counts are made counts twice.
    let noted = clock::wall();
    while clock::wall() <= noted {
        std::hint::spin_loop();
    }
    let account = killed.account.as_mut().expect("shared");
    account.departed.turn();
    account.note_own(&killed.limiter);
    assert!(account.write(true));
    account.turn = None;
    take_turn(&mut next).await;
    assert!(next.limiter.admit(&call(&next.limiter, 80)).is_now());
    assert!(!next.limiter.admit(&call(&next.limiter, 81)).is_now());
}

/// A call leaves when the counts are made, and before their time is read.
#[tokio::test(start_paused = true)]
async fn what_leaves_while_counts_are_made_counts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut killed, mut next) = (run(folder.path()), run(folder.path()));
    take_turn(&mut killed).await;
    let account = killed.account.as_mut().expect("shared");
    let sent =
        |tokens| killed.limiter.try_acquire(call(&killed.limiter, tokens)).inspect(Permit::departs).expect("room");
    let _first = sent(20);
    account.departed.turn();
    account.note_own(&killed.limiter);
    tokio::time::advance(Duration::from_secs(1)).await;
    let _second = sent(40);
    account.own.as_mut().expect("it has sent").counted.at = clock::wall() + Duration::from_millis(1);
    assert!(account.write(true));
    account.departed.forget();
    account.turn = None;
    take_turn(&mut next).await;
    assert!(!next.limiter.admit(&call(&next.limiter, 41)).is_now());
}

#[tokio::test(start_paused = true)]
async fn a_run_notes_what_leaves_in_its_turn_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = run(folder.path());
    let limiter = run.limiter.clone();
    let files = run.account.as_ref().expect("shared").files.clone();
    let permit = limiter.try_acquire(call(&limiter, 1)).expect("room");
    let noted = || {
        permit.departs();
        let paths = crate::call_notes::FILES.map(|end| files.with_extension(end));
        paths
            .iter()
            .filter_map(|path| std::fs::read_to_string(path).ok())
            .map(|text| text.lines().count())
            .sum::<usize>()
    };
    assert_eq!(noted(), 0, "it has no turn as yet");
    take_turn(&mut run).await;
    assert_eq!(noted(), 1);
    run.end().await;
    assert_eq!(noted(), 0, "the limiter goes on under other limits");
    take_turn(&mut run).await;
    assert_eq!(noted(), 1, "and under these again");
    drop(run);
    assert_eq!(noted(), 1, "what was noted stays");
}

/// A folder in the place of the file that is written.
#[tokio::test(start_paused = true)]
async fn counts_that_cannot_be_written_again_and_again_leave_one_file_for_the_notes_that_follow() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = run(folder.path());
    take_turn(&mut run).await;
    let (limiter, account) = (run.limiter.clone(), run.account.as_mut().expect("shared"));
    let permit = limiter.try_acquire(call(&limiter, 1)).expect("room");
    let new = account.files.with_extension("new");
    std::fs::create_dir(&new).expect("a folder in place of the file");
    let [first, second] = crate::call_notes::FILES.map(|end| account.files.with_extension(end));
    let lines = |path: &Path| std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
    for _ in 0..4 {
        permit.departs();
        account.outdated = true;
        assert!(!account.save(&limiter));
    }
    assert_eq!((lines(&first), lines(&second)), (1, 3));
    std::fs::remove_dir(&new).expect("it is there");
    assert!(account.save(&limiter));
    assert_eq!((lines(&first), lines(&second)), (0, 3), "the counts have them");
    assert!(account.save(&limiter));
    assert_eq!((lines(&first), lines(&second)), (0, 0));
}

fn bucket(limit: u64) -> Quota {
    Quota { shape: QuotaShape::Bucket { burst: 100 }, ..Quota::sliding(Dimension::Tokens, limit, HOUR) }
}

/// It is one level that all runs hand on: what the killed one wrote, the next one has in its own.
#[tokio::test(start_paused = true)]
async fn what_left_before_a_kill_is_taken_from_a_bucket_beside_what_was_written() {
    for (has_run, limit) in [(false, 100), (true, 100), (false, 50)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut killed, mut next) =
            (run_under(folder.path(), vec![bucket(100)]), run_under(folder.path(), vec![bucket(limit)]));
        let sent = |limiter: &Limiter, tokens| {
            let permit = limiter.try_acquire(call(limiter, tokens)).expect("room");
            permit.departs();
            permit
        };
        let mut permits = Vec::new();
        if has_run {
            take_turn(&mut next).await;
            permits.push(sent(&next.limiter, 30));
            next.end().await;
            next.limiter.yield_turn();
            take_turn(&mut killed).await;
        } else {
            take_turn(&mut killed).await;
            permits.push(sent(&killed.limiter, 30));
            assert!(killed.account.as_mut().expect("shared").save(&killed.limiter));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        permits.push(sent(&killed.limiter, 30));
        killed.account.as_mut().expect("shared").turn = None;
        for _ in 0..2 {
            take_turn(&mut next).await;
            assert!(!next.limiter.admit(&call(&next.limiter, 41)).is_now(), "{has_run} {limit}");
            assert!(next.limiter.admit(&call(&next.limiter, 40)).is_now(), "once: {has_run} {limit}");
            next.account.as_mut().expect("shared").turn = None;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_could_not_open_its_files_for_a_while_shares_its_limits_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut first = run(folder.path());
    let (limiter, account) = (first.limiter.clone(), first.account.as_ref().expect("shared"));
    let next = account.files.with_extension(NEXT);
    std::fs::create_dir(&next).expect("a folder in place of the file");
    first.begin();
    let later = async {
        tokio::time::sleep(2 * ALONE).await;
        let permit = limiter.try_acquire(call(&limiter, 60)).expect("it goes on alone");
        permit.complete(Outcome::new(Class::Success));
        std::fs::remove_dir(&next).expect("it is there");
        tokio::time::sleep(3 * ALONE).await;
    };
    tokio::select! {
        () = first.keep() => unreachable!("it goes on for as long as it is polled"),
        () = later => {}
    }
    assert!(first.account.as_ref().expect("shared").turn.is_some(), "it has the turn again");
    first.end().await;
    let mut second = run(folder.path());
    take_turn(&mut second).await;
    assert!(!second.limiter.admit(&call(&second.limiter, 41)).is_now(), "what it sent alone counts");
    assert!(second.limiter.admit(&call(&second.limiter, 40)).is_now());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_has_ended_does_not_wait_for_long() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut first, mut second) = (run(folder.path()), run(folder.path()));
    take_turn(&mut second).await;
    let _permit = first.limiter.try_acquire(call(&first.limiter, 10)).expect("room");
    let began = first.limiter.now();
    first.end().await;
    assert_eq!((first.limiter.now() - began).as_secs(), 1);
}

/// A pipe in the place of the file that is written: to open it waits for one who reads, as a busy disk would.
#[cfg(target_os = "linux")]
#[test]
fn a_write_that_takes_long_holds_up_nothing_else_that_its_thread_serves() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = run(folder.path());
    let pipe = run.account.as_ref().expect("shared").files.with_extension("new");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
    let keeps = threads.spawn(async move { run.keep().await });
    let (tell, told) = std::sync::mpsc::channel();
    // It comes after the first one, for the same thread.
    threads.spawn(async move { tell.send("served") });
    let served = told.recv_timeout(Duration::from_secs(10));
    let written = std::fs::read_to_string(&pipe).expect("what is written");
    assert_eq!(served, Ok("served"), "while the file is written");
    assert!(written.contains("\"turn_of\""), "{written}");
    keeps.abort();
}
