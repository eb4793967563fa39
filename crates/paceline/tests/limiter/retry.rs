//! Retries without a limiter.

use std::future::{Ready, ready};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Response;
use paceline::{ByError, Class, RunError, WithRetries, blocking_retry, retry};

use super::*;

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// The begin of a test, in virtual time.
struct Began(paceline::Clock, Instant);

impl Began {
    fn now() -> Self {
        let clock = paceline::Clock::new();
        let now = clock.now();
        Self(clock, now)
    }

    fn elapsed(&self) -> Duration {
        self.0.now() - self.1
    }
}

/// An operation that ends each call in a future that is ready.
type Ends = WithRetries<Box<dyn FnMut() -> Ready<io::Result<()>>>, Ready<io::Result<()>>>;

/// One that fails so often before it succeeds, and the seconds at which it was called.
fn failing(times: usize) -> (Ends, Arc<Mutex<Vec<u64>>>) {
    let (start, calls) = (Began::now(), Arc::<Mutex<Vec<u64>>>::default());
    let seen = calls.clone();
    let operation = move || {
        let mut seen = seen.lock().expect("no test panics here");
        seen.push(start.elapsed().as_secs());
        ready(if seen.len() <= times { Err(reset()) } else { Ok(()) })
    };
    (retry(Box::new(operation)), calls)
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_waits_and_is_called_again() {
    let (saves, calls) = failing(2);
    let growth = Growth::Exponential { base: S, multiplier: 3.0, cap: 60 * S };
    let backoff = Backoff { growth, jitter: Jitter::None };
    let mut heard = Vec::new();
    let saves = saves.with(Retry { backoff, ..Retry::default() });
    saves.notify(|again| heard.push((again.class, again.calls, again.delay))).await.expect("the third call succeeds");
    assert_eq!(*calls.lock().expect("no test panics here"), [0, 1, 4]);
    assert_eq!(heard, [(Class::Transient, 1, S), (Class::Transient, 2, 3 * S)]);
}

#[tokio::test(start_paused = true)]
async fn by_default_there_are_seven_retries_with_full_jitter() {
    let start = Began::now();
    let (saves, calls) = failing(usize::MAX);
    let failed = saves.await.expect_err("it always fails");
    assert_eq!((failed.calls(), calls.lock().expect("no test panics here").len()), (8, 8));
    assert!(start.elapsed() <= S / 2 * 127, "half a second, doubled: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_error_has_in_it_what_one_of_a_run_has() {
    let policy = Retry { max_deferrals: Some(0), ..backing_off(S, 2) };
    let before = paceline::clock::wall();
    let hint = |seconds: &u64| (*seconds > 0).then(|| Duration::from_secs(*seconds));
    let refused = retry(async || Err::<(), _>(20)).with(policy.clone()).when(|_| true).hint(hint);
    let refused = refused.await.expect_err("no deferral is left");
    assert!(refused.is_rate_limited() && refused.is_retryable() && refused.calls() == 1, "{refused:?}");
    assert!(refused.retry_not_before() >= Some(before + 20 * S), "{refused:?}");
    for (kind, fatal, calls) in [(io::ErrorKind::ConnectionReset, false, 3), (io::ErrorKind::NotFound, true, 1)] {
        let failed =
            retry(async || Err::<(), io::Error>(kind.into())).with(policy.clone()).await.expect_err("it fails");
        assert_eq!((failed.is_fatal(), failed.calls(), failed.retry_not_before()), (fatal, calls, None), "{kind}");
        assert_eq!(failed.into_operation().expect("it was called").kind(), kind);
    }
    let account = retry(async || Err::<(), _>("a bad key")).read(|_, _| Outcome::new(Class::Account));
    let account = account.await.expect_err("a person has to act");
    assert!(account.is_fatal() && account.calls() == 1, "{account:?}");
}

#[tokio::test(start_paused = true)]
async fn answers_are_read_as_those_of_a_run() {
    let calls = AtomicU32::new(0);
    let start = Began::now();
    let asks = async || {
        let status = [503, 429, 200][calls.fetch_add(1, Ordering::Relaxed) as usize];
        Ok::<_, io::Error>(Response::builder().status(status).header("retry-after", "9").body("").expect("a response"))
    };
    assert_eq!(retry(asks).await.expect("an answer").status(), 200);
    assert_eq!(start.elapsed().as_secs(), 18);
    assert_eq!(retry(async || Ok::<_, io::Error>(7)).read_by(ByError).await.expect("rows"), 7);
    // A refusal that comes back as `Ok` is returned as it was made.
    let gone = retry(async || Ok::<_, io::Error>(Response::builder().status(404).body("").expect("a response")));
    assert_eq!(gone.await.expect("an answer, though a bad one").status(), 404);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_first_call() {
    let policy = Retry { deadline: Some(10 * S), ..backing_off(4 * S, 7) };
    let (saves, calls) = failing(usize::MAX);
    let saves = saves.with(policy.clone());
    tokio::time::advance(60 * S).await;
    saves.await.expect_err("it always fails");
    assert_eq!(*calls.lock().expect("no test panics here"), [60, 64, 68], "and none at 72");
    // A call that takes long leaves less.
    let start = Began::now();
    let slow = async || {
        tokio::time::sleep(7 * S).await;
        Err::<(), _>(reset())
    };
    let failed = retry(slow).with(policy).await.expect_err("it always fails");
    assert_eq!((failed.calls(), start.elapsed().as_secs()), (1, 7));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_holds_no_other_call() {
    let start = Began::now();
    let calls = AtomicU32::new(0);
    let refused = retry(async || if calls.fetch_add(1, Ordering::Relaxed) == 0 { Err(60 * S) } else { Ok(()) });
    let refused = refused.hint(|wait: &Duration| Some(*wait)).read_by(ByHintAlone);
    let (_, other) = tokio::join!(refused, async {
        retry(async || Ok::<(), io::Error>(())).await.expect("it succeeds");
        start.elapsed()
    });
    assert_eq!((other, start.elapsed()), (Duration::ZERO, 60 * S));
}

/// Reads an error as a refusal that names its wait.
struct ByHintAlone;

impl<T> paceline::AnswerReader<Result<T, Duration>> for ByHintAlone {
    fn outcome(&self, result: &Result<T, Duration>, _: &paceline::Attempt<'_>) -> Outcome {
        match result {
            Ok(_) => success(),
            Err(wait) => Outcome::new(Class::Throttled).with_hint(*wait, true),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_retry_calls_no_more() {
    let (saves, calls) = failing(usize::MAX);
    let saves = saves.with(backing_off(5 * S, 7));
    tokio::time::timeout(12 * S, saves).await.expect_err("it is dropped in its wait");
    tokio::time::advance(60 * S).await;
    assert_eq!(*calls.lock().expect("no test panics here"), [0, 5, 10]);
}

/// What each nesting comes to: the calls, where every layer has two retries and each call fails.
#[tokio::test(start_paused = true)]
async fn nested_loops_share_the_budget_of_the_outermost() {
    let calls = AtomicU32::new(0);
    let fails = async || {
        tokio::task::yield_now().await;
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(reset())
    };
    let policy = || backing_off(S, 2);
    let paced = limiter(PacerConfig { retry: policy(), ..fixed(vec![], None, 5) });

    let inner = async || retry(&fails).with(policy()).await;
    let failed = retry(inner).with(policy()).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3), "a retry in a retry");

    let failed = paced.run(inner).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3), "a retry in a run");

    let inner = async || paced.run(&fails).await;
    let failed = retry(inner).with(policy()).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3), "a run in a retry");
    assert_eq!(sends(&paced), 3 + 3, "each call of a run has its permit");

    let middle = async || paced.run(inner).await;
    let failed = retry(middle).with(policy()).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3), "a run in a run in a retry");

    let inner = async || retry(&fails).with(policy()).await;
    let middle = async || retry(inner).with(policy()).await;
    let failed = paced.run(middle).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3), "a retry in a retry in a run");
}

#[tokio::test(start_paused = true)]
async fn a_loop_beside_a_retry_is_not_inside_it() {
    let policy = || backing_off(S, 2);
    let fails = async || {
        tokio::task::yield_now().await;
        Err::<(), _>(reset())
    };
    let outer = retry(async || {
        tokio::time::sleep(S).await;
        Ok::<(), io::Error>(())
    });
    let (outer, beside) = tokio::join!(outer, retry(fails).with(policy()));
    outer.expect("it succeeds");
    assert_eq!(beside.expect_err("it always fails").calls(), 3);
    // Nor is one that begins in a task of its own.
    let spawns = async || tokio::spawn(retry(fails).with(policy())).await.expect("no panic");
    let failed = retry(spawns).with(backing_off(S, 0)).await.expect_err("it always fails");
    assert_eq!(failed.into_operation().expect("it was called").calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_wait_that_an_inner_loop_was_asked_for_is_the_wait_of_the_outer_one() {
    let paced = limiter(fixed(vec![], None, 5));
    for by_run in [false, true] {
        let (calls, start) = (AtomicU32::new(0), Began::now());
        let answer = async || if calls.fetch_add(1, Ordering::Relaxed) == 0 { Err(40 * S) } else { Ok(()) };
        let inner = async || match by_run {
            false => retry(answer).read_by(ByHintAlone).await,
            true => paced.run(answer).read_by(ByHintAlone).await,
        };
        retry(inner).when(|_| true).with(backing_off(S, 2)).await.expect("the second call succeeds");
        assert_eq!(start.elapsed(), 40 * S, "by a run: {by_run}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_operation_mends_is_no_failure() {
    let calls = AtomicU32::new(0);
    let mends = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        drop(retry(async || Err::<(), _>(reset())).await);
        Ok::<(), io::Error>(())
    };
    retry(mends).await.expect("mended");
    assert_eq!(calls.into_inner(), 1);
}

/// What a loop inside met is over: the failure after it is read by itself, and the wait that was asked for is waited.
#[tokio::test(start_paused = true)]
async fn a_failure_that_the_operation_handles_decides_nothing_about_the_next_one() {
    let calls = AtomicU32::new(0);
    let save = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(reset())
    };
    let policy = || backing_off(S, 2);
    let cached = async || {
        drop(retry(async || Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))).await);
        save().await
    };
    let busy = async || {
        drop(retry(async || Err::<(), _>(40 * S)).read_by(ByHintAlone).await);
        save().await
    };
    let began = Began::now();
    retry(cached).with(policy()).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), began.elapsed()), (3, 2 * S), "a final failure was handled");
    let began = Began::now();
    retry(busy).with(policy()).await.expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), began.elapsed()), (3, 80 * S), "a wait was asked for");
    retry(busy).with(policy()).when(|_| false).await.expect_err("it is final");
    assert_eq!(calls.swap(0, Ordering::Relaxed), 1, "the outer one says that it is final");
    let mapped = async || retry(save).await.map_err(|_| io::Error::from(io::ErrorKind::NotFound));
    retry(mapped).with(policy()).await.expect_err("it is final");
    assert_eq!(calls.into_inner(), 1, "made final");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_operation_leaves_later_retries_as_they_were() {
    let panics = std::panic::AssertUnwindSafe(async {
        retry(async || -> io::Result<()> { panic!("as planned") }).await.expect("it panics")
    });
    tokio::spawn(panics.0).await.expect_err("it panics");
    let (saves, calls) = failing(1);
    saves.with(backing_off(S, 1)).await.expect("the second call succeeds");
    assert_eq!(*calls.lock().expect("no test panics here"), [0, 1]);
}

#[test]
#[should_panic(expected = "retry.multiplier")]
fn a_policy_that_cannot_be_is_refused_before_the_first_call() {
    let growth = Growth::Exponential { base: S, multiplier: f64::NAN, cap: S };
    let policy = Retry { backoff: Backoff { growth, jitter: Jitter::None }, ..Retry::default() };
    drop(failing(0).0.with(policy));
}

/// In real time, without a runtime: the thread of the library ends the waits.
#[test]
fn threads_are_called_again_too() {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                let mut calls = 0;
                let saves = || {
                    calls += 1;
                    if calls <= 2 { Err(reset()) } else { Ok(()) }
                };
                blocking_retry(saves).with(backing_off(Duration::from_millis(2), 2)).call().expect("the third call");
                calls
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), 3);
    }
}

/// An inner loop that blocks is inside the operation that blocks around it.
#[test]
fn nested_loops_of_threads_share_a_budget_too() {
    let calls = AtomicU32::new(0);
    let policy = || backing_off(Duration::from_millis(1), 2);
    let fails = || {
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(reset())
    };
    let inner = || blocking_retry(fails).with(policy()).call();
    let failed = blocking_retry(inner).with(policy()).call().expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3));
    let paced = limiter(PacerConfig { retry: policy(), ..fixed(vec![], None, 5) });
    let failed = paced.blocking().run(inner).call().expect_err("it always fails");
    assert_eq!((calls.swap(0, Ordering::Relaxed), failed.calls()), (3, 3));
    let inner = || paced.blocking().run(fails).call();
    let failed = blocking_retry(inner).with(policy()).call().expect_err("it always fails");
    assert_eq!((calls.into_inner(), failed.calls()), (3, 3));
    assert!(matches!(failed, RunError::Operation { error: RunError::Operation { .. }, .. }));
}

/// A future of a `retry` goes wherever its operation goes.
#[test]
fn a_retry_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    is_send(retry(async || Ok::<(), io::Error>(())).notify(|_| ()));
}
