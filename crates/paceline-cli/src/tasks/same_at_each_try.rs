//! The value of `--idempotency-header` for an item that is a request.

use paceline_store::work::WorkItem;

use super::compact::compact;

/// The same at each try of the item. Another store's item of the same key is another, unless it was exported from there.
pub(super) fn same_at_each_try(item: &WorkItem, payload: &str) -> String {
    // As an export prints it.
    let payload = compact(payload).unwrap_or_else(|_| payload.to_owned());
    let hash = blake3::hash(format!("{} {} {payload}", item.created.as_millis(), item.key).as_bytes());
    format!("pl-{}", &hash.to_hex()[..32])
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
