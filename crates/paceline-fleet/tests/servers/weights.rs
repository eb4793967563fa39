//! Processes of different weights, all of which want more than there is, share a limit in the ratio of their weights.

use crate::live::{Api, LEASE, LIMIT, Process, WINDOW, config, until, used};
use crate::redis_server::RedisServer;

/// Each with a whole number of units.
const WEIGHTS: [u64; 3] = [1, 2, 5];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_want_all_they_can_get_share_a_limit_by_their_weights() {
    let server = RedisServer::start(&[]);
    let api = Api::default();
    let mut processes = Vec::new();
    for weight in WEIGHTS {
        let mut config = config(&server.url(), "weights");
        config.weight = weight;
        // As many as could use all of the limit at once.
        processes.push(Process::with_callers(LIMIT, config, &api).await);
    }
    let fleets = || processes.iter().map(|process| process.limiter.snapshot().account.fleet.expect("it is in one"));
    let shares = || fleets().map(|fleet| fleet.shares[0].units).collect::<Vec<_>>();
    let parts = WEIGHTS.map(|weight| LIMIT * weight / WEIGHTS.iter().sum::<u64>());
    until(4 * (LEASE + WINDOW), "each has its part", || shares() == parts).await;
    assert_eq!(fleets().map(|fleet| fleet.weight).collect::<Vec<_>>(), WEIGHTS);

    let sent = || processes.iter().map(|process| process.limiter.snapshot().account.totals.sends).collect::<Vec<_>>();
    let before = sent();
    used(&api, 4 * WINDOW).await;
    let sent: Vec<u64> = sent().iter().zip(before).map(|(sent, before)| sent - before).collect();
    let total = sent.iter().sum::<u64>();
    for (sent, part) in sent.iter().zip(parts) {
        // Of two windows and a part of one.
        let due = total * part / LIMIT;
        assert!(sent.abs_diff(due) <= part, "{sent} calls where {due} are due");
    }
    let worst = api.seen().worst;
    assert!(worst <= usize::try_from(LIMIT).expect("small"), "{worst} in a window");
    processes.into_iter().for_each(Process::kill);
}
