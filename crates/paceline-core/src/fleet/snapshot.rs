//! What a pacer knows of its place in a fleet, for people.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::interface::MemberState;
use super::message::MemberId;
use crate::divided::DividedLimit;
use crate::snapshot::Explanation;
use crate::time::Instant;

/// The place of a pacer in a fleet, as it is known to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetSnapshot {
    /// Who it is there.
    pub member: MemberId,
    /// Its part among those that want more than there is.
    pub weight: u64,
    /// Where it stands.
    pub state: MemberState,
    /// Pacers that the ledger knew last, this one included.
    pub members: u64,
    /// Until when it may go on without the ledger; none without a lease.
    pub lease_ends: Option<Instant>,
    /// The ledger divides other limits, which other processes have.
    pub other_limits: bool,
    /// Why the ledger does not answer, since it did the last time.
    pub problem: Option<Arc<str>>,
    /// Its part of each limit.
    pub shares: Vec<FleetShare>,
    /// Who reads the learnt rate: decides it for all. Only where that is one of them for all scopes in use; see
    /// [`SharedRate::reader`](crate::SharedRate::reader).
    pub reader: Option<MemberId>,
    /// How many scopes in use have a learnt rate that this one reads.
    pub reads: u64,
}

impl FleetSnapshot {
    /// That it goes on without a lease at what was set aside for it, for people.
    pub(crate) fn goes_on_alone(&self) -> Option<&'static str> {
        let is_without = !matches!(self.state, MemberState::Live | MemberState::Leaving);
        (is_without && self.shares.iter().any(|share| share.alone > 0 && share.units == share.alone))
            .then_some("the store of the fleet does not answer, and this process goes on at what was set aside for it")
    }

    /// Why nothing leaves, for people, and for how long at most, where that is known: the store of the fleet is away, or has lost
    /// what it knew, and has given this process no share of a limit, or none that lasts.
    pub fn without_share(&self) -> Option<Explanation> {
        use MemberState::{Alone, Joining, Leaving, Live, Out};
        const OTHER_LIMITS: &str = "nothing leaves: the fleet divides other limits, until its other processes have the same or have \
                                    ended (the log says which)";
        const LOST: &str = ": the store of the fleet is new, processes were killed, or a limit was added, and until then what was sent \
                            before may count";
        let empty = self.shares.iter().filter(|share| share.units == 0);
        let lacking = || DividedLimit::lacking(self.shares.iter().map(|share| (&share.limit, share.units)));
        let whole = |before: String| Explanation { before, until: None, after: String::new() };
        let no_answer = || match &self.problem {
            Some(problem) => whole(format!("nothing leaves: {problem}")),
            None => whole("nothing leaves before the store of the fleet gives this process a share".into()),
        };
        match self.state {
            Out | Joining | Alone if self.other_limits => lacking().map(|_| whole(OTHER_LIMITS.into())),
            Out | Joining | Alone => lacking().map(|_| no_answer()),
            Live => {
                let until = Some(empty.filter_map(|share| share.back_by).max()?);
                Some(Explanation { before: "nothing leaves for up to ".into(), until, after: LOST.into() })
            }
            Leaving => None,
        }
    }
}

/// The part of a pacer in one divided limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetShare {
    /// The limit of all pacers together.
    pub limit: DividedLimit,
    /// The units of any window that this one may use.
    pub units: u64,
    /// The units that it may use while it has no lease.
    pub alone: u64,
    /// The units that none may use yet, because one that fell silent may have used them.
    pub quarantine: u64,
    /// By when they come back, where they are the whole limit.
    pub back_by: Option<Instant>,
}

/// For people: all but how long its lease lasts.
impl fmt::Display for FleetSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = if self.members == 1 { "" } else { "s" };
        write!(f, "{}, {} member{ending} known", self.state.as_str(), self.members)?;
        for (place, share) in self.shares.iter().enumerate() {
            write!(f, "{}{share}", if place == 0 { "; here " } else { ", " })?;
        }
        match self.reader {
            Some(reader) if reader == self.member => f.write_str("; this process reads the learnt rate"),
            Some(MemberId(reader)) => write!(f, "; member {reader:016x} reads the learnt rate"),
            None if self.reads > 0 => write!(f, "; this process reads the learnt rate of {} scopes", self.reads),
            None => Ok(()),
        }
    }
}

/// For people: `15 of 60 requests per 60s, 5 in quarantine`.
impl fmt::Display for FleetShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.units, self.limit)?;
        self.limit.tier.as_ref().map_or(Ok(()), |tier| write!(f, " ({tier})"))?;
        if self.quarantine > 0 { write!(f, ", {} in quarantine", self.quarantine) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;
    use core::time::Duration;

    use super::*;
    use crate::{Dimension, Quota};

    #[test]
    fn a_place_in_a_fleet_is_told_in_one_line() {
        let share = |limit, tier: Option<&str>, units, quarantine| {
            let quota = Quota::sliding(Dimension::Requests, limit, Duration::from_secs(60));
            let limit = DividedLimit { tier: tier.map(Into::into), quota, in_flight: tier.is_some(), place: 0 };
            FleetShare { limit, units, alone: 0, quarantine, back_by: None }
        };
        let mut fleet = FleetSnapshot {
            member: MemberId(10),
            weight: 1,
            state: MemberState::Live,
            members: 4,
            lease_ends: None,
            other_limits: false,
            problem: None,
            shares: vec![share(60, None, 15, 5), share(8, Some("embeddings"), 2, 0)],
            reader: Some(MemberId(10)),
            reads: 1,
        };
        let begin =
            "live, 4 members known; here 15 of 60 requests per 60s, 5 in quarantine, 2 of 8 concurrent (embeddings)";
        assert_eq!(fleet.to_string(), format!("{begin}; this process reads the learnt rate"));
        fleet.reader = Some(MemberId(11));
        assert_eq!(fleet.to_string(), format!("{begin}; member 000000000000000b reads the learnt rate"));
        (fleet.reader, fleet.reads) = (None, 2);
        assert_eq!(fleet.to_string(), format!("{begin}; this process reads the learnt rate of 2 scopes"));
        (fleet.reads, fleet.members, fleet.state, fleet.shares) = (0, 1, MemberState::Joining, Vec::new());
        assert_eq!(fleet.to_string(), "joining, 1 member known");
    }
}
