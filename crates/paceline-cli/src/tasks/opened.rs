//! Scopes, which may be groups, that a person opens though they are held, `retry --open`: left in the store for the workers.

use paceline_store::work::{Filter, State, WorkError, WorkStore};
use serde::{Deserialize, Serialize};

use super::shared_text;

/// Under this name the store keeps them.
const NAME: &str = "opened scopes";

/// The form of what is kept.
const VERSION: u32 = 1;

/// So many are kept: each worker notices within seconds.
const MOST: usize = 100;

/// A scope that is opened, for these items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Later ones have higher numbers.
    number: u64,
    pub(crate) scope: String,
    group: Option<String>,
    keys: Vec<String>,
}

impl Opened {
    /// The items that go at once: such as still wait.
    pub(crate) fn items(&self) -> Filter {
        Filter { states: vec![State::Waiting], group: self.group.clone(), keys: self.keys.clone() }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    version: u32,
    opened: Vec<Opened>,
}

/// Opens scopes for the items of a filter.
///
/// # Errors
/// An error of the store.
pub(crate) async fn open(store: &dyn WorkStore, scopes: &[String], items: &Filter) -> Result<(), WorkError> {
    shared_text::change(store, NAME, |before| {
        let mut opened = all(before);
        for scope in scopes {
            let number = opened.last().map_or(0, |last| last.number) + 1;
            let (scope, group, keys) = (scope.clone(), items.group.clone(), items.keys.clone());
            opened.push(Opened { number, scope, group, keys });
        }
        opened.drain(..opened.len().saturating_sub(MOST));
        let kept = Kept { version: VERSION, opened };
        serde_json::to_string(&kept).expect("texts and numbers are always JSON")
    })
    .await
}

/// Those that a worker has not seen, and until where it has seen them then.
///
/// # Errors
/// An error of the store.
pub(crate) async fn after(store: &dyn WorkStore, seen: u64) -> Result<(Vec<Opened>, u64), WorkError> {
    let mut opened = all(store.load_state(NAME).await?.as_deref());
    let last = opened.last().map_or(seen, |last| last.number.max(seen));
    opened.retain(|opened| opened.number > seen);
    Ok((opened, last))
}

fn all(text: Option<&str>) -> Vec<Opened> {
    let kept = text.and_then(|text| serde_json::from_str::<Kept>(text).ok());
    kept.filter(|kept| kept.version == VERSION).map(|kept| kept.opened).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{MemoryStore, WorkClock};

    use super::*;

    #[tokio::test]
    async fn each_worker_sees_what_was_opened_since_it_began() {
        let store = MemoryStore::new(WorkClock::system());
        let open = async |scope: &str| {
            open(&store, &[scope.to_owned()], &Filter::keys(["a"])).await.expect("a memory");
        };
        let after = async |seen| {
            let (opened, seen) = after(&store, seen).await.expect("a memory");
            (opened.into_iter().map(|opened| opened.scope).collect::<Vec<_>>(), seen)
        };
        assert_eq!(after(0).await, (vec![], 0));
        open("a").await;
        let (_, began) = after(0).await;
        open("b").await;
        open("c").await;
        let (opened, seen) = after(began).await;
        assert_eq!(opened, ["b", "c"]);
        assert_eq!(after(seen).await, (vec![], seen));
        for _ in 0..2 * MOST {
            open("d").await;
        }
        assert_eq!(after(0).await.0.len(), MOST);
    }
}
