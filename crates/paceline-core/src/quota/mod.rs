//! Configured limits: how many units may leave in a period.
//!
//! Each counter answers when a cost fits, without changing anything, and takes it in a separate step. All arithmetic is
//! on integers: nothing drifts, and the same history gives the same answer everywhere.

mod bucket;
mod counter;
mod counts;
mod fixed;
mod former;
mod late;
mod sliding;
mod sums;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bucket::TokenBucket;
pub use bucket::{BucketLevel, BucketRule};
use counter::Counter;
pub use counts::LimitCounts;

use crate::admit::{Admit, Hear, WaitCause, strictest};
use crate::background::Ask;
use crate::config::{Limits, Quota, QuotaShape};
use crate::cost::{Cost, Dimension};
use crate::error::{ConfigError, TooLarge};
use crate::state::{TakenState, WindowState};
use crate::time::{Instant, LATE};
use crate::units::LONGEST_DURATION;

/// Larger limits are refused, and no counter counts more, whatever usage an answer reports: sums stay far from the edge of the
/// integers, and the state of a window stays small.
pub(crate) const LARGEST_LIMIT: u64 = 1 << 48;

/// The longest window, a year: no limit is known to count longer.
const LONGEST_WINDOW: Duration = LONGEST_DURATION;

/// All configured limits of an account or a tier; they hold together.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    counters: Box<[(Quota, Counter)]>,
    /// The same without the units of other pacers of the account; none before there were any.
    #[expect(clippy::box_collection, reason = "most scopes have none, and a scope is small")]
    own: Option<Box<Vec<(Quota, Counter)>>>,
    /// Limits that are no more count on.
    #[expect(clippy::box_collection, reason = "most scopes have none, and a scope is small")]
    former: Option<Box<Vec<(Quota, Counter)>>>,
    burst: Option<TokenBucket>,
    /// A window made a request wait since the last call left.
    full: bool,
}

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Result<Self, ConfigError> {
        let mut counters = Vec::with_capacity(limits.quotas.len());
        for quota in &limits.quotas {
            check(quota)?;
            counters.push((quota.clone(), Counter::new(quota)));
        }
        Ok(Self { counters: counters.into(), own: None, former: None, burst: burst(limits)?, full: false })
    }

    /// Replaces the limits. What was sent still counts: each new counter starts with the units of the known counter of its
    /// dimension that fits best. No counter remembers more than the longest window of that dimension that there was so far.
    pub(crate) fn reconfigure(&mut self, now: Instant, limits: &Limits) -> Result<(), ConfigError> {
        let mut next = Self::new(limits)?;
        next.own = self.own.as_ref().map(|own| {
            let mut next = next.counters.to_vec();
            for (quota, counter) in &mut next {
                inherit(now, quota, counter, own.iter().chain(self.former()));
            }
            Box::new(next)
        });
        let known = self.counters.iter().chain(self.former());
        for (quota, counter) in &mut next.counters {
            inherit(now, quota, counter, known.clone());
        }
        next.former = former::beyond(now, &next.counters, known);
        if let (Some(next), Some(known)) = (&mut next.burst, &self.burst) {
            next.inherit(now, known);
        }
        next.full = self.full;
        *self = next;
        Ok(())
    }

    pub(crate) fn too_large(&self, cost: &Cost) -> Option<TooLarge> {
        let units = |quota: &Quota| cost.get(&quota.dimension);
        let (quota, _) = self.counters.iter().find(|(quota, _)| units(quota) > most(quota))?;
        Some(TooLarge { dimension: quota.dimension.clone(), cost: units(quota), limit: most(quota) })
    }

    /// The fewest tokens that a limit lets pass at once, by what each counts of them.
    pub(crate) fn fewest(&self, tokens: impl Fn(&Dimension, u64) -> Option<u64>) -> Option<u64> {
        self.counters.iter().filter_map(|(quota, _)| tokens(&quota.dimension, most(quota))).min()
    }

    /// The smallest of the limits on a dimension, as a call may reach it at once.
    pub(crate) fn most_of(&self, dimension: &Dimension) -> Option<u64> {
        self.counters.iter().filter(|(quota, _)| quota.dimension == *dimension).map(|(quota, _)| most(quota)).min()
    }

    /// When a call may leave, by all of them.
    pub(crate) fn admit(&self, now: Instant, ask: &Ask<'_>) -> Admit {
        strictest(|hear| self.ask(now, ask, hear))
    }

    /// Asks all of them in turn, for as long as `hear` goes on. Returns whether it would.
    #[inline(always)]
    pub(crate) fn ask(&self, now: Instant, ask: &Ask<'_>, hear: &mut impl Hear) -> bool {
        let spaced = match &self.burst {
            Some(burst) if ask.cost.get(&Dimension::Requests) > 0 => {
                Admit::at(burst.fits_at(now, 1), now, || WaitCause::Burst)
            }
            _ => Admit::Now,
        };
        if !hear.hear(spaced) {
            return false;
        }
        let leaves_units = ask.leaves_units();
        for (quota, counter) in &self.counters {
            let units = ask.cost.get(&quota.dimension);
            let units = if leaves_units { ask.needs(units, most(quota)) } else { units };
            if units > 0 && !hear.hear(counter.admit(now, quota, units)) {
                return false;
            }
        }
        true
    }

    /// Estimates when the last of so many calls of that cost can leave, if no others are sent in between.
    pub(crate) fn forecast(&self, now: Instant, cost: &Cost, calls: u64) -> Instant {
        let requests = cost.get(&Dimension::Requests);
        let spaced = self.burst.as_ref().filter(|_| requests > 0).map(|burst| burst.fits_at(now, calls));
        let counted = self.counters.iter().map(|(quota, counter)| {
            let units = cost.get(&quota.dimension).saturating_mul(calls);
            // An exact window lets its limit pass once per window, and the rest before that.
            let windows = if quota.shape == QuotaShape::Sliding { units.saturating_sub(1) / quota.limit } else { 0 };
            let rest = units - windows * quota.limit;
            let fits = counter.fits_in(quota, now, rest);
            // When a full window opens again, the calls leave at the refill rate.
            let turns = |burst: &&TokenBucket| (windows > 0 || fits > now) && burst.refines(quota);
            let turned = self.burst.as_ref().filter(turns).map_or(now, |burst| {
                let opens = counter.fits_in(quota, now, 1);
                burst.emptied(opens).fits_at(opens, rest)
            });
            fits.max(turned) + quota.window.saturating_mul(u32::try_from(windows).unwrap_or(u32::MAX))
        });
        counted.chain(spaced).fold(now, Instant::max)
    }

    /// When the windows have room for that cost at the earliest, even if everything `out`, in flight, were refunded. No other
    /// call can make it earlier.
    pub(crate) fn earliest_room(&self, now: Instant, cost: &Cost, out: &Cost) -> Admit {
        self.counters.iter().fold(Admit::Now, |strictest, (quota, counter)| {
            let units = cost.get(&quota.dimension).saturating_sub(out.get(&quota.dimension));
            let at = counter.fits_in(quota, now, units);
            strictest.strictest(Admit::at(at, now, || WaitCause::quota(quota)))
        })
    }

    /// Notes that a request waits because a window is full. That is a pause, not idling: what the window frees next must not
    /// leave as a burst on top of the end of the last one.
    pub(crate) fn note_full(&mut self) {
        self.full = true;
    }

    /// The counts that another pacer can restore.
    pub(crate) fn export(&self, now: Instant) -> Vec<WindowState> {
        windows(now, self.counters.iter().chain(self.former()))
    }

    /// The counters of limits that are no more.
    fn former(&self) -> impl Iterator<Item = &(Quota, Counter)> + Clone {
        self.former.iter().flat_map(|former| former.iter())
    }

    /// Restores what another pacer had counted `since` ago, as if these limits replaced its own. Units counted here already count
    /// as sent now.
    pub(crate) fn restore(&mut self, now: Instant, windows: &[WindowState], since: Duration) {
        let known = counted(now, windows, since);
        self.each(|quota, counter| {
            let left = counter.used(now);
            if inherit(now, quota, counter, known.iter()) {
                counter.take(now, left);
            }
        });
        self.former = former::beyond(now, &self.counters, self.former().chain(&known));
    }

    /// The units of this pacer alone, for those with which it takes turns. Of a bucket there is one level, which they hand on.
    pub(crate) fn export_own(&self, now: Instant) -> Vec<WindowState> {
        let own = self.own.as_ref().map_or(&*self.counters, |own| own);
        let pairs = self.counters.iter().zip(own);
        windows(now, pairs.map(|(all, own)| if all.1.is_bucket() { all } else { own }))
    }

    /// Counts the units that `others` exported so long ago beside its own, in place of those of the last call.
    pub(crate) fn share(&mut self, now: Instant, others: &[(&[WindowState], Duration)]) {
        if others.is_empty() && self.own.is_none() {
            return;
        }
        let others: Vec<_> = others.iter().map(|(windows, since)| counted(now, windows, *since)).collect();
        let own = self.own.take().unwrap_or_else(|| Box::new(self.counters.to_vec()));
        for ((quota, counter), (_, own)) in self.counters.iter_mut().zip(&*own) {
            if !own.is_bucket() {
                *counter = own.clone();
            }
            for other in &others {
                let mut known = Counter::new(quota);
                if inherit(now, quota, &mut known, other.iter()) {
                    counter.join(now, &known);
                }
            }
        }
        self.own = Some(own);
    }

    /// Takes the units that [`Quotas::admit`] allowed to a call that was ready to leave at `wanted`. The spacing makes up for a
    /// timer that is a little late; a window counts the call when it leaves.
    pub(crate) fn take(&mut self, now: Instant, wanted: Instant, cost: &Cost) {
        // The refill of the last moment is kept: a window that is just full opens with every call, and a timer that serves
        // several at once is late for most of them.
        if core::mem::take(&mut self.full) {
            self.forget_burst(now.saturating_sub(LATE));
        }
        if let Some(burst) = &mut self.burst
            && cost.get(&Dimension::Requests) > 0
        {
            burst.take_wanted(now, wanted, 1);
        }
        for (quota, counter) in &mut self.counters {
            counter.take(now, cost.get(&quota.dimension));
        }
        for beside in [&mut self.own, &mut self.former].into_iter().flatten() {
            take_from(beside, now, cost);
        }
    }

    /// How many calls of that cost may leave now.
    pub(crate) fn calls_left(&self, now: Instant, cost: &Cost) -> u64 {
        // What a full window leaves of the burst is known when the next call is taken by itself.
        let burst = match &self.burst {
            Some(_) if self.full => 0,
            Some(burst) if cost.get(&Dimension::Requests) > 0 => burst.units(now),
            _ => u64::MAX,
        };
        self.counted(cost).map(|(counter, units)| counter.left(now) / units).fold(burst, u64::min)
    }

    /// Takes so many of them.
    pub(crate) fn count_calls(&mut self, now: Instant, cost: &Cost, calls: u64) {
        if let Some(burst) = &mut self.burst
            && cost.get(&Dimension::Requests) > 0
        {
            burst.take(now, calls);
        }
        self.each(|quota, counter| counter.take(now, cost.get(&quota.dimension).saturating_mul(calls)));
    }

    /// Until when calls count as those that leave now.
    pub(crate) fn slot_end(&self, now: Instant, cost: &Cost) -> Instant {
        let former = self.former().map(|(_, counter)| counter);
        self.counted(cost)
            .map(|(counter, _)| counter)
            .chain(former)
            .fold(Instant::MAX, |end, counter| end.min(counter.slot_end(now)))
    }

    /// The counters that count such a call, and by how much.
    fn counted(&self, cost: &Cost) -> impl Iterator<Item = (&Counter, u64)> {
        self.counters
            .iter()
            .map(|(quota, counter)| (counter, cost.get(&quota.dimension)))
            .filter(|(_, units)| *units > 0)
    }

    /// Replaces the units reserved at `taken` by the actual ones. Fewer are a refund; more are debt. Where it is not known when
    /// they were taken, only a bucket has counted them.
    pub(crate) fn settle(&mut self, now: Instant, taken: Option<Instant>, reserved: &Cost, actual: &Cost) {
        self.each(|quota, counter| {
            let reserved = if taken.is_some() || counter.is_bucket() { reserved.get(&quota.dimension) } else { 0 };
            let actual = actual.get(&quota.dimension);
            if actual > reserved {
                counter.take(now, actual - reserved);
            } else if reserved > actual {
                counter.refund(taken.unwrap_or(now), reserved - actual);
            }
        });
        // A call that never left took no part of the burst either.
        if let Some(burst) = &mut self.burst
            && reserved.get(&Dimension::Requests) > 0
            && actual.get(&Dimension::Requests) == 0
        {
            burst.refund(1);
        }
    }

    /// After a pause the calls leave at the refill rate: the stored burst is reduced to one request.
    pub(crate) fn forget_burst(&mut self, now: Instant) {
        if let Some(burst) = &mut self.burst {
            burst.keep_at_most(now, 1);
        }
    }

    /// Sets what the window of a quota, by its place, may hold: less than the quota, where other processes have the rest.
    pub(crate) fn set_allowance(&mut self, place: usize, units: u64) {
        if let (_, Counter::Sliding(window)) = &mut self.counters[place] {
            window.limit = units;
        }
    }

    /// What the window of a quota counts, by its place.
    pub(crate) fn used(&self, now: Instant, place: usize) -> u64 {
        self.counters[place].1.used(now)
    }

    /// The same with its ages.
    pub(crate) fn taken(&self, now: Instant, place: usize) -> Vec<TakenState> {
        self.counters[place].1.taken(now)
    }

    /// Whether no unit counts any more.
    pub(crate) fn is_unused(&self, now: Instant) -> bool {
        self.counters.iter().chain(self.former()).all(|(_, counter)| counter.used(now) == 0)
            && self.burst_left(now).is_none_or(|(left, most)| left == most)
    }

    /// Changes every counter that a call of this pacer changes. As one iterator over both parts it takes half as long again.
    #[inline(always)]
    fn each(&mut self, mut change: impl FnMut(&Quota, &mut Counter)) {
        for (quota, counter) in &mut self.counters {
            change(quota, counter);
        }
        for beside in [&mut self.own, &mut self.former].into_iter().flatten() {
            beside.iter_mut().for_each(|(quota, counter)| change(quota, counter));
        }
    }

    /// The counters with their quotas, for snapshots.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&Quota, &Counter)> {
        self.counters.iter().map(|(quota, counter)| (quota, counter))
    }

    /// Whole requests that may leave at once, and how many that can be at most.
    pub(crate) fn burst_left(&self, now: Instant) -> Option<(u64, u64)> {
        self.burst.as_ref().map(|bucket| (bucket.units(now), bucket.burst()))
    }
}

/// Takes the units of a call from all of these.
#[cold]
fn take_from(counters: &mut [(Quota, Counter)], now: Instant, cost: &Cost) {
    for (quota, counter) in counters {
        counter.take(now, cost.get(&quota.dimension));
    }
}

/// How many units a quota allows at once.
const fn most(quota: &Quota) -> u64 {
    match quota.shape {
        QuotaShape::Bucket { burst } => burst,
        QuotaShape::Sliding | QuotaShape::Fixed => quota.limit,
    }
}

/// The windows that count something, as values.
fn windows<'a>(now: Instant, counters: impl IntoIterator<Item = &'a (Quota, Counter)>) -> Vec<WindowState> {
    let windows = counters.into_iter().map(|(quota, counter)| (quota, counter.taken(now)));
    let windows = windows.filter(|(_, taken)| !taken.is_empty());
    windows.map(|(quota, taken)| WindowState { quota: quota.clone(), taken }).collect()
}

/// The counters of windows that were exported `since` ago; invalid quotas are left out.
fn counted(now: Instant, windows: &[WindowState], since: Duration) -> Vec<(Quota, Counter)> {
    let count = |window: &WindowState| {
        let mut counter = Counter::new(&window.quota);
        for taken in &window.taken {
            counter.take(now.saturating_sub(taken.ago.saturating_add(since)), taken.units);
        }
        (window.quota.clone(), counter)
    };
    windows.iter().filter(|window| check(&window.quota).is_ok()).map(count).collect()
}

/// Starts a new counter with the units of the known counter of its dimension that fits best. Returns whether there is one.
fn inherit<'a>(
    now: Instant,
    quota: &Quota,
    counter: &mut Counter,
    known: impl Iterator<Item = &'a (Quota, Counter)>,
) -> bool {
    let known = known.filter(|(known, _)| known.dimension == quota.dimension);
    let best = known.min_by_key(|(known, _)| misfit(known, quota));
    best.map(|(_, known)| counter.inherit(now, known)).is_some()
}

/// How badly the counter of a known quota fits a new one: best are the same kind and the same window, then the next longer
/// window, which remembers enough, then the longest of the shorter ones.
fn misfit(known: &Quota, next: &Quota) -> (bool, bool, Duration) {
    let same_kind = core::mem::discriminant(&known.shape) == core::mem::discriminant(&next.shape);
    (!same_kind, known.window < next.window, known.window.abs_diff(next.window))
}

fn check(quota: &Quota) -> Result<(), ConfigError> {
    let wrong = |value, expected| Err(ConfigError { key: format!("limit on {}", quota.dimension), value, expected });
    if quota.limit == 0 || quota.limit > LARGEST_LIMIT {
        return wrong(format!("{}", quota.limit), "a whole number from 1 to 2^48");
    }
    if quota.window.is_zero() || quota.window > LONGEST_WINDOW {
        return wrong(format!("{:?}", quota.window), "a window of more than 0 and at most 366 days");
    }
    if let QuotaShape::Bucket { burst } = quota.shape
        && (burst == 0 || burst > LARGEST_LIMIT)
    {
        return wrong(format!("a burst of {burst}"), "a burst from 1 to 2^48");
    }
    Ok(())
}

/// The bucket that spaces requests.
fn burst(limits: &Limits) -> Result<Option<TokenBucket>, ConfigError> {
    let refuse = |burst, expected| Err(ConfigError { key: "burst".into(), value: format!("{burst}"), expected });
    match (limits.burst, limits.spacing()) {
        (Some(0), _) => refuse(0, "a whole number of at least 1"),
        (Some(burst), Some((quota, _))) if burst > quota.limit => {
            refuse(burst, "at most the limit that it refines: no window would hold more, but a bucket does")
        }
        (_, spacing) => Ok(spacing.map(|(quota, burst)| TokenBucket::new(quota.limit, quota.window, burst))),
    }
}
