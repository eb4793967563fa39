//! One limit for each of many keys.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use paceline::{Class, Clock, Error, KeyedLimiter, Level, NotNow, Rng, WaitCause};

use super::*;

fn keyed(config: impl Into<PacerConfig>) -> KeyedLimiter<u64> {
    KeyedLimiter::new(config).expect("a configuration that can be")
}

/// The wait for a permit of that key; none: it was taken.
fn wait(limiter: &KeyedLimiter<u64>, key: u64) -> Option<Duration> {
    match limiter.try_acquire(&key) {
        Ok(()) => None,
        Err(NotNow::Wait { after: Some(after), .. }) => Some(after),
        Err(other) => panic!("{other}"),
    }
}

fn begun() -> (Clock, Instant) {
    let clock = Clock::new();
    let now = clock.now();
    (clock, now)
}

/// One call that ends like that, and is not made again.
async fn call(limiter: &KeyedLimiter<u64>, key: u64, outcome: Outcome) {
    let answer = limiter.run(&key, || std::future::ready(Ok::<_, ()>(())));
    assert!(answer.read(move |_, _| outcome.clone()).await.is_ok(), "the operation returns Ok");
}

#[tokio::test(start_paused = true)]
async fn each_key_has_the_limit_for_itself() {
    let limiter = keyed(Quota::per_second(10).burst(2));
    for key in 0..3 {
        assert_eq!([(); 3].map(|()| wait(&limiter, key)), [None, None, Some(S / 10)]);
    }
    tokio::time::advance(S / 10).await;
    assert_eq!([(); 2].map(|()| wait(&limiter, 1)), [None, Some(S / 10)]);
    let Err(NotNow::Wait { reason, .. }) = limiter.try_acquire(&1) else { panic!("it is empty") };
    let quota = WaitCause::Quota { dimension: Dimension::Requests, limit: 10, window: S };
    assert_eq!((reason.level, reason.cause), (Level::Tier, quota));
}

#[test]
fn a_key_is_given_as_a_map_takes_it() {
    let hosts: KeyedLimiter<String> = KeyedLimiter::new(Quota::per_minute(1)).expect("a configuration that can be");
    assert!(hosts.try_acquire("example.org").is_ok());
    assert!(hosts.try_acquire(&"example.org".to_owned()).is_err(), "the same key");
    let pairs: KeyedLimiter<(u8, &str)> = KeyedLimiter::new(Quota::per_minute(1)).expect("a configuration that can be");
    assert!(pairs.try_acquire(&(1, "a")).is_ok() && pairs.try_acquire(&(2, "a")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_key_wait_in_order_and_no_later_one_overtakes_them() {
    let limiter = keyed(Quota::per_second(1).burst(1));
    limiter.acquire(&7).await.expect("the first");
    let (clock, start) = begun();
    let mut first = pin!(limiter.acquire(&7));
    let mut second = pin!(limiter.acquire(&7));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
    tokio::time::advance(S * 3 / 2).await;
    assert!(wait(&limiter, 7).is_some(), "the second goes before");
    assert_eq!(wait(&limiter, 8), None, "another key");
    second.await.expect("a wait is no error");
    assert!(matches!(first.poll(&mut context), Poll::Ready(Ok(()))), "the first was granted before");
    assert!((2 * S..3 * S).contains(&(clock.now() - start)), "{:?}", (clock.now() - start));
    tokio::time::advance(2 * S).await;
    assert_eq!(
        [(); 2].map(|()| wait(&limiter, 7).is_none()),
        [true, false],
        "counts again, and no more than the burst"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_key_has_counted_goes_with_it_both_ways() {
    for quota in [Quota::per_hour(5).burst(5), Quota::per_hour(5)] {
        let limiter = keyed(quota);
        let taken = async |n: u64| {
            for n in 0..n {
                match n % 2 {
                    0 => assert_eq!(wait(&limiter, 1), None),
                    _ => call(&limiter, 1, success()).await,
                }
            }
        };
        taken(5).await;
        assert!(wait(&limiter, 1).is_some());
        assert_eq!(wait(&limiter, 2), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_pauses_its_key_alone_and_its_callers_without_an_answer_too() {
    let limiter = keyed(PacerConfig::from(Quota::per_second(100).burst(100)).with_max_retries(0));
    let refused = Outcome::new(Class::Throttled).with_hint(60 * S, true);
    let mut calling = pin!(call(&limiter, 1, refused));
    assert!(calling.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is to be sent again");
    assert_eq!(wait(&limiter, 1), Some(60 * S));
    assert_eq!(wait(&limiter, 2), None);
}

#[tokio::test(start_paused = true)]
async fn a_bad_key_stops_its_calls_alone_until_it_is_resumed() {
    let limiter = keyed(Quota::per_second(100).burst(100));
    let bad = Outcome::new(Class::Account).with_reach(paceline::LimitScope::Account);
    let answer = limiter.run(&1, || std::future::ready(Ok::<_, ()>(())));
    assert!(answer.read(move |_, _| bad.clone()).await.is_ok());
    assert!(matches!(limiter.try_acquire(&1), Err(NotNow::Never(Error::Stopped { .. }))));
    assert!(matches!(limiter.acquire(&1).await, Err(Error::Stopped { .. })));
    assert_eq!(wait(&limiter, 2), None);
    limiter.resume(&1);
    assert_eq!(wait(&limiter, 1), None);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_used_are_forgotten() {
    let bucket = || keyed(Quota::per_second(10).burst(2));
    for limiter in [bucket(), keyed(requests(10, S))] {
        for key in 0..20_000 {
            assert_eq!(wait(&limiter, key), None);
        }
        assert_eq!(limiter.len(), 20_000, "all are in use");
        for key in 20_000..120_000 {
            tokio::time::advance(S / 1_000).await;
            assert_eq!(wait(&limiter, key), None);
        }
        assert!(limiter.len() <= 20_000, "{} keys are kept, and a thousand are in use at most", limiter.len());
    }
    let limiter = bucket();
    for key in 0..20_000 {
        call(&limiter, key, success()).await;
        tokio::time::advance(S).await;
    }
    assert!(limiter.len() < 4_000, "{} keys are kept", limiter.len());
}

/// Calls with and without an answer, waits and time in any order: no window of a key ever holds one too many, and no bucket gives
/// more than its burst and what was refilled.
#[tokio::test(start_paused = true)]
async fn a_key_is_never_granted_one_too_many_however_it_is_called() {
    for seed in 0..24 {
        let (limit, burst, window) = (8, 4, 10 * S);
        let exact = seed % 2 == 0;
        let quota = requests(limit, window);
        let limits =
            Limits { quotas: vec![if exact { quota } else { quota.burst(burst) }], burst: exact.then_some(limit) };
        let limiter = keyed(PacerConfig::from(limits).with_max_retries(0));
        let (clock, start) = begun();
        let mut rng = Rng::new(seed);
        let mut granted = [const { Vec::new() }; 3];
        for _ in 0..400 {
            let key = (rng.next_u64() % 3) as usize;
            let mut taken = false;
            match rng.next_u64() % 8 {
                0..4 => taken = wait(&limiter, key as u64).is_none(),
                4 => taken = tokio::time::timeout(S, limiter.acquire(&(key as u64))).await.is_ok(),
                5 => {
                    let calling = tokio::time::timeout(S, call(&limiter, key as u64, success()));
                    taken = calling.await.is_ok();
                }
                _ => tokio::time::advance(Duration::from_millis(rng.next_u64() % 3_000)).await,
            }
            if taken {
                granted[key].push(clock.now() - start);
            }
        }
        for times in &granted {
            assert!(times.len() > 20, "{} calls", times.len());
            for (first, from) in times.iter().enumerate() {
                for (last, to) in times.iter().enumerate().skip(first) {
                    let calls = (last - first + 1) as u64;
                    let most = match exact {
                        true if *to - *from < window => limit,
                        true => continue,
                        false => burst + ((*to - *from).as_nanos() * u128::from(limit) / window.as_nanos()) as u64,
                    };
                    assert!(calls <= most, "seed {seed}: {calls} calls from {from:?} to {to:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_called_as_the_program_says_and_by_a_number_alone_by_default() {
    for (named, name) in [(true, "tenant 7 (no. 1)"), (false, "unnamed key no. 1")] {
        let limiter = keyed(Quota::per_second(10).burst(1));
        let limiter = if named { limiter.with_names(|key| format!("tenant {key}")) } else { limiter };
        call(&limiter, 7, Outcome::new(Class::Account)).await;
        let Err(NotNow::Never(Error::Stopped { scope, .. })) = limiter.try_acquire(&7) else { panic!("it is stopped") };
        assert_eq!(&*scope, name);
        assert!(limiter.explain(&7).starts_with("nothing leaves until a person acts"), "{}", limiter.explain(&7));
    }
}

/// What explains a wait names the same rate and the same time as the answer to the caller, of a key and of a limiter.
#[tokio::test(start_paused = true)]
async fn what_explains_a_wait_is_what_its_caller_is_told() {
    let told = |answer| match answer {
        Err(NotNow::Wait { after: Some(after), reason }) => {
            Some(format!("the next call waits {} for {}", paceline_core::format_duration(after), reason.cause))
        }
        _ => None,
    };
    let second = Quota::per_second(10);
    for quota in
        [second.clone(), second.burst(1), Quota::per_second(7).burst(1), Quota::per_minute(60), Quota::per_hour(1)]
    {
        let (keys, limiter) = (keyed(quota.clone()), limiter(PacerConfig::from(quota.clone())));
        assert_eq!(keys.explain(&1), "", "of a key that is not known");
        let of_key = std::iter::repeat_with(|| told(keys.try_acquire(&1))).flatten().next().expect("it gets full");
        assert_eq!(keys.explain(&1), of_key, "{quota:?}");
        let ask = || told(limiter.try_acquire(request(&limiter)).map(drop));
        let of_limiter = std::iter::repeat_with(ask).flatten().next().expect("it gets full");
        let mut waits = pin!(limiter.acquire(request(&limiter)));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(limiter.explain().contains(&of_limiter), "{} of {quota:?}, and {of_limiter}", limiter.explain());
        assert_eq!(of_key, of_limiter, "{quota:?}");
    }
}
