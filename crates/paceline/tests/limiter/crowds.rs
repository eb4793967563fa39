//! Many at once, and many one after another: threads, scopes, runtimes, waits that are given up.

use std::future::ready;
use std::sync::LazyLock;
use std::thread;

use tokio::runtime::Builder;

use super::*;

#[test]
fn ten_threads_in_ten_thousand_scopes_are_all_served() {
    let limiter = limiter(fixed(vec![], None, 3));
    let threads = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|part| {
        let limiter = limiter.clone();
        thread::spawn(move || {
            for name in (0..10_000).skip(part).step_by(10) {
                let request = Request::new(limiter.scope(&name.to_string()), Cost::request());
                limiter.blocking().acquire(request).expect("a wait is no error").complete(success());
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(sends(&limiter), 10_000);
    let scopes = limiter.snapshot().scopes;
    assert_eq!(scopes.iter().filter(|scope| scope.totals.sends == 1).count(), 10_000);
}

#[test]
fn a_thousand_blocked_threads_go_on_one_after_another() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let threads: Vec<_> = (0..1_000)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || call_blocking(&limiter, 1))
        })
        .collect();
    while limiter.snapshot().account.waiting < 1_000 {
        thread::yield_now();
    }
    held.complete(success());
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(sends(&limiter), 1_001);
}

#[tokio::test]
async fn a_hundred_thousand_waits_given_up_in_a_select_leave_nothing_behind() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 10));
    limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
    for _ in 0..100_000 {
        tokio::select! {
            biased;
            _ = limiter.acquire(request(&limiter)) => panic!("an hour has not passed"),
            () = ready(()) => {}
        }
    }
    assert_eq!(sends(&limiter), 1);
    limiter.reconfigure(fixed(vec![requests(2, 3_600 * S)], None, 10)).expect("sensible");
    limiter.acquire(request(&limiter)).await.expect("nothing is ahead of it").complete(success());
    assert_eq!(sends(&limiter), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waits_given_up_as_their_permits_come_lose_none() {
    let limiter = limiter(fixed(vec![], None, 2));
    let tasks = [0_usize; 8].map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut calls = 0;
            for _ in 0..5_000 {
                tokio::select! {
                    biased;
                    permit = limiter.acquire(request(&limiter)) => {
                        tokio::task::yield_now().await;
                        permit.expect("a wait is no error").complete(success());
                        calls += 1;
                    }
                    () = tokio::task::yield_now() => {}
                }
            }
            calls
        })
    });
    let mut calls = 0;
    for task in tasks {
        calls += task.await.expect("no panic");
    }
    assert_eq!(sends(&limiter), calls, "what no caller sent is not counted");
}

#[test]
fn a_static_limiter_serves_two_runtimes_one_after_the_other() {
    static SHARED: LazyLock<Limiter> = LazyLock::new(|| limiter(fixed(vec![requests(200, S)], Some(1), 100)));
    for paused in [false, true, false] {
        let runtime = Builder::new_current_thread().enable_time().start_paused(paused).build().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..3 {
                SHARED.acquire(request(&SHARED)).await.expect("a wait is no error").complete(success());
            }
            // It ends with callers that wait, one of them in a task.
            tokio::spawn(async { drop(SHARED.acquire(request(&SHARED)).await) });
            tokio::task::yield_now().await;
        });
    }
    call_blocking(&SHARED, 1);
    assert!(sends(&SHARED) >= 10);
}

#[test]
fn all_threads_of_a_runtime_may_block_for_permits() {
    let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(2).enable_time().build();
    let limiter = limiter(fixed(vec![requests(1_000, S)], Some(1), 100));
    runtime.expect("a runtime").block_on(async {
        let blocking: Vec<_> = (0..20)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::task::spawn_blocking(move || call_blocking(&limiter, 1))
            })
            .collect();
        let inside = limiter.clone();
        tokio::spawn(async move { call_blocking(&inside, 1) }).await.expect("no panic");
        for call in blocking {
            call.await.expect("no panic");
        }
        call_blocking(&limiter, 1);
    });
    assert_eq!(sends(&limiter), 22);
}

#[tokio::test(start_paused = true)]
async fn under_a_paused_clock_a_blocked_thread_waits_until_the_test_moves_it() {
    let limiter = limiter(fixed(vec![requests(1, S)], Some(1), 10));
    call_blocking(&limiter, 1);
    let other = limiter.clone();
    let blocked = tokio::task::spawn_blocking(move || call_blocking(&other, 1));
    while limiter.snapshot().account.waiting == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::time::advance(S / 50).await;
    }
    blocked.await.expect("no panic");
    assert_eq!(sends(&limiter), 2);
}
