//! A job of many hosts and the ledger of their fleet in one Postgres database: the hosts keep the limit together, and the job is
//! removed without the ledger, which knows what was sent.

use std::process::Child;
use std::time::Duration;

use super::counting::Counting;
use super::fleet::{LEASE, LIMIT, UNDER_WAY, WINDOW};
use super::hosts::{assert_each_once, job_of};
use super::job::Job;
use super::measure;
use crate::bounded::{Bounded, BoundedOutput, TestBound};
use crate::postgres_server::PostgresServer;

#[test]
fn a_job_and_the_ledger_of_its_hosts_are_in_one_database_and_the_job_goes_without_the_ledger() {
    let _bound = TestBound::new();
    let items = if measure::soak() { 2_000 } else { 250 };
    let counting = Counting::start(Duration::from_millis(5));
    let postgres = PostgresServer::start();
    let (base_url, url) = (format!("http://{}/v1", counting.address()), postgres.url());
    let limit = format!("{LIMIT} per {}s", WINDOW.as_secs());
    let environment = [("PACELINE_UPSTREAM__OPENAI__FLEET_LEASE", format!("{}s", LEASE.as_secs()).into())];
    let job = |items: usize, flags: &[&str]| {
        let of_all = ["--upstream", "openai", "--pace", "fixed", "--limit", &limit, "--fleet", &url];
        Job::new(items, &base_url, &[&of_all[..], flags].concat()).with_environment(&environment)
    };
    let hosts = [(); 2].map(|()| job(items, &["--store", &url]));
    let mut children: Vec<Child> = hosts.iter().map(Job::spawn).collect();
    for (host, child) in hosts.iter().zip(&mut children) {
        assert!(child.ended().success(), "{}", host.log());
        assert!(!host.log().contains("hold on this machine alone"), "the limit is shared: {}", host.log());
    }
    assert_eq!(counting.arrivals(), items as u64);
    assert_each_once(&postgres, items, &hosts.each_ref().map(Job::run));

    let ledger = || postgres.rows("SELECT * FROM paceline_fleet.ledger");
    let kept = ledger();
    assert_eq!(kept.lines().count(), 1, "both hosts have one ledger: {kept}");
    let forgets = ["--job", "requests.jsonl", "--forget"];
    let forgotten = postgres.command(&["collect"], &forgets).ended_with_output();
    assert!(forgotten.status.success(), "{}", String::from_utf8_lossy(&forgotten.stderr));
    assert!(job_of(&postgres).is_null(), "the job is gone");
    assert_eq!(ledger(), kept, "the ledger is not touched");

    // It begins at once, under what was sent before.
    let later = job(items / 5, &[]);
    later.assert_complete(&later.run());
    let worst = counting.worst(WINDOW - UNDER_WAY);
    measure::say(&format!("a job beside its ledger: lines={items} hosts=2 worst={worst} of {LIMIT}"));
    assert!(worst <= LIMIT, "{worst} calls in a window");
}
