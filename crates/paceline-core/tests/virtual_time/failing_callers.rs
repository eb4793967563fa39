//! Callers that are known apart, of whom one sends what its server cannot answer: that takes the server from no other one.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::{
    Admit, Class, Event, Instant, MaxWait, NextAction, Outcome, Pacer, PacerConfig, Request, ScopeId, Ticket, Turns,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

/// What a caller does: so many workers, one call after the other, each call with a pause behind it, from a moment on.
#[derive(Clone, Copy)]
struct Caller {
    workers: usize,
    begins: f64,
    pause: Duration,
    deadline: Duration,
    /// How its calls end, where the server works.
    class: Class,
}

/// Calls of a caller that ended well and badly, those that did not leave in time, and the longest time to a good answer.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    passed: usize,
    failed: usize,
    refused: usize,
    slowest: Duration,
}

enum Next {
    /// A worker of a caller has a new call to make.
    Asks(usize),
    Ends(Ticket),
    /// A try waits until its time is over.
    GivesUp(Ticket),
    Again(Box<Request>, Call),
}

#[derive(Clone, Copy)]
struct Call {
    caller: usize,
    asked: Instant,
    place: u64,
    left: bool,
}

struct World<'a> {
    pacer: Pacer,
    scope: ScopeId,
    turns: Turns,
    callers: &'a [Caller],
    done: Vec<Done>,
    next: BTreeMap<(Instant, u64), Next>,
    number: u64,
    calls: BTreeMap<Ticket, Call>,
    /// Whether callers are told apart.
    apart: bool,
    /// Since when the server fails for all.
    down_from: Instant,
}

/// What becomes of the calls of these callers in so many seconds.
fn run(callers: &[Caller], seconds: f64, apart: bool, down_from: f64) -> Vec<Done> {
    let mut pacer = Pacer::new(PacerConfig::default(), 7, Instant::ZERO).expect("sensible");
    let mut world = World {
        scope: pacer.scope("m"),
        pacer,
        turns: Turns::default(),
        callers,
        done: vec![Done::default(); callers.len()],
        next: BTreeMap::new(),
        number: 0,
        calls: BTreeMap::new(),
        apart,
        down_from: at(down_from),
    };
    for (caller, of) in callers.iter().enumerate() {
        for worker in 0..of.workers {
            world.later(at(of.begins) + Duration::from_millis(worker as u64), Next::Asks(caller));
        }
    }
    world.go_on(at(seconds));
    world.done
}

impl World<'_> {
    fn later(&mut self, at: Instant, next: Next) {
        self.number += 1;
        self.next.insert((at, self.number), next);
    }

    fn go_on(&mut self, until: Instant) {
        loop {
            let due = self.next.first_key_value().map(|((at, _), _)| *at);
            let Some(now) = [due, self.pacer.poll_timeout()].into_iter().flatten().min().filter(|now| *now < until)
            else {
                return;
            };
            if due == Some(now) {
                let (_, next) = self.next.pop_first().expect("it is due");
                self.step(now, next);
            } else {
                self.pacer.handle_timeout(now);
            }
            self.collect(now);
        }
    }

    fn step(&mut self, now: Instant, next: Next) {
        match next {
            Next::Asks(caller) => {
                let place = self.turns.place(caller as u64);
                self.number += 1;
                let request = Request {
                    caller: self.apart.then_some(caller as u64),
                    item: Some(self.number),
                    arrival: Some(place),
                    ..Request::from(&self.scope)
                };
                self.enqueue(now, request, Call { caller, asked: now, place, left: false });
            }
            Next::Again(request, call) => self.enqueue(now, *request, call),
            Next::GivesUp(ticket) => {
                if self.calls.get(&ticket).is_some_and(|call| !call.left) {
                    self.pacer.cancel(now, ticket);
                    self.refused(now, ticket);
                }
            }
            Next::Ends(ticket) => self.ends(now, ticket),
        }
    }

    /// As a gateway does: a request leaves at once, or waits where that takes no longer than it may.
    fn enqueue(&mut self, now: Instant, request: Request, call: Call) {
        let left = (call.asked + self.callers[call.caller].deadline) - now;
        let is_late = matches!(self.pacer.admit(now, &request), Admit::At { at, .. } if at - now > left);
        if is_late {
            self.done[call.caller].refused += 1;
            return self.asks_again(now, call.caller);
        }
        let request = Request { max_wait: Some(MaxWait::Known(left)), ..request };
        let ticket = self.pacer.enqueue(now, request).expect("it fits");
        self.calls.insert(ticket, call);
        self.later(now + left, Next::GivesUp(ticket));
    }

    fn ends(&mut self, now: Instant, ticket: Ticket) {
        let call = self.calls.remove(&ticket).expect("it is in flight");
        let of = self.callers[call.caller];
        let class = if now < self.down_from { of.class } else { Class::Transient };
        let action = self.pacer.complete(now, ticket, Outcome::new(class));
        match action {
            NextAction::Retry { next, .. } => {
                let next = Box::new(Request { max_wait: None, ..*next });
                return self.later(now, Next::Again(next, Call { left: false, ..call }));
            }
            _ if class == Class::Success => {
                let done = &mut self.done[call.caller];
                done.passed += 1;
                done.slowest = done.slowest.max(now - call.asked);
            }
            _ => self.done[call.caller].failed += 1,
        }
        self.asks_again(now, call.caller);
    }

    fn collect(&mut self, now: Instant) {
        while let Some(event) = self.pacer.poll_event() {
            match event {
                Event::Granted { ticket, .. } => {
                    let call = self.calls.get_mut(&ticket).expect("it waits");
                    call.left = true;
                    self.turns.left(call.place);
                    self.later(now + Duration::from_millis(50), Next::Ends(ticket));
                }
                Event::Deferred { ticket, .. } | Event::Expired { ticket, .. } => self.refused(now, ticket),
                _ => {}
            }
        }
    }

    fn refused(&mut self, now: Instant, ticket: Ticket) {
        let call = self.calls.remove(&ticket).expect("it waits");
        self.done[call.caller].refused += 1;
        self.asks_again(now, call.caller);
    }

    fn asks_again(&mut self, now: Instant, caller: usize) {
        // What is refused at once is asked again a little later.
        self.later(now + self.callers[caller].pause.max(Duration::from_millis(20)), Next::Asks(caller));
    }
}

const fn faulty(workers: usize, class: Class, deadline: Duration) -> Caller {
    Caller { workers, begins: 0.0, pause: Duration::ZERO, deadline, class }
}

const fn right(begins: f64) -> Caller {
    let (pause, deadline) = (Duration::from_millis(500), Duration::from_secs(2));
    Caller { workers: 1, begins, pause, deadline, class: Class::Success }
}

/// A worker's prompts that make the server fail opened the breaker for all, and its own older requests were the tests of that.
#[test]
fn one_caller_whose_calls_fail_takes_the_server_from_no_other_one() {
    for (class, deadline) in [(Class::Transient, 60 * S), (Class::Transient, 240 * S), (Class::Overloaded, 60 * S)] {
        // What says that the server is overloaded slows it down for all, until the calls of another one have passed.
        let may_be_refused = if class == Class::Overloaded { 15 } else { 0 };
        for workers in [20, 40, 300] {
            for begins in [0.0, 3.0, 75.0] {
                let callers = [faulty(workers, class, deadline), right(begins), right(begins + 0.2)];
                let done = run(&callers, begins + 60.0, true, 1e6);
                for others in &done[1..] {
                    let case = format!("{workers} workers, {class:?}, {deadline:?}, from {begins} s on: {done:?}");
                    assert!(others.refused <= may_be_refused && others.failed == 0, "{case}");
                    assert!(others.passed >= 100 - may_be_refused, "{case}");
                    assert!(others.slowest <= 2 * S, "{case}");
                }
            }
        }
    }
    let alike = run(&[faulty(40, Class::Transient, 60 * S), right(75.0), right(75.2)], 135.0, false, 1e6);
    assert!(alike[1].passed < 10, "where nothing tells them apart it is tested as before: {alike:?}");
}

/// One call at a time tests it, each a longer pause after the last; once its calls pass it waits no more.
#[test]
fn a_caller_whose_calls_alone_fail_is_paused_alone() {
    let done = run(&[faulty(40, Class::Transient, 240 * S), right(10.0)], 310.0, true, 1e6);
    assert!(done[1].passed > 500 && done[1].refused == 0, "{done:?}");
    let failed = done[0].failed + done[0].refused;
    assert!(failed < 120, "its calls are spared: {done:?}");
}

/// A server that is down for all is tested by one call at a time, however many callers wait.
#[test]
fn a_server_that_fails_for_all_is_spared() {
    let callers: Vec<_> = (0..6).map(|n| Caller { workers: 20, ..right(f64::from(n) * 0.01) }).collect();
    let [apart, alike] = [true, false].map(|apart| {
        let done = run(&callers, 130.0, apart, 10.0);
        let passed: usize = done.iter().map(|done| done.passed).sum();
        assert!(passed > 1_000, "before it was down: {done:?}");
        done.iter().map(|done| done.failed).sum::<usize>()
    });
    assert!(apart <= alike + 6, "{apart} calls failed, and {alike} where nothing tells callers apart");
}
