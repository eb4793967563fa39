//! Who keeps the time: calls the pacer when it asked to be called.
//!
//! A thread does, for every caller, wherever it waits: in one Tokio runtime or another, in a runtime without timers, under
//! any other executor, or as a blocked thread. It begins when a caller waits for something that becomes due, and ends a
//! while after nothing does. So no caller depends on another: a runtime may end or be blocked, a future may be kept without
//! being polled or be forgotten, and the rest goes on. Besides, a thread is woken within some 0.1 ms, a Tokio timer only on
//! the next full millisecond.
//!
//! The one exception is a test that pauses Tokio's clock ([`Clock::is_virtual`](crate::Clock)). Only Tokio's own timers move
//! that clock on, so there a task in the caller's runtime keeps the time. When its runtime ends, the thread takes over.
//!
//! What holds whenever the lock is free: if a caller waits and the pacer wants to be called at some instant, then the
//! thread or the task sleeps no longer than that ([`LEAST_PAUSE`] aside), or it is awake and about to look.
//! [`State::set_timers`] restores this at the end of each change under the lock, and `proof.rs` checks it in every order of
//! events that a model checker tries.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use paceline_core::Instant;

use super::news::News;
use super::{Driver, State};
use crate::sync;

/// The timer never sleeps longer than this in one go: timers stand still while the machine is suspended, so a wait that
/// ended meanwhile is noticed at most this late.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Two looks of the thread are no closer: what becomes due between leaves together. It more than halves the cost of 2,000
/// calls a second, and the pacer makes up for so little lateness: for 5 ms, of which the machine needs some itself.
const LEAST_PAUSE: Duration = Duration::from_millis(3);

/// The thread ends when nothing was to be waited for during this time, so that it is started at most once a second.
const LINGER: Duration = Duration::from_secs(1);

/// Who keeps the time at present.
#[derive(Default)]
pub(super) struct Timers {
    pub(super) thread: Timer,
    pub(super) task: Timer,
    /// When the thread slept to the end last.
    pub(super) looked: Instant,
}

impl Timers {
    /// When the thread looks at what is due then.
    pub(super) fn paced(&self, due: Instant) -> Instant {
        due.max(self.looked + LEAST_PAUSE)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Timer {
    #[default]
    Off,
    /// Runs, and looks at what is due before it sleeps.
    Awake,
    /// Looks at that instant, or when its alarm rings.
    Asleep(Instant),
}

impl Timer {
    /// Has it look at `due` at the latest. Says whether its alarm must ring for that.
    fn wake_for(&mut self, due: Instant) -> bool {
        let late = matches!(*self, Self::Asleep(until) if due < until);
        if late {
            *self = Self::Awake;
        }
        late
    }
}

impl State {
    /// Has the time kept for a caller that begins to wait.
    ///
    /// # Errors
    /// There must be a thread and there is none.
    pub(super) fn begin_timer(&mut self, driver: &Arc<Driver>, news: &mut News) -> io::Result<()> {
        if self.timers.task == Timer::Off && driver.clock.is_virtual() {
            self.timers.task = Timer::Awake;
            news.start_task = true;
        }
        self.set_timers(driver, news)
    }

    /// Has the thread and the task look no later than the pacer asks for.
    ///
    /// # Errors
    /// As [`begin_timer`](Self::begin_timer).
    pub(super) fn set_timers(&mut self, driver: &Arc<Driver>, news: &mut News) -> io::Result<()> {
        let Some(due) = self.due() else { return Ok(()) };
        news.ring_task |= self.timers.task.wake_for(due);
        let paced = self.timers.paced(due);
        news.ring_thread |= self.timers.thread.wake_for(paced);
        if self.timers.thread == Timer::Off && self.timers.task == Timer::Off {
            let driver = Arc::clone(driver);
            sync::spawn("paceline-timer", move || driver.keep_time())?;
            self.timers.thread = Timer::Awake;
        }
        Ok(())
    }

    /// When the pacer is to be called for those who wait. When none does it catches up with the time at its next input.
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
        let ((), news) = self.change_silently(|state, now, _| state.pacer.handle_timeout(now));
        drop(news.deliver(self));
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
        let ((), news) = self.0.change_silently(|state, _, _| state.timers.task = Timer::Off);
        drop(news.deliver(&self.0));
    }
}
