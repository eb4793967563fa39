//! Events for hosts that several customers share, and for hosts that refuse some events.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paceline_store::work::{NewItem, State};
use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Reply, Server, finish};
use crate::tasks_alike::tasks;
use crate::tasks_run::{Ran, Store, begin, ran, signal, until};

/// An event for a path of that server.
fn event(server: &Server, path: &str, key: &str, priority: i16) -> NewItem {
    let payload = json!({"url": format!("{}{path}", server.url()), "body": {"item": key}});
    NewItem { priority, ..NewItem::new(key, payload.to_string()) }
}

fn events(server: &Server, path: &str, name: &str, count: usize, priority: i16) -> Vec<NewItem> {
    (0..count).map(|n| event(server, path, &format!("{name}-{n}"), priority)).collect()
}

/// A run over many hosts, one call after the other.
fn run(store: &Store, base: &Server, flags: &[&str]) -> Ran {
    // A store with few events is not watched.
    let few = ["--stop-after-same", "4"];
    let many = ["--http", "--base-url", &base.url(), "--scope", "host", "--concurrency", "1"];
    ran(store.command().args(many).args(few).args(flags))
}

fn states(store: &Store, name: &str, count: usize, state: State) -> usize {
    (0..count).filter(|n| store.item(&format!("{name}-{n}")).state == state).count()
}

fn shown(store: &Store, args: &[&str]) -> String {
    let (_, text) = tasks(store, "work.db", args);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A signature that is never sent is noticed by no receiver that does not look for it.
#[test]
fn a_mistyped_key_of_a_request_is_told_as_it_is_added() {
    let store = Store::new();
    let payload = json!({"url": "https://a.example/in", "header": {"X-Signature": "1"}, "body": {}});
    let lines = ["a", "b"].map(|key| json!({"key": key, "payload": payload}).to_string()).join("\n");
    std::fs::write(store.job.path("events.jsonl"), lines).expect("writable");
    let one = payload.to_string();
    let told =
        ["2 lines have a key that is not sent, such as \"header\" in line 1", "1 line has a key that is not sent"];
    for (args, told) in [(&["--from", "events.jsonl"], told[0]), (&["--key", "c"], told[1])] {
        let mut add = store.job.paceline();
        add.args(["tasks", "add", "--store", "work.db"]).args(args);
        let one = (args[0] == "--key").then_some(&one);
        let (code, log) = finish(add.args(one).arg("--http"));
        assert!(code == 0 && log.contains(told), "{log}");
    }
}

/// A timer adds the same file each minute.
#[test]
fn several_hosts_are_told_of_where_items_are_added() {
    let store = Store::new();
    let event =
        |host: &str| json!({"key": host, "payload": {"url": format!("https://{host}/in"), "body": {}}}).to_string();
    std::fs::write(store.job.path("events.jsonl"), ["a.example", "b.example"].map(event).join("\n")).expect("writable");
    for (added, is_told) in [("2 added", true), ("0 added", false)] {
        let (code, text) = tasks(&store, "work.db", &["add", "--http", "--from", "events.jsonl"]);
        let told = "without it only those for the host of --base-url are sent, and the others wait";
        assert!(code == 0 && text.contains(added) && text.contains(told) == is_told, "{text}");
    }
}

/// Four customers share a host, and one of them removes its hook.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_customer_that_is_gone_stops_no_other_of_its_host() {
    let server = Server::new(|arrival| match arrival.item.starts_with("gone") {
        true => Reply::error(410, "gone"),
        false => Reply::ok(),
    });
    let store = Store::new();
    for path in ["/a", "/b", "/c", "/d"] {
        store.put(events(&server, path, &format!("before{}", &path[1..]), 1, 9));
    }
    store.put(events(&server, "/a", "gone", 5, 5));
    store.put(events(&server, "/b", "good", 6, 0));
    let Ran { code, summary, log } = run(&store, &server, &[]);
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(10), &json!(5)), "{log}");
    assert_eq!(server.count(), 4 + 3 + 6, "{log}");
    let (address, host) = (format!("{}/a", server.url()), server.url().replace("http://", ""));
    let (_, report) = tasks(&store, "work.db", &["report", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let scope = &report["scopes"][0];
    assert_eq!(
        (&scope["name"], &scope["host"], &scope["last_refused"]),
        (&json!(address), &json!(host), &json!("gone-2"))
    );
    let told = shown(&store, &["show", "gone-4"]);
    assert!(told.contains(&format!("{address} is stopped since ")) && told.contains("the last was gone-2"), "{told}");
    for (start, tested) in ["gone-3", "gone-4"].into_iter().enumerate() {
        let calls = server.count();
        let Ran { log, .. } = run(&store, &server, &[]);
        assert_eq!(server.count(), calls + 1, "{log}");
        assert_eq!(server.arrivals()[calls].item, tested, "start {start}: {log}");
    }
    let Ran { log, .. } = run(&store, &server, &[]);
    assert_ne!(server.arrivals().last().map(|arrival| arrival.item.clone()), Some("gone-4".to_owned()), "{log}");
}

/// Its breaker stays open for an hour once ten calls of several events have failed.
fn with_slow_breaker(store: &Store, base: &Server) -> Command {
    let breaker = "breaker = { least = 10, open = \"1h\", open_max = \"1h\" }";
    let config = format!("[upstream.hooks]\nbase_url = \"{}\"\nscope = \"host\"\n{breaker}\n", base.url());
    std::fs::write(store.job.path("paceline.toml"), config).expect("a file");
    let mut command = store.job.paceline();
    command.args(["tasks", "run", "--store", "work.db", "--first-delay", "1h", "--cap", "1h", "--json"]);
    command.args(["--http", "--upstream", "hooks", "--idempotency-header", "webhook-id"]);
    command
}

/// Two customers share a host, and the endpoint of one is down.
#[test]
fn a_customer_whose_endpoint_is_down_holds_up_no_other_of_its_host() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/down" => Reply::error(500, "broken"),
        _ => Reply::ok(),
    });
    let store = Store::new();
    store.put(events(&server, "/down", "down", 20, 5));
    store.put(events(&server, "/well", "well", 20, 0));
    let flags = ["--concurrency", "1", "--max-retries", "0", "--max-wait", "1m"];
    let Ran { code, summary, log } = ran(with_slow_breaker(&store, &server).args(flags));
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(20), &json!(10)), "{log}");
    assert_eq!(server.count(), 10 + 20, "{log}");
    let why = summary["scopes"][0]["reason"].as_str().unwrap_or_default();
    assert!(
        why.starts_with(&format!("calls to {}/down fail, the last with 500; one item of each", server.url())),
        "{summary}"
    );
}

/// Two customers share a host, and the endpoint of one takes calls and answers none.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_customer_whose_endpoint_hangs_leaves_the_places_to_the_others_of_its_host() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/hangs" => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let store = Store::new();
    store.put(events(&server, "/hangs", "hangs", 40, 5));
    store.put(events(&server, "/well", "well", 20, 0));
    let mut run = with_slow_breaker(&store, &server);
    let worker = begin(run.args(["--concurrency", "4", "--timeout", "2s", "--stay"]));
    until(|| states(&store, "well", 20, State::Succeeded) == 20);
    let why = format!(
        ": calls to {}/hangs fail; one item of each is tried at a time, and the others of the host go on",
        server.url()
    );
    until(|| shown(&store, &["report"]).contains(&why));
    let told = shown(&store, &["retry", "--all"]);
    assert!(!told.contains(" fails: one of these items tests it next"), "the others do not wait for that: {told}");
    signal("-KILL", worker.id());
    worker.ended_with_output();
}

/// A customer says that its endpoint is back. The worker would have called it in an hour.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_person_who_sends_for_events_of_a_failing_host_has_it_tested_at_once_by_one() {
    let is_back = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_back);
    let server = Server::new(move |_| match seen.load(Ordering::Relaxed) {
        true => Reply::ok(),
        false => Reply::error(500, "broken"),
    });
    let store = Store::new();
    store.put(events(&server, "/in", "evt", 10, 0));
    let worker = begin(with_slow_breaker(&store, &server).args(["--concurrency", "1", "--stay"]));
    let report = || tasks(&store, "work.db", &["report"]).1;
    until(|| report().contains("failing: ") && states(&store, "evt", 10, State::Waiting) == 10);
    assert_eq!(server.count(), 10);
    for (calls, named) in [(11, "evt-3"), (12, "--all")] {
        let (code, text) = tasks(&store, "work.db", &["retry", named]);
        assert!(code == 0 && text.contains(" fails: one of these items tests it next"), "{text}");
        until(|| server.count() == calls && states(&store, "evt", 10, State::Waiting) == 10);
    }
    is_back.store(true, Ordering::Relaxed);
    assert_eq!(tasks(&store, "work.db", &["retry", "--all"]).0, 0);
    until(|| states(&store, "evt", 10, State::Succeeded) == 10);
    assert_eq!(server.count(), 12 + 10, "one test for each time that a person sent for them");
    signal("-TERM", worker.id());
    worker.ended_with_output();
}

/// A firewall refuses some bodies: the next start tests the host by another event than one that was refused.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn events_that_a_host_refuses_hold_up_none_that_it_takes() {
    let host = Server::new(|arrival| match arrival.item.starts_with("bad") {
        true => Reply::error(403, "no"),
        false => Reply::ok(),
    });
    let store = Store::new();
    store.put(events(&host, "/in", "before", 2, 9));
    store.put(events(&host, "/in", "bad", 3, 5));
    store.put(events(&host, "/in", "good", 6, 0));
    let Ran { summary, log, .. } = run(&store, &host, &[]);
    assert_eq!((&summary["succeeded"], &summary["deferred"]), (&json!(2), &json!(9)), "{log}");
    let Ran { summary, log, .. } = run(&store, &host, &[]);
    assert_eq!((&summary["succeeded"], states(&store, "good", 6, State::Succeeded)), (&json!(8), 6), "{log}");
    assert_eq!(&summary["failed"], &json!(0), "{log}");
}

/// A customer moves to another path of its host, and its events after it, as docs/webhooks.md says.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn events_that_a_person_moves_have_their_stopped_host_tested_at_once() {
    let host = Server::new(|arrival| match arrival.path.as_str() {
        "/old" => Reply::error(410, "gone"),
        _ => Reply::ok(),
    });
    let store = Store::new();
    store.put(events(&host, "/old", "evt", 8, 0));
    let many = ["--http", "--base-url", &host.url(), "--scope", "host", "--concurrency", "1"];
    let worker = begin(store.command().args(many).args(["--stop-after-same", "4", "--stay"]));
    until(|| states(&store, "evt", 8, State::Deferred) == 8);
    assert_eq!(host.count(), 4);
    let moves = |words: &[&str]| {
        let (code, text) = tasks(&store, "work.db", words);
        assert_eq!(code, 0, "{text}");
        text
    };
    moves(&["cancel", "--all"]);
    let lines = moves(&["export", "--state", "cancelled"]);
    moves(&["prune", "--older-than", "0", "--forget-keys"]);
    std::fs::write(store.job.path("moved.jsonl"), lines.replace("/old", "/new")).expect("writable");
    assert!(moves(&["add", "--http", "--from", "moved.jsonl"]).starts_with("8 added"));
    until(|| states(&store, "evt", 8, State::Succeeded) == 8);
    assert_eq!(host.count(), 4 + 8, "no call went to the old address");
    signal("-TERM", worker.id());
    worker.ended_with_output();
}

/// A timer begins the worker each minute, and each start ends with the first wait.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_start_that_waits_for_nothing_tests_a_stopped_host_and_delivers_once_that_is_back() {
    let is_back = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_back);
    let host = Server::new(move |_| match seen.load(Ordering::Relaxed) {
        true => Reply::ok(),
        false => Reply::error(410, "gone"),
    });
    let store = Store::new();
    store.put(events(&host, "/in", "evt", 12, 0));
    for calls in [4, 5, 6] {
        let Ran { code, summary, log } = run(&store, &host, &["--max-wait", "0"]);
        assert_eq!((code, host.count(), &summary["failed"]), (3, calls, &json!(0)), "{log}");
    }
    is_back.store(true, Ordering::Relaxed);
    let Ran { code, summary, log } = run(&store, &host, &["--max-wait", "0"]);
    assert_eq!((code, &summary["succeeded"], host.count()), (0, &json!(12), 6 + 12), "{log}");
}

/// A host asks for half a day. The worker ends meanwhile, and its next starts leave the host alone.
#[test]
fn a_pause_that_a_host_asked_for_binds_the_next_start() {
    let asked = AtomicUsize::new(0);
    let busy = Server::new(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::error(429, "slow down").with_header("retry-after", 43_200),
        _ => Reply::ok(),
    });
    let store = Store::new();
    store.put(events(&busy, "/in", "first", 2, 0));
    let flags = ["--max-wait", "1m"];
    run(&store, &busy, &flags);
    store.put(events(&busy, "/in", "later", 2, 0));
    let Ran { code, log, .. } = run(&store, &busy, &flags);
    assert_eq!((code, busy.count()), (3, 1), "{log}");
    let (_, text) = tasks(&store, "work.db", &["report"]);
    assert!(text.contains("held: "), "{text}");
    // A person opens it for one event: once that is taken, what waited for the pause alone is due.
    let host = busy.url().replace("http://", "");
    let (code, text) = tasks(&store, "work.db", &["retry", "later-0", "--open", &host]);
    assert_eq!(code, 0, "{text}");
    let many = ["--http", "--base-url", &busy.url(), "--scope", "host", "--stay"];
    let worker = begin(store.command().args(many));
    until(|| states(&store, "first", 2, State::Succeeded) + states(&store, "later", 2, State::Succeeded) == 3);
    signal("-TERM", worker.id());
    worker.ended_with_output();
    assert_eq!((busy.count(), states(&store, "first", 2, State::Succeeded)), (4, 1), "who was told to wait does");
}

/// A server that sends this to each call, and closes the connection or leaves it open. Returns its address.
fn sends(answer: &'static str, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let (mut asked, mut part) = (Vec::new(), [0; 4_096]);
            while !asked.ends_with(b"}") {
                let read = stream.read(&mut part).expect("a request");
                asked.extend_from_slice(&part[..read]);
                if read == 0 {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).expect("it is taken");
            open.extend(Some(stream).filter(|_| !closes));
        }
    });
    format!("http://127.0.0.1:{port}")
}

/// The receivers have each event, and say so: 200.
#[test]
fn an_event_is_done_whatever_becomes_of_the_body_of_its_answer() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    let packed = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nhalf";
    let broken = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno length\r\n";
    for (answer, closes) in [(cut, true), (packed, true), (broken, true), (cut, false)] {
        let url = sends(answer, closes);
        let store = Store::new();
        store.add("evt", &json!({"url": format!("{url}/in"), "body": {"item": "evt"}}));
        let flags = ["--http", "--base-url", &url, "--scope", "host", "--max-retries", "0", "--timeout", "1s"];
        let Ran { summary, log, .. } = ran(store.command().args(flags));
        assert_eq!((&summary["succeeded"], &summary["calls"]), (&json!(1), &json!(1)), "{answer}: {log}");
    }
}

/// Answers are kept, so a body that is cut off is none, unless the user says that the status decides.
#[test]
fn a_rule_for_a_status_decides_without_the_body() {
    let url = sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", true);
    let rule = "[[upstream.hooks.rule]]\nmatch = { status = \"200-299\" }\nclass = \"success\"\n";
    for (rule, done) in [("", 0), (rule, 1)] {
        let store = Store::new();
        let config = format!("[upstream.hooks]\nbase_url = \"{url}\"\nscope = \"host\"\n{rule}");
        std::fs::write(store.job.path("paceline.toml"), config).expect("a file");
        store.add("evt", &json!({"url": format!("{url}/in"), "body": {"item": "evt"}}));
        let flags = ["--http", "--upstream", "hooks", "--max-retries", "0", "-o", "answers.jsonl"];
        let Ran { summary, log, .. } = ran(store.command().args(flags));
        assert_eq!(&summary["succeeded"], &json!(done), "{log}");
    }
}

/// One message for two endpoints has one id.
#[test]
fn an_id_that_two_events_have_names_neither_of_them() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/acme" => Reply::ok(),
        _ => Reply::error(503, "away"),
    });
    let store = Store::new();
    for customer in ["acme", "bolt"] {
        let url = format!("{}/{customer}", server.url());
        let payload = json!({"url": url, "headers": {"webhook-id": "evt_9"}, "body": {"item": customer}});
        store.add(&format!("evt_9:{customer}"), &payload);
    }
    run(&store, &server, &["--idempotency-header", "webhook-id", "--max-retries", "0"]);
    let told = shown(&store, &["show", "evt_9"]);
    for part in ["the calls of 2 items are known by evt_9", "evt_9:acme state succeeded", "evt_9:bolt state failed"] {
        assert!(told.contains(part), "{told}");
    }
    let (_, json) = tasks(&store, "work.db", &["show", "evt_9", "--json"]);
    assert_eq!(json.lines().count(), 2, "{json}");
    for command in ["retry", "cancel"] {
        let (code, told) = tasks(&store, "work.db", &[command, "evt_9"]);
        assert!(code == 2 && told.contains("name one by its key (evt_9:acme, evt_9:bolt)"), "{told}");
    }
    assert_eq!(tasks(&store, "work.db", &["retry", "evt_9:bolt"]).0, 0);
}
