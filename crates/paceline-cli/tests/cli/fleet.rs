//! `--fleet`: limits that are shared through a store. tests/peers has a real one; here it is away, or not needed.

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
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

/// The tier has all calls, and their limit is its own.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn without_its_store_a_run_whose_calls_are_of_a_tier_ends_likewise() {
    for limits in ["", "limits = ['100rpm']\n", "limits = ['100rpm']\nalone_share = '2 of 10rpm'\n"] {
        let (server, job) = (Server::new(|_| Reply::ok()), Job::new(2));
        let tier = "[[upstream.generic.tier]]\nmatch = '/'\nlimits = ['2rps', '2 concurrent']\n";
        std::fs::write(job.path("paceline.toml"), format!("[upstream.generic]\n{limits}{tier}")).expect("writable");
        let (code, log) = finish(job.run(&server).args(["--fleet", "redis://127.0.0.1:1", "--max-wait", "1s"]));
        assert_eq!((code, server.count()), (3, 0), "{limits}: {log}");
        assert!(log.contains("no share of the limits of its fleet for --max-wait"), "{limits}: {log}");
    }
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

#[test]
fn check_shows_what_is_set_for_a_fleet_without_its_password() {
    let job = Job::new(0);
    let file = "[upstream.a]\nbase_url = 'http://a'\nlimits = ['60rpm']\nfleet = 'redis://me:sesame@h:6379'\nfleet_lease = '5s'\n\
                weight = 3\nalone_share = '2 of 10rpm'\n";
    std::fs::write(job.path("paceline.toml"), file).expect("writable");
    let shown = |flags: &[&str]| {
        let output = job.paceline().arg("check").args(flags).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let text = shown(&[]);
    let expected = "is not asked here: weight 3, a lease of 5s, and without the store 2 requests per 60s";
    assert!(text.contains(expected) && !text.contains("sesame"), "{text}");
    let told: Value = serde_json::from_str(&shown(&["--json"])).expect("JSON");
    let fleet = &told["fleet"];
    for key in ["members", "share", "lease_ms", "quarantine", "reader"] {
        assert_eq!(fleet.get(key), Some(&Value::Null), "{key}: nothing is asked");
    }
    let set = &fleet["set"];
    assert_eq!((&fleet["state"], &set["on_loss"], &set["weight"]), (&json!("out"), &json!("strict"), &json!(3)));
    assert_eq!((&set["lease_ms"], &set["alone_share"]), (&json!(5_000), &json!(["2 requests per 60s"])));
    let address = set["address"].as_str().expect("a text");
    assert!(
        address.starts_with("redis://") && address.ends_with("@h:6379") && !address.contains("sesame"),
        "{address}"
    );
    let alone: Value = serde_json::from_str(&shown(&["--json", "--fleet", "none"])).expect("JSON");
    assert_eq!(alone["fleet"], Value::Null);
}
