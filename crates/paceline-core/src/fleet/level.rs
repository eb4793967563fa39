//! How a limit is divided among the members that want of it.
//!
//! Max-min by weight: all get what they want, up to one level for each unit of weight, and each something to spare where there is
//! enough for that of all. What is left because units are whole, and because less than the next call costs is of no use, goes
//! round in turns, to those first that had the least of it for their shares. Over a long time each member has its share, also
//! where there are more members than units.
//!
//! A member whose next call costs more than its share saves up for it: for one turn it is meant to hold all that the call costs,
//! and the others give way, those that want most first. Then it rests for as long as that was more than its share.
//!
//! The arithmetic is that of doubles, in an order that a script of a store can follow: units and weights are whole numbers that
//! doubles hold exactly, and what is divided decides about fairness, never about how much there is.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::time::Duration;

use super::message::{MemberId, Stake};
use super::settled::{Room, Settled};
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
    /// It has a share of what goes round, and so a place in the line.
    #[cfg_attr(feature = "serde", serde(default))]
    in_line: bool,
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

    /// It is meant to have a call, and has not enough for one.
    pub(super) const fn starves(&self) -> bool {
        self.stake.has < self.stake.lump && self.target >= self.stake.lump
    }

    /// What it lacks for a call that its share has room for. That of one which saves up for a call comes with its turn.
    pub(super) fn lacks(&self) -> u64 {
        let is_turn = self.turn.is_some() && self.target / 2 < self.stake.lump;
        if self.starves() && !is_turn { self.stake.lump - self.stake.has } else { 0 }
    }

    /// What it lends of its share to members that lack so much for a call: as much as one of its own costs, and never its last.
    pub(super) fn lends(&self, lacking: u64) -> u64 {
        let (Stake { has, lump, .. }, lent) = (self.stake, lacking.min(self.stake.lump));
        if has <= self.target && has >= lump + lent { lent } else { 0 }
    }

    /// It has heard that it lends, and has not given that yet.
    pub(super) fn is_lending(&self) -> bool {
        self.told < self.stake.has.min(self.target)
    }

    /// It gets that, and has no part in what goes round.
    pub(super) const fn gets(&mut self, target: u64) {
        (self.target, self.turn, self.in_line) = (target, None, false);
    }

    /// When its turn is over, or the rest after that where it waits so long in the line.
    fn moves(&self, now: Instant, turn: Duration, rests: Option<u64>) -> Option<Instant> {
        let (since, micros) = (self.turn?, turn.as_micros() as f64);
        let rested = |wait| Duration::from_micros((micros * float(wait) / TURN).min(LONGEST) as u64 + 1);
        [Some(since + turn), rests.map(|wait| since + rested(wait))].into_iter().flatten().find(|at| *at > now)
    }
}

/// A turn of a member whose share is a whole part.
const TURN: f64 = 65_536.0;

/// The longest wait in the line that one turn makes.
const LONGEST: f64 = 1_099_511_627_776.0;

/// Sets the targets. `line` is the place in the line that was served last. Returns what that stands on.
pub(super) fn divide(
    now: Instant,
    capacity: u64,
    turn: Duration,
    line: &mut u64,
    parts: &mut [(MemberId, u64, &mut Part)],
) -> Settled {
    let (satisfied, room, (left, weights)) = satisfy(capacity, parts);
    let mut settled = Settled { room, capacity, left: left as u64, weights: weights as u64, moves: None, hints: false };
    let terms = Terms { now, turn, left, weights };
    let (rest, others, members) = line_up(&terms, *line, satisfied, parts);
    let had = members.iter().map(|member| (member.place, member.rests(), parts[member.place].2.turn));
    let had = had.collect::<Vec<_>>();
    let (large, small) = members.into_iter().partition::<Vec<_>, _>(|member| member.saves_up);
    let remainders = small.iter().map(|member| member.fraction).sum::<f64>();
    let room = rest.saturating_sub((remainders / weights) as u64);
    let saved = go_round(now, (room, capacity), line, large, parts);
    go_round(now, (rest.saturating_sub(saved), 0), line, small, parts);
    if saved > rest {
        give_way(capacity - saved, &others, parts);
        // Who gives way depends on what each wants.
        settled.weights = 0;
    }
    let moves = had.into_iter().filter_map(|(place, rests, had)| match parts[place].2.turn == had {
        true => parts[place].2.moves(now, turn, rests),
        // Where it stands in the line, the next division sees.
        false => Some(now),
    });
    settled.moves = moves.min();
    settled
}

/// What a division goes by: when it is, how long a turn lasts, and what there is for those that want more, with their weights.
struct Terms {
    now: Instant,
    turn: Duration,
    left: f64,
    weights: f64,
}

/// Gives those that want more than their share whole calls of it. Returns what is left, who has something, those with less than
/// their share too, and those in the line for it.
fn line_up(
    &Terms { now, turn, left, weights }: &Terms,
    line: u64,
    satisfied: usize,
    parts: &mut [(MemberId, u64, &mut Part)],
) -> (u64, Vec<usize>, Vec<InLine>) {
    let (mut rest, mut largest) = (left as u64, 0);
    let (mut others, mut members) = ((0..satisfied).collect::<Vec<_>>(), Vec::new());
    for (place, (id, weight, part)) in parts.iter_mut().enumerate().skip(satisfied) {
        let share = left * float(*weight);
        // A part of a call is of no use to it, and of use to another.
        let (base, step) = (whole_calls(share / weights, part.stake.lump), part.stake.lump);
        rest = rest.saturating_sub(base);
        let fraction = share - float(base) * weights;
        let age = part.turn.map(|since| now - since);
        let holds = part.target >= step;
        part.target = base;
        if base > 0 {
            others.push(place);
            largest = step.max(largest);
        }
        if fraction <= 0.0 {
            part.gets(base);
            continue;
        }
        // Who comes stands where the line is; who waits keeps its place, however far that is.
        if !core::mem::replace(&mut part.in_line, true) {
            part.pass = part.pass.max(line);
        }
        let wait = (TURN * float(step) * weights / fraction).clamp(1.0, LONGEST) as u64;
        // A turn that it had while a part went round more slowly, as among fewer members, counts no more than one now.
        part.pass = part.pass.min(line.saturating_add(wait));
        let stands = match age {
            Some(age) if age < turn && (holds || base > 0) => Stands::Stays,
            Some(age) if age >= turn && base == 0 && has_more(age, turn, wait) => Stands::Rests,
            _ => Stands::Waits,
        };
        members.push(InLine { stands, pass: part.pass, id: *id, place, wait, fraction, saves_up: base == 0 });
    }
    // A call that is no larger than those of others is not saved up for: its turn comes as theirs do.
    for member in &mut members {
        member.saves_up &= parts[member.place].2.stake.lump > largest;
        if member.stands == Stands::Rests && !member.saves_up {
            member.stands = Stands::Waits;
        }
    }
    (rest, others, members)
}

/// Gives those that want no more than their share what they want, and brings them to the front. Returns how many these are,
/// whether there was enough, and what is left for the others, with their weights.
fn satisfy(capacity: u64, parts: &mut [(MemberId, u64, &mut Part)]) -> (usize, Room, (f64, f64)) {
    parts.sort_by(by_want);
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
    let spares = parts[..satisfied].iter().map(|(_, _, part)| float(Stake::spare(part.stake.want))).sum::<f64>();
    let room = match satisfied < parts.len() {
        true => Room::Short,
        false if spares <= left => Room::Ample,
        false => Room::Enough,
    };
    for (_, _, part) in &mut parts[..satisfied] {
        let spare = if room == Room::Ample { Stake::spare(part.stake.want) } else { 0 };
        part.gets(part.stake.want + spare);
    }
    (satisfied, room, (left, weights))
}

/// Those that want least for a unit of weight come first.
fn by_want(a: &(MemberId, u64, &mut Part), b: &(MemberId, u64, &mut Part)) -> Ordering {
    let ((a_id, a_weight, a), (b_id, b_weight, b)) = (a, b);
    let (a, b) = (float(a.stake.want) * float(*b_weight), float(b.stake.want) * float(*a_weight));
    a.total_cmp(&b).then(a_id.cmp(b_id))
}

/// Where a member stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stands {
    /// It has its turn.
    Stays,
    Waits,
    /// Its last turn was more than its share since.
    Rests,
}

/// Whether a turn that was begun so long ago is more than a share until now.
fn has_more(age: Duration, turn: Duration, wait: u64) -> bool {
    age.as_secs_f64() * TURN < turn.as_secs_f64() * float(wait)
}

/// A member in the line.
struct InLine {
    stands: Stands,
    /// Its place in the line.
    pass: u64,
    id: MemberId,
    /// Its place among all.
    place: usize,
    /// The wait for its next turn.
    wait: u64,
    /// What is less than a call of its share, by the weights of all.
    fraction: f64,
    /// Its call is larger than its share, and than those of the others.
    saves_up: bool,
}

impl InLine {
    /// How long it waits after a turn that was more than its share.
    fn rests(&self) -> Option<u64> {
        self.saves_up.then_some(self.wait)
    }
}

/// What is less than a call of each goes to some, in turns: to as many as `room` is enough for, and then to one more that rests
/// after it, where that makes at most `most`. Returns what it makes.
fn go_round(
    now: Instant,
    (mut room, most): (u64, u64),
    line: &mut u64,
    mut members: Vec<InLine>,
    parts: &mut [(MemberId, u64, &mut Part)],
) -> u64 {
    members.sort_unstable_by_key(|member| (member.stands, member.pass, member.id));
    let mut given = 0;
    for InLine { stands, pass, place, wait, .. } in members {
        let (_, _, part) = &mut parts[place];
        let (step, rests) = (part.stake.lump, stands == Stands::Rests);
        if step > room && (rests || room == 0 || given + step > most) {
            // The head of the line is waited for: what is left does not go to members behind it.
            if !rests {
                (room, part.turn) = (0, None);
            }
            continue;
        }
        (room, given) = (room.saturating_sub(step), given + step);
        part.target += step;
        if stands != Stands::Stays {
            *line = pass.max(*line);
            (part.pass, part.turn) = (pass.saturating_add(wait), Some(now));
        }
    }
    given
}

/// The others, those that want least first, give what those that save up have more than their shares.
fn give_way(capacity: u64, others: &[usize], parts: &mut [(MemberId, u64, &mut Part)]) {
    let mut left = float(capacity);
    let mut weights = others.iter().map(|place| float(parts[*place].1)).sum::<f64>();
    for place in others {
        let (_, weight, part) = &mut parts[*place];
        let share = left * float(*weight) / weights;
        if float(part.target) > share {
            part.target = whole_calls(share, part.stake.lump);
        }
        (left, weights) = (left - float(part.target), weights - float(*weight));
    }
}

/// As much of a share as whole calls cost.
fn whole_calls(share: f64, call: u64) -> u64 {
    let whole = share as u64;
    whole - whole % call
}

fn float(units: u64) -> f64 {
    units as f64
}
