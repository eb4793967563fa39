//! The loop of a run: claims due items into a bounded window, lets each be tried, and hands every end to the recorder.
//!
//! Items that wait for a due time stay in the journal, so memory does not grow with the input. Of each scope only so many
//! items are in the window that it never runs dry; a slow scope does not keep the others out.

mod elsewhere;
mod ending;
mod fallbacks;
mod left_out;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline_core::{Instant, LimitScope, ScopeSnapshot, ScopeState, Timestamp};
use paceline_store::{CallTotals, ClaimExcept, ClaimedItems, Journal, JournalError, SnapshotUpdate};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::elsewhere::Elsewhere;
use crate::account::{OthersTurn, TurnWait};
use crate::calls::bounds::StartedItems;
use crate::calls::disk_watch::DiskWatch;
use crate::calls::fallback::Fallbacks;
use crate::calls::feed::Fed;
use crate::calls::item::{Context, Phase, Tried, TryEnd};
use crate::calls::on_their_way::{OnTheirWay, failure_of};
use crate::calls::permit_queue::PermitQueue;
use crate::calls::record::{Recorded, Recorder};
use crate::exit::Failure;
use crate::job::background_load::LoadError;
use crate::limiter_state;
use crate::other_hosts::host_view::HostView;
use crate::progress::display::{Progress, View};
use crate::progress::live_snapshot::LiveSnapshot;
use crate::progress::snapshot::{self, Present};
use crate::signals::Interruptions;
use crate::stops::stop::StopReason;
use crate::text;

/// Looking after the run takes one part in so many of its time at most. A look costs what has changed: while very many scopes
/// change at once, there are fewer looks.
const LOOKS_TAKE: u32 = 20;

/// After a look at very many changes the next one, which has few, waits no longer than that.
const LONGEST_BLIND: Duration = Duration::from_secs(5);

/// How often the progress, the snapshot in the journal and the bounds of the run are looked after.
const TICK: Duration = Duration::from_millis(500);

/// What has not changed is written to the journal so seldom.
const REPEATED: Duration = Duration::from_secs(10);

/// Items that wait for a permit behind two rounds of calls: a turn of the journal takes a few milliseconds.
const BEHIND: usize = 64;

/// Scopes that may fill their part of the window at the same time.
const SCOPES_AT_ONCE: usize = 4;

/// Runs a job until nothing can be sent any more.
pub(crate) struct Dispatcher {
    parts: Parts,
    tasks: JoinSet<Tried>,
    /// Where they ask for their permits.
    lane: PermitQueue,
    on_their_way: OnTheirWay,
    /// When the next claim can find something; none when nothing waits.
    next_due: Option<Timestamp>,
    /// The scope of the item that is due next, and when that is, as far as it is known.
    next_of: Option<(Timestamp, Arc<str>)>,
    /// The earliest due time given to an item since the claim under way was made, which does not know it.
    due_meanwhile: Option<Timestamp>,
    /// The last claim found only items of scopes whose part of the window is full.
    crowded: bool,
    begun: StartedItems,
    /// Items that do not fit into the budget, while others do.
    left_out: Vec<u64>,
    stop: Option<StopReason>,
    /// Why the first scope was stopped that waits for a person: it ends the run once nothing else is left.
    stopped_scope: Option<StopReason>,
    /// How many scopes that are.
    stopped_scopes: u32,
    abandon_at: Option<Instant>,
    elsewhere: Elsewhere,
    /// The run is not looked after before that.
    look_again: Instant,
    disk_watch: DiskWatch,
    /// What was recorded was asked to be on the disk.
    flushed: bool,
    /// The limits at the last look.
    limits: LiveSnapshot,
    written: Option<(Instant, Written)>,
}

/// What the journal was told of the run last: while nothing happens, it is written seldom.
#[derive(PartialEq)]
struct Written {
    account: ScopeSnapshot,
    totals: CallTotals,
    ended: u64,
    in_flight: u64,
    stop: Option<StopReason>,
    turn: Option<OthersTurn>,
}

/// What a dispatcher is made of.
pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) journal: Journal,
    pub(crate) recorder: Recorder,
    pub(crate) progress: Progress,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) phase: watch::Sender<Phase>,
    /// Failures of the journal, which arrive with its acknowledgements.
    pub(crate) broken: mpsc::UnboundedReceiver<JournalError>,
    /// Requests from outside to end.
    pub(crate) interruptions: Interruptions,
    /// Items that come while the input is still being read; none once it is read to its end.
    pub(crate) reading: Option<mpsc::Receiver<Result<Fed, LoadError>>>,
    /// None where it waits for as long as it takes.
    pub(crate) max_wait: Option<Duration>,
    /// Items that this run may begin.
    pub(crate) max_items: Option<u64>,
    /// Time in which calls may leave.
    pub(crate) max_duration: Option<Duration>,
    /// The most calls in flight.
    pub(crate) concurrency: usize,
    /// The lock file of the job, where it has one of its own.
    pub(crate) lock: Option<PathBuf>,
    /// Where it is said that the run waits for the turn of another process.
    pub(crate) turn_wait: TurnWait,
    /// What is known of the whole job, where this run is one host of many.
    pub(crate) hosts: Option<watch::Receiver<HostView>>,
}

/// A run that is over.
pub(crate) struct Ended {
    pub(crate) stop: Option<StopReason>,
    /// The run has begun as many items as it may.
    pub(crate) has_begun_all: bool,
    /// So many scopes, such as hosts, make no more calls in it.
    pub(crate) stopped_scopes: u32,
    pub(crate) recorder: Recorder,
}

impl Dispatcher {
    /// A dispatcher that has not claimed anything yet.
    pub(crate) fn new(parts: Parts) -> Self {
        let begun = StartedItems::new(parts.max_items);
        let disk_watch = DiskWatch::new(parts.max_wait, parts.lock.as_deref());
        Self {
            parts,
            tasks: JoinSet::new(),
            lane: PermitQueue::default(),
            on_their_way: OnTheirWay::default(),
            next_due: Some(Timestamp::from_millis(0)),
            next_of: None,
            due_meanwhile: None,
            crowded: false,
            begun,
            left_out: Vec::new(),
            stop: None,
            stopped_scope: None,
            stopped_scopes: 0,
            abandon_at: None,
            elsewhere: Elsewhere::default(),
            look_again: Instant::ZERO,
            disk_watch,
            flushed: false,
            limits: LiveSnapshot::default(),
            written: None,
        }
    }

    /// Tries items until all have ended, or until the run has to stop.
    ///
    /// # Errors
    /// The journal or the input broke under way. What was acknowledged before is safe.
    pub(crate) async fn run(mut self) -> Result<Ended, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.claim_if_useful();
            if self.is_over() {
                if self.flushed {
                    break;
                }
                self.flush();
            }
            let (due, time_left) = (self.time_to_claim(), self.time_left());
            tokio::select! {
                Some(tried) = self.tasks.join_next() => {
                    self.settle(tried.map_err(Failure::interrupted)?);
                    while let Some(tried) = self.tasks.try_join_next() {
                        self.settle(tried.map_err(Failure::interrupted)?);
                    }
                }
                claim = self.on_their_way.answered() => self.start(claim?),
                ended = self.parts.fallbacks.next() => self.fell_back(ended),
                () = sleep(due) => {}
                _ = ticks.tick() => self.tick(),
                () = sleep(time_left) => self.end_at_last(StopReason::MaxDuration),
                () = self.parts.interruptions.next() => self.interrupt(),
                taken = further(&mut self.parts.reading) => match taken {
                    Some(taken) => self.grow(taken.map_err(Failure::interrupted)?),
                    None => self.parts.reading = None,
                },
                Some(error) = self.parts.broken.recv() => return Err(failure_of(&error)),
            }
        }
        self.watch_the_disk(self.parts.context.limiter.now());
        if self.begun.used_up() && (self.parts.recorder.figures().pending() > 0 || self.parts.reading.is_some()) {
            self.end_with(Some(StopReason::MaxItems));
        }
        if self.parts.recorder.figures().pending() > 0 {
            let stopped = self.stopped_scope.take().map(|stop| self.parts.recorder.with_all_hosts(stop));
            self.end_with(stopped);
            self.end_with(self.parts.context.budget.left_out().map(StopReason::Budget));
        }
        self.give_back_left_out();
        self.fall_back_for_the_rest().await?;
        self.parts.recorder.settle_held_back(self.stop.as_ref());
        self.written = None;
        self.look_after();
        self.parts.recorder.tell_last_failures();
        let (has_begun_all, stopped_scopes) = (self.begun.used_up(), self.stopped_scopes);
        Ok(Ended { stop: self.stop, has_begun_all, stopped_scopes, recorder: self.parts.recorder })
    }

    fn is_over(&self) -> bool {
        // What other lines a host could get is for the others then.
        let is_enough = self.parts.hosts.is_some() && (self.begun.used_up() || self.has_only_what_is_stopped());
        let nothing_comes = self.next_due.is_none() && (self.parts.reading.is_none() || is_enough);
        self.is_quiet() && (self.stop.is_some() || nothing_comes)
    }

    fn is_quiet(&self) -> bool {
        self.tasks.is_empty() && !self.on_their_way.is_claiming() && self.parts.fallbacks.is_empty()
    }

    /// The input is read further, or other hosts have lines that were this one's.
    fn grow(&mut self, fed: Fed) {
        match fed {
            Fed::Lines(taken) => {
                self.elsewhere.goes_on();
                self.parts.recorder.figures_mut().grow(taken);
            }
            Fed::Gone(items) => {
                self.parts.recorder.figures_mut().shrink(items);
                self.begun.forget_waiting();
            }
            Fed::Stop(stop) => return self.end_with(Some(stop)),
        }
        self.look_at_journal();
    }

    /// What the journal has may be due at another time than is known: the next claim is at once.
    fn look_at_journal(&mut self) {
        let now = Some(Timestamp::from_millis(0));
        (self.next_due, self.due_meanwhile, self.crowded) = (now, now, false);
        self.keep_to_begun();
    }

    /// Claims in batches: a turn of the journal for each single place would cost more than it brings.
    fn claim_if_useful(&mut self) {
        let window = self.window();
        let due = self.next_due.is_some_and(|due| due <= self.parts.context.now());
        let is_claiming = self.on_their_way.is_claiming();
        if self.stop.is_some() || is_claiming || self.crowded || self.parts.fallbacks.is_full() || !due {
            return;
        }
        if self.begun.full() {
            let room = (window * SCOPES_AT_ONCE).saturating_sub(self.tasks.len());
            let reply = self.on_their_way.claims();
            self.parts.journal.claim_items(self.begun.due(self.parts.context.now(), room), reply);
            return;
        }
        let is_tested = |scope: &str| self.parts.context.tested.has(scope);
        let (full, others): (Vec<_>, Vec<_>) =
            self.on_their_way.tried().iter().partition(|(scope, tried)| **tried * 4 > window * 3 || is_tested(scope));
        let fullest = others.iter().map(|(_, tried)| **tried).max().unwrap_or_default();
        let room = (window * SCOPES_AT_ONCE).saturating_sub(self.tasks.len()).min(window - fullest);
        if room * 4 < window && !self.tasks.is_empty() {
            return;
        }
        // A try that is due again leaves before what is new, so it waits for no end of that: another quarter of the window is for
        // such, once it is known that not all fail alike.
        let is_open = self.parts.recorder.undecided().is_none();
        let (new, all): (Vec<_>, Vec<_>) =
            full.into_iter().partition(|(scope, tried)| is_open && **tried * 4 <= window * 5 && !is_tested(scope));
        let [new, all] = [new, all].map(|full| full.into_iter().map(|(scope, _)| Arc::clone(scope)).collect());
        let except = ClaimExcept { all, new };
        let reply = self.on_their_way.claims();
        self.parts.journal.claim(self.parts.context.now(), room.min(self.begun.left()), except, reply);
        self.due_meanwhile = None;
    }

    /// Items of a scope that are tried at once: those in flight, and enough behind them. While the first items to end
    /// may still all fail alike, none are behind them, so that few calls are wasted if they do. Where answers may not match a
    /// schema, none are: each of them is paid for.
    fn window(&self) -> usize {
        let Parts { concurrency, recorder, context, .. } = &self.parts;
        let in_flight = if context.sender.config().dialect.expects_schema() { 1 } else { *concurrency };
        recorder.undecided().map_or(2 * concurrency + BEHIND, |left| left.max(in_flight))
    }

    fn start(&mut self, claim: ClaimedItems) {
        let now = self.parts.context.now();
        self.crowded = claim.items.is_empty() && claim.next_due.is_some_and(|due| due <= now) && !self.tasks.is_empty();
        self.next_due = earlier(claim.next_due, self.due_meanwhile);
        if claim.next_due == self.next_due {
            self.next_of = claim.next_due.zip(claim.next_scope);
        }
        for item in claim.items {
            self.begun.tried(item.ordinal);
            self.on_their_way.begins(&item);
            let (context, turn) = (Arc::clone(&self.parts.context), self.lane.enqueue());
            // A task moves its future when it begins, and when it ends: that of a try is large.
            self.tasks.spawn(Box::pin(async move { context.attempt(item, turn).await }));
        }
        self.keep_to_begun();
    }

    fn settle(&mut self, tried: Tried) {
        self.crowded = false;
        self.on_their_way.ended(&tried.item);
        let (ordinal, sent) = (tried.item.ordinal, matches!(tried.end, TryEnd::Sent(_)));
        let (scope, is_refused) = (Arc::clone(&tried.item.scope), tried.end.is_refused());
        let recorded = match self.leaves_out(&tried) {
            true => Recorded::default(),
            false => self.parts.recorder.record(&self.parts.context, tried, &mut self.on_their_way),
        };
        self.begin_fallbacks();
        self.next_due = earlier(self.next_due, recorded.due);
        if recorded.due.is_some() && recorded.due == self.next_due {
            self.next_of = recorded.due.map(|due| (due, Arc::clone(&scope)));
        }
        self.due_meanwhile = earlier(self.due_meanwhile, recorded.due);
        let was_full = self.begun.full();
        // What has begun in a scope that makes no more calls is due in no run before a person has acted.
        let due = recorded.due.filter(|_| !self.parts.recorder.holds.has_stopped(&scope));
        self.begun.settled(ordinal, sent, due);
        if was_full && !self.begun.full() {
            // Other items may begin in its place, and the run has not looked for them.
            self.next_due = Some(Timestamp::from_millis(0));
        }
        if self.parts.recorder.holds.has_given_up(&scope) {
            // It is not due when its try says, but after the hold of its scope.
            self.look_at_journal();
        }
        self.keep_to_begun();
        let Parts { recorder, context, .. } = &mut self.parts;
        match recorded.scopes_changed {
            Some(LimitScope::Scope | LimitScope::Item) => {
                if recorder.holds.store(context, &scope)
                    && let Some(stop) = &recorded.account
                {
                    // There may be as many as paths. The summary counts their items.
                    self.stopped_scopes += 1;
                    let line = format!("{} makes no more calls: {stop}", text::printable(&scope));
                    match self.stopped_scopes {
                        ..TOLD => tracing::warn!(scope = &*scope, "{line}"),
                        TOLD => tracing::warn!(scope = &*scope, "{line} (-v shows further such scopes)"),
                        _ => tracing::debug!(scope = &*scope, "{line}"),
                    }
                    self.stopped_scope.get_or_insert_with(|| stop.clone());
                }
            }
            Some(LimitScope::Account) if recorder.holds.store_all(context) => self.end_with(recorded.account),
            Some(LimitScope::Account) | None => {}
        }
        self.end_with(recorded.stop);
        self.parts.context.unheard.heard(&scope, is_refused, self.parts.recorder.left(&scope));
    }

    /// While no further item may be tried, nothing is due but those that have begun.
    fn keep_to_begun(&mut self) {
        if self.begun.full() {
            (self.next_due, self.crowded) = (self.begun.next_due(), false);
        }
    }

    /// Shows and stores the progress of the run.
    fn look_after(&mut self) {
        let context = Arc::clone(&self.parts.context);
        self.parts.recorder.tell_failures(context.limiter.now());
        let wall = |at| context.timestamp(at);
        // Of the changes of a limiter there is one reader, which is not this one where others use it too.
        let changes = if context.guest.is_some() { context.limiter.snapshot() } else { context.limiter.changes() };
        let given_up = |scope: &str| self.parts.recorder.holds.has_given_up(scope);
        let scopes = snapshot::changed(&changes, context.limiter.now(), &wall, given_up);
        let state = limiter_state::encode_parts(&context.limiter, &changes);
        let first = self.limits.scopes().is_empty();
        let is_still = changes.scopes.is_empty();
        self.limits.update(changes);
        let next_start = self.next_start();
        let Some(limits) = self.limits.latest() else { return };
        let Parts { journal, recorder, progress, max_wait, turn_wait, hosts, .. } = &mut self.parts;
        let (figures, max_wait) = (recorder.figures(), *max_wait);
        let (now, in_flight) = (context.limiter.now(), context.in_flight.load(Ordering::Relaxed));
        let next_due = self.next_due.map(|due| (due, context.now()));
        let next_scope =
            self.next_of.as_ref().filter(|(due, _)| Some(*due) == self.next_due).map(|(_, scope)| &**scope);
        let stop = self.stop.as_ref();
        let budget = context.budget.used();
        let disk_full = journal.disk_full();
        let disk_full = disk_full.as_ref();
        let turn = turn_wait.get();
        let waited = turn.map(|turn| (turn, context.now().saturating_since(turn.since)));
        let hosts = hosts.as_ref().map(|told| told.borrow().clone());
        let tried = self.limits.without(recorder.holds.given_up());
        progress.show(&View {
            now,
            figures,
            limits: tried.as_ref().unwrap_or(limits),
            in_flight,
            stop,
            next_due,
            next_scope,
            next_start,
            budget,
            given_up: recorder.holds.given_up().count() as u64,
            max_wait,
            disk_full,
            waited,
            by_gateway: context.sender.config().gateway.is_some(),
            hosts: hosts.as_ref(),
        });
        let seconds = (now - context.began).as_secs_f64();
        if limits.scopes.is_empty() && matches!(limits.account.state, ScopeState::Open | ScopeState::Paced) {
            // Nothing was claimed yet; the snapshot of the run before is more informative.
            return;
        }
        let (account, totals, ended) = (limits.account.clone(), figures.totals, figures.ended());
        let written = Written { account, totals, ended, in_flight, stop: stop.cloned(), turn };
        if let Some((at, before)) = &self.written
            && is_still
            && now < *at + REPEATED
            && *before == written
        {
            return;
        }
        self.written = Some((now, written));
        let job = snapshot::job(figures, &limits.account, now, &Present { in_flight, seconds, stop, turn }, &wall);
        journal.write_snapshot(SnapshotUpdate { job, scopes, state, first }, recorder.acknowledge.reply());
        let minutes = recorder.minutes().take(limits);
        if !minutes.is_empty() {
            journal.add_history(minutes, recorder.acknowledge.reply());
        }
    }

    fn time_to_claim(&self) -> Option<Duration> {
        if self.stop.is_some() || self.on_their_way.is_claiming() || self.crowded {
            return None;
        }
        let wait = self.next_due?.saturating_since(self.parts.context.now());
        // Something due already waits for room, which a try that ends makes.
        (!wait.is_zero()).then_some(wait)
    }
}

/// So many scopes that stopped are told of, one by one.
const TOLD: u32 = 5;

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

async fn further<T>(reading: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match reading {
        Some(reading) => reading.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
