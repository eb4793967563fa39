//! What becomes of a request that asks for a permit; a queued one as a future, and a thread that blocks on one.

use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use paceline_core::{Instant, Ticket, WaitReason};
use tokio::sync::oneshot;

use super::notifications::Answer;
use super::permit::{Permit, Within};
use super::{Driver, State};
use crate::error::Error;
use crate::sync::{self, Condvar, Mutex};

/// The immediate result of an acquisition.
pub(crate) enum Admission {
    Granted(Permit),
    Deferred { until: Instant, reason: WaitReason },
    Waiting(Waiting),
}

impl From<Within> for Admission {
    fn from(within: Within) -> Self {
        match within {
            Within::Granted(permit) => Self::Granted(permit),
            Within::Deferred { until, reason } => Self::Deferred { until, reason },
        }
    }
}

impl Admission {
    /// The request that waits, if it does.
    pub(crate) const fn waiting(&self) -> Option<&Waiting> {
        if let Self::Waiting(waiting) = self { Some(waiting) } else { None }
    }

    /// The decision, when there is one.
    pub(crate) async fn decided(self) -> Answer {
        match self {
            Self::Granted(permit) => Ok(Within::Granted(permit)),
            Self::Deferred { until, reason } => Ok(Within::Deferred { until, reason }),
            Self::Waiting(place) => place.await,
        }
    }
}

/// A queued request; dropping it cancels the request, or withdraws the permit when it was granted meanwhile.
pub(crate) struct Waiting {
    driver: Arc<Driver>,
    ticket: Ticket,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

impl Waiting {
    pub(super) const fn new(driver: Arc<Driver>, ticket: Ticket, answer: oneshot::Receiver<Answer>) -> Self {
        Self { driver, ticket, answer, answered: false }
    }

    /// The driver and its name for this request.
    pub(crate) const fn request(&self) -> (&Arc<Driver>, Ticket) {
        (&self.driver, self.ticket)
    }
}

impl Future for Waiting {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        loop {
            let answer = std::task::ready!(Pin::new(&mut self.answer).poll(context));
            self.answered = true;
            let permit = match answer.expect("a waiter is answered before it is dropped") {
                Ok(Within::Granted(permit)) => permit,
                other => return Poll::Ready(other),
            };
            // The call leaves now, and not when it was granted.
            match self.driver.take(permit)? {
                Admission::Waiting(again) => *self = again,
                Admission::Granted(permit) => return Poll::Ready(Ok(Within::Granted(permit))),
                Admission::Deferred { until, reason } => return Poll::Ready(Ok(Within::Deferred { until, reason })),
            }
        }
    }
}

impl Driver {
    /// The caller of a permit takes it, perhaps long after it was granted. Where others have left in its place, it waits again.
    fn take(self: &Arc<Self>, permit: Permit) -> Result<Admission, Error> {
        let (mut state, now) = self.enter();
        let again = state.pacer.take(now, permit.ticket());
        self.release(state, now);
        match again {
            None => Ok(Admission::Granted(permit)),
            Some(request) => {
                permit.taken_back();
                self.enqueue(request)
            }
        }
    }
}

impl State {
    /// The caller takes its permit when it is granted.
    pub(super) fn take_at_once(&mut self, now: Instant, ticket: Ticket) {
        let again = self.pacer.take(now, ticket);
        debug_assert_eq!(again, None, "what is granted now has room");
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.driver.cancel(self.ticket);
        sync::others_may_run();
        // Closed first, so that a permit on its way returns to its sender instead of getting lost here.
        self.answer.close();
        sync::others_may_run();
        if let Ok(Ok(Within::Granted(permit))) = self.answer.try_recv() {
            permit.withdraw();
        }
        sync::others_may_run();
    }
}

/// Blocks the thread on a future. Needs no runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // What is over at once needs no sleeper.
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    let sleeper = Arc::new(Sleeper { woken: Mutex::new(false), bell: Condvar::new() });
    let waker = Waker::from(Arc::clone(&sleeper));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        sleeper.sleep();
    }
}

/// Parks a thread until it is woken; a wake-up that came before counts.
struct Sleeper {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Sleeper {
    fn sleep(&self) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let asleep = |woken: &mut bool| !*woken;
        *self.bell.wait_while(woken, asleep).unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_one();
    }
}
