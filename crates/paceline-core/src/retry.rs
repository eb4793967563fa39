//! Retry decisions: whether an item is done, retried or given up after a call. Every retry of an item is decided here.

use core::time::Duration;

use crate::adaptive::LONGEST_CLOSURE;
use crate::config::{Pace, Retry};
use crate::outcome::{Class, LimitScope, Outcome, UnknownOutcome};
use crate::request::GiveUp;
use crate::rng::Rng;

/// The history of an item whose call has ended. The default is a first call without a deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Calls before this one that count against [`Retry::max_retries`].
    pub attempts: u32,
    /// The item's own bound on retries: the lower of it and [`Retry::max_retries`] acts. Default: it has none.
    pub max_retries: Option<u32>,
    /// Calls before this one that count against [`Retry::max_deferrals`].
    pub deferrals: u32,
    /// Calls right before this one that found the quota used up.
    pub quotas: u32,
    /// Calls before this one that count against no bound: the backoff of one that no server took grows with them.
    pub free: u32,
    /// The time until the item's deadline. Default: it has none.
    pub left: Option<Duration>,
    /// The clock of that deadline stands still while the item waits, because what it belongs to is held meanwhile.
    pub stands_still: bool,
    /// The call tested a failing server, and its item waits so long if the server still fails: one item that always fails must
    /// not keep the others from testing it.
    pub probe: Option<Duration>,
    /// The wait that a judge or the hold of the scope chose in place of the backoff.
    pub chosen: Option<Duration>,
    /// No wait is shorter, because others of the scope go first. Default 0.
    pub at_least: Duration,
}

/// The bound that a call counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Against the bound of retries.
    Attempt,
    /// Against the bound of deferrals.
    Deferral,
    /// Against no bound: no server took it.
    Unsent,
    /// Against no bound: the caller abandoned it.
    Abandoned,
    /// Against no bound: it was never sent.
    Nothing,
}

impl Counted {
    /// What a call of that end counts as.
    const fn of(outcome: &Outcome) -> Self {
        match outcome.class {
            Class::Overloaded | Class::Transient if outcome.unsent => Self::Unsent,
            Class::Success | Class::Overloaded | Class::Transient | Class::Invalid | Class::Filtered => Self::Attempt,
            Class::Throttled | Class::QuotaExhausted | Class::Account | Class::Partial => Self::Deferral,
            Class::Abandoned => Self::Abandoned,
        }
    }
}

/// What follows for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It has succeeded.
    Done,
    /// It goes again, after that wait.
    Again(Duration),
    /// It has failed.
    GiveUp(GiveUp),
}

/// A decision about an item whose call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// What the call counts as.
    pub counted: Counted,
    /// Retries that were made for it elsewhere: so many count against the bound of retries beside it.
    pub retried: u32,
    /// What follows for the item.
    pub then: Then,
}

/// Decides what follows from `outcome` for an item. The same arguments give the same decision, and `rng` moves on alike.
///
/// - Calls are 1 + retries; throttles and used-up quotas are deferrals, which have a bound of their own. A call that no server
///   took is neither.
/// - Retries that a gateway made for the call ([`Outcome::retried`]) are retries of the item: two layers spend one bound.
/// - An item always waits its hint. One that failed waits its backoff if that is longer, one that was throttled does not: the
///   server knows when there is room. A hint of zero is none, except after a transient failure, which then goes again at once.
/// - The backoff is that of the index of what has been counted so far, of retries or of deferrals.
/// - A quota that is used up for an unknown time is tested after 5 minutes, then after twice as long each time, an hour at most.
/// - Under [`Pace::Auto`] the pacer decides when an item goes again that was throttled for the first time without a hint. One
///   that is throttled again lets others go first: otherwise an item that is always refused would look like a limit that lets
///   nothing pass. It waits 5 s at most, and twice as long each time, however long failures wait: the backoff of servers that
///   are down for hours is none for an item that met a limit of some calls a second twice. Under [`Pace::Responsive`] such an
///   item waits 5 s at most.
/// - An item whose call may have been done and must not be done twice ends there, whatever its class and its counts, unless
///   [`Outcome::unknown`] says otherwise. A success has been done.
/// - An item whose next call would come at its deadline or later fails now, unless the clock of its deadline
///   [stands still](Tried::stands_still) meanwhile. An item that its account stops is kept, however late.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::retry::{Counted, Decision, Then, Tried, decide};
/// use paceline_core::{Class, GiveUp, Outcome, Pace, Retry, Rng};
///
/// let (config, mut rng) = (Retry { max_retries: 1, ..Retry::default() }, Rng::new(1));
/// let overloaded = Outcome::new(Class::Overloaded).with_hint(Duration::from_secs(30), false);
/// let first = decide(&config, Pace::Auto, &Tried::default(), &overloaded, &mut rng);
/// let then = Then::Again(Duration::from_secs(30));
/// assert_eq!(first, Decision { counted: Counted::Attempt, retried: 0, then });
/// let second = decide(&config, Pace::Auto, &Tried { attempts: 1, ..Tried::default() }, &overloaded, &mut rng);
/// assert_eq!(second.then, Then::GiveUp(GiveUp::Retries));
/// ```
#[inline]
pub fn decide(config: &Retry, pace: Pace, tried: &Tried, outcome: &Outcome, rng: &mut Rng) -> Decision {
    let (counted, retried) = (Counted::of(outcome), outcome.retried);
    if is_done(outcome) {
        return Decision { counted, retried, then: Then::Done };
    }
    let tried = &Tried { attempts: tried.attempts.saturating_add(retried), ..*tried };
    Decision { counted, retried, then: unless_done(config, pace, tried, outcome, counted, rng) }
}

/// Whether nothing follows for the item, whatever its history is.
#[inline]
pub(crate) fn is_done(outcome: &Outcome) -> bool {
    outcome.class == Class::Success
}

/// What follows where the item is not done.
fn unless_done(config: &Retry, pace: Pace, tried: &Tried, outcome: &Outcome, counted: Counted, rng: &mut Rng) -> Then {
    match outcome.unknown.ends().or_else(|| bound(config, tried, outcome.class, counted)) {
        Some(reason) => Then::GiveUp(reason),
        None => {
            let wait = wait(config, pace, tried, outcome, rng);
            let counts = if tried.stands_still { Duration::ZERO } else { wait };
            match tried.left.filter(|_| outcome.class != Class::Account) {
                Some(left) if left <= counts => Then::GiveUp(GiveUp::Deadline),
                _ => Then::Again(wait),
            }
        }
    }
}

/// Whether an item is owed a call though its deadline is over: it was due for one before that and was not called, for no
/// program was at work then, or the clock leapt; or it waits for that call since. A deadline bounds the tries of an item, and a
/// program at work has an item end that waits for anything else. `due` and `age` are since the first call: when the item was
/// due, and when the program first looked at it after that.
pub fn owes_a_call(due: Duration, age: Duration, deadline: Duration) -> bool {
    let was_missed = due < deadline && !due.is_zero();
    age >= deadline && (was_missed || due > deadline.saturating_add(WAITS_ON))
}

/// An item that ends at its deadline is due then, to the millisecond. One that is owed a call waits longer.
const WAITS_ON: Duration = Duration::from_millis(500);

/// The bound that forbids another call, whatever its wait.
fn bound(config: &Retry, tried: &Tried, class: Class, counted: Counted) -> Option<GiveUp> {
    match (class, counted) {
        (class, _) if class.is_final() => Some(GiveUp::Refused(class)),
        (_, Counted::Attempt) => (tried.attempts >= config.most(tried.max_retries)).then_some(GiveUp::Retries),
        (Class::Account, _) => None,
        (_, Counted::Deferral) => config.max_deferrals.filter(|max| tried.deferrals >= *max).map(|_| GiveUp::Deferrals),
        (_, Counted::Unsent | Counted::Abandoned | Counted::Nothing) => None,
    }
}

/// What is known of an item that may test a server which was left alone for refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBefore {
    /// Neither the item nor its address was refused.
    No,
    /// Other items of its address were.
    OthersOfItsAddress,
    /// The item itself was.
    Itself,
    /// It was the last that was.
    Last,
}

/// For how long an item lets others go first that may test a server in its place, as one sits out that has probed a failing
/// server: what refuses one item always must not keep out the others. None where it may go at once.
#[must_use]
pub const fn sits_out_test(refused: RefusedBefore) -> Option<Duration> {
    match refused {
        RefusedBefore::No => None,
        RefusedBefore::OthersOfItsAddress => Some(OTHERS_FIRST),
        RefusedBefore::Itself => Some(OTHERS_FIRST.saturating_mul(2)),
        RefusedBefore::Last => Some(OTHERS_FIRST.saturating_mul(3)),
    }
}

/// Long enough for a store to hand out all that waits for a server.
const OTHERS_FIRST: Duration = Duration::from_millis(1_100);

/// The wait before the next call: the item's own, and no less than the waits that the server and the scope ask for.
fn wait(config: &Retry, pace: Pace, tried: &Tried, outcome: &Outcome, rng: &mut Rng) -> Duration {
    let hint = outcome.hint.map(|hint| hint.wait);
    let at_once = outcome.class == Class::Transient && hint == Some(Duration::ZERO);
    let own = match (tried.probe, tried.chosen) {
        (Some(sits_out), chosen) if is_failure(outcome.class) => sits_out.max(chosen.unwrap_or_default()),
        (_, Some(chosen)) => chosen,
        (_, None) => match outcome.class {
            _ if at_once => Duration::ZERO,
            Class::Account | Class::Abandoned => Duration::ZERO,
            // The server knows when there is room again.
            Class::Throttled | Class::Partial | Class::QuotaExhausted if hint.is_some_and(|hint| !hint.is_zero()) => {
                Duration::ZERO
            }
            Class::QuotaExhausted => unknown_quota(tried.quotas),
            Class::Throttled | Class::Partial => throttled(config, pace, tried, outcome, rng),
            _ if outcome.unsent => config.backoff.delay(tried.attempts.saturating_add(tried.free), rng),
            _ => config.backoff.delay(tried.attempts, rng),
        },
    };
    own.max(hint.unwrap_or_default()).max(tried.at_least)
}

/// The longest own wait of a throttled item under the responsive pace, whose delay applies to all calls of the scope anyway.
const LONGEST_RESPONSIVE: Duration = Duration::from_secs(5);

fn throttled(config: &Retry, pace: Pace, tried: &Tried, outcome: &Outcome, rng: &mut Rng) -> Duration {
    let most = match pace {
        Pace::Auto if outcome.reach != LimitScope::Item => lets_others_go(tried.deferrals),
        Pace::Responsive => LONGEST_RESPONSIVE,
        _ => Duration::MAX,
    };
    config.backoff.delay_within(tried.deferrals, most, rng)
}

/// How long an item lets others of its scope go first that was throttled so often before: what refuses it alone is met ever
/// more seldom.
fn lets_others_go(before: u32) -> Duration {
    let doublings = before.checked_sub(1);
    doublings.map_or(Duration::ZERO, |times| LONGEST_CLOSURE.saturating_mul(2_u32.saturating_pow(times)))
}

/// The first wait for a quota whose end is not known, and the longest.
const FIRST_GUESS: Duration = Duration::from_secs(300);
const LONGEST_GUESS: Duration = Duration::from_secs(3_600);

/// The wait for a quota whose end is not known, after so many earlier waits that were too short.
pub(crate) fn unknown_quota(too_short: u32) -> Duration {
    FIRST_GUESS.saturating_mul(2_u32.saturating_pow(too_short)).min(LONGEST_GUESS)
}

impl UnknownOutcome {
    /// Why the item ends instead of being sent again, if it does.
    pub const fn ends(self) -> Option<GiveUp> {
        match self {
            Self::Resend => None,
            Self::Fail => Some(GiveUp::Unknown),
            Self::Hold => Some(GiveUp::Held),
        }
    }
}

/// Whether the server failed, and not the request.
pub(crate) const fn is_failure(class: Class) -> bool {
    matches!(class, Class::Overloaded | Class::Transient)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, Growth, Jitter};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_that_passed_while_no_one_looked_leaves_one_call() {
        let (deadline, ms) = (100 * S, Duration::from_millis(1));
        for (due, age, owes) in [
            (90 * S, 99 * S, false),
            (90 * S, 100 * S, true),
            (90 * S, 5_000 * S, true),
            // It ended at its deadline, where a server asked for more.
            (100 * S, 100 * S, false),
            (100 * S + 2 * ms, 5_000 * S, false),
            // It was to be called once its host is open again.
            (102 * S, 102 * S, true),
            // It was due for no call of its own: it was left to the next run.
            (Duration::ZERO, 5_000 * S, false),
        ] {
            assert_eq!(owes_a_call(due, age, deadline), owes, "due {due:?}, looked at {age:?}");
        }
    }

    fn config() -> Retry {
        let growth = Growth::Exponential { base: 2 * S, multiplier: 2.0, cap: 20 * S };
        Retry {
            max_retries: 3,
            max_deferrals: Some(5),
            backoff: Backoff { growth, jitter: Jitter::None },
            deadline: None,
        }
    }

    fn then(pace: Pace, tried: Tried, outcome: &Outcome) -> Then {
        decide(&config(), pace, &tried, outcome, &mut Rng::new(1)).then
    }

    #[test]
    fn under_auto_the_pacer_decides_about_a_first_throttle() {
        let (first, again) = (Tried::default(), Tried { deferrals: 2, ..Tried::default() });
        let throttled = Outcome::new(Class::Throttled);
        let of_item = Outcome::new(Class::Throttled).with_reach(LimitScope::Item);
        for (pace, tried, outcome, wait) in [
            (Pace::Auto, first, &throttled, 0),
            (Pace::Auto, first, &of_item, 2),
            (Pace::Auto, again, &throttled, 8),
            (Pace::Responsive, first, &throttled, 2),
            (Pace::Responsive, again, &throttled, 5),
            (Pace::Fixed, first, &throttled, 2),
            (Pace::Fixed, again, &throttled, 8),
        ] {
            assert_eq!(then(pace, tried, outcome), Then::Again(wait * S), "{pace:?} {tried:?}");
        }
    }

    /// Failures of a server that is down for hours have long waits, which a limit of some calls a second has nothing to do with.
    #[test]
    fn under_auto_a_repeated_throttle_waits_five_seconds_and_doubles_up_to_the_cap_however_long_failures_wait() {
        let growth = Growth::Exponential { base: 60 * S, multiplier: 2.0, cap: 14_400 * S };
        let config = Retry {
            max_retries: 30,
            max_deferrals: None,
            backoff: Backoff { growth, jitter: Jitter::None },
            deadline: None,
        };
        let wait = |pace, deferrals, reach| {
            let outcome = Outcome::new(Class::Throttled).with_reach(reach);
            let tried = Tried { deferrals, ..Tried::default() };
            match decide(&config, pace, &tried, &outcome, &mut Rng::new(1)).then {
                Then::Again(wait) => wait.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        let of_scope = [0, 1, 2, 3, 12, 13, 99].map(|before| wait(Pace::Auto, before, LimitScope::Scope));
        assert_eq!(of_scope, [0, 5, 10, 20, 10_240, 14_400, 14_400]);
        let by_itself = [0, 1, 2].map(|before| wait(Pace::Auto, before, LimitScope::Item));
        assert_eq!(by_itself, [60, 120, 240], "its server says that the item is meant");
        assert_eq!([0, 1, 2].map(|before| wait(Pace::Fixed, before, LimitScope::Scope)), [60, 120, 240]);
    }

    #[test]
    fn what_may_have_been_done_and_must_not_be_done_twice_ends_its_item() {
        let unknown = |class, unknown| Outcome { unknown, ..Outcome::new(class) };
        let probe = Tried { probe: Some(4 * S), ..Tried::default() };
        for class in [Class::Transient, Class::Overloaded, Class::Abandoned] {
            for tried in [Tried::default(), probe] {
                let ends = |word| then(Pace::Auto, tried, &unknown(class, word));
                assert_eq!(ends(UnknownOutcome::Hold), Then::GiveUp(GiveUp::Held), "{class}");
                assert_eq!(ends(UnknownOutcome::Fail), Then::GiveUp(GiveUp::Unknown), "{class}");
                assert!(matches!(ends(UnknownOutcome::Resend), Then::Again(_)), "{class}");
            }
        }
        let done = unknown(Class::Success, UnknownOutcome::Hold);
        assert_eq!(then(Pace::Auto, Tried::default(), &done), Then::Done);
    }

    #[test]
    fn what_is_chosen_takes_the_place_of_the_backoff_and_not_of_the_hint() {
        let chosen = Tried { chosen: Some(11 * S), ..Tried::default() };
        assert_eq!(then(Pace::Fixed, chosen, &Outcome::new(Class::Overloaded)), Then::Again(11 * S));
        let hinted = Outcome::new(Class::Overloaded).with_hint(30 * S, false);
        assert_eq!(then(Pace::Fixed, chosen, &hinted), Then::Again(30 * S));
        let others_first = Tried { at_least: 40 * S, ..chosen };
        assert_eq!(then(Pace::Fixed, others_first, &hinted), Then::Again(40 * S));
    }

    #[test]
    fn who_was_refused_tests_a_server_after_the_others() {
        let order = [RefusedBefore::No, RefusedBefore::OthersOfItsAddress, RefusedBefore::Itself, RefusedBefore::Last]
            .map(sits_out_test);
        assert!(order.is_sorted() && order[0].is_none(), "{order:?}");
    }

    #[test]
    fn a_failed_probe_counts_like_any_call_and_its_item_sits_out() {
        let probe = Tried { attempts: 2, probe: Some(4 * S), ..Tried::default() };
        let counted = |class| decide(&config(), Pace::Auto, &probe, &Outcome::new(class), &mut Rng::new(1));
        let sits_out = Then::Again(4 * S);
        assert_eq!(counted(Class::Transient), Decision { counted: Counted::Attempt, retried: 0, then: sits_out });
        let last = Tried { attempts: 3, ..probe };
        assert_eq!(then(Pace::Auto, last, &Outcome::new(Class::Transient)), Then::GiveUp(GiveUp::Retries));
        let refused = Then::GiveUp(GiveUp::Refused(Class::Invalid));
        assert_eq!(counted(Class::Invalid), Decision { counted: Counted::Attempt, retried: 0, then: refused });
        assert_eq!(counted(Class::Success), Decision { counted: Counted::Attempt, retried: 0, then: Then::Done });
        assert_eq!(counted(Class::Throttled).counted, Counted::Deferral);
        let at_once = Outcome::new(Class::Transient).with_hint(Duration::ZERO, true);
        assert_eq!(then(Pace::Auto, probe, &at_once), sits_out, "others test the server first");
        assert_eq!(then(Pace::Auto, Tried { chosen: Some(9 * S), ..probe }, &at_once), Then::Again(9 * S));
    }

    #[test]
    fn the_lower_bound_on_retries_acts() {
        let failed = Outcome::new(Class::Transient);
        for (attempts, own, ends) in
            [(1, Some(2), false), (2, Some(2), true), (0, Some(0), true), (2, None, false), (3, Some(9), true)]
        {
            let tried = Tried { attempts, max_retries: own, ..Tried::default() };
            let ended = then(Pace::Auto, tried, &failed) == Then::GiveUp(GiveUp::Retries);
            assert_eq!(ended, ends, "{attempts} of {own:?}");
        }
        let throttled =
            then(Pace::Auto, Tried { max_retries: Some(0), ..Tried::default() }, &Outcome::new(Class::Throttled));
        assert!(matches!(throttled, Then::Again(_)), "a deferral is no retry");
    }

    #[test]
    fn retries_of_a_gateway_are_retries_of_the_item() {
        let after = |class, retried| Outcome { retried, ..Outcome::new(class) };
        for (attempts, retried, ends) in [(0, 2, false), (0, 3, true), (1, 1, false), (2, 1, true), (0, 9, true)] {
            let tried = Tried { attempts, ..Tried::default() };
            let ended = then(Pace::Auto, tried, &after(Class::Transient, retried));
            assert_eq!(ended == Then::GiveUp(GiveUp::Retries), ends, "{attempts} and {retried}");
        }
        let failed = decide(&config(), Pace::Auto, &Tried::default(), &after(Class::Transient, 1), &mut Rng::new(1));
        assert_eq!(failed, Decision { counted: Counted::Attempt, retried: 1, then: Then::Again(4 * S) }, "its backoff");
        let throttled = then(Pace::Fixed, Tried::default(), &after(Class::Throttled, 9));
        assert!(matches!(throttled, Then::Again(_)), "a limit costs no item, however many retries are spent");
        let left = |own, attempts| config().left(own, attempts);
        assert_eq!([left(None, 1), left(Some(1), 0), left(Some(9), 3), left(None, 7)], [2, 1, 0, 0]);
    }

    #[test]
    fn a_call_that_no_server_took_counts_for_no_item_and_waits_its_backoff() {
        let unsent = |class| Outcome { unsent: true, ..Outcome::new(class) };
        let tried = Tried { attempts: 3, ..Tried::default() };
        let decided = |class| decide(&config(), Pace::Auto, &tried, &unsent(class), &mut Rng::new(1));
        assert_eq!(
            decided(Class::Transient),
            Decision { counted: Counted::Unsent, retried: 0, then: Then::Again(16 * S) }
        );
        assert_eq!(then(Pace::Auto, tried, &Outcome::new(Class::Transient)), Then::GiveUp(GiveUp::Retries));
        let again = |free| then(Pace::Auto, Tried { free, ..Tried::default() }, &unsent(Class::Transient));
        assert_eq!([0, 1, 2, 9].map(again), [2, 4, 8, 20].map(|seconds| Then::Again(seconds * S)));
        let late = Tried { left: Some(S), ..tried };
        assert_eq!(then(Pace::Auto, late, &unsent(Class::Transient)), Then::GiveUp(GiveUp::Deadline));
    }

    #[test]
    fn the_clock_of_deadlines_stands_still_where_all_is_held_and_for_a_stopped_account() {
        let left = |left| Tried { left: Some(left), ..Tried::default() };
        let held = |time| Tried { stands_still: true, ..left(time) };
        let late = Then::GiveUp(GiveUp::Deadline);
        let quota = Outcome::new(Class::QuotaExhausted).with_hint(7_200 * S, false);
        assert_eq!(then(Pace::Auto, held(S), &quota), Then::Again(7_200 * S));
        assert_eq!(then(Pace::Auto, held(Duration::ZERO), &quota), late, "it was too late before");
        assert_eq!(then(Pace::Auto, left(7_200 * S), &quota), late, "its clock goes on");
        assert_eq!(then(Pace::Auto, left(7_201 * S), &quota), Then::Again(7_200 * S));
        let account = Outcome::new(Class::Account);
        assert_eq!(then(Pace::Auto, left(Duration::ZERO), &account), Then::Again(Duration::ZERO));
        let overloaded = Outcome::new(Class::Overloaded);
        assert_eq!(then(Pace::Auto, left(2 * S), &overloaded), late, "a call at its deadline is too late");
        assert_eq!(then(Pace::Auto, left(3 * S), &overloaded), Then::Again(2 * S));
    }

    proptest! {
        /// Whatever happens: 1 + retries, 1 + deferrals, no wait below the hint, none of its own above the cap.
        #[test]
        fn bounds_and_waits(class in 0..Class::ALL.len(), attempts in 0u32..6, deferrals in 0u32..8, hint in proptest::option::of(0u64..60), seed: u64) {
            let mut config = config();
            config.backoff.jitter = Jitter::Full;
            let (class, hint) = (Class::ALL[class], hint.map(Duration::from_secs));
            let outcome = Outcome { hint: hint.map(|wait| crate::outcome::Hint::new(wait, false)), ..Outcome::new(class) };
            let tried = Tried { attempts, deferrals, ..Tried::default() };
            let decision = decide(&config, Pace::Fixed, &tried, &outcome, &mut Rng::new(seed));
            let over = match decision.counted {
                Counted::Attempt => attempts >= 3,
                Counted::Deferral => deferrals >= 5 && class != Class::Account,
                Counted::Unsent | Counted::Abandoned | Counted::Nothing => false,
            };
            match decision.then {
                Then::Done => prop_assert_eq!(class, Class::Success),
                Then::GiveUp(_) => prop_assert!(over || class.is_final()),
                Then::Again(wait) => {
                    prop_assert!(!over && !class.is_final() && wait >= hint.unwrap_or_default());
                    let cap = if class == Class::QuotaExhausted { FIRST_GUESS } else { 20 * S };
                    prop_assert!(wait <= cap.max(hint.unwrap_or_default()));
                }
            }
        }
    }
}
