//! Witnesses: whether a refusal of an account is the account's, or that of the program that asked.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::outcome::LimitScope;
use crate::time::Instant;

/// So many scopes are kept: clients choose their names. What comes beyond stops nothing.
const MOST: usize = 1_000;

/// For so long a program stops nothing that was believed, and then another one passed where it had held that up.
const DOUBTED: Duration = Duration::from_secs(86_400);

/// In so many places one program is doubted; in more it is doubted in all.
const MOST_DOUBTED: usize = 100;

/// So many refusals without a success in between speak for the account where each is of a path that has never answered, as one
/// does of any other path.
const ODD: u32 = 20;

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
    /// It is a wait, which holds the others for a moment though one program alone was told so.
    pub is_wait: bool,
    /// Calls of its path have succeeded before.
    pub path_has_answered: bool,
    /// Calls of the scope have succeeded before.
    pub scope_has_answered: bool,
    /// Calls of the account have succeeded before.
    pub account_has_answered: bool,
}

/// How far a refusal is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// It stops nothing, nor does it speak for another one of its program.
    Alone,
    /// The same, of a program that was believed before and was wrong.
    Doubted,
    /// One program was refused, so far.
    First(LimitScope),
    /// Two were, the one and the other: the call of a third shows whether it is theirs alone.
    Second(LimitScope, [Option<u64>; 2]),
    /// Three were, or programs are not known apart.
    Believed(LimitScope),
}

/// How far refusals of a key, an account or its quota reach, and long waits, where programs share the account and one of them
/// may ask for what is refused to it alone: an administrator's path, a model that is not sold to all, a header of its own.
///
/// - Where programs are known apart, what three were refused is believed, and what two were has to be tested by a third: none can
///   stop the others by itself, nor by two keys. A refusal of the account is one of its scope, too, and what two were refused
///   there holds it though other scopes answer.
/// - A refusal of a path or scope that has never answered says nothing of the account, where that has answered: twenty do,
///   without a success in between.
/// - Where they are not known, it is believed at once while nothing has succeeded, as with a wrong key at the start, and
///   otherwise once a later call is refused too. If that call was of the same scope, and nothing of this scope has ever
///   succeeded, the scope alone is refused.
/// - A success of a call that left later takes refusals back. Where they had held up the others, and the success is
///   another program's, they stop nothing there for a day: they may be one program with several keys, which would hold the
///   others again and again.
///
/// ```
/// use std::sync::Arc;
///
/// use paceline_core::{Belief, Witnesses, Instant, LimitScope, Refused};
///
/// let (chat, reach) = (Arc::from("chat"), LimitScope::Account);
/// let refused = |client| Refused {
///     scope: &chat,
///     reach,
///     client: Some(client),
///     sent: Instant::ZERO,
///     is_wait: false,
///     path_has_answered: true,
///     scope_has_answered: true,
///     account_has_answered: true,
/// };
/// let mut witnesses = Witnesses::default();
/// assert_eq!(witnesses.weigh(Instant::ZERO, refused(1)), Belief::First(reach));
/// assert_eq!(witnesses.weigh(Instant::ZERO, refused(1)), Belief::First(reach), "however often");
/// assert_eq!(witnesses.weigh(Instant::ZERO, refused(2)), Belief::Second(reach, [Some(1), Some(2)]));
/// assert_eq!(witnesses.weigh(Instant::ZERO, refused(3)), Belief::Believed(reach));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Witnesses {
    /// By scope; `None` is the account.
    places: BTreeMap<Option<Arc<str>>, Witness>,
    /// Known programs that stop nothing.
    doubted: BTreeMap<u64, Doubted>,
}

/// Those that were refused, without a success since.
#[derive(Clone, Debug)]
struct Witness {
    /// Three at the most; `None` is one that is not known apart.
    clients: Vec<Option<u64>>,
    /// How much they speak for the place: in full with [`ODD`].
    weight: u32,
    /// They hold up the others since then.
    held: Option<Instant>,
    is_wait: bool,
    scope: Arc<str>,
    since: Instant,
}

/// Where a program stops nothing, and until when.
#[derive(Clone, Debug, Default)]
struct Doubted {
    places: BTreeMap<Option<Arc<str>>, Instant>,
    everywhere: Option<Instant>,
}

impl Witnesses {
    /// How far that refusal is believed, which arrived now.
    pub fn weigh(&mut self, now: Instant, refused: Refused<'_>) -> Belief {
        let Refused { scope, client, .. } = refused;
        if refused.reach == LimitScope::Item {
            return Belief::Alone;
        }
        let is_of_account = refused.reach == LimitScope::Account;
        let Some(client) = client else { return self.weigh_of_any(now, refused) };
        let is_odd = !refused.is_wait
            && refused.account_has_answered
            && !(refused.scope_has_answered && refused.path_has_answered);
        let account = is_of_account.then_some((None, if is_odd { 1 } else { ODD }));
        // A scope that answers elsewhere is more than that path.
        let own = !(is_of_account && is_odd && refused.scope_has_answered);
        let own = own.then(|| (Some(Arc::clone(scope)), ODD));
        let beliefs = [account, own].map(|place| {
            let (place, weight) = place?;
            Some(self.weigh_at(now, place, weight, client, refused))
        });
        // The wider one, where both are believed alike.
        let [account, own] = beliefs.map(|belief| belief.unwrap_or(Belief::Alone));
        if own.rank() > account.rank() { own } else { account }
    }

    fn weigh_at(
        &mut self,
        now: Instant,
        place: Option<Arc<str>>,
        weight: u32,
        client: u64,
        refused: Refused<'_>,
    ) -> Belief {
        let reach = if place.is_none() { LimitScope::Account } else { LimitScope::Scope };
        if self.doubted.get(&client).is_some_and(|doubted| doubted.includes(now, &place)) {
            return Belief::Doubted;
        }
        let has_room = place.is_none() || self.places.len() < MOST;
        let Some(witness) = self.place(now, place, refused, has_room) else { return Belief::Alone };
        let is_new = !witness.clients.contains(&Some(client));
        if is_new && witness.clients.len() < 3 {
            witness.clients.push(Some(client));
        }
        witness.weight = witness.weight.saturating_add(weight);
        witness.is_wait |= refused.is_wait;
        let belief = match witness.clients[..] {
            [first, second] if witness.weight >= ODD => Belief::Second(reach, [first, second]),
            [_, _, _, ..] if witness.weight >= ODD => Belief::Believed(reach),
            _ => Belief::First(reach),
        };
        let holds = refused.is_wait || !matches!(belief, Belief::First(_));
        // Calls that were in flight together hold the others once.
        let again = !is_new && witness.held.is_some_and(|held| refused.sent < held);
        match belief {
            Belief::First(_) | Belief::Second(..) if holds && again => Belief::Alone,
            _ => {
                witness.held = if holds { Some(now) } else { witness.held };
                belief
            }
        }
    }

    /// Of a program that is not known apart.
    fn weigh_of_any(&mut self, now: Instant, refused: Refused<'_>) -> Belief {
        let place = (refused.reach == LimitScope::Scope).then(|| Arc::clone(refused.scope));
        let has_answered = if place.is_none() { refused.account_has_answered } else { refused.scope_has_answered };
        if !has_answered {
            return Belief::Believed(refused.reach);
        }
        let has_room = self.places.len() < MOST;
        let Some(first) = self.place(now, place, refused, has_room) else { return Belief::Alone };
        if first.clients.is_empty() {
            first.clients.push(None);
            return Belief::First(refused.reach);
        }
        let is_the_scopes = first.scope == *refused.scope && !refused.scope_has_answered;
        match refused.reach {
            _ if refused.sent < first.since => Belief::Alone,
            _ if is_the_scopes => Belief::Believed(LimitScope::Scope),
            reach => Belief::Believed(reach),
        }
    }

    /// What is known of a place, which is made where there is room.
    fn place(
        &mut self,
        now: Instant,
        place: Option<Arc<str>>,
        refused: Refused<'_>,
        has_room: bool,
    ) -> Option<&mut Witness> {
        if !has_room && !self.places.contains_key(&place) {
            return None;
        }
        let scope = Arc::clone(refused.scope);
        let none = || Witness { clients: Vec::new(), weight: 0, held: None, is_wait: false, scope, since: now };
        Some(self.places.entry(place).or_insert_with(none))
    }

    /// A call of that scope has succeeded, which left then, of that known program. Returns whether that shows that what others
    /// were refused was theirs alone, though it held up all.
    pub fn passed(&mut self, scope: &Arc<str>, sent: Instant, client: Option<u64>) -> bool {
        let (doubted, mut were_wrong) = (&mut self.doubted, false);
        self.places.retain(|place, witness| {
            let stays = place.as_ref().is_some_and(|place| place != scope) || sent < witness.since;
            // Who waited for as long as it was told passes then. One that was refused a key does not.
            let is_other = !witness.clients.contains(&client) || !witness.is_wait;
            if !stays && witness.held.is_some() && client.is_some() && is_other {
                were_wrong = true;
                for client in witness.clients.iter().flatten() {
                    doubted.entry(*client).or_default().add(sent, place);
                }
            }
            stays
        });
        doubted.retain(|_, doubted| doubted.is_at(sent));
        were_wrong
    }

    /// So many scopes, the account among them, have refusals without a success since.
    pub fn count(&self) -> usize {
        self.places.len()
    }
}

impl Belief {
    /// How much is believed.
    const fn rank(self) -> u8 {
        match self {
            Self::Alone => 0,
            Self::Doubted => 1,
            Self::First(_) => 2,
            Self::Second(..) => 3,
            Self::Believed(_) => 4,
        }
    }
}

impl Doubted {
    fn includes(&self, now: Instant, place: &Option<Arc<str>>) -> bool {
        self.places.get(place).copied().max(self.everywhere).is_some_and(|until| now < until)
    }

    fn add(&mut self, now: Instant, place: &Option<Arc<str>>) {
        self.places.retain(|_, until| now < *until);
        if self.places.len() < MOST_DOUBTED {
            self.places.insert(place.clone(), now + DOUBTED);
        } else {
            self.everywhere = Some(now + DOUBTED);
        }
    }

    /// Whether it is doubted anywhere then.
    fn is_at(&self, now: Instant) -> bool {
        self.places.values().copied().max().max(self.everywhere).is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::Belief::{Alone, Believed, Doubted, First, Second};
    use super::LimitScope::{Account, Scope};
    use super::*;
    use core::time::Duration;
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant::ZERO + seconds * S
    }

    /// A refusal of the account, where all has answered before, by a program that is not known apart.
    fn refused(scope: &Arc<str>, sent: u32) -> Refused<'_> {
        let (reach, client, sent) = (Account, None, at(sent));
        let (path_has_answered, scope_has_answered, account_has_answered) = (true, true, true);
        Refused {
            scope,
            reach,
            client,
            sent,
            is_wait: false,
            path_has_answered,
            scope_has_answered,
            account_has_answered,
        }
    }

    const fn both(first: u64, second: u64) -> [Option<u64>; 2] {
        [Some(first), Some(second)]
    }

    #[test]
    fn programs_that_nothing_tells_apart_confirm_each_other_by_later_calls() {
        let (chat, users): (Arc<str>, Arc<str>) = ("chat".into(), "users".into());
        let mut witnesses = Witnesses::default();
        let at_the_start = Refused { account_has_answered: false, ..refused(&chat, 0) };
        assert_eq!(witnesses.weigh(at(1), at_the_start), Believed(Account), "a wrong key at the start");
        assert!(witnesses.count() == 0);

        assert_eq!(witnesses.weigh(at(2), refused(&chat, 1)), First(Account));
        assert_eq!(witnesses.weigh(at(3), refused(&chat, 1)), Alone, "they were in flight together");
        assert_eq!(witnesses.weigh(at(4), refused(&chat, 2)), Believed(Account), "it left as the first was refused");
        assert_eq!(witnesses.weigh(at(4), refused(&chat, 3)), Believed(Account));
        witnesses.passed(&chat, at(1), None);
        assert!(witnesses.count() > 0, "that call left before the refusal");
        witnesses.passed(&users, at(2), None);
        assert!(witnesses.count() == 0, "a success of any scope speaks for the account");

        // What has never succeeded is refused alone, until something else is refused, too.
        let odd = |sent| Refused { scope_has_answered: false, ..refused(&users, sent) };
        assert_eq!(witnesses.weigh(at(11), odd(10)), First(Account));
        assert_eq!(witnesses.weigh(at(13), odd(12)), Believed(Scope));
        assert_eq!(witnesses.weigh(at(15), refused(&chat, 14)), Believed(Account));
    }

    #[test]
    fn a_refusal_of_a_scope_is_doubted_where_the_scope_has_answered() {
        let chat: Arc<str> = "chat".into();
        let mut witnesses = Witnesses::default();
        let of_scope = |answered, sent| Refused { reach: Scope, scope_has_answered: answered, ..refused(&chat, sent) };
        assert_eq!(witnesses.weigh(at(1), of_scope(false, 0)), Believed(Scope));
        assert_eq!(witnesses.weigh(at(1), of_scope(true, 0)), First(Scope));
        assert_eq!(witnesses.weigh(at(3), of_scope(true, 2)), Believed(Scope));
        let known = Refused { client: Some(1), ..of_scope(false, 2) };
        assert_eq!(witnesses.weigh(at(3), known), Second(Scope, [None, Some(1)]));
        witnesses.passed(&"other".into(), at(9), None);
        assert!(witnesses.count() > 0, "another scope says nothing of this one");
        witnesses.passed(&chat, at(9), None);
        assert!(witnesses.count() == 0);
    }

    #[test]
    fn what_two_known_programs_were_refused_is_tested_by_a_third() {
        let (chat, users): (Arc<str>, Arc<str>) = ("chat".into(), "users".into());
        let one = |client, sent| Refused { client: Some(client), ..refused(&chat, sent) };
        for (third_passes, at_once) in [(true, false), (false, false), (false, true)] {
            let mut witnesses = Witnesses::default();
            assert_eq!(witnesses.weigh(at(1), one(1, 0)), First(Account));
            assert_eq!(witnesses.weigh(at(2), one(2, 0)), Second(Account, both(1, 2)));
            assert_eq!(witnesses.weigh(at(3), one(1, 0)), Alone, "it was in flight then");
            assert_eq!(witnesses.weigh(at(4), one(1, 3)), Second(Account, both(1, 2)), "no third one has tested it");
            if !third_passes {
                let sent = if at_once { 0 } else { 5 };
                assert_eq!(witnesses.weigh(at(6), one(3, sent)), Believed(Account));
                assert_eq!(witnesses.weigh(at(6), one(1, 0)), Believed(Account), "from now on of all");
                continue;
            }
            assert!(witnesses.passed(&users, at(5), Some(3)), "of another scope");
            assert_eq!(witnesses.weigh(at(7), one(1, 6)), Second(Scope, both(1, 2)), "they speak for the scope alone");
            assert!(witnesses.passed(&chat, at(8), Some(3)));
            assert_eq!([1, 2].map(|client| witnesses.weigh(at(9), one(client, 8))), [Doubted, Doubted]);
            assert_eq!(witnesses.weigh(at(9), one(4, 8)), First(Account));
            assert_eq!(witnesses.weigh(at(9), one(5, 8)), Second(Account, both(4, 5)), "others still do");
            witnesses.passed(&chat, at(10), None);
            assert_eq!(witnesses.weigh(at(90_000), one(1, 90_000)), First(Account), "a day is over");
        }
    }

    #[test]
    fn refusals_of_a_path_that_has_never_answered_stop_that_path_or_nothing() {
        let (chat, odd): (Arc<str>, Arc<str>) = ("chat".into(), "odd".into());
        let of_path = |client| Refused { client: Some(client), path_has_answered: false, ..refused(&chat, 1) };
        let of_scope = |client| Refused { scope_has_answered: false, scope: &odd, ..of_path(client) };
        let mut witnesses = Witnesses::default();
        assert_eq!(
            [1, 2, 3].map(|client| witnesses.weigh(at(2), of_path(client))),
            [First(Account); 3],
            "one of the scope's"
        );
        let found = [1, 2, 3].map(|client| witnesses.weigh(at(2), of_scope(client)));
        assert_eq!(found, [First(Account), Second(Scope, both(1, 2)), Believed(Scope)], "a scope of its own");
        assert!(!witnesses.passed(&chat, at(3), Some(4)), "nothing of that one was held");

        // Where nothing else answers any more, paths that are all new speak for the account, too.
        let mut witnesses = Witnesses::default();
        let all = (0..2 * ODD).map(|number| witnesses.weigh(at(2), of_path(u64::from(number % 2))));
        let all: Vec<_> = all.collect();
        assert_eq!(all.iter().position(|belief| *belief == Second(Account, both(0, 1))), Some(ODD as usize - 1));
        assert_eq!(witnesses.weigh(at(3), of_path(7)), Believed(Account));
    }

    #[test]
    fn a_wait_that_one_was_told_holds_until_another_one_passes_and_then_no_more_for_a_day() {
        let chat: Arc<str> = "chat".into();
        let told = |client, sent| Refused { reach: Scope, client: Some(client), is_wait: true, ..refused(&chat, sent) };
        let mut witnesses = Witnesses::default();
        assert_eq!(witnesses.weigh(at(1), told(1, 0)), First(Scope));
        assert_eq!(witnesses.weigh(at(2), told(1, 0)), Alone, "calls that were in flight together hold once");
        assert_eq!(witnesses.weigh(at(2), told(1, 1)), First(Scope), "it left as the first was refused");
        assert!(!witnesses.passed(&chat, at(100), Some(1)), "it waited, and passed");
        assert_eq!(witnesses.weigh(at(101), told(1, 100)), First(Scope));
        assert!(witnesses.passed(&chat, at(111), Some(2)));
        assert_eq!(witnesses.weigh(at(112), told(1, 111)), Doubted);
        assert_eq!(witnesses.weigh(at(112), told(2, 111)), First(Scope));
        assert_eq!(witnesses.weigh(at(113), told(3, 111)), Second(Scope, both(2, 3)));
        assert_eq!(witnesses.weigh(at(114), told(4, 111)), Believed(Scope));
    }

    #[test]
    fn they_are_bounded() {
        let mut witnesses = Witnesses::default();
        for number in 0..2 * MOST {
            let scope: Arc<str> = alloc::format!("{number}").into();
            let refused = Refused { reach: Scope, client: Some(1), is_wait: true, ..refused(&scope, 0) };
            let found = witnesses.weigh(at(1), refused);
            assert_eq!(found, if number < MOST { First(Scope) } else { Alone });
        }
        assert_eq!(witnesses.count(), MOST);
        for number in 0..2 * MOST {
            witnesses.passed(&alloc::format!("{number}").into(), at(2), Some(2));
        }
        assert!(witnesses.doubted.values().all(|doubted| doubted.places.len() == MOST_DOUBTED));
        let fresh: Arc<str> = "fresh".into();
        let told = Refused { reach: Scope, client: Some(1), is_wait: true, ..refused(&fresh, 3) };
        assert_eq!(witnesses.weigh(at(3), told), Doubted, "everywhere");
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
                let reach = if kind == 0 { Account } else { Scope };
                let one = Refused { reach, client: Some(1), sent, ..refused(scope, 0) };
                prop_assert_eq!(witnesses.weigh(at(now), one), First(reach));
                prop_assert!(witnesses.count() > 0);
                // A second one is believed until it is tested, and a third for good.
                let mut more = witnesses.clone();
                prop_assert_eq!(more.weigh(at(now), Refused { client: Some(2), ..one }), Second(reach, both(1, 2)));
                prop_assert_eq!(more.weigh(at(now), Refused { client: Some(3), ..one }), Believed(reach));
                if took == 0 {
                    prop_assert!(!witnesses.passed(scope, sent, Some(3)));
                }
            }
        }
    }
}
