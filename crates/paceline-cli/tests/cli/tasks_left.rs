//! What a run leaves to the next: items of hosts that refuse everything, and items of a worker that was killed.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline_store::work::{NewItem, State};
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Reply, Server, finish};
use crate::tasks_alike::tasks;
use crate::tasks_run::{Ran, Store, begin, ran, signal, until};
use crate::tasks_scopes::posts;

/// A run over many hosts.
fn command(store: &Store, base: &Server, flags: &[&str]) -> Command {
    let mut command = store.command();
    command.args(["--http", "--base-url", &base.url(), "--scope", "host"]).args(flags);
    command
}

fn run(store: &Store, base: &Server, flags: &[&str]) -> Ran {
    ran(&mut command(store, base, flags))
}

fn report(store: &Store) -> Value {
    let output = store.job.paceline().args(["tasks", "report", "--store", "work.db", "--json"]).ended_with_output();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn states(store: &Store, name: &str, count: usize, state: State) -> usize {
    (0..count).filter(|n| store.item(&format!("{name}-{n}")).state == state).count()
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_is_gone_gets_one_call_from_each_later_run_and_none_after_the_deadline_of_its_items() {
    let (gone, good) = (Server::new(|_| Reply::error(410, "gone")), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(posts(&gone.url(), "gone", 25, 1));
    let one = ["--concurrency", "1"];
    let Ran { code, summary, log } = run(&store, &good, &one);
    assert_eq!((code, gone.count(), &summary["failed"]), (3, 20, &json!(0)), "{log}");
    assert!(log.contains("end its items by `paceline tasks cancel`"), "{log}");
    let host = gone.url().replace("http://", "");
    for figures in [&summary, &report(&store)] {
        let scope = &figures["scopes"][0];
        assert_eq!(
            (&scope["name"], &scope["state"], &scope["why"]),
            (&json!(host), &json!("stopped"), &json!("same_failure"))
        );
        let left = &figures["reasons"]["deferred"]["same_failure"];
        assert_eq!(left, &json!(25), "those that were never sent among them: {figures}");
    }
    let (_, shown) = tasks(&store, "work.db", &["show", "gone-0"]);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "it is left to the next run, because its host or group is stopped";
    assert!(shown.contains(told) && !shown.contains("decided: fail"), "{shown}");
    for calls in [21, 22] {
        let Ran { code, summary, log } = run(&store, &good, &one);
        assert_eq!((code, gone.count(), &summary["stopped"]), (3, calls, &json!("same_failure")), "{log}");
        assert!(log.contains("; one call tests it"), "{log}");
    }
    let Ran { code, summary, log } = run(&store, &good, &["--concurrency", "1", "--deadline", "1ms"]);
    assert_eq!((code, &summary["reasons"]["failed"]["deadline"]), (3, &json!(22)), "{log}");
    let left = (gone.count(), states(&store, "gone", 25, State::Deferred));
    assert_eq!(left, (23, 3), "each start tested it with one that had not been tried: {log}");
    let Ran { code, summary, log } = run(&store, &good, &["--stop-after-same", "0"]);
    assert_eq!((code, &summary["failed"], &summary["scopes"]), (1, &json!(25), &json!([])), "{log}");
}

/// A customer whose address has changed: its events were added anew, and those for the old one ended.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_summary_names_no_stopped_host_of_which_no_item_is_left() {
    let (gone, good) = (Server::new(|_| Reply::error(410, "gone")), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(posts(&gone.url(), "gone", 25, 1));
    let flags = ["--concurrency", "1", "--max-wait", "1s"];
    let Ran { summary, log, .. } = run(&store, &good, &flags);
    assert_eq!(summary["scopes"][0]["state"], "stopped", "{log}");
    tasks(&store, "work.db", &["cancel", "--all"]);
    let later = Some(paceline_core::Timestamp::from_millis(4_000_000_000_000));
    let event = posts(&good.url(), "later", 1, 0).remove(0);
    store.put(vec![NewItem { not_before: later, ..event }]);
    let Ran { code, summary, log } = run(&store, &good, &flags);
    assert_eq!((code, &summary["deferred"], &summary["scopes"]), (3, &json!(1), &json!([])), "{log}");
    assert!(!log.contains("one call tests it"), "there is none to call: {log}");
}

/// Its answers take as long as those of most servers, and there are places for ten calls.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_stopped_host_that_answers_late_gets_one_call_from_each_start_and_fails_no_item() {
    let late = |status: u16| Server::new(move |_| Reply::error(status, "no").after(Duration::from_millis(400)));
    let (servers, good) = ([403, 301, 410].map(late), Server::new(|_| Reply::ok()));
    let store = Store::new();
    for (n, server) in servers.iter().enumerate() {
        store.put(posts(&server.url(), &format!("host{n}"), 40, 1));
    }
    let ten = ["--concurrency", "10"];
    let Ran { summary, log, .. } = run(&store, &good, &ten);
    assert_eq!(&summary["failed"], &json!(0), "{log}");
    for start in 1..=3 {
        let before = servers.each_ref().map(Server::count);
        let Ran { code, summary, log } = run(&store, &good, &ten);
        let calls: Vec<usize> = servers.iter().zip(before).map(|(server, before)| server.count() - before).collect();
        assert_eq!((code, &summary["failed"], calls), (3, &json!(0), vec![1; 3]), "start {start}: {log}");
        assert_eq!(&summary["deferred"], &json!(120), "{log}");
    }
}

/// A host took five events before the worker was started anew, and each start has too few to stop it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_a_host_did_in_earlier_starts_keeps_its_events() {
    let asked = AtomicUsize::new(0);
    let gone = Server::new(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0..5 => Reply::ok(),
        _ => Reply::error(410, "gone"),
    });
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    store.put(posts(&gone.url(), "before", 5, 0));
    let start = |calls: usize| {
        let worker = begin(&mut command(&store, &good, &["--concurrency", "1", "--stay"]));
        let is_at_rest = |name: &str, count: usize| {
            [State::Waiting, State::InFlight].into_iter().all(|state| states(&store, name, count, state) == 0)
        };
        until(|| gone.count() == calls && is_at_rest("before", 5) && is_at_rest("event", calls - 5));
        signal("-TERM", worker.id());
        String::from_utf8_lossy(&worker.ended_with_output().stderr).into_owned()
    };
    start(5);
    let event = |n: usize| {
        let mut events = posts(&gone.url(), "event", n + 1, 0);
        vec![events.remove(n)]
    };
    let mut log = String::new();
    for n in 0..3 {
        store.put(event(n));
        log += &start(6 + n);
    }
    assert_eq!(states(&store, "event", 3, State::Deferred), 3, "{log}");
    assert!(log.contains("the last 3 items all failed the same way, and wait"), "{log}");
    // A person sends for one of them.
    let (code, log) = finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "event-0"]));
    assert_eq!(code, 0, "{log}");
    let Ran { log, .. } = run(&store, &good, &["--concurrency", "4"]);
    assert_eq!((gone.count(), states(&store, "event", 3, State::Deferred)), (9, 3), "{log}");
}

/// No key goes to the host of an event, so that a 401 or 403 is none of the event's faults.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn an_event_whose_host_answers_403_waits_however_few_there_are() {
    let host = Server::new(|arrival| match arrival.item.starts_with("ok") {
        true => Reply::ok(),
        false => Reply::error(403, "go away"),
    });
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    for start in 0..3 {
        store.put(posts(&host.url(), &format!("ok{start}"), 1, 0));
        store.put(posts(&host.url(), &format!("event{start}"), 1, 1));
        let Ran { code, summary, log } = run(&store, &good, &[]);
        let figures = (code, &summary["failed"], &summary["deferred"]);
        assert_eq!(figures, (3, &json!(0), &json!(start + 1)), "{log}");
    }
    let Ran { summary, log, .. } = run(&store, &good, &["--stop-after-same", "0"]);
    assert_eq!(&summary["failed"], &json!(3), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_worker_that_is_killed_leaves_none_failed_that_was_to_wait() {
    let (gone, good) = (Server::new(|_| Reply::error(410, "gone")), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(posts(&gone.url(), "gone", 25, 1));
    let run = begin(&mut command(&store, &good, &["--concurrency", "1", "--stay"]));
    until(|| states(&store, "gone", 25, State::Deferred) == 25);
    until(|| report(&store)["scopes"][0]["why"] == "same_failure");
    signal("-KILL", run.id());
    let log = run.ended_with_output().stderr;
    let log = String::from_utf8_lossy(&log);
    assert_eq!((gone.count(), report(&store)["failed"].as_u64()), (20, Some(0)), "{log}");
    assert!(
        log.contains("; its items are tried again at the next start of this worker, or by `paceline tasks retry`"),
        "{log}"
    );
}

/// The second item of that host is never tried: what it waits for is known from the first.
#[test]
fn a_host_that_asked_for_a_pause_is_named_with_what_its_items_wait_for() {
    let busy = Server::new(|_| Reply::error(429, "slow down").with_header("retry-after", 1_800));
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    store.put(posts(&busy.url(), "busy", 2, 1));
    store.put(posts(&good.url(), "good", 2, 0));
    let Ran { code, summary, log } = run(&store, &good, &["--concurrency", "1", "--max-wait", "1m"]);
    assert_eq!((code, busy.count(), &summary["succeeded"]), (3, 1, &json!(2)), "{log}");
    let host = busy.url().replace("http://", "");
    for figures in [&summary, &report(&store)] {
        let scope = &figures["scopes"][0];
        assert_eq!(
            (&scope["name"], &scope["state"], &scope["why"]),
            (&json!(host), &json!("held"), &Value::Null),
            "{log}"
        );
        assert!(scope["until"].is_string(), "{scope}");
    }
    let waits_for = "a pause that the server asked for";
    let row = &report(&store)["items"][1];
    assert!(row["waits_for"].as_str().is_some_and(|what| what.contains(waits_for)), "{row}");
    let (_, shown) = tasks(&store, "work.db", &["show", "busy-1"]);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(waits_for), "{shown}");
    let (_, text) = tasks(&store, "work.db", &["retry", "--all"]);
    assert!(text.starts_with(&format!("2 items are due again\nstill held: all items of {host} until ")), "{text}");
    let (_, text) = tasks(&store, "work.db", &["retry", "--all", "--open", &host]);
    assert!(text.contains(&format!("{host} is open for the next worker: none is at work")), "{text}");
    tasks(&store, "work.db", &["cancel", "--all"]);
    store.put(posts(&good.url(), "more", 1, 0));
    assert_eq!(report(&store)["scopes"], json!([]), "no item of it is left");
}

/// A customer says that its host, which asked for a pause of half a day, is ready. The worker is not begun anew for that.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_its_server_holds_is_opened_by_a_person() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let busy = Server::new(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        // An item has a day: one that is asked to wait for longer ends.
        0 => Reply::error(429, "slow down").with_header("retry-after", 43_200),
        _ => Reply::ok(),
    });
    let store = Store::new();
    let of_acme = posts(&busy.url(), "busy", 3, 0).into_iter();
    store.put(of_acme.map(|item| NewItem { group: "acme".to_owned(), ..item }).collect());
    store.put(vec![NewItem {
        group: "zeta".to_owned(),
        ..NewItem::new("other", r#"{"url":"http://127.0.0.1:1/x","body":{}}"#)
    }]);
    let worker = begin(&mut command(&store, &busy, &["--concurrency", "1", "--stay"]));
    let host = busy.url().replace("http://", "");
    until(|| {
        report(&store)["scopes"].as_array().is_some_and(|scopes| scopes.iter().any(|scope| scope["name"] == host))
    });
    until(|| states(&store, "busy", 3, State::Waiting) == 3);
    let (code, text) = tasks(&store, "work.db", &["retry", "--group", "zeta"]);
    assert!(code == 0 && !text.contains("still held"), "{text}");
    let (code, text) = tasks(&store, "work.db", &["retry", "--group", "acme"]);
    assert!(code == 0 && text.contains(&format!("still held: all items of {host} until ")), "{text}");
    let (code, text) = tasks(&store, "work.db", &["retry", "--group", "acme", "--open", "nowhere.example"]);
    assert!(code == 2 && text.contains("no group and no scope of that name is held"), "{text}");
    let done = ["retry", "--group", "acme", "--state", "succeeded", "--open", &host];
    let (code, text) = tasks(&store, "work.db", &done);
    assert!(code == 0 && text.starts_with("nothing to retry") && !text.contains("is open"), "{text}");
    assert!(!report(&store)["scopes"].to_string().contains("a person has opened it"), "nothing waits for that");
    for wrong in [&["--only-status", "9xx"][..], &["--again", "--since", "1h", "--until", "2h"]] {
        let (code, text) = tasks(&store, "work.db", &[&["retry", "--group", "acme"], wrong].concat());
        assert!(code == 2 && text.contains(if wrong.len() == 2 { "--only-status" } else { "--until" }), "{text}");
    }
    assert_eq!(busy.count(), 1);
    let (_, text) = tasks(&store, "work.db", &["retry", "other"]);
    assert!(!text.contains("still held"), "its host is another: {text}");
    let of_zeta = tasks(&store, "work.db", &["report", "--group", "zeta"]).1;
    assert!(!of_zeta.contains(&host), "{of_zeta}");
    let without_port = host.split(':').next().expect("a host");
    let (code, text) = tasks(&store, "work.db", &["retry", "--group", "acme", "--open", without_port]);
    assert!(text.contains(&format!("{host} is open within seconds\n")), "{text}");
    // The worker may be looking at one of them, which is in flight then.
    assert!(code == 0 && text.contains("due again") && !text.contains("still held"), "{text}");
    until(|| states(&store, "busy", 3, State::Succeeded) == 3);
    signal("-INT", worker.id());
    worker.ended_with_output();
    let of = |words: &[&str]| tasks(&store, "work.db", words).1;
    assert!(of(&["report", "--group", "acme"]).contains("3 items: 3 succeeded"), "{}", of(&["report"]));
    let counted: Value = serde_json::from_str(&of(&["report", "--by-group", "--json"])).expect("JSON");
    assert_eq!(
        (&counted["by_group"]["acme"]["succeeded"], &counted["by_group"]["zeta"]["deferred"]),
        (&json!(3), &json!(1))
    );
    assert!(of(&["report", "--group", "nobody"]).contains("there are acme, zeta"), "{}", of(&["report"]));
}

/// Of requests a quota of hours holds the group in the store, and the scope of that name in the limiter; of commands any wait
/// that one tells of. A person opens both by the name that the report has, while a worker stays and while none is at work.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_group_that_is_held_is_opened_by_a_person() {
    for (are_requests, stays) in [(true, true), (true, false), (false, true), (false, false)] {
        let asked = AtomicUsize::new(0);
        let server = Server::new(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::error(429, "slow down").with_header("retry-after", 7_200),
            _ => Reply::ok(),
        });
        let store = Store::new();
        let item = |n: usize| NewItem {
            group: "gh".to_owned(),
            ..NewItem::new(format!("evt-{n}"), json!({"url": "/in", "body": {"n": n}}).to_string())
        };
        store.put((0..3).map(item).collect());
        let told = r#"test -e told && exit 0; echo > told; echo '{"class":"throttled","retry_after_s":7200}'; exit 1"#;
        let command = |flag: &[&str]| {
            let mut command = store.command();
            command.args(["--concurrency", "1"]).args(flag);
            match are_requests {
                true => command.args(["--http", "--base-url", &server.url()]),
                false => command.args(["--", "sh", "-c", told]),
            };
            command
        };
        let tasks = |words: &[&str]| tasks(&store, "work.db", words);
        let worker = stays.then(|| begin(&mut command(&["--stay"])));
        if !stays {
            let Ran { code, log, .. } = ran(&mut command(&["--max-wait", "1s"]));
            assert_eq!(code, 3, "{log}");
        }
        until(|| report(&store)["groups"][0]["state"] == "held");
        assert!(tasks(&["report"]).1.contains("held: group gh until "), "{}", tasks(&["report"]).1);
        let (_, text) = tasks(&["retry", "--group", "gh"]);
        assert_eq!(text.matches("still held: group gh until ").count(), 1, "{text}");
        assert!(
            text.contains("; --open gh tries its items all the same\n") && !text.contains("all items of"),
            "{text}"
        );
        // One of them tests it, and the others go on once it has succeeded.
        let named: &[&str] = if stays { &["retry", "--group", "gh"] } else { &["retry", "evt-0"] };
        let (code, text) = tasks(&[named, &["--open", if are_requests { "gh" } else { "group gh" }]].concat());
        assert!(code == 0 && !text.contains("still held"), "{text}");
        let opened = if stays { "gh is open within seconds\n" } else { "gh is open for the next worker" };
        assert!(text.contains(opened), "{text}");
        if !stays {
            let Ran { code, log, .. } = ran(&mut command(&["--max-wait", "1s"]));
            assert_eq!(code, 0, "{log}");
        }
        until(|| states(&store, "evt", 3, State::Succeeded) == 3);
        assert_eq!(report(&store)["groups"], json!([]));
        worker.into_iter().for_each(|worker| {
            signal("-INT", worker.id());
            worker.ended_with_output();
        });
    }
}

#[test]
fn calls_that_a_killed_worker_had_under_way_are_told() {
    let (hangs, good) = (Server::new(|_| Reply::ok().never()), Server::new(|_| Reply::ok()));
    let store = Store::new();
    let prompt = |n| {
        let payload = json!({"url": format!("{}/v1/chat/completions", hangs.url()), "body": {"messages": []}});
        NewItem::new(format!("slow-{n}"), payload.to_string())
    };
    store.put((0..2).map(prompt).collect());
    let mut run = begin(&mut command(&store, &hangs, &["--unknown-outcome", "resend"]));
    until(|| hangs.count() == 2);
    signal("-KILL", run.id());
    run.ended();
    let tasks = |words: &[&str]| tasks(&store, "work.db", words).1;
    assert!(tasks(&["list"]).contains("worker_gone"), "{}", tasks(&["list"]));
    assert!(tasks(&["report"]).contains("left by a worker that has ended"), "{}", tasks(&["report"]));
    let base = ["--base-url", &good.url(), "--max-duration", "1ms"];
    let Ran { summary, log, .. } = ran(store.command().arg("--http").args(base));
    assert_eq!(summary["crashes"], 2, "{log}");
    assert!(log.contains("an earlier worker was killed while it had 2 items") && log.contains("billed twice"), "{log}");
    assert_eq!(report(&store)["crashes"], 2);
    assert!(tasks(&["report"]).contains("0 calls, and up to 2 more that a crash cut off"), "{}", tasks(&["report"]));
    let shown = tasks(&["show", "slow-0"]);
    assert!(shown.contains("and up to 1 more that a crash cut off"), "{shown}");
}
