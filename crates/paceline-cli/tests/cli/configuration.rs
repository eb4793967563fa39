//! Which configuration a command reads, and what it says of it.

use std::fs;

use serde_json::Value;

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

/// A mount that is late, say: without the file there would be no limits.
#[cfg(unix)]
#[test]
fn a_configuration_that_is_a_link_to_nothing_stops_the_run() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(1));
    std::os::unix::fs::symlink("/nonexistent/limits.toml", job.path("paceline.toml")).expect("a link");
    for command in [&mut job.run(&server), job.paceline().args(["check", "--upstream", "mock"])] {
        let (code, log) = finish(command);
        assert_eq!((code, server.count()), (2, 0), "{log}");
        assert!(
            log.contains("paceline.toml: the configuration file, a link to /nonexistent/limits.toml, cannot be read"),
            "{log}"
        );
    }
}

#[test]
fn check_without_an_upstream_checks_each_of_the_file() {
    let job = Job::new(0);
    let file = |rpm: &str| {
        format!(
            "[upstream.a]\nbase_url = 'http://127.0.0.1:1'\n[upstream.b]\nbase_url = 'http://127.0.0.1:2'\nrpm = {rpm}\n"
        )
    };
    fs::write(job.path("paceline.toml"), file("60")).expect("writable");
    let check = |flags: &[&str]| {
        let output = job.paceline().arg("check").args(flags).ended_with_output();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, text, log) = check(&[]);
    assert!(code == Some(0) && text.contains("upstream a\n") && text.contains("\nupstream b\n"), "{text} {log}");
    let all: Value = serde_json::from_str(&check(&["--json"]).1).expect("JSON");
    assert_eq!(all["upstreams"][1]["values"]["rpm"]["value"], "60", "{all}");
    assert!(!check(&["--upstream", "a"]).1.contains("upstream b"));
    for wrong in ["'500 rpm'", "'18446744073709551615'"] {
        fs::write(job.path("paceline.toml"), file(wrong)).expect("writable");
        let (code, _, log) = check(&[]);
        let expected = "upstream.b.rpm = ";
        assert!(code == Some(2) && log.contains(expected), "{log}");
        assert!(log.contains("expected a number above 0 and at most 1_000_000G, without a unit"), "{log}");
    }
}

#[test]
fn a_run_says_which_configuration_it_has_read() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(1));
    let (code, log) = finish(&mut job.run(&server));
    assert!(code == 0 && log.contains("configuration: no file"), "{log}");
    fs::write(job.path("paceline.toml"), "[upstream.generic]\nrpm = 600\n").expect("writable");
    let (code, log) = finish(&mut job.run(&server));
    let file = job.path("paceline.toml").canonicalize().expect("it is there");
    assert!(code == 0 && log.contains(&format!("configuration: {}\n", file.display())), "{log}");
}
