//! Nested retry loops: the inner one sends and reports, and only the outermost retries.

use std::cell::Cell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use paceline_core::{Class, LimitReport, NextAction, Outcome, Request, ScopeId};

use crate::driver::{Driver, Permit, Waiting};
use crate::error::Error;

tokio::task_local! {
    /// The innermost attempt that this task is in.
    pub(crate) static FRAME: Arc<Frame>;
}

/// Whether this thread polls an operation of a `retry`, which has no limiter and so no frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retried {
    No,
    Yes,
    /// A loop inside it has failed, and has said how.
    Told,
}

thread_local! {
    /// Without a destructor, so that it costs each poll next to nothing.
    static RETRIED: Cell<Retried> = const { Cell::new(Retried::No) };
    /// What a loop inside an operation says to the `retry` around it.
    static TOLD: Cell<Option<Box<Outcome>>> = const { Cell::new(None) };
}

/// Takes a step of an operation of a `retry`. The last failure of which a loop inside it tells comes into `told`.
#[inline]
pub(crate) fn inside<T>(told: &mut Option<Box<Outcome>>, step: impl FnOnce() -> T) -> T {
    /// The thread goes on where it was, also after a panic.
    struct Leaves(Retried);
    impl Drop for Leaves {
        fn drop(&mut self) {
            RETRIED.set(self.0);
        }
    }
    let leaves = Leaves(RETRIED.replace(Retried::Yes));
    let value = step();
    if RETRIED.get() == Retried::Told {
        *told = TOLD.take();
    }
    drop(leaves);
    value
}

/// Whether this is part of an operation of a `retry`.
pub(crate) fn is_inside_retry() -> bool {
    RETRIED.get() != Retried::No
}

/// Whether this is part of an operation of a `retry` or of a `run` of any limiter: then that decides about the next try.
pub(crate) fn is_inside_any() -> bool {
    is_inside_retry() || FRAME.try_with(|_| ()).is_ok()
}

/// Tells the `retry` around it of a failure, if there is one.
pub(crate) fn tell(failed: Outcome) {
    if is_inside_retry() {
        RETRIED.set(Retried::Told);
        TOLD.set(Some(Box::new(failed)));
    }
}

/// One attempt of an operation.
pub(crate) struct Frame {
    driver: Arc<Driver>,
    /// The attempt around it, perhaps of another limiter.
    outer: Option<Arc<Self>>,
    /// Its counts so far, and what is reserved: a send that does not use the permit below still belongs to the same item. Asked
    /// for once it is needed, and before the permit is taken.
    request: OnceLock<Request>,
    sender: Mutex<Sender>,
}

/// The sender of the attempt's call.
pub(crate) enum Sender {
    /// The operation itself, so far.
    Operation(Permit),
    /// A loop inside it, with its last report; a failure is kept over a success.
    Inside(Option<Report>),
}

/// The outcome of a call, and what follows.
pub(crate) struct Report {
    pub(crate) action: NextAction,
    pub(crate) class: Class,
    /// Why, for the log.
    pub(crate) reason: Option<Arc<str>>,
    /// The source of the wait, for the log.
    pub(crate) wait_from: &'static str,
    /// The wait that the server asked for.
    pub(crate) hint: Option<Duration>,
}

impl Report {
    pub(crate) fn new(outcome: Outcome, answer: impl FnOnce(Outcome) -> NextAction) -> Self {
        let (class, reason) = (outcome.class, outcome.reason.clone());
        let wait_from = outcome.hint.map_or("policy", |hint| hint.from);
        let hint = outcome.hint.map(|hint| hint.wait);
        Self { action: answer(outcome), class, reason, wait_from, hint }
    }
}

impl Frame {
    pub(crate) fn new(driver: &Arc<Driver>, permit: Permit) -> Self {
        Self {
            driver: Arc::clone(driver),
            outer: FRAME.try_with(Arc::clone).ok(),
            request: OnceLock::new(),
            sender: Mutex::new(Sender::Operation(permit)),
        }
    }

    /// The innermost attempt of that limiter that this task is in.
    pub(crate) fn current(driver: &Arc<Driver>) -> Option<Arc<Self>> {
        FRAME.try_with(Arc::clone).ok().and_then(|frame| frame.of(driver))
    }

    /// An operation that has all places among the calls in flight, and waits for one, would wait for its own end.
    ///
    /// # Errors
    /// [`Error::OwnPlace`] then. Not in a fleet, whose other processes may leave it some of theirs.
    pub(crate) fn check_wait(waiting: &Waiting) -> Result<(), Error> {
        let (driver, ticket) = waiting.request();
        if Self::places(driver, None) == 0 {
            return Ok(());
        }
        let places = driver.look(|state, now| {
            let scope = state.pacer.request(ticket)?.scope.clone();
            let own = state.pacer.scope_snapshot(now, &scope).filter(|_| state.pacer.fleet(now).is_none())?;
            let account = state.pacer.snapshot(now).account.concurrency.current_limit;
            Some([(account, None), (own.concurrency.current_limit, Some(scope))])
        });
        let full = places.into_iter().flatten().find(|(most, of)| Self::places(driver, of.as_ref()) >= *most);
        full.map_or(Ok(()), |(places, _)| Err(Error::OwnPlace { places }))
    }

    /// How many places among the calls in flight the attempts that this task is in have, in that scope or in all.
    fn places(driver: &Arc<Driver>, scope: Option<&ScopeId>) -> u32 {
        let (mut places, mut next) = (0, Self::current(driver));
        while let Some(frame) = next {
            let is_there = scope.is_none_or(|scope| frame.request().scope == *scope);
            let sender = frame.sender.lock().unwrap_or_else(PoisonError::into_inner);
            places += u32::from(is_there && matches!(*sender, Sender::Operation(_)));
            next = frame.outer.as_ref().and_then(|outer| Arc::clone(outer).of(driver));
        }
        places
    }

    /// The innermost attempt of that limiter.
    fn of(self: Arc<Self>, driver: &Arc<Driver>) -> Option<Arc<Self>> {
        let mut frame = self;
        while !Arc::ptr_eq(&frame.driver, driver) {
            frame = Arc::clone(frame.outer.as_ref()?);
        }
        Some(frame)
    }

    /// The attempt's permit, if it is unused and for that scope. One for another scope is returned: holding it while
    /// waiting for a second could deadlock.
    pub(crate) fn take_permit(&self, scope: &ScopeId) -> Option<Permit> {
        let own = &self.request().scope;
        match self.replace(Sender::Inside(None)) {
            Sender::Operation(permit) if own == scope => Some(permit),
            Sender::Operation(permit) => {
                permit.withdraw();
                None
            }
            inside @ Sender::Inside(_) => {
                self.replace(inside);
                None
            }
        }
    }

    /// What the head of its answer announces.
    pub(crate) fn observe_limits(&self, limits: &[LimitReport]) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Sender::Operation(permit) = &*sender {
            let (driver, ticket) = permit.call();
            // What this wakes may come back here: without the lock.
            drop(sender);
            driver.observe(ticket, limits);
        }
    }

    /// The request, counted as another send of this attempt's item.
    pub(crate) fn count_on(&self, request: Request) -> Request {
        let Request { item, attempts, deferrals, unsent, .. } = *self.request();
        Request { item: request.item.or(item), attempts, deferrals, unsent, ..request }
    }

    pub(crate) fn report(&self, report: Report) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = match &*sender {
            Sender::Inside(Some(known)) if known.action != NextAction::Done => None,
            _ => Some(std::mem::replace(&mut *sender, Sender::Inside(Some(report)))),
        };
        drop(sender);
        // Perhaps with a permit, whose end wakes other callers: without the lock.
        drop(replaced);
    }

    /// The retries that are left beside this attempt.
    pub(crate) fn retries_left(&self) -> u32 {
        self.driver.retries_left(self.request())
    }

    /// The request of its call.
    pub(crate) fn request(&self) -> &Request {
        self.request.get_or_init(|| match &*self.sender.lock().unwrap_or_else(PoisonError::into_inner) {
            Sender::Operation(permit) => permit.request(),
            Sender::Inside(_) => unreachable!("it is asked for before its permit is taken"),
        })
    }

    /// The sender, at the end of the attempt.
    pub(crate) fn finish(&self) -> Sender {
        self.replace(Sender::Inside(None))
    }

    fn replace(&self, next: Sender) -> Sender {
        std::mem::replace(&mut self.sender.lock().unwrap_or_else(PoisonError::into_inner), next)
    }
}
