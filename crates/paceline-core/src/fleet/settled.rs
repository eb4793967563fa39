//! What a division stands on. While nothing of that changes, a limit is not divided again, for a division reads all members.
//!
//! Where all have what they want, a member that speaks gets that, and of what is left something to spare; the others keep theirs.
//! Where they want more than there is, a member that wants more than its share may want as much as it likes.

use super::message::Stake;
use crate::time::Instant;

/// The outcome of a division.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Settled {
    pub(super) room: Room,
    /// What there was to divide.
    pub(super) capacity: u64,
    /// What those that want more than their share have together, and their weights.
    pub(super) left: u64,
    pub(super) weights: u64,
    /// When it comes out differently by itself: a turn ends.
    pub(super) moves: Option<Instant>,
    /// Members were told of it last time that it was looked at. A hint may be lost.
    pub(super) hints: bool,
}

/// Whether there was enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Room {
    /// Each has what it wants, and something to spare.
    Ample,
    /// Each has what it wants. Who speaks first has something to spare.
    Enough,
    /// Some have less.
    Short,
}

impl Room {
    /// For these wants, and what all of them would have to spare.
    pub(super) const fn of(capacity: u64, wants: u64, spares: u64) -> Self {
        match () {
            () if wants.saturating_add(spares) <= capacity => Self::Ample,
            () if wants <= capacity => Self::Enough,
            () => Self::Short,
        }
    }
}

impl Settled {
    /// Whether the division stands after a member spoke that wanted `before`, with that weight; none: it is new.
    pub(super) fn stands(&self, capacity: u64, weight: u64, (before, is): (Option<(u64, Stake)>, Stake)) -> bool {
        let Some((_, was)) = before.filter(|(before, _)| self.capacity == capacity && *before == weight) else {
            return false;
        };
        let is_short = |want: u64| want as f64 * self.weights as f64 > self.left as f64 * weight as f64;
        was.lump == is.lump && (was.want == is.want || (is_short(was.want) && is_short(is.want)))
    }
}

/// What all members but one want, would have to spare, and are meant to hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    wants: u64,
    spares: u64,
    targets: u64,
}

impl Sums {
    /// Each with its stake and its target.
    pub(super) fn of(members: impl Iterator<Item = (Stake, u64)>) -> Self {
        members.fold(Self::default(), |Self { wants, spares, targets }, (stake, target)| Self {
            wants: wants + stake.want,
            spares: spares + Stake::spare(stake.want),
            targets: targets + target,
        })
    }

    /// What a member beside them may have to spare that gets what it wants, if there is that, and as much room as there was.
    pub(super) fn room_for(self, capacity: u64, want: u64, room: Room) -> Option<u64> {
        let spare = Stake::spare(want);
        let rest = capacity.checked_sub(self.targets + want)?;
        (Room::of(capacity, self.wants + want, self.spares + spare) == room).then_some(spare.min(rest))
    }
}
