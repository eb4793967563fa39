//! What calls cost: the prices in force, the model that answered, and what a cache was read for and written.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

/// A zero too many in `cached=`: the runs before cost ten times what they counted as.
#[test]
fn a_new_price_of_cached_input_counts_the_runs_before_anew() {
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 1, "total_tokens": 1_001, "prompt_tokens_details": {"cached_tokens": 1_000}});
    let server = Server::new(move |_| Reply::new(200, &json!({"object": "chat.completion", "usage": usage})));
    let job = Job::new(4);
    let run = |price: &str| {
        let args = ["--budget-cost", "1.00", "--max-items", "1", "--price", price];
        let (code, log) = finish(job.run(&server).args(args));
        assert_eq!(code, 3, "{log}");
        (job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum"), log)
    };
    let near = |used: f64, expected: f64| (used - expected).abs() < 1e-9;
    let (used, log) = run("in=2.50,cached=0.125,out=10");
    assert!(near(used, 0.000_135) && log.contains("in=2.5,out=10,cached=0.125"), "{used} {log}");
    let (used, log) = run("in=2.50,cached=1.25,out=10");
    let told = "prices changed since the last run of this job: at the new ones the 0.0001";
    let now = " spent so far count as 0.0013";
    assert!(
        near(used, 0.002_52) && log.contains(told) && log.contains(now) && !log.contains("older version"),
        "{used} {log}"
    );
    let (used, log) = run("in=2.50,out=10");
    assert!(near(used, 0.007_53) && log.contains(" spent so far count as 0.0050"), "{used} {log}");
}

/// Pictures that are made: nothing in their requests says what they cost.
#[test]
fn calls_whose_requests_tell_no_tokens_keep_to_a_budget_by_what_their_like_cost() {
    let line = |n: usize| {
        let body = json!({"model": "gpt-image-1", "prompt": format!("river {n}")});
        json!({"custom_id": n, "url": "/v1/images/generations", "body": body}).to_string() + "\n"
    };
    let input = (0..60).map(line).collect::<String>();
    for tells in [true, false] {
        let usage = json!({"input_tokens": 11, "output_tokens": 1_056, "total_tokens": 1_067});
        let usage = if tells { usage } else { Value::Null };
        let server = Server::new(move |_| {
            Reply::new(200, &json!({"data": [{"b64_json": "QUJD"}], "usage": usage})).after(Duration::from_millis(50))
        });
        let job = Job::with_input(&input);
        let args = ["--budget-tokens", "20k", "--pace", "none", "--concurrency", "20"];
        let (code, log) =
            finish(job.run(&server).args(args).args(["--upstream", "openai"]).env("OPENAI_API_KEY", "sk-test"));
        let unbounded = log.contains(
            "does not say how many tokens it used: nothing counts for such calls, and the budget does not bound",
        );
        let (calls, status) = if tells { (18, 3) } else { (60, 0) };
        assert_eq!((server.count(), code, unbounded), (calls, status, !tells), "{log}");
    }
}

/// A model that thinks, behind a server that tells a sum: 37 tokens of prompt, 20 of text, 100 that no client sees.
#[test]
fn a_total_alone_counts_as_estimated_and_rather_too_dear() {
    let answer = json!({"object": "chat.completion", "choices": [{"message": {"content": "w ".repeat(20)}}], "usage": {"total_tokens": 157}});
    let server = Server::new(move |_| Reply::new(200, &answer));
    let body = json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "word ".repeat(27)}]});
    let line = |n: usize| json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string() + "\n";
    let job = Job::with_input(&(0..30).map(line).collect::<String>());
    let (code, log) = finish(job.run(&server).args(["--budget-cost", "0.02", "--price", "in=2.5,out=10"]));
    let charged = server.count() as f64 * (37.0 * 2.5 + 120.0 * 10.0) / 1e6;
    let cost = &job.summary()["budget"]["cost"];
    let [used, estimated] = ["used", "estimated"].map(|part| cost[part].as_f64().expect("a sum"));
    assert!(code == 3 && used >= charged && used < 1.05 * charged && used <= 0.02, "{used} for {charged}: {log}");
    assert!(estimated > 0.9 * used && estimated < used, "{estimated} of {used}");
    assert_eq!(log.matches("an answer tells a total of tokens alone: ").count(), 1, "{log}");
    assert!(log.contains(" of it is estimated, for calls that told a total of tokens alone\n"), "{log}");
    let stats = job.paceline().args(["stats", "out.jsonl", "--json"]).ended_with_output().stdout;
    let stats: Value = serde_json::from_slice(&stats).expect("JSON");
    assert_eq!(&stats["budget"]["cost"], cost, "a later run counts the same");
}

/// The cheap one goes on where the dear one has used the budget up.
#[test]
fn what_one_upstream_was_paid_stays_so_when_the_job_goes_on_at_another() {
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 1, "total_tokens": 1_001});
    let server = Server::new(move |_| Reply::new(200, &json!({"object": "chat.completion", "usage": usage})));
    let job = Job::new(10);
    let table = "[upstream.dear]\nprovider = 'generic'\nprice = 'in=4,out=4'\n\
                 [upstream.cheap]\nprovider = 'generic'\nprice = 'in=1,out=1'\n";
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let run = |upstream: &str| {
        let args = ["--upstream", upstream, "--budget-cost", "1.00", "--max-items", "2"];
        let (code, log) = finish(job.run(&server).args(args));
        assert_eq!(code, 3, "{log}");
        (job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum"), log)
    };
    let near = |used: f64, expected: f64| (used - expected).abs() < 1e-9;
    let (used, log) = run("dear");
    assert!(near(used, 0.008_008), "{used} {log}");
    let (_, dry) = finish(job.run(&server).args(["--upstream", "cheap", "--dry-run"]));
    let (used, log) = run("cheap");
    assert!(near(used, 0.010_01), "{used} {log}");
    for words in [&log, &dry] {
        assert!(!words.contains("prices changed") && !words.contains("price_of_other"), "{words}");
    }
    let stats = job.paceline().args(["stats", "out.jsonl"]).ended_with_output().stdout;
    assert!(String::from_utf8_lossy(&stats).contains("0.0100"), "{stats:?}");
    // Where the file has the first one no more, its last price holds.
    let (_, cheap) = table.split_once("in=4,out=4'\n").expect("two");
    std::fs::write(job.path("paceline.toml"), cheap).expect("writable");
    let (used, log) = run("cheap");
    assert!(near(used, 0.012_012), "{used} {log}");
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let (used, log) = run("dear");
    assert!(near(used, 0.020_02), "{used} {log}");
}

/// A copy of Anthropic's API that sells cached input at half of the price.
#[test]
fn the_price_of_cached_input_that_is_given_takes_the_place_of_the_known_one() {
    let usage = json!({"input_tokens": 0, "cache_read_input_tokens": 1_000, "output_tokens": 1});
    let server = Server::new(move |_| Reply::new(200, &json!({"type": "message", "content": [], "usage": usage})));
    let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]});
    let job = Job::with_input(&json!({"custom_id": 1, "params": body}).to_string());
    let args = ["--upstream", "anthropic", "--budget-cost", "1.00", "--price", "in=1,cached=0.5,out=5"];
    let (code, log) = finish(job.run(&server).args(args));
    let summary = job.summary();
    assert_eq!((code, &summary["budget"]["cost"]["used"]), (0, &json!(0.000_505)), "{log}");
}

/// A gateway's fallback, or a server with several models for a request: the bill has the price of the one that answered.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn answers_of_another_model_count_with_its_price_and_are_told() {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    let answer = json!({"object": "chat.completion", "model": "gpt-4o-2024-08-06", "usage": usage});
    let plain = json!({"object": "chat.completion", "usage": usage});
    let table = "[upstream.generic.price]\n'm' = 'in=1,out=1'\n'gpt-4o' = 'in=16,out=16'\n";
    for (answer, fallback, config, expected) in [
        (&answer, "", table, "gpt-4o answers in place of m: its answers count with its own price, in=16,out=16 for"),
        (
            &plain,
            "second/gpt-4o",
            table,
            "gpt-4o answers in place of m: its answers count with its own price, in=16,out=16",
        ),
        (
            &answer,
            "",
            "",
            "gpt-4o-2024-08-06 answers in place of m: its price is not known: its answers count with in=1,out=1",
        ),
        (
            &answer,
            "",
            "[upstream.generic.price]\n'm' = 'in=1,out=1'\n'*' = 'in=0.5,out=0.5'\n",
            "gpt-4o-2024-08-06 answers in place of m: its price is not known: its answers count with in=1,out=1 for",
        ),
        (
            &plain,
            "second",
            "",
            "second answers by the gateway's fallback: its price is not known: its answers count with in=1,out=1 for a million tokens, \
             the one price for all models, and the bill may exceed --budget-cost; `price` of [upstream.second] in paceline.toml can",
        ),
        (
            &plain,
            "second/m",
            "[upstream.generic.price]\n'm' = 'in=1,out=1'\n[upstream.second]\nprice = 'in=16,out=16'\n",
            "second:m answers in place of m: its answers count with its own price, in=16,out=16",
        ),
    ] {
        let reply = Reply::new(200, answer);
        let server = Server::new(move |_| match fallback {
            "" => reply.clone(),
            fallback => {
                reply.clone().with_header("x-paceline-fallback", fallback).with_header("x-paceline-attempts", 1)
            }
        });
        let job = Job::new(60);
        std::fs::write(job.path("paceline.toml"), config).expect("writable");
        let price: &[&str] = if config.is_empty() { &["--price", "in=1,out=1"] } else { &[] };
        let (_, log) = finish(job.run(&server).args(["--budget-cost", "0.02"]).args(price));
        let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
        let is_priced = expected.contains("count with its own price");
        let each = if is_priced { 0.001_76 } else { 0.000_11 };
        assert!((used - each * server.count() as f64).abs() < 1e-9, "{used} by {} calls: {log}", server.count());
        assert!(config.is_empty() || used <= 0.02 + 2.0 * each, "{used}: {log}");
        assert_eq!(log.matches(expected).count(), 1, "{log}");
        assert_eq!(job.summary()["budget"]["cost"]["unpriced"], if is_priced { 0 } else { 60 });
        let unpriced = "; 60 calls went to another model or upstream than asked for, of which no price is known";
        assert_eq!(log.contains(unpriced), !is_priced, "{log}");
    }
}

/// A proxy repeats header fields, and a file says nothing of tokens.
#[test]
fn a_file_of_a_fallback_is_free_only_where_a_gateway_answers() {
    let told = json!({"object": "chat.completion", "usage": {"prompt_tokens": 100, "completion_tokens": 10}});
    let untold = json!({"object": "chat.completion"});
    for (answer, by_gateway, expected) in [(&told, false, 0.000_44), (&told, true, 0.000_44), (&untold, true, 0.0)] {
        let reply = Reply::new(200, answer).with_header("x-paceline-fallback", "static");
        let reply = if by_gateway { reply.with_header("x-paceline-attempts", 1) } else { reply };
        let (server, job) = (Server::new(move |_| reply.clone()), Job::new(4));
        let (code, log) = finish(job.run(&server).args(["--budget-cost", "1", "--price", "in=1,out=1"]));
        let used = &job.summary()["budget"]["cost"]["used"];
        assert_eq!((code, used), (0, &json!(expected)), "by a gateway: {by_gateway}: {log}");
    }
}

/// A price of one token, or of another model, turns a budget off.
#[test]
fn the_price_in_force_is_told_and_doubted() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(4);
    let run = |args: &[&str]| finish(job.run(&server).args(["--budget-cost", "1.00", "--max-items", "1"]).args(args));
    let (_, log) = run(&["--price", "in=2.50,out=10"]);
    assert!(log.contains("price of a million tokens: in=2.5,out=10") && !log.contains("prices changed"), "{log}");
    std::fs::write(job.path("paceline.toml"), "[upstream.generic.price]\nm = 'in=2.50,out=10'\n").expect("writable");
    let (_, log) = run(&[]);
    assert!(
        log.contains("price of a million tokens") && !log.contains("prices changed"),
        "a table says the same: {log}"
    );
    let (_, log) = run(&["--price", "in=0.0000025,out=0.00001"]);
    assert!(log.contains("the price in=0.0000025,out=0.00001 is of a million tokens, and below 0.001"), "{log}");
    let told = "prices changed since the last run of this job: at the new ones the 0.0000";
    assert!(log.contains(told) && log.contains(" spent so far count as 0.000000"), "{log}");
    std::fs::write(job.path("paceline.toml"), "[upstream.generic.price]\n'gpt-4o' = 'in=2.50,out=10'\n")
        .expect("writable");
    let (_, log) = run(&[]);
    let told = "no price for m: counted with the dearest, in=2.5,out=10 for a million tokens";
    assert!(log.contains(told) && !log.contains("below 0.001"), "{log}");
}

/// Anthropic reports what its cache was read for beside the other input: no limit counts that, and the bill does.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_a_cache_was_read_for_counts_in_a_budget() {
    let usage = json!({"input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2_000, "output_tokens": 10});
    let server = Server::new(move |_| Reply::new(200, &json!({"type": "message", "content": [], "usage": usage})));
    let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x".repeat(8_000)}]});
    let line = |n: usize| json!({"custom_id": n, "params": body}).to_string();
    let run = |args: &[&str]| {
        let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
        let args = [&["--upstream", "anthropic", "--concurrency", "1"], args].concat();
        let (code, log) = finish(job.run(&server).args(args));
        (job, code, log)
    };
    // A token that was read costs a tenth: 20 + 200 + 10 a call.
    let (job, code, log) = run(&["--budget-cost", "1.00", "--price", "in=1,out=1"]);
    let summary = job.summary();
    assert_eq!((code, &summary["tokens_in"], &summary["tokens_out"]), (0, &json!(40_400), &json!(200)), "{log}");
    let used = |job: &Job| job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
    assert!((used(&job) - 0.004_6).abs() < 1e-9, "{summary}");
    let (code, log) = finish(job.run(&server).args(["--upstream", "anthropic"]));
    assert!(code == 0 && (used(&job) - 0.004_6).abs() < 1e-9, "the journal has it: {log}");
    let (job, code, log) = run(&["--budget-tokens", "20k"]);
    assert_eq!((code, &job.summary()["budget"]["tokens"]["used"]), (3, &json!(18_270)), "{log}");
    // The next run is told what prompts have as answers come, before all its lines are read.
    let job = Job::with_input(&(0..400).map(line).collect::<Vec<_>>().join("\n"));
    let (code, log) =
        finish(job.run(&server).args(["--upstream", "anthropic", "--concurrency", "4", "--budget-tokens", "500k"]));
    let used = job.summary()["budget"]["tokens"]["used"].as_u64().expect("a sum");
    assert!(code == 3 && (497_000..=500_000).contains(&used), "{log}");
}

/// Each prompt is written for an hour, at twice the price: a budget that reserves the price of input would be exceeded by as
/// much.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_prompt_that_is_to_be_kept_reserves_what_its_write_costs() {
    let usage = json!({"input_tokens": 0, "cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 0, "output_tokens": 10,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 2_000}});
    let usage = Arc::new(Mutex::new(usage));
    let answered = Arc::clone(&usage);
    let usage_of = move || answered.lock().expect("no panic").clone();
    let server = Server::new(move |_| Reply::new(200, &json!({"type": "message", "content": [], "usage": usage_of()})));
    let run = |mark: Value| {
        let text = json!([{"type": "text", "text": "x".repeat(8_000), "cache_control": mark}]);
        let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": text}]});
        let line = |n: usize| json!({"custom_id": n, "params": body}).to_string();
        let job = Job::with_input(&(0..60).map(line).collect::<Vec<_>>().join("\n"));
        let args = ["--upstream", "anthropic", "--budget-cost", "0.10", "--price", "in=1,out=1", "--pace", "none"];
        let (code, log) = finish(job.run(&server).args(args));
        let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
        (code, used, log)
    };
    let (code, used, log) = run(json!({"type": "ephemeral", "ttl": "1h"}));
    assert!(code == 3 && (0.09..=0.10).contains(&used) && !log.contains("exceeded"), "{used}: {log}");
    let (_, used, log) = run(Value::Null);
    let told = "--budget-cost 0.1000 is exceeded, by writes into the provider's cache, which cost more than input";
    assert!(used > 0.10 && log.contains(told), "what no request asks for cannot be reserved, {used}: {log}");
    usage.lock().expect("no panic").as_object_mut().expect("an object").remove("cache_creation");
    let (code, used, log) = run(json!({"type": "ephemeral", "ttl": "1h"}));
    assert!(code == 3 && (0.09..=0.10).contains(&used), "an answer that does not split its writes, {used}: {log}");
}

/// OpenRouter's usage, of a model of Anthropic's.
#[test]
fn writes_into_a_cache_are_reserved_and_counted_at_an_api_in_the_form_of_openai() {
    let usage = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "total_tokens": 2_070,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2_000}});
    let server = Server::new(move |_| Reply::new(200, &json!({"object": "chat.completion", "usage": usage})));
    for (ttl, each) in [("5m", 0.007_83), ("1h", 0.012_33)] {
        let text =
            json!([{"type": "text", "text": "x".repeat(8_000), "cache_control": {"type": "ephemeral", "ttl": ttl}}]);
        let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": text}]});
        let line = |n: usize| json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string();
        let job = Job::with_input(&(0..60).map(line).collect::<Vec<_>>().join("\n"));
        let before = server.count();
        let args =
            ["--upstream", "openrouter", "--budget-cost", "0.2", "--price", "in=3,cached=0.3,out=15", "--pace", "none"];
        let (code, log) = finish(job.run(&server).env("OPENROUTER_API_KEY", "x").args(args));
        let (used, calls) = (job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum"), server.count() - before);
        assert!(code == 3 && (used - each * calls as f64).abs() < 1e-9, "{used} by {calls} calls: {log}");
        assert!((0.17..=0.20).contains(&used) && !log.contains("exceeded"), "{used}: {log}");
    }
}

/// A write at twice the price of input, where the table of the provider says 1.25 and nothing.
#[test]
fn what_a_write_into_a_cache_costs_can_be_given_and_counts_the_runs_before_anew() {
    let anthropic = json!({"input_tokens": 60, "cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 0, "output_tokens": 10});
    let openrouter = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "prompt_tokens_details": {"cache_write_tokens": 2_000}});
    for (upstream, usage) in [("anthropic", anthropic), ("openrouter", openrouter)] {
        let server = Server::new(move |_| Reply::new(200, &json!({"content": [], "choices": [], "usage": usage})));
        let text = json!([{"type": "text", "text": "x".repeat(8_000), "cache_control": {"type": "ephemeral"}}]);
        let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": text}]});
        let line = |n: usize| match upstream {
            "anthropic" => json!({"custom_id": n, "params": body}).to_string(),
            _ => json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string(),
        };
        let job = Job::with_input(&(0..60).map(line).collect::<Vec<_>>().join("\n"));
        let run = |price: &str, more: &[&str]| {
            let args = ["--upstream", upstream, "--budget-cost", "0.2", "--price", price, "--pace", "none"];
            let (code, log) = finish(job.run(&server).env("OPENROUTER_API_KEY", "x").args(args).args(more));
            let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
            assert!(code == 3 && !log.contains("exceeded"), "{upstream}: {log}");
            (used, server.count() as f64, log)
        };
        let (used, calls, log) = run("in=3,out=15", &["--max-items", "2"]);
        assert!((used - calls * 0.007_83).abs() < 1e-9, "{upstream}: {used}: {log}");
        let (used, calls, log) = run("in=3,cached_write=6,out=15", &[]);
        assert!((used - calls * 0.012_33).abs() < 1e-9, "{upstream}: {used} by {calls}: {log}");
        assert!((0.17..=0.20).contains(&used), "what a write costs is reserved, {upstream}: {used}: {log}");
        assert!(log.contains("price of a million tokens: in=3,out=15,cached_write=6"), "{log}");
        assert!(
            log.contains("prices changed since the last run of this job: ")
                && log.contains(" spent so far count as 0.0247"),
            "{log}"
        );
    }
}

/// A job of such lines, of which ten have answers; the model `dear` has a price of its own.
fn ten_of_forty(server: &Server, line: impl Fn(usize) -> String) -> Job {
    let job = Job::with_input(&(0..40).map(line).collect::<Vec<_>>().join("\n"));
    let table = "[upstream.generic.price]\n'm' = 'in=1,out=1'\n'dear' = 'in=16,out=16'\n";
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let (code, log) = finish(job.run(server).args(["--max-items", "10", "--budget-cost", "1.00"]));
    assert_eq!(code, 3, "{log}");
    job
}

fn dry_run(job: &Job, server: &Server, more: &[&str]) -> String {
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]).args(more);
    String::from_utf8(dry.ended_with_output().stdout).expect("text")
}

/// What a dry run says to be enough has to be enough for the models that answer, too.
#[test]
fn a_dry_run_looks_at_the_models_that_have_answered() {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    let server =
        Server::new(move |_| Reply::new(200, &json!({"object": "chat.completion", "model": "dear", "usage": usage})));
    let line = |n: usize| {
        let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x".repeat(300)}]});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = ten_of_forty(&server, line);
    let dry = |more: &[&str]| dry_run(&job, &server, more);
    // 110 tokens of 30 items are 0.0033 at the one price, and 0.0528 at the other.
    let text = dry(&["--budget-cost", "0.04"]);
    assert!(!text.contains("this budget is enough") && text.contains("--budget-cost may be too small"), "{text}");
    assert!(text.contains("if the models answer that are asked for") && !text.contains("at most about"), "{text}");
    let plan: Value = serde_json::from_str(&dry(&["--budget-cost", "0.04", "--json"])).expect("JSON");
    assert_eq!(plan["budget_is_enough"], false, "{plan}");
    assert!(dry(&["--budget-cost", "0.1"]).contains("this budget is enough for one call for each item"));
}

/// Then the mean of both says too little: from now on calls reserve the price of the dearer one.
#[test]
fn a_dry_run_is_not_sure_where_a_dearer_model_answers_in_part() {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    let server = Server::new(move |arrival| {
        let is_dear = arrival.body.windows(4).any(|bytes| bytes == b"dear");
        let model = if is_dear { "dear" } else { "m" };
        Reply::new(200, &json!({"object": "chat.completion", "model": model, "usage": usage}))
    });
    let line = |n: usize| {
        let prompt = "x".repeat(300) + if n == 9 { "dear" } else { "" };
        let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": prompt}]});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = ten_of_forty(&server, line);
    let dry = |more: &[&str]| dry_run(&job, &server, more);
    // Used: 0.00275. To do: 0.0033 at one price, 0.0528 at the other, 0.00825 as so far.
    let is_enough = |budget: &str| {
        let plan: Value = serde_json::from_str(&dry(&["--budget-cost", budget, "--json"])).expect("JSON");
        plan["budget_is_enough"].clone()
    };
    assert_eq!(["0.005", "0.02", "0.09"].map(is_enough), [json!(false), Value::Null, json!(true)]);
    let text = dry(&["--budget-cost", "0.02"]);
    assert!(text.contains("for each item only if the models answer that are asked for;"), "{text}");
    for budget in ["0.005", "0.02"] {
        let text = dry(&["--budget-cost", budget]);
        let told = text.split("--budget-cost may be too small: about ").nth(1).expect("a sum").to_owned();
        let sum: f64 = told.split(' ').next().and_then(|sum| sum.parse().ok()).expect("a number");
        assert!((0.04..0.08).contains(&sum) && told.contains("of the dearest model that has answered"), "{text}");
    }
}

/// The gateway's fallback charges and has no answer: nothing of it succeeds, and the budget has to end it all the same.
#[test]
fn a_call_that_a_gateways_fallback_lost_counts_with_the_price_of_its_step() {
    let server = Server::new(|_| {
        Reply::text(503, "application/json", "{}")
            .with_header("x-paceline-attempts", 1)
            .with_header("x-paceline-unknown", 1)
            .with_header("x-paceline-unknown-at", "second/dear")
    });
    let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x".repeat(300)}]});
    let line = |n: usize| json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string();
    let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
    let table = "[upstream.openai]\nretry = { base = '1ms', cap = '1ms' }\n[upstream.openai.price]\n'm' = 'in=1,out=1'\n'dear' = 'in=16,out=16'\n";
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let mut through = job.paceline();
    through.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--upstream", "openai"]);
    let (_, log) = finish(through.args(["--via", &server.url(), "--budget-cost", "0.005", "--concurrency", "1"]));
    let calls = server.arrivals().iter().filter(|arrival| arrival.path != "/api/jobs").count() as f64;
    let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
    // Some 85 tokens at 16 for a million.
    assert!(used > 0.001 * calls && used <= 0.005 + 0.003, "{used} by {calls} calls: {log}");
    assert!(log.contains("dear answers in place of m: its answers count with its own price"), "{log}");
}

/// Bedrock, Azure and Gemini have the model in the path, and their answers name none, or another.
#[test]
fn a_price_is_that_of_the_model_in_the_path_where_the_body_names_none() {
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 100});
    let server = Server::new(move |_| Reply::new(200, &json!({"model": "another-2024-08-06", "usage": usage})));
    for (path, model) in [
        ("/openai/deployments/prod-chat/chat/completions", "prod-chat"),
        ("/model/anthropic.claude-v2%3A1/converse", "anthropic.claude-v2:1"),
        ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
    ] {
        let line =
            |n: usize| json!({"custom_id": n.to_string(), "method": "POST", "url": path, "body": {"max_tokens": 100}});
        let job = Job::with_input(&(0..5).map(|n| line(n).to_string()).collect::<Vec<_>>().join("\n"));
        let prices = format!("[upstream.generic.price]\n\"{model}\" = \"in=2.5,out=10\"\n\"*\" = \"in=0.1,out=0.1\"\n");
        std::fs::write(job.path("paceline.toml"), prices).expect("writable");
        let plan = ["run", "in.jsonl", "-o", "out.jsonl", "--dry-run", "--json", "--budget-cost", "0.02"];
        let planned = job.paceline().args(plan).args(["--base-url", &server.url()]).ended_with_output();
        let told = String::from_utf8_lossy(&planned.stderr);
        let planned: Value = serde_json::from_slice(&planned.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
        assert!(planned["cost"].as_f64().is_some_and(|cost| cost > 0.000_06), "{planned}");
        let (code, log) = finish(job.run(&server).args(["--budget-cost", "0.02", "--json"]));
        let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
        assert!(code == 0 && (used - 0.017_5).abs() < 1e-9, "{used} {log}");
    }
}
