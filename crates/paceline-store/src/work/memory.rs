//! An in-memory store: for tests, simulations and work that need not survive.

mod notes;
mod queue;
mod row;

use crate::state::{Forgiven, State};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_core::Timestamp;
use tokio::sync::Notify;

use self::notes::Notes;
use self::queue::{Queue, due, first, opens};
use self::row::Row;
use super::answers::{MOST, NotedAnswers};
use super::checks::{check, keepable};
use super::clock::WorkClock;
use super::error::WorkError;
use super::item::{
    Added, Amend, Claim, ClaimOutcome, ClaimRequest, Filter, HistoryEntry, LEFT_FIRST, NewItem, Pruned, PrunedKeys,
    RecordStatus, StateCounts, WorkItem, WorkerId,
};
use super::lanes::{Given, Taking};
use super::notes::{NoteChange, ScopeNote};
use super::store::{StoreFuture, WorkStore};
use crate::schema::ACCOUNT;
use crate::scope::{ScopeRow, ScopeStatus};

/// A [`WorkStore`] in memory. Clones are the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: WorkClock,
    tables: Mutex<Tables>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Tables {
    rows: BTreeMap<u64, Row>,
    ids: HashMap<String, u64>,
    waiting: Queue,
    scopes: BTreeMap<Arc<str>, Closed>,
    workers: BTreeMap<i64, Worker>,
    /// What each worker has.
    in_flight: BTreeMap<i64, BTreeSet<u64>>,
    last_worker: i64,
    limiters: BTreeMap<String, String>,
    answers: BTreeMap<Arc<str>, NotedAnswers>,
    notes: Notes,
    /// The keys of removed items, with the state in which each ended, and when.
    pruned: HashMap<String, (State, Timestamp)>,
    last_item: u64,
}

#[derive(Debug)]
struct Closed {
    state: ScopeStatus,
    since: Timestamp,
}

#[derive(Debug)]
struct Worker {
    lease: Duration,
    until: Timestamp,
}

impl MemoryStore {
    /// An empty store on that clock.
    pub fn new(clock: WorkClock) -> Self {
        Self(Arc::new(Shared { clock, tables: Mutex::default(), changed: Notify::new() }))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work on the tables at the present time, ready at once.
    fn at_once<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tables, Timestamp) -> Result<T, WorkError>,
    ) -> StoreFuture<'_, T> {
        let now = self.0.clock.wall();
        let done = work(&mut self.tables(), now);
        Box::pin(std::future::ready(done))
    }
}

impl WorkStore for MemoryStore {
    fn now(&self) -> StoreFuture<'_, Timestamp> {
        self.at_once(|_, now| Ok(now))
    }

    fn insert(&self, items: Vec<NewItem>) -> StoreFuture<'_, Vec<Added>> {
        let done = self.at_once(|tables, now| {
            items.iter().try_for_each(check)?;
            Ok(items.into_iter().map(|item| tables.insert(item, now)).collect())
        });
        self.0.changed.notify_waiters();
        done
    }

    fn register(&self, _name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        self.at_once(|tables, now| {
            tables.begin_run(now);
            Ok(tables.join(lease, now))
        })
    }

    fn reregister(&self, _name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        self.at_once(|tables, now| Ok(tables.join(lease, now)))
    }

    fn heartbeat(&self, worker: WorkerId) -> StoreFuture<'_, bool> {
        let mut back = false;
        let done = self.at_once(|tables, now| {
            let known = tables.workers.get_mut(&worker.0).map(|known| known.until = now + known.lease).is_some();
            back = tables.reclaim(now);
            Ok(known)
        });
        if back {
            self.0.changed.notify_waiters();
        }
        done
    }

    fn claim(&self, worker: WorkerId, ask: ClaimRequest) -> StoreFuture<'_, Claim> {
        self.at_once(|tables, now| Ok(tables.claim(worker, ask, now)))
    }

    fn note_sent(&self, item: u64, fence: i64) -> StoreFuture<'_, bool> {
        self.at_once(|tables, _| {
            let row = tables.rows.get_mut(&item).filter(|row| row.fence == fence && row.item.state == State::InFlight);
            Ok(row.map(Row::note_sent).is_some())
        })
    }

    fn record(&self, mut outcomes: Vec<ClaimOutcome>, mut scopes: Vec<ScopeRow>) -> StoreFuture<'_, Vec<RecordStatus>> {
        keepable(&mut outcomes, &mut scopes);
        self.at_once(|tables, now| {
            let kept = outcomes.into_iter().map(|outcome| tables.record(outcome, now)).collect();
            scopes.into_iter().for_each(|row| tables.set_scope(row, now));
            Ok(kept)
        })
    }

    fn deregister(&self, worker: WorkerId) -> StoreFuture<'_, ()> {
        let done = self.at_once(|tables, _| {
            tables.workers.remove(&worker.0);
            tables.put_back(worker.0, 0);
            Ok(())
        });
        self.0.changed.notify_waiters();
        done
    }

    fn scopes(&self) -> StoreFuture<'_, Vec<ScopeRow>> {
        self.at_once(|tables, now| {
            tables.end_holds(now);
            let row =
                |(name, closed): (&Arc<str>, &Closed)| ScopeRow { name: name.clone(), state: closed.state.clone() };
            Ok(tables.scopes.iter().map(row).collect())
        })
    }

    fn counts(&self) -> StoreFuture<'_, StateCounts> {
        self.at_once(|tables, _| {
            let mut counts = StateCounts::default();
            tables.rows.values().for_each(|row| counts.by_state[row.item.state as usize] += 1);
            Ok(counts)
        })
    }

    fn list(&self, filter: Filter, after: u64, limit: usize) -> StoreFuture<'_, Vec<WorkItem>> {
        self.at_once(|tables, _| {
            let later = tables.rows.range(after.saturating_add(1)..).map(|(_, row)| &row.item);
            Ok(later.filter(|item| filter.takes(item)).take(limit).cloned().collect())
        })
    }

    fn show(&self, key: &str) -> StoreFuture<'_, Option<(WorkItem, String, Vec<HistoryEntry>)>> {
        self.at_once(|tables, _| {
            let row = tables.ids.get(key).and_then(|id| tables.rows.get(id));
            Ok(row.map(|row| (row.item.clone(), row.payload.clone(), row.events.clone())))
        })
    }

    fn amend(&self, filter: Filter, amend: Amend) -> StoreFuture<'_, u64> {
        let done = self.at_once(|tables, now| Ok(tables.amend(&filter, amend, now)));
        self.0.changed.notify_waiters();
        done
    }

    fn save_state(&self, account: &str, state: &str) -> StoreFuture<'_, ()> {
        self.at_once(|tables, _| {
            tables.limiters.insert(account.to_owned(), state.to_owned());
            Ok(())
        })
    }

    fn replace_state(&self, account: &str, before: Option<&str>, state: &str) -> StoreFuture<'_, bool> {
        self.at_once(|tables, _| {
            let is_same = tables.limiters.get(account).map(String::as_str) == before;
            if is_same {
                tables.limiters.insert(account.to_owned(), state.to_owned());
            }
            Ok(is_same)
        })
    }

    fn load_state(&self, account: &str) -> StoreFuture<'_, Option<String>> {
        self.at_once(|tables, _| Ok(tables.limiters.get(account).cloned()))
    }

    fn note_answers(&self, noted: Vec<NotedAnswers>) -> StoreFuture<'_, ()> {
        self.at_once(|tables, now| {
            let noted = noted.into_iter().map(|noted| (noted.scope.clone(), NotedAnswers { noted: now, ..noted }));
            tables.answers.extend(noted);
            while tables.answers.len() > MOST
                && let Some(oldest) = tables.answers.values().min_by_key(|known| known.noted).cloned()
            {
                tables.answers.remove(&oldest.scope);
            }
            Ok(())
        })
    }

    fn answers(&self, since: Timestamp) -> StoreFuture<'_, Vec<NotedAnswers>> {
        self.at_once(|tables, _| {
            let mut noted: Vec<_> = tables.answers.values().filter(|known| known.noted >= since).cloned().collect();
            noted.sort_by_key(|known| known.noted);
            Ok(noted)
        })
    }

    fn change_notes(&self, scopes: Vec<Arc<str>>, change: NoteChange) -> StoreFuture<'_, ()> {
        self.at_once(|tables, now| {
            tables.notes.change(scopes, &change, now);
            Ok(())
        })
    }

    fn notes(&self, since: Timestamp) -> StoreFuture<'_, Vec<ScopeNote>> {
        self.at_once(|tables, _| Ok(tables.notes.since(since)))
    }

    fn prune(&self, filter: Filter, older_than: Duration, keys: PrunedKeys) -> StoreFuture<'_, Pruned> {
        self.at_once(|tables, now| {
            let old =
                |item: &WorkItem| item.state.is_final() && item.ended.is_some_and(|ended| ended + older_than <= now);
            let rows = tables.rows.values().filter(|row| old(&row.item) && filter.takes(&row.item));
            let lives = |worker: i64| tables.workers.get(&worker).is_some_and(|worker| worker.until > now);
            let (stay, gone): (Vec<_>, Vec<_>) = rows.partition(|row| row.cancelled_at.is_some_and(lives));
            let (under_way, gone): (_, Vec<u64>) = (stay.len() as u64, gone.iter().map(|row| row.item.id).collect());
            for row in gone.iter().filter_map(|id| tables.rows.remove(id)) {
                tables.ids.remove(&row.item.key);
                if keys == PrunedKeys::Keep {
                    tables.pruned.insert(row.item.key, (row.item.state, row.item.ended.unwrap_or(now)));
                }
            }
            let kept = tables.pruned.len();
            if keys.forget_kept(&filter) {
                let is_wanted = |state: &State| filter.states.is_empty() || filter.states.contains(state);
                tables.pruned.retain(|_, (state, ended)| *ended + older_than > now || !is_wanted(state));
            }
            Ok(Pruned { items: gone.len() as u64, keys: (kept - tables.pruned.len()) as u64, under_way })
        })
    }

    fn changed(&self) -> StoreFuture<'_, ()> {
        let changed = self.0.changed.notified();
        Box::pin(async move {
            changed.await;
            Ok(())
        })
    }
}

impl Tables {
    fn insert(&mut self, new: NewItem, now: Timestamp) -> Added {
        if let Some(row) = self.ids.get(&new.key).and_then(|id| self.rows.get(id)) {
            return Added::known(row.item.state, row.payload == new.payload);
        }
        if let Some((state, _)) = self.pruned.get(&new.key) {
            return Added::Known(*state);
        }
        self.last_item += 1;
        let (id, not_before) = (self.last_item, new.waits_until(now));
        let item = WorkItem {
            id,
            key: new.key.clone(),
            group: new.group.into(),
            priority: new.priority,
            state: State::Waiting,
            attempts: 0,
            deferrals: 0,
            tests: 0,
            abandoned: 0,
            forgiven: Forgiven::default(),
            crashes: 0,
            may_be_done: new.may_be_done,
            in_doubt: new.may_be_done,
            not_before,
            delay: not_before.map_or(Duration::ZERO, |at| at.saturating_since(now)),
            created: new.created.unwrap_or(now),
            first: None,
            ended: None,
            sent_for: new.created.map(|_| now),
            delivered: None,
            deadline: new.deadline,
            last: None,
            answered: None,
            reason: None,
        };
        self.ids.insert(new.key, id);
        let row = Row {
            item,
            payload: new.payload,
            fence: 0,
            worker: None,
            is_under_way: false,
            cancelled_at: None,
            was_cut_off: false,
            events: Vec::new(),
        };
        self.waiting.insert(&row);
        self.rows.insert(id, row);
        Added::New
    }

    fn join(&mut self, lease: Duration, now: Timestamp) -> WorkerId {
        self.reclaim(now);
        self.last_worker += 1;
        self.workers.insert(self.last_worker, Worker { lease, until: now + lease });
        WorkerId(self.last_worker)
    }

    fn begin_run(&mut self, now: Timestamp) {
        let is_stopped = |closed: &Closed| matches!(closed.state, ScopeStatus::Stopped { .. });
        let stopped: Vec<_> =
            self.scopes.iter().filter(|(_, closed)| is_stopped(closed)).map(|(name, _)| name.clone()).collect();
        for name in stopped {
            self.set_scope(ScopeRow { name, state: ScopeStatus::Open }, now);
        }
        let deferred: Vec<u64> =
            self.rows.values().filter(|row| row.item.state == State::Deferred).map(|row| row.item.id).collect();
        for id in deferred {
            self.change(id, |row| row.begin_run(LEFT_FIRST));
        }
    }

    /// Puts back the items of workers whose lease ran out; returns whether there were any.
    fn reclaim(&mut self, now: Timestamp) -> bool {
        let dead: Vec<i64> = self.workers.iter().filter(|(_, worker)| worker.until <= now).map(|(id, _)| *id).collect();
        for id in &dead {
            self.workers.remove(id);
            self.put_back(*id, 1);
        }
        !dead.is_empty()
    }

    fn put_back(&mut self, worker: i64, crashes: u32) {
        let held = self.in_flight.get(&worker).cloned().unwrap_or_default();
        for id in held {
            self.change(id, |row| row.put_back(crashes));
        }
    }

    fn claim(&mut self, worker: WorkerId, ask: ClaimRequest, now: Timestamp) -> Claim {
        self.end_holds(now);
        if !self.workers.contains_key(&worker.0) {
            return Claim { now, lost: true, ..Claim::default() };
        }
        let (mut ids, scopes) = (Vec::new(), &self.scopes);
        let Queue { lanes, places, .. } = &mut self.waiting;
        let taking = Taking::new(now, now + ask.ahead, ask.limit);
        let Ok(()) = lanes.share(taking, opens(scopes), |asked| {
            let places = &mut places[asked.lane.id as usize];
            let taken = due(places, asked);
            for place in &taken {
                places.remove(place);
            }
            ids.extend(taken.iter().map(|place| place.3));
            let new = taken.iter().filter(|place| place.0).count();
            Ok::<_, Infallible>(Given { taken: taken.len(), new, first: first(places) })
        });
        let next_due = lanes.next_due(opens(scopes)).map(|due| due.saturating_since(now));
        let mut items = Vec::with_capacity(ids.len());
        for id in ids {
            self.change(id, |row| row.take(worker, now));
            items.extend(self.rows.get_mut(&id).map(|row| row.hand_out(now)));
        }
        let others = self.in_flight.keys().any(|holder| *holder != worker.0);
        Claim { items, next_due, others, now, lost: false }
    }

    fn record(&mut self, outcome: ClaimOutcome, now: Timestamp) -> RecordStatus {
        let Some(row) = self.rows.get_mut(&outcome.id) else { return RecordStatus::Lost };
        if row.fence != outcome.fence {
            if row.fence == outcome.fence + 1 && row.item.state == State::Cancelled {
                row.though_cancelled(&outcome);
            }
            return RecordStatus::Lost;
        }
        self.change(outcome.id, |row| row.record(outcome, now));
        RecordStatus::Recorded
    }

    fn set_scope(&mut self, row: ScopeRow, now: Timestamp) {
        let since = self.scopes.remove(&row.name).map(|closed| closed.since);
        if row.state != ScopeStatus::Open {
            self.scopes.insert(row.name, Closed { state: row.state, since: since.unwrap_or(now) });
        } else if let Some(since) = since {
            self.move_deadlines(&row.name, now.saturating_since(since));
        }
    }

    /// Who lets items wait again has seen to what stopped their groups.
    fn open_stopped_of(&mut self, items: &[u64], now: Timestamp) {
        let groups: BTreeSet<Arc<str>> =
            items.iter().map(|id| self.rows[id].item.group.clone()).chain([ACCOUNT.into()]).collect();
        for name in groups.into_iter().filter(|_| !items.is_empty()) {
            if self.scopes.get(&name).is_some_and(|closed| matches!(closed.state, ScopeStatus::Stopped { .. })) {
                self.set_scope(ScopeRow { name, state: ScopeStatus::Open }, now);
            }
        }
    }

    fn end_holds(&mut self, now: Timestamp) {
        let over = |closed: &Closed| matches!(closed.state, ScopeStatus::Held { until, .. } if until <= now);
        let ended: Vec<_> =
            self.scopes.iter().filter(|(_, closed)| over(closed)).map(|(name, _)| name.clone()).collect();
        for name in ended {
            self.set_scope(ScopeRow { name, state: ScopeStatus::Open }, now);
        }
    }

    fn move_deadlines(&mut self, scope: &str, by: Duration) {
        for row in self.rows.values_mut().filter(|row| scope == ACCOUNT || &*row.item.group == scope) {
            if row.item.state == State::Waiting {
                row.item.first = row.item.first.map(|first| first + by);
            }
        }
    }

    fn amend(&mut self, filter: &Filter, amend: Amend, now: Timestamp) -> u64 {
        let meant: Vec<u64> = self
            .rows
            .values()
            .filter(|row| filter.takes(&row.item) && amend.applies(row.item.state))
            .map(|row| row.item.id)
            .collect();
        if amend.retries() {
            self.open_stopped_of(&meant, now);
        }
        for id in &meant {
            let worker = self.rows.get(id).and_then(|row| row.worker);
            self.change(*id, |row| match amend {
                Amend::Retry => {
                    row.begin_anew(None);
                    row.item.sent_for = Some(now);
                }
                Amend::Again { as_new } => row.begin_again(as_new, now),
                Amend::LeaveToNextRun => row.leave_to_next_run(),
                Amend::TakeUp => row.begin_run(LEFT_FIRST),
                Amend::Due => (row.item.not_before, row.item.delay, row.item.reason) = (None, Duration::ZERO, None),
                Amend::Cancel => row.cancel(worker, now),
            });
        }
        meant.len() as u64
    }

    /// Every change of an item that may change its place or its hands.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Row)) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        self.waiting.remove(row);
        if let Some(worker) = row.worker.take()
            && let Some(held) = self.in_flight.get_mut(&worker)
        {
            held.remove(&id);
            if held.is_empty() {
                self.in_flight.remove(&worker);
            }
        }
        row.fence += 1;
        change(row);
        if let Some(worker) = row.worker {
            self.in_flight.entry(worker).or_default().insert(id);
        }
        self.waiting.insert(row);
    }
}
