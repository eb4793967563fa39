//! A lease that several callers count down, while others use the limiter, under a model checker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::{Class, Limits, Outcome, Pace, PacerConfig, Quota};
use shuttle::thread;

use super::Unreported;
use crate::driver::proof::check;
use crate::limiter::Limiter;
use crate::sync::model;

/// Of the limit in the scenarios.
const WINDOW: Duration = Duration::from_secs(600);

fn limiter(limit: u64) -> Limiter {
    let quotas = vec![Quota::sliding(paceline_core::Dimension::Requests, limit, WINDOW)];
    let limits = Limits { quotas, burst: None };
    let limiter = Limiter::with_seed(PacerConfig::from(limits).with_pace(Pace::Fixed), 1).expect("sensible");
    limiter.resume(None);
    limiter
}

/// A thread that asks so often, and adds what it was granted.
fn asking(calls: &Unreported, times: u32, granted: &Arc<AtomicU64>) -> thread::JoinHandle<()> {
    let (calls, granted) = (calls.clone(), granted.clone());
    thread::spawn(move || {
        for _ in 0..times {
            granted.fetch_add(u64::from(calls.try_acquire().is_ok()), Ordering::SeqCst);
        }
    })
}

#[test]
fn callers_of_one_lease_and_of_another_take_what_there_is_and_no_more() {
    check(|| {
        let limiter = limiter(5);
        let (mine, other) = (limiter.unreported("a"), limiter.unreported("b"));
        let granted = Arc::<AtomicU64>::default();
        let threads = [asking(&mine, 3, &granted), asking(&mine, 3, &granted), asking(&other, 3, &granted)];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(granted.load(Ordering::SeqCst), 5, "nine ask");
        assert_eq!(limiter.snapshot().account.totals.sends, 5);
    });
}

#[test]
fn what_left_of_a_lease_is_counted_before_any_other_caller_is_answered() {
    check(|| {
        let limiter = limiter(4);
        let calls = limiter.unreported("a");
        let granted = Arc::<AtomicU64>::default();
        let asking = [asking(&calls, 2, &granted), asking(&calls, 2, &granted)];
        let reporting = {
            let (limiter, granted) = (limiter.clone(), granted.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Ok(permit) = limiter.try_acquire("a") {
                        granted.fetch_add(1, Ordering::SeqCst);
                        permit.complete(Outcome::new(Class::Success));
                    }
                }
            })
        };
        asking.into_iter().for_each(|thread| thread.join().expect("no panic"));
        reporting.join().expect("no panic");
        assert_eq!(granted.load(Ordering::SeqCst), 4, "six ask");
        assert_eq!(limiter.snapshot().account.totals.sends, 4);
    });
}

#[test]
fn nothing_leaves_after_a_hold_and_all_is_back_when_the_window_has_passed() {
    check(|| {
        let limiter = limiter(4);
        let calls = limiter.unreported("a");
        let granted = Arc::<AtomicU64>::default();
        let before = asking(&calls, 2, &granted);
        let holding = {
            let (limiter, calls) = (limiter.clone(), calls.clone());
            thread::spawn(move || {
                limiter.hold(None, limiter.now() + WINDOW);
                assert!(calls.try_acquire().is_err(), "held");
            })
        };
        before.join().expect("no panic");
        holding.join().expect("no panic");
        assert!(calls.try_acquire().is_err(), "held");
        let sends = limiter.snapshot().account.totals.sends;
        assert_eq!(granted.load(Ordering::SeqCst), sends);
        // A lease that no caller ended counts as of its end, not as of the next question.
        model::pass(WINDOW + WINDOW / 1_000);
        limiter.resume(None);
        let threads = [asking(&calls, 3, &granted), asking(&calls, 3, &granted)];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(granted.load(Ordering::SeqCst), sends + 4);
    });
}
