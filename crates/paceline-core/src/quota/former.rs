//! Limits that are no more. What leaves without them is counted on, so that they hold at once where they come back.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Counter, LARGEST_LIMIT, inherit};
use crate::config::{Quota, QuotaShape};
use crate::time::Instant;

/// What `known` counters remember of each dimension longer than those of `limits` do: one sliding window for each, which holds no
/// call up. None where the limits remember as much.
#[expect(clippy::box_collection, reason = "most scopes have none, and a scope is small")]
pub(super) fn beyond<'a>(
    now: Instant,
    limits: &[(Quota, Counter)],
    known: impl Iterator<Item = &'a (Quota, Counter)> + Clone,
) -> Option<Box<Vec<(Quota, Counter)>>> {
    let mut former: Vec<(Quota, Counter)> = Vec::new();
    for (quota, _) in known.clone() {
        let remembers = |counters: &[(Quota, Counter)]| {
            let alike = counters.iter().filter(|(other, _)| other.dimension == quota.dimension);
            alike.map(|(other, _)| memory(other)).max().unwrap_or_default()
        };
        if memory(quota) <= remembers(limits).max(remembers(&former)) {
            continue;
        }
        former.retain(|(other, _)| other.dimension != quota.dimension);
        let quota = Quota::sliding(quota.dimension.clone(), LARGEST_LIMIT, memory(quota));
        let mut counter = Counter::new(&quota);
        inherit(now, &quota, &mut counter, known.clone());
        former.push((quota, counter));
    }
    (!former.is_empty()).then(|| Box::new(former))
}

/// How long ago a call left at most that a limit still counts. A bucket is full again once its burst has been refilled.
fn memory(quota: &Quota) -> Duration {
    let windows = match quota.shape {
        QuotaShape::Bucket { burst } => burst.div_ceil(quota.limit),
        QuotaShape::Sliding | QuotaShape::Fixed => 1,
    };
    let longest = quota.window.saturating_mul(u32::try_from(windows).unwrap_or(u32::MAX));
    longest.min(super::LONGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admit::Admit;
    use crate::background::Ask;
    use crate::config::Limits;
    use crate::cost::{Cost, Dimension};
    use crate::quota::Quotas;

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    fn limits(quotas: &[Quota]) -> Limits {
        Limits { quotas: quotas.to_vec(), burst: None }
    }

    fn requests(limit: u64, seconds: u32) -> Quota {
        Quota::sliding(Dimension::Requests, limit, S * seconds)
    }

    /// Takes so many requests; returns when the next may leave.
    fn taken(all: &mut Quotas, seconds: f64, calls: u64) -> Instant {
        all.count_calls(at(seconds), &Cost::request(), calls);
        match all.admit(at(seconds), &Ask::of(&Cost::request())) {
            Admit::At { at, .. } => at,
            Admit::Now => at(seconds),
            never @ Admit::OnRelease { .. } => panic!("{never:?}"),
        }
    }

    fn replaced(all: &mut Quotas, seconds: f64, quotas: &[Quota]) -> bool {
        all.reconfigure(at(seconds), &limits(quotas)).expect("sensible");
        all.admit(at(seconds), &Ask::of(&Cost::request())) == Admit::Now
    }

    #[test]
    fn a_limit_that_comes_back_counts_what_left_without_it() {
        let mut all = Quotas::new(&limits(&[requests(5, 30)])).expect("sensible");
        taken(&mut all, 0.0, 3);
        assert!(replaced(&mut all, 1.0, &[]), "nothing limits it");
        assert_eq!(taken(&mut all, 2.0, 7), at(2.0));
        assert!(!replaced(&mut all, 3.0, &[requests(5, 30)]));
        assert_eq!(all.used(at(3.0), 0), 10);
        assert!(replaced(&mut all, 4.0, &[requests(100, 1)]), "seven a second are few");
        assert_eq!(taken(&mut all, 5.0, 90), at(5.0));
        assert!(!replaced(&mut all, 31.0, &[requests(90, 30)]), "a shorter window does not forget them");
        assert_eq!(all.used(at(31.0), 0), 97);
        assert!(all.former.is_none(), "it remembers as much");
        assert_eq!(all.used(at(36.0), 0), 0);
    }

    #[test]
    fn so_does_one_of_another_dimension_and_of_another_kind() {
        let shaped = |shape| Quota { shape, ..requests(5, 10) };
        let tokens = Quota::sliding(Dimension::Tokens, 100, S * 60);
        for shape in [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 20 }] {
            let mut all = Quotas::new(&limits(&[shaped(shape)])).expect("sensible");
            taken(&mut all, 0.0, 2);
            assert!(replaced(&mut all, 1.0, core::slice::from_ref(&tokens)));
            taken(&mut all, 2.0, 1_000);
            assert!(!replaced(&mut all, 3.0, &[tokens.clone(), shaped(shape)]), "{shape:?}");
            let next = taken(&mut all, 3.0, 0);
            assert!(next <= at(13.0), "{shape:?}: at most one full window is to be waited for, not {next}");
        }
    }

    #[test]
    fn it_goes_over_a_restart() {
        let mut all = Quotas::new(&limits(&[requests(5, 30)])).expect("sensible");
        taken(&mut all, 0.0, 5);
        replaced(&mut all, 1.0, &[]);
        taken(&mut all, 2.0, 2);
        assert!(!all.is_unused(at(31.0)) && all.is_unused(at(33.0)), "its scope is kept as long");
        let mut next = Quotas::new(&limits(&[])).expect("sensible");
        next.restore(at(0.0), &all.export(at(10.0)), S);
        let mut again = next.clone();
        assert!(!replaced(&mut next, 1.0, &[requests(2, 30)]));
        again.restore(at(0.0), &all.export(at(10.0)), S);
        assert!(!replaced(&mut again, 1.0, &[requests(14, 30)]), "counts of two are added");
        let mut none = Quotas::new(&limits(&[])).expect("sensible");
        none.restore(at(0.0), &[], S);
        assert!(none.former.is_none());
    }

    proptest! {
        /// No limit lets more leave than it allows, whatever was in force between: the first of all was as long as any.
        #[test]
        fn no_limit_that_comes_back_is_exceeded(
            steps in proptest::collection::vec((0u64..3_000, 1u64..9, proptest::option::of((1u32..9, 1u64..12))), 1..120),
        ) {
            let mut all = Quotas::new(&limits(&[requests(10, 10)])).expect("sensible");
            let (mut log, mut now, mut in_force) = (Vec::new(), Instant::ZERO, Some((10, 10)));
            for (number, (passed, calls, next)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(passed);
                if number % 5 == 4 {
                    in_force = next;
                    let quotas: Vec<_> = next.iter().map(|(seconds, limit)| requests(*limit, *seconds)).collect();
                    all.reconfigure(now, &limits(&quotas)).expect("sensible");
                }
                for _ in 0..calls {
                    while let Admit::At { at, .. } = all.admit(now, &Ask::of(&Cost::request())) {
                        now = at;
                    }
                    all.take(now, now, &Cost::request());
                    log.push(now);
                    if let Some((seconds, limit)) = in_force {
                        let inside = log.iter().filter(|at| **at + S * seconds > now).count() as u64;
                        prop_assert!(inside <= limit, "{inside} in {seconds} s of {limit}");
                    }
                }
            }
        }
    }
}
