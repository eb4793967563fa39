//! Limiters that are told nothing learn one rate through real servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline::{Class, Clock, Cost, Instant, Limiter, NextAction, Outcome, PacerConfig, Request};
use paceline_fleet::{Fleet, FleetConfig};

use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;

/// Calls a second that the server lets pass, and as many at once.
const RATE: f64 = 60.0;

const LIMITERS: usize = 6;

/// What they do together: 10 s at that rate.
const CALLS: u64 = 600;

/// A token bucket, and whom it served how often.
#[derive(Default)]
struct Api {
    clock: Clock,
    bucket: Mutex<Bucket>,
}

#[derive(Default)]
struct Bucket {
    level: f64,
    at: Option<Instant>,
    served: [u64; LIMITERS],
    refused: u64,
}

impl Api {
    /// Whether the call passes.
    fn call(&self, from: usize) -> bool {
        let mut bucket = self.bucket.lock().expect("no call panics");
        let now = self.clock.now();
        let since = bucket.at.replace(now).map_or(1.0, |at| now.saturating_since(at).as_secs_f64());
        bucket.level = (bucket.level + since * RATE).min(RATE);
        let passes = bucket.level >= 1.0;
        if passes {
            bucket.level -= 1.0;
            bucket.served[from] += 1;
        } else {
            bucket.refused += 1;
        }
        passes
    }

    fn served(&self) -> u64 {
        self.bucket.lock().expect("no call panics").served.iter().sum()
    }
}

/// Has its items done one after the other, until all limiters together have sent enough.
async fn work(limiter: Limiter, api: Arc<Api>, place: usize) {
    while api.served() < CALLS {
        let mut request = Request::new(limiter.scope("calls"), Cost::request());
        loop {
            let permit = limiter.acquire(request).await.expect("it is open");
            let class = if api.call(place) { Class::Success } else { Class::Throttled };
            match permit.complete(Outcome::new(class)) {
                NextAction::Retry { next, .. } => request = *next,
                _ => break,
            }
        }
    }
}

async fn learn(url: &str) {
    let api = Arc::new(Api::default());
    let limiters: Vec<_> =
        (0..LIMITERS).map(|_| Limiter::new(PacerConfig::default()).expect("nothing is configured")).collect();
    let mut fleets = Vec::new();
    for limiter in &limiters {
        fleets.push(Fleet::join(limiter, FleetConfig::new(url, "learnt")).await.expect("it joins"));
    }
    let workers = limiters.iter().enumerate().flat_map(|(place, limiter)| {
        let (limiter, api) = (limiter.clone(), Arc::clone(&api));
        (0..4).map(move |_| tokio::spawn(work(limiter.clone(), Arc::clone(&api), place)))
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("no worker panics");
    }
    let bucket = api.bucket.lock().expect("no call panics");
    let (least, most) = (bucket.served.iter().min(), bucket.served.iter().max());
    let (least, most) = (*least.expect("there are some"), *most.expect("there are some"));
    assert!(least as f64 >= 0.75 * most as f64, "shares: {:?}", bucket.served);
    assert!(bucket.refused * 20 <= CALLS, "{} refused for {CALLS}", bucket.refused);
    let shared: Vec<_> = limiters.iter().map(|limiter| limiter.snapshot().scopes[0].estimate.clone()).collect();
    let deciding = shared.iter().flatten().filter(|estimate| estimate.shared.is_some_and(|shared| shared.decides));
    assert_eq!(deciding.count(), 1, "one decides for all: {shared:?}");
    let readers = shared.iter().flatten().filter_map(|estimate| estimate.shared?.reader);
    let members = fleets.iter().filter_map(|fleet| Some(fleet.view()?.member)).collect::<Vec<_>>();
    assert!(
        readers.clone().count() == LIMITERS && readers.clone().all(|reader| members.contains(&reader)),
        "{shared:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_that_are_told_nothing_learn_one_rate_by_redis() {
    let server = RedisServer::start(&[]);
    tokio::time::timeout(Duration::from_secs(60), learn(&server.url())).await.expect("the rate is found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_that_are_told_nothing_learn_one_rate_by_postgres() {
    let server = PostgresServer::start();
    tokio::time::timeout(Duration::from_secs(60), learn(&server.url())).await.expect("the rate is found");
}
