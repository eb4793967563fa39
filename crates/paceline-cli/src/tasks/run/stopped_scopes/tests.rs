use paceline::PacerConfig;
use paceline_core::PauseCause;
use paceline_core::retry::Counted;
use paceline_store::work::{ClaimOutcome, ClaimRequest, MemoryStore, NewItem, State, Transition};

use super::*;

/// When the store hands items out. A person sends for them earlier, or later.
const HANDED_OUT: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// The item, which a person has sent for after so many seconds.
fn sent_for(item: &WorkItem, after: u64) -> WorkItem {
    WorkItem { sent_for: Some(HANDED_OUT + Duration::from_secs(after)), ..item.clone() }
}

#[tokio::test]
async fn a_person_opens_the_scope_of_the_item_that_is_sent_for_and_no_other() {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(["a", "b"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
    let items = store.list(Default::default(), 0, 2).await.expect("a memory");
    let stopped = StoppedScopes::default();
    let keeps_back = |item: &WorkItem, scope: &str| stopped.keeps_back(item, HANDED_OUT, scope, || {}).is_some();
    ["one", "two"].into_iter().for_each(|scope| stopped.stop(scope, Why::Account, "no"));
    assert!(keeps_back(&items[0], "one") && keeps_back(&items[1], "two"));
    assert!(!keeps_back(&sent_for(&items[0], 1), "one") && !keeps_back(&items[1], "one"), "open for all of it");
    assert!(stopped.describe().is_some_and(|words| words == "two is stopped: no"));
    assert!(!keeps_back(&sent_for(&items[1], 1), "two"), "sent for, too");
    assert_eq!((stopped.describe(), stopped.why()), (None, None));
    stopped.stop("one", Why::SameFailure, "no");
    stopped.leaves("a", "one");
    assert!(keeps_back(&sent_for(&items[0], 0), "one"), "sent for before that");
    assert!(!keeps_back(&sent_for(&items[0], 1), "one"), "its failure was one of those that stopped the scope");
}

/// A person sends for one of three items of a host that was stopped. While it goes on refusing it is stopped by that one call;
/// once it takes the call the others go on, too.
#[tokio::test]
async fn a_scope_that_is_open_again_takes_all_its_items_up() {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(["a", "b", "c"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
    let items = store.list(Default::default(), 0, 3).await.expect("a memory");
    let stopped = StoppedScopes(Arc::new(Mutex::new(Stopped { restops: true, stays: true, ..Stopped::default() })));
    stopped.stop("gone", Why::SameFailure, "it is gone");
    let keeps_back = |item: &WorkItem| stopped.keeps_back(item, HANDED_OUT, "gone", || {});
    assert!(items.iter().all(|item| keeps_back(item) == Some(Why::SameFailure)));
    store.amend(Default::default(), Amend::LeaveToNextRun).await.expect("a memory");
    let states = async || {
        stopped.take_up(&store).await.expect("a memory");
        let items = store.list(Default::default(), 0, 3).await.expect("a memory");
        items.into_iter().map(|item| (item.state, item.was_left_to_a_run())).collect::<Vec<_>>()
    };
    for (end, others) in [(Class::Invalid, (State::Deferred, false)), (Class::Success, (State::Waiting, true))] {
        store.amend(Filter::keys(["a"]), Amend::Retry).await.expect("a memory");
        assert_eq!(keeps_back(&sent_for(&items[0], 1)), None, "it was sent for");
        assert_eq!(stopped.heard("gone", end, false), end == Class::Invalid);
        stopped.leaves("a", "gone");
        assert_eq!(states().await, [(State::Waiting, false), others, others], "{end}");
        assert_eq!(stopped.why().is_some(), end == Class::Invalid);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_left_and_is_over_its_deadline_comes_up_in_a_worker_that_stays() {
    let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
    let store = MemoryStore::new(clock);
    let own = NewItem { deadline: Some(Duration::from_secs(900)), ..NewItem::new("own", "1") };
    store.insert(vec![NewItem::new("late", "1"), own, NewItem::new("new", "1")]).await.expect("room");
    let worker = store.register("w", Duration::from_secs(30)).await.expect("a memory");
    let ask = ClaimRequest { limit: 2, ahead: Duration::ZERO };
    for claimed in store.claim(worker, ask).await.expect("a memory").items {
        let failed =
            ClaimOutcome { counted: Counted::Attempt, next: Transition::Failed, ..ClaimOutcome::back(&claimed) };
        store.record(vec![failed], Vec::new()).await.expect("a memory");
    }
    store.amend(Default::default(), Amend::LeaveToNextRun).await.expect("a memory");
    let waiting = async |after: u64| {
        tokio::time::sleep(Duration::from_secs(after)).await;
        end_late(&store, Duration::from_secs(600)).await.expect("a memory");
        let items = store.list(Filter::states([State::Waiting]), 0, 9).await.expect("a memory");
        items.into_iter().map(|item| item.key).collect::<Vec<_>>()
    };
    assert_eq!(waiting(590).await, [""; 0]);
    assert_eq!(waiting(20).await, ["late"]);
    assert_eq!(waiting(9_000).await, ["late", "own"], "what was never tried has no end");
}

/// A pause of a day, and a worker that is begun anew in it.
#[tokio::test]
async fn a_hold_of_a_former_run_is_told_of_until_a_call_succeeds() {
    let (store, clock) = (MemoryStore::new(WorkClock::system()), WorkClock::system());
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let until_ms = Some((clock.wall() + Duration::from_secs(86_400)).as_millis());
    let hold = ClosedScope { name: "a".to_owned(), until_ms, reason: "a pause".to_owned(), ..ClosedScope::default() };
    closed_scopes::replace(&store, None, &closed_scopes::encode(vec![hold])).await.expect("a memory");
    let stopped = StoppedScopes::new(true);
    stopped.begin_run(&store, &limiter, true).await.expect("a memory");
    let kept = async || {
        stopped.save(&store, &limiter).await.expect("a memory");
        ClosedScopes::of(&store).await.expect("a memory").lines().len()
    };
    assert_eq!(kept().await, 1);
    assert!(!stopped.heard("a", Class::Throttled, false));
    assert_eq!(kept().await, 1);
    assert!(!stopped.heard("a", Class::Success, false));
    assert_eq!(kept().await, 0);
}

#[tokio::test]
async fn a_scope_whose_calls_fail_is_told_of_and_not_stopped_by_the_next_run() {
    let store = MemoryStore::new(WorkClock::system());
    let limiter = Limiter::new(PacerConfig { pace: paceline::Pace::None, ..PacerConfig::default() }).expect("sensible");
    for item in 0..30 {
        let request = paceline::Request::new(limiter.scope("down"), paceline::Cost::request());
        if let Ok(permit) = limiter.try_acquire(paceline::Request { item: Some(item), ..request }) {
            let _ = permit.complete(paceline::Outcome::new(Class::Transient));
        }
    }
    let stopped = StoppedScopes::new(true);
    stopped.save(&store, &limiter).await.expect("a memory");
    let kept = ClosedScopes::of(&store).await.expect("a memory");
    assert_eq!(kept.json()[0]["state"], "failing");
    assert_eq!(kept.into_stopped().count(), 0);
}

#[tokio::test]
async fn a_scope_is_told_of_once_and_keeps_its_reason() {
    let store = MemoryStore::new(WorkClock::system());
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let stopped = StoppedScopes::default();
    stopped.stop("gone", Why::SameFailure, "it is gone");
    let all = SameFailure {
        which: "first",
        items: 20,
        held: 0,
        advice: "see to it".to_owned(),
        message: "all of the run failed".to_owned(),
    };
    stopped.note_alike(["gone", "other"].map(|name| (name.into(), all.clone())));
    stopped.save(&store, &limiter).await.expect("a memory");
    let kept = ClosedScopes::of(&store).await.expect("a memory");
    let reasons: Vec<_> = kept.into_stopped().map(|(_, scope)| format!("{}: {}", scope.name, scope.reason)).collect();
    assert_eq!(
        reasons,
        [
            "gone: it is gone",
            "other: the first 20 items all failed the same way, and wait (none is marked as failed): all of the run failed"
        ]
    );
}

/// Another worker begins a run, which wakes all that was left to one.
#[tokio::test]
async fn what_another_worker_woke_opens_no_scope_of_this_one() {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(vec![NewItem::new("a", "1")]).await.expect("room");
    let item = async || store.list(Default::default(), 0, 1).await.expect("a memory").remove(0);
    let stopped = StoppedScopes::default();
    stopped.stop("one", Why::SameFailure, "no");
    let keeps_back = |item: &WorkItem| stopped.keeps_back(item, HANDED_OUT, "one", || {}).is_some();
    assert!(keeps_back(&item().await), "it is left to the next run");
    let leave = || store.amend(Default::default(), Amend::LeaveToNextRun);
    leave().await.expect("a memory");
    for _ in 0..2 {
        store.register("another", Duration::from_secs(30)).await.expect("a memory");
        assert!(keeps_back(&item().await), "no person has sent for it");
        leave().await.expect("a memory");
    }
    store.amend(Default::default(), Amend::Retry).await.expect("a memory");
    assert!(!keeps_back(&item().await), "a person has");
}

/// A run, and the one that comes after it: of what the first stopped, one refusal is enough for the second.
#[tokio::test]
async fn what_a_run_stopped_is_tested_by_the_next_and_stopped_again_by_one_refusal() {
    let clock = WorkClock::system();
    let store = MemoryStore::new(clock.clone());
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let stopped = StoppedScopes::default();
    let next_run = async |restops| stopped.begin_run(&store, &limiter, restops).await.expect("a memory");
    next_run(true).await;
    assert!(!stopped.heard("gone", Class::Invalid, false), "of that scope nothing is known");
    stopped.stop("gone", Why::SameFailure, "it is gone");
    stopped.stop("unpaid", Why::Account, "no credit");
    for end in [Class::Invalid, Class::Transient] {
        stopped.save(&store, &limiter).await.expect("a memory");
        next_run(true).await;
        let request = || paceline::Request::new(limiter.scope("gone"), paceline::Cost::request());
        let test = limiter.try_acquire(request()).expect("one call tests it");
        assert!(limiter.try_acquire(request()).is_err(), "and one alone");
        drop(test);
        assert_eq!(stopped.heard("gone", end, false), end == Class::Invalid);
        assert_eq!(stopped.why(), (end == Class::Invalid).then_some(Why::SameFailure));
    }
    assert!(!stopped.heard("unpaid", Class::Invalid, false), "it has credit again");
    stopped.save(&store, &limiter).await.expect("a memory");
    next_run(false).await;
    assert!(!stopped.heard("gone", Class::Invalid, false), "as the user said");
    stopped.save(&store, &limiter).await.expect("a memory");
    assert_eq!(ClosedScopes::of(&store).await.expect("a memory"), ClosedScopes::default());
}

/// A `Retry-After` of a day, in a worker that stays.
#[tokio::test]
async fn a_person_opens_a_scope_that_its_server_holds() {
    let (store, clock) = (MemoryStore::new(WorkClock::system()), WorkClock::system());
    let later = Some(clock.wall() + Duration::from_secs(86_400));
    let due = |key: &str, group: &str| NewItem { group: group.to_owned(), not_before: later, ..NewItem::new(key, "1") };
    store.insert(vec![due("a", "acme"), due("b", "zeta")]).await.expect("room");
    let limiter = Limiter::new(PacerConfig { pace: paceline::Pace::None, ..PacerConfig::default() }).expect("sensible");
    let stopped = StoppedScopes::new(true);
    stopped.begin_run(&store, &limiter, true).await.expect("a memory");
    let request = || paceline::Request::new(limiter.scope("held"), paceline::Cost::request());
    let day = Duration::from_secs(86_400);
    let permit = limiter.try_acquire(request()).expect("nothing holds it");
    let _ = permit.complete(
        paceline::Outcome::new(Class::Throttled).with_hint(day, true).with_reach(paceline_core::LimitScope::Scope),
    );
    let waits = || match limiter.admit(&request()) {
        paceline::Admit::At { at, .. } => at.saturating_since(limiter.now()),
        _ => Duration::ZERO,
    };
    assert!(waits() > day / 2);
    let acme = Filter { group: Some("acme".to_owned()), ..Filter::default() };
    opened::open(&store, &["held".to_owned()], &acme).await.expect("a memory");
    for _ in 0..2 {
        stopped.open_as_told(&store, &limiter).await.expect("a memory");
    }
    assert!(waits() < Duration::from_secs(60), "{:?}", waits());
    let first = limiter.try_acquire(request()).expect("it is open");
    assert!(limiter.try_acquire(request()).is_err(), "one call tests whether the server takes any");
    first.withdraw();
    let items = store.list(Filter::default(), 0, 9).await.expect("a memory");
    assert_eq!(items.iter().map(|item| item.not_before).collect::<Vec<_>>(), [None, later], "those that were meant");
}

/// `retry --group` of a host that goes on refusing: one call, and another only where a person sends for an item again.
#[tokio::test]
async fn what_was_sent_for_together_is_tested_by_one_call() {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(["a", "b", "c", "d"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
    let items = store.list(Default::default(), 0, 4).await.expect("a memory");
    for why in [Why::SameFailure, Why::Account] {
        let stopped = StoppedScopes(Arc::new(Mutex::new(Stopped { restops: true, stays: true, ..Stopped::default() })));
        stopped.stop("gone", why, "it is gone");
        let tests = |item: &WorkItem, handed_out: u64| {
            stopped.keeps_back(item, HANDED_OUT + Duration::from_secs(handed_out), "gone", || {}).is_none()
        };
        let fails = |item: usize| {
            if !stopped.heard("gone", if why == Why::Account { Class::Account } else { Class::Invalid }, false) {
                stopped.stop("gone", why, "it is gone");
            }
            stopped.leaves(&items[item].key, "gone");
        };
        assert!(items.iter().all(|item| !tests(item, 0)));
        assert!(tests(&sent_for(&items[0], 10), 11));
        fails(0);
        assert!([1, 2].into_iter().all(|n| !tests(&sent_for(&items[n], 10), 12)), "sent for with the first");
        assert!(tests(&sent_for(&items[3], 20), 21), "sent for afterwards");
        fails(3);
        assert!(tests(&sent_for(&items[0], 30), 31), "sent for once more");
    }
}

/// Two workers on machines whose clocks differ by hours: what a host asked for is counted by the clock of the store.
#[tokio::test]
async fn a_hold_of_one_worker_lasts_as_long_for_another_by_the_clock_of_the_store() {
    let store = MemoryStore::new(WorkClock::starting_at(Timestamp::from_millis(1_000_000)));
    let [one, two] =
        [(); 2].map(|()| (StoppedScopes::new(true), Limiter::new(PacerConfig::default()).expect("sensible")));
    for (worker, limiter) in [&one, &two] {
        worker.begin_run(&store, limiter, true).await.expect("a memory");
    }
    let request = |limiter: &Limiter| paceline::Request::new(limiter.scope("held"), paceline::Cost::request());
    let permit = one.1.try_acquire(request(&one.1)).expect("nothing holds it");
    let (pause, throttled) = (Duration::from_secs(20), paceline::Outcome::new(Class::Throttled));
    let _ = permit.complete(throttled.with_hint(pause, true).with_reach(paceline_core::LimitScope::Scope));
    for (worker, limiter) in [&one, &two] {
        worker.save(&store, limiter).await.expect("a memory");
    }
    let kept = ClosedScopes::of(&store).await.expect("a memory");
    let (until, noted) = (kept.0[0].until_ms.expect("a hold"), kept.0[0].noted_ms.expect("noted"));
    assert!((1_000_000..1_060_000).contains(&noted), "{noted}");
    assert!((19_000..=22_000).contains(&(until - noted)), "{until} {noted}");
    let later = |limiter: &Limiter| match limiter.admit(&request(limiter)) {
        paceline::Admit::At { at, .. } => at.saturating_since(limiter.now()),
        _ => Duration::ZERO,
    };
    assert!(later(&two.1) > Duration::from_secs(2), "{:?}", later(&two.1));
}

/// Two workers: the second one calls no host that the first one has stopped, or was told to leave alone, until one of them finds
/// it open.
#[tokio::test]
async fn what_one_worker_has_stopped_the_others_do_not_call_until_one_finds_it_open() {
    let (store, clock) = (MemoryStore::new(WorkClock::system()), WorkClock::system());
    store.insert(["a", "b"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
    let items = store.list(Default::default(), 0, 2).await.expect("a memory");
    let [one, two] =
        [(); 2].map(|()| (StoppedScopes::new(true), Limiter::new(PacerConfig::default()).expect("sensible")));
    for (worker, limiter) in [&one, &two] {
        worker.begin_run(&store, limiter, true).await.expect("a memory");
    }
    let saves = async || {
        for (worker, limiter) in [&one, &two, &one, &two] {
            worker.save(&store, limiter).await.expect("a memory");
        }
    };
    let keeps_back = |(worker, _): &(StoppedScopes, _), item: &WorkItem| {
        let mut reopened = false;
        (worker.keeps_back(item, HANDED_OUT, "gone", || reopened = true), reopened)
    };
    let stopped = (Some(Why::SameFailure), false);
    for finder in [&one, &two] {
        one.0.stop("gone", Why::SameFailure, "it is gone");
        saves().await;
        assert_eq!([&one, &two].map(|worker| keeps_back(worker, &items[0])), [stopped; 2]);
        // A person sends for an item, which either worker may get.
        assert_eq!(keeps_back(finder, &sent_for(&items[1], 1)), (None, true));
        assert!(!finder.0.heard("gone", Class::Success, false));
        saves().await;
        let other = if std::ptr::eq(finder, &one) { &two } else { &one };
        assert_eq!(keeps_back(other, &items[0]), (None, true), "the first item after that is told so");
        assert_eq!([&one, &two].map(|worker| keeps_back(worker, &items[0])), [(None, false); 2]);
        assert_eq!(other.0.lock().take_up.iter().collect::<Vec<_>>(), ["a"], "and what was left goes on");
        assert_eq!(ClosedScopes::of(&store).await.expect("a memory"), ClosedScopes::default());
        one.0.lock().take_up.clear();
        two.0.lock().take_up.clear();
    }
    let day = clock.wall() + Duration::from_secs(86_400);
    let cause = PauseCause::Throttled { asked: true };
    one.1.hold_for(Some(&one.1.scope("held")), one.1.now() + Duration::from_secs(86_400), cause);
    saves().await;
    let request = paceline::Request::new(two.1.scope("held"), paceline::Cost::request());
    let paceline::Admit::At { at, .. } = two.1.admit(&request) else { panic!("it is held") };
    let left = clock.wall() + at.saturating_since(two.1.now());
    assert!(day.saturating_since(left) < Duration::from_secs(2), "{left} for {day}");
    opened::open(&store, &["held".to_owned()], &Filter::default()).await.expect("a memory");
    for (worker, limiter) in [&two, &one] {
        worker.open_as_told(&store, limiter).await.expect("a memory");
        worker.save(&store, limiter).await.expect("a memory");
    }
    saves().await;
    assert!(two.1.try_acquire(request).is_ok(), "a person has opened it");
}

/// `retry` of an item whose host is mended: the worker that gets it first lets others test the host, and the other worker does.
#[tokio::test]
async fn what_another_worker_has_found_open_is_open_also_for_one_that_was_to_test_it() {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(["a", "b"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
    let items = store.list(Default::default(), 0, 2).await.expect("a memory");
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let [one, two] = [(); 2].map(|()| StoppedScopes::new(true));
    let saves = async || {
        for worker in [&one, &two, &one, &two] {
            worker.save(&store, &limiter).await.expect("a memory");
        }
    };
    for (first, finder) in [(&one, &two), (&two, &one)] {
        one.stop("gone", Why::SameFailure, "it is gone");
        saves().await;
        for worker in [&one, &two] {
            assert!(worker.keeps_back(&items[0], HANDED_OUT, "gone", || {}).is_some());
        }
        assert!(first.keeps_back(&sent_for(&items[1], 1), HANDED_OUT, "gone", || {}).is_none(), "it waits for a test");
        saves().await;
        assert!(finder.keeps_back(&sent_for(&items[1], 1), HANDED_OUT, "gone", || {}).is_none(), "it tests");
        assert!(!finder.heard("gone", Class::Success, false));
        saves().await;
        assert_eq!(ClosedScopes::of(&store).await.expect("a memory"), ClosedScopes::default());
        for worker in [&one, &two] {
            assert!(worker.keeps_back(&items[0], HANDED_OUT, "gone", || {}).is_none());
            assert!(worker.lock().take_up.contains("a"), "what was left goes on");
            worker.lock().take_up.clear();
        }
    }
}

/// Each worker of a store tells of what it has stopped; and of a hold that two know the later end counts.
#[tokio::test]
async fn what_several_workers_have_stopped_is_kept_of_all() {
    let (store, clock) = (MemoryStore::new(WorkClock::system()), WorkClock::system());
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let [one, two] = [(); 2].map(|()| StoppedScopes::new(true));
    for worker in [&one, &two] {
        worker.begin_run(&store, &limiter, true).await.expect("a memory");
    }
    let save = async |worker: &StoppedScopes| worker.save(&store, &limiter).await.expect("a memory");
    let kept = async || {
        let kept = ClosedScopes::of(&store).await.expect("a memory");
        kept.0.into_iter().map(|scope| (scope.name, scope.until_ms)).collect::<BTreeMap<_, _>>()
    };
    let hold = |worker: &StoppedScopes, days: u64| {
        let until_ms = Some((clock.wall() + Duration::from_secs(days * 86_400)).as_millis());
        let scope = ClosedScope { name: "held".to_owned(), until_ms, ..ClosedScope::default() };
        worker.lock().held_before.insert("held".to_owned(), scope);
        until_ms
    };
    one.stop("a", Why::SameFailure, "it is gone");
    two.stop("b", Why::SameFailure, "it is gone");
    let (sooner, later) = (hold(&one, 1), hold(&two, 2));
    for _ in 0..2 {
        save(&one).await;
        save(&two).await;
    }
    assert_eq!(kept().await, [("a".to_owned(), None), ("b".to_owned(), None), ("held".to_owned(), later)].into());
    assert!(!one.heard("b", Class::Success, false) && !two.heard("held", Class::Success, false));
    for worker in [&one, &two, &one] {
        save(worker).await;
    }
    assert_eq!(kept().await, [("a".to_owned(), None), ("held".to_owned(), sooner)].into());
    one.lock().scopes.clear();
    assert!(!two.heard("a", Class::Success, false));
    save(&two).await;
    assert_eq!(kept().await.into_keys().collect::<Vec<_>>(), ["held"], "another worker has found it open");
}

/// The items of these keys.
async fn items(keys: &[&str]) -> Vec<WorkItem> {
    let store = MemoryStore::new(WorkClock::system());
    store.insert(keys.iter().map(|key| NewItem::new(*key, "1")).collect()).await.expect("room");
    store.list(Default::default(), 0, keys.len()).await.expect("a memory")
}

/// Each start tests what was stopped with another item, and first with one that was not refused, of another address.
#[tokio::test]
async fn what_was_refused_tests_a_scope_after_the_others() {
    let items = items(&["new", "other", "refused", "last"]).await;
    let refused = |item: &WorkItem| WorkItem { last: Some(Failure::new(Class::Invalid, "no")), ..item.clone() };
    let (new, other, before, last) = (&items[0], &items[1], &refused(&items[2]), &refused(&items[3]));
    let stopped = StoppedScopes::default();
    let refusals = Refusals { address: Some("a".to_owned()), last: Some("last".to_owned()), ..Refusals::default() };
    let stop = Stop::new(Why::SameFailure, "it is gone".to_owned(), None, HANDED_OUT);
    stopped.lock().suspects.insert("gone".into(), Stop { refusals, ..stop });
    let waits =
        |item: &WorkItem, address: &str| stopped.test("gone", item, address).err().and_then(|later| later.after);
    let order = [waits(new, "b"), waits(other, "a"), waits(before, "b"), waits(last, "b")];
    assert!(order.is_sorted_by(|one, next| one < next) && order[0].is_none(), "{order:?}");
    assert_eq!(waits(last, "b"), None, "once in a run");
    stopped.test("gone", new, "b").expect("none is under way").expect("a test").leaves();
    assert_eq!(stopped.lock().suspects["gone"].refusals.last.as_deref(), Some("new"));
}

/// Its items are handed out meanwhile, and answers that are late open no gate.
#[tokio::test]
async fn a_scope_that_was_stopped_is_tested_by_one_call_at_a_time_until_one_shows_what_it_does() {
    let stopped = StoppedScopes(Arc::new(Mutex::new(Stopped { restops: true, ..Stopped::default() })));
    let stop = Stop::new(Why::SameFailure, "it is gone".to_owned(), None, HANDED_OUT);
    stopped.lock().suspects.insert("gone".into(), stop);
    let item = items(&["a"]).await.remove(0);
    let test_of = |scope: &str| stopped.test(scope, &item, "");
    for end in [Class::Transient, Class::Invalid] {
        let test = test_of("gone").expect("none is under way");
        assert!(test.is_some() && test_of("gone").is_err() && test_of("other").is_ok());
        assert_eq!(stopped.heard("gone", end, false), end == Class::Invalid);
        drop(test);
    }
    assert_eq!(stopped.why(), Some(Why::SameFailure));
    assert!(stopped.heard("gone", Class::Invalid, false), "one that was under way when it was stopped is left, too");
}

/// Another worker may begin in the next moment, and read them before its first call.
#[tokio::test(start_paused = true)]
async fn the_store_knows_of_a_stop_before_long_however_busy_it_was() {
    let clock = WorkClock::starting_at(paceline::clock::wall());
    let (store, limiter) = (MemoryStore::new(clock.clone()), Limiter::new(PacerConfig::default()).expect("sensible"));
    let stopped = StoppedScopes::new(true);
    stopped.begin_run(&store, &limiter, true).await.expect("a memory");
    let is_told = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        stopped.stop("gone", Why::SameFailure, "it is gone");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let kept = ClosedScopes::of(&store).await.expect("a memory");
        assert_eq!(kept.names().collect::<Vec<_>>(), ["gone"]);
    };
    tokio::select! {
        () = is_told => {}
        () = stopped.save_regularly(&store, &clock, &limiter, Duration::ZERO) => unreachable!("it goes on"),
    }
}
