//! The lower of the two levels: what one model, endpoint family or table has of its own.

mod export;
mod fleet;
mod forecast;
mod head;
mod lease;
mod places;
mod rules;
mod snapshot;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

pub(crate) use self::places::Asks;
pub(crate) use self::snapshot::{quotas, state};
use crate::adaptive::{AdaptiveRate, Reaction, Refusal, Start};
use crate::admit::PauseCause;
use crate::breaker::Change;
use crate::breakers::{Breakers, Of};
use crate::concurrency::{InFlight, of_scope};
use crate::config::{Limits, Pace, PacerConfig};
use crate::cost::{Cost, Dimension};
use crate::error::ConfigError;
use crate::flight::Flight;
use crate::gate::Gate;
use crate::hold::{Hold, RunningClock};
use crate::outcome::{Class, Hint, LimitReport, LimitScope, Outcome};
use crate::places::Answers;
use crate::queue::Queue;
use crate::quota::Quotas;
use crate::request::Request;
use crate::rng::Rng;
use crate::server_limits::{Carrier, ServerLimits};
use crate::snapshot::Totals;
use crate::spacing::Spacing;
use crate::time::{Instant, earlier};

/// How long an idle scope keeps what it has learnt: a restored rate of that age counts a sixty-fourth, and a cap is dropped.
const RETENTION: Duration = Duration::from_mins(60);

/// How long it does where nothing was refused: a new start learns as fast.
const RETENTION_STARTING: Duration = Duration::from_mins(10);

/// No scope starts faster than this, in calls a second.
pub(crate) const FASTEST_START: f64 = 1e6;

/// A limit on a longer window does not bound the rate.
const LONGEST_PACE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) name: Arc<str>,
    pub(crate) queue: Queue,
    pub(crate) hold: Hold,
    pub(crate) clock: RunningClock,
    pub(crate) totals: Totals,
    pub(crate) in_flight: InFlight,
    /// Of these, the calls of items that had failed before.
    repeats: u32,
    pub(crate) quotas: Quotas,
    announced: Vec<ServerLimits>,
    gate: Gate,
    learnt: AdaptiveRate,
    breaker: Breakers,
    spacing: Spacing,
    answers: Answers,
    pace: Pace,
    /// The number of the newest call that left.
    last: u64,
    spent: Cost,
    /// What its calls in flight reserved: at most so much may be refunded to its windows.
    out: Cost,
    /// Since when nothing waits or is in flight.
    idle: Option<Instant>,
}

impl Scope {
    /// `tier`: the limits configured for a scope of that name.
    pub(crate) fn new(name: Arc<str>, tier: Option<&Limits>, config: &PacerConfig) -> Result<Self, ConfigError> {
        let tier = acting(tier, config);
        Ok(Self {
            queue: Queue::default(),
            hold: Hold::default(),
            clock: RunningClock::default(),
            totals: Totals::default(),
            in_flight: InFlight::new(of_scope(&name, config))?,
            repeats: 0,
            quotas: Quotas::new(tier)?,
            announced: Vec::new(),
            gate: Gate::new(),
            learnt: AdaptiveRate::new(start(tier, config), config.retry.backoff.cap()),
            breaker: Breakers::new(config.breaker)?,
            spacing: Spacing::new(config)?,
            answers: Answers::default(),
            pace: config.pace,
            last: 0,
            spent: Cost::zero(),
            out: Cost::zero(),
            idle: None,
            name,
        })
    }

    pub(crate) fn reconfigure(
        &mut self,
        now: Instant,
        tier: Option<&Limits>,
        config: &PacerConfig,
    ) -> Result<(), ConfigError> {
        self.pace = config.pace;
        self.in_flight.reconfigure(of_scope(&self.name, config))?;
        self.breaker.reconfigure(config.breaker)?;
        self.spacing.reconfigure(config)?;
        self.learnt.reconfigure(config.retry.backoff.cap());
        self.quotas.reconfigure(now, acting(tier, config))
    }

    pub(crate) const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Whether a request wants to leave now.
    #[inline(always)]
    pub(crate) fn note_demand(&mut self, now: Instant) {
        self.learnt.demand(now, self.queue.is_any_ready());
    }

    /// Whether nothing waits or is in flight.
    #[inline]
    pub(crate) fn note_idle(&mut self, now: Instant) {
        let busy = self.queue.len() > 0 || self.in_flight.now() > 0;
        self.idle = if busy { None } else { self.idle.or(Some(now)) };
    }

    /// Whether the scope may be evicted: it is idle, its limits are unused, nothing holds it, and it has learnt nothing or long
    /// ago, so that a new scope of that name does as well.
    pub(crate) fn is_evictable(&self, now: Instant) -> bool {
        let Some(idle) = self.idle.map(|since| now - since) else { return false };
        let retention = if self.has_learnt() { RETENTION } else { RETENTION_STARTING };
        idle >= retention && self.is_undisturbed(now) && self.quotas.is_unused(now)
    }

    /// Whether nothing but its limits distinguishes the scope from a new one of that name.
    pub(crate) fn is_releasable(&self, now: Instant) -> bool {
        self.idle.is_some() && !self.has_learnt() && self.is_undisturbed(now)
    }

    fn has_learnt(&self) -> bool {
        let begun = !self.hold.is_clear() || !self.gate.is_open() || !self.breaker.is_clear();
        begun
            || match self.pace {
                Pace::Auto => self.learnt.was_refused() || !self.learnt.is_starting(),
                Pace::Fixed | Pace::None => false,
                Pace::Aimd | Pace::Responsive | Pace::Linear | Pace::Exponential => true,
            }
    }

    /// Whether no hold, closure or announced limit is in force.
    fn is_undisturbed(&self, now: Instant) -> bool {
        !self.hold.is_active()
            && self.next_reopening().is_none()
            && self.announced.iter().all(|limit| limit.is_over(now))
    }

    pub(crate) fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    pub(crate) fn into_quotas(self) -> Quotas {
        self.quotas
    }

    /// Notes that the next waiter waits for a full window.
    pub(crate) fn note_full(&mut self) {
        self.quotas.note_full();
    }

    /// A call leaves, of which so much is said in `flight`.
    #[inline(always)]
    pub(crate) fn send(&mut self, now: Instant, wanted: Instant, request: &Request, flight: &mut Flight) {
        let cost = &request.cost;
        self.last += 1;
        let probe = self.breaker.sent(request.caller);
        self.in_flight.take(request.is_background());
        self.repeats += u32::from(request.attempts > 0);
        let in_flight = self.in_flight.now();
        self.answers.sent(now, in_flight);
        let canary = self.gate.sent(now, self.last);
        self.announced.iter_mut().for_each(|limit| limit.sent(now, self.spent.get(&limit.dimension)));
        self.spent.add(cost);
        self.out.add(cost);
        flight.spent.clone_from(&self.spent);
        flight.tokens = cost.get(&Dimension::Tokens);
        flight.server_limited = self.announced.iter().any(|limit| limit.holds_back(now));
        (flight.number, flight.sent, flight.era) = (self.last, now, self.learnt.era());
        (flight.counted, flight.untaken) = (Some(now), None);
        (flight.probe, flight.in_flight) = (probe, in_flight);
        (flight.item, flight.caller, flight.is_first) = (request.number(), request.caller, !request.was_tried());
        if self.pace == Pace::Auto {
            flight.era = self.learnt.sent(now, &self.gate, flight, canary);
        }
        self.spacing.sent(now);
        self.quotas.take(now, wanted, cost);
    }

    /// A call is no longer in flight.
    pub(crate) fn ended(&mut self, request: &Request, flight: &Flight) {
        self.in_flight.release(request.is_background());
        self.breaker.ended(flight.caller, flight.sent);
        self.repeats -= u32::from(request.attempts > 0);
        self.out.subtract(&request.cost);
    }

    /// A granted call was never sent: all its units are refunded.
    pub(crate) fn unsend(&mut self, now: Instant, flight: &Flight, request: &Request) {
        self.ended(request, flight);
        self.quotas.settle(now, flight.counted, &request.cost, &Cost::zero());
        self.learnt.never_sent(flight.number);
        self.lost(flight);
    }

    /// Replaces the estimated cost by the actual one.
    pub(crate) fn settle(&mut self, now: Instant, flight: &Flight, reserved: &Cost, actual: &Cost) {
        self.quotas.settle(now, flight.counted, reserved, actual);
        for limit in self.announced.iter().filter(|limit| limit.is_older_than(flight.number)) {
            let dimension = &limit.dimension;
            let spent = self.spent.get(dimension).saturating_add(actual.get(dimension));
            self.spent.set(dimension.clone(), spent.saturating_sub(reserved.get(dimension)));
        }
    }

    /// Records what a response announces, and whether it contradicts what earlier ones announced.
    #[inline]
    pub(crate) fn learn(&mut self, flight: &Flight, cost: &Cost, outcome: &Outcome) {
        if !self.announced.is_empty() || !outcome.limits.is_empty() {
            self.learn_announced(flight, cost, outcome);
        }
    }

    fn learn_announced(&mut self, flight: &Flight, cost: &Cost, outcome: &Outcome) {
        let reports = &outcome.limits;
        if outcome.class == Class::Throttled && outcome.reach != LimitScope::Item && flight.server_limited {
            let has_room = |limit: &ServerLimits| {
                let mut of_limit = reports.iter().filter(|report| report.dimension == limit.dimension);
                of_limit.any(|report| report.remaining.is_some_and(|left| left >= cost.get(&limit.dimension).max(1)))
            };
            // Where the refusal itself announces room, another limit refused.
            self.announced.iter_mut().filter(|limit| !has_room(limit)).for_each(ServerLimits::contradicted);
        }
        if outcome.class == Class::Success {
            self.announced.iter_mut().for_each(|limit| limit.confirmed(cost.get(&limit.dimension)));
        }
        self.observe(flight, reports);
    }

    /// Records the limits that headers announced. Of those that one call carried the first counts.
    pub(crate) fn observe(&mut self, flight: &Flight, reports: &[LimitReport]) {
        for report in reports {
            let spent = flight.spent.get(&report.dimension);
            let carrier = Carrier { number: flight.number, sent: flight.sent, spent };
            let Some(newer) = ServerLimits::new(report, carrier) else { continue };
            match self.announced.iter_mut().find(|known| known.dimension == newer.dimension) {
                Some(known) => known.update(newer),
                None => self.announced.push(newer),
            }
        }
        if !reports.is_empty()
            && self.learnt.is_starting()
            && let Some(rate) = self.announced_rate()
        {
            self.learnt.announced(rate);
        }
    }

    /// Calls a second that all announced limits together allow, at the average cost so far.
    fn announced_rate(&self) -> Option<f64> {
        let rate = self.announced.iter().try_fold(f64::INFINITY, |least, limit| {
            let units_a_call = self.spent.get(&limit.dimension) as f64 / self.last.max(1) as f64;
            Some(least.min(limit.per_second()? / units_a_call.max(1.0)))
        });
        rate.filter(|rate| rate.is_finite())
    }

    /// Ends a hold or a closure that is over. Returns whether one was: then the calls leave at the refill rate.
    pub(crate) fn reopens(&mut self, now: Instant) -> bool {
        if let Some(reopening) = self.silence().and_then(|silence| self.gate.silent(now, silence)) {
            self.learnt.reopened(now, &reopening);
        }
        let reopens = self.hold.expire(now) | self.gate.reopens(now);
        if reopens {
            self.quotas.forget_burst(now);
        }
        reopens
    }

    /// When a hold or a closure ends by itself, if there is one.
    #[inline(always)]
    pub(crate) fn next_reopening(&self) -> Option<Instant> {
        earlier(self.hold.until().map(|(until, _)| until), self.gate.next_change(self.silence()))
    }

    /// The clock of deadlines stands still while the scope, or all of the account, is held or stopped.
    pub(crate) fn set_clock(&mut self, now: Instant, account: bool) {
        self.clock.set_standing(now, account || self.hold.is_active());
    }

    /// A call succeeded: the pace is right, the server works. Returns whether that opened the gate.
    pub(crate) fn passed(&mut self, now: Instant, flight: &Flight, item: u64) -> (bool, Option<Change>) {
        self.in_flight.succeeded(flight.number);
        self.answers.answered(now, now - flight.sent);
        self.hold.passed();
        self.breaker.all_mut().takes_calls();
        if self.pace == Pace::Auto {
            self.learnt.succeeded(now, flight);
        }
        if !flight.is_first {
            self.gate.passed_again();
        }
        let reopening = self.gate.passed(now, flight.number);
        if let Some(reopening) = &reopening {
            self.learnt.reopened(now, reopening);
            self.quotas.forget_burst(now);
        }
        (reopening.is_some(), self.breaker.answered(now, now - flight.sent, of(flight, item), false))
    }

    /// The server's answer says nothing about the pace.
    pub(crate) fn answered(&mut self, now: Instant, flight: &Flight, item: u64) -> Option<Change> {
        self.proves_nothing(flight);
        self.answers.answered(now, now - flight.sent);
        self.breaker.answered(now, now - flight.sent, of(flight, item), false)
    }

    /// The call did not come too early, whatever its answer is.
    pub(crate) fn took_a_call(&mut self) {
        self.breaker.all_mut().takes_calls();
    }

    /// The server failed, or, of a call that was not sent, there was none.
    pub(crate) fn failed(&mut self, now: Instant, flight: &Flight, item: u64, unsent: bool) -> Option<Change> {
        self.proves_nothing(flight);
        if !self.breaker.fails_alone(flight.caller) {
            self.breaker.all_mut().took_a_call(!unsent);
        }
        self.answers.failed(now, now - flight.sent);
        let alone = self.pace == Pace::Auto && !self.gate.is_open();
        let change = self.breaker.answered(now, now - flight.sent, of(flight, item), true);
        change.or_else(|| alone.then(|| self.breaker.failed_alone(now, flight.caller)).flatten())
    }

    /// The call ended without an answer.
    pub(crate) fn lost(&mut self, flight: &Flight) {
        self.gate.lost(flight.number);
        self.breaker.lost(flight.caller, flight.probe);
    }

    /// A refusal slows the scope down once per congestion epoch, unless it counts as random.
    pub(crate) fn refused(&mut self, now: Instant, flight: &Flight, refusal: Refusal, rng: &mut Rng) -> Reaction {
        let fell = self.in_flight.refused(flight.number, self.last);
        if self.pace != Pace::Auto {
            return if fell { Reaction::Slower } else { Reaction::Known };
        }
        let all_refused = self.breaker.all().refused_since().filter(|_| self.in_flight.now() == 0);
        let Self { gate, learnt, last, .. } = self;
        gate.close_for(refusal.cause(false), |gate| {
            let reaction = learnt.refused(now, gate, flight, *last, refusal, rng);
            if let Some(since) = all_refused.filter(|_| reaction != Reaction::Chance) {
                learnt.all_refused(now, gate, since, rng);
            }
            reaction
        })
    }

    /// Calls that may be in flight, and the learnt rate in calls a second, where it acts.
    pub(crate) fn limits(&self) -> (u32, Option<f64>) {
        let configured = self.in_flight.limit();
        let learnt = (self.pace == Pace::Auto).then(|| self.learnt.limits());
        let cap = learnt.and_then(|(cap, _)| cap);
        (cap.map_or(configured, |cap| cap.min(configured)), learnt.map(|(_, rate)| rate))
    }

    /// Shortens the delay between calls after a success.
    pub(crate) fn speed_up(&mut self, number: u64, rng: &mut Rng) {
        self.spacing.succeeded(number, self.last, rng);
    }

    /// Lengthens the delay between calls after a throttled or overloaded answer.
    pub(crate) fn slow_down(&mut self, now: Instant, number: u64, hint: Option<Duration>, rng: &mut Rng) {
        self.spacing.failed(now, number, self.last, hint, rng);
    }

    /// Closes the gate for the wait of a hint. Returns whether the hint is long or exact enough for that.
    pub(crate) fn obey(&mut self, now: Instant, hint: Hint, cause: PauseCause) -> bool {
        if hint.is_long() {
            self.gate.close_for(cause, |gate| gate.close_for_hint(now, hint.wait));
        } else if hint.exact {
            self.gate.close_for(cause, |gate| gate.hold(now + hint.wait));
        }
        hint.exact || hint.is_long()
    }

    /// Holds the scope until then; one call goes first.
    pub(crate) fn hold_until(&mut self, until: Instant, cause: PauseCause) {
        let until = self.hold.hold(until, cause);
        self.expect_canary(until, cause);
    }

    /// From then on one call goes first.
    pub(crate) fn expect_canary(&mut self, until: Instant, cause: PauseCause) {
        self.gate.close_for(cause, |gate| gate.hold_for_canary(until));
    }

    /// Ends every hold, stop and closure, and what a server that refused everything did to the learnt rate.
    pub(crate) fn resume(&mut self) {
        self.hold.resume();
        self.gate = Gate::new();
        self.learnt.lifted();
    }

    /// Whether neither a hold nor the gate will end or change anything by itself.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.gate.is_open() && self.next_reopening().is_none()
    }

    /// Until when the gate is closed, if it is.
    pub(crate) fn closed_until(&self, now: Instant) -> Option<Instant> {
        self.gate.closed_until(now)
    }

    /// After a pause the work leaves at the refill rate.
    pub(crate) fn forget_burst(&mut self, now: Instant) {
        self.quotas.forget_burst(now);
    }

    /// How long a canary must go unrefused, where that is learnt.
    #[inline(always)]
    fn silence(&self) -> Option<Duration> {
        (self.pace == Pace::Auto).then(|| self.learnt.silence())
    }

    /// The answer decides nothing for a canary: unless silence opens the gate (`auto`), the next call may be the canary.
    fn proves_nothing(&mut self, flight: &Flight) {
        if self.pace == Pace::Auto {
            return self.learnt.answered();
        }
        self.gate.lost(flight.number);
    }
}

const fn of(flight: &Flight, item: u64) -> Of {
    Of { item, caller: flight.caller, probe: flight.probe }
}

/// The limits of a tier where they act, or none.
fn acting<'a>(tier: Option<&'a Limits>, config: &PacerConfig) -> &'a Limits {
    const NONE: &Limits = &Limits { quotas: Vec::new(), burst: None };
    tier.filter(|_| config.pace != Pace::None).unwrap_or(NONE)
}

/// The first rate of a scope. Only limits of a minute or less bound the rate.
fn start(tier: &Limits, config: &PacerConfig) -> Start {
    let configured = || config.limits.quotas.iter().chain(&tier.quotas).filter(|quota| quota.window <= LONGEST_PACE);
    let requests = configured().filter(|quota| quota.dimension == Dimension::Requests);
    let rate = requests.map(|quota| quota.limit as f64 / quota.window.as_secs_f64()).reduce(f64::min);
    match config.start {
        Some(rate) => Start::At(rate),
        None if config.per_scope.is_some() || configured().next().is_some() => {
            Start::Configured(rate.map(|rate| rate.min(FASTEST_START)))
        }
        None => Start::Slow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has a scope for each of a hundred thousand customers pays for each. Queue, calls in flight and the outcomes
    /// that the breaker looks at come on top.
    #[test]
    fn a_scope_with_four_announced_limits_takes_less_than_2_kb() {
        let bytes = size_of::<Scope>() + 4 * size_of::<ServerLimits>();
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
