//! How fast calls leave, as the server sees it.

use paceline::Class;
use paceline_config::Preset;

use super::*;

/// Sends so many items, each a task of its own, and waits for them all.
async fn send_all(limiter: &Limiter, items: u64) -> Arrivals {
    let arrivals = Arrivals::at(limiter);
    let tasks: Vec<_> = (0..items)
        .map(|item| {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            tokio::spawn(async move {
                let permit = limiter
                    .acquire(Request { item: Some(item), ..request(&limiter) })
                    .await
                    .expect("a wait is no error");
                arrivals.record();
                permit.complete(success());
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    arrivals
}

#[tokio::test(start_paused = true)]
async fn a_hundred_items_at_ten_a_second_take_about_nine_seconds() {
    let limiter = limiter(fixed(vec![Quota::per_minute(600)], Some(10), 50));
    let times = send_all(&limiter, 100).await.seconds();
    let last = times[99];
    assert!((8.5..=10.5).contains(&last), "took {last} s");
    for (index, time) in times.iter().enumerate() {
        let arrived = (index + 1) as f64;
        assert!(arrived <= 11.0 + 10.0 * time, "{arrived} arrivals after {time} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_hourly_limit_counts_and_does_not_space() {
    let limiter = limiter(fixed(vec![requests(5, 3_600 * S)], None, 50));
    let times = send_all(&limiter, 7).await.seconds();
    assert!(times[..5].iter().all(|time| *time < 0.01), "{times:?}");
    assert!(times[5..].iter().all(|time| (3_600.0..3_601.0).contains(time)), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn after_an_idle_hour_the_burst_is_whole_again() {
    let limiter = limiter(fixed(vec![Quota::per_minute(600)], Some(10), 50));
    send_all(&limiter, 30).await;
    tokio::time::advance(3_600 * S).await;
    let times = send_all(&limiter, 11).await.seconds();
    assert!(times[9] < 0.01, "{times:?}");
    assert!((0.09..0.2).contains(&times[10]), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn two_items_that_wait_hold_up_no_other() {
    let config = PacerConfig { retry: backing_off(5 * S, 7), ..fixed(vec![], None, 2) };
    let limiter = limiter(config);
    let start = limiter.now();
    let mut failed = Vec::new();
    for item in 0..2 {
        let permit = limiter.acquire(Request { item: Some(item), ..request(&limiter) }).await.expect("open");
        let paceline::NextAction::Retry { next, delay } = permit.complete(Outcome::new(Class::Overloaded)) else {
            panic!("a 503 is retried");
        };
        assert_eq!(delay, 5 * S);
        let limiter = limiter.clone();
        failed.push(tokio::spawn(async move {
            limiter.acquire(*next).await.expect("a wait is no error").complete(success());
            limiter.now()
        }));
    }
    let times = send_all(&limiter, 8).await.seconds();
    assert!(times.iter().all(|time| *time < 1.0), "{times:?}");
    for task in failed {
        let waited = task.await.expect("no panic") - start;
        assert!((5 * S..6 * S).contains(&waited), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn priority_then_arrival() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.acquire(request(&limiter)).await.expect("the only place");
    let order: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut tasks = Vec::new();
    for (item, priority) in [(0, 0), (1, 0), (2, 5), (3, -1), (4, 5)] {
        let (limiter, order) = (limiter.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let permit =
                limiter.acquire(Request { item: Some(item), priority, ..request(&limiter) }).await.expect("a wait");
            order.lock().expect("no panic").push(item);
            permit.complete(success());
        }));
        tokio::task::yield_now().await;
    }
    held.complete(success());
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), [2, 4, 0, 1, 3]);
}

#[tokio::test(start_paused = true)]
async fn the_preset_none_never_waits_but_where_the_server_says_so() {
    let limiter = limiter(Preset::None.pacer_config());
    let start = limiter.now();
    for _ in 0..10_000 {
        limiter.acquire(request(&limiter)).await.expect("open").complete(success());
    }
    assert_eq!(limiter.now() - start, Duration::ZERO);
    let refused = Outcome::new(Class::Throttled).with_hint(30 * S, false);
    limiter.acquire(request(&limiter)).await.expect("open").complete(refused);
    limiter.acquire(request(&limiter)).await.expect("a wait is no error").complete(success());
    assert!(limiter.now() - start >= 30 * S);
}
