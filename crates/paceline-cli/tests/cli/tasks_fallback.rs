//! `tasks run --fallback`: a command stands in for what was given up because the API stayed down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use paceline_store::work::{NewItem, State};
use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Reply, Server};
use crate::tasks_run::{Ran, Store, ran};

const ONCE: [&str; 2] = ["--max-retries", "1"];

fn store_of(payloads: &[(&str, Value)]) -> Store {
    let store = Store::new();
    store.put(payloads.iter().map(|(key, payload)| NewItem::new(*key, payload.to_string())).collect());
    store
}

fn requests() -> Store {
    let request = |item: &str| json!({"url": "/v1/things", "body": {"model": "m", "item": item}, "metadata": {"n": 1}});
    store_of(&["works", "down", "bad"].map(|item| (item, request(item))))
}

#[test]
fn the_result_stands_marked_among_the_answers_until_the_api_answers() {
    let back = Arc::new(AtomicBool::new(false));
    let is_back = Arc::clone(&back);
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "down" if !is_back.load(Relaxed) => Reply::error(503, "down"),
        "bad" => Reply::error(400, "bad"),
        _ => Reply::ok(),
    });
    let store = requests();
    let run = || {
        let mut command = store.command();
        command.args(["--http", "--base-url", &server.url(), "-o", "answers.jsonl", "--fallback", "/bin/cat"]);
        ran(command.args(ONCE).args(["--api-key-env", "MINE"]).env("MINE", "sk-0123456789"))
    };
    let Ran { code, summary, log } = run();
    assert_eq!((code, &summary["status"]), (1, &json!("PARTIAL")), "{log}");
    assert_eq!(
        [&summary["succeeded"], &summary["fallback"], &summary["failed"]],
        [1, 1, 1].map(|n| json!(n)).each_ref()
    );
    assert_eq!(summary["reasons"]["fallback"], json!({"max_retries": 1}));
    assert_eq!((server.count(), store.item("down").state), (4, State::FellBack));
    let lines = store.job.lines("answers.jsonl");
    let line = lines.iter().find(|line| line["custom_id"] == "down").expect("its line");
    assert_eq!((&line["source"], &line["response"]), (&json!("fallback"), &Value::Null));
    let told = &line["output"];
    assert_eq!((&told["key"], &told["metadata"]), (&json!("down"), &json!({"n": 1})));
    assert_eq!(told["request"], json!({"method": "POST", "url": "/v1/things", "body": {"model": "m", "item": "down"}}));
    let error =
        json!({"reason": "max_retries", "class": "overloaded", "status": 503, "code": "down", "message": "it is down"});
    assert_eq!(told["error"], error);

    back.store(true, Relaxed);
    let report = store.job.paceline().args(["tasks", "report", "--store", "work.db"]).ended_with_output();
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("3 items: 1 succeeded, 1 by the fallback, 1 failed"), "{report}");
    assert!(report.contains("fallback: 1 (max_retries)"), "{report}");
    let retry =
        store.job.paceline().args(["tasks", "retry", "--state", "fallback", "--store", "work.db"]).ended_with_output();
    assert_eq!(String::from_utf8_lossy(&retry.stdout), "1 item is due again\n");
    let Ran { summary, log, .. } = run();
    assert_eq!([&summary["succeeded"], &summary["fallback"]], [2, 0].map(|n| json!(n)).each_ref(), "{log}");
    let lines = store.job.lines("answers.jsonl");
    assert_eq!(lines.last().expect("lines")["response"]["status_code"], 200);
}

#[test]
fn a_command_that_gives_an_item_up_has_another_stand_in() {
    let store = store_of(&["down", "bad"].map(|key| (key, json!({"days": 90}))));
    let run = |fallback: &str| {
        let mut command = store.command();
        command.args(ONCE).args(["--fallback", fallback, "--", "/bin/sh", "-c"]);
        ran(command.arg("[ $PACELINE_KEY = bad ] && exit 65; exit 75"))
    };
    let Ran { code, summary, log } = run("/bin/sh -c 'cat > $PACELINE_KEY.json'");
    assert_eq!((code, &summary["fallback"], &summary["failed"]), (1, &json!(1), &json!(1)), "{log}");
    assert!(log.contains("the fallback stands in: max_retries"), "{log}");
    let told: Value =
        serde_json::from_slice(&std::fs::read(store.job.path("down.json")).expect("it was told")).expect("JSON");
    assert_eq!((&told["payload"], &told["group"]), (&json!({"days": 90}), &json!("default")));
    assert_eq!((&told["error"]["status"], &told["error"]["class"]), (&json!(75), &json!("transient")));

    let retry = store.job.paceline().args(["tasks", "retry", "--all", "--store", "work.db"]).ended_with_output();
    assert!(retry.status.success());
    let Ran { code, summary, log } = run("/bin/sh -c 'echo no patterns >&2; exit 3'");
    assert_eq!((code, &summary["status"], &summary["failed"]), (1, &json!("FAILED"), &json!(2)), "{log}");
    assert!(log.contains("no result of the fallback: exit status: 3: no patterns"), "{log}");
}

#[test]
fn a_fallback_that_cannot_be_is_refused_before_anything_begins() {
    let store = store_of(&[("a", json!(1))]);
    for (fallback, on, why) in [
        (&["--fallback", "no-such-command"][..], None, "--fallback \"no-such-command\": cannot execute"),
        (&[], Some("true"), "ENABLE_FALLBACK_PROCESSING=true, and no command is configured"),
    ] {
        let mut command = store.command();
        command.args(fallback).args(["--", "/bin/false"]);
        on.map(|on| command.env("ENABLE_FALLBACK_PROCESSING", on));
        let (code, log) = crate::support::finish(&mut command);
        assert!(code == 2 && log.contains(why), "{why}: {log}");
    }
    assert_eq!(store.item("a").sends(), 0);
}
