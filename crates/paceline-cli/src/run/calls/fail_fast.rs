//! Ends a job or a scope early when its first items all fail with the same failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_core::{Class, GiveUp};
use paceline_providers::SCHEMA_MISMATCH;
use paceline_store::{ClaimedItem, Finished};

use crate::run::calls::alike::{Alike, AlikeByScope, Alikeness, Kind, Shows};
use crate::run::calls::stop::{CORRECT_REQUESTS, StopReason};

/// The code of an item that never left because it alone exceeds a limit.
pub(crate) const TOO_LARGE: &str = "request_too_large";

/// What to put right where all answers are not what the user expects.
pub(crate) const EXPECTED: &str = "correct what --expect asks for, the requests, or the key and its header (their calls may be \
                                   billed, and are made again)";

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
const MOVED: &str = "put the address that the redirect names into the input, in place of the old one";

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

    fn failure(&self) -> Failure<'_> {
        let Self { finished, scope, status, code, message, unexpected, address, .. } = self;
        let (status, code, address) = (*status, code.as_deref(), address.as_deref());
        Failure { ordinal: finished.ordinal, scope, status, code, message, unexpected: *unexpected, address }
    }
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

    /// An item of that scope succeeded, or failed otherwise than by a final refusal.
    pub(crate) fn ended_otherwise(&mut self, scope: &Arc<str>) -> Vec<Failed> {
        self.stopped_before.remove(scope);
        self.rows.ended_otherwise(scope);
        self.disarm()
    }

    /// How many more must fail alike; none when not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.alike.undecided()
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
        let is_held = |failed: &Failed| rows.decides(&failed.scope, &failed.finished.ordinal);
        self.held_back.extract_if(.., |failed| !is_held(failed)).collect()
    }

    /// The items wait again that stop their host.
    fn waiting_again(&mut self, scope: &str) -> Vec<Failed> {
        let rows = &self.rows;
        let decided = |failed: &Failed| *failed.scope == *scope && rows.decides(scope, &failed.finished.ordinal);
        self.held_back.extract_if(.., |failed| decided(failed)).collect()
    }

    /// An answer is not what the user expects, and its item is tried again. `has_others`: the job has other scopes.
    pub(crate) fn mismatched(
        &mut self,
        failure: &Failure<'_>,
        has_others: impl FnOnce() -> bool,
        more_wait: impl FnOnce() -> bool,
    ) -> FailFastDecision {
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
        more_wait: impl Fn() -> bool,
    ) -> FailFastDecision {
        if self.stopped_scopes.contains(&failed.scope) {
            return FailFastDecision::PutBack { items: vec![failed], stop: None };
        }
        let is_same = |kind: Kind| kind == (failed.status, failed.code.clone());
        let is_still_so = self.stopped_before.remove(&failed.scope).is_some_and(is_same);
        if is_still_so && more_wait() {
            return self.still_fails(failed);
        }
        let (shows, row) = (self.shows(&failed.failure()), self.row(&failed.failure()));
        if shows == Shows::Stop {
            self.held_back.push(failed.clone());
            return self.stop(&failed.failure(), has_others);
        }
        let decides = self.rows.decides(&failed.scope, &failed.finished.ordinal);
        let more = (row.is_some() || decides) && shows == Shows::Nothing && more_wait();
        let count = row.filter(|_| more);
        let stop = count.map(|count| self.stop_scope(&failed.failure(), count, has_others()));
        let scope = Arc::clone(&failed.scope);
        self.held_back.push(failed);
        match (shows, stop) {
            (Shows::Nothing, None) => {
                if decides && !more {
                    self.rows.no_more_come(&scope);
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

    /// The first call to a scope that an earlier run stopped failed as those did: it stops again, and one call is all that it
    /// got. An item with which that was tried several times has failed: it may be refused by itself, and others behind it not.
    fn still_fails(&mut self, failed: Failed) -> FailFastDecision {
        self.stopped_scopes.insert(Arc::clone(&failed.scope));
        let (failure, has_tried) = (failed.failure(), failed.finished.tally.attempts > TESTS_OF_AN_ITEM);
        let stop = StopReason::SameFailure {
            scope: Some(Arc::clone(&failed.scope)),
            which: STILL,
            count: 1,
            status: failed.status,
            advice: advice(failure.status, failure.code, failure.unexpected, true),
            message: failed.message.clone(),
        };
        match has_tried {
            true => FailFastDecision::StopScope { failed: vec![failed], waits: Vec::new(), stop },
            false => FailFastDecision::PutBack { items: vec![failed], stop: Some(stop) },
        }
    }

    /// So many items of the scope failed alike in a row that it has to stop.
    fn row(&mut self, failure: &Failure<'_>) -> Option<usize> {
        let kind = (failure.status, failure.code.map(ToOwned::to_owned));
        let alike = Alikeness { kind, unexpected: failure.unexpected };
        self.rows.failed(failure.scope, failure.ordinal, alike, failure.address)
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
        self.alike.failed((failure.status, failure.code.map(ToOwned::to_owned)))
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

    /// The failures held back, at the end of the run.
    pub(crate) fn take_held_back(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_store::End;

    const NOT_JSON: &str = "not_json";

    fn of(scope: &str, ordinal: u64, status: u16, code: Option<&str>) -> Failed {
        Failed {
            finished: Finished::new(ordinal, End::Failed, Vec::new()),
            item: ordinal.to_string(),
            scope: scope.into(),
            class: Class::Invalid,
            status: Some(status),
            code: code.map(ToOwned::to_owned),
            message: "no".to_owned(),
            unexpected: code == Some(NOT_JSON),
            address: None,
            down: None,
        }
    }

    fn refused(watch: &mut FailFast, ordinal: u64, status: u16) -> FailFastDecision {
        watch.failed(of("a", ordinal, status, None), || false, || true)
    }

    fn mismatched(watch: &mut FailFast, ordinal: u64) -> FailFastDecision {
        watch.mismatched(&of("a", ordinal, 200, Some(NOT_JSON)).failure(), || false, || true)
    }

    #[test]
    fn twenty_alike_stop_and_stay_held_back() {
        let mut watch = FailFast::new(20, 21);
        for ordinal in 0..19 {
            assert!(matches!(refused(&mut watch, ordinal, 400), FailFastDecision::HeldBack));
        }
        assert!(matches!(
            refused(&mut watch, 19, 400),
            FailFastDecision::Stop(StopReason::SameFailure { count: 20, scope: None, .. })
        ));
        let in_flight = refused(&mut watch, 20, 404);
        assert!(matches!(in_flight, FailFastDecision::HeldBack), "in flight when the run stopped");
        assert!(watch.disarm().is_empty());
        assert_eq!(watch.take_held_back().len(), 21);
    }

    #[test]
    fn one_that_differs_lets_all_be_recorded() {
        let mut watch = FailFast::new(20, 1_000);
        assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::HeldBack));
        assert!(matches!(refused(&mut watch, 1, 404), FailFastDecision::Record(all) if all.len() == 2));
        assert!(matches!(refused(&mut watch, 2, 400), FailFastDecision::Record(all) if all.len() == 1));

        let mut watch = FailFast::new(20, 1_000);
        assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::HeldBack));
        assert_eq!(watch.disarm().len(), 1);
        for ordinal in 1..40 {
            assert!(matches!(refused(&mut watch, ordinal, 400), FailFastDecision::Record(_)));
        }
    }

    #[test]
    fn items_whose_answers_match_no_schema_are_counted_once_with_their_first_answer_or_their_last() {
        let mut watch = FailFast::new(20, 21);
        for ordinal in 0..19 {
            assert!(matches!(mismatched(&mut watch, ordinal), FailFastDecision::HeldBack));
        }
        for _ in 0..3 {
            assert!(matches!(mismatched(&mut watch, 7), FailFastDecision::HeldBack), "it is tried again");
        }
        let last = watch.failed(of("a", 7, 200, Some(NOT_JSON)), || false, || true);
        assert!(matches!(last, FailFastDecision::HeldBack), "its retries are used up");
        assert_eq!(watch.undecided(), Some(1));
        assert!(matches!(mismatched(&mut watch.clone(), 19), FailFastDecision::Stop(_)));
        let without_retries = watch.clone().failed(of("a", 19, 200, Some(NOT_JSON)), || false, || true);
        assert!(matches!(without_retries, FailFastDecision::Stop(_)));
        assert_eq!(watch.ended_otherwise(&"a".into()).len(), 1, "one matched");
        assert!(matches!(mismatched(&mut watch, 20), FailFastDecision::Record(all) if all.is_empty()));
    }

    #[test]
    fn a_scope_of_several_is_stopped_alone() {
        let forbidden =
            |watch: &mut FailFast, scope, ordinal| watch.failed(of(scope, ordinal, 403, None), || true, || true);
        let mut watch = FailFast::new(20, 100);
        for ordinal in 0..19 {
            assert!(matches!(forbidden(&mut watch, "a", ordinal), FailFastDecision::HeldBack));
        }
        let FailFastDecision::PutBack { items, stop: Some(stop) } = forbidden(&mut watch, "a", 19) else {
            panic!("the scope stops")
        };
        assert_eq!(items.len(), 20);
        assert!(stop.to_string().starts_with("the first 20 items of a all failed the same way"), "{stop}");
        let in_flight = forbidden(&mut watch, "a", 20);
        assert!(matches!(in_flight, FailFastDecision::PutBack { items, stop: None } if items.len() == 1));
        for ordinal in 21..40 {
            assert!(matches!(forbidden(&mut watch, "b", ordinal), FailFastDecision::HeldBack), "the watch begins anew");
        }
        let of_two = forbidden(&mut watch, "c", 40);
        assert!(matches!(of_two, FailFastDecision::Stop(StopReason::SameFailure { scope: None, .. })));
    }

    /// Others answer meanwhile.
    #[test]
    fn a_few_failures_of_each_host_are_held_back_until_it_stops_or_ends_otherwise() {
        let mut watch = FailFast::new(3, 100).by_host(true);
        let failed = |watch: &mut FailFast, scope, ordinal, status, more: bool| {
            watch.failed(of(scope, ordinal, status, None), || true, move || more)
        };
        assert!(watch.ended_otherwise(&"good".into()).is_empty());
        let recorded = |decision| match decision {
            FailFastDecision::Record(all) => all.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(recorded(failed(&mut watch, "a", 0, 404, true)), 0);
        assert_eq!(recorded(failed(&mut watch, "b", 10, 403, true)), 0);
        assert_eq!(recorded(failed(&mut watch, "a", 1, 404, true)), 0);
        assert_eq!(recorded(failed(&mut watch, "a", 2, 403, true)), 2, "of another kind");
        assert_eq!(watch.ended_otherwise(&"a".into()).len(), 1);
        assert_eq!(recorded(failed(&mut watch, "a", 3, 404, true)), 1, "it has pages, and some are gone");
        assert_eq!(recorded(failed(&mut watch, "a", 4, 403, true)), 0, "it may keep this machine out");
        assert_eq!(recorded(failed(&mut watch, "b", 11, 403, true)), 0);
        let FailFastDecision::StopScope { failed: none, waits, .. } = failed(&mut watch, "b", 12, 403, true) else {
            panic!("the host stops")
        };
        assert_eq!((none.len(), waits.len()), (0, 3));
        assert_eq!(recorded(failed(&mut watch, "c", 20, 404, true)), 0);
        assert_eq!(recorded(failed(&mut watch, "c", 21, 404, false)), 2, "it has no more pages");
        assert_eq!(watch.take_held_back().len(), 1, "of a");
    }

    #[test]
    fn one_call_tests_a_host_that_an_earlier_run_stopped() {
        let stopped = || [("a".into(), (Some(403), None))].into();
        let watch = || FailFast::new(20, 100).by_host(true).after(stopped());
        let mut same = watch();
        let FailFastDecision::PutBack { items, stop: Some(stop) } =
            same.failed(of("a", 0, 403, None), || true, || true)
        else {
            panic!("it stops again")
        };
        assert_eq!((items.len(), same.has_stopped("a")), (1, true));
        assert!(stop.to_string().starts_with("a still answers as in the run before, with status 403: no; "), "{stop}");
        let mut tried = of("a", 0, 403, None);
        tried.finished.tally.attempts = TESTS_OF_AN_ITEM + 1;
        let tested = watch().failed(tried, || true, || true);
        let FailFastDecision::StopScope { failed, waits, .. } = tested else { panic!("it stops again") };
        assert_eq!((failed.len(), waits.len()), (1, 0), "others are to be asked for, too");
        let mut other = watch();
        assert!(matches!(other.failed(of("a", 0, 404, None), || true, || true), FailFastDecision::HeldBack));
        assert!(matches!(other.failed(of("a", 1, 403, None), || true, || true), FailFastDecision::Record(_)));
        let mut open = watch();
        open.ended_otherwise(&"a".into());
        assert!(!matches!(open.failed(of("a", 0, 403, None), || true, || true), FailFastDecision::PutBack { .. }));
    }

    #[test]
    fn small_and_unwatched_jobs_record_at_once() {
        for mut watch in [FailFast::new(20, 20), FailFast::new(0, 1_000)] {
            assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::Record(_)));
        }
    }
}
