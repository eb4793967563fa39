//! The ledger on Postgres over a bad network, and when a standby takes over that lacks what was committed last.

use std::path::PathBuf;
use std::time::Duration;

use paceline_fleet::MemberState;

use crate::live::{Api, LEASE, LIMIT, Process, WINDOW, config, until, used};
use crate::postgres_server::PostgresServer;
use crate::proxy::{Proxy, Weather};

fn socket(server: &PostgresServer) -> PathBuf {
    PathBuf::from(server.folder()).join(".s.PGSQL.5432")
}

/// A proxy to a server, and its database by way of that.
async fn before(server: &PostgresServer) -> (Proxy, String) {
    let proxy = Proxy::start(socket(server)).await;
    let url = format!("postgres://tester@127.0.0.1:{}/postgres", proxy.port);
    (proxy, url)
}

/// The network delays, loses replies, falls silent and cuts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_on_postgres_in_a_bad_network() {
    let server = PostgresServer::start();
    let (proxy, url) = before(&server).await;
    let (api, mut processes) = (Api::default(), Vec::new());
    for _ in 0..3 {
        processes.push(Process::join(config(&url, "bad network"), &api).await);
    }
    // A connection that says nothing is given up after two seconds, and one to a server that says nothing after ten.
    let recovers = 2 * (LEASE + Duration::from_secs(1) + WINDOW) + Duration::from_secs(14);
    used(&api, recovers).await;
    let weathers = [Weather::Slow(Duration::from_millis(60)), Weather::RepliesLost, Weather::Silent, Weather::Cut];
    for weather in weathers {
        proxy.set(weather);
        tokio::time::sleep(LEASE + LEASE / 2).await;
        proxy.set(Weather::Fair);
        used(&api, recovers).await;
    }
    let worst = api.seen().worst;
    assert!(worst <= usize::try_from(LIMIT).expect("small"), "{worst} in a window");
    processes.into_iter().for_each(Process::kill);
}

/// The standby hears no more of its primary while that gives a share to one more process and takes from the others. As one that
/// joins after the failover, that process has to wait until nothing else can count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_over_a_failover_to_a_standby_that_lacks_the_last_writes() {
    let mut primary = PostgresServer::start();
    let (proxy, url) = before(&primary).await;
    let (api, mut processes) = (Api::default(), Vec::new());
    let recovers = LEASE + Duration::from_secs(1) + WINDOW + Duration::from_secs(6);
    for _ in 0..3 {
        processes.push(Process::join(config(&url, "failover"), &api).await);
    }
    used(&api, recovers).await;
    let mut standby = PostgresServer::start_with(&[("STANDBY_OF", primary.folder())]);
    standby.tell("detach");
    processes.push(Process::join(config(&url, "failover"), &api).await);
    used(&api, recovers).await;
    let sends = |process: &Process| process.limiter.snapshot().account.totals.sends;
    assert!(sends(&processes[3]) > 0, "it has a share that the standby does not know of");

    primary.tell("stop");
    standby.tell("promote");
    proxy.lead_to(socket(&standby));
    processes.push(Process::join(config(&url, "failover"), &api).await);
    until(recovers, "one that comes after the failover has a share", || sends(&processes[4]) > 0).await;
    let live = || processes.iter().all(|process| process.state() == MemberState::Live);
    until(recovers, "all are members on the new primary", live).await;
    used(&api, recovers).await;
    let worst = api.seen().worst;
    assert!(worst <= usize::try_from(LIMIT).expect("small"), "{worst} in a window");
    processes.into_iter().for_each(Process::kill);
}
