//! Changes of the pacer under the lock, and what follows from each.
//!
//! A call that leaves, and one that ends, are changed step by step: as an action of [`Driver::change`] a request or an outcome
//! would be moved several times, which takes as long as a rule.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use paceline_core::Instant;

use super::notifications::Notifications;
use super::{Driver, State};
use crate::sync::MutexGuard;

impl State {
    /// Whether nothing follows from a change: no event, no word to other processes, no time to be kept.
    #[inline(always)]
    fn is_silent(&self) -> bool {
        !self.pacer.has_output() && self.due().is_none()
    }
}

impl Driver {
    /// Runs an action under the lock, and delivers its notifications once the lock is released.
    #[inline(always)]
    pub(super) fn change<T>(self: &Arc<Self>, action: impl FnOnce(&mut State, Instant, &mut Notifications) -> T) -> T {
        let mut notifications = Notifications::default();
        let result = self.change_locked(&mut notifications, action);
        self.deliver(notifications);
        result
    }

    /// Runs an action under the lock, without the delivery. The notifications outlive the lock also when the action panics.
    #[inline(always)]
    pub(super) fn change_locked<T>(
        self: &Arc<Self>,
        notifications: &mut Notifications,
        action: impl FnOnce(&mut State, Instant, &mut Notifications) -> T,
    ) -> T {
        let (mut state, now) = self.enter();
        let result = action(&mut state, now, notifications);
        self.conclude(state, now, notifications);
        result
    }

    /// Takes the lock for a change, which [`leave`](Self::leave) or [`conclude`](Self::conclude) ends.
    #[inline(always)]
    pub(super) fn enter(&self) -> (MutexGuard<'_, State>, Instant) {
        if self.is_divided.load(Ordering::Relaxed) { self.lock_awake() } else { self.lock() }
    }

    /// Takes the lock at a time in which all is that the machine has slept.
    #[inline(always)]
    fn lock_awake(&self) -> (MutexGuard<'_, State>, Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_leased() {
            self.end_lease(&mut state);
        }
        (state, self.clock.now_awake())
    }

    /// Releases the lock after a change. Returns what is to be delivered; mostly nothing follows.
    #[inline(always)]
    pub(super) fn leave(self: &Arc<Self>, state: MutexGuard<'_, State>, now: Instant) -> Option<Notifications> {
        if state.is_silent() { None } else { Some(self.what_follows(state, now)) }
    }

    /// [`leave`](Self::leave), with the delivery.
    #[inline(always)]
    pub(super) fn release(self: &Arc<Self>, state: MutexGuard<'_, State>, now: Instant) {
        if let Some(notifications) = self.leave(state, now) {
            self.deliver(notifications);
        }
    }

    #[cold]
    fn what_follows(self: &Arc<Self>, state: MutexGuard<'_, State>, now: Instant) -> Notifications {
        let mut notifications = Notifications::default();
        self.conclude(state, now, &mut notifications);
        notifications
    }

    /// Notes what follows from a change, and releases the lock.
    pub(super) fn conclude(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        now: Instant,
        notifications: &mut Notifications,
    ) {
        state.drain(self, now, None, notifications);
        notifications.short = state.pacer.take_short();
        notifications.news = state.pacer.has_news();
        // A thread that could not be started is tried again at the next input.
        drop(state.set_timers(self, notifications));
    }

    /// Delivers what there is to be delivered; to be called without the lock.
    pub(super) fn deliver(self: &Arc<Self>, notifications: Notifications) {
        if notifications.is_empty() {
            return;
        }
        // A second panic while a permit is dropped by unwinding would abort the program.
        if let Err(panic) = notifications.deliver(self)
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
