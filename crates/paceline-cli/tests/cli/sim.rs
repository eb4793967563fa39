//! `paceline sim`: the same seed gives the same bytes, and wrong names are answered with the right ones.

use serde_json::Value;

use crate::support::{Job, finish};

fn sim(args: &[&str]) -> String {
    let output = Job::new(0).paceline().arg("sim").args(args).output().expect("the binary runs");
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
    let expected = "scenario policy clients hints seed goodput waste lost undone makespan p99_s jain up_s down_s";
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
fn a_comparison_fits_a_terminal() {
    let args = ["compare", "--scenario", "n10-30", "--scenario", "d5-5", "--policy", "auto", "--policy", "openai"];
    let table = sim(&[&args[..], &["--each"]].concat());
    assert_eq!(table.lines().count(), 1 + 2 * 3, "{table}");
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    let medians: Value = serde_json::from_str(&sim(&[&args[..], &["--json"]].concat())).expect("JSON");
    assert_eq!(medians.as_array().map(Vec::len), Some(4));
    assert!(medians[0]["seeds"] == 1 && medians[0]["seed"].is_null());
}
