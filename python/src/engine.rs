//! The pacer behind a lock, and what each input means for the callers that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::LimiterState;
use paceline_config::Upstream;
use paceline_core::fleet::{Member, MemberChange, MemberInput};
use paceline_core::{
    Admit, ConfigError, Cost, DividedLimit, Enqueued, Event, Instant, Pacer, PacerConfig, Request, ScopeId, Ticket,
    WaitReason, format_duration,
};
use paceline_providers::TokenRatio;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;

use crate::call::{Call, Refusal, Stage};
use crate::clock::Clock;
use crate::given::{said, span, text, whole};
use crate::options;

/// The engine of one limiter: `Engine(options, clock, seed)`, or with a file and the name of an entry in place of
/// options.
///
/// The driver is a subclass. Its `_deliver(woken, delay, lines, fleet)` is called after an input that concerns callers other
/// than the one that made it: calls whose wait is over, the seconds until `_tick` is due where that is earlier than the
/// driver knows, lines for the log, and the seconds until its fleet is to be polled where that is earlier.
#[pyclass(frozen, subclass, module = "paceline._engine")]
pub(crate) struct Engine {
    pub(crate) upstream: Upstream,
    /// The scope of calls that name none.
    pub(crate) usual_scope: ScopeId,
    pub(crate) clock: Py<Clock>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) pacer: Pacer,
    /// Tokens per character by scope, learnt from answers.
    pub(crate) ratios: BTreeMap<Arc<str>, TokenRatio>,
    waiting: BTreeMap<Ticket, Py<Call>>,
    /// Scopes that are stopped; `None` is the account.
    stops: BTreeMap<Option<ScopeId>, Arc<str>>,
    /// Calls that were granted while they waited, and whose callers have not gone on yet.
    pub(crate) behind: usize,
    /// The time that the driver's timer is set to.
    told: Option<Instant>,
    fleet: Option<InFleet>,
}

/// The place of the pacer in a fleet, and when its driver was told to poll the member.
struct InFleet {
    /// The lease; nothing leaves after it that its ledger does not know of.
    until: Instant,
    told: Option<Instant>,
    /// Callers that wait for more are looked at from then on: a member speaks seldom.
    looks: Instant,
}

/// So seldom at least.
const LOOKS: Duration = Duration::from_millis(10);

/// What an input means for others. It is made under the lock, and delivered without it: a driver runs code of users.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) woken: Vec<Py<Call>>,
    /// The time at which the timer is due now.
    wake: Option<Instant>,
    lines: Vec<String>,
    /// The time at which the fleet is to be polled.
    fleet: Option<Instant>,
}

impl Engine {
    /// Runs an input, and collects what it means for others.
    pub(crate) fn change<T>(&self, action: impl FnOnce(&mut State, Instant) -> T) -> (T, News) {
        let mut state = self.lock();
        let now = if state.fleet.is_some() { self.clock.get().awake() } else { self.clock.get().present() };
        let result = action(&mut state, now);
        let news = state.drain(now);
        (result, news)
    }

    /// Refuses calls beside the fleet that the file of the limiter names: together with it they would exceed the limits. In
    /// virtual time there is no fleet.
    pub(crate) fn expect_joined(&self) -> PyResult<()> {
        let names_one = self.upstream.fleet.is_some() && !self.clock.get().is_virtual();
        if names_one && self.lock().fleet.is_none() {
            return Err(PyRuntimeError::new_err(format!(
                "upstream.{}.fleet: this limiter has not joined the fleet that its file names: make calls inside \
                 `with paceline.fleet.join(limiter, account=...)`, or set fleet = \"none\" there",
                self.upstream.name
            )));
        }
        Ok(())
    }

    /// The scope of that name; one that a tier is named after is the tier's.
    pub(crate) fn scope(&self, name: &str) -> ScopeId {
        match self.upstream.tier(name, Some(name), Some(name)) {
            Some(tier) => ScopeId::from(tier.scope.clone()),
            None => ScopeId::from(name),
        }
    }

    /// Poisoning is ignored: a panic leaves the pacer's numbers inexact at worst.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look<T>(&self, view: impl FnOnce(&State, Instant) -> T) -> T {
        let now = self.clock.get().awake();
        view(&self.lock(), now)
    }

    fn pacer(config: &PacerConfig, seed: u64, now: Instant) -> PyResult<Pacer> {
        Pacer::new(config.clone(), seed, now).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// Runs an input whose result concerns no caller that waits.
fn input<T>(engine: &Bound<'_, Engine>, action: impl FnOnce(&mut State, Instant) -> T) -> T {
    let (result, news) = engine.get().change(action);
    tell(engine, news);
    result
}

/// Tells the driver what an input meant for others. Its errors are shown as those of a finalizer are: the caller that made the
/// input is not concerned.
pub(crate) fn tell(engine: &Bound<'_, Engine>, news: News) {
    let News { woken, wake, lines, fleet } = news;
    if woken.is_empty() && wake.is_none() && lines.is_empty() && fleet.is_none() {
        return;
    }
    let left = |at: Instant| (at - engine.get().clock.get().present()).as_secs_f64();
    let (delay, fleet) = (wake.map(left), fleet.map(left));
    if let Err(error) = engine.call_method1(intern!(engine.py(), "_deliver"), (woken, delay, lines, fleet)) {
        error.write_unraisable(engine.py(), Some(engine));
    }
}

impl State {
    fn of(pacer: Pacer) -> Self {
        let (ratios, waiting, stops) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { pacer, ratios, waiting, stops, behind: 0, told: None, fleet: None }
    }

    /// Asks for a permit. `call`: the one that waits for it, if it has to.
    ///
    /// Where the driver's timer is due, its loop or its threads are behind. They get no grants ahead of it, which would leave
    /// as a burst once they have caught up: the time is that of the timer until it fires. But a lease ends when it ends.
    pub(crate) fn ask(&mut self, now: Instant, request: Request, call: impl FnOnce() -> Py<Call>) -> Stage {
        let has_lease = self.fleet.as_ref().is_none_or(|fleet| now < fleet.until);
        let due = self.told.filter(|_| !self.waiting.is_empty() && has_lease);
        let now = due.map_or(now, |due| now.min(due.saturating_sub(Duration::from_nanos(1))));
        match self.pacer.enqueue_or_grant(now, request) {
            Err(too_large) => Stage::Refused(Refusal::TooLarge(too_large.to_string())),
            Ok(Enqueued::Granted { ticket, .. }) => Stage::Granted(ticket),
            Ok(Enqueued::Queued { ticket }) => {
                match self.pacer.request(ticket).and_then(|it| self.stopped(&it.scope)) {
                    Some(refusal) => {
                        self.pacer.cancel(now, ticket);
                        Stage::Refused(refusal)
                    }
                    None => {
                        self.waiting.insert(ticket, call());
                        Stage::Waiting(ticket)
                    }
                }
            }
        }
    }

    /// A caller waits no longer. Its handle is to be dropped without the lock.
    pub(crate) fn cancel(&mut self, now: Instant, ticket: Ticket) -> Option<Py<Call>> {
        self.pacer.cancel(now, ticket);
        self.waiting.remove(&ticket)
    }

    /// A caller whose wait was over goes on. In a child of fork that may be a caller of the parent, which is not counted.
    pub(crate) fn goes_on(&mut self) {
        self.behind = self.behind.saturating_sub(1);
    }

    /// Why the scope of a request is stopped, if it or the account is.
    fn stopped(&self, scope: &ScopeId) -> Option<Refusal> {
        if self.stops.is_empty() {
            return None;
        }
        let (scope, reason) = [Some(scope.clone()), None].into_iter().find_map(|key| self.stops.get_key_value(&key))?;
        Some(Refusal::stopped(scope.as_ref(), reason))
    }

    /// Takes the events: each may end the wait of a call.
    fn drain(&mut self, now: Instant) -> News {
        let mut news = News::default();
        while let Some(event) = self.pacer.poll_event() {
            match event {
                Event::Granted { ticket, .. } => self.end_wait(ticket, Stage::Granted(ticket), &mut news),
                Event::Expired { ticket, earliest, .. } => {
                    let refusal = Refusal::Expired(earliest.map(|earliest| earliest - now));
                    self.end_wait(ticket, Stage::Refused(refusal), &mut news);
                }
                Event::Deferred { ticket, request, until, reason } => {
                    let stopped = self.stopped(&request.scope);
                    let refusal = stopped.unwrap_or_else(|| Refusal::Deferred(Some(until - now), reason.to_string()));
                    self.end_wait(ticket, Stage::Refused(refusal), &mut news);
                }
                Event::Refused { ticket, too_large } => {
                    let refusal = Refusal::TooLarge(too_large.to_string());
                    self.end_wait(ticket, Stage::Refused(refusal), &mut news);
                }
                Event::Stopped { scope, reason } => self.stop(now, scope, &reason, &mut news),
                Event::Held { scope, until, cause, renewed: false } => {
                    let (scope, wait) = (scope_name(scope.as_ref()), format_duration(until - now));
                    news.lines.push(format!("{scope}: no calls for {wait}: {}", cause.explanation()));
                }
                _ => {}
            }
        }
        let due = if self.waiting.is_empty() { None } else { self.pacer.poll_timeout() };
        if due.is_some_and(|due| self.told.is_none_or(|told| due < told)) {
            (news.wake, self.told) = (due, due);
        }
        news.fleet = self.fleet_is_due(now);
        news
    }

    /// From now on the limits are shared with the members of a fleet. Returns which ones.
    pub(crate) fn divide(&mut self, now: Instant) -> Result<Vec<DividedLimit>, ConfigError> {
        self.pacer.divide(now)?;
        self.fleet = Some(InFleet { until: Instant::ZERO, told: None, looks: now });
        Ok(self.pacer.divided_limits())
    }

    /// Tells a member what happened, and takes what it allows.
    pub(crate) fn hear(&mut self, now: Instant, member: &mut Member, input: MemberInput) -> Vec<MemberChange> {
        let changes = self.pacer.hear(now, member, input);
        let until = member.view().lease_ends.unwrap_or(Instant::ZERO);
        self.fleet = Some(InFleet { until, told: None, looks: now + LOOKS });
        changes
    }

    /// When the driver is to poll the member, where it does not know.
    fn fleet_is_due(&mut self, now: Instant) -> Option<Instant> {
        let fleet = self.fleet.as_mut()?;
        let is_short = self.pacer.take_short();
        let due = match self.pacer.has_news() {
            true => now,
            false if is_short => fleet.looks.max(now),
            false => return None,
        };
        if fleet.told.is_some_and(|told| told <= due) {
            return None;
        }
        fleet.told = Some(due);
        Some(due)
    }

    fn end_wait(&mut self, ticket: Ticket, stage: Stage, news: &mut News) {
        if let Some(call) = self.waiting.remove(&ticket) {
            call.get().wake(stage);
            self.behind += 1;
            news.woken.push(call);
        }
    }

    /// The end of a stop is not known, so callers that wait get an error instead.
    fn stop(&mut self, now: Instant, scope: Option<ScopeId>, reason: &Arc<str>, news: &mut News) {
        let inside = |ticket: &Ticket, _: &mut Py<Call>| {
            let request = self.pacer.request(*ticket);
            scope.as_ref().is_none_or(|scope| request.is_some_and(|request| request.scope == *scope))
        };
        let stopped: Vec<_> = self.waiting.extract_if(.., inside).collect();
        for (ticket, call) in stopped {
            self.pacer.cancel(now, ticket);
            call.get().wake(Stage::Refused(Refusal::stopped(scope.as_ref(), reason)));
            self.behind += 1;
            news.woken.push(call);
        }
        let line = format!("{} is stopped: {reason}", scope_name(scope.as_ref()));
        self.stops.entry(scope).or_insert_with(|| {
            news.lines.push(line);
            reason.clone()
        });
    }

    /// How long a request would wait, where that is known, and what for; `None` if it could leave at once.
    pub(crate) fn wait_of(&self, now: Instant, request: &Request) -> Option<(Option<Duration>, String)> {
        let (after, cause) = match self.pacer.admit(now, request) {
            Admit::Now => return None,
            Admit::At { at, cause } => (Some(at - now), cause),
            Admit::OnRelease { cause } => (None, cause),
        };
        let level = self.pacer.level(now, request);
        Some((after, WaitReason { level, cause }.to_string()))
    }
}

pub(crate) fn scope_name(scope: Option<&ScopeId>) -> Arc<str> {
    scope.map_or_else(|| "the account".into(), |scope| scope.name().clone())
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (options, clock, seed, file=None, upstream=None))]
    fn new(
        options: &Bound<'_, PyDict>,
        clock: Py<Clock>,
        seed: u64,
        file: Option<&str>,
        upstream: Option<String>,
    ) -> PyResult<Self> {
        let mut upstream = match file {
            Some(file) => options::of_file(file, upstream)?,
            None => options::of_options(options)?,
        };
        upstream.pacer.retry.deadline = Some(upstream.deadline);
        let mut pacer = Self::pacer(&upstream.pacer, seed, clock.get().present())?;
        let usual_scope = pacer.scope("default");
        Ok(Self { upstream, usual_scope, clock, state: Mutex::new(State::of(pacer)) })
    }

    /// The timer of the driver has fired.
    fn _tick(slf: &Bound<'_, Self>) {
        slf.get().clock.get().awake();
        input(slf, |state, now| {
            state.told = None;
            state.pacer.handle_timeout(now);
        });
    }

    /// Seconds until the next tick is due; `None` while no call waits for a time.
    fn _delay(&self) -> Option<f64> {
        let state = self.lock();
        state.told.map(|told| (told - self.clock.get().present()).as_secs_f64())
    }

    /// In a child of fork: the calls of the parent are not this process's, and neither is its chance. What was counted and learnt
    /// stays. The share of a fleet is the parent's, and so are the calls that count in it: nothing leaves before the child has
    /// joined.
    fn _begin_anew(&self, seed: u64) -> PyResult<()> {
        let failed = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
        let left = {
            let mut state = self.lock();
            let now = self.clock.get().present();
            let mut known = state.pacer.export(now);
            let mut begun = State::of(Self::pacer(&self.upstream.pacer, seed, now)?);
            if state.fleet.is_some() {
                known.account.windows.clear();
                known.scopes.iter_mut().for_each(|scope| scope.windows.clear());
                begun.divide(now).map_err(|error| failed(&error))?;
            }
            begun.pacer.restore(now, &known, Duration::ZERO).map_err(|error| failed(&error))?;
            begun.ratios = std::mem::take(&mut state.ratios);
            std::mem::replace(&mut *state, begun)
        };
        // The calls of the parent's callers are dropped without the lock.
        drop(left);
        Ok(())
    }

    /// The time on the limiter's clock.
    #[getter]
    fn clock(&self, py: Python<'_>) -> Py<Clock> {
        self.clock.clone_ref(py)
    }

    /// One line for people: calls in flight, callers that wait, until when and why, and what is known of the limit.
    fn explain(&self) -> String {
        self.look(|state, now| state.pacer.snapshot(now).explain(now))
    }

    /// Everything that `explain` sums up, as JSON.
    fn _snapshot(&self) -> String {
        let wall = self.clock.get().wall();
        let snapshot = self.look(|state, now| {
            let time = |at: Instant| wall + (at - now);
            let snapshot = state.pacer.snapshot(now);
            let scopes: Vec<_> = snapshot.scopes.iter().map(|scope| paceline::scope_json(scope, &time)).collect();
            json!({ "account": paceline::scope_json(&snapshot.account, &time), "scopes": scopes })
        });
        snapshot.to_string()
    }

    /// How long a call would wait now, in seconds where that is known, and what for.
    #[pyo3(signature = (scope, tokens))]
    fn _wait(
        &self,
        scope: Option<&Bound<'_, PyAny>>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(Option<f64>, String)>> {
        let scope = match scope {
            Some(scope) => self.scope(text("scope", scope)?),
            None => self.usual_scope.clone(),
        };
        let cost = Cost::request().with(paceline_core::Dimension::Tokens, whole("tokens", tokens)?);
        let request = Request::new(scope, cost);
        let wait = self.look(|state, now| state.wait_of(now, &request));
        Ok(wait.map(|(after, reason)| (after.map(|after| after.as_secs_f64()), reason)))
    }

    /// No call of the scope, or none at all, leaves for so many seconds.
    #[pyo3(signature = (seconds, scope=None))]
    fn hold(slf: &Bound<'_, Self>, seconds: &Bound<'_, PyAny>, scope: Option<&str>) -> PyResult<()> {
        let length = span("seconds", seconds)?;
        let scope = scope.map(|scope| slf.get().scope(scope));
        input(slf, |state, now| state.pacer.hold(now, scope.as_ref(), now + length));
        Ok(())
    }

    /// No call of the scope, or none at all, leaves before `resume`: callers get `Stopped`.
    #[pyo3(signature = (reason, scope=None))]
    fn stop(slf: &Bound<'_, Self>, reason: &str, scope: Option<&str>) {
        let scope = scope.map(|scope| slf.get().scope(scope));
        input(slf, |state, now| state.pacer.stop(now, scope.as_ref(), said(reason)));
    }

    /// Ends holds, stops and pauses of the scope, or of everything.
    #[pyo3(signature = (scope=None))]
    fn resume(slf: &Bound<'_, Self>, scope: Option<&str>) {
        let scope = scope.map(|scope| slf.get().scope(scope));
        input(slf, |state, now| {
            state.stops.retain(|stopped, _| scope.is_some() && *stopped != scope);
            state.pacer.resume(now, scope.as_ref());
        });
    }

    /// What the limiter knows, as JSON, for one of the same account after a restart.
    fn export(&self) -> PyResult<String> {
        let pacer = self.look(|state, now| state.pacer.export(now));
        let state = LimiterState { at: self.clock.get().wall(), pacer };
        serde_json::to_string(&state).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Goes on with what another limiter of the account exported. To be called before the first call.
    fn restore(slf: &Bound<'_, Self>, state: &str) -> PyResult<()> {
        let wrong = |error: String| {
            PyValueError::new_err(format!("state: expected what `export` of a limiter gave, and this is none: {error}"))
        };
        let exported: LimiterState = serde_json::from_str(state).map_err(|error| wrong(error.to_string()))?;
        let since = slf.get().clock.get().wall().saturating_since(exported.at);
        let restored = input(slf, |state, now| state.pacer.restore(now, &exported.pacer, since));
        restored.map_err(|error| wrong(error.to_string()))
    }

    /// The provider whose table reads answers.
    #[getter]
    fn provider(&self) -> &'static str {
        self.upstream.provider.as_str()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.clock)?;
        match self.state.try_lock() {
            Ok(state) => state.waiting.values().try_for_each(|call| visit.call(call)),
            Err(_) => Ok(()),
        }
    }
}
