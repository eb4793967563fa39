//! Work that may be declined: under a pacer, in virtual time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::{
    Admit, Class, Cost, Event, LearntState, LevelState, Limits, NextAction, Outcome, Pace, Pacer, PacerConfig,
    PacerState, Quota, Request, ScopeId, Ticket,
};
use paceline_store::work::{
    EndReason, Failure, Filter, MemoryStore, NewItem, Scheduler, SchedulerConfig, SchedulerEvent, StartDecision,
    StartDelay, State, Status, Task, WorkClock, WorkStore as _,
};

use crate::support::{S, START, of_group};

/// A store, a pacer on the same clock with a scope for each group, and when each item began.
#[derive(Clone)]
struct World {
    store: Arc<MemoryStore>,
    clock: WorkClock,
    pacer: Arc<Mutex<Pacer>>,
    asked: Arc<Mutex<usize>>,
    begun: Arc<Mutex<Vec<(String, Duration)>>>,
    waits: Waits,
}

/// What was said about waits: how long, and what for.
type Waits = Arc<Mutex<Vec<(Duration, Option<String>)>>>;

type Work = std::pin::Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

impl World {
    async fn of(config: PacerConfig, items: impl IntoIterator<Item = NewItem>) -> Self {
        let clock = WorkClock::starting_at(START);
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(items.into_iter().collect()).await.unwrap();
        let pacer = Arc::new(Mutex::new(Pacer::new(config, 1, clock.now()).unwrap()));
        Self { store, clock, pacer, asked: Arc::default(), begun: Arc::default(), waits: Arc::default() }
    }

    fn scheduler(&self, config: SchedulerConfig) -> Scheduler {
        let waits = self.waits.clone();
        let observer = Arc::new(move |note: &SchedulerEvent<'_>| {
            if let SchedulerEvent::Waiting { wait, why } = note {
                waits.lock().unwrap().push((*wait, why.map(str::to_owned)));
            }
        });
        Scheduler::new(self.store.clone(), config, self.clock.clone()).unwrap().with_observer(observer)
    }

    fn scope(&self, name: &str) -> ScopeId {
        self.pacer.lock().unwrap().scope(name)
    }

    /// Work that takes a permit when it begins, and ends with success after that long.
    fn work(&self, takes: Duration, for_all: bool) -> impl Fn(Task) -> StartDecision<Work> {
        self.work_during(Duration::ZERO, takes, for_all)
    }

    /// The same, but all of it fails for as long as an outage lasts, and the group `hangs` takes ten minutes for each item.
    fn work_during(&self, outage: Duration, takes: Duration, for_all: bool) -> impl Fn(Task) -> StartDecision<Work> {
        let world = self.clone();
        move |task| {
            *world.asked.lock().unwrap() += 1;
            match world.permit(&task) {
                Ok((ticket, is_probe)) => {
                    let passed = world.clock.now() - paceline_core::Instant::ZERO;
                    world.begun.lock().unwrap().push((task.key().to_owned(), passed));
                    let world = world.clone();
                    let takes = if task.group() == "hangs" { S * 600 } else { takes };
                    StartDecision::Now(Box::pin(async move {
                        tokio::time::sleep(takes).await;
                        let now = world.clock.now();
                        let is_out = now - paceline_core::Instant::ZERO < outage;
                        let class = if is_out { Class::Transient } else { Class::Success };
                        let sits_out = match world.pacer.lock().unwrap().complete(now, ticket, Outcome::new(class)) {
                            NextAction::Retry { delay, .. } => Some(delay).filter(|_| is_probe),
                            _ => None,
                        };
                        if is_out { Err(Failure::new(class, "down").of_probe(sits_out)) } else { Ok(()) }
                    }))
                }
                Err((after, why)) => {
                    let scope = Arc::clone(&task.item().group);
                    StartDecision::Later(StartDelay {
                        after,
                        why: why.into(),
                        scope,
                        for_all,
                        at_hand: true,
                        in_this_run: false,
                    })
                }
            }
        }
    }

    fn permit(&self, task: &Task) -> Result<(Ticket, bool), (Option<Duration>, String)> {
        let (scope, now) = (self.scope(task.group()), self.clock.now());
        let mut pacer = self.pacer.lock().unwrap();
        let request = Request { item: Some(task.item().id), ..Request::new(scope, Cost::request()) };
        let ticket = pacer.enqueue(now, request.clone()).unwrap();
        let granted = |event| match event {
            Event::Granted { ticket: of, probe, .. } if of == ticket => Some(probe),
            _ => None,
        };
        if let Some(is_probe) = std::iter::from_fn(|| pacer.poll_event()).find_map(granted) {
            return Ok((ticket, is_probe));
        }
        pacer.cancel(now, ticket);
        Err(match pacer.admit(now, &request) {
            Admit::At { at, cause } => (Some(at - now), cause.to_string()),
            Admit::OnRelease { cause } => (None, cause.to_string()),
            Admit::Now => panic!("it was refused"),
        })
    }

    fn begun(&self, prefix: &str) -> Vec<u128> {
        let begun = self.begun.lock().unwrap();
        begun.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(_, at)| at.as_millis()).collect()
    }
}

/// An item does not begin for so long.
fn declined<F>(task: &Task, after: Option<Duration>, why: &str, at_hand: bool) -> StartDecision<F> {
    let (why, scope) = (why.into(), Arc::clone(&task.item().group));
    StartDecision::Later(StartDelay { after, why, scope, for_all: false, at_hand, in_this_run: false })
}

fn ten_a_second() -> PacerConfig {
    let limits = Limits { quotas: vec![Quota::sliding(paceline_core::Dimension::Requests, 10, S)], burst: Some(1) };
    PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }
}

fn numbered(group: &str, count: usize) -> impl Iterator<Item = NewItem> {
    (0..count).map(move |n| of_group(&format!("{group}-{n:02}"), group))
}

fn fifty() -> SchedulerConfig {
    SchedulerConfig { concurrency: 50, ..SchedulerConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn items_begin_at_the_pace_of_the_limiter_and_in_order() {
    for for_all in [true, false] {
        let world = World::of(ten_a_second(), numbered("a", 100)).await;
        let work = world.work(S * 3, for_all);
        let summary = world.scheduler(fifty()).run_paced(work, std::future::pending()).await.unwrap();
        assert_eq!((summary.status(), summary.calls, summary.resends), (Status::Success, 100, 0));
        for (n, (key, at)) in world.begun.lock().unwrap().iter().enumerate() {
            // A window counts a call at the end of its slot, and timers tick once a millisecond.
            let late = at.as_millis() as usize - 100 * n;
            assert!(late <= n / 10, "the {n}th began {late} ms late");
            assert!(!for_all || *key == format!("a-{n:02}"), "{key} began as the {n}th");
        }
        let asked = *world.asked.lock().unwrap();
        assert!(!for_all || asked < 200, "each is asked about when it may begin, and once before: {asked}");
        let waits = world.waits.lock().unwrap();
        let (wait, why) = waits.first().unwrap();
        assert_eq!((wait.as_millis(), why.as_deref()), (100, Some("the spacing of the configured limit")), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_scope_keeps_no_other_out() {
    let world = World::of(PacerConfig::default(), numbered("held", 500).chain(numbered("free", 500))).await;
    let (held, free) = (world.scope("held"), world.scope("free"));
    {
        let (mut pacer, now) = (world.pacer.lock().unwrap(), world.clock.now());
        pacer.hold(now, Some(&held), now + S * 60);
        let learnt = |scope: &ScopeId| LevelState {
            name: scope.name().to_string(),
            learnt: Some(LearntState { rate: 1e6, tokens: None, cap: None, ago: Duration::ZERO }),
            ..LevelState::default()
        };
        let state = PacerState { scopes: vec![learnt(&free), learnt(&held)], ..PacerState::default() };
        pacer.restore(now, &state, Duration::ZERO).unwrap();
    }
    let work = world.work(S, false);
    let summary = world.scheduler(fifty()).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.status(), summary.calls), (Status::Success, 1_000));
    let (held, free) = (world.begun("held"), world.begun("free"));
    assert!(held.iter().all(|at| *at >= 60_000), "{held:?}");
    let last = free.last().unwrap();
    assert!(*last < 15_000, "500 items of 1 s, 50 at a time: the last began after {last} ms");
    let asked = *world.asked.lock().unwrap();
    assert!(asked < 500 + 1_000 + 2_000, "a wait is asked about once, not again and again: {asked}");
    let item = world.store.show("held-07").await.unwrap().unwrap().0;
    assert_eq!((item.attempts, item.deferrals, item.abandoned), (1, 0, 0), "what did not begin was no try");
}

#[tokio::test(start_paused = true)]
async fn items_of_a_held_scope_go_back_a_thousand_a_second_at_most() {
    let world = World::of(PacerConfig::default(), numbered("held", 5_000)).await;
    let (held, now) = (world.scope("held"), world.clock.now());
    world.pacer.lock().unwrap().hold(now, Some(&held), now + S * 600);
    let summary = world.scheduler(fifty()).run_paced(world.work(S, false), tokio::time::sleep(S * 3)).await.unwrap();
    assert_eq!((summary.ended, summary.calls), (EndReason::Interrupted, 0));
    let asked = *world.asked.lock().unwrap();
    assert!((2_900..=3_050).contains(&asked), "{asked} in three seconds");
}

#[tokio::test(start_paused = true)]
async fn an_interruption_during_a_wait_puts_everything_back_at_once() {
    for for_all in [true, false] {
        let world = World::of(PacerConfig::default(), numbered("a", 200)).await;
        let (scope, now) = (world.scope("a"), world.clock.now());
        world.pacer.lock().unwrap().hold(now, Some(&scope), now + S * 600);
        let stop = tokio::time::sleep(S * 10);
        let summary = world.scheduler(fifty()).run_paced(world.work(S, for_all), stop).await.unwrap();
        assert_eq!((summary.ended, summary.calls, summary.abandoned), (EndReason::Interrupted, 0, 0));
        assert_eq!(world.clock.wall().saturating_since(START), S * 10, "nothing is in flight to be waited for");
        assert_eq!(summary.counts.of(State::Waiting), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_an_hour_ends_the_run_and_outlives_it() {
    for (for_all, seconds) in [(true, 3_600), (false, 3_600), (true, 3_000), (false, 3_000)] {
        let world = World::of(PacerConfig::default(), numbered("a", 120)).await;
        let (scope, now) = (world.scope("a"), world.clock.now());
        world.pacer.lock().unwrap().hold(now, Some(&scope), now + S * seconds);
        let work = world.work(S, for_all);
        let summary = world.scheduler(fifty()).run_paced(work, std::future::pending()).await.unwrap();
        if seconds < 3_600 {
            assert_eq!((summary.ended, summary.status()), (EndReason::Done, Status::Success));
        } else {
            assert_eq!((summary.ended, summary.status(), summary.calls), (EndReason::MaxWait, Status::Deferred, 0));
            let passed = world.clock.wall().saturating_since(START);
            assert!(passed < S, "{for_all}: {passed:?}");
        }
        let asked = *world.asked.lock().unwrap();
        assert!(!for_all || asked < 500, "no other item is asked about: {asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_place_begins_when_one_ends() {
    let concurrency = paceline_core::Concurrency::Fixed { max: 3 };
    let config = PacerConfig { concurrency, pace: Pace::Fixed, ..PacerConfig::default() };
    let world = World::of(config, numbered("a", 30)).await;
    let work = world.work(S, false);
    let summary = world.scheduler(fifty()).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.status(), summary.calls), (Status::Success, 30));
    let expected: Vec<u128> = (0..30).map(|n| n / 3 * 1_000).collect();
    assert_eq!(world.begun("a"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_hangs_leaves_places_to_the_others() {
    for max_crashes in [None, Some(9)] {
        let config = PacerConfig { pace: Pace::None, ..PacerConfig::default() }.with_in_flight(4);
        let groups = ["hangs", "b", "c", "d"].into_iter().flat_map(|group| numbered(group, 60));
        let world = World::of(config, groups).await;
        let config = SchedulerConfig { concurrency: 4, max_crashes, ..SchedulerConfig::default() };
        let summary =
            world.scheduler(config).run_paced(world.work(S, false), tokio::time::sleep(S * 500)).await.unwrap();
        let last = ["b", "c", "d"].map(|group| world.begun(group).into_iter().max().unwrap());
        assert_eq!(summary.counts.of(State::Succeeded), 3 * 60, "{last:?}");
        assert!(last.iter().all(|last| *last < 100_000), "180 items of 1 s in two or three places: {last:?}");
        assert_eq!(world.begun("hangs").len(), 4, "all places, once the others have none left to do");
        let asked = *world.asked.lock().unwrap();
        assert!(asked < 1_500, "{asked}");
    }
}

/// Hosts that hang have one place, and six hundred items of theirs wait for it: to look at them again and again is no work.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_place_in_the_store_comes_again_one_after_the_other() {
    let items =
        numbered("hangs", 600).chain([NewItem { not_before: Some(START + S * 30), ..of_group("late", "works") }]);
    let world = World::of(PacerConfig::default(), items).await;
    let (asked, begun) = (world.asked.clone(), world.begun.clone());
    let (clock, hangs) = (world.clock.clone(), Arc::new(Mutex::new(false)));
    let work = |task: Task| {
        *asked.lock().unwrap() += 1;
        let is_first = task.group() == "hangs" && !std::mem::replace(&mut *hangs.lock().unwrap(), true);
        let passed = clock.now() - paceline_core::Instant::ZERO;
        if is_first || task.group() == "works" || passed > S * 100 {
            begun.lock().unwrap().push((task.key().to_owned(), passed));
            let takes = if is_first { S * 100 } else { S };
            return StartDecision::Now(async move {
                tokio::time::sleep(takes).await;
                Ok::<_, Failure>(())
            });
        }
        declined(&task, None, "a place", false)
    };
    let stop = tokio::time::sleep(S * 90);
    world.scheduler(SchedulerConfig::default()).run_paced(work, stop).await.unwrap();
    let asked = *world.asked.lock().unwrap();
    assert!(asked < 90 * 25 + 600, "{asked} times in 90 s");
    assert!(asked > 2 * 600, "each comes again within half a minute: {asked} times in 90 s");
    let late = world.begun("late")[0] - 30_000;
    assert!(late < 100, "one that may begin waits for none of them: {late} ms");
}

/// A host that hangs keeps a place from others for a while, and six hundred items of its own wait too: they come behind it.
#[tokio::test(start_paused = true)]
async fn an_item_of_another_scope_is_at_hand_before_a_backlog() {
    let new = (0..20).map(|n| {
        let at = Some(START + S * 12 + S * n / 10);
        NewItem { not_before: at, ..of_group(&format!("new-{n}"), &format!("new-{n}")) }
    });
    let world = World::of(PacerConfig::default(), numbered("hangs", 600).chain(new)).await;
    let (clock, begun) = (world.clock.clone(), world.begun.clone());
    let first = Mutex::new(false);
    let work = |task: Task| {
        let passed = clock.now() - paceline_core::Instant::ZERO;
        let is_first = !std::mem::replace(&mut *first.lock().unwrap(), true);
        if is_first || (task.group() != "hangs" && passed >= S * 20) {
            begun.lock().unwrap().push((task.key().to_owned(), passed));
            let takes = if is_first { S * 20 } else { S / 10 };
            return StartDecision::Now(async move {
                tokio::time::sleep(takes).await;
                Ok::<_, Failure>(())
            });
        }
        declined(&task, None, "a place", true)
    };
    world.scheduler(SchedulerConfig::default()).run_paced(work, tokio::time::sleep(S * 60)).await.unwrap();
    let new = world.begun("new");
    assert!(new.len() == 20 && new.iter().all(|at| *at < 22_200), "at once, or with the next turn: {new:?}");
    assert!(new.iter().filter(|at| **at == 20_000).count() >= 4, "those at hand begin at once: {new:?}");
}

#[tokio::test(start_paused = true)]
async fn what_can_never_begin_fails_without_a_try_and_a_stop_keeps_its_group() {
    let items = numbered("good", 5).chain(numbered("bad", 5)).chain(numbered("stopped", 5));
    let world = World::of(PacerConfig::default(), items).await;
    let work = |task: Task| match task.group() {
        "bad" => StartDecision::Never(Failure::new(Class::Invalid, "more than the limit")),
        "stopped" => StartDecision::Stopped("the key was revoked".to_owned()),
        _ => StartDecision::Now(std::future::ready(Ok(()))),
    };
    let summary = world.scheduler(SchedulerConfig::default()).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.ended, summary.status(), summary.calls), (EndReason::GroupsStopped, Status::Deferred, 5));
    let of = |state| summary.counts.of(state);
    assert_eq!((of(State::Succeeded), of(State::Failed), of(State::Waiting)), (5, 5, 5));
    for item in world.store.list(Filter::default(), 0, 99).await.unwrap() {
        assert_eq!(item.sends(), u32::from(&*item.group == "good"), "{}", item.key);
    }
    let reasons: Vec<_> = world.store.scopes().await.unwrap().into_iter().map(|row| row.state).collect();
    assert_eq!(reasons, [paceline_store::ScopeStatus::Stopped { reason: "the key was revoked".to_owned() }]);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_counts_against_no_bound() {
    let world = World::of(PacerConfig::default(), [of_group("a", "a")]).await;
    let given_up_twice = |task: Task| {
        let end = if task.attempt() < 3 { Err(Failure::new(Class::Abandoned, "given up")) } else { Ok(()) };
        StartDecision::Now(std::future::ready(end))
    };
    let config = SchedulerConfig { max_retries: 0, ..SchedulerConfig::default() };
    let summary = world.scheduler(config).run_paced(given_up_twice, std::future::pending()).await.unwrap();
    assert_eq!((summary.status(), summary.calls, summary.abandoned), (Status::Success, 3, 2));
    let (item, _, events) = world.store.show("a").await.unwrap().unwrap();
    assert_eq!((item.attempts, item.abandoned, events.len()), (1, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_item() {
    let world = World::of(PacerConfig::default(), numbered("a", 200)).await;
    let work = world.work_during(S * 1_800, S / 10, false);
    let config = SchedulerConfig { max_retries: 1, ..fifty() };
    let summary = world.scheduler(config).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.status(), summary.counts.of(State::Succeeded)), (Status::Success, 200));
    let passed = world.clock.wall().saturating_since(START);
    assert!(passed < S * 1_860, "half a minute between two tests, and then the paced rate: {passed:?}");
    assert!(summary.calls < 200 + 200, "one call tests the server, now and then: {}", summary.calls);
    let items = world.store.list(Filter::default(), 0, 200).await.unwrap();
    assert!(items.iter().any(|item| item.tests > 0 && item.sends() == 1), "the first call of some was a test");
    assert_eq!(summary.resends, summary.calls - 200, "each item has one first call");
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_does_not_end_defers_everything() {
    let world = World::of(PacerConfig::default(), numbered("a", 200)).await;
    let work = world.work_during(Duration::MAX, S / 10, false);
    let summary = world.scheduler(fifty()).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.ended, summary.status()), (EndReason::MaxWait, Status::Deferred));
    assert_eq!(summary.counts.of(State::Waiting), 200);
    let passed = world.clock.wall().saturating_since(START);
    assert!(passed > S * 3_500 && passed < S * 3_700, "an hour of tests in vain: {passed:?}");
    let items = world.store.list(Filter::default(), 0, 200).await.unwrap();
    assert!(items.iter().all(|item| item.attempts <= 3), "tests count against no item");
}

#[tokio::test(start_paused = true)]
async fn items_past_their_deadline_end_without_a_call_during_an_outage() {
    let world = World::of(PacerConfig::default(), numbered("a", 50)).await;
    let work = world.work_during(Duration::MAX, S / 10, false);
    let config = SchedulerConfig { deadline: S * 120, max_retries: 99, ..fifty() };
    let summary = world.scheduler(config).run_paced(work, std::future::pending()).await.unwrap();
    assert!(summary.counts.of(State::Failed) > 10, "{summary:?}");
    for item in world.store.list(Filter::default(), 0, 99).await.unwrap() {
        // The time of an item begins with its first call, and a test of the server is no try.
        let Some(first) = item.first.filter(|_| item.sends() > 0) else { continue };
        assert_eq!(item.reason.as_deref(), Some("deadline"), "{}", item.key);
        let after = item.ended.map(|ended| ended.saturating_since(first));
        assert!(after.is_some_and(|after| after < S * 160), "{} after {after:?}", item.key);
        let begun = world.begun(&item.key);
        assert!(begun.iter().all(|at| at - begun[0] <= 120_100), "{}: {begun:?}", item.key);
    }
}

/// Thirty items let others go first for two seconds, in a run that waits for nothing.
#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_nothing_begins_what_only_lets_others_go_first() {
    for (in_this_run, calls) in [(true, 30), (false, 0)] {
        let world = World::of(PacerConfig::default(), numbered("a", 30)).await;
        let asked = Mutex::new(BTreeSet::new());
        let work = |task: Task| {
            if !asked.lock().unwrap().insert(task.key().to_owned()) {
                return StartDecision::Now(std::future::ready(Ok(())));
            }
            let (why, scope) = ("a test".into(), Arc::clone(&task.item().group));
            let (after, for_all, at_hand) = (Some(S * 2), false, true);
            StartDecision::Later(StartDelay { after, why, scope, for_all, at_hand, in_this_run })
        };
        let config = SchedulerConfig { max_wait: Duration::ZERO, ..SchedulerConfig::default() };
        let summary = world.scheduler(config).run_paced(work, std::future::pending()).await.unwrap();
        let asked = asked.lock().unwrap().len();
        assert_eq!((summary.calls, asked), (calls, 30), "what is due is looked at, whatever waits");
    }
}

/// Its scope is held, and no permit comes before its end: it ends then, and says so before.
#[tokio::test(start_paused = true)]
async fn an_item_of_a_scope_that_opens_after_its_deadline_waits_no_longer() {
    let world = World::of(PacerConfig::default(), [of_group("a", "a"), of_group("b", "b")]).await;
    let work = |task: Task| match task.attempt() {
        1 if task.key() == "a" => StartDecision::Now(std::future::ready(Err(Failure::new(Class::Transient, "down")))),
        _ => declined(&task, Some(S * 604_800), "a pause", true),
    };
    let config = SchedulerConfig { deadline: S * 7_200, ..SchedulerConfig::default() };
    world.scheduler(config).run_paced(work, std::future::pending()).await.unwrap();
    let due = async |key| {
        let item = world.store.show(key).await.unwrap().unwrap().0;
        (item.not_before.unwrap().saturating_since(START).as_secs(), item.reason.unwrap().starts_with("its deadline"))
    };
    assert_eq!(due("a").await, (7_200, true));
    assert_eq!(due("b").await, (604_800, false), "it was never tried, and has no end yet");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_to_the_next_run_without_a_try_keeps_its_last_failure() {
    let world = World::of(PacerConfig::default(), [of_group("tried", "a"), of_group("new", "b")]).await;
    let work = |task: Task| match task.attempt() {
        1 if task.key() == "tried" => {
            StartDecision::Now(std::future::ready(Err(Failure::new(Class::Transient, "down").with_status(503))))
        }
        _ => StartDecision::Left { why: "same_failure".into(), time_stands_still: false },
    };
    let summary = world.scheduler(SchedulerConfig::default()).run_paced(work, std::future::pending()).await.unwrap();
    assert_eq!((summary.counts.of(State::Deferred), summary.calls), (2, 1));
    for (key, events, status) in [("tried", 1, Some(503)), ("new", 0, None)] {
        let (item, _, history) = world.store.show(key).await.unwrap().unwrap();
        assert_eq!((item.reason.as_deref(), history.len()), (Some("same_failure"), events), "{key}");
        assert_eq!(item.last.and_then(|last| last.status), status, "{key}");
        assert_eq!(item.first.is_some(), key == "tried", "the time of what was tried goes on");
    }
}

/// No worker was at work until after its deadline, and then its scope is held: it waits for the one call that it is owed.
#[tokio::test(start_paused = true)]
async fn an_item_that_is_owed_a_call_waits_for_its_scope() {
    let world = World::of(PacerConfig::default(), [of_group("a", "a")]).await;
    let config = SchedulerConfig { deadline: S * 86_400, ..SchedulerConfig::default() };
    let runs = async |is_held: bool| {
        let work = move |task: Task| match task.attempt() {
            1 => StartDecision::Now(std::future::ready(Err(
                Failure::new(Class::Transient, "down").with_retry_after(S * 7_200)
            ))),
            _ if is_held => declined(&task, Some(S * 7_200), "a pause", true),
            _ => StartDecision::Now(std::future::ready(Ok(()))),
        };
        world.scheduler(config.clone()).run_paced(work, std::future::pending()).await.unwrap().calls
    };
    for (is_held, calls, then) in [(true, 1, 4 * 86_400), (true, 0, 7_300), (false, 1, 0)] {
        assert_eq!(runs(is_held).await, calls);
        tokio::time::sleep(S * then).await;
    }
    assert_eq!(world.store.show("a").await.unwrap().unwrap().0.state, State::Succeeded);
}
