//! What a member has of one limit, and what it has a use for.

use super::FleetLimit;
use super::message::Stake;
use crate::time::Instant;

/// A member's side of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    /// What the ledger counts for it, at least.
    pub(super) has: u64,
    pub(super) target: u64,
    pub(super) contended: bool,
    /// It was told that it is meant to hold less than it has, and has given nothing back since: others wait for the first unit.
    pub(super) lowered: bool,
    pub(super) quarantine: u64,
    /// Since when that is all of the limit.
    pub(super) lost_since: Option<Instant>,
    pub(super) used: u64,
    pub(super) waiting: u64,
    pub(super) lump: u64,
    /// What it has told that it wants.
    pub(super) told: u64,
    /// What was set aside for it, and from when on it may use that.
    pub(super) alone: u64,
    pub(super) alone_from: Instant,
    /// What was last allowed, and until when.
    pub(super) allowed: (u64, Instant),
}

impl Share {
    /// What was set aside is in use by no process in whose place this one is, once what that sent counts no longer.
    pub(super) fn new(limit: &FleetLimit, alone: u64, now: Instant) -> Self {
        Self { lump: 1, alone, alone_from: now + limit.quarantine(), ..Self::default() }
    }

    pub(super) fn want(&self, limit: &FleetLimit) -> u64 {
        self.used.saturating_add(self.waiting).min(limit.units)
    }

    /// What it is meant to hold and has a use for soon.
    pub(super) fn keeps(&self, limit: &FleetLimit) -> u64 {
        self.target.min(Stake::ceiling(self.want(limit), self.contended, limit.units))
    }

    /// What it cannot give back, or has a use for.
    pub(super) fn needs(&self, limit: &FleetLimit) -> u64 {
        self.used.max(self.keeps(limit)).min(self.has)
    }

    /// It wants a quarter more than it has told, and has no room for it.
    pub(super) fn grows(&self, limit: &FleetLimit) -> bool {
        let want = self.want(limit);
        want > self.has && want * 4 > self.told.saturating_mul(5)
    }

    /// It got all that it told that it wants, has used it up, and wants more.
    pub(super) fn runs_short(&self, limit: &FleetLimit) -> bool {
        self.waiting > 0 && self.want(limit) > self.has && self.told <= self.target
    }

    /// It wants its first calls, and has got nothing for them.
    pub(super) fn begins(&self) -> bool {
        self.has == 0 && self.used == 0 && self.waiting > 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.has == 0 && self.used == 0 && self.waiting == 0
    }
}
