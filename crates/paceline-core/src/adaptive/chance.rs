//! Whether refusals are caused by our rate, or random.
//!
//! Two 503 in a hundred calls are an ordinary day of a provider, and some refuse a call now and then without a reason. A
//! pace that slows down for each of them ends at a standstill. So a [`Trial`] finds out what refusals mean:
//!
//! - *Overloaded* answers (503, 529) count as random until their share is well above the one known to be random. Then a trial
//!   halves the rate. If that all but ends them, our rate was the cause and stays down; if not, that share counts as random
//!   from then on.
//! - *Throttled* answers (429) count as caused by our rate, until they come too soon after one another for a limit. Then a trial
//!   doubles the rate. If that is refused no more often, they were random: they are treated like the overloaded ones, and the
//!   start continues.

use core::time::Duration;

use super::doubt::Doubt;
use super::trial::{LARGEST, Shows, Trial};
use crate::time::Instant;

/// The share is smoothed over about fifty calls.
const SMOOTHING: f64 = 0.02;

/// The usual share is averaged over so many calls.
const USUALLY: f64 = 1_000.0;

/// A share so far above the random one starts a trial, if it is also ...
const MARGIN: f64 = 0.08;

/// (this one instead, once a trial has shown that our rate is the cause)
const MARGIN_OF_OURS: f64 = 0.05;

/// ... so many standard deviations above.
const DEVIATIONS: f64 = 3.5;

/// A share above this is not random if it is twice as far above the known one, ...
const SEVERE: f64 = 0.4;

/// ... nor are so many refusals in a row, ...
const ROW: u32 = 6;

/// ... if a random row as long is less likely than this.
const UNLIKELY: f64 = 1e-7;

/// A trial waits for so many outcomes after a reaction, ...
const PATIENCE: f64 = 20.0;

/// ... or so many once a trial has shown that our rate is the cause.
const PATIENCE_WITH_OURS: f64 = 10.0;

/// The known share of random refusals decays to 0 in this time.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// If a random share above this is known, a single throttle takes no more than the growth since the last.
const KNOWN: f64 = 0.003;

/// Our rate is the cause if more than this share of the last fifty calls was throttled.
const MANY: f64 = 0.15;

/// If more than this share of throttles is usual, a trial is inconclusive: doubling one of many processes that share a limit
/// changes little.
const USUAL_THROTTLES: f64 = 0.25;

/// Which refusals are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Throttled,
    Overloaded,
}

/// The state of the other policies at a refusal.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusalContext {
    /// The call left after the last reaction.
    pub(super) new: bool,
    /// No canary is needed or in flight.
    pub(super) open: bool,
    pub(super) starting: bool,
    /// The rate is below the one that was refused, and too few calls were admitted since then to have found a limit again.
    pub(super) unpaid: bool,
    /// It comes too soon for a limit: unpaid, or right after a hint that did not end a window.
    pub(super) soon: bool,
    /// A trial is under way.
    pub(super) trying: bool,
}

/// What a refusal means, and the reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Diagnosis {
    /// Random, or not decided yet.
    Chance,
    /// A trial begins at half the rate.
    TrySlower,
    /// A trial begins at twice the rate.
    TryFaster,
    /// Perhaps random: takes back the growth since the last one.
    GiveBack,
    /// Our rate is the cause.
    Ours,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TrialResult {
    /// Our rate was the cause; `run`: outcomes from the last reaction to the trial.
    Ours { run: f64 },
    /// The refusals were random.
    Chance,
    /// Still too many: once more from here.
    Again,
    /// Inconclusive: once more, deeper.
    Deeper,
    /// Twice the rate was refused no more often: the start continues.
    Believed,
    /// Twice the rate was refused more often.
    Refuted,
}

/// The share of one kind of refusals among the calls of a scope.
#[derive(Clone, Debug)]
pub(super) struct Share {
    kind: Kind,
    now: f64,
    /// The share over a long time, without trials; and the number of its outcomes.
    usual: f64,
    known_calls: f64,
    /// The share known to be random, and when.
    chance: f64,
    known: Instant,
    /// Outcomes since the last reaction.
    outcomes: f64,
    /// Refusals in a row.
    row: u32,
    trial: Option<Trial>,
    /// The last result: our rate causes the refusals.
    ours: bool,
    doubt: Doubt,
}

impl Share {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            now: 0.0,
            usual: 0.0,
            known_calls: 0.0,
            chance: 0.0,
            known: Instant::ZERO,
            outcomes: 0.0,
            row: 0,
            trial: None,
            ours: kind == Kind::Throttled,
            doubt: Doubt::default(),
        }
    }

    /// So many calls were admitted.
    pub(super) fn passed(&mut self, calls: u64) {
        if calls == 0 {
            return;
        }
        // After a thousand calls nothing is left of a share.
        for _ in 0..calls.min(1_000) {
            self.now -= SMOOTHING * self.now;
        }
        self.row = 0;
        self.doubt.passed(calls as f64);
        self.count(calls as f64, 0.0);
    }

    fn count(&mut self, outcomes: f64, refused: f64) {
        self.outcomes += outcomes;
        if let Some(trial) = &mut self.trial {
            return trial.count(outcomes, refused);
        }
        self.known_calls = (self.known_calls + outcomes).min(USUALLY);
        self.usual += (refused - self.usual * outcomes) / self.known_calls.max(outcomes);
    }

    /// A call was refused.
    pub(super) fn refused(&mut self, now: Instant, seen: &RefusalContext) -> Diagnosis {
        if seen.new {
            self.now += SMOOTHING * (1.0 - self.now);
            self.row = self.row.saturating_add(1);
            self.count(1.0, 1.0);
        }
        let alone = self.doubt.is_alone();
        if let Some(trial) = self.trial.filter(Trial::is_faster) {
            if trial.is_too_fast() {
                self.trial = None;
                self.doubt.refuted();
                return Diagnosis::Ours;
            }
            return Diagnosis::Chance;
        }
        let chance = self.chance(now);
        if seen.new && seen.open && !seen.starting && self.is_limited() {
            let telling = !seen.trying && self.usual <= USUAL_THROTTLES;
            if alone && telling && self.doubt.refused(seen.soon) {
                self.trial = Some(Trial::faster(self.now, self.usual));
                return Diagnosis::TryFaster;
            }
            if seen.unpaid && chance > KNOWN && self.now < MANY {
                return Diagnosis::GiveBack;
            }
        }
        let severe = self.is_severe(chance);
        if !seen.open || severe || self.is_limited() {
            if severe && seen.new {
                (self.outcomes, self.trial) = (0.0, None);
            }
            return Diagnosis::Ours;
        }
        let patience = if self.ours { PATIENCE_WITH_OURS } else { PATIENCE };
        if seen.new && !seen.trying && self.outcomes >= patience && self.is_above(self.now, chance, 1.0) {
            self.trial = Some(Trial::slower(self.now, self.usual, self.outcomes));
            (self.now, self.row) = (chance, 0);
            return Diagnosis::TrySlower;
        }
        Diagnosis::Chance
    }

    /// Whether a single refusal counts as one of a limit.
    fn is_limited(&self) -> bool {
        self.ours && self.kind == Kind::Throttled
    }

    /// Cancels the trial, because something else happened. Returns whether one was under way.
    pub(super) fn void(&mut self) -> bool {
        self.trial.take().is_some()
    }

    /// The result of the trial at so many calls a second, once it has ended.
    pub(super) fn trial_result(&mut self, now: Instant, rate: f64) -> Option<TrialResult> {
        let trial = self.trial?;
        let share = trial.share(rate)?;
        (self.outcomes, self.row, self.trial) = (0.0, 0, None);
        Some(if trial.is_faster() {
            self.after_faster(now, &trial, share)
        } else {
            self.after_slower(now, &trial, share)
        })
    }

    fn after_slower(&mut self, now: Instant, trial: &Trial, share: f64) -> TrialResult {
        let chance = self.chance(now);
        let shows = trial.shows(share);
        if share > LARGEST || shows == Shows::Fell && self.is_above(share, chance, 1.0) {
            self.trial = Some(Trial::slower(self.now, self.usual, 0.0));
            return TrialResult::Again;
        }
        match shows {
            Shows::Unclear => {
                self.trial = Some(trial.deeper(share));
                TrialResult::Deeper
            }
            Shows::Fell => {
                // Throttles that were random before a limit was found are so below it.
                let below = if self.kind == Kind::Throttled { chance } else { 0.0 };
                self.knows(now, share.max(below), true);
                TrialResult::Ours { run: trial.run }
            }
            Shows::Stayed => {
                self.knows(now, share.max(chance).max(0.5 * (trial.before + share)), false);
                TrialResult::Chance
            }
        }
    }

    fn after_faster(&mut self, now: Instant, trial: &Trial, share: f64) -> TrialResult {
        if !trial.is_chance(share) {
            self.doubt.refuted();
            return TrialResult::Refuted;
        }
        self.doubt.confirmed();
        self.knows(now, share.max(self.usual), false);
        TrialResult::Believed
    }

    fn knows(&mut self, now: Instant, chance: f64, ours: bool) {
        (self.now, self.chance, self.known, self.ours) = (chance, chance, now, ours);
    }

    fn chance(&self, now: Instant) -> f64 {
        let age = now.saturating_since(self.known).as_secs_f64();
        self.chance * (1.0 - age / FORGOTTEN.as_secs_f64()).max(0.0)
    }

    /// Whether the present refusals cannot be random, so that no trial is needed.
    fn is_severe(&self, chance: f64) -> bool {
        // A longer row than thirty changes nothing.
        let likely = (0..self.row.min(30)).fold(1.0, |likely, _| likely * chance);
        self.now > SEVERE && self.is_above(self.now, chance, 2.0) || self.row >= ROW && likely < UNLIKELY
    }

    /// Whether a share exceeds the random one by so many margins.
    fn is_above(&self, share: f64, chance: f64, times: f64) -> bool {
        let margin = if self.ours && self.kind == Kind::Overloaded { MARGIN_OF_OURS } else { MARGIN };
        let (off, deviations) = (share - chance, times * DEVIATIONS);
        // The variance of a smoothed share is half the smoothing times that of a single outcome.
        off > times * margin && off * off > deviations * deviations * chance * (1.0 - chance) * SMOOTHING / 2.0
    }
}
