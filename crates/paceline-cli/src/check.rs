//! `paceline check`: the limits in force with their sources. Sends nothing.

use std::io;

use clap::Args;
use paceline_config::{EffectiveValue, KeySource, Preset, Source};
use paceline_http::proxy_of_environment;
use paceline_providers::secrets::hidden;
use serde_json::{Map, Value, json};

use crate::args::{Everywhere, UpstreamArgs};
use crate::exit::{Failure, Status};
use crate::output;
use crate::text::{padded, width};
use crate::{tasks, upstream};

/// `paceline check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Print what each preset sets, whatever the upstream
    #[arg(long)]
    pub(crate) presets: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints every value in force.
///
/// # Errors
/// As for a run: the first value that cannot be.
pub(crate) fn command(args: &CheckArgs, everywhere: &Everywhere) -> Result<Status, Failure> {
    if args.presets {
        output::print(|out| presets(args.json, out))?;
        return Ok(Status::Success);
    }
    let mut upstream = upstream::resolve(&args.upstream, everywhere)?;
    upstream::check_access(&upstream)?;
    // A variable may be set only where the run will be. A file that the configuration names has to be there.
    if matches!(upstream.key, KeySource::File(_)) {
        upstream::headers(&upstream)?;
    }
    if let KeySource::Variable { name, required: true } = &upstream.key
        && std::env::var_os(name).is_none()
    {
        tracing::warn!("{name}, which has the key, is not set here: a run needs it");
    }
    if let Some((name, proxy)) = proxy_of_environment(&upstream) {
        let (key, source) = ("proxy".to_owned(), Source::Environment(name.to_owned()));
        upstream.effective.push(EffectiveValue { key, value: hidden(&proxy).into_owned(), source });
    }
    let tasks = tasks::run_defaults();
    output::print(|out| {
        if args.json {
            let all = json!({
                "upstream": upstream.name, "acting": upstream.acting, "values": object(&upstream.effective),
                "idle": object(&upstream.idle), "tasks_run": object(&tasks),
            });
            return writeln!(out, "{all}");
        }
        writeln!(out, "upstream {}\npace {}", upstream.name, upstream.acting)?;
        table(&upstream.effective, out)?;
        if upstream::limits_span_hosts(&upstream) {
            writeln!(out, "in force: {}", upstream::limits(&upstream))?;
        }
        if !upstream.idle.is_empty() {
            let why = match &upstream.via {
                Some(_) => "does not act here, for it is the gateway's:",
                None => "does not act under this pace:",
            };
            writeln!(out, "{why}")?;
            table(&upstream.idle, out)?;
        }
        writeln!(out, "under `tasks run` these act instead, as its flags set them:")?;
        table(&tasks, out)
    })?;
    Ok(Status::Success)
}

fn object(rows: &[EffectiveValue]) -> Map<String, Value> {
    rows.iter().map(|row| (row.key.clone(), json!({ "value": row.value, "source": row.source.to_string() }))).collect()
}

fn table(rows: &[EffectiveValue], out: &mut dyn io::Write) -> io::Result<()> {
    let widest = |text: fn(&EffectiveValue) -> &str| rows.iter().map(|row| width(text(row))).max().unwrap_or_default();
    let (keys, values) = (widest(|row| &row.key), widest(|row| &row.value));
    rows.iter().try_for_each(|row| {
        writeln!(out, "  {}  {}  {}", padded(&row.key, keys), padded(&row.value, values), row.source)
    })
}

/// The table of presets: one line for each, and its settings as the file would have them.
fn presets(json: bool, out: &mut dyn io::Write) -> io::Result<()> {
    if json {
        let settings = |preset: Preset| -> Map<String, Value> {
            preset.settings().into_iter().map(|row| (row.key, Value::String(row.value))).collect()
        };
        let all: Map<String, Value> =
            Preset::ALL.into_iter().map(|preset| (preset.as_str().to_owned(), settings(preset).into())).collect();
        return writeln!(out, "{}", Value::Object(all));
    }
    let rows = Preset::ALL.map(|preset| {
        let rows = preset.settings();
        let settings = rows.iter().map(|row| format!("{} {}", row.key, row.value)).collect::<Vec<_>>();
        (preset.as_str(), settings)
    });
    let names = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, settings) in rows {
        let mut first = name;
        for line in filled(&settings, WIDTH - names - 2) {
            writeln!(out, "{first:names$}  {line}")?;
            first = "";
        }
    }
    Ok(())
}

/// What every terminal has.
const WIDTH: usize = 80;

/// The settings with commas between them, in lines of at most `width` where they fit.
fn filled(settings: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (index, word) in settings.iter().enumerate() {
        let comma = if index + 1 < settings.len() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() + comma.len() <= width => {
                line.push(' ');
                line.push_str(word);
                line.push_str(comma);
            }
            _ => lines.push(format!("{word}{comma}")),
        }
    }
    lines
}
