//! Items without a group, for several hosts: what one host does concerns its own items alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paceline_store::work::{NewItem, State};
use serde_json::json;

use crate::bounded::BoundedOutput;
use crate::outage::nowhere;
use crate::support::{Job, Reply, Server, finish};
use crate::tasks_run::{Ran, Store, begin, ran, signal, until};
use crate::tls::Authority;

pub(crate) fn posts(url: &str, name: &str, count: usize, priority: i16) -> Vec<NewItem> {
    let item = |n: usize| {
        let payload = json!({"url": format!("{url}/hook"), "body": {"item": format!("{name}-{n}")}});
        NewItem { priority, ..NewItem::new(format!("{name}-{n}"), payload.to_string()) }
    };
    (0..count).map(item).collect()
}

fn run(store: &Store, base: &Server, flags: &[&str]) -> Ran {
    let ours = ["--http", "--base-url", &base.url(), "--concurrency", "4"];
    ran(store.command().args(ours).args(flags))
}

fn all_are(store: &Store, name: &str, count: usize, states: &[State]) {
    for n in 0..count {
        let state = store.item(&format!("{name}-{n}")).state;
        assert!(states.contains(&state), "{name}-{n} is {state:?}");
    }
}

/// Neither has ended as failed.
const WAITS: [State; 2] = [State::Waiting, State::Deferred];

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_is_gone_or_not_trusted_stops_no_other() {
    let authority = Authority::new();
    let (gone, good) = (Server::new(|_| Reply::error(410, "gone")), Server::new(|_| Reply::ok()));
    let unpaid = Server::new(|_| Reply::error(429, "insufficient_quota").with_header("retry-after", 1));
    let strange = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let store = Store::new();
    store.put(posts(&gone.url(), "gone", 30, 3));
    store.put(posts(&strange.url(), "strange", 5, 2));
    store.put(posts(&unpaid.url(), "unpaid", 5, 1));
    store.put(posts(&good.url(), "good", 40, 0));
    let Ran { code, summary, log } = run(&store, &good, &["--scope", "host"]);
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(40), &json!(0)), "{log}");
    assert_eq!(good.count(), 40, "{log}");
    assert!((20..30).contains(&gone.count()) && (1..5).contains(&unpaid.count()), "{log}");
    for name in ["strange", "unpaid"] {
        all_are(&store, name, 5, &[State::Deferred]);
    }
    all_are(&store, "gone", 30, &WAITS);
    assert!(!log.contains(" failed: "), "none of them has: {log}");
    for told in ["the first 20 items all failed the same way", "the server's certificate", "insufficient_quota"] {
        let lines = log.lines().filter(|line| line.contains(" is stopped: ") && line.contains(told)).count();
        assert_eq!(lines, 1, "{told}: {log}");
    }
    let again = run(&store, &good, &["--scope", "host", "--stop-after-same", "0"]);
    assert_eq!(
        (again.code, &again.summary["failed"], again.summary["stopped"].as_str()),
        (3, &json!(30), Some("account"))
    );
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_is_not_there_is_left_to_the_next_run_and_the_others_go_on() {
    let (good, dead) = (Server::new(|_| Reply::ok()), nowhere());
    let store = Store::new();
    store.put(posts(&dead, "dead", 4, 1));
    store.put(posts(&good.url(), "good", 20, 0));
    let Ran { code, summary, log } = run(&store, &good, &["--scope", "host", "--max-wait", "2s"]);
    assert_eq!((code, &summary["succeeded"], &summary["stopped"]), (3, &json!(20), &json!("unreachable")), "{log}");
    all_are(&store, "dead", 4, &WAITS);
}

/// A customer's typing error: what speaks TLS at a port, and what does not, are two servers.
#[test]
fn an_address_with_the_wrong_scheme_waits_alone() {
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    let wrong = good.url().replace("http://", "https://");
    store.put(posts(&wrong, "wrong", 2, 1));
    store.put(posts(&good.url(), "good", 5, 0));
    let flags = ["--http", "--base-url", &good.url(), "--concurrency", "1", "--scope", "host"];
    for _ in 0..2 {
        let Ran { code, summary, log } = ran(store.command().args(flags));
        assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(5), &json!(2)), "{log}");
        assert_eq!(summary["scopes"][0]["name"], wrong, "{log}");
    }
    all_are(&store, "wrong", 2, &[State::Deferred]);
}

/// Its items come first, and nothing is known of the other until one of its items is looked at.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_hangs_from_the_beginning_leaves_places_to_the_others() {
    let hangs = Arc::new(Server::new(|_| Reply::ok().never()));
    let (seen, most) = (Arc::clone(&hangs), Arc::new(AtomicUsize::new(0)));
    let at_most = Arc::clone(&most);
    let good = Server::new(move |_| {
        at_most.fetch_max(seen.count(), Ordering::Relaxed);
        Reply::ok()
    });
    let store = Store::new();
    store.put(posts(&hangs.url(), "hangs", 12, 1));
    store.put(posts(&good.url(), "good", 20, 0));
    let flags = ["--scope", "host", "--timeout", "3s", "--max-retries", "0", "--unknown-outcome", "fail"];
    let Ran { summary, log, .. } = run(&store, &good, &flags);
    assert_eq!(&summary["succeeded"], &json!(20), "{log}");
    assert!(most.load(Ordering::Relaxed) < 4, "of the four places it had all before the other had one: {log}");
}

/// A host that shuts the worker out with five events left has taken others before.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_ban_of_a_host_with_few_items_left_fails_none_of_them() {
    let asked = AtomicUsize::new(0);
    let bans = Server::new(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0..5 => Reply::ok(),
        _ => Reply::error(403, "go away"),
    });
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    store.put(posts(&bans.url(), "event", 10, 1));
    store.put(posts(&good.url(), "good", 20, 0));
    let Ran { code, summary, log } = run(&store, &good, &["--scope", "host"]);
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(25), &json!(0)), "{log}");
    assert!(bans.count() < 5 + 3 + 4, "three, and what was in flight then: {}", bans.count());
    assert!(
        log.contains(
            "the last 3 items all failed the same way, and wait (none is marked as failed): 403 Forbidden, answer"
        ),
        "{log}"
    );
    assert!(log.contains("`paceline tasks retry`, if items have failed") && !log.contains("--retry-failed"), "{log}");
}

/// A new start is told by the store which hosts have answered: those wait for none that hangs.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn after_a_new_start_a_host_that_had_answered_waits_for_none_that_hangs() {
    let hangs: Arc<Vec<Server>> = Arc::new((0..8).map(|_| Server::new(|_| Reply::ok().never())).collect());
    let calls = |hangs: &[Server]| hangs.iter().map(Server::count).sum::<usize>();
    let (seen, most) = (Arc::clone(&hangs), Arc::new(AtomicUsize::new(0)));
    let at_most = Arc::clone(&most);
    let good = Server::new(move |_| {
        at_most.fetch_max(calls(&seen), Ordering::Relaxed);
        Reply::ok()
    });
    let store = Store::new();
    let flags = ["--scope", "host", "--timeout", "2s", "--max-retries", "0", "--unknown-outcome", "fail"];
    store.put(posts(&good.url(), "before", 2, 0));
    assert_eq!(run(&store, &good, &flags).code, 0);
    for (n, server) in hangs.iter().enumerate() {
        store.put(posts(&server.url(), &format!("hangs{n}"), 2, 1));
    }
    store.put(posts(&good.url(), "good", 20, 0));
    let Ran { summary, log, .. } = run(&store, &good, &flags);
    assert_eq!(&summary["succeeded"], &json!(22), "{log}");
    assert!(most.load(Ordering::Relaxed) <= 2, "half of the four places were for it from the first moment: {log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn without_the_flag_for_many_hosts_items_of_other_hosts_wait_and_none_fails() {
    let (good, other) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(posts(&other.url(), "other", 30, 1));
    store.put(posts(&good.url(), "good", 5, 0));
    let Ran { code, summary, log } = run(&store, &good, &[]);
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(5), &json!(0)), "{log}");
    all_are(&store, "other", 30, &[State::Deferred]);
    let told =
        log.lines().filter(|line| line.contains("waits for the next run") && line.contains("add --scope host to call"));
    assert_eq!(told.count(), 1, "{log}");
    let Ran { code, log, .. } = run(&store, &good, &["--scope", "host"]);
    assert_eq!((code, other.count()), (0, 30), "{log}");
}

/// Customers that are gone are called once each, and hold up no other, at the first start of a worker and at later ones.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn hosts_that_are_gone_hold_up_no_other_however_many_they_are() {
    let gone: Vec<Server> = (0..6).map(|_| Server::new(|_| Reply::error(410, "gone"))).collect();
    let good = Server::new(|_| Reply::ok());
    let store = Store::new();
    for (n, server) in gone.iter().enumerate() {
        store.put(posts(&server.url(), &format!("gone{n}"), 2, 5));
    }
    let calls = || gone.iter().map(Server::count).collect::<Vec<_>>();
    let flags = ["--scope", "host", "--stop-after-same", "4"];
    let Ran { code, summary, log } = run(&store, &good, &flags);
    assert_eq!((code, &summary["failed"], &summary["stopped"]), (3, &json!(0), &json!("same_failure")), "{log}");
    assert_eq!(calls(), [2; 6], "{log}");
    for (calls_each, n) in [(3, 0), (4, 1)] {
        store.put(posts(&good.url(), &format!("good{n}"), 5, 0));
        let Ran { log, .. } = run(&store, &good, &flags);
        assert_eq!(good.count(), 5 * (n + 1), "the others go on: {log}");
        assert_eq!(calls(), [calls_each; 6], "one call tests each: {log}");
        assert!(!log.contains("stopping: "), "{log}");
    }
}

/// Nothing else can be tried, so that the requests may be wrong.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn hosts_that_all_refuse_alike_fail_no_item() {
    let servers: Vec<Server> = (0..6).map(|_| Server::new(|_| Reply::error(404, "no_such_path"))).collect();
    let store = Store::new();
    for (n, server) in servers.iter().enumerate() {
        store.put(posts(&server.url(), &format!("host{n}"), 2, 0));
    }
    let Ran { code, summary, log } = run(&store, &servers[0], &["--scope", "host", "--stop-after-same", "4"]);
    assert_eq!((code, &summary["failed"], &summary["stopped"]), (3, &json!(0), &json!("same_failure")), "{log}");
    assert!(
        log.contains("the first 12 items all failed the same way") && log.contains("correct the requests"),
        "{log}"
    );
}

/// A 407 is the word of a proxy only where one stands on the way.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_server_that_asks_for_a_proxys_password_without_a_proxy_speaks_for_its_own_items() {
    let (odd, good) = (Server::new(|_| Reply::error(407, "who")), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(posts(&odd.url(), "odd", 3, 1));
    store.put(posts(&good.url(), "good", 12, 0));
    let Ran { summary, log, .. } = run(&store, &good, &["--scope", "host"]);
    assert_eq!(&summary["succeeded"], &json!(12), "{log}");
    assert!(!log.contains("--proxy"), "{log}");
}

/// A worker was killed during its call. A run without the flag must not make the next one forget that.
#[test]
fn a_call_that_may_have_been_made_is_held_where_its_host_needs_the_flag_too() {
    let (good, other) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let store = Store::new();
    store.put(
        posts(&other.url(), "other", 1, 0).into_iter().map(|item| NewItem { may_be_done: true, ..item }).collect(),
    );
    for flags in [&[][..], &["--scope", "host"]] {
        let Ran { code, log, .. } = run(&store, &good, flags);
        assert_eq!((code, other.count(), store.item("other-0").state), (1, 0, State::Failed), "{log}");
    }
    assert_eq!(store.item("other-0").reason.as_deref(), Some("unknown_outcome_held"));
}

/// A customer has mended its host, and a person sends for one of the events: the others go on by themselves.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn all_items_of_a_host_that_is_open_again_go_on_in_a_worker_that_stays() {
    let is_open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_open);
    let host = Server::new(move |_| if seen.load(Ordering::Relaxed) { Reply::ok() } else { Reply::error(410, "gone") });
    let store = Store::new();
    store.put(posts(&host.url(), "event", 9, 0));
    let ours = ["--http", "--base-url", &host.url(), "--scope", "host", "--stay"];
    let worker = begin(store.command().args(ours).args(["--concurrency", "1", "--stop-after-same", "4"]));
    let number_of = |state| (0..9).filter(|n| store.item(&format!("event-{n}")).state == state).count();
    until(|| number_of(State::Deferred) == 9);
    assert_eq!(host.count(), 4);
    let last = store.item("event-8");
    assert_eq!((last.last, last.reason.as_deref()), (None, Some("same_failure")), "it was never sent");
    is_open.store(true, Ordering::Relaxed);
    let (code, log) = finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "event-8"]));
    assert_eq!(code, 0, "{log}");
    until(|| number_of(State::Succeeded) == 9);
    assert_eq!(host.count(), 4 + 9);
    signal("-INT", worker.id());
    assert!(worker.ended_with_output().status.success());
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_is_stopped_is_told_of_once_with_its_own_reason() {
    let servers: Vec<Server> = (0..6).map(|_| Server::new(|_| Reply::error(410, "gone"))).collect();
    let store = Store::new();
    for (n, server) in servers.iter().enumerate() {
        store.put(posts(&server.url(), &format!("host{n}"), 7, 0));
    }
    for run_number in 0..2 {
        let Ran { summary, log, .. } = run(&store, &servers[0], &["--scope", "host", "--stop-after-same", "4"]);
        let scopes = summary["scopes"].as_array().expect("scopes");
        assert_eq!(scopes.len(), 6, "run {run_number}: {log}");
        let is_true = |scope: &serde_json::Value| {
            scope["reason"].as_str().is_some_and(|reason| reason.starts_with("the first 4 items"))
        };
        assert!(scopes.iter().all(is_true), "run {run_number}: {scopes:?}");
        assert!(!log.contains("the first 0 items"), "{log}");
    }
    let list = store.job.paceline().args(["tasks", "list", "--store", "work.db", "--json"]).ended_with_output();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let rows: Vec<serde_json::Value> = list.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(rows.len(), 42, "{list}");
    for row in &rows {
        let (was_sent, status) = (row["attempts"] != 0, &row["status_code"]);
        assert_eq!((status == 410, row["fatal"] == true), (was_sent, was_sent), "{row}");
    }
}

/// All items are posted to one path, whose API asks for a pause that is longer than the run waits.
#[test]
fn a_scope_that_held_others_up_is_told_with_what_to_set() {
    let server = Server::new(|_| Reply::error(429, "slow_down").with_header("retry-after", 120));
    let store = Store::new();
    store.put(posts("", "event", 5, 0));
    let mut command = store.job.paceline();
    command.args(["tasks", "run", "--store", "work.db", "--http", "--base-url", &server.url()]);
    let (code, log) = finish(command.args(["--concurrency", "1", "--max-wait", "1s"]));
    assert_eq!((code, server.count()), (3, 1), "{log}");
    let told = ", by a pause that goes on, because they are one scope; only if the API limits each path by itself, --scope endpoint";
    assert!(log.contains("held up: the items of ") && log.contains(told), "{log}");
    let (code, log) = finish(command.args(["--scope", "endpoint"]));
    assert!(code == 3 && !log.contains("held up: "), "{log}");
}

/// Webhooks to ten customers, of whom two are down.
#[test]
fn paths_that_fail_hold_up_no_other() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/customer-3/hook" | "/customer-7/hook" => Reply::error(503, "down"),
        _ => Reply::ok(),
    });
    let store = Store::new();
    let item = |n: usize| {
        let payload = json!({"url": format!("/customer-{}/hook", n % 10), "body": {"item": format!("item-{n}")}});
        NewItem::new(format!("item-{n}"), payload.to_string())
    };
    store.put((0..300).map(item).collect());
    let Ran { code, summary, log } = run(&store, &server, &["--max-wait", "1s", "--max-retries", "100"]);
    let failing = server
        .arrivals()
        .iter()
        .filter(|arrival| ["/customer-3", "/customer-7"].iter().any(|path| arrival.path.starts_with(path)))
        .count();
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(240), &json!(0)), "{log}");
    assert!((2..200).contains(&failing), "{failing} calls of a server that is down: {log}");
}

/// Of two groups at one path one is throttled.
#[test]
fn a_scope_may_be_a_group_on_both_faces() {
    let busy = || {
        Server::new(|arrival| match arrival.item.as_str() {
            "item-0" | "item-2" | "item-4" => Reply::error(429, "slow down").with_header("retry-after", 7_200),
            _ => Reply::ok(),
        })
    };
    for (scope, succeeded) in [("group", 3), ("all", 0)] {
        let flags = ["--scope", scope, "--max-wait", "1m", "--concurrency", "1"];
        let (server, store) = (busy(), Store::new());
        let item = |n: usize| NewItem {
            group: format!("group-{}", n % 2),
            ..NewItem::new(
                format!("item-{n}"),
                json!({"url": "/hook", "body": {"item": format!("item-{n}")}}).to_string(),
            )
        };
        store.put((0..6).map(item).collect());
        let Ran { code, summary, log } = ran(store.command().args(["--http", "--base-url", &server.url()]).args(flags));
        assert_eq!((code, &summary["succeeded"]), (3, &json!(succeeded)), "{scope}: {log}");

        let server = busy();
        let line = |n: usize| {
            let label = json!({"label": format!("group-{}", n % 2)});
            let body = json!({"item": format!("item-{n}")});
            json!({"custom_id": format!("item-{n}"), "url": "/hook", "method": "post", "metadata": label, "body": body})
                .to_string()
                + "\n"
        };
        let job = Job::with_input(&(0..6).map(line).collect::<String>());
        let (code, log) = finish(job.run(&server).args(flags));
        assert_eq!((code, &job.summary()["succeeded"]), (3, &json!(succeeded)), "{scope}: {log}");
        assert!(server.arrivals().iter().all(|arrival| arrival.method == "POST"), "a method in small letters");
    }
}
