//! `paceline sim`: the same seed gives the same bytes, and wrong names are answered with the right ones.

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, finish};

fn sim(args: &[&str]) -> String {
    let output = Job::new(0).paceline().arg("sim").args(args).ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn one_seed_gives_the_same_bytes_and_another_one_others() {
    let run = |seed: &str| sim(&["run", "--scenario", "n10-30", "--policy", "tenacity", "--seed", seed, "--json"]);
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
    let measures: Value = serde_json::from_str(&run("3")).expect("JSON");
    let keys: Vec<_> = measures.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected =
        "scenario policy clients hints seed goodput waste lost undone makespan p99_s jain up_s down_s too_good";
    assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
}

#[test]
fn a_scenario_may_be_a_file() {
    let job = Job::new(0);
    let listed = sim(&["list"]);
    assert!(listed.starts_with("tb-1s "), "{listed}");
    let (code, log) = finish(job.paceline().args(["sim", "run", "--scenario", "missing.toml"]));
    assert!(code == 2 && log.contains("missing.toml"), "{log}");
    let (code, log) = finish(job.paceline().args(["sim", "run", "--scenario", "tb-1s", "--policy", "magic"]));
    assert!(code == 2 && log.contains("\"magic\", expected one of auto"), "{log}");
}

#[test]
fn a_table_that_scales_is_told_phase_by_phase() {
    let run = ["run", "--scenario", "table-scales", "--policy", "fixed"];
    let table = sim(&run);
    assert!(table.contains("80 % after") && table.lines().all(|line| line.len() <= 80), "{table}");
    let measures: Value = serde_json::from_str(&sim(&[&run[..], &["--json"]].concat())).expect("JSON");
    let phases = measures["phases"].as_array().expect("phases");
    assert!(phases.len() == 3 && phases[0]["workers"] == 4 && phases[1]["capacity"] == 100.0, "{measures}");
}

#[test]
fn a_comparison_fits_a_terminal() {
    let args = ["compare", "--scenario", "n10-30", "--scenario", "d5-5", "--policy", "auto", "--policy", "openai"];
    let table = sim(&[&args[..], &["--each"]].concat());
    assert_eq!(table.lines().count(), 2 * (2 + 2 * 3) + 1, "one client, and sixteen: {table}");
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    let medians: Value = serde_json::from_str(&sim(&[&args[..], &["--json"]].concat())).expect("JSON");
    assert_eq!(medians.as_array().map(Vec::len), Some(2 * 2 * 2));
    assert!(medians[0]["seeds"] == 1 && medians[0]["seed"].is_null());
}

#[test]
fn a_list_fits_a_terminal() {
    let listed = sim(&["list"]);
    assert!(listed.lines().count() > 30 && listed.lines().all(|line| line.len() <= 80), "{listed}");
}

#[test]
fn a_trace_adds_up_to_the_figures() {
    let job = Job::new(0);
    let run = "sim run --scenario n10-30 --policy aws-inf --trace trace.csv --json";
    let output = job.paceline().args(run.split(' ')).ended_with_output();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let measures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let same = sim(&["run", "--scenario", "n10-30", "--policy", "aws-inf", "--json"]);
    assert_eq!(measures, serde_json::from_str::<Value>(&same).expect("JSON"), "a trace changes no figure");

    let trace = std::fs::read_to_string(job.path("trace.csv")).expect("a table");
    let mut rows = trace.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let columns = rows.next().expect("a head");
    assert_eq!(columns[..5], ["time_s", "sent", "admitted", "refused", "succeeded"]);
    let rows: Vec<_> = rows.collect();
    let sum = |name: &str| -> u32 {
        let column = columns.iter().position(|column| *column == name).expect(name);
        rows.iter().map(|row| row[column].parse::<u32>().expect("a count")).sum()
    };
    assert_eq!((sum("succeeded"), sum("sent")), (300, sum("admitted") + sum("refused")));
    assert_eq!(json!(f64::from(sum("refused")) / 300.0), measures["waste"]);
}

/// Nothing limits these calls, and the name could ring a bell.
#[test]
fn a_scenario_of_ones_own_can_be_called_anything() {
    let job = Job::new(0);
    let scenario = "name = \"free \\u0007<b>\"\nitems = 20\nservice = \"fast\"\n";
    std::fs::write(job.path("free.toml"), scenario).expect("it can be written");
    let run = "sim run --scenario free.toml --policy none --trace trace.csv";
    let output = job.paceline().args(run.split(' ')).ended_with_output();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.contains(&7), "no bell rings");
    let trace = std::fs::read_to_string(job.path("trace.csv")).expect("a table");
    assert!(trace.lines().nth(1).is_some_and(|line| line.starts_with("0,20,20,0,20,0,20,,20,")), "{trace}");
}

pub(crate) const CLASSIC: &str = "responsive --compat --initial 1ms --max 15m --max-randomization 2m --up 1.5 --down 0.6 \
                       --randomization 0 --threshold 5 --require 200ms:until-first-success,60ms --requests 90";

#[test]
fn the_classic_graph_is_written_to_the_nanosecond() {
    let job = Job::new(0);
    let args = CLASSIC.split_whitespace().chain("--csv delay.csv --json".split(' '));
    let output = job.paceline().arg("sim").args(args).ended_with_output();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let figures = ["requests", "succeeded", "went_up", "went_down"].map(|key| summary[key].as_u64());
    assert_eq!(figures, [90, 63, 27, 12].map(Some));
    assert_eq!(summary["climbed_to_ms"], json!(291.929_238));

    let csv = std::fs::read_to_string(job.path("delay.csv")).expect("a table");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("request,delay_ns,succeeded"));
    let rows: Vec<Vec<u64>> =
        lines.map(|line| line.split(',').map(|field| field.parse().expect("a number")).collect()).collect();
    assert_eq!((rows.len(), &rows[0], &rows[15]), (90, &vec![1, 0, 0], &vec![16, 291_929_238, 1]));
    assert_eq!(rows.iter().map(|row| row[1]).sum::<u64>() / 1_000, 7_463_617);
    assert_eq!(rows.iter().map(|row| row[2]).sum::<u64>(), 63);
}

#[test]
fn the_summary_of_the_responsive_delay_names_what_happened() {
    let text = sim(&CLASSIC.split_whitespace().collect::<Vec<_>>());
    assert!(text.starts_with("63 of 90 requests succeeded\n") && text.contains("7,546.067 ms"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let job = Job::new(0);
    let (code, log) = finish(job.paceline().args(["sim", "responsive", "--up", "0.5"]));
    assert!(code == 2 && log.contains("responsive.up is 0.5, expected a number above 1"), "{log}");
    let (code, log) = finish(job.paceline().args(["sim", "responsive", "--require", "1s,2s"]));
    assert!(code == 2 && log.contains("expected a gap, or two"), "{log}");
}

/// A folder with a configuration of two upstreams.
fn configured() -> Job {
    let job = Job::new(0);
    let text = "[upstream.mine]\nprovider = \"generic\"\nbase_url = \"http://127.0.0.1:9\"\npace = \"fixed\"\nrpm = 600\n\n\
         [[upstream.mine.tier]]\nmodel = \"slow\"\nrpm = 60\n\n\
         [upstream.other]\nprovider = \"generic\"\nbase_url = \"http://127.0.0.1:9\"\ntpm = 60000\nlimits = [\"100 per 2h\"]\n";
    std::fs::write(job.path("mine.toml"), text).expect("writable");
    job
}

#[test]
fn a_plan_says_how_long_a_job_takes_and_what_it_waits_for() {
    let job = configured();
    let plan = |args: &[&str]| {
        let args = [&["sim", "plan", "--config", "mine.toml"][..], args].concat();
        let output = job.paceline().args(args).ended_with_output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = plan(&["--upstream", "mine", "--items", "1000"]);
    assert!(text.contains("exactly the configured limits") && text.contains("1,000 succeed"), "{text}");
    assert!(text.contains("the spacing of the configured limit"), "{text}");

    let json = |args: &[&str]| -> Value { serde_json::from_str(&plan(&[args, &["--json"]].concat())).expect("JSON") };
    let minute = |plan: &Value| plan["seconds"].as_f64().expect("seconds") / 60.0;
    let account = json(&["--upstream", "mine", "--items", "300"]);
    assert!((0.4..0.6).contains(&minute(&account)), "600 a minute: {account}");
    assert_eq!((&account["calls"], &account["refused"], &account["scenario"]), (&300.into(), &0.into(), &Value::Null));
    let tier = json(&["--upstream", "mine", "--items", "300", "--model", "slow"]);
    assert!((4.8..5.2).contains(&minute(&tier)), "60 a minute: {tier}");
    let flag = json(&["--upstream", "mine", "--items", "300", "--limit", "60rpm"]);
    assert!((4.8..5.2).contains(&minute(&flag)), "flags win: {flag}");
    let there = json(&["--upstream", "mine", "--items", "40", "--scenario", "b2-20"]);
    assert!(there["refused"].as_u64() > Some(0), "600 a minute where 120 are allowed: {there}");

    let other = plan(&["--upstream", "other", "--items", "150"]);
    assert!(other.contains("note: limits on tokens are not looked at; --tokens N says"), "{other}");
    assert!(other.contains("note: nothing leaves for 2h 00m: `paceline run` ends there"), "{other}");
    let tokens = json(&["--upstream", "other", "--items", "100", "--tokens", "1200"]);
    assert_eq!(tokens["tokens"], 120_000, "{tokens}");
}

#[test]
fn a_configuration_or_a_preset_can_be_the_policy() {
    let job = configured();
    let run = |args: &[&str]| {
        let args = [&["sim", "run", "--scenario", "b2-20", "--json"][..], args].concat();
        let output = job.paceline().args(args).ended_with_output();
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let mine = run(&["--config", "mine.toml", "--upstream", "mine"]);
    assert_eq!(mine["policy"], "upstream.mine");
    assert!(mine["waste"].as_f64() > Some(0.5), "ten calls a second where two are allowed: {mine}");
    let preset = run(&["--policy", "conservative"]);
    assert!(preset["waste"] == 0.0 && preset["makespan"].as_f64() > Some(3.0), "a call every two seconds: {preset}");
    let both = ["sim", "run", "--scenario", "b2-20", "--config", "mine.toml", "--policy", "auto"];
    let (code, log) = finish(job.paceline().args(both));
    assert!(code == 2 && log.contains("--policy and --config"), "{log}");
}

#[test]
fn a_run_that_cannot_be_made_is_told_after_those_that_can() {
    let job = Job::new(0);
    let five = "name = \"five\"\nitems = 5\nservice = \"fast\"\n";
    std::fs::write(job.path("five.toml"), five).expect("writable");
    let compare =
        ["sim", "compare", "--scenario", "five.toml", "--policy", "fixed", "--clients", "1", "--clients", "9"];
    let output = job.paceline().args(compare).ended_with_output();
    let (table, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("1 client\n") && !table.contains("9 clients"), "{table}");
    assert!(log.contains("error: fixed in five with seed 1: 9 clients for 5 items"), "{log}");
    assert_eq!(output.status.code(), Some(1), "some could not be made");
    let (code, log) = finish(job.paceline().args(["sim", "compare", "--policy", "fixd"]));
    assert!(code == 2 && log.contains("there is no policy named \"fixd\""), "before anything is run: {log}");
}

#[test]
fn what_cannot_be_is_said_before_the_work() {
    let too_many = u64::MAX.to_string();
    for (args, text) in [
        (&["run", "--scenario", "n10-30", "--trace", "."][..], "cannot write .: it is a folder"),
        (&["responsive", "--csv", "nowhere/x"], "cannot write nowhere/x: there is no folder nowhere"),
        (&["run", "--scenario", "n10-30", "--policy", "slow"], "known, or a preset: "),
        (&["compare", "--scenario", "n10-30", "--policy", "slow"], "known, or a preset: "),
        (&["compare", "--config", "any.toml"], "--config any.toml does nothing here: `sim run` and `sim plan` take it"),
        (&["plan", "--items", "5", "--upstream", "mock", "--tokens", &too_many], "is not in 0..=1000000000"),
    ] {
        let (code, log) = finish(Job::new(0).paceline().arg("sim").args(args));
        assert!(code == 2 && log.contains(text), "{args:?}: {log}");
    }
}

#[test]
fn a_plan_looks_further_than_a_week() {
    let limits = ["--limit", "100 per 30d", "--pace", "fixed", "--base-url", "http://x.invalid"];
    let plan: Value =
        serde_json::from_str(&sim(&[&["plan", "--items", "101", "--json"], &limits[..]].concat())).expect("JSON");
    let days = plan["seconds"].as_f64().expect("a number") / 86_400.0;
    assert!((30.0..30.1).contains(&days), "{plan}");
}

/// The spacing of a limit is our own, and no provider's: both commands have to count it.
#[test]
fn a_plan_and_a_dry_run_tell_the_same_least_time() {
    for limit in ["60rpm", "10 per 1s", "10 per 1m", "2 per 1h"] {
        let (job, flags) = (Job::new(150), ["--base-url", "http://x.invalid", "--limit", limit]);
        let told = |args: &[&str]| -> Value {
            let output = job.paceline().args(args).arg("--json").args(flags).ended_with_output();
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        let plan = told(&["sim", "plan", "--items", "150"]);
        let dry_run = told(&["run", "in.jsonl", "-o", "out.jsonl", "--dry-run"]);
        assert_eq!(plan["oracle_seconds"], dry_run["seconds"], "{limit}");
        assert!(plan["seconds"].as_f64() >= plan["oracle_seconds"].as_f64(), "{plan}");
    }
}

#[test]
fn who_needs_longer_than_an_instant_is_not_as_good_as_the_oracle() {
    let job = Job::new(0);
    let all_at_once =
        "name = 'all'\nitems = 100\nservice = 'fast'\n[[limit]]\nshape = 'bucket'\nlimit = 100\nper = 1\n";
    std::fs::write(job.path("all.toml"), all_at_once).expect("a file");
    let output = job.paceline().args(["sim", "run", "--scenario", "all.toml", "--json"]).ended_with_output();
    let measures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(measures["goodput"].as_f64().expect("a number") <= 0.05, "{measures}");
}

#[cfg(not(feature = "charts"))]
#[test]
fn without_charts_a_picture_is_refused_with_the_way_to_get_one() {
    for args in [
        &["run", "--scenario", "n10-30", "--chart", "x.svg"][..],
        &["compare", "--chart", "x.svg"],
        &["responsive", "--svg", "x.svg"],
        &["responsive", "--png", "x.png"],
    ] {
        let (code, log) = finish(Job::new(0).paceline().arg("sim").args(args));
        let is_shown = log.contains("`cargo install --path crates/paceline-cli --features charts`");
        assert!(code == 2 && is_shown, "{args:?}: {log}");
    }
}

#[test]
fn a_plan_of_more_items_than_are_simulated_says_so() {
    let plan = |items: &str, flags: &[&str]| {
        let args = ["plan", "--upstream", "mock", "--limit", "600rpm", "--items", items];
        sim(&[&args[..], flags].concat())
    };
    let note = "10,000 items were simulated; the rest is taken to go as the second half of those did";
    assert!(plan("1000000000", &[]).contains("\nnote: 10,000 items were simulated; the rest is taken to go as"));
    assert!(!plan("10000", &[]).contains("simulated"));
    let json: Value = serde_json::from_str(&plan("1000000000", &["--json"])).expect("JSON");
    assert_eq!((&json["simulated"], json["notes"][0].as_str()), (&json!(10_000), Some(note)), "{json}");
}
