//! What counts the units of one quota, whatever its shape.

use alloc::vec::Vec;

use super::bucket::TokenBucket;
use super::fixed::FixedWindow;
use super::sliding::SlidingWindow;
use crate::admit::{Admit, WaitCause};
use crate::config::{Quota, QuotaShape};
use crate::state::TakenState;
use crate::time::Instant;

/// The state behind one quota.
#[derive(Clone, Debug)]
pub(crate) enum Counter {
    Sliding(SlidingWindow),
    Fixed(FixedWindow),
    Bucket(TokenBucket),
}

impl Counter {
    pub(super) fn new(quota: &Quota) -> Self {
        match quota.shape {
            QuotaShape::Sliding => Self::Sliding(SlidingWindow::new(quota.limit, quota.window)),
            QuotaShape::Fixed => Self::Fixed(FixedWindow::new(quota.limit, quota.window)),
            QuotaShape::Bucket { burst } => Self::Bucket(TokenBucket::new(quota.limit, quota.window, burst)),
        }
    }

    pub(super) const fn is_bucket(&self) -> bool {
        matches!(self, Self::Bucket(_))
    }

    /// The earliest instant, from `now` on, at which `units` fit.
    #[inline(always)]
    pub(crate) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        if units == 0 {
            return now;
        }
        // Most limits are of this kind, which alone is tested faster than all of them.
        if let Self::Sliding(window) = self {
            return window.fits_at(now, units);
        }
        match self {
            Self::Sliding(window) => window.fits_at(now, units),
            Self::Fixed(window) => window.fits_at(now, units),
            Self::Bucket(bucket) => bucket.fits_at(now, units),
        }
    }

    /// When `units` may leave, and what they wait for: the limit, or the part of it that this pacer may use.
    #[inline(always)]
    pub(super) fn admit(&self, now: Instant, quota: &Quota, units: u64) -> Admit {
        let at = self.fits_at(now, units);
        if at <= now { Admit::Now } else { self.waits(now, at, quota, units) }
    }

    #[cold]
    fn waits(&self, now: Instant, at: Instant, quota: &Quota, units: u64) -> Admit {
        let cause =
            if self.fits_in(quota, now, units) > now { WaitCause::quota(quota) } else { WaitCause::share(quota) };
        if at == Instant::MAX { Admit::OnRelease { cause } } else { Admit::At { at, cause } }
    }

    /// The earliest instant at which `units` would fit if all of the limit were there for this pacer.
    pub(crate) fn fits_in(&self, quota: &Quota, now: Instant, units: u64) -> Instant {
        match self {
            Self::Sliding(window) if units > 0 => window.fits_under(quota.limit, now, units),
            _ => self.fits_at(now, units),
        }
    }

    /// Units counted now.
    pub(crate) fn used(&self, now: Instant) -> u64 {
        match self {
            Self::Sliding(window) => window.used(now),
            Self::Fixed(window) => window.current(now).1,
            Self::Bucket(bucket) => bucket.burst().saturating_sub(bucket.units(now)),
        }
    }

    /// Units that may leave now.
    pub(super) fn left(&self, now: Instant) -> u64 {
        match self {
            Self::Sliding(window) => window.limit.saturating_sub(window.used(now)),
            Self::Fixed(window) => window.limit.saturating_sub(window.current(now).1),
            Self::Bucket(bucket) => bucket.units(now),
        }
    }

    /// Until when units count as those that leave now: to the end of a slot, or of a fixed window that has begun.
    pub(super) fn slot_end(&self, now: Instant) -> Instant {
        match self {
            Self::Sliding(window) => window.slot_end(now),
            Self::Fixed(window) => window.end(now),
            Self::Bucket(_) => Instant::MAX,
        }
    }

    /// The units that still count, with their ages. A window without a list of times gives one entry, from which it continues.
    pub(crate) fn taken(&self, now: Instant) -> Vec<TakenState> {
        let (ago, units) = match self {
            Self::Sliding(window) => return window.taken(now),
            Self::Fixed(window) => match window.current(now) {
                (Some(start), units) => (now - start, units),
                (None, _) => return Vec::new(),
            },
            Self::Bucket(bucket) => bucket.missing(now),
        };
        if units == 0 { Vec::new() } else { alloc::vec![TakenState { ago, units }] }
    }

    #[inline(always)]
    pub(super) fn take(&mut self, now: Instant, units: u64) {
        if units == 0 {
            return;
        }
        if let Self::Sliding(window) = self {
            return window.take(now, units);
        }
        match self {
            Self::Sliding(window) => window.take(now, units),
            Self::Fixed(window) => window.take(now, units),
            Self::Bucket(bucket) => bucket.take(now, units),
        }
    }

    pub(super) fn refund(&mut self, taken: Instant, units: u64) {
        match self {
            Self::Sliding(window) => window.refund(taken, units),
            Self::Fixed(window) => window.refund(taken, units),
            Self::Bucket(bucket) => bucket.refund(units),
        }
    }

    /// Adds the units of another pacer under the same quota. A bucket is handed on: of two levels the lower one is the later.
    pub(super) fn join(&mut self, now: Instant, other: &Self) {
        match (self, other) {
            (Self::Sliding(window), Self::Sliding(other)) => window.join(now, other),
            (Self::Bucket(bucket), Self::Bucket(other)) => bucket.join(other),
            (counter, other) => counter.take(now, other.used(now)),
        }
    }

    /// Continues from another counter of the same dimension. Where that has no list of times, its units count as sent now: too
    /// late, so that the new limit holds.
    pub(super) fn inherit(&mut self, now: Instant, known: &Self) {
        match (self, known) {
            (Self::Sliding(next), Self::Sliding(known)) => next.inherit(now, known),
            (Self::Fixed(next), Self::Fixed(known)) => next.inherit(now, known),
            (Self::Bucket(next), Self::Bucket(known)) => next.inherit(now, known),
            (Self::Bucket(next), known) => next.take(now, known.used(now).min(next.burst())),
            (Self::Sliding(next), known) => next.take(now, known.used(now)),
            (Self::Fixed(next), known) => next.take(now, known.used(now).min(next.limit)),
        }
    }
}
