//! The decision: how fast calls leave, how many at once, and what the limit counts, as the evidence shows.
//!
//! It knows no single call, only how many were admitted and what was refused.

mod refused;

use alloc::boxed::Box;
use core::time::Duration;

use super::cap::Cap;
use super::chance::{Diagnosis, Kind, RefusalContext, Share, TrialResult};
use super::evidence::{Evidence, Out, Refused};
use super::first_tries::FirstTries;
use super::rate::{FEW, Rate, Trend};
use super::unit::Unit;
use super::window::{self, Cycle, alike};
use super::{LONGEST_CLOSURE, Refusal, Start};
use crate::flight::Flight;
use crate::gate::{Closure, Gate, Reopening};
use crate::repeats::Repeats;
use crate::rng::Rng;
use crate::state::LearntState;
use crate::time::Instant;

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

/// Statistics of refusals.
#[derive(Clone, Debug)]
pub(super) struct Refusals {
    /// Of throttled calls, and of overloaded ones.
    shares: [Share; 2],
    first_tries: FirstTries,
    throttled: Repeats,
    /// Earlier ones are not counted.
    from: Instant,
    pub(super) out: Option<Out>,
    /// The rate before the last refusal that followed on admitted calls, and the items that were refused since the gate closed.
    before: Option<Rate>,
    /// The rate before everything was refused last, unless that looked like the same window again: for a person who says that the
    /// server is well.
    worked: Option<Rate>,
    closed_by: RefusedItems,
    /// A refusal that refuted no configured limit; a second one of its event does.
    excused: Option<Excused>,
}

#[derive(Clone, Copy, Debug)]
struct Excused {
    /// Of calls that left after it.
    era: u64,
    /// Calls that were admitted before it.
    run: u64,
}

/// The items that were refused since the gate closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RefusedItems {
    #[default]
    None,
    One(u64),
    Several,
}

impl Default for Refusals {
    fn default() -> Self {
        let shares = [Kind::Throttled, Kind::Overloaded].map(Share::new);
        let (first_tries, throttled) = (FirstTries::default(), Repeats::default());
        Self {
            shares,
            first_tries,
            throttled,
            from: Instant::ZERO,
            out: None,
            before: None,
            worked: None,
            closed_by: RefusedItems::None,
            excused: None,
        }
    }
}

/// What is believed of the limit of one scope.
#[derive(Clone, Debug)]
pub(super) struct RateDecision {
    pub(super) rate: Rate,
    pub(super) cap: Cap,
    pub(super) unit: Unit,
    /// Made when the first call is refused.
    pub(super) refusals: Option<Box<Refusals>>,
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
    /// The admitted calls and the busy time at the last epoch that measured a rate.
    pub(super) sampled: Option<(u64, Instant)>,
    /// The longest wait of our own choice.
    longest: Duration,
}

impl RateDecision {
    /// `longest`: of the waits of our own choice.
    pub(super) fn new(start: Start, longest: Duration) -> Self {
        Self {
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
            sampled: None,
            longest,
        }
    }

    pub(super) fn reconfigure(&mut self, longest: Duration) {
        self.rate.reconfigure(longest);
        self.longest = longest;
    }

    /// Goes on from what another process believed; `starting`: no refusal had ended the start.
    pub(super) fn goes_on(&mut self, now: Instant, state: &LearntState, starting: bool, evidence: &Evidence) {
        let LearntState { rate, tokens, ago, .. } = *state;
        let slow = self.rate.after(rate, ago, starting);
        *self = Self {
            rate: slow,
            unit: Unit::restored(tokens.map(|tokens| tokens / rate)),
            reopened: Some((evidence.admitted(), now)),
            sampled: Some((evidence.admitted(), evidence.busy_time(now))),
            ..Self::new(Start::Slow, self.longest)
        };
    }

    /// Whether no refusal has ended the start yet.
    pub(super) fn is_starting(&self) -> bool {
        self.rate.trend() == Trend::Starting
    }

    /// Whether no call has left yet.
    pub(super) const fn is_new(&self) -> bool {
        self.reopened.is_none()
    }

    /// Calls leave: what is measured is measured from the first on.
    pub(super) fn begins(&mut self, now: Instant, evidence: &Evidence) {
        self.reopened.get_or_insert((0, now));
        self.sampled.get_or_insert((0, evidence.busy_time(now)));
    }

    /// The first call after the end of the start leaves, through an open gate: how many of those that were out then were admitted
    /// is known.
    pub(super) fn bounds_the_start(&mut self, gate: &Gate) {
        if let Some(out) = self.refusals.as_mut().and_then(|refusals| refusals.out.take())
            && gate.is_open()
        {
            self.rate.sustains(SUSTAINED * out.admitted());
        }
    }

    /// Takes what was admitted since the last time, and the results of trials that have ended.
    pub(super) fn take_passed(&mut self, now: Instant, evidence: &mut Evidence) {
        self.count_passed(evidence);
        self.conclude_trials(now);
    }

    /// The gate is open again. Returns whether the next call may leave at once.
    pub(super) fn reopened(&mut self, now: Instant, evidence: &mut Evidence, reopening: &Reopening) -> bool {
        let refused_all = core::mem::take(&mut self.strikes) > 0;
        let (before, is_of_one) = self.refusals.as_mut().map_or((None, false), |refusals| {
            let closed_by = core::mem::take(&mut refusals.closed_by);
            (refusals.before.take(), matches!(closed_by, RefusedItems::One(_)))
        });
        let closed = reopening.closed.as_secs_f64();
        let long = reopening.closed >= LONG && closed >= 5.0 / self.rate.per_second();
        let passed = self.cycle.map(|(n, _)| n);
        let worked = before.clone().filter(|_| refused_all && long);
        let was_window = long && self.reopened_after_long(now, evidence, reopening, worked.as_ref());
        if let Some(refusals) = self.refusals.as_mut().filter(|_| worked.is_some()) {
            refusals.worked = worked.filter(|_| self.alike == 0);
        }
        let as_many = passed.zip(self.cycle).is_some_and(|(before, (n, _))| long && alike(n, before, 1.1));
        if let Some(before) = before.filter(|_| reopening.in_vain && is_of_one && !as_many) {
            self.rate = before;
            return false;
        }
        // A server that asked for a wait after few calls need not let two pass at once.
        was_window || reopening.closure == Closure::Own
    }

    /// A person says that the server is well: the rate returns to the one before everything was refused.
    pub(super) fn lifted(&mut self) {
        let Some(refusals) = &mut self.refusals else { return };
        let worked = if self.strikes > 0 { refusals.before.clone() } else { refusals.worked.take() };
        if let Some(worked) = worked {
            self.rate.undo(&worked, 0.0, None);
        }
    }

    /// A quota window or an outage is over. The sustained rate of a window is that of the calls admitted between two canaries. A
    /// hint that the server repeats without end is a penalty and no window. `worked`: the rate before everything was refused.
    /// Returns whether so many were admitted that it may be a window.
    fn reopened_after_long(
        &mut self,
        now: Instant,
        evidence: &mut Evidence,
        reopening: &Reopening,
        worked: Option<&Rate>,
    ) -> bool {
        evidence.settle(now);
        let closed = reopening.closed.as_secs_f64();
        let admitted = evidence.admitted();
        let (before, since) = self.reopened.unwrap_or((0, now));
        self.reopened = Some((admitted, reopening.canary));
        self.sampled = Some((admitted, evidence.busy_time(now)));
        let n = (admitted - before) as f64;
        let t = reopening.canary.saturating_since(since).as_secs_f64();
        let measured = (n >= FEW && t > 0.0).then(|| n / t);
        let cycle = self.cycle.replace((n, self.rate.per_second()));
        let alike = cycle.is_some_and(|before| self.is_window(n, before));
        self.alike = if alike { self.alike + 1 } else { 0 };
        let window = core::mem::take(&mut self.all_refused) || self.alike >= 2;
        self.vain = !window && matches!(reopening.closure, Closure::Hint | Closure::SameHint { .. });
        let seen = Cycle { n, passed: (t - closed).max(1.0), closed };
        let outage = worked.filter(|worked| seen.is_outage(worked, cycle.map(|(n, _)| n)));
        match (reopening.closure, outage) {
            (Closure::Own, Some(worked)) => self.rate.undo(worked, n / seen.passed, measured),
            (Closure::Own, None) if window::is_usual(t) => {
                self.rate.reopened_after(closed.max(window::KNOWN), measured)
            }
            (Closure::Own | Closure::NewHint, _) => self.rate.reopened_after(closed, measured),
            (Closure::Hint | Closure::SameHint { .. }, _) if window => self.rate.reopened_after(closed, measured),
            (Closure::Hint, _) if n >= FEW && reopening.closed <= BELIEVED => {
                self.rate.settle_at(BELOW * n / closed, WAITS * closed);
            }
            (Closure::Hint, _) => self.rate.reopened_after(0.0, None),
            (Closure::SameHint { wait, times }, _) => {
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
    pub(super) fn is_window(&self, n: f64, (before, rate): (f64, f64)) -> bool {
        n >= FEW && alike(n, before, 1.1) && !alike(self.rate.per_second(), rate, 1.2)
    }

    /// Counts the calls admitted since the last time in the shares of refusals.
    fn count_passed(&mut self, evidence: &mut Evidence) {
        let Some(refusals) = &mut self.refusals else { return };
        let passed = evidence.passed();
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
    fn contradict(&mut self, now: Instant, evidence: &Evidence) {
        let (calls, since) = self.reopened.unwrap_or((0, now));
        let t = now.saturating_since(since).as_secs_f64().max(1.0);
        self.rate.contradicted((evidence.admitted() - calls + 1) as f64 / t);
    }

    /// A call succeeded: what is refused again and again meanwhile is so by itself.
    pub(super) fn succeeded(&mut self, item: u64) {
        self.refusals.iter_mut().for_each(|refusals| refusals.throttled.succeeded(item));
    }

    /// A call of that item was refused, and the gate is closed.
    pub(super) fn closed_by(&mut self, item: u64) {
        let Some(refusals) = &mut self.refusals else { return };
        refusals.closed_by = match refusals.closed_by {
            RefusedItems::None => RefusedItems::One(item),
            RefusedItems::One(before) if before == item => refusals.closed_by,
            RefusedItems::One(_) | RefusedItems::Several => RefusedItems::Several,
        };
    }

    /// Whether an item was told to wait again while most others succeeded.
    pub(super) fn is_bad(&self, item: u64) -> bool {
        self.refusals.as_ref().is_some_and(|refusals| refusals.throttled.is_bad(item))
    }

    /// Whether a refusal shows that its item is refused, and nothing about the pace: it was twice before, most others have
    /// succeeded since, and so do items that are tried for the first time. The server refuses that item, such as a page that is
    /// broken for good or has a limit of its own.
    pub(super) fn is_of_its_item(
        &mut self,
        evidence: &mut Evidence,
        gate: &Gate,
        flight: &Flight,
        why: Refusal,
    ) -> bool {
        let Refusals { first_tries, throttled, .. } = &mut **self.refusals.get_or_insert_default();
        first_tries.passed(evidence.first_tries());
        if flight.is_first && why != Refusal::OverloadedItem {
            first_tries.refused();
        }
        let is_bad = match why {
            Refusal::Throttled | Refusal::Again => false,
            Refusal::ThrottledHeld | Refusal::AgainHeld => throttled.failed(flight.item) && why == Refusal::AgainHeld,
            Refusal::Overloaded | Refusal::OverloadedItem => why == Refusal::OverloadedItem,
        };
        is_bad && gate.is_open() && first_tries.pass()
    }

    /// Whether a refusal was caused by our rate.
    pub(super) fn is_ours(&mut self, now: Instant, evidence: &mut Evidence, gate: &Gate, call: &Refused) -> bool {
        let overloaded = call.why == Refusal::Overloaded;
        self.refusals.get_or_insert_with(Box::default);
        self.count_passed(evidence);
        let (starting, unpaid) = (self.is_starting(), self.rate.is_unpaid(evidence.run()));
        let refusals = self.refusals.as_mut().expect("they were made above");
        let seen = RefusalContext {
            new: call.era == evidence.era() && now >= refusals.from,
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
            Diagnosis::TrySlower | Diagnosis::TryFaster => {
                self.try_out(now, evidence, means == Diagnosis::TryFaster);
            }
        }
        if !overloaded {
            self.unit.refused(call.tokens);
        }
        false
    }

    /// Begins a trial: calls that have left do not count, and neither do refusals before its first call can be admitted.
    fn try_out(&mut self, now: Instant, evidence: &mut Evidence, faster: bool) {
        self.contradict(now, evidence);
        evidence.watch();
        if let Some(refusals) = &mut self.refusals {
            refusals.from = now + evidence.known_after();
        }
        if faster { self.rate.tries_faster() } else { self.rate.tries_slower() }
    }

    /// Admitted calls a second of busy time since the last sample; none if they are too few.
    fn admitted_rate(&mut self, now: Instant, evidence: &Evidence) -> Option<f64> {
        let (admitted, time) = (evidence.admitted(), evidence.busy_time(now));
        let (calls, since) = self.sampled.unwrap_or((0, time));
        let n = (admitted - calls) as f64;
        if n < FEW {
            return None;
        }
        self.sampled = Some((admitted, time));
        let t = time.saturating_since(since).as_secs_f64();
        (t > 0.0).then(|| n / t)
    }

    /// All calls have been refused since then, and none is under way.
    pub(super) fn all_refused(&self, now: Instant, gate: &mut Gate, since: Instant, rng: &mut Rng) {
        gate.all_refused(now, since, self.longest, || spread(rng));
    }

    /// Closes the gate for a while of our own choice, because everything is refused.
    fn close(&self, now: Instant, evidence: &Evidence, gate: &mut Gate, rng: &mut Rng) {
        let two_calls = Duration::from_secs_f64((2.0 / self.rate.per_second()).min(2.0));
        let least = two_calls.max(evidence.silence()).min(self.longest).min(LONGEST_CLOSURE);
        let likely = self.reopened.and_then(|(_, began)| window::next_end(began, now + least));
        gate.close(now, least, self.longest, spread(rng), likely);
    }
}

/// Many processes must not come back together.
fn spread(rng: &mut Rng) -> f64 {
    0.9 + 0.2 * rng.unit()
}
