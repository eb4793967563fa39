//! What a process knows of the others that share its limit.

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::super::evidence::HEARD_AFTER;
use super::super::schedule::Beat;
use super::super::words::{Belief, Report};
use super::AGAIN;
use crate::fleet::MemberId;
use crate::time::Instant;

/// A process that was not heard for so long uses nothing.
pub(super) const SILENT: Duration = Duration::from_secs(3);

/// The time between two reports of calls that were admitted, ...
const REPORT: Duration = Duration::from_millis(250);

/// ... while the rate doubles, ...
const REPORT_OF_START: Duration = HEARD_AFTER;

/// ... and for each process, so that many of them say no more together than the store can bear.
const REPORT_EACH: Duration = Duration::from_millis(5);

/// The part of a process in the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It decides for itself: there is no ledger.
    Alone,
    /// It goes by what the reader tells.
    Follows,
    /// It decides for all, until then.
    Reads(Instant),
}

/// What a process knows of the others that share its limit.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(super) role: Role,
    pub(super) since: Instant,
    pub(super) id: MemberId,
    pub(super) weight: u64,
    /// Who told what was told last.
    pub(super) reader: Option<MemberId>,
    /// What the reader told last, and when that was heard; the reader's own word too.
    pub(super) told: Option<(Instant, Belief)>,
    /// When it first heard the beat of calls.
    pub(super) heard: Option<Instant>,
    /// The place of this process among those that take turns, between 0 and 1.
    pub(super) turn: f64,
    /// What this process has reported last.
    pub(super) reported: Option<(Instant, Report)>,
    /// The reader has heard of it.
    pub(super) is_counted: bool,
    /// What the others have reported.
    pub(super) others: BTreeMap<MemberId, (Instant, Report)>,
    /// Its own calls, as far as the evidence does not count them.
    pub(super) mine: Mine,
    /// A caller of this process wants to send a call.
    pub(super) queued: bool,
    /// It asks again, or renews its office, then.
    pub(super) asks: Instant,
    /// For its own refusals, where no reader answers.
    pub(super) brake: f64,
    /// When it acted last.
    pub(super) braked: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mine {
    pub(super) sent: u64,
    pub(super) tokens: u64,
    pub(super) held: u64,
    /// When one last left that only the rate had held back.
    pub(super) held_at: Option<Instant>,
    /// When one last left.
    pub(super) sent_at: Option<Instant>,
    /// When the first of the present era left that was refused, and what it cost.
    pub(super) refused: Option<(Instant, u64)>,
}

impl Shared {
    pub(super) fn new(now: Instant, id: MemberId, weight: u64) -> Self {
        Self {
            role: Role::Follows,
            since: now,
            id,
            weight,
            told: None,
            reader: None,
            heard: None,
            turn: 0.0,
            reported: None,
            is_counted: false,
            others: BTreeMap::new(),
            mine: Mine::default(),
            queued: false,
            asks: now,
            brake: 1.0,
            braked: None,
        }
    }

    /// What this process may send of that level. One that the reader does not know of yet counts itself.
    pub(super) fn level(&self, level: f64) -> f64 {
        let level = level * self.weight as f64 * self.brake;
        match self.told {
            Some((_, belief)) if !self.is_counted && !matches!(self.role, Role::Reads(_)) => {
                level * belief.wanting as f64 / (belief.wanting + self.weight) as f64
            }
            _ => level,
        }
    }

    /// Those that were heard lately.
    pub(super) fn lively(&self, now: Instant) -> impl Iterator<Item = &Report> {
        self.others.values().filter(move |(at, _)| *at + SILENT > now).map(|(_, report)| report)
    }

    /// Whether the calls of this process, or of another, come and go.
    pub(super) fn is_busy(&self, now: Instant, wants: bool) -> bool {
        wants || self.mine.sent_at.is_some_and(|at| at + SILENT > now)
    }

    /// The beat of calls then.
    pub(super) fn beat(&self, own: f64) -> Option<Beat> {
        let (at, Belief { rate, pause, beat, .. }) = self.told?;
        let period = rate / own;
        Some(Beat {
            heard: self.heard.unwrap_or(at),
            from: at + pause,
            number: beat,
            rate,
            period,
            place: self.turn * period,
        })
    }

    /// Finds the place of this process among those that want to send, of which the one that tells is one.
    pub(super) fn takes_turn(&mut self, now: Instant, teller: MemberId) {
        let others =
            self.others.iter().filter(|(id, (at, report))| report.wants && *at + SILENT > now && **id != teller);
        let others = others.map(|(id, _)| *id).chain((teller != self.id).then_some(teller)).filter(|id| *id != self.id);
        let (mut before, mut all) = (0_u32, 1_u32);
        for id in others {
            all += 1;
            before += u32::from(id < self.id);
        }
        self.turn = f64::from(before) / f64::from(all);
    }

    pub(super) fn report_every(&self, members: u64, starting: bool) -> Duration {
        let usual = if starting { REPORT_OF_START } else { REPORT };
        usual.max(REPORT_EACH.saturating_mul(u32::try_from(members).unwrap_or(u32::MAX))).min(AGAIN)
    }
}
