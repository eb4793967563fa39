//! Results that are too good to be true, and need a check: an oracle that is too slow, or a policy with more information than it
//! was given.
//!
//! Two things need an explanation:
//!
//! - More was admitted than the best schedule got. That has reasons where strangers share the limit, because the oracle
//!   leaves them theirs; where calls in service count, because the oracle keeps a place until its answer is back; where
//!   items are given up; and where clients that are not equally far mix cheap calls with expensive ones under a limit of
//!   each kind, because the oracle keeps to the order. Where a limit counts tokens, calls and tokens are both compared,
//!   and the smaller surplus counts: a policy that takes cheap items first gets more calls admitted.
//! - A limit was met almost exactly, and hardly a call was refused. Only refusals show where it lies: a policy that got no
//!   information and is refused less than twice in a thousand calls has it from elsewhere, or was lucky. Calls that slow each
//!   other down are left out: a fixed number of workers may happen to be just right for them.

use std::fmt;
use std::time::Duration;

use paceline_core::{Dimension, Instant};
use serde::Serialize;

use crate::ideal::Ideal;
use crate::policy;
use crate::scenario::Scenario;
use crate::setup::Setup;

/// What is too good about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TooGood {
    /// More was admitted than the best schedule got.
    BeyondOracle,
    /// A limit was met almost exactly and hardly anything was refused, though the policy did not know it.
    HardlyRefused,
}

impl fmt::Display for TooGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeyondOracle => "more was admitted than the oracle got, for no known reason",
            Self::HardlyRefused => "a limit that the policy was not told was met, and hardly a call was refused",
        })
    }
}

/// A surplus above the oracle's calls that means something.
const SURPLUS: f64 = 0.01;

/// At whatever share of the oracle's goodput a limit was met.
const MET: f64 = 0.95;

/// Enough calls to measure the share of refusals: fewer may be luck.
const ENOUGH: usize = 1_000;

/// Fewer refused calls per success are hardly any.
const HARDLY: f64 = 0.002;

/// A run beside the best schedule, both up to the same time.
pub(crate) struct Compared<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) setup: &'a Setup,
    pub(crate) ideal: &'a Ideal,
    /// Its calls until then, and the oracle's.
    pub(crate) calls: (usize, usize),
    /// Their tokens.
    pub(crate) tokens: (u64, u64),
    /// What was measured of the run.
    pub(crate) goodput: f64,
    pub(crate) waste: f64,
    pub(crate) lost: f64,
}

impl Compared<'_> {
    /// What is too good about it, if anything is.
    pub(crate) fn too_good(&self) -> Option<TooGood> {
        if self.surplus() > SURPLUS && !self.is_explained() {
            return Some(TooGood::BeyondOracle);
        }
        let sparing = self.goodput >= MET && self.waste < HARDLY && self.calls.0 >= ENOUGH;
        (sparing && !self.was_told() && self.is_held_back()).then_some(TooGood::HardlyRefused)
    }

    /// What it got beyond the oracle, of the oracle's; a call more or less is nothing.
    fn surplus(&self) -> f64 {
        let of = |ours: f64, oracle: f64| ours / oracle.max(1.0) - 1.0;
        let calls = of(self.calls.0 as f64 - 1.0, self.calls.1 as f64);
        let counts_tokens =
            self.scenario.provider.limits.iter().any(|limit| limit.quota.dimension == Dimension::Tokens);
        if counts_tokens { calls.min(of(self.tokens.0 as f64, self.tokens.1 as f64)) } else { calls }
    }

    /// Whether the oracle is known to leave something, or the items that were given up did not have to be done.
    fn is_explained(&self) -> bool {
        let provider = &self.scenario.provider;
        let counts = |dimension: &Dimension| provider.limits.iter().any(|limit| limit.quota.dimension == *dimension);
        let mixes =
            self.setup.clients > 1 && !self.setup.share && counts(&Dimension::Requests) && counts(&Dimension::Tokens);
        let places = provider.concurrency.is_some() || provider.overload.is_some();
        provider.tenants.is_some() || places || mixes || self.lost > 0.0
    }

    /// Whether the policy was given the limit: by the provider, its documentation, or a pacer's configuration.
    fn was_told(&self) -> bool {
        let Setup { policy, pacer, hints, .. } = self.setup;
        hints != "none" || pacer.is_some() || policy::TOLD.contains(&policy.as_str())
    }

    /// Whether it was a limit that held the oracle back, for most of the time in which there was work.
    fn is_held_back(&self) -> bool {
        let Ideal { held, idle, admitted, .. } = self.ideal;
        let all = admitted.last().copied().unwrap_or_default() - Instant::ZERO;
        self.scenario.provider.overload.is_none() && *held > Duration::ZERO && *held * 2 >= all.saturating_sub(*idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulate;
    use crate::measures::Measures;

    fn run(name: &str, items: u32, setup: &Setup) -> Measures {
        let scenario = Scenario::named(name).expect("built in").with_at_most(items);
        simulate(&scenario, setup).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn who_looks_into_the_provider_is_found_out() {
        // Strangers come by chance, which even this one does not know.
        let rates = Scenario::development().filter(|name| !["tenants", "overload"].contains(name));
        for name in rates {
            let found = run(name, 12_000, &Setup::new("foreseeing"));
            assert_eq!(found.too_good, Some(TooGood::HardlyRefused), "{found:?}");
        }
        // Who sees the state but not its own calls on their way meets the edges of sliding windows, and bursts.
        for name in ["tb-1s", "fw-60s", "fw-short", "conc", "tpm-shift", "steps", "sine", "brownout", "ddb-steps"] {
            let found = run(name, 12_000, &Setup::new("peeking"));
            assert_eq!(found.too_good, Some(TooGood::HardlyRefused), "{found:?}");
        }
    }

    #[test]
    fn who_learns_a_limit_and_who_was_told_it_are_not() {
        let shared = Setup { clients: 16, share: true, ..Setup::new("auto") };
        let apart = Setup { share: false, ..shared.clone() };
        for name in Scenario::development().chain(Scenario::short_jobs()).chain(Scenario::questions()) {
            for setup in [&Setup::new("auto"), &Setup::new("fixed"), &shared, &apart] {
                let run = run(name, 4_000, setup);
                assert_eq!(run.too_good, None, "{run:?}");
            }
        }
        let announced = Setup { hints: "hdr".to_owned(), ..Setup::new("foreseeing") };
        assert_eq!(run("tb-1s", 4_000, &announced).too_good, None);
    }

    /// What a run of 10,000 calls in `name` would be, had the oracle been admitted `oracle` calls meanwhile.
    fn beside(name: &str, oracle: usize, tokens: (u64, u64), lost: f64) -> Option<TooGood> {
        let scenario = Scenario::named(name).expect("built in");
        let setup = Setup::new("auto");
        let (calls, ideal, goodput, waste) = ((10_000, oracle), &Ideal::default(), 1.0, 0.1);
        Compared { scenario: &scenario, setup: &setup, ideal, calls, tokens, goodput, waste, lost }.too_good()
    }

    #[test]
    fn an_oracle_that_is_too_slow_is_found_out() {
        let beyond = Some(TooGood::BeyondOracle);
        assert_eq!(beside("tb-1s", 9_950, (0, 0), 0.0), None);
        assert_eq!(beside("tb-1s", 9_800, (0, 0), 0.0), beyond);
        assert_eq!(beside("tb-1s", 9_800, (0, 0), 0.1), None, "given up");
        assert_eq!(beside("tenants", 9_800, (0, 0), 0.0), None, "left to strangers");
        assert_eq!(beside("conc", 9_800, (0, 0), 0.0), None, "kept until the answer was back");
        assert_eq!(beside("ddb", 9_800, (100_000, 100_000), 0.0), None, "cheap ones first");
        assert_eq!(beside("ddb", 9_800, (100_000, 98_000), 0.0), beyond);
    }
}
