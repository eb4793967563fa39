//! The items of each group in numbers: of a customer, say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use paceline_store::work::{State, WorkItem};
use serde_json::{Map, Value, json};

use crate::text;

/// Groups that people are shown.
const SHOWN: usize = 20;

/// The counts of each group, by state.
#[derive(Debug, Default)]
pub(super) struct ByGroup(BTreeMap<Arc<str>, [u64; State::ALL.len()]>);

/// What is told of a group.
struct Counts {
    items: u64,
    succeeded: u64,
    failed: u64,
    /// Fallbacks stood in, skipped or cancelled.
    otherwise: u64,
    waiting: u64,
}

impl Counts {
    fn of(states: &[u64; State::ALL.len()]) -> Self {
        let of = |state| states[state as usize];
        let items = states.iter().sum();
        let (succeeded, failed) = (of(State::Succeeded), of(State::Failed));
        let waiting = State::ALL.into_iter().filter(|state| !state.is_final()).map(of).sum();
        Self { items, succeeded, failed, otherwise: items - succeeded - failed - waiting, waiting }
    }
}

impl ByGroup {
    pub(super) fn count(&mut self, item: &WorkItem) {
        self.0.entry(item.group.clone()).or_default()[item.state as usize] += 1;
    }

    /// Those of which most has not succeeded first.
    fn sorted(&self) -> Vec<(&str, Counts)> {
        let mut groups: Vec<_> = self.0.iter().map(|(group, states)| (&**group, Counts::of(states))).collect();
        groups.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.items - counts.succeeded));
        groups
    }

    /// For people: a line for each of the first groups.
    pub(super) fn table(&self) -> String {
        let groups = self.sorted();
        let mut table = format!("\n{HEAD}\n");
        for (group, Counts { items, succeeded, failed, otherwise, waiting }) in groups.iter().take(SHOWN) {
            let group = text::cell(&text::printable(group), 24);
            writeln!(table, "{group} {items:>9} {succeeded:>9} {failed:>9} {otherwise:>9} {waiting:>9}")
                .expect("a string takes everything");
        }
        let more = groups.len().saturating_sub(SHOWN) as u64;
        if more > 0 {
            table += &format!("... and {}; --json has all of them\n", text::counted(more, "more group"));
        }
        table
    }

    /// All of them.
    pub(super) fn markdown(&self) -> String {
        let mut table = MARKDOWN_HEAD.to_owned();
        for (group, Counts { items, succeeded, failed, otherwise, waiting }) in self.sorted() {
            let group = text::markdown(group);
            write!(table, "\n| {group} | {items} | {succeeded} | {failed} | {otherwise} | {waiting} |")
                .expect("a string takes everything");
        }
        table
    }

    /// All of them, for scripts.
    pub(super) fn json(&self) -> Value {
        let group = |(group, counts): (&str, Counts)| {
            let Counts { items, succeeded, failed, otherwise, waiting } = counts;
            let counts = json!({
                "items": items, "succeeded": succeeded, "failed": failed, "otherwise": otherwise, "deferred": waiting,
            });
            (group.to_owned(), counts)
        };
        Value::Object(self.sorted().into_iter().map(group).collect::<Map<_, _>>())
    }
}

const HEAD: &str = "GROUP                        ITEMS SUCCEEDED    FAILED OTHERWISE   WAITING";

const MARKDOWN_HEAD: &str = "\
| group | items | succeeded | failed | otherwise | waiting |
|---|---:|---:|---:|---:|---:|";

#[cfg(test)]
mod tests {
    use paceline_store::work::{Amend, Filter, MemoryStore, NewItem, WorkClock, WorkStore as _};

    use super::*;

    #[tokio::test]
    async fn each_group_is_counted_and_those_with_most_to_do_come_first() {
        let store = MemoryStore::new(WorkClock::system());
        let new = |key: &str, group: &str| NewItem { group: group.to_owned(), ..NewItem::new(key, "1") };
        store.insert(vec![new("a", "acme"), new("b", "zeta"), new("c", "zeta")]).await.expect("room");
        store.amend(Filter::keys(["c"]), Amend::Cancel).await.expect("a memory");
        let mut groups = ByGroup::default();
        store.list(Filter::default(), 0, 9).await.expect("a memory").iter().for_each(|item| groups.count(item));
        let table = groups.table();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert!(lines.len() == 2 && lines[0].starts_with("zeta ") && lines[1].starts_with("acme "), "{table}");
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        let json = groups.json();
        assert_eq!((&json["zeta"]["otherwise"], &json["zeta"]["deferred"]), (&1.into(), &1.into()));
        assert!(groups.markdown().ends_with("| acme | 1 | 0 | 0 | 0 | 1 |"));
    }
}
