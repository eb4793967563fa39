//! What a run would do.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

fn files(job: &Job) -> BTreeSet<String> {
    let entries = std::fs::read_dir(job.path("")).expect("the folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn dry_run(job: &Job, server: &Server, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "openai", "--base-url"]);
    command.args([&server.url(), "--dry-run"]).args(args);
    let output = command.ended_with_output();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn says_what_there_is_to_do_and_leaves_nothing() {
    let server = Server::new(|_| Reply::ok());
    let line = |n: usize| {
        let model = if n < 25 { "small" } else { "large" };
        let body = json!({"model": model, "max_tokens": 100, "messages": "x".repeat(200)});
        json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = Job::with_input(&(0..100).map(line).collect::<Vec<_>>().join("\n"));
    let before = files(&job);
    let (code, text, log) = dry_run(&job, &server, &["--limit", "60rpm", "--burst", "1", "--max-items", "10"]);
    assert_eq!(code, Some(0), "{log}");
    for expected in [
        "in.jsonl: 100 items\n",
        "large: 75 items, about 4,650 tokens in, up to 7,500 out",
        "at least 1m 39s",
        "at most 10 items",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert_eq!((server.count(), &files(&job)), (0, &before));

    std::fs::write(job.path("summary.json"), "of a run").expect("writable");
    let (_, json, log) = dry_run(&job, &server, &["--json", "--summary", "summary.json"]);
    assert!(log.contains("a dry run leaves the file of --summary as it is") && job.text("summary.json") == "of a run");
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&plan["pending"], &plan["tokens_out"], &plan["seconds"]), (&100.into(), &10_000.into(), &Value::Null));
    assert!((6_000..7_000).contains(&plan["tokens_in"].as_u64().expect("a number")), "{plan}");

    // Of a job that has begun it tells the rest, and still leaves nothing.
    assert_eq!(finish(job.run(&server).args(["--max-items", "40"])).0, 3);
    let before = files(&job);
    let (code, text, log) = dry_run(&job, &server, &[]);
    assert_eq!(code, Some(0), "{log}");
    assert!(text.contains("100 items, 40 ended, 60 to do"), "{text}");
    assert_eq!((server.count(), files(&job)), (40, before));
}

/// The default spacing counts, for tiers too and beside the limits of the mock.
#[test]
fn foretells_the_time_that_the_pacer_will_take() {
    let job = Job::new(30);
    let least = |args: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--dry-run", "--json"]).args(args);
        let output = command.ended_with_output();
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        plan["seconds"].as_f64()
    };
    let generic = ["--base-url", "http://127.0.0.1:9"];
    let mock = ["--upstream", "mock"];
    assert_eq!(least(&[&generic[..], &["--limit", "60rpm"]].concat()), Some(29.0));
    assert_eq!(least(&[&generic[..], &["--limit", "60rpm", "--burst", "10"]].concat()), Some(20.0));
    assert_eq!(least(&[&mock[..], &["--limit", "60rpm"]].concat()), Some(29.0));
    assert_eq!(least(&mock), Some(0.5), "the mock allows 1,200 a minute and 20 at once");
    let tier = "[upstream.t]\nbase_url = \"http://127.0.0.1:9\"\n[[upstream.t.tier]]\nmodel = \"m\"\nrpm = 120\n";
    std::fs::write(job.path("paceline.toml"), tier).expect("writable");
    assert_eq!(least(&[]), Some(14.0));
}

#[test]
fn says_which_items_a_pause_keeps_back() {
    let server = Server::new(|_| Reply::error(429, "slow_down").with_header("retry-after", 7_200));
    let job = Job::new(3);
    let (code, log) = crate::support::finish(job.run(&server).args(["--concurrency", "1", "--max-wait", "1s"]));
    assert_eq!(code, 3, "{log}");
    let dry = job.run(&server).arg("--dry-run").ended_with_output();
    let text = String::from_utf8_lossy(&dry.stdout);
    assert!(text.contains("  3 items of these are held, by a pause that ends "), "{text} {log}");
}

#[test]
fn checks_what_a_run_would_check_and_needs_no_key() {
    let server = Server::new(|_| Reply::ok());
    let twice = format!("{0}\n{0}\n", crate::support::line("same"));
    let (code, _, log) = dry_run(&Job::with_input(&twice), &server, &[]);
    assert_eq!(code, Some(2));
    assert!(log.contains("duplicate_custom_id"), "{log}");
    let job = Job::new(1);
    let (code, log) =
        finish(job.paceline().args(["run", "in.jsonl", "-o", "o.jsonl", "--upstream", "openai", "--dry-run"]));
    assert_eq!(code, 0, "{log}");
}

#[test]
fn of_a_begun_job_it_refuses_what_the_run_would_refuse() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    assert_eq!(finish(job.run(&server).args(["--max-items", "1"])).0, 3);
    let dry = |input: &str, output: &str, more: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", input, "-o", output, "--base-url", &server.url(), "--dry-run"]).args(more);
        finish(&mut command)
    };
    std::fs::write(job.path("other.jsonl"), crate::support::line("other")).expect("writable");
    let (code, log) = dry("other.jsonl", "out.jsonl", &[]);
    assert!(code == 2 && log.contains("other.jsonl is not the input that this job began with"), "{log}");
    let (code, log) = dry("other.jsonl", "out.jsonl", &["--accept-changed-input"]);
    assert!(code == 2 && log.contains("1 item that ended can no longer be found unchanged in other.jsonl"), "{log}");
    std::fs::hard_link(job.path("in.jsonl"), job.path("linked")).expect("links");
    std::fs::remove_file(job.path("summary.json")).expect("written");
    std::fs::hard_link(job.path("in.jsonl"), job.path("summary.json")).expect("links");
    let run = finish(&mut job.run(&server));
    std::fs::remove_file(job.path("summary.json")).expect("linked");
    for (code, log) in [dry("in.jsonl", "in.jsonl", &[]), dry("in.jsonl", "linked", &[]), run] {
        assert!(code == 2 && log.contains("the same file"), "{log}");
    }
    for (read, flags) in [
        ("schema.json", &["--expect", "schema.json"][..]),
        ("key", &["--api-key-file", "key"]),
        ("paceline.toml", &[]),
        ("settings.toml", &["--config", "settings.toml"]),
    ] {
        std::fs::write(job.path(read), if read == "schema.json" { "{}" } else { "" }).expect("writable");
        std::fs::write(job.path("key"), "k").expect("writable");
        let (code, log) = dry("in.jsonl", read, &[flags, &["--overwrite"]].concat());
        assert!(code == 2 && log.contains("are the same file") && log.contains(read), "{log}");
    }
    let (code, log) = dry("in.jsonl", "out.jsonl", &["--format", "bare", "--endpoint", "/x"]);
    assert!(code == 2 && log.contains("add --format batch"), "{log}");
    assert_eq!((dry("in.jsonl", "out.jsonl", &[]).0, finish(&mut job.run(&server)).0), (0, 0));
    std::fs::rename(job.path("out.jsonl"), job.path("away.jsonl")).expect("written");
    let (code, log) = finish(&mut job.run(&server));
    let told = "bytes of it; restore it, or start again with --overwrite. Only the restored file keeps its answers";
    assert!(code == 2 && log.contains(told), "{log}");
    let (code, log) = dry("in.jsonl", "out.jsonl", &["--overwrite"]);
    let told = "--overwrite would delete the journal of 3 results, of 3 calls; out.jsonl, where they were, is missing";
    assert!(code == 0 && log.contains(told), "{log}");
    std::fs::rename(job.path("away.jsonl"), job.path("out.jsonl")).expect("it is there");
    std::fs::remove_file(job.path("out.journal")).expect("written");
    for (code, log) in [dry("in.jsonl", "out.jsonl", &[]), finish(&mut job.run(&server))] {
        assert!(code == 2 && log.contains("out.jsonl exists, but its journal out.journal is missing"), "{log}");
    }
    assert_eq!(dry("in.jsonl", "out.jsonl", &["--overwrite"]).0, 0);
}

#[test]
fn of_another_input_it_counts_what_the_run_would_send() {
    let is_repaired = |body: &[u8]| serde_json::from_slice::<Value>(body).is_ok_and(|body| !body["n"].is_null());
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "item-0" | "item-3" if !is_repaired(&arrival.body) => Reply::error(400, "no n"),
        _ => Reply::ok(),
    });
    let input = |n: &[&str]| {
        let line = |item: &str| match n.contains(&item) {
            true => crate::support::line(item).replace(r#""body":{"#, r#""body":{"n":1,"#),
            false => crate::support::line(item),
        };
        ["item-0", "item-1", "item-2", "item-3", "item-4", "item-5"].map(line).join("\n")
    };
    let job = Job::with_input(&input(&[]));
    assert_eq!(finish(job.run(&server).args(["--max-items", "4"])).0, 3);
    let before = std::fs::read(job.path("out.journal")).expect("a journal");
    let pending = |more: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run", "--json"]);
        let output = command.args(more).ended_with_output();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), plan["pending"].as_u64(), log)
    };
    std::fs::write(job.path("in.jsonl"), input(&["item-0"])).expect("writable");
    let repaired = pending(&["--retry-failed"]);
    assert_eq!((repaired.0, repaired.1), (Some(0), Some(4)), "two failed, two were not begun: {}", repaired.2);
    let (code, _, log) = pending(&[]);
    assert!(code == Some(2) && log.contains("--retry-failed"), "{log}");
    std::fs::write(job.path("in.jsonl"), input(&["item-0", "item-1"])).expect("writable");
    let (code, _, log) = pending(&["--retry-failed"]);
    assert!(code == Some(2) && log.contains("line 2: the request changed, its id did not"), "{log}");
    std::fs::write(job.path("in.jsonl"), input(&["item-5"]) + "\n" + &crate::support::line("new")).expect("writable");
    let accepted = pending(&["--accept-changed-input"]);
    assert_eq!((accepted.0, accepted.1), (Some(0), Some(3)), "{}", accepted.2);
    assert_eq!(std::fs::read(job.path("out.journal")).expect("a journal"), before, "the job is as it was");
    assert_eq!(finish(job.run(&server).args(["--accept-changed-input"])).0, 1);
    assert_eq!(server.count(), 7);
}

/// Of the same length, and the same in its first 64 KiB.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_change_far_behind_the_beginning_is_refused_as_the_run_refuses_it() {
    let server = Server::new(|arrival| if arrival.item == "item-1" { Reply::error(400, "no") } else { Reply::ok() });
    let lines = |changed: Option<usize>| {
        let n = |n: usize| format!("\"body\":{{\"n\":{},", u8::from(Some(n) == changed));
        let line = |item: usize| crate::support::line(&format!("item-{item}")).replace("\"body\":{", &n(item)) + "\n";
        (0..1_500).map(line).collect::<String>()
    };
    let job = Job::with_input(&lines(None));
    assert!(std::fs::metadata(job.path("in.jsonl")).expect("written").len() > 100_000);
    assert_eq!(finish(job.run(&server).args(["--max-items", "5"])).0, 3);
    let dry = |flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]).args(flags);
        finish(&mut command)
    };
    std::fs::write(job.path("in.jsonl"), lines(Some(1_400))).expect("writable");
    for flags in [&[][..], &["--retry-failed"]] {
        let ((code, log), (run_code, run_log)) = (dry(flags), finish(job.run(&server).args(flags)));
        assert_eq!((code, run_code), (2, 2), "{flags:?}: {log} {run_log}");
        assert!(log.contains("line 1401") && run_log.contains("line 1401"), "{flags:?}: {log} {run_log}");
    }
    assert_eq!(dry(&["--accept-changed-input"]).0, 0, "it has not ended");
    std::fs::write(job.path("in.jsonl"), lines(None)).expect("writable");
    assert_eq!(dry(&[]).0, 0, "written again as it was");
    assert_eq!(server.count(), 5);
}

#[test]
fn failed_items_and_answers_taken_over_are_counted_as_the_run_would() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-1" => Reply::error(400, "never"),
        _ => Reply::ok(),
    });
    let job = Job::new(3);
    let pending = |output: &str, more: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", output, "--base-url", &server.url(), "--dry-run", "--json"]).args(more);
        let output = command.ended_with_output();
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        plan["pending"].as_u64()
    };
    assert_eq!(finish(&mut job.run(&server)).0, 1);
    assert_eq!(pending("out.jsonl", &[]), Some(0));
    assert_eq!(pending("out.jsonl", &["--retry-failed"]), Some(1));
    assert_eq!(pending("new.jsonl", &["--done", "out.jsonl"]), Some(1), "two of three are taken over");
    // A load that was cut off leaves a journal without a job: the run begins anew.
    std::fs::write(job.path("cut.journal"), "").expect("writable");
    assert_eq!(pending("cut.jsonl", &[]), Some(3));
    let (code, log) = finish(job.paceline().args(["stats", "cut.jsonl"]));
    assert!(code == 2 && log.contains("holds no job yet"), "{log}");
    std::fs::write(job.path("cut.jsonl"), "{}\n").expect("writable");
    let (code, log) = finish(job.paceline().args(["stats", "cut.jsonl"]));
    assert!(code == 2 && log.contains("cut.journal is empty") && log.contains("--done cut.jsonl"), "{log}");
}

#[test]
fn a_budget_that_is_too_small_is_told() {
    let line = |n: usize| {
        let body = json!({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]});
        json!({"custom_id": n.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = Job::with_input(&(line(0) + "\n" + &line(1)));
    for (budget, price, expected) in [
        (["--budget-tokens", "150"], &[][..], "--budget-tokens may be too small: about "),
        (["--budget-cost", "0.001"], &["--price", "in=1,out=10"], "--budget-cost may be too small: about "),
        (["--budget-tokens", "10k"], &[], ""),
    ] {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://x.invalid", "--dry-run"]);
        let output = command.args(budget).args(price).ended_with_output();
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.contains("be too small"), !expected.is_empty(), "{text}");
        let enough = "this budget is enough for one call for each item; retries cost extra";
        assert_eq!(text.contains(enough), expected.is_empty(), "{text}");
        assert!(text.contains("the budget holds only if the server keeps to the bounds that requests set"), "{text}");
        assert!(
            text.contains(", and if prompts under way have no more tokens for a byte than those before them"),
            "{text}"
        );
    }
}

/// Only answers tell what a picture costs, or one that is made.
#[test]
fn a_budget_for_what_requests_do_not_tell_is_not_said_to_be_enough() {
    let content = json!([{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "https://x.invalid/a.png"}}]);
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]});
    let seen = json!({"custom_id": 1, "url": "/v1/chat/completions", "body": body});
    let made = json!({"custom_id": 2, "url": "/v1/images/generations", "body": {"model": "m", "prompt": "a river"}});
    for (input, items) in [(format!("{seen}\n"), "1 item has"), (format!("{seen}\n{made}\n"), "2 items have")] {
        let job = Job::with_input(&input);
        let dry = |more: &[&str]| {
            let mut command = job.paceline();
            command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://x.invalid", "--dry-run"]);
            let args = ["--budget-cost", "100", "--price", "in=1,out=1"];
            String::from_utf8(command.args(args).args(more).ended_with_output().stdout).expect("text")
        };
        let text = dry(&[]);
        let unknown = "it is not known whether this budget is enough for one call for each item";
        assert!(text.contains(unknown) && text.contains(items) && text.contains("as far as requests tell"), "{text}");
        let plan: Value = serde_json::from_str(&dry(&["--json"])).expect("JSON");
        assert_eq!((&plan["budget_is_enough"], &plan["untold_costs"]), (&Value::Null, &json!(input.lines().count())));
    }
}

/// A limit that never acts is one that the user believes in.
#[test]
fn a_tier_that_no_line_belongs_to_is_named() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    let tier = |label: &str| format!("[[upstream.generic.tier]]\nlabel = '{label}'\nlimits = ['1 per 10s']\n");
    std::fs::write(job.path("paceline.toml"), tier("slow") + &tier("fast")).expect("writable");
    let run = |metadata: &str, args: &[&str]| {
        std::fs::write(job.path("in.csv"), format!("url,metadata\n/a,{metadata}\n")).expect("writable");
        let mut command = job.paceline();
        command.args(["run", "in.csv", "-o", "out.jsonl", "--base-url", &server.url()]).args(args);
        let output = command.ended_with_output();
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    let (text, log) = run("", &["--dry-run"]);
    assert!(log.contains("no line of the input matches tier label=slow, tier label=fast"), "{log}");
    assert!(
        text.contains("no configured limit acts, for no item belongs to tier label=slow, tier label=fast"),
        "{text}"
    );
    let slow = r#""{""label"":""slow""}""#;
    let (text, log) = run(slow, &["--dry-run"]);
    assert!(log.contains("no line of the input matches tier label=fast,"), "{log}");
    assert!(text.contains("tier label=slow: 1 item") && text.contains("under the configured limits"), "{text}");
    let (_, log) = run(slow, &[]);
    assert_eq!(log.matches("no line of the input matches tier label=fast,").count(), 1, "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["metadata"], json!({"label": "slow"}), "it comes back as it acts");
}

/// A server that does not keep to bounds needs what its answers had, not what requests allow.
#[test]
fn answers_that_broke_their_bounds_say_how_long_others_will_be() {
    let server = Server::new(|arrival| {
        let out = if arrival.item == "item-3" { 5_000 } else { 10 };
        Reply::new(200, &json!({"usage": {"prompt_tokens": 3, "completion_tokens": out}}))
    });
    let line = |n: usize| {
        let body = json!({"item": format!("item-{n}"), "model": "m", "max_tokens": 20, "messages": []});
        json!({"custom_id": format!("item-{n}"), "url": "/v1/chat/completions", "body": body}).to_string()
    };
    let job = Job::with_input(&(0..100).map(line).collect::<Vec<_>>().join("\n"));
    let (code, log) =
        finish(job.run(&server).args(["--upstream", "openai", "--max-items", "10", "--concurrency", "1"]));
    assert_eq!(code, 3, "{log}");
    // 509 tokens an answer on average, and 20 are allowed.
    let (code, text, log) = dry_run(&job, &server, &["--budget-tokens", "20k"]);
    assert_eq!(code, Some(0), "{log}");
    let too_small = "--budget-tokens may be too small: about 46,";
    assert!(text.contains(too_small) && text.contains("with answers as long as so far, and 14,"), "{text}");
    let broken = "1 of 10 answers were longer than their requests allow (the longest 5,000 tokens): bounds protect no budget here";
    assert!(text.contains(broken) && !text.contains("as long as its bound"), "{text}");
    let (_, text, _) = dry_run(&job, &server, &["--budget-tokens", "60k"]);
    assert!(text.contains("is enough for one call for each item if answers are no longer than so far"), "{text}");
    let (_, json, _) = dry_run(&job, &server, &["--budget-tokens", "60k", "--json"]);
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&plan["answers_beyond_bounds"], &plan["budget_is_enough"]), (&json!(1), &Value::Null), "{plan}");
}

/// A write into the provider's cache costs more than input, a read less: what calls reserve, and what they cost.
#[test]
fn a_cached_prompt_is_told_at_most_and_as_answers_so_far_cost() {
    let usage = json!({"input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2_000, "output_tokens": 10});
    let server = Server::new(move |_| Reply::new(200, &json!({"type": "message", "content": [], "usage": usage})));
    let system = json!([{"type": "text", "text": "x".repeat(8_000), "cache_control": {"type": "ephemeral"}}]);
    let body = json!({"model": "m", "max_tokens": 10, "system": system, "messages": []});
    let line = |n: usize| json!({"custom_id": n, "params": body}).to_string();
    let job = Job::with_input(&(0..20).map(line).collect::<Vec<_>>().join("\n"));
    let flags = ["--upstream", "anthropic", "--price", "in=1,out=1", "--budget-cost", "0.01"];
    let dry = |more: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--dry-run"]);
        let output = command.args(flags).args(more).ended_with_output();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = dry(&[]);
    assert!(text.contains("at most about 0.05") && text.contains("with each prompt that is to be kept"), "{text}");
    assert!(!text.contains("as answers so far cost"), "{text}");
    let (_, log) = finish(job.run(&server).args(flags).args(["--max-items", "10", "--concurrency", "1"]));
    // 20 + 200 + 10 a call.
    let text = dry(&[]);
    assert!(text.contains("as answers so far cost: about 0.0023\n"), "{text} {log}");
    assert!(text.contains("and 0.0077 are left; --budget-cost 0.02"), "spent and needed: {text}");
    let plan: Value = serde_json::from_str(&dry(&["--json"])).expect("JSON");
    // Their lines are a byte longer.
    assert!(plan["cost_as_so_far"].as_f64().is_some_and(|cost| (0.002_3..0.002_300_3).contains(&cost)), "{plan}");
}
