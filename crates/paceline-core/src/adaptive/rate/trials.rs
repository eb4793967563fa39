//! How trials change the rate.

use super::{DOUBLING, FIRST_CUT, HALF, MOST, Rate};

/// After a trial that found the rate too high, the rate returns to this part of it, ...
const BELOW: f64 = 0.8;

/// ... and what it cost is paid for by as many refusals as this many calls since the last reaction would have had.
const TRIAL_COSTS: f64 = 1_000.0;

impl Rate {
    /// The refusals were independent of the rate: it grows by time again, from where it is.
    pub(in super::super) fn starts_again(&mut self) {
        (self.ramp, self.again, self.hit, self.lost, self.tried) = (Some(DOUBLING), f64::INFINITY, 0.0, 0.0, 0.0);
    }

    /// Whether a trial is under way.
    pub(in super::super) const fn is_tried(&self) -> bool {
        self.tried > 0.0
    }

    /// The rate without a trial.
    #[cfg(test)]
    pub(in super::super) fn standing(&self) -> f64 {
        if self.is_tried() { self.tried.max(self.slowest) } else { self.x }
    }

    /// A trial begins: half the rate, until its outcomes show whether refusals follow the rate.
    pub(in super::super) fn tries_slower(&mut self) {
        self.tried = self.x;
        let part = if self.ramp.is_some() { FIRST_CUT } else { HALF };
        self.set(self.x * (1.0 - part));
    }

    /// A trial begins: twice the rate.
    pub(in super::super) fn tries_faster(&mut self) {
        self.tried = self.x;
        self.set(2.0 * self.x);
    }

    /// A trial ends without a result, and the rate before it counts.
    pub(in super::super) fn void(&mut self) {
        if self.is_tried() {
            self.set(self.tried);
        }
        self.tried = 0.0;
    }

    /// A trial ends without a result, and a reduced rate stays.
    pub(in super::super) fn stop_trying(&mut self) {
        if self.is_tried() {
            self.set(self.x.min(self.tried));
        }
        self.tried = 0.0;
    }

    /// The refusals before the trial were independent of the rate.
    pub(in super::super) fn was_chance(&mut self) {
        self.void();
        if core::mem::take(&mut self.ended_by_trials) == 1 {
            self.ramp = Some(DOUBLING);
        }
    }

    /// The rate before the trial was too high, `run` outcomes after the last reaction: the rate returns fast to one below.
    pub(in super::super) fn was_ours(&mut self, run: f64) {
        let before = core::mem::take(&mut self.tried);
        if before >= HALF * self.goal {
            self.cost = self.cost.max(MOST.min(TRIAL_COSTS / run.max(1.0)));
        }
        self.aim_below(before);
        self.set(self.x.max(HALF * before));
        if self.ramp.take().is_some() {
            (self.again, self.ended_by_trials) = (f64::INFINITY, 1);
        } else if self.ended_by_trials > 0 {
            self.ended_by_trials = 2;
        }
    }

    /// Half the rate was still too much: half of that.
    pub(in super::super) fn tries_again(&mut self) {
        self.aim_below(self.tried);
        self.tries_slower();
    }

    /// Half the rate is inconclusive: half of that.
    pub(in super::super) fn tries_deeper(&mut self) {
        self.set(self.x * HALF);
    }

    /// A rate that was too high is no goal; one far above it, from before an overload, stays one.
    fn aim_below(&mut self, before: f64) {
        self.goal = if before < HALF * self.goal {
            self.goal.max(BELOW * before)
        } else if before < self.goal {
            0.0
        } else {
            BELOW * before
        };
    }
}
