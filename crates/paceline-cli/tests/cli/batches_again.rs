//! Batches of `paceline serve` that a client asks for twice.

use http::Method;
use rustix::process::Signal;
use serde_json::Value;

use crate::batches::{Service, ids, input, order};
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
