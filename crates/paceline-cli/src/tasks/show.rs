//! `paceline tasks show`: one item with its decisions.

use std::fmt::Write as _;

use paceline_core::Timestamp;
use paceline_store::work::{HistoryEntry, State, WorkClock, WorkItem};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::add::host_and_address_of;
use super::closed_scopes::{ClosedScope, ClosedScopes, Why};
use super::groups::{Groups, Waits};
use super::row::Row;
use super::same_at_each_try::{CallId, CallIds};
use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::{output, text};

/// `paceline tasks show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Key of the item, or the value of `--idempotency-header` that its calls have
    #[arg(value_name = "KEY")]
    key: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints an item, its payload and every decision about it; where several have an id, each of them.
///
/// # Errors
/// Refuses what is no store, and a key that it does not have.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let store = args.store.open(&WorkClock::system()).await?;
    let groups = args.store.groups(&*store).await.map_err(Failure::interrupted)?;
    let ids = CallIds::of(&*store).await.map_err(Failure::interrupted)?;
    let found = match store.show(&args.key).await.map_err(Failure::interrupted)? {
        None => ids.items_of(&*store, &args.key).await.map_err(Failure::interrupted)?,
        Some(found) => vec![found],
    };
    if found.is_empty() {
        let key = args.key;
        return Err(Failure::refused(format!(
            "no item is called {key:?}; `paceline tasks list` names those that are there (it may have been pruned: then nothing but its key is left)"
        )));
    }
    let closed = ClosedScopes::at(&*store, groups.now()).await.map_err(Failure::interrupted)?;
    let mut text = String::new();
    if found.len() > 1 && !args.json {
        let (id, items) = (text::printable(&args.key), text::counted(found.len() as u64, "item"));
        writeln!(text, "the calls of {items} are known by {id}:").expect("a string takes everything");
    }
    for (item, payload, events) in found {
        let stopped = host_and_address_of(&payload, &item.key)
            .filter(|_| item.state == State::Deferred)
            .and_then(|(host, address)| closed.stopped_for(&host, &address));
        text += &match args.json {
            true => as_json(&item, stopped, &groups, &ids, payload, &events).map_err(Failure::interrupted)?,
            false => as_text(&item, stopped, &groups, &ids, &payload, &events),
        };
    }
    output::print(|out| out.write_all(text.as_bytes()))?;
    Ok(Status::Success)
}

fn as_json(
    item: &WorkItem,
    stopped: Option<&ClosedScope>,
    groups: &Groups,
    ids: &CallIds,
    payload: String,
    events: &[HistoryEntry],
) -> Result<String, serde_json::Error> {
    #[derive(serde::Serialize)]
    struct Shown<'a> {
        #[serde(flatten)]
        row: Row<'a>,
        added_at: String,
        first_at: Option<String>,
        ended_at: Option<String>,
        deadline_s: Option<f64>,
        idempotency_value: Option<String>,
        stopped: Option<Value>,
        answer: Option<Value>,
        decisions: Vec<Value>,
        payload: Box<RawValue>,
    }
    let time = |at: Timestamp| at.to_string();
    let value = |id: CallId| id.value().to_owned();
    let idempotency_value = ids.now(item, &payload, events).map(value);
    let decision = |event: &HistoryEntry| {
        let mut json = event.to_json();
        let id = ids.then(item, &payload, event).map(value);
        id.into_iter().for_each(|id| json["idempotency_value"] = id.into());
        json
    };
    let decisions = events.iter().map(decision).collect();
    // A program that adds items without this command may store any text.
    let payload = match RawValue::from_string(payload.clone()) {
        Ok(payload) => payload,
        Err(_) => serde_json::value::to_raw_value(&payload)?,
    };
    let shown = Shown {
        row: Row::of(item, groups),
        added_at: time(added(item, events).at),
        first_at: first_try(item, events).map(|first| time(first.at)),
        ended_at: item.ended.map(time),
        deadline_s: item.deadline.map(|deadline| deadline.as_secs_f64()),
        idempotency_value,
        stopped: stopped.map(ClosedScope::json),
        answer: answer(item).map(|(status, message)| json!({ "status": status, "words": message })),
        decisions,
        payload,
    };
    serde_json::to_string(&shown).map(|text| text + "\n")
}

/// The longest payload shown, in columns.
const LONGEST: usize = 2_000;

fn as_text(
    item: &WorkItem,
    stopped: Option<&ClosedScope>,
    groups: &Groups,
    ids: &CallIds,
    payload: &str,
    events: &[HistoryEntry],
) -> String {
    let mut text = format!("{}\n", text::printable(&item.key));
    let mut line = |name: &str, description: &str| text::wrapped(&mut text, &format!("  {name:<9} "), description);
    line("state", &state(item, groups));
    stopped.into_iter().for_each(|stopped| line("", &stopped.describe()));
    line("group", &format!("{}, priority {}", item.group, item.priority));
    line("sends", &sends(item));
    line("added", &added(item, events).describe());
    first_try(item, events).into_iter().for_each(|first| line("first try", &first.describe()));
    item.ended.into_iter().for_each(|at| line("ended", &text::moment(at)));
    item.deadline
        .into_iter()
        .for_each(|deadline| line("deadline", &format!("{} after its first try", text::duration(deadline))));
    match ids.now(item, payload, events) {
        Some(CallId::Made(value)) => line("id", &format!("{value} (--idempotency-header)")),
        Some(CallId::OfPayload { header, value }) => line("id", &format!("{value} ({header} of the payload)")),
        None => {}
    }
    let shown = text::cut(payload, LONGEST);
    answer(item).into_iter().for_each(|(status, message)| line("answer", &answered(status, message)));
    line("payload", &shown);
    if shown != payload {
        line("", "(--json has all of it)");
    }
    for (n, event) in events.iter().enumerate() {
        let send = if event.send == 0 { String::new() } else { format!(" send {}", event.send) };
        let id = ids.then(item, payload, event);
        let followed = match event.created {
            Some(_) if event.is_delivery() => delivered(event, id.as_ref().map(CallId::value)),
            Some(_) => sent_as_new(event, id.as_ref().map(CallId::value)),
            None => what_followed(event, n + 1 == events.len() && is_left(item)),
        };
        let description = format!("{}{send}: {followed}", text::moment(event.decided));
        line("decision", &description);
    }
    text
}

/// When something was, as far as the store knows that.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Timestamp,
    /// It was then, or before.
    or_before: bool,
}

impl Known {
    fn describe(self) -> String {
        text::moment(self.at) + if self.or_before { " or before" } else { "" }
    }
}

/// When the item was added. Of one that has failed, and was sent for as a new one, it is known that it was before its first try.
fn added(item: &WorkItem, events: &[HistoryEntry]) -> Known {
    let at = events.iter().filter_map(|event| event.created).fold(item.created, Timestamp::min);
    let before = first_try(item, events).filter(|first| first.at < at);
    before.map_or(Known { at, or_before: false }, |first| Known { or_before: true, ..first })
}

/// When it was tried first. The store moves that of an item on by the time that its group was held, for its deadline counts from
/// there, and forgets it where the item is sent for again: then it was before the first decision.
fn first_try(item: &WorkItem, events: &[HistoryEntry]) -> Option<Known> {
    let first = item.first.map(|at| Known { at, or_before: false });
    let told = events.first().filter(|event| event.send > 0).map(|event| event.decided);
    let told = told.filter(|told| first.is_none_or(|first| *told < first.at));
    told.map(|at| Known { at, or_before: true }).or(first)
}

/// What a server said last: of a success too.
fn answer(item: &WorkItem) -> Option<(Option<u16>, &str)> {
    let said = item.answered.as_ref().map(|said| (said.status, said.message.as_str()));
    let failed = item.last.as_ref().filter(|last| last.status.is_some());
    said.or_else(|| failed.map(|last| (last.status, last.message.as_str())))
}

fn answered(status: Option<u16>, message: &str) -> String {
    match status.filter(|status| !begins_with(message, *status)) {
        Some(status) if message.is_empty() => format!("{status}, and no words"),
        Some(status) => format!("{status}: {message}"),
        None => message.to_owned(),
    }
}

/// Whether the words of the program name that status already.
fn begins_with(message: &str, status: u16) -> bool {
    message.strip_prefix("status ").unwrap_or(message).starts_with(&format!("{status} "))
}

fn state(item: &WorkItem, groups: &Groups) -> String {
    let mut description = item.state.as_str().to_owned();
    if let Some(at) = groups.due(item) {
        let wait = text::duration(at.saturating_since(groups.now()));
        write!(description, ", due in {wait}, at {}", text::moment(at)).expect("a string takes everything");
    }
    let reason = groups.waits(item).map(Waits::as_str).or(item.reason.as_deref());
    // A cancelled item has no other reason.
    let reason = reason.filter(|reason| *reason != item.state.as_str()).map(str::to_owned);
    let waits_for = item.reason.as_ref().filter(|_| groups.waits(item) == Some(Waits::NotBefore));
    let reason = reason.map(|reason| waits_for.map_or(reason.clone(), |what| format!("{reason}: {what}")));
    reason.into_iter().for_each(|reason| description += &format!(" ({reason})"));
    if item.state == State::Cancelled {
        description +=
            if item.may_be_done { " by a person, during its call, which may have been done" } else { " by a person" };
    }
    if item.state != State::Succeeded
        && item.state != State::Cancelled
        && groups.may_be_done(item)
        && item.delivered.is_none()
    {
        description += "; a call of it may have been done";
    }
    let before = item.delivered.filter(|_| item.state != State::Succeeded);
    before.into_iter().for_each(|at| description += &format!("; it had succeeded at {}", text::moment(at)));
    description
}

fn sends(item: &WorkItem) -> String {
    let parts = [(item.deferrals, "deferred"), (item.abandoned, "cut off")];
    let parts: Vec<String> =
        parts.into_iter().filter(|(times, _)| *times > 0).map(|(times, what)| format!("{times} {what}")).collect();
    // Which calls of a worker that died were noted, those are among the ones that were cut off.
    let crashes = item.crashes.saturating_sub(item.abandoned);
    let more = if crashes > 0 { format!(", and up to {crashes} more that a crash cut off") } else { String::new() };
    let counted = match (item.sends(), parts.as_slice()) {
        // What only tested a failing server is no send of the item.
        (0, []) if item.state == State::Cancelled && (item.may_be_done || item.first.is_some()) => {
            "1, during which it was cancelled".to_owned()
        }
        (0, []) if item.state == State::InFlight => {
            "none that has ended: the first is under way, or waits for a place".to_owned()
        }
        (0, []) if item.may_be_done => "1, whose outcome is not known".to_owned(),
        (0, []) if item.tests > 0 => "none that counts".to_owned(),
        (0, []) if item.last.is_some() && item.first.is_none() => "never sent".to_owned(),
        (0, []) if item.last.is_some() => "none that counts: no server took it".to_owned(),
        (0, []) if crashes > 0 => "none that has ended".to_owned(),
        (0, []) => "none yet".to_owned(),
        (sends, []) => sends.to_string(),
        (sends, parts) => format!("{sends} ({})", parts.join(", ")),
    };
    match item.tests {
        0 => counted + &more,
        tests => {
            format!("{counted}{more}; and {} that only tested a failing server", text::counted(tests.into(), "call"))
        }
    }
}

/// That an item had succeeded before a person sent for it once more.
fn delivered(event: &HistoryEntry, id: Option<&str>) -> String {
    let said = match (event.failure.status, &*event.failure.message) {
        (None, "") => String::new(),
        (status, message) => format!(", {}", answered(status, message)),
    };
    let id = id.map(|id| format!(", with the id {id}")).unwrap_or_default();
    format!("it succeeded{said}{id}; since then {} sent for it once more", event.by)
}

/// That a person sent for an item as a new one that had not succeeded.
fn sent_as_new(event: &HistoryEntry, id: Option<&str>) -> String {
    let id = id.map(|id| format!("; the calls before had the id {id}")).unwrap_or_default();
    format!("{} sent for it as a new one{id}", event.by)
}

/// Whether it waits for the next run or a person although it has failed: its host or group is stopped.
fn is_left(item: &WorkItem) -> bool {
    item.state == State::Deferred && item.reason.as_deref() == Some(Why::SameFailure.as_str())
}

fn what_followed(event: &HistoryEntry, is_left: bool) -> String {
    let failure = &event.failure;
    let mut description = failure.class.as_str().to_owned();
    let status = failure.status.filter(|status| !begins_with(&failure.message, *status));
    status.into_iter().for_each(|status| description += &format!(" {status}"));
    failure.code.iter().for_each(|code| description += &format!(" {code}"));
    if !failure.message.is_empty() {
        description += &format!(": {}", failure.message);
    }
    // A stopped group has no time of its own: the item is due again whenever the group is.
    let stops = event.action == "abort";
    let is_left = is_left && event.action == "fail";
    description += &match &*event.action {
        _ if is_left => "; it is left to the next run, because its host or group is stopped".to_owned(),
        _ if stops => format!("; {} decided: stop the group", event.by),
        action => format!("; {} decided: {action}", event.by),
    };
    event
        .reason
        .iter()
        .filter(|_| !is_left)
        .filter(|reason| failure.message.is_empty() || !reason.ends_with(&failure.message))
        .for_each(|reason| description += &format!(" ({reason})"));
    event
        .not_before
        .filter(|_| !stops)
        .into_iter()
        .for_each(|at| description += &format!(", not before {}", text::moment(at)));
    event.waited.into_iter().for_each(|waited| description += &format!(", waited {}", text::duration(waited)));
    description
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_once() {
        let asked = "status 429 Too Many Requests, asked to wait 2h 00m";
        assert_eq!(answered(Some(429), asked), asked);
        assert_eq!(answered(Some(401), "401 Unauthorized, answer \"no\""), "401 Unauthorized, answer \"no\"");
        assert_eq!(answered(Some(202), "2020 taken"), "202: 2020 taken");
    }
}
