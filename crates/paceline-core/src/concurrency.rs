//! How many calls may be in flight: a fixed number, or one that adapts.
//!
//! AIMD (Chiu and Jain, 1989): successes raise the limit by one per round trip, congestion halves it, once per epoch. A
//! refusal belongs to a new epoch only if its call left after the last decrease, so fifty simultaneous refusals are
//! one decrease.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::config::{Concurrency, Pace, PacerConfig, tier_and_part};
use crate::divided::DividedLimit;
use crate::error::ConfigError;

/// So many limits after decreases are kept for snapshots.
const HISTORY: usize = 100;

/// Where the limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrowthPhase {
    /// At the floor.
    Floor,
    /// At the maximum.
    MaxConcurrency,
    /// Decreased, and no call sent since has succeeded yet.
    Backoff,
    /// Growing below the limit from before the last decrease.
    Recovering,
    /// As many calls in flight as the limit allows.
    Saturated,
    /// None of these: growing, with room left.
    Steady,
}

impl GrowthPhase {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Floor => "Floor",
            Self::MaxConcurrency => "MaxConcurrency",
            Self::Backoff => "Backoff",
            Self::Recovering => "Recovering",
            Self::Saturated => "Saturated",
            Self::Steady => "Steady",
        }
    }
}

/// Figures of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencySnapshot {
    /// Calls that may be in flight.
    pub current_limit: u32,
    /// Calls in flight.
    pub in_flight: u32,
    /// Calls that ever took a place.
    pub total_acquires: u64,
    /// Refusals seen, all of them.
    pub total_rate_limits: u64,
    /// Decreases: at most one per congestion epoch.
    pub total_decreases: u64,
    /// The most calls that were ever in flight.
    pub peak_active: u32,
    /// The last 100 limits after decreases, oldest first.
    pub limit_history: Vec<u32>,
    /// Where the limit stands.
    pub phase: GrowthPhase,
}

/// The calls in flight of one scope, and the limit on them.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    floor: u32,
    max: u32,
    limit: u32,
    /// What this process may use of the calls in flight of all; none where they are its own.
    share: Option<Box<Places>>,
    now: u32,
    /// Calls in flight of a priority below 0.
    background: u32,
    peak: u32,
    acquires: u64,
    refusals: u64,
    decreases: u32,
    /// Successes since the limit grew last; `limit` of them are one round trip.
    credit: u32,
    /// The newest call sent before the last decrease.
    mark: u64,
    /// The limit before the last decrease.
    before: u32,
    backing_off: bool,
    #[expect(clippy::box_collection, reason = "most scopes have none, and a scope is small")]
    history: Option<Box<VecDeque<u32>>>,
}

/// What a process has of the calls in flight of all.
#[derive(Clone, Debug)]
struct Places {
    most: u32,
    /// A call that waits gets more.
    grows: bool,
    of: DividedLimit,
}

impl InFlight {
    pub(crate) fn new(concurrency: Concurrency) -> Result<Self, ConfigError> {
        let (floor, start, max) = checked(concurrency)?;
        Ok(Self {
            floor,
            max,
            limit: start,
            share: None,
            now: 0,
            background: 0,
            peak: 0,
            acquires: 0,
            refusals: 0,
            decreases: 0,
            credit: 0,
            mark: 0,
            before: 0,
            backing_off: false,
            history: None,
        })
    }

    /// New bounds; the learnt limit is kept as far as they allow.
    pub(crate) fn reconfigure(&mut self, concurrency: Concurrency) -> Result<(), ConfigError> {
        let (floor, start, max) = checked(concurrency)?;
        let learnt = if self.floor == self.max { start } else { self.limit };
        (self.floor, self.max, self.limit) = (floor, max, learnt.clamp(floor, max));
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn admit(&self, ask: &Ask<'_>) -> Admit {
        match self.share.as_deref() {
            Some(share) if self.now >= share.most => Admit::OnRelease { cause: share.of.cause() },
            _ if self.now < self.limit => self.admit_under(self.limit(), ask),
            _ => Admit::OnRelease { cause: WaitCause::Concurrency },
        }
    }

    /// The same of a scope.
    #[inline(always)]
    pub(crate) fn admit_in_scope(&self, ask: &Ask<'_>) -> Admit {
        match self.admit(ask) {
            Admit::OnRelease { cause: WaitCause::Concurrency } => {
                Admit::OnRelease { cause: WaitCause::ScopeConcurrency { limit: self.limit, learnt: false } }
            }
            other => other,
        }
    }

    /// From now on at most so many calls of this process may be in flight of those of all, which may be fewer than are. Where
    /// that `grows`, a call that waits gets more.
    pub(crate) fn set_share(&mut self, units: u64, grows: bool, of: &DividedLimit) {
        let most = u32::try_from(units).unwrap_or(u32::MAX);
        match self.share.as_deref_mut() {
            Some(share) if share.of == *of => (share.most, share.grows) = (most, grows),
            _ => self.share = Some(Box::new(Places { most, grows, of: of.clone() })),
        }
    }

    /// Whether more calls might be in flight if its share of those of all were larger.
    pub(crate) fn lacks_share(&self) -> bool {
        self.share.as_deref().is_some_and(|share| self.now >= share.most && self.now < self.limit)
    }

    /// Its places are its own.
    pub(crate) fn end_share(&mut self) {
        self.share = None;
    }

    /// Whether a call takes no place that calls like it leave to the others, of so many.
    #[inline(always)]
    pub(crate) fn admit_under(&self, limit: u32, ask: &Ask<'_>) -> Admit {
        let leaves = !ask.leaves_places() || self.background < ask.most_places(limit);
        if leaves { Admit::Now } else { Admit::OnRelease { cause: WaitCause::Reserve } }
    }

    pub(crate) fn take(&mut self, background: bool) {
        self.now += 1;
        self.background += u32::from(background);
        self.acquires += 1;
        self.peak = self.peak.max(self.now);
    }

    pub(crate) fn release(&mut self, background: bool) {
        self.now -= 1;
        self.background -= u32::from(background);
    }

    /// Calls in flight.
    pub(crate) const fn now(&self) -> u32 {
        self.now
    }

    #[inline(always)]
    pub(crate) fn limit(&self) -> u32 {
        self.share.as_deref().map_or(self.limit, |share| self.limit.min(share.most))
    }

    /// Places that no call has.
    pub(crate) fn free(&self) -> u32 {
        self.limit().saturating_sub(self.now)
    }

    /// Call `number` succeeded: the limit grows by one per round trip.
    pub(crate) fn succeeded(&mut self, number: u64) {
        if number > self.mark {
            self.backing_off = false;
        }
        self.credit += 1;
        if self.credit >= self.limit {
            self.credit = 0;
            self.limit = (self.limit + 1).min(self.max);
        }
    }

    /// Call `number` was refused; `last` is the newest call sent. Returns whether the limit decreased.
    pub(crate) fn refused(&mut self, number: u64, last: u64) -> bool {
        self.refusals += 1;
        let halved = (self.limit / 2).max(self.floor);
        if number <= self.mark || halved >= self.limit {
            return false;
        }
        (self.before, self.limit) = (self.limit, halved);
        (self.mark, self.credit, self.backing_off) = (last, 0, true);
        self.decreases = self.decreases.saturating_add(1);
        let history = self.history.get_or_insert_default();
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(halved);
        true
    }

    /// `waits`: whether a call does. Where none does, a share that was given back is what the first one gets of those of all.
    pub(crate) fn snapshot(&self, waits: bool) -> ConcurrencySnapshot {
        let given_back = self.share.as_deref().filter(|share| share.most == 0 && share.grows && !waits);
        let of_all = |share: &Places| u32::try_from(share.of.quota.limit).unwrap_or(u32::MAX).min(self.limit);
        ConcurrencySnapshot {
            current_limit: given_back.map_or_else(|| self.limit(), of_all),
            in_flight: self.now,
            total_acquires: self.acquires,
            total_rate_limits: self.refusals,
            total_decreases: u64::from(self.decreases),
            peak_active: self.peak,
            limit_history: self.history.iter().flat_map(|history| history.iter().copied()).collect(),
            phase: self.phase(),
        }
    }

    fn phase(&self) -> GrowthPhase {
        if self.limit == self.max {
            GrowthPhase::MaxConcurrency
        } else if self.limit == self.floor {
            GrowthPhase::Floor
        } else if self.backing_off {
            GrowthPhase::Backoff
        } else if self.limit < self.before {
            GrowthPhase::Recovering
        } else if self.now >= self.limit {
            GrowthPhase::Saturated
        } else {
            GrowthPhase::Steady
        }
    }
}

fn checked(concurrency: Concurrency) -> Result<(u32, u32, u32), ConfigError> {
    let (floor, start, max) = match concurrency {
        Concurrency::Fixed { max } => (max, max, max),
        Concurrency::Aimd { floor, start, max } => (floor, start, max),
    };
    let wrong = |key, value: u32, expected| {
        Err(ConfigError { key: format!("concurrency.{key}"), value: format!("{value}"), expected })
    };
    if max < 1 {
        return wrong("max", max, "at least 1");
    }
    if floor < 1 || floor > max {
        return wrong("floor", floor, "1 <= floor <= max");
    }
    if start < floor || start > max {
        return wrong("start", start, "floor <= start <= max");
    }
    Ok((floor, start, max))
}

/// The calls in flight of the scope of that name. Only one pace lets their number adapt. A tier may have fewer than the account,
/// and each of its parts as many.
pub(crate) fn of_scope(name: &str, config: &PacerConfig) -> Concurrency {
    let of = |tier: &str| config.tier_places.iter().find(|(known, _)| **known == *tier).map(|(_, most)| *most);
    let most = of(name).or_else(|| of(tier_and_part(name)?.0));
    let concurrency = match config.pace {
        Pace::Aimd => config.concurrency,
        Pace::Auto | Pace::Fixed | Pace::Responsive | Pace::Linear | Pace::Exponential | Pace::None => {
            Concurrency::Fixed { max: config.concurrency.max() }
        }
    };
    most.map_or(concurrency, |most| concurrency.at_most(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use alloc::vec;

    fn aimd(floor: u32, start: u32, max: u32) -> InFlight {
        InFlight::new(Concurrency::Aimd { floor, start, max }).expect("sensible bounds")
    }

    #[test]
    fn fifty_simultaneous_refusals_are_one_decrease() {
        let mut limit = aimd(5, 50, 50);
        for number in 1..=50 {
            limit.refused(number, 50);
        }
        let figures = limit.snapshot(false);
        assert_eq!((figures.current_limit, figures.total_decreases, figures.total_rate_limits), (25, 1, 50));
    }

    #[test]
    fn separate_epochs_halve_down_to_the_floor() {
        let mut limit = aimd(5, 50, 50);
        let limits: Vec<u32> = (1..=5)
            .map(|epoch| {
                limit.refused(epoch, epoch);
                limit.limit
            })
            .collect();
        assert_eq!(limits, [25, 12, 6, 5, 5]);
        assert_eq!(limit.snapshot(false).limit_history, vec![25, 12, 6, 5]);
        assert_eq!(limit.snapshot(false).total_decreases, 4, "a refusal at the floor is no decrease");
    }

    #[test]
    fn grows_by_one_per_round_trip() {
        let mut limit = aimd(1, 4, 50);
        (0..4).for_each(|n| limit.succeeded(n));
        assert_eq!(limit.limit, 5);
        (0..5 + 6 + 7).for_each(|n| limit.succeeded(n));
        assert_eq!(limit.limit, 8);
    }

    #[test]
    fn phases() {
        let mut limit = aimd(5, 20, 50);
        assert_eq!(limit.phase(), GrowthPhase::Steady);
        (0..20).for_each(|_| limit.take(false));
        assert_eq!(limit.phase(), GrowthPhase::Saturated);
        assert!(limit.refused(20, 20));
        assert_eq!(limit.phase(), GrowthPhase::Backoff);
        limit.succeeded(19);
        assert_eq!(limit.phase(), GrowthPhase::Backoff, "a call from before the decrease proves nothing");
        limit.succeeded(21);
        assert_eq!(limit.phase(), GrowthPhase::Recovering);
        limit.refused(22, 22);
        assert_eq!(limit.phase(), GrowthPhase::Floor);
        (0..2_000).for_each(|n| limit.succeeded(n));
        assert_eq!(limit.phase(), GrowthPhase::MaxConcurrency);
        assert_eq!(limit.limit, 50, "never above the maximum");
    }

    #[test]
    fn after_a_decrease_nothing_starts_until_there_is_room() {
        let mut limit = aimd(2, 8, 8);
        (0..8).for_each(|_| limit.take(false));
        limit.refused(8, 8);
        for _ in 0..4 {
            assert!(!limit.admit(&Ask::of(&Cost::request())).is_now());
            limit.release(false);
        }
        assert!(!limit.admit(&Ask::of(&Cost::request())).is_now());
        limit.release(false);
        assert!(limit.admit(&Ask::of(&Cost::request())).is_now());
    }

    #[test]
    fn impossible_bounds_are_refused() {
        for (floor, start, max, key) in
            [(0, 1, 5, "floor"), (6, 6, 5, "floor"), (2, 1, 5, "start"), (2, 6, 5, "start"), (1, 1, 0, "max")]
        {
            let error = InFlight::new(Concurrency::Aimd { floor, start, max }).expect_err("impossible");
            assert_eq!(error.key, format!("concurrency.{key}"));
        }
    }

    #[test]
    fn each_phase_has_its_name() {
        let phases = [
            GrowthPhase::Floor,
            GrowthPhase::MaxConcurrency,
            GrowthPhase::Backoff,
            GrowthPhase::Recovering,
            GrowthPhase::Saturated,
            GrowthPhase::Steady,
        ];
        for phase in phases {
            assert_eq!(phase.as_str(), alloc::format!("{phase:?}"));
        }
    }
}
