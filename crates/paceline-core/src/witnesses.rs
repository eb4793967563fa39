//! Witnesses: whether a refusal of an account is the account's, or that of the program that asked.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::time::Duration;

use crate::outcome::LimitScope;
use crate::time::Instant;

/// So many scopes are kept: clients choose their names. What comes beyond stops nothing.
const MOST: usize = 1_000;

/// For so long two programs stop nothing that were believed, and then another one passed where they had stopped it.
const DOUBTED: Duration = Duration::from_secs(86_400);

/// What was refused, and to which of several programs that share an account.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The scope of the call.
    pub scope: &'a Arc<str>,
    /// How far the refusal reaches by its own words.
    pub reach: LimitScope,
    /// Who sent it, where that is proved, as by a key of its own. `None`: nothing tells programs apart.
    pub client: Option<u64>,
    /// When the call left.
    pub sent: Instant,
    /// Calls of the scope have succeeded before.
    pub scope_has_answered: bool,
    /// Calls of the account have succeeded before.
    pub account_has_answered: bool,
}

/// How far refusals of a key, an account or its quota reach where programs share the account and one of them may ask for what
/// is refused to it alone: an administrator's path, a model that is not sold to all, a header of its own.
///
/// - Where programs are known apart, a refusal is believed once two of them have got one: none can stop the others by itself.
/// - Where they are not, it is believed at once while nothing has succeeded, as with a wrong key at the start, and
///   otherwise once a later call is refused too. If that call was of the same scope, and nothing of this scope has ever
///   succeeded, the scope alone is refused.
/// - A success of a call that left later takes the first refusal back. Where two known programs were believed, and the success is
///   another one's, their refusals stop nothing for a day: they may be one program with two keys, which would hold the
///   others again and again.
///
/// ```
/// use std::sync::Arc;
///
/// use paceline_core::{Witnesses, Instant, LimitScope, Refused};
///
/// let (chat, reach) = (Arc::from("chat"), LimitScope::Account);
/// let refused = |client| Refused {
///     scope: &chat,
///     reach,
///     client: Some(client),
///     sent: Instant::ZERO,
///     scope_has_answered: true,
///     account_has_answered: true,
/// };
/// let mut witnesses = Witnesses::default();
/// assert_eq!(witnesses.reach(Instant::ZERO, refused(1)), LimitScope::Item);
/// assert_eq!(witnesses.reach(Instant::ZERO, refused(1)), LimitScope::Item, "however often");
/// assert_eq!(witnesses.reach(Instant::ZERO, refused(2)), LimitScope::Account);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Witnesses {
    /// By scope; `None` is the account.
    first: BTreeMap<Option<Arc<str>>, Witness>,
    /// Known programs that stop nothing until then.
    doubted: BTreeMap<u64, Instant>,
}

/// The first that was refused, alone so far.
#[derive(Clone, Debug)]
struct Witness {
    client: Option<u64>,
    /// A second one was refused, too, and both are believed.
    second: Option<u64>,
    scope: Arc<str>,
    since: Instant,
}

impl Witnesses {
    /// How far that refusal reaches, which arrived now: as far as it says where it is believed, and [`LimitScope::Item`]
    /// where it is not.
    pub fn reach(&mut self, now: Instant, refused: Refused<'_>) -> LimitScope {
        let place = match refused.reach {
            LimitScope::Item => return LimitScope::Item,
            LimitScope::Scope => Some(Arc::clone(refused.scope)),
            LimitScope::Account => None,
        };
        if refused.client.and_then(|client| self.doubted.get(&client)).is_some_and(|until| now < *until) {
            return LimitScope::Item;
        }
        let has_answered = if place.is_none() { refused.account_has_answered } else { refused.scope_has_answered };
        if refused.client.is_none() && !has_answered {
            return refused.reach;
        }
        let Some(first) = self.first.get_mut(&place) else {
            if self.first.len() < MOST {
                let (client, scope) = (refused.client, Arc::clone(refused.scope));
                self.first.insert(place, Witness { client, second: None, scope, since: now });
            }
            return LimitScope::Item;
        };
        let is_the_scopes = first.scope == *refused.scope && !refused.scope_has_answered;
        match refused.client {
            Some(_) if first.client == refused.client => LimitScope::Item,
            None if refused.sent < first.since => LimitScope::Item,
            None if is_the_scopes => LimitScope::Scope,
            second => {
                first.second = first.second.or(second);
                refused.reach
            }
        }
    }

    /// A call of that scope has succeeded, which left then, of that known program.
    pub fn passed(&mut self, scope: &Arc<str>, sent: Instant, client: Option<u64>) {
        let doubted = &mut self.doubted;
        self.first.retain(|place, first| {
            let stays = place.as_ref().is_some_and(|place| place != scope) || sent < first.since;
            let both = [first.client, first.second];
            if !stays && first.second.is_some() && client.is_some() && !both.contains(&client) {
                doubted.retain(|_, until| sent < *until);
                doubted.extend(both.into_iter().flatten().map(|client| (client, sent + DOUBTED)));
            }
            stays
        });
    }

    /// So many scopes, the account among them, had one refusal that waits for a second one.
    pub fn count(&self) -> usize {
        self.first.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant::ZERO + seconds * S
    }

    fn refused(scope: &Arc<str>, sent: u32) -> Refused<'_> {
        let (reach, client, sent) = (LimitScope::Account, None, at(sent));
        Refused { scope, reach, client, sent, scope_has_answered: true, account_has_answered: true }
    }

    #[test]
    fn programs_that_nothing_tells_apart_confirm_each_other_by_later_calls() {
        let (chat, users): (Arc<str>, Arc<str>) = ("chat".into(), "users".into());
        let mut witnesses = Witnesses::default();
        let at_the_start = Refused { account_has_answered: false, ..refused(&chat, 0) };
        assert_eq!(witnesses.reach(at(1), at_the_start), LimitScope::Account, "a wrong key at the start");
        assert!(witnesses.count() == 0);

        assert_eq!(witnesses.reach(at(2), refused(&chat, 1)), LimitScope::Item);
        assert_eq!(witnesses.reach(at(3), refused(&chat, 1)), LimitScope::Item, "they were in flight together");
        assert_eq!(witnesses.reach(at(4), refused(&chat, 3)), LimitScope::Account);
        witnesses.passed(&chat, at(1), None);
        assert!(witnesses.count() > 0, "that call left before the refusal");
        witnesses.passed(&users, at(2), None);
        assert!(witnesses.count() == 0, "a success of any scope speaks for the account");

        // What has never succeeded is refused alone, until something else is refused, too.
        let odd = |sent| Refused { scope_has_answered: false, ..refused(&users, sent) };
        assert_eq!(witnesses.reach(at(11), odd(10)), LimitScope::Item);
        assert_eq!(witnesses.reach(at(13), odd(12)), LimitScope::Scope);
        assert_eq!(witnesses.reach(at(15), refused(&chat, 14)), LimitScope::Account);
    }

    #[test]
    fn a_refusal_of_a_scope_is_doubted_where_the_scope_has_answered() {
        let chat: Arc<str> = "chat".into();
        let mut witnesses = Witnesses::default();
        let of_scope =
            |answered, sent| Refused { reach: LimitScope::Scope, scope_has_answered: answered, ..refused(&chat, sent) };
        assert_eq!(witnesses.reach(at(1), of_scope(false, 0)), LimitScope::Scope);
        assert_eq!(witnesses.reach(at(1), of_scope(true, 0)), LimitScope::Item);
        assert_eq!(witnesses.reach(at(3), of_scope(true, 2)), LimitScope::Scope);
        assert_eq!(witnesses.reach(at(3), Refused { client: Some(1), ..of_scope(false, 2) }), LimitScope::Scope);
        witnesses.passed(&"other".into(), at(9), None);
        assert!(witnesses.count() > 0, "another scope says nothing of this one");
        witnesses.passed(&chat, at(9), None);
        assert!(witnesses.count() == 0);
    }

    #[test]
    fn two_that_another_one_speaks_against_stop_nothing_for_a_day_and_others_still_do() {
        let chat: Arc<str> = "chat".into();
        let one = |client, sent| Refused { reach: LimitScope::Scope, client: Some(client), ..refused(&chat, sent) };
        for (speaks, is_doubted) in [(Some(3), true), (Some(1), false), (Some(2), false), (None, false)] {
            let mut witnesses = Witnesses::default();
            let both = |witnesses: &mut Witnesses, at_second| {
                [1, 2].map(|client| witnesses.reach(at(at_second), one(client, at_second)))
            };
            assert_eq!(both(&mut witnesses, 1), [LimitScope::Item, LimitScope::Scope]);
            witnesses.passed(&chat, at(300), speaks);
            let again = if is_doubted { LimitScope::Item } else { LimitScope::Scope };
            assert_eq!(both(&mut witnesses, 301), [LimitScope::Item, again], "{speaks:?}");
            if is_doubted {
                assert_eq!(
                    [4, 5].map(|client| witnesses.reach(at(302), one(client, 302))),
                    [LimitScope::Item, LimitScope::Scope]
                );
                witnesses.passed(&chat, at(303), None);
                assert_eq!(both(&mut witnesses, 90_000), [LimitScope::Item, LimitScope::Scope], "a day is over");
            }
        }
        // A first one that was not believed counts as any other.
        let mut witnesses = Witnesses::default();
        assert_eq!(witnesses.reach(at(1), one(1, 1)), LimitScope::Item);
        witnesses.passed(&chat, at(2), Some(3));
        assert_eq!([1, 2].map(|client| witnesses.reach(at(3), one(client, 3))), [LimitScope::Item, LimitScope::Scope]);
    }

    #[test]
    fn they_are_bounded() {
        let mut witnesses = Witnesses::default();
        for number in 0..2 * MOST {
            let scope: Arc<str> = alloc::format!("{number}").into();
            let refused = Refused { reach: LimitScope::Scope, client: Some(1), ..refused(&scope, 0) };
            assert_eq!(witnesses.reach(at(1), refused), LimitScope::Item);
        }
        assert_eq!(witnesses.count(), MOST);
    }

    proptest! {
        /// Whatever one known client is refused, in whichever order with successes, it stops nothing.
        #[test]
        fn one_client_stops_nothing(steps in collection::vec((0..3_u32, 0..4_usize, 0..3_u32, 0..2_u32), 1..60)) {
            let scopes: [Arc<str>; 4] = ["a", "b", "c", "d"].map(Into::into);
            let (mut witnesses, mut now) = (Witnesses::default(), 0);
            for (later, scope, took, kind) in steps {
                now += later;
                let (scope, sent) = (&scopes[scope], at(now.saturating_sub(took)));
                let reach = if kind == 0 { LimitScope::Account } else { LimitScope::Scope };
                let one = Refused { reach, client: Some(1), sent, ..refused(scope, 0) };
                prop_assert_eq!(witnesses.reach(at(now), one), LimitScope::Item);
                prop_assert!(witnesses.count() > 0);
                // A second one is believed.
                prop_assert_eq!(witnesses.clone().reach(at(now), Refused { client: Some(2), ..one }), reach);
                if took == 0 {
                    witnesses.passed(scope, sent, Some(3));
                }
            }
        }
    }
}
