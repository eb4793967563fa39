//! Batches of `paceline serve` that a client asks for twice, and those of a client whose key is revoked.

use http::Method;
use rustix::process::Signal;
use serde_json::Value;

use crate::batches::{Service, ids, input, order};
use crate::serve_keys::{keys, told};
use crate::support::{Job, Reply, Server};

#[test]
fn a_request_for_a_batch_that_is_sent_again_after_a_kill_makes_no_second_one() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut service = Service::start(&job, &server, &[]);
    let order = order(&service.upload(&input(3)), "24h");
    let create = |service: &Service, key: &str, order: &Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let (status, text) = service.text(Method::POST, "/v1/batches", &headers, order.to_string());
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let (_, first) = create(&service, "once", &order);
    service.signal(Signal::KILL);
    service.gateway.ended();
    service = Service::start(&job, &server, &[]);
    let (status, again) = create(&service, "once", &order);
    assert_eq!((status, &again["id"]), (200, &first["id"]), "{again}");
    let batch = service.until_status(first["id"].as_str().expect("an id"), "completed");
    assert_eq!(ids(&service.lines(&batch, "output_file_id")).len(), 3);
    let mut other = order.clone();
    other["completion_window"] = "1h".into();
    let (status, refused) = create(&service, "once", &other);
    let text = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && text.contains("was asked for under this key, and differs"), "{refused}");
    assert_eq!(create(&service, &"k".repeat(256), &order).0, 400);
    assert_ne!(create(&service, "twice", &order).1["id"], first["id"]);
    assert_eq!(service.get("/v1/batches")["data"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_batch_of_a_revoked_key_makes_no_further_call() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "2 per 1h"]);
    let order = order(&service.upload(&input(5)), "24h").to_string();
    let [revoked, other] = ["revoked", "other"].map(|name| told(&mut keys(&job, &["add", name])));
    let ask = |key: &str, method, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
        let (status, text) = service.text(method, path, &headers, body.to_owned());
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    service.signal(Signal::HUP);
    while ask("none", Method::GET, "/v1/batches", "").0 != 401 {
        std::thread::yield_now();
    }
    let [batch, kept] = [&revoked, &other].map(|key| {
        let id = ask(key, Method::POST, "/v1/batches", &order).1["id"].as_str().expect("an id").to_owned();
        format!("/v1/batches/{id}")
    });
    server.wait_for(2);
    told(&mut keys(&job, &["revoke", "revoked"]));
    service.signal(Signal::HUP);
    while ask(&other, Method::GET, &batch, "").1["status"] != "cancelled" {
        std::thread::yield_now();
    }
    assert_eq!(ask(&other, Method::GET, &kept, "").1["status"], "in_progress", "another's goes on");
    assert_eq!(server.count(), 2);
}
