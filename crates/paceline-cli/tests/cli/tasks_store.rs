//! The store of `paceline tasks`: one file, however it is named, and no command's output.

use paceline_store::work::NewItem;
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::finish;
use crate::tasks_alike::tasks;
use crate::tasks_run::{Ran, Store, begin, until};

#[test]
fn another_name_of_a_store_lets_no_second_run_in() {
    let store = Store::of(&["a"]);
    let folder = store.job.path("");
    std::os::unix::fs::symlink(store.job.path("work.db"), folder.join("link.db")).expect("a link");
    let mut first = begin(store.command().args(["--", "sh", "-c", "echo >> log; read line; kill -STOP $$"]));
    until(|| store.job.path("log").exists());
    let (code, log) = finish(store.job.paceline().args(["tasks", "run", "--store", "link.db", "--", "/bin/true"]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("work.db.lock is in use by process"), "{log}");
    let worker = || {
        let report = store.job.paceline().args(["tasks", "report", "--store", "link.db", "--json"]).ended_with_output();
        let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
        report["worker"].clone()
    };
    let at_work = worker();
    assert_eq!((&at_work["at_work"], &at_work["process"]), (&json!(true), &json!(first.id())), "{at_work}");
    assert!(at_work["since"].is_string() && at_work["waits_for"].is_null(), "{at_work}");
    first.kill().expect("it runs");
    first.ended();
    assert_eq!(worker(), json!({"at_work": false}));
}

#[test]
fn a_second_worker_is_refused_after_the_lock_file_was_deleted_too() {
    let store = Store::of(&["a"]);
    let mut first = begin(store.command().args(["--", "sh", "-c", "echo >> log; read line; kill -STOP $$"]));
    until(|| store.job.path("log").exists());
    std::fs::remove_file(store.job.path("work.db.lock")).expect("it is there");
    let (code, log) = finish(store.command().args(["--", "/bin/true"]));
    assert!(code == 2 && log.contains("work.db is in use by another process"), "{log}");
    let report = store.job.paceline().args(["tasks", "report", "--store", "work.db"]).ended_with_output();
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(
        report.contains("in flight at a worker") && report.contains("a worker is at work on the store\n"),
        "{report}"
    );
    first.kill().expect("it runs");
    first.ended();
    assert_eq!(store.run(&[], "true").code, 0, "no lock outlives its process");
}

#[test]
fn a_store_with_two_names_is_refused_by_both() {
    let store = Store::of(&["a"]);
    std::fs::hard_link(store.job.path("work.db"), store.job.path("too.db")).expect("a link");
    for name in ["work.db", "too.db"] {
        let (code, log) = finish(store.job.paceline().args(["tasks", "run", "--store", name, "--", "/bin/true"]));
        assert!(code == 2 && log.contains("has a second name"), "{log}");
    }
    std::fs::remove_file(store.job.path("too.db")).expect("it is there");
    assert_eq!(store.run(&[], "true").code, 0);
}

#[test]
fn a_store_that_would_not_last_is_refused() {
    let store = Store::new();
    let add = |name: &str| finish(store.job.paceline().args(["tasks", "add", "--store", name, "--key", "x", "1"]));
    assert_eq!(add("").0, 2);
    for name in [":memory:", "file:other.db?mode=memory"] {
        let (code, log) = add(name);
        assert_eq!(code, 0, "{log}");
        assert!(store.job.path(name).exists(), "a file like any other: {name}");
    }
}

#[test]
fn a_store_in_a_folder_that_is_not_there_names_the_folder() {
    let store = Store::new();
    let (code, log) = finish(store.job.paceline().args(["tasks", "add", "--store", "none/work.db", "--key", "x", "1"]));
    assert!(code == 2 && log.contains("its folder none cannot be found") && !log.contains("ulimit"), "{log}");
}

#[test]
fn what_is_no_file_is_no_store_and_stays_as_it_is() {
    let store = Store::new();
    assert!(std::process::Command::new("mkfifo").arg(store.job.path("pipe")).ended().success());
    std::fs::create_dir(store.job.path("folder")).expect("room");
    for name in ["pipe", "folder", "/dev/null"] {
        let (code, log) = finish(store.job.paceline().args(["tasks", "add", "--store", name, "--key", "x", "1"]));
        assert!(code == 2 && log.contains("is not a store of paceline"), "{name}: {log}");
    }
    assert!(!std::path::Path::new("/dev/null-journal").exists());
}

#[test]
fn nothing_is_written_over_the_store() {
    let store = Store::of(&["a"]);
    let tasks = |arguments: &[&str]| finish(store.job.paceline().arg("tasks").args(arguments));
    std::fs::hard_link(store.job.path("work.db"), store.job.path("linked")).expect("links");
    for output in ["work.db", "./work.db", "linked", "work.db-wal", "work.db-journal"] {
        for arguments in [
            vec!["report", "--store", "work.db", "-o", output],
            vec!["run", "--store", "work.db", "--summary", output, "--", "/bin/true"],
            vec!["run", "--store", "work.db", "--http", "--base-url", "http://127.0.0.1:1", "-o", output],
        ] {
            let (code, log) = tasks(&arguments);
            assert!(code == 2 && log.contains("belongs to the store"), "{arguments:?}: {log}");
        }
    }
    std::fs::remove_file(store.job.path("linked")).expect("it is there");
    assert_eq!(store.item("a").key, "a");
}

#[test]
fn a_refusal_longer_than_the_deadline_holds_the_group_and_fails_no_item() {
    for class in ["quota_exhausted", "throttled"] {
        let store = Store::of(&["a", "b"]);
        let script = format!(r#"echo '{{"class":"{class}","retry_after_s":100000}}'; exit 1"#);
        let counts = |ran: &Ran| ["deferred", "calls"].map(|key| ran.summary[key].clone());
        let ran = store.run(&["--concurrency", "1"], &script);
        assert_eq!((ran.code, counts(&ran)), (3, [json!(2), json!(1)]), "{class}: {}", ran.log);
        store.add("c", &json!("later"));
        let ran = store.run(&[], &script);
        assert_eq!((ran.code, counts(&ran)), (3, [json!(3), json!(0)]), "{class}: {}", ran.log);
    }
}

#[test]
fn a_store_that_is_taken_away_in_the_middle_is_no_success() {
    for way in ["rm work.db*", "mv work.db old.db", "cp work.db new && mv new work.db"] {
        let store = Store::of(&["a", "b"]);
        let ran = store.run(&["--concurrency", "1"], way);
        assert!(
            ran.code == 3 && ran.log.contains("was moved away or deleted while it was in use"),
            "{way}: {}",
            ran.log
        );
    }
}

/// A unit that may not begin again after bad usage begins again.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_database_that_is_away_is_no_bad_usage() {
    let store = Store::new();
    for command in [&["run", "--stay"][..], &["run"], &["report"], &["retry", "--all"], &["add", "1"]] {
        let address = "postgres://me@127.0.0.1:1/jobs?connect_timeout=1";
        let mut tasks = store.job.paceline();
        tasks.args(["tasks", command[0], "--store", address]).args(&command[1..]);
        if command[0] == "run" {
            tasks.args(["--", "/bin/true"]);
        }
        let (code, log) = finish(&mut tasks);
        assert!(code == 3 && log.contains("cannot reach the store on 127.0.0.1:1/jobs"), "{command:?}: {log}");
    }
}

/// A receiver knows an event by nothing else, and asks the sender about it.
#[test]
fn show_tells_the_idempotency_key_that_was_sent() {
    let reply = || crate::support::Reply::text(200, "text/plain", "thanks for the event");
    let (server, store) = (crate::support::Server::new(move |_| reply()), Store::new());
    store.put(vec![
        NewItem::new("evt", "{ \"url\": \"/hook\",\n \"body\": {\"item\": \"evt\"} }"),
        NewItem::new("other", "1"),
    ]);
    let mut run = store.command();
    let ended =
        crate::tasks_run::ran(run.args(["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id"]));
    let sent = server.arrivals()[0].headers["webhook-id"].to_str().expect("text").to_owned();
    let shown = |words: &[&str]| tasks(&store, "work.db", words).1;
    let shown_as_json: serde_json::Value = serde_json::from_str(&shown(&["show", "evt", "--json"])).expect("JSON");
    assert_eq!(shown_as_json["idempotency_value"], sent, "{}", ended.log);
    assert!(shown(&["show", "evt"]).contains(&format!("  id        {sent} (--idempotency-header)\n")));
    assert!(!shown(&["show", "other"]).contains("--idempotency-header"), "the input of a command");
    assert_eq!(shown_as_json["answer"], serde_json::json!({"status": 200, "words": "thanks for the event"}));
    let by_value = shown(&["show", &sent]);
    assert!(
        by_value.starts_with("evt\n") && by_value.contains("  answer    200: thanks for the event\n"),
        "{by_value}"
    );
    let unknown = format!("pl-{}", "0".repeat(32));
    assert_eq!(tasks(&store, "work.db", &["show", &unknown]).0, 2);
}

/// A customer asks for an event that was delivered: the same event once more, or as a new one.
#[test]
fn what_succeeded_is_sent_once_more_by_its_key() {
    let (server, store) = (crate::support::Server::new(|_| crate::support::Reply::ok()), Store::new());
    store.put(
        ["evt", "other"]
            .map(|key| NewItem::new(key, r#"{"url": "/hook", "body": {"item": "KEY"}}"#.replace("KEY", key)))
            .into(),
    );
    let answers = store.job.path("answers.jsonl");
    let flags = ["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id", "-o"];
    let run = || {
        let ended = crate::tasks_run::ran(store.command().args(flags).arg(&answers));
        assert_eq!(ended.code, 0, "{}", ended.log);
    };
    run();
    let retry = |flags: &[&str]| tasks(&store, "work.db", &[&["retry"], flags].concat());
    assert!(retry(&["evt"]).1.contains("(KEY --again sends those that succeeded once more)"));
    assert_eq!(retry(&["--all", "--again"]).0, 2, "not everything");
    for (flags, told) in
        [(&["evt", "--again"][..], "with the same value"), (&["evt", "--again", "--new-id"], "with another value")]
    {
        let (code, said) = retry(flags);
        assert!(
            code == 0 && said.starts_with(&format!("1 item is due again, {told} of --idempotency-header")),
            "{said}"
        );
        run();
    }
    let arrivals = server.arrivals();
    let ids: Vec<&str> = arrivals
        .iter()
        .filter(|call| call.item == "evt")
        .map(|call| call.headers["webhook-id"].to_str().expect("text"))
        .collect();
    assert_eq!((ids.len(), arrivals.len()), (3, 4));
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
    assert!(tasks(&store, "work.db", &["show", ids[2]]).1.contains("  sends     3\n"));
}

/// An event that was delivered is sent once more, as a new one, and fails: the customer is still told that it was delivered.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_had_succeeded_is_told_when_it_is_sent_once_more_in_vain() {
    let is_gone = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&is_gone);
    let server = crate::support::Server::new(move |_| match seen.load(std::sync::atomic::Ordering::Relaxed) {
        true => crate::support::Reply::error(410, "gone"),
        false => crate::support::Reply::text(200, "text/plain", "thanks"),
    });
    let store = Store::new();
    let of = |key: &str| {
        let payload = r#"{"url": "/hook", "body": {"item": "KEY"}}"#.replace("KEY", key);
        NewItem { group: "acme".to_owned(), ..NewItem::new(key, payload) }
    };
    store.put(["evt", "other"].map(of).into());
    let flags = ["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id"];
    let run = || crate::tasks_run::ran(store.command().args(flags));
    run();
    let id = server.arrivals()[0].headers["webhook-id"].to_str().expect("text").to_owned();
    is_gone.store(true, std::sync::atomic::Ordering::Relaxed);
    let tell = |words: &[&str]| tasks(&store, "work.db", words).1;
    let day_ago = ["retry", "--again", "--group", "acme", "--since", "1d"];
    let long_ago = ["retry", "--again", "--group", "acme", "--since", "2020-01-30", "--until", "2020-01-31"];
    assert!(tell(&long_ago).contains("no such item ended in that time"));
    assert!(tell(&["retry", "--again", "--group", "other", "--since", "2020-01-31T06:00:00Z"]).contains("nothing"));
    let said = tell(&[&day_ago[..], &["--new-id"]].concat());
    assert!(said.starts_with("2 items are due again, with another value"), "{said}");
    let listed = tell(&["list"]);
    assert!(listed.contains("succeeded before\n") && !listed.contains("before;\n"), "{listed}");
    let ended = run();
    assert_eq!((ended.code, &ended.summary["failed"]), (1, &2.into()), "{}", ended.log);
    let shown = tell(&["show", &id]);
    let told =
        format!("send 1: it succeeded, 200: thanks, with the id {id}; since then a person sent for it once more\n");
    let one_line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.contains(told.trim()), "{shown}");
    assert!(one_line.contains("state failed (invalid); it had succeeded at "), "{shown}");
    assert!(one_line.contains(" or before ended "), "the store keeps no time of its first try: {shown}");
    let report = tell(&["report"]);
    assert!(report.contains("2 of them had succeeded before, and a person sent for them"), "{report}");
    let report: serde_json::Value = serde_json::from_str(&tell(&["report", "--json"])).expect("JSON");
    assert_eq!((&report["failed"], &report["succeeded_before"]), (&2.into(), &2.into()));
    assert!(tell(&["list"]).contains("succeeded before; 410 "), "{}", tell(&["list"]));
    assert_eq!(tell(&["export"]).matches("\"may_be_done\":true").count(), 2);
    // The same window a second time: what was delivered then, whatever became of it since.
    let shown: serde_json::Value = serde_json::from_str(&tell(&["show", "evt", "--json"])).expect("JSON");
    let before = ["--until", shown["ended_at"].as_str().expect("it has ended")];
    let said = tell(&[&day_ago[..], &before].concat());
    assert!(said.starts_with("2 items are due again"), "{said}");
    is_gone.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(run().code, 0);
    let said = tell(&[&day_ago[..], &before].concat());
    assert!(said.starts_with("2 items are due again"), "from the history: {said}");
    is_gone.store(true, std::sync::atomic::Ordering::Relaxed);
    store.put(vec![of("lost")]);
    run();
    let id_of = |shown: &str| {
        let shown: serde_json::Value = serde_json::from_str(shown).expect("JSON");
        shown["idempotency_value"].as_str().expect("it is a request").to_owned()
    };
    let added = |shown: &str| shown.lines().find(|line| line.trim_start().starts_with("added")).map(str::to_owned);
    let (before, id) = (added(&tell(&["show", "lost"])), id_of(&tell(&["show", "lost", "--json"])));
    tell(&["retry", "lost", "--again", "--new-id"]);
    let shown = tell(&["show", &id]);
    assert_eq!((added(&shown), shown.starts_with("lost\n")), (before, true), "it had failed with that id: {shown}");
    let one_line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.contains(&format!("sent for it as a new one; the calls before had the id {id}")), "{shown}");
    assert_ne!(id_of(&tell(&["show", "lost", "--json"])), id);
}

/// A host repeats the address of an event, whose query has a token.
#[test]
fn the_token_of_an_address_that_its_host_repeats_is_shown_nowhere() {
    let server = crate::support::Server::new(|arrival| match &*arrival.item {
        "refused" => crate::support::Reply::text(500, "text/plain", "no such hook: /in?access_token=tk-0123456789&n=1"),
        _ => crate::support::Reply::text(200, "text/plain", "thanks for tk%2d0123456789"),
    });
    let store = Store::new();
    let payload =
        |key: &str| r#"{"url": "/in?access_token=tk-0123456789&n=1", "body": {"item": "KEY"}}"#.replace("KEY", key);
    store.put(["refused", "done"].map(|key| NewItem::new(key, payload(key))).into());
    let mut command = store.command();
    crate::tasks_run::ran(command.args(["--http", "--base-url", &server.url(), "--max-retries", "0"]));
    let (_, shown) = tasks(&store, "work.db", &["show", "refused"]);
    assert!(shown.contains("no such hook: /in?access_token=[key]&n=1"), "{shown}");
    let (_, shown) = tasks(&store, "work.db", &["show", "done"]);
    assert!(shown.contains("thanks for [key]"), "{shown}");
    let (_, report) = tasks(&store, "work.db", &["report"]);
    assert!(report.contains("no such hook") && !report.contains("0123456789"), "{report}");
}

/// Events move to another address, and each has another value there: the mark alone says which of them may arrive twice.
#[test]
fn an_event_whose_call_had_no_answer_or_that_of_a_gateway_is_exported_as_one_that_may_be_done() {
    let server = crate::support::Server::new(|arrival| match &*arrival.item {
        "hangs" => crate::support::Reply::ok().never(),
        "gateway" => crate::support::Reply::text(504, "text/plain", "no answer from behind"),
        _ => crate::support::Reply::error(500, "broken"),
    });
    let store = Store::new();
    let of = |key: &str| NewItem::new(key, r#"{"url": "/hook", "body": {"item": "KEY"}}"#.replace("KEY", key));
    store.put(["hangs", "gateway", "refuses"].map(of).into());
    let mut command = store.command();
    command.args(["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id", "--timeout", "500ms"]);
    crate::tasks_run::ran(command.args(["--max-retries", "0"]));
    for (key, may_be_done) in [("hangs", true), ("gateway", true), ("refuses", false)] {
        let (_, exported) = tasks(&store, "work.db", &["export"]);
        let line = exported.lines().find(|line| line.contains(&format!("\"key\":\"{key}\""))).expect("its line");
        assert_eq!(line.contains("\"may_be_done\":true"), may_be_done, "{line}");
        let (_, shown) = tasks(&store, "work.db", &["show", key]);
        assert_eq!(shown.contains("; a call of it may have been done"), may_be_done, "{shown}");
        let (_, shown) = tasks(&store, "work.db", &["show", key, "--json"]);
        assert_eq!(shown.contains("\"may_be_done\":true"), may_be_done, "{shown}");
    }
}

#[test]
fn show_tells_the_id_of_the_payload_where_that_was_sent() {
    let (server, store) = (crate::support::Server::new(|_| crate::support::Reply::ok()), Store::new());
    store.put(vec![NewItem::new(
        "evt",
        r#"{"url": "/hook", "headers": {"Webhook-Id": "own-1"}, "body": {"item": "evt"}}"#,
    )]);
    let shown = |words: &[&str]| tasks(&store, "work.db", words);
    assert!(!shown(&["show", "evt"]).1.contains("  id  "), "no worker has said which header it is");
    let mut run = store.command();
    crate::tasks_run::ran(run.args(["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id"]));
    assert_eq!(server.arrivals()[0].headers["webhook-id"], "own-1");
    for words in [["show", "evt"], ["show", "own-1"]] {
        let (code, text) = shown(&words);
        assert!(code == 0 && text.contains("  id        own-1 (Webhook-Id of the payload)\n"), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&shown(&["show", "evt", "--json"]).1).expect("JSON");
    assert_eq!(json["idempotency_value"], "own-1");
    assert_eq!(shown(&["show", "own-2"]).0, 2);
    assert_eq!((shown(&["retry", "own-2"]).0, shown(&["cancel", "own-2"]).0), (2, 2));
    assert!(shown(&["retry", "own-1", "--again"]).1.starts_with("1 item is due again"));
    assert!(shown(&["cancel", "own-1"]).1.starts_with("1 item cancelled"));
}

/// Workers began with the flag, and without it.
#[test]
fn an_id_is_told_of_no_event_whose_calls_carried_none() {
    let (server, store) = (crate::support::Server::new(|_| crate::support::Reply::ok()), Store::new());
    let put = |key: &str| {
        let payload = r#"{"url": "/hook", "body": {"item": "KEY"}}"#.replace("KEY", key);
        store.put(vec![NewItem::new(key, payload)]);
    };
    let run = |flags: &[&str]| {
        let mut run = store.command();
        run.args(["--http", "--base-url", &server.url()]).args(flags);
        assert_eq!(crate::tasks_run::ran(&mut run).code, 0);
    };
    put("before");
    put("again");
    run(&[]);
    let again = tasks(&store, "work.db", &["retry", "again", "--again"]).1;
    assert!(again.starts_with("1 item is due again, ") && again.contains("no worker has sent one"), "{again}");
    put("with");
    run(&["--idempotency-header", "webhook-id"]);
    put("after");
    run(&[]);
    for (key, carried) in [("before", false), ("again", true), ("with", true), ("after", false)] {
        let arrivals = server.arrivals();
        let last = arrivals.iter().rfind(|arrival| arrival.item == key).expect("it was sent");
        let sent = last.headers.get("webhook-id").map(|id| id.to_str().expect("text"));
        let (_, shown) = tasks(&store, "work.db", &["show", key, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!((shown["idempotency_value"].as_str(), sent.is_some()), (sent, carried), "{key}: {shown}");
        let (_, text) = tasks(&store, "work.db", &["show", key]);
        assert_eq!(text.contains("  id  "), carried, "{text}");
    }
    let told = tasks(&store, "work.db", &["show", "again"]).1;
    assert!(!told.contains("with the id"), "its first call carried none: {told}");
}

/// A key is rotated while a worker stays: the file holds the new one, and a person sends for the items.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_key_file_that_was_replaced_is_read_for_the_call_after_a_401() {
    let is_new = |arrival: &crate::support::Arrival| arrival.headers["authorization"] == "Bearer the-second-key";
    let answer = move |arrival: &crate::support::Arrival| match is_new(arrival) {
        true => crate::support::Reply::ok(),
        false => crate::support::Reply::error(401, "invalid_api_key"),
    };
    let (server, store) = (crate::support::Server::new(answer), Store::new());
    let key = store.job.path("key");
    let write = |text: &str| std::fs::write(&key, text).expect("room");
    write("the-first-key\n");
    let put = |key: &str| store.put(vec![NewItem::new(key, r#"{"url": "/hook", "body": {"item": "a"}}"#)]);
    put("a");
    let flags =
        ["--http", "--base-url", &server.url(), "--idempotency-header", "webhook-id", "--stay", "--api-key-file"];
    let worker = begin(store.command().args(flags).arg(&key));
    let stops = || tasks(&store, "work.db", &["report"]).1.contains("is refused");
    until(stops);
    assert_eq!(server.count(), 1);
    write("the-second-key\n");
    assert_eq!(tasks(&store, "work.db", &["retry", "--all"]).0, 0);
    until(|| store.item("a").state == paceline_store::work::State::Succeeded);
    assert_eq!(server.count(), 2);
    put("b");
    until(|| store.item("b").state == paceline_store::work::State::Succeeded);
    crate::tasks_run::signal("-INT", worker.id());
    let log = worker.ended_with_output().stderr;
    assert!(String::from_utf8_lossy(&log).contains("has changed: calls show the new one"));
}

/// Events for other hosts, to which no key goes, are delivered between the refusal and the rotation.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_key_file_is_read_after_a_401_whatever_hosts_say_that_get_no_key() {
    use crate::support::{Arrival, Reply, Server};
    let answer = |arrival: &Arrival| match arrival.headers["authorization"] == "Bearer the-second-key" {
        true => Reply::ok(),
        false => Reply::error(401, "invalid_api_key"),
    };
    let (server, other, store) = (Server::new(answer), Server::new(|_| Reply::ok()), Store::new());
    let key = store.job.path("key");
    std::fs::write(&key, "the-first-key\n").expect("room");
    let put = |key: &str, url: &str| {
        let payload = serde_json::json!({"url": url, "body": {"item": key}}).to_string();
        store.put(vec![NewItem { group: key.to_owned(), ..NewItem::new(key, payload) }]);
    };
    put("own", "/hook");
    let flags = ["--http", "--base-url", &server.url(), "--scope", "host", "--stay", "--unknown-outcome", "resend"];
    let worker = begin(store.command().args(flags).arg("--api-key-file").arg(&key));
    until(|| server.count() == 1 && tasks(&store, "work.db", &["report"]).1.contains("is refused"));
    put("elsewhere", &format!("{}/hook", other.url()));
    until(|| store.item("elsewhere").state == paceline_store::work::State::Succeeded);
    std::fs::write(&key, "the-second-key\n").expect("room");
    assert_eq!(tasks(&store, "work.db", &["retry", "own"]).0, 0);
    until(|| store.item("own").state == paceline_store::work::State::Succeeded);
    assert_eq!(server.count(), 2, "the first call after that has the new key");
    crate::tasks_run::signal("-INT", worker.id());
    worker.ended_with_output();
}
