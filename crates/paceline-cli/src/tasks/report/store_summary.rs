//! The items of a store by state, and why those that did not succeed did not.

use std::collections::BTreeMap;

use paceline_core::{GiveUp, Timestamp};
use paceline_store::work::{self, Filter, State, StateCounts, WorkError, WorkItem, WorkStore};
use serde_json::{Map, Value, json};

use crate::exit::Status;
use crate::tasks::closed_scopes::{ClosedScopes, Why};
use crate::tasks::groups::{Groups, Waits};
use crate::tasks::hosts::UNFINISHED;
use crate::tasks::pages::Pages;
use crate::text;

/// The most different reasons that are listed; a judge may give each item one of its own.
const REASONS: usize = 100;

/// Of these, those that are shown to people.
const SHOWN: usize = 5;

/// What the reasons beyond those are called.
const OTHER: &str = "other";

/// How held items are sent again, and how that is avoided.
fn retry_held(store: &str) -> String {
    format!(
        "`paceline tasks retry --store {store} KEY`, or all that failed with `--state failed --may-be-done`; an API that knows an \
         idempotency key needs no hold: name its header with --idempotency-header"
    )
}

/// The items of a store by state and reason. Every figure is from one reading, so that they add up.
#[derive(Clone, Debug)]
pub(crate) struct StoreSummary {
    groups: Groups,
    scopes: ClosedScopes,
    counts: StateCounts,
    /// Of those that have not succeeded, the ones that had before a person sent for them once more.
    succeeded_before: u64,
    /// How often each reason is one for each end.
    reasons: BTreeMap<(&'static str, String), u64>,
}

impl StoreSummary {
    /// Of the items of a store at [that time](crate::tasks::store::StoreArgs::now). Those that succeeded are not read one by one.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn of(store: &dyn WorkStore, now: Timestamp) -> Result<Self, WorkError> {
        let mut standing = Self::before_the_first(Groups::of(store, now).await?, store).await?;
        let others: Vec<State> = State::ALL.into_iter().filter(|state| *state != State::Succeeded).collect();
        let mut pages = Pages::of(store, Filter::states(others), None);
        while let Some(items) = pages.next().await? {
            items.iter().for_each(|item| standing.count(item));
        }
        // What succeeds meanwhile is counted once: here, unless it was counted above.
        let total = store.counts().await?.total();
        standing.counts.by_state[State::Succeeded as usize] = total.saturating_sub(standing.counts.total());
        Ok(standing)
    }

    /// Before the first item.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn before_the_first(groups: Groups, store: &dyn WorkStore) -> Result<Self, WorkError> {
        let mut scopes = ClosedScopes::at(store, groups.now()).await?;
        // Of a group that is a scope it is told once.
        scopes.retain(|name| !groups.is_closed(name));
        Ok(Self { groups, scopes, counts: StateCounts::default(), succeeded_before: 0, reasons: BTreeMap::new() })
    }

    /// Keeps the groups and scopes that items which have not ended are of, of one group where the filter has one.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn retain_of(&mut self, store: &dyn WorkStore, filter: &Filter) -> Result<(), WorkError> {
        if let Some(group) = &filter.group {
            self.groups.retain(group);
        }
        self.scopes.retain_of(store, Filter { states: UNFINISHED.into(), ..filter.clone() }).await
    }

    /// Counts an item.
    pub(super) fn count(&mut self, item: &WorkItem) {
        self.counts.by_state[item.state as usize] += 1;
        if item.state == State::Succeeded {
            return;
        }
        self.succeeded_before += u64::from(item.delivered.is_some());
        let end = if item.state.is_final() { item.state } else { State::Deferred };
        let waits = self.groups.waits(item).map(Waits::as_str);
        let reason = waits.or(left_for(item)).or(item.reason.as_deref()).unwrap_or("unknown");
        let mut key = (end.as_str(), reason.to_owned());
        if self.reasons.len() >= REASONS && !self.reasons.contains_key(&key) {
            key.1 = OTHER.to_owned();
        }
        *self.reasons.entry(key).or_default() += 1;
    }

    /// The groups that may not send.
    pub(crate) const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// All items.
    pub(crate) fn total(&self) -> u64 {
        self.counts.total()
    }

    /// Items that have not ended.
    pub(crate) fn deferred(&self) -> u64 {
        State::ALL.into_iter().filter(|state| !state.is_final()).map(|state| self.counts.of(state)).sum()
    }

    /// The status word and exit code.
    pub(crate) fn status(&self) -> Status {
        match work::Status::of(&self.counts) {
            work::Status::Success => Status::Success,
            work::Status::Partial => Status::Partial,
            work::Status::Failed => Status::Failed,
            work::Status::Deferred => Status::Deferred,
        }
    }

    /// The line with the status word.
    pub(crate) fn headline(&self) -> String {
        if self.total() == 0 {
            return format!("{}  no items", self.status());
        }
        let number = |state| text::count(self.counts.of(state));
        format!(
            "{}  {}: {} succeeded, {}{} failed, {} skipped, {} cancelled, {} not finished",
            self.status(),
            text::counted(self.total(), "item"),
            number(State::Succeeded),
            text::fell_back(self.counts.of(State::FellBack)),
            number(State::Failed),
            number(State::Skipped),
            number(State::Cancelled),
            text::count(self.deferred()),
        )
    }

    /// Why items did not succeed, a line for each end, then the groups and scopes that may not send. `store`: what a command line
    /// calls it.
    pub(crate) fn lines(&self, store: &str) -> Vec<String> {
        let mut lines: Vec<String> = ENDS.into_iter().filter_map(|end| self.why(end)).collect();
        lines.extend((self.succeeded_before > 0).then(|| {
            let items = text::count(self.succeeded_before);
            format!("{items} of them had succeeded before, and a person sent for them once more")
        }));
        let held = (State::Failed.as_str(), GiveUp::Held.as_str().to_owned());
        lines.extend(text::held(self.reasons.get(&held).copied().unwrap_or(0), &retry_held(store), 0));
        if self.deferred() > 0 {
            lines.extend(self.groups.lines());
            lines.extend(self.scopes.lines());
        }
        lines
    }

    /// As in `failed: 3 (max_retries), 1 (invalid)`, the most frequent first.
    fn why(&self, end: &'static str) -> Option<String> {
        let mut reasons: Vec<(&str, u64)> = self.reasons_of(end).filter(|(reason, _)| *reason != end).collect();
        reasons.sort_by_key(|(_, items)| std::cmp::Reverse(*items));
        let beyond: u64 = reasons.iter().skip(SHOWN).map(|(_, items)| items).sum();
        let label = |reason: &str| match end {
            "deferred" => self.groups.words_for(reason),
            _ => format!("({})", text::cut(&text::printable(reason), text::WIDTH / 2)),
        };
        let mut parts: Vec<String> = reasons
            .iter()
            .take(SHOWN)
            .map(|(reason, items)| format!("{} {}", text::count(*items), label(reason)))
            .collect();
        parts.extend((beyond > 0).then(|| format!("{} for other reasons", text::count(beyond))));
        let end = if end == "deferred" { "not finished" } else { end };
        (!parts.is_empty()).then(|| format!("{end}: {}", parts.join(", ")))
    }

    fn reasons_of(&self, end: &str) -> impl Iterator<Item = (&str, u64)> {
        self.reasons.iter().filter(move |((of, _), _)| *of == end).map(|((_, reason), items)| (reason.as_str(), *items))
    }

    /// The figures for scripts, without those of calls.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let number = |state| self.counts.of(state);
        let reasons: Map<String, Value> = ENDS
            .into_iter()
            .map(|end| {
                let reasons = self.reasons_of(end).map(|(why, items)| (why.to_owned(), Value::from(items)));
                (end.to_owned(), Value::Object(reasons.collect()))
            })
            .collect();
        let figures = json!({
            "status": self.status().as_str(),
            "input": self.total(),
            "succeeded": number(State::Succeeded),
            "fallback": number(State::FellBack),
            "failed": number(State::Failed),
            "skipped": number(State::Skipped),
            "cancelled": number(State::Cancelled),
            "deferred": self.deferred(),
            "succeeded_before": self.succeeded_before,
            "reasons": reasons,
            "groups": self.groups.json(),
            "scopes": if self.deferred() > 0 { self.scopes.json() } else { Vec::new() },
        });
        match figures {
            Value::Object(figures) => figures,
            _ => Map::new(),
        }
    }
}

/// Of an item that is left to the next run for what its server answered, in words of their own: the class of that.
fn left_for(item: &WorkItem) -> Option<&'static str> {
    const OURS: [&str; 7] = [
        Why::SameFailure.as_str(),
        Why::Account.as_str(),
        Why::Unreachable.as_str(),
        GiveUp::Retries.as_str(),
        GiveUp::Deferrals.as_str(),
        GiveUp::Deadline.as_str(),
        "max_crashes",
    ];
    let reason = item.reason.as_deref().filter(|_| item.state == State::Deferred)?;
    item.last.as_ref().filter(|_| !OURS.contains(&reason)).map(|last| last.class.as_str())
}

/// The ends that have reasons, in the order of the report.
const ENDS: [&str; 5] = ["fallback", "failed", "skipped", "cancelled", "deferred"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_core::{Backoff, Class, Growth, Jitter};
    use paceline_store::work::{Failure, MemoryStore, NewItem, OverBound, Scheduler, SchedulerConfig, WorkClock};

    use super::*;

    /// Works on every item until nothing can be done any more; what its payload says becomes of it.
    async fn worked(payloads: &[&str], policy: SchedulerConfig) -> StoreSummary {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = std::sync::Arc::new(MemoryStore::new(clock.clone()));
        let new = |(n, payload): (usize, &&str)| NewItem {
            group: if *payload == "account" { "keyless" } else { "default" }.to_owned(),
            ..NewItem::new(format!("{n}"), *payload)
        };
        store.insert(payloads.iter().enumerate().map(new).collect()).await.expect("room");
        let run = Scheduler::new(store.clone(), policy, clock.clone()).expect("makes sense");
        let end = run.run(|task| async move {
            match Class::from_name(task.payload()) {
                None | Some(Class::Success) => Ok(()),
                Some(class) => Err(Failure::new(class, format!("it is {class}"))),
            }
        });
        end.await.expect("a memory");
        StoreSummary::of(&*store, clock.wall()).await.expect("a memory")
    }

    /// The default with retries at once.
    fn quick() -> SchedulerConfig {
        let delay = Duration::from_millis(1);
        SchedulerConfig {
            backoff: Backoff { growth: Growth::Constant { delay }, jitter: Jitter::None },
            ..SchedulerConfig::default()
        }
    }

    #[tokio::test]
    async fn every_item_is_in_one_figure_and_has_its_reason() {
        let payloads = ["success", "success", "invalid", "filtered", "transient", "transient", "account"];
        let standing = worked(&payloads, quick()).await;
        assert_eq!(
            standing.headline(),
            "DEFERRED  7 items: 2 succeeded, 4 failed, 0 skipped, 0 cancelled, 1 not finished"
        );
        assert_eq!(
            standing.lines("work.db"),
            [
                "failed: 2 (max_retries), 1 (filtered), 1 (invalid)",
                "not finished: 1 waiting until the problem that stopped their group is fixed",
                "stopped: group keyless: it is account; fix the cause, and the next run tries it again, or `paceline tasks retry` does",
            ]
        );
        let json = standing.json();
        assert_eq!((&json["input"], &json["deferred"], &json["status"]), (&7.into(), &1.into(), &"DEFERRED".into()));
        assert_eq!(json["reasons"]["failed"]["max_retries"], 2);
        assert_eq!(json["groups"][0]["name"], "keyless");
    }

    #[tokio::test]
    async fn what_is_left_to_the_next_run_says_over_which_bound_it_was() {
        let policy = SchedulerConfig { over_bound: OverBound::NextRun, max_retries: 1, ..quick() };
        let standing = worked(&["transient", "success"], policy).await;
        assert_eq!(standing.lines("work.db"), ["not finished: 1 left for the next run (max_retries)"]);
        assert_eq!(standing.status().code(), 3);
    }

    /// Each is refused in words of its own.
    #[tokio::test]
    async fn what_is_left_for_its_own_answer_is_counted_by_the_class_of_that() {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = std::sync::Arc::new(MemoryStore::new(clock.clone()));
        store.insert(["a", "b", "c"].map(|key| NewItem::new(key, key)).into()).await.expect("room");
        let run = Scheduler::new(store.clone(), quick(), clock.clone()).expect("makes sense");
        let refused = run.run(|task| async move {
            let refused = Failure::new(Class::Invalid, format!("not you, {}", task.key())).with_status(403);
            Err(Failure { spares_group: true, ..refused })
        });
        refused.await.expect("a memory");
        let standing = StoreSummary::of(&*store, clock.wall()).await.expect("a memory");
        assert_eq!(standing.json()["reasons"]["deferred"], json!({"invalid": 3}));
        assert_eq!(
            standing.lines("work.db"),
            ["not finished: 3 waiting for the next run after a refusal of their own"]
        );
    }

    #[tokio::test]
    async fn a_status_word_needs_items() {
        assert_eq!(worked(&[], SchedulerConfig::default()).await.headline(), "SUCCESS  no items");
        let failed = worked(&["invalid", "invalid"], SchedulerConfig::default()).await;
        assert_eq!((failed.status().as_str(), failed.status().code()), ("FAILED", 1));
        let bounded = SchedulerConfig { max_wait: Duration::from_secs(1), ..SchedulerConfig::default() };
        let waits = worked(&["transient"], bounded).await;
        assert_eq!(waits.lines("work.db"), ["not finished: 1 waiting for their due time"]);
    }
}
