//! Ends a job or a scope early when its first items all fail with the same failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_core::{Class, GiveUp, Timestamp};
use paceline_providers::SCHEMA_MISMATCH;
use paceline_store::{ClaimedItem, Finished};

use crate::stops::alike::{Alike, AlikeByScope, Alikeness, Kind, Shows, Stops};
use crate::stops::stop::{CORRECT_REQUESTS, StopReason};

/// The code of an item that never left because it alone exceeds a limit.
pub(crate) const TOO_LARGE: &str = "request_too_large";

/// What to put right where all answers are not what the user expects.
pub(crate) const EXPECTED: &str = "correct what --expect asks for, the requests, or the key and its header (their calls may be \
                                   billed)";

/// What to do where a host refuses all that it answered before.
pub(crate) const BANNED: &str = "the host may keep this machine out for a while: run the same command again later (with --retry-failed, if items have \
                                 failed), and slower (--limit 1rps for all hosts together, or a tier with its name as host for this one)";

/// Which items failed alike where one did as those of an earlier run.
pub(crate) const STILL: &str = "still";

/// So many runs may test a scope with one item.
const TESTS_OF_AN_ITEM: u32 = 3;

/// More failures than that are not held back: each has its answer in memory.
const MOST_HELD_BACK: usize = 1_000;

/// What to do where a host's pages have gone elsewhere.
const MOVED: &str = "put the address that the redirect names in place of the old one: into the input where its lines have it, else \
                     into --base-url";

/// Watches whether the first items to fail all fail alike. Until that is known their failures are not recorded, so that they
/// are pending with the rest when the run stops, or their scope.
#[derive(Clone, Debug)]
pub(crate) struct FailFast {
    limit: usize,
    alike: Alike,
    held_back: Vec<Failed>,
    /// Those that failed alike so far, and their scopes.
    ordinals: BTreeSet<u64>,
    scopes: BTreeSet<Arc<str>>,
    /// Scopes of which all failed alike, where nothing of another scope did.
    stopped_scopes: BTreeSet<Arc<str>>,
    /// Each scope by itself, however others do.
    rows: AlikeByScope<u64>,
    /// Scopes that an earlier run stopped, and how their items failed there.
    stopped_before: BTreeMap<Arc<str>, Kind>,
}

/// The failure of an item, with what is logged when it is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) finished: Finished,
    pub(crate) item: String,
    pub(crate) scope: Arc<str>,
    pub(crate) class: Class,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    pub(crate) message: String,
    /// The server answered, and not as the user expects.
    pub(crate) unexpected: bool,
    /// Where its call went.
    pub(crate) address: Option<Arc<str>>,
    /// The item, where it has no answer because the API stayed down.
    pub(crate) down: Option<ClaimedItem>,
    /// When that was known.
    pub(crate) known: Timestamp,
    /// Others succeeded behind it whose calls had left before: they do not show that its host lets anything pass any more.
    pub(crate) overtaken: bool,
}

/// What all failures may have in common, and whose they are.
pub(crate) struct Failure<'a> {
    pub(crate) ordinal: u64,
    pub(crate) scope: &'a Arc<str>,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<&'a str>,
    pub(crate) message: &'a str,
    pub(crate) unexpected: bool,
    pub(crate) address: Option<&'a str>,
}

impl Failed {
    /// Its call may have been executed, and must not be made twice.
    pub(crate) fn is_unknown(&self) -> bool {
        self.finished.reason.as_deref().is_some_and(may_be_done)
    }

    /// Whether it may show that others fail alike.
    pub(crate) const fn may_be_alike(&self) -> bool {
        may_be_alike(self.class, self.unexpected)
    }

    fn failure(&self) -> Failure<'_> {
        let Self { finished, scope, status, code, message, unexpected, address, .. } = self;
        let (status, code, address) = (*status, code.as_deref(), address.as_deref());
        Failure { ordinal: finished.ordinal, scope, status, code, message, unexpected: *unexpected, address }
    }
}

/// Whether such an answer may be that of others too: the request was refused, or the answer is not what the user expects.
pub(crate) const fn may_be_alike(class: Class, unexpected: bool) -> bool {
    unexpected || matches!(class, Class::Invalid | Class::Filtered)
}

/// Whether a failure is held back: with a few more it may stop its host.
fn is_held(rows: &AlikeByScope<u64>, failed: &Failed) -> bool {
    failed.overtaken || rows.decides(&failed.scope, &failed.finished.ordinal)
}

/// What to do where a scope is stopped, by the failure of all of its items: its first ones of the run, or its last.
pub(crate) fn advice(status: Option<u16>, code: Option<&str>, unexpected: bool, are_first: bool) -> &'static str {
    match status {
        Some(401 | 403) => BANNED,
        Some(300..=399) => MOVED,
        // An answer that is JSON comes from the API itself.
        _ if unexpected && (are_first || code == Some(SCHEMA_MISMATCH)) => EXPECTED,
        _ if are_first => CORRECT_REQUESTS,
        _ => BANNED,
    }
}

/// Whether an item that ended for that reason may have been done, and must not be done twice.
pub(crate) fn may_be_done(reason: &str) -> bool {
    [GiveUp::Unknown, GiveUp::Held].iter().any(|unknown| unknown.as_str() == reason)
}

/// What follows from the failure of an item.
#[derive(Debug)]
pub(crate) enum FailFastDecision {
    /// Nothing is known yet.
    HeldBack,
    /// These failures are to be recorded now.
    Record(Vec<Failed>),
    /// These items wait again: their scope has to stop, or has stopped already.
    PutBack { items: Vec<Failed>, stop: Option<StopReason> },
    /// These failures are to be recorded now, those items wait again, and their scope has to stop.
    StopScope { failed: Vec<Failed>, waits: Vec<Failed>, stop: StopReason },
    /// The run has to stop; the failures stay held back.
    Stop(StopReason),
}

impl FailFast {
    /// Whether a scope was stopped because all its items failed alike.
    pub(crate) fn has_stopped(&self, scope: &str) -> bool {
        self.stopped_scopes.contains(scope)
    }

    /// A watch over a run of which so many items wait. It only makes sense where more wait than the number looked at; a `limit`
    /// of 0 switches it off. What succeeded in earlier runs says nothing about this one, which may have another configuration.
    pub(crate) fn new(limit: usize, waiting: u64) -> Self {
        Self {
            limit,
            alike: Alike::new(limit, waiting > limit as u64),
            held_back: Vec::new(),
            ordinals: BTreeSet::new(),
            scopes: BTreeSet::new(),
            stopped_scopes: BTreeSet::new(),
            rows: AlikeByScope::new(limit, false),
            stopped_before: BTreeMap::new(),
        }
    }

    /// An earlier run stopped these scopes, whose items failed so: one more that does shows that nothing has changed.
    pub(crate) fn after(mut self, stopped: BTreeMap<Arc<str>, Kind>) -> Self {
        if self.limit > 0 {
            self.stopped_before = stopped;
        }
        self
    }

    /// Each scope is a host, which may fail alone from its first item on.
    pub(crate) fn by_host(mut self, each_is_a_scope: bool) -> Self {
        self.rows = AlikeByScope::new(self.limit, each_is_a_scope);
        self
    }

    /// An item of that scope succeeded, or failed otherwise than by a final refusal; `left`: when the call left that succeeded,
    /// `more_wait`: others of its scope wait.
    pub(crate) fn ended_otherwise(
        &mut self,
        scope: &Arc<str>,
        left: Option<Timestamp>,
        more_wait: impl FnOnce() -> bool,
    ) -> Vec<Failed> {
        self.stopped_before.remove(scope);
        let rows = &self.rows;
        let mut overtaken = false;
        for failed in self.held_back.iter_mut().filter(|failed| failed.scope == *scope) {
            failed.overtaken = is_held(rows, failed) && left.is_some_and(|left| left <= failed.known);
            overtaken |= failed.overtaken;
        }
        self.rows.ended_otherwise(scope, None);
        if overtaken && !more_wait() {
            self.no_more_come(scope);
        }
        self.disarm()
    }

    /// Nothing follows from the failures of a scope that has no more items.
    fn no_more_come(&mut self, scope: &str) {
        self.rows.no_more_come(scope);
        self.held_back.iter_mut().for_each(|held| held.overtaken &= *held.scope != *scope);
    }

    /// How many more must fail alike; none when not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.alike.undecided()
    }

    /// How few more refusals may stop the run, and how few of that scope may stop the scope; none where they never do.
    pub(crate) fn left(&self, scope: &str) -> (Option<usize>, Option<usize>) {
        (self.undecided(), self.rows.left(scope))
    }

    /// Not everything fails alike.
    fn disarm(&mut self) -> Vec<Failed> {
        self.alike.disarm();
        if self.alike.is_watching() {
            return Vec::new();
        }
        (self.ordinals, self.scopes) = Default::default();
        self.released()
    }

    /// The failures that are held back no longer: a few of each host are, until it is known whether it has to stop.
    fn released(&mut self) -> Vec<Failed> {
        if self.held_back.len() > MOST_HELD_BACK {
            return self.take_held_back();
        }
        let rows = &self.rows;
        self.held_back.extract_if(.., |failed| !is_held(rows, failed)).collect()
    }

    /// The items wait again that stop their host.
    fn waiting_again(&mut self, scope: &str) -> Vec<Failed> {
        let rows = &self.rows;
        self.held_back.extract_if(.., |failed| *failed.scope == *scope && is_held(rows, failed)).collect()
    }

    /// An answer is not what the user expects, and its item is tried again. `has_others`: the job has other scopes.
    pub(crate) fn mismatched(
        &mut self,
        failure: &Failure<'_>,
        has_others: impl FnOnce() -> bool,
        mut more_wait: impl FnMut() -> bool,
    ) -> FailFastDecision {
        if self.is_still_so(failure) && more_wait() {
            let stop = Some(self.still_fails(failure));
            return FailFastDecision::PutBack { items: Vec::new(), stop };
        }
        let row = self.row(failure);
        match (self.shows(failure), row) {
            (Shows::Nothing, Some(count)) if more_wait() => {
                let stop = self.stop_scope(failure, count, has_others());
                let waits = self.waiting_again(failure.scope);
                FailFastDecision::StopScope { failed: self.disarm(), waits, stop }
            }
            (Shows::Nothing, _) => FailFastDecision::Record(self.disarm()),
            (Shows::TooFew | Shows::Stopped, _) => FailFastDecision::HeldBack,
            (Shows::Stop, _) => self.stop(failure, has_others),
        }
    }

    /// An item failed for good: it was refused, or its last answer is not what the user expects.
    /// `more_wait`: others of its scope wait.
    pub(crate) fn failed(
        &mut self,
        failed: Failed,
        has_others: impl FnOnce() -> bool,
        mut more_wait: impl FnMut() -> bool,
    ) -> FailFastDecision {
        if self.stopped_scopes.contains(&failed.scope) {
            return FailFastDecision::PutBack { items: vec![failed], stop: None };
        }
        if self.is_still_so(&failed.failure()) && more_wait() {
            let stop = self.still_fails(&failed.failure());
            // It may be refused by itself, and others behind it not.
            return match failed.finished.tally.attempts > TESTS_OF_AN_ITEM {
                true => FailFastDecision::StopScope { failed: vec![failed], waits: Vec::new(), stop },
                false => FailFastDecision::PutBack { items: vec![failed], stop: Some(stop) },
            };
        }
        let (shows, row) = (self.shows(&failed.failure()), self.row(&failed.failure()));
        if shows == Shows::Stop {
            self.held_back.push(failed.clone());
            return self.stop(&failed.failure(), has_others);
        }
        let decides = self.rows.decides(&failed.scope, &failed.finished.ordinal);
        let mut matters = row.is_some() || decides;
        for before in self.held_back.iter_mut().filter(|before| before.scope == failed.scope) {
            before.overtaken &= before.status == failed.status && before.code == failed.code;
            matters |= before.overtaken;
        }
        let more = matters && shows == Shows::Nothing && more_wait();
        let count = row.filter(|_| more);
        let stop = count.map(|count| self.stop_scope(&failed.failure(), count, has_others()));
        let scope = Arc::clone(&failed.scope);
        self.held_back.push(failed);
        match (shows, stop) {
            (Shows::Nothing, None) => {
                if matters && !more {
                    self.no_more_come(&scope);
                }
                FailFastDecision::Record(self.disarm())
            }
            (Shows::Nothing, Some(stop)) => {
                let waits = self.waiting_again(&scope);
                FailFastDecision::StopScope { failed: self.disarm(), waits, stop }
            }
            _ => FailFastDecision::HeldBack,
        }
    }

    /// Whether the first call to a scope that an earlier run stopped failed as those did.
    fn is_still_so(&mut self, failure: &Failure<'_>) -> bool {
        let is_same = |(status, code): Kind| status == failure.status && code.as_deref() == failure.code;
        self.stopped_before.remove(failure.scope).is_some_and(is_same)
    }

    /// The scope stops again, and one call is all that it got.
    fn still_fails(&mut self, failure: &Failure<'_>) -> StopReason {
        self.stopped_scopes.insert(Arc::clone(failure.scope));
        StopReason::SameFailure {
            scope: Some(Arc::clone(failure.scope)),
            which: STILL,
            count: 1,
            status: failure.status,
            advice: advice(failure.status, failure.code, failure.unexpected, true),
            message: failure.message.to_owned(),
        }
    }

    /// So many items of the scope failed alike in a row that it has to stop.
    fn row(&mut self, failure: &Failure<'_>) -> Option<usize> {
        let kind = (failure.status, failure.code.map(ToOwned::to_owned));
        let alike = Alikeness { kind, unexpected: failure.unexpected };
        match self.rows.failed(failure.scope, failure.ordinal, alike, failure.address)? {
            Stops::Scope(count) => Some(count),
            Stops::Address => None,
        }
    }

    /// Others of the scope wait, and what is under way there waits again.
    fn stop_scope(&mut self, failure: &Failure<'_>, count: usize, has_others: bool) -> StopReason {
        self.stopped_scopes.insert(Arc::clone(failure.scope));
        let are_first = self.rows.are_first(failure.scope);
        StopReason::SameFailure {
            scope: has_others.then(|| Arc::clone(failure.scope)),
            which: if are_first { "first" } else { "last" },
            count,
            status: failure.status,
            advice: advice(failure.status, failure.code, failure.unexpected, are_first),
            message: failure.message.to_owned(),
        }
    }

    fn shows(&mut self, failure: &Failure<'_>) -> Shows {
        if !self.alike.is_watching() || self.stopped_scopes.contains(failure.scope) {
            return Shows::Nothing;
        }
        if !self.ordinals.insert(failure.ordinal) {
            return Shows::TooFew;
        }
        self.scopes.insert(Arc::clone(failure.scope));
        let shows = self.alike.failed((failure.status, failure.code.map(ToOwned::to_owned)));
        if shows == Shows::Stop && self.scopes.len() > 1 && self.rows.are_hosts() {
            // Pages that are gone at several hosts say nothing of these hosts, nor of the others.
            self.alike = Alike::new(self.limit, false);
            return Shows::Nothing;
        }
        shows
    }

    /// What a scope's items all meet stops no other scope: it may be one host of many.
    fn stop(&mut self, failure: &Failure<'_>, has_others: impl FnOnce() -> bool) -> FailFastDecision {
        let advice = match failure.code {
            Some(TOO_LARGE) if failure.status.is_none() => "raise the limit or make the requests smaller",
            _ if failure.unexpected => EXPECTED,
            _ if matches!(failure.status, Some(300..=399)) => MOVED,
            _ => CORRECT_REQUESTS,
        };
        let alone = self.scopes.len() == 1 && has_others();
        let stop = StopReason::SameFailure {
            scope: alone.then(|| Arc::clone(failure.scope)),
            which: "first",
            count: self.limit,
            status: failure.status,
            advice,
            message: failure.message.to_owned(),
        };
        if !alone {
            return FailFastDecision::Stop(stop);
        }
        self.alike = Alike::new(self.limit, true);
        self.ordinals.clear();
        self.stopped_scopes.append(&mut self.scopes);
        let items = self.held_back.extract_if(.., |failed| failed.scope == *failure.scope).collect();
        FailFastDecision::PutBack { items, stop: Some(stop) }
    }

    /// How many failures are held back.
    pub(crate) const fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// The failures held back, at the end of the run.
    pub(crate) fn take_held_back(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests;
