//! That an upstream is down, for the log, `/readyz` and the metrics: told once when that is certain, again when it is for another
//! reason, and once when it answers again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline::{Class, Instant};
use paceline_core::{Fault, LimitScope, format_duration};
use paceline_http::NOT_TAKEN;
use paceline_providers::Reading;

/// So many calls in a row fail, ...
const IN_A_ROW: u32 = 3;

/// ... over at least that time, before a scope counts as down whose breaker is closed: calls of one moment say little.
const AT_LEAST: Duration = Duration::from_secs(5);

/// So many scopes are looked after at once: clients choose the names.
const MOST: usize = 100;

/// Another reason is told after that time at the earliest: the servers behind one name may fail in several ways.
const OTHER_REASON: Duration = Duration::from_secs(60);

/// Without a call for so long nothing is known any more: neither of one that fails, nor of one that answered.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// What a call says of its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It answers, be it with a refusal.
    Answers,
    /// It fails in the scope of the call; `everywhere`: there was no connection.
    Fails { everywhere: bool },
    /// It has refused every call in the scope since then, for longer than a limit would.
    Refuses { since: Instant },
    /// Nothing leaves until a person acts.
    Stops { everywhere: bool },
}

/// Why a call failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Why {
    /// What makes it another reason: words may have a time or an id in them.
    kind: (Option<Class>, bool, Option<String>),
    words: String,
}

/// An upstream that fails for all of its clients, or a scope of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Down {
    /// None: all that is called of the upstream.
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) since: Instant,
    pub(crate) reason: String,
    /// Its last call was refused because of the pace.
    pub(crate) refuses: bool,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutageNews {
    /// It is down in that scope, or everywhere, since then.
    Down { scope: Option<Arc<str>>, since: Instant, is_stopped: bool },
    /// It answers again, after so long.
    Back { scope: Option<Arc<str>>, after: Duration },
}

/// The scopes of an upstream that fail at present.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// Some may be kept: a call that succeeds looks at nothing else.
    some: AtomicBool,
    rows: Mutex<Rows>,
}

/// Failures in a row by scope; those of the whole upstream have none.
#[derive(Debug, Default)]
struct Rows {
    failing: BTreeMap<Option<Arc<str>>, Row>,
    /// What two clients were refused is tested by a call of a third then, in each of these scopes or in all.
    tested: BTreeMap<Option<Arc<str>>, (Instant, Fault)>,
    /// When scopes that are not told to fail answered the last time, while others fail.
    answered: BTreeMap<Arc<str>, Instant>,
}

#[derive(Debug)]
struct Row {
    since: Instant,
    failed: u32,
    /// It is in the log, since the last reload where that ended a stop.
    told: bool,
    /// It is in the log at all, and so its end will be.
    was_told: bool,
    is_stopped: bool,
    /// When a call failed the last time, and why.
    last: Instant,
    why: Why,
    /// The reason that is in the log, and since when.
    told_why: (Why, Instant),
}

impl Row {
    fn new(since: Instant, is_stopped: bool) -> Self {
        let (why, told_why) = (Why::default(), (Why::default(), since));
        Self { since, failed: 0, told: false, was_told: false, is_stopped, last: since, why, told_why }
    }

    /// Another call failed. Returns whether that is for another reason than the one that was told.
    fn fails_on(&mut self, why: Why, now: Instant) -> bool {
        (self.last, self.why) = (now, why);
        let (told, at) = &self.told_why;
        let is_other = told.kind != self.why.kind && now.saturating_since(*at) >= OTHER_REASON;
        if is_other {
            self.told_why = (self.why.clone(), now);
        }
        is_other
    }
}

impl Why {
    /// That of an answer, or of none, in words for all.
    pub(crate) fn of(reading: &Reading, words: &str) -> Self {
        let words = words.to_owned();
        Self { kind: (Some(reading.class), reading.unsent, reading.code.clone()), words }
    }

    fn is_refusal(&self) -> bool {
        self.kind.0 == Some(Class::Throttled)
    }
}

impl Down {
    /// What is the matter, as a clause.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let what = match (&self.scope, self.refuses) {
            (None, true) => "the upstream has refused every call for",
            (None, false) => "the upstream has answered no call for",
            (Some(_), true) => "every call was refused for",
            (Some(_), false) => "no call was answered for",
        };
        format!("{what} {}: {}", in_tens(now.saturating_since(self.since)), self.reason)
    }
}

/// A screen that shows it need not change each second.
pub(crate) fn in_tens(time: Duration) -> String {
    match time.as_secs() / 10 * 10 {
        0 => "some seconds".to_owned(),
        tens => format_duration(Duration::from_secs(tens)),
    }
}

impl Sign {
    /// That of an answer, or of none; a call that its client gave up says nothing.
    pub(crate) fn of(reading: &Reading) -> Option<Self> {
        match reading.class {
            Class::Abandoned => None,
            // What nothing but the configuration refuses.
            _ if reading.unexpected => Some(Self::Answers),
            Class::Transient | Class::Overloaded => {
                // A server that did not take the call has said so.
                let is_there = reading.code.as_deref() == Some(NOT_TAKEN);
                Some(Self::Fails { everywhere: reading.unsent && !is_there })
            }
            // A key that may not do this one thing.
            Class::Account if reading.reach == LimitScope::Item => Some(Self::Answers),
            Class::Account => Some(Self::Stops { everywhere: reading.reach == LimitScope::Account }),
            _ => Some(Self::Answers),
        }
    }
}

impl Outages {
    /// Notes a sign of a call in that scope, and returns what is to be told of it. `has_open_breaker` is asked where that
    /// decides.
    pub(crate) fn note(
        &self,
        scope: &Arc<str>,
        sign: Sign,
        why: impl FnOnce() -> Why,
        now: impl FnOnce() -> Instant,
        has_open_breaker: impl FnOnce() -> bool,
    ) -> Option<OutageNews> {
        if sign == Sign::Answers && !self.some() {
            return None;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let told = rows.note(scope, sign, why, now(), has_open_breaker);
        if rows.failing.is_empty() {
            rows.answered.clear();
        }
        self.some.store(!rows.failing.is_empty(), Ordering::Relaxed);
        told
    }

    /// What fails for all at present: the whole, where nothing that is called answers, and each scope.
    pub(crate) fn down(&self, now: Instant) -> Vec<Down> {
        if !self.some() {
            return Vec::new();
        }
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).down(now)
    }

    /// Two clients were refused, and until then all wait for a call of a third one.
    pub(crate) fn tests(&self, scope: Option<Arc<str>>, since: Instant, until: Instant, status: Option<u16>) {
        let status = status.map(|status| format!(" ({status})")).unwrap_or_default();
        let words = format!("two clients' calls were refused{status}; then a call of a third one is tried").into();
        let tested = &mut self.rows.lock().unwrap_or_else(PoisonError::into_inner).tested;
        tested.retain(|_, (until, _)| *until > since);
        if tested.len() < MOST {
            tested.insert(scope, (until, Fault { since, words }));
        }
    }

    /// Why calls fail at present: all that are called of the upstream (none), and those of each scope.
    pub(crate) fn faults(&self, now: Instant) -> BTreeMap<Option<Arc<str>>, Fault> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = |down: Down| (down.scope.clone(), Fault { since: down.since, words: down.describe(now).into() });
        let tested = rows.tested.iter().filter(|(_, (until, _))| *until > now);
        let tested = tested.map(|(scope, (_, fault))| (scope.clone(), fault.clone()));
        rows.down(now).into_iter().map(fault).chain(tested).collect()
    }

    /// Whether something may be told of the next answer.
    pub(crate) fn some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// A person says that the cause of each stop is mended: one that comes again is told again.
    pub(crate) fn end_stops(&self) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.failing.values_mut().filter(|row| row.is_stopped).for_each(|row| row.told = false);
        rows.tested.clear();
    }
}

impl Rows {
    fn note(
        &mut self,
        scope: &Arc<str>,
        sign: Sign,
        why: impl FnOnce() -> Why,
        now: Instant,
        has_open_breaker: impl FnOnce() -> bool,
    ) -> Option<OutageNews> {
        let (everywhere, is_stopped, since) = match sign {
            Sign::Answers => return self.end(scope, now),
            Sign::Fails { everywhere } => (everywhere, false, now),
            Sign::Refuses { since } => (false, false, since),
            Sign::Stops { everywhere } => (everywhere, true, now),
        };
        let place = (!everywhere).then(|| Arc::clone(scope));
        // What is told of the whole is not told of its parts.
        for place in [None, place.clone()] {
            let down = |row: &&mut Row| row.told && row.is_stopped >= is_stopped;
            let Some(row) = self.failing.get_mut(&place).filter(down) else { continue };
            let is_other = row.is_stopped == is_stopped && row.fails_on(why(), now);
            return is_other.then_some(OutageNews::Down { scope: place, since: row.since, is_stopped });
        }
        if self.failing.len() == MOST && !self.failing.contains_key(&place) {
            return None;
        }
        let row = self.failing.entry(place.clone()).or_insert_with(|| Row::new(since, is_stopped));
        if is_stopped && !row.is_stopped {
            *row = Row::new(now, true);
        }
        row.failed += 1;
        (row.since, row.last, row.why) = (row.since.min(since), now, why());
        let lasts = row.failed >= IN_A_ROW && now.saturating_since(row.since) >= AT_LEAST;
        row.told = is_stopped || lasts || matches!(sign, Sign::Refuses { .. }) || has_open_breaker();
        row.was_told |= row.told;
        row.told_why = (row.why.clone(), now);
        let told = row.told.then_some(OutageNews::Down { scope: place, since: row.since, is_stopped })?;
        self.answered.remove(scope);
        Some(told)
    }

    /// The scope answers, and so does its upstream.
    fn end(&mut self, scope: &Arc<str>, now: Instant) -> Option<OutageNews> {
        let own = Some(Arc::clone(scope));
        let ended = [None, own].map(|place| self.failing.remove_entry(&place));
        if !is_of_one_client(scope) && (self.answered.len() < MOST || self.answered.contains_key(scope)) {
            self.answered.insert(Arc::clone(scope), now);
        }
        let told = ended.into_iter().flatten().find(|(_, row)| row.was_told);
        told.map(|(scope, row)| OutageNews::Back { scope, after: now.saturating_since(row.since) })
    }

    fn down(&self, now: Instant) -> Vec<Down> {
        let is_recent = |at: Instant| now.saturating_since(at) <= FORGOTTEN;
        let fails = |(place, row): &(&Option<Arc<str>>, &Row)| {
            let of_all = place.as_deref().is_none_or(|place| !is_of_one_client(place));
            of_all && row.told && !row.is_stopped && is_recent(row.last)
        };
        let rows = self.failing.iter().filter(fails);
        let down = |(scope, row): (&Option<Arc<str>>, &Row)| Down {
            scope: scope.clone(),
            since: row.since,
            reason: row.why.words.clone(),
            refuses: row.why.is_refusal(),
        };
        let mut down: Vec<_> = rows.map(down).collect();
        let answers = self.answered.values().any(|at| is_recent(*at));
        let first = down.iter().min_by_key(|down| down.since);
        if let Some(first) = first.filter(|_| !answers && down.iter().all(|down| down.scope.is_some())) {
            let since = self.answered.values().fold(first.since, |since, at| since.max(*at));
            let whole = Down { scope: None, since, ..first.clone() };
            down.insert(0, whole);
        }
        down
    }
}

/// What fails for one client alone has its name behind that of the scope.
fn is_of_one_client(place: &str) -> bool {
    place.contains('\n')
}

#[cfg(test)]
mod tests {
    use paceline_core::Timestamp;
    use paceline_http::NoAnswer;
    use paceline_providers::Provider;

    use super::*;

    const FAILS: Sign = Sign::Fails { everywhere: false };
    const UNREACHED: Sign = Sign::Fails { everywhere: true };
    const STOPS: Sign = Sign::Stops { everywhere: true };

    #[test]
    fn a_server_that_did_not_take_a_call_is_there() {
        let sign = |failure: NoAnswer| Sign::of(&failure.reading(Provider::OpenAi, Timestamp::from_millis(0)));
        assert_eq!(sign(NoAnswer::NotTaken("it ends the connection".to_owned())), Some(FAILS));
        assert_eq!(sign(NoAnswer::Connect("refused".to_owned())), Some(UNREACHED));
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn down(scope: Option<&str>, since: u64, is_stopped: bool) -> Option<OutageNews> {
        Some(OutageNews::Down { scope: scope.map(Into::into), since: at(since), is_stopped })
    }

    fn back(scope: Option<&str>, after: u64) -> Option<OutageNews> {
        Some(OutageNews::Back { scope: scope.map(Into::into), after: Duration::from_secs(after) })
    }

    #[test]
    fn an_outage_is_told_once_and_its_end_once() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        let note = |sign, second| outages.note(&m, sign, Why::default, || at(second), || false);
        assert_eq!([0, 0, 0, 4].map(|second| note(UNREACHED, second)), [None, None, None, None], "calls of one moment");
        assert_eq!(note(UNREACHED, 5), down(None, 0, false));
        assert_eq!([note(UNREACHED, 6), note(FAILS, 7)], [None, None], "each call after it is no news");
        assert_eq!([note(Sign::Answers, 60), note(Sign::Answers, 61)], [back(None, 60), None]);
        assert_eq!(
            [note(FAILS, 62), note(Sign::Answers, 63), note(FAILS, 99)],
            [None, None, None],
            "one failure is none"
        );
    }

    #[test]
    fn a_scope_fails_alone_and_an_open_breaker_says_so_at_once() {
        let outages = Outages::default();
        let [m, n]: [Arc<str>; 2] = ["m".into(), "n".into()];
        assert_eq!(outages.note(&m, FAILS, Why::default, || at(1), || true), down(Some("m"), 1, false));
        assert_eq!(
            outages.note(&n, Sign::Answers, Why::default, || at(2), || false),
            None,
            "another scope says nothing of it"
        );
        assert_eq!(outages.note(&n, FAILS, Why::default, || at(3), || true), down(Some("n"), 3, false));
        assert_eq!(outages.note(&m, Sign::Answers, Why::default, || at(4), || false), back(Some("m"), 3));
    }

    #[test]
    fn a_stop_is_told_at_once_also_while_the_upstream_fails() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        assert_eq!(outages.note(&m, UNREACHED, Why::default, || at(0), || true), down(None, 0, false));
        assert_eq!(outages.note(&m, STOPS, Why::default, || at(9), || false), down(None, 9, true));
        assert_eq!(outages.note(&m, STOPS, Why::default, || at(9), || false), None);
        outages.end_stops();
        assert_eq!(
            outages.note(&m, STOPS, Why::default, || at(19), || false),
            down(None, 9, true),
            "a reload did not mend it"
        );
        outages.end_stops();
        assert_eq!(outages.note(&m, Sign::Answers, Why::default, || at(29), || false), back(None, 20));
    }

    #[test]
    fn scopes_that_clients_invent_take_no_memory_without_bound() {
        let outages = Outages::default();
        for name in 0..2 * MOST {
            outages.note(&name.to_string().into(), FAILS, Why::default, || at(0), || false);
        }
        assert_eq!(outages.rows.lock().expect("whole").failing.len(), MOST);
    }

    fn whole(outages: &Outages, second: u64) -> Option<u64> {
        let down = outages.down(at(second)).into_iter().find(|down| down.scope.is_none())?;
        Some(down.since.as_nanos() / 1_000_000_000)
    }

    fn because(code: &str) -> Why {
        Why { kind: (Some(Class::Transient), false, Some(code.to_owned())), words: code.to_owned() }
    }

    #[test]
    fn an_upstream_is_down_where_nothing_that_is_called_answers() {
        let outages = Outages::default();
        let [m, n, of_a]: [Arc<str>; 3] = ["m".into(), "n".into(), "m\na".into()];
        let fails = |scope, second| outages.note(scope, FAILS, || because("503"), || at(second), || true);
        let answers = |scope, second| outages.note(scope, Sign::Answers, Why::default, || at(second), || false);
        assert_eq!(
            (whole(&outages, 0), fails(&of_a, 0), whole(&outages, 1)),
            (None, down(Some("m\na"), 0, false), None)
        );
        fails(&m, 10);
        assert_eq!(whole(&outages, 11), Some(10), "the one scope that is called");
        answers(&n, 20);
        assert_eq!((whole(&outages, 30), outages.down(at(30)).len()), (None, 1), "one model alone");
        fails(&n, 40);
        assert_eq!((whole(&outages, 41), outages.down(at(41)).len()), (Some(10), 3), "all that is called");
        answers(&m, 50);
        assert_eq!(whole(&outages, 51), None);
        assert_eq!([650, 651].map(|second| outages.down(at(second)).len()), [0, 0], "no call for so long");
    }

    #[test]
    fn a_scope_that_answered_long_ago_is_no_proof_and_without_a_connection_none_is() {
        let (outages, [m, n]) = (Outages::default(), [Arc::<str>::from("m"), "n".into()]);
        let fails = |sign, second| outages.note(&m, sign, Why::default, || at(second), || true);
        fails(FAILS, 0);
        outages.note(&n, Sign::Answers, Why::default, || at(100), || false);
        fails(FAILS, 600);
        assert_eq!([700, 701].map(|second| whole(&outages, second)), [None, Some(100)]);
        outages.note(&n, Sign::Answers, Why::default, || at(702), || false);
        assert_eq!(whole(&outages, 702), None);
        outages.note(&n, UNREACHED, Why::default, || at(703), || true);
        assert_eq!(whole(&outages, 704), Some(703));
    }

    #[test]
    fn another_reason_is_told_too_but_not_each_time() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        let fails = |sign, code, second| outages.note(&m, sign, || because(code), || at(second), || true);
        let of = |second| outages.down(at(second)).into_iter().map(|down| down.reason).collect::<Vec<_>>();
        assert_eq!(fails(UNREACHED, "refused", 0), down(None, 0, false));
        assert_eq!([fails(FAILS, "503", 30), fails(UNREACHED, "refused", 70)], [None, None]);
        assert_eq!((fails(FAILS, "503", 71), of(71)), (down(None, 0, false), vec!["503".to_owned()]));
        assert_eq!([fails(UNREACHED, "refused", 72), fails(FAILS, "503", 140)], [None, None], "one of each");
        assert_eq!(fails(UNREACHED, "refused", 141), down(None, 0, false));
    }

    #[test]
    fn a_scope_that_refuses_every_call_is_down_since_the_first_and_says_so() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        let why = || Why { kind: (Some(Class::Throttled), false, None), words: "status 429".to_owned() };
        let refuses = |second| outages.note(&m, Sign::Refuses { since: at(7) }, why, || at(second), || false);
        assert_eq!([refuses(130), refuses(140)], [down(Some("m"), 7, false), None]);
        let whole = outages.down(at(150)).swap_remove(0);
        assert_eq!((whole.scope, whole.since, whole.refuses), (None, at(7), true));
        assert_eq!(outages.note(&m, Sign::Answers, Why::default, || at(160), || false), back(Some("m"), 153));
        assert_eq!(outages.down(at(160)), []);
    }
}
