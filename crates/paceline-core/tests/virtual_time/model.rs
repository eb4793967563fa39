//! Random operations on a pacer, beside a naive model of what it owes to every caller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paceline_core::{
    Class, Concurrency, Cost, Dimension, Event, Instant, Limits, MaxWait, NextAction, Outcome, Pace, Pacer,
    PacerConfig, Quota, QuotaShape, Request, Retry, Rng, ScopeId, Ticket, WaitCause,
};
use proptest::test_runner::{Config, TestRunner};

const S: Duration = Duration::from_secs(1);

/// One quota and where it counts: everywhere, or in one scope.
struct Watched {
    quota: Quota,
    scope: Option<ScopeId>,
}

/// A call that left: when, where and what it still counts for.
struct Sent {
    at: Instant,
    scope: ScopeId,
    cost: Cost,
    /// Its item had failed before.
    repeats: bool,
    item: Option<u64>,
    /// How often it had been told to wait before.
    deferrals: u32,
}

struct Waiting {
    request: Request,
    arrival: u64,
}

/// The pacer and all that is known about it from outside.
struct Model {
    pacer: Pacer,
    /// Its pace is learnt.
    learns: bool,
    /// Of each scope: an item that had failed let another one pass before the last call.
    let_one_pass: [bool; 2],
    rng: Rng,
    now: Instant,
    scopes: Vec<ScopeId>,
    watched: Vec<Watched>,
    max_in_flight: usize,
    enqueued: usize,
    finished: usize,
    arrivals: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    in_flight: BTreeMap<Ticket, usize>,
    granted: BTreeSet<Ticket>,
    sent: Vec<Sent>,
    /// Tokens that answers reported beyond what was reserved.
    debts: Vec<Sent>,
    /// When the next probe of a failing server may leave.
    probes: BTreeMap<ScopeId, Instant>,
    /// Of each scope.
    told: [Told; 2],
}

/// The items of a scope that were told a time to wait.
#[derive(Default)]
struct Told {
    /// Calls that succeeded.
    passed: u64,
    /// How many had when an item was told last; none of one that was told again after two of them, and waits alone.
    at: BTreeMap<Option<u64>, Option<u64>>,
}

impl Told {
    fn completed(&mut self, call: &Sent, outcome: &Outcome) {
        let names_a_time = outcome.hint.is_some_and(|hint| hint.wait > S || call.deferrals >= 4);
        if outcome.class == Class::Success {
            self.passed += 1;
            self.at.remove(&call.item);
        } else if outcome.class == Class::Throttled && names_a_time {
            let passed = self.passed;
            let waits_alone = self.at.get(&call.item).is_some_and(|at| at.is_none_or(|at| passed - at >= 2));
            self.at.insert(call.item, (!waits_alone).then_some(passed));
        }
    }

    fn waits_alone(&self, item: Option<u64>) -> bool {
        matches!(self.at.get(&item), Some(None))
    }
}

fn tokens(limit: u64, window: Duration) -> Quota {
    Quota::sliding(Dimension::Tokens, limit, window)
}

impl Model {
    fn new(seed: u64) -> Self {
        let account = vec![Quota::per_minute(40), tokens(3_000, 60 * S)];
        let tier = vec![
            tokens(700, 10 * S),
            Quota { shape: QuotaShape::Fixed, ..Quota::sliding(Dimension::Requests, 9, 10 * S) },
        ];
        let learns = seed.is_multiple_of(2);
        let config = PacerConfig {
            limits: Limits { quotas: account.clone(), burst: Some(5) },
            tiers: vec![("tier".into(), Limits { quotas: tier.clone(), burst: None })],
            concurrency: Concurrency::Aimd { floor: 1, start: 3, max: 6 },
            pace: if learns { Pace::Auto } else { Pace::Aimd },
            ..PacerConfig::default()
        };
        let mut pacer = Pacer::new(config, seed, Instant::ZERO).expect("sensible");
        let scopes = vec![pacer.scope("tier"), pacer.scope("plain")];
        let watched = account
            .into_iter()
            .map(|quota| Watched { quota, scope: None })
            .chain(tier.into_iter().take(1).map(|quota| Watched { quota, scope: Some(scopes[0].clone()) }))
            .collect();
        Self {
            pacer,
            learns,
            let_one_pass: [false; 2],
            rng: Rng::new(seed),
            now: Instant::ZERO,
            scopes,
            watched,
            max_in_flight: 6,
            enqueued: 0,
            finished: 0,
            arrivals: 0,
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            granted: BTreeSet::new(),
            sent: Vec::new(),
            debts: Vec::new(),
            probes: BTreeMap::new(),
            told: [Told::default(), Told::default()],
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn step(&mut self) {
        match self.below(10) {
            0..4 => self.enqueue_new(),
            4 => self.cancel(),
            5..8 => self.complete(),
            8 => self.pass_time(),
            _ => self.ask_twice(),
        }
        self.drain();
        self.check_sums();
    }

    fn enqueue_new(&mut self) {
        let index = self.below(2) as usize;
        let scope = self.scopes[index].clone();
        let cost = Cost::request().with(Dimension::Tokens, self.below(600));
        let mut request = Request::new(scope, cost);
        request.priority = self.below(2) as i32;
        request.item = Some(self.below(50));
        if self.below(4) == 0 {
            request.not_before = Some(self.now + Duration::from_millis(self.below(20_000)));
        }
        if self.below(6) == 0 {
            request.deadline = Some(self.now + Duration::from_millis(self.below(90_000)));
        }
        let max_wait = Duration::from_millis(self.below(20_000));
        request.max_wait = match self.below(8) {
            0 => Some(MaxWait::Known(max_wait)),
            1 => Some(MaxWait::Pause(max_wait)),
            _ => None,
        };
        self.enqueue(request);
    }

    fn enqueue(&mut self, request: Request) {
        let arrival = request.arrival.unwrap_or(self.arrivals);
        self.arrivals = self.arrivals.max(arrival + 1);
        let ticket = self.pacer.enqueue(self.now, request.clone()).expect("no cost is above a limit");
        self.enqueued += 1;
        assert!(!self.waiting.contains_key(&ticket) && !self.granted.contains(&ticket), "a ticket is used once");
        self.waiting.insert(ticket, Waiting { request, arrival });
    }

    fn cancel(&mut self) {
        let tickets: Vec<Ticket> = self.waiting.keys().chain(self.in_flight.keys()).copied().collect();
        if tickets.is_empty() {
            return;
        }
        let ticket = tickets[self.below(tickets.len() as u64) as usize];
        assert!(self.pacer.cancel(self.now, ticket).is_some());
        assert!(self.pacer.cancel(self.now, ticket).is_none(), "twice is once");
        self.waiting.remove(&ticket);
        if let Some(sent) = self.in_flight.remove(&ticket) {
            self.sent[sent].cost = Cost::zero();
            // The next call has its turn.
            let place = self.place_of(&self.sent[sent].scope);
            self.let_one_pass[place] = false;
        }
        self.finished += 1;
    }

    fn complete(&mut self) {
        let tickets: Vec<Ticket> = self.in_flight.keys().copied().collect();
        if tickets.is_empty() {
            return;
        }
        let ticket = tickets[self.below(tickets.len() as u64) as usize];
        let sent = self.in_flight.remove(&ticket).expect("in flight");
        let outcome = self.outcome();
        if let Some(usage) = &outcome.usage {
            // Less than reserved gives units back; more is debt, which the windows need not know.
            let reserved = self.sent[sent].cost.get(&Dimension::Tokens);
            let settled = usage.get(&Dimension::Tokens).min(reserved);
            self.sent[sent].cost.set(Dimension::Tokens, settled);
            let debt = Cost::zero().with(Dimension::Tokens, usage.get(&Dimension::Tokens) - settled);
            let scope = self.sent[sent].scope.clone();
            self.debts.push(Sent { at: self.now, scope, cost: debt, repeats: false, item: None, deferrals: 0 });
        }
        self.finished += 1;
        let place = self.place_of(&self.sent[sent].scope);
        self.told[place].completed(&self.sent[sent], &outcome);
        match self.pacer.complete(self.now, ticket, outcome) {
            NextAction::Retry { next, .. } | NextAction::Resend { next, .. } => {
                self.drain();
                self.enqueue(*next);
            }
            _ => {}
        }
    }

    fn outcome(&mut self) -> Outcome {
        let class = match self.below(12) {
            0 => Class::Throttled,
            1 => Class::Overloaded,
            2 => Class::Transient,
            3 => Class::Abandoned,
            4 => Class::Invalid,
            _ => Class::Success,
        };
        let outcome = Outcome::new(class);
        let tokens = self.below(800);
        match self.below(6) {
            0 => outcome.with_hint(Duration::from_millis(self.below(8_000)), true),
            1 => outcome.with_hint(Duration::from_secs(self.below(8)), false),
            2..4 => outcome.with_usage(Cost::request().with(Dimension::Tokens, tokens)),
            _ => outcome,
        }
    }

    /// Stands still, moves a little, or jumps forward by days; sometimes claims to go backwards.
    fn pass_time(&mut self) {
        let millis = self.below(10_000);
        let step = match self.below(20) {
            0 => Duration::ZERO,
            1 => 3 * 86_400 * S,
            2 => return self.pacer.handle_timeout(self.now.saturating_sub(S)),
            3..9 => Duration::from_nanos(millis),
            _ => Duration::from_millis(millis),
        };
        let until = self.now + step;
        while let Some(due) = self.pacer.poll_timeout().filter(|due| *due <= until) {
            assert!(due > self.now, "a timeout that is due was not acted on: {due} at {}", self.now);
            self.now = due;
            self.pacer.handle_timeout(due);
            self.drain();
        }
        self.now = until;
        self.pacer.handle_timeout(until);
    }

    /// A refusal changes nothing.
    fn ask_twice(&mut self) {
        let index = self.below(2) as usize;
        let scope = self.scopes[index].clone();
        let request = Request::new(scope, Cost::request().with(Dimension::Tokens, self.below(600)));
        let before = self.pacer.snapshot(self.now);
        let first = self.pacer.admit(self.now, &request);
        assert_eq!(first, self.pacer.admit(self.now, &request));
        let wake = self.pacer.poll_timeout();
        self.pacer.handle_timeout(self.now);
        assert_eq!(self.pacer.poll_event(), None, "nothing is granted that could have been granted before");
        assert_eq!(before, self.pacer.snapshot(self.now));
        assert_eq!(wake, self.pacer.poll_timeout());
    }

    fn drain(&mut self) {
        while let Some(event) = self.pacer.poll_event() {
            match event {
                Event::Granted { ticket, probe } => self.grant(ticket, probe),
                Event::Expired { ticket, request, earliest } => {
                    let waiting = self.waiting.remove(&ticket).expect("only waiting requests expire");
                    let deadline = waiting.request.deadline.expect("only a deadline expires");
                    let known = earliest.is_some_and(|earliest| earliest >= deadline && earliest > self.now);
                    assert!(deadline <= self.now || (known && self.cannot_start(&request, deadline)), "{request:?}");
                    assert_eq!(request.item, waiting.request.item);
                    self.finished += 1;
                }
                Event::Deferred { ticket, request, until, reason } => {
                    let waiting = self.waiting.remove(&ticket).expect("only waiting requests are put off");
                    let max_wait = waiting.request.max_wait.expect("only what takes no wait however long is put off");
                    assert!(until > self.now + max_wait.duration(), "it takes a wait until {until}");
                    assert!(request.not_before.is_none_or(|due| due <= self.now), "it waits for its own time");
                    assert!(self.cannot_start(&request, until), "{reason:?} does not last until {until}");
                    let is_pause = matches!(reason.cause, WaitCause::Held { .. } | WaitCause::Gate { .. });
                    assert!(is_pause || matches!(max_wait, MaxWait::Known(_)), "{reason:?}");
                    self.finished += 1;
                }
                Event::BreakerOpened { scope, until } => drop(self.probes.insert(scope, until)),
                _ => {}
            }
        }
    }

    /// Whether a request cannot start before its deadline, whatever becomes of the calls in flight.
    fn cannot_start(&self, request: &Request, deadline: Instant) -> bool {
        let late = |at: Option<Instant>| at.is_some_and(|at| at >= deadline);
        let scopes = self.pacer.snapshot(self.now).scopes;
        let scope = scopes.iter().find(|scope| scope.name == *request.scope.name()).expect("it had a request");
        let closed = scope.closed_until;
        let full = |watched: &Watched| {
            let Quota { dimension, limit, window, .. } = &watched.quota;
            let slot = *window / 60_000;
            let counts = |sent: &&Sent| {
                watched.scope.as_ref().is_none_or(|scope| *scope == sent.scope) && sent.at + *window + slot >= deadline
            };
            let ended = |index: &usize| !self.in_flight.values().any(|flying| flying == index);
            let sent = (0..self.sent.len()).filter(ended).map(|index| &self.sent[index]).chain(&self.debts);
            let used: u64 = sent.filter(counts).map(|sent| sent.cost.get(dimension)).sum();
            watched.scope.as_ref().is_none_or(|scope| *scope == request.scope)
                && used + request.cost.get(dimension) > *limit
        };
        // The tier also has a fixed window, which this model does not follow.
        let in_tier = request.scope == self.scopes[0];
        let tested = self.probes.get(&request.scope).copied();
        late(request.not_before) || late(closed) || late(tested) || in_tier || self.watched.iter().any(full)
    }

    fn place_of(&self, scope: &ScopeId) -> usize {
        self.scopes.iter().position(|own| own == scope).expect("it has only these")
    }

    /// Whether calls of items that failed before hold half of the places.
    fn repeats_enough(&self, scope: &ScopeId) -> bool {
        let snapshot = self.pacer.snapshot(self.now);
        let own = snapshot.scopes.iter().find(|known| known.name == *scope.name()).expect("it had a request");
        let places = snapshot.account.concurrency.current_limit.min(own.concurrency.current_limit) as usize;
        let of_scope = |index: &&usize| self.sent[**index].scope == *scope && self.sent[**index].repeats;
        let repeats = self.in_flight.values().filter(of_scope).count();
        repeats > 0 && 2 * (repeats + 1) > places
    }

    fn grant(&mut self, ticket: Ticket, probe: bool) {
        assert!(self.granted.insert(ticket), "granted twice");
        let Waiting { request, arrival } = self.waiting.remove(&ticket).expect("only waiting requests are granted");
        assert!(request.not_before.is_none_or(|due| due <= self.now), "before its due time");
        let mut lets_one_pass = false;
        let enough = self.repeats_enough(&request.scope);
        let scope = self.place_of(&request.scope);
        let waits_alone = |request: &Request| self.told[scope].waits_alone(request.item);
        for other in self.waiting.values().filter(|other| other.request.scope == request.scope) {
            let ready = other.request.not_before.is_none_or(|due| due <= self.now);
            let before = (-other.request.priority, other.arrival) < (-request.priority, arrival);
            let as_urgent = other.request.priority == request.priority;
            // Where the server may be down, one that has no retry left lets others of its priority test it.
            let last = |request: &Request| request.attempts >= Retry::default().max_retries;
            let tests = as_urgent && last(&other.request) && !last(&request);
            // One that is down is tested with any of those that failed least, and by turns with one that failed.
            let failed_least = other.request.attempts >= request.attempts || other.request.attempts == 0;
            let probes = probe && as_urgent && failed_least;
            // Those that failed hold half of the places at most.
            let may_hang = enough && as_urgent && other.request.attempts > 0 && request.attempts == 0;
            // Where a call that went first was told to wait again, those that were not go before those that were.
            let deferrals = (other.request.deferrals, request.deferrals);
            let was_told = self.learns
                && as_urgent
                && (deferrals.0 > 1 && deferrals.1 <= 1 || deferrals.0 > 0 && deferrals.1 == 0);
            // One that was told again while others passed lets those pass that were not.
            let alone = self.learns && as_urgent && waits_alone(&other.request) && !waits_alone(&request);
            let was_told = was_told || alone;
            // Where a learnt pace was refused, one that failed lets one pass that did not, but never two.
            let waits_once = self.learns && as_urgent && other.request.attempts > 0 && request.attempts == 0;
            lets_one_pass |= ready && before && waits_once && !tests && !probes && !was_told && !may_hang;
            assert!(
                !(ready && before) || tests || probes || was_told || may_hang || waits_once,
                "{arrival} overtook {}",
                other.arrival
            );
        }
        let did_before = std::mem::replace(&mut self.let_one_pass[scope], lets_one_pass);
        assert!(!(lets_one_pass && did_before), "{arrival} was the second in a row that overtook one that failed");
        let repeats = request.attempts > 0;
        let Request { scope, cost, item, deferrals, .. } = request;
        self.sent.push(Sent { at: self.now, scope, cost, repeats, item, deferrals });
        self.in_flight.insert(ticket, self.sent.len() - 1);
        assert!(self.in_flight.len() <= self.max_in_flight);
        self.check_windows();
    }

    /// No window ever holds more reservations than its quota. Only the newest window can be new.
    fn check_windows(&self) {
        for Watched { quota, scope } in &self.watched {
            let counted = |sent: &&Sent| {
                scope.as_ref().is_none_or(|scope| *scope == sent.scope) && self.now - sent.at < quota.window
            };
            let used: u64 = self.sent.iter().filter(counted).map(|sent| sent.cost.get(&quota.dimension)).sum();
            assert!(used <= quota.limit, "{used} of {} {} per {:?}", quota.limit, quota.dimension, quota.window);
        }
    }

    fn check_sums(&self) {
        assert_eq!(self.waiting.len() + self.in_flight.len() + self.finished, self.enqueued);
        let snapshot = self.pacer.snapshot(self.now);
        assert_eq!(snapshot.account.waiting as usize, self.waiting.len());
        assert_eq!(snapshot.account.concurrency.in_flight as usize, self.in_flight.len());
        let answers: u64 = snapshot.account.totals.by_class.iter().sum();
        assert_eq!(snapshot.account.totals.sends, answers + self.in_flight.len() as u64);
    }

    /// Everything ends once the server only says yes.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            if let Some((ticket, _)) = self.in_flight.pop_first() {
                self.finished += 1;
                assert_eq!(self.pacer.complete(self.now, ticket, Outcome::new(Class::Success)), NextAction::Done);
                assert_eq!(
                    self.pacer.complete(self.now, ticket, Outcome::new(Class::Throttled)),
                    NextAction::Done,
                    "an ended ticket changes nothing"
                );
            } else if let Some(due) = self.pacer.poll_timeout() {
                self.now = self.now.max(due);
                self.pacer.handle_timeout(self.now);
            } else {
                break;
            }
            self.drain();
        }
        self.check_sums();
        assert!(self.waiting.is_empty() && self.in_flight.is_empty(), "{} still wait", self.waiting.len());
        assert_eq!(self.finished, self.enqueued);
    }
}

#[test]
fn random_operations_keep_every_promise() {
    let mut runner = TestRunner::new(Config::default());
    let seeds = proptest::num::u64::ANY;
    let checked = runner.run(&seeds, |seed| {
        let mut model = Model::new(seed);
        (0..400).for_each(|_| model.step());
        model.finish();
        Ok(())
    });
    checked.expect("the seed above replays it");
}

/// A server that is down is tested while several wait that never failed.
#[test]
fn a_test_of_a_server_that_is_down_may_overtake() {
    let mut model = Model::new(12_374_512_521_667_695_714);
    (0..400).for_each(|_| model.step());
    model.finish();
}

/// An item that was told to wait again while others passed lets those of its scope pass that were not.
#[test]
fn an_item_that_waits_alone_may_be_overtaken() {
    let mut model = Model::new(13_874_066_642_465_032_678);
    (0..400).for_each(|_| model.step());
    model.finish();
}
