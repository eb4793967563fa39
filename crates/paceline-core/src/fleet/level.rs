//! How a limit is divided among the members that want of it.
//!
//! Max-min by weight: all get what they want, up to one level for each unit of weight. What is left because units are whole,
//! and because less than the next call costs is of no use, goes round in turns. Over a long time each member has its share,
//! also where there are more members than units.

use alloc::vec::Vec;
use core::time::Duration;

use super::message::{MemberId, Stake};
use crate::time::Instant;

/// What the ledger knows of one member and one limit.
#[derive(Clone, Debug, Default)]
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

/// A turn of a member whose share is a whole part.
const TURN: u128 = 1 << 16;

/// The longest wait in the line that one turn makes.
const LONGEST: u128 = 1 << 40;

/// Sets the targets. `line` is the place in the line that was served last. Returns whether a member gets less than it wants.
pub(super) fn divide(
    now: Instant,
    capacity: u64,
    turn: Duration,
    line: &mut u64,
    parts: &mut [(MemberId, u64, &mut Part)],
) -> bool {
    parts.sort_by(|(a_id, a_weight, a), (b_id, b_weight, b)| {
        let (a, b) = (wide(a.stake.want) * wide(*b_weight), wide(b.stake.want) * wide(*a_weight));
        a.cmp(&b).then(a_id.cmp(b_id))
    });
    let (mut left, mut weights) = (wide(capacity), parts.iter().map(|(_, weight, _)| wide(*weight)).sum::<u128>());
    let satisfied = parts.iter().take_while(|(_, weight, part)| {
        let (want, weight) = (wide(part.stake.want), wide(*weight));
        let fits = want * weights <= left * weight;
        if fits {
            (left, weights) = (left - want, weights - weight);
        }
        fits
    });
    let satisfied = satisfied.count();
    let (satisfied, short) = parts.split_at_mut(satisfied);
    for (_, _, part) in satisfied {
        (part.target, part.turn) = (part.stake.want, None);
    }
    let contended = !short.is_empty();
    let mut rest = left;
    let mut waiting = Vec::with_capacity(short.len());
    for (id, weight, part) in short {
        let share = left * wide(*weight);
        let (base, step) = match share / weights {
            whole if whole < wide(part.stake.lump) => (0, wide(part.stake.lump)),
            whole => (whole, 1),
        };
        part.target = base as u64;
        rest -= base;
        let fraction = share - base * weights;
        let stays = part.turn.is_some_and(|since| now - since < turn);
        if fraction == 0 {
            part.turn = None;
            continue;
        }
        if part.turn.is_none() {
            part.pass = part.pass.max(*line);
        }
        waiting.push((!stays, part.pass, *id, step, (TURN * step * weights / fraction).clamp(1, LONGEST), part));
    }
    waiting.sort_by_key(|(new, pass, id, ..)| (*new, *pass, *id));
    for (new, pass, _, step, wait, part) in waiting {
        // The head of the line is waited for: what is left does not go to members behind it.
        if step > rest {
            (rest, part.turn) = (0, None);
            continue;
        }
        rest -= step;
        part.target += step as u64;
        if new {
            *line = pass.max(*line);
            part.pass = pass.saturating_add(wait as u64);
            part.turn = Some(now);
        }
    }
    contended
}

fn wide(units: u64) -> u128 {
    u128::from(units)
}
