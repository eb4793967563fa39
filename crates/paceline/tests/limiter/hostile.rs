//! What no sensible program does: it gets an error or its permit, at once or in its time, and nothing is lost.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};

use paceline::{Admit, Class, Error, NotNow, PauseCause, Permit, TooLarge, WaitCause};

use super::*;

type Waits = Pin<Box<dyn Future<Output = Result<Permit, Error>> + Send>>;

/// A caller that waits, or has its answer already.
fn asks(limiter: &Limiter) -> Waits {
    let limiter = limiter.clone();
    let mut waits: Waits = Box::pin(async move { limiter.acquire(request(&limiter)).await });
    assert!(ask(&mut waits).is_none(), "it waits");
    waits
}

fn ask(waits: &mut Waits) -> Option<Result<Permit, Error>> {
    match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Nothing waits and nothing is in flight.
fn is_empty(limiter: &Limiter) -> bool {
    let account = limiter.snapshot().account;
    (account.waiting, account.concurrency.in_flight) == (0, 0)
}

#[test]
fn one_call_an_hour_says_when_for_the_next_and_for_the_one_behind_it() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 10));
    limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
    let after = |policy: fn(&WaitCause) -> bool| match limiter.try_acquire(request(&limiter)).map(drop) {
        Err(NotNow::Wait { after: Some(after), reason }) if policy(&reason.cause) => after.as_secs(),
        other => panic!("{other:?}"),
    };
    assert!((3_590..=3_601).contains(&after(|policy| matches!(policy, WaitCause::Quota { limit: 1, .. }))));
    let second = asks(&limiter);
    assert!((7_190..=7_201).contains(&after(|policy| *policy == WaitCause::Queue)), "behind the second");
    drop(second);
    assert!((3_590..=3_601).contains(&after(|policy| matches!(policy, WaitCause::Quota { .. }))), "it is gone");
}

#[test]
fn a_burst_of_nothing_is_refused_by_name() {
    let error = Limiter::new(fixed(vec![requests(5, S)], Some(0), 1)).expect_err("no call could ever leave");
    assert_eq!((error.key.as_str(), error.value.as_str()), ("burst", "0"));
    let limiter = limiter(fixed(vec![requests(5, S)], None, 1));
    limiter.reconfigure(fixed(vec![requests(5, S)], Some(6), 1)).expect_err("above the limit");
    assert_eq!(limiter.snapshot().account.burst, Some((5, 5)), "the old limits stay");
}

#[test]
fn a_deadline_in_the_past_is_told_at_once_wherever_the_request_would_wait() {
    let free = limiter(fixed(vec![], None, 1));
    let full = limiter(fixed(vec![], None, 1));
    let held = full.try_acquire(request(&full)).expect("the only place");
    let spent = limiter(fixed(vec![requests(1, 3_600 * S)], None, 1));
    spent.try_acquire(request(&spent)).expect("the first").complete(success());
    for limiter in [&free, &full, &spent] {
        for deadline in [Instant::ZERO, limiter.now()] {
            let late = Request { deadline: Some(deadline), ..request(limiter) };
            let error = limiter.blocking().acquire(late.clone()).expect_err("it is late");
            assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
            let error = limiter.try_acquire(late).expect_err("it is late");
            assert!(matches!(error, NotNow::Never(Error::DeadlineExceeded { .. })), "{error}");
        }
        assert_eq!(limiter.snapshot().account.waiting, 0);
    }
    held.complete(success());
}

#[test]
fn new_limits_while_a_thousand_wait_reach_each_of_them_once() {
    let hour = || vec![requests(1, 3_600 * S)];
    let begun = || {
        let limiter = limiter(fixed(hour(), None, 5_000));
        limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
        let waiting: Vec<Waits> = (0..1_000).map(|_| asks(&limiter)).collect();
        (limiter, waiting)
    };
    let answers = |mut waiting: Vec<Waits>| waiting.iter_mut().filter_map(ask).collect::<Vec<_>>();

    let (limiter, waiting) = begun();
    limiter.reconfigure(fixed(vec![], None, 5_000)).expect("no limit at all");
    assert_eq!(answers(waiting).into_iter().filter(Result::is_ok).count(), 1_000);
    assert!(is_empty(&limiter));
    assert_eq!(limiter.snapshot().account.totals.of(Class::Abandoned), 1_000, "dropped by the test");

    let (limiter, waiting) = begun();
    limiter.reconfigure(fixed(vec![requests(11, 3_600 * S)], None, 5_000)).expect("ten more");
    assert_eq!(answers(waiting).len(), 10, "the first call still counts");
    assert!(is_empty(&limiter), "and the others have gone with their futures");

    let (limiter, waiting) = begun();
    limiter.reconfigure(fixed(vec![], None, 7)).expect("seven at once");
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 7);
    limiter.reconfigure(fixed(hour(), None, 1)).expect("and back");
    let granted: Vec<Permit> = answers(waiting).into_iter().map(|answer| answer.expect("no error")).collect();
    assert_eq!(granted.len(), 7);
    drop(granted);
    assert!(is_empty(&limiter));
}

#[test]
fn futures_dropped_in_odd_places_leave_nothing_behind() {
    /// Drops another caller's future when it is woken, and asks again.
    struct Drops(Mutex<Option<Waits>>, Limiter);
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("no panic").take());
            drop(self.1.try_acquire(request(&self.1)));
        }
    }
    let limiter = limiter(fixed(vec![], None, 2));
    let held = [(); 2].map(|()| limiter.try_acquire(request(&limiter)).expect("two places"));
    let (first, second) = (asks(&limiter), asks(&limiter));
    let mut waking: Waits = Box::pin({
        let limiter = limiter.clone();
        async move { limiter.acquire(request(&limiter)).await }
    });
    let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(second)), limiter.clone())));
    assert!(waking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(first);
    // Both places pass on: to the second, and to the one whose waker drops the second, which holds a permit by then.
    held.into_iter().for_each(|held| _ = held.complete(success()));
    let permit = ask(&mut waking).expect("it was woken").expect("no error");
    drop(waking);
    permit.complete(success());
    assert!(is_empty(&limiter));
    let closed = asks_when_full(&limiter);
    limiter.close();
    drop(closed);
    assert!(is_empty(&limiter));
}

/// A caller that waits for a place that a forgotten caller gives back when this is done.
fn asks_when_full(limiter: &Limiter) -> Waits {
    let held = [(); 2].map(|()| limiter.try_acquire(request(limiter)).expect("two places"));
    let waits = asks(limiter);
    drop(held);
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_worker_of_the_runtime_holds_up_no_other() {
    let limiter = limiter(fixed(vec![requests(200, S)], Some(1), 100));
    let blocking: Vec<_> = (0..2)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(
                async move { drop(limiter.blocking().acquire(request(&limiter)).expect("a wait is no error")) },
            )
        })
        .collect();
    for call in blocking {
        call.await.expect("no panic");
    }
    let mut place = pin!(limiter.acquire(request(&limiter)));
    let permit = std::future::poll_fn(|context| place.as_mut().poll(context)).await.expect("no error");
    permit.complete(success());
    assert!(is_empty(&limiter));
}

#[test]
fn a_hold_by_the_program_names_itself_and_ends_with_resume() {
    let limiter = limiter(fixed(vec![], None, 1));
    limiter.hold(None, Instant::MAX);
    let (mut waits, cause) = (asks(&limiter), PauseCause::Program);
    let error = limiter.try_acquire(request(&limiter)).expect_err("it is held").to_string();
    assert!(error.starts_with("not now: "), "{error}");
    let first = Request { priority: 1, ..request(&limiter) };
    match limiter.admit(&first) {
        Admit::At { cause: WaitCause::Held { cause: shown } | WaitCause::Gate { cause: shown }, .. } => {
            assert_eq!(shown, cause)
        }
        other => panic!("{other:?}"),
    }
    limiter.resume(None);
    ask(&mut waits).expect("it goes on").expect("no error").complete(success());
    assert!(is_empty(&limiter));
}

#[test]
fn a_cost_of_nothing_waits_for_no_window_and_one_beyond_all_measure_is_refused_at_once() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 10));
    let of = |units| Request { cost: Cost::zero().with(Dimension::Requests, units), ..request(&limiter) };
    limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
    for nothing in [of(0), Request { cost: Cost::zero(), ..request(&limiter) }] {
        limiter.blocking().acquire(nothing).expect("it takes nothing").complete(success());
    }
    for units in [2, u64::MAX] {
        let error = limiter.blocking().acquire(of(units)).expect_err("it could never start");
        let Error::TooLarge(TooLarge { dimension: Dimension::Requests, cost, limit: 1, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(cost, units);
        assert_eq!(limiter.try_acquire(of(units)).expect_err("it could never start"), NotNow::Never(error));
    }
    let unlimited = Request { cost: Cost::zero().with(Dimension::Tokens, u64::MAX), ..request(&limiter) };
    let both = [(); 2].map(|()| limiter.blocking().acquire(unlimited.clone()).expect("tokens have no limit here"));
    let usage = Cost::zero().with(Dimension::Tokens, u64::MAX).with(Dimension::Requests, u64::MAX);
    both.into_iter().for_each(|permit| _ = permit.complete(success().with_usage(usage.clone())));
    assert!(is_empty(&limiter));
    assert!(matches!(limiter.try_acquire(request(&limiter)), Err(NotNow::Wait { .. })));
}
