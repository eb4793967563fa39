//! The driver under a model checker: its real code, with a lock, an alarm and threads that the checker schedules.
//!
//! Each scenario runs in many orders: random ones, and ones with few preemptions, which find what needs a rare but small
//! coincidence. Time stands still until [`pass_time`] moves it to where the timer's thread sleeps until; so a caller that
//! only another input would wake is found as a run that never ends, and one that is woken late shows it by the clock. What
//! `timer.rs` promises is checked each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline_core::{Class, Concurrency, Cost, Dimension, Limits, Outcome, Pace, PacerConfig, Quota, Request};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, future, thread};

use super::Driver;
use super::timer::Timer;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::sync::model;

const S: Duration = Duration::from_secs(1);

/// Orders tried of each kind.
const ORDERS: usize = 300;

/// Preemptions in the orders with few.
const PREEMPTIONS: usize = 3;

/// A run of more steps never ends.
const STEPS: usize = 20_000;

fn check(scenario: fn()) {
    let run = move || {
        model::begin();
        scenario();
    };
    let config = || {
        let mut config = Config::new();
        config.max_steps = MaxSteps::FailAfter(STEPS);
        config
    };
    fn with(scheduler: impl Scheduler + 'static, config: Config, run: impl Fn() + Send + Sync + 'static) {
        Runner::new(scheduler, config).run(run);
    }
    with(RandomScheduler::new_from_seed(1, ORDERS), config(), run);
    with(PctScheduler::new_from_seed(1, PREEMPTIONS, ORDERS), config(), run);
}

/// A limiter of a thousand calls a second, one by one, and of so many in flight.
fn limiter(max: u32) -> Limiter {
    let quotas = vec![Quota::sliding(Dimension::Requests, 1_000, S)];
    let config = PacerConfig {
        limits: Limits { quotas, burst: Some(1) },
        concurrency: Concurrency::Fixed { max },
        pace: Pace::Fixed,
        ..PacerConfig::default()
    };
    Limiter::with_seed(config, 1).expect("a configuration that can be")
}

fn request(limiter: &Limiter) -> Request {
    Request::new(limiter.scope("test"), Cost::request())
}

fn success() -> Outcome {
    Outcome::new(Class::Success)
}

/// What is done so far, out of so many.
#[derive(Clone, Default)]
struct Done(Arc<AtomicUsize>);

impl Done {
    fn one(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets time pass until that much is done, and then until the timer has ended.
    fn wait_for(&self, all: usize, driver: &Arc<Driver>) {
        while self.0.load(Ordering::SeqCst) < all || driver.lock().0.timers.thread != Timer::Off {
            pass_time(driver);
            thread::yield_now();
        }
    }
}

/// Moves the time on to where the timer's thread sleeps until, and checks what the timer promises.
fn pass_time(driver: &Arc<Driver>) {
    let (state, now) = driver.lock();
    let thread = state.timers.thread;
    if let Some(due) = state.due() {
        assert_ne!(thread, Timer::Off, "a caller waits for something that becomes due, and nothing keeps the time");
        if let Timer::Asleep(until) = thread {
            assert!(until <= state.timers.paced(due), "asleep until {until}, and {due} is due");
        }
    }
    if let Timer::Asleep(until) = thread {
        model::pass(until - now);
        driver.alarm.notify_all();
    }
}

/// Nothing waits, nothing is in flight, and so many calls were made.
fn ends_with(limiter: &Limiter, sends: u64) {
    let account = limiter.snapshot().account;
    assert_eq!((account.waiting, account.concurrency.in_flight, account.totals.sends), (0, 0, sends));
}

/// A limiter of so many in flight, whose first call has been made, so that the next one waits for the time.
fn begun(max: u32) -> (Limiter, Done) {
    let limiter = limiter(max);
    limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
    (limiter, Done::default())
}

/// A thread that makes one call as soon as it may.
fn blocked_thread(limiter: &Limiter, done: &Done) -> thread::JoinHandle<u64> {
    refusable_thread(limiter, done, |error| panic!("a wait is no error: {error}"))
}

/// The same where the limiter may refuse: that is checked. Says how many calls it made.
fn refusable_thread(limiter: &Limiter, done: &Done, check: fn(&Error)) -> thread::JoinHandle<u64> {
    let (limiter, done) = (limiter.clone(), done.clone());
    thread::spawn(move || {
        let permit = limiter.acquire_blocking(request(&limiter)).inspect_err(check).ok();
        let calls = u64::from(permit.is_some());
        drop(permit.map(|permit| permit.complete(success())));
        done.one();
        calls
    })
}

#[test]
fn threads_and_tasks_in_one_queue_are_all_granted() {
    check(|| {
        let (limiter, done) = (limiter(9), Done::default());
        let threads = [blocked_thread(&limiter, &done), blocked_thread(&limiter, &done)];
        let tasks = [(); 2].map(|()| {
            let (limiter, done) = (limiter.clone(), done.clone());
            future::spawn(async move {
                limiter.acquire(request(&limiter)).await.expect("a wait is no error").complete(success());
                done.one();
            })
        });
        done.wait_for(4, limiter.driver());
        threads.into_iter().for_each(|thread| _ = thread.join().expect("no panic"));
        tasks.into_iter().for_each(|task| future::block_on(task).expect("no panic"));
        ends_with(&limiter, 4);
    });
}

#[test]
fn a_wait_dropped_as_it_is_granted_passes_the_permit_on() {
    check(|| {
        let (limiter, done) = (limiter(1), Done::default());
        let held = limiter.try_acquire(request(&limiter)).expect("the only place");
        let mut waiting = Box::pin({
            let limiter = limiter.clone();
            async move { limiter.acquire(request(&limiter)).await }
        });
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        let second = blocked_thread(&limiter, &done);
        let dropping = thread::spawn(move || drop(waiting));
        let completing = thread::spawn(move || drop(held.complete(success())));
        done.wait_for(1, limiter.driver());
        second.join().expect("no panic");
        [dropping, completing].into_iter().for_each(|thread| thread.join().expect("no panic"));
        ends_with(&limiter, 2);
    });
}

#[test]
fn closing_lets_every_caller_go_whatever_is_granted_meanwhile() {
    check(|| {
        let (limiter, done) = begun(9);
        let closed = |error: &Error| assert_eq!(*error, Error::Closed);
        let threads = [(); 3].map(|()| refusable_thread(&limiter, &done, closed));
        pass_time(limiter.driver());
        thread::yield_now();
        pass_time(limiter.driver());
        limiter.close();
        done.wait_for(3, limiter.driver());
        let granted: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        ends_with(&limiter, 1 + granted);
    });
}

#[test]
fn a_caller_that_comes_as_the_timer_ends_is_not_left_alone() {
    check(|| {
        let (limiter, done) = begun(9);
        let first = blocked_thread(&limiter, &done);
        // Nothing is left to wait for now, so time passes until the thread ends, unless the second caller is faster.
        let second = {
            let (limiter, done) = (limiter.clone(), done.clone());
            thread::spawn(move || {
                limiter.acquire_blocking(request(&limiter)).expect("a wait is no error").complete(success());
                let due = Some(limiter.now() + 3 * S);
                let later = Request { not_before: due, ..request(&limiter) };
                limiter.acquire_blocking(later).expect("a wait is no error").complete(success());
                done.one();
            })
        };
        done.wait_for(2, limiter.driver());
        first.join().expect("no panic");
        second.join().expect("no panic");
        ends_with(&limiter, 4);
    });
}

#[test]
fn what_is_due_earlier_wakes_the_timer() {
    check(|| {
        let (limiter, done) = (limiter(9), Done::default());
        let start = limiter.now();
        let threads = [20, 1, 7].map(|seconds| {
            let (limiter, done) = (limiter.clone(), done.clone());
            thread::spawn(move || {
                let later = Request { not_before: Some(start + seconds * S), ..request(&limiter) };
                limiter.acquire_blocking(later).expect("a wait is no error").complete(success());
                assert!(limiter.now() >= start + seconds * S, "not before it is due");
                done.one();
            })
        });
        // Each time that this lets pass, it checks that the thread does not sleep beyond what is due first.
        done.wait_for(3, limiter.driver());
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        ends_with(&limiter, 3);
    });
}

#[test]
fn a_stop_and_its_end_reach_those_who_wait() {
    check(|| {
        let (limiter, done) = (limiter(1), Done::default());
        let held = limiter.try_acquire(request(&limiter)).expect("the only place");
        let stopped = |error: &Error| assert!(matches!(error, Error::Stopped { .. }), "{error}");
        let waiting = refusable_thread(&limiter, &done, stopped);
        let completing = thread::spawn(move || drop(held.complete(success())));
        limiter.stop(None, "a test");
        limiter.resume(None);
        done.wait_for(1, limiter.driver());
        completing.join().expect("no panic");
        ends_with(&limiter, 1 + waiting.join().expect("no panic"));
    });
}
