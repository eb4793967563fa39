//! A pot of the board: what a server has left of a limit that it announced, of which all members draw.
//!
//! A member draws before its calls leave, and what is drawn counts as spent, so that no two members spend the same units. What
//! one got and did not use it gives back; what one had that died is lost until the limit refills. Where it refills bit by bit,
//! who draws from an empty pot gets the next that comes back, from then on. A later announcement only takes away: it shows what
//! others use that are no members, and a rate that was not quite right.
//!
//! Times are microseconds and the arithmetic is that of doubles, in an order that a script of a store can follow.

use core::time::Duration;

use super::message::{Announced, Draw};
use crate::time::Instant;

/// A pot of which no member draws for so long, and for two of its windows, is forgotten.
const KEPT: f64 = 60e6;

/// What is drawn of a limit that refills bit by bit may be used for so long.
const LASTS: f64 = 60e6;

/// What comes back later than this is not given yet.
const FAR: f64 = 10e6;

/// One part in so many is not refilled, where a limit comes back bit by bit.
const SPARE: f64 = 8.0;

/// A limit that comes back no member knows how fast is asked for again after this.
const UNKNOWN: f64 = 1e6;

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Pot {
    gradually: bool,
    limit: f64,
    /// How long a window is that is reset at once.
    window: f64,
    /// What no member has drawn; less than nothing where calls had left before they were known.
    left: f64,
    /// When the window is reset; refilled up to then.
    at: f64,
    /// So many units come back in so long, bit by bit.
    missing: f64,
    period: f64,
    until: f64,
}

/// What a pot gives, when it may be used, and for how long from now on; where it gives nothing, when to ask again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Drawn {
    pub(super) units: u64,
    pub(super) waits: Duration,
    pub(super) after: Duration,
}

impl Pot {
    pub(super) fn new(now: Instant, announced: &Announced) -> Self {
        let mut pot = Self {
            gradually: announced.gradually,
            limit: announced.limit as f64,
            window: micros(announced.window),
            left: announced.remaining as f64,
            at: time(now) + if announced.gradually { 0.0 } else { micros(announced.left) },
            missing: 0.0,
            period: 1.0,
            until: 0.0,
        };
        pot.note_rate(announced);
        pot
    }

    /// Whether it is forgotten.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= time(now)
    }

    pub(super) fn draw(&mut self, now: Instant, draw: &Draw, members: usize) -> Drawn {
        let now = time(now);
        self.refill(now);
        let (back, unpaid, lump) = (draw.back as f64, draw.unpaid as f64, draw.lump as f64);
        self.left = self.left + back - unpaid;
        if let Some(announced) = &draw.announced {
            self.hear(now, announced);
        }
        self.until = now + KEPT.max(2.0 * self.window);
        let fair = lump.max(whole(self.left / members.max(1) as f64));
        let wanted = draw.units as f64;
        let (units, after, waits) = if !self.gradually {
            (if self.left < lump { 0.0 } else { wanted.min(fair).min(self.left) }, 0.0, self.at - now)
        } else if self.left >= lump {
            (wanted.min(fair).min(self.left), 0.0, LASTS)
        } else if self.missing > 0.0 {
            let after = -whole(-((lump - self.left) * self.period / self.missing));
            if after > FAR { (0.0, 0.0, after - FAR) } else { (wanted.min(lump), after, LASTS) }
        } else {
            (0.0, 0.0, UNKNOWN)
        };
        self.left -= units;
        let micros = |time: f64| Duration::from_micros(time as u64);
        Drawn { units: units as u64, waits: micros(waits.max(1.0)), after: micros(after) }
    }

    fn refill(&mut self, now: f64) {
        if !self.gradually {
            if self.at <= now {
                self.left = self.limit;
                self.at = if self.at + self.window > now { self.at } else { now } + self.window;
            }
            return;
        }
        let since = (now - self.at).max(0.0);
        let units = if self.missing > 0.0 { whole(since * self.missing / self.period) } else { 0.0 };
        // What is drawn and has not left yet is full at the server: nothing comes back there meanwhile.
        let most = self.limit - whole(self.limit / SPARE);
        if self.left + units >= most {
            (self.left, self.at) = (self.left.max(most), now);
        } else if units > 0.0 {
            (self.left, self.at) = (self.left + units, self.at + units * self.period / self.missing);
        }
    }

    fn hear(&mut self, now: f64, announced: &Announced) {
        let (limit, remaining) = (announced.limit as f64, announced.remaining as f64);
        if limit != self.limit {
            (self.limit, self.missing) = (limit, 0.0);
        }
        if announced.gradually != self.gradually {
            (self.gradually, self.at) = (announced.gradually, now);
        }
        if self.gradually {
            self.left = self.left.min(remaining);
            return self.note_rate(announced);
        }
        let ends = now + micros(announced.left);
        self.window = micros(announced.window);
        if ends > self.at + self.window / 2.0 {
            // Of the next window, which began earlier than expected.
            (self.left, self.at) = (remaining, ends);
        } else if ends + self.window / 2.0 >= self.at {
            (self.left, self.at) = (self.left.min(remaining), self.at.max(ends));
        }
    }

    /// How fast a limit refills that does so bit by bit: a report rounds, by less where more is missing.
    fn note_rate(&mut self, announced: &Announced) {
        let is_exact = announced.missing as f64 >= self.missing;
        if announced.gradually && announced.missing > 0 && !announced.left.is_zero() && is_exact {
            (self.missing, self.period) = (announced.missing as f64, micros(announced.left));
        }
    }
}

/// The next whole number down.
fn whole(number: f64) -> f64 {
    let near = number as i64 as f64;
    if near > number { near - 1.0 } else { near }
}

fn time(now: Instant) -> f64 {
    (now.as_nanos() / 1_000) as f64
}

fn micros(time: Duration) -> f64 {
    time.as_micros() as f64
}
