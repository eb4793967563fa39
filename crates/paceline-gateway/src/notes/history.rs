//! The last quarter of an hour of an upstream and of each of its scopes, in steps of ten seconds: what a page shows at once that
//! is opened at three in the morning.
//!
//! What limiters count is read from their snapshots at the end of each step, and costs a call nothing; how long answers took is
//! noted by the calls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::{Class, Instant, ScopeSnapshot, Snapshot};
use serde_json::{Value, json};

/// The length of a step.
pub(crate) const STEP: Duration = Duration::from_secs(10);

/// How late a sample at the end of a step may come.
const LATE: Duration = Duration::from_millis(100);

/// The steps that are kept.
const STEPS: u64 = 90;

/// Scopes with a history: clients choose the names. One that is full of steps takes 5 KB.
const MOST_SCOPES: usize = 2_000;

/// The classes that are counted together.
const GROUPS: [(&str, &[Class]); 4] = [
    ("succeeded", &[Class::Success, Class::Partial]),
    ("throttled", &[Class::Throttled, Class::QuotaExhausted]),
    ("overloaded", &[Class::Overloaded]),
    ("failed", &[Class::Transient, Class::Account, Class::Invalid, Class::Filtered]),
];

/// The histories of an upstream.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The step of the first sample; nothing is known of those before.
    began: Option<u64>,
    account: Series,
    scopes: HashMap<Arc<str>, Series>,
}

/// The history of one scope, or of the account. Steps in which nothing happened are not kept: what is learnt stays as it was.
#[derive(Debug, Default)]
struct Series {
    steps: VecDeque<Step>,
    /// What was learnt before the first of them, and at the last sample.
    learnt_before: Option<f32>,
    learnt: Option<f32>,
    /// What was counted at the last sample, and its step.
    counted: [u64; GROUPS.len()],
    sampled: u64,
    latencies: Latencies,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Steps since the clock's beginning.
    number: u64,
    counts: [u32; GROUPS.len()],
    waiting: u32,
    in_flight: u32,
    /// The learnt limit, in calls a second.
    rate: Option<f32>,
    /// The median and the 95th percentile, in milliseconds.
    latency: Option<(f32, f32)>,
}

/// The sums of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LastMinute {
    counts: [u64; GROUPS.len()],
    p95_ms: Option<f32>,
}

impl LastMinute {
    /// By the names of the groups.
    pub(crate) fn json(&self) -> Value {
        let mut json = json!({ "p95_ms": self.p95_ms });
        for ((name, _), count) in GROUPS.iter().zip(self.counts) {
            json[*name] = count.into();
        }
        json
    }

    /// What changes with it.
    pub(crate) fn print(&self) -> impl std::hash::Hash + use<> {
        (self.counts, self.p95_ms.map(f32::to_bits))
    }
}

impl History {
    /// A call of the scope got the head of an answer after so long.
    pub(crate) fn answered(&self, scope: &Arc<str>, took: Duration) {
        let kept = &mut *self.kept();
        kept.account.latencies.add(took);
        if let Some(series) = kept.scopes.get_mut(scope) {
            series.latencies.add(took);
        } else if kept.scopes.len() < MOST_SCOPES {
            kept.scopes.entry(Arc::clone(scope)).or_default().latencies.add(took);
        }
    }

    /// Takes what has happened since the last time: at the end of each step, and before the history is read.
    pub(crate) fn sample(&self, now: Instant, snapshot: &Snapshot) {
        let kept = &mut *self.kept();
        let number = step_of(now);
        kept.began.get_or_insert(number);
        kept.account.sample(number, &snapshot.account);
        for scope in &snapshot.scopes {
            if let Some(series) = kept.scopes.get_mut(&scope.name) {
                series.sample(number, scope);
            } else if kept.scopes.len() < MOST_SCOPES {
                kept.scopes.entry(Arc::clone(&scope.name)).or_default().sample(number, scope);
            }
        }
        // What the limiter still counts is known here, or all of it would be new at the next sample.
        let is_recent = |step: &Step| step.number + STEPS > number;
        kept.scopes.retain(|_, series| series.sampled == number || series.steps.back().is_some_and(is_recent));
    }

    /// The last minute of a scope; of the account where `scope` is empty.
    pub(crate) fn last_minute(&self, scope: &str, now: Instant) -> LastMinute {
        let kept = self.kept();
        kept.series(scope).map(|series| series.last_minute(step_of(now))).unwrap_or_default()
    }

    /// A column for each figure, the oldest step first, with null for what is not known; none where the scope is not known.
    pub(crate) fn columns(&self, scope: &str, now: Instant) -> Option<Value> {
        let kept = self.kept();
        let series = kept.series(scope)?;
        let last = step_of(now);
        let unknown = kept.began.map_or(STEPS, |began| (began + STEPS).saturating_sub(last + 1).min(STEPS)) as usize;
        let column = |of: &dyn Fn(&Step) -> Value, absent: Value| -> Vec<Value> {
            let mut column = vec![Value::Null; unknown];
            column.resize(STEPS as usize, absent);
            for step in series.steps.iter().filter(|step| step.number <= last && step.number + STEPS > last) {
                column[(STEPS - 1 - (last - step.number)) as usize] = of(step);
            }
            column
        };
        let mut learnt = column(&|step| json!({ "is": step.rate }), Value::Null);
        let mut last: Value = series.learnt_at((last + 1).saturating_sub(STEPS)).into();
        for rate in learnt.iter_mut().skip(unknown) {
            if let Some(rate) = rate.as_object_mut().and_then(|step| step.remove("is")) {
                last = rate;
            }
            *rate = last.clone();
        }
        let mut json = json!({
            "step_s": STEP.as_secs(),
            "waiting": column(&|step| step.waiting.into(), 0.into()),
            "in_flight": column(&|step| step.in_flight.into(), 0.into()),
            "rate": learnt,
            "p50_ms": column(&|step| step.latency.map(|(median, _)| median).into(), Value::Null),
            "p95_ms": column(&|step| step.latency.map(|(_, high)| high).into(), Value::Null),
        });
        for (group, (name, _)) in GROUPS.iter().enumerate() {
            json[*name] = column(&|step| step.counts[group].into(), 0.into()).into();
        }
        Some(json)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long until the next step begins.
pub(crate) fn until_next(now: Instant) -> Duration {
    let step = STEP.as_nanos() as u64;
    Duration::from_nanos(step - now.as_nanos() % step)
}

/// The step of a sample at that time: one that comes a little late is of the step that has just ended.
fn step_of(now: Instant) -> u64 {
    now.saturating_sub(LATE).as_nanos() / STEP.as_nanos() as u64
}

impl Kept {
    fn series(&self, scope: &str) -> Option<&Series> {
        if scope.is_empty() { Some(&self.account) } else { self.scopes.get(scope) }
    }
}

impl Series {
    fn sample(&mut self, number: u64, scope: &ScopeSnapshot) {
        let counted = GROUPS.map(|(_, classes)| classes.iter().map(|class| scope.totals.of(*class)).sum::<u64>());
        // A scope that was forgotten and came back counts from nothing.
        let is_anew = counted.iter().zip(self.counted).any(|(now, before)| *now < before);
        let before = if is_anew { Default::default() } else { self.counted };
        let is_same = std::mem::replace(&mut self.sampled, number) == number;
        self.counted = counted;
        let is_present = self.steps.back().is_some_and(|step| step.number == number);
        let mut step = Step { number, ..if is_present { self.steps[self.steps.len() - 1] } else { Step::default() } };
        for (count, (now, before)) in step.counts.iter_mut().zip(counted.iter().zip(before)) {
            *count = count.saturating_add(narrow(now - before));
        }
        step.waiting = narrow(scope.waiting);
        step.in_flight = scope.concurrency.in_flight;
        step.rate = scope.estimate.as_ref().map(|estimate| estimate.rate as f32);
        step.latency = self.latencies.of_step(is_same);
        let is_news = std::mem::replace(&mut self.learnt, step.rate) != step.rate;
        let happened =
            step.counts != [0; GROUPS.len()] || step.waiting + step.in_flight > 0 || step.latency.is_some() || is_news;
        if is_present {
            *self.steps.back_mut().expect("it is the present one") = step;
        } else if happened {
            self.steps.push_back(step);
            while let Some(first) = self.steps.pop_front_if(|first| first.number + STEPS <= number) {
                self.learnt_before = first.rate;
            }
        }
    }

    /// What was learnt before that step.
    fn learnt_at(&self, number: u64) -> Option<f32> {
        self.steps.iter().take_while(|step| step.number < number).last().map_or(self.learnt_before, |step| step.rate)
    }

    fn last_minute(&self, number: u64) -> LastMinute {
        let mut minute = LastMinute::default();
        for step in self.steps.iter().rev().take_while(|step| step.number + 6 > number) {
            minute.counts.iter_mut().zip(step.counts).for_each(|(sum, count)| *sum += u64::from(count));
            minute.p95_ms = match (minute.p95_ms, step.latency) {
                (Some(sum), Some((_, high))) => Some(sum.max(high)),
                (sum, latency) => sum.or(latency.map(|(_, high)| high)),
            };
        }
        minute
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// How long answers took: counts by powers of the square root of two, from a millisecond to an hour.
#[derive(Debug)]
struct Latencies {
    /// Since the last sample.
    fresh: [u32; Self::PLACES],
    /// Of the present step, up to then.
    present: [u32; Self::PLACES],
}

impl Default for Latencies {
    fn default() -> Self {
        Self { fresh: [0; Self::PLACES], present: [0; Self::PLACES] }
    }
}

impl Latencies {
    const PLACES: usize = 44;

    fn add(&mut self, took: Duration) {
        let place = (2.0 * (took.as_secs_f64() * 1e3).max(1.0).log2()).round() as usize;
        self.fresh[place.min(Self::PLACES - 1)] += 1;
    }

    /// The median and the 95th percentile of the present step, in milliseconds.
    fn of_step(&mut self, is_same: bool) -> Option<(f32, f32)> {
        let fresh = std::mem::replace(&mut self.fresh, [0; Self::PLACES]);
        if is_same {
            self.present.iter_mut().zip(fresh).for_each(|(sum, count)| *sum += count);
        } else {
            self.present = fresh;
        }
        let all: u32 = self.present.iter().sum();
        let percentile = |share: f32| {
            let (mut sum, wanted) = (0, (all as f32 * share).ceil() as u32);
            let place = self.present.iter().position(|count| {
                sum += count;
                sum >= wanted
            });
            2_f32.powf(place.unwrap_or_default() as f32 / 2.0)
        };
        (all > 0).then(|| (percentile(0.5), percentile(0.95)))
    }
}

#[cfg(test)]
mod tests {
    use paceline::{Cost, Outcome, PacerConfig, Request};
    use paceline_core::{Event, Pacer};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// As a timer comes.
    fn late(seconds: u64) -> Instant {
        at(seconds) + 5 * MS
    }

    /// A call of the scope that ends so.
    fn call(pacer: &mut Pacer, now: Instant, scope: &str, class: Class) {
        let scope = pacer.scope(scope);
        pacer.enqueue(now, Request::new(scope, Cost::request())).expect("small enough");
        let mut ticket = None;
        while let Some(event) = pacer.poll_event() {
            if let Event::Granted { ticket: granted, .. } = event {
                ticket = Some(granted);
            }
        }
        pacer.complete(now, ticket.expect("it leaves at once"), Outcome::new(class));
    }

    fn column(history: &History, scope: &str, now: Instant, name: &str) -> Vec<u64> {
        let json = history.columns(scope, now).expect("it is known");
        json[name].as_array().expect("a column").iter().map(|value| value.as_u64().unwrap_or_default()).collect()
    }

    #[test]
    fn a_step_holds_what_was_counted_in_it_and_goes_after_a_quarter_of_an_hour() {
        let (mut pacer, history) =
            (Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("right"), History::default());
        call(&mut pacer, at(1), "a", Class::Success);
        history.answered(&"a".into(), 100 * MS);
        history.sample(late(10), &pacer.snapshot(late(10)));
        call(&mut pacer, at(12), "a", Class::Success);
        call(&mut pacer, at(13), "b", Class::Invalid);
        // A look in the middle of a step and one at its end count each call once.
        history.sample(at(15), &pacer.snapshot(at(15)));
        history.sample(late(20), &pacer.snapshot(late(20)));
        for (scope, name, expected) in
            [("a", "succeeded", [1, 1]), ("b", "failed", [0, 1]), ("", "succeeded", [1, 1]), ("", "failed", [0, 1])]
        {
            let column = column(&history, scope, at(20), name);
            assert_eq!((column.len(), &column[88..]), (90, &expected[..]), "{scope} {name}");
        }
        let minute = history.last_minute("a", at(20)).json();
        assert_eq!((&minute["succeeded"], &minute["failed"]), (&2.into(), &0.into()));
        assert!((90.0..115.0).contains(&minute["p95_ms"].as_f64().expect("a time")), "{minute}");
        // It sleeps, and is still counted from where it was.
        history.sample(late(910), &pacer.snapshot(late(910)));
        call(&mut pacer, at(911), "a", Class::Success);
        history.sample(late(920), &pacer.snapshot(late(920)));
        let column = column(&history, "a", at(920), "succeeded");
        assert_eq!((column.iter().sum::<u64>(), column[89]), (1, 1), "{column:?}");
    }

    /// Also what an earlier gateway learnt: it is known before the first call.
    #[test]
    fn what_was_learnt_stays_in_steps_without_a_call() {
        let (mut pacer, history) =
            (Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("right"), History::default());
        call(&mut pacer, at(1), "a", Class::Throttled);
        let with = |now: Instant, rate: f64| {
            let mut snapshot = pacer.snapshot(now);
            snapshot.scopes[0].estimate.as_mut().expect("a refusal teaches").rate = rate;
            history.sample(now, &snapshot);
        };
        let rates = |now: Instant| {
            let json = history.columns("a", now).expect("it is known");
            json["rate"].as_array().expect("a column").iter().map(Value::as_f64).collect::<Vec<_>>()
        };
        with(late(10), 2.0);
        with(late(20), 2.0);
        with(late(30), 2.0);
        with(late(40), 3.0);
        with(late(50), 3.0);
        assert_eq!(rates(at(50))[85..], [Some(2.0), Some(2.0), Some(2.0), Some(3.0), Some(3.0)]);
        assert_eq!(rates(at(50))[..85], [None; 85], "nothing is known of the time before");
        with(late(1_900), 3.0);
        assert_eq!(rates(at(1_900)), [Some(3.0); 90]);
        with(late(1_910), 4.0);
        assert_eq!(rates(at(1_910))[88..], [Some(3.0), Some(4.0)]);
        assert_eq!(column(&history, "a", at(1_910), "throttled"), [0; 90]);
    }

    #[test]
    fn the_latency_of_a_step_is_that_of_its_own_answers() {
        let mut latencies = Latencies::default();
        (0..90).for_each(|_| latencies.add(10 * MS));
        (0..10).for_each(|_| latencies.add(1_000 * MS));
        let (median, high) = latencies.of_step(false).expect("there are answers");
        assert!((8.0..13.0).contains(&median) && (900.0..1_100.0).contains(&high), "{median} {high}");
        latencies.add(1_000 * MS);
        assert_eq!(latencies.of_step(true).expect("the same step").0, median);
        latencies.add(1_000 * MS);
        assert!(latencies.of_step(false).expect("the next").0 > 900.0);
        assert_eq!(latencies.of_step(false), None);
        latencies.add(Duration::from_secs(100_000));
        latencies.add(Duration::ZERO);
        assert!(latencies.of_step(false).is_some(), "whatever they took");
    }

    #[test]
    fn scopes_are_bounded() {
        let history = History::default();
        (0..2 * MOST_SCOPES).for_each(|n| history.answered(&n.to_string().into(), MS));
        assert_eq!(history.kept().scopes.len(), MOST_SCOPES);
    }
}
