//! Which ledger is meant, and what it divides.

use std::fmt::Write as _;
use std::time::Duration;

use paceline_core::fleet::{AHEAD, FleetLimit, LimitKind};
use paceline_core::{DividedLimit, Quota};

/// A ledger: whose limits it divides, and which. Members with other limits under the same account are refused.
#[derive(Clone, Debug)]
pub struct LedgerName {
    /// The account, as a name that reveals no key: letters, digits and `-`.
    pub account: String,
    /// The limits, in order.
    pub limits: Vec<FleetLimit>,
    /// The same as words, with the lease: members that say the same mean the same.
    pub words: String,
    /// How long the allowance of a member lasts.
    pub lease: Duration,
}

impl LedgerName {
    /// The ledger of that account for those limits.
    pub fn new(account: &str, limits: &[DividedLimit], lease: Duration) -> Self {
        let mut words = String::new();
        for DividedLimit { tier, quota, in_flight, .. } in limits {
            let tier = tier.as_ref().map_or(String::new(), |tier| format!(" in {tier}"));
            let Quota { limit, dimension, window, .. } = quota;
            match in_flight {
                true => write!(words, "{limit} calls in flight for at most {window:?}{tier}, "),
                false => write!(words, "{limit} {dimension} per {window:?}{tier}, "),
            }
            .expect("a string has room");
        }
        write!(words, "under a lease of {lease:?}").expect("a string has room");
        let limit = |limit: &DividedLimit| {
            let kind = if limit.in_flight { LimitKind::Places } else { LimitKind::Window };
            FleetLimit { units: limit.quota.limit, kind: kind(limit.quota.window) }
        };
        Self { account: account.to_owned(), limits: limits.iter().map(limit).collect(), words, lease }
    }

    /// The place of each of these limits among others, in words: where it differs in its units alone. None where more than limits
    /// differs.
    #[cfg(feature = "client")]
    pub(crate) fn places_among(&self, theirs: &str) -> Option<Vec<Option<usize>>> {
        fn kinds(words: &str) -> (Vec<&str>, Vec<&str>) {
            let kind = |limit: &str| limit.split_once(' ').is_some_and(|(units, _)| units.parse::<u64>().is_ok());
            let (limits, rest): (Vec<&str>, Vec<&str>) = words.split(", ").partition(|limit| kind(limit));
            (limits.into_iter().filter_map(|limit| Some(limit.split_once(' ')?.1)).collect(), rest)
        }
        let ((ours, our_rest), (mut theirs, their_rest)) = (kinds(&self.words), kinds(theirs));
        let place = |kind: &str| {
            let place = theirs.iter().position(|other| *other == kind)?;
            // Of two of a kind each has a place of its own.
            theirs[place] = "";
            Some(place)
        };
        (our_rest == their_rest).then(|| ours.into_iter().map(place).collect())
    }

    /// After so long without a request nothing of a ledger counts any more.
    pub(crate) fn forgotten_after(&self) -> Duration {
        let longest = self.limits.iter().map(|limit| limit.quarantine()).max().unwrap_or_default();
        self.lease + AHEAD + longest + Duration::from_mins(1)
    }
}
