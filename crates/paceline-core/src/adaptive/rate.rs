//! How many calls a second: up with admitted calls, down once per congestion epoch.
//!
//! Growth is paid for. A refusal costs almost a fifth of the rate, or less where what passed since the last one measures the
//! limit, and that has to be earned again by about 170 admitted calls, so that about one call in 170 is refused while the limit
//! stands still. Growth is exponential in admitted calls, and faster after a stretch without any refusal, so a doubled limit is
//! found in a few payments however large it is.

#[cfg(test)]
mod tests;
mod trials;

use core::time::Duration;

use super::Start;
use super::schedule::Gaps;
use crate::time::{Instant, LATE};

/// Where a learnt rate is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trend {
    /// Doubling until the first refusal.
    Starting,
    /// Back to a rate that was good before an overload or the end of the start.
    Returning,
    /// Up, as admitted calls pay for it.
    Growing,
}

impl Trend {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Returning => "returning",
            Self::Growing => "growing",
        }
    }
}

/// The first rate, in calls a second: slow enough for any provider.
const START: f64 = 2.0;

/// The rate after a refusal that contradicts the configured limits, where nothing tells what the server allows.
const UNKNOWN: f64 = 1.0;

/// The start doubles the rate in this time at most, in seconds, ...
const DOUBLING: f64 = 0.7;

/// ... or in so many times the time of a refusal, if that is less: a doubling must see its own effect.
const DOUBLING_TIMES: f64 = 8.0;

/// The least time of a doubling, in seconds.
const LEAST_DOUBLING: f64 = 0.02;

/// A start that doubles in less than this time, in seconds, because answers come within milliseconds, waits for answers.
const HASTY: f64 = 0.1;

/// The part of the rate that the refusal takes which ends the start: the rate doubled while that call was under way.
const FIRST_CUT: f64 = 0.6;

/// The part of that rate to return to fast.
const BACK: f64 = 0.9;

/// The part of the rate that any other refusal takes: the rest is below the limit, but not far.
const CUT: f64 = 0.18;

/// The same where few calls were admitted since the last one: that was not enough.
const CUT_AGAIN: f64 = 0.2;

/// What passed between two refusals measures the limit from so many calls on, ...
const MEASURES: f64 = 30.0;

/// ... that took at least this time, in seconds: fewer were stored in a bucket, or the limit has just fallen.
const MEASURES_FOR: f64 = 1.5;

/// A cut goes no further than to this part of what was measured, ...
const MEASURED: f64 = 0.96;

/// ... but takes at least so much of the rate.
const LEAST_CUT: f64 = 0.06;

/// Before so many calls were admitted a refusal does not end the start: it was hardly a rate.
pub(super) const FIRST_CALLS: u64 = 6;

/// What is left of the rate when the provider is overloaded: its queues must drain.
const HALF: f64 = 0.5;

/// The factor on growth while the rate returns to a goal.
const RUSH: f64 = 10.0;

/// The most that the rate may exceed the measured admitted rate when a call is refused, as a factor.
pub(super) const AHEAD: f64 = 4.0;

/// Admitted calls that pay for a refusal.
pub(super) const PAY: f64 = 170.0;

/// A stretch without a refusal is longer than usual from so many payments on: the limit may have risen, ...
const QUIET: f64 = 1.5;

/// ... and growth becomes faster, up to so many times.
const FASTEST: f64 = 3.0;

/// A slow provider is paid no more than the calls of this time, in seconds, ...
const PAY_FOR: f64 = 10.0;

/// ... but at least so many: fewer do not measure a rate.
pub(super) const FEW: f64 = 56.0;

/// No payment takes longer than the calls of this time, in seconds: a rate cut by chance must recover.
const SLOWEST: f64 = 60.0;

/// So much of a payment, or of a rate, is nearly all of it.
const NEARLY: f64 = 0.9;

/// At most so many refusals of one epoch are paid for.
const MOST: f64 = 4.0;

/// A restored rate is halved after so long.
const HALVED_AFTER: Duration = Duration::from_mins(10);

const LN_2: f64 = core::f64::consts::LN_2;

/// The learnt rate of one scope.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    /// Calls a second.
    x: f64,
    /// The rate does not act: configured limits are trusted until a refusal contradicts them.
    trusts_config: bool,
    /// Time of a doubling while starting, in seconds.
    ramp: Option<f64>,
    /// Refusals in an epoch, smoothed.
    cost: f64,
    /// A rate to return to fast; 0: none.
    goal: f64,
    /// The start continues once the rate has returned to this one, at which it was refused; infinite: it was not.
    again: f64,
    /// Trials in a row that found the rate too high since one ended the start: if the second finds otherwise, the start
    /// continues.
    ended_by_trials: u8,
    /// The highest rate at which the limit may be.
    hit: f64,
    /// The rate after the last refusal.
    floor: f64,
    /// The rate before the trial that is under way; 0: none is.
    tried: f64,
    /// A long closure has been seen: a stretch without a refusal may be a window that fills up.
    windowed: bool,
    /// Seconds to make up for before growing: those that the last long closure took, or a penalty.
    lost: f64,
    /// When a call was refused last, and the rate that a refusal slowed down last.
    refused: Option<(Instant, f64)>,
    /// The part of the rate that the last refusal took: the payment for it earns just that again.
    taken: f32,
    /// The lowest rate: it bounds the time between two calls.
    slowest: f64,
}

impl Rate {
    /// `longest`: no two calls need to be further apart.
    pub(super) fn new(start: Start, longest: Duration) -> Self {
        let x = match start {
            Start::Slow | Start::Configured(None) => START,
            Start::At(rate) | Start::Configured(Some(rate)) => rate,
        };
        Self {
            x,
            trusts_config: matches!(start, Start::Configured(_)),
            ramp: Some(DOUBLING),
            cost: 1.0,
            goal: 0.0,
            again: f64::INFINITY,
            hit: 0.0,
            floor: 0.0,
            taken: CUT as f32,
            ended_by_trials: 0,
            tried: 0.0,
            windowed: false,
            lost: 0.0,
            refused: None,
            slowest: slowest(longest),
        }
    }

    pub(super) fn reconfigure(&mut self, longest: Duration) {
        self.slowest = slowest(longest);
        self.set(self.x);
    }

    /// Restores the rate that another process had learnt `age` ago. An old one is approached carefully: from a rate that is
    /// halved for every ten minutes, and fast from there. One that is no better than the start is dropped.
    pub(super) fn restore_estimate(&mut self, rate: f64, age: Duration) {
        let halvings = age.as_secs() / HALVED_AFTER.as_secs();
        let careful = BACK * rate / (1_u64 << halvings.min(62)) as f64;
        if careful > self.x || rate <= self.x {
            self.ramp = None;
            self.goal = rate;
            self.set(careful.max(rate.min(self.x) * BACK));
        }
    }

    /// What another process is to restore. It begins a part below that, as this one did where it still returns to its goal: else
    /// each start without calls would take that part again.
    pub(super) fn handed_on(&self) -> f64 {
        if self.trend() == Trend::Returning { self.goal.min(self.x / BACK) } else { self.x }
    }

    /// One that goes on from what another process believed so long ago.
    pub(super) fn after(&self, rate: f64, age: Duration, starting: bool) -> Self {
        let longest = Duration::from_secs_f64(1.0 / self.slowest);
        if starting && age < HALVED_AFTER {
            return Self::new(Start::At(rate), longest);
        }
        let mut after = Self::new(Start::Slow, longest);
        after.restore_estimate(rate, age);
        after
    }

    /// Where the rate is going.
    pub(super) fn trend(&self) -> Trend {
        match self.ramp {
            Some(_) => Trend::Starting,
            None if self.x < self.goal => Trend::Returning,
            None => Trend::Growing,
        }
    }

    /// When a refusal last slowed it down, and the rate before.
    pub(super) const fn refused(&self) -> Option<(Instant, f64)> {
        self.refused
    }

    /// Calls a second.
    pub(super) const fn per_second(&self) -> f64 {
        self.x
    }

    /// Whether configured limits alone hold back.
    pub(super) const fn trusts_config(&self) -> bool {
        self.trusts_config
    }

    /// The average call has become dearer by that factor: as many of its units pass as before.
    pub(super) fn dearer(&mut self, factor: f64) {
        if factor == 1.0 {
            return;
        }
        for rate in [&mut self.goal, &mut self.hit, &mut self.floor, &mut self.again, &mut self.tried] {
            *rate /= factor;
        }
        if let Some((_, rate)) = &mut self.refused {
            *rate /= factor;
        }
        self.set(self.x / factor);
    }

    /// How far apart calls leave at this rate.
    pub(super) fn gaps(&self) -> Gaps {
        let usual = self.gap();
        Gaps {
            usual,
            late: usual,
            longest: seconds(1.0 / self.slowest),
            unanswered: self.ramp.filter(|ramp| *ramp < HASTY).map(seconds),
            act: !self.trusts_config,
            beat: None,
        }
    }

    /// Calls a second as they leave: the start lets one call leave in the time of a doubling at least, for it grows with calls.
    pub(super) fn acting(&self) -> f64 {
        self.ramp.map_or(self.x, |ramp| self.x.max(1.0 / ramp))
    }

    /// The time between two usual calls.
    pub(super) fn gap(&self) -> Duration {
        seconds(1.0 / self.acting())
    }

    /// Admitted calls that pay for the refusals of an epoch.
    pub(super) fn payment(&self) -> f64 {
        self.pays_for(self.cost)
    }

    /// Admitted calls that pay for so many refusals.
    fn pays_for(&self, refusals: f64) -> f64 {
        (refusals * PAY.min(PAY_FOR * self.x).max(FEW)).min(SLOWEST * self.x)
    }

    /// A call leaves that only the rate held back, `run` admitted calls after the last refusal.
    pub(super) fn grow(&mut self, run: u64) {
        if self.is_tried() {
            return;
        }
        if self.ramp.is_none() && self.x >= self.again {
            (self.ramp, self.again) = (Some(DOUBLING), f64::INFINITY);
        }
        self.x += match self.ramp {
            Some(ramp) => LN_2 / ramp,
            None if self.x < self.goal => RUSH * CUT * self.x / self.payment(),
            None => self.to_earn() * self.x * self.haste(run) / self.payment().max(self.lost * self.x),
        };
    }

    /// The part of the rate that a payment earns: just below the rate of the last refusal what that took, else a usual cut.
    fn to_earn(&self) -> f64 {
        let earned = self.refused.map_or(1.0, |(_, rate)| self.x / rate);
        if (HALF..1.0).contains(&earned) { f64::from(self.taken) } else { CUT }
    }

    /// How many times as fast as usual to grow, when so many calls were admitted since the last refusal.
    fn haste(&self, run: u64) -> f64 {
        let quiet = run as f64 / self.payment() - QUIET;
        if self.windowed { 1.0 } else { (1.0 + quiet).clamp(1.0, FASTEST) }
    }

    /// Bounds the rate by the measured admitted rate: if something else held calls back, the rate is not what was refused.
    pub(super) fn bound(&mut self, admitted: Option<f64>) {
        if let Some(admitted) = admitted.filter(|_| self.ramp.is_none() && self.x >= self.goal) {
            self.set(self.x.min(AHEAD * admitted));
        }
    }

    /// The server announced a limit of so many calls a second: a start continues from there.
    pub(super) fn announced(&mut self, rate: f64) {
        self.set(self.x.max(rate));
    }

    /// A call succeeded; a refusal takes `time`.
    pub(super) fn succeeded(&mut self, time: Duration) {
        if let Some(ramp) = &mut self.ramp {
            *ramp = (DOUBLING_TIMES * time.as_secs_f64()).clamp(LEAST_DOUBLING, DOUBLING);
        }
    }

    /// A refusal contradicts the configured limits: the measured admitted rate takes over. Where callers asked seldom that is no
    /// measure of what the server allows: it is no less than where nothing was admitted.
    pub(super) fn contradicted(&mut self, admitted: f64) {
        if core::mem::take(&mut self.trusts_config) {
            self.set(admitted.max(UNKNOWN.min(self.x)));
        }
    }

    /// A refusal that opens an epoch.
    pub(super) fn epoch_opened(&mut self) {
        self.cost += 0.5 * (1.0 - self.cost);
    }

    /// A further refusal of the present epoch.
    pub(super) fn refused_again(&mut self) {
        self.cost = (self.cost + 0.5).min(MOST);
    }

    /// Cuts the rate, after so many admitted calls in all and `run` since the last epoch. Returns whether that ended the start.
    pub(super) fn cut(&mut self, now: Instant, admitted: u64, run: u64) -> bool {
        self.void();
        let (before, measured) = (self.x, self.measured(now, run));
        self.refused_at(now, before, run);
        let starting = self.ramp.is_some();
        self.goal = if starting { self.goal.max(BACK * self.x) } else { 0.0 };
        let part = match run as f64 {
            _ if starting => FIRST_CUT,
            run if run < FEW => CUT_AGAIN,
            _ => CUT,
        };
        if starting && admitted >= FIRST_CALLS {
            (self.again, self.ramp) = (self.x, None);
        }
        let after = before * (1.0 - part);
        self.set(measured.filter(|_| !starting).map_or(after, |rate| after.max(rate.min(before * (1.0 - LEAST_CUT)))));
        if !starting {
            self.taken = (1.0 - self.x / before).min(CUT) as f32;
        }
        (self.floor, self.lost) = (self.x, 0.0);
        starting
    }

    /// What the limit lets pass, a little less, where enough calls were admitted since the last refusal: at both refusals
    /// nothing was left of it, so what passed between them is what came in.
    fn measured(&self, now: Instant, run: u64) -> Option<f64> {
        let (at, _) = self.refused?;
        let (calls, time) = (run as f64, now.saturating_since(at).as_secs_f64());
        (calls >= MEASURES && time >= MEASURES_FOR).then(|| MEASURED * calls / time)
    }

    /// The provider is overloaded: halves the rate, which returns fast afterwards. Returns false during the start, which ends as
    /// at any other refusal.
    pub(super) fn overloaded(&mut self, now: Instant, run: u64) -> bool {
        let taken = self.ramp.is_none();
        if taken {
            let before = if self.is_tried() { core::mem::take(&mut self.tried) } else { self.x };
            self.refused_at(now, before, run);
            self.goal = self.goal.max(before);
            self.set(self.x * HALF);
        }
        taken
    }

    /// A call was refused, which slows nothing down: behind a closed gate there is no rate.
    pub(super) fn still_refused(&mut self, now: Instant) {
        self.refused = Some((now, self.refused.map_or(self.x, |(_, rate)| rate)));
    }

    /// A limit may be at that rate. It lowers the known one only if the rate had been earned again since.
    fn refused_at(&mut self, now: Instant, rate: f64, run: u64) {
        self.hit = if self.is_paid(run) { rate } else { self.hit.max(rate) };
        (self.refused, self.taken) = (Some((now, rate)), CUT as f32);
        self.ended_by_trials = 0;
    }

    /// Whether so many admitted calls pay for a refusal.
    fn is_paid(&self, run: u64) -> bool {
        run as f64 >= NEARLY * self.pays_for(1.0)
    }

    /// Whether a refusal after `run` admitted calls comes too early for a limit that stands still.
    pub(super) fn is_unpaid(&self, run: u64) -> bool {
        run >= 1 && !self.is_paid(run) && self.x < self.hit
    }

    /// A refusal that may be random takes half of the growth since the last one.
    pub(super) fn gives_back(&mut self) {
        self.set(self.x - 0.5 * (self.x - self.floor).max(0.0));
        self.floor = self.x;
    }

    /// Bounds the rate by what the provider sustains.
    pub(super) fn sustains(&mut self, most: f64) {
        self.goal = self.goal.min(most);
        self.set(self.x.min(BACK * most));
    }

    /// Something else limits from now on, or no longer.
    pub(super) fn scale(&mut self, factor: f64) {
        self.set(self.x * factor);
    }

    /// A quota window or an outage is over: it sustains `measured` calls a second, where that is known.
    pub(super) fn reopened_after(&mut self, lost: f64, measured: Option<f64>) {
        self.lost = lost;
        self.windowed = true;
        if let Some(rate) = measured {
            self.set(rate);
            // What a trial would go back to was measured as well.
            if self.is_tried() {
                self.tried = self.x;
            }
        }
    }

    /// A server that refused everything for a while is well again: that slowed the rate down for nothing. It returns fast to
    /// the one that `worked` before, and no start goes on there. So many calls a second passed before, where configured limits
    /// were trusted; `measured`: the outage included.
    pub(super) fn undo(&mut self, worked: &Self, passed: f64, measured: Option<f64>) {
        let worked = if worked.trusts_config { worked.x.max(passed) } else { worked.x };
        (self.goal, self.again) = (BACK * worked, f64::INFINITY);
        self.set(self.x.max(measured.unwrap_or(0.0)).max(UNKNOWN.min(worked)));
    }

    /// A short hint is over: continue at `rate` at most, and make up for `lost` seconds before growing.
    pub(super) fn settle_at(&mut self, rate: f64, lost: f64) {
        self.reopened_after(lost, Some(self.x.min(rate)));
        self.goal = 0.0;
    }

    fn set(&mut self, x: f64) {
        self.x = x.max(self.slowest);
    }
}

fn slowest(longest: Duration) -> f64 {
    1.0 / longest.max(LATE).as_secs_f64()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64)
}
