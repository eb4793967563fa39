//! The responsive delay as something to sleep on.

use std::thread;

use paceline::{Clock, ResponsiveConfig, ResponsiveSleeper};

use super::*;

const MS: Duration = Duration::from_millis(1);

fn classic(initial: Duration) -> ResponsiveConfig {
    ResponsiveConfig { initial, randomization: 0.0, compat: true, ..ResponsiveConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn sleeps_as_long_as_the_delay_says() {
    let (sleeper, clock) = (ResponsiveSleeper::new(classic(100 * MS)).expect("sensible"), Clock::new());
    let start = clock.now();
    assert!(sleeper.sleep_on_success().await, "nothing to sleep");
    assert_eq!(clock.now(), start);
    assert!(sleeper.sleep_on_failure().await);
    assert_eq!(clock.now() - start, 100 * MS);
    assert!(sleeper.clone().sleep_on_failure_at_least(S).await);
    assert!(sleeper.sleep_on_success().await);
    let slept = 1_250 * MS;
    assert!((slept..slept + 3 * MS).contains(&(clock.now() - start)), "the timer works in milliseconds");
    let counters = sleeper.counters();
    assert_eq!((counters.invocations, counters.slept, counters.sleep_time), (4, 3, slept));
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_is_dropped_or_interrupted_has_counted_and_holds_up_no_worker() {
    let sleeper = ResponsiveSleeper::new(classic(60 * S)).expect("sensible");
    let dropped = tokio::time::timeout(S, sleeper.sleep_on_failure()).await;
    assert!(dropped.is_err());
    let other = tokio::spawn({
        let sleeper = sleeper.clone();
        async move { sleeper.sleep_on_success().await }
    });
    tokio::task::yield_now().await;
    sleeper.interrupt();
    assert!(!other.await.expect("no panic"), "it was not slept to the end");
    assert!(sleeper.sleep_on_success().await, "an interruption is over when it is over");
    let counters = sleeper.counters();
    assert_eq!((counters.invocations, counters.slept, counters.successes), (3, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn idle_time_begins_when_the_sleep_ends() {
    let config = ResponsiveConfig {
        randomization: 0.0,
        idle_half_life: Some(60 * S),
        initial: 40 * S,
        threshold: 100,
        ..ResponsiveConfig::default()
    };
    let sleeper = ResponsiveSleeper::new(config).expect("sensible");
    sleeper.sleep_on_failure().await;
    tokio::time::advance(59 * S).await;
    assert_eq!(sleeper.counters().current_delay, 40 * S);
    tokio::time::advance(62 * S).await;
    sleeper.sleep_on_failure().await;
    assert_eq!(sleeper.counters().current_delay, 15 * S, "halved twice, then up");
}

#[test]
fn counters_are_exact_under_eight_threads() {
    let config = ResponsiveConfig { max: Duration::from_nanos(3), ..classic(Duration::from_nanos(3)) };
    let sleeper = ResponsiveSleeper::new(config).expect("sensible");
    let worker = |sleeper: ResponsiveSleeper| {
        move || {
            for n in 0..1_000 {
                if n % 4 == 0 {
                    sleeper.blocking_sleep_on_failure()
                } else {
                    sleeper.blocking_sleep_on_success()
                };
            }
        }
    };
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(worker(sleeper.clone()))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let counters = sleeper.counters();
    assert_eq!((counters.invocations, counters.went_up), (8_000, 2_000));
    assert_eq!(counters.sleep_time, Duration::from_nanos(3 * counters.slept));
}

#[test]
fn a_blocking_sleep_is_interrupted_from_another_thread() {
    let sleeper = ResponsiveSleeper::new(classic(900 * S)).expect("sensible");
    let asleep = sleeper.clone();
    let thread = thread::spawn(move || asleep.blocking_sleep_on_failure());
    while sleeper.counters().slept == 0 {
        thread::yield_now();
    }
    sleeper.interrupt();
    assert!(!thread.join().expect("no panic"));
}
