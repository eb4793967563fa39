//! Two `paceline serve` are one fleet: together they keep one key's limit, both serve, and where one is killed the other has all
//! of the limit after a lease and a window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::fleet::AHEAD;
use reqwest::Client;

use super::counting::Counting;
use super::fleet::{LEASE, LIMIT, PATIENCE, UNDER_WAY, WINDOW};
use super::gateway::{BODY, CLIENTS, Gateway};
use super::measure;
use super::postgres_server::PostgresServer;
use super::redis_server::RedisServer;
use crate::bounded::TestBound;

/// What a busy machine adds to a recovery, and the time until the next word to the ledger.
const SLACK: Duration = Duration::from_secs(3);

/// On Redis in the long form: a server that has just begun gives nothing for a lease and a window.
#[test]
fn two_gateways_keep_one_limit_and_one_of_them_has_all_of_it_once_the_other_is_killed() {
    let _bound = TestBound::new();
    keep_one_limit("postgres", &PostgresServer::start().url());
    if measure::soak() {
        keep_one_limit("redis", &RedisServer::start(&[]).url());
    }
}

fn keep_one_limit(store: &str, url: &str) {
    let counting = Counting::start(Duration::from_millis(5));
    let base_url = format!("http://{}/v1", counting.address());
    let config = format!(
        "[upstream.first]\nlimits = [\"{LIMIT} per {}s\"]\npace = \"fixed\"\nfleet = \"{url}\"\nfleet_lease = \"{}s\"\n",
        WINDOW.as_secs(),
        LEASE.as_secs()
    );
    let mut gateways = [(); 2].map(|()| Gateway::start(&base_url, &config));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let served = gateways.each_ref().map(|gateway| runtime.block_on(clients_of(&gateway.url)));
    let served = || served.each_ref().map(|served| served.load(Ordering::Relaxed));
    let goes_on = |calls: u64| {
        let until = counting.arrivals() + calls;
        assert!(counting.wait_for_events(2 * until, PATIENCE), "they stand still after {}", counting.arrivals());
    };
    goes_on(LIMIT);
    let before = served();
    goes_on(LIMIT);
    let both = [0, 1].map(|place| served()[place] - before[place]);
    assert!(both.iter().all(|served| *served >= LIMIT / 4), "each serves its part of a window: {both:?}");

    gateways[1].kill();
    let killed = counting.now();
    // When a window held nine tenths of the limit, of calls that came after the kill alone.
    let full = usize::try_from(LIMIT * 9 / 10).expect("small");
    let all = loop {
        goes_on(LIMIT / 10);
        let times = counting.times();
        let from = times.partition_point(|at| *at <= killed) + full;
        if let Some(n) = (from..times.len()).find(|n| times[*n] - times[*n - full] <= WINDOW) {
            break times[n] - killed;
        }
    };
    let (worst, in_half) = (counting.worst(WINDOW - UNDER_WAY), counting.worst(WINDOW / 2));
    measure::say(&format!(
        "two gateways, {store}: served={both:?} worst={worst} of {LIMIT} in_half={in_half} all_of_it_after={:.1} of {:.1}",
        all.as_secs_f64(),
        (LEASE + AHEAD + 2 * WINDOW).as_secs_f64()
    ));
    assert!(worst <= LIMIT, "{worst} calls in a window");
    // What the killed one held comes back, and then a window is filled.
    assert!(all <= LEASE + AHEAD + 2 * WINDOW + SLACK, "the other had all of it after {all:?}");
}

/// Clients of a gateway that ask until it is gone, and what they were served.
async fn clients_of(gateway: &str) -> Arc<AtomicU64> {
    let served = Arc::new(AtomicU64::new(0));
    let client = paceline_http::client_to(gateway).build().expect("a client");
    // While it waits for its first share it refuses calls.
    let ready = format!("{gateway}/readyz");
    while !client.get(&ready).send().await.expect("it listens").status().is_success() {}
    for _ in 0..CLIENTS {
        tokio::spawn(asks(client.clone(), format!("{gateway}/first/v1/chat/completions"), Arc::clone(&served)));
    }
    served
}

async fn asks(client: Client, url: String, served: Arc<AtomicU64>) {
    while let Ok(answer) = client.post(&url).body(BODY).send().await {
        if answer.status().is_success() {
            served.fetch_add(1, Ordering::Relaxed);
        }
    }
}
