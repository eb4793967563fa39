//! Hosts of one job as processes, which are killed and frozen while they have blocks: each result is kept once, none is missing.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use paceline_store::blocks::BlockStore;

use crate::blocks::{Bench, work_under};

const LEASE: Duration = Duration::from_secs(2);

/// Tells a process of this test which job is meant: address, schema and number.
const JOB: &str = "PACELINE_TEST_BLOCKS";

/// A host, where a test has started it as one.
#[tokio::test]
async fn host() {
    let Ok(job) = std::env::var(JOB) else { return };
    let [url, schema, job] = job.split('#').collect::<Vec<_>>()[..] else { panic!("{job}") };
    let store = BlockStore::open_in(url, schema).await.unwrap();
    work_under(LEASE, store, job.parse().unwrap(), std::process::id().to_string(), async || {}).await;
}

/// Ends with the test, however that ends.
struct Host(Child);

impl Host {
    fn start(on: &Bench) -> Self {
        let program = std::env::current_exe().unwrap();
        let host = Command::new(program)
            .args(["--exact", "killed_hosts::host"])
            .env(JOB, format!("{}#{}#{}", on.url, on.schema, on.job))
            .stdout(Stdio::null())
            .spawn();
        Self(host.unwrap())
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _gone = (self.0.kill(), self.0.wait());
    }
}

/// Returns once so many results are kept.
async fn kept(on: &Bench, results: i64) {
    let sql = format!("SELECT sum(ok) >= {results} FROM {}.block", on.schema);
    while !on.watch.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0) {}
}

#[tokio::test]
async fn hosts_that_are_killed_and_frozen_lose_and_double_nothing() {
    let on = Bench::new(20_000, 10).await;
    let mut hosts: Vec<Host> = (0..4).map(|_| Host::start(&on)).collect();
    kept(&on, 1_000).await;
    let mut frozen = hosts.remove(0);
    frozen.signal("-STOP");
    kept(&on, 2_000).await;
    drop(hosts.remove(0));
    kept(&on, 3_000).await;
    drop(hosts.remove(0));
    let mut last = hosts.remove(0);
    assert!(last.0.wait().unwrap().success(), "it ends when the whole job has ended");
    on.assert_each_once(20_000).await;
    frozen.signal("-CONT");
    assert!(frozen.0.wait().unwrap().success(), "it goes on as if nothing had been");
    on.assert_each_once(20_000).await;
}
