//! Groups that are held or stopped, and why an item that has not ended waits.

use std::collections::BTreeSet;

use paceline_core::{Class, GiveUp, Timestamp};
use paceline_store::work::{Filter, State, WorkError, WorkItem, WorkStore};
use paceline_store::{ACCOUNT, ScopeRow, ScopeStatus};
use serde_json::{Value, json};

use super::closed_scopes::Why;
use super::pages::Pages;
use super::same_at_each_try::CallIds;
use crate::text;

/// Why an item that has not ended is not worked on at present. The first that applies is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// A worker has it.
    InFlight,
    /// The worker that has it has ended without a word.
    WorkerGone,
    /// Its group is stopped until a person acts.
    ScopeStopped,
    /// Its group is held until a time.
    ScopeHeld,
    /// Its own time lies ahead.
    NotBefore,
    /// No run has begun it.
    NotStarted,
    /// It is due, and no run has claimed it since.
    RunBound,
}

impl Waits {
    const ALL: [Self; 7] = [
        Self::InFlight,
        Self::WorkerGone,
        Self::ScopeStopped,
        Self::ScopeHeld,
        Self::NotBefore,
        Self::NotStarted,
        Self::RunBound,
    ];

    /// The name in tables and JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::WorkerGone => "worker_gone",
            Self::ScopeStopped => "scope_stopped",
            Self::ScopeHeld => "scope_held",
            Self::NotBefore => "not_before",
            Self::NotStarted => "not_started",
            Self::RunBound => "run_bound",
        }
    }

    /// Behind a number of items.
    const fn describe(self) -> &'static str {
        match self {
            Self::InFlight => "in flight at a worker",
            Self::WorkerGone => "left by a worker that has ended (the next run takes them)",
            Self::ScopeStopped => "waiting until the problem that stopped their group is fixed",
            Self::ScopeHeld => "waiting until their group opens",
            Self::NotBefore => "waiting for their due time",
            Self::NotStarted => "not started",
            Self::RunBound => "due (left for the next run)",
        }
    }

    /// The text for one of these, or for the bound that an item was over when it was left to the next run.
    fn words_for(reason: &str) -> String {
        match Self::ALL.into_iter().find(|waits| waits.as_str() == reason) {
            Some(waits) => waits.describe().to_owned(),
            None if reason == Why::SameFailure.as_str() => {
                "waiting because their host, their address or their group is stopped (see below)".to_owned()
            }
            None if reason == Why::Account.as_str() => {
                "left for the next run (a key, an account, a certificate or a flag has to be put right)".to_owned()
            }
            None if reason == Class::Invalid.as_str() => {
                "waiting for the next run after a refusal of their own".to_owned()
            }
            None if reason == Why::Unreachable.as_str() => "left for the next run (no server is there)".to_owned(),
            None => format!("left for the next run ({})", text::printable(reason)),
        }
    }
}

/// Groups that a refusal lists.
const LISTED: usize = 10;

/// Where no item is of that group: says so, and which groups there are.
///
/// # Errors
/// An error of the store.
pub(crate) async fn unknown(store: &dyn WorkStore, group: &str) -> Result<Option<String>, WorkError> {
    let of_group = Filter { group: Some(group.to_owned()), ..Filter::default() };
    if !store.list(of_group, 0, 1).await?.is_empty() {
        return Ok(None);
    }
    let (mut names, mut pages) = (BTreeSet::new(), Pages::of(store, Filter::default(), None));
    while let Some(items) = pages.next().await?
        && names.len() <= LISTED
    {
        names.extend(items.into_iter().map(|item| item.group));
    }
    let shown: Vec<_> = names.iter().take(LISTED).map(|name| text::printable(name)).collect();
    let known = match (shown.as_slice(), names.len() > LISTED) {
        ([], _) => "the store has no items".to_owned(),
        (shown, true) => format!("there are {}, ...", shown.join(", ")),
        (shown, false) => format!("there are {}", shown.join(", ")),
    };
    Ok(Some(format!("no item is of the group {group:?} ({known})")))
}

/// The groups that may not send, at a time.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    closed: Vec<ScopeRow>,
    now: Timestamp,
    /// Whether a worker is at work; none where that is not known.
    is_worked_on: Option<bool>,
    /// Calls may be made twice, so none is noted as it leaves.
    are_repeated: bool,
}

impl Groups {
    /// Those of a store at [that time](super::store::StoreArgs::now).
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn of(store: &dyn WorkStore, now: Timestamp) -> Result<Self, WorkError> {
        let closed = store.scopes().await?.into_iter().filter(|row| row.state != ScopeStatus::Open).collect();
        let are_repeated = CallIds::of(store).await?.are_sent();
        Ok(Self { closed, now, is_worked_on: None, are_repeated })
    }

    /// With that: whether a worker is at work.
    pub(crate) fn worked_on(self, is_worked_on: Option<bool>) -> Self {
        Self { is_worked_on, ..self }
    }

    /// Whether the work of an item was done, or may have been: nothing tells what became of a call of it. Where calls are not
    /// noted, one may have left when a worker died that had the item.
    pub(super) fn may_be_done(&self, item: &WorkItem) -> bool {
        let unknown = [GiveUp::Held, GiveUp::Unknown].map(|reason| Some(reason.as_str()));
        let is_unknown = item.state == State::Failed && unknown.contains(&item.reason.as_deref());
        let is_in_doubt = item.may_be_done || item.in_doubt || (self.are_repeated && item.crashes > 0);
        is_unknown || is_in_doubt || item.state == State::Succeeded || item.delivered.is_some()
    }

    /// What a due item waits for where a worker is at work.
    pub(crate) fn waits_for_place(&self, item: &WorkItem) -> Option<&'static str> {
        let is_due = matches!(self.waits(item), Some(Waits::NotStarted | Waits::RunBound));
        (is_due && self.is_worked_on == Some(true)).then_some(FREE_PLACE)
    }

    /// The text for why items wait: [`Waits::words_for`], but that of due ones where a worker is at work.
    pub(crate) fn words_for(&self, reason: &str) -> String {
        match [Waits::NotStarted, Waits::RunBound].into_iter().find(|waits| waits.as_str() == reason) {
            Some(waits) if self.is_worked_on == Some(true) => {
                let what = if waits == Waits::NotStarted { "not started" } else { "due" };
                format!("{what} (waiting for {FREE_PLACE})")
            }
            _ => Waits::words_for(reason),
        }
    }

    /// Keeps what concerns that group.
    pub(crate) fn retain(&mut self, group: &str) {
        self.closed.retain(|row| *row.name == *group || *row.name == *ACCOUNT);
    }

    /// When they were looked at.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Why an item waits; none when it has ended, and when it is left to the next run.
    pub(crate) fn waits(&self, item: &WorkItem) -> Option<Waits> {
        match item.state {
            State::Waiting => Some(self.of_waiting(item)),
            State::InFlight if self.is_worked_on == Some(false) => Some(Waits::WorkerGone),
            State::InFlight => Some(Waits::InFlight),
            State::Succeeded
            | State::Failed
            | State::Skipped
            | State::Cancelled
            | State::Deferred
            | State::FellBack => None,
        }
    }

    fn of_waiting(&self, item: &WorkItem) -> Waits {
        let closed = || self.closed.iter().filter(|row| row.name == item.group || *row.name == *ACCOUNT);
        if closed().any(|row| matches!(row.state, ScopeStatus::Stopped { .. })) {
            Waits::ScopeStopped
        } else if closed().any(|row| matches!(row.state, ScopeStatus::Held { until, .. } if until > self.now)) {
            Waits::ScopeHeld
        } else if self.due(item).is_some() {
            Waits::NotBefore
        } else if item.sends() == 0 && item.crashes == 0 && item.last.is_none() {
            Waits::NotStarted
        } else {
            Waits::RunBound
        }
    }

    /// When a waiting item may start, if that lies ahead.
    pub(crate) fn due(&self, item: &WorkItem) -> Option<Timestamp> {
        item.not_before.filter(|at| item.state == State::Waiting && *at > self.now)
    }

    /// Whether a group is held or stopped.
    pub(crate) fn is_closed(&self, group: &str) -> bool {
        self.closed.iter().any(|row| *row.name == *group)
    }

    /// Those that are stopped.
    pub(crate) fn stopped(&self) -> impl Iterator<Item = &str> {
        let stopped = self.closed.iter().filter(|row| matches!(row.state, ScopeStatus::Stopped { .. }));
        stopped.map(|row| &*row.name)
    }

    /// A line for each cause: which groups are held until when, or stopped, and what to do. The first few, then how many more.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut causes: Vec<(&ScopeStatus, Vec<&str>)> = Vec::new();
        for row in &self.closed {
            match causes.iter_mut().find(|(state, _)| *state == &row.state) {
                Some((_, names)) => names.push(&row.name),
                None => causes.push((&row.state, vec![&row.name])),
            }
        }
        let mut lines: Vec<String> = causes.iter().take(SHOWN).map(|(state, names)| line(state, names)).collect();
        let more: usize = causes.iter().skip(SHOWN).map(|(_, names)| names.len()).sum();
        lines.extend((more > 0).then(|| format!("and {}", text::counted(more as u64, "more group"))));
        lines
    }

    /// All of them, for scripts.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.closed.iter().map(as_json).collect()
    }
}

/// What a due item waits for while a worker works on others.
const FREE_PLACE: &str = "a free place of the worker";

/// Groups that are named.
const SHOWN: usize = 5;

fn line(state: &ScopeStatus, names: &[&str]) -> String {
    let name = match names {
        [name] if *name == ACCOUNT => "all groups".to_owned(),
        [name] => format!("group {}", text::printable(name)),
        names => text::counted(names.len() as u64, "group"),
    };
    match state {
        ScopeStatus::Open => format!("open: {name}"),
        ScopeStatus::Held { until, reason } => {
            let until = text::end(*until);
            format!("held: {name} until {until}: {}; it opens again by itself", text::printable(reason))
        }
        ScopeStatus::Stopped { reason } => {
            format!(
                "stopped: {name}: {}; fix the cause, and the next run tries it again, or `paceline tasks retry` does",
                text::printable(reason)
            )
        }
    }
}

fn as_json(row: &ScopeRow) -> Value {
    let (state, until, reason) = match &row.state {
        ScopeStatus::Open => ("open", None, None),
        ScopeStatus::Held { until, reason } => ("held", Some(until.to_string()), Some(reason)),
        ScopeStatus::Stopped { reason } => ("stopped", None, Some(reason)),
    };
    json!({ "name": &*row.name, "state": state, "until": until, "reason": reason })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_store::work::{MemoryStore, NewItem, WorkClock};

    use super::*;

    #[tokio::test]
    async fn the_strongest_reason_is_told() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let clock = WorkClock::starting_at(now);
        let store = MemoryStore::new(clock);
        let later = Some(now + Duration::from_secs(60));
        store
            .insert(vec![
                NewItem::new("new", "1"),
                NewItem { not_before: later, ..NewItem::new("later", "1") },
                NewItem { group: "held".to_owned(), not_before: later, ..NewItem::new("held", "1") },
                NewItem { group: "stopped".to_owned(), not_before: later, ..NewItem::new("stopped", "1") },
            ])
            .await
            .expect("room");
        let until = now + Duration::from_secs(3_600);
        let row = |name: &str, state| ScopeRow { name: name.into(), state };
        let held = row("held", ScopeStatus::Held { until, reason: "used up".to_owned() });
        let stopped = row("stopped", ScopeStatus::Stopped { reason: "bad key".to_owned() });
        store.record(Vec::new(), vec![held, stopped]).await.expect("room");
        let groups = Groups::of(&store, now).await.expect("readable");
        let items = store.list(Default::default(), 0, 10).await.expect("readable");
        let waits: Vec<_> = items.iter().filter_map(|item| groups.waits(item)).map(Waits::as_str).collect();
        assert_eq!(waits, ["not_started", "not_before", "scope_held", "scope_stopped"]);
        let lines = groups.lines().join("\n");
        assert!(lines.contains("held: group held until ") && lines.contains(": used up; "), "{lines}");
        assert!(lines.contains("stopped: group stopped: bad key; fix the cause, "), "{lines}");
    }
}
