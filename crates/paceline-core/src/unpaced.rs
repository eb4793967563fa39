//! An item whose calls go through no pacer, for they have no limit to obey.

use core::time::Duration;

use crate::config::{Pace, Retry};
use crate::cost::Cost;
use crate::outcome::{Class, Outcome};
use crate::request::{GiveUp, NextAction, Request};
use crate::retry::{self, Then, Tried};
use crate::rng::Rng;
use crate::time::Instant;

/// Such an item with its history, from which alone follows what becomes of it after a call.
///
/// It is decided about as an item of a pacer without limits ([`Pace::None`]), but that there is no scope that others share: a
/// pause holds this item and no other, and of a refusal of the account, which would stop a scope until a person acts, the item
/// ends.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::{Class, GiveUp, Instant, NextAction, Outcome, Retry, Unpaced};
///
/// let mut item = Unpaced::new(Retry { max_retries: 1, ..Retry::default() }, 1, Instant::ZERO);
/// let overloaded = Outcome::new(Class::Overloaded).with_hint(Duration::from_secs(30), false);
/// let first = item.complete(Instant::ZERO, &overloaded);
/// assert!(matches!(first, NextAction::Retry { delay, .. } if delay == Duration::from_secs(30)));
/// let second = item.complete(Instant::ZERO + Duration::from_secs(30), &overloaded);
/// assert!(matches!(second, NextAction::GiveUp { reason: GiveUp::Retries, .. }));
/// ```
#[derive(Clone, Debug)]
pub struct Unpaced {
    config: Retry,
    rng: Rng,
    /// The counts of its calls so far, and its deadline.
    request: Request,
    /// Calls right before this one that found the quota used up.
    quotas: u32,
}

impl Unpaced {
    /// The name of the scope that its requests have.
    pub const SCOPE: &str = "unpaced";

    /// An item whose first call leaves, or has left, at that time.
    pub fn new(config: Retry, seed: u64, first: Instant) -> Self {
        let deadline = config.deadline.map(|bound| first + bound);
        let request = Request { deadline, ..Request::new(Self::SCOPE, Cost::request()) };
        Self { config, rng: Rng::new(seed), request, quotas: 0 }
    }

    /// Takes the outcome of its call, and says what follows.
    pub fn complete(&mut self, now: Instant, outcome: &Outcome) -> NextAction {
        let is_used_up = outcome.class == Class::QuotaExhausted;
        let Request { attempts, deferrals, unsent, deadline, .. } = self.request;
        let tried = Tried {
            attempts,
            deferrals,
            quotas: self.quotas,
            free: unsent,
            left: deadline.map(|deadline| deadline - now),
            // As for the requests of a pacer, whose scope is held meanwhile.
            stands_still: is_used_up,
            ..Tried::default()
        };
        self.quotas = if is_used_up { self.quotas.saturating_add(1) } else { 0 };
        let decision = retry::decide(&self.config, Pace::None, &tried, outcome, &mut self.rng);
        self.request.count(&decision);
        let then = match decision.then {
            Then::Again(_) if outcome.class == Class::Account => Then::GiveUp(GiveUp::Refused(Class::Account)),
            then => then,
        };
        let aside = match then {
            Then::Again(delay) if is_used_up => delay,
            _ => Duration::ZERO,
        };
        let action = self.request.follow(now, outcome.class, then, aside);
        if let NextAction::Retry { next, .. } | NextAction::Resend { next, .. } = &action {
            self.request.deadline = next.deadline;
        }
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, Growth, Jitter};
    use alloc::vec::Vec;

    const S: Duration = Duration::from_secs(1);

    fn item(deadline: Option<Duration>) -> Unpaced {
        let growth = Growth::Exponential { base: 2 * S, multiplier: 2.0, cap: 20 * S };
        let backoff = Backoff { growth, jitter: Jitter::None };
        let config = Retry { max_retries: 3, max_deferrals: Some(5), backoff, deadline };
        Unpaced::new(config, 1, Instant::ZERO)
    }

    /// The waits in seconds that follow from these outcomes, and the bound that ends the item.
    fn waits(item: &mut Unpaced, outcomes: &[Outcome]) -> (Vec<u64>, Option<GiveUp>) {
        let (mut now, mut waits) = (Instant::ZERO, Vec::new());
        for outcome in outcomes {
            match item.complete(now, outcome) {
                NextAction::Retry { delay, .. } | NextAction::Resend { delay, .. } => {
                    now += delay;
                    waits.push(delay.as_secs());
                }
                NextAction::GiveUp { reason, .. } => return (waits, Some(reason)),
                NextAction::Done => break,
            }
        }
        (waits, None)
    }

    #[test]
    fn failures_and_refusals_have_bounds_and_delays_of_their_own() {
        let of = |classes: &[Class]| classes.iter().map(|class| Outcome::new(*class)).collect::<Vec<_>>();
        use Class::{Abandoned, Invalid, Overloaded, Partial, Success, Throttled, Transient};
        for (classes, expected, ends) in [
            ([Transient, Success].as_slice(), [2].as_slice(), None),
            (&[Transient, Overloaded, Transient, Transient], &[2, 4, 8], Some(GiveUp::Retries)),
            (&[Throttled; 6], &[2, 4, 8, 16, 20], Some(GiveUp::Deferrals)),
            (&[Transient, Throttled, Partial, Transient, Throttled], &[2, 2, 4, 4, 8], None),
            (&[Transient, Invalid], &[2], Some(GiveUp::Refused(Invalid))),
            (&[Abandoned], &[], None),
        ] {
            assert_eq!(waits(&mut item(None), &of(classes)), (expected.to_vec(), ends), "{classes:?}");
        }
    }

    #[test]
    fn a_refusal_of_the_account_ends_the_item_for_nothing_is_stopped_that_it_could_wait_for() {
        let refused = Outcome::new(Class::Account).with_hint(30 * S, true);
        assert_eq!(waits(&mut item(None), &[refused]), (Vec::new(), Some(GiveUp::Refused(Class::Account))));
    }

    #[test]
    fn a_quota_of_unknown_end_is_tested_ever_later_and_from_the_beginning_after_anything_else() {
        let (used_up, failed) = (Outcome::new(Class::QuotaExhausted), Outcome::new(Class::Transient));
        let outcomes = [&used_up, &used_up, &failed, &used_up].map(Clone::clone);
        assert_eq!(waits(&mut item(None), &outcomes).0, [300, 600, 2, 300]);
    }

    #[test]
    fn the_deadline_stands_still_while_a_quota_is_used_up_and_at_nothing_else() {
        let used_up = Outcome::new(Class::QuotaExhausted).with_hint(3_600 * S, true);
        let failed = Outcome::new(Class::Transient);
        let outcomes = [&failed, &used_up, &failed, &failed].map(Clone::clone);
        // 2 s and 4 s of 10; the next would be 8 s.
        assert_eq!(waits(&mut item(Some(10 * S)), &outcomes), ([2, 3_600, 4].to_vec(), Some(GiveUp::Deadline)));
        let throttled = Outcome::new(Class::Throttled).with_hint(10 * S, true);
        assert_eq!(waits(&mut item(Some(10 * S)), &[throttled]), (Vec::new(), Some(GiveUp::Deadline)));
    }
}
