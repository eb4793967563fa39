//! Whether refusals have anything to do with our rate.
//!
//! Two 503 in a hundred calls are an ordinary day of a provider, and some refuse a call now and then without a reason. A
//! pace that slows down for each of them ends at a standstill. So what refusals mean is judged by their share:
//!
//! - *Overloaded* answers (503, 529) are taken for chance until their share is well above what is known to be chance. Then a
//!   trial halves the rate for thirty to sixty calls. Where that brings the share down to a quarter it was our doing and the
//!   rate stays down; where it does not, that share is chance from then on.
//! - *Throttled* answers (429) are taken for our doing, until calls that left well below the refused rate are refused about
//!   as often as the others. Then they are judged like the overloaded ones, and the start goes on.

use core::time::Duration;

use super::doubt::Doubt;
use crate::time::Instant;

/// The share is smoothed over about fifty calls.
const SMOOTHING: f64 = 0.02;

/// A share so far above chance is looked at, where it is also ...
const MARGIN: f64 = 0.08;

/// (the same once a trial has shown that it was our doing)
const MARGIN_OF_OURS: f64 = 0.05;

/// ... so many standard deviations above.
const DEVIATIONS: f64 = 3.5;

/// A share above this is no chance where it is twice as far above what is known, ...
const SEVERE: f64 = 0.4;

/// ... nor are so many refusals in a row.
const ROW: u32 = 6;

/// So many outcomes are waited for after a reaction, ...
const PATIENCE: f64 = 20.0;

/// ... or so many once a trial has shown that it was our doing.
const PATIENCE_WITH_OURS: f64 = 10.0;

/// The first outcomes of a trial still come from the time before it: the provider's queue is full.
const FULL_QUEUE: f64 = 10.0;

/// A trial looks at the outcomes of this time, in seconds, ...
const TRIAL: f64 = 10.0;

/// ... but at least and at most at so many. It ends early when none of them was refused where ...
const TRIAL_CALLS: (f64, f64) = (30.0, 60.0);

/// ... so many would have been.
const EXPECTED: f64 = 5.0;

/// A share that falls to this part of what it was fell because of us: down *to* a quarter, since it falls a little after
/// each false alarm.
const FELL: f64 = 0.25;

/// More than this is no chance, whatever a trial says.
pub(super) const LARGEST: f64 = 0.3;

/// What is known of chance fades away in this time.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// Where a share of chance above this is known, a single throttle takes no more than what was gained since the last.
const KNOWN: f64 = 0.003;

/// Throttles are our doing where more than this share of the last fifty calls was throttled.
const MANY: f64 = 0.15;

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
    /// The rate is well below the one that was refused.
    pub(super) below: bool,
    /// The rate is below the one that was refused, and too few calls were admitted since then to have found a limit again.
    pub(super) unpaid: bool,
    /// A trial is under way.
    pub(super) trying: bool,
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Chance, or too early to tell.
    Chance,
    /// A trial begins.
    Trial,
    /// Refusals were chance all the time: the start goes on.
    Believed,
    /// Perhaps chance: what was gained since the last one is given back.
    Doubtful,
    /// Our doing.
    Ours,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It was our doing; so many outcomes before the trial the last reaction had been.
    Ours { run: f64 },
    /// It was not.
    Chance,
    /// Still too many: once more from here.
    Again,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The share before the cut.
    before: f64,
    /// Outcomes from those on that were not queued before it (negative: as many are to come), and how many were refused.
    outcomes: f64,
    refused: f64,
    /// Outcomes from the last reaction to its beginning.
    run: f64,
}

impl Trial {
    const fn new(before: f64, run: f64) -> Self {
        Self { before, outcomes: -FULL_QUEUE, refused: 0.0, run }
    }

    /// The share that was refused in it, once enough outcomes are there at so many calls a second.
    fn share(&self, rate: f64) -> Option<f64> {
        let (least, most) = TRIAL_CALLS;
        let none = self.refused == 0.0 && self.outcomes * self.before >= EXPECTED;
        let enough = self.outcomes >= (TRIAL * rate).clamp(least, most);
        (enough || none).then(|| self.refused / self.outcomes)
    }
}

/// The share of one kind of refusals among the calls of a scope.
#[derive(Clone, Debug)]
pub(super) struct Share {
    kind: Kind,
    now: f64,
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
    pub(super) fn passed(&mut self, calls: u64, below: bool) {
        if calls == 0 {
            return;
        }
        // After a thousand calls nothing is left of a share.
        for _ in 0..calls.min(1_000) {
            self.now -= SMOOTHING * self.now;
        }
        self.row = 0;
        self.doubt.passed(calls as f64, below);
        self.count(calls as f64, 0.0);
    }

    fn count(&mut self, outcomes: f64, refused: f64) {
        self.outcomes += outcomes;
        if let Some(trial) = &mut self.trial {
            trial.refused += if trial.outcomes >= 0.0 { refused } else { 0.0 };
            trial.outcomes += outcomes;
        }
    }

    /// A call was refused.
    pub(super) fn refused(&mut self, now: Instant, seen: &Seen) -> Means {
        if seen.new {
            self.now += SMOOTHING * (1.0 - self.now);
            self.row += 1;
            self.count(1.0, 1.0);
        }
        let alone = self.doubt.is_alone();
        let judged = seen.new && seen.open && !seen.starting && self.ours && self.kind == Kind::Throttled;
        if judged
            && alone
            && let Some(share) = self.doubt.refused(seen.below)
        {
            (self.ours, self.chance, self.known, self.now) = (false, share, now, share);
            (self.row, self.outcomes) = (0, 0.0);
            return Means::Believed;
        }
        let chance = self.chance(now);
        if judged && seen.unpaid && chance > KNOWN && self.now < MANY {
            return Means::Doubtful;
        }
        let severe = self.now > SEVERE && self.is_above(self.now, chance, 2.0) || self.row >= ROW;
        if !seen.open || severe || self.ours && self.kind == Kind::Throttled {
            if severe && seen.new {
                (self.outcomes, self.trial) = (0.0, None);
            }
            return Means::Ours;
        }
        let patience = if self.ours { PATIENCE_WITH_OURS } else { PATIENCE };
        if seen.new && !seen.trying && self.outcomes >= patience && self.is_above(self.now, chance, 1.0) {
            self.trial = Some(Trial::new(self.now, self.outcomes));
            (self.now, self.row) = (chance, 0);
            return Means::Trial;
        }
        Means::Chance
    }

    /// The trial says nothing: something else happened. Says whether one was under way.
    pub(super) fn void(&mut self) -> bool {
        self.trial.take().is_some()
    }

    /// What the trial says at so many calls a second, once it can.
    pub(super) fn verdict(&mut self, now: Instant, rate: f64) -> Option<Verdict> {
        let trial = self.trial?;
        let share = trial.share(rate)?;
        let chance = self.chance(now);
        let fell = share <= FELL * trial.before;
        (self.outcomes, self.row) = (0.0, 0);
        if share > LARGEST || fell && self.is_above(share, chance, 1.0) {
            self.trial = Some(Trial::new(self.now, 0.0));
            return Some(Verdict::Again);
        }
        self.trial = None;
        let verdict = if fell {
            self.chance = share;
            self.doubt.refuted();
            Verdict::Ours { run: trial.run }
        } else {
            self.chance = share.max(chance).max(0.5 * (trial.before + share));
            Verdict::Chance
        };
        // Throttles stay what they were taken for when a trial of theirs began.
        self.ours = fell;
        (self.now, self.known) = (self.chance, now);
        Some(verdict)
    }

    fn chance(&self, now: Instant) -> f64 {
        let age = now.saturating_since(self.known).as_secs_f64();
        self.chance * (1.0 - age / FORGOTTEN.as_secs_f64()).max(0.0)
    }

    /// Whether a share is above chance by so many margins.
    fn is_above(&self, share: f64, chance: f64, times: f64) -> bool {
        let margin = if self.ours && self.kind == Kind::Overloaded { MARGIN_OF_OURS } else { MARGIN };
        let (off, deviations) = (share - chance, times * DEVIATIONS);
        // The variance of a smoothed share is half the smoothing times that of a single outcome.
        off > times * margin && off * off > deviations * deviations * chance * (1.0 - chance) * SMOOTHING / 2.0
    }
}
