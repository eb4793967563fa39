//! Long waits of an account or a scope: held until a quota reopens, or stopped until a person acts.

use alloc::sync::Arc;
use core::time::Duration;

use crate::admit::{Admit, PauseCause, WaitCause};
use crate::retry::unknown_quota;
use crate::state::PauseState;
use crate::time::Instant;

/// A call sent this soon after a wait has honoured it.
const HONOURED: Duration = Duration::from_secs(1);

/// Whether an account or a scope is held or stopped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    until: Option<(Instant, PauseCause)>,
    stopped: Option<Arc<str>>,
    /// How often in a row the end of a quota had to be guessed.
    guesses: u32,
    /// When the last wait for a limit of a day or longer was over.
    long_wait_over: Option<Instant>,
}

impl Hold {
    #[inline(always)]
    pub(crate) fn admit(&self, now: Instant) -> Admit {
        match (&self.stopped, self.until) {
            (Some(reason), _) => Admit::OnRelease { cause: WaitCause::Stopped { reason: reason.clone() } },
            (None, Some((until, cause))) => Admit::at(until, now, || WaitCause::Held { cause }),
            (None, None) => Admit::Now,
        }
    }

    /// The state that another pacer can restore.
    pub(crate) fn export(&self, now: Instant) -> Option<PauseState> {
        let (until, cause) = self.until.filter(|(until, _)| *until > now)?;
        Some(PauseState { left: until - now, cause })
    }

    /// Holds until then; the latest end wins.
    pub(crate) fn hold(&mut self, until: Instant, cause: PauseCause) -> Instant {
        let (until, cause) = self.until.filter(|(known, _)| *known >= until).unwrap_or((until, cause));
        self.until = Some((until, cause));
        until
    }

    /// Whether such a hold is active, which ends about then. Refusals of calls that were in flight together ask for the same
    /// wait, each from its own arrival: what ends later by more than a tenth of what is left is another hold.
    pub(crate) fn is_held_about_until(&self, now: Instant, until: Instant, cause: PauseCause) -> bool {
        self.until.is_some_and(|(known, of)| of == cause && known > now && until <= known + (known - now) / 10)
    }

    /// Guesses the wait for a quota whose end is not known.
    pub(crate) fn guess(&mut self) -> Duration {
        let wait = unknown_quota(self.guesses);
        self.guesses = self.guesses.saturating_add(1);
        wait
    }

    /// A limit of a day or longer asked for a wait. Returns whether it refused a call sent right after the last such wait: then
    /// the waits are for another counter, and the end of this one is not known.
    pub(crate) fn is_in_vain(&mut self, now: Instant, sent: Instant, wait: Duration) -> bool {
        let over = self.long_wait_over.replace(now + wait);
        over.is_some_and(|over| (over..=over + HONOURED).contains(&sent))
    }

    /// A call succeeded: the next guess starts from the beginning.
    pub(crate) fn passed(&mut self) {
        self.guesses = 0;
        self.long_wait_over = None;
    }

    pub(crate) fn stop(&mut self, reason: Arc<str>) {
        self.stopped.get_or_insert(reason);
    }

    /// Ends a stop; a hold goes on.
    pub(crate) fn end_stop(&mut self) {
        self.stopped = None;
    }

    pub(crate) fn resume(&mut self) {
        *self = Self::default();
    }

    /// Ends a hold that is over. Returns whether it did.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let over = self.until.is_some_and(|(until, _)| until <= now);
        if over {
            self.until = None;
        }
        over
    }

    /// Whether no hold is active and no state of earlier holds is left.
    pub(crate) const fn is_clear(&self) -> bool {
        !self.is_active() && self.guesses == 0 && self.long_wait_over.is_none()
    }

    pub(crate) const fn is_active(&self) -> bool {
        self.until.is_some() || self.stopped.is_some()
    }

    pub(crate) const fn until(&self) -> Option<(Instant, PauseCause)> {
        self.until
    }

    pub(crate) const fn stopped(&self) -> Option<&Arc<str>> {
        self.stopped.as_ref()
    }
}

/// A clock for deadlines that stands still while its scope is held or stopped.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningClock {
    stood: Duration,
    since: Option<Instant>,
}

impl RunningClock {
    /// Stops the clock or lets it run.
    #[inline]
    pub(crate) fn set_standing(&mut self, now: Instant, standing: bool) {
        match (self.since, standing) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.stood += now - since;
                self.since = None;
            }
            _ => {}
        }
    }

    /// A deadline on the running clock.
    pub(crate) fn read(&self, now: Instant, deadline: Instant) -> Instant {
        deadline.saturating_sub(self.stood(now))
    }

    /// The deadline that [`RunningClock::read`] was given, later by the time that the clock has stood still since.
    pub(crate) fn deadline(&self, now: Instant, reading: Instant) -> Instant {
        reading + self.stood(now)
    }

    pub(crate) const fn is_standing(&self) -> bool {
        self.since.is_some()
    }

    fn stood(&self, now: Instant) -> Duration {
        self.stood + self.since.map_or(Duration::ZERO, |since| now - since)
    }
}
