//! The limiter outside of the usual runtime, in real time: blocked threads, other executors, runtimes that end.
//!
//! No test here measures time. A test that hangs is reported by name after a while.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use paceline::{Class, Error, NextAction, Permit};
use tokio::runtime::{Builder, Runtime};

use super::*;

/// So long that only what hangs takes it.
const FOREVER: Duration = Duration::from_secs(60);

/// Does the work in a thread of its own, so that what hangs fails instead of hanging.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let worker = thread::spawn(move || done.send(work()));
    match result.recv_timeout(FOREVER) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: still not done after {FOREVER:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", worker.join().err()),
    }
}

/// One call at a time, so that every further one waits for some milliseconds.
fn slow() -> Limiter {
    limiter(fixed(vec![requests(200, S)], Some(1), 100))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// An executor that knows nothing of Tokio.
fn elsewhere<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Makes so many calls, one after another.
async fn call(limiter: Limiter, calls: u32) {
    for _ in 0..calls {
        limiter.acquire(request(&limiter)).await.expect("a wait is no error").complete(success());
    }
}

/// A future that waits, polled once and never again.
fn asked_once(limiter: &Limiter) -> Pin<Box<dyn Future<Output = Result<Permit, Error>> + Send>> {
    let limiter = limiter.clone();
    let mut waiting = Box::pin(async move { limiter.acquire(request(&limiter)).await });
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    waiting
}

#[test]
fn waiting_without_a_runtime_works() {
    let limiter = slow();
    let other = limiter.clone();
    in_time("another executor", move || elsewhere(call(other, 3)));
    let other = limiter.clone();
    in_time("a blocked thread", move || call_blocking(&other, 3));
    assert_eq!(sends(&limiter), 6);
}

#[test]
fn a_thread_without_a_runtime_waits_beside_a_runtime() {
    let limiter = slow();
    let (blocked, elsewhere_too) = (limiter.clone(), limiter.clone());
    let threads =
        [thread::spawn(move || call_blocking(&blocked, 5)), thread::spawn(move || elsewhere(call(elsewhere_too, 5)))];
    let inside = limiter.clone();
    in_time("all three", move || {
        runtime().block_on(call(inside, 5));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    assert_eq!(sends(&limiter), 15);
}

#[test]
fn waiting_goes_on_when_the_runtime_where_it_began_ends() {
    let limiter = slow();
    call_blocking(&limiter, 1);
    let first = runtime();
    let gone: Vec<_> = (0..5).map(|_| first.spawn(call(limiter.clone(), 1_000))).collect();
    first.block_on(tokio::task::yield_now());
    let second = limiter.clone();
    let others = thread::spawn(move || {
        runtime().block_on(async {
            let calls: Vec<_> = (0..5).map(|_| tokio::spawn(call(second.clone(), 2))).collect();
            for call in calls {
                call.await.expect("no panic");
            }
        });
    });
    drop(first);
    in_time("the runtime that goes on", move || others.join().expect("no panic"));
    drop(gone);
    sends(&limiter);
}

#[test]
fn a_runtime_without_timers_or_with_a_blocked_thread_holds_up_no_caller() {
    let limiter = slow();
    call_blocking(&limiter, 1);
    let without_timers = limiter.clone();
    in_time("a runtime without timers", move || {
        Builder::new_current_thread().build().expect("a runtime").block_on(call(without_timers, 3));
    });
    let blocking = limiter.clone();
    in_time("a runtime whose only thread blocks", move || {
        runtime().block_on(async {
            let task = tokio::spawn(call(blocking.clone(), 1));
            tokio::task::yield_now().await;
            // Whatever waits in this thread, by any means.
            call_blocking(&blocking, 3);
            elsewhere(call(blocking, 3));
            task.await.expect("no panic");
        });
    });
    assert_eq!(sends(&limiter), 11);
}

#[test]
fn a_future_that_is_not_polled_or_forgotten_holds_up_no_caller() {
    let limiter = slow();
    limiter.hold(None, limiter.now() + 3_600 * S);
    let kept = asked_once(&limiter);
    std::mem::forget(asked_once(&limiter));
    limiter.resume(None);
    let other = limiter.clone();
    in_time("those behind it", move || call_blocking(&other, 3));
    let mut kept = kept;
    let permit =
        in_time("the one that is polled late", move || elsewhere(poll_fn(|context| kept.as_mut().poll(context))));
    drop(permit.expect("a wait is no error"));
    let account = limiter.snapshot().account;
    assert_eq!((account.waiting, account.concurrency.in_flight), (0, 1), "the forgotten one has its permit");
}

#[test]
fn blocked_threads_and_tasks_wait_in_one_queue() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let order: Arc<Mutex<Vec<u32>>> = Arc::default();
    let mut threads = Vec::new();
    for place in 0..6 {
        let (mine, order) = (limiter.clone(), order.clone());
        threads.push(thread::spawn(move || {
            let permit = match place % 3 {
                0 => mine.blocking().acquire(request(&mine)),
                1 => elsewhere(mine.acquire(request(&mine))),
                _ => runtime().block_on(mine.acquire(request(&mine))),
            };
            order.lock().expect("no panic").push(place);
            permit.expect("a wait is no error").complete(success());
        }));
        let waiting = limiter.clone();
        in_time("the next place in the queue", move || {
            while waiting.snapshot().account.waiting <= u64::from(place) {
                thread::yield_now();
            }
        });
    }
    held.complete(success());
    in_time("all of them", move || threads.into_iter().for_each(|thread| thread.join().expect("no panic")));
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_blocked_thread_is_told_of_a_deadline_a_stop_and_the_end() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 10));
    call_blocking(&limiter, 1);
    let deadline = Some(limiter.now() + S / 100);
    let late = limiter.blocking().acquire(Request { deadline, ..request(&limiter) }).expect_err("an hour to wait");
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
    for (end, expected) in [
        (Box::new(|limiter: &Limiter| limiter.stop(None, "a test")) as Box<dyn Fn(&Limiter)>, "the account is stopped"),
        (Box::new(|limiter: &Limiter| limiter.close()), "the limiter is closed"),
    ] {
        limiter.resume(None);
        let waiting = limiter.clone();
        let thread = thread::spawn(move || waiting.blocking().acquire(request(&waiting)));
        let watched = limiter.clone();
        in_time("waiting", move || {
            while watched.snapshot().account.waiting == 0 {
                thread::yield_now();
            }
        });
        end(&limiter);
        let error = in_time("an answer", move || thread.join().expect("no panic")).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_blocking_operation_is_sent_again_and_nests() {
    let limiter = limiter(PacerConfig { retry: backing_off(S / 100, 3), ..fixed(vec![], None, 1) });
    let mut calls = 0;
    let answer = in_time("three calls", move || {
        let inside = limiter.clone();
        let send = move || {
            let status = inside.blocking().run(|| {
                calls += 1;
                let status = if calls < 3 { 503 } else { 200 };
                Ok::<_, std::io::Error>(http::Response::builder().status(status).body("").expect("a response"))
            });
            let status = status.call()?.status();
            let answer = http::Response::builder().status(status).body(calls.to_string());
            Ok::<_, paceline::RunError<std::io::Error>>(answer.expect("a response"))
        };
        limiter.blocking().run(send).call()
    });
    let answer = answer.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "3"));
}

/// Asks the limiter whenever it is woken, and when it is dropped.
struct Asks(Limiter);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        self.0.snapshot();
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.snapshot();
    }
}

#[test]
fn a_waker_may_use_the_limiter() {
    let ways: [fn(&Limiter, Permit); 5] = [
        |_, held| drop(held.complete(success())),
        |limiter, _held| limiter.close(),
        |limiter, _held| limiter.stop(None, "a test"),
        |_, _held| {},
        |_, held| std::mem::forget(held),
    ];
    for way in ways {
        in_time("a waker that asks the limiter", move || {
            let limiter = limiter(fixed(vec![], None, 1));
            let held = limiter.try_acquire(request(&limiter)).expect("the only place");
            let other = limiter.clone();
            let mut waiting = Box::pin(async move { other.acquire(request(&other)).await });
            let waker = Waker::from(Arc::new(Asks(limiter.clone())));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            way(&limiter, held);
            drop(waiting);
            assert_eq!(limiter.snapshot().account.waiting, 0);
        });
    }
}

#[test]
fn a_waker_that_panics_holds_up_no_caller() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker's bug");
        }
    }
    let limiter = slow();
    // Its end wakes the caller from the limiter's own thread.
    limiter.hold(None, limiter.now() + S / 5);
    let other = limiter.clone();
    let mut waiting = Box::pin(async move { other.acquire(request(&other)).await.map(drop) });
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    let behind = limiter.clone();
    in_time("those behind it", move || call_blocking(&behind, 3));
    in_time("itself", move || elsewhere(waiting)).expect("a wait is no error");
    assert_eq!(limiter.snapshot().account.totals.of(Class::Abandoned), 1);
}

/// Notes that it was woken, and panics if it shall.
struct Notes(u32, Arc<Mutex<Vec<u32>>>, bool);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic").push(self.0);
        assert!(!self.2, "a waker's bug");
    }
}

type Waits = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Three callers that wait behind the permit of a place; the first of them has a waker that panics. And who was woken.
fn three_behind(limiter: &Limiter) -> (Vec<Waits>, Arc<Mutex<Vec<u32>>>) {
    let woken: Arc<Mutex<Vec<u32>>> = Arc::default();
    let wait = |number| {
        let limiter = limiter.clone();
        let mut waiting: Waits =
            Box::pin(async move { drop(limiter.acquire(request(&limiter)).await.map(std::mem::forget)) });
        let waker = Waker::from(Arc::new(Notes(number, woken.clone(), number == 0)));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        waiting
    };
    ((0..3).map(wait).collect(), woken.clone())
}

#[test]
fn those_who_are_granted_together_are_woken_in_their_order_also_behind_a_waker_that_panics() {
    let limiter = limiter(fixed(vec![], None, 1));
    let _held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let (waiting, woken) = three_behind(&limiter);
    let wider = limiter.clone();
    thread::spawn(move || wider.reconfigure(fixed(vec![], None, 9))).join().expect_err("the caller hears of the panic");
    assert_eq!(*woken.lock().expect("no panic"), [0, 1, 2]);
    for mut waiting in waiting {
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready(), "each has its permit");
    }
}

#[test]
fn a_waker_that_panics_while_a_panic_drops_a_permit_does_not_end_the_program() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let (waiting, woken) = three_behind(&limiter);
    let bug = move || {
        let _held = held;
        panic!("a bug");
    };
    thread::spawn(bug).join().expect_err("the caller's bug");
    assert_eq!(*woken.lock().expect("no panic"), [0]);
    drop(waiting);
    assert_eq!(sends(&limiter), 1);
}

#[test]
fn a_subscriber_of_the_log_may_use_the_limiter() {
    struct AsksToo(Limiter);
    impl std::io::Write for AsksToo {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.snapshot();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    in_time("a subscriber that asks the limiter", || {
        let limiter = limiter(fixed(vec![], None, 10));
        let asks = limiter.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || AsksToo(asks.clone())).finish();
        tracing::subscriber::with_default(subscriber, || {
            limiter.hold(None, limiter.now() + S);
            limiter.stop(None, "a test");
        });
    });
}

#[test]
fn failures_of_calls_without_an_item_open_the_breaker() {
    let limiter = limiter(fixed(vec![], None, 1_000));
    for _ in 0..20 {
        let permit = limiter.try_acquire(request(&limiter)).expect("the breaker is closed");
        assert!(matches!(permit.complete(Outcome::new(Class::Transient)), NextAction::Retry { .. }));
    }
    limiter.try_acquire(request(&limiter)).expect_err("the breaker is open");
}
