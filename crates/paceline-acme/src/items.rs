//! The plan as work items.

use std::collections::BTreeMap;

use paceline::Class;
use paceline_store::work::{Amend, Filter, NewItem, State, WorkError, WorkItem, WorkStore};

use crate::planner::Due;

/// Puts what is due into the store, and takes out what is not due any more. An item is the replacement of one certificate:
/// once that is replaced, the next renewal is another item. What failed in an earlier run is tried again.
pub(crate) async fn enter(
    store: &dyn WorkStore,
    group: &str,
    due: Vec<Due>,
) -> Result<BTreeMap<String, Due>, WorkError> {
    let known: BTreeMap<String, WorkItem> =
        all(store).await?.into_iter().map(|item| (item.key.clone(), item)).collect();
    let mut planned = BTreeMap::new();
    let mut new = Vec::new();
    for due in due {
        let ends = due.not_after.map_or_else(|| "first".to_owned(), |time| time.to_string());
        let key = (1_u32..).map(|n| format!("{} {ends} {n}", due.domain)).find(|key| {
            // A file may come back that was replaced already, or another CA be asked: that is new work.
            known.get(key).is_none_or(|item| item.state != State::Succeeded && *item.group == *group)
        });
        let key = key.expect("numbers do not run out");
        new.push(NewItem { group: group.to_owned(), ..NewItem::new(&key, due.names.join(" ")) });
        planned.insert(key, due);
    }
    store.insert(new).await?;
    let chosen = |wanted: &dyn Fn(&WorkItem) -> bool| -> Vec<String> {
        known.values().filter(|item| wanted(item)).map(|item| item.key.clone()).collect()
    };
    let again = chosen(&|item| {
        let given_up = matches!(item.state, State::Failed | State::Skipped | State::Cancelled);
        given_up && planned.contains_key(&item.key)
    });
    let obsolete = chosen(&|item| !item.state.is_final() && !planned.contains_key(&item.key));
    for (keys, amend) in [(again, Amend::Retry), (obsolete, Amend::Cancel)] {
        // No keys would mean any.
        if !keys.is_empty() {
            store.amend(Filter { keys, ..Filter::default() }, amend).await?;
        }
    }
    Ok(planned)
}

/// The domain in an item's key, or the name of its file, which may have spaces.
pub(crate) fn domain(key: &str) -> &str {
    key.rsplitn(3, ' ').last().unwrap_or_default()
}

/// What became of the plan's items, the most urgent first.
pub(crate) async fn outcomes(
    store: &dyn WorkStore,
    due: &BTreeMap<String, Due>,
) -> Result<Vec<(Due, WorkItem)>, WorkError> {
    let found = all(store).await?.into_iter();
    let mut outcomes: Vec<(Due, WorkItem)> =
        found.filter_map(|item| due.get(&item.key).map(|due| (due.clone(), item))).collect();
    outcomes.sort_by(|(a, _), (b, _)| (a.not_after, &a.domain).cmp(&(b.not_after, &b.domain)));
    Ok(outcomes)
}

/// The CA was down for all domains, so the next run begins with what is left, at once and counting anew. Waits that the CA
/// itself asked for stay.
pub(crate) async fn due_at_once(store: &dyn WorkStore) -> Result<(), WorkError> {
    let own_wait = |item: &WorkItem| match &item.last {
        Some(last) => matches!(last.class, Class::Transient | Class::Overloaded | Class::Abandoned),
        None => false,
    };
    let waiting = all(store).await?.into_iter().filter(|item| item.state == State::Waiting && own_wait(item));
    let keys: Vec<String> = waiting.map(|item| item.key).collect();
    if !keys.is_empty() {
        store.amend(Filter { keys, ..Filter::default() }, Amend::Retry).await?;
    }
    Ok(())
}

/// Every item of the store, by id.
async fn all(store: &dyn WorkStore) -> Result<Vec<WorkItem>, WorkError> {
    let mut items: Vec<WorkItem> = Vec::new();
    loop {
        let after = items.last().map_or(0, |item| item.id);
        let page = store.list(Filter::default(), after, PAGE).await?;
        if page.is_empty() {
            return Ok(items);
        }
        items.extend(page);
    }
}

/// Items that are read at a time.
const PAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use paceline_store::work::{MemoryStore, WorkClock};

    use super::*;

    fn due(domain: &str, days: i64) -> Due {
        let not_after = Some(jiff::Timestamp::from_second(1_795_176_000 + days * 86_400).unwrap());
        let names = vec![domain.to_owned()];
        Due { domain: domain.to_owned(), names, path: PathBuf::from(domain), not_after, reason: String::new() }
    }

    async fn states(store: &MemoryStore) -> Vec<(String, State)> {
        let items = all(store).await.unwrap().into_iter();
        items
            .map(|item| (item.key.rsplit_once('T').unwrap().0.to_owned() + &item.key[item.key.len() - 2..], item.state))
            .collect()
    }

    #[tokio::test]
    async fn an_item_is_the_replacement_of_one_certificate() {
        let store = MemoryStore::new(WorkClock::system());
        enter(&store, "ca", vec![due("a.org", 1), due("b.org", 2)]).await.unwrap();
        enter(&store, "ca", vec![due("a.org", 1)]).await.unwrap();
        let [a, b, b2] = ["a.org 2026-11-21 1", "b.org 2026-11-22 1", "b.org 2026-11-25 1"].map(str::to_owned);
        assert_eq!(
            states(&store).await,
            [(a.clone(), State::Waiting), (b.clone(), State::Cancelled)],
            "b.org is not due"
        );
        enter(&store, "ca", vec![due("a.org", 1), due("b.org", 2)]).await.unwrap();
        assert_eq!(
            states(&store).await,
            [(a.clone(), State::Waiting), (b.clone(), State::Waiting)],
            "and is due again"
        );
        enter(&store, "ca", vec![due("a.org", 1), due("b.org", 5)]).await.unwrap();
        assert_eq!(
            states(&store).await,
            [(a, State::Waiting), (b, State::Cancelled), (b2, State::Waiting)],
            "another process replaced it, and that one is due now"
        );
    }

    #[tokio::test]
    async fn the_domain_of_an_item_is_the_name_of_its_file() {
        let store = MemoryStore::new(WorkClock::system());
        let first = Due { not_after: None, ..due("my own 1", 0) };
        let planned = enter(&store, "ca", vec![due("a.org", 1), due("my own 2", 1), first]).await.unwrap();
        let domains: Vec<&str> = planned.keys().map(|key| domain(key)).collect();
        assert_eq!(domains, ["a.org", "my own 1", "my own 2"]);
    }

    #[tokio::test]
    async fn another_ca_begins_anew() {
        let store = MemoryStore::new(WorkClock::system());
        enter(&store, "ca", vec![due("a.org", 1)]).await.unwrap();
        let planned = enter(&store, "another", vec![due("a.org", 1)]).await.unwrap();
        assert!(planned.keys().all(|key| key.ends_with(" 2")), "{planned:?}");
        let items = all(&store).await.unwrap();
        let items: Vec<_> = items.iter().map(|item| (&*item.group, item.state)).collect();
        assert_eq!(items, [("ca", State::Cancelled), ("another", State::Waiting)]);
    }
}
