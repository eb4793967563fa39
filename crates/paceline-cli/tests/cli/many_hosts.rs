//! `run --store`: what is refused before a database is asked. `tests/peers/hosts.rs` has real ones.

use crate::support::{Job, Reply, Server, finish};

const STORE: &str = "postgres://jobs@127.0.0.1:1/jobs?connect_timeout=1";

#[test]
fn flags_that_cannot_hold_for_the_whole_job_are_refused_before_the_first_call() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    for (flags, flag) in [
        (&["--budget-tokens", "10"][..], "a budget cannot be used with --store"),
        (&["--done", "hosted.jsonl"], "--done cannot be used with --store"),
        (&["--accept-changed-input"], "--accept-changed-input cannot be used with --store"),
        (&["--no-check"], "--no-check cannot be used with --store"),
        (&["--no-journal"], "--no-journal cannot be used with --store"),
        (&["--retry-failed", "--scope", "host", "--only-host", "a"], "--only-host cannot be used with --store"),
        (&["--ordered"], "--ordered cannot be used with --store"),
    ] {
        let (code, log) = finish(job.run(&server).args(["--store", STORE]).args(flags));
        assert_eq!(code, 2, "{flags:?}: {log}");
        assert!(log.contains(flag), "{flags:?}: {log}");
    }
    let dry = ["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "mock", "--store", STORE, "--dry-run"];
    let (code, log) = finish(job.paceline().args(dry));
    assert!(code == 2 && log.contains("--dry-run cannot be used with --store"), "{log}");
    let (code, log) = finish(job.run(&server).args(["--store", "work.db"]));
    assert!(code == 2 && log.contains("--store of a run is a Postgres"), "{log}");
    assert_eq!(server.count(), 0);
    assert!(!job.path("out.journal").exists() && !job.path("out.jsonl").exists());
}

#[test]
fn a_host_without_an_input_names_its_job_and_cannot_say_how_an_input_is_read() {
    let job = Job::new(0);
    let run =
        |flags: &[&str]| finish(job.paceline().args(["run", "-o", "out.jsonl", "--upstream", "mock"]).args(flags));
    let (code, log) = run(&["--store", STORE]);
    assert!(code == 2 && log.contains("<IN>") && log.contains("--job"), "{log}");
    let (code, log) = run(&["--job", "a"]);
    assert!(code == 2 && log.contains("--store"), "{log}");
    let (code, log) = run(&["--store", STORE, "--job", "a", "--format", "bare"]);
    assert!(code == 2 && log.contains("--format says how an input is read"), "{log}");
}
