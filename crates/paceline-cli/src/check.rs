//! `paceline check`: the limits in force with their sources. Sends nothing.

use std::io;

use clap::Args;
use paceline_config::{Config, EffectiveValue, FleetSettings, KeySource, Preset, Source, Upstream};
use paceline_core::AloneShare;
use paceline_fleet::{MemberState, OnLoss};
use paceline_http::proxy_of_environment;
use paceline_providers::secrets::hidden;
use serde_json::{Map, Value, json};

use crate::args::{Everywhere, UpstreamArgs};
use crate::exit::{Failure, Status};
use crate::output;
use crate::text::{WIDTH, duration, padded, width};
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

/// Prints every value in force, of each upstream of a file where none is chosen.
///
/// # Errors
/// As for a run: the first value that cannot be.
pub(crate) fn command(args: &CheckArgs, everywhere: &Everywhere) -> Result<Status, Failure> {
    if args.presets {
        output::print(|out| presets(args.json, out))?;
        return Ok(Status::Success);
    }
    let config = upstream::loaded(upstream::overrides_of(&args.upstream), everywhere)?;
    let names = names(args, &config)?;
    let upstreams = names.iter().map(|name| checked(&config, name)).collect::<Result<Vec<_>, _>>()?;
    let tasks = tasks::run_defaults();
    output::print(|out| match &upstreams[..] {
        [only] if args.json => writeln!(out, "{}", as_json(only, &tasks)),
        all if args.json => {
            let all: Vec<Value> = all.iter().map(|upstream| as_json(upstream, &tasks)).collect();
            writeln!(out, "{}", json!({ "upstreams": all }))
        }
        all => {
            for (place, upstream) in all.iter().enumerate() {
                if place > 0 {
                    writeln!(out)?;
                }
                values(upstream, out)?;
            }
            writeln!(out, "under `tasks run` these act instead, as its flags set them:")?;
            table(&tasks, out)
        }
    })?;
    Ok(Status::Success)
}

/// The upstream that the flags choose; where they choose none of several, each that is configured, and what runs use by
/// default.
fn names<'a>(args: &CheckArgs, config: &'a Config) -> Result<Vec<&'a str>, Failure> {
    let UpstreamArgs { upstream, access, through, .. } = &args.upstream;
    let (chosen, mut names) = (config.chosen(), config.names());
    if upstream.is_some() || access.base_url.is_some() || through.via.is_some() || names.len() < 2 {
        return Ok(vec![chosen.map_err(Failure::refused)?]);
    }
    if let Some(other) = chosen.ok().filter(|chosen| !names.contains(chosen)) {
        names.insert(0, other);
    }
    Ok(names)
}

/// An upstream as a run would find it.
fn checked(config: &Config, name: &str) -> Result<Upstream, Failure> {
    let mut upstream = upstream::checked(config.upstream_of(name))?;
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
    Ok(upstream)
}

fn as_json(upstream: &Upstream, tasks: &[EffectiveValue]) -> Value {
    json!({
        "upstream": upstream.name, "acting": upstream.acting, "values": object(&upstream.effective),
        "idle": object(&upstream.idle), "tasks_run": object(tasks), "fleet": upstream.fleet.as_ref().map(fleet),
    })
}

/// The keys of a place in a fleet, as `stats --json` has them, of a process that has joined none yet; and what is set.
fn fleet(settings: &FleetSettings) -> Value {
    let FleetSettings { url, on_loss, lease, weight, alone_share, .. } = settings;
    let alone: Vec<_> = alone_share.iter().map(AloneShare::to_string).collect();
    json!({
        "members": null, "share": null, "lease_ms": null, "quarantine": null, "reader": null,
        "state": MemberState::Out.as_str(),
        "set": {
            "address": hidden(url), "lease_ms": lease.as_millis() as u64, "on_loss": on_loss.as_str(), "weight": weight,
            "alone_share": alone,
        },
    })
}

fn values(upstream: &Upstream, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "upstream {}\npace {}", upstream.name, upstream.acting)?;
    table(&upstream.effective, out)?;
    if upstream::limits_span_hosts(upstream) {
        writeln!(out, "in force: {}", upstream::limits(upstream))?;
    }
    if let Some(fleet) = &upstream.fleet {
        writeln!(out, "{}", in_a_fleet(fleet))?;
    }
    if upstream.idle.is_empty() {
        return Ok(());
    }
    let why = match &upstream.via {
        Some(_) => "does not act here, for it is the gateway's:",
        None => "does not act under this pace:",
    };
    writeln!(out, "{why}")?;
    table(&upstream.idle, out)
}

fn in_a_fleet(settings: &FleetSettings) -> String {
    let FleetSettings { url, on_loss, lease, weight, alone_share, .. } = settings;
    let alone: Vec<_> = alone_share.iter().map(AloneShare::to_string).collect();
    let without = match (on_loss, &alone[..]) {
        (OnLoss::Keep, _) => "its last share".to_owned(),
        (OnLoss::Strict, []) => "nothing".to_owned(),
        (OnLoss::Strict, alone) => alone.join(", "),
    };
    format!(
        "in a fleet, whose store {} is not asked here: weight {weight}, a lease of {}, and without the store {without}",
        hidden(url),
        duration(*lease)
    )
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
