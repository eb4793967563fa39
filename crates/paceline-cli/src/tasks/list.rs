//! `paceline tasks list`: the items of a store, one a line.

use paceline_store::work::{Filter, State, WorkClock};

use super::groups;
use super::pages::Pages;
use super::row::{HEAD, Row};
use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::output;

/// `paceline tasks list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Only items in these states; may be repeated
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,
    /// Only items of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// At most N items, the oldest first [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Prints them, in the order in which they were added.
///
/// # Errors
/// Refuses what is no store; and reports one that cannot be read.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let store = args.store.open(&WorkClock::system()).await?;
    let groups = args.store.groups(&*store).await.map_err(Failure::interrupted)?;
    let group = args.group.clone();
    let filter = Filter { states: args.state, group: args.group, keys: Vec::new() };
    let mut pages = Pages::of(&*store, filter, args.limit);
    let mut is_first = true;
    while let Some(items) = pages.next().await.map_err(Failure::interrupted)? {
        let wanted = output::print_while_read(|out| {
            if is_first && !args.json {
                writeln!(out, "{HEAD}")?;
            }
            for item in &items {
                let row = Row::of(item, &groups);
                match args.json {
                    true => writeln!(out, "{}", serde_json::to_string(&row)?)?,
                    false => writeln!(out, "{}", row.line())?,
                }
            }
            Ok(())
        })?;
        if !wanted {
            return Ok(Status::Success);
        }
        is_first = false;
    }
    if is_first && !args.json {
        let unknown = match &group {
            Some(group) => groups::unknown(&*store, group).await.map_err(Failure::interrupted)?,
            None => None,
        };
        let words = unknown.as_deref().unwrap_or("no such items");
        output::print(|out| writeln!(out, "{words}"))?;
    }
    Ok(Status::Success)
}

/// A state by its name.
///
/// # Errors
/// Lists the names.
pub(crate) fn state(name: &str) -> Result<State, String> {
    State::from_name(name).ok_or_else(|| {
        let names: Vec<_> = State::ALL.iter().map(|state| state.as_str()).collect();
        format!("expected one of {}", names.join(", "))
    })
}
