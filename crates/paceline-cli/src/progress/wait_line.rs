//! What the next call of a run waits for, in a line.

use std::time::Duration;

use paceline::{Instant, ScopeSnapshot, Snapshot};
use paceline_core::WaitCause;

use crate::job::holds;
use crate::progress::display::View;
use crate::progress::time_left;
use crate::text;

/// A wait as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Whose wait it is; empty where there is one scope only.
    of: String,
    what: String,
    /// For how long and until when; empty where that cannot be felt or is not known.
    when: String,
}

impl Wait {
    /// The one thing that the next call waits for, and for how long where that can be felt. Where that is what was learnt, or
    /// nothing, what is believed of the limit.
    pub(crate) fn of(view: &View<'_>) -> Option<Self> {
        if view.stop.is_some() {
            return Some(Self::bare(match view.in_flight {
                0 => "ending".to_owned(),
                calls => format!("ending; waiting for {}", text::counted(calls, "call")),
            }));
        }
        if let Some(disk_full) = view.disk_full {
            return Some(Self::bare(format!("waiting for {}", text::printable(&disk_full.room()))));
        }
        if let Some(wait) = view.hosts.and_then(|told| told.wait(view.figures.pending(), view.in_flight == 0)) {
            return Some(Self::bare(wait));
        }
        if let Some((turn, waited)) = view.waited {
            let what = format!("waiting for its turn under the shared limits, which {} has", turn.holder());
            return Some(Self { what, when: format!(", for {} so far", text::duration(waited)), ..Self::default() });
        }
        let waiting = view.limits.scopes.iter().filter(|scope| scope.waiting > 0);
        let next = waiting
            .filter_map(|scope| scope.waits_for.as_ref().map(|(policy, at)| (scope, policy, *at)))
            .min_by_key(|(_, _, at)| at.unwrap_or(Instant::MAX));
        let stored = view.next_due.filter(|(due, now)| due > now && view.in_flight == 0);
        let stored = stored.map(|(due, now)| view.now + due.saturating_since(now));
        match (next, stored) {
            (Some((_, _, Some(at))), Some(due)) if due < at => Some(Self::stored(view, due)),
            (None, Some(due)) => Some(Self::stored(view, due)),
            (Some((scope, policy, at)), _) => {
                let when = at.map(|at| countdown(at - view.now)).unwrap_or_default();
                let learnt = scope.estimate.is_some() && is_learnt(policy, &when);
                learnt.then(|| Self::believed(view.now, view.limits)).flatten().or_else(|| {
                    let is_first = view.limits.account.totals.sends == 0;
                    let by_others = is_first && matches!(policy, WaitCause::Quota { .. });
                    let by_whom = if by_others { ", used up by other runs" } else { "" };
                    let what = match policy {
                        WaitCause::Held { cause } | WaitCause::Gate { cause } => {
                            holds::pause_end(*cause, view.by_gateway)
                        }
                        other => text::printable(&other.to_string()).into_owned(),
                    };
                    let what = format!("waiting for {what}{by_whom}");
                    Some(Self { of: name(view.limits, scope), what, when })
                })
            }
            (None, None) => Self::believed(view.now, view.limits),
        }
    }

    /// Items wait in the journal for the end of a hold, or for a time of their own.
    fn stored(view: &View<'_>, due: Instant) -> Self {
        let held: Vec<_> = time_left::closed(view.now, view.limits).collect();
        // An item is put off until its scope opens, give or take a rounding.
        let first = held.iter().filter(|(_, until, _)| *until <= due + A_MOMENT).min_by_key(|(_, until, _)| *until);
        let Some((scope, until, cause)) = first else {
            return Self::retry(view, due);
        };
        let of = match held.len() {
            1 => name(view.limits, scope),
            scopes => {
                let first = holds::name(&scope.name);
                format!("{} held, the first of them ({first}) ", text::counted(scopes as u64, "scope"))
            }
        };
        let what = format!("waiting for {}", holds::pause_end(*cause, view.by_gateway));
        Self { of, what, when: countdown(*until - view.now) }
    }

    /// An item waits in the journal for its next try, and no scope is held for it.
    fn retry(view: &View<'_>, due: Instant) -> Self {
        let scope = view.limits.scopes.iter().find(|scope| Some(&*scope.name) == view.next_scope);
        let of = scope.map(|scope| name(view.limits, scope)).unwrap_or_default();
        let failing = scope.and_then(|scope| scope.no_success_since).map(|since| view.now - since);
        let why = match failing.filter(|lasts| *lasts >= A_MOMENT) {
            Some(lasts) => format!(" (no call succeeded for {})", text::duration(whole_seconds(lasts))),
            None => String::new(),
        };
        Self { of, what: format!("waiting for the next retry{why}"), when: countdown(due - view.now) }
    }

    /// What the busiest scope that is open believes of its limit, under a pace that learns.
    fn believed(now: Instant, limits: &Snapshot) -> Option<Self> {
        let is_open = |scope: &&ScopeSnapshot| !time_left::is_closed(now, scope);
        // Of several hosts, some have nothing left to send.
        let is_at_work =
            |scope: &&ScopeSnapshot| limits.scopes.len() == 1 || scope.waiting > 0 || scope.concurrency.in_flight > 0;
        let sending = limits.scopes.iter().filter(|scope| scope.totals.sends > 0).filter(is_at_work).filter(is_open);
        let busiest = sending.max_by_key(|scope| (scope.waiting > 0, scope.totals.sends))?;
        Some(Self { of: name(limits, busiest), ..Self::bare(busiest.estimate.as_ref()?.to_string()) })
    }

    /// One that nothing else is known of.
    pub(crate) fn bare(what: String) -> Self {
        Self { what, ..Self::default() }
    }

    /// All of it.
    pub(crate) fn line(&self) -> String {
        format!("{}{}{}", self.of, self.what, self.when)
    }

    /// In at most so many columns. The end of the wait is kept longest: the scope, and then the reason, are cut first.
    pub(crate) fn fitting(&self, columns: usize) -> String {
        let room = columns.saturating_sub(text::width(&self.when));
        let (of, what) = (text::width(&self.of), text::width(&self.what));
        if of + what <= room {
            return self.line();
        }
        if room < LEAST && !self.when.is_empty() {
            return text::cut(self.when.trim_start_matches([',', ' ']), columns);
        }
        let of = match room.saturating_sub(what).max(room / 3) {
            room if of <= room => self.of.clone(),
            room => text::cut(self.of.trim_end(), room.saturating_sub(1)) + if room > 1 { " " } else { "" },
        };
        text::cut(&format!("{of}{}", self.what), room) + &self.when
    }
}

/// Fewer columns are useless beside the time.
const LEAST: usize = 12;

/// Clocks of the journal and of the limiter round differently.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Whether that wait is for the learnt pace, and too short to be shown alone.
fn is_learnt(policy: &WaitCause, when: &str) -> bool {
    match policy {
        WaitCause::Canary => true,
        WaitCause::Rate { .. } | WaitCause::Gate { .. } => when.is_empty(),
        WaitCause::ScopeConcurrency { learnt, .. } => *learnt,
        _ => false,
    }
}

/// A scope's name and a colon, where there are several.
fn name(limits: &Snapshot, scope: &ScopeSnapshot) -> String {
    match limits.scopes.len() {
        0 | 1 => String::new(),
        _ => format!("{}: ", holds::name(&scope.name)),
    }
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

/// The time that is left, in whole seconds; from a minute on with its end. Nothing for less than a second.
fn countdown(wait: Duration) -> String {
    match wait.as_secs() {
        0 => String::new(),
        seconds @ 1..60 => format!(", {seconds}s"),
        seconds => {
            let wait = Duration::from_secs(seconds);
            format!(", {}, until {}", text::duration(wait), text::moment(paceline::clock::wall() + wait))
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Class, Cost, Outcome, Pacer, PacerConfig, PauseCause, Request, Timestamp};

    use super::*;
    use crate::budget::Used;
    use crate::progress::counters::Counters;

    fn wait_at(pacer: &Pacer, in_flight: u64, next_due: Option<Duration>) -> Option<Wait> {
        wait_through(false, pacer, in_flight, next_due)
    }

    fn wait_through(by_gateway: bool, pacer: &Pacer, in_flight: u64, next_due: Option<Duration>) -> Option<Wait> {
        let (now, figures, limits) = (Instant::ZERO, &Counters::default(), &pacer.snapshot(Instant::ZERO));
        let wall = Timestamp::from_millis(1_000);
        let next_due = next_due.map(|due| (wall + due, wall));
        let budget = Used::default();
        Wait::of(&View {
            now,
            figures,
            limits,
            in_flight,
            stop: None,
            next_due,
            next_scope: Some("a model"),
            next_start: None,
            budget,
            given_up: 0,
            max_wait: None,
            disk_full: None,
            waited: None,
            by_gateway,
            hosts: None,
        })
    }

    #[test]
    fn what_is_believed_is_told_where_nothing_else_holds_back() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let scope = pacer.scope("a model");
        let line = |pacer: &Pacer| wait_at(pacer, 1, None).map(|wait| wait.line());
        assert_eq!(line(&pacer), None, "before the first call nothing is believed");
        for _ in 0..2 {
            pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("small enough");
        }
        let believed = pacer.snapshot(Instant::ZERO).scopes[0].estimate.as_ref().expect("it learns").to_string();
        assert_eq!(line(&pacer).as_ref(), Some(&believed), "the second call waits for the learnt rate");
        let until = Instant::from_nanos(42_000_000_000);
        pacer.hold_for(Instant::ZERO, Some(&scope), until, PauseCause::QuotaUsedUp);
        assert_eq!(line(&pacer).as_deref(), Some("waiting for a used-up quota to refill, 42s"));
        pacer.resume(Instant::ZERO, None);
        pacer.hold_for(Instant::ZERO, None, until, PauseCause::Overloaded { asked: true });
        let asked = "waiting for the end of a pause that the overloaded server asked for, 42s";
        assert_eq!(line(&pacer).as_deref(), Some(asked));
        pacer.scope("another");
        pacer.resume(Instant::ZERO, None);
        assert_eq!(line(&pacer).as_deref(), Some(&*format!("a model: {believed}")));
        // The busiest of all makes no more calls in this run.
        while pacer.poll_event().is_some() {}
        let other = pacer.scope("another");
        for _ in 0..2 {
            pacer.enqueue(Instant::ZERO, Request::new(&other, Cost::request())).expect("small enough");
        }
        pacer.hold_for(Instant::ZERO, Some(&scope), until, PauseCause::ServerFails);
        assert_eq!(line(&pacer).as_deref(), Some(&*format!("another: {believed}")));
    }

    #[test]
    fn of_several_hosts_one_whose_items_have_ended_is_not_named() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let calls = ["at work", "the one that has ended"].map(|name| {
            let scope = pacer.scope(name);
            pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("small enough")
        });
        let whose = |pacer: &Pacer| wait_at(pacer, 1, None).expect("it learns").of;
        assert_eq!(whose(&pacer), "the one that has ended: ", "while it is at work too");
        pacer.complete(Instant::ZERO, calls[1], Outcome::new(Class::Success));
        assert_eq!(whose(&pacer), "at work: ");
    }

    #[test]
    fn items_in_the_journal_wait_for_what_their_scope_is_held_for() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let scope = pacer.scope("a model");
        let seconds = Duration::from_secs;
        let line = |pacer: &Pacer, due| wait_at(pacer, 0, Some(seconds(due))).map(|wait| wait.line());
        assert_eq!(line(&pacer, 42).as_deref(), Some("waiting for the next retry, 42s"));
        pacer.hold_for(
            Instant::ZERO,
            Some(&scope),
            Instant::ZERO + seconds(42),
            PauseCause::Overloaded { asked: true },
        );
        let asked = "waiting for the end of a pause that the overloaded server asked for, 42s";
        assert_eq!(line(&pacer, 42).as_deref(), Some(asked));
        assert_eq!(line(&pacer, 5).as_deref(), Some("waiting for the next retry, 5s"), "an item of another scope");
        let other = pacer.scope("b");
        assert_eq!(line(&pacer, 5).as_deref(), Some("a model: waiting for the next retry, 5s"), "of many, whose it is");
        pacer.hold_for(Instant::ZERO, Some(&other), Instant::ZERO + seconds(50), PauseCause::QuotaUsedUp);
        assert_eq!(line(&pacer, 42), Some(format!("2 scopes held, the first of them (a model) {asked}")));
    }

    #[test]
    fn a_pause_that_a_gateway_asked_for_is_not_called_that_of_the_server() {
        for (by_gateway, whose) in [(false, "server"), (true, "gateway")] {
            let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
            let scope = pacer.scope("a model");
            let until = Instant::from_nanos(42_000_000_000);
            pacer.hold_for(Instant::ZERO, Some(&scope), until, PauseCause::Throttled { asked: true });
            let stored = Some(Duration::from_secs(42));
            let told = format!("waiting for the end of a pause that the {whose} asked for (rate limit), 42s");
            assert_eq!(wait_through(by_gateway, &pacer, 0, stored).map(|wait| wait.line()), Some(told.clone()));
            pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("small enough");
            assert_eq!(wait_through(by_gateway, &pacer, 0, None).map(|wait| wait.line()), Some(told));
        }
    }

    #[test]
    fn until_when_is_never_cut() {
        let wait = Wait {
            of: "/v1/chat/completions a-model-with-a-long-name: ".to_owned(),
            what: "waiting for the end of a pause that the server asked for (rate limit)".to_owned(),
            when: ", 1h 59m, until 14:00:00 UTC".to_owned(),
        };
        let alone = Wait { of: String::new(), ..wait.clone() };
        for columns in 27..200 {
            for wait in [&wait, &alone] {
                let line = wait.fitting(columns);
                assert!(
                    text::width(&line) <= columns && line.ends_with("1h 59m, until 14:00:00 UTC"),
                    "{columns}: {line}"
                );
            }
        }
        assert_eq!(
            alone.fitting(80),
            "waiting for the end of a pause that the server aske…, 1h 59m, until 14:00:00 UTC"
        );
        assert_eq!(
            wait.fitting(80),
            "/v1/chat/comple… waiting for the end of a pause tha…, 1h 59m, until 14:00:00 UTC"
        );
    }
}
