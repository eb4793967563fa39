//! Batches of `paceline serve` that a client asks for twice or that fail, and those of a client whose key is revoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::batches::{Service, counts, ids, input, order};
use crate::bounded::BoundedOutput;
use crate::serve_keys::{keys, told};
use crate::support::{Job, Reply, Server, finish, line};

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
    let (status, long) = create(&service, "long", &json!({ "endpoint": "x".repeat(70_000) }));
    let words = "the request has more than 65536 bytes: expected a shorter `endpoint` and `metadata`";
    assert_eq!((status, &long["error"]["message"]), (413, &words.into()));
    assert_ne!(create(&service, "twice", &order).1["id"], first["id"]);
    assert_eq!(service.get("/v1/batches")["data"].as_array().map(Vec::len), Some(2));
}

/// After a kill on a full disk the record is all that is read of a batch: its counts fell to none.
#[test]
fn the_record_of_a_batch_keeps_up_with_its_counts() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &["--limit", "20 per 1h"]);
    let order = order(&service.upload(&input(40)), "24h").to_string();
    let (_, batch) = service.text(Method::POST, "/v1/batches", &[("content-type", "application/json")], order);
    let batch: Value = serde_json::from_str(&batch).expect("JSON");
    let id = batch["id"].as_str().expect("an id");
    let record = job.path(&format!("state/batches/jobs/{id}/record.json"));
    let recorded = || {
        let record: Value = serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
        record["request_counts"]["completed"].as_u64()
    };
    service.until(id, |_| recorded() >= Some(18));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_file_that_cannot_be_read_ends_its_batches_and_leaves_their_places_to_others() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &[]);
    let create = |file: &str, window: &str| {
        let headers = [("content-type", "application/json")];
        let (status, text) = service.text(Method::POST, "/v1/batches", &headers, order(file, window).to_string());
        let batch: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(status, 200, "{batch}");
        batch["id"].as_str().expect("an id").to_owned()
    };
    let content = |file: &str| job.path(&format!("state/batches/files/{file}/content"));
    let mark = |order: fn(u16) -> [u8; 2]| "\u{feff}".encode_utf16().flat_map(order).collect::<Vec<_>>();
    let utf_16 = |mark: Vec<u8>| {
        let file = service.upload(&input(2));
        std::fs::write(content(&file), mark).expect("writable");
        file
    };
    for file in [utf_16(mark(u16::to_le_bytes)), utf_16(mark(u16::to_be_bytes))] {
        let batch = service.until_status(&create(&file, "24h"), "failed");
        let fault = &batch["errors"]["data"][0];
        let expected = "the file is a text in UTF-16: expected one JSON object a line, in UTF-8";
        assert_eq!((&fault["code"], &fault["message"]), (&"invalid_file".into(), &expected.into()), "{batch}");
    }
    // What may be mended is waited for until the window is over, and names no folder.
    let file = service.upload(&input(2));
    std::fs::remove_file(content(&file)).expect("it is there");
    let waiting: Vec<_> = ["24h", "1s", "1s", "1s"].map(|window| create(&file, window)).into();
    let batch = service.until(&waiting[0], |batch| !batch["paceline"]["waits_for"].is_null());
    let expected = format!("cannot read files/{file}/content: No such file or directory (os error 2)");
    assert_eq!(batch["paceline"]["waits_for"], expected);
    let good = create(&service.upload(&input(2)), "24h");
    for over in &waiting[1..] {
        let batch = service.until_status(over, "expired");
        assert!(batch["expired_at"].is_i64() && batch["output_file_id"].is_null(), "{batch}");
    }
    service.until_status(&good, "completed");
}

/// What a client of the gateway is told names what it can do: no flag of a command, and no words of a library.
#[test]
fn what_is_wrong_with_a_line_or_a_request_is_told_in_words_of_its_client() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let service = Service::start(&job, &server, &[]);
    let with_url = |url: &str| format!(r#"{{"custom_id":"a","method":"POST","url":"{url}","body":{{"model":"m"}}}}"#);
    for (text, expected) in [
        (
            with_url("https://elsewhere.example/v1"),
            "this url is of another host than the upstream's address http://127.0.0.1:",
        ),
        (with_url("v1/chat/completions"), ": expected a path that begins with /\""),
        (with_url(""), "\"missing: expected a path such as /v1/chat/completions\""),
        (r#"{"model":"m","messages":[]}"#.to_owned(), "read as batch: all lines of a file have one form\""),
    ] {
        let batch = service.until_status(&service.create(&text, "24h"), "failed");
        let told = batch["errors"].to_string();
        assert!(
            told.contains(expected) && !told.contains("--") && !told.contains("paceline.toml"),
            "{expected}: {told}"
        );
    }
    let file = service.upload("x");
    let with_window = |window: Value| json!({"input_file_id": file, "endpoint": "/v1/x", "completion_window": window});
    for (path, body, param, expected) in [
        ("batches", "soon".to_owned(), Value::Null, "expected a JSON object with input_file_id, endpoint and"),
        ("batches", "[]".to_owned(), Value::Null, "expected a JSON object with input_file_id, endpoint and"),
        (
            "batches",
            json!({"endpoint": "/v1/x"}).to_string(),
            json!("input_file_id"),
            "missing: expected a text, the id of",
        ),
        ("batches", with_window(json!(24)).to_string(), json!("completion_window"), "expected a text, such as 24h"),
        ("files", "x".to_owned(), Value::Null, "expected a form (Content-Type: multipart/form-data; boundary=...)"),
    ] {
        let headers = [("content-type", "application/json")];
        let (status, text) = service.text(Method::POST, &format!("/v1/{path}"), &headers, body);
        let error = serde_json::from_str::<Value>(&text).expect("JSON");
        let message = error["error"]["message"].as_str().expect("words");
        assert!(status == 400 && error["error"]["param"] == param && message.starts_with(expected), "{text}");
    }
    let (_, text) = service.text(Method::GET, "/v1/batches?limit=x", &[], "");
    assert!(text.contains("\"x: expected 1 to 100\"") && text.contains("\"limit\""), "{text}");
}

/// A key that the upstream refuses is one line of the log that says what to do, and one that says which batch waits for it.
#[test]
fn a_refused_key_is_told_once_for_the_upstream_and_once_for_the_batch() {
    let job = Job::new(0);
    let server = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let mut service = Service::start(&job, &server, &[]);
    service.until(&service.create(&input(2), "24h"), |batch| !batch["paceline"]["waits_for"].is_null());
    service.signal(Signal::TERM);
    service.gateway.ended();
    let log = job.text("gateway.log");
    let told: Vec<_> = log.lines().filter(|line| line.contains("401")).collect();
    let [upstream, batch] = &told[..] else { panic!("{log}") };
    assert!(upstream.contains("nothing leaves until a person acts") && batch.contains("the batch waits: "), "{log}");
    assert!(!log.contains("the same command"), "{log}");
}

/// Batches of clients with keys, of a gateway that had none yet.
struct OfClients<'a> {
    job: &'a Job,
    service: Service,
    order: String,
}

impl<'a> OfClients<'a> {
    fn start(job: &'a Job, server: &Server, limit: &str, items: usize) -> Self {
        Self::with_input(job, server, limit, &input(items))
    }

    fn with_input(job: &'a Job, server: &Server, limit: &str, input: &str) -> Self {
        let service = Service::start(job, server, &["--limit", limit]);
        let order = order(&service.upload(input), "24h").to_string();
        Self { job, service, order }
    }

    /// What a request of that client is told.
    fn live(&self, key: &str, deadline: &str) -> (u16, Value) {
        let bearer = format!("Bearer {key}");
        let headers =
            [("content-type", "application/json"), ("authorization", &*bearer), ("x-paceline-deadline", deadline)];
        let body = r#"{"model":"m","item":"live"}"#;
        let (status, text) = self.service.text(Method::POST, "/generic/v1/chat/completions", &headers, body);
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    /// The batch once it is as wanted, as that client sees it.
    fn until(&self, key: &str, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let clock = paceline::Clock::new();
        let began = clock.now();
        loop {
            let batch = self.ask(key, Method::GET, path, "").1;
            if is(&batch) {
                return batch;
            }
            assert!((clock.now() - began).as_secs() < 60, "{batch}");
            std::thread::yield_now();
        }
    }

    fn keys(&self, args: &[&str]) -> String {
        told(&mut keys(self.job, args))
    }

    /// Keys of those names, once the gateway knows them.
    fn add<const N: usize>(&self, names: [&str; N]) -> [String; N] {
        let added = names.map(|name| self.keys(&["add", name]));
        self.until_status("none", 401);
        self.until_status(added.last().expect("one"), 200);
        added
    }

    fn until_status(&self, key: &str, status: u16) {
        self.service.signal(Signal::HUP);
        while self.ask(key, Method::GET, "/v1/batches", "").0 != status {
            std::thread::yield_now();
        }
    }

    fn ask(&self, key: &str, method: Method, path: &str, body: &str) -> (u16, Value) {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
        let (status, text) = self.service.text(method, path, &headers, body.to_owned());
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    }

    /// The path of a new batch.
    fn create(&self, key: &str) -> String {
        let (_, batch) = self.ask(key, Method::POST, "/v1/batches", &self.order);
        format!("/v1/batches/{}", batch["id"].as_str().expect("an id"))
    }

    fn cancelled(&self, key: &str, path: &str) -> Value {
        loop {
            let batch = self.ask(key, Method::GET, path, "").1;
            assert_ne!(batch["status"], "completed", "{batch}");
            if batch["status"] == "cancelled" {
                return batch;
            }
            std::thread::yield_now();
        }
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_batch_that_its_key_may_not_make_any_more_makes_no_further_call() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let all = OfClients::start(&job, &server, "2 per 1h", 5);
    let names = ["revoked", "models", "limit", "paths", "leaked", "rotated", "exchanged", "former", "other"];
    let keys = all.add(names);
    let batches = keys.each_ref().map(|key| all.create(key));
    server.wait_for(2);
    let former = all.keys(&["rotate", "former"]);
    assert!(!former.contains("batch_"), "standard output has the key alone: {former}");
    for change in [
        &["revoke", "revoked"][..],
        &["set", "models", "--models", "gpt-4o-mini"],
        &["set", "limit", "--limit", "2 per 24h"],
        &["set", "paths", "--paths", "/generic/v1/things"],
        &["rotate", "leaked", "--keep-old", "0s"],
        &["rotate", "rotated"],
        &["revoke", "exchanged"],
        &["add", "exchanged"],
        &["revoke", "former", "--former"],
        &["set", "other", "--priority", "batch"],
    ] {
        all.keys(change);
    }
    all.service.signal(Signal::HUP);
    let [.., other] = &keys;
    for (name, batch) in names.iter().zip(&batches).filter(|(name, _)| !["other", "rotated"].contains(name)) {
        let because = all.cancelled(other, batch)["paceline"]["cancelled_because"].to_string();
        let expected = match *name {
            "revoked" => "the key of revoked is revoked",
            "leaked" | "exchanged" | "former" => "that asked for it has ended, and another took its place",
            _ => "has limits, models or paths of its own, which batches",
        };
        assert!(because.contains(expected) && because.contains(name), "{name}: {because}");
    }
    for batch in [&batches[5], &batches[8]] {
        assert_eq!(all.ask(other, Method::GET, batch, "").1["status"], "in_progress", "these go on");
    }
    assert_eq!(server.count(), 2);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_batch_ends_with_a_former_key_that_ends_by_itself() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let all = OfClients::start(&job, &server, "2 per 1s", 200);
    let [_, key] = all.add(["other", "ci"]);
    let batch = all.create(&key);
    server.wait_for(1);
    let output = keys(&job, &["rotate", "ci", "--keep-old", "2s"]).ended_with_output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("was asked for with the former key, and is cancelled if it has not ended by 20"), "{text}");
    let now = String::from_utf8(output.stdout).expect("text");
    all.until_status(now.trim(), 200);
    let ended = all.cancelled(now.trim(), &batch);
    assert!(ended["request_counts"]["completed"].as_u64().is_some_and(|done| done < 100), "{ended}");
}

#[test]
fn a_change_of_keys_says_what_was_done_and_which_batches_end() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let all = OfClients::start(&job, &server, "2 per 1h", 5);
    let [key] = all.add(["ci"]);
    let batch = all.create(&key);
    let id = batch.rsplit_once('/').expect("a path").1;
    for (change, expected) in [
        (&["set", "ci", "--priority", "batch"][..], ""),
        (&["set", "ci", "--models", "m"], "the key ci has limits, models or paths of its own"),
        (&["revoke", "ci"], "the key of ci is revoked"),
    ] {
        let (code, text) = finish(&mut keys(&job, change));
        let cancels = format!("the gateway cancels {id}, at once or as it starts: {expected}");
        assert_eq!((code, text.contains(&cancels)), (0, !expected.is_empty()), "{change:?}: {text}");
        assert_eq!(
            text.contains("every key of ci is revoked: a gateway whose keys are in state/client-keys.json knows it"),
            change[0] == "revoke",
            "{text}"
        );
    }
}

#[test]
fn each_client_has_idempotency_keys_of_its_own() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let all = OfClients::start(&job, &server, "2 per 1h", 2);
    let keys = all.add(["first", "second"]);
    let other = all.order.replace("24h", "1h");
    let create = |key: &str, order: &str| {
        let bearer = format!("Bearer {key}");
        let headers =
            [("content-type", "application/json"), ("authorization", &*bearer), ("idempotency-key", "nightly")];
        let (status, text) = all.service.text(Method::POST, "/v1/batches", &headers, order.to_owned());
        (status, serde_json::from_str::<Value>(&text).expect("JSON")["id"].clone())
    };
    let [(_, first), (status, second)] =
        [(&keys[0], &all.order), (&keys[1], &other)].map(|(key, order)| create(key, order));
    assert_eq!((status, first == second), (200, false), "another client's");
    assert_eq!(create(&keys[0], &all.order), (200, first));
    assert_eq!(create(&keys[0], &other).0, 400);
}

/// A server that answers live requests, and refuses the others so.
fn refusing(refusal: Reply) -> Server {
    Server::new(move |arrival| if arrival.item == "live" { Reply::ok() } else { refusal.clone() })
}

fn waits_for(batch: &Value) -> &str {
    batch["paceline"]["waits_for"].as_str().unwrap_or_default()
}

#[test]
fn what_one_client_is_refused_in_a_batch_stops_no_other_and_fails_none_of_it() {
    let server = refusing(Reply::error(401, "MARKED"));
    let job = Job::new(0);
    let all = OfClients::start(&job, &server, "1000 per 1s", 3);
    let [a, b, _] = all.add(["a", "b", "c"]);
    assert_eq!(all.live(&b, "30s").0, 200);
    let path = all.create(&a);
    let batch = all.until(&b, &path, |batch| waits_for(batch).starts_with("another try"));
    assert_eq!(all.live(&b, "30s").0, 200, "{batch}");
    let document = all.ask(&b, Method::GET, "/api/state", "").1.to_string();
    assert!(!batch.to_string().contains("MARKED") && !document.contains("MARKED"), "{batch} {document}");
    assert_eq!(batch["request_counts"]["failed"], 0, "{batch}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_batch_that_is_refused_alone_goes_on_once_a_reload_or_a_lift_says_that_it_is_mended() {
    for by_lift in [false, true] {
        let is_mended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_mended);
        let server = Server::new(move |arrival| match arrival.item == "live" || seen.load(Ordering::Relaxed) {
            true => Reply::ok(),
            false => Reply::error(401, "MARKED"),
        });
        let job = Job::new(0);
        let all = OfClients::start(&job, &server, "1000 per 1s", 3);
        let [a, b, _] = all.add(["a", "b", "c"]);
        assert_eq!(all.live(&b, "30s").0, 200);
        let path = all.create(&a);
        all.until(&b, &path, |batch| waits_for(batch).starts_with("another try"));
        is_mended.store(true, Ordering::Relaxed);
        if by_lift {
            assert_eq!(finish(job.paceline().args(["serve", "lift-holds", "--state", "state"])).0, 0);
        } else {
            all.service.signal(Signal::HUP);
        }
        let batch = all.until(&b, &path, |batch| batch["status"] == "completed");
        assert_eq!(batch["request_counts"]["completed"], 3, "{batch}");
    }
}

#[test]
fn a_long_wait_that_one_client_is_told_in_a_batch_holds_the_others_for_a_moment() {
    let server = refusing(Reply::error(429, "slow_down").with_header("retry-after", 900));
    let job = Job::new(0);
    let all = OfClients::start(&job, &server, "1000 per 1s", 1);
    let [a, b, _] = all.add(["a", "b", "c"]);
    assert_eq!(all.live(&b, "30s").0, 200);
    let path = all.create(&a);
    all.until(&b, &path, |batch| !waits_for(batch).is_empty() && !waits_for(batch).contains("turn"));
    let (status, told) = all.live(&b, "1ms");
    let wait = told["error"]["wait_ms"].as_u64();
    assert!(status == 200 || wait.is_some_and(|wait| wait <= 10_000), "{status} {told}");
}

#[test]
fn failed_requests_of_a_batch_are_few_lines_of_the_log_and_no_errors() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::error(400, "wrong")));
    let all = OfClients::start(&job, &server, "1000 per 1s", 30);
    let path = all.create("any");
    all.until("any", &path, |batch| batch["status"] == "completed");
    let log = job.text("gateway.log");
    assert_eq!((log.matches("item failed").count(), log.contains("ERROR")), (20, false), "{log}");
}

#[test]
fn lines_of_a_batch_carry_no_more_of_their_client_than_its_requests_do() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut of_line: Value = serde_json::from_str(&line("item-0")).expect("JSON");
    let keys = ["a", "b"].map(|name| told(&mut keys(&job, &["add", name])));
    let fields =
        ["openai-organization", "openai-project", "x-forwarded-for", "x-http-method-override", "x-paceline-key"];
    of_line["headers"] = fields.iter().map(|name| (*name, "1")).collect();
    of_line["headers"]["x-team"] = format!("a{}", keys[1]).into();
    of_line["headers"]["x-trace"] = "stays".into();
    of_line["headers"]["idempotency-key"] = "LIVE".into();
    let service = Service::start(&job, &server, &[]);
    let all = OfClients { job: &job, service, order: String::new() };
    let post = |path: &str, body: &Value| all.ask(&keys[0], Method::POST, path, &body.to_string());
    let upload = |line: &str| {
        let form = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\ncontent-disposition: \
             form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{line}\r\n--edge--\r\n"
        );
        let bearer = format!("Bearer {}", keys[0]);
        let headers = [("content-type", "multipart/form-data; boundary=edge"), ("authorization", &*bearer)];
        all.service.text(Method::POST, "/v1/files", &headers, form)
    };
    // As one that was uploaded before its key was made.
    let upload = |line: &Value| {
        let (status, refused) = upload(&line.to_string());
        assert!(status == 400 && refused.contains("a key of a client stands in it"), "{refused}");
        // Over several pieces, too.
        let (status, refused) = upload(&format!("{}{line}", " ".repeat((64 << 10) - 80)));
        assert!(status == 400 && !refused.contains(&*keys[1]), "{refused}");
        let files = std::fs::read_dir(job.path("state/batches/files")).expect("a folder");
        let unfinished = |name: &str| name.starts_with("unfinished-");
        assert!(!files.flatten().any(|file| unfinished(&file.file_name().to_string_lossy())), "nothing of it is kept");
        let (_, text) = upload("{}");
        let id = serde_json::from_str::<Value>(&text).expect("JSON")["id"].as_str().expect("an id").to_owned();
        std::fs::write(job.path(&format!("state/batches/files/{id}/content")), line.to_string()).expect("writable");
        id
    };
    let begun = |line: &Value| {
        let (_, batch) = post("/v1/batches", &order(&upload(line), "24h"));
        format!("/v1/batches/{}", batch["id"].as_str().expect("an id"))
    };
    all.until(&keys[0], &begun(&of_line), |batch| batch["status"] == "completed");
    let arrival = &server.arrivals()[0];
    let went: Vec<_> = fields.iter().chain(&["x-team"]).filter(|name| arrival.headers.contains_key(**name)).collect();
    assert!(went.is_empty() && arrival.headers["x-trace"] == "stays", "{went:?}");
    assert_ne!(arrival.headers["idempotency-key"], "LIVE", "that name is the client's own");
    of_line["body"]["model"] = format!("x{}", keys[1]).into();
    all.until(&keys[0], &begun(&of_line), |batch| batch["status"] == "failed");
    let mut elsewhere = order(&upload(&of_line), "24h");
    elsewhere["endpoint"] = json!(format!("/v1/x{}", keys[1]));
    assert_eq!((post("/v1/batches", &elsewhere).0, server.count()), (400, 1));
}

#[test]
fn a_batch_of_failures_has_no_output_file() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::error(400, "bad_prompt")));
    let service = Service::start(&job, &server, &[]);
    // More than `paceline run` lets fail alike.
    let batch = service.until_status(&service.create(&input(30), "24h"), "completed");
    assert_eq!((counts(&batch), &batch["output_file_id"]), ([Some(30), Some(0), Some(30)], &Value::Null), "{batch}");
    assert_eq!(ids(&service.lines(&batch, "error_file_id")).len(), 30);
}
