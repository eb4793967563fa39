//! That an upstream is down, for the log: told once when that is certain, and once when it answers again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline::{Class, Instant};
use paceline_core::LimitScope;
use paceline_providers::Reading;

/// So many calls in a row fail, ...
const IN_A_ROW: u32 = 3;

/// ... over at least that time, before a scope counts as down whose breaker is closed: calls of one moment say little.
const AT_LEAST: Duration = Duration::from_secs(5);

/// So many scopes are looked after at once: clients choose the names.
const MOST: usize = 100;

/// What a call says of its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It answers, be it with a refusal.
    Answers,
    /// It fails in the scope of the call; `everywhere`: there was no connection.
    Fails { everywhere: bool },
    /// Nothing leaves until a person acts.
    Stops { everywhere: bool },
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
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
struct Rows(BTreeMap<Option<Arc<str>>, Row>);

#[derive(Debug)]
struct Row {
    since: Instant,
    failed: u32,
    /// It is in the log, since the last reload where that ended a stop.
    told: bool,
    /// It is in the log at all, and so its end will be.
    was_told: bool,
    is_stopped: bool,
}

impl Row {
    const fn new(since: Instant, is_stopped: bool) -> Self {
        Self { since, failed: 0, told: false, was_told: false, is_stopped }
    }
}

impl Sign {
    /// That of an answer, or of none; a call that its client gave up says nothing.
    pub(crate) fn of(reading: &Reading) -> Option<Self> {
        match reading.class {
            Class::Abandoned => None,
            // What nothing but the configuration refuses.
            _ if reading.unexpected => Some(Self::Answers),
            Class::Transient | Class::Overloaded => Some(Self::Fails { everywhere: reading.unsent }),
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
        now: impl FnOnce() -> Instant,
        has_open_breaker: impl FnOnce() -> bool,
    ) -> Option<Told> {
        if sign == Sign::Answers && !self.some() {
            return None;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let told = rows.note(scope, sign, now(), has_open_breaker);
        self.some.store(!rows.0.is_empty(), Ordering::Relaxed);
        told
    }

    /// Whether something may be told of the next answer.
    pub(crate) fn some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// A person says that the cause of each stop is mended: one that comes again is told again.
    pub(crate) fn end_stops(&self) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.0.values_mut().filter(|row| row.is_stopped).for_each(|row| row.told = false);
    }
}

impl Rows {
    fn note(
        &mut self,
        scope: &Arc<str>,
        sign: Sign,
        now: Instant,
        has_open_breaker: impl FnOnce() -> bool,
    ) -> Option<Told> {
        let (everywhere, is_stopped) = match sign {
            Sign::Answers => return self.end(scope, now),
            Sign::Fails { everywhere } => (everywhere, false),
            Sign::Stops { everywhere } => (everywhere, true),
        };
        let place = (!everywhere).then(|| Arc::clone(scope));
        // What is told of the whole is not told of its parts.
        let is_down = |row: Option<&Row>| row.is_some_and(|row| row.told && row.is_stopped >= is_stopped);
        if is_down(self.0.get(&None)) || is_down(self.0.get(&place)) {
            return None;
        }
        if self.0.len() == MOST && !self.0.contains_key(&place) {
            return None;
        }
        let row = self.0.entry(place.clone()).or_insert(Row::new(now, is_stopped));
        if is_stopped && !row.is_stopped {
            *row = Row::new(now, true);
        }
        row.failed += 1;
        let lasts = row.failed >= IN_A_ROW && now.saturating_since(row.since) >= AT_LEAST;
        row.told = is_stopped || lasts || has_open_breaker();
        row.was_told |= row.told;
        row.told.then_some(Told::Down { scope: place, since: row.since, is_stopped })
    }

    /// The scope answers, and so does its upstream.
    fn end(&mut self, scope: &Arc<str>, now: Instant) -> Option<Told> {
        let own = Some(Arc::clone(scope));
        let ended = [None, own].map(|place| self.0.remove_entry(&place));
        let told = ended.into_iter().flatten().find(|(_, row)| row.was_told);
        told.map(|(scope, row)| Told::Back { scope, after: now.saturating_since(row.since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: Sign = Sign::Fails { everywhere: false };
    const UNREACHED: Sign = Sign::Fails { everywhere: true };
    const STOPS: Sign = Sign::Stops { everywhere: true };

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn down(scope: Option<&str>, since: u64, is_stopped: bool) -> Option<Told> {
        Some(Told::Down { scope: scope.map(Into::into), since: at(since), is_stopped })
    }

    fn back(scope: Option<&str>, after: u64) -> Option<Told> {
        Some(Told::Back { scope: scope.map(Into::into), after: Duration::from_secs(after) })
    }

    #[test]
    fn an_outage_is_told_once_and_its_end_once() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        let note = |sign, second| outages.note(&m, sign, || at(second), || false);
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
        assert_eq!(outages.note(&m, FAILS, || at(1), || true), down(Some("m"), 1, false));
        assert_eq!(outages.note(&n, Sign::Answers, || at(2), || false), None, "another scope says nothing of it");
        assert_eq!(outages.note(&n, FAILS, || at(3), || true), down(Some("n"), 3, false));
        assert_eq!(outages.note(&m, Sign::Answers, || at(4), || false), back(Some("m"), 3));
    }

    #[test]
    fn a_stop_is_told_at_once_also_while_the_upstream_fails() {
        let (outages, m): (Outages, Arc<str>) = (Outages::default(), "m".into());
        assert_eq!(outages.note(&m, UNREACHED, || at(0), || true), down(None, 0, false));
        assert_eq!(outages.note(&m, STOPS, || at(9), || false), down(None, 9, true));
        assert_eq!(outages.note(&m, STOPS, || at(9), || false), None);
        outages.end_stops();
        assert_eq!(outages.note(&m, STOPS, || at(19), || false), down(None, 9, true), "a reload did not mend it");
        outages.end_stops();
        assert_eq!(outages.note(&m, Sign::Answers, || at(29), || false), back(None, 20));
    }

    #[test]
    fn scopes_that_clients_invent_take_no_memory_without_bound() {
        let outages = Outages::default();
        for name in 0..2 * MOST {
            outages.note(&name.to_string().into(), FAILS, || at(0), || false);
        }
        assert_eq!(outages.rows.lock().expect("whole").0.len(), MOST);
    }
}
