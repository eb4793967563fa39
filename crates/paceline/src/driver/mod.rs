//! Drives the pacer: one lock around it, a timer, and a channel to each waiting caller.
//!
//! The pacer decides everything. The driver passes it the time, calls it when its timeout is due, and delivers its events to
//! the waiting callers.
//!
//! No user code runs under the lock: wakers are called, permits are dropped and the log is written after it was
//! released ([`Notifications`]), because each of them may come back to this limiter.

mod change;
mod departures;
mod lease;
mod notifications;
mod permit;
#[cfg(test)]
mod proof;
mod timer;
mod unlimited;
mod waiting;

use std::collections::BTreeMap;
#[cfg(feature = "http")]
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use paceline_core::{
    Admit, ConfigError, Cost, Enqueued, Event, Instant, LimitReport, NextAction, Outcome, Pacer, PacerConfig, Request,
    Retry, ScopeId, Ticket, WaitCause, WaitReason,
};
#[cfg(feature = "http")]
use paceline_providers::Dialect;
use tokio::sync::{Notify, oneshot};

use self::departures::Departures;
use self::lease::Leased;
pub use self::lease::Unreported;
use self::notifications::{Answer, LogLine, Notifications};
pub use self::permit::{Permit, Within};
use self::timer::Timers;
pub(crate) use self::waiting::{Admission, Waiting, block_on};
use crate::classify::Attempt;
#[cfg(feature = "http")]
use crate::classify::generic;
use crate::clock::Clock;
use crate::error::{Error, NotNow};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The state shared by all clones of a limiter and all its permits.
pub(crate) struct Driver {
    state: Mutex<State>,
    clock: Clock,
    /// Wakes the timer's thread before its timeout.
    alarm: Condvar,
    /// Wakes the timer's task before its timeout.
    task_alarm: Notify,
    /// A call waits for more of a limit that is divided among processes.
    pub(crate) short: Notify,
    /// There is something to tell those processes.
    pub(crate) news: Notify,
    /// Its limits are divided, so that the time that the machine was suspended counts at each call.
    is_divided: AtomicBool,
    pub(crate) departures: Departures,
    /// What log lines call the limiter.
    name: OnceLock<Arc<str>>,
    /// `None`: generic HTTP, whose table is read when it is first needed.
    #[cfg(feature = "http")]
    dialect: RwLock<Option<Arc<Dialect>>>,
}

pub(crate) struct State {
    pub(crate) pacer: Pacer,
    /// The bounds on re-sends, for the log's "try 1 of at most 8".
    pub(crate) retry: Retry,
    closed: bool,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Scopes that the pacer has stopped and that were not resumed since; `None` is the account.
    stops: BTreeMap<Option<ScopeId>, Arc<str>>,
    timers: Timers,
    /// Calls that were promised, while nothing else is asked of the pacer.
    leased: Option<Leased>,
}

struct Waiter {
    scope: ScopeId,
    since: Instant,
    answer: oneshot::Sender<Answer>,
}

/// How the wait of a request ends.
enum WaitEnd {
    /// For a probe or not.
    Granted(bool),
    Deferred {
        until: Instant,
        reason: WaitReason,
    },
}

impl Driver {
    pub(crate) fn new(pacer: Pacer, retry: Retry, clock: Clock) -> Arc<Self> {
        let (waiters, stops) = (BTreeMap::new(), BTreeMap::new());
        let state = State { pacer, retry, closed: false, waiters, stops, timers: Timers::default(), leased: None };
        let (alarm, task_alarm) = (Condvar::new(), Notify::new());
        Arc::new(Self {
            state: Mutex::new(state),
            clock,
            alarm,
            task_alarm,
            short: Notify::new(),
            news: Notify::new(),
            is_divided: AtomicBool::new(false),
            #[cfg(feature = "http")]
            dialect: RwLock::default(),
            departures: Departures::default(),
            name: OnceLock::new(),
        })
    }

    #[cfg(feature = "http")]
    pub(crate) fn dialect(&self) -> Arc<Dialect> {
        let dialect = self.dialect.read().unwrap_or_else(PoisonError::into_inner);
        dialect.as_ref().map_or_else(generic, Arc::clone)
    }

    /// The retries that are left to the item of a request once it is sent.
    pub(crate) fn retries_left(&self, request: &Request) -> u32 {
        self.look(|state, _| state.retry.left(request.max_retries, request.attempts))
    }

    /// The context for reading the result of a send that reserved so much.
    pub(crate) fn attempt<'a>(&self, reserved: &'a Cost) -> Attempt<'a> {
        Attempt {
            reserved,
            #[cfg(feature = "http")]
            dialect: self.dialect(),
        }
    }

    #[cfg(feature = "http")]
    pub(crate) fn set_dialect(&self, dialect: Dialect) {
        *self.dialect.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(dialect));
    }

    pub(crate) fn set_name(&self, name: Arc<str>) {
        // A limiter has one name; a later one is that of a clone.
        drop(self.name.set(name));
    }

    fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// The time, with all that the machine has slept.
    pub(crate) fn now(&self) -> Instant {
        self.clock.notice_suspension();
        self.clock.now()
    }

    /// The time without what the machine has slept since it was last noticed.
    pub(crate) fn clock_now(&self) -> Instant {
        self.clock.now()
    }

    /// Requests a permit; takes it at once if possible.
    pub(crate) fn enqueue(self: &Arc<Self>, request: Request) -> Result<Admission, Error> {
        // A wait that is too long is reported at once. Without a bound the caller waits, and the timer notices the suspension.
        if request.deadline.is_some() || request.max_wait.is_some() {
            self.clock.notice_suspension();
        }
        let (mut state, now) = self.enter();
        if state.closed {
            self.release(state, now);
            return Err(Error::Closed);
        }
        match state.pacer.enqueue_or_grant(now, request) {
            Ok(Enqueued::Granted { ticket, probe }) => {
                let notifications = self.leave(state, now);
                let permit = Permit::new(Arc::clone(self), ticket, probe);
                if let Some(notifications) = notifications {
                    self.deliver(notifications);
                }
                Ok(Admission::Granted(permit))
            }
            Ok(Enqueued::Queued { ticket }) => {
                let mut notifications = Notifications::default();
                let admission = self.queue(state, now, ticket, &mut notifications);
                self.deliver(notifications);
                admission
            }
            Err(too_large) => {
                self.release(state, now);
                Err(too_large.into())
            }
        }
    }

    /// What becomes of a request that was not granted at once. The notifications outlive the lock also when this panics.
    fn queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        now: Instant,
        ticket: Ticket,
        notifications: &mut Notifications,
    ) -> Result<Admission, Error> {
        let admission = state.queued(self, now, ticket, notifications);
        self.conclude(state, now, notifications);
        admission
    }

    /// Takes a permit if that is possible at once; leaves nothing behind if not.
    pub(crate) fn try_enqueue(self: &Arc<Self>, request: Request) -> Result<Permit, NotNow> {
        self.clock.notice_suspension();
        self.change(|state, now, notifications| {
            if state.closed {
                return Err(NotNow::Never(Error::Closed));
            }
            let ticket = match state.pacer.enqueue_or_grant(now, request).map_err(Error::from)? {
                Enqueued::Granted { ticket, probe } => return Ok(Permit::new(Arc::clone(self), ticket, probe)),
                Enqueued::Queued { ticket } => ticket,
            };
            match state.drain(self, now, Some(ticket), notifications) {
                Some(Ok(WaitEnd::Granted(probe))) => {
                    state.take_at_once(now, ticket);
                    Ok(Permit::new(Arc::clone(self), ticket, probe))
                }
                Some(Err(error)) => Err(NotNow::Never(error)),
                Some(Ok(WaitEnd::Deferred { .. })) => unreachable!("a request that does not wait takes any wait"),
                None => {
                    let turned_away = state.pacer.turn_away(now, ticket);
                    let (request, admit) = turned_away.expect("a request that is not granted waits");
                    state.drain(self, now, None, notifications);
                    Err(state.not_now(now, &request, admit))
                }
            }
        })
    }

    pub(crate) fn complete(self: &Arc<Self>, ticket: Ticket, mut outcome: Outcome) -> NextAction {
        let (mut state, now) = self.enter();
        let next = state.pacer.complete_ref(now, ticket, &mut outcome);
        self.release(state, now);
        next
    }

    /// Takes what the head of an answer announces.
    pub(crate) fn observe(self: &Arc<Self>, ticket: Ticket, limits: &[LimitReport]) {
        if !limits.is_empty() {
            self.act(|pacer, now| pacer.observe(now, ticket, limits));
        }
    }

    /// Ends holds and stops.
    pub(crate) fn resume(self: &Arc<Self>, scope: Option<&ScopeId>) {
        self.change(|state, now, _| {
            state.stops.retain(|stopped, _| scope.is_some() && stopped.as_ref() != scope);
            state.pacer.resume(now, scope);
        });
    }

    /// Ends stops; holds go on.
    pub(crate) fn end_stops(self: &Arc<Self>) {
        self.change(|state, now, _| {
            state.stops.clear();
            state.pacer.end_stops(now);
        });
    }

    /// Replaces the limits.
    pub(crate) fn reconfigure(self: &Arc<Self>, config: PacerConfig) -> Result<(), ConfigError> {
        let retry = config.retry.clone();
        self.change(|state, now, _| {
            state.pacer.reconfigure(now, config)?;
            state.retry = retry;
            Ok(())
        })
    }

    /// Shares the limits with other processes.
    pub(crate) fn divide(self: &Arc<Self>) -> Result<(), ConfigError> {
        self.is_divided.store(true, Ordering::Relaxed);
        self.act(|pacer, now| pacer.divide(now))
    }

    /// Changes the pacer, and delivers its events to the waiting callers.
    #[inline(always)]
    pub(crate) fn act<T>(self: &Arc<Self>, action: impl FnOnce(&mut Pacer, Instant) -> T) -> T {
        self.change(|state, now, _| action(&mut state.pacer, now))
    }

    /// Reads the pacer and its state.
    pub(crate) fn look<T>(&self, view: impl FnOnce(&State, Instant) -> T) -> T {
        self.clock.notice_suspension();
        let (state, now) = self.lock();
        view(&state, now)
    }

    /// Answers every waiting caller with an error, and refuses new ones. Granted permits stay valid.
    pub(crate) fn close(self: &Arc<Self>) {
        self.change(|state, now, notifications| {
            state.closed = true;
            for (ticket, waiter) in std::mem::take(&mut state.waiters) {
                state.pacer.cancel(now, ticket);
                notifications.answer(waiter.answer, Err(Error::Closed));
            }
        });
    }

    /// Removes a caller that no longer waits.
    fn cancel(self: &Arc<Self>, ticket: Ticket) {
        let gone = self.change(|state, now, _| {
            let waiter = state.waiters.remove(&ticket)?;
            state.pacer.cancel(now, ticket);
            Some(waiter)
        });
        // Its end of the channel wakes the caller's task, so it is dropped without the lock.
        drop(gone);
    }

    /// The time is read under the lock, so that the pacer never sees it go backwards, and after the end of a lease, so that
    /// none of its calls left later. A panic under the lock leaves the pacer's numbers inexact at worst, and permits are
    /// returned while panics unwind: poisoning is ignored.
    #[inline(always)]
    fn lock(&self) -> (MutexGuard<'_, State>, Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = if state.is_leased() { self.end_lease(&mut state) } else { self.clock.now() };
        (state, now)
    }

    #[cold]
    fn end_lease(&self, state: &mut State) -> Instant {
        let ended = state.end_lease();
        let now = self.clock.now();
        if let Some((leased, calls)) = ended {
            state.count_lease(now, &leased, calls);
        }
        now
    }
}

impl State {
    /// What becomes of a request that was not granted at once.
    fn queued(
        &mut self,
        driver: &Arc<Driver>,
        now: Instant,
        ticket: Ticket,
        notifications: &mut Notifications,
    ) -> Result<Admission, Error> {
        match self.drain(driver, now, Some(ticket), notifications) {
            None => self.wait(driver, now, ticket, notifications).map(Admission::Waiting),
            Some(Err(error)) => Err(error),
            Some(Ok(WaitEnd::Granted(probe))) => {
                self.take_at_once(now, ticket);
                Ok(Admission::Granted(Permit::new(Arc::clone(driver), ticket, probe)))
            }
            Some(Ok(WaitEnd::Deferred { until, reason })) => Ok(Admission::Deferred { until, reason }),
        }
    }

    /// Takes the pacer's events. `mine` is a ticket without a waiter yet; its decision is the result, a refusal, or none so
    /// far. Mostly there are none.
    #[inline]
    fn drain(
        &mut self,
        driver: &Arc<Driver>,
        now: Instant,
        mine: Option<Ticket>,
        notifications: &mut Notifications,
    ) -> Option<Result<WaitEnd, Error>> {
        let first = self.pacer.poll_event()?;
        self.drain_from(first, driver, now, mine, notifications)
    }

    fn drain_from(
        &mut self,
        first: Event,
        driver: &Arc<Driver>,
        now: Instant,
        mine: Option<Ticket>,
        notifications: &mut Notifications,
    ) -> Option<Result<WaitEnd, Error>> {
        let mut decided = None;
        let mut next = Some(first);
        while let Some(event) = next.take().or_else(|| self.pacer.poll_event()) {
            match event {
                Event::Granted { ticket, probe } if Some(ticket) == mine => decided = Some(Ok(WaitEnd::Granted(probe))),
                Event::Granted { ticket, probe } => self.grant(driver, ticket, probe, notifications),
                Event::Expired { ticket, earliest, .. } if Some(ticket) == mine => {
                    let needed = earliest.map(|earliest| earliest - now);
                    decided = Some(Err(Error::DeadlineExceeded { waited: Duration::ZERO, needed }));
                }
                Event::Expired { ticket, earliest, .. } => {
                    let needed = earliest.map(|earliest| earliest - now);
                    self.answer(ticket, notifications, |waiter| {
                        Err(Error::DeadlineExceeded { waited: now - waiter.since, needed })
                    });
                }
                Event::Deferred { ticket, request, until, reason } if Some(ticket) == mine => {
                    let stopped = self.stopped(&request.scope);
                    decided = Some(stopped.map_or(Ok(WaitEnd::Deferred { until, reason }), Err));
                }
                Event::Deferred { ticket, until, reason, .. } => {
                    self.answer(ticket, notifications, |_| Ok(Within::Deferred { until, reason }));
                }
                Event::Refused { ticket, too_large } => self.answer(ticket, notifications, |_| Err(too_large.into())),
                Event::Stopped { scope, reason } => self.stop(now, scope, &reason, notifications),
                Event::Held { scope, until, cause, renewed } => {
                    let scope = scope_name(scope.as_ref());
                    notifications.log(LogLine::Held { scope, wait: until - now, cause, renewed });
                }
                _ => {}
            }
        }
        decided
    }

    fn grant(&mut self, driver: &Arc<Driver>, ticket: Ticket, probe: bool, notifications: &mut Notifications) {
        // There is no waiter if it was just answered, as all are when a limiter is closed: then the request is cancelled, too.
        if self.waiters.contains_key(&ticket) {
            let permit = Permit::new(Arc::clone(driver), ticket, probe);
            self.answer(ticket, notifications, |_| Ok(Within::Granted(permit)));
        }
    }

    fn answer(&mut self, ticket: Ticket, notifications: &mut Notifications, answer: impl FnOnce(&Waiter) -> Answer) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            let answer = answer(&waiter);
            notifications.answer(waiter.answer, answer);
        }
    }

    /// The end of a stop is not known, so the waiting callers of the scope get an error instead of waiting.
    fn stop(&mut self, now: Instant, scope: Option<ScopeId>, reason: &Arc<str>, notifications: &mut Notifications) {
        if !self.stops.contains_key(&scope) {
            notifications.log(LogLine::Stopped { scope: scope_name(scope.as_ref()), reason: reason.clone() });
        }
        let inside = |_: &Ticket, waiter: &mut Waiter| scope.as_ref().is_none_or(|scope| waiter.scope == *scope);
        let stopped: Vec<_> = self.waiters.extract_if(.., inside).collect();
        for (ticket, waiter) in stopped {
            self.pacer.cancel(now, ticket);
            notifications.answer(waiter.answer, Err(stopped_error(scope.as_ref(), reason)));
        }
        self.stops.entry(scope).or_insert_with(|| reason.clone());
    }

    /// Why the scope of a request is stopped, if it or the account is.
    fn stopped(&self, scope: &ScopeId) -> Option<Error> {
        if self.stops.is_empty() {
            return None;
        }
        let (scope, reason) = [Some(scope.clone()), None].into_iter().find_map(|key| self.stops.get_key_value(&key))?;
        Some(stopped_error(scope.as_ref(), reason))
    }

    fn not_now(&self, now: Instant, request: &Request, admit: Admit) -> NotNow {
        if let Some(error) = self.stopped(&request.scope) {
            return NotNow::Never(error);
        }
        let (after, cause) = match admit {
            Admit::Now => (None, WaitCause::Queue),
            Admit::At { at, cause } => (Some(at - now), cause),
            Admit::OnRelease { cause } => (None, cause),
        };
        NotNow::Wait { after, reason: WaitReason { level: self.pacer.level(now, request), cause } }
    }

    /// Leaves the request in the queue.
    fn wait(
        &mut self,
        driver: &Arc<Driver>,
        now: Instant,
        ticket: Ticket,
        notifications: &mut Notifications,
    ) -> Result<Waiting, Error> {
        let scope = self.pacer.request(ticket).expect("a request that is not granted waits").scope.clone();
        if let Some(error) = self.stopped(&scope) {
            self.pacer.cancel(now, ticket);
            return Err(error);
        }
        let (answer, receiver) = oneshot::channel();
        self.waiters.insert(ticket, Waiter { scope, since: now, answer });
        self.begin_timer(driver, notifications).map_err(|error| {
            // The receiver is still here, so no waker is called by dropping the sender.
            drop(self.waiters.remove(&ticket));
            self.pacer.cancel(now, ticket);
            Error::NoTimer { reason: error.to_string().into() }
        })?;
        Ok(Waiting::new(Arc::clone(driver), ticket, receiver))
    }
}

fn stopped_error(scope: Option<&ScopeId>, reason: &Arc<str>) -> Error {
    Error::Stopped { scope: scope_name(scope), reason: reason.clone() }
}

fn scope_name(scope: Option<&ScopeId>) -> Arc<str> {
    scope.map_or_else(|| "the account".into(), |scope| scope.name().clone())
}
