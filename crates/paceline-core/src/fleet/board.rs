//! The board of a ledger: what members tell all others, and what one of them alone may have for a while.
//!
//! It knows nothing of what is written there. What is lost with the ledger, members that have heard it go on with.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::message::{BoardReply, BoardRequest, BoardStep, Draw, MemberId, Note};
use super::pot::{Drawn, Pot};
use crate::time::Instant;

/// Notes that are kept at most, topics that are taken, and pots.
const KEPT: usize = 256;

#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Board {
    /// The number of the newest note.
    newest: u64,
    notes: BTreeMap<String, Posted>,
    taken: BTreeMap<String, Taken>,
    #[cfg_attr(feature = "serde", serde(default))]
    pots: BTreeMap<String, Pot>,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Posted {
    number: u64,
    from: MemberId,
    seq: u64,
    until: Instant,
    values: Vec<u64>,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Taken {
    by: MemberId,
    until: Instant,
}

impl Board {
    /// Does a step of one of so many members; returns the answer, and a note for all of them.
    pub(super) fn takes(&mut self, now: Instant, request: &BoardRequest, members: usize) -> (BoardReply, Option<Note>) {
        self.notes.retain(|_, note| note.until > now);
        self.taken.retain(|_, taken| taken.until > now);
        self.pots.retain(|_, pot| !pot.is_over(now));
        let (seq, topic) = (request.seq, &request.topic);
        let mut reply = BoardReply { seq, ..BoardReply::default() };
        match &request.step {
            BoardStep::Post { values, lasts } => return (reply, self.post(now, request, values, *lasts)),
            BoardStep::Take { lasts } => match self.taken.get(topic).filter(|taken| taken.by != request.member) {
                Some(taken) => reply.waits = taken.until - now,
                None if self.taken.len() < KEPT || self.taken.contains_key(topic) => {
                    self.taken.insert(topic.clone(), Taken { by: request.member, until: now + *lasts });
                }
                None => reply.waits = *lasts,
            },
            BoardStep::Release => {
                if self.taken.get(topic).is_some_and(|taken| taken.by == request.member) {
                    self.taken.remove(topic);
                }
            }
            BoardStep::Draw(draw) => {
                let Drawn { units, waits, after } = self.draw(now, topic, draw, members).unwrap_or_default();
                (reply.units, reply.waits, reply.after) = (units, waits, after);
            }
        }
        (reply, None)
    }

    /// None where nothing is known of such a limit.
    fn draw(&mut self, now: Instant, topic: &String, draw: &Draw, members: usize) -> Option<Drawn> {
        if !self.pots.contains_key(topic) {
            let announced = draw.announced.as_ref().filter(|_| self.pots.len() < KEPT)?;
            self.pots.insert(topic.clone(), Pot::new(now, announced));
        }
        Some(self.pots.get_mut(topic)?.draw(now, draw, members))
    }

    /// A later word of the same member has overtaken it where that is there.
    fn post(&mut self, now: Instant, request: &BoardRequest, values: &[u64], lasts: Duration) -> Option<Note> {
        let (from, seq, topic) = (request.member, request.seq, &request.topic);
        let known = self.notes.get(topic);
        let late = known.is_some_and(|known| known.from == from && seq <= known.seq);
        if late || (known.is_none() && self.notes.len() >= KEPT) {
            return None;
        }
        self.newest += 1;
        let posted = Posted { number: self.newest, from, seq, until: now + lasts, values: values.to_vec() };
        let note = note(now, topic, &posted);
        self.notes.insert(topic.clone(), posted);
        Some(note)
    }

    /// The number of the newest note.
    pub(super) const fn newest(&self) -> u64 {
        self.newest
    }

    /// The notes after that one, the oldest first. A number that was never given is one of another ledger.
    pub(super) fn after(&self, now: Instant, heard: u64) -> Vec<Note> {
        if heard == self.newest {
            return Vec::new();
        }
        let heard = if heard > self.newest { 0 } else { heard };
        let news = self.notes.iter().filter(|(_, note)| note.number > heard && note.until > now);
        let mut news: Vec<_> = news.map(|(topic, posted)| note(now, topic, posted)).collect();
        news.sort_by_key(|note| note.number);
        news
    }

    /// It was lost with all else.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn note(now: Instant, topic: &str, posted: &Posted) -> Note {
    let Posted { number, from, until, values, .. } = posted;
    Note { number: *number, from: *from, topic: topic.into(), left: *until - now, values: values.clone() }
}
