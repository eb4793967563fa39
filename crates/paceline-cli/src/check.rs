//! `paceline check`: the limits in force, and who said so. Sends nothing and reads no key.

use serde_json::{Map, Value, json};

use crate::args::{CheckArgs, Everywhere};
use crate::exit::{Failure, Status};
use crate::output;
use crate::upstream;

/// Prints every value in force.
///
/// # Errors
/// As for a run: the first value that cannot be.
pub(crate) fn command(args: &CheckArgs, everywhere: &Everywhere) -> Result<Status, Failure> {
    let upstream = upstream::resolve(&args.upstream, everywhere)?;
    output::print(|out| {
        if args.json {
            let values: Map<String, Value> = upstream
                .effective
                .iter()
                .map(|row| (row.key.clone(), json!({ "value": row.value, "source": row.source.to_string() })))
                .collect();
            writeln!(out, "{}", json!({ "upstream": upstream.name, "values": values }))
        } else {
            let width = |text: fn(&paceline::config::EffectiveValue) -> &str| {
                upstream.effective.iter().map(|row| text(row).chars().count()).max().unwrap_or_default()
            };
            let (keys, values) = (width(|row| &row.key), width(|row| &row.value));
            writeln!(out, "upstream {}", upstream.name).and_then(|()| {
                upstream
                    .effective
                    .iter()
                    .try_for_each(|row| writeln!(out, "  {:keys$}  {:values$}  {}", row.key, row.value, row.source))
            })
        }
    })?;
    Ok(Status::Success)
}
