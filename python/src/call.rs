//! One item on its way: a request for a permit, the permit, and what its end means, for as many tries as it takes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_core::{Class, Cost, Dimension, LimitScope, MaxWait, NextAction, Outcome, Request, ScopeId, Ticket};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::{Engine, scope_name, tell};
use crate::given::{given, said, span, text, whole};
use crate::http::Target;
use crate::{DeadlineExceeded, Stopped, TooLarge, WouldWait};

/// `Call(engine, scope, tokens, cost, priority, within, max_wait, max_retries)`: one item. `Call(other)`: one like it, which has
/// not begun.
#[pyclass(frozen, subclass, weakref, module = "paceline._engine")]
pub(crate) struct Call {
    pub(crate) engine: Py<Engine>,
    item: Mutex<Item>,
}

pub(crate) struct Item {
    stage: Stage,
    /// Its wait is over, and its caller has not gone on yet: the engine counts those.
    woken: bool,
    /// What the present try reserved, where an answer may say more.
    pub(crate) reserved: Cost,
    /// How long after its first request for a permit the last try may leave.
    within: Option<Duration>,
    /// What the program says that the call used.
    usage: Option<Cost>,
    /// Where it goes, if it is a request of HTTP.
    pub(crate) target: Option<Target>,
}

pub(crate) enum Stage {
    /// It has not asked for a permit, or not for its next try.
    Ready(Box<Request>),
    Waiting(Ticket),
    /// It may leave, or has left.
    Granted(Ticket),
    Refused(Refusal),
    Over,
}

/// Why a call gets no permit.
pub(crate) enum Refusal {
    TooLarge(String),
    /// Its deadline comes before it may start, which is so far away.
    Expired(Option<Duration>),
    /// The known wait exceeds what it takes: how long, and what for.
    Deferred(Option<Duration>, String),
    Stopped {
        scope: Arc<str>,
        reason: Arc<str>,
    },
}

impl Refusal {
    pub(crate) fn stopped(scope: Option<&ScopeId>, reason: &Arc<str>) -> Self {
        Self::Stopped { scope: scope_name(scope), reason: reason.clone() }
    }

    /// The words of [`paceline::Error`].
    fn error(self) -> PyErr {
        match self {
            Self::TooLarge(text) => TooLarge::new_err(text),
            Self::Expired(needed) => {
                let error = paceline::Error::DeadlineExceeded { waited: Duration::ZERO, needed };
                let text = match needed {
                    Some(_) => error.to_string(),
                    None => "the deadline passed while it waited; allow more time or send less".to_owned(),
                };
                DeadlineExceeded::new_err(text)
            }
            Self::Deferred(after, reason) => WouldWait::new_err((after.map(|after| after.as_secs_f64()), reason)),
            Self::Stopped { scope, reason } => Stopped::new_err(paceline::Error::Stopped { scope, reason }.to_string()),
        }
    }
}

impl Item {
    /// Sets where it goes. The scope and the cost of a call that has its permit already are those that the program gave.
    pub(crate) fn aim(&mut self, target: Target, scope: ScopeId, reserved: Cost) {
        if let Stage::Ready(request) = &mut self.stage {
            (request.scope, request.cost) = (scope, reserved.clone());
            self.reserved = reserved;
        }
        self.target = Some(target);
    }
}

/// What follows from the end of a call: whether it is to be sent again, after how many seconds at least, and if not, why.
pub(crate) type Follows = (bool, f64, Option<&'static str>);

impl Call {
    pub(crate) fn item(&self) -> MutexGuard<'_, Item> {
        self.item.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, stage: Stage) {
        self.item().stage = stage;
    }

    fn like(other: &Bound<'_, Self>) -> PyResult<Self> {
        let (call, item) = (other.get(), other.get().item());
        let Stage::Ready(request) = &item.stage else {
            return Err(PyRuntimeError::new_err("the call that this one is to be like has begun"));
        };
        let stage = Stage::Ready(request.clone());
        let item = Item {
            stage,
            reserved: item.reserved.clone(),
            within: item.within,
            usage: None,
            target: None,
            woken: false,
        };
        Ok(Self { engine: call.engine.clone_ref(other.py()), item: Mutex::new(item) })
    }

    /// Ends its wait. The caller goes on when its loop or its thread comes to it.
    pub(crate) fn wake(&self, stage: Stage) {
        let mut item = self.item();
        (item.stage, item.woken) = (stage, true);
    }

    /// The caller goes on, and takes no permit.
    fn goes_on(&self) {
        if self.is_woken_no_more() {
            self.engine.get().lock().goes_on();
        }
    }

    fn is_woken_no_more(&self) -> bool {
        std::mem::take(&mut self.item().woken)
    }

    /// It may leave, but its caller lets others go on first.
    fn goes_on_later(&self) {
        let Some(ticket) = self.ticket() else { return };
        let mut state = self.engine.get().lock();
        let mut item = self.item();
        if !std::mem::replace(&mut item.woken, true) {
            state.behind += 1;
            state.pacer.take_later(ticket);
        }
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self.item().stage {
            Stage::Granted(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// Reports the end of a call that has left. One that has not, or whose end was reported, changes nothing.
    pub(crate) fn complete(&self, py: Python<'_>, mut outcome: Outcome) -> Follows {
        let ticket = {
            let mut item = self.item();
            let Stage::Granted(ticket) = item.stage else { return (false, 0.0, None) };
            item.stage = Stage::Over;
            if let Some(usage) = item.usage.take() {
                outcome.usage = Some(outcome.usage.map_or(usage.clone(), |read| read.settled(&usage)));
            }
            ticket
        };
        let engine = self.engine.get();
        let (action, news) = engine.change(|state, now| state.pacer.complete(now, ticket, outcome));
        tell(self.engine.bind(py), news);
        match action {
            NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
                self.set(Stage::Ready(next));
                (true, delay.as_secs_f64(), None)
            }
            NextAction::GiveUp { reason, .. } => (false, 0.0, Some(reason.as_str())),
            _ => (false, 0.0, None),
        }
    }
}

#[pymethods]
impl Call {
    #[new]
    #[pyo3(signature = (of, scope=None, tokens=None, cost=None, priority=None, within=None, max_wait=None, max_retries=None))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of `Limiter.__call__`")]
    fn new(
        of: &Bound<'_, PyAny>,
        scope: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        cost: Option<&Bound<'_, PyAny>>,
        priority: Option<&Bound<'_, PyAny>>,
        within: Option<&Bound<'_, PyAny>>,
        max_wait: Option<&Bound<'_, PyAny>>,
        max_retries: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let Ok(engine) = of.cast::<Engine>() else { return Self::like(of.cast::<Self>()?) };
        let limiter = engine.get();
        let mut reserved = Cost::request();
        if let Some(tokens) = tokens {
            reserved.set(Dimension::Tokens, whole("tokens", tokens)?);
        }
        if let Some(cost) = cost {
            let expected = "a dictionary of units, such as {\"rows\": 3}";
            add(&mut reserved, &given::<Bound<'_, PyDict>>("cost", cost, expected)?)?;
        }
        let scope = match scope {
            Some(scope) => limiter.scope(text("scope", scope)?),
            None => limiter.usual_scope.clone(),
        };
        let mut request = Request::new(scope, reserved.clone());
        if let Some(priority) = priority {
            request.priority = given("priority", priority, "a whole number of 32 bits")?;
        }
        if let Some(most) = max_retries {
            request.max_retries = Some(given("max_retries", most, "a whole number of at least 0")?);
        }
        let within = within.map(|within| span("within", within)).transpose()?;
        if let Some(max_wait) = max_wait {
            request.max_wait = Some(MaxWait::Known(span("max_wait", max_wait)?));
        }
        let item =
            Item { stage: Stage::Ready(Box::new(request)), reserved, within, usage: None, target: None, woken: false };
        Ok(Self { engine: engine.clone().unbind(), item: Mutex::new(item) })
    }

    /// Asks for a permit. True: it leaves. False: it waits, and the driver is told when that is over; or it may leave, and others
    /// that came before are about to. Then it is to be taken.
    fn _start(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let (call, py) = (slf.get(), slf.py());
        call.engine.get().expect_joined()?;
        let stage = std::mem::replace(&mut call.item().stage, Stage::Over);
        let mut request = match stage {
            Stage::Ready(request) => *request,
            // It was asked for by `acquire`, and its `with` comes now.
            stage @ Stage::Granted(_) => {
                call.set(stage);
                return Ok(true);
            }
            stage => {
                call.set(stage);
                return Err(PyRuntimeError::new_err("a permit is for one call: ask the limiter for another one"));
            }
        };
        let engine = call.engine.get();
        if request.deadline.is_none()
            && let Some(within) = call.item().within
        {
            request.deadline = Some(engine.clock.get().awake() + within);
        }
        // The call knows its stage before the events are taken, of which one may be its own.
        let (behind, mut news) = engine.change(|state, now| {
            let stage = state.ask(now, request, || slf.clone().unbind());
            call.set(stage);
            state.behind
        });
        if !news.woken.is_empty() {
            news.woken.retain(|woken| !woken.is(slf));
        }
        let is_first = behind == 0 && news.woken.is_empty();
        if !is_first {
            call.goes_on_later();
        }
        tell(call.engine.bind(py), news);
        if is_first { Self::_take(slf) } else { call._granted().map(|_| false) }
    }

    /// The caller goes on after its wait. True: the call leaves, and counts from now on. False: it still waits, or it waits
    /// again, for others have left in its place.
    fn _take(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let call = slf.get();
        while call.is_woken_no_more() {
            let ((), mut news) = call.engine.get().change(|state, now| {
                state.goes_on();
                let again = call.ticket().and_then(|ticket| state.pacer.take(now, ticket));
                if let Some(request) = again {
                    call.set(state.ask(now, request, || slf.clone().unbind()));
                }
            });
            news.woken.retain(|woken| !woken.is(slf));
            tell(call.engine.bind(slf.py()), news);
        }
        call._granted()
    }

    /// Whether its wait is over; its caller has not gone on by that.
    fn _granted(&self) -> PyResult<bool> {
        let mut item = self.item();
        match item.stage {
            Stage::Granted(_) => Ok(true),
            Stage::Waiting(_) => Ok(false),
            Stage::Refused(_) => {
                let Stage::Refused(refusal) = std::mem::replace(&mut item.stage, Stage::Over) else {
                    unreachable!("it was refused a moment ago")
                };
                drop(item);
                self.goes_on();
                Err(refusal.error())
            }
            Stage::Ready(_) | Stage::Over => Err(PyRuntimeError::new_err("the call has no permit and waits for none")),
        }
    }

    /// Waits no longer, or gives back a permit under which no call was made. Returns how long it would have waited and what for.
    fn _cancel(&self, py: Python<'_>) -> Option<(Option<f64>, String)> {
        self.goes_on();
        let (Stage::Waiting(ticket) | Stage::Granted(ticket)) = std::mem::replace(&mut self.item().stage, Stage::Over)
        else {
            return None;
        };
        let engine = self.engine.get();
        let ((wait, gone), news) = engine.change(|state, now| {
            let wait = state.pacer.request(ticket).and_then(|request| state.wait_of(now, request));
            (wait, state.cancel(now, ticket))
        });
        drop(gone);
        tell(self.engine.bind(py), news);
        wait.map(|(after, reason)| (after.map(|after| after.as_secs_f64()), reason))
    }

    /// How long it still waits, in seconds where that is known, and what for; `None` if it does not wait.
    fn waits_for(&self) -> Option<(Option<f64>, String)> {
        let Stage::Waiting(ticket) = self.item().stage else { return None };
        let engine = self.engine.get();
        let (state, now) = (engine.lock(), engine.clock.get().present());
        let (after, reason) = state.wait_of(now, state.pacer.request(ticket)?)?;
        Some((after.map(|after| after.as_secs_f64()), reason))
    }

    /// What the call used, in place of what it reserved.
    #[pyo3(signature = (tokens=None, **units))]
    fn usage(&self, tokens: Option<&Bound<'_, PyAny>>, units: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let mut usage = self.item().usage.clone().unwrap_or_else(Cost::zero);
        if let Some(tokens) = tokens {
            usage.set(Dimension::Tokens, whole("tokens", tokens)?);
        }
        if let Some(units) = units {
            add(&mut usage, units)?;
        }
        self.item().usage = Some(usage);
        Ok(())
    }

    /// Whether it may leave and nothing has been reported about it.
    fn _is_unused(&self) -> bool {
        self.ticket().is_some()
    }

    /// The end of a call that succeeded.
    fn _succeed(&self, py: Python<'_>) {
        self.complete(py, Outcome::new(Class::Success));
    }

    /// The end of a call, by the name of its class.
    #[pyo3(signature = (outcome, wait=None, reason=None, whole_account=false))]
    fn _end(
        &self,
        py: Python<'_>,
        outcome: &str,
        wait: Option<&Bound<'_, PyAny>>,
        reason: Option<&str>,
        whole_account: bool,
    ) -> PyResult<Follows> {
        let class = Class::from_name(outcome).ok_or_else(|| {
            let names = Class::ALL.map(Class::as_str).join(", ");
            PyValueError::new_err(format!("outcome={outcome:?}: expected one of {names}"))
        })?;
        let mut outcome = Outcome { reason: reason.map(said), ..Outcome::new(class) };
        if let Some(wait) = wait {
            let wait = span("wait", wait)?;
            outcome = outcome.with_hint(wait, wait.subsec_nanos() != 0);
        }
        if whole_account {
            outcome = outcome.with_reach(LimitScope::Account);
        }
        Ok(self.complete(py, outcome))
    }

    /// The limiter.
    #[getter]
    fn limiter(&self, py: Python<'_>) -> Py<Engine> {
        self.engine.clone_ref(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.engine)
    }
}

/// A permit that is dropped gives its place back and teaches nothing.
impl Drop for Call {
    fn drop(&mut self) {
        self.goes_on();
        if self.ticket().is_some() {
            Python::try_attach(|py| self.complete(py, Outcome::new(Class::Abandoned)));
        }
    }
}

fn add(cost: &mut Cost, units: &Bound<'_, PyDict>) -> PyResult<()> {
    for (name, units) in units {
        let name = text("cost", &name)?;
        cost.set(Dimension::from_name(name), whole(name, &units)?);
    }
    Ok(())
}
