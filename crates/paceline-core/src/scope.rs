//! The lower of the two levels: what one model, endpoint family or table has of its own.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::admit::Admit;
use crate::announced::{Announced, Carrier};
use crate::breaker::{Breaker, Change};
use crate::concurrency::InFlight;
use crate::config::{Concurrency, ConfigError, Limits, Pace, PacerConfig};
use crate::cost::{Cost, Dimension};
use crate::gate::Gate;
use crate::hold::{Hold, RunningClock};
use crate::outcome::{Hint, LimitReport};
use crate::queue::Queue;
use crate::quota::Quotas;
use crate::rng::Rng;
use crate::snapshot::{Announcement, QuotaSnapshot, ScopeSnapshot, ScopeState, Totals};
use crate::spacing::Spacing;
use crate::time::Instant;

/// A hint above this holds the whole scope; a shorter one in whole seconds is mostly rounding.
const HOLDING_HINT: Duration = Duration::from_secs(1);

/// The first closure of our own choice; it doubles while nothing is admitted.
const FIRST_CLOSURE: Duration = Duration::from_millis(500);

/// The longest closure of our own choice: a canary every 5 s wastes at most one call per 5 s.
const LONGEST_CLOSURE: Duration = Duration::from_secs(5);

/// What a call leaves behind while it is in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) number: u64,
    pub(crate) sent: Instant,
    pub(crate) probe: bool,
    /// What the scope had spent, this call included.
    spent: Cost,
}

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) name: Arc<str>,
    pub(crate) queue: Queue,
    pub(crate) hold: Hold,
    pub(crate) clock: RunningClock,
    pub(crate) totals: Totals,
    pub(crate) in_flight: InFlight,
    quotas: Quotas,
    announced: Vec<Announced>,
    gate: Gate,
    breaker: Breaker,
    spacing: Spacing,
    pace: Pace,
    /// The number of the newest call that left.
    last: u64,
    /// The newest call that had left when the present congestion epoch began.
    epoch: u64,
    /// A call that left after that was admitted.
    admitted: bool,
    spent: Cost,
}

impl Scope {
    pub(crate) fn new(name: Arc<str>, config: &PacerConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            queue: Queue::default(),
            hold: Hold::default(),
            clock: RunningClock::default(),
            totals: Totals::default(),
            in_flight: InFlight::new(concurrency(config))?,
            quotas: Quotas::new(&tier(&name, config))?,
            announced: Vec::new(),
            gate: Gate::new(),
            breaker: Breaker::new(config.breaker)?,
            spacing: Spacing::new(config)?,
            pace: config.pace,
            last: 0,
            epoch: 0,
            admitted: true,
            spent: Cost::zero(),
            name,
        })
    }

    pub(crate) fn reconfigure(&mut self, config: &PacerConfig) -> Result<(), ConfigError> {
        self.pace = config.pace;
        self.in_flight.reconfigure(concurrency(config))?;
        self.breaker.reconfigure(config.breaker)?;
        self.spacing.reconfigure(config)?;
        self.quotas.reconfigure(&tier(&self.name, config))
    }

    pub(crate) const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// When a call of that cost may leave, as far as this scope is concerned.
    pub(crate) fn admit(&self, now: Instant, cost: &Cost) -> Admit {
        let own = self
            .hold
            .admit(now)
            .strictest(self.gate.admit(now))
            .strictest(self.breaker.admit(now))
            .strictest(self.spacing.admit(now))
            .strictest(self.in_flight.admit())
            .strictest(self.quotas.admit(now, cost));
        if self.pace != Pace::Auto {
            return own;
        }
        self.announced.iter().fold(own, |strictest, limit| {
            let (units, spent) = (cost.get(&limit.dimension), self.spent.get(&limit.dimension));
            strictest.strictest(limit.admit(now, units, spent))
        })
    }

    /// Counts units that left before this pacer was made.
    pub(crate) fn charge(&mut self, at: Instant, dimension: &Dimension, window: Duration, units: u64) {
        self.quotas.charge(at, dimension, window, units);
    }

    /// The next waiter waits for a full window.
    pub(crate) fn note_full(&mut self) {
        self.quotas.note_full();
    }

    /// A call leaves.
    pub(crate) fn leave(&mut self, now: Instant, cost: &Cost) -> Flight {
        self.last += 1;
        self.gate.left(self.last);
        let probe = self.breaker.left();
        self.in_flight.take();
        self.spacing.left(now);
        self.quotas.take(now, cost);
        self.spent.add(cost);
        Flight { number: self.last, sent: now, probe, spent: self.spent.clone() }
    }

    /// A call that was granted never left: all it took is given back.
    pub(crate) fn unsend(&mut self, now: Instant, flight: &Flight, cost: &Cost) {
        self.quotas.settle(now, flight.sent, cost, &Cost::zero());
        self.lost(flight);
    }

    /// Replaces the estimate by what the call really cost.
    pub(crate) fn settle(&mut self, now: Instant, flight: &Flight, reserved: &Cost, actual: &Cost) {
        self.quotas.settle(now, flight.sent, reserved, actual);
        for limit in self.announced.iter().filter(|limit| limit.is_older_than(flight.number)) {
            let dimension = &limit.dimension;
            let spent = self.spent.get(dimension) + actual.get(dimension);
            self.spent.set(dimension.clone(), spent.saturating_sub(reserved.get(dimension)));
        }
    }

    /// Remembers what the headers of a response announced.
    pub(crate) fn learn(&mut self, flight: &Flight, reports: &[LimitReport]) {
        for report in reports {
            let spent = flight.spent.get(&report.dimension);
            let carrier = Carrier { number: flight.number, sent: flight.sent, spent };
            let Some(newer) = Announced::new(report, carrier) else { continue };
            match self.announced.iter_mut().find(|known| known.dimension == newer.dimension) {
                Some(known) => known.update(newer),
                None => self.announced.push(newer),
            }
        }
    }

    /// Takes over what another pacer was told, unless a call of this one has brought news already.
    pub(crate) fn announce(&mut self, now: Instant, told: &Announcement) {
        let dimension = &told.report.dimension;
        let spent = self.spent.get(dimension);
        let carrier = Carrier { number: 0, sent: now.saturating_sub(told.ago), spent };
        let Some(announced) = Announced::new(&told.report, carrier) else { return };
        if self.announced.iter().all(|known| known.dimension != *dimension) {
            self.spent.set(dimension.clone(), spent + told.spent_since);
            self.announced.push(announced);
        }
    }

    /// Ends a hold or a closure whose time has come. Says whether one did: then the work leaves at the refill rate.
    pub(crate) fn reopens(&mut self, now: Instant) -> bool {
        let reopens = self.hold.expire(now) | self.gate.reopens(now);
        if reopens {
            self.quotas.forget_burst(now);
        }
        reopens
    }

    /// A call succeeded: the pace is right, the server works. Says whether that opened the gate.
    pub(crate) fn passed(&mut self, now: Instant, flight: &Flight, item: u64) -> (bool, Option<Change>) {
        self.in_flight.succeeded(flight.number);
        self.admitted |= flight.number > self.epoch;
        self.hold.passed();
        let opened = self.gate.passed(flight.number);
        if opened {
            self.quotas.forget_burst(now);
        }
        (opened, self.breaker.answered(now, item, false, flight.probe))
    }

    /// The server answered without judging the pace.
    pub(crate) fn answered(&mut self, now: Instant, flight: &Flight, item: u64) -> Option<Change> {
        self.gate.lost(flight.number);
        self.breaker.answered(now, item, false, flight.probe)
    }

    /// The server failed.
    pub(crate) fn failed(&mut self, now: Instant, flight: &Flight, item: u64) -> Option<Change> {
        self.gate.lost(flight.number);
        self.breaker.answered(now, item, true, flight.probe)
    }

    /// The call ended without an answer.
    pub(crate) fn lost(&mut self, flight: &Flight) {
        self.gate.lost(flight.number);
        self.breaker.lost(flight.probe);
    }

    /// A refusal: fewer calls in flight, once per congestion epoch. Says whether the limit fell.
    pub(crate) fn refused(&mut self, number: u64) -> bool {
        self.in_flight.refused(number, self.last)
    }

    /// A success, as far as the delay between calls is concerned.
    pub(crate) fn speed_up(&mut self, number: u64, rng: &mut Rng) {
        self.spacing.succeeded(number, self.last, rng);
    }

    /// A throttled or overloaded answer, as far as the delay between calls is concerned.
    pub(crate) fn slow_down(&mut self, now: Instant, number: u64, hint: Option<Duration>, rng: &mut Rng) {
        self.spacing.failed(now, number, self.last, hint, rng);
    }

    /// Closes the gate for as long as the server asked, where that concerns the scope.
    pub(crate) fn obey(&mut self, now: Instant, hint: Hint) -> bool {
        if hint.wait > HOLDING_HINT {
            self.gate.hold_for_canary(now + hint.wait);
        } else if hint.exact {
            self.gate.hold(now + hint.wait);
        }
        hint.exact || hint.wait > HOLDING_HINT
    }

    /// Notes a refusal as part of the present congestion epoch or the beginning of the next one. Says whether the
    /// server is closed rather than too slow: it admitted nothing since the epoch before.
    pub(crate) fn is_shut(&mut self, number: u64) -> bool {
        if number <= self.epoch {
            return false;
        }
        self.epoch = self.last;
        !core::mem::take(&mut self.admitted)
    }

    /// Closes the gate for a while of our own choice, ever longer while nothing is admitted.
    pub(crate) fn close(&mut self, now: Instant, cap: Duration, rng: &mut Rng) {
        let longest = cap.min(LONGEST_CLOSURE);
        // Many processes must not come back together.
        let spread = 0.9 + 0.2 * rng.unit();
        self.gate.close(now, FIRST_CLOSURE.min(longest).mul_f64(spread), longest);
    }

    /// Holds the scope until then; one call goes first.
    pub(crate) fn hold_until(&mut self, until: Instant) {
        let until = self.hold.hold(until);
        self.expect_canary(until);
    }

    /// From then on one call goes first.
    pub(crate) fn expect_canary(&mut self, until: Instant) {
        self.gate.hold_for_canary(until);
    }

    /// Ends every hold, stop and closure.
    pub(crate) fn resume(&mut self) {
        self.hold.resume();
        self.gate = Gate::new();
    }

    /// When the breaker lets the next probe pass, if it is open.
    pub(crate) fn next_probe(&self, now: Instant) -> Instant {
        match self.breaker.admit(now) {
            Admit::At { at, .. } => at,
            Admit::Now | Admit::OnRelease { .. } => now,
        }
    }

    /// Until when the gate is closed, if it is.
    pub(crate) fn closed_until(&self, now: Instant) -> Option<Instant> {
        self.gate.closed_until(now)
    }

    /// After a pause the work leaves at the refill rate.
    pub(crate) fn forget_burst(&mut self, now: Instant) {
        self.quotas.forget_burst(now);
    }

    pub(crate) fn snapshot(&self, now: Instant, next: Admit) -> ScopeSnapshot {
        ScopeSnapshot {
            name: self.name.clone(),
            state: state(&self.hold, &next),
            quotas: quotas(&self.quotas, now),
            announced: self.announced.iter().map(|limit| self.announced_snapshot(now, limit)).collect(),
            burst: self.quotas.burst_left(now),
            concurrency: self.in_flight.snapshot(),
            delay: self.spacing.delay(),
            responsive: self.spacing.counters(),
            totals: self.totals.clone(),
            waiting: self.queue.len() as u64,
            next_due: self.next_due(now, &next),
            waits_for: waits_for(next),
            closed_until: self.gate.closed_until(now),
            failing_since: self.breaker.failing_since(),
        }
    }

    fn next_due(&self, now: Instant, next: &Admit) -> Option<Instant> {
        let head = self.queue.head().map(|_| match next {
            Admit::At { at, .. } => *at,
            Admit::Now | Admit::OnRelease { .. } => now,
        });
        match (head, self.queue.next_due()) {
            (Some(head), Some(due)) => Some(head.min(due)),
            (head, due) => head.or(due),
        }
    }

    fn announced_snapshot(&self, now: Instant, limit: &Announced) -> QuotaSnapshot {
        let spent = self.spent.get(&limit.dimension);
        let next_free = match limit.admit(now, 1, spent) {
            Admit::At { at, .. } => at,
            Admit::Now | Admit::OnRelease { .. } => now,
        };
        let remaining = limit.left(spent);
        QuotaSnapshot {
            dimension: limit.dimension.clone(),
            limit: limit.limit,
            used: limit.limit.saturating_sub(remaining),
            remaining,
            window: limit.window,
            next_free,
            taken: Vec::new(),
            announcement: Some(limit.announcement(now, spent)),
        }
    }
}

/// The limits of a tier, or none.
fn tier(name: &str, config: &PacerConfig) -> Limits {
    if config.pace == Pace::None {
        return Limits::default();
    }
    config.tiers.iter().find(|(tier, _)| &**tier == name).map(|(_, limits)| limits.clone()).unwrap_or_default()
}

/// Only two paces let the number of calls in flight adapt.
const fn concurrency(config: &PacerConfig) -> Concurrency {
    match config.pace {
        Pace::Auto | Pace::Aimd => config.concurrency,
        Pace::Fixed | Pace::Responsive | Pace::Linear | Pace::Exponential | Pace::None => {
            Concurrency::Fixed { max: config.concurrency.max() }
        }
    }
}

pub(crate) fn state(hold: &Hold, next: &Admit) -> ScopeState {
    match (hold.stopped(), hold.until(), next) {
        (Some(reason), _, _) => ScopeState::Stopped { reason: reason.clone() },
        (None, Some(until), _) => ScopeState::Held { until },
        (None, None, Admit::Now) => ScopeState::Open,
        (None, None, Admit::At { .. } | Admit::OnRelease { .. }) => ScopeState::Paced,
    }
}

pub(crate) fn waits_for(next: Admit) -> Option<(crate::admit::Policy, Option<Instant>)> {
    match next {
        Admit::Now => None,
        Admit::At { at, policy } => Some((policy, Some(at))),
        Admit::OnRelease { policy } => Some((policy, None)),
    }
}

pub(crate) fn quotas(quotas: &Quotas, now: Instant) -> Vec<QuotaSnapshot> {
    quotas
        .counters()
        .map(|(quota, counter)| {
            let used = counter.used(now);
            QuotaSnapshot {
                dimension: quota.dimension.clone(),
                limit: quota.limit,
                used,
                remaining: quota.limit.saturating_sub(used),
                window: Some(quota.window),
                next_free: counter.fits_at(now, 1),
                taken: counter.taken(now),
                announcement: None,
            }
        })
        .collect()
}
