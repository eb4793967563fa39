//! The scheduler in virtual time: Tokio's clock stands still while anything is to be done, and leaps to the next timer.

mod fallback;
mod wall_clock;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::{Backoff, Class, Growth, Jitter, Timestamp};
use paceline_store::work::{
    Amend, Case, EndReason, Failure, Filter, Idle, Judge, JudgeFuture, Judgement, MemoryStore, NewItem, OverBound,
    Scheduler, SchedulerConfig, SchedulerEvent, SqliteStore, State, Status, Summary, Task, WorkClock, WorkStore,
};

use crate::support::{S, START, folder, item, of_group};

/// A store in virtual time, and every call that was made: which item, and when.
#[derive(Clone)]
struct World {
    store: Arc<MemoryStore>,
    clock: WorkClock,
    calls: Calls,
}

type Calls = Arc<Mutex<Vec<(String, Duration)>>>;

impl World {
    async fn of(items: impl IntoIterator<Item = NewItem>) -> Self {
        let clock = WorkClock::starting_at(START);
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(items.into_iter().collect()).await.unwrap();
        Self { store, clock, calls: Calls::default() }
    }

    fn scheduler(&self, config: SchedulerConfig) -> Scheduler {
        Scheduler::new(self.store.clone(), config, self.clock.clone()).unwrap()
    }

    fn passed(&self) -> Duration {
        self.clock.wall().saturating_since(START)
    }

    /// Runs work that takes `takes` and ends as `answer` says.
    async fn run(
        &self,
        scheduler: &Scheduler,
        takes: Duration,
        answer: impl Fn(&Task) -> Result<(), Failure>,
    ) -> Summary {
        scheduler.run(self.work(takes, answer)).await.unwrap()
    }

    fn work(
        &self,
        takes: Duration,
        answer: impl Fn(&Task) -> Result<(), Failure>,
    ) -> impl Fn(Task) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let world = self.clone();
        move |task| {
            world.calls.lock().unwrap().push((task.key().to_owned(), world.passed()));
            let answer = answer(&task);
            Box::pin(async move {
                tokio::time::sleep(takes).await;
                answer
            })
        }
    }

    /// When each call of an item was made, in whole milliseconds.
    fn times(&self, key: &str) -> Vec<u128> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(called, _)| called == key).map(|(_, at)| at.as_millis()).collect()
    }

    fn calls_per_item(&self) -> BTreeMap<String, usize> {
        let mut per_item = BTreeMap::new();
        for (key, _) in self.calls.lock().unwrap().iter() {
            *per_item.entry(key.clone()).or_default() += 1;
        }
        per_item
    }

    async fn state(&self, key: &str) -> (State, Option<String>) {
        let item = self.store.show(key).await.unwrap().unwrap().0;
        (item.state, item.reason)
    }
}

fn unavailable() -> Failure {
    Failure::new(Class::Overloaded, "no capacity").with_status(503)
}

fn numbered(count: usize) -> Vec<NewItem> {
    (0..count).map(|n| item(&format!("item-{n}"))).collect()
}

/// Fails the first call of items for which `fails` holds.
fn once(fails: impl Fn(&Task) -> bool) -> impl Fn(&Task) -> Result<(), Failure> {
    move |task| if task.attempt() == 1 && fails(task) { Err(unavailable()) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_three_fails_once_and_all_succeed() {
    let world = World::of(numbered(3)).await;
    let summary = world.run(&world.scheduler(SchedulerConfig::default()), S, once(|task| task.key() == "item-0")).await;
    assert_eq!((summary.status(), summary.ended), (Status::Success, EndReason::Done));
    assert_eq!((summary.calls, summary.resends), (4, 1));
    let calls = world.calls_per_item();
    assert_eq!(calls.into_values().collect::<Vec<_>>(), [2, 1, 1]);
    assert_eq!(world.times("item-0"), [0, 6_000], "5 s after the failure, which took 1 s");
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_sent_once_more_than_its_retries() {
    for max_retries in [0, 1, 2, 3, 10] {
        let world = World::of(numbered(3)).await;
        let config = SchedulerConfig { max_retries, ..SchedulerConfig::default() };
        let broken = |task: &Task| if task.key() == "item-1" { Err(unavailable()) } else { Ok(()) };
        let summary = world.run(&world.scheduler(config), S, broken).await;
        assert_eq!(world.times("item-1").len(), max_retries as usize + 1);
        assert_eq!(summary.status(), Status::Partial);
        assert_eq!((summary.counts.of(State::Failed), summary.counts.of(State::Succeeded)), (1, 2));
        assert_eq!(world.state("item-1").await, (State::Failed, Some("max_retries".to_owned())));
    }
}

#[tokio::test(start_paused = true)]
async fn healthy_items_all_succeed() {
    for count in [0, 1, 3, 25, 1_000] {
        let world = World::of(numbered(count)).await;
        let summary = world.run(&world.scheduler(SchedulerConfig::default()), S, |_| Ok(())).await;
        assert_eq!(summary.status(), Status::Success);
        assert_eq!((summary.calls, world.calls_per_item().len()), (count as u64, count));
        assert_eq!(world.passed(), S * count.div_ceil(10) as u32, "always ten at a time");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_blocks_no_other_item() {
    let world = World::of(numbered(100)).await;
    let backoff = Backoff { growth: Growth::Constant { delay: S * 60 }, jitter: Jitter::None };
    let config = SchedulerConfig { backoff, concurrency: 1, ..SchedulerConfig::default() };
    let tenth = |task: &Task| task.key().ends_with('5');
    let summary = world.run(&world.scheduler(config), Duration::from_millis(100), once(tenth)).await;
    assert_eq!((summary.status(), summary.calls), (Status::Success, 110));
    let calls = world.calls.lock().unwrap();
    let gaps: Vec<_> = calls.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let first_retry = calls.iter().position(|(_, at)| *at >= S * 60).unwrap();
    assert_eq!(first_retry, 100, "all others are done before the first retry is due");
    assert!(gaps[..99].iter().all(|gap| *gap == Duration::from_millis(100)), "one after the other, without a pause");
    assert_eq!(calls[100].1, Duration::from_millis(600) + S * 60);
}

#[tokio::test(start_paused = true)]
async fn the_delay_belongs_to_the_item() {
    let world = World::of([item("a")]).await;
    let config = SchedulerConfig { max_retries: 8, idle: Idle::Stay, ..SchedulerConfig::default() };
    let scheduler = world.scheduler(config);
    let late = async {
        tokio::time::sleep(S * 100).await;
        world.store.insert(vec![item("b")]).await.unwrap();
        tokio::time::sleep(S * 1_400).await;
    };
    let work = world.work(Duration::ZERO, |task| if task.attempt() < 9 { Err(unavailable()) } else { Ok(()) });
    let summary = scheduler.run_until(work, late).await.unwrap();
    assert_eq!((summary.ended, summary.status()), (EndReason::Interrupted, Status::Success));
    let secs = |key: &str| world.times(key).windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect::<Vec<_>>();
    assert_eq!(secs("a"), [5, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(secs("b"), [5, 10, 20, 40, 80, 160, 300, 300], "whatever a did");
    assert_eq!(world.times("b")[0], 100_000, "an item that is added begins at once");
}

#[tokio::test(start_paused = true)]
async fn a_servers_hint_is_neither_shortened_nor_capped() {
    let world = World::of(["a", "b", "c"].map(item)).await;
    let hinted = |task: &Task| match (task.attempt(), task.key()) {
        (1, "a") => Err(unavailable().with_retry_after(S * 900)),
        (1, "c") => Err(unavailable().with_retry_after(S)),
        (1, _) => Err(Failure::new(Class::Throttled, "slow down").with_retry_after(S)),
        _ => Ok(()),
    };
    let summary = world.run(&world.scheduler(SchedulerConfig::default()), Duration::ZERO, hinted).await;
    assert_eq!(summary.status(), Status::Success);
    assert_eq!(world.times("a"), [0, 900_000]);
    assert_eq!(world.times("b"), [0, 1_000], "the server knows when there is room");
    assert_eq!(world.times("c"), [0, 5_000], "after a failure a hint is a lower bound");
    let b = world.store.show("b").await.unwrap().unwrap();
    assert_eq!((b.0.attempts, b.0.deferrals), (1, 1));
    let event = &b.2[0];
    assert_eq!((event.action.as_str(), event.decided, event.not_before), ("defer", START, Some(START + S)));
    assert_eq!(event.waited, Some(S));
}

#[tokio::test(start_paused = true)]
async fn deferrals_and_time_are_bounded_too() {
    let throttled = |_: &Task| Err(Failure::new(Class::Throttled, "slow down"));
    for max_deferrals in [0, 1, 4] {
        let world = World::of([item("a")]).await;
        let config = SchedulerConfig { max_deferrals: Some(max_deferrals), ..SchedulerConfig::default() };
        let summary = world.run(&world.scheduler(config), Duration::ZERO, throttled).await;
        assert_eq!(world.times("a").len(), max_deferrals as usize + 1);
        assert_eq!(summary.status(), Status::Failed);
        assert_eq!(world.state("a").await, (State::Failed, Some("max_deferrals".to_owned())));
    }
    let patient = NewItem { deadline: Some(S * 80), ..item("a") };
    let world = World::of([patient, item("b")]).await;
    let config = SchedulerConfig { deadline: S * 40, ..SchedulerConfig::default() };
    world.run(&world.scheduler(config), Duration::ZERO, throttled).await;
    assert_eq!(world.times("a"), [0, 5_000, 15_000, 35_000, 75_000]);
    assert_eq!(world.times("b"), [0, 5_000, 15_000, 35_000]);
    assert_eq!(world.state("a").await, (State::Failed, Some("deadline".to_owned())));
}

/// A host that is gone is asked by each run once more, and no item of it for longer than its deadline.
#[tokio::test(start_paused = true)]
async fn a_deadline_ends_what_each_run_left_to_the_next() {
    let world = World::of([item("a"), item("b")]).await;
    let config = SchedulerConfig { deadline: S * 250, concurrency: 1, ..SchedulerConfig::default() };
    let left = |task: &Task| {
        let gone = Failure::new(Class::Invalid, "gone").with_status(410);
        Err(Failure { spares_group: task.key() == "a", ..gone })
    };
    for run in 0..4 {
        let summary = world.run(&world.scheduler(config.clone()), Duration::ZERO, left).await;
        assert_eq!(summary.counts.of(State::Deferred), u64::from(run < 3), "run {run}");
        tokio::time::sleep(S * 100).await;
    }
    assert_eq!(world.times("a"), [0, 100_000, 200_000], "and no call after that");
    assert_eq!(world.state("a").await, (State::Failed, Some("deadline".to_owned())));
    assert_eq!(world.state("b").await, (State::Failed, Some("invalid".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_account_stops_its_group_and_keeps_its_items() {
    let items = (0..20).map(|n| of_group(&format!("bad-{n}"), "bad")).chain([of_group("good", "good")]);
    let world = World::of(items).await;
    let revoked = |task: &Task| match task.group() {
        "bad" => Err(Failure::new(Class::Account, "the key was revoked").with_status(401)),
        _ => Ok(()),
    };
    let config = SchedulerConfig { concurrency: 2, ..SchedulerConfig::default() };
    let summary = world.run(&world.scheduler(config.clone()), S, revoked).await;
    assert_eq!((summary.ended, summary.status()), (EndReason::GroupsStopped, Status::Deferred));
    assert_eq!((summary.counts.of(State::Waiting), summary.counts.of(State::Succeeded)), (20, 1));
    assert!(summary.calls <= 3, "nothing of the group began once it was known: {} calls", summary.calls);
    let summary = world.run(&world.scheduler(config), S, |_| Ok(())).await;
    assert_eq!((summary.ended, summary.status()), (EndReason::Done, Status::Success));
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_quota_holds_its_group_only() {
    let world = World::of([of_group("a", "day"), of_group("b", "day"), of_group("c", "other")]).await;
    let used_up = |task: &Task| match (task.key(), task.attempt()) {
        ("a", 1) => Err(Failure::new(Class::QuotaExhausted, "used up").with_retry_after(S * 1_800)),
        _ => Ok(()),
    };
    let config = SchedulerConfig { concurrency: 1, ..SchedulerConfig::default() };
    let summary = world.run(&world.scheduler(config.clone()), S, used_up).await;
    assert_eq!(summary.status(), Status::Success);
    assert!(world.times("a") == [0, 1_801_000] && world.times("b") == [1_802_000] && world.times("c")[0] < 3_000);
    let world = World::of([of_group("a", "day"), of_group("b", "day")]).await;
    let tomorrow = |_: &Task| Err(Failure::new(Class::QuotaExhausted, "used up").with_retry_after(S * 50_000));
    let summary = world.run(&world.scheduler(config.clone()), S, tomorrow).await;
    assert_eq!((summary.ended, summary.status(), summary.calls), (EndReason::MaxWait, Status::Deferred, 1));
    assert!(world.passed() < S * 2, "a run that can do nothing for longer than max_wait ends at once");
    let summary = world.run(&world.scheduler(config), S, |_| Ok(())).await;
    assert_eq!((summary.ended, summary.calls), (EndReason::MaxWait, 0), "the hold outlives the run");
}

/// A host of many in one group asks for a pause of a week: the group goes on, and so does the clock of its items.
#[tokio::test(start_paused = true)]
async fn a_quota_of_less_than_a_group_ends_what_has_less_time_than_it_asks_for() {
    let config = SchedulerConfig { deadline: S * 60, ..SchedulerConfig::default() };
    for (asked, calls) in [(604_800, 1), (30, 2)] {
        let world = World::of([item("a")]).await;
        let next_week = |task: &Task| match task.attempt() {
            1 => {
                let failure = Failure::new(Class::QuotaExhausted, "used up").with_retry_after(S * asked);
                Err(Failure { is_for_group: false, ..failure })
            }
            _ => Ok(()),
        };
        let summary = world.run(&world.scheduler(config.clone()), S, next_week).await;
        assert_eq!((summary.ended, summary.calls), (EndReason::Done, calls));
        let reason = (calls == 1).then(|| "deadline".to_owned());
        assert_eq!(world.state("a").await, (if calls == 1 { State::Failed } else { State::Succeeded }, reason));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_to_the_next_run_begins_it() {
    let world = World::of([item("bad"), item("good")]).await;
    let broken = |task: &Task| if task.key() == "bad" { Err(unavailable()) } else { Ok(()) };
    let config = SchedulerConfig {
        max_retries: 1,
        over_bound: OverBound::NextRun,
        concurrency: 1,
        ..SchedulerConfig::default()
    };
    let summary = world.run(&world.scheduler(config.clone()), S, broken).await;
    assert_eq!((summary.status(), summary.counts.of(State::Deferred)), (Status::Deferred, 1));
    assert_eq!(world.state("bad").await, (State::Deferred, Some("max_retries".to_owned())));
    world.store.insert(vec![item("new")]).await.unwrap();
    let before = world.calls.lock().unwrap().len();
    // In one process, of one place each second one is for what is new.
    let config = SchedulerConfig { concurrency: 2, ..config };
    let summary = world.run(&world.scheduler(config), S, broken).await;
    assert_eq!(summary.counts.of(State::Deferred), 1);
    let order: Vec<_> = world.calls.lock().unwrap()[before..].iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(order, ["bad", "new", "bad"], "first in the next run, and its retries begin anew");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_told_to_end_waits_for_what_is_in_flight() {
    let world = World::of(numbered(30)).await;
    let config = SchedulerConfig { max_run_duration: Some(S * 5), concurrency: 2, ..SchedulerConfig::default() };
    let summary = world.run(&world.scheduler(config.clone()), S * 3, |_| Ok(())).await;
    assert_eq!((summary.ended, summary.calls, summary.abandoned), (EndReason::MaxDuration, 4, 0));
    assert_eq!((summary.counts.of(State::Succeeded), world.passed()), (4, S * 6));
    let work = world.work(S * 300, |_| Ok(()));
    let summary = world.scheduler(config).run_until(work, tokio::time::sleep(S)).await.unwrap();
    assert_eq!((summary.ended, summary.abandoned), (EndReason::Interrupted, 2));
    assert_eq!((summary.counts.of(State::InFlight), summary.counts.of(State::Waiting)), (0, 26));
    assert_eq!(world.passed(), S * (6 + 1 + 30), "the grace of 30 s, and no longer");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_its_item_alone() {
    let world = World::of(numbered(5)).await;
    let scheduler = world.scheduler(SchedulerConfig::default());
    let summary = scheduler
        .run(|task| async move {
            tokio::task::yield_now().await;
            assert!(task.key() != "item-2" || task.attempt() > 1, "a bug");
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!((summary.status(), summary.resends), (Status::Success, 1));
    let (_, _, events) = world.store.show("item-2").await.unwrap().unwrap();
    assert_eq!(events[0].failure.code.as_deref(), Some("panic"));
}

/// Answers with what its table has for a key; hangs where it has nothing.
struct Table(Vec<(&'static str, Option<Judgement>)>);

impl Judge for Table {
    fn name(&self) -> &str {
        "table"
    }

    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a> {
        let found = self.0.iter().find(|(key, _)| *key == case.item.key).cloned();
        Box::pin(async move {
            match found {
                Some((_, decision)) => decision,
                None => std::future::pending().await,
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_judge_decides_within_bounds() {
    let retry = |secs: u64| Judgement::Retry { delay: Some(Duration::from_secs(secs)), reason: None };
    let table = Table(vec![
        ("soon", Some(retry(1))),
        ("capped", Some(retry(86_400))),
        ("skips", Some(Judgement::Skip { reason: Some("not worth it".to_owned()) })),
        ("aborts", Some(Judgement::Abort { reason: Some("broken".to_owned()) })),
        ("unsure", None),
        ("neighbour", None),
    ]);
    let plain = ["soon", "capped", "skips", "unsure", "hangs"].map(item);
    let world = World::of(plain.into_iter().chain(["aborts", "neighbour"].map(|key| of_group(key, "other")))).await;
    let silent = Arc::new(Mutex::new(Vec::new()));
    let heard = silent.clone();
    let observer = Arc::new(move |note: &SchedulerEvent<'_>| {
        if let SchedulerEvent::JudgeTimedOut(item) = note {
            heard.lock().unwrap().push(item.key.clone());
        }
    });
    let config = SchedulerConfig { concurrency: 6, max_retries: 1, ..SchedulerConfig::default() };
    let scheduler = world.scheduler(config).with_judge(Arc::new(table)).with_observer(observer);
    let summary = world.run(&scheduler, Duration::ZERO, once(|_| true)).await;
    assert_eq!(world.times("soon"), [0, 1_000]);
    assert_eq!(world.times("capped"), [0, 300_000]);
    assert_eq!(world.times("unsure"), [0, 5_000], "the rules decide what the judge does not");
    assert_eq!(world.times("hangs")[1..], [10_000], "5 s of thinking, then the rules");
    assert_eq!(*silent.lock().unwrap(), ["hangs"], "once");
    assert_eq!(world.state("skips").await, (State::Skipped, Some("not worth it".to_owned())));
    assert_eq!(world.state("aborts").await.0, State::Waiting);
    assert_eq!((summary.ended, summary.status()), (EndReason::GroupsStopped, Status::Deferred));
    let (_, _, events) = world.store.show("soon").await.unwrap().unwrap();
    assert_eq!(events[0].by, "table");
}

#[tokio::test(start_paused = true)]
async fn words_never_stop_anything() {
    for words in ["401 Unauthorized", "invalid api key", "account suspended", "billing: credit exhausted", "forbidden"]
    {
        let world = World::of(numbered(3)).await;
        let says = |task: &Task| {
            if task.attempt() == 1 { Err(Failure::new(Class::Overloaded, words).with_status(503)) } else { Ok(()) }
        };
        let summary = world.run(&world.scheduler(SchedulerConfig::default()), S, says).await;
        assert_eq!((summary.status(), summary.calls), (Status::Success, 6), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_due_times_are_kept_to_the_millisecond() {
    let mut items = numbered(1_000);
    for (n, item) in items.iter_mut().enumerate() {
        item.not_before = Some(START + Duration::from_millis(1_000 + 2 * n as u64));
    }
    let world = World::of(items).await;
    let summary = world.run(&world.scheduler(SchedulerConfig::default()), Duration::ZERO, |_| Ok(())).await;
    assert_eq!(summary.status(), Status::Success);
    for (n, (key, at)) in world.calls.lock().unwrap().iter().enumerate() {
        assert_eq!(*key, format!("item-{n}"));
        let late = at.as_millis() as i64 - (1_000 + 2 * n as i64);
        // Tokio's timers tick once a millisecond.
        assert!((0..=1).contains(&late), "{key} began {late} ms late");
    }
}

#[test]
fn work_may_block_threads_of_its_own() {
    let folder = folder();
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open(folder.path().join("work.db"), clock.clone()).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.insert(numbered(50))).unwrap();
    let growth = Growth::Constant { delay: Duration::from_millis(1) };
    let config = SchedulerConfig {
        backoff: Backoff { growth, jitter: Jitter::None },
        concurrency: 4,
        ..SchedulerConfig::default()
    };
    let scheduler = Scheduler::new(store.clone(), config, clock).unwrap();
    let summary = scheduler.run_blocking(|task| once(|task| task.key().ends_with('7'))(&task)).unwrap();
    assert_eq!((summary.status(), summary.calls), (Status::Success, 55));
    let items = runtime.block_on(store.list(Filter::default(), 0, 100)).unwrap();
    assert!(items.iter().all(|item| item.state == State::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn what_we_gave_up_ourselves_waits_as_asked_and_counts_as_no_try() {
    let world = World::of([item("a")]).await;
    let scheduler = world.scheduler(SchedulerConfig { max_retries: 0, ..SchedulerConfig::default() });
    let answer = |task: &Task| match task.attempt() {
        1..=3 => Err(Failure::new(Class::Abandoned, "no permit in time").with_retry_after(S * 40)),
        _ => Ok(()),
    };
    let summary = world.run(&scheduler, Duration::ZERO, answer).await;
    assert_eq!((summary.status(), summary.calls), (Status::Success, 4));
    let item = world.store.show("a").await.unwrap().unwrap().0;
    assert_eq!((item.attempts, item.abandoned, world.passed().as_secs()), (1, 3, 120));
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_a_run_are_those_that_items_count_and_those_that_it_tells_apart() {
    let world = World::of([item("cancelled"), item("unsent"), item("fine")]).await;
    let (store, is_down) = (world.store.clone(), Arc::new(AtomicBool::new(true)));
    let work = move |task: Task| {
        let (store, is_down) = (store.clone(), is_down.clone());
        async move {
            match task.key() {
                "cancelled" => drop(store.amend(Filter::keys(["cancelled"]), Amend::Cancel).await.unwrap()),
                "unsent" if is_down.swap(false, Ordering::SeqCst) => {
                    return Err(Failure { unsent: true, ..Failure::new(Class::Transient, "no connection") });
                }
                _ => {}
            }
            Ok(())
        }
    };
    let summary = world.scheduler(SchedulerConfig::default()).run(work).await.unwrap();
    assert_eq!((summary.calls, summary.uncounted, summary.cancelled, summary.lost), (4, 1, 1, 0));
    let items = world.store.list(Filter::default(), 0, 9).await.unwrap();
    assert_eq!(items.iter().map(|item| item.sends()).sum::<u32>(), 3);
}

/// A host that is gone must not keep its items for ever.
#[tokio::test(start_paused = true)]
async fn a_try_that_no_server_took_begins_the_deadline() {
    let world = World::of([item("a")]).await;
    let config = SchedulerConfig { deadline: S * 100, max_retries: 1, ..SchedulerConfig::default() };
    let answer = |_: &Task| Err(Failure { unsent: true, ..Failure::new(Class::Transient, "no connection") });
    world.run(&world.scheduler(config), Duration::ZERO, answer).await;
    let item = world.store.show("a").await.unwrap().unwrap().0;
    assert_eq!((item.state, item.reason.as_deref(), item.sends()), (State::Failed, Some("deadline"), 0));
    assert!(world.passed() <= S * 100 && world.times("a").len() > 2, "{:?}", world.times("a"));
}
