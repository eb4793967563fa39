//! One failure, one decision: `run` (the pacer), the library (a permit, its loop, and its retry without a limiter) and `tasks`
//! (the durable scheduler) are given the same failures with the same configuration, and must decide alike. The ACME agent is
//! given them too, in its own tests.
#![cfg(test)]

mod cases;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use paceline::{Limiter, Retrying, RunError, retry};
use paceline_core::{
    BreakerConfig, Class, Cost, Event, Instant, NextAction, Outcome, Pacer, PacerConfig, Request, Retry,
};
use paceline_providers::Reading;
use paceline_store::work::{Failure, MemoryStore, NewItem, Scheduler, SchedulerConfig, Task, WorkClock, WorkStore};
use tokio::sync::Notify;

use self::cases::{
    Case, RETRIES, START, Seen, by_pacer, by_scheduler, cases, of_action, pacer_config, policy, request, waits,
};

const S: Duration = Duration::from_secs(1);

/// What a program does that uses the library.
async fn by_library(case: &Case) -> Seen {
    let limiter = Limiter::new(pacer_config()).unwrap();
    let scope = limiter.scope("chat");
    let permit = limiter.acquire(request(case, scope, limiter.now())).await.unwrap();
    of_action(permit.complete(case.outcome()))
}

/// What the retry loop of the library does: the next try that it tells of. None where it ends after its first call.
async fn by_loop(case: &Case) -> Option<Seen> {
    let limiter = Limiter::new(pacer_config()).unwrap();
    let request = request(case, limiter.scope("chat"), limiter.now());
    let (first, told) = (RefCell::new(None), Notify::new());
    let sent = limiter.run(|| std::future::ready(Err::<(), _>("it failed"))).request(request);
    let sent = sent.read(|_, _| case.outcome()).notify(|retrying: &Retrying<'_>| {
        let counts = (retrying.next.attempts, retrying.next.deferrals);
        first.borrow_mut().get_or_insert(Seen { counts, then: Ok(retrying.delay) });
        told.notify_one();
    });
    let ended = tokio::select! {
        biased;
        ended = sent => Some(ended),
        () = told.notified() => None,
    };
    match (first.take(), ended) {
        (None, Some(Err(RunError::Operation { calls, class, .. }))) => {
            assert_eq!((calls, class), (1, case.reading.class), "{}", case.name);
            None
        }
        (None, ended) => panic!("{}: {ended:?}", case.name),
        (next, _) => next,
    }
}

/// What the library's retry without a limiter does: the next try that it tells of. None where it ends.
async fn by_retry(case: &Case) -> Option<Seen> {
    let policy = Retry { deadline: case.deadline, ..pacer_config().retry };
    let before = case.attempts + case.deferrals;
    let (calls, next, told) = (Cell::new(0), RefCell::new(None), Notify::new());
    let send = async || {
        calls.set(calls.get() + 1);
        if calls.get() > before {
            tokio::time::advance(case.age).await;
        }
        Err::<(), _>("it failed")
    };
    // Its counts are made up: retries at once, and then refusals.
    let read = |_: &_, _: &paceline::Attempt<'_>| match calls.get() {
        call if call > before => case.outcome(),
        call if call > case.attempts => Outcome::new(Class::Throttled),
        _ => Outcome::new(Class::Transient).with_hint(Duration::ZERO, true),
    };
    let sent = retry(send).with(policy).read(read).notify(|retrying: &Retrying<'_>| {
        if calls.get() > before {
            let counts = (retrying.next.attempts, retrying.next.deferrals);
            next.borrow_mut().get_or_insert(Seen { counts, then: Ok(retrying.delay) });
            told.notify_one();
        }
    });
    let ended = tokio::select! {
        biased;
        ended = sent => Some(ended),
        () = told.notified() => None,
    };
    if let Some(Err(RunError::Operation { calls, class, .. })) = &ended
        && next.borrow().is_none()
    {
        assert_eq!((*calls, *class), (before + 1, case.reading.class), "{}", case.name);
    }
    next.take()
}

/// As `tasks run --http` tells it.
fn failure(Case { reading, unknown, .. }: &Case) -> Failure {
    let (retry_after, unsent, unknown) = (reading.wait, reading.unsent, *unknown);
    Failure { retry_after, unsent, unknown, ..Failure::new(reading.class, "it failed") }
}

/// What `tasks` does.
async fn by_tasks(case: &Case) -> Seen {
    by_scheduler(case, failure(case)).await
}

#[tokio::test(start_paused = true)]
async fn the_same_forty_failures_are_decided_alike() {
    let cases = cases();
    assert!(cases.len() >= 40);
    let mut differ = Vec::new();
    for case in &cases {
        let (run, library, tasks) = (by_pacer(case), by_library(case).await, by_tasks(case).await);
        // Of an item that ends, the loop of the library tells its last error alone.
        let (looped, next) = (by_loop(case).await, run.then.is_ok().then(|| run.clone()));
        // Without a limiter nothing is stopped until a person acts, so that the item could wait for it.
        let (retried, without) = (by_retry(case).await, next.clone().filter(|_| case.reading.class != Class::Account));
        if run != tasks || run != library || looped != next || retried != without {
            differ.push(format!(
                "{}:\n  run     {run:?}\n  library {library:?}\n  loop    {looped:?}\n  retry   {retried:?}\n  tasks   {tasks:?}",
                case.name
            ));
        }
    }
    assert!(differ.is_empty(), "{} of {} differ\n{}", differ.len(), cases.len(), differ.join("\n"));
}

/// A quota whose end is not known: tested after 5 minutes, then after twice as long, an hour at most.
#[tokio::test(start_paused = true)]
async fn a_quota_of_unknown_end_is_tested_ever_later_by_all() {
    const EXPECTED: [u64; 6] = [300, 600, 1_200, 2_400, 3_600, 3_600];
    let config = PacerConfig { retry: Retry { max_deferrals: None, ..pacer_config().retry }, ..pacer_config() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).unwrap();
    let mut request = Request::new(pacer.scope("chat"), Cost::request());
    let (mut now, mut run) = (Instant::ZERO, Vec::new());
    for _ in EXPECTED {
        let ticket = pacer.enqueue(now, request).unwrap();
        pacer.handle_timeout(now);
        let granted = std::iter::from_fn(|| pacer.poll_event()).any(|event| matches!(event, Event::Granted { .. }));
        assert!(granted, "the hold is over after {run:?}");
        let NextAction::Retry { next, delay } = pacer.complete(now, ticket, Outcome::new(Class::QuotaExhausted)) else {
            panic!("it waits");
        };
        run.push(delay.as_secs());
        (request, now) = (*next, now + delay);
    }
    assert_eq!(run, EXPECTED);

    let (calls, mut retried) = (Cell::new(0), Vec::new());
    let send = async || Err::<(), _>(calls.replace(calls.get() + 1) < EXPECTED.len());
    let sent = retry(send)
        .with(Retry { max_deferrals: None, ..pacer_config().retry })
        .read(|sent, _| Outcome::new(if *sent == Err(true) { Class::QuotaExhausted } else { Class::Invalid }));
    sent.notify(|retrying: &Retrying<'_>| retried.push(retrying.delay.as_secs())).await.unwrap_err();
    assert_eq!(retried, EXPECTED);

    let clock = WorkClock::starting_at(START);
    let store = Arc::new(MemoryStore::new(clock.clone()));
    store.insert(vec![NewItem::new("item", "{}")]).await.unwrap();
    let (waits, heard) = waits();
    let policy = SchedulerConfig { max_deferrals: None, ..policy() };
    let scheduler = Scheduler::new(store, policy, clock).unwrap().with_observer(heard);
    let used_up = |task: Task| {
        let last = task.attempt() > EXPECTED.len() as u32;
        std::future::ready(if last { Ok(()) } else { Err(Failure::new(Class::QuotaExhausted, "used up")) })
    };
    scheduler.run(used_up).await.unwrap();
    let tasks: Vec<_> = waits.lock().unwrap().iter().map(|wait| wait.clone().unwrap().as_secs()).collect();
    assert_eq!(tasks, EXPECTED);
}

/// The breaker of a server that fails lets one probe pass at a time. Of the items that wait the pacer chooses the one that was
/// tried least, so a failed probe counts like any call. The store hands items out as they are due, whatever they were tried:
/// there a probe counts for no item, and even one without a retry left sits out and goes on.
#[tokio::test(start_paused = true)]
async fn a_failed_probe_sits_out_the_next_round_and_counts_where_the_pacer_chose_it() {
    let breaker = BreakerConfig { min_samples: 1, min_distinct_items: 1, window_size: 1, ..BreakerConfig::default() };
    for (hint, expected) in [(None, 4 * S), (Some(7 * S), 7 * S)] {
        let mut pacer = Pacer::new(PacerConfig { breaker, ..pacer_config() }, 1, Instant::ZERO).unwrap();
        let request = Request::new(pacer.scope("chat"), Cost::request());
        let first = pacer.enqueue(Instant::ZERO, request.clone()).unwrap();
        pacer.complete(Instant::ZERO, first, Outcome::new(Class::Overloaded));
        let now = Instant::ZERO + S;
        let probe = pacer.enqueue(now, Request { attempts: RETRIES - 1, ..request }).unwrap();
        let granted = std::iter::from_fn(|| pacer.poll_event()).last();
        assert_eq!(granted, Some(Event::Granted { ticket: probe, probe: true }));
        let reading = Reading { wait: hint, ..Reading::new(Class::Overloaded) };
        let run = of_action(pacer.complete(now, probe, reading.outcome()));
        assert_eq!(run, Seen { counts: (RETRIES, 0), then: Ok(expected) });
        let sits_out = run.then.clone().ok();
        for attempts in [RETRIES - 1, RETRIES] {
            let case = Case { probe: sits_out, ..Case::of("a probe", reading.clone()).after(attempts, 0) };
            assert_eq!(by_tasks(&case).await, Seen { counts: (attempts, 0), ..run.clone() });
        }
    }
}
