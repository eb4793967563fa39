//! The value of `--idempotency-header` for an item that is a request.

use paceline_store::work::{Filter, HistoryEntry, WorkError, WorkItem, WorkStore};

use super::compact::compact;
use super::pages::Pages;

/// The same at each try of the item. Another store's item of the same key is another, unless it was exported from there.
pub(super) fn same_at_each_try(item: &WorkItem, payload: &str) -> String {
    // As an export prints it.
    let payload = compact(payload).unwrap_or_else(|_| payload.to_owned());
    let hash = blake3::hash(format!("{} {} {payload}", item.created.as_millis(), item.key).as_bytes());
    format!("{PREFIX}{}", &hash.to_hex()[..DIGITS])
}

/// What such a value begins with.
const PREFIX: &str = "pl-";

/// The digits behind that.
const DIGITS: usize = 32;

/// The item whose calls have that value, as [`show`](WorkStore::show) tells it. All payloads are read, until it is found.
///
/// # Errors
/// An error of the store.
pub(super) async fn item_of(
    store: &dyn WorkStore,
    value: &str,
) -> Result<Option<(WorkItem, String, Vec<HistoryEntry>)>, WorkError> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if !value.strip_prefix(PREFIX).is_some_and(|hash| hash.len() == DIGITS && hash.bytes().all(is_digit)) {
        return Ok(None);
    }
    let mut pages = Pages::of(store, Filter::default(), None);
    while let Some(items) = pages.next().await? {
        for item in items {
            // It may have been removed since its page was read.
            let Some(shown) = store.show(&item.key).await? else { continue };
            if of_request(&shown.0, &shown.1).is_some_and(|of_item| of_item == value) {
                return Ok(Some(shown));
            }
        }
    }
    Ok(None)
}

/// What a payload of `tasks run --http` has.
#[derive(serde::Deserialize)]
struct Request {
    #[serde(rename = "url")]
    _url: String,
}

/// The same for a payload that has a URL, as those of requests have; none for the input of a command.
pub(super) fn of_request(item: &WorkItem, payload: &str) -> Option<String> {
    serde_json::from_str::<Request>(payload).ok().map(|_| same_at_each_try(item, payload))
}
