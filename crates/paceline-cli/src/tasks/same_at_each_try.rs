//! The value of `--idempotency-header` for an item that is a request: what its calls are known by.

use paceline_core::Timestamp;
use paceline_store::work::{Filter, HistoryEntry, WorkError, WorkItem, WorkStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compact::compact;
use super::pages::Pages;
use super::shared_text;

/// The same at each try of the item. Another store's item of the same key is another, unless it was exported from there.
pub(super) fn same_at_each_try(item: &WorkItem, payload: &str) -> String {
    value_since(item.created, &item.key, payload)
}

fn value_since(created: Timestamp, key: &str, payload: &str) -> String {
    // As an export prints it.
    let payload = compact(payload).unwrap_or_else(|_| payload.to_owned());
    let hash = blake3::hash(format!("{} {key} {payload}", created.as_millis()).as_bytes());
    format!("{PREFIX}{}", &hash.to_hex()[..DIGITS])
}

/// What such a value begins with.
const PREFIX: &str = "pl-";

/// The digits behind that.
const DIGITS: usize = 32;

/// Under this name the store keeps in which header it is sent.
const HEADER: &str = "idempotency header";

/// From when on workers sent it in that header, or in none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    since_ms: i64,
    header: Option<String>,
}

/// So many changes of it are kept.
const MOST_CHANGES: usize = 100;

/// Notes in which header a worker that begins sends it, if in any.
///
/// # Errors
/// An error of the store.
pub(super) async fn note_header(store: &dyn WorkStore, header: Option<&str>) -> Result<(), WorkError> {
    if CallIds::of(store).await?.last() == header {
        return Ok(());
    }
    let since_ms = store.now().await?.as_millis();
    shared_text::change(store, HEADER, |before| {
        let mut sent = sent(before);
        sent.push(Sent { since_ms, header: header.map(str::to_owned) });
        sent.drain(..sent.len().saturating_sub(MOST_CHANGES));
        serde_json::to_string(&sent).expect("texts and numbers are always JSON")
    })
    .await
}

/// What the store keeps of that. An earlier version kept the last header alone.
fn sent(text: Option<&str>) -> Vec<Sent> {
    let Some(text) = text else { return Vec::new() };
    serde_json::from_str(text).unwrap_or_else(|_| vec![Sent { since_ms: 0, header: Some(text.to_owned()) }])
}

/// So many items with one value are found.
const MOST: usize = 100;

/// An item with its payload and the decisions about it.
pub(super) type Shown = (WorkItem, String, Vec<HistoryEntry>);

/// What the calls of an item are known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallId {
    /// The value of the program.
    Made(String),
    /// That of the payload, which has the header.
    OfPayload { header: String, value: String },
}

impl CallId {
    pub(super) fn value(&self) -> &str {
        match self {
            Self::Made(value) | Self::OfPayload { value, .. } => value,
        }
    }
}

/// How the calls of a store's items are known: those that carried a value.
#[derive(Clone, Debug, Default)]
pub(super) struct CallIds(Vec<Sent>);

impl CallIds {
    /// Those of a store.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn of(store: &dyn WorkStore) -> Result<Self, WorkError> {
        Ok(Self(sent(store.load_state(HEADER).await?.as_deref())))
    }

    /// Whether calls had such a value: then they may be made twice.
    pub(super) fn are_sent(&self) -> bool {
        self.0.iter().any(|sent| sent.header.is_some())
    }

    /// The header of the last worker.
    fn last(&self) -> Option<&str> {
        self.0.last()?.header.as_deref()
    }

    /// The header of a call that ended then.
    fn at(&self, time: Timestamp) -> Option<&str> {
        self.0.iter().rev().find(|sent| sent.since_ms <= time.as_millis())?.header.as_deref()
    }

    /// What the calls of an item are known by: one of them carried it, or the next one does. Its payload has a URL, as those of
    /// requests have; the input of a command has none.
    pub(super) fn now(&self, item: &WorkItem, payload: &str, events: &[HistoryEntry]) -> Option<CallId> {
        let next = if item.state.is_final() { None } else { self.last() };
        // Those before a person sent for it once more may have had another value.
        let since = events.iter().rposition(|event| event.created.is_some()).map_or(0, |before| before + 1);
        let failed = events[since..].iter().filter(|event| event.send > 0).map(|event| event.decided);
        let ended = item.ended.filter(|_| item.first.is_some() || item.may_be_done);
        let header = next.or_else(|| failed.chain(ended).rev().find_map(|at| self.at(at)))?;
        id(header, item.created, &item.key, payload)
    }

    /// What its calls were known by before a person sent for it once more.
    pub(super) fn then(&self, item: &WorkItem, payload: &str, before: &HistoryEntry) -> Option<CallId> {
        id(self.at(before.decided)?, before.created?, &item.key, payload)
    }

    /// The items whose calls have or had that value, as [`show`](WorkStore::show) tells them: one of the program's, and as
    /// many as have it in their payloads, of which the first [`MOST`] are found. All payloads are read.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn items_of(&self, store: &dyn WorkStore, value: &str) -> Result<Vec<Shown>, WorkError> {
        if !self.are_sent() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mut pages = Pages::of(store, Filter::default(), None);
        while let Some(items) = pages.next().await? {
            for item in items {
                // It may have been removed since its page was read.
                let Some(shown) = store.show(&item.key).await? else { continue };
                let (item, payload, events) = &shown;
                let then = events.iter().filter_map(|event| self.then(item, payload, event));
                let now = self.now(item, payload, events);
                let Some(id) = now.into_iter().chain(then).find(|id| id.value() == value) else {
                    continue;
                };
                found.push(shown);
                if matches!(id, CallId::Made(_)) || found.len() == MOST {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}

/// What the calls of an item are known by that carry such a header.
fn id(header: &str, created: Timestamp, key: &str, payload: &str) -> Option<CallId> {
    let request = serde_json::from_str::<Request>(payload).ok()?;
    let headers = request.headers.as_object().into_iter().flatten();
    let is_it = |(name, _): &(&String, &str)| header.eq_ignore_ascii_case(name);
    Some(match headers.filter_map(|(name, value)| Some((name, value.as_str()?))).find(is_it) {
        Some((header, value)) => CallId::OfPayload { header: header.clone(), value: value.to_owned() },
        None => CallId::Made(value_since(created, key, payload)),
    })
}

/// What a payload of `tasks run --http` has.
#[derive(Deserialize)]
struct Request {
    #[serde(rename = "url")]
    _url: String,
    #[serde(default)]
    headers: Value,
}
