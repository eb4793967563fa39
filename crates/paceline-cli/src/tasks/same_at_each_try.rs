//! The value of `--idempotency-header` for an item that is a request: what its calls are known by.

use paceline_core::Timestamp;
use paceline_store::work::{Filter, HistoryEntry, WorkError, WorkItem, WorkStore};
use serde_json::Value;

use super::compact::compact;
use super::pages::Pages;

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

/// Under this name the store keeps which header it is.
const HEADER: &str = "idempotency header";

/// Notes which header a worker sends it in.
///
/// # Errors
/// An error of the store.
pub(super) async fn note_header(store: &dyn WorkStore, header: &str) -> Result<(), WorkError> {
    match store.load_state(HEADER).await? {
        Some(known) if known == header => Ok(()),
        _ => store.save_state(HEADER, header).await,
    }
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

/// How the calls of a store's items are known.
#[derive(Clone, Debug, Default)]
pub(super) struct CallIds {
    /// The header, as the last worker that sent one noted it.
    header: Option<String>,
}

impl CallIds {
    /// Those of a store.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn of(store: &dyn WorkStore) -> Result<Self, WorkError> {
        Ok(Self { header: store.load_state(HEADER).await? })
    }

    /// Whether calls have such a value: then they may be made twice.
    pub(super) const fn are_sent(&self) -> bool {
        self.header.is_some()
    }

    /// What the calls of an item are known by. Its payload has a URL, as those of requests have; the input of a command has none.
    pub(super) fn now(&self, item: &WorkItem, payload: &str) -> Option<CallId> {
        self.since(item.created, &item.key, payload)
    }

    /// What its calls were known by before a person sent for it once more.
    pub(super) fn then(&self, item: &WorkItem, payload: &str, before: &HistoryEntry) -> Option<CallId> {
        self.since(before.created?, &item.key, payload)
    }

    fn since(&self, created: Timestamp, key: &str, payload: &str) -> Option<CallId> {
        let request = serde_json::from_str::<Request>(payload).ok()?;
        let is_it = |name: &str| self.header.as_ref().is_some_and(|header| header.eq_ignore_ascii_case(name));
        let headers = request.headers.as_object().into_iter().flatten();
        let own = headers.filter_map(|(name, value)| Some((name, value.as_str()?))).find(|(name, _)| is_it(name));
        Some(match own {
            Some((header, value)) => CallId::OfPayload { header: header.clone(), value: value.to_owned() },
            None => CallId::Made(value_since(created, key, payload)),
        })
    }

    /// The items whose calls have or had that value, as [`show`](WorkStore::show) tells them: one of the program's, and as
    /// many as have it in their payloads, of which the first [`MOST`] are found. All payloads are read.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn items_of(&self, store: &dyn WorkStore, value: &str) -> Result<Vec<Shown>, WorkError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_made = |hash: &str| hash.len() == DIGITS && hash.bytes().all(is_digit);
        if self.header.is_none() && !value.strip_prefix(PREFIX).is_some_and(is_made) {
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
                let Some(id) = self.now(item, payload).into_iter().chain(then).find(|id| id.value() == value) else {
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

/// What a payload of `tasks run --http` has.
#[derive(serde::Deserialize)]
struct Request {
    #[serde(rename = "url")]
    _url: String,
    #[serde(default)]
    headers: Value,
}
