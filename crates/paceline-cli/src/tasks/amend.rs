//! `paceline tasks retry` and `cancel`: changes of items by a person.

use paceline_store::work::{Amend, Filter, State, WorkClock, WorkStore};
use serde_json::json;

use super::list::state;
use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::{output, text};

/// `paceline tasks retry` and `paceline tasks cancel`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Only these items
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Only items in these states; may be repeated
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,
    /// Only items of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Every item that can be, when nothing else says which
    #[arg(long, conflicts_with_all = ["keys", "state", "group"])]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Changes the items and returns how many there were.
///
/// # Errors
/// Refuses what is no store, keys that it does not have, and a command that names no items.
pub(crate) async fn command(args: Args, amend: Amend) -> Result<Status, Failure> {
    if args.keys.is_empty() && args.state.is_empty() && args.group.is_none() && !args.all {
        return Err(Failure::refused("name the items: KEY ..., --state, --group, or --all for every one"));
    }
    let store = args.store.open(&WorkClock::system()).await?;
    refuse_unknown(&*store, &args.keys).await?;
    let filter = Filter { states: args.state, group: args.group, keys: args.keys };
    let changed = store.amend(filter, amend).await.map_err(Failure::refused)?;
    output::print(|out| match args.json {
        true => writeln!(out, "{}", json!({ "changed": changed })),
        false => writeln!(out, "{}", describe(amend, changed)),
    })?;
    Ok(Status::Success)
}

async fn refuse_unknown(store: &dyn WorkStore, keys: &[String]) -> Result<(), Failure> {
    for key in keys {
        let found = store.list(Filter::keys([key]), 0, 1).await.map_err(Failure::interrupted)?;
        if found.is_empty() {
            return Err(Failure::refused(format!("no item is called {key:?}, and nothing was changed")));
        }
    }
    Ok(())
}

fn describe(amend: Amend, changed: u64) -> String {
    let items = text::counted(changed, "item");
    match (amend, changed) {
        (Amend::Retry, 0) => "nothing to retry: what succeeded or is worked on stays as it is".to_owned(),
        (Amend::Retry, 1) => "1 item waits for the next free worker".to_owned(),
        (Amend::Retry, _) => format!("{items} wait for the next free worker"),
        (Amend::Cancel, 0) => "nothing to cancel: what has ended stays as it is".to_owned(),
        (Amend::Cancel, _) => format!("{items} cancelled"),
    }
}
