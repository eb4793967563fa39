//! `--via`: calls that go through the gateway, which is the real one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput, reading};
use crate::resume::interrupt_until_it_ends;
use crate::serve::{Gateway, serve};
use crate::support::{Job, Reply, Server, finish, line, start};
use crate::tasks_run::{Store, ran};

/// A gateway over `server`, with short delays between tries.
fn gateway(job: &Job, server: &Server, flags: &[&str]) -> Gateway {
    Gateway::start(short_delays(&mut serve(job, server, flags)))
}

fn short_delays(command: &mut Command) -> &mut Command {
    command.env("PACELINE_UPSTREAM__GENERIC__RETRY__BASE", "1ms").env("PACELINE_UPSTREAM__GENERIC__RETRY__CAP", "5ms")
}

/// `paceline run` on the job through that gateway.
fn run(job: &Job, gateway: &Gateway, flags: &[&str]) -> Command {
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--seed", "1"]);
    command.args(["--upstream", "generic", "--via", &gateway.url]).args(flags);
    short_delays(&mut command);
    command
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn layers_that_retry_spend_one_budget() {
    let server = Server::new(|_| Reply::error(500, "broken"));
    for (of_gateway, own, calls) in [("2", "2", 3), ("0", "2", 3), ("1", "2", 3), ("2", "0", 1), ("7", "1", 2)] {
        let job = Job::new(1);
        let (gateway, before) = (gateway(&job, &server, &["--max-retries", of_gateway]), server.count());
        let (code, log) = finish(&mut run(&job, &gateway, &["--max-retries", own]));
        assert_eq!((code, server.count() - before), (1, calls), "{of_gateway} and {own}: {log}");
        let (summary, errors) = (job.summary(), job.lines("out.errors.jsonl"));
        let counts = ["calls", "resends", "retries", "failed"].map(|key| summary[key].as_u64().expect(key));
        let calls = calls as u64;
        assert_eq!(counts, [calls, calls - 1, calls - 1, 1], "{of_gateway} and {own}");
        assert_eq!(errors[0]["response"]["status_code"], 500, "{}", errors[0]);
        let report = job.lines("out.report.jsonl");
        assert_eq!(
            (&report[0]["class"], &report[0]["attempts"]),
            (&json!("transient"), &json!(calls)),
            "{}",
            report[0]
        );
        let store = Store::new();
        store.add("a", &serde_json::from_str(&line("item-0")).expect("a line"));
        let before = server.count();
        let mut tasks = store.command();
        tasks.args(["--http", "--upstream", "generic", "--via", &gateway.url, "--max-retries", own]);
        assert_eq!(ran(&mut tasks).code, 1);
        assert_eq!(((server.count() - before) as u64, u64::from(store.item("a").attempts)), (calls, calls));
    }
}

#[test]
fn the_key_and_the_limits_are_the_gateways() {
    let (job, server) = (Job::new(6), Server::new(|_| Reply::ok().with_header("x-ratelimit-remaining-requests", 0)));
    let config = format!("[upstream.generic]\nbase_url = \"{}\"\nrpm = 500\nconcurrency = 1\n", server.url());
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let flags = ["--api-key-env", "THE_KEY", "--limit", "50 per 1h"];
    let gateway = Gateway::start(serve(&job, &server, &flags).env("THE_KEY", "sk-of-the-gateway"));
    let (code, log) = finish(&mut run(&job, &gateway, &["--api-key-env", "THE_KEY"]));
    assert_eq!(code, 2);
    assert!(
        log.contains("--api-key-env \"THE_KEY\" (from the command line): expected nothing beside the gateway"),
        "{log}"
    );
    let (code, log) = finish(&mut run(&job, &gateway, &[]));
    assert_eq!((code, log.contains("no effect")), (0, false), "{log}");
    for arrival in server.arrivals() {
        assert_eq!(arrival.headers["authorization"], "Bearer sk-of-the-gateway");
        let told = arrival.headers.keys().find(|name| name.as_str().starts_with("x-paceline"));
        assert_eq!((arrival.path.as_str(), told), ("/v1/chat/completions", None));
    }
    job.assert_adds_up(6);
    let checked =
        job.paceline().args(["check", "--json", "--upstream", "generic", "--via", &gateway.url]).ended_with_output();
    let checked: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(checked["values"]["base_url"]["value"], format!("{}/generic", gateway.url));
    assert_eq!(checked["idle"]["rpm"]["value"], "500");
    assert!(
        checked["acting"].as_str().expect("words").starts_with("that of the gateway http://127.0.0.1:"),
        "{checked}"
    );
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn runs_through_one_gateway_share_its_limit() {
    let server = Server::new(|_| Reply::ok());
    let (one, other) = (Job::new(4), Job::new(4));
    let gateway = gateway(&one, &server, &["--limit", "5 per 1h"]);
    let mut first = start(&mut run(&one, &gateway, &["--max-wait", "2s"]));
    let (code, log) = finish(run(&other, &gateway, &["--max-wait", "2s"]).env("HOME", one.path("")));
    assert!(
        !log.contains("another process") && !log.contains("is calling") && !log.contains("may call"),
        "the gateway counts for both: {log}"
    );
    let ended = first.ended().code().expect("an exit code");
    assert!([code, ended].contains(&3), "{code} and {ended}: {log}");
    assert_eq!(server.count(), 5);
    let of = |job: &Job, key: &str| job.summary()[key].as_u64().expect(key);
    assert_eq!((of(&one, "succeeded") + of(&other, "succeeded"), of(&one, "calls") + of(&other, "calls")), (5, 5));
    assert_eq!((of(&one, "failed") + of(&other, "failed"), of(&one, "deferred") + of(&other, "deferred")), (0, 3));
    let (code, log) = finish(&mut run(&Job::new(1), &gateway, &["--max-wait", "10m"]));
    assert_eq!((code, server.count()), (3, 5), "the wait of an hour is told whole: {log}");
    assert!(log.contains("later than --max-wait allows"), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_call_that_does_not_reach_the_gateway_is_none() {
    let (job, server) = (Job::new(2), Server::new(|_| Reply::ok()));
    let mut gone = gateway(&job, &server, &[]);
    gone.child.kill().expect("it runs");
    gone.child.ended();
    let (code, log) = finish(&mut run(&job, &gone, &["--max-wait", "1s"]));
    let summary = job.summary();
    assert_eq!((code, &summary["calls"], &summary["succeeded"]), (3, &json!(0), &json!(0)), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_gateway_that_is_killed_and_comes_back_costs_no_item() {
    const IN_FLIGHT: usize = 8;
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(20)));
    let job = Job::new(120);
    let mut killed = gateway(&job, &server, &[]);
    let mut running = start(&mut run(&job, &killed, &["--concurrency", &IN_FLIGHT.to_string()]));
    server.wait_for(30);
    killed.child.kill().expect("it runs");
    killed.child.ended();
    let before = server.count();
    let address = killed.url.trim_start_matches("http://").to_owned();
    let mut again = job.paceline();
    again.args(["serve", "--listen", &address, "--base-url", &server.url()]);
    let _gateway = Gateway::start(&mut again);
    assert_eq!(running.ended().code(), Some(0));
    job.assert_adds_up(120);
    let by_item = server.by_item();
    let twice = by_item.values().filter(|count| **count > 1).count();
    assert!(before < 120 && by_item.len() == 120 && by_item.values().all(|count| *count <= 2), "{by_item:?}");
    assert!(twice <= IN_FLIGHT, "{twice} items were sent twice");
}

#[test]
fn what_the_gateway_refuses_by_itself_stops_the_run_with_its_words() {
    let (job, server) = (Job::new(3), Server::new(|_| Reply::error(401, "invalid_api_key")));
    let gateway = gateway(&job, &server, &[]);
    let (code, log) = finish(run(&job, &gateway, &[]).args(["--upstream", "openai"]));
    assert_eq!(code, 2, "twice the same flag: {log}");
    let mut other = job.paceline();
    other.args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "openai", "--via", &gateway.url]);
    let (code, log) = finish(&mut other);
    let words = "the gateway refuses these calls: 404 no upstream has this path; those here are /generic/...";
    assert!(code == 3 && log.contains(words) && log.contains("name another upstream with --upstream"), "{log}");
    assert_eq!(server.count(), 0);
    let (code, log) = finish(run(&job, &gateway, &[]).args(["--concurrency", "1"]));
    let words = "the provider refused the upstream key of the gateway at http://127.0.0.1";
    assert!(code == 3 && log.contains("the provider refuses this account: 401") && log.contains(words), "{log}");
    let (code, log) = finish(run(&job, &gateway, &[]).args(["--concurrency", "1"]));
    assert!(code == 3 && log.contains("the gateway refuses these calls: 503 upstream generic"), "{log}");
    assert!(log.contains("restart `paceline serve` once that is mended"), "{log}");
    assert_eq!((server.count(), job.summary()["deferred"].as_u64()), (1, Some(3)));
}

#[test]
fn a_gateway_that_is_not_there_is_named() {
    let (job, server) = (Job::new(1), Server::new(|_| Reply::ok()));
    let gateway = gateway(&job, &server, &[]);
    let gone = Gateway::start(&mut serve(&job, &server, &[]));
    let (address, flags) = (gone.url.clone(), ["--max-wait", "0s"]);
    drop(gone);
    let mut lost = job.paceline();
    lost.args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "generic", "--via", &address]).args(flags);
    let (code, log) = finish(short_delays(&mut lost));
    assert_eq!(code, 3, "{log}");
    let named = format!("no server answers at the gateway at {address}/generic");
    assert!(log.contains(&named) && log.contains("is `paceline serve` running there?"), "{log}");
    let (code, log) = finish(&mut run(&job, &gateway, &[]));
    assert_eq!(code, 0, "the same job goes on: {log}");
}

#[test]
fn a_profile_calls_through_its_gateway() {
    let server = Server::new(|_| Reply::error(500, "broken"));
    let job = Job::new(0);
    let gateway = gateway(&job, &server, &["--max-retries", "2"]);
    let config = format!(
        "[upstream.generic]\nvia = \"{}\"\nbase_url = \"https://api.example\"\nretry = {{ max_retries = 2, base = \"1ms\" }}\n",
        gateway.url
    );
    std::fs::write(job.path("profiles.toml"), config).expect("writable");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let failed = runtime.block_on(async {
        let profiles = paceline_http::Profiles::load(job.path("profiles.toml")).expect("a profile");
        let client = profiles.client("generic").expect("a client");
        client.send(paceline_http::Call::get("/v1/things")).await.expect_err("it always fails")
    });
    assert_eq!((server.count(), failed.calls()), (3, 3), "{failed}");
}

#[test]
fn lines_may_name_the_api_itself_and_an_address_without_a_gateway_is_told() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(&line("item-0").replace("/v1/chat", "https://api.openai.com/v1/chat"));
    let through = |address: &str| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--overwrite", "--upstream", "openai", "--via", address]);
        finish(&mut command)
    };
    let gateway = Gateway::start(&mut serve(&job, &server, &["--upstream", "openai"]));
    let (code, log) = through(&gateway.url);
    assert_eq!((code, log.contains("not `paceline serve`")), (0, false), "{log}");
    assert_eq!(server.arrivals()[0].path, "/v1/chat/completions");
    let (code, log) = through(&server.url());
    assert_eq!(
        (code, log.matches("what answers at the address of the gateway is not `paceline serve`").count()),
        (0, 1),
        "{log}"
    );
}

#[test]
fn time_that_a_gateway_holds_a_call_is_no_latency_and_what_it_put_off_is_no_call() {
    let wait = r#"{"error":{"type":"paceline","code":"wait_too_long","message":"later","retry_after_ms":1}}"#;
    let server = Server::new(move |arrival| match arrival.before {
        0 => Reply::text(429, "application/json", wait)
            .with_header("retry-after-ms", 1)
            .with_header("x-paceline-attempts", 0),
        _ => Reply::ok()
            .with_header("x-paceline-attempts", 3)
            .with_header("x-paceline-waited-ms", 3_600_000)
            .with_header("x-paceline-fallback", "other/small"),
    });
    let job = Job::new(1);
    let mut through = job.paceline();
    through.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "-vv", "--log-format", "json"]);
    let (code, log) = finish(through.args(["--upstream", "openai", "--via", &server.url()]));
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("answered after 0.0ns"), "{log}");
    assert_eq!(log.matches("the gateway answers with its fallback").count(), 1, "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["headers"], json!({"x-paceline-fallback": "other/small"}));
    let counts = ["calls", "resends", "throttled", "succeeded"].map(|key| job.summary()[key].as_u64().expect(key));
    assert_eq!(counts, [3, 2, 1, 1]);
    let arrivals = server.arrivals();
    let sent = &arrivals.iter().find(|arrival| arrival.path != "/api/jobs").expect("a call").headers;
    let told = ["x-paceline-priority", "x-paceline-retries", "x-paceline-deadline"]
        .map(|name| sent[name].to_str().expect("text"));
    assert_eq!(told, ["batch", "7", "240000ms"]);
}

#[test]
fn two_upstreams_of_one_gateway_with_one_key_are_no_other_process() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let config =
        ["a", "b"].map(|name| format!("[upstream.{name}]\nbase_url = \"{}\"\nvia = \"http://h\"\n", server.url()));
    std::fs::write(job.path("paceline.toml"), config.concat()).expect("writable");
    let mut command = job.paceline();
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut serving = command.spawn().expect("the binary runs");
    let mut lines = BufReader::new(serving.stderr.take().expect("it is piped")).lines();
    let first = reading(&serving, "a warning", || lines.next()).expect("a warning").expect("text");
    assert!(
        first.contains(&format!("two upstreams call {}, both without a key; each counts", server.url())),
        "{first}"
    );
    serving.kill().expect("it runs");
    serving.ended();
    assert!(!lines.any(|line| line.expect("text").contains("process")), "no other process calls it");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_job_is_shown_by_its_gateway_while_it_runs_and_as_it_ended() {
    let may_end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let open = std::sync::Arc::clone(&may_end);
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "item-2" if !open.load(std::sync::atomic::Ordering::SeqCst) => Reply::error(503, "down"),
        "item-1" => Reply::error(400, "invalid_value"),
        _ => Reply::ok(),
    });
    let job = Job::new(3);
    let gateway = gateway(&job, &server, &["--max-retries", "0"]);
    let mut running = start(&mut run(&job, &gateway, &["--max-retries", "1000000"]));
    let shown = |wanted: &dyn Fn(&Value) -> bool| shown(&gateway, wanted);
    let line = shown(&|job| job["done"] == 2);
    assert_eq!(
        (&line["name"], &line["upstream"], &line["state"]),
        (&json!("out.jsonl"), &json!("generic"), &json!("runs"))
    );
    assert_eq!((&line["total"], &line["failed"]), (&json!(3), &json!(1)), "{line}");
    may_end.store(true, std::sync::atomic::Ordering::SeqCst);
    running.ended();
    assert_eq!(shown(&|job| job["state"] == "ended")["done"], 3);
}

/// The job that the gateway shows, once it is as wanted.
fn shown(gateway: &Gateway, wanted: &dyn Fn(&Value) -> bool) -> Value {
    loop {
        let (_, state) = crate::serve::get(&format!("{}/api/state", gateway.url));
        let state: Value = serde_json::from_str(&state).expect("JSON");
        if wanted(&state["jobs"][0]) {
            return state["jobs"][0].clone();
        }
    }
}

#[test]
fn a_job_that_goes_through_no_gateway_is_shown_by_those_of_its_user_on_this_machine() {
    let may_end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let open = std::sync::Arc::clone(&may_end);
    let server = Server::new(move |_| {
        if open.load(std::sync::atomic::Ordering::SeqCst) { Reply::ok() } else { Reply::error(503, "down") }
    });
    let job = Job::new(2);
    let killed = gateway(&job, &server, &[]);
    killed.signal(rustix::process::Signal::KILL);
    let (one, other) = (gateway(&job, &server, &[]), gateway(&job, &server, &[]));
    let mut running = start(job.run(&server).args(["--max-retries", "1000000"]));
    for gateway in [&one, &other] {
        let line = shown(gateway, &|job| job["state"] == "runs");
        assert_eq!((&line["name"], &line["total"], &line["done"]), (&json!("out.jsonl"), &json!(2), &json!(0)));
    }
    may_end.store(true, std::sync::atomic::Ordering::SeqCst);
    running.ended();
    assert_eq!(shown(&one, &|job| job["state"] == "ended")["done"], 2);
    assert!(server.arrivals().iter().all(|arrival| arrival.path != "/api/jobs"), "the API is told nothing");
}

#[test]
fn calls_of_a_gateway_that_may_have_been_done_count_in_the_budget() {
    let server = Server::new(|arrival| if arrival.before < 2 { Reply::error(504, "late") } else { Reply::ok() });
    let job = Job::new(4);
    let gateway = gateway(&job, &server, &[]);
    // Under a budget the run sends each try by itself, for each needs its part of it.
    let (code, log) = finish(&mut run(&job, &gateway, &["--budget-tokens", "10k"]));
    let (used, calls) = (job.summary()["budget"]["tokens"]["used"].clone(), job.summary()["calls"].clone());
    assert_eq!((code, calls, server.count()), (0, json!(12), 12), "{log}");
    assert!(used.as_u64().is_some_and(|used| used >= 20 + 8 * 5), "{used}: {log}");
    assert!(log.contains("failed and will be sent again"), "{log}");
    // Without one the gateway does, and tells of how many calls nothing is known: they count in a budget of later.
    let (job, before) = (Job::with_input(&format!("{}\n{}\n", line("a"), line("b"))), server.count());
    let (code, log) = finish(&mut run(&job, &gateway, &[]));
    assert_eq!((code, server.count() - before), (0, 6), "{log}");
    assert!(log.contains("the gateway sent ") && log.contains(" before may have been done and may be billed"), "{log}");
    let (code, log) = finish(&mut run(&job, &gateway, &["--budget-tokens", "10k"]));
    let used = job.summary()["budget"]["tokens"]["used"].as_u64().expect("a number");
    assert!(code == 0 && used >= 10 + 4 * 5, "{used}: {log}");
}

/// Nothing tells of a call that is given up whether it left, or only waited there: it counts with what it reserved.
#[test]
fn under_a_budget_a_gateway_is_handed_few_calls_before_it_answers() {
    let calls = AtomicUsize::new(0);
    let server = Server::new(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0..4 => Reply::ok(),
        _ => Reply::ok().never(),
    });
    let line = |n: usize| {
        let body = json!({"model": "m", "max_tokens": 10, "item": format!("item-{n}")});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..40).map(line).collect::<String>());
    let gateway = gateway(&job, &server, &["--concurrency", "2"]);
    let mut child = start(&mut run(&job, &gateway, &["--budget-tokens", "1M"]));
    // The gateway keeps its second place for others, and holds the rest.
    server.wait_for(5);
    interrupt_until_it_ends(&mut child);
    assert_eq!(child.ended().code(), Some(3));
    let summary = job.summary();
    let [abandoned, calls] = ["abandoned", "calls"].map(|key| summary[key].as_u64().expect(key));
    // Eight at first, and one more for each answer; 36 were left.
    assert!((1..=12).contains(&abandoned) && calls == 4 + abandoned, "{summary}");
}

/// As `OPENAI_BASE_URL` has it in the shell of a user.
#[test]
fn what_a_gateway_sends_again_counts_where_it_has_the_place_of_the_api() {
    let server = Server::new(|arrival| if arrival.before < 2 { Reply::error(504, "late") } else { Reply::ok() });
    let job = Job::new(4);
    let gateway = gateway(&job, &server, &[]);
    let mut run = job.paceline();
    run.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--seed", "1", "--concurrency", "1"]);
    run.args(["--base-url", &format!("{}/generic", gateway.url), "--budget-tokens", "10k"]);
    let (code, log) = finish(short_delays(&mut run));
    let summary = job.summary();
    assert_eq!((code, &summary["calls"], server.count()), (0, &json!(12), 12), "{log}");
    let used = summary["budget"]["tokens"]["used"].as_u64().expect("a number");
    assert!(used >= 20 + 8 * 5, "{used}: {log}");
    assert_eq!(log.matches("a gateway answers at this address").count(), 1, "{log}");
    assert!(log.contains(&format!("With --via {}, in place", gateway.url)), "{log}");
    // Once it is known, each try has its part of the budget.
    assert!(log.contains("the gateway sent 2 calls again"), "{log}");
}

/// The server did its work and bills it: without a gateway such an answer is `truncated`, counts as reserved and is asked for
/// again.
#[test]
fn a_damaged_answer_that_a_gateway_cannot_read_counts_and_is_asked_for_again() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(br#"{"usage":{"prompt_tokens":3,"completion_tokens":2}}"#).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let cut = gzip[..gzip.len() - 9].to_vec();
    let server = Server::new(move |arrival| match arrival.before {
        0 => Reply::text(200, "application/json", cut.clone()).with_header("content-encoding", "gzip"),
        _ => Reply::ok(),
    });
    let job = Job::new(4);
    let gateway = gateway(&job, &server, &[]);
    let (code, log) = finish(&mut run(&job, &gateway, &["--budget-tokens", "10k"]));
    let summary = job.summary();
    assert_eq!((code, &summary["calls"], server.count()), (0, &json!(8), 8), "{log}");
    let used = summary["budget"]["tokens"]["used"].as_u64().expect("a number");
    assert!(
        used >= 20 + 4 * 5 && log.contains("of the tokens are estimated, for calls whose use is not known"),
        "{used}: {log}"
    );
    // A call that must not be made twice is not.
    let job = Job::with_input(&json!({"custom_id": 1, "url": "/charge", "body": {"item": "other"}}).to_string());
    let before = server.count();
    let (code, log) = finish(&mut run(&job, &gateway, &["--retry-failed"]));
    assert_eq!((code, server.count() - before), (1, 1), "{log}");
    assert_eq!(job.lines("out.report.jsonl")[0]["reason"], "unknown_outcome_held", "{log}");
}

/// Only its answer tells how often the gateway sent a call. One that is cut off has none.
#[test]
fn a_call_that_is_cut_off_at_a_gateway_may_have_been_made_again() {
    for (flags, told) in [(&[][..], true), (&["--budget-tokens", "10k"], false)] {
        let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
            ("item-0", 0 | 1) => Reply::error(500, "broken"),
            ("item-0", _) => Reply::ok().never(),
            _ => Reply::ok(),
        });
        let job = Job::new(2);
        let gateway = gateway(&job, &server, &[]);
        let mut run = run(&job, &gateway, flags);
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        server.wait_for(4);
        interrupt_until_it_ends(&mut child);
        let output = child.ended_with_output();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{log}");
        assert_eq!(log.contains(" more that the gateway may have made for it"), told, "{log}");
        assert!(
            log.contains("; if it only waited at the gateway it cost nothing, which this run cannot tell"),
            "{log}"
        );
    }
}
