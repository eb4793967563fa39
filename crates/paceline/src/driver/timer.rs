//! The timer: calls the pacer when its timeout is due.
//!
//! It is a thread that serves every caller: in one Tokio runtime or another, in a runtime without timers, under
//! any other executor, or as a blocked thread. It starts when a caller waits for a known time, and ends a
//! while after none does. So no caller depends on another: a runtime may end or be blocked, a future may be kept without
//! being polled or be leaked, and the others continue. Besides, a thread is woken within some 0.1 ms, a Tokio timer only on
//! the next full millisecond.
//!
//! The one exception is a test that pauses Tokio's clock ([`Clock::is_virtual`](crate::Clock)). Only Tokio's own timers move
//! that clock on, so there a task in the caller's runtime keeps the time. When its runtime ends, the thread takes over.
//!
//! The invariant whenever the lock is free: if a caller waits and the pacer has a timeout, then the thread or the task sleeps
//! no longer than that ([`LEAST_PAUSE`] aside), or it is awake and about to check.
//! [`State::set_timers`] restores this at the end of each change under the lock, and `proof.rs` checks it in every order of
//! events that a model checker tries.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use paceline_core::Instant;

use super::notifications::Notifications;
use super::{Driver, State};
use crate::clock;
use crate::sync;

/// The timer never sleeps longer than this in one go: timers stand still while the machine is suspended, so a wait that
/// ended meanwhile is noticed at most this late.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// The least time between two checks of the thread: requests that become due between leave together, at a third of the checks
/// that 2,000 calls a second would need. The pacer makes up for so little lateness, which a window that is full adds to that of
/// the window before: together they leave the machine more than half of the 5 ms that a call may be late.
const LEAST_PAUSE: Duration = Duration::from_micros(1_500);

/// The thread ends after so long without a timeout, so that it is started at most once a second.
const LINGER: Duration = Duration::from_secs(1);

/// The state of both timers.
#[derive(Default)]
pub(super) struct Timers {
    pub(super) thread: Timer,
    pub(super) task: Timer,
    /// When the thread slept to the end last.
    pub(super) looked: Instant,
}

impl Timers {
    /// When the thread checks what is due then.
    pub(super) fn paced(&self, due: Instant) -> Instant {
        due.max(self.looked + LEAST_PAUSE)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Timer {
    #[default]
    Off,
    /// Runs, and checks what is due before it sleeps.
    Awake,
    /// Checks at that instant, or when its alarm rings.
    Asleep(Instant),
}

impl Timer {
    /// Has it check at `due` at the latest. Returns whether its alarm must ring for that.
    fn wake_for(&mut self, due: Instant) -> bool {
        let late = matches!(*self, Self::Asleep(until) if due < until);
        if late {
            *self = Self::Awake;
        }
        late
    }
}

impl State {
    /// Starts the timer for a caller that begins to wait.
    ///
    /// # Errors
    /// The system starts no thread, and one is needed.
    pub(super) fn begin_timer(&mut self, driver: &Arc<Driver>, notifications: &mut Notifications) -> io::Result<()> {
        if self.timers.task == Timer::Off && clock::is_virtual() {
            // Perhaps since a moment ago.
            driver.clock.notice_suspension();
            self.timers.task = Timer::Awake;
            notifications.start_task = true;
        }
        self.set_timers(driver, notifications)
    }

    /// Has the thread and the task check no later than the pacer's timeout.
    ///
    /// # Errors
    /// As [`begin_timer`](Self::begin_timer).
    #[inline]
    pub(super) fn set_timers(&mut self, driver: &Arc<Driver>, notifications: &mut Notifications) -> io::Result<()> {
        self.due().map_or(Ok(()), |due| self.set_timers_for(due, driver, notifications))
    }

    fn set_timers_for(
        &mut self,
        due: Instant,
        driver: &Arc<Driver>,
        notifications: &mut Notifications,
    ) -> io::Result<()> {
        notifications.ring_task |= self.timers.task.wake_for(due);
        let paced = self.timers.paced(due);
        notifications.ring_thread |= self.timers.thread.wake_for(paced);
        if self.timers.thread == Timer::Off && self.timers.task == Timer::Off {
            let driver = Arc::clone(driver);
            sync::spawn("paceline-timer", move || driver.keep_time())?;
            self.timers.thread = Timer::Awake;
        }
        Ok(())
    }

    /// When the pacer must be called for waiting callers. Without any it catches up with the time at its next input.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pacer.poll_timeout().filter(|_| !self.waiters.is_empty())
    }
}

impl Driver {
    /// The thread's work.
    fn keep_time(self: &Arc<Self>) {
        let _lost = LostThread(self);
        let mut idle = None;
        loop {
            self.tick();
            let (mut state, now) = self.lock();
            let until = match state.due() {
                Some(due) => {
                    idle = None;
                    state.timers.paced(due).min(now + LONGEST_SLEEP)
                }
                None => *idle.get_or_insert(now + LINGER),
            };
            if until > now {
                state.timers.thread = Timer::Asleep(until);
                let woken = self.alarm.wait_timeout(state, until - now);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                state.timers.thread = Timer::Awake;
                if self.clock.now() >= until {
                    state.timers.looked = until;
                }
            } else if idle.is_some() {
                state.timers.thread = Timer::Off;
                return;
            }
        }
    }

    pub(super) fn start_task(self: &Arc<Self>) {
        // Made here, so that it is dropped also when the runtime ends before the task runs.
        let lost = LostTask(Arc::clone(self));
        tokio::spawn(async move { lost.0.keep_virtual_time().await });
    }

    /// The task's work.
    async fn keep_virtual_time(self: &Arc<Self>) {
        while let Some(pause) = self.pause_of_task() {
            drop(tokio::time::timeout(pause, self.task_alarm.notified()).await);
        }
    }

    /// Looks, and says how long the task may sleep; `None`: it may end.
    fn pause_of_task(self: &Arc<Self>) -> Option<Duration> {
        self.tick();
        let (mut state, now) = self.lock();
        if state.waiters.is_empty() {
            state.timers.task = Timer::Off;
            return None;
        }
        let until = state.due().unwrap_or(Instant::MAX).min(now + LONGEST_SLEEP);
        state.timers.task = Timer::Asleep(until);
        Some(until - now)
    }

    /// One look at the clock. A waker that panics has said so by then, and must not end the timer.
    fn tick(self: &Arc<Self>) {
        self.clock.notice_suspension();
        let mut notifications = Notifications::default();
        self.change_locked(&mut notifications, |state, now, _| state.pacer.handle_timeout(now));
        drop(notifications.deliver(self));
    }
}

/// A panic ends the thread: the next input starts another.
struct LostThread<'a>(&'a Driver);

impl Drop for LostThread<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().0.timers.thread = Timer::Off;
        }
    }
}

/// A runtime that ends takes the task with it: the thread takes over.
pub(super) struct LostTask(pub(super) Arc<Driver>);

impl Drop for LostTask {
    fn drop(&mut self) {
        let mut notifications = Notifications::default();
        self.0.change_locked(&mut notifications, |state, _, _| state.timers.task = Timer::Off);
        drop(notifications.deliver(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Concurrency, Event, Limits, Pace, Pacer, PacerConfig, Quota, Request};

    use super::*;

    /// When ten thousand leave that wait at 5,000 a second, by a thread that looks whenever something is due or as it does.
    fn leave(burst: u64, paced: bool) -> Vec<Instant> {
        let config = PacerConfig {
            limits: Limits { quotas: vec![Quota::per_second(5_000)], burst: Some(burst) },
            concurrency: Concurrency::Fixed { max: u32::MAX },
            pace: Pace::Fixed,
            ..PacerConfig::default()
        };
        let (mut now, mut timers) = (Instant::ZERO, Timers::default());
        let mut pacer = Pacer::new(config, 1, now).expect("a configuration that can be");
        let scope = pacer.scope("chat");
        (0..10_000).for_each(|_| drop(pacer.enqueue(now, Request::from(&scope))));
        let mut left = Vec::new();
        while left.len() < 10_000 {
            while let Some(event) = pacer.poll_event() {
                if let Event::Granted { ticket, .. } = event {
                    assert_eq!(pacer.take(now, ticket), None);
                    left.push(now);
                }
            }
            if let Some(due) = pacer.poll_timeout() {
                now = if paced { timers.paced(due) } else { due };
                timers.looked = now;
                pacer.handle_timeout(now);
            }
        }
        left
    }

    #[test]
    fn calls_that_leave_together_leave_the_machine_half_of_what_they_may_be_late() {
        for burst in [50, 1] {
            let late =
                leave(burst, true).into_iter().zip(leave(burst, false)).map(|(at, due)| at.saturating_since(due));
            let latest = late.max().expect("ten thousand");
            assert!(latest <= Duration::from_micros(2_500), "{latest:?} of 5 ms, with a burst of {burst}");
        }
    }
}
