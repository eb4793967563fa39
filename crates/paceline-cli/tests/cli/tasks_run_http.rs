//! `paceline tasks run --http`: requests from a store, against a server that counts what reaches it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::work::{NewItem, State};
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Arrival, Reply, Server, finish, start};
use crate::tasks_run::{Ran, Store, ran, signal, until};

fn request(item: &str, model: &str) -> Value {
    json!({"url": "/v1/chat/completions", "body": {"model": model, "item": item}})
}

fn store_of(keys: impl IntoIterator<Item = String>) -> Store {
    let store = Store::new();
    store.put(keys.into_iter().map(|key| NewItem::new(key.clone(), request(&key, "m").to_string())).collect());
    store
}

fn numbered(count: usize) -> Store {
    store_of((0..count).map(|n| format!("item-{n}")))
}

fn command(store: &Store, server: &Server) -> Command {
    let mut command = store.command();
    command.args(["--http", "--base-url", &server.url()]);
    command
}

fn run(store: &Store, server: &Server, flags: &[&str]) -> Ran {
    ran(command(store, server).args(flags))
}

#[test]
fn the_first_of_three_fails_once_and_all_succeed() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-0", 0) => Reply::error(503, "overloaded"),
        _ => Reply::ok(),
    });
    let Ran { code, summary, log } = run(&numbered(3), &server, &[]);
    assert_eq!((code, &summary["status"], &summary["calls"]), (0, &json!("SUCCESS"), &json!(4)), "{log}");
    assert_eq!(server.by_item().into_values().collect::<Vec<_>>(), [2, 1, 1]);
}

#[test]
fn a_permanent_503_arrives_once_more_than_its_retries() {
    for (max_retries, arrivals) in [(1, 2), (2, 3), (3, 4), (10, 11)] {
        let server = Server::new(|arrival| match arrival.item.as_str() {
            "item-1" => Reply::error(503, "overloaded"),
            _ => Reply::ok(),
        });
        let store = numbered(3);
        let max_retries = max_retries.to_string();
        let Ran { code, summary, log } = run(&store, &server, &["--pace", "fixed", "--max-retries", &max_retries]);
        assert_eq!((code, &summary["status"]), (1, &json!("PARTIAL")), "{log}");
        assert_eq!((&summary["failed"], &summary["succeeded"]), (&json!(1), &json!(2)));
        assert_eq!((server.by_item()["item-1"], server.count()), (arrivals, arrivals + 2));
        assert_eq!(store.item("item-1").state, State::Failed);
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn healthy_items_all_succeed() {
    for count in [3, 25, 1_000] {
        let server = Server::new(|_| Reply::ok());
        let Ran { code, summary, log } = run(&numbered(count), &server, &["--concurrency", "50"]);
        assert_eq!((code, &summary["succeeded"], &summary["calls"]), (0, &json!(count), &json!(count)), "{log}");
        assert_eq!(server.count(), count);
    }
}

/// Webhooks to ten customers, of whom one has had enough.
#[test]
fn a_customer_that_is_throttled_holds_up_no_other() {
    let customer = |n: usize| format!("customer-{}", n % 10);
    let by_path = |n: usize| NewItem::new(format!("item-{n}"), request_to(&format!("/{}/hook", customer(n)), n));
    let by_group =
        |n: usize| NewItem { group: customer(n), ..NewItem::new(format!("item-{n}"), request_to("/hook", n)) };
    for items in [(0..30).map(by_path).collect::<Vec<_>>(), (0..30).map(by_group).collect()] {
        let server = Server::new(|arrival| match arrival.item.as_str() {
            "item-0" | "item-10" | "item-20" => Reply::error(429, "slow down").with_header("retry-after", 7_200),
            _ => Reply::ok(),
        });
        let store = Store::new();
        store.put(items);
        let Ran { code, summary, log } = run(&store, &server, &["--max-wait", "1m", "--concurrency", "1"]);
        assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(27), &json!(3)), "{log}");
    }
    let server = Server::new(|_| Reply::error(429, "slow down").with_header("retry-after", 7_200));
    let store = Store::new();
    store.put((0..30).map(by_path).collect());
    let Ran { code, .. } = run(&store, &server, &["--max-wait", "1m", "--concurrency", "1", "--scope", "all"]);
    assert_eq!((code, server.count()), (3, 1), "all of them are one scope when the user says so");
}

/// No key is sent, so that it is the customer's own matter what its server wants.
#[test]
fn a_customer_that_wants_a_key_holds_up_no_other() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-0" => Reply::error(401, "who are you"),
        _ => Reply::ok(),
    });
    let store = Store::new();
    let item = |n: usize| NewItem {
        group: format!("{}", n % 10),
        ..NewItem::new(format!("item-{n}"), request_to("/hook", n))
    };
    store.put((0..30).map(item).collect());
    let Ran { code, summary, log } = run(&store, &server, &["--max-wait", "1m", "--concurrency", "1"]);
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(27), &json!(3)), "{log}");
    assert_eq!(server.count(), 28, "{log}");
}

fn request_to(path: &str, n: usize) -> String {
    json!({"url": path, "body": {"item": format!("item-{n}")}}).to_string()
}

/// When each request arrived.
type Times = Arc<Mutex<Vec<Timestamp>>>;

/// A server that refuses the first request and asks for a wait, and when it was asked.
fn asks_for(millis: u64) -> (Server, Times) {
    let times = Times::default();
    let noted = Arc::clone(&times);
    let server = Server::new(move |arrival: &Arrival| {
        noted.lock().expect("no panic").push(clock::wall());
        match arrival.before {
            0 => Reply::error(503, "overloaded").with_header("retry-after-ms", millis),
            _ => Reply::ok(),
        }
    });
    (server, times)
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_wait_is_not_shortened_in_the_process() {
    let (server, times) = asks_for(2_000);
    let store = numbered(1);
    let mut command = command(&store, &server);
    let Ran { code, log, .. } = ran(command.args(["--upstream", "openai"]).env("OPENAI_API_KEY", "sk-not-a-key"));
    assert_eq!(code, 0, "{log}");
    let times = times.lock().expect("no panic");
    let waited = times[1].saturating_since(times[0]).as_millis();
    assert!(times.len() == 2 && waited >= 2_000, "{times:?}");
    say_late("one item", &[waited - 2_000]);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_wait_is_not_shortened_among_others() {
    const WAIT: u64 = 1_500;
    type Arrivals = BTreeMap<String, Vec<Timestamp>>;
    let times = Arc::new(Mutex::new(Arrivals::new()));
    let noted = Arc::clone(&times);
    let server = Server::new(move |arrival: &Arrival| {
        noted.lock().expect("no panic").entry(arrival.item.clone()).or_default().push(clock::wall());
        match (arrival.item.ends_with('7'), arrival.before) {
            // The item's own trouble: it holds back no other item.
            (true, 0) => Reply::error(500, "broken").with_header("retry-after-ms", WAIT),
            _ => Reply::ok(),
        }
    });
    let store = numbered(100);
    let mut command = command(&store, &server);
    let Ran { code, log, .. } = ran(command.args(["--upstream", "openai"]).env("OPENAI_API_KEY", "sk-not-a-key"));
    assert_eq!((code, server.count()), (0, 110), "{log}");
    let times = times.lock().expect("no panic");
    let twice = times.values().filter(|times| times.len() == 2);
    let waits: Vec<u128> = twice.map(|times| times[1].saturating_since(times[0]).as_millis()).collect();
    assert!(waits.len() == 10 && waits.iter().all(|wait| *wait >= u128::from(WAIT)), "{waits:?}");
    say_late("10 of 100", &waits.iter().map(|wait| wait - u128::from(WAIT)).collect::<Vec<_>>());
}

/// How late arrivals came after their due times, for a reader who keeps figures: in a long form at most 150 ms.
fn say_late(name: &str, late: &[u128]) {
    let most = late.iter().max().copied().unwrap_or_default();
    let verdict = match std::env::var_os("PACELINE_SOAK") {
        Some(_) if most > 150 => "MISSED",
        Some(_) => "met",
        None => "of the long form",
    };
    let _ = writeln!(std::io::stderr(), "measure tasks, late, {name}: late_ms={most} bar=150 {verdict}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_wait_outlives_the_process_and_is_neither_shortened_nor_begun_anew() {
    for down_when_due in [false, true] {
        let (server, times) = asks_for(3_000);
        let store = numbered(1);
        let openai = |flags: &[&str]| {
            let mut command = command(&store, &server);
            command.args(["--upstream", "openai"]).args(flags).env("OPENAI_API_KEY", "sk-not-a-key");
            command
        };
        let mut first = start(&mut openai(&[]));
        until(|| store.item("item-0").not_before.is_some());
        first.kill().expect("it runs");
        first.ended();
        let due = store.item("item-0").not_before.expect("it waits");
        // Too far for this run, and no run moved it.
        let Ran { code, log, .. } = ran(&mut openai(&["--max-wait", "0s"]));
        assert_eq!((code, server.count()), (3, 1), "{log}");
        assert_eq!(store.item("item-0").not_before, Some(due));
        if down_when_due {
            until(|| clock::wall() > due);
        }
        let Ran { code, log, .. } = ran(&mut openai(&[]));
        assert_eq!((code, server.count()), (0, 2), "{log}");
        let times = times.lock().expect("no panic");
        if !down_when_due {
            say_late("after kill -9", &[times[1].saturating_since(due).as_millis()]);
        }
        assert!(times[1] >= due && due.saturating_since(times[0]).as_millis() >= 3_000, "{times:?}, due {due:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_throttled_model_keeps_no_other_out() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "slow" => Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 1_800),
        _ => Reply::ok(),
    });
    let store = Store::new();
    let item = |n: usize| {
        let model = if n.is_multiple_of(2) { "slow" } else { "fast" };
        NewItem::new(format!("{model}-{n}"), request(model, model).to_string())
    };
    store.put((0..60).map(item).collect());
    let mut command = command(&store, &server);
    command
        .args(["--upstream", "openai", "--concurrency", "4", "--max-wait", "10m"])
        .env("OPENAI_API_KEY", "sk-no-key");
    let Ran { code, summary, log } = ran(&mut command);
    assert_eq!((code, &summary["succeeded"], &summary["stopped"]), (3, &json!(30), &json!("max_wait")), "{log}");
    let items = server.by_item();
    assert!(items["slow"] <= 4 && items["fast"] == 30, "{items:?}");
    let (code, sent) = (ran(&mut command).code, server.count());
    assert_eq!((code, sent), (3, items["slow"] + 30), "the waits outlive the run");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_persons_retry_opens_what_a_bad_key_stopped_while_a_worker_stays() {
    let mended = Arc::new(AtomicBool::new(false));
    let is_good = mended.clone();
    let server = Server::new(move |_| match is_good.load(Ordering::Relaxed) {
        true => Reply::ok(),
        false => Reply::error(401, "invalid_api_key"),
    });
    let store = numbered(3);
    let mut command = command(&store, &server);
    command.args(["--upstream", "openai", "--concurrency", "1", "--stay"]).env("OPENAI_API_KEY", "sk-not-a-key");
    let mut run = start(&mut command);
    let retry = || finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "--all"])).0;
    until(|| server.count() == 1 && !store.scopes().is_empty());
    // What a person thinks is mended and is not takes one call more.
    assert_eq!(retry(), 0);
    until(|| server.count() == 2 && !store.scopes().is_empty());
    mended.store(true, Ordering::Relaxed);
    assert_eq!(retry(), 0);
    until(|| server.count() == 5 && (0..3).all(|n| store.item(&format!("item-{n}")).state == State::Succeeded));
    signal("-INT", run.id());
    assert_eq!(run.ended().code(), Some(0));
}

#[test]
fn a_bad_key_stops_everything_and_loses_nothing() {
    let server = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let store = Store::new();
    let item = |n: usize| {
        let group = format!("group-{}", n % 3);
        NewItem { group, ..NewItem::new(format!("item-{n}"), request("any", "m").to_string()) }
    };
    store.put((0..30).map(item).collect());
    let mut command = command(&store, &server);
    command.args(["--upstream", "openai", "--concurrency", "2"]).env("OPENAI_API_KEY", "sk-not-a-key");
    let Ran { code, summary, log } = ran(&mut command);
    assert_eq!((code, &summary["stopped"], &summary["deferred"]), (3, &json!("account"), &json!(30)), "{log}");
    assert!(server.count() <= 2, "{} calls: one bad key is one for all groups", server.count());
}

#[test]
fn answers_are_appended_and_name_their_items() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-1", _) => Reply::error(400, "no"),
        ("item-2", 0) => Reply::error(500, "oops"),
        _ => Reply::ok(),
    });
    let store = numbered(4);
    let named = json!({"custom_id": 7, "metadata": {"row": 1}, "url": "/x", "body": {"item": "seven"}});
    store.add("seven", &named);
    store.add("nothing", &json!("no request"));
    let earlier = r#"{"id":"pl-0-1-801d8dff","custom_id":"earlier"}"#;
    std::fs::write(store.job.path("out.jsonl"), format!("{earlier}\n{{\"cut")).expect("writable");
    let Ran { code, summary, log } = run(&store, &server, &["-o", "out.jsonl"]);
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (1, &json!(4), &json!(2)), "{log}");
    assert!(log.contains("item=\"nothing\" class=\"invalid\" code=\"invalid_json_line\""), "{log}");
    let lines = store.job.lines("out.jsonl");
    assert_eq!((lines.len(), &lines[0]), (5, &json!({"id": "pl-0-1-801d8dff", "custom_id": "earlier"})));
    let mut ids: Vec<String> = lines[1..].iter().map(|line| line["custom_id"].to_string()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["\"item-0\"", "\"item-2\"", "\"item-3\"", "7"]);
    let seven = lines.iter().find(|line| line["custom_id"] == 7).expect("its line");
    assert_eq!((&seven["metadata"], &seven["response"]["status_code"]), (&json!({"row": 1}), &json!(200)));
    let nothing = store.item("nothing");
    assert_eq!((nothing.state, nothing.sends()), (State::Failed, 0), "what cannot be sent was not tried");
}

/// Its answer is in the file, and a second call costs as much again.
#[test]
fn a_retry_of_what_succeeded_after_it_was_cancelled_says_so() {
    let store = numbered(1);
    let tasks = |job: &crate::support::Job, flags: &[&str]| {
        let output =
            job.paceline().args(["tasks", flags[0], "--store", "work.db"]).args(&flags[1..]).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let cancel = std::sync::Mutex::new(store.job.paceline());
    let server = Server::new(move |_| {
        let mut cancel = cancel.lock().expect("no panic");
        assert!(cancel.args(["tasks", "cancel", "--store", "work.db", "item-0"]).ended().success());
        Reply::ok()
    });
    let Ran { log, .. } = run(&store, &server, &["-o", "out.jsonl"]);
    assert_eq!((store.item("item-0").state, store.job.lines("out.jsonl").len()), (State::Cancelled, 1), "{log}");
    let text = tasks(&store.job, &["retry", "--all"]);
    assert!(text.starts_with("nothing is retried; left out: 1 item whose call may have been executed"), "{text}");
    let text = tasks(&store.job, &["retry", "item-0"]);
    assert!(text.ends_with("; the call of 1 item may have been executed before, and is made again\n"), "{text}");
    assert_eq!(store.item("item-0").state, State::Waiting);
}

#[test]
fn a_key_reaches_the_server_and_no_file() {
    const KEY: &str = "sk-secret-and-long";
    let server = Server::new(|arrival| {
        let sent = arrival.headers["authorization"].to_str().expect("text").to_owned();
        match arrival.before {
            0 => Reply::new(500, &json!({"error": {"message": format!("you sent {sent}")}})),
            _ => Reply::new(200, &json!({"you": sent})),
        }
    });
    let store = numbered(2);
    let mut command = command(&store, &server);
    let Ran { code, log, .. } =
        ran(command.args(["--upstream", "openai", "-o", "out.jsonl"]).env("OPENAI_API_KEY", KEY));
    assert_eq!(code, 0, "{log}");
    let arrivals = server.arrivals();
    assert!(arrivals.iter().all(|arrival| arrival.headers["authorization"] == format!("Bearer {KEY}")));
    let known_by = |item: &str| -> Vec<_> {
        let of = arrivals.iter().filter(|arrival| arrival.item == item);
        of.map(|arrival| arrival.headers["idempotency-key"].clone()).collect()
    };
    let (first, second) = (known_by("item-0"), known_by("item-1"));
    assert!(first.len() == 2 && first[0] == first[1] && second[0] == second[1] && first[0] != second[0]);
    assert!(!log.contains(KEY), "{log}");
    let mut folders = vec![store.job.path("")];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).expect("a folder") {
            let path = file.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).expect("readable");
            assert!(!bytes.windows(KEY.len()).any(|known| known == KEY.as_bytes()), "the key is in {}", path.display());
        }
    }
}

#[test]
fn a_limit_holds_for_requests_too() {
    let server = Server::new(|_| Reply::ok());
    let store = numbered(10);
    let Ran { code, summary, log } = run(&store, &server, &["--limit", "3 per 2h"]);
    assert_eq!((code, &summary["stopped"], server.count()), (3, &json!("max_wait"), 3), "{log}");
}

#[test]
fn a_limit_holds_over_runs_for_each_account() {
    let server = Server::new(|_| Reply::ok());
    let store = numbered(20);
    for (key, arrivals) in [("sk-one-of-two-keys", 3), ("sk-one-of-two-keys", 3), ("sk-the-other-of-two", 6)] {
        let mut command = command(&store, &server);
        command.args(["--upstream", "openai", "--limit", "3 per 2h", "--max-wait", "1s"]).env("OPENAI_API_KEY", key);
        let Ran { code, log, .. } = ran(&mut command);
        assert_eq!((code, server.count()), (3, arrivals), "{log}");
        let file = std::fs::read(store.job.path("work.db")).expect("readable");
        assert!(!file.windows(key.len()).any(|window| window == key.as_bytes()), "a key is in the store");
    }
}

#[test]
fn a_second_interruption_gives_up_a_request() {
    let server = Server::new(|_| Reply::ok().never());
    let store = numbered(1);
    let run = start(&mut command(&store, &server));
    server.wait_for(1);
    let pid = run.id();
    // The second counts when the first was heard, so they go on until the run is over.
    let (ended, over) = std::sync::mpsc::channel();
    let waits = std::thread::spawn(move || (run.ended_with_output(), ended.send(())));
    while over.try_recv().is_err() {
        signal("-INT", pid);
        std::thread::yield_now();
    }
    assert_eq!(waits.join().expect("no panic").0.status.code(), Some(3));
    let item = store.item("item-0");
    assert_eq!((item.state, item.attempts, item.abandoned), (State::Waiting, 0, 1));
}

#[test]
fn a_place_for_answers_that_is_none_is_refused() {
    let server = Server::new(|_| Reply::ok());
    let store = numbered(1);
    let (code, log) = finish(command(&store, &server).args(["-o", "no/such/out.jsonl"]));
    assert!(code == 2 && log.contains("no/such/out.jsonl"), "{log}");
    std::fs::write(store.job.path("payloads.jsonl"), "{\"payload\":{\"url\":\"/a\"}}\n").expect("writable");
    let (code, log) = finish(command(&store, &server).args(["-o", "payloads.jsonl"]));
    assert!(code == 2 && log.contains("payloads.jsonl: its first line is no answer; name another file"), "{log}");
    let (code, log) = finish(command(&store, &server).args(["-o", "out.jsonl", "--summary", "./out.jsonl"]));
    assert!(code == 2 && log.contains("-o and --summary are the same file, out.jsonl"), "{log}");
    if cfg!(target_os = "linux") {
        // The system says that there is no room on its disk, and there never will be.
        let (code, log) = finish(command(&store, &server).args(["-o", "/proc/self", "--max-wait", "10ms"]));
        assert!(code == 2 && log.contains("/proc/self: it is no file"), "{log}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn answers_that_are_cut_short_under_way_end_no_run_as_a_success() {
    for last in [false, true] {
        let store = numbered(4);
        let (answers, cut) = (store.job.path("out.jsonl"), store.job.path("out.jsonl"));
        let server = Server::new(move |arrival| {
            if arrival.item == if last { "item-3" } else { "item-1" } {
                std::fs::write(&cut, "").expect("writable");
            }
            Reply::ok()
        });
        let flags = ["--concurrency", "1", "--pace", "none", "-o", "out.jsonl"];
        let Ran { code, summary, log } = ran(command(&store, &server).args(flags));
        assert_eq!((code, &summary["status"], &summary["stopped"]), (3, &json!("DEFERRED"), &json!("error")), "{log}");
        assert!(log.contains("was removed, replaced or cut short") && !log.contains("SUCCESS"), "{log}");
        assert_eq!(std::fs::read(answers).expect("the answers"), b"");
        assert_eq!(server.count(), if last { 4 } else { 2 }, "it stops at once");
    }
}

/// As a program signs it: a signature over other bytes would not verify.
#[test]
fn a_body_goes_byte_for_byte_as_it_was_added() {
    let body = r#"{"type": "invoice.paid",  "amount": 1.10, "lines": [ {"n": 1e3} ]}"#;
    let server = Server::new(|_| Reply::ok());
    let store = Store::of(&[]);
    let line = |key: &str| format!(r#"{{"key": "{key}", "payload": {{"url": "/in", "body": {body}}}}}"#);
    std::fs::write(store.job.path("events.jsonl"), line("a") + "\n" + &line("b") + "\n").expect("writable");
    let add = |flags: &[&str]| finish(store.job.paceline().args(["tasks", "add", "--store", "work.db"]).args(flags));
    assert_eq!(add(&["--from", "events.jsonl"]).0, 0);
    assert_eq!(add(&["--key", "c", &format!("{{\n  \"url\": \"/in\",\n  \"body\": {body}\n}}")]).0, 0);
    let Ran { code, log, .. } = run(&store, &server, &[]);
    assert_eq!((code, server.count()), (0, 3), "{log}");
    for arrival in server.arrivals() {
        assert_eq!(arrival.body, body.as_bytes());
    }
}

/// A store is no place for keys, and no run sends them.
#[test]
fn a_payload_with_a_key_is_refused_before_it_is_stored() {
    let store = Store::of(&[]);
    let keyed = json!({"url": "https://a.example/in", "headers": {"X-API-Key": "sk-stolen"}, "body": {}});
    let named = json!({"url": "https://me:sk-stolen@a.example/in", "body": {}});
    for payload in [keyed, named] {
        let line = json!({"key": "a", "payload": payload}).to_string();
        std::fs::write(store.job.path("events.jsonl"), line).expect("writable");
        let payload = payload.to_string();
        for flags in [&["--from", "events.jsonl"][..], &["--key", "a", &payload]] {
            let (code, log) = finish(store.job.paceline().args(["tasks", "add", "--store", "work.db"]).args(flags));
            assert!(code == 2 && log.contains("payload: ") && !log.contains("sk-stolen"), "{log}");
        }
    }
    let stored = std::fs::read(store.job.path("work.db")).unwrap_or_default();
    assert!(!stored.windows(9).any(|bytes| bytes == b"sk-stolen"));
}
