//! A job that a gateway told to wait, and a person who lifted the cause there.

use rustix::process::Signal;

use crate::serve::{Gateway, serve};
use crate::serve_keys::{keys, post_with, told};
use crate::support::{Job, Reply, Server, finish};

#[test]
fn a_hold_that_a_gateway_asked_for_is_asked_again_by_the_next_run() {
    let (job, server) = (Job::new(5), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "2 per 1h"]));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    let run = |max_wait| {
        let shown = format!("x-paceline-key: {key}");
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--upstream", "generic"]);
        finish(command.args(["--via", &gateway.url, "--header", &shown, "--max-wait", max_wait]))
    };
    let counts = || ["succeeded", "failed", "deferred"].map(|key| job.summary()[key].as_u64().expect(key));
    for _ in 0..2 {
        let (code, log) = run("1s");
        assert_eq!((code, counts(), server.count()), (3, [2, 0, 3], 2), "{log}");
    }
    told(&mut keys(&job, &["set", "ci", "--limit", "100 per 1h"]));
    gateway.signal(Signal::HUP);
    while post_with(&gateway.url, &key).0 != 200 {
        std::thread::yield_now();
    }
    let (code, log) = run("1s");
    assert_eq!((code, counts(), server.count()), (0, [5, 0, 0], 6), "{log}");
}
