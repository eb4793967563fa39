//! One run: a loop around one timer.

mod start;
mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_core::{Class, Instant, Rng, Timestamp};
use tokio::task::{Id, JoinError, JoinSet};

use self::turn::{Turn, taken};
use super::summary::{Ended, Summary};
use super::window::{Held, Window};
use super::{Note, Scheduler, Start, Task};
use crate::scope::{ScopeRow, ScopeStatus};
use crate::work::error::WorkError;
use crate::work::item::{Claim, ClaimOutcome, Counts, Failure, Kept, State, Transition, WorkerId};
use crate::work::judge::Judgement;
use crate::work::policy::Idle;

/// How a try ended, and what a judge said about it.
type Tried = Result<(), (Failure, Option<Judgement>)>;

pub(super) struct Run<'a, W> {
    scheduler: &'a Scheduler,
    work: W,
    worker: WorkerId,
    window: Window,
    running: JoinSet<Tried>,
    /// What runs, by the item's number and its fence: after a lost lease an item may run here twice.
    flights: BTreeMap<(u64, i64), Held>,
    /// Whose task that is: a task that panics tells nothing but its id.
    tasks: HashMap<Id, (u64, i64)>,
    /// What the store is doing for us just now.
    turn: Option<Turn>,
    /// To be recorded.
    settled: Vec<(Held, ClaimOutcome)>,
    scopes: Vec<ScopeRow>,
    /// Groups that this run stopped.
    stopped: BTreeSet<Arc<str>>,
    /// When the next item in the store may start, as far as is known.
    due_at: Option<Instant>,
    /// When to ask for it.
    ask_at: Option<Instant>,
    others: bool,
    /// The store's time, and when a claim told it.
    store_clock: (Timestamp, Instant),
    renew_at: Instant,
    ends_at: Option<Instant>,
    ending: Option<(Ended, Instant)>,
    /// Nothing may begin before that.
    shut: Option<Instant>,
    /// What the next item waits for that was declined, and until when.
    declined: Option<(Instant, Arc<str>)>,
    /// The store is asked for no more before that. It hands items out before it is known whether they may start, and does not
    /// know which scopes are closed: to look behind their items must not keep the disk busy.
    look_after: Instant,
    /// The wait that was told last.
    told: Option<(Instant, Option<Arc<str>>)>,
    /// Since when nothing came back but failed tests of a failing server.
    probing_since: Option<Instant>,
    pace: Pace,
    rng: Rng,
    summary: Summary,
}

impl<'a, W, F> Run<'a, W>
where
    W: Fn(Task) -> Start<F>,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    pub(super) async fn begin(scheduler: &'a Scheduler, work: W) -> Result<Self, WorkError> {
        let policy = &scheduler.policy;
        let worker = scheduler.store.enlist(&scheduler.name, policy.lease).await?;
        let now = scheduler.clock.now();
        let nothing =
            Summary { ended: Ended::Done, counts: Counts::default(), calls: 0, resends: 0, abandoned: 0, lost: 0 };
        Ok(Self {
            scheduler,
            work,
            worker,
            window: Window::default(),
            running: JoinSet::new(),
            flights: BTreeMap::new(),
            tasks: HashMap::new(),
            turn: None,
            settled: Vec::new(),
            scopes: Vec::new(),
            stopped: BTreeSet::new(),
            due_at: Some(now),
            ask_at: Some(now),
            others: false,
            store_clock: (scheduler.clock.wall(), now),
            renew_at: now + policy.lease / 3,
            ends_at: policy.max_run_duration.map(|bound| now + bound),
            ending: None,
            shut: None,
            declined: None,
            look_after: now,
            told: None,
            probing_since: None,
            pace: Pace::default(),
            rng: Rng::new(scheduler.clock.wall().as_millis() as u64),
            summary: nothing,
        })
    }

    /// The loop. While the store takes its turn, what ends makes room for what is at hand. What others change is listened
    /// for before the store is asked, so that nothing is missed in between.
    pub(super) async fn until(mut self, stop: impl Future<Output = ()>) -> Result<Summary, WorkError> {
        let mut stop = pin!(stop);
        let store = self.scheduler.store.clone();
        let mut changed = store.changed();
        loop {
            self.gather();
            self.look_at_the_clock();
            self.start_due();
            if self.turn.is_none() {
                self.turn = self.next_turn();
            }
            if let Some(ended) = self.is_over() {
                return self.finish(ended).await;
            }
            self.tell_wait();
            let wait = self.next_wake().saturating_since(self.scheduler.clock.now());
            tokio::select! {
                Some(done) = self.running.join_next_with_id() => self.landed(done),
                turned = taken(&mut self.turn) => self.turned(turned?),
                () = tokio::time::sleep(wait) => {}
                () = &mut stop, if self.ending.is_none() => self.end(Ended::Interrupted),
                heard = &mut changed => {
                    heard?;
                    changed = store.changed();
                    self.expect(self.scheduler.clock.now());
                }
            }
        }
    }

    /// Everything else that has landed meanwhile: the more the disk is busy, the larger is the next batch.
    fn gather(&mut self) {
        while let Some(done) = self.running.try_join_next_with_id() {
            self.landed(done);
        }
    }

    fn landed(&mut self, done: Result<(Id, Tried), JoinError>) {
        let (task, tried) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err((panicked(&error), None))),
        };
        let Some(held) = self.tasks.remove(&task).and_then(|flight| self.flights.remove(&flight)) else { return };
        self.window.unpark();
        if self.turn.is_some() {
            self.pace.count();
        }
        self.probing_since = match &tried {
            Err((failure, _)) if failure.probe.is_some() => self.probing_since.or(Some(self.scheduler.clock.now())),
            _ => None,
        };
        match tried {
            Ok(()) => {
                let outcome = ClaimOutcome::success(&held.claimed);
                self.settled.push((held, outcome));
            }
            // No bound counts it: no try failed.
            Err((failure, _)) if failure.is_given_up() => {
                self.summary.abandoned += 1;
                let outcome = ClaimOutcome::abandoned(&held.claimed);
                self.settled.push((held, outcome));
            }
            Err((failure, decision)) => self.rule(held, failure, decision, None),
        }
    }

    /// Decides about a failure; `counted` says what it counts as where that is not a matter of its class.
    fn rule(&mut self, held: Held, failure: Failure, judged: Option<Judgement>, counted: Option<Counted>) {
        let (claimed, now) = (held.claimed.clone(), self.scheduler.clock.now());
        let judge = self.scheduler.judge.as_ref().map_or("judge", |judge| judge.name());
        let age = claimed.age + now.saturating_since(held.since);
        let judged = judged.map(|judged| (judged, judge));
        let words = failure.words.clone();
        let (mut outcome, group) = self.scheduler.policy.rule(&claimed, failure, judged, age, &mut self.rng);
        outcome.counted = counted.unwrap_or(outcome.counted);
        if let Some(group) = group {
            let reason = outcome.decided.as_ref().and_then(|decided| decided.reason.clone()).unwrap_or(words);
            let state = group.state(self.store_time(), reason);
            self.close(&claimed.item.group, state);
        }
        self.settled.push((held, outcome));
    }

    /// Nothing of that group begins any more, whatever is at hand already.
    fn close(&mut self, group: &Arc<str>, state: ScopeStatus) {
        if matches!(state, ScopeStatus::Stopped { .. }) {
            self.stopped.insert(group.clone());
        }
        self.scopes.push(ScopeRow { name: group.clone(), state });
        self.give_back(Some(group));
    }

    /// Puts back what is at hand of a group, or all of it, as it was found.
    fn give_back(&mut self, group: Option<&str>) {
        let back = self.window.take(group).into_iter();
        self.settled.extend(back.map(|held| (held.clone(), ClaimOutcome::back(&held.claimed))));
    }

    /// Its time may be over, and waits too.
    fn look_at_the_clock(&mut self) {
        let now = self.scheduler.clock.now();
        if self.ending.is_none() && self.ends_at.is_some_and(|at| at <= now) {
            self.end(Ended::MaxDuration);
        }
        let (policy, probing) = (&self.scheduler.policy, self.probing_since);
        let in_vain = |since| policy.idle == Idle::End && too_far(now.saturating_since(since), policy.max_wait);
        if self.ending.is_none() && probing.is_some_and(in_vain) {
            self.end(Ended::MaxWait);
        }
        self.shut = self.shut.filter(|shut| *shut > now);
        self.declined = self.declined.take().filter(|(until, _)| *until > now);
    }

    /// The store's time, which may be another than this machine's.
    fn store_time(&self) -> Timestamp {
        let (told, at) = self.store_clock;
        told + self.scheduler.clock.now().saturating_since(at)
    }

    /// How many more items may be at hand.
    fn room(&self) -> usize {
        let far = self.scheduler.clock.now() + AHEAD;
        if self.ending.is_some() || self.shut.is_some_and(|shut| shut > far) {
            return 0;
        }
        // What is only at hand when the program dies is not to be blamed for it.
        let ahead = if self.scheduler.policy.max_crashes.is_some() { 0 } else { self.pace.ahead };
        (self.scheduler.policy.concurrency + ahead).saturating_sub(self.flights.len() + self.window.len())
    }

    fn take(&mut self, claim: Claim) {
        let now = self.scheduler.clock.now();
        (self.due_at, self.ask_at) = (None, None);
        self.store_clock = (claim.now, now);
        if claim.lost {
            self.renew_at = now;
            return self.expect(now);
        }
        if let Some(wait) = claim.next_due {
            self.expect(now + wait);
        }
        self.others = claim.others;
        for claimed in claim.items {
            // A group may have been stopped, and the run told to end, while the store handed out its items.
            let stopped = self.scopes.iter().any(|row| row.name == claimed.item.group);
            if stopped || self.ending.is_some() {
                let back = ClaimOutcome::back(&claimed);
                self.settled.push((Held::passing(now, claimed), back));
            } else {
                self.heed_opening(&claimed.item.group);
                self.window.push(now, claimed);
            }
        }
    }

    /// The store hands out the items of a group that was stopped here: a person has acted.
    fn heed_opening(&mut self, group: &Arc<str>) {
        if self.stopped.remove(group) {
            let row = ScopeRow { name: group.clone(), state: ScopeStatus::Open };
            self.scheduler.tell(&Note::Scope(&row));
        }
    }

    fn recorded(&mut self, held: &Held, outcome: &ClaimOutcome, kept: Kept) {
        let item = &held.claimed.item;
        if kept == Kept::Lost {
            self.summary.lost += 1;
            return self.scheduler.tell(&Note::Lost(item));
        }
        let wait = match outcome.next {
            Transition::Again(wait) => Some(wait),
            Transition::Back => Some(Duration::ZERO),
            Transition::Succeeded | Transition::Failed | Transition::Skipped | Transition::NextRun => None,
        };
        if let Some(wait) = wait {
            self.expect(self.scheduler.clock.now() + wait);
        }
        match &outcome.decided {
            Some(decided) => self.scheduler.tell(&Note::Decided { item, decided, wait }),
            None if outcome.next == Transition::Succeeded => self.scheduler.tell(&Note::Succeeded(item)),
            None => {}
        }
    }

    /// Something may be due then. It is asked for a little before, unless that is now: what is not handed out ahead of its
    /// time, because its group is held, is not asked for again and again.
    fn expect(&mut self, due: Instant) {
        let now = self.scheduler.clock.now();
        let ask = if due > now + LEAD { due.saturating_sub(LEAD) } else { due };
        self.due_at = Some(self.due_at.map_or(due, |known| known.min(due)));
        self.ask_at = Some(self.ask_at.map_or(ask, |known| known.min(ask)));
    }

    /// When the store is to be asked next.
    fn looks_at(&self) -> Option<Instant> {
        self.ask_at.map(|at| at.max(self.look_after))
    }

    /// Begins nothing any more, and puts back what has not begun.
    fn end(&mut self, why: Ended) {
        self.ending = Some((why, self.scheduler.clock.now() + self.scheduler.policy.grace));
        self.give_back(None);
        self.scheduler.tell(&Note::Ending(why));
    }

    /// When something may begin that is not at hand, as far as is known.
    fn earliest(&self) -> Option<Instant> {
        self.due_at.map(|due| self.shut.map_or(due, |shut| due.max(shut)))
    }

    /// Nothing is left to be done here, but some of what others have may come back.
    fn waits_for_others(&self) -> bool {
        self.others && self.flights.is_empty() && self.window.len() == 0 && self.due_at.is_none()
    }

    /// Why the run is over, once it is.
    fn is_over(&self) -> Option<Ended> {
        let now = self.scheduler.clock.now();
        if let Some((why, until)) = self.ending {
            let quiet = self.turn.is_none() && self.settled.is_empty() && self.flights.is_empty();
            return (quiet || until <= now).then_some(why);
        }
        let policy = &self.scheduler.policy;
        let busy = self.turn.is_some() || !self.settled.is_empty() || !self.flights.is_empty();
        if policy.idle == Idle::Stay || busy || self.window.len() > 0 {
            return None;
        }
        match self.earliest() {
            Some(at) => too_far(at.saturating_since(now), policy.max_wait).then_some(Ended::MaxWait),
            None => (!self.others).then_some(Ended::Done),
        }
    }

    /// When something is to be done next, whatever happens meanwhile.
    fn next_wake(&self) -> Instant {
        let now = self.scheduler.clock.now();
        let idle = self.turn.is_none();
        let mut wake = now + LONGEST_SLEEP;
        let places = self.flights.len() < self.scheduler.policy.concurrency;
        // While the store takes a turn nothing is asked of it, whatever is due.
        let ask = self.looks_at().filter(|_| idle && self.room() > 0);
        let renew = Some(self.renew_at).filter(|_| idle);
        let due = self.window.next_due().filter(|_| places && self.shut.is_none());
        let ending = self.ending.map(|(_, until)| until);
        for at in
            [ask, renew, due, self.shut, ending, self.ends_at.filter(|_| self.ending.is_none())].into_iter().flatten()
        {
            wake = wake.min(at);
        }
        wake
    }

    async fn finish(mut self, ended: Ended) -> Result<Summary, WorkError> {
        if self.turn.is_some() {
            let turned = taken(&mut self.turn).await?;
            self.turned(turned);
        }
        self.running.shutdown().await;
        self.summary.abandoned += self.flights.len() as u64;
        let given_up = self.flights.values().map(|held| ClaimOutcome::abandoned(&held.claimed));
        let outcomes = self.settled.iter().map(|(_, outcome)| outcome.clone()).chain(given_up).collect();
        let store = &self.scheduler.store;
        store.record(outcomes, self.scopes).await?;
        store.leave(self.worker).await?;
        let counts = store.counts().await?;
        let is_stopped = |row: &ScopeRow| matches!(row.state, ScopeStatus::Stopped { .. });
        let left_to_a_person = counts.of(State::Waiting) > 0 && store.scopes().await?.iter().any(is_stopped);
        let ended = if ended == Ended::Done && left_to_a_person { Ended::GroupsStopped } else { ended };
        Ok(Summary { ended, counts, ..self.summary })
    }
}

/// The failure of an item whose work panicked: its own alone.
pub(super) fn panicked(error: &JoinError) -> Failure {
    Failure { code: Some("panic".to_owned()), ..Failure::new(Class::Transient, error.to_string()) }
}

/// Items that are due within this time are claimed ahead, to start to the millisecond.
const AHEAD: Duration = Duration::from_secs(1);

/// How long before its time the next item is looked for: longer than a store usually takes.
const LEAD: Duration = Duration::from_millis(100);

/// A machine that was suspended notices within this time of being awake.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Whether a wait is no shorter than the longest that a run takes. A part of it may have passed since it was chosen.
fn too_far(wait: Duration, longest: Duration) -> bool {
    wait.saturating_add(longest / 100) >= longest
}

/// How many items end while the store takes a turn, to have as many at hand. Where work takes longer than that it is none,
/// so that other workers find it.
#[derive(Debug, Default)]
struct Pace {
    ended: usize,
    ahead: usize,
}

/// What may be at hand besides what runs: memory is bounded, and so is what a dead worker holds up.
const MOST_AHEAD: usize = 1_000;

impl Pace {
    /// An item ended while the store took a turn.
    fn count(&mut self) {
        self.ended += 1;
    }

    /// The turn is over. Twice as much is wanted, since all that was at hand may have ended; less is wanted by and by.
    fn turned(&mut self) {
        let wanted = (std::mem::take(&mut self.ended) * 2).min(MOST_AHEAD);
        self.ahead = wanted.max((self.ahead * 3 + wanted) / 4);
    }
}
