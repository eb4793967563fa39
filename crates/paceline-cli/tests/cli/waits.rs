//! Limits and waits, and what the log says about them.

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

#[test]
fn an_hourly_limit_grants_its_calls_and_then_ends_the_run() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(20);
    let (code, log) = finish(job.run(&server).args(["--limit", "5 per 1h", "--max-wait", "5s"]));
    assert_eq!(code, 3, "{log}");
    assert_eq!(server.count(), 5);
    assert!(log.contains("--max-wait"), "{log}");
    assert_eq!(job.summary()["deferred"], 15);
    job.assert_adds_up(20);
}

#[test]
fn a_used_up_quota_holds_its_scope_over_runs() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 86_400));
    let job = Job::new(30);
    let (code, log) = finish(job.run(&server).args(["--concurrency", "2"]));
    assert_eq!(code, 3, "{log}");
    let calls = server.count();
    assert!(calls <= 2, "{calls} calls");
    let rows = job.lines("out.report.jsonl");
    assert!(rows.iter().any(|row| row["retry_not_before"].is_string()));
    assert!(rows.iter().any(|row| row["reason"] == "scope_held"));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (3, calls), "{log}");
}

#[test]
fn a_pause_that_the_server_asked_for_is_kept_over_runs() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 1_800));
    let job = Job::new(30);
    let arguments = ["--concurrency", "2", "--max-wait", "10m"];
    let (code, log) = finish(job.run(&server).args(arguments));
    let calls = server.count();
    assert!(code == 3 && calls <= 2, "{calls} calls: {log}");
    let (code, log) = finish(job.run(&server).args(arguments));
    assert_eq!((code, server.count()), (3, calls), "{log}");
    assert!(job.lines("out.report.jsonl").iter().all(|row| row["reason"] == "scope_held"), "{log}");
}

#[test]
fn a_hint_of_an_hour_ends_the_run_at_once_and_a_rerun_sends_nothing() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 3_600));
    let job = Job::new(30);
    let (code, log) = finish(job.run(&server).env("TZ", "CET-1"));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("the next call can start only at ") && log.contains(" UTC), later than --max-wait"), "{log}");
    let calls = server.count();
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (3, calls), "{log}");
    job.assert_adds_up(30);
}

#[test]
fn one_line_a_re_send_and_no_error_for_what_recovers() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-1", 0) => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 20),
        ("item-2", 0..2) => Reply::error(500, "oops"),
        ("item-3", _) => Reply::error(400, "never"),
        _ => Reply::ok(),
    });
    let job = Job::new(6);
    let (code, log) =
        finish(job.run(&server).args(["--log-format", "json", "--quiet"]).env("RUST_LOG", "paceline=debug"));
    assert_eq!(code, 1, "{log}");
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON lines only")).collect();
    let of = |level: &str, item: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["level"] == level && event["item"] == item).collect()
    };
    let throttled = of("DEBUG", "item-1")[0];
    assert_eq!(throttled["message"], "rate limit hit (try 1), next try in 20ms");
    assert_eq!((&throttled["class"], &throttled["hint_source"]), (&json!("throttled"), &json!("retry-after-ms")));
    assert!(throttled["scope"].is_string() && throttled["not_before"].is_string());
    let retried = of("DEBUG", "item-2");
    assert_eq!(retried.len(), 2);
    assert!(
        retried[1]["message"].as_str().is_some_and(|text| text.starts_with("transient failure (try 2 of at most 8)"))
    );
    assert_eq!(of("ERROR", "item-3").len(), 1);
    assert_eq!(job.summary()["retries"], 2);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn told_limits_are_kept_and_have_an_oracle() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(15);
    let (code, log) = finish(job.run(&server).args(["--limit", "10 per 1s", "--burst", "10"]));
    assert_eq!(code, 0, "{log}");
    let [oracle, took] =
        ["oracle_seconds", "seconds"].map(|key| job.summary()[key].as_f64().expect("a limit was told"));
    assert!(oracle >= 0.5 && oracle <= took, "half a second and one call, where the run took {took}: {oracle}");
}

/// An oracle that knows the limit of the account alone would be faster than anything can be.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn limits_of_a_tier_have_no_oracle() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(15);
    let tier = "[[upstream.generic.tier]]\nmatch = \"/\"\nlimits = [\"10 per 1s\"]\n";
    std::fs::write(job.path("paceline.toml"), format!("[upstream.generic]\n{tier}")).expect("a file");
    let (code, log) = finish(job.run(&server).args(["--limit", "1000 per 1s"]));
    assert_eq!((code, &job.summary()["oracle_seconds"]), (0, &json!(null)), "{log}");
    assert!(!log.contains("at the rate of the known limits"), "{log}");
}

#[test]
fn a_slow_tier_does_not_keep_the_others_out() {
    let server = Server::new(|_| Reply::ok());
    let line = |n: usize| {
        let model = if n < 400 { "slow" } else { "fast" };
        json!({"custom_id": n, "url": "/x", "body": {"model": model, "item": model}}).to_string()
    };
    let lines: Vec<String> = (0..420).map(line).collect();
    let job = Job::with_input(&lines.join("\n"));
    let config = format!(
        "[upstream.two]\nbase_url = \"{}\"\nconcurrency = 4\n[[upstream.two.tier]]\nmodel = \"slow\"\nrph = 3\n",
        server.url()
    );
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--max-wait", "1s"]);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 3, "{log}");
    let items = server.by_item();
    assert_eq!((items["slow"], items["fast"]), (3, 20), "{log}");
}

#[test]
fn a_configured_limit_holds_over_runs() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(20);
    for _ in 0..2 {
        let (code, log) = finish(job.run(&server).args(["--limit", "5 per 1h", "--max-wait", "1s"]));
        assert_eq!(code, 3, "{log}");
        assert_eq!(server.count(), 5, "no rerun buys another five: {log}");
    }
}

#[test]
fn what_headers_announced_holds_over_runs() {
    let empty = |_: &_| {
        let reply = Reply::ok().with_header("x-ratelimit-limit-requests", 100);
        reply.with_header("x-ratelimit-remaining-requests", 0).with_header("x-ratelimit-reset-requests", "1h0m0s")
    };
    let server = Server::new(empty);
    let job = Job::new(20);
    for _ in 0..2 {
        let (code, log) =
            finish(job.run(&server).args(["--upstream", "openai", "--concurrency", "1", "--max-wait", "1s"]));
        assert_eq!((code, server.count()), (3, 1), "{log}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn throttled_models_do_not_keep_another_out() {
    no_closed_model_keeps_another_out("rate_limit_exceeded", 50);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn models_whose_quota_is_used_up_do_not_keep_another_out() {
    no_closed_model_keeps_another_out("1308", 86_400);
}

fn no_closed_model_keeps_another_out(code: &'static str, wait: u64) {
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "free" => Reply::ok(),
        _ => Reply::error(429, code).with_header("retry-after", wait),
    });
    let line = |n: usize| {
        let model = if n < 3_600 { format!("throttled-{}", n % 6) } else { "free".to_owned() };
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": {"model": model, "item": model}}).to_string()
    };
    let lines: Vec<String> = (0..3_900).map(line).collect();
    let job = Job::with_input(&lines.join("\n"));
    let mut command = job.run(&server);
    command.args(["--upstream", "openai", "--concurrency", "4", "--max-wait", "10s", "--stop-after-same", "0"]);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 3, "{log}");
    assert_eq!(server.by_item()["free"], 300, "{log}");
    assert_eq!(job.summary()["succeeded"], 300);
    let calls = server.count();
    assert_eq!(finish(&mut command).0, 3);
    assert_eq!(server.count(), calls, "started again early it sends nothing");
}

/// A server that is overloaded and asks for half an hour has used up no quota, and neither has one that answers a bare 429
/// and asks for a day: only its codes and words make a quota.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_hold_names_its_cause_and_its_end() {
    let asked = "the end of a pause that the server asked for (rate limit)";
    for (status, code, wait, cause, why) in [
        (503, "overloaded", 1_800, OVERLOADED, "the overloaded server asked for a pause"),
        (503, "overloaded", 7_200, OVERLOADED, "the overloaded server asked for a pause"),
        (429, "rate_limit_exceeded", 1_800, asked, "the server rate-limited a call and asked for a pause"),
        (429, "rate_limit_exceeded", 86_400, asked, "the server rate-limited a call and asked for a pause"),
        (429, "1308", 86_400, "a used-up quota to refill", "a quota is used up"),
    ] {
        let server = Server::new(move |_| Reply::error(status, code).with_header("retry-after", wait));
        let job = Job::new(30);
        for run in ["the first", "the next"] {
            let (exit, log) = finish(job.run(&server).args(["--concurrency", "2", "--max-wait", "10m"]));
            assert_eq!(exit, 3, "{log}");
            let held = log.lines().find(|line| line.starts_with("  held: ")).expect("the hold");
            let end = held.strip_suffix(why).and_then(|line| line.strip_suffix(": ")).expect(held);
            assert!(end.contains(" until ") && end.contains(", in "), "{status}, {wait} s, {run}: {held}");
            assert!(log.contains("not finished: ") && log.contains(" waiting for a pause to end"), "{log}");
            let log = log.replace("class=\"quota_exhausted\"", "");
            assert!(why.contains("quota") || !log.contains("quota"), "{status}, {run}: {log}");
            let stats = |json: &[&str]| job.paceline().arg("stats").args(json).ended_with_output().stdout;
            let text = String::from_utf8(stats(&[])).expect("text");
            let line = text.lines().find(|line| line.contains(": held until ")).expect(&text);
            assert!(line.contains(", in ") && line.contains(&format!(" ({why})")), "{line}");
            assert!(!line.contains("0 waiting") && (why.contains("quota") || !text.contains("quota")), "{text}");
            let stats: Value = serde_json::from_slice(&stats(&["--json"])).expect("JSON");
            assert_eq!(stats["scopes"][0]["waits_for"], cause, "{status}, {wait} s, {run}");
            let scope = &stats["scopes"][0];
            assert_eq!((&scope["state"], &scope["reason"]), (&"held".into(), &cause.into()), "{status}, {wait} s");
            assert!(scope["until"].is_string());
        }
    }
}

const OVERLOADED: &str = "the end of a pause that the overloaded server asked for";

/// Each hold stands alone, with its scope, its end and its cause.
#[test]
fn two_causes_are_told_apart() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "busy" => Reply::error(503, "overloaded").with_header("retry-after", 1_800),
        _ => Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 7_200),
    });
    let line = |n: usize| {
        let model = ["busy", "slow"][n % 2];
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": {"model": model, "item": model}}).to_string()
    };
    let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
    let (code, log) = finish(job.run(&server).args(["--upstream", "openai", "--max-wait", "10m"]));
    assert_eq!(code, 3, "{log}");
    let held: Vec<&str> = log.lines().filter(|line| line.starts_with("  held: ")).collect();
    let is_of = |line: &str, model: &str, why: &str| line.contains(&format!(" {model} until ")) && line.ends_with(why);
    assert_eq!(held.len(), 2, "{log}");
    assert!(is_of(held[0], "busy", ": the overloaded server asked for a pause"), "the first to open first: {held:?}");
    assert!(is_of(held[1], "slow", ": the server rate-limited a call and asked for a pause"), "{held:?}");
    assert!(!log.contains(" or the end") && !log.contains(" or a used-up"), "{log}");
}

/// The items of a scope that is given up were due again before `--max-wait`, each at a time of its own.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_run_that_has_given_up_its_last_scope_ends_at_once() {
    let server = Server::new(|_| Reply::error(500, "broken"));
    let job = Job::new(60);
    let mut command = job.run(&server);
    for (knob, value) in [("BASE", "2900ms"), ("CAP", "2900ms"), ("JITTER", "none")] {
        command.env(format!("PACELINE_UPSTREAM__GENERIC__RETRY__{knob}"), value);
    }
    let (code, log) = finish(command.args(["--max-wait", "3s", "--stop-after-same", "0"]));
    assert_eq!(code, 3, "{log}");
    let told = |what: &str| {
        let line = log.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what:?}: {log}"));
        line.split(' ').next().expect("a time").parse::<jiff::Timestamp>().expect("a time").as_millisecond()
    };
    let idle = told("stopping: the server is failing") - told("(--max-wait): this run makes no more calls there");
    assert!(idle < 1_500, "{idle} ms: {log}");
}

/// A day's limit takes all of an item's time, and no item fails for that the next day.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_pause_that_the_server_asked_for_counts_against_no_deadline() {
    for runs in [1, 2] {
        let server = Server::new(|arrival| match arrival.before {
            0 => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 1_600),
            _ => Reply::ok(),
        });
        let job = Job::new(6);
        let mut command = job.run(&server);
        command.args(["--upstream", "openai", "--concurrency", "6", "--deadline", "1s"]);
        if runs == 2 {
            let (code, log) = finish(command.args(["--max-wait", "1s"]));
            assert_eq!((code, &job.summary()["deferred"]), (3, &json!(6)), "{log}");
            let mut command = job.run(&server);
            command.args(["--upstream", "openai", "--deadline", "1s", "--max-wait", "10s"]);
            let (code, log) = finish(&mut command);
            assert_eq!((code, &job.summary()["succeeded"]), (0, &json!(6)), "{log}");
        } else {
            let (code, log) = finish(command.args(["--max-wait", "10s"]));
            assert_eq!((code, &job.summary()["succeeded"]), (0, &json!(6)), "{log}");
        }
    }
}
