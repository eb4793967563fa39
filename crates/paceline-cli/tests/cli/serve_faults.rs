//! Upstreams of a gateway whose TLS fails: their clients are told what is wrong, their key goes nowhere, and other upstreams
//! go on.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::serve::Gateway;
use crate::support::{Job, Reply, Server};
use crate::tls::Authority;

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn an_upstream_whose_tls_fails_is_a_502_and_gets_no_key() {
    let (job, known, other) = (Job::new(0), Authority::new(), Authority::new());
    std::fs::write(job.path("ca.pem"), &known.pem).expect("writable");
    let tls = |authority: &Authority, name| Server::tls(authority.server(name, false), |_| Reply::ok());
    let (well, untrusted) = (tls(&known, "localhost"), tls(&other, "localhost"));
    let (elsewhere, strict) =
        (tls(&known, "elsewhere.example"), Server::tls(known.server("localhost", true), |_| Reply::ok()));
    let plain = Server::new(|_| Reply::ok());
    let closes = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = closes.local_addr().expect("it listens").port();
    let upstreams = [
        ("well", well.url()),
        ("untrusted", untrusted.url()),
        ("elsewhere", elsewhere.url()),
        ("strict", strict.url()),
        ("plain", plain.url().replace("http://127.0.0.1", "https://localhost")),
        ("closes", format!("https://localhost:{}", port)),
    ];
    let settings = "api_key_env = \"KEY\"\nca_file = \"ca.pem\"\nretry = { max_retries = 0 }\n";
    let config = upstreams.iter().map(|(name, url)| format!("[upstream.{name}]\nbase_url = \"{url}\"\n{settings}"));
    std::fs::write(job.path("paceline.toml"), config.collect::<String>()).expect("writable");
    std::thread::spawn(move || closes.incoming().for_each(drop));
    let mut command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]).env("KEY", "sk-of-the-upstream");
    let gateway = Gateway::start(&mut command);
    for (name, words) in [
        ("untrusted", "certificate is not trusted"),
        ("elsewhere", "certificate"),
        ("strict", "client certificate"),
        ("plain", "does not speak TLS"),
        ("closes", "no connection"),
    ] {
        let (status, text) = gateway.post(&format!("/{name}/v1/things"), "2s");
        let error = &serde_json::from_str::<Value>(&text).expect("JSON")["error"];
        let code = error["code"].as_str().unwrap_or_default();
        assert_eq!((status, code), (502, "no_connection"), "{name}: {text}");
        assert!(text.contains(words) && !text.contains("sk-of"), "{name}: {text}");
    }
    for server in [&untrusted, &elsewhere, &strict, &plain] {
        assert_eq!(server.count(), 0);
    }
    assert_eq!((gateway.post("/well/v1/things", "2s").0, well.count()), (200, 1));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_certificate_that_has_expired_stops_nothing_once_it_is_renewed() {
    let (job, authority, is_renewed) = (Job::new(0), Authority::new(), Arc::new(AtomicBool::new(false)));
    std::fs::write(job.path("ca.pem"), &authority.pem).expect("writable");
    let server = Server::tls(authority.renewing_server("localhost", &is_renewed), |_| Reply::ok());
    let config = format!(
        "[upstream.things]\nbase_url = \"{}\"\nca_file = \"ca.pem\"\nretry = {{ max_retries = 0 }}\n",
        server.url()
    );
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let gateway = Gateway::start(job.paceline().args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]));
    let (status, text) = gateway.post("/things/v1/all", "2s");
    let error = &serde_json::from_str::<Value>(&text).expect("JSON")["error"];
    assert_eq!((status, error["code"].as_str()), (502, Some("no_connection")), "{text}");
    assert!(text.contains("the server's certificate has expired"), "{text}");
    is_renewed.store(true, Ordering::Relaxed);
    assert_eq!(gateway.post("/things/v1/all", "20s").0, 200);
}
