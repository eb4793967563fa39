//! The pace `auto`: learns an unannounced limit from the outcomes of calls.
//!
//! A few small policies; the strictest answer wins:
//!
//! - the [`ledger`]: which calls were admitted, and which refusals are one event;
//! - the [`gate`](crate::gate): closed for a while, then opened by one canary;
//! - the [`rate`]: calls a second, up with admitted calls, down once per event;
//! - the [`unit`]: whether the rate counts calls or their tokens;
//! - the [`cap`]: calls in flight, only where refusals follow that number.
//!
//! Only outcomes of calls change them. Announced and configured limits only hold back.

mod cap;
mod chance;
mod doubt;
mod estimate;
mod ledger;
mod rate;
#[cfg(test)]
mod tests;
mod trial;
mod unit;
mod window;

use alloc::boxed::Box;
use core::time::Duration;

pub use estimate::{GateState, RateEstimate};
pub use rate::Trend;

use cap::{Cap, Explains};
use chance::{Diagnosis, Kind, RefusalContext, Share, TrialResult};
use ledger::{Event, Ledger, Out};
use rate::{FEW, Rate};
use unit::Unit;

use crate::admit::{Admit, PauseCause, WaitCause};
use crate::flight::Flight;
use crate::gate::{Closure, Gate, Reopening};
use crate::hold::RunningClock;
use crate::rng::Rng;
use crate::time::Instant;

/// The longest closure of our own choice: a canary every 5 s wastes at most one call per 5 s.
pub(crate) const LONGEST_CLOSURE: Duration = Duration::from_secs(5);

/// The factor on the rate when the server repeats a hint after less work than that wait took.
const REPEATED: f64 = 0.6;

/// A closure this long was a quota window or an outage.
const LONG: Duration = Duration::from_secs(3);

/// The first hint counts as the end of a window if it is no longer than this: a longer one costs too much if it is wrong.
const BELIEVED: Duration = Duration::from_secs(15);

/// The part of such a window's sustained rate to continue at: another hint costs a whole wait, ...
const BELOW: f64 = 0.9;

/// ... so growth earns so many waits first.
const WAITS: f64 = 8.0;

/// After the start, the rate returns to at most so many times the admitted rate of the calls that were in flight when it ended.
const SUSTAINED: f64 = 1.5;

/// How the rate of a scope begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    /// No rate is known.
    Slow,
    /// At so many calls a second.
    At(f64),
    /// Limits are configured, of so many calls a second if they count calls: they alone hold back until a refusal contradicts
    /// them.
    Configured(Option<f64>),
}

/// Why a call was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many, or too fast.
    Throttled,
    /// The same, for an item that has been throttled twice before.
    Again,
    /// The provider lacks capacity.
    Overloaded,
}

impl Refusal {
    /// The cause of the pause after it; `asked`: the server gave its length.
    pub(crate) const fn cause(self, asked: bool) -> PauseCause {
        match self {
            Self::Overloaded => PauseCause::Overloaded { asked },
            Self::Throttled | Self::Again => PauseCause::Throttled { asked },
        }
    }
}

/// How a scope reacts to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Not at all: the refusal counts as random, and its item alone waits.
    Chance,
    /// Not again: the scope has slowed down for this event already.
    Known,
    /// The scope slows down.
    Slower,
}

/// Statistics of refusals.
#[derive(Clone, Debug)]
struct Refusals {
    /// Of throttled calls, and of overloaded ones.
    shares: [Share; 2],
    /// Earlier ones are not counted.
    from: Instant,
    out: Option<Out>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { shares: [Kind::Throttled, Kind::Overloaded].map(Share::new), from: Instant::ZERO, out: None }
    }
}

/// What one scope has learnt about its limit.
#[derive(Clone, Debug)]
pub(crate) struct AdaptiveRate {
    ledger: Ledger,
    rate: Rate,
    cap: Cap,
    unit: Unit,
    /// Made when the first call is refused.
    refusals: Option<Box<Refusals>>,
    /// Epochs in a row in which nothing was admitted.
    strikes: u32,
    /// The admitted calls and the time when the last long closure ended; initially, the beginning.
    reopened: Option<(u64, Instant)>,
    /// Calls admitted between the last two long closures, and the rate at the end of the last.
    cycle: Option<(f64, f64)>,
    /// Closures in a row that looked like those of a window.
    alike: u32,
    /// Every call that was in flight when the present closure began was refused.
    all_refused: bool,
    /// The last hint did not look like the end of a window.
    vain: bool,
    idle: RunningClock,
    /// The admitted calls and the time without idling at the last epoch that measured a rate.
    sampled: Option<(u64, Instant)>,
    /// The longest closure of our own choice.
    longest: Duration,
}

impl AdaptiveRate {
    /// `longest`: of the waits of our own choice.
    pub(crate) fn new(start: Start, longest: Duration) -> Self {
        Self {
            ledger: Ledger::new(),
            rate: Rate::new(start, longest),
            cap: Cap::new(),
            unit: Unit::new(),
            refusals: None,
            strikes: 0,
            reopened: None,
            cycle: None,
            alike: 0,
            all_refused: false,
            vain: false,
            idle: RunningClock::default(),
            sampled: None,
            longest: longest.min(LONGEST_CLOSURE),
        }
    }

    /// Changes the bound on the waits of our own choice; what was learnt stays.
    pub(crate) fn reconfigure(&mut self, longest: Duration) {
        self.rate.reconfigure(longest);
        self.longest = longest.min(LONGEST_CLOSURE);
    }

    /// The cap on calls in flight, where there is one, and calls a second.
    pub(crate) const fn limits(&self) -> (Option<u32>, f64) {
        (self.cap.limit(), self.rate.per_second())
    }

    /// Calls a second, if the rate acts: not while configured limits are trusted.
    pub(crate) const fn acting_rate(&self) -> Option<f64> {
        if self.rate.trusts_config() { None } else { Some(self.rate.per_second()) }
    }

    /// How long a canary must go unrefused to open the gate.
    pub(crate) const fn silence(&self) -> Duration {
        self.ledger.silence()
    }

    /// Notes whether any caller wants to send a call from now on.
    pub(crate) fn demand(&mut self, now: Instant, any: bool) {
        self.idle.set_standing(now, !any);
    }

    /// When a call may leave beside so many in flight, by rate and cap. After a closure the canary leaves whatever the rate is.
    pub(crate) fn admit(&self, now: Instant, gate: &Gate, in_flight: u32) -> Admit {
        if self.cap.is_full(in_flight) {
            return Admit::OnRelease { cause: WaitCause::Concurrency };
        }
        if !gate.is_open() {
            return Admit::Now;
        }
        Admit::at(self.rate.due(), now, || WaitCause::Rate { gap: self.rate.gap() })
    }

    /// A call leaves.
    pub(crate) fn sent(&mut self, now: Instant, gate: &Gate, flight: &Flight, canary: bool) {
        let Flight { number, in_flight, tokens, .. } = *flight;
        self.reopened.get_or_insert((0, now));
        self.sampled.get_or_insert((0, self.idle.read(now, now)));
        if let Some(out) = self.refusals.as_mut().and_then(|refusals| refusals.out.take())
            && gate.is_open()
        {
            self.rate.sustains(SUSTAINED * out.admitted());
        }
        self.ledger.sent(now, number);
        self.count_passed();
        self.conclude_trials(now);
        self.cap.sent(in_flight, self.rate.payment());
        if canary {
            self.ledger.expect(number);
        }
        self.rate.sent(now, gate.until(), !self.cap.is_full(in_flight), self.ledger.run());
        self.rate.counts_for(self.unit.sent(tokens));
    }

    /// So many calls left, the last of them now, whose outcomes are not reported.
    pub(crate) fn counted(&mut self, now: Instant, calls: u64) {
        self.reopened.get_or_insert((0, now));
        self.sampled.get_or_insert((0, self.idle.read(now, now)));
        self.ledger.counted(calls);
    }

    /// A call that was granted never left.
    pub(crate) fn never_sent(&mut self, number: u64) {
        self.ledger.forget(number);
    }

    /// Whether no refusal has ended the start yet.
    pub(crate) fn is_starting(&self) -> bool {
        self.rate.trend() == Trend::Starting
    }

    /// Whether a call has ever been refused, for whatever reason.
    pub(crate) const fn was_refused(&self) -> bool {
        self.refusals.is_some()
    }

    /// Headers announced a limit of so many calls a second. It only shortens the start: to be called while that lasts.
    pub(crate) fn announced(&mut self, rate: f64) {
        self.rate.announced(rate);
    }

    /// A call was answered, and the answer says nothing about the pace.
    pub(crate) const fn answered(&mut self) {
        self.rate.answered();
    }

    /// A call succeeded.
    pub(crate) fn succeeded(&mut self, now: Instant, flight: &Flight) {
        self.ledger.succeeded(flight.number, now - flight.sent);
        self.rate.succeeded(self.ledger.time());
    }

    /// The gate is open again.
    pub(crate) fn reopened(&mut self, now: Instant, reopening: &Reopening) {
        self.strikes = 0;
        let closed = reopening.closed.as_secs_f64();
        let long = reopening.closed >= LONG && closed >= 5.0 / self.rate.per_second();
        let was_window = long && self.reopened_after_long(now, reopening, closed);
        // A server that asked for a wait after few calls need not let two pass at once.
        if was_window || reopening.closure == Closure::Own {
            self.rate.free(now);
        }
    }

    /// A quota window or an outage is over. The sustained rate of a window is that of the calls admitted between two canaries. A
    /// hint that the server repeats without end is a penalty and no window. Returns whether so many were admitted that it may be
    /// a window.
    fn reopened_after_long(&mut self, now: Instant, reopening: &Reopening, closed: f64) -> bool {
        self.ledger.settle(now);
        let admitted = self.ledger.admitted();
        let (before, since) = self.reopened.unwrap_or((0, now));
        self.reopened = Some((admitted, reopening.canary));
        self.sampled = Some((admitted, self.idle.read(now, now)));
        let n = (admitted - before) as f64;
        let t = reopening.canary.saturating_since(since).as_secs_f64();
        let measured = (n >= FEW && t > 0.0).then(|| n / t);
        let cycle = self.cycle.replace((n, self.rate.per_second()));
        let alike = cycle.is_some_and(|before| self.is_window(n, before));
        self.alike = if alike { self.alike + 1 } else { 0 };
        let window = core::mem::take(&mut self.all_refused) || self.alike >= 2;
        self.vain = !window && matches!(reopening.closure, Closure::Hint | Closure::SameHint { .. });
        match reopening.closure {
            Closure::Own if window::is_usual(t) => self.rate.reopened_after(closed.max(window::KNOWN), measured),
            Closure::Own | Closure::NewHint => self.rate.reopened_after(closed, measured),
            Closure::Hint | Closure::SameHint { .. } if window => self.rate.reopened_after(closed, measured),
            Closure::Hint if n >= FEW && reopening.closed <= BELIEVED => {
                self.rate.settle_at(BELOW * n / closed, WAITS * closed);
            }
            Closure::Hint => self.rate.reopened_after(0.0, None),
            Closure::SameHint { wait, times } => {
                let penalty = f64::from(4_u32.saturating_pow(times).min(16));
                self.rate.reopened_after(wait.as_secs_f64() * penalty, None);
                if t - closed < wait.as_secs_f64() {
                    self.rate.scale(REPEATED);
                }
            }
        }
        n >= FEW
    }

    /// A window admits the same number of calls between two closures whatever the rate is; a bucket does not.
    fn is_window(&self, n: f64, (before, rate): (f64, f64)) -> bool {
        let alike = |a: f64, b: f64, by: f64| a <= by * b && b <= by * a;
        n >= FEW && alike(n, before, 1.1) && !alike(self.rate.per_second(), rate, 1.2)
    }

    /// Counts the calls admitted since the last time in the shares of refusals.
    fn count_passed(&mut self) {
        let Some(refusals) = &mut self.refusals else { return };
        let passed = self.ledger.passed();
        refusals.shares.iter_mut().for_each(|share| share.passed(passed));
    }

    /// Applies the results of trials that have ended.
    fn conclude_trials(&mut self, now: Instant) {
        for share in self.refusals.iter_mut().flat_map(|refusals| &mut refusals.shares) {
            match share.trial_result(now, self.rate.per_second()) {
                None => {}
                Some(TrialResult::Ours { run }) => self.rate.was_ours(run),
                Some(TrialResult::Chance) => self.rate.was_chance(),
                Some(TrialResult::Again) => self.rate.tries_again(),
                Some(TrialResult::Deeper) => self.rate.tries_deeper(),
                Some(TrialResult::Believed) => self.rate.starts_again(),
                Some(TrialResult::Refuted) => self.rate.void(),
            }
        }
    }

    /// Configured limits are contradicted: the rate continues from the measured admitted rate.
    fn contradict(&mut self, now: Instant) {
        let (calls, since) = self.reopened.unwrap_or((0, now));
        let t = now.saturating_since(since).as_secs_f64().max(1.0);
        self.rate.contradicted((self.ledger.admitted() - calls + 1) as f64 / t);
    }

    /// Whether a refusal was caused by our rate. If not, the ledger drops the call.
    fn is_ours(&mut self, now: Instant, gate: &Gate, number: u64, last: u64, overloaded: bool) -> bool {
        self.ledger.settle(now);
        self.refusals.get_or_insert_with(Box::default);
        self.count_passed();
        let (starting, unpaid) = (self.is_starting(), self.rate.is_unpaid(self.ledger.run()));
        let refusals = self.refusals.as_mut().expect("they were made above");
        let seen = RefusalContext {
            new: self.ledger.is_watched(number) && self.ledger.is_new(number) && now >= refusals.from,
            open: gate.is_open(),
            starting,
            unpaid,
            soon: unpaid || self.vain,
            trying: self.rate.is_tried(),
        };
        let means = refusals.shares[usize::from(overloaded)].refused(now, &seen);
        match means {
            Diagnosis::Ours => return true,
            Diagnosis::Chance => {}
            Diagnosis::GiveBack => self.rate.gives_back(),
            Diagnosis::TrySlower | Diagnosis::TryFaster => self.try_out(now, last, means == Diagnosis::TryFaster),
        }
        self.ledger.forget(number);
        false
    }

    /// Begins a trial: calls up to `last` do not count, and neither do refusals before its first call can be admitted.
    fn try_out(&mut self, now: Instant, last: u64, faster: bool) {
        self.contradict(now);
        self.ledger.watch_from(last);
        if let Some(refusals) = &mut self.refusals {
            refusals.from = now + self.ledger.silence();
        }
        if faster { self.rate.tries_faster() } else { self.rate.tries_slower() }
    }

    /// A call was refused; `last` is the newest call sent. Returns whether the scope slows down.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        gate: &mut Gate,
        flight: &Flight,
        last: u64,
        refusal: Refusal,
        rng: &mut Rng,
    ) -> Reaction {
        let overloaded = refusal == Refusal::Overloaded;
        self.rate.answered();
        if !self.is_ours(now, gate, flight.number, last, overloaded) {
            if !overloaded {
                self.unit.refused(flight.tokens);
            }
            return Reaction::Chance;
        }
        match self.ledger.refused(now, flight.number, flight.sent, last) {
            Event::Belongs { all_refused } => {
                self.rate.refused_again();
                if let Some(out) = self.refusals.as_mut().and_then(|refusals| refusals.out.as_mut()) {
                    out.refused();
                }
                self.all_refused |= all_refused;
                if all_refused && gate.is_open() {
                    self.close(now, gate, rng);
                }
                Reaction::Known
            }
            // While others pass, an item that is refused repeatedly says nothing about the rate.
            Event::Opens { run } if refusal == Refusal::Again && run as f64 >= FEW && gate.is_open() => Reaction::Known,
            Event::Opens { run } => {
                self.contradict(now);
                self.rate.epoch_opened();
                self.strikes = if run < 1 { self.strikes + 1 } else { 0 };
                let tried = self
                    .refusals
                    .iter_mut()
                    .flat_map(|refusals| &mut refusals.shares)
                    .fold(false, |tried, share| share.void() | tried);
                if tried && !overloaded && gate.is_open() {
                    self.rate.void();
                }
                self.epoch_opened(now, gate, flight, run, overloaded, rng);
                Reaction::Slower
            }
        }
    }

    fn epoch_opened(
        &mut self,
        now: Instant,
        gate: &mut Gate,
        flight: &Flight,
        run: u64,
        overloaded: bool,
        rng: &mut Rng,
    ) {
        if !gate.is_open() {
            self.rate.still_refused(now);
            self.rate.stop_trying();
            return self.close(now, gate, rng);
        }
        if !overloaded {
            if run >= 1 {
                self.unit.refused(flight.tokens);
            }
            if self.cap.refused(flight.in_flight, run, &mut self.rate) == Explains::All {
                return self.ledger.decide();
            }
        }
        let undecided_calls = self.rate.per_second() * self.silence().as_secs_f64();
        if self.strikes > u32::from(undecided_calls <= 1.0) {
            return self.close(now, gate, rng);
        }
        if self.strikes == 0 {
            gate.begins(flight.sent);
        }
        let admitted = self.admitted_rate(now).filter(|_| self.cap.limit().is_none());
        self.rate.bound(admitted);
        let start_ended =
            !(overloaded && self.rate.overloaded(now, run)) && self.rate.cut(now, self.ledger.admitted(), run);
        if let Some(refusals) = self.refusals.as_mut().filter(|_| start_ended) {
            refusals.out = self.ledger.out(flight.sent);
        }
        // The calls in flight are decided first.
        let action = if start_ended || self.ledger.is_undecided() { self.silence() } else { Duration::ZERO };
        gate.hold(now + self.rate.gap().max(action));
    }

    /// Admitted calls a second, without idling, since the last sample; none if they are too few.
    fn admitted_rate(&mut self, now: Instant) -> Option<f64> {
        let (admitted, time) = (self.ledger.admitted(), self.idle.read(now, now));
        let (calls, since) = self.sampled.unwrap_or((0, time));
        let n = (admitted - calls) as f64;
        if n < FEW {
            return None;
        }
        self.sampled = Some((admitted, time));
        let t = time.saturating_since(since).as_secs_f64();
        (t > 0.0).then(|| n / t)
    }

    /// Closes the gate for a while of our own choice, because everything is refused.
    fn close(&self, now: Instant, gate: &mut Gate, rng: &mut Rng) {
        let two_calls = Duration::from_secs_f64((2.0 / self.rate.per_second()).min(2.0));
        let least = two_calls.max(self.silence()).min(self.longest);
        let likely = self.reopened.and_then(|(_, began)| window::next_end(began, now + least));
        gate.close(now, least, self.longest, 0.9 + 0.2 * rng.unit(), likely);
    }
}
