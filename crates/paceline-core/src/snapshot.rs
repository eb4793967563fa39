//! The types of a snapshot: numbers for people and dashboards.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;
use core::time::Duration;

use crate::adaptive::RateEstimate;
use crate::admit::{PauseCause, WaitCause};
use crate::concurrency::ConcurrencySnapshot;
use crate::condition::Trouble;
use crate::cost::Dimension;
use crate::fleet::FleetSnapshot;
use crate::outcome::Class;
use crate::responsive::ResponsiveCounters;
use crate::silence::Silent;
use crate::state::TakenState;
use crate::time::Instant;
use crate::units::format_duration;

/// A pacer at one instant: the account and its scopes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The ceiling over everything, with the sums of all scopes.
    pub account: ScopeSnapshot,
    /// Each scope, in the order in which they appeared, except that a new one takes the place of an evicted one.
    pub scopes: Vec<ScopeSnapshot>,
}

impl Snapshot {
    /// The scope that a person wants to know of first: one that needs a person, else one that is closed, else the one in which
    /// most wait; the account where nothing waits.
    pub fn subject(&self, now: Instant) -> &ScopeSnapshot {
        // The account first among equals: what holds it holds all.
        let scopes = self.scopes.iter().rev().chain([&self.account]);
        let subject = scopes.max_by_key(|scope| (scope.trouble(now), scope.waiting)).unwrap_or(&self.account);
        if subject.trouble(now) == Trouble::None { &self.account } else { subject }
    }

    /// One line for people: how many calls are in flight and wait, what the next one of its [`subject`](Self::subject) waits for,
    /// and what is known of the limit. `now`: the time of the snapshot.
    pub fn explain(&self, now: Instant) -> String {
        let subject = self.subject(now);
        let shown = match &*self.scopes {
            [only] => only,
            _ => subject,
        };
        let estimate = shown.estimate.as_ref();
        let ConcurrencySnapshot { in_flight, current_limit, .. } = self.account.concurrency;
        let mut text = format!("{in_flight} of {current_limit} calls in flight, {} waiting", self.account.waiting);
        let place = match &*subject.name {
            name if self.scopes.len() > 1 && !name.is_empty() => format!("in {name} "),
            _ => String::new(),
        };
        let reason = subject.explain(now);
        if !reason.is_empty() {
            text += &format!("; {place}{reason}");
        }
        let of_account = Some(&self.account).filter(|account| !ptr::eq(*account, shown));
        let named = subject.waits_for.as_ref().and_then(|(cause, _)| cause.dimension());
        for quota in [shown].into_iter().chain(of_account).flat_map(|scope| scope.used_up(now)) {
            if named != Some(&quota.dimension) {
                text += &format!("; {} is used up for {}", quota.name(), format_duration(quota.next_free - now));
            }
        }
        let tightest = subject.tightest().into_iter().chain(self.account.tightest()).min_by(|a, b| a.0.total_cmp(&b.0));
        match (estimate, tightest) {
            // What is known bounds what is learnt.
            (Some(estimate), Some((rate, quota))) if estimate.rate >= rate => {
                let window = quota.window.unwrap_or_default();
                text += &format!("; the limit is {}", quota.dimension.per(quota.limit, window));
            }
            // The reason tells how long nothing leaves.
            (Some(estimate), _) if !reason.is_empty() => text += &format!("; {}", estimate.without_pause()),
            (Some(estimate), _) => text += &format!("; {estimate}"),
            (None, _) => {}
        }
        text
    }
}

impl ScopeSnapshot {
    /// The limits of which nothing is left, other than those on calls: where one of these is used up, the next call waits for it.
    fn used_up(&self, now: Instant) -> impl Iterator<Item = &QuotaSnapshot> {
        let all = self.quotas.iter().chain(&self.announced);
        all.filter(move |quota| quota.dimension != Dimension::Requests && quota.remaining == 0 && quota.next_free > now)
    }

    /// The limit on calls with the lowest rate, configured or announced, and that rate in calls a second.
    fn tightest(&self) -> Option<(f64, &QuotaSnapshot)> {
        let of_calls = self.quotas.iter().chain(&self.announced).filter(|quota| quota.dimension == Dimension::Requests);
        let rates = of_calls.filter_map(|quota| Some((quota.limit as f64 / quota.window?.as_secs_f64(), quota)));
        rates.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The one sentence for people why its next call does not leave at once, and for how long; empty where it does. `now`: the
    /// time of the snapshot.
    pub fn explain(&self, now: Instant) -> String {
        self.explanation().map(|parts| parts.sentence(now)).unwrap_or_default()
    }

    /// The same in parts, for a screen that counts the time down; none where the next call leaves at once and calls are answered.
    pub fn explanation(&self) -> Option<Explanation> {
        if let ScopeState::Stopped { reason } = &self.state {
            let before = format!("nothing leaves until a person acts: {reason}");
            return Some(Explanation { before, until: None, after: String::new() });
        }
        if let Some(why) = self.without_share() {
            return Some(why);
        }
        let closed = match self.state {
            ScopeState::Held { until, cause } => Some((until, cause)),
            _ => self.closed_until.zip(self.closed_for),
        };
        let whole = |before: String| Some(Explanation { before, until: None, after: String::new() });
        if let (None, Some(silent)) = (closed, self.silent) {
            return whole(silent.to_string());
        }
        let fault = self.fault.as_ref().map(|fault| &*fault.words);
        let beside = fault.or_else(|| self.fleet.as_deref()?.goes_on_alone());
        let also = beside.map(|words| format!("; {words}")).unwrap_or_default();
        match (closed, &self.waits_for) {
            (Some((until, cause)), _) => Some(Explanation {
                before: "nothing leaves for ".into(),
                until: Some(until),
                after: format!(": {}", fault.unwrap_or(cause.explanation())),
            }),
            (None, Some((cause, Some(until)))) => Some(Explanation {
                before: "the next call waits ".into(),
                until: Some(*until),
                after: format!(" for {cause}{also}"),
            }),
            (None, Some((cause, None))) => whole(format!("the next call waits for {cause}{also}")),
            (None, None) => beside.and_then(|words| whole(words.into())),
        }
    }

    /// Whether nothing leaves for want of a [share](FleetSnapshot::without_share).
    pub fn lacks_its_share(&self) -> bool {
        self.without_share().is_some()
    }

    fn without_share(&self) -> Option<Explanation> {
        self.fleet.as_deref().and_then(FleetSnapshot::without_share)
    }
}

/// Why the next call of a scope does not leave at once: a sentence with a time in it that gets shorter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Explanation {
    /// What stands before the time, or the whole where it is not known.
    pub before: String,
    /// When the wait is over, where that is known.
    pub until: Option<Instant>,
    /// What stands behind the time.
    pub after: String,
}

impl Explanation {
    /// The sentence at that time.
    pub fn sentence(&self, now: Instant) -> String {
        let wait = self.until.map(|until| format_duration(until.saturating_since(now))).unwrap_or_default();
        format!("{}{wait}{}", self.before, self.after)
    }
}

/// One scope at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScopeSnapshot {
    /// Its name; empty for the account.
    pub name: Arc<str>,
    /// Its state.
    pub state: ScopeState,
    /// Configured limits.
    pub quotas: Vec<QuotaSnapshot>,
    /// Limits that the server's headers announced.
    pub announced: Vec<QuotaSnapshot>,
    /// The fleet that the limits of all scopes are divided by. None for a scope.
    pub fleet: Option<Box<FleetSnapshot>>,
    /// Requests that may leave at once, and the most that can be, where requests are spaced.
    pub burst: Option<(u64, u64)>,
    /// Calls in flight.
    pub concurrency: ConcurrencySnapshot,
    /// What it has learnt about its limit, under [`Pace::Auto`](crate::Pace::Auto). None for the account.
    pub estimate: Option<RateEstimate>,
    /// The delay between calls, under the paces that have one; else zero.
    pub delay: Duration,
    /// The counters of that delay, under the pace `responsive`.
    pub responsive: Option<ResponsiveCounters>,
    /// Sums since the beginning.
    pub totals: Totals,
    /// Requests that wait.
    pub waiting: u64,
    /// The same by priority, the most urgent first: those priorities alone of which some wait.
    pub waiting_by_priority: Vec<(i32, u64)>,
    /// The rule that the next waiter waits for, and until when, where that is known.
    pub waits_for: Option<(WaitCause, Option<Instant>)>,
    /// When the next waiter becomes due or may leave.
    pub next_due: Option<Instant>,
    /// Until when it is closed because the server asked for a pause or refused everything.
    pub closed_until: Option<Instant>,
    /// Why it is closed until then.
    pub closed_for: Option<PauseCause>,
    /// Since when nothing has succeeded, if the breaker opened.
    pub failing_since: Option<Instant>,
    /// Since when calls fail and nothing has succeeded, if they are of several items
    /// ([`BreakerConfig::min_distinct_items`](crate::BreakerConfig::min_distinct_items)). Slow calls may be too few for the
    /// breaker to open. None for the account.
    pub no_success_since: Option<Instant>,
    /// Since when all calls are refused, if these are as many calls and the server does not say when it takes them. None for the
    /// account.
    pub refused_since: Option<Instant>,
    /// Since when every call was refused, where that lasts for longer than a limit would: for two minutes, and for twice as long
    /// as the server has told a call to wait. None for the account.
    pub refuses_all_since: Option<Instant>,
    /// The callers ([`Request::caller`](crate::Request::caller)) whose calls alone fail, as far as is known.
    pub fails_for: Vec<u64>,
    /// Whether its calls are answered. Unknown for the account.
    pub answers: ScopeAnswers,
    /// A silence that the program has noticed which sends the calls: a pacer knows of no call whether its answer has begun.
    pub silent: Option<Silent>,
    /// What that program knows of why calls fail: a pacer has no words for it.
    pub fault: Option<Fault>,
}

/// What a program knows of why the calls of a scope fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Since when they do.
    pub since: Instant,
    /// Why, as a clause: `the upstream has answered no call for 2m: no connection`.
    pub words: Arc<str>,
}

/// Whether the calls of a scope are answered, as far as is known: see
/// [`Pacer::recall_answers`](crate::Pacer::recall_answers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScopeAnswers {
    /// No call has ended that shows it.
    #[default]
    Unknown,
    /// The last one was answered.
    Came {
        /// The slowest answer of late.
        slowest: Duration,
    },
    /// The last call waited for its answer in vain, and none has been answered since.
    Missing,
}

/// The state of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScopeState {
    /// The next request may leave at once.
    Open,
    /// The next request waits for a limit.
    Paced,
    /// Nothing leaves until a known time: mostly a long window is used up.
    Held {
        /// When it reopens.
        until: Instant,
        /// What for.
        cause: PauseCause,
    },
    /// A person must act.
    Stopped {
        /// Why.
        reason: Arc<str>,
    },
}

impl ScopeState {
    /// The name used in JSON.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paced => "paced",
            Self::Held { .. } => "held",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// One limit at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuotaSnapshot {
    /// What is counted.
    pub dimension: Dimension,
    /// Units per window.
    pub limit: u64,
    /// Units counted now.
    pub used: u64,
    /// Units left; 0 in debt.
    pub remaining: u64,
    /// The period, where it is known.
    pub window: Option<Duration>,
    /// When one more unit fits.
    pub next_free: Instant,
    /// The units that a configured window still counts, oldest first, as in [`WindowState::taken`](crate::WindowState::taken);
    /// empty for a limit that was announced.
    pub taken: Vec<TakenState>,
}

impl QuotaSnapshot {
    fn name(&self) -> String {
        match self.window {
            Some(window) => format!("the limit of {}", self.dimension.per(self.limit, window)),
            None => format!("the server's limit of {} {}", self.dimension.amount(self.limit), self.dimension),
        }
    }
}

/// Sums since the beginning. Where no connection failed they agree with what the server counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Every call that left.
    pub sends: u64,
    /// Calls after an item's first.
    pub resends: u64,
    /// Re-sends decided after transient and overloaded answers.
    pub retries: u64,
    /// Deferrals decided after throttled answers and used-up quotas.
    pub deferrals: u64,
    /// Calls that only tested a failing server.
    pub probes: u64,
    /// Answers by class, in the order of [`Class::ALL`].
    pub by_class: [u64; Class::ALL.len()],
    /// Time that granted requests had waited, all together.
    pub waited: Duration,
}

impl Totals {
    /// Answers of one class.
    pub const fn of(&self, class: Class) -> u64 {
        self.by_class[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::admit::Admit;
    use crate::config::{Limits, PacerConfig, Quota};
    use crate::outcome::Outcome;
    use crate::pacer::Pacer;
    use crate::request::Request;
    use crate::{Cost, PauseCause};

    #[test]
    fn an_explanation_in_parts_is_the_sentence_with_a_time_that_gets_shorter() {
        let second = Duration::from_secs(1);
        let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 1, 60 * second)], ..Limits::default() };
        let mut pacer = Pacer::new(PacerConfig { limits, ..PacerConfig::default() }, 1, Instant::ZERO).expect("right");
        let (a, b) = (pacer.scope("a"), pacer.scope("b"));
        assert_eq!(pacer.snapshot(Instant::ZERO).scopes[0].explanation(), None);
        for scope in [&a, &a] {
            pacer.enqueue(Instant::ZERO, Request::new(scope, Cost::request())).expect("small enough");
        }
        while pacer.poll_event().is_some() {}
        let view = pacer.snapshot(Instant::ZERO);
        let parts = view.scopes[0].explanation().expect("it waits");
        for (now, left) in [(0, "1m 00s"), (50, "10s"), (61, "0ms")] {
            let now = Instant::ZERO + now * second;
            let sentence = format!("the next call waits {left} for the limit of 1 request per 60s");
            assert_eq!((&parts.sentence(now), view.scopes[0].explain(now)), (&sentence, sentence.clone()));
        }
        let trouble = |view: &Snapshot| [0, 1].map(|scope| view.scopes[scope].trouble(Instant::ZERO));
        let subject = |view: &Snapshot| view.subject(Instant::ZERO).name.clone();
        assert_eq!(trouble(&view), [Trouble::Waits, Trouble::None]);
        assert_eq!(&*subject(&view), "", "the account holds it");
        pacer.hold_for(Instant::ZERO, Some(&b), Instant::ZERO + 5 * second, PauseCause::QuotaUsedUp);
        let view = pacer.snapshot(Instant::ZERO);
        assert_eq!((trouble(&view), &*subject(&view)), ([Trouble::Waits, Trouble::Closed], "b"));
        pacer.stop(Instant::ZERO, Some(&a), "a bad key".into());
        let view = pacer.snapshot(Instant::ZERO);
        assert_eq!((trouble(&view), &*subject(&view)), ([Trouble::Stopped, Trouble::Closed], "a"));
        assert_eq!(&*view.holder(&view.scopes[1], Instant::ZERO).name, "b");
        let parts = view.scopes[0].explanation().expect("it is stopped");
        assert_eq!((parts.until, parts.sentence(Instant::ZERO)), (None, view.scopes[0].explain(Instant::ZERO)));
        pacer.resume(Instant::ZERO, None);
        pacer.hold(Instant::ZERO, None, Instant::ZERO + 90 * second);
        let view = pacer.snapshot(Instant::ZERO);
        let held = "nothing leaves for 1m 30s: this program set the pause";
        assert_eq!((&*subject(&view), view.account.explain(Instant::ZERO).as_str()), ("", held));
        pacer.stop(Instant::ZERO, None, "no credit".into());
        let view = pacer.snapshot(Instant::ZERO);
        assert_eq!(&*view.holder(&view.scopes[1], Instant::ZERO).name, "", "the account keeps it back");
    }

    #[test]
    fn a_limit_that_is_used_up_is_named_also_where_the_next_call_costs_none_of_it() {
        let limits = Limits::from([Quota::per_minute(60), Quota::per_minute(1_000).of(Dimension::Tokens)]);
        let config = PacerConfig { limits, pace: crate::Pace::Fixed, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("right");
        let scope = pacer.scope("a");
        let cost = Cost::request().with(Dimension::Tokens, 1_000);
        pacer.enqueue(Instant::ZERO, Request::new(&scope, cost.clone())).expect("small enough");
        while pacer.poll_event().is_some() {}
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let said = |pacer: &Pacer, seconds| pacer.snapshot(at(seconds)).explain(at(seconds));
        let used_up = "; the limit of 1000 tokens per 60s is used up for ";
        assert!(said(&pacer, 20).ends_with(&format!("{used_up}40s")), "{}", said(&pacer, 20));
        assert!(!said(&pacer, 61).contains("used up"), "{}", said(&pacer, 61));
        pacer.enqueue(at(20), Request::new(&scope, cost)).expect("small enough");
        assert!(said(&pacer, 20).ends_with("waits 40s for the limit of 1000 tokens per 60s"), "{}", said(&pacer, 20));
    }

    #[test]
    fn the_estimate_is_the_rate_that_a_caller_is_told() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("right");
        let request = Request::new(pacer.scope("a"), Cost::request());
        for (sent, rate) in [(0, "2.00/s"), (1_000, "50.0/s")] {
            let [sent, now] = [sent, sent + 1].map(|millis| Instant::ZERO + Duration::from_millis(millis));
            let ticket = pacer.enqueue(sent, request.clone()).expect("small enough");
            while pacer.poll_event().is_some() {}
            let Admit::At { cause, .. } = pacer.admit(sent, &request) else { panic!("it leaves at once") };
            assert_eq!(cause.to_string(), format!("the learnt rate of {rate}"));
            let text = pacer.snapshot(sent).explain(sent);
            assert!(text.ends_with(&format!("estimated limit about {rate} or more")), "{text}");
            pacer.complete(now, ticket, Outcome::new(Class::Success));
        }
    }

    #[test]
    fn what_is_known_of_the_limit_is_the_tighter_of_the_configured_and_the_learnt_one() {
        let said = |start| {
            let limits = Limits { quotas: vec![Quota::per_minute(90), Quota::per_minute(120)], ..Limits::default() };
            let config = PacerConfig { limits, start: Some(start), ..PacerConfig::default() };
            let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("right");
            pacer.scope("a");
            pacer.snapshot(Instant::ZERO).explain(Instant::ZERO)
        };
        let limit = "0 of 512 calls in flight, 0 waiting; the limit is 90 requests per 60s";
        assert_eq!([said(2.0), said(1.5)], [limit, limit]);
        assert_eq!(
            said(0.5),
            "0 of 512 calls in flight, 0 waiting; estimated limit about 1.43/s or more",
            "one call in 0.7 s"
        );
    }
}
