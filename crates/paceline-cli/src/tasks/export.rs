//! `paceline tasks export`: items as lines that `tasks add --from` takes.

use paceline_store::work::{Filter, State, WorkClock, WorkItem};
use serde::Serialize;
use serde_json::value::RawValue;

use super::compact::on_one_line;
use super::groups::Groups;
use super::list::state;
use super::pages::Pages;
use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::output;

/// `paceline tasks export`.
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
}

/// A line that `tasks add --from` takes.
#[derive(Serialize)]
struct Line<'a> {
    key: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "is_usual")]
    priority: i16,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<f64>,
    group: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    /// A part of what its calls are known by.
    created: String,
    #[serde(skip_serializing_if = "is_no")]
    may_be_done: bool,
}

/// Prints them, in the order in which they were added.
///
/// # Errors
/// Refuses what is no store; and reports one that cannot be read.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let store = args.store.open(&WorkClock::system()).await?;
    let groups = args.store.groups(&*store).await.map_err(Failure::interrupted)?;
    let filter = Filter { states: args.state, group: args.group, keys: Vec::new() };
    let mut pages = Pages::of(&*store, filter, args.limit);
    while let Some(items) = pages.next().await.map_err(Failure::interrupted)? {
        for item in &items {
            // It may have been removed since its page was read.
            let Some((_, payload, _)) = store.show(&item.key).await.map_err(Failure::interrupted)? else { continue };
            let line = line(item, &payload, &groups).map_err(Failure::interrupted)?;
            if !output::print_while_read(|out| writeln!(out, "{line}"))? {
                return Ok(Status::Success);
            }
        }
    }
    Ok(Status::Success)
}

fn line(item: &WorkItem, payload: &str, groups: &Groups) -> serde_json::Result<String> {
    // A payload that a program added may be any text.
    let payload = match on_one_line(payload) {
        Ok(payload) => RawValue::from_string(payload)?,
        Err(_) => serde_json::value::to_raw_value(payload)?,
    };
    serde_json::to_string(&Line {
        key: &item.key,
        payload: &payload,
        priority: item.priority,
        deadline: item.deadline.map(|deadline| deadline.as_secs_f64()),
        group: &item.group,
        not_before: item.not_before.filter(|at| *at > groups.now() && !item.state.is_final()).map(|at| at.to_string()),
        created: item.created.to_string(),
        may_be_done: groups.may_be_done(item),
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_usual(priority: &i16) -> bool {
    *priority == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_no(value: &bool) -> bool {
    !*value
}
