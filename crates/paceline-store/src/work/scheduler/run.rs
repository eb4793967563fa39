//! One run: a loop around one timer.

mod fallback;
mod start;
mod store_batch;
mod turns;

use crate::state::State;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_core::{Class, Instant, Rng, Timestamp};
use tokio::task::{Id, JoinError, JoinSet};

use self::start::Awaited;
use self::store_batch::{ReadAhead, StoreBatch, completed};
use self::turns::Turns;
use super::summary::{EndReason, Summary};
use super::window::{HeldClaim, Window};
use super::{Scheduler, SchedulerEvent, StartDecision, Task};
use crate::scope::{ScopeRow, ScopeStatus};
use crate::work::config::Idle;
use crate::work::error::WorkError;
use crate::work::item::{Claim, ClaimOutcome, Failure, StateCounts, Transition, WorkerId};
use crate::work::judge::Judgement;

/// How a try ended, and a judge's decision about its failure.
type TaskResult = Result<(), (Failure, Option<Judgement>)>;

pub(super) struct Run<'a, W> {
    scheduler: &'a Scheduler,
    work: W,
    worker: WorkerId,
    window: Window,
    running: JoinSet<TaskResult>,
    /// Running items by id and fence: after a lost lease an item may run here twice.
    in_flight: BTreeMap<(u64, i64), HeldClaim>,
    /// Of those, the ones that ended but for their fallback, with what they end as without it.
    falling_back: BTreeMap<(u64, i64), ClaimOutcome>,
    /// The item of each task: of a task that panics only the id is known.
    tasks: HashMap<Id, (u64, i64)>,
    /// The batch that the store is working on.
    batch: Option<StoreBatch>,
    /// Not recorded yet.
    outcomes: Vec<(HeldClaim, ClaimOutcome)>,
    scopes: Vec<ScopeRow>,
    /// Groups that this run stopped.
    stopped: BTreeSet<Arc<str>>,
    /// When the next item in the store may start, as far as is known.
    due_at: Option<Instant>,
    /// When to claim it.
    claim_at: Option<Instant>,
    /// Other workers have items in flight, which may come back.
    others: bool,
    /// The store's time at the last claim, and when that was.
    store_clock: (Timestamp, Instant),
    heartbeat_at: Instant,
    ends_at: Option<Instant>,
    ending: Option<(EndReason, Instant)>,
    /// No item may begin before that.
    blocked_until: Option<Instant>,
    /// Until when the next declined item waits, and why.
    declined: Option<(Instant, Arc<str>)>,
    /// No claim before that. The store hands items out before it is known whether they may start, and does not know which scopes
    /// of the limiter are closed: to claim the items behind theirs must not keep the disk busy.
    no_claim_before: Instant,
    /// When the items come again that wait for a place in the store.
    turns: Turns,
    /// The wait that the observer was notified of last.
    last_wait: Option<(Instant, Option<Arc<str>>)>,
    /// Since when all tries were failed probes of a failing server.
    probing_since: Option<Instant>,
    read_ahead: ReadAhead,
    awaited: Awaited,
    rng: Rng,
    summary: Summary,
}

impl<'a, W, F> Run<'a, W>
where
    W: Fn(Task) -> StartDecision<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    pub(super) async fn begin(scheduler: &'a Scheduler, work: W) -> Result<Self, WorkError> {
        let config = &scheduler.config;
        let worker = scheduler.store.register(&scheduler.name, config.lease).await?;
        let now = scheduler.clock.now();
        let nothing = Summary {
            ended: EndReason::Done,
            counts: StateCounts::default(),
            calls: 0,
            resends: 0,
            abandoned: 0,
            uncounted: 0,
            lost: 0,
            cancelled: 0,
            taken_over: 0,
        };
        let mut run = Self {
            scheduler,
            work,
            worker,
            window: Window::default(),
            running: JoinSet::new(),
            in_flight: BTreeMap::new(),
            falling_back: BTreeMap::new(),
            tasks: HashMap::new(),
            batch: None,
            outcomes: Vec::new(),
            scopes: Vec::new(),
            stopped: BTreeSet::new(),
            due_at: Some(now),
            claim_at: Some(now),
            others: false,
            store_clock: (scheduler.clock.wall(), now),
            heartbeat_at: now + config.lease / 3,
            ends_at: config.max_run_duration.map(|bound| now + bound),
            ending: None,
            blocked_until: None,
            declined: None,
            no_claim_before: now,
            turns: Turns::default(),
            last_wait: None,
            probing_since: None,
            read_ahead: ReadAhead::default(),
            awaited: Awaited::default(),
            rng: Rng::new(scheduler.clock.wall().as_millis() as u64),
            summary: nothing,
        };
        run.note_taken_over();
        Ok(run)
    }

    /// The loop. While the store works on a batch, claimed items begin as running ones end. The loop listens for changes by other
    /// workers before it claims, so that it misses none in between.
    pub(super) async fn until(mut self, stop: impl Future<Output = ()>) -> Result<Summary, WorkError> {
        let mut stop = pin!(stop);
        let store = self.scheduler.store.clone();
        let mut changed = store.changed();
        loop {
            self.collect_ended();
            self.check_time_limits();
            self.start_due();
            if self.batch.is_none() {
                self.batch = self.next_batch();
            }
            if let Some(ended) = self.is_over() {
                return self.finish(ended).await;
            }
            self.notify_wait();
            let wait = self.next_wake().saturating_since(self.scheduler.clock.now());
            tokio::select! {
                Some(done) = self.running.join_next_with_id() => self.task_ended(done),
                result = completed(&mut self.batch) => self.batch_done(result?),
                () = tokio::time::sleep(wait) => {}
                () = &mut stop, if self.ending.is_none() => self.end(EndReason::Interrupted),
                heard = &mut changed => {
                    heard?;
                    changed = store.changed();
                    self.schedule_claim(self.scheduler.clock.now());
                }
            }
        }
    }

    /// Collects all tasks that have ended meanwhile: the busier the disk, the larger the next batch.
    fn collect_ended(&mut self) {
        while let Some(done) = self.running.try_join_next_with_id() {
            self.task_ended(done);
        }
    }

    fn task_ended(&mut self, done: Result<(Id, TaskResult), JoinError>) {
        let (task, tried) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err((panicked(&error), None))),
        };
        let Some(claim_id) = self.tasks.remove(&task) else { return };
        let Some(held) = self.in_flight.remove(&claim_id) else { return };
        self.window.unpark();
        if let Some(outcome) = self.falling_back.remove(&claim_id) {
            return self.fell_back(held, outcome, tried.map_err(|(failure, _)| failure));
        }
        if self.batch.is_some() {
            self.read_ahead.count();
        }
        self.probing_since = match &tried {
            Err((failure, _)) if failure.probe.is_some() => self.probing_since.or(Some(self.scheduler.clock.now())),
            _ => None,
        };
        match tried {
            Ok(()) => {
                let answered = held.answered.get().cloned();
                let outcome = ClaimOutcome { answered, ..ClaimOutcome::success(&held.claimed) };
                self.outcomes.push((held, outcome));
            }
            Err((failure, _)) if failure.is_given_up() && failure.unsent => {
                let outcome = ClaimOutcome::never_sent(&held.claimed);
                self.outcomes.push((held, outcome));
            }
            // No bound counts it: no try failed.
            Err((failure, _)) if failure.is_given_up() => {
                self.summary.abandoned += 1;
                let outcome = ClaimOutcome::abandoned(&held.claimed);
                self.outcomes.push((held, outcome));
            }
            Err((failure, decision)) => self.apply_rules(held, failure, decision, None),
        }
    }

    /// Decides about a failure; `counted`: what it counts as, if its class does not decide that.
    fn apply_rules(&mut self, held: HeldClaim, failure: Failure, judged: Option<Judgement>, counted: Option<Counted>) {
        let (claimed, now) = (held.claimed.clone(), self.scheduler.clock.now());
        let judge = self.scheduler.judge.as_ref().map_or("judge", |judge| judge.name());
        let age = claimed.age + now.saturating_since(held.since);
        let judged = judged.map(|judged| (judged, judge));
        let message = failure.message.clone();
        let (mut outcome, group) = self.scheduler.config.apply_rules(&claimed, failure, judged, age, &mut self.rng);
        outcome.counted = counted.unwrap_or(outcome.counted);
        if let Some(group) = group {
            let reason = outcome.decided.as_ref().and_then(|decided| decided.reason.clone()).unwrap_or(message);
            let state = group.state(self.store_time(), reason);
            self.close_group(&claimed.item.group, state);
        }
        self.conclude(held, outcome);
    }

    /// No item of that group begins any more, claimed ones neither.
    fn close_group(&mut self, group: &Arc<str>, state: ScopeStatus) {
        if matches!(state, ScopeStatus::Stopped { .. }) {
            self.stopped.insert(group.clone());
        }
        self.scopes.push(ScopeRow { name: group.clone(), state });
        self.release(Some(group));
    }

    /// Releases the claimed items of a group, or all, that have not begun.
    fn release(&mut self, group: Option<&str>) {
        let back = self.window.take(group).into_iter();
        self.outcomes.extend(back.map(|held| (held.clone(), ClaimOutcome::back(&held.claimed))));
    }

    /// Ends a run whose time is over, and waits that are over.
    fn check_time_limits(&mut self) {
        let now = self.scheduler.clock.now();
        if self.ending.is_none() && self.ends_at.is_some_and(|at| at <= now) {
            self.end(EndReason::MaxDuration);
        }
        let (config, probing) = (&self.scheduler.config, self.probing_since);
        let in_vain = |since| config.idle == Idle::End && too_far(now.saturating_since(since), config.max_wait);
        if self.ending.is_none() && probing.is_some_and(in_vain) {
            self.end(EndReason::MaxWait);
        }
        self.blocked_until = self.blocked_until.filter(|blocked_until| *blocked_until > now);
        self.declined = self.declined.take().filter(|(until, _)| *until > now);
    }

    /// The store's time, which may be another than this machine's.
    fn store_time(&self) -> Timestamp {
        let (store_time, read_at) = self.store_clock;
        store_time + self.scheduler.clock.now().saturating_since(read_at)
    }

    /// No item begins any more, or none for long: what waits so long waits in the store.
    fn is_closed(&self) -> bool {
        let far = self.scheduler.clock.now() + AHEAD;
        self.ending.is_some() || self.blocked_until.is_some_and(|blocked_until| blocked_until > far)
    }

    /// How many more items may be claimed.
    fn capacity(&self) -> usize {
        if self.is_closed() {
            return 0;
        }
        // Where crashes are counted, an item that has not begun when the program dies must not count one.
        let ahead = if self.scheduler.config.max_crashes.is_some() { 0 } else { self.read_ahead.ahead };
        // What is put aside keeps nothing else out.
        let window = self.window.len() - self.window.parked();
        (self.scheduler.config.concurrency + ahead).saturating_sub(self.in_flight.len() + window)
    }

    fn take(&mut self, claim: Claim) {
        let now = self.scheduler.clock.now();
        (self.due_at, self.claim_at) = (None, None);
        self.store_clock = (claim.now, now);
        if claim.lost {
            self.heartbeat_at = now;
            return self.schedule_claim(now);
        }
        if let Some(wait) = claim.next_due {
            self.schedule_claim(now + wait);
        }
        self.others = claim.others;
        for claimed in claim.items {
            self.awaited.claimed(claimed.item.id);
            // The store handed them out while a group was stopped, a long wait was reported for all, or the run was asked to end.
            let stopped = self.scopes.iter().any(|row| row.name == claimed.item.group);
            if stopped || self.is_closed() {
                let back = ClaimOutcome::back(&claimed);
                self.outcomes.push((HeldClaim::unqueued(now, claimed), back));
            } else {
                self.notify_reopened(&claimed.item.group);
                self.window.push(now, claimed);
            }
        }
    }

    /// The store hands out items of a group that this run stopped: a person opened it.
    fn notify_reopened(&mut self, group: &Arc<str>) {
        if self.stopped.remove(group) {
            let row = ScopeRow { name: group.clone(), state: ScopeStatus::Open };
            self.scheduler.notify(&SchedulerEvent::Scope(&row));
        }
    }

    fn recorded(&mut self, held: &HeldClaim, outcome: &ClaimOutcome) {
        let item = &held.claimed.item;
        self.summary.uncounted += u64::from(outcome.counted == Counted::Unsent);
        let wait = match outcome.next {
            Transition::Retry(wait) => Some(wait),
            Transition::Release => Some(Duration::ZERO),
            Transition::Succeeded
            | Transition::Failed
            | Transition::Skipped
            | Transition::FellBack
            | Transition::NextRun => None,
        };
        if let Some(wait) = wait {
            let due = self.scheduler.clock.now() + wait;
            self.schedule_claim(due);
            self.awaited.recorded(item.id, due);
        }
        match &outcome.decided {
            Some(decided) => self.scheduler.notify(&SchedulerEvent::Decided { item, decided, wait }),
            None if outcome.next == Transition::NextRun => self.scheduler.notify(&SchedulerEvent::Left(item)),
            None if outcome.next == Transition::Succeeded => self.scheduler.notify(&SchedulerEvent::Succeeded(item)),
            None => {}
        }
    }

    /// Workers whose leases ran out had items, which wait again.
    fn note_taken_over(&mut self) {
        let items = self.scheduler.store.taken_over();
        if items > 0 {
            self.summary.taken_over += items;
            self.scheduler.notify(&SchedulerEvent::TakenOver(items));
        }
    }

    fn not_recorded(&mut self, held: &HeldClaim, outcome: &ClaimOutcome, is_cancelled: bool) {
        let item = &held.claimed.item;
        if is_cancelled && outcome == &ClaimOutcome::back(&held.claimed) {
            // Nothing had begun.
        } else if is_cancelled {
            self.summary.cancelled += 1;
            let succeeded = outcome.next == Transition::Succeeded;
            self.scheduler.notify(&SchedulerEvent::Cancelled { item, succeeded });
        } else {
            self.summary.lost += 1;
            self.scheduler.notify(&SchedulerEvent::Lost(item));
        }
    }

    /// An item may be due then. The claim is a little earlier, unless that is now: an item that is not handed out ahead of its
    /// time, because its group is held, must not be claimed again and again.
    fn schedule_claim(&mut self, due: Instant) {
        let now = self.scheduler.clock.now();
        let ask = if due > now + LEAD { due.saturating_sub(LEAD) } else { due };
        self.due_at = Some(self.due_at.map_or(due, |known| known.min(due)));
        self.claim_at = Some(self.claim_at.map_or(ask, |known| known.min(ask)));
    }

    /// When the next claim may be.
    fn next_claim_at(&self) -> Option<Instant> {
        self.claim_at.map(|at| at.max(self.no_claim_before))
    }

    /// Ends the run: begins nothing any more, and releases the items that have not begun.
    fn end(&mut self, why: EndReason) {
        self.ending = Some((why, self.scheduler.clock.now() + self.scheduler.config.grace));
        self.release(None);
        self.scheduler.store.ending();
        self.scheduler.notify(&SchedulerEvent::Ending(why));
    }

    /// When the next item may begin that is not claimed yet, as far as is known.
    fn earliest(&self) -> Option<Instant> {
        self.due_at.map(|due| self.blocked_until.map_or(due, |blocked_until| due.max(blocked_until)))
    }

    /// No item is left for this worker, as far as it knows.
    fn has_nothing(&self) -> bool {
        self.in_flight.is_empty() && self.window.len() == 0 && self.due_at.is_none()
    }

    /// Why the run is over, once it is.
    fn is_over(&self) -> Option<EndReason> {
        let now = self.scheduler.clock.now();
        if let Some((why, until)) = self.ending {
            let quiet = self.batch.is_none() && self.outcomes.is_empty() && self.in_flight.is_empty();
            return (quiet || until <= now).then_some(why);
        }
        let config = &self.scheduler.config;
        let busy = self.batch.is_some() || !self.outcomes.is_empty() || !self.in_flight.is_empty();
        if config.idle == Idle::Stay || busy || self.window.len() > 0 {
            return None;
        }
        match self.earliest() {
            // What is due begins, however short the longest wait is.
            Some(at) if at <= now || self.awaited.is_any(now) => None,
            Some(at) => too_far(at.saturating_since(now), config.max_wait).then_some(EndReason::MaxWait),
            None => (!self.others).then_some(EndReason::Done),
        }
    }

    /// When the loop has to wake at the latest.
    fn next_wake(&self) -> Instant {
        let now = self.scheduler.clock.now();
        let idle = self.batch.is_none();
        let mut wake = now + LONGEST_SLEEP;
        let places = self.in_flight.len() < self.scheduler.config.concurrency;
        // While the store works on a batch no other one begins, whatever is due.
        let ask = self.next_claim_at().filter(|_| idle && self.capacity() > 0);
        let heartbeat = Some(self.heartbeat_at).filter(|_| idle);
        let due = self.window.next_due().filter(|_| places && self.blocked_until.is_none());
        let ending = self.ending.map(|(_, until)| until);
        for at in [ask, heartbeat, due, self.blocked_until, ending, self.ends_at.filter(|_| self.ending.is_none())]
            .into_iter()
            .flatten()
        {
            wake = wake.min(at);
        }
        wake
    }

    async fn finish(mut self, ended: EndReason) -> Result<Summary, WorkError> {
        if self.batch.is_some() {
            let result = completed(&mut self.batch).await?;
            self.batch_done(result);
        }
        self.running.shutdown().await;
        self.summary.abandoned += (self.in_flight.len() - self.falling_back.len()) as u64;
        let falling_back = std::mem::take(&mut self.falling_back);
        let is_given_up = |(claim_id, _): &(&(u64, i64), &HeldClaim)| !falling_back.contains_key(claim_id);
        let given_up =
            self.in_flight.iter().filter(is_given_up).map(|(_, held)| ClaimOutcome::abandoned(&held.claimed));
        let concluded = self.outcomes.iter().map(|(_, outcome)| outcome).chain(falling_back.values()).cloned();
        let outcomes = concluded.chain(given_up).collect();
        let store = &self.scheduler.store;
        store.record(outcomes, self.scopes).await?;
        store.deregister(self.worker).await?;
        let counts = store.counts().await?;
        let is_stopped = |row: &ScopeRow| matches!(row.state, ScopeStatus::Stopped { .. });
        let left_to_a_person = counts.of(State::Waiting) > 0 && store.scopes().await?.iter().any(is_stopped);
        let ended = if ended == EndReason::Done && left_to_a_person { EndReason::GroupsStopped } else { ended };
        Ok(Summary { ended, counts, ..self.summary })
    }
}

/// The failure of an item whose work panicked: its own alone.
pub(super) fn panicked(error: &JoinError) -> Failure {
    Failure { code: Some("panic".to_owned()), ..Failure::new(Class::Transient, error.to_string()) }
}

/// Items that are due within this time are claimed ahead, to start to the millisecond.
const AHEAD: Duration = Duration::from_secs(1);

/// How long before its time the next item is claimed: longer than a store usually takes.
const LEAD: Duration = Duration::from_millis(100);

/// A machine that was suspended notices within this time of being awake.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Whether a wait is no shorter than the longest that a run takes. A part of it may have passed since it was chosen.
fn too_far(wait: Duration, longest: Duration) -> bool {
    wait.saturating_add(longest / 100) >= longest
}
