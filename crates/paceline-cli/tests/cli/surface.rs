//! `check` and `stats`.

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, Reply, Server, finish};

fn output(command: &mut std::process::Command) -> String {
    let output = command.ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn check_says_where_each_value_came_from() {
    let job = Job::new(0);
    std::fs::write(job.path("paceline.toml"), "[upstream.mine]\nbase_url = \"http://127.0.0.1:9\"\nrpm = 500\n")
        .expect("writable");
    let text =
        output(job.paceline().args(["check", "--concurrency", "7"]).env("PACELINE_UPSTREAM__MINE__RETRY__BASE", "2s"));
    for expected in ["paceline.toml, line 3", "flag --concurrency", "PACELINE_UPSTREAM__MINE__RETRY__BASE", "default"] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let json: Value = serde_json::from_str(&output(job.paceline().args(["check", "--json"]))).expect("JSON");
    assert_eq!(json["upstream"], "mine");
    assert_eq!(json["values"]["retry.base"]["source"], "default");
}

#[test]
fn a_shell_completes_the_names_that_flags_take() {
    let script = output(Job::new(0).paceline().args(["completions", "bash"]));
    for names in [
        "model endpoint host group",
        "auto fixed aimd",
        "openai azure",
        "auto batch bare",
        "text json",
        "resend fail hold",
    ] {
        assert!(script.contains(&format!("compgen -W \"{names}")), "{names}");
    }
    let (code, log) = finish(Job::new(0).paceline().args(["check", "--upstream", "mock", "--scope", "planet"]));
    assert!(code == 2 && log.contains("planet"), "what is no name, the configuration refuses: {log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn each_level_of_verbose_says_more() {
    let server = Server::new(|arrival| match arrival.before % 2 {
        0 => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", "20"),
        _ => {
            Reply::ok().with_header("x-ratelimit-limit-requests", 50).with_header("x-ratelimit-remaining-requests", 49)
        }
    });
    let log = |flags: &[&str]| {
        // A folder, and thus a history of the limits, of its own.
        let job = Job::new(3);
        let mut command = job.run(&server);
        command.args(["--upstream", "openai", "--limit", "5rps", "--burst", "1"]).args(flags);
        let (code, log) = finish(command.env("OPENAI_API_KEY", "sk-of-this-test-alone"));
        assert!(code == 0 && !log.contains("of-this-test"), "{log}");
        log
    };
    let [usual, more, most] = [&[][..], &["-v"], &["-vv"]].map(log);
    assert!(!usual.contains("DEBUG") && more.contains("DEBUG") && !more.contains("TRACE"), "{more}");
    for expected in ["answered after", "retry-after-ms", "class=\"throttled\"", "requests: 49 of 50 left", "waits for "]
    {
        assert!(most.contains(expected), "{expected} in {most}");
    }
    // An item is named by its id.
    assert!(
        most.contains("item=\"item-") && !(0..3).any(|ordinal| most.contains(&format!("item={ordinal}"))),
        "{most}"
    );
}

#[test]
fn limits_are_taken_as_people_and_dashboards_write_them() {
    let job = Job::new(0);
    let values = |flags: &[&str]| {
        let text = output(job.paceline().args(["check", "--json", "--upstream", "openai"]).args(flags));
        serde_json::from_str::<Value>(&text).expect("JSON")["values"].clone()
    };
    let limits = [
        values(&["--limit", "500 RPM,200KTPM"]),
        values(&["--limit", "500rpm", "--limit", "200k tpm"]),
        values(&["--rpm", "500", "--tpm", "200k"]),
    ];
    for values in limits {
        assert_eq!((&values["rpm"]["value"], &values["tpm"]["value"]), (&"500".into(), &"200000".into()), "{values}");
    }
    assert_eq!(values(&["--workers", "7"])["concurrency.max"]["value"], "7");
}

#[test]
fn check_says_which_pace_acts_and_prints_the_presets() {
    let job = Job::new(0);
    let text = output(job.paceline().args(["check", "--upstream", "mock", "--pace", "moderate"]));
    assert!(
        text.contains("\npace fixed: the configured limits and at most 4 calls in flight (preset moderate, "),
        "{text}"
    );
    let table = output(job.paceline().args(["check", "--presets"]));
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    assert!(
        table.contains("\nmoderate            pace fixed, rps 2, burst 4, shape bucket, concurrency.max 4\n"),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&output(job.paceline().args(["check", "--presets", "--json"]))).expect("JSON");
    assert_eq!(json["openai-app"]["rph"], "1000");
}

#[test]
fn a_knob_that_does_not_act_under_the_pace_is_said_to() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    let config = format!(
        "[upstream.mine]\nbase_url = \"{}\"\nconcurrency = {{ kind = \"aimd\", floor = 5, max = 50 }}\n",
        server.url()
    );
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let text = output(job.paceline().arg("check"));
    assert!(
        text.contains("\npace auto: learns the limit, ") && text.contains(", at most 50 calls in flight "),
        "{text}"
    );
    let (_, idle) = text.split_once("does not act under this pace:\n").expect("a list of its own");
    let rows = idle.lines().take_while(|line| line.starts_with("  "));
    let idle_keys: Vec<_> = rows.map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    assert_eq!(idle_keys, ["concurrency.kind", "concurrency.floor"], "{idle}");
    let json: Value = serde_json::from_str(&output(job.paceline().args(["check", "--json"]))).expect("JSON");
    assert_eq!(json["idle"]["concurrency.floor"]["value"], "5");
    assert!(!output(job.paceline().args(["check", "--pace", "aimd"])).contains("does not act"));
    let (code, log) = finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl"]));
    assert!(
        code == 0
            && log.contains(
                "no effect under the pace auto, which learns the limit: concurrency.kind, concurrency.floor; "
            ),
        "{log}"
    );
}

#[test]
fn a_check_shows_the_proxy_of_the_environment_and_the_defaults_of_tasks() {
    let job = Job::new(0);
    let check = |address: &str, unproxied: &str| {
        let mut command = job.paceline();
        command.args(["check", "--json", "--base-url", address]).env("NO_PROXY", unproxied);
        command.env("HTTPS_PROXY", "http://me:sesame@127.0.0.1:9");
        serde_json::from_str::<Value>(&output(&mut command)).expect("JSON")
    };
    let shown = check("https://api.invalid/v1", "");
    let proxy = json!({"value": "http://[key]@127.0.0.1:9", "source": "environment variable HTTPS_PROXY"});
    assert_eq!(shown["values"]["proxy"], proxy);
    assert_eq!(shown["tasks_run"]["--max-retries"], json!({"value": "3", "source": "default"}));
    assert_eq!(shown["tasks_run"]["--first-delay"]["value"], "5s");
    for (address, unproxied) in [("http://127.0.0.1:1", ""), ("https://api.invalid/v1", ".invalid")] {
        assert_eq!(check(address, unproxied)["values"].get("proxy"), None, "{address}");
    }
}

#[test]
fn the_paces_with_a_delay_finish_a_job_that_is_refused_now_and_then() {
    for pace in ["responsive", "responsive-classic", "linear", "exponential"] {
        let server = Server::new(|arrival| match arrival.item.ends_with('7') && arrival.before == 0 {
            true => Reply::error(429, "too fast"),
            false => Reply::ok(),
        });
        let job = Job::new(30);
        let mut run = job.run(&server);
        run.env("PACELINE_UPSTREAM__GENERIC__RESPONSIVE__INITIAL", "2ms");
        run.env("PACELINE_UPSTREAM__GENERIC__PACE", pace);
        if pace.starts_with("responsive") {
            assert_eq!(finish(&mut run).0, 0, "{pace}");
        } else {
            assert_eq!(finish(&mut run).0, 2, "{pace} has no such table");
            assert_eq!(finish(run.env_remove("PACELINE_UPSTREAM__GENERIC__RESPONSIVE__INITIAL")).0, 0, "{pace}");
        }
        assert_eq!(job.lines("out.jsonl").len(), 30, "{pace}");
        let json: Value = serde_json::from_str(&output(job.paceline().args(["stats", "--json"]))).expect("JSON");
        let went_up = &json["scopes"][0]["responsive"]["went_up"];
        assert_eq!(went_up.as_u64().is_some_and(|ups| ups > 0), pace.starts_with("responsive"), "{json}");
    }
}

#[test]
fn stats_read_the_journal_of_a_job() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-4" => Reply::error(400, "never"),
        _ => Reply::ok(),
    });
    let job = Job::new(10);
    assert_eq!(finish(job.run(&server).args(["--limit", "600rpm", "--burst", "10"])).0, 1);
    let json: Value =
        serde_json::from_str(&output(job.paceline().args(["stats", "out.jsonl", "--json"]))).expect("JSON");
    assert_eq!((&json["succeeded"], &json["failed"], &json["calls"]), (&9.into(), &1.into(), &10.into()));
    let window = &json["account"]["windows"][0];
    for (key, value) in
        [("requests_last_minute", 10), ("limit_per_minute", 600), ("burst_limit", 10), ("total_requests_tracked", 10)]
    {
        assert_eq!(window[key], value, "{key} in {window}");
    }
    assert!(window["burst_tokens_remaining"].is_u64());
    assert!(output(job.paceline().arg("stats")).contains("9 succeeded, 1 failed"));
    let items = output(job.paceline().args(["stats", "--items", "--json"]));
    let row: Value = serde_json::from_str(items.trim()).expect("one row");
    assert_eq!(row["custom_id"], "item-4");
    assert_eq!(finish(job.paceline().args(["stats", "missing.jsonl"])).0, 2);
}

#[test]
fn completions_know_the_flags_in_every_shell() {
    let job = Job::new(0);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = output(job.paceline().args(["completions", shell]));
        assert!(script.contains("max-items") && script.contains("stats"), "{shell}: {script}");
    }
}
