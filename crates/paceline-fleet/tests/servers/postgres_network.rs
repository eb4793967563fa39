//! The ledger on Postgres over a bad network.

use std::path::PathBuf;
use std::time::Duration;

use crate::live::{Api, LEASE, LIMIT, Process, WINDOW, config, used};
use crate::postgres_server::PostgresServer;
use crate::proxy::{Proxy, Weather};

/// The network delays, loses replies, falls silent and cuts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_than_its_limit_on_postgres_in_a_bad_network() {
    let server = PostgresServer::start();
    let url = server.url();
    let (_, folder) = url.split_once("host=").expect("the folder of its socket");
    let proxy = Proxy::start(PathBuf::from(folder).join(".s.PGSQL.5432")).await;
    let url = format!("postgres://tester@127.0.0.1:{}/postgres", proxy.port);
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
