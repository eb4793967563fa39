//! A gateway whose address is written with the wrong scheme.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use paceline_store::work::State;

use crate::serve::{Gateway, serve};
use crate::serve_keys::{certify, keys, told};
use crate::support::{Job, Reply, Server, finish, line};
use crate::tasks_run::{Store, ran};

fn started(job: &Job, server: &Server, flags: &[&str]) -> Gateway {
    Gateway::start(&mut serve(job, server, flags))
}

#[test]
fn a_gateway_whose_scheme_is_another_stops_the_run_before_items_fail() {
    let (job, server) = (Job::new(2), Server::new(|_| Reply::ok()));
    certify(&job);
    let with_tls = started(&job, &server, &["--tls-cert", "tls.pem", "--tls-key", "tls.key"]);
    let plain = started(&job, &server, &[]);
    let advice =
        "write https:// in --via, and name the certificate of the gateway's authority with ca_file (--ca-file)";
    let cases = [
        (with_tls.url.replace("https://", "http://"), advice),
        (alerting(), "if the gateway speaks TLS there, write https:// in --via"),
        (plain.url.replace("http://", "https://"), "the server does not speak TLS there"),
    ];
    for (address, words) in &cases {
        let mut wrong = job.paceline();
        wrong.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json"]);
        let (code, log) = finish(wrong.args(["--upstream", "generic", "--via", address]));
        assert!(code == 3 && log.contains(words) && !log.contains("item failed"), "{address}: {log}");
        let counts = ["calls", "failed", "deferred"].map(|key| job.summary()[key].as_u64().expect(key));
        assert_eq!(counts, [0, 0, 2], "{address}: {log}");
        let store = Store::of(&[]);
        store.add("a", &serde_json::from_str(&line("item-0")).expect("a line"));
        let ran = ran(store.command().args(["--http", "--upstream", "generic", "--via", address]));
        assert!(ran.log.contains("https://") || ran.log.contains(words), "{address}: {}", ran.log);
        let item = store.item("a");
        assert_eq!((item.state, item.attempts), (State::Waiting, 0), "{address}: {}", ran.log);
    }
    let mut right = job.paceline();
    right.args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "generic", "--via", &with_tls.url]);
    let (code, log) = finish(right.args(["--ca-file", "tls.pem"]));
    assert_eq!((code, server.count()), (0, 2), "the same job goes on: {log}");
}

#[test]
fn a_key_that_the_gateway_refuses_is_not_taken_for_that_of_its_upstream() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    told(&mut keys(&job, &["add", "ci"]));
    let (gateway, store) = (started(&job, &server, &["--state", "state"]), Store::of(&[]));
    store.add("a", &serde_json::from_str(&line("item-0")).expect("a line"));
    let ran = ran(store.command().args(["--http", "--upstream", "generic", "--via", &gateway.url]));
    let advice = "send a key of the gateway that may do this (--header 'x-paceline-key: KEY'): ";
    assert!(ran.log.contains(advice) && !ran.log.contains("upstream key"), "{}", ran.log);
    assert_eq!(server.count(), 0);
}

/// The address of a server that answers a request without TLS as some do that speak it: with an alert of TLS.
fn alerting() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for call in listener.incoming() {
            let mut call = call.expect("a call");
            // A client may go away.
            let _ = call.read(&mut [0; 4_096]).and_then(|_| call.write_all(b"\x15\x03\x03\x00\x02\x02\x32"));
        }
    });
    url
}
