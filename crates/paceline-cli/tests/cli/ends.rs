//! How jobs end: files, counters, exit codes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish, line};

#[test]
fn everything_succeeds_and_a_rerun_sends_nothing() {
    let server = Server::new(|_| Reply::ok().with_header("x-request-id", "req-7"));
    let job = Job::new(60);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("SUCCESS"), "{log}");
    assert_eq!(server.by_item().len(), 60);
    assert_eq!(server.count(), 60);
    job.assert_adds_up(60);
    let summary = job.summary();
    assert_eq!(
        (&summary["status"], &summary["calls"], &summary["resends"]),
        (&json!("SUCCESS"), &json!(60), &json!(0))
    );
    assert_eq!((&summary["tokens_in"], &summary["tokens_out"]), (&json!(180), &json!(120)));
    assert_eq!(summary["oracle_seconds"], Value::Null);
    let first = &job.lines("out.jsonl")[0];
    assert_eq!(first["response"]["status_code"], 200);
    assert_eq!(first["response"]["request_id"], "req-7");
    assert_eq!(first["error"], Value::Null);
    assert!(!job.path("out.errors.jsonl").exists());
    assert!(job.lines("out.report.jsonl").is_empty());

    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    assert_eq!(server.count(), 60);
    job.assert_adds_up(60);
}

/// A host that prepares a page at its first call, and says when it is there: the server is tested with such pages, too.
#[test]
fn pages_that_are_there_at_the_second_call_are_had_with_two_calls_each() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::error(503, "being prepared").with_header("retry-after", 1),
        _ => Reply::ok(),
    });
    let job = Job::new(60);
    let mut run = job.run(&server);
    run.env("PACELINE_UPSTREAM__GENERIC__BREAKER__OPEN", "100ms");
    let (code, log) = finish(run.args(["--pace", "fixed", "--max-wait", "30s"]));
    assert_eq!((code, server.count()), (0, 120), "{log}");
    job.assert_adds_up(60);
}

#[test]
fn a_permanent_503_costs_one_call_and_its_retries() {
    for (retries, calls) in [("2", 3), ("0", 1)] {
        let server = Server::new(|_| Reply::error(503, "unavailable"));
        let job = Job::new(1);
        let (code, log) = finish(job.run(&server).args(["--max-retries", retries]));
        assert_eq!(code, 1, "{log}");
        assert!(log.contains("FAILED"), "{log}");
        assert_eq!(server.count(), calls);
        let row = &job.lines("out.report.jsonl")[0];
        assert_eq!(
            (&row["attempts"], &row["deferrals"], &row["reason"]),
            (&json!(calls), &json!(0), &json!("max_retries"))
        );
        assert_eq!(
            (&row["class"], &row["fatal"], &row["retryable"]),
            (&json!("overloaded"), &json!(false), &json!(true))
        );
        let summary = job.summary();
        assert_eq!((&summary["calls"], &summary["retries"]), (&json!(calls), &json!(calls - 1)));
        assert_eq!(job.lines("out.errors.jsonl")[0]["response"]["status_code"], 503);
        job.assert_adds_up(1);
    }
}

#[test]
fn always_429_with_two_deferrals_is_three_sends() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 1));
    let job = Job::new(1);
    let (code, log) = finish(job.run(&server).args(["--max-deferrals", "2"]));
    assert_eq!(code, 1, "{log}");
    assert_eq!(server.count(), 3);
    let row = &job.lines("out.report.jsonl")[0];
    assert_eq!((&row["attempts"], &row["deferrals"], &row["class"]), (&json!(0), &json!(3), &json!("throttled")));
    assert_eq!(
        (&row["state"], &row["reason"], &row["rate_limited"]),
        (&json!("failed"), &json!("max_deferrals"), &json!(true))
    );
    let summary = job.summary();
    assert_eq!((&summary["throttled"], &summary["resends"], &summary["retries"]), (&json!(3), &json!(2), &json!(0)));
}

#[test]
fn no_credit_costs_what_was_in_flight_and_keeps_the_items() {
    let server = Server::new(|_| Reply::error(429, "insufficient_quota"));
    let job = Job::new(200);
    let (code, log) = finish(job.run(&server).args(["--upstream", "openai", "--concurrency", "4"]));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("credit"), "{log}");
    assert!(server.count() <= 4, "{} calls", server.count());
    assert!(job.lines("out.jsonl").is_empty() && job.lines("out.errors.jsonl").is_empty());
    assert_eq!(job.summary()["deferred"], 200);
    assert_eq!(job.summary()["status"], "DEFERRED");
    let rows = job.lines("out.report.jsonl");
    assert_eq!(rows.len(), 200);
    let tried = rows.iter().find(|row| row["class"] == "account").expect("one was tried");
    assert_eq!(
        (&tried["state"], &tried["fatal"], &tried["code"]),
        (&json!("deferred"), &json!(true), &json!("insufficient_quota"))
    );
}

#[test]
fn a_bad_key_is_named_by_its_variable_and_never_shown() {
    let server = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let job = Job::new(50);
    let mut command = job.run(&server);
    command.args(["--upstream", "openai", "--api-key-env", "MY_KEY"]).env("MY_KEY", "sk-very-secret");
    let (code, log) = finish(&mut command);
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("MY_KEY") && !log.contains("sk-very-secret"), "{log}");
    assert!(log.contains("not finished: 50 waiting until the cause is fixed ("), "{log}");
    assert!(log.contains(" of them: last answer: key or account refused)"), "{log}");
    assert_eq!(server.arrivals()[0].headers["authorization"], "Bearer sk-very-secret");
    assert!(job.ended_ids().is_empty());
    for file in ["out.report.jsonl", "out.journal", "summary.json"] {
        let bytes = std::fs::read(job.path(file)).expect("written");
        assert!(!String::from_utf8_lossy(&bytes).contains("sk-very-secret"), "{file}");
    }
}

/// A stop that needs a person is an error of the log, which is all that `-q` shows.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_quiet_run_tells_why_a_person_is_needed() {
    let told = [(401, "the provider refuses this account"), (404, "the first 20 items all failed the same way")];
    for (status, told) in told {
        let server = Server::new(move |_| Reply::error(status, "no"));
        let (code, log) = finish(Job::new(50).run(&server).arg("-q"));
        assert!(code == 3 && log.contains(&format!("ERROR stopping: {told}")), "{log}");
        let (_, log) = finish(Job::new(50).run(&server).args(["-q", "--log-format", "json"]));
        let line = log.lines().find(|line| line.contains(told)).expect("it is told");
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["level"], "ERROR");
    }
    let (code, log) = finish(Job::new(3).run(&Server::new(|_| Reply::ok())).args(["-q", "--max-items", "1"]));
    assert!(code == 3 && log.is_empty(), "its own bound: {log}");
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 7_200));
    let (code, log) = finish(Job::new(3).run(&server).arg("-q"));
    assert!(code == 3 && log.starts_with("DEFERRED"), "{log}");
    // Before that the command could send nothing.
    assert!(
        log.contains("\n  continue after ") && log.contains(" with: ") && !log.contains("continue with: "),
        "{log}"
    );
}

/// A quota that calls in flight find used up is one event.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_long_pause_is_told_once() {
    // Later than the next call leaves at the pace of a start.
    let refusal = Reply::error(429, "rate_limit_exceeded").with_header("retry-after", 7_200);
    let server = Server::new(move |_| refusal.clone().after(Duration::from_secs(2)));
    let (code, log) = finish(&mut Job::new(20).run(&server));
    assert_eq!((code, log.matches("no calls for 2h").count()), (3, 1), "{} calls: {log}", server.count());
    assert!(server.count() > 1);
}

#[test]
fn what_was_stopped_is_tested_by_one_call_of_the_next_run() {
    let server = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let job = Job::new(30);
    // A learnt pace takes an answer that is late for one that is no refusal.
    std::fs::write(job.path("paceline.toml"), "[upstream.openai]\npace = 'fixed'\nrpm = 60000\n").expect("a file");
    let calls = [(), ()].map(|()| {
        let before = server.count();
        assert_eq!(finish(job.run(&server).args(["--upstream", "openai"])).0, 3);
        server.count() - before
    });
    assert!(calls[0] > 1 && calls[1] == 1, "{calls:?}");
    job.assert_adds_up(30);
}

#[test]
fn a_key_that_the_server_repeats_is_not_stored() {
    let server = Server::new(|arrival| {
        let key = arrival.headers["authorization"].to_str().expect("text").to_owned();
        match arrival.item.as_str() {
            "item-0" => Reply::new(400, &json!({"error": {"message": format!("bad key {key}"), "code": key}})),
            _ => Reply::new(200, &json!({"echo": {"authorization": key}})),
        }
    });
    let job = Job::new(2);
    let mut command = job.run(&server);
    command.args(["--api-key-env", "MY_KEY"]).env("MY_KEY", "sk-very-secret");
    let (code, log) = finish(&mut command);
    assert_eq!(code, 1, "{log}");
    assert!(!log.contains("sk-very-secret"), "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["body"]["echo"]["authorization"], "Bearer [key]");
    for file in ["out.jsonl", "out.errors.jsonl", "out.report.jsonl", "out.journal", "summary.json"] {
        let bytes = std::fs::read(job.path(file)).expect("written");
        assert!(!String::from_utf8_lossy(&bytes).contains("sk-very-secret"), "{file}");
    }
}

#[test]
fn once_the_account_is_put_right_the_same_command_finishes() {
    let bad = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let good = Server::new(|_| Reply::ok());
    let job = Job::new(30);
    assert_eq!(finish(job.run(&bad).args(["--upstream", "openai"])).0, 3);
    let (code, log) = finish(job.run(&good).args(["--upstream", "openai"]));
    assert_eq!(code, 0, "{log}");
    assert_eq!(good.by_item().len(), 30);
    job.assert_adds_up(30);
}

/// Anthropic says so by a 400 for a bad request, of which the message alone tells the account.
#[test]
fn an_anthropic_account_without_credit_keeps_its_items() {
    let message = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or \
                   purchase credits.";
    let error = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    let calls = AtomicUsize::new(0);
    let server = Server::new(move |_| match calls.fetch_add(1, Ordering::Relaxed) < 3 {
        true => Reply::ok(),
        false => Reply::new(400, &error),
    });
    let job = Job::new(60);
    let (code, log) = finish(job.run(&server).args(["--upstream", "anthropic", "--concurrency", "2"]));
    let summary = job.summary();
    assert_eq!((code, &summary["stopped"], &summary["failed"]), (3, &json!("account"), &json!(0)), "{log}");
    assert_eq!((&summary["succeeded"], &summary["deferred"]), (&json!(3), &json!(57)), "{log}");
    assert!(server.count() <= 6, "{} calls", server.count());
    assert!(log.contains("check the account's credit") && log.contains("credit balance is too low"), "{log}");
    let again = Server::new(|_| Reply::ok());
    let (code, log) = finish(job.run(&again).args(["--upstream", "anthropic"]));
    assert_eq!((code, again.count()), (0, 57), "{log}");
}

#[test]
fn a_model_that_the_key_may_not_use_stops_alone() {
    let server = Server::new(|arrival| match arrival.item.starts_with("closed") {
        true => {
            Reply::new(403, &json!({"error": {"message": "no access to model closed", "code": "model_not_allowed"}}))
        }
        false => Reply::ok(),
    });
    let lines: Vec<String> = (0..40)
        .map(|n| {
            let model = if n % 2 == 0 { "closed" } else { "open" };
            let body = json!({"model": model, "item": format!("{model}-{n}")});
            json!({"custom_id": n, "url": "/v1/chat/completions", "body": body}).to_string()
        })
        .collect();
    let job = Job::with_input(&lines.join("\n"));
    let (code, log) = finish(job.run(&server).args(["--upstream", "openai", "--concurrency", "4"]));
    assert_eq!(code, 3, "{log}");
    let open = server.by_item().keys().filter(|item| item.starts_with("open")).count();
    assert_eq!((open, job.lines("out.jsonl").len()), (20, 20), "{log}");
    assert!(server.count() <= 20 + 4, "{} calls", server.count());
    assert!(job.lines("out.report.jsonl").iter().all(|row| row["reason"] == "scope_stopped"), "{log}");
    assert!(log.contains("stopped early: ") && log.contains("no access to model closed"), "{log}");
    assert_eq!(job.summary()["stopped"], "account");
    job.assert_adds_up(40);
}

#[test]
fn what_can_never_pass_fails_alone() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-3" => Reply::error(400, "bad_request"),
        "item-5" => Reply::error(404, "not_found"),
        _ => Reply::ok(),
    });
    let job = Job::new(40);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("PARTIAL"), "{log}");
    assert_eq!(server.count(), 40);
    job.assert_adds_up(40);
    let errors = job.lines("out.errors.jsonl");
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|line| line["error"].is_null() && line["response"]["body"]["error"]["code"].is_string()));
    let rows = job.lines("out.report.jsonl");
    let row = rows.iter().find(|row| row["custom_id"] == "item-3").expect("a row");
    assert_eq!(
        *row,
        json!({
            "custom_id": "item-3", "state": "failed", "class": "invalid", "code": "bad_request", "error_type": "some_error",
            "status_code": 400, "fatal": true, "retryable": false, "rate_limited": false, "calls": 1, "attempts": 1,
            "deferrals": 0, "retry_not_before": null, "last_error": "it is bad_request", "reason": "invalid",
        })
    );
    let (code, _) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (1, 40));
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn when_the_first_twenty_fail_alike_the_job_stops_and_keeps_them() {
    let server = Server::new(|_| Reply::error(400, "model_not_here"));
    let job = Job::new(200);
    let (code, log) = finish(job.run(&server).args(["--concurrency", "4"]));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("--stop-after-same 0"), "{log}");
    assert!(server.count() < 30, "{} calls", server.count());
    assert!(job.ended_ids().is_empty());
    assert_eq!(job.summary()["deferred"], 200);
    assert_eq!(job.summary()["calls"], server.count());

    let (code, log) = finish(job.run(&server).args(["--stop-after-same", "0"]));
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("FAILED"), "{log}");
    job.assert_adds_up(200);
}

#[test]
fn a_small_job_that_fails_alike_just_fails() {
    let server = Server::new(|_| Reply::error(400, "model_not_here"));
    let job = Job::new(20);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 1, "{log}");
    job.assert_adds_up(20);
}

#[test]
fn answers_that_are_no_json_and_no_answers_at_all() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "text" => Reply::new(200, &json!(null)),
        _ => Reply::ok().never(),
    });
    let job = Job::with_input(&[line("text"), line("silent")].join("\n"));
    let (code, log) = finish(job.run(&server).args(["--timeout", "100ms", "--max-retries", "1"]));
    assert_eq!(code, 1, "{log}");
    assert_eq!(job.summary()["calls"], 3, "one for the text, two that timed out");
    let error = &job.lines("out.errors.jsonl")[0];
    assert_eq!((&error["response"], &error["error"]["code"]), (&Value::Null, &json!("timeout")));
    job.assert_adds_up(2);
}

#[test]
fn an_item_is_given_up_at_its_deadline_and_says_so() {
    let server = Server::new(|_| Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 5));
    let job = Job::new(1);
    let (code, log) = finish(job.run(&server).args(["--deadline", "100ms"]));
    assert_eq!(code, 1, "{log}");
    let rows = job.lines("out.report.jsonl");
    assert_eq!((&rows[0]["reason"], &rows[0]["attempts"]), (&json!("deadline"), &json!(0)));
    assert_eq!(rows[0]["deferrals"], job.summary()["calls"]);
    job.assert_adds_up(1);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_seed_repeats_every_delay_and_another_one_does_not() {
    let server = Server::new(|_| Reply::error(500, "oops"));
    let delays = |seed: &str| {
        let job = Job::new(1);
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url(), "--max-retries", "4"]);
        command.args(["--seed", seed, "--log-format", "json", "-v"]);
        command.env("PACELINE_UPSTREAM__GENERIC__RETRY__BASE", "20ms");
        let (code, log) = finish(&mut command);
        assert_eq!(code, 1, "{log}");
        let delays: Vec<_> = log.split("next try in ").skip(1).map(|rest| rest.split('"').next()).collect();
        assert_eq!(delays.len(), 4, "{log}");
        delays.into_iter().map(|delay| delay.expect("a delay").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(delays("7"), delays("7"));
    assert_ne!(delays("7"), delays("8"));
}

/// A site may forbid as many paths as it has.
#[test]
fn of_many_scopes_that_are_stopped_five_are_told_and_the_others_are_with_verbose() {
    let line =
        |n: usize| json!({"custom_id": n.to_string(), "url": format!("/path-{n}"), "body": {"item": n}}).to_string();
    let input: Vec<String> = (0..12).map(line).collect();
    for (flags, told) in [(&[][..], 5), (&["-v"], 12)] {
        let server = Server::new(|_| Reply::error(403, "forbidden"));
        let job = Job::with_input(&(input.join("\n") + "\n"));
        let flags = [flags, &["--scope", "endpoint", "--api-key-env", "KEY", "--concurrency", "1"]].concat();
        let (code, log) = finish(job.run(&server).args(flags).env("KEY", "k"));
        assert_eq!((code, server.count()), (3, 12), "{log}");
        assert_eq!(log.matches(" makes no more calls").count(), told, "{log}");
    }
}

/// A 200 carries no error message: the rule that made it a failure is the cause.
#[test]
fn a_success_that_a_rule_makes_a_failure_names_the_rule() {
    let server = Server::new(|_| Reply::ok().with_header("x-busy", "1"));
    let job = Job::new(2);
    let rule = "[[upstream.generic.rule]]\nmatch = { status = 200, header = \"x-busy\" }\nclass = \"transient\"\n";
    std::fs::write(job.path("paceline.toml"), format!("[upstream.generic]\n{rule}")).expect("a file");
    let (code, log) = finish(job.run(&server).args(["--max-retries", "0"]));
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("item failed: status 200 OK, which is a failure by the rule "), "{log}");

    let job = Job::new(2);
    let rule = rule.replace("transient", "account") + "scope = \"host\"\n";
    std::fs::write(job.path("paceline.toml"), format!("[upstream.generic]\n{rule}")).expect("a file");
    let (code, log) = finish(job.run(&server).args(["--concurrency", "1"]));
    let told = "paceline.toml, line 4) stops these calls: 200 (item item-0 of ";
    assert!(code == 3 && log.contains("rule 1 (") && log.contains(told) && log.contains("); fix the cause, "), "{log}");
    assert!(!log.contains("the provider refuses"), "{log}");
    let (code, log) =
        finish(job.paceline().args(["run", "in.jsonl", "-o", "other.jsonl", "--base-url", "127.0.0.1:9"]));
    assert!(code == 2 && log.contains("expected http:// or https:// before it"), "{log}");
    let check = job.paceline().args(["check", "--base-url", &server.url()]).ended_with_output();
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        check.contains("rule 1 ")
            && check.contains("status 200, header x-busy -> account")
            && check.contains("provider generic"),
        "{check}"
    );
}

#[test]
fn quiet_tells_the_first_failures_and_how_many_more_there_are() {
    let server = Server::new(|_| Reply::error(400, "bad_request"));
    let job = Job::new(30);
    let (code, log) = finish(job.run(&server).args(["-q", "--stop-after-same", "0"]));
    assert_eq!((code, log.matches("item failed").count()), (1, 5), "{log}");
    assert!(log.contains("25 more items failed; "), "{log}");
}
