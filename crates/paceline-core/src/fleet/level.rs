//! How a limit is divided among the members that want of it.
//!
//! Max-min by weight: all get what they want, up to one level for each unit of weight, and each something to spare where there is
//! enough for that of all. What is left because units are whole, and because less than the next call costs is of no use, goes
//! round in turns. Over a long time each member has its share, also where there are more members than units.
//!
//! The arithmetic is that of doubles, in an order that a script of a store can follow: units and weights are whole numbers that
//! doubles hold exactly, and what is divided decides about fairness, never about how much there is.

use alloc::vec::Vec;
use core::time::Duration;

use super::message::{MemberId, Stake};
use crate::time::Instant;

/// What the ledger knows of one member and one limit.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Part {
    pub(super) stake: Stake,
    /// What the member is meant to hold.
    pub(super) target: u64,
    /// The target that it was told last.
    pub(super) told: u64,
    /// Since when it has a part that goes round.
    turn: Option<Instant>,
    /// Its place in the line for the next: it grows with each turn, by less where the share is larger.
    pass: u64,
}

impl Part {
    /// What the member is meant to hold and does not.
    pub(super) fn missing(&self) -> u64 {
        self.target.saturating_sub(self.stake.has)
    }
}

/// A turn of a member whose share is a whole part.
const TURN: f64 = 65_536.0;

/// The longest wait in the line that one turn makes.
const LONGEST: f64 = 1_099_511_627_776.0;

/// Sets the targets. `line` is the place in the line that was served last. Returns whether a member gets less than it wants.
pub(super) fn divide(
    now: Instant,
    capacity: u64,
    turn: Duration,
    line: &mut u64,
    parts: &mut [(MemberId, u64, &mut Part)],
) -> bool {
    parts.sort_by(|(a_id, a_weight, a), (b_id, b_weight, b)| {
        let (a, b) = (float(a.stake.want) * float(*b_weight), float(b.stake.want) * float(*a_weight));
        a.total_cmp(&b).then(a_id.cmp(b_id))
    });
    let (mut left, mut weights) = (float(capacity), parts.iter().map(|(_, weight, _)| float(*weight)).sum::<f64>());
    let satisfied = parts.iter().take_while(|(_, weight, part)| {
        let (want, weight) = (float(part.stake.want), float(*weight));
        let fits = want * weights <= left * weight;
        if fits {
            (left, weights) = (left - want, weights - weight);
        }
        fits
    });
    let satisfied = satisfied.count();
    let (satisfied, short) = parts.split_at_mut(satisfied);
    let contended = !short.is_empty();
    let spares = satisfied.iter().map(|(_, _, part)| float(Stake::spare(part.stake.want))).sum::<f64>();
    let is_roomy = !contended && spares <= left;
    for (_, _, part) in satisfied {
        let spare = if is_roomy { Stake::spare(part.stake.want) } else { 0 };
        (part.target, part.turn) = (part.stake.want + spare, None);
    }
    let mut rest = left as u64;
    let mut waiting = Vec::with_capacity(short.len());
    for (id, weight, part) in short {
        let share = left * float(*weight);
        // A part of a call is of no use to it, and of use to another.
        let (whole, step) = ((share / weights) as u64, part.stake.lump);
        let base = whole - whole % step;
        part.target = base;
        rest = rest.saturating_sub(base);
        let fraction = share - float(base) * weights;
        let stays = part.turn.is_some_and(|since| now - since < turn);
        if fraction <= 0.0 {
            part.turn = None;
            continue;
        }
        if part.turn.is_none() {
            part.pass = part.pass.max(*line);
        }
        let wait = (TURN * float(step) * weights / fraction).clamp(1.0, LONGEST) as u64;
        // A turn that it had while a part went round more slowly, as among fewer members, counts no more than one now.
        part.pass = part.pass.min(line.saturating_add(wait));
        waiting.push((!stays, part.pass, *id, step, wait, part));
    }
    waiting.sort_by_key(|(new, pass, id, ..)| (*new, *pass, *id));
    for (new, pass, _, step, wait, part) in waiting {
        // The head of the line is waited for: what is left does not go to members behind it.
        if step > rest {
            (rest, part.turn) = (0, None);
            continue;
        }
        rest -= step;
        part.target += step;
        if new {
            *line = pass.max(*line);
            part.pass = pass.saturating_add(wait);
            part.turn = Some(now);
        }
    }
    contended
}

fn float(units: u64) -> f64 {
    units as f64
}
