//! What has to be the same on all hosts of a job, and how a host learns what the others have.

use paceline_config::Upstream;
use paceline_store::Paths;
use paceline_store::blocks::{Difference, Settings, SharedJob};

use crate::args::Expect;
use crate::exit::Failure;
use crate::hosts::blocks::Known;
use crate::lines::format::Format;
use crate::run_args::{FormatFlag, RunArgs};
use crate::text;

/// The lines, which a host that has no input does not know.
const INPUT: &str = "input";
const FORMAT: &str = "format";
const ENDPOINT: &str = "endpoint";

/// Values of the upstream that decide what a line means, by their names in the configuration.
const OF_THE_UPSTREAM: [&str; 4] = ["base_url", "scope", "unknown_outcome", "idempotency_header"];

/// How a host sends lines: all but what the lines are.
///
/// # Errors
/// The file of `--expect` cannot be read.
pub(super) fn of_calls(args: &RunArgs, upstream: &Upstream) -> Result<Settings, Failure> {
    let mut settings = Settings::from([("provider".to_owned(), upstream.provider.to_string())]);
    for row in upstream.effective.iter().filter(|row| OF_THE_UPSTREAM.contains(&row.key.as_str())) {
        settings.insert(row.key.clone(), row.value.clone());
    }
    let expect = match &args.expect {
        None => "none".to_owned(),
        Some(Expect::Json) => "json".to_owned(),
        Some(Expect::Schema(path)) => {
            let schema = std::fs::read(path)
                .map_err(|error| Failure::refused(format!("--expect {}: {error}", path.display())))?;
            format!("a schema, {}", &blake3::hash(&schema).to_hex()[..16])
        }
    };
    settings.insert("expect".to_owned(), expect);
    let fallback = args.fallback.given().or(upstream.fallback.as_deref()).unwrap_or("none");
    settings.insert("fallback".to_owned(), fallback.to_owned());
    Ok(settings)
}

/// With what the lines are.
pub(super) fn with_input(calls: &Settings, known: &Known, format: &Format) -> Settings {
    let input = format!("{}, {}", text::counted(known.lines, "line"), known.hash);
    let of_lines = [(INPUT, input.as_str()), (FORMAT, format.name()), (ENDPOINT, format.endpoint())];
    let of_lines = of_lines.map(|(key, value)| (key.to_owned(), value.to_owned()));
    calls.clone().into_iter().chain(of_lines).collect()
}

/// The form of the lines of a job, and their endpoint, as its creator read them.
pub(super) fn form(job: &SharedJob) -> (FormatFlag, Option<&str>) {
    let form = match job.settings.get(FORMAT).map(String::as_str) {
        Some("bare") => FormatFlag::Bare,
        Some("anthropic") => FormatFlag::Anthropic,
        _ => FormatFlag::Batch,
    };
    (form, job.settings.get(ENDPOINT).map(String::as_str).filter(|endpoint| !endpoint.is_empty()))
}

/// Where a host that has no input differs from the job.
pub(super) fn differences(job: &SharedJob, calls: &Settings) -> Vec<(String, String, String)> {
    let of_lines = [INPUT, FORMAT, ENDPOINT];
    let there = job.settings.iter().filter(|(key, _)| !of_lines.contains(&key.as_str()));
    let keys: std::collections::BTreeSet<&String> = there.map(|(key, _)| key).chain(calls.keys()).collect();
    let value = |settings: &Settings, key: &String| settings.get(key).cloned().unwrap_or_else(|| "not set".to_owned());
    let both = keys.into_iter().map(|key| (key.clone(), value(&job.settings, key), value(calls, key)));
    both.filter(|(_, there, here)| there != here).collect()
}

/// The same for one that has.
pub(super) fn displayed(differences: Vec<Difference>) -> Vec<(String, String, String)> {
    let value = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
    differences.into_iter().map(|found| (found.key, value(found.there), value(found.here))).collect()
}

/// Why a host cannot work on a job: each setting in which it differs, with both values.
pub(super) fn refused(name: &str, differences: &[(String, String, String)]) -> Failure {
    let each = differences.iter().map(|(key, there, here)| format!("{key} is {there} in the job, and {here} here"));
    let advice = match differences.iter().any(|(key, ..)| key == INPUT) {
        true => "a job has one input: name another job with --job",
        false => {
            "all workers of a job send its lines alike: give this one the same settings, or name another job with --job"
        }
    };
    let each = each.collect::<Vec<_>>().join("; ");
    Failure::refused(format!("the job {} differs: {}; {advice}", text::printable(name), text::printable(&each)))
}

/// A host whose results are those of something else.
pub(super) fn other_results(paths: &Paths, name: &str) -> Failure {
    Failure::refused(format!(
        "{} is the result of another job than {}: choose another -o for this one",
        paths.output.display(),
        text::printable(name)
    ))
}
