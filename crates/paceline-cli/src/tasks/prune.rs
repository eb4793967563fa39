//! `paceline tasks prune`: removes items that ended long ago.

use std::time::Duration;

use paceline_store::work::{Filter, Pruned, PrunedKeys, State, WorkClock};
use serde_json::json;

use super::list::state;
use super::store::StoreArgs;
use crate::args::duration;
use crate::exit::{Failure, Status};
use crate::{output, text};

/// `paceline tasks prune`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Items that ended so long ago; 0 for all that have ended
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    older_than: Duration,
    /// Only items that ended in these states: succeeded, fallback, failed, skipped, cancelled; may be repeated [default: in any]
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', value_parser = ended)]
    state: Vec<State>,
    /// Only items of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Forget their keys too, and those of items that were removed before and ended as long ago: each may be added again
    #[arg(long)]
    forget_keys: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Removes them, with their payloads and decisions, and tells how many there were.
///
/// # Errors
/// Refuses what is no store; and reports a failure during the run.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let store = args.store.open(&WorkClock::system()).await?;
    let filter = Filter { states: args.state, group: args.group, keys: Vec::new() };
    let keys = if args.forget_keys { PrunedKeys::Forget } else { PrunedKeys::Keep };
    let removed = store.prune(filter, args.older_than, keys).await.map_err(Failure::interrupted)?;
    let Pruned { items, keys: forgotten, under_way } = removed;
    output::print(|out| match (items, forgotten) {
        _ if args.json => {
            writeln!(out, "{}", json!({ "removed": items, "forgotten": forgotten, "under_way": under_way }))
        }
        (0, 0) if under_way > 0 => Ok(()),
        (0, 0) => writeln!(out, "nothing to remove: no such item ended so long ago"),
        (_, 0) => writeln!(out, "{} removed", text::counted(items, "item")),
        _ => writeln!(
            out,
            "{} removed, and {} of items that were removed before forgotten",
            text::counted(items, "item"),
            text::counted(forgotten, "key")
        ),
    })?;
    if under_way > 0 && !args.json {
        let items = text::counted(under_way, "cancelled item");
        let stay = if under_way == 1 { "stays: its call is" } else { "stay: their calls are" };
        output::print(|out| writeln!(out, "{items} {stay} still under way; give the same command again in a while"))?;
    }
    Ok(Status::Success)
}

fn ended(name: &str) -> Result<State, String> {
    let states = || State::ALL.into_iter().filter(|state| state.is_final());
    state(name).ok().filter(|state| state.is_final()).ok_or_else(|| {
        let names: Vec<_> = states().map(State::as_str).collect();
        format!("expected one of {}", names.join(", "))
    })
}
