//! `paceline tasks retry` and `cancel`: changes of items by a person.

use std::ops::RangeInclusive;
use std::sync::Arc;

use paceline::clock;
use paceline_core::{GiveUp, Timestamp};
use paceline_store::work::{Amend, Filter, State, WorkClock, WorkItem, WorkStore};
use serde_json::json;

use super::groups;
use super::held::{self, Held};
use super::list::state;
use super::pages::Pages;
use super::same_at_each_try::{CallIds, Shown};
use super::store::StoreArgs;
use crate::database::not_begun;
use crate::exit::{Failure, Status};
use crate::only::{has_status, statuses};
use crate::{output, text};

/// Which items: `paceline tasks cancel`, and a part of `retry`.
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
    /// All items to which this applies; needed where nothing else selects some
    #[arg(long, conflicts_with_all = ["keys", "state", "group"])]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `paceline tasks retry`.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    items: Args,
    /// Also items whose call may have been executed: failed or held for that reason, or cancelled during the call; not needed
    /// with KEY
    #[arg(long)]
    may_be_done: bool,
    /// Send the items once more, also those that succeeded: with the same value of `--idempotency-header`, by which a receiver
    /// that has them drops them. For each KEY, or with `--since`
    #[arg(long)]
    again: bool,
    /// With `--again`: all items that succeeded since then; with `--state`, those that ended in these states since then. An
    /// instant, a day or how long ago, such as 2027-01-31T06:00:00Z, 2027-01-31 or 3d
    #[arg(long, value_name = "TIME", value_parser = text::past, requires = "again", conflicts_with = "keys")]
    since: Option<text::Past>,
    /// With `--since`: only those that ended before that
    #[arg(long, value_name = "TIME", value_parser = text::past, requires = "since")]
    until: Option<text::Past>,
    /// With `--again`: with another value, so that a receiver takes them for new ones
    #[arg(long, requires = "again")]
    new_id: bool,
    /// Only items whose last answer had one of these statuses, such as 403,5xx
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',', value_parser = statuses)]
    only_status: Vec<RangeInclusive<u16>>,
    /// Open what `report` names as held (Retry-After, a used-up quota), for these items: a group, or a scope such as a host; may
    /// be repeated
    #[arg(long, value_name = "NAME")]
    open: Vec<String>,
}

impl Args {
    /// Whether they name items, if only by `--all`.
    const fn names_some(&self) -> bool {
        self.all || !self.keys.is_empty() || !self.state.is_empty() || self.group.is_some()
    }
}

impl RetryArgs {
    fn check(&self) -> Result<(), Failure> {
        if self.again && self.items.keys.is_empty() && self.since.is_none() {
            return Err(Failure::refused(
                "--again sends items that succeeded once more: name each of them by its KEY, or say since when they did (--since)",
            ));
        }
        if !self.only_status.is_empty() && !self.items.names_some() {
            return Err(Failure::refused("--only-status narrows a choice: add --all, --group, --state or KEY"));
        }
        let at = |past: text::Past| past.before(clock::wall());
        match (self.since.map(at), self.until.map(at)) {
            (Some(since), Some(until)) if until <= since => {
                Err(Failure::refused("--until is not after --since: there is no time between them"))
            }
            _ => Ok(()),
        }
    }
}

/// Lets the items wait again, and tells how many. What ended because it may have been done is named by its key or the flag.
///
/// # Errors
/// Refuses what is no store, keys that it does not have, and a command that names no items.
pub(crate) async fn retry(args: RetryArgs) -> Result<Status, Failure> {
    args.check()?;
    let RetryArgs { items, may_be_done, again, since, until, new_id, only_status, open } = args;
    let (as_json, all) = (items.json, may_be_done || !items.keys.is_empty());
    let args = items.store.clone();
    let (store, filter) = named(items).await?;
    let group = filter.group.clone();
    let mut held = Held::of(&*store).await.map_err(Failure::interrupted)?;
    let open = held.named(&open)?;
    // What a retry makes wait has other states.
    held.retain_of(&*store, &filter).await.map_err(Failure::interrupted)?;
    held.leave_out(&open);
    let all_retried = match (again, since) {
        (true, Some(since)) => {
            let now = store.now().await.map_err(Failure::interrupted)?;
            let between = (since.before(now), until.map(|until| until.before(now)));
            Retried::again(again_of(&*store, filter.clone(), between, new_id).await?)
        }
        (true, None) => {
            Retried::again(store.amend(filter.clone(), Amend::Again { as_new: new_id }).await.map_err(not_begun)?)
        }
        (false, _) => retry_items(&*store, filter.clone(), all, &only_status).await?,
    };
    let Retried { changed, cancelled, may_be_done } = all_retried;
    let retried = || retried(changed, cancelled);
    // For what is done no pause of a server ends.
    let open = if changed > 0 { open } else { Vec::new() };
    if !open.is_empty() {
        held::open(&*store, &open, &filter).await.map_err(Failure::interrupted)?;
    }
    let items = text::counted(may_be_done, "item");
    let none = match (again, since) {
        (true, Some(_)) => NONE_ENDED_THEN.to_owned(),
        (true, None) => UNDER_WAY.to_owned(),
        (false, _) => NONE_TO_RETRY.to_owned(),
    };
    let nothing = nothing(&*store, group.as_deref(), "retry", none).await?;
    let known = known_by(&*store, new_id).await?;
    let held = if changed > 0 && !as_json { held.lines() } else { Vec::new() };
    output::print(|out| match may_be_done {
        _ if as_json => {
            let (again, left_out) = if all { (may_be_done, 0) } else { (0, may_be_done) };
            let figures =
                json!({ "changed": changed, "cancelled": cancelled, "may_be_done": again, "left_out": left_out });
            writeln!(out, "{figures}")
        }
        0 if changed == 0 => writeln!(out, "{nothing}"),
        0 if again => writeln!(out, "{}, {known}", retried()),
        0 => writeln!(out, "{}", retried()),
        _ if all => {
            writeln!(out, "{}; the call of {items} may have been executed before, and is made again", retried())
        }
        _ => writeln!(
            out,
            "{}; left out: {items} whose call may have been executed; check the server, then name each KEY, or add \
             --may-be-done",
            if changed > 0 { retried() } else { "nothing is retried".to_owned() },
        ),
    })?;
    output::print(|out| held.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    if !as_json && !open.is_empty() {
        print_opened(&args, &*store, &open).await?;
    }
    Ok(Status::Success)
}

async fn print_opened(args: &StoreArgs, store: &dyn WorkStore, names: &[String]) -> Result<(), Failure> {
    let opens = match args.has_worker(store).await.map_err(Failure::interrupted)? {
        Some(true) => "is open within seconds",
        Some(false) => "is open for the next worker: none is at work",
        None => "is open within seconds, if a worker is at work",
    };
    let opened = names.iter().map(|name| format!("{} {opens}", text::printable(name)));
    output::print(|out| opened.clone().try_for_each(|line| writeln!(out, "{line}")))
}

/// Cancels the items, and tells how many.
///
/// # Errors
/// As for [`retry`].
pub(crate) async fn cancel(args: Args) -> Result<Status, Failure> {
    let as_json = args.json;
    let (store, filter) = named(args).await?;
    let group = filter.group.clone();
    let changed = store.amend(filter, Amend::Cancel).await.map_err(not_begun)?;
    let nothing = nothing(&*store, group.as_deref(), "cancel", cancelled(0)).await?;
    output::print(|out| match as_json {
        true => writeln!(out, "{}", json!({ "changed": changed })),
        false if changed == 0 => writeln!(out, "{nothing}"),
        false => writeln!(out, "{}", cancelled(changed)),
    })?;
    Ok(Status::Success)
}

/// How items are known that are sent once more.
async fn known_by(store: &dyn WorkStore, new_id: bool) -> Result<&'static str, Failure> {
    Ok(match CallIds::of(store).await.map_err(Failure::interrupted)?.are_sent() {
        false => WITHOUT_ID,
        true if new_id => AS_NEW,
        true => AS_BEFORE,
    })
}

const AS_BEFORE: &str =
    "with the same value of --idempotency-header: a receiver that has it may drop it (--new-id makes another)";
const AS_NEW: &str =
    "with another value of --idempotency-header, unless the payload has that header: a receiver takes it for a new one";
const WITHOUT_ID: &str =
    "which no receiver can tell by an id of the program: no worker has sent one (--idempotency-header)";

/// What is said where nothing is sent once more.
const UNDER_WAY: &str = "nothing to retry: the items are in flight";
const NONE_TO_RETRY: &str = "nothing to retry: items that succeeded or are in flight stay as they are (KEY --again sends those that succeeded once \
     more)";
const NONE_ENDED_THEN: &str = "nothing to retry: no such item ended in that time";

/// The states of items that may have been done, and that a retry would send again.
const ENDED: [State; 2] = [State::Failed, State::Cancelled];

/// What a retry changed.
#[derive(Default)]
struct Retried {
    changed: u64,
    /// Of these, items that a person had cancelled.
    cancelled: u64,
    /// Items that may have been done: sent again where they are named, else left out.
    may_be_done: u64,
}

impl Retried {
    /// So many items are sent once more.
    fn again(changed: u64) -> Self {
        Self { changed, ..Self::default() }
    }
}

/// Whether an item may have been done, and must not be done twice by itself: it ended for that, or was cancelled meanwhile.
fn may_be_done(item: &WorkItem) -> bool {
    let for_that = [GiveUp::Unknown, GiveUp::Held].map(GiveUp::as_str);
    ENDED.contains(&item.state)
        && (item.may_be_done || item.reason.as_deref().is_some_and(|why| for_that.contains(&why)))
}

/// The items wait again; those that may have been done only if `all` do. They are looked for among those that ended, a page at
/// a time; the others are one change.
async fn retry_items(
    store: &dyn WorkStore,
    filter: Filter,
    all: bool,
    only_status: &[RangeInclusive<u16>],
) -> Result<Retried, Failure> {
    let is_wanted = |state: &State| filter.states.is_empty() || filter.states.contains(state);
    let (ended, others): (Vec<State>, Vec<State>) =
        State::ALL.into_iter().filter(is_wanted).partition(|state| ENDED.contains(state) || !only_status.is_empty());
    let of = |states| Filter { states, ..filter.clone() };
    let mut retried = Retried::default();
    if !others.is_empty() {
        retried.changed += store.amend(of(others), Amend::Retry).await.map_err(not_begun)?;
    }
    if ended.is_empty() {
        return Ok(retried);
    }
    let mut pages = Pages::of(store, of(ended), None);
    while let Some(mut items) = pages.next().await.map_err(not_begun)? {
        items.retain(|item| has_status(only_status, item.last.as_ref().and_then(|last| last.status)));
        retried.may_be_done += items.iter().filter(|item| may_be_done(item)).count() as u64;
        items.retain(|item| all || !may_be_done(item));
        retried.cancelled += items.iter().filter(|item| item.state == State::Cancelled).count() as u64;
        let keys: Vec<String> = items.into_iter().map(|item| item.key).collect();
        if !keys.is_empty() {
            retried.changed += store.amend(Filter::keys(keys), Amend::Retry).await.map_err(not_begun)?;
        }
    }
    Ok(retried)
}

/// Sends once more for the items that ended in a time, or had succeeded then, before they were sent for: where no states are
/// named for those that succeeded then, whatever became of them since.
async fn again_of(
    store: &dyn WorkStore,
    filter: Filter,
    (since, until): (Timestamp, Option<Timestamp>),
    as_new: bool,
) -> Result<u64, Failure> {
    let by_success = filter.states.is_empty();
    let states = if by_success {
        State::ALL.into_iter().filter(|state| state.is_final()).collect()
    } else {
        filter.states.clone()
    };
    let is_then = |at: Timestamp| at >= since && until.is_none_or(|until| at < until);
    let (mut pages, mut changed) = (Pages::of(store, Filter { states: states.clone(), ..filter }, None), 0);
    while let Some(items) = pages.next().await.map_err(not_begun)? {
        let mut keys = Vec::new();
        for item in items {
            let has_ended = item.ended.is_some_and(is_then) && (!by_success || item.state == State::Succeeded);
            if has_ended || had_succeeded(store, &item, is_then).await? {
                keys.push(item.key);
            }
        }
        if !keys.is_empty() {
            let filter = Filter { states: states.clone(), ..Filter::keys(keys) };
            changed += store.amend(filter, Amend::Again { as_new }).await.map_err(not_begun)?;
        }
    }
    Ok(changed)
}

/// Whether the item had succeeded at such a time, before a person sent for it once more.
async fn had_succeeded(
    store: &dyn WorkStore,
    item: &WorkItem,
    is_then: impl Fn(Timestamp) -> bool,
) -> Result<bool, Failure> {
    let Some(last) = item.delivered else { return Ok(false) };
    if is_then(last) {
        return Ok(true);
    }
    let shown = store.show(&item.key).await.map_err(not_begun)?;
    let before = shown.iter().flat_map(|(_, _, events)| events).filter(|event| event.is_delivery());
    Ok(before.map(|event| event.decided).any(is_then))
}

/// The store, and the items that a command names.
async fn named(args: Args) -> Result<(Arc<dyn WorkStore>, Filter), Failure> {
    if !args.names_some() {
        return Err(Failure::refused("name the items: KEY ..., --state, --group, or --all for every one"));
    }
    let store = args.store.open(&WorkClock::system()).await?;
    let keys = keys_of(&*store, &args.keys).await?;
    Ok((store, Filter { states: args.state, group: args.group, keys }))
}

/// The keys of the items that are named so: by key, or by the value that their calls are known by.
async fn keys_of(store: &dyn WorkStore, named: &[String]) -> Result<Vec<String>, Failure> {
    let mut keys = Vec::with_capacity(named.len());
    for name in named {
        let found = store.list(Filter::keys([name]), 0, 1).await.map_err(Failure::interrupted)?;
        if !found.is_empty() {
            keys.push(name.clone());
            continue;
        }
        let ids = CallIds::of(store).await.map_err(Failure::interrupted)?;
        let items = ids.items_of(store, name).await.map_err(Failure::interrupted)?;
        let item = match items.as_slice() {
            [(item, ..)] => item,
            [] => return Err(Failure::refused(format!("no item is called {name:?}, and nothing was changed"))),
            several => return Err(Failure::refused(several_have(name, several))),
        };
        tracing::info!(
            "{} is what the calls of the item {} are known by",
            text::printable(name),
            text::printable(&item.key)
        );
        keys.push(item.key.clone());
    }
    Ok(keys)
}

/// One message for several receivers has one id.
fn several_have(name: &str, items: &[Shown]) -> String {
    let named: Vec<_> = items.iter().take(LISTED).map(|(item, ..)| text::printable(&item.key)).collect();
    let more = if items.len() > LISTED { ", ..." } else { "" };
    format!(
        "the calls of several items are known by {name:?}, and nothing was changed: name one by its key ({}{more})",
        named.join(", ")
    )
}

/// So many keys are named of items that have one id.
const LISTED: usize = 20;

/// What is said where a change applied to no item, which `otherwise` says too.
async fn nothing(store: &dyn WorkStore, group: Option<&str>, what: &str, otherwise: String) -> Result<String, Failure> {
    let unknown = match group {
        Some(group) => groups::unknown(store, group).await.map_err(Failure::interrupted)?,
        None => None,
    };
    Ok(unknown.map_or(otherwise, |unknown| format!("nothing to {what}: {unknown}")))
}

/// Cancelled ones are told: a person had ended them, of a customer who is gone, say.
fn retried(changed: u64, cancelled: u64) -> String {
    let are_due = match changed {
        1 => "1 item is due again".to_owned(),
        _ => format!("{} are due again", text::counted(changed, "item")),
    };
    match cancelled {
        0 => are_due,
        all if all == changed => format!("{are_due} (cancelled before)"),
        some => format!("{are_due} ({} of them cancelled before)", text::count(some)),
    }
}

fn cancelled(changed: u64) -> String {
    match changed {
        0 => "nothing to cancel: items that have ended stay as they are".to_owned(),
        _ => format!("{} cancelled", text::counted(changed, "item")),
    }
}
