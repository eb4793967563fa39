//! Whether a refusal of the key, the account or a quota of it, or a long wait, which one client got, holds an upstream for all.

mod announced;
mod own;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use paceline::{Class, Instant, PauseCause, WaitCause};
use paceline_core::{Belief, LimitReport, LimitScope, Refused, Witnesses, format_duration};
use paceline_providers::Reading;
use tokio::sync::watch;

use self::announced::{Announced, MOST_PATHS, UsedUp, hash_of};
use self::own::Own;
use self::told::{ClientWaits, SHORT};
use crate::backend::Backend;
use crate::clients::Client;
use crate::notes::Kind;

/// What is known of the key of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// It has been good for a call.
    has_answered: AtomicBool,
    /// Hashes of the paths for which it has been good.
    answered: RwLock<BTreeSet<u64>>,
    /// Some refusals may wait for a second one: a call that succeeds looks at nothing else.
    some: AtomicBool,
    witnesses: Mutex<Witnesses>,
    /// Some of these are kept: no other call looks at them.
    some_away: AtomicBool,
    /// Until when clients with keys stay away from scopes: by the limiter's clock.
    away: Mutex<BTreeMap<u64, Away>>,
    refused: InARow,
    announced: Mutex<Announced>,
    /// Clients that were told to wait for up to a minute.
    told: ClientWaits,
    /// Clients that are refused without a time.
    own: Own,
    /// How often what clients were refused was forgotten.
    forgotten: watch::Sender<u64>,
}

/// How many calls were refused, whichever client sent them, without a success in between.
#[derive(Debug, Default)]
struct InARow(AtomicU64);

impl InARow {
    /// One more was. Returns how many, where that is to be told again: with the tenth, the hundredth and so on.
    fn refused(&self) -> Option<u64> {
        let times = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (times >= 10 && times == 10_u64.pow(times.ilog10())).then_some(times)
    }

    fn passed(&self) {
        if self.0.load(Ordering::Relaxed) > 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Where one client stays away, and until when.
#[derive(Debug, Default)]
struct Away {
    scopes: BTreeMap<Arc<str>, Hold>,
    from_all: Option<Hold>,
}

/// A client alone is to stay away until then.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) until: Instant,
    /// What all would wait for, were it the wait of all: it says whether a fallback may take the place of an answer.
    pub(crate) cause: WaitCause,
}

/// The cause of a wait that a client was told, or of the time for which one that was refused stays away.
const WAS_REFUSED: WaitCause = WaitCause::Gate { cause: PauseCause::Throttled { asked: true } };

/// So many scopes of one client are kept: clients choose their names. One that is refused in more stays away from all.
const MOST_AWAY: usize = 100;

/// What one client was told to wait, or two were refused, holds the others for so long, and is tested then: an attack costs no
/// more, and a server that does refuse all gets one call more.
const TESTED_SOON: Duration = Duration::from_secs(10);

/// What two clients were told to wait is tested after so long. Two that were refused come back after it.
const TESTED: Duration = Duration::from_secs(300);

/// Who sent a call, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// A client with a key.
    pub(crate) client: Option<&'a Client>,
    pub(crate) name: &'a str,
    pub(crate) scope: &'a Arc<str>,
    pub(crate) path: &'a str,
    /// When the call left, by the stopwatch.
    pub(crate) left: Instant,
    /// That of its answer, where that is known.
    pub(crate) status: Option<u16>,
}

impl Trust {
    /// A refusal of the key, the account or its quota that is not believed becomes one of this request alone, and a long wait
    /// holds the others no longer than until a call tests it. Clients stay away for as long as they were told: what one
    /// program gets by keys of its own is tested by the call of another.
    pub(crate) fn weigh(&self, upstream: &Backend, reading: &mut Reading, asker: Asker<'_>) {
        if let Some(client) = asker.client {
            self.keeps_to_itself(upstream, reading, client, asker);
        }
        let told = told_for_long(reading).filter(|_| asker.client.is_some());
        match reading.class {
            Class::Success => return self.passed(upstream, asker),
            Class::Account => {}
            Class::QuotaExhausted if reading.wait.is_none() => {}
            _ if told.is_some() => {}
            _ => return,
        }
        // Where scopes are accounts of their own, no refusal reaches further.
        let is_of_account = reading.reach == LimitScope::Account && upstream.config().pacer.per_scope.is_none();
        if reading.reach == LimitScope::Account && !is_of_account {
            reading.reach = LimitScope::Scope;
        }
        let (belief, is_news) = self.believed(upstream, reading.reach, told.is_some(), asker);
        if is_news && upstream.may_tell(Kind::OneClient) {
            note_first(upstream, &reading.reason(), told, asker);
        }
        let in_a_row = told.is_none().then(|| self.refused.refused()).flatten();
        if let Some(times) = in_a_row.filter(|_| upstream.may_tell(Kind::InARow)) {
            tracing::warn!(
                upstream = upstream.name(),
                client = asker.name,
                "the provider has refused {times} calls in a row, and took none in between: a person must look after the key, the account \
                 or its quota: {}",
                reading.reason()
            );
        }
        let number = asker.client.map(Client::number);
        if let Some((client, wait)) = number.zip(told) {
            let scope = (!is_of_account).then_some(asker.scope);
            self.stays_away(client, scope, upstream.limiter().now(), wait);
            let most = longest_for_all(upstream, belief, wait, &reading.reason(), asker);
            // A shorter wait than that of a limit of a day says nothing of such a limit.
            (reading.wait, reading.long_period) = (Some(wait.min(most)), reading.long_period && wait <= most);
        }
        reading.reach = match belief {
            Belief::First(reach) | Belief::Second(reach, _) if told.is_some() => reach,
            Belief::Believed(reach) => reach,
            Belief::Alone | Belief::Doubted | Belief::First(_) | Belief::Second(..) => LimitScope::Item,
        };
        match belief {
            Belief::Second(reach, both) if told.is_none() => self.test(upstream, reading, reach, both, asker),
            Belief::Doubted if told.is_none() => {
                let client = number.into_iter();
                client.for_each(|client| self.stays_away(client, Some(asker.scope), upstream.limiter().now(), TESTED));
            }
            _ => {}
        }
        if reading.reach == LimitScope::Item {
            reading.class = Class::Invalid;
        }
    }

    /// The server may mean what this client asked for, or the client: it stays away for as long as a limit or a wait says that it
    /// was told, and where no other is told so, too, a wait of up to a minute holds the others for a part of it.
    fn keeps_to_itself(&self, upstream: &Backend, reading: &mut Reading, client: &Client, asker: Asker<'_>) {
        // A refusal need not tell of limits.
        let tells =
            reading.class == Class::Success || (reading.class == Class::Throttled && !reading.limits.is_empty());
        let now = upstream.limiter().now();
        let announced = self.leave_out_announced(upstream, &mut reading.limits, asker, tells);
        if let Some(used_up) = announced {
            self.has_used_up(upstream, used_up, reading, client, asker);
        }
        let names_no_time = reading.class == Class::Throttled && reading.wait.is_none();
        if names_no_time && reading.reach != LimitScope::Item && client.has_others() {
            let own = self.own.refused(asker.scope, client.number(), upstream.stopwatch.now());
            if let Some(wait) = own {
                reading.reach = LimitScope::Item;
                self.stays_away(client.number(), Some(asker.scope), now, wait);
            }
        }
        let asks_to_wait = reading.reach != LimitScope::Item
            && matches!(reading.class, Class::QuotaExhausted | Class::Throttled | Class::Overloaded | Class::Transient);
        let Some(wait) = reading.wait.filter(|wait| asks_to_wait && *wait <= SHORT) else { return };
        let is_of_account = reading.reach == LimitScope::Account && upstream.config().pacer.per_scope.is_none();
        let place = (!is_of_account).then_some(asker.scope);
        if client.has_others() {
            let times = [asker.left, upstream.stopwatch.now()];
            match self.told.for_all(place, client.number(), wait, times, client.has_thirds()) {
                Some(of_all) => reading.wait = Some(of_all),
                None => reading.reach = LimitScope::Item,
            }
        }
        self.stays_away(client.number(), place, now, wait);
    }

    /// A limit of which that client was told that nothing is left is a wait of its own. Where it may be that of all, it is
    /// weighed as one, if the answer tells no such wait itself.
    fn has_used_up(
        &self,
        upstream: &Backend,
        UsedUp { wait, cause, may_be_of_all }: UsedUp,
        reading: &Reading,
        client: &Client,
        asker: Asker<'_>,
    ) {
        let now = upstream.limiter().now();
        if may_be_of_all && told_for_long(reading).is_none() {
            let (belief, is_news) = self.believed(upstream, LimitScope::Scope, true, asker);
            let why = cause.to_string();
            if is_news && upstream.may_tell(Kind::OneClient) {
                note_first(upstream, &why, Some(wait), asker);
            }
            if !matches!(belief, Belief::Alone | Belief::Doubted) {
                let most = wait.min(longest_for_all(upstream, belief, wait, &why, asker));
                let scope = upstream.scope(asker.scope);
                upstream.limiter().hold_for(Some(&scope), now + most, PauseCause::QuotaUsedUp);
            }
        }
        self.is_held(client.number(), Some(asker.scope), now, wait, cause);
    }

    /// Leaves out of what an answer to a client with a key announces the limits that are its own, or those of its path.
    /// `tells`: an answer of that kind says what there is. Returns what the client itself is to wait for.
    pub(crate) fn leave_out_announced(
        &self,
        upstream: &Backend,
        limits: &mut Vec<LimitReport>,
        asker: Asker<'_>,
        tells: bool,
    ) -> Option<UsedUp> {
        let client = asker.client?;
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        match upstream.sending.dialect.is_one_scope() {
            true => announced.of_path(asker.path, limits, tells),
            false if client.has_others() => announced.of_client(asker.scope, client.number(), limits, tells),
            false => None,
        }
    }

    /// How far it is believed, and whether it is the first one of its place.
    fn believed(&self, upstream: &Backend, reach: LimitScope, is_wait: bool, asker: Asker<'_>) -> (Belief, bool) {
        let Asker { client, scope, left: sent, path, .. } = asker;
        let of_scope = upstream.limiter().scope_snapshot(&upstream.scope(scope));
        let refused = Refused {
            scope,
            reach,
            client: client.map(Client::number),
            sent,
            is_wait,
            path_has_answered: self.path_has_answered(path),
            scope_has_answered: of_scope.is_some_and(|of| of.totals.by_class[Class::Success as usize] > 0),
            account_has_answered: self.has_answered.load(Ordering::Relaxed),
        };
        let mut witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
        let before = witnesses.count();
        let belief = witnesses.weigh(upstream.stopwatch.now(), refused);
        self.some.store(witnesses.count() > 0, Ordering::Relaxed);
        let has_thirds = asker.client.is_some_and(Client::has_thirds);
        let belief = match belief {
            Belief::Second(reach, _) if !has_thirds => Belief::Believed(reach),
            belief => belief,
        };
        (belief, witnesses.count() > before)
    }

    /// Two clients were refused: the call of a third one goes first.
    fn test(&self, upstream: &Backend, reading: &Reading, reach: LimitScope, both: [Option<u64>; 2], asker: Asker<'_>) {
        let limiter = upstream.limiter();
        let now = limiter.now();
        both.into_iter().flatten().for_each(|client| self.stays_away(client, Some(asker.scope), now, TESTED));
        let scope = (reach != LimitScope::Account).then(|| upstream.scope(asker.scope));
        let cause = match reading.class {
            Class::QuotaExhausted => PauseCause::QuotaUsedUp,
            // To a request that may not wait it stays down, as where it had stopped.
            _ => PauseCause::ServerFails,
        };
        limiter.hold_for(scope.as_ref(), now + TESTED_SOON, cause);
        let place = scope.is_some().then(|| Arc::clone(asker.scope));
        upstream.notes().outages.tests(place, now, now + TESTED_SOON, asker.status);
        if !upstream.may_tell(Kind::TwoClients) {
            return;
        }
        tracing::warn!(
            upstream = upstream.name(),
            scope = scope.is_some().then_some(&**asker.scope),
            client = asker.name,
            "two clients were refused: all wait for {}, and then a call of a third one tests it: {}",
            format_duration(TESTED_SOON),
            reading.reason()
        );
    }

    /// A client, or a job, is refused for so long, in that scope or in all.
    pub(crate) fn stays_away(&self, client: u64, scope: Option<&Arc<str>>, now: Instant, wait: Duration) {
        self.is_held(client, scope, now, wait, WAS_REFUSED);
    }

    /// A client, or a job, is held for so long, in that scope or in all.
    fn is_held(&self, client: u64, scope: Option<&Arc<str>>, now: Instant, wait: Duration, cause: WaitCause) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let Away { scopes, from_all } = away.entry(client).or_default();
        scopes.retain(|_, hold| hold.until > now);
        let hold = Hold { until: now + wait, cause };
        match scope.filter(|scope| scopes.len() < MOST_AWAY || scopes.contains_key(*scope)) {
            Some(scope) => drop(scopes.insert(Arc::clone(scope), hold)),
            None => *from_all = later(from_all.take(), Some(hold)),
        }
        self.some_away.store(true, Ordering::Relaxed);
    }

    /// How many clients are to stay away, each alone.
    pub(crate) fn held_clients(&self, now: Instant) -> usize {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |away: &&Away| away.scopes.values().chain(&away.from_all).any(|hold| hold.until > now);
        away.values().filter(holds).count()
    }

    /// Forgets what clients were refused, and how long they are to stay away.
    pub(crate) fn forget(&self) {
        *self.witnesses.lock().unwrap_or_else(PoisonError::into_inner) = Witnesses::default();
        self.away.lock().unwrap_or_else(PoisonError::into_inner).clear();
        [&self.some, &self.some_away].iter().for_each(|some| some.store(false, Ordering::Relaxed));
        self.told.forget();
        self.own.forget();
        self.refused.passed();
        self.forgotten.send_modify(|times| *times += 1);
    }

    /// Forgets all that is known of the key, which may be mended.
    pub(crate) fn begin_anew(&self) {
        self.has_answered.store(false, Ordering::Relaxed);
        self.answered.write().unwrap_or_else(PoisonError::into_inner).clear();
        *self.announced.lock().unwrap_or_else(PoisonError::into_inner) = Announced::default();
        self.forget();
    }

    /// How often what clients were refused was forgotten so far.
    pub(crate) fn forgotten(&self) -> watch::Receiver<u64> {
        self.forgotten.subscribe()
    }

    /// A job that stayed away from a scope is over.
    pub(crate) fn leaves(&self, job: u64) {
        if self.some_away.load(Ordering::Relaxed) {
            self.away.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
        }
    }

    /// Until when a client alone is to stay away from a scope, whose upstream has asked that of it.
    pub(crate) fn not_before(&self, client: Option<u64>, scope: &Arc<str>) -> Option<Instant> {
        Some(self.hold(client, scope)?.until)
    }

    /// The same, and why.
    pub(crate) fn hold(&self, client: Option<u64>, scope: &Arc<str>) -> Option<Hold> {
        let client = client.filter(|_| self.some_away.load(Ordering::Relaxed))?;
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let Away { scopes, from_all } = away.get(&client)?;
        later(scopes.get(scope).cloned(), from_all.clone())
    }

    fn passed(&self, upstream: &Backend, asker: Asker<'_>) {
        self.refused.passed();
        if !self.has_answered.load(Ordering::Relaxed) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if !self.path_has_answered(asker.path) {
            self.answered.write().unwrap_or_else(PoisonError::into_inner).insert(hash_of(asker.path));
        }
        self.told.passed(asker.scope, asker.client.map(Client::number), asker.left);
        asker.client.into_iter().for_each(|client| self.own.passed(asker.scope, client.number(), asker.left));
        if self.some.load(Ordering::Relaxed) {
            let mut witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
            let are_theirs = witnesses.passed(asker.scope, asker.left, asker.client.map(Client::number));
            if are_theirs && upstream.may_tell(Kind::TheirsAlone) {
                tracing::warn!(
                    upstream = upstream.name(),
                    scope = &**asker.scope,
                    client = asker.name,
                    "what other clients were refused, or told to wait, is theirs alone, for a call of this one passed: they hold no one up with \
                     it for a day"
                );
            }
            self.some.store(witnesses.count() > 0, Ordering::Relaxed);
        }
    }

    fn path_has_answered(&self, path: &str) -> bool {
        let answered = self.answered.read().unwrap_or_else(PoisonError::into_inner);
        answered.len() >= MOST_PATHS || answered.contains(&hash_of(path))
    }
}

/// The wait of more than a minute that an answer asks for.
fn told_for_long(reading: &Reading) -> Option<Duration> {
    let asks = |class| {
        matches!(
            class,
            Class::QuotaExhausted | Class::Throttled | Class::Overloaded | Class::Transient | Class::Account
        )
    };
    reading.wait.filter(|wait| asks(reading.class) && *wait > SHORT)
}

/// The hold that ends last.
fn later(one: Option<Hold>, other: Option<Hold>) -> Option<Hold> {
    one.into_iter().chain(other).max_by_key(|hold| hold.until)
}

/// For how long all are held at most by a long wait that one client was told.
fn longest_for_all(upstream: &Backend, belief: Belief, wait: Duration, reason: &str, asker: Asker<'_>) -> Duration {
    match belief {
        Belief::First(_) => TESTED_SOON,
        Belief::Second(..) if !upstream.may_tell(Kind::TwoClients) => TESTED,
        Belief::Second(..) => {
            tracing::warn!(
                upstream = upstream.name(),
                scope = &**asker.scope,
                client = asker.name,
                "a second client is told to wait, for {}: all others wait for {}, until a call of a third one tests it: {reason}",
                format_duration(wait),
                format_duration(wait.min(TESTED))
            );
            TESTED
        }
        Belief::Alone | Belief::Doubted | Belief::Believed(_) => wait,
    }
}

/// Logs the first refusal of a place.
fn note_first(upstream: &Backend, reason: &str, told: Option<Duration>, asker: Asker<'_>) {
    let (upstream, scope, client) = (upstream.name(), &**asker.scope, asker.name);
    match (told, asker.client) {
        (Some(wait), _) => tracing::warn!(
            upstream,
            scope,
            client,
            "a client is told to wait for {}: so it does, and all others for {}, until a call of another one tests it: {reason}",
            format_duration(wait),
            format_duration(TESTED_SOON)
        ),
        (None, of) => {
            let second = if of.is_some() { "another client" } else { "a later call" };
            tracing::warn!(
                upstream,
                scope,
                client,
                "a refusal goes to its client and stops nothing, unless {second} gets one, too: {reason}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One team at work with a dead key stops nothing: the log is all that an operator has of it.
    #[test]
    fn refusals_in_a_row_are_told_again_and_not_each_time() {
        let row = InARow::default();
        let told: Vec<_> = (0..2_000).filter_map(|_| row.refused()).collect();
        assert_eq!(told, [10, 100, 1_000]);
        row.passed();
        assert_eq!((0..9).find_map(|_| row.refused()), None, "a success in between");
        assert_eq!(row.refused(), Some(10));
    }
}
