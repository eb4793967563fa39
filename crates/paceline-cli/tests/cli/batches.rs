//! Batches of `paceline serve`: files in, files out, whatever happens to the gateway meanwhile.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::bounded::Bounded;
use crate::serve::{Gateway, serve};
use crate::support::{Arrival, Job, Reply, Server, line};

/// A gateway with a client.
pub(crate) struct Service {
    pub(crate) gateway: Gateway,
    client: reqwest::Client,
    runtime: Runtime,
}

impl Service {
    pub(crate) fn start(job: &Job, server: &Server, flags: &[&str]) -> Self {
        let mut command = serve(job, server, &["--state", "state"]);
        for (name, value) in [("RETRY__BASE", "1ms"), ("RETRY__CAP", "5ms"), ("API_KEY_ENV", "KEY")] {
            command.env(format!("PACELINE_UPSTREAM__GENERIC__{name}"), value);
        }
        let log = std::fs::File::create(job.path("gateway.log")).expect("a log");
        Self::of(Gateway::logging(command.env("KEY", "of-the-upstream").args(flags), log))
    }

    pub(crate) fn of(gateway: Gateway) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { client: paceline_http::client_to(&gateway.url).build().expect("a client"), gateway, runtime }
    }

    pub(crate) fn text(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> (u16, String) {
        let mut request = self.client.request(method, format!("{}{path}", self.gateway.url)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            (answer.status().as_u16(), answer.text().await.expect("a body"))
        })
    }

    fn json(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.text(method, path, &[("content-type", "application/json")], body);
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}")))
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, value) = self.json(Method::GET, path, &Value::Null);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    fn form(&self, fields: &[(&str, &str, &str)]) -> (u16, Value) {
        let mut form = String::new();
        for (name, more, value) in fields {
            form += &format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"{more}\r\n\r\n{value}\r\n");
        }
        let headers = [("content-type", "multipart/form-data; boundary=edge")];
        let (status, text) = self.text(Method::POST, "/v1/files", &headers, form + "--edge--\r\n");
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    pub(crate) fn upload(&self, input: &str) -> String {
        let fields = [("purpose", "", "batch"), ("file", "; filename=\"in.jsonl\"", input)];
        let (status, file) = self.form(&fields);
        assert_eq!((status, file["bytes"].as_u64()), (200, Some(input.len() as u64)), "{file}");
        file["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn create(&self, input: &str, window: &str) -> String {
        let order = order(&self.upload(input), window);
        let (status, batch) = self.json(Method::POST, "/v1/batches", &order);
        assert_eq!((status, batch["status"].as_str()), (200, Some("validating")), "{batch}");
        batch["id"].as_str().expect("an id").to_owned()
    }

    /// Asks until the batch is as wanted.
    pub(crate) fn until(&self, id: &str, is: impl Fn(&Value) -> bool) -> Value {
        let clock = paceline::Clock::new();
        let began = clock.now();
        loop {
            let batch = self.get(&format!("/v1/batches/{id}"));
            if is(&batch) {
                return batch;
            }
            assert!((clock.now() - began).as_secs() < 30, "{batch}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn until_status(&self, id: &str, status: &str) -> Value {
        self.until(id, |batch| batch["status"] == status)
    }

    /// The lines of a result file that the batch names.
    pub(crate) fn lines(&self, batch: &Value, which: &str) -> Vec<Value> {
        let Some(id) = batch[which].as_str() else { return Vec::new() };
        let (status, text) = self.text(Method::GET, &format!("/v1/files/{id}/content"), &[], "");
        assert_eq!(status, 200, "{text}");
        assert_eq!(self.get(&format!("/v1/files/{id}"))["bytes"], text.len());
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.gateway.child), signal).expect("it runs");
    }
}

pub(crate) fn order(file: &str, window: &str) -> Value {
    json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": window})
}

pub(crate) fn input(items: usize) -> String {
    (0..items).map(|number| line(&format!("item-{number}")) + "\n").collect()
}

pub(crate) fn ids(lines: &[Value]) -> BTreeSet<String> {
    let ids: BTreeSet<String> = lines.iter().map(|line| line["custom_id"].to_string()).collect();
    assert_eq!(ids.len(), lines.len(), "an id appears twice");
    ids
}

pub(crate) fn counts(batch: &Value) -> [Option<u64>; 3] {
    ["total", "completed", "failed"].map(|key| batch["request_counts"][key].as_u64())
}

#[test]
fn a_batch_goes_from_an_uploaded_file_to_files_of_results() {
    let answer = |arrival: &Arrival| match &*arrival.item {
        "item-3" => Reply::error(400, "bad_prompt"),
        _ => Reply::ok(),
    };
    let (job, server) = (Job::new(0), Server::new(answer));
    let service = Service::start(&job, &server, &[]);
    let file = service.upload(&input(5));
    let mut order = order(&file, "24h");
    order["metadata"] = json!({"what": "a test"});
    let (_, created) = service.json(Method::POST, "/v1/batches", &order);
    let id = created["id"].as_str().expect("an id");
    let batch = service.until_status(id, "completed");
    assert_eq!(counts(&batch), [Some(5), Some(4), Some(1)], "{batch}");
    assert_eq!((&batch["usage"]["input_tokens"], &batch["usage"]["total_tokens"]), (&json!(12), &json!(20)));
    assert_eq!((&batch["metadata"], &batch["errors"]), (&json!({"what": "a test"}), &Value::Null));
    let window = batch["expires_at"].as_i64().zip(batch["created_at"].as_i64()).map(|(end, begin)| end - begin);
    assert!(matches!(window, Some(86_400 | 86_401)), "{batch}");
    let (output, errors) = (service.lines(&batch, "output_file_id"), service.lines(&batch, "error_file_id"));
    assert_eq!((ids(&output).len(), ids(&errors)), (4, BTreeSet::from(["\"item-3\"".to_owned()])));
    assert_eq!((&output[0]["response"]["status_code"], &output[0]["error"]), (&json!(200), &Value::Null));
    assert_eq!(errors[0]["response"]["body"]["error"]["code"], "bad_prompt");
    assert_eq!((server.count(), service.get("/v1/files")["data"].as_array().map(Vec::len)), (5, Some(3)));
    assert_eq!(service.get("/v1/files?purpose=batch")["data"][0]["filename"], "in.jsonl");
    let all = ["state/batches".into(), format!("state/batches/files/{file}"), format!("state/batches/jobs/{id}")];
    for (folder, mode) in all.iter().map(|folder| (folder.clone(), 0o700)).chain([
        (format!("state/batches/files/{file}/content"), 0o600),
        (format!("state/batches/jobs/{id}/record.json"), 0o600),
        (format!("state/batches/files/{}/content", batch["output_file_id"].as_str().expect("an id")), 0o600),
    ]) {
        let found = std::fs::metadata(job.path(&folder)).expect(&folder).permissions().mode();
        assert_eq!(found & 0o777, mode, "{folder}");
    }
    let left = std::fs::read_dir(job.path(&format!("state/batches/jobs/{id}"))).expect("a folder").count();
    assert_eq!(left, 1, "the journal of a batch that ended is gone");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn an_input_that_cannot_be_sent_fails_the_batch_before_its_first_call() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &[]);
    let good = line("a");
    let other = r#"{"custom_id":"b","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}"#;
    let get = r#"{"custom_id":"c","method":"GET","url":"/v1/chat/completions"}"#;
    let many = input(50_001);
    for (text, expected) in [
        ("", json!([["empty_file", null, null]])),
        ("\n\n", json!([["empty_file", null, null]])),
        ("{\"custom_id\":", json!([["invalid_json_line", 1, null]])),
        ("id,prompt\na,hello\n", json!([["invalid_json_line", 1, null], ["invalid_json_line", 2, null]])),
        (&format!("\u{feff}{good}\r\n{other}\r\n"), json!([["url_mismatch", 2, "url"]])),
        (&format!("{good}\n{get}\n"), json!([["invalid_method", 2, "method"]])),
        (&good.replacen('{', r#"{"headers":{"host":"h"},"#, 1), json!([["invalid_headers", 1, "headers"]])),
        (&good.replacen('{', r#"{"headers":{"Api-Key":"k"},"#, 1), json!([["invalid_headers", 1, "headers"]])),
        (
            &format!("{good}\n\n{good}\n[]\n"),
            json!([["duplicate_custom_id", 3, "custom_id"], ["invalid_json_line", 4, null]]),
        ),
        (&many, json!([["too_many_tasks", null, null]])),
    ] {
        let batch = service.until_status(&service.create(text, "24h"), "failed");
        let faults = batch["errors"]["data"].as_array().expect("faults").iter();
        let faults: Value = faults.map(|fault| json!([fault["code"], fault["line"], fault["param"]])).collect();
        assert_eq!((&batch["errors"]["object"], &faults), (&json!("list"), &expected), "{batch}");
        assert!(!batch["errors"].to_string().contains("--"), "a client has no flags: {batch}");
        assert!(batch["failed_at"].is_i64() && batch["output_file_id"].is_null(), "{batch}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_batch_outlives_two_kills_of_the_gateway() {
    const ITEMS: usize = 60;
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().after(std::time::Duration::from_millis(20))));
    let start = || Service::start(&job, &server, &["--concurrency", "2"]);
    let mut service = start();
    let id = service.create(&input(ITEMS), "24h");
    for arrived in [15, 35] {
        server.wait_for(arrived);
        service.signal(Signal::KILL);
        service.gateway.child.ended();
        service = start();
    }
    let batch = service.until_status(&id, "completed");
    assert_eq!(counts(&batch), [Some(ITEMS as u64), Some(ITEMS as u64), Some(0)], "{batch}");
    let output = service.lines(&batch, "output_file_id");
    assert_eq!((ids(&output).len(), &batch["error_file_id"]), (ITEMS, &Value::Null));
    assert_eq!(server.by_item().len(), ITEMS);
    let shown = &service.get("/api/state")["batches"][0];
    assert_eq!((&shown["id"], &shown["done"], &shown["status"]), (&id.into(), &ITEMS.into(), &"completed".into()));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_signal_lets_calls_in_flight_be_answered_and_no_call_is_repeated() {
    const ITEMS: usize = 30;
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok().after(std::time::Duration::from_millis(50))));
    let start = || Service::start(&job, &server, &["--concurrency", "3"]);
    let mut service = start();
    let id = service.create(&input(ITEMS), "24h");
    server.wait_for(8);
    service.signal(Signal::TERM);
    assert_eq!(service.gateway.child.ended().code(), Some(0));
    assert!(server.count() < ITEMS);
    let service = start();
    let batch = service.until_status(&id, "completed");
    assert_eq!(ids(&service.lines(&batch, "output_file_id")).len(), ITEMS);
    assert_eq!(server.count(), ITEMS, "no call is made twice");
}

#[test]
fn a_cancelled_batch_keeps_what_is_done() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "2 per 1h"]);
    let file = service.upload(&input(5));
    let (_, created) = service.json(Method::POST, "/v1/batches", &order(&file, "24h"));
    let id = created["id"].as_str().expect("an id");
    service.until(id, |batch| batch["request_counts"]["completed"] == 2);
    let (status, refused) = service.json(Method::DELETE, &format!("/v1/files/{file}"), &Value::Null);
    assert_eq!((status, refused["error"]["type"].as_str()), (409, Some("invalid_request_error")), "{refused}");
    let cancel = || service.json(Method::POST, &format!("/v1/batches/{id}/cancel"), &Value::Null);
    let (status, cancelling) = cancel();
    assert_eq!((status, cancelling["status"].as_str()), (200, Some("cancelling")), "{cancelling}");
    let batch = service.until_status(id, "cancelled");
    assert_eq!(counts(&batch), [Some(5), Some(2), Some(3)], "{batch}");
    assert_eq!(ids(&service.lines(&batch, "output_file_id")).len(), 2);
    let errors = service.lines(&batch, "error_file_id");
    assert_eq!((ids(&errors).len(), &errors[0]["error"]["code"]), (3, &json!("batch_cancelled")));
    assert!(batch["cancelling_at"].is_i64() && batch["cancelled_at"].is_i64(), "{batch}");
    assert_eq!((cancel().0, server.count()), (409, 2));
    let (status, deleted) = service.json(Method::DELETE, &format!("/v1/files/{file}"), &Value::Null);
    assert_eq!((status, &deleted["deleted"]), (200, &json!(true)));
    assert_eq!(service.json(Method::GET, &format!("/v1/files/{file}/content"), &Value::Null).0, 404);
    assert!(!Path::new(&job.path(&format!("state/batches/files/{file}"))).exists());
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_is_left_at_the_end_of_the_window_expires() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let start = || Service::start(&job, &server, &["--limit", "1 per 1h"]);
    let mut service = start();
    let id = service.create(&input(3), "24h");
    service.until(&id, |batch| batch["request_counts"]["completed"] == 1);
    service.signal(Signal::KILL);
    service.gateway.child.ended();
    let record = job.path(&format!("state/batches/jobs/{id}/record.json"));
    let mut batch: Value = serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
    batch["expires_at"] = batch["created_at"].clone();
    std::fs::write(&record, batch.to_string()).expect("writable");
    let service = start();
    let batch = service.until_status(&id, "expired");
    assert_eq!(counts(&batch), [Some(3), Some(1), Some(2)], "{batch}");
    assert_eq!(ids(&service.lines(&batch, "output_file_id")).len(), 1);
    let errors = service.lines(&batch, "error_file_id");
    assert_eq!((ids(&errors).len(), &errors[0]["error"]["code"]), (2, &json!("batch_expired")));
    assert_eq!((errors[0]["response"].is_null(), batch["expired_at"].is_i64(), server.count()), (true, true, 1));
    service.until_status(&service.create(&input(3), "1s"), "expired");
}

#[test]
fn a_refused_key_holds_a_batch_until_it_is_mended_and_fails_none_of_it() {
    let bad = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&bad);
    let answer = move |_: &Arrival| match seen.load(Ordering::Relaxed) {
        true => Reply::error(401, "invalid_api_key"),
        false => Reply::ok(),
    };
    let (job, server) = (Job::new(0), Server::new(answer));
    let mut service = Service::start(&job, &server, &[]);
    let id = service.create(&input(4), "7d");
    let batch = service.until(&id, |batch| batch["paceline"]["waits_for"].is_string());
    let why = batch["paceline"]["waits_for"].as_str().unwrap_or_default();
    assert!(why.contains("refuses this account") && why.contains("restart the gateway"), "{why}");
    assert_eq!((batch["status"].as_str(), counts(&batch)), (Some("in_progress"), [Some(4), Some(0), Some(0)]));
    service.signal(Signal::TERM);
    assert_eq!(service.gateway.child.ended().code(), Some(0));
    bad.store(false, Ordering::Relaxed);
    let service = Service::start(&job, &server, &[]);
    let batch = service.until_status(&id, "completed");
    assert_eq!((counts(&batch), batch["paceline"]["waits_for"].is_null()), ([Some(4), Some(4), Some(0)], true));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn live_requests_go_before_those_of_a_batch() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "5 per 1s"]);
    let id = service.create(&input(20), "24h");
    server.wait_for(5);
    let body = r#"{"model":"m","item":"live"}"#;
    assert_eq!(service.text(Method::POST, "/generic/v1/chat/completions", &[], body).0, 200);
    let place = server.arrivals().iter().position(|arrival| arrival.item == "live").expect("it came");
    assert!(place < 12, "the live request came as number {place}");
    service.until_status(&id, "completed");
    assert_eq!(server.count(), 21);
}

#[test]
fn requests_that_make_no_sense_are_refused_in_the_form_of_openai() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &[]);
    let named = "; filename=\"../../x\"";
    for (fields, param) in [
        (&[("file", named, "{}")][..], json!("purpose")),
        (&[("purpose", "", "fine-tune"), ("file", named, "{}")], json!("purpose")),
        (&[("purpose", "", "batch")], json!("file")),
    ] {
        let (status, error) = service.form(fields);
        assert_eq!((status, &error["error"]["param"]), (400, &param), "{error}");
    }
    assert_eq!(service.get("/v1/files")["data"], json!([]), "nothing of them is kept");
    assert_eq!(std::fs::read_dir(job.path("state/batches/files")).expect("a folder").count(), 0);
    let batch = service.until_status(&service.create(&input(1), "24h"), "completed");
    let (output, given) = (batch["output_file_id"].as_str().expect("an id"), service.upload("x"));
    for (order, param) in [
        (order(output, "24h"), json!("input_file_id")),
        (order(&given, "soon"), json!("completion_window")),
        (order(&given, "0s"), json!("completion_window")),
        (order(&given, "367d"), json!("completion_window")),
        (json!({"input_file_id": given, "completion_window": "24h"}), json!("endpoint")),
        (json!({"input_file_id": given, "endpoint": "chat", "completion_window": "24h"}), json!("endpoint")),
    ] {
        let (status, error) = service.json(Method::POST, "/v1/batches", &order);
        assert_eq!((status, &error["error"]["param"]), (400, &param), "{error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
    for (method, path, expected) in [
        (Method::GET, "/v1/files/file-0", 404),
        (Method::GET, "/v1/batches/batch_0", 404),
        (Method::POST, "/v1/batches/batch_0/cancel", 404),
        (Method::DELETE, "/v1/files/..%2f..%2flock", 400),
        (Method::GET, "/v1/files/%2e%2e/content", 404),
        (Method::GET, "/v1/files/../../lock", 404),
        (Method::GET, "/v1/batches?after=batch_0", 400),
        (Method::GET, "/v1/batches?limit=101", 400),
        (Method::GET, "/v1/batches?limit=x", 400),
        (Method::PUT, "/v1/batches", 405),
        (Method::GET, "/v1/batches/a/b/c", 404),
    ] {
        let (status, error) = service.json(method, path, &Value::Null);
        assert_eq!((status, error["error"]["message"].is_string()), (expected, true), "{path}: {error}");
    }
    let (status, error) = service.json(Method::POST, "/v1/batches", &order("file-0", "24h"));
    assert_eq!((status, &error["error"]["message"]), (404, &json!("No such File object: file-0")));
    let page = service.text(Method::GET, "/v1/files", &[("origin", "https://a.example")], "");
    assert_eq!(page.0, 403, "{}", page.1);
}

#[test]
fn where_there_are_several_upstreams_a_batch_names_its_own() {
    let (job, server, other) = (Job::new(0), Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let config =
        format!("[upstream.a]\nbase_url = \"{}\"\n[upstream.b]\nbase_url = \"{}\"\n", server.url(), other.url());
    std::fs::write(job.path("two.toml"), config).expect("writable");
    let flags = ["serve", "--listen", "127.0.0.1:0", "--config", "two.toml", "--state", "state"];
    let service = Service::of(Gateway::start(job.paceline().args(flags)));
    let order = order(&service.upload(&input(1)), "24h");
    let (status, error) = service.json(Method::POST, "/v1/batches", &order);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("upstream")), "{error}");
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("a, b") && message.contains("x-paceline-upstream"), "{message}");
    let (_, by_query) = service.json(Method::POST, "/v1/batches?upstream=b", &order);
    service.until_status(by_query["id"].as_str().expect("an id"), "completed");
    assert_eq!((server.count(), other.count()), (0, 1));
    let (_, text) = service.text(Method::POST, "/v1/batches", &[("x-paceline-upstream", "a")], order.to_string());
    let by_header: Value = serde_json::from_str(&text).expect("JSON");
    service.until_status(by_header["id"].as_str().expect("an id"), "completed");
    assert_eq!((server.count(), other.count()), (1, 1));
    let listed = service.get("/v1/batches?limit=1");
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&by_header["id"], &json!(true)));
    let next = service.get(&format!("/v1/batches?limit=1&after={}", listed["last_id"].as_str().expect("an id")));
    assert_eq!((&next["data"][0]["id"], &next["has_more"]), (&by_query["id"], &json!(false)));
}

#[test]
fn four_batches_of_an_upstream_run_and_the_fifth_waits_for_its_turn() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "1 per 1h"]);
    let ids: Vec<_> = (0..5).map(|_| service.create(&input(2), "24h")).collect();
    let waits = |batch: &Value| batch["paceline"]["waits_for"].as_str().is_some_and(|why| why.starts_with("its turn"));
    for id in &ids[..4] {
        service.until_status(id, "in_progress");
    }
    assert_eq!(service.until(&ids[4], waits)["status"], "validating");
    service.json(Method::POST, &format!("/v1/batches/{}/cancel", ids[1]), &Value::Null);
    let fifth = service.until_status(&ids[4], "in_progress");
    assert_eq!(fifth["paceline"]["waits_for"], Value::Null, "{fifth}");
    // One that waits for its turn needs none to be cancelled.
    let sixth = service.create(&input(2), "24h");
    service.until(&sixth, waits);
    service.json(Method::POST, &format!("/v1/batches/{sixth}/cancel"), &Value::Null);
    let sixth = service.until_status(&sixth, "cancelled");
    assert_eq!((counts(&sixth), &sixth["output_file_id"]), ([Some(0), Some(0), Some(0)], &Value::Null));
}

#[test]
fn a_server_that_is_not_there_holds_a_batch_and_fails_none_of_it() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let address = server.url();
    drop(server);
    let flags = ["serve", "--listen", "127.0.0.1:0", "--state", "state", "--base-url", &address];
    let service = Service::of(Gateway::start(job.paceline().args(flags)));
    let id = service.create(&input(3), "24h");
    let batch = service.until(&id, |batch| batch["paceline"]["waits_for"].is_string());
    let why = batch["paceline"]["waits_for"].as_str().unwrap_or_default();
    assert!(why.starts_with("another try, after: no connection") || why.contains("the server is failing"), "{why}");
    assert_eq!((batch["status"].as_str(), counts(&batch)), (Some("in_progress"), [Some(3), Some(0), Some(0)]));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_a_live_request_stops_holds_a_batch_too() {
    let answer = |arrival: &Arrival| match &*arrival.item {
        "live" => Reply::error(401, "invalid_api_key"),
        _ => Reply::ok(),
    };
    let (job, server) = (Job::new(0), Server::new(answer));
    let service = Service::start(&job, &server, &["--limit", "1 per 1s"]);
    let id = service.create(&input(30), "24h");
    server.wait_for(1);
    assert_eq!(service.text(Method::POST, "/generic/v1/chat/completions", &[], r#"{"item":"live"}"#).0, 401);
    let is_stopped = |batch: &Value| batch["paceline"]["waits_for"].as_str().is_some_and(|why| why.contains("refuses"));
    let batch = service.until(&id, is_stopped);
    let why = batch["paceline"]["waits_for"].as_str().unwrap_or_default();
    assert!(why.contains("refuses this account") && why.contains("restart the gateway"), "{why}");
    assert_eq!((batch["status"].as_str(), server.count() < 10), (Some("in_progress"), true));
}

#[test]
fn batches_take_turns() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "10 per 500ms"]);
    service.create(&input(60), "24h");
    server.wait_for(10);
    let few: String = (0..5).map(|number| line(&format!("few-{number}")) + "\n").collect();
    let few = service.create(&few, "24h");
    service.until_status(&few, "completed");
    let sent = server.count();
    assert!(sent <= 50, "{sent} calls were made before the few of the second batch had ended");
}

#[test]
fn one_gateway_has_the_batches_of_a_state_folder() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    // Without a name and without keys gateways share the user's folder.
    let start = || Service::of(Gateway::start(&mut serve(&job, &server, &[])));
    let (first, second) = (start(), start());
    assert_eq!(first.get("/v1/batches")["data"], json!([]));
    let (status, error) = second.json(Method::GET, "/v1/batches", &Value::Null);
    assert_eq!((status, &error["error"]["code"]), (503, &json!("unavailable")), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|why| why.contains("--state")), "{error}");
    assert_eq!(second.text(Method::POST, "/generic/v1/chat/completions", &[], r#"{"model":"m"}"#).0, 200);
}
