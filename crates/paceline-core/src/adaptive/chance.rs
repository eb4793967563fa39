//! Whether refusals have anything to do with our rate.
//!
//! Two 503 in a hundred calls are an ordinary day of a provider, and some refuse a call now and then without a reason. A
//! pace that slows down for each of them ends at a standstill. So what refusals mean is found out by a [`Trial`]:
//!
//! - *Overloaded* answers (503, 529) are taken for chance until their share is well above what is known to be chance. Then a
//!   trial halves the rate. Where that all but ends them it was our doing and the rate stays down; where it does not, that
//!   share is chance from then on.
//! - *Throttled* answers (429) are taken for our doing, until they come too soon after one another for a limit. Then a trial
//!   doubles the rate. Where that is refused no more often they were chance: they are judged like the overloaded ones, and
//!   the start goes on.

use core::time::Duration;

use super::doubt::Doubt;
use super::trial::{LARGEST, Shows, Trial};
use crate::time::Instant;

/// The share is smoothed over about fifty calls.
const SMOOTHING: f64 = 0.02;

/// The usual share is that of so many calls.
const USUALLY: f64 = 1_000.0;

/// A share so far above chance is looked at, where it is also ...
const MARGIN: f64 = 0.08;

/// (the same once a trial has shown that it was our doing)
const MARGIN_OF_OURS: f64 = 0.05;

/// ... so many standard deviations above.
const DEVIATIONS: f64 = 3.5;

/// A share above this is no chance where it is twice as far above what is known, ...
const SEVERE: f64 = 0.4;

/// ... nor are so many refusals in a row, ...
const ROW: u32 = 6;

/// ... where a row as long is by chance less likely than this.
const UNLIKELY: f64 = 1e-7;

/// So many outcomes are waited for after a reaction, ...
const PATIENCE: f64 = 20.0;

/// ... or so many once a trial has shown that it was our doing.
const PATIENCE_WITH_OURS: f64 = 10.0;

/// What is known of chance fades away in this time.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// Where a share of chance above this is known, a single throttle takes no more than what was gained since the last.
const KNOWN: f64 = 0.003;

/// Throttles are our doing where more than this share of the last fifty calls was throttled.
const MANY: f64 = 0.15;

/// Where more than this share of throttles is usual, a trial cannot tell: to double one of many processes that share a limit
/// changes little.
const USUAL_THROTTLES: f64 = 0.25;

/// Which refusals are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Throttled,
    Overloaded,
}

/// A refusal as the other policies see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The call left after the last reaction.
    pub(super) new: bool,
    /// No canary is needed or out.
    pub(super) open: bool,
    pub(super) starting: bool,
    /// The rate is below the one that was refused, and too few calls were admitted since then to have found a limit again.
    pub(super) unpaid: bool,
    /// It comes too soon for a limit: unpaid, or right after a wait that the server asked for and that was not a window's.
    pub(super) soon: bool,
    /// A trial is under way.
    pub(super) trying: bool,
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Chance, or too early to tell.
    Chance,
    /// A trial begins at half the rate.
    TrySlower,
    /// A trial begins at twice the rate.
    TryFaster,
    /// Perhaps chance: what was gained since the last one is given back.
    GiveBack,
    /// Our doing.
    Ours,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TrialResult {
    /// It was our doing; so many outcomes before the trial the last reaction had been.
    Ours { run: f64 },
    /// It was not.
    Chance,
    /// Still too many: once more from here.
    Again,
    /// Not clear: once more, deeper.
    Deeper,
    /// Twice the rate was refused no more often: the start goes on.
    Believed,
    /// Twice the rate was refused more often.
    Refuted,
}

/// The share of one kind of refusals among the calls of a scope.
#[derive(Clone, Debug)]
pub(super) struct Share {
    kind: Kind,
    now: f64,
    /// The share over a long time, but for trials; and the outcomes it is of.
    usual: f64,
    known_calls: f64,
    /// The share that was known to be chance, and when.
    chance: f64,
    known: Instant,
    /// Outcomes since the last reaction.
    outcomes: f64,
    /// Refusals in a row.
    row: u32,
    trial: Option<Trial>,
    /// The last that is known: refusals are our doing.
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
    pub(super) fn refused(&mut self, now: Instant, seen: &Seen) -> Means {
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
                return Means::Ours;
            }
            return Means::Chance;
        }
        let chance = self.chance(now);
        if seen.new && seen.open && !seen.starting && self.is_limited() {
            let telling = !seen.trying && self.usual <= USUAL_THROTTLES;
            if alone && telling && self.doubt.refused(seen.soon) {
                self.trial = Some(Trial::faster(self.now, self.usual));
                return Means::TryFaster;
            }
            if seen.unpaid && chance > KNOWN && self.now < MANY {
                return Means::GiveBack;
            }
        }
        let severe = self.is_severe(chance);
        if !seen.open || severe || self.is_limited() {
            if severe && seen.new {
                (self.outcomes, self.trial) = (0.0, None);
            }
            return Means::Ours;
        }
        let patience = if self.ours { PATIENCE_WITH_OURS } else { PATIENCE };
        if seen.new && !seen.trying && self.outcomes >= patience && self.is_above(self.now, chance, 1.0) {
            self.trial = Some(Trial::slower(self.now, self.usual, self.outcomes));
            (self.now, self.row) = (chance, 0);
            return Means::TrySlower;
        }
        Means::Chance
    }

    /// Whether a single refusal is taken for that of a limit.
    fn is_limited(&self) -> bool {
        self.ours && self.kind == Kind::Throttled
    }

    /// The trial says nothing: something else happened. Says whether one was under way.
    pub(super) fn void(&mut self) -> bool {
        self.trial.take().is_some()
    }

    /// What the trial says at so many calls a second, once it can.
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
                // Throttles that were chance before a limit was found are so below it.
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

    /// Whether what is refused now cannot be chance, so that no trial is needed.
    fn is_severe(&self, chance: f64) -> bool {
        // A row of thirty says all that a row can.
        let likely = (0..self.row.min(30)).fold(1.0, |likely, _| likely * chance);
        self.now > SEVERE && self.is_above(self.now, chance, 2.0) || self.row >= ROW && likely < UNLIKELY
    }

    /// Whether a share is above chance by so many margins.
    fn is_above(&self, share: f64, chance: f64, times: f64) -> bool {
        let margin = if self.ours && self.kind == Kind::Overloaded { MARGIN_OF_OURS } else { MARGIN };
        let (off, deviations) = (share - chance, times * DEVIATIONS);
        // The variance of a smoothed share is half the smoothing times that of a single outcome.
        off > times * margin && off * off > deviations * deviations * chance * (1.0 - chance) * SMOOTHING / 2.0
    }
}
