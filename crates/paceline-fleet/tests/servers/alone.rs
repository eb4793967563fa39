//! Processes that cannot reach their store go on at what was set aside for them, and no window holds more than the account has.

use std::time::Duration;

use paceline::{AloneShare, Dimension};
use paceline_fleet::MemberState;

use crate::live::{Api, LEASE, LIMIT, Process, WINDOW, config, until, used};
use crate::proxy::{Proxy, Weather};
use crate::redis_server::RedisServer;

/// What each of three processes may use, beside what the fleet divides.
const ALONE: u64 = 10;

/// One process is cut off, then the store is away for all: each goes on at what was set aside for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_without_their_store_go_on_at_what_was_set_aside_for_them() {
    let mut server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.socket()).await;
    let (api, mut processes) = (Api::default(), Vec::new());
    let total = |calls: u64| usize::try_from(calls).expect("small");
    for url in [server.url(), server.url(), proxy.url()] {
        let mut config = config(&url, "live");
        config.alone_share = vec![AloneShare { units: ALONE, dimension: Dimension::Requests, window: Some(WINDOW) }];
        processes.push(Process::join(config, &api).await);
    }
    let recovers = LEASE + Duration::from_secs(1) + WINDOW + Duration::from_secs(4);
    used(&api, recovers + 2 * WINDOW).await;
    let sent = |process: &Process| process.limiter.snapshot().account.totals.sends;
    proxy.set(Weather::Cut);
    until(recovers, "one is cut off", || processes[2].state() == MemberState::Alone).await;
    let before = sent(&processes[2]);
    until(recovers, "it goes on", || sent(&processes[2]) >= before + 3 * ALONE).await;
    assert_eq!(processes[0].state(), MemberState::Live);
    used(&api, recovers).await;
    server.stop();
    let all_are = |state| processes.iter().all(|process| process.state() == state);
    until(recovers, "all are alone", || all_are(MemberState::Alone)).await;
    until(recovers, "what they sent before is over", || api.seen().window.len() <= total(3 * ALONE)).await;
    let before = {
        let mut seen = api.seen();
        let worst = std::mem::take(&mut seen.worst);
        assert!(worst <= total(LIMIT + 3 * ALONE), "{worst} in a window");
        seen.calls
    };
    until(2 * LEASE + recovers, "all go on", || api.seen().calls >= before + 9 * ALONE).await;
    assert!(all_are(MemberState::Alone) && api.seen().worst <= total(3 * ALONE), "{}", api.seen().worst);
    server.begin();
    proxy.set(Weather::Fair);
    until(2 * recovers, "all have a share again", || all_are(MemberState::Live)).await;
    used(&api, recovers).await;
    assert!(api.seen().worst <= total(LIMIT + 3 * ALONE), "{}", api.seen().worst);
    processes.into_iter().for_each(Process::kill);
}
