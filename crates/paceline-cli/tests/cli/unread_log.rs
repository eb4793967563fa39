//! Standard error whose reader stands still: the work goes on.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::bounded::Bounded;
use crate::serve::{Gateway, get, serve};
use crate::support::{Job, Reply, Server};

/// Takes nothing for as long as the second is there, and is not read.
fn stuck() -> (OwnedFd, UnixStream) {
    let (log, reader) = UnixStream::pair().expect("a pair");
    log.set_nonblocking(true).expect("it can be");
    while (&log).write(&[b'\n'; 1024]).is_ok() {}
    while (&log).write(b"\n").is_ok() {}
    log.set_nonblocking(false).expect("it can be");
    (log.into(), reader)
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_gateway_answers_and_ends() {
    let (job, server, (log, _reader)) = (Job::new(0), Server::new(|_| Reply::ok()), stuck());
    let mut gateway = Gateway::logging(&mut serve(&job, &server, &["--log-requests"]), log);
    for _ in 0..3 {
        assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    }
    let healthy = get(&format!("{}/healthz", gateway.url));
    gateway.signal(Signal::TERM);
    assert_eq!((healthy.0, gateway.ended()), (200, Some(0)));
}

/// The process before was killed while its disk was full.
#[test]
fn a_line_that_was_cut_before_the_start_ends_before_the_first_line() {
    let (job, server) = (Job::new(1), Server::new(|_| Reply::ok()));
    for (before, expected) in [("a cut li", "a cut li\n2"), ("a line\n", "a line\n2"), ("", "2")] {
        std::fs::write(job.path("log"), before).expect("writable");
        let log = File::options().append(true).open(job.path("log")).expect("it is there");
        job.run(&server).arg("--overwrite").stderr(log).ended();
        let text = job.text("log");
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn a_run_does_its_items_and_ends() {
    let (job, (log, _reader)) = (Job::new(3), stuck());
    let server = Server::new(|arrival| if arrival.before == 0 { Reply::error(503, "busy") } else { Reply::ok() });
    let status = job.run(&server).stderr(log).ended();
    assert_eq!((status.code(), job.ended_ids().len()), (Some(0), 3));
}
