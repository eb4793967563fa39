//! A lease of the pacer, which callers count down without the lock.
//!
//! The invariant: while a lease is out, nothing else is asked of the pacer. [`Driver::lock`] ends it before it gives anything the
//! state, so the calls that have left are counted before the next decision, of any caller.

#[cfg(test)]
mod proof;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use paceline_core::{Instant, Lease, Request};

use super::{Driver, State};
use crate::error::{Error, NotNow};
use crate::sync::{AtomicI64, AtomicU64};

/// What is left of the lease of one scope.
#[derive(Default)]
struct Countdown {
    /// Less than 1: no more calls.
    left: OwnLine<AtomicI64>,
    /// Its end, in nanoseconds.
    until: AtomicU64,
}

/// In a cache line of its own, with the one that processors fetch beside it: what every call writes would else take along, from
/// one processor to the next, what every call reads.
#[derive(Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

impl Countdown {
    fn take(&self, now: Instant) -> bool {
        now.as_nanos() < self.until.load(Ordering::Acquire) && self.left.0.fetch_sub(1, Ordering::AcqRel) > 0
    }

    /// The first call has left already.
    fn begin(&self, lease: &Lease) {
        self.left.0.store(i64::try_from(lease.calls).unwrap_or(i64::MAX) - 1, Ordering::Release);
        self.until.store(lease.until.as_nanos(), Ordering::Release);
    }

    /// Returns how many of them have left.
    fn end(&self, lease: &Lease) -> u64 {
        self.until.store(0, Ordering::Release);
        let left = self.left.0.swap(0, Ordering::AcqRel);
        lease.calls - u64::try_from(left).unwrap_or(0)
    }
}

/// A lease that is out.
pub(super) struct Leased {
    request: Request,
    lease: Lease,
    countdown: Arc<Countdown>,
}

impl State {
    #[inline(always)]
    pub(super) const fn is_leased(&self) -> bool {
        self.leased.is_some()
    }

    /// Ends the lease that is out. Returns what has left of it, to be counted as of a time that is read afterwards.
    pub(super) fn end_lease(&mut self) -> Option<(Leased, u64)> {
        let leased = self.leased.take()?;
        let calls = leased.countdown.end(&leased.lease);
        Some((leased, calls))
    }

    pub(super) fn count_lease(&mut self, now: Instant, leased: &Leased, calls: u64) {
        self.pacer.end_lease(now, &leased.request, &leased.lease, calls);
    }
}

/// Calls of one scope and cost whose outcomes are not reported, from [`Limiter::unreported`](crate::Limiter::unreported): a
/// permit is no more than the answer that the call may be made.
///
/// The limits of the account and of the tier hold for them as for all others, and so do holds, stops and closed gates; callers
/// that wait go first. They are not in flight, and nothing is learnt from them.
///
/// A permit costs two atomic operations and a reading of the clock where no caller waits and the pace does not follow from each
/// call: under [`Pace::Fixed`](crate::Pace::Fixed), [`Pace::None`](crate::Pace::None), and [`Pace::Auto`](crate::Pace::Auto) as
/// long as configured limits of a minute or less are believed. The pacer promises what the limits have left, for at most a
/// millisecond, and counts what became of it as soon as anything else is asked of it. Else each permit costs as much as
/// [`try_acquire`](crate::Limiter::try_acquire). Clones are cheap and share everything.
///
/// ```
/// use paceline::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(1_000).burst(2))?;
/// let lookups = limiter.unreported("lookups");
/// assert!(lookups.try_acquire().is_ok());
/// assert_eq!(limiter.snapshot().account.totals.sends, 1);
/// # Ok::<(), paceline::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Unreported {
    driver: Arc<Driver>,
    request: Request,
    countdown: Arc<Countdown>,
}

impl Unreported {
    pub(crate) fn new(driver: Arc<Driver>, request: Request) -> Self {
        Self { driver, request, countdown: Arc::default() }
    }

    /// Whether the call may be made at once; if not, nothing has changed.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`](crate::Limiter::try_acquire).
    pub fn try_acquire(&self) -> Result<(), NotNow> {
        if self.countdown.take(self.driver.clock.now()) || self.driver.begin_lease(self) {
            return Ok(());
        }
        self.driver.try_enqueue(self.request.clone()).map(drop)
    }

    /// Waits until the call may be made, as long as it takes and in the order of arrival.
    ///
    /// Dropping the future at any point cancels the request, or returns its permit when it was granted meanwhile.
    ///
    /// # Errors
    /// As [`Limiter::acquire`](crate::Limiter::acquire).
    pub async fn acquire(&self) -> Result<(), Error> {
        if self.countdown.take(self.driver.clock.now()) || self.driver.begin_lease(self) {
            return Ok(());
        }
        self.driver.enqueue(self.request.clone())?.decided().await.map(drop)
    }
}

impl std::fmt::Debug for Unreported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unreported").field("scope", &self.request.scope).finish_non_exhaustive()
    }
}

impl Driver {
    /// Has the pacer promise calls to these callers, of which the first one leaves. Returns whether it did.
    fn begin_lease(&self, callers: &Unreported) -> bool {
        let (mut state, now) = self.lock();
        let lease = if state.closed { None } else { state.pacer.lease(now, &callers.request) };
        let Some(lease) = lease else { return false };
        callers.countdown.begin(&lease);
        let (request, countdown) = (callers.request.clone(), Arc::clone(&callers.countdown));
        state.leased = Some(Leased { request, lease, countdown });
        true
    }
}
