//! What a job may use over all its runs.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Job, Reply, Server, finish, start};

/// Tokens that the server has charged: an answer says 3 in and 2 out.
fn charged(server: &Server) -> u64 {
    5 * server.count() as u64
}

#[test]
fn a_budget_of_tokens_holds_over_all_runs() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(40);
    let mut enough = 0;
    for pasted in 1..=3 {
        // A later run keeps the budget.
        let args: &[&str] = if pasted == 1 { &["--budget-tokens", "60"] } else { &[] };
        let (code, log) = finish(job.run(&server).args(args));
        assert_eq!(code, 3, "{log}");
        let (summary, used) = (job.summary(), charged(&server));
        assert!((45..=60).contains(&used), "{used} after {pasted} runs");
        assert_eq!(summary["stopped"], "budget");
        assert_eq!(summary["budget"], json!({"tokens": {"used": used, "limit": 60, "estimated": 0}, "cost": null}));
        assert!(log.contains(&format!("budget: {used} of 60 tokens\n")), "{log}");
        let stop =
            ["the next call might exceed --budget-tokens 60", "--budget-tokens 60, the budget of all runs of this job"];
        assert!(log.contains(stop[usize::from(used == 60)]), "{log}");
        assert_eq!(log.contains("an earlier run of this job still holds: --budget-tokens 60"), pasted > 1, "{log}");
        let resume = job.summary()["resume"].as_str().expect("a command").to_owned();
        assert_eq!(
            resume.contains("--budget-tokens 60"),
            pasted == 1,
            "for scripts the command stays as it is: {resume}"
        );
        let again = log.split("continue with a larger budget, such as: ").nth(1).expect("a command");
        let larger = again.split("--budget-tokens ").nth(1).and_then(|rest| rest.split_whitespace().next());
        enough = larger.and_then(|number| number.parse::<u64>().ok()).expect("a number");
        assert!(again.matches("--budget-tokens").count() == 1, "{again}");
        assert!(
            log.contains(&format!(". The whole job: about --budget-tokens {}, as calls ", larger.expect("a number"))),
            "{log}"
        );
    }
    let (code, log) = finish(job.run(&server).arg("-q"));
    assert!(
        code == 3 && log.starts_with("DEFERRED") && log.contains(". The whole job: about --budget-tokens"),
        "{log}"
    );
    let (code, log) = finish(job.run(&server).args(["--budget-tokens", &enough.to_string()]));
    assert_eq!((code, charged(&server)), (0, 200), "{enough} as the summary said: {log}");
    assert!((200..300).contains(&enough), "{enough}");
    assert!(log.contains(&format!("budget: 200 of {enough} tokens")), "{log}");
}

/// A quarter of a token for a character is too little where each is a token, and the first answer may be the shortest.
#[test]
fn a_budget_holds_before_anything_is_known() {
    let prompt = "\u{5929}".repeat(60);
    let line = |n: usize, bound: Option<u64>| {
        let body = json!({"model": "m", "max_tokens": bound, "messages": [{"role": "user", "content": prompt}]});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    for (bound, budget, most) in [(Some(20), "3000", 3_000), (None, "5000", 5_000)] {
        let used = Arc::new(Mutex::new((0, 0)));
        let all = Arc::clone(&used);
        let server = Server::new(move |_| {
            let mut used = all.lock().expect("no panic");
            // The first is short.
            let out = if used.0 == 0 { 5 } else { bound.unwrap_or(300) };
            *used = (used.0 + 1, used.1 + 65 + out);
            Reply::new(200, &json!({"usage": {"prompt_tokens": 65, "completion_tokens": out}}))
        });
        let job = Job::with_input(&(0..100).map(|n| line(n, bound)).collect::<Vec<_>>().join("\n"));
        let (code, log) = finish(job.run(&server).args(["--pace", "none", "--budget-tokens", budget]));
        let (calls, used) = *used.lock().expect("no panic");
        assert!(code == 3 && used <= most && used > most * 8 / 10, "{used} of {most} by {calls} calls: {log}");
        let warns = log.matches("the budget counts the tokens of answers, but requests set no bound").count();
        assert_eq!(warns, usize::from(bound.is_none()), "{log}");
    }
}

/// A prompt that does not fit holds neither those before it nor those behind it, and short ones do not speak for it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_does_not_fit_into_a_budget_lets_others_go_first() {
    const LONG: [usize; 3] = [10, 20, 43];
    let line = |n: usize| {
        let prompt = "x".repeat(if LONG.contains(&n) { 40_000 } else { 8 });
        let body = json!({"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": prompt}]});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    // The form around a text has hardly any tokens.
    let server = Server::new(|arrival| {
        let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
        let prompt = body["messages"][0]["content"].as_str().expect("a prompt").len() / 4 + 4;
        Reply::new(200, &json!({"usage": {"prompt_tokens": prompt, "completion_tokens": 4}}))
    });
    for flags in [&[][..], &["--concurrency", "1"]] {
        let job = Job::with_input(&(1..=43).map(line).collect::<Vec<_>>().join("\n"));
        let before = server.count();
        // More than short prompts make of a long one, and less than it has.
        let (code, log) = finish(job.run(&server).args(["--budget-tokens", "8000"]).args(flags));
        let (summary, used) = (job.summary(), |summary: &Value| summary["budget"]["tokens"]["used"].as_u64());
        assert_eq!((code, server.count() - before, &summary["succeeded"]), (3, 40, &json!(40)), "{log}");
        assert_eq!(used(&summary), Some(40 * 10), "{log}");
        assert!(
            log.contains("the call of line ")
                && log.contains(" of --budget-tokens 8,000: it waits for a larger budget"),
            "{log}"
        );
        // As its script says, or as dense as the short ones were.
        let asked = ["10,0", "30,0"].map(|tokens| format!("the next call (line 10) may use {tokens}"));
        assert!(asked.iter().any(|asked| log.contains(asked)), "{log}");
        assert!(
            log.contains("; none of the 3 items that are left fits. The whole job: about --budget-tokens 3"),
            "{log}"
        );
        let larger =
            log.split("about --budget-tokens ").nth(1).and_then(|rest| rest.split(',').next()).expect("a number");
        let (code, log) = finish(job.run(&server).args(["--budget-tokens", larger]).args(flags));
        assert_eq!((code, used(&job.summary())), (0, Some(40 * 10 + 3 * 10_008)), "with {larger}: {log}");
        assert!(larger.parse::<u64>().is_ok_and(|larger| larger < 32_000), "{larger}");
    }
}

#[test]
fn runs_without_a_budget_count_for_later_ones() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(10);
    assert_eq!(finish(job.run(&server).args(["--max-items", "4"])).0, 3);
    // 2.5 and 10 a million: 3 in and 2 out are 0.0000275.
    let args = ["--budget-cost", "0.0002", "--price", "in=2.5,out=10"];
    let (code, log) = finish(job.run(&server).args(args));
    // A run expects a quarter of a token for a character until it has learnt more.
    let calls = server.count();
    assert!(code == 3 && (6..=7).contains(&calls), "{log}");
    let budget = job.summary()["budget"].clone();
    assert_eq!(budget["tokens"], Value::Null);
    assert!((budget["cost"]["used"].as_f64().expect("a sum") - calls as f64 * 0.000_027_5).abs() < 1e-9, "{budget}");
    assert!(log.contains("budget: 0.0002 of 0.0002 spent") && log.contains("--budget-cost"), "{log}");
    // Without a budget what it cost is told where a price is known: here by the run before.
    let (code, log) = finish(job.run(&server).args(["--budget-cost", "none"]));
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("  0.0003 spent\n"), "{log}");
}

#[test]
fn calls_without_an_answer_count_as_expected() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-1" => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(3);
    let args = ["--concurrency", "1", "--pace", "fixed", "--max-retries", "0", "--timeout", "300ms"];
    let (code, log) = finish(job.run(&server).args(args).args(["--budget-tokens", "1000"]));
    assert_eq!(code, 1, "{log}");
    let used = job.summary()["budget"]["tokens"]["used"].as_u64().expect("a number");
    assert!(used >= 15, "the one that timed out may be billed: {used}");
}

#[test]
fn calls_that_a_kill_cut_off_count_with_what_they_reserved() {
    let item = |n: usize| {
        let model = ["a", "b"][n % 2];
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": {"max_tokens": 100, "model": model, "item": n}})
    };
    // The first call of each model leaves at once.
    let job = Job::with_input(&(0..8).map(|n| item(n).to_string()).collect::<Vec<_>>().join("\n"));
    let server = Server::new(|_| Reply::ok().never());
    let args = ["--concurrency", "2", "--pace", "fixed", "--budget-tokens", "500"];
    let run = |calls| {
        let mut child = start(job.run(&server).args(args));
        server.wait_for(calls);
        child.kill().expect("a child");
        child.ended();
    };
    // No answer has come yet, and no snapshot need have been written.
    run(2);
    run(4);
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]).args(args);
    let text = String::from_utf8(dry.ended_with_output().stdout).expect("text");
    let expected = "2 calls left without a recorded answer; each counts with the tokens that it reserved";
    assert!(text.contains(expected) && text.contains("budget of the job, over all its runs: about 4"), "{text}");
    // What people are told of the job meanwhile is what the next run counts.
    let told = |args: &[&str]| {
        let output = job.paceline().args(args).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let spent = text.split("over all its runs: about ").nth(1).and_then(|rest| rest.lines().next()).expect("a sum");
    let stats = told(&["stats", "out.jsonl"]);
    assert!(
        stats.contains(&format!("  budget: {spent}; 4"))
            && stats.contains(" of the tokens are estimated, for calls whose use is not known\n")
            && stats.contains(" 4 calls that a kill or a full disk cut off: 2 were repeats; of all calls 4 cut off\n"),
        "{stats}"
    );
    let stats: Value = serde_json::from_str(&told(&["stats", "out.jsonl", "--json"])).expect("JSON");
    assert_eq!((&stats["calls"], &stats["abandoned"], &stats["resends"]), (&json!(4), &json!(4), &json!(2)), "{stats}");
    let planned: Value = serde_json::from_slice(&dry.arg("--json").ended_with_output().stdout).expect("JSON");
    assert_eq!(planned["budget"], stats["budget"], "what of it is estimated too");
    told(&["report", "out.jsonl", "--html", "page.html"]);
    let page = job.text("page.html");
    assert!(page.contains(&format!("budget: {spent}")), "{spent}");
    let (code, log) = finish(job.run(&server).args(args));
    let (summary, calls) = (job.summary(), 4);
    assert_eq!((code, server.count()), (3, calls), "{log}");
    let used = summary["budget"]["tokens"]["used"].as_u64().expect("a number");
    assert!((400..=500).contains(&used), "{used} for {calls} calls: {log}");
    assert_eq!(
        (&summary["stopped"], &summary["calls"], &summary["abandoned"]),
        (&json!("budget"), &json!(calls), &json!(calls))
    );
    assert!(log.contains("up to 4 calls were cut off before their answers; the provider may bill them"), "{log}");
    assert!(log.contains(&format!("; {used} of the tokens are estimated, for calls whose use is not known")), "{log}");
    let told = "; up to 2 calls may have been under way: what may be called twice is sent again (and billed twice, perhaps); what may not is held";
    assert!(log.contains(told), "{log}");
}

#[test]
fn a_kill_shows_in_the_counts_of_each_item() {
    let server = Server::new(|arrival| match arrival.before {
        0 if arrival.item == "item-1" => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(3);
    // Under a budget no call leaves before its note is safe; without one a kill may lose the last notes.
    let budget = ["--budget-tokens", "100000"];
    let mut child = start(job.run(&server).args(["--concurrency", "1", "--pace", "fixed"]).args(budget));
    server.wait_for(2);
    let journal_knows = || {
        let stats = job.paceline().args(["stats", "--json"]).ended_with_output();
        let stats: Value = serde_json::from_slice(&stats.stdout).unwrap_or_default();
        stats["succeeded"] == 1
    };
    while !journal_knows() {}
    child.kill().expect("a child");
    child.ended();
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 4), "{log}");
    let summary = job.summary();
    assert_eq!([&summary["calls"], &summary["resends"], &summary["abandoned"]], [&4, &1, &1], "{log}");
    let stats = job.paceline().args(["stats", "--items"]).ended_with_output();
    let stats = String::from_utf8_lossy(&stats.stdout);
    assert!(stats.contains("item-1") && !stats.contains("at its first call"), "{stats}");
    let rows = job.lines("out.report.jsonl");
    assert_eq!((rows.len(), &rows[0]["calls"], &rows[0]["attempts"]), (1, &json!(2), &json!(1)), "{rows:?}");
}

#[test]
fn a_price_that_is_none_or_missing_is_refused() {
    let job = Job::new(1);
    let run = |args: &[&str]| {
        let mut command = job.paceline();
        finish(command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://127.0.0.1:9"]).args(args))
    };
    for (args, expected) in [
        (&["--price", "2.50"][..], "such as in=2.50,out=10"),
        (&["--budget-cost", "5"], "expected the price of tokens as well: --price in=2.50,out=10"),
        (&["--budget-cost", "$5", "--price", "in=1,out=1"], "such as 5.00"),
        (&["--budget-tokens", "0"], "a whole number from 1 to"),
    ] {
        let (code, log) = run(args);
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(expected) && log.contains(args[0]), "{log}");
    }
    let table = "[upstream.generic.price]\nm = 'cheap'\n";
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let (code, log) = run(&[]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("upstream.generic.price.m = \"cheap\" (from paceline.toml, line 2): expected"), "{log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_dry_run_tells_the_money_and_what_can_never_start() {
    let line = |n: usize| {
        let mut body = json!({"model": if n < 2 { "cheap" } else { "dear" }, "prompt": "x".repeat(4_000)});
        if n < 3 {
            body["max_tokens"] = 1_000.into();
        }
        if n == 2 {
            body["prompt"] = "x".repeat(120_000).into();
        }
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = Job::with_input(&(0..5).map(line).collect::<Vec<_>>().join("\n"));
    let table =
        "[upstream.generic]\ntpm = '20k'\n[upstream.generic.price]\ncheap = 'in=1,out=10'\ndear = 'in=100,out=1000'\n";
    std::fs::write(job.path("paceline.toml"), table).expect("writable");
    let dry = |args: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://127.0.0.1:9", "--dry-run"]);
        let output = command.args(args).ended_with_output();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = dry(&["--budget-cost", "5.00"]);
    for expected in [
        "price of a million tokens: cheap in=1,out=10; dear in=100,out=1000",
        // Rounded up: what is told has room as a budget.
        "about 4.23 at the configured prices, as far as requests set a bound",
        "2 items set no bound on their answers, which come on top: this budget may not be enough",
        "1 item can never start under a limit of 20,000 tokens: the first, in line 3, counts as 31,0",
        "budget of the job, over all its runs: 0.00 of 5.00 spent",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let plan: Value = serde_json::from_str(&dry(&["--json", "--price", "in=1,out=0"])).expect("JSON");
    assert_eq!((&plan["unbounded_outputs"], &plan["too_large"]), (&2.into(), &json!({"items": 1, "first_line": 3})));
    assert!(plan["cost"].as_f64().is_some_and(|cost| (0.034..0.036).contains(&cost)), "the flag counts: {plan}");
    for (args, enough) in [
        (&[][..], Value::Bool(true)),
        (&["--budget-cost", "5.00"], Value::Null),
        (&["--budget-tokens", "1M"], Value::Null),
        (&["--budget-cost", "4.00"], Value::Bool(false)),
    ] {
        let plan: Value = serde_json::from_str(&dry(&[args, &["--json"]].concat())).expect("JSON");
        assert_eq!(plan["budget_is_enough"], enough, "{args:?}");
    }

    let body = json!({"model": "cheap", "prompt": "x".repeat(4_000)});
    let line = json!({"custom_id": "a", "url": "/v1/chat/completions", "body": body}).to_string();
    std::fs::write(job.path("in.jsonl"), line).expect("writable");
    let text = dry(&["--budget-cost", "5.00"]);
    for expected in [
        "at the configured prices, for the prompts alone",
        "1 item sets no bound on its answer, which comes on top: this",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn a_bound_that_the_server_ignores_protects_no_budget_and_is_told() {
    let server = Server::new(|_| Reply::new(200, &json!({"usage": {"prompt_tokens": 30, "completion_tokens": 3_000}})));
    let body = json!({"model": "gpt-x", "max_tokens": 80, "messages": [{"role": "user", "content": "a slogan"}]});
    let line = |n: usize| json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string();
    let job = Job::with_input(&(0..200).map(line).collect::<Vec<_>>().join("\n"));
    let (code, log) = finish(job.run(&server).args(["--pace", "none", "--budget-tokens", "20k"]));
    assert_eq!((code, server.count()), (3, 6), "3,030 each: {log}");
    let told = "gpt-x exceeded the bound of 80 tokens of its request (an answer had 3,000): from now on each of its calls reserves";
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

#[test]
fn usage_that_is_zero_is_not_believed() {
    let text = "word ".repeat(800);
    let zero = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    let server =
        Server::new(move |_| Reply::new(200, &json!({"choices": [{"message": {"content": text}}], "usage": zero})));
    for streams in [false, true] {
        let body = json!({"model": "m", "stream": streams, "messages": [{"role": "user", "content": "tell me more"}]});
        let line = |n: usize| json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string();
        let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
        let before = server.count();
        let (code, log) = finish(job.run(&server).args(["--budget-tokens", "5k", "--concurrency", "1"]));
        let calls = server.count() - before;
        assert!(code == 3 && (4..=5).contains(&calls), "{calls} calls: {log}");
        let told = "an answer has no usage that can be read, or one that is 0 or incomplete, so that what it costs is estimated: its prompt by its length, its answer by";
        assert_eq!(log.matches(told).count(), 1, "{log}");
        assert_eq!(log.contains("\"stream_options\": {\"include_usage\": true}"), streams, "{log}");
    }
}

#[test]
fn stats_tell_the_budget_that_the_job_has() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(4);
    assert_eq!(finish(job.run(&server).args(["--budget-cost", "1.00", "--price", "in=1000,out=1000"])).0, 0);
    let stats = |args: &[&str]| {
        let output = job.paceline().args(["stats", "out.jsonl"]).args(args).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let text = stats(&[]);
    assert!(text.contains("  budget: 0.0200 of 1.00 spent\n"), "{text}");
    let json: Value = serde_json::from_str(&stats(&["--json"])).expect("JSON");
    assert_eq!(json["budget"]["cost"], json!({"used": 0.02, "limit": 1.0, "estimated": 0.0, "unpriced": 0}), "{json}");
}

/// What streams say unless they are asked for their usage, and many servers of one's own.
#[test]
fn an_answer_that_reports_no_usage_counts_with_its_length() {
    let text = "word ".repeat(800);
    let server = Server::new(move |_| Reply::new(200, &json!({"choices": [{"message": {"content": text}}]})));
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "tell me more"}]});
    let lines = (0..20).map(|n| {
        json!({"custom_id": format!("item-{n}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
            .to_string()
            + "\n"
    });
    let job = Job::with_input(&lines.collect::<String>());
    let (code, log) = finish(job.run(&server).args(["--budget-tokens", "5k", "--concurrency", "1"]));
    assert_eq!(code, 3, "{log}");
    // A thousand tokens came with each answer, at four characters a token.
    assert!((4..=5).contains(&server.count()), "{} calls: {log}", server.count());
    assert_eq!(job.summary()["stopped"], "budget");
}

/// A server that answers so does not know what became of the call.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn an_answer_that_leaves_a_call_unknown_counts_as_expected() {
    for status in [408, 502, 504, 507, 520, 522, 598, 600, 999] {
        let server = Server::new(move |arrival| match arrival.before {
            0 => Reply::error(status, "no_answer"),
            _ => Reply::ok(),
        });
        let job = Job::new(4);
        let (code, log) = finish(job.run(&server).args(["--budget-tokens", "10k", "--pace", "none"]));
        let used = job.summary()["budget"]["tokens"]["used"].as_u64().expect("a number");
        assert!(code == 0 && used >= 20 + 4 * 5, "{status}: {used}, {log}");
        let told = format!("; {} of the tokens are estimated, for calls whose use is not known", used - 20);
        assert!(log.contains(&told), "{status}: {log}");
    }
    let server = Server::new(|arrival| if arrival.before == 0 { Reply::error(503, "busy") } else { Reply::ok() });
    let job = Job::new(4);
    let (code, log) = finish(job.run(&server).args(["--budget-tokens", "10k", "--pace", "none"]));
    assert_eq!((code, &job.summary()["budget"]["tokens"]["used"]), (0, &json!(20)), "it was not done: {log}");
}
