//! Drives the pacer: one lock around it, one timer, and a channel to each task that waits.
//!
//! The pacer decides everything. What is left is to tell it the time, to call it when it asked to be called, and to
//! bring its events to the tasks that wait for them. Answers are sent after the lock is released, so that nobody wakes up
//! only to wait for it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use paceline_core::{
    Admit, ConfigError, Event, Instant, Outcome, Pacer, PacerConfig, Policy, Request, Retry, ScopeId, Ticket, Verdict,
};
use tokio::sync::{Notify, oneshot};

use crate::clock::Clock;
use crate::error::{Error, NotNow};
use crate::log::Rounded;
use crate::permit::Permit;

/// The timer never sleeps longer than this in one go: timers stand still while the machine is suspended, so a wait that
/// ended meanwhile is noticed at most this late.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

type Answer = Result<Permit, Error>;

/// What all clones of a limiter and all its permits share.
pub(crate) struct Driver {
    state: Mutex<State>,
    clock: Clock,
    /// Rings when the timer must look again before it meant to.
    alarm: Notify,
}

pub(crate) struct State {
    pub(crate) pacer: Pacer,
    /// The bounds on re-sends, for the log's "attempt 1/8".
    pub(crate) retry: Retry,
    closed: bool,
    waiters: BTreeMap<Ticket, Waiter>,
    /// What the pacer told to be stopped and was not resumed since; `None` is the account.
    stops: BTreeMap<Option<ScopeId>, Arc<str>>,
    timer: Timer,
}

struct Waiter {
    request: Request,
    since: Instant,
    answer: oneshot::Sender<Answer>,
}

/// The timer lives while somebody waits.
#[derive(Clone, Copy, PartialEq)]
enum Timer {
    Off,
    /// Looks at the pacer at that instant, or when the alarm rings.
    Set(Instant),
}

/// What an acquisition comes to when it is made.
pub(crate) enum Admission {
    Granted(Permit),
    Waiting(Waiting),
}

impl Driver {
    pub(crate) fn new(pacer: Pacer, retry: Retry, clock: Clock) -> Arc<Self> {
        let (waiters, stops) = (BTreeMap::new(), BTreeMap::new());
        let state = State { pacer, retry, closed: false, waiters, stops, timer: Timer::Off };
        Arc::new(Self { state: Mutex::new(state), clock, alarm: Notify::new() })
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Asks for a permit; takes it at once when it may.
    pub(crate) fn enqueue(self: &Arc<Self>, request: Request) -> Result<Admission, Error> {
        let mut news = News::default();
        let admission = {
            let (mut state, now) = self.lock();
            if state.closed {
                return Err(Error::Closed);
            }
            let ticket = state.pacer.enqueue(now, request.clone())?;
            let admission = match state.drain(self, now, Some(ticket), &mut news) {
                Some(Ok(probe)) => Ok(Admission::Granted(Permit::new(Arc::clone(self), ticket, request, probe))),
                Some(Err(error)) => Err(error),
                None => state.wait(self, now, ticket, request).map(Admission::Waiting),
            };
            self.set_timer(&mut state, now);
            admission
        };
        news.deliver();
        admission
    }

    /// Takes a permit if that is possible at once; leaves nothing behind if not.
    pub(crate) fn try_enqueue(self: &Arc<Self>, request: Request) -> Result<Permit, NotNow> {
        let mut news = News::default();
        let result = {
            let (mut state, now) = self.lock();
            if state.closed {
                return Err(NotNow::Never(Error::Closed));
            }
            let ticket = state.pacer.enqueue(now, request.clone()).map_err(Error::from)?;
            let result = match state.drain(self, now, Some(ticket), &mut news) {
                Some(Ok(probe)) => Ok(Permit::new(Arc::clone(self), ticket, request, probe)),
                Some(Err(error)) => Err(NotNow::Never(error)),
                None => {
                    state.pacer.cancel(now, ticket);
                    state.drain(self, now, None, &mut news);
                    Err(state.not_now(now, &request))
                }
            };
            self.set_timer(&mut state, now);
            result
        };
        news.deliver();
        result
    }

    pub(crate) fn complete(self: &Arc<Self>, ticket: Ticket, outcome: Outcome) -> Verdict {
        self.act(|pacer, now| pacer.complete(now, ticket, outcome))
    }

    /// Ends holds and stops.
    pub(crate) fn resume(self: &Arc<Self>, scope: Option<&ScopeId>) {
        {
            let (mut state, _) = self.lock();
            state.stops.retain(|stopped, _| scope.is_some() && stopped.as_ref() != scope);
        }
        self.act(|pacer, now| pacer.resume(now, scope));
    }

    /// Replaces the limits.
    pub(crate) fn reconfigure(self: &Arc<Self>, config: PacerConfig) -> Result<(), ConfigError> {
        let retry = config.retry.clone();
        self.act(|pacer, now| pacer.reconfigure(now, config))?;
        self.lock().0.retry = retry;
        Ok(())
    }

    /// Does something to the pacer, and brings what follows from it to those who wait.
    pub(crate) fn act<T>(self: &Arc<Self>, action: impl FnOnce(&mut Pacer, Instant) -> T) -> T {
        let (result, news) = {
            let (mut state, now) = self.lock();
            let result = action(&mut state.pacer, now);
            let mut news = News::default();
            state.drain(self, now, None, &mut news);
            self.set_timer(&mut state, now);
            (result, news)
        };
        news.deliver();
        result
    }

    /// Looks at the pacer and its state without changing anything.
    pub(crate) fn look<T>(&self, view: impl FnOnce(&State, Instant) -> T) -> T {
        let (state, now) = self.lock();
        view(&state, now)
    }

    /// Lets everybody go who waits, and nobody wait any more. Permits that are out stay good.
    pub(crate) fn close(&self) {
        let mut news = News::default();
        {
            let (mut state, now) = self.lock();
            state.closed = true;
            while let Some((ticket, waiter)) = state.waiters.pop_first() {
                state.pacer.cancel(now, ticket);
                news.0.push((waiter.answer, Err(Error::Closed)));
            }
        }
        news.deliver();
    }

    /// The time is read under the lock, so that the pacer never sees it go backwards. A panic under the lock leaves the
    /// pacer's numbers inexact at worst, and permits are returned while panics unwind: poisoning is ignored.
    fn lock(&self) -> (MutexGuard<'_, State>, Instant) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        (state, now)
    }

    /// Has the timer look again when the pacer asks for an earlier call than the one it is set to. Nobody waits, no
    /// timer: the pacer catches up with the time at its next input.
    fn set_timer(&self, state: &mut State, now: Instant) {
        let Timer::Set(planned) = state.timer else { return };
        let due = state.pacer.poll_timeout().unwrap_or(Instant::MAX);
        if due < planned && planned > now {
            state.timer = Timer::Set(due);
            self.alarm.notify_one();
        }
    }

    /// Runs until nobody waits any more. `lost` comes from outside, so that it also covers a task that never ran.
    async fn keep_time(self: Arc<Self>, mut lost: TimerLost) {
        while let Some(pause) = self.tick() {
            // Whether the time came or the alarm rang: look again.
            drop(tokio::time::timeout(pause, self.alarm.notified()).await);
        }
        lost.0 = None;
    }

    /// One look at the clock; says how long the timer may sleep, `None` when it may end.
    fn tick(self: &Arc<Self>) -> Option<Duration> {
        self.clock.notice_suspension();
        let mut news = News::default();
        let pause = {
            let (mut state, now) = self.lock();
            state.pacer.handle_timeout(now);
            state.drain(self, now, None, &mut news);
            if state.waiters.is_empty() {
                state.timer = Timer::Off;
                None
            } else {
                let due = state.pacer.poll_timeout().unwrap_or(Instant::MAX).min(now + LONGEST_SLEEP);
                state.timer = Timer::Set(due);
                Some(due - now)
            }
        };
        news.deliver();
        pause
    }

    /// Forgets a task that no longer waits. Costs nothing when it was answered.
    fn cancel(self: &Arc<Self>, ticket: Ticket) {
        let news = {
            let (mut state, now) = self.lock();
            if state.waiters.remove(&ticket).is_none() {
                return;
            }
            state.pacer.cancel(now, ticket);
            let mut news = News::default();
            state.drain(self, now, None, &mut news);
            self.set_timer(&mut state, now);
            news
        };
        news.deliver();
    }
}

impl State {
    /// Takes the pacer's events. `mine` is a ticket that has no waiter yet; what became of it is the result: a permit, for
    /// a probe or not, a refusal, or nothing so far.
    fn drain(
        &mut self,
        driver: &Arc<Driver>,
        now: Instant,
        mine: Option<Ticket>,
        news: &mut News,
    ) -> Option<Result<bool, Error>> {
        let mut decided = None;
        while let Some(event) = self.pacer.poll_event() {
            match event {
                Event::Granted { ticket, probe } if Some(ticket) == mine => decided = Some(Ok(probe)),
                Event::Granted { ticket, probe } => {
                    let waiter = self.waiters.remove(&ticket).expect("only a request that waits is granted");
                    let permit = Permit::new(Arc::clone(driver), ticket, waiter.request, probe);
                    news.0.push((waiter.answer, Ok(permit)));
                }
                Event::Expired { ticket, .. } if Some(ticket) == mine => {
                    decided = Some(Err(Error::DeadlineExceeded { waited: Duration::ZERO }));
                }
                Event::Expired { ticket, .. } => {
                    self.refuse(ticket, news, |waiter| Error::DeadlineExceeded { waited: now - waiter.since });
                }
                Event::Refused { ticket, too_large } => self.refuse(ticket, news, |_| too_large.into()),
                Event::Stopped { scope, reason } => self.stop(now, scope, &reason, news),
                Event::Held { scope, until } => {
                    tracing::info!(scope = scope_name(scope.as_ref()), "held for {}", Rounded(until - now));
                }
                _ => {}
            }
        }
        decided
    }

    fn refuse(&mut self, ticket: Ticket, news: &mut News, error: impl FnOnce(&Waiter) -> Error) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            let error = error(&waiter);
            news.0.push((waiter.answer, Err(error)));
        }
    }

    /// Nobody knows when a stopped scope goes on, so those who wait in it are told instead of kept.
    fn stop(&mut self, now: Instant, scope: Option<ScopeId>, reason: &Arc<str>, news: &mut News) {
        if !self.stops.contains_key(&scope) {
            tracing::info!(scope = scope_name(scope.as_ref()), reason = &**reason, "stopped");
        }
        let inside =
            |_: &Ticket, waiter: &mut Waiter| scope.as_ref().is_none_or(|scope| waiter.request.scope == *scope);
        let stopped: Vec<_> = self.waiters.extract_if(.., inside).collect();
        for (ticket, waiter) in stopped {
            self.pacer.cancel(now, ticket);
            news.0.push((waiter.answer, Err(stopped_error(scope.as_ref(), reason))));
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

    fn not_now(&self, now: Instant, request: &Request) -> NotNow {
        if let Some(error) = self.stopped(&request.scope) {
            return NotNow::Never(error);
        }
        match self.pacer.admit(now, request) {
            Admit::Now => NotNow::Wait { after: None, policy: Policy::Queue },
            Admit::At { at, policy } => NotNow::Wait { after: Some(at - now), policy },
            Admit::OnRelease { policy } => NotNow::Wait { after: None, policy },
        }
    }

    /// Leaves the request in the queue and has the timer watch it.
    fn wait(&mut self, driver: &Arc<Driver>, now: Instant, ticket: Ticket, request: Request) -> Result<Waiting, Error> {
        if let Some(error) = self.stopped(&request.scope) {
            self.pacer.cancel(now, ticket);
            return Err(error);
        }
        let (answer, receiver) = oneshot::channel();
        self.waiters.insert(ticket, Waiter { request, since: now, answer });
        if self.timer == Timer::Off {
            self.timer = Timer::Set(now);
            let lost = TimerLost(Some(Arc::clone(driver)));
            tokio::spawn(Arc::clone(driver).keep_time(lost));
        }
        Ok(Waiting { driver: Arc::clone(driver), ticket, answer: receiver })
    }
}

fn stopped_error(scope: Option<&ScopeId>, reason: &Arc<str>) -> Error {
    Error::Stopped { scope: scope_name(scope).into(), reason: reason.clone() }
}

fn scope_name(scope: Option<&ScopeId>) -> &str {
    scope.map_or("the account", |scope| scope.name())
}

/// Answers found under the lock, to be sent without it.
#[derive(Default)]
struct News(Vec<(oneshot::Sender<Answer>, Answer)>);

impl News {
    fn deliver(self) {
        for (sender, answer) in self.0 {
            // Whoever waited may have gone meanwhile: then no call was made.
            if let Err(Ok(permit)) = sender.send(answer) {
                permit.withdraw();
            }
        }
    }
}

/// A place in the queue; dropping it gives the place up, or the permit when it was granted meanwhile.
pub(crate) struct Waiting {
    driver: Arc<Driver>,
    ticket: Ticket,
    answer: oneshot::Receiver<Answer>,
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.answer)
            .poll(context)
            .map(|answer| answer.expect("a waiter is answered before it is dropped"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.driver.cancel(self.ticket);
        // Closed first, so that a permit on its way comes back to its sender instead of getting lost here.
        self.answer.close();
        if let Ok(Ok(permit)) = self.answer.try_recv() {
            permit.withdraw();
        }
    }
}

/// A runtime that shuts down takes the timer with it; whoever waits next, in another runtime, starts a new one.
struct TimerLost(Option<Arc<Driver>>);

impl Drop for TimerLost {
    fn drop(&mut self) {
        if let Some(driver) = self.0.take() {
            driver.lock().0.timer = Timer::Off;
        }
    }
}
