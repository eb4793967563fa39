//! `--fleet`: limits that are shared through a store. tests/peers has a real one; here it is away, or not needed.

use crate::support::{Job, Reply, Server, finish};

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn without_its_store_a_run_sends_nothing_and_ends_after_the_longest_wait() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(2));
    // Port 1 of this machine has no server.
    let flags = ["--limit", "100rpm", "--fleet", "redis://me:sesame@127.0.0.1:1", "--max-wait", "1s"];
    let (code, log) = finish(job.run(&server).args(flags));
    assert_eq!((code, server.count()), (3, 0), "{log}");
    assert!(log.contains("the store of the fleet on 127.0.0.1:1 does not answer"), "{log}");
    assert!(log.contains("no share of the limits of its fleet for --max-wait"), "{log}");
    assert!(!log.contains("sesame"), "{log}");
}

#[test]
fn a_fleet_that_cannot_be_is_refused_before_the_first_call() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(2));
    for (flags, words) in [
        (&["--pace", "fixed", "--fleet", "redis://h"][..], "there is no limit"),
        (&["--limit", "100rpm", "--fleet", "me:sesame@h"], "redis://, rediss:// or postgres://"),
        (&["--limit", "100rpm", "--fleet", "postgres://me:sesame@h:port/x"], "expected redis://"),
    ] {
        let (code, log) = finish(job.run(&server).args(flags));
        assert_eq!((code, server.count()), (2, 0), "{log}");
        assert!(log.contains(words) && !log.contains("sesame"), "{log}");
    }
}
