//! The rules of docs/learning.md: what refusals and their absence do to a learnt pace.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, GateState, Instant, LimitReport, Outcome, Pacer, PacerConfig, RateEstimate,
    RefillMode, Request, ScopeId, Ticket, Trend,
};

use crate::job::at;
use crate::restored::{learnt, restore};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// One scope under the pace `auto`, and calls that end when their server says.
pub(crate) struct Client {
    pub(crate) pacer: Pacer,
    pub(crate) scope: ScopeId,
    pub(crate) now: Instant,
    answers: BTreeMap<(Instant, Ticket), Outcome>,
    sent: usize,
}

impl Client {
    /// Nothing is known.
    pub(crate) fn new() -> Self {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        Self { pacer, scope, now: Instant::ZERO, answers: BTreeMap::new(), sent: 0 }
    }

    /// The rate is known, and calls at it have passed since it was.
    pub(crate) fn at_rate(rate: f64) -> Self {
        let mut client = Self::new();
        restore(&mut client.pacer, at(0.0), learnt("a", rate));
        while client.estimate().trend == Trend::Returning {
            client.calls(1, passes);
        }
        client
    }

    pub(crate) fn estimate(&self) -> RateEstimate {
        self.pacer.snapshot(self.now).scopes[0].estimate.clone().expect("the pace auto")
    }

    pub(crate) fn rate(&self) -> f64 {
        self.estimate().rate
    }

    /// So many calls leave as soon as they may, and the server says of each how long it takes and how it ends. Gives when they
    /// left. Those that are still under way then end later.
    pub(crate) fn calls(
        &mut self,
        calls: usize,
        server: impl FnMut(Instant, usize) -> (Duration, Outcome),
    ) -> Vec<Instant> {
        self.calls_of(&vec![Cost::request(); calls], server)
    }

    pub(crate) fn calls_of(
        &mut self,
        costs: &[Cost],
        mut server: impl FnMut(Instant, usize) -> (Duration, Outcome),
    ) -> Vec<Instant> {
        for cost in costs {
            self.pacer.enqueue(self.now, Request::new(&self.scope, cost.clone())).expect("no limit is configured");
        }
        let mut left = Vec::new();
        loop {
            while let Some(event) = self.pacer.poll_event() {
                let Event::Granted { ticket, .. } = event else { continue };
                left.push(self.now);
                let (takes, outcome) = server(self.now, self.sent);
                self.sent += 1;
                self.answers.insert((self.now + takes, ticket), outcome);
            }
            if left.len() == costs.len() {
                return left;
            }
            self.step();
        }
    }

    /// All that is under way ends.
    pub(crate) fn end(&mut self) {
        while !self.answers.is_empty() {
            self.step();
        }
    }

    /// Time passes, in which no call wants to leave.
    pub(crate) fn idle(&mut self, time: Duration) {
        self.end();
        self.now += time;
        self.pacer.handle_timeout(self.now);
    }

    fn step(&mut self) {
        let answered = self.answers.first_key_value().map(|((at, _), _)| *at);
        let next = [answered, self.pacer.poll_timeout()].into_iter().flatten().min();
        self.now = self.now.max(next.expect("something happens"));
        if answered.is_some_and(|at| at <= self.now) {
            let ((_, ticket), outcome) = self.answers.pop_first().expect("it was there");
            self.pacer.complete(self.now, ticket, outcome);
        } else {
            self.pacer.handle_timeout(self.now);
        }
    }
}

/// A server that lets all pass, in a tenth of a second.
pub(crate) fn passes(_: Instant, _: usize) -> (Duration, Outcome) {
    (100 * MS, Outcome::new(Class::Success))
}

fn throttled(_: Instant, _: usize) -> (Duration, Outcome) {
    (20 * MS, Outcome::new(Class::Throttled))
}

/// The next call is refused, and no other.
fn refuse_one(client: &mut Client) {
    client.calls(1, throttled);
    client.end();
}

fn near(is: f64, expected: f64) -> bool {
    (is - expected).abs() <= 0.02 * expected
}

#[test]
fn the_start_is_two_calls_a_second_and_doubles_in_seven_tenths_of_a_second() {
    let mut client = Client::new();
    assert_eq!(client.estimate().trend, Trend::Starting);
    assert!(near(client.rate(), 2.0));
    // Nothing is answered, so nothing says how fast a refusal would be.
    let left = client.calls(2_000, |_, _| (60 * S, Outcome::new(Class::Success)));
    let by = |time: f64| left.iter().filter(|left| **left <= at(time)).count();
    for time in [2.8, 3.5, 4.2] {
        let doubled = by(time + 0.7) as f64 / by(time) as f64;
        assert!((1.85..2.2).contains(&doubled), "{doubled} after {time} s");
    }
}

#[test]
fn the_start_doubles_in_eight_times_the_fastest_answer_but_in_no_less_than_a_fiftieth_of_a_second() {
    for (answer, doubling) in [(10 * MS, 0.08), (50 * MS, 0.4), (200 * MS, 0.7), (MS / 10, 0.02)] {
        let mut client = Client::new();
        client.calls(5, |_, _| (answer, Outcome::new(Class::Success)));
        let left = client.calls(1_000, |_, _| (answer, Outcome::new(Class::Success)));
        let (half, all) = (left[499], left[999]);
        let took = (all - half).as_secs_f64();
        assert!((0.8 * doubling..1.25 * doubling).contains(&took), "{took} s, and a call takes {answer:?}");
    }
}

#[test]
fn the_first_refusal_takes_three_fifths_and_the_rate_comes_back_to_nine_tenths_in_a_rush() {
    let mut client = Client::new();
    client.calls(40, passes);
    client.end();
    let before = client.rate();
    refuse_one(&mut client);
    // The call that was refused was a step of the start itself.
    let cut = client.rate();
    assert!((0.38..0.5).contains(&(cut / before)), "{before} and {cut}");
    let estimate = client.estimate();
    let (_, hit) = estimate.refused.expect("it was refused");
    assert!(near(cut, 0.4 * hit) && estimate.trend == Trend::Returning, "{estimate:?}");
    let mut calls = 0;
    while client.estimate().trend == Trend::Returning {
        client.calls(1, passes);
        calls += 1;
    }
    assert!(near(client.rate(), 0.9 * hit), "{} of {hit}", client.rate());
    let slow = client.rate();
    client.calls(calls, passes);
    assert!(client.rate() < 1.2 * slow, "from there on growth is paid for");
}

#[test]
fn a_later_refusal_takes_eighteen_in_a_hundred_and_170_calls_earn_them_again() {
    let mut client = Client::at_rate(50.0);
    client.calls(300, passes);
    client.end();
    refuse_one(&mut client);
    let (_, hit) = client.estimate().refused.expect("it was refused");
    assert!(near(client.rate(), 0.82 * hit), "{} of {hit}", client.rate());
    assert_eq!(client.estimate().trend, Trend::Growing);
    client.calls(170, passes);
    let earned = client.rate() / hit;
    assert!((0.96..1.0).contains(&earned), "{earned} of the rate that was refused");
}

#[test]
fn a_refusal_soon_after_the_last_takes_a_fifth() {
    let mut client = Client::at_rate(50.0);
    client.calls(300, passes);
    client.end();
    refuse_one(&mut client);
    client.calls(40, passes);
    client.end();
    refuse_one(&mut client);
    let (_, hit) = client.estimate().refused.expect("it was refused");
    assert!(near(client.rate(), 0.8 * hit), "{} of {hit}", client.rate());
}

#[test]
fn fifty_refusals_at_once_slow_down_once() {
    let mut client = Client::at_rate(500.0);
    client.calls(600, passes);
    client.end();
    // One of fifty passes, so that it was too fast and not shut.
    let all_end = client.now + 150 * MS;
    let first = client.sent;
    client.calls(50, |now, sent| {
        let class = if sent == first + 25 { Class::Success } else { Class::Throttled };
        (all_end - now, Outcome::new(class))
    });
    client.end();
    let (_, hit) = client.estimate().refused.expect("it was refused");
    assert!(near(client.rate(), 0.82 * hit), "{} of {hit}", client.rate());
}

#[test]
fn after_a_long_quiet_growth_gets_up_to_three_times_as_fast() {
    let mut client = Client::at_rate(50.0);
    client.calls(300, passes);
    client.end();
    refuse_one(&mut client);
    let mut growth = |calls| {
        let before = client.rate();
        client.calls(calls, passes);
        client.rate() / before - 1.0
    };
    let first = growth(100);
    growth(600);
    let quiet = growth(100);
    assert!((2.6..3.4).contains(&(quiet / first)), "{first}, then {quiet}");
}

#[test]
fn time_in_which_no_call_wants_to_leave_raises_nothing() {
    let mut client = Client::at_rate(50.0);
    client.calls(100, passes);
    client.end();
    let before = client.rate();
    client.idle(1_800 * S);
    assert_eq!(client.rate(), before);
    for _ in 0..100 {
        client.calls(1, passes);
        client.idle(S);
    }
    assert!(client.rate() <= 1.01 * before, "a call a second is no use of {before}: {}", client.rate());
}

#[test]
fn a_refusal_leaves_the_rate_at_four_times_what_was_really_admitted_and_idle_time_does_not_count() {
    let refused = |pause: Duration, in_flight: Duration| {
        let mut client = Client::at_rate(400.0);
        client.calls(60, passes);
        client.end();
        refuse_one(&mut client);
        // Another sixty pass.
        for _ in 0..6 {
            client.calls(10, |_, _| (in_flight, Outcome::new(Class::Success)));
            client.idle(pause);
        }
        refuse_one(&mut client);
        client.rate()
    };
    let idle = refused(60 * S, 100 * MS);
    assert!(idle > 200.0, "sixty calls in six minutes, of which nothing wanted to leave in most: {idle}");
    // A gate of the program holds them up: they want to leave, and do not.
    let held = {
        let mut client = Client::at_rate(400.0);
        client.calls(60, passes);
        client.end();
        refuse_one(&mut client);
        for _ in 0..6 {
            let until = client.now + 5 * S;
            let scope = client.scope.clone();
            client.pacer.hold(client.now, Some(&scope), until);
            client.calls(10, passes);
        }
        client.end();
        refuse_one(&mut client);
        client.rate()
    };
    assert!((4.0..12.0).contains(&held), "sixty calls in thirty seconds are two a second: {held}");
}

#[test]
fn what_is_refused_again_and_again_while_others_pass_says_nothing_about_them() {
    let mut client = Client::at_rate(50.0);
    client.calls(300, passes);
    client.end();
    let before = client.rate();
    let stuck = Request { deferrals: 2, ..Request::new(&client.scope, Cost::request()) };
    for _ in 0..3 {
        let ticket = client.pacer.enqueue(client.now, stuck.clone()).expect("fits");
        while client.pacer.poll_event() != Some(Event::Granted { ticket, probe: false }) {
            let due = client.pacer.poll_timeout().expect("it may leave soon");
            client.now = client.now.max(due);
            client.pacer.handle_timeout(client.now);
        }
        client.now += 20 * MS;
        client.pacer.complete(client.now, ticket, Outcome::new(Class::Throttled));
        client.calls(100, passes);
        client.end();
    }
    assert!(client.rate() > before, "{} after {before}", client.rate());
}

#[test]
fn where_everything_is_refused_the_gate_closes_and_one_canary_opens_it() {
    let mut client = Client::at_rate(50.0);
    client.calls(100, passes);
    client.end();
    assert_eq!(client.estimate().gate, GateState::Open);
    client.calls(20, |_, _| (500 * MS, Outcome::new(Class::Throttled)));
    client.end();
    let GateState::Closed { wait } = client.estimate().gate else { panic!("{:?}", client.estimate()) };
    assert!(wait > Duration::ZERO && wait <= 5 * S);
    let closed_at = client.now;
    client.idle(wait);
    assert_eq!(client.estimate().gate, GateState::Canary);
    let slowed_at = client.estimate().refused.expect("by the calls before").1;
    client.calls(1, |_, _| (300 * MS, Outcome::new(Class::Throttled)));
    client.end();
    let estimate = client.estimate();
    assert_eq!(estimate.refused, Some((Duration::ZERO, slowed_at)), "the canary was refused last");
    let GateState::Closed { wait } = estimate.gate else { panic!("{estimate:?}") };
    assert!(!estimate.to_string().contains("growing"), "{estimate}");
    client.idle(wait);
    let left = client.calls(3, |_, _| (300 * MS, Outcome::new(Class::Success)));
    assert!(left[0] >= closed_at + wait);
    assert!(left[1] >= left[0] + 300 * MS, "the others wait for the canary: {left:?}");
    assert_eq!(client.estimate().gate, GateState::Open);
}

#[test]
fn closures_of_our_own_choice_last_five_seconds_at_most_while_a_window_may_be_usual() {
    let mut client = Client::at_rate(50.0);
    client.calls(100, passes);
    client.end();
    let left = client.calls(60, throttled);
    client.end();
    let pauses: Vec<(Instant, Duration)> = left.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
    let (usual, later): (Vec<_>, Vec<_>) = pauses.iter().partition(|(from, _)| *from <= left[0] + 115 * S);
    let longest = |pauses: &[(Instant, Duration)]| pauses.iter().map(|(_, pause)| *pause).max().expect("some");
    // A tenth is for the spread, and a call takes its time.
    assert!((4_500 * MS..5_600 * MS).contains(&longest(&usual)), "{pauses:?}");
    // A ban: it grows by an eighth each time.
    assert!((108 * S..133 * S).contains(&longest(&later)), "{pauses:?}");
    assert!(later[1..].windows(2).all(|pair| pair[1].1 < pair[0].1.mul_f64(1.5)), "{pauses:?}");
}

/// A server that counts `limit` calls in each window of that length, says nothing, and refuses fast.
fn window(limit: usize, window: Duration) -> impl FnMut(Instant, usize) -> (Duration, Outcome) {
    let (mut turn, mut used) = (0, 0);
    move |now, _| {
        let is = now.as_nanos() / window.as_nanos() as u64;
        if is > turn {
            (turn, used) = (is, 0);
        }
        used += 1;
        let class = if used > limit { Class::Throttled } else { Class::Success };
        (20 * MS, Outcome::new(class))
    }
}

#[test]
fn a_closure_of_three_seconds_and_more_was_a_window_and_the_rate_is_what_it_sustains() {
    for (limit, seconds) in [(600, 30), (1_200, 60)] {
        let mut client = Client::at_rate(100.0);
        let mut server = window(limit, seconds * S);
        while client.estimate().gate == GateState::Open {
            client.calls(1, &mut server);
        }
        while client.estimate().gate != GateState::Open {
            client.calls(1, &mut server);
        }
        let sustained = limit as f64 / f64::from(seconds);
        let rate = client.rate();
        assert!((0.9..1.1).contains(&(rate / sustained)), "{rate}, and the window sustains {sustained}");
    }
}

#[test]
fn a_wait_of_more_than_a_second_or_in_milliseconds_closes_the_scope_and_one_second_does_not() {
    let closed = |wait: Duration, exact: bool| {
        let mut client = Client::at_rate(50.0);
        client.calls(100, passes);
        client.end();
        let outcome = Outcome::new(Class::Throttled).with_hint(wait, exact);
        client.calls(1, |_, _| (20 * MS, outcome.clone()));
        client.end();
        let events: Vec<Event> = std::iter::from_fn(|| client.pacer.poll_event()).collect();
        let until = client.now + wait;
        let scope = client.scope.clone();
        assert_eq!(events.contains(&Event::GateClosed { scope, until }), exact || wait > S, "{events:?}");
        client.calls(1, passes)[0] >= until
    };
    assert!(closed(1_001 * MS, false) && closed(30 * S, false));
    assert!(closed(400 * MS, true) && closed(S, true));
    assert!(!closed(S, false) && !closed(600 * MS, false), "a rounded second closes nothing");
}

#[test]
fn the_refusals_of_large_calls_show_that_tokens_are_what_counts() {
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    let costs: Vec<Cost> = (0..400).map(|call| tokens(if call % 20 == 0 { 2_000 } else { 100 })).collect();
    let believed = |large: bool| {
        let mut client = Client::at_rate(100.0);
        for _ in 0..6 {
            client.calls_of(&costs, passes);
            client.end();
            client.calls_of(&[tokens(if large { 2_000 } else { 100 })], throttled);
            client.end();
        }
        client
    };
    assert_eq!(believed(false).estimate().tokens, None, "those that are refused are as all are");
    let mut client = believed(true);
    let RateEstimate { rate, tokens: Some(flow), .. } = client.estimate() else { panic!("{:?}", client.estimate()) };
    assert!((150.0..250.0).contains(&(flow / rate)), "a usual call has 195 tokens: {flow} at {rate}");
    let left = client.calls_of(&[tokens(100), tokens(2_000), tokens(100), tokens(100)], passes);
    let pause = |call: usize| (left[call + 1] - left[call]).as_secs_f64();
    assert!((15.0..25.0).contains(&(pause(1) / pause(2))), "each pause is as long as its call has tokens: {left:?}");
}

#[test]
fn a_wait_that_is_always_the_same_is_a_windows_where_as_many_calls_pass_at_any_rate() {
    let mut client = Client::at_rate(100.0);
    let (mut opened, mut used) = (client.now, 0);
    let mut server = |now: Instant, _| {
        if now >= opened + 30 * S {
            (opened, used) = (now, 0);
        }
        used += 1;
        let outcome = match used <= 300 {
            true => Outcome::new(Class::Success),
            false => Outcome::new(Class::Throttled).with_hint(16 * S, false),
        };
        (20 * MS, outcome)
    };
    for _ in 0..4 {
        while client.estimate().gate == GateState::Open {
            client.calls(1, &mut server);
        }
        while client.estimate().gate != GateState::Open {
            client.calls(1, &mut server);
        }
    }
    // Two waits of 16 s pass until the window of 30 s has, and the first calls take as long as the rate before.
    assert!((6.5..9.0).contains(&client.rate()), "300 in some forty seconds: {}", client.rate());
}

#[test]
fn headers_shorten_the_start_to_the_rate_that_they_let_pass_at_what_calls_have_cost() {
    let mut client = Client::new();
    let costs = vec![Cost::request().with(Dimension::Tokens, 10); 4];
    // 100 tokens a second come back, and calls take ten each.
    let report = LimitReport {
        dimension: Dimension::Tokens,
        limit: Some(6_000),
        remaining: Some(5_000),
        reset: Some(10 * S),
        window: Some(60 * S),
        restores: RefillMode::Gradually,
    };
    client.calls_of(&costs, |_, call| {
        let limits = if call == 3 { vec![report.clone()] } else { vec![] };
        (100 * MS, Outcome { limits, ..Outcome::new(Class::Success) })
    });
    client.end();
    assert!(near(client.rate(), 10.0), "{}", client.rate());
}
