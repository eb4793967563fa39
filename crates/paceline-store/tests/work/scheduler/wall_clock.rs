//! A wall clock that steps, under the scheduler.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;

/// A clock whose wall clock steps by so many milliseconds after that time.
fn stepping(steady: &WorkClock, after: Duration, by_ms: i64) -> WorkClock {
    let (monotonic, wall) = (steady.clone(), steady.clone());
    let shown = move || {
        let passed = wall.wall();
        let step = if passed.saturating_since(START) >= after { by_ms } else { 0 };
        Timestamp::from_millis(passed.as_millis() + step)
    };
    WorkClock::new(move || monotonic.now(), shown)
}

/// An hour back or forward, in the middle of a wait of ten minutes.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_lengthens_no_wait() {
    for (step, earliest) in [(-3_600_000, 600), (3_600_000, 0)] {
        let steady = WorkClock::starting_at(START);
        let stepped = stepping(&steady, S * 300, step);
        let store = Arc::new(MemoryStore::new(stepped.clone()));
        store.insert(vec![item("a")]).await.unwrap();
        let world = World { store, clock: steady, calls: Calls::default() };
        let scheduler = Scheduler::new(world.store.clone(), SchedulerConfig::default(), stepped).unwrap();
        let fails = |task: &Task| {
            if task.attempt() == 1 { Err(unavailable().with_retry_after(S * 600)) } else { Ok(()) }
        };
        let summary = world.run(&scheduler, Duration::ZERO, fails).await;
        assert_eq!(summary.status(), Status::Success);
        let waited = world.times("a")[1] / 1_000;
        assert!((earliest..=600).contains(&waited), "waited {waited} s after a step of {step} ms");
    }
}

/// The same in a file, and in real time, because its store works on a thread of its own. The clock steps while some items
/// wait and others have not begun.
#[tokio::test]
async fn a_step_of_the_wall_clock_lengthens_no_wait_in_a_file() {
    let wait = Duration::from_millis(200);
    for step in [-3_600_000, 3_600_000] {
        let (folder, system, stepped) = (folder(), WorkClock::system(), Arc::new(AtomicI64::new(0)));
        let clock = {
            let (monotonic, wall, stepped) = (system.clone(), system.clone(), stepped.clone());
            let shown = move || wall.wall().as_millis() + stepped.load(Ordering::SeqCst);
            WorkClock::new(move || monotonic.now(), move || Timestamp::from_millis(shown()))
        };
        let store = Arc::new(SqliteStore::open(folder.path().join("work.db"), clock.clone()).unwrap());
        store.insert(numbered(20)).await.unwrap();
        let config = SchedulerConfig { max_wait: S * 60, concurrency: 4, ..SchedulerConfig::default() };
        let backoff = Backoff { growth: Growth::Constant { delay: wait }, jitter: Jitter::None };
        let scheduler = Scheduler::new(store, SchedulerConfig { backoff, ..config }, clock).unwrap();
        let calls = Arc::new(Mutex::new(BTreeMap::<String, Vec<_>>::new()));
        let (heard, now) = (calls.clone(), system.clone());
        let summary = scheduler.run(move |task| {
            let mut calls = heard.lock().unwrap();
            calls.entry(task.key().to_owned()).or_default().push(now.now());
            if calls.len() == 10 {
                stepped.store(step, Ordering::SeqCst);
            }
            let answer = once(|_| true)(&task);
            async move { answer }
        });
        let summary = summary.await.unwrap();
        assert_eq!((summary.ended, summary.status(), summary.calls), (EndReason::Done, Status::Success, 40));
        let is_early = |times: &&Vec<paceline_core::Instant>| times[1] - times[0] < wait;
        let early = calls.lock().unwrap().values().filter(is_early).count();
        assert!(step > 0 || early == 0, "{early} were early after a step back");
    }
}

/// The clock leaps over the lease, and another worker notices, between a failure that is left to the next run and the next
/// item.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_begins_no_new_run() {
    let steady = WorkClock::starting_at(START);
    let stepped = stepping(&steady, S * 5, 3_600_000);
    let store = Arc::new(MemoryStore::new(stepped.clone()));
    store.insert(vec![item("bad"), NewItem { not_before: Some(START + S * 30), ..item("later") }]).await.unwrap();
    let other = store.register("other", S * 86_400).await.unwrap();
    let world = World { store: store.clone(), clock: steady, calls: Calls::default() };
    let config = SchedulerConfig { max_retries: 0, over_bound: OverBound::NextRun, ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(store.clone(), config, stepped).unwrap();
    let work = world.work(S, |task| if task.key() == "bad" { Err(unavailable()) } else { Ok(()) });
    let reaper = async {
        tokio::time::sleep(S * 6).await;
        store.heartbeat(other).await.unwrap()
    };
    let (summary, _) = tokio::join!(scheduler.run(work), reaper);
    let summary = summary.unwrap();
    assert_eq!(
        world.calls_per_item().into_values().collect::<Vec<_>>(),
        [1, 1],
        "what is left to the next run stays there"
    );
    assert_eq!((summary.counts.of(State::Deferred), summary.counts.of(State::Succeeded)), (1, 1));
}

/// The clock leaps over the deadline while an item waits, or no worker is at work until then: it is called once more.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_while_no_one_looks_leaves_one_call() {
    const DAY: Duration = Duration::from_secs(86_400);
    let config = SchedulerConfig { deadline: 3 * DAY, max_wait: S * 3_600, ..SchedulerConfig::default() };
    for (leaps, works_again) in [(true, true), (true, false), (false, true), (false, false)] {
        let steady = WorkClock::starting_at(START);
        let leap = if leaps { 4 * 86_400_000 } else { 0 };
        let clock = stepping(&steady, S * 300, leap);
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(vec![item("a")]).await.unwrap();
        let world = World { store, clock: steady, calls: Calls::default() };
        let fails = |task: &Task| match task.attempt() {
            1 => Err(unavailable().with_retry_after(S * if leaps { 600 } else { 7_200 })),
            _ if works_again => Ok(()),
            _ => Err(unavailable()),
        };
        let scheduler = || Scheduler::new(world.store.clone(), config.clone(), clock.clone()).unwrap();
        world.run(&scheduler(), Duration::ZERO, fails).await;
        if !leaps {
            assert_eq!(world.times("a"), [0], "it waits for longer than a run does");
            tokio::time::sleep(4 * DAY).await;
            world.run(&scheduler(), Duration::ZERO, fails).await;
        }
        assert_eq!(world.times("a").len(), 2, "leaps: {leaps}");
        let ended = if works_again { (State::Succeeded, None) } else { (State::Failed, Some("deadline".to_owned())) };
        assert_eq!(world.state("a").await, ended, "leaps: {leaps}");
    }
}
