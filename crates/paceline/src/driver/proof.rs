//! The driver under a model checker: its real code, with a lock, an alarm and threads that the checker schedules.
//!
//! Each scenario runs in many orders: random ones, and ones with few preemptions, which find what needs a rare but small
//! coincidence. Time stands still until [`pass_time`] moves it to where the timer's thread sleeps until; so a caller that
//! only another input would wake is found as a run that never ends, and one that is woken late shows it by the clock. What
//! `timer.rs` promises is checked each time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline_core::{Class, Concurrency, Cost, Dimension, Instant, Limits, Outcome, Pace, PacerConfig, Quota, Request};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, future, thread};

use super::Driver;
use super::permit::{Permit, Within};
use super::timer::{LostTask, Timer};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::sync::model;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Orders tried of each kind.
const ORDERS: usize = 300;

/// Preemptions in the orders with few.
const PREEMPTIONS: usize = 3;

/// A run of more steps never ends.
const STEPS: usize = 20_000;

pub(super) fn check(scenario: fn()) {
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
    Limiter::with_seed(config(Quota::sliding(Dimension::Requests, 1_000, S), max), 1).expect("sensible")
}

fn config(quota: Quota, max: u32) -> PacerConfig {
    PacerConfig {
        limits: Limits { quotas: vec![quota], burst: Some(1) },
        concurrency: Concurrency::Fixed { max },
        pace: Pace::Fixed,
        ..PacerConfig::default()
    }
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
            // The pacer makes up for a call that leaves so late, and for no more.
            assert!(until <= due.max(now) + 5 * MS, "asleep until {until}, and {due} is due");
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
    assert_eq!(limiter.driver().lock().0.waiters.len(), 0, "who is gone is forgotten");
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
        let permit = limiter.blocking().acquire(request(&limiter)).inspect_err(check).ok();
        let calls = u64::from(permit.is_some());
        drop(permit.map(|permit| permit.complete(success())));
        done.one();
        calls
    })
}

/// A thread that makes one call which is not due before that, and checks that it was not made earlier.
fn later_thread(limiter: &Limiter, done: &Done, due: Instant) -> thread::JoinHandle<()> {
    let (limiter, done) = (limiter.clone(), done.clone());
    thread::spawn(move || {
        let later = Request { not_before: Some(due), ..request(&limiter) };
        limiter.blocking().acquire(later).expect("a wait is no error").complete(success());
        assert!(limiter.now() >= due, "not before it is due");
        done.one();
    })
}

/// A caller that waits, and is not polled again.
fn asks(limiter: &Limiter) -> Pin<Box<dyn Future<Output = Result<Permit, Error>> + Send>> {
    let limiter = limiter.clone();
    let mut waiting = Box::pin(async move { limiter.acquire(request(&limiter)).await });
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(context).is_pending());
    waiting
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
        let waiting = asks(&limiter);
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
                limiter.blocking().acquire(request(&limiter)).expect("a wait is no error").complete(success());
                let due = Some(limiter.now() + 3 * S);
                let later = Request { not_before: due, ..request(&limiter) };
                limiter.blocking().acquire(later).expect("a wait is no error").complete(success());
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
        let threads = [20, 1, 7].map(|seconds| later_thread(&limiter, &done, start + seconds * S));
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

#[test]
fn a_wait_dropped_as_its_time_comes_passes_its_turn_on() {
    check(|| {
        let (limiter, done) = begun(9);
        let waiting = asks(&limiter);
        let second = blocked_thread(&limiter, &done);
        let dropping = thread::spawn(move || drop(waiting));
        done.wait_for(1, limiter.driver());
        second.join().expect("no panic");
        dropping.join().expect("no panic");
        ends_with(&limiter, 2);
    });
}

#[test]
fn when_all_who_wait_are_gone_the_timer_ends_and_nothing_is_kept() {
    check(|| {
        let (limiter, _) = begun(9);
        limiter.hold(Some(&limiter.scope("test")), limiter.now() + S);
        assert_eq!(limiter.driver().lock().0.timers.thread, Timer::Off, "no caller waits for its end");
        limiter.resume(None);
        let waiting = [(); 3].map(|()| asks(&limiter));
        let driver = Arc::downgrade(limiter.driver());
        drop(limiter);
        let dropping = waiting.map(|waiting| thread::spawn(move || drop(waiting)));
        while let Some(driver) = driver.upgrade() {
            pass_time(&driver);
            drop(driver);
            thread::yield_now();
        }
        dropping.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn the_thread_takes_over_when_the_task_that_kept_the_time_is_lost() {
    check(|| {
        let (limiter, done) = begun(9);
        // As if the first caller waited in a runtime with a paused clock, which ends while others come.
        limiter.driver().lock().0.timers.task = Timer::Awake;
        let lost = LostTask(limiter.driver().clone());
        let first = blocked_thread(&limiter, &done);
        let ending = thread::spawn(move || drop(lost));
        let second = blocked_thread(&limiter, &done);
        ending.join().expect("no panic");
        done.wait_for(2, limiter.driver());
        [first, second].into_iter().for_each(|thread| _ = thread.join().expect("no panic"));
        ends_with(&limiter, 3);
    });
}

#[test]
fn a_deadline_that_passes_as_the_permit_comes_is_told_or_met() {
    check(|| {
        let (limiter, done) = (limiter(1), Done::default());
        let held = limiter.try_acquire(request(&limiter)).expect("the only place");
        let waiting = {
            let (limiter, done) = (limiter.clone(), done.clone());
            thread::spawn(move || {
                let deadline = Some(limiter.now() + S);
                let answer = limiter.blocking().acquire(Request { deadline, ..request(&limiter) });
                if let Err(error) = &answer {
                    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
                }
                done.one();
                u64::from(answer.map(|permit| permit.complete(success())).is_ok())
            })
        };
        let completing = thread::spawn(move || drop(held.complete(success())));
        done.wait_for(1, limiter.driver());
        completing.join().expect("no panic");
        ends_with(&limiter, 1 + waiting.join().expect("no panic"));
    });
}

#[test]
fn a_hold_that_comes_as_the_permit_does_puts_a_caller_off_or_finds_it_gone() {
    check(|| {
        let (limiter, done) = (limiter(1), Done::default());
        let held = limiter.try_acquire(request(&limiter)).expect("the only place");
        let end = limiter.now() + 10 * S;
        let waiting = [(); 2].map(|()| {
            let (limiter, done) = (limiter.clone(), done.clone());
            thread::spawn(move || {
                let within = limiter.blocking().acquire_within(request(&limiter), S).expect("a wait is no error");
                done.one();
                match within {
                    Within::Granted(permit) => {
                        permit.complete(success());
                        1
                    }
                    Within::Deferred { until, .. } => {
                        assert_eq!(until, end);
                        0
                    }
                }
            })
        });
        // It is gone as it is put off.
        let limiter_of_gone = limiter.clone();
        let mut gone = Box::pin(async move { limiter_of_gone.acquire_within(request(&limiter_of_gone), S).await });
        drop(gone.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())));
        let dropping = thread::spawn(move || drop(gone));
        let completing = thread::spawn(move || drop(held.complete(success())));
        limiter.hold(None, end);
        done.wait_for(2, limiter.driver());
        let sends: u64 = waiting.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        [dropping, completing].into_iter().for_each(|thread| thread.join().expect("no panic"));
        ends_with(&limiter, 1 + sends);
    });
}

#[test]
fn new_limits_as_the_timer_sleeps_wake_it_for_what_is_due_then() {
    check(|| {
        let (limiter, done) = begun(9);
        limiter.reconfigure(config(Quota::sliding(Dimension::Requests, 1, 3_600 * S), 9)).expect("sensible");
        let waiting = blocked_thread(&limiter, &done);
        let changing = {
            let limiter = limiter.clone();
            let fast = config(Quota::sliding(Dimension::Requests, 1_000, S), 9);
            thread::spawn(move || limiter.reconfigure(fast).expect("sensible"))
        };
        done.wait_for(1, limiter.driver());
        changing.join().expect("no panic");
        waiting.join().expect("no panic");
        ends_with(&limiter, 2);
    });
}

#[test]
fn without_a_thread_a_caller_is_told_and_the_next_input_starts_one() {
    check(|| {
        let (limiter, done) = begun(9);
        model::refuse_threads(true);
        let error = limiter.blocking().acquire(request(&limiter)).expect_err("the system allows no more threads");
        assert!(matches!(error, Error::NoTimer { .. }), "{error}");
        assert_eq!((limiter.snapshot().account.waiting, limiter.driver().lock().0.waiters.len()), (0, 0));
        model::refuse_threads(false);
        blocked_thread(&limiter, &done);
        done.wait_for(1, limiter.driver());
        ends_with(&limiter, 2);
    });
}

#[test]
fn a_night_that_the_machine_sleeps_counts_and_is_noticed_within_half_a_minute() {
    check(|| {
        let (limiter, done) = (limiter(9), Done::default());
        let awake = model::now().expect("the model's time");
        let thread = later_thread(&limiter, &done, limiter.now() + 8 * 3_600 * S);
        while !matches!(limiter.driver().lock().0.timers.thread, Timer::Asleep(_)) {
            thread::yield_now();
        }
        model::suspend(8 * 3_600 * S);
        done.wait_for(1, limiter.driver());
        thread.join().expect("no panic");
        let passed = model::now().expect("the model's time") - awake;
        assert!(passed <= 32 * S, "awake for {passed:?}, the end of the thread included");
        ends_with(&limiter, 1);
    });
}

#[test]
fn time_that_passes_while_the_timer_works_strands_no_caller() {
    check(|| {
        let (limiter, done) = begun(9);
        let first = blocked_thread(&limiter, &done);
        while done.0.load(Ordering::SeqCst) < 1 {
            pass_time(limiter.driver());
            thread::yield_now();
        }
        first.join().expect("no panic");
        // The timer has nothing to wait for now, and has not ended.
        let passing = thread::spawn(|| {
            for _ in 0..30 {
                model::pass(MS);
                thread::yield_now();
            }
        });
        let start = limiter.now();
        let threads = [3, 9, 10].map(|at| later_thread(&limiter, &done, start + at * MS));
        done.wait_for(4, limiter.driver());
        passing.join().expect("no panic");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        ends_with(&limiter, 5);
    });
}

#[test]
fn a_night_that_the_machine_slept_is_known_to_the_next_caller() {
    check(|| {
        let hourly = || Quota::sliding(Dimension::Requests, 1, 3_600 * S);
        let limiter = Limiter::with_seed(config(hourly(), 9), 1).expect("sensible");
        let beside = limiter.clone();
        let looking = thread::spawn(move || drop(beside.snapshot()));
        let night = || {
            limiter.try_acquire(request(&limiter)).expect("a new hour").complete(success());
            model::suspend(8 * 3_600 * S);
        };
        night();
        let before = limiter.now();
        night();
        assert_eq!(limiter.now() - before, 8 * 3_600 * S);
        night();
        assert!(limiter.admit(&request(&limiter)).is_now());
        night();
        let late = Request { deadline: Some(limiter.now() + S), ..request(&limiter) };
        limiter.try_acquire(late).expect("in time").complete(success());
        let tonight = Request { deadline: Some(limiter.now() + 9 * 3_600 * S), ..request(&limiter) };
        model::suspend(8 * 3_600 * S);
        limiter.blocking().acquire(tonight).expect("in time").complete(success());
        looking.join().expect("no panic");
        ends_with(&limiter, 6);
    });
}
