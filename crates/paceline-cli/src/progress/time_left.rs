//! Estimates the time that the rest of a job takes, as far as it is known.

use std::time::Duration;

use paceline::{Instant, PauseCause, QuotaSnapshot, ScopeSnapshot, ScopeState, Snapshot};
use paceline_core::Dimension;

use crate::job::holds::SHORT;
use crate::text;

/// The rest of a job, and how fast it went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    /// Items that have not ended.
    pub(crate) items: u64,
    /// Tokens that an item took on average.
    pub(crate) tokens: f64,
    /// Items that ended in a second, while some could; 0 where that is not known.
    pub(crate) rate: f64,
    /// Calls that the budget is still good for; none without one, or where it is not known.
    pub(crate) affordable: Option<u64>,
    /// Calls wait for what others give back of the budget, so that they leave more slowly than they did.
    pub(crate) is_near_budget: bool,
    /// When the next call can start, where it is known that none can before.
    pub(crate) next_start: Option<Instant>,
    /// The longest wait of the run.
    pub(crate) max_wait: Option<Duration>,
}

/// How long the rest takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLeft {
    pub(crate) time: Duration,
    /// How fast it goes after that is not known.
    pub(crate) at_least: bool,
    /// The budget is used up before the items are.
    pub(crate) at_budget: bool,
    /// Some of it waits for longer than a run does, and so for a later one.
    pub(crate) in_later_run: bool,
    /// What is not held ends sooner, within that.
    pub(crate) sooner: Option<Duration>,
}

impl TimeLeft {
    /// When the job is done, and what of it a later run does.
    pub(crate) fn words(&self) -> String {
        let least = if self.at_least { "> " } else { "" };
        let time = format!("{least}{}", text::duration(self.time));
        let end = if self.at_budget { " to the end of the budget" } else { "" };
        match (self.sooner.map(text::duration), self.in_later_run) {
            (Some(sooner), true) => {
                format!("ETA {sooner}; what is held for {time} is left to a later run (--max-wait)")
            }
            (Some(sooner), false) => format!("ETA {sooner}, and {time} for what is held{end}"),
            (None, true) => format!("the rest ends in a later run (--max-wait), in {time}"),
            (None, false) => format!("ETA {time}{end}"),
        }
    }
}

impl Rest {
    /// As long as it takes at that rate, at least as long as the known limits let it take, those of a scope what waits there, and
    /// later by a hold of all that is left. Some of it waits for the last hold to end.
    pub(crate) fn left(&self, now: Instant, limits: &Snapshot) -> Option<TimeLeft> {
        let affordable = self.affordable.filter(|calls| *calls < self.items);
        let rest = Self { items: affordable.unwrap_or(self.items), ..*self };
        let left = rest.left_of_all(now, limits)?;
        let at_budget = affordable.is_some();
        Some(TimeLeft { at_budget, at_least: left.at_least || at_budget && self.is_near_budget, ..left })
    }

    fn left_of_all(&self, now: Instant, limits: &Snapshot) -> Option<TimeLeft> {
        if self.items == 0 {
            return None;
        }
        let at_rate = (self.rate > 0.0).then(|| whole(self.items as f64 / self.rate));
        let by_limits = known(limits).filter_map(|quota| self.under(now, quota)).max();
        let held = until_any(now, limits).max(self.next_start).map(|until| until - now);
        let last = closed(now, limits).map(|(_, until, _)| until - now).max();
        let of_scopes = limits.scopes.iter().flat_map(|scope| {
            let waiting = Self { items: scope.waiting, ..*self };
            scope.quotas.iter().filter_map(move |quota| waiting.under(now, quota))
        });
        let works = at_rate.max(by_limits).max(of_scopes.max());
        let time = (held.unwrap_or_default() + works.unwrap_or_default()).max(last.unwrap_or_default());
        // "At least half a second" tells nothing.
        let at_least = works.is_none();
        let least = if at_least { Duration::from_secs(1) } else { Duration::from_nanos(1) };
        let in_later_run = last.zip(self.max_wait).is_some_and(|(last, longest)| last > longest);
        let sooner = works.filter(|works| held.is_none() && last > Some(*works));
        (time >= least).then_some(TimeLeft { time, at_least, at_budget: false, in_later_run, sooner })
    }

    /// The least that a limit lets it take.
    fn under(&self, now: Instant, quota: &QuotaSnapshot) -> Option<Duration> {
        let needs = match quota.dimension {
            Dimension::Requests => self.items as f64,
            Dimension::Tokens => self.items as f64 * self.tokens,
            _ => return None,
        };
        let beyond = needs - quota.remaining as f64;
        if beyond <= 0.0 {
            return None;
        }
        // A server may announce a limit without its window, and yet when it opens.
        let window = quota.window.filter(|_| quota.limit > 0).unwrap_or_default();
        Some(
            whole(beyond / quota.limit.max(1) as f64 * window.as_secs_f64()).max(quota.next_free.saturating_since(now)),
        )
    }
}

/// Scopes, and the account, that let nothing leave until a known time, and why.
pub(crate) fn closed(now: Instant, limits: &Snapshot) -> impl Iterator<Item = (&ScopeSnapshot, Instant, PauseCause)> {
    let all = std::iter::once(&limits.account).chain(&limits.scopes);
    all.filter_map(move |scope| closure(now, scope).map(|(until, cause)| (scope, until, cause)))
}

/// Until when nothing leaves at all; none while a call of some scope can leave, is under way, or waits for something else.
pub(crate) fn until_any(now: Instant, limits: &Snapshot) -> Option<Instant> {
    let account = closure(now, &limits.account).map(|(until, _)| until);
    let is_at_work = |scope: &ScopeSnapshot| scope.waiting > 0 || scope.concurrency.in_flight > 0;
    let at_work = limits.scopes.iter().any(|scope| is_at_work(scope) && closure(now, scope).is_none());
    let first = closed(now, limits).map(|(_, until, _)| until).min();
    account.max(first.filter(|_| !at_work))
}

/// Whether nothing leaves in the scope for now.
pub(crate) fn is_closed(now: Instant, scope: &ScopeSnapshot) -> bool {
    matches!(scope.state, ScopeState::Stopped { .. }) || closure(now, scope).is_some()
}

fn closure(now: Instant, scope: &ScopeSnapshot) -> Option<(Instant, PauseCause)> {
    match &scope.state {
        ScopeState::Held { until, cause } => Some((*until, *cause)),
        ScopeState::Stopped { .. } => None,
        _ => scope.closed_until.zip(scope.closed_for),
    }
    .filter(|(until, _)| *until > now + SHORT)
}

/// Limits that all of the rest is under: those of the account, and of a scope that is the only one.
fn known(limits: &Snapshot) -> impl Iterator<Item = &QuotaSnapshot> {
    let only = limits.scopes.first().filter(|_| limits.scopes.len() == 1);
    let of_only = only.into_iter().flat_map(|scope| scope.quotas.iter().chain(&scope.announced));
    limits.account.quotas.iter().chain(of_only)
}

/// In whole seconds, rounded up; a time beyond the range of the clock is cut.
fn whole(seconds: f64) -> Duration {
    Duration::from_secs(seconds.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use paceline_core::{Limits, Pacer, PacerConfig, Quota, Request};

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn pacer(quotas: Vec<Quota>) -> Pacer {
        let config = PacerConfig { limits: Limits { quotas, ..Limits::default() }, ..PacerConfig::default() };
        Pacer::new(config, 1, Instant::ZERO).expect("it makes sense")
    }

    fn seconds(rest: Rest, pacer: &Pacer) -> Option<(u64, bool)> {
        let left = rest.left(Instant::ZERO, &pacer.snapshot(Instant::ZERO))?;
        Some((left.time.as_secs(), left.at_least))
    }

    #[test]
    fn a_hold_moves_the_end_by_what_remains_behind_it() {
        let mut pacer = pacer(Vec::new());
        let rest = Rest { items: 100, rate: 2.0, ..Rest::default() };
        let unknown = Rest { rate: 0.0, ..rest };
        assert_eq!(seconds(rest, &pacer), Some((50, false)));
        assert_eq!(seconds(unknown, &pacer), None);
        let (a, b) = (pacer.scope("a"), pacer.scope("b"));
        pacer.hold_for(Instant::ZERO, Some(&a), Instant::ZERO + 7_200 * S, PauseCause::QuotaUsedUp);
        pacer.hold_for(Instant::ZERO, Some(&b), Instant::ZERO + 600 * S, PauseCause::QuotaUsedUp);
        assert_eq!(seconds(rest, &pacer), Some((7_200, false)), "the first opens after 10 minutes, the last is longer");
        assert_eq!(seconds(Rest { items: 20_000, ..rest }, &pacer), Some((10_600, false)));
        assert_eq!(seconds(unknown, &pacer), Some((7_200, true)));
        let c = pacer.scope("c");
        pacer.enqueue(Instant::ZERO, Request::new(&c, paceline_core::Cost::request())).expect("small enough");
        assert_eq!(seconds(Rest { items: 20_000, ..rest }, &pacer), Some((10_000, false)), "c goes on meanwhile");
        let of_held = |items| {
            let left = Rest { items, ..rest }.left(Instant::ZERO, &pacer.snapshot(Instant::ZERO));
            left.map(|left| left.sooner.is_some())
        };
        assert_eq!((of_held(100), of_held(20_000)), (Some(true), Some(false)));
        pacer.hold_for(Instant::ZERO, None, Instant::ZERO + 1_000 * S, PauseCause::QuotaUsedUp);
        assert_eq!(seconds(Rest { items: 20_000, ..rest }, &pacer), Some((11_000, false)), "the account");
        assert_eq!(seconds(Rest::default(), &pacer), None, "nothing is left");
    }

    /// Other hosts were fast: what waits at one with a limit of its own takes as long as that says.
    #[test]
    fn what_waits_in_a_scope_takes_as_long_as_its_own_limit_lets_it() {
        let slow = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 4, S)], ..Limits::default() };
        let config = PacerConfig { tiers: vec![("slow".into(), slow)], ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("it makes sense");
        let (host, _) = (pacer.scope("slow"), pacer.scope("fast"));
        for _ in 0..60 {
            pacer.enqueue(Instant::ZERO, Request::new(&host, paceline_core::Cost::request())).expect("small enough");
        }
        let (took, at_least) = seconds(Rest { items: 60, rate: 60.0, ..Rest::default() }, &pacer).expect("it is known");
        assert!((14..=15).contains(&took) && !at_least, "{took} s");
    }

    #[test]
    fn what_a_later_run_does_is_no_time_of_this_one() {
        let left = TimeLeft { time: 7_200 * S, at_least: false, at_budget: false, in_later_run: false, sooner: None };
        let later = TimeLeft { in_later_run: true, ..left };
        let sooner = Some(6 * S);
        for (left, words) in [
            (left, "ETA 2h 00m"),
            (TimeLeft { at_least: true, at_budget: true, ..left }, "ETA > 2h 00m to the end of the budget"),
            (TimeLeft { sooner, ..left }, "ETA 6s, and 2h 00m for what is held"),
            (TimeLeft { sooner, ..later }, "ETA 6s; what is held for 2h 00m is left to a later run (--max-wait)"),
            (later, "the rest ends in a later run (--max-wait), in 2h 00m"),
        ] {
            assert_eq!(left.words(), words);
        }
    }

    #[test]
    fn a_wait_that_is_none_of_a_scope_moves_the_end_too() {
        let rest = Rest { items: 4, rate: 2.0, next_start: Some(Instant::ZERO + 300 * S), ..Rest::default() };
        assert_eq!(seconds(rest, &pacer(Vec::new())), Some((302, false)), "its last items have times of their own");
        assert_eq!(seconds(Rest { rate: 0.0, ..rest }, &pacer(Vec::new())), Some((300, true)));
    }

    #[test]
    fn what_is_held_for_longer_than_a_run_waits_is_left_to_a_later_one() {
        let mut pacer = pacer(Vec::new());
        let (a, _) = (pacer.scope("a"), pacer.scope("b"));
        pacer.hold_for(Instant::ZERO, Some(&a), Instant::ZERO + 7_200 * S, PauseCause::QuotaUsedUp);
        let left = |max_wait| {
            let rest = Rest { items: 100, rate: 2.0, max_wait, ..Rest::default() };
            rest.left(Instant::ZERO, &pacer.snapshot(Instant::ZERO))
                .map(|left| (left.time.as_secs(), left.in_later_run))
        };
        // Nothing is at work meanwhile: fifty seconds' work follow the hold.
        assert_eq!(left(Some(3_600 * S)), Some((7_250, true)));
        assert_eq!((left(Some(7_200 * S)), left(None)), (Some((7_250, false)), Some((7_250, false))));
    }

    #[test]
    fn a_run_may_end_at_its_budget() {
        let minute = pacer(vec![Quota::sliding(Dimension::Requests, 60, 60 * S)]);
        let left = |affordable| {
            let rest = Rest { items: 660, rate: 50.0, affordable, ..Rest::default() };
            rest.left(Instant::ZERO, &minute.snapshot(Instant::ZERO)).map(|left| (left.time.as_secs(), left.at_budget))
        };
        assert_eq!(left(Some(120)), Some((60, true)), "60 at once, and 60 in the minute that follows");
        assert_eq!(left(Some(660)), Some((600, false)), "enough for all");
        assert_eq!((left(None), left(Some(0))), (Some((600, false)), None));
        let near = |affordable| {
            let rest = Rest { items: 660, rate: 50.0, affordable, is_near_budget: true, ..Rest::default() };
            rest.left(Instant::ZERO, &minute.snapshot(Instant::ZERO)).map(|left| left.at_least)
        };
        assert_eq!((near(Some(10)), near(None)), (Some(true), Some(false)), "its last calls wait for each other");
    }

    #[test]
    fn known_limits_bound_how_fast_the_rest_can_go() {
        let minute = pacer(vec![Quota::sliding(Dimension::Requests, 60, 60 * S)]);
        assert_eq!(seconds(Rest { items: 660, rate: 50.0, ..Rest::default() }, &minute), Some((600, false)));
        assert_eq!(seconds(Rest { items: 660, rate: 0.5, ..Rest::default() }, &minute), Some((1_320, false)));
        assert_eq!(
            seconds(Rest { items: 30, rate: 10.0, ..Rest::default() }, &minute),
            Some((3, false)),
            "it has room"
        );
        assert_eq!(
            seconds(Rest { items: 660, ..Rest::default() }, &minute),
            Some((600, false)),
            "before the first end"
        );
        let tokens = pacer(vec![Quota::sliding(Dimension::Tokens, 1_000, 60 * S)]);
        let rest = Rest { items: 110, tokens: 100.0, rate: 50.0, ..Rest::default() };
        assert_eq!(seconds(rest, &tokens), Some((600, false)));
        let mut opens = minute.snapshot(Instant::ZERO).account.quotas[0].clone();
        (opens.limit, opens.remaining, opens.window, opens.next_free) = (30, 0, None, Instant::ZERO + 34 * S);
        let rest = Rest { items: 17, rate: 3.2, ..Rest::default() };
        assert_eq!(rest.under(Instant::ZERO, &opens), Some(34 * S), "its window is not known, but when it opens");
    }
}
