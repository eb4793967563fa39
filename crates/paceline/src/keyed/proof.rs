//! A key that becomes a scope and counts again, under a model checker: its calls are counted in one place at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::{Limits, PacerConfig, Quota};
use shuttle::{check_pct, check_random, thread};

use super::KeyedLimiter;
use crate::driver::block_on;
use crate::sync::model;

/// Orders tried of each kind, and preemptions in those with few.
const ORDERS: usize = 300;
const PREEMPTIONS: usize = 3;

fn check(scenario: fn()) {
    let run = move || {
        model::begin();
        scenario();
    };
    check_random(run, ORDERS);
    check_pct(run, ORDERS, PREEMPTIONS);
}

fn never_one_too_many(quota: Quota) {
    let limits = Limits { quotas: vec![quota], burst: None };
    let limiter = KeyedLimiter::new(PacerConfig::from(limits)).expect("sensible");
    let granted = Arc::new(AtomicU64::new(0));
    let start = |answered: bool| {
        let (limiter, granted) = (limiter.clone(), granted.clone());
        thread::spawn(move || {
            for _ in 0..3 {
                if answered {
                    let scope = limiter.scope(&7);
                    thread::yield_now();
                    granted.fetch_add(u64::from(limiter.shared.limiter.try_acquire(scope).is_ok()), Ordering::SeqCst);
                } else {
                    granted.fetch_add(u64::from(limiter.try_acquire(&7).is_ok()), Ordering::SeqCst);
                }
            }
        })
    };
    let threads = [false, true, false].map(start);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(granted.load(Ordering::SeqCst), 4, "all that the hour allows, and no more");
    assert!(limiter.try_acquire(&7).is_err());
    block_on(limiter.acquire(&8)).expect("another key");
}

#[test]
fn a_bucket_is_counted_in_one_place_at_any_time() {
    check(|| never_one_too_many(Quota::per_hour(4).burst(4)));
}

#[test]
fn a_window_is_counted_in_one_place_at_any_time() {
    check(|| never_one_too_many(Quota::sliding(paceline_core::Dimension::Requests, 4, Duration::from_secs(3_600))));
}
