//! Callers that take late what they were granted: never more than the limit leaves in any window.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Enqueued, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, QuotaShape,
    Request, ScopeId, Ticket,
};
use proptest::prelude::*;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The limits of the account, and of one of the scopes below it.
fn limits() -> impl Strategy<Value = Limits> {
    let quota = (3_u64..12, prop_oneof![Just(S / 10), Just(S), Just(3 * S)]);
    let quota = quota.prop_map(|(limit, window)| Quota::sliding(Dimension::Requests, limit, window));
    // As large a burst as may be: an even spacing would hide what a window lets through.
    prop::collection::vec(quota, 0..3).prop_map(|quotas| {
        let limits = Limits { quotas, burst: None };
        let burst = limits.spacing().map(|(quota, _)| quota.limit);
        Limits { burst, ..limits }
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// So many calls ask at once, of so many requests each.
    Enqueue(u32, u64),
    /// The runtime polls so many of those that were granted.
    Poll(usize),
    /// Of those that were granted, one is dropped before it is polled, and one is never polled again.
    Drop,
    Forget,
    Complete,
    Pass(Duration),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![0..2_000_u32, 90_000..110_000_u32, 100_000..4_000_000_u32];
    let step = prop_oneof![
        4 => (1..9_u32, 1..4_u64).prop_map(|(calls, cost)| Step::Enqueue(calls, cost)),
        5 => (1..20_usize).prop_map(Step::Poll),
        1 => Just(Step::Drop),
        1 => Just(Step::Forget),
        2 => Just(Step::Complete),
        6 => time.prop_map(|micros| Step::Pass(Duration::from_micros(u64::from(micros)))),
    ];
    prop::collection::vec(step, 1..200)
}

/// A pacer with callers that are polled when a step says so.
struct World {
    pacer: Pacer,
    scopes: [ScopeId; 2],
    now: Instant,
    asked: usize,
    waiting: usize,
    granted: VecDeque<Ticket>,
    in_flight: VecDeque<Ticket>,
    /// When each call left, from which scope and of how many requests.
    calls: Vec<(Instant, ScopeId, u64)>,
}

impl World {
    fn new(limits: &Limits, tier: &Limits) -> Self {
        let config = PacerConfig {
            limits: limits.clone(),
            tiers: vec![("a".into(), tier.clone())],
            pace: Pace::Fixed,
            ..PacerConfig::default()
        };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
        let scopes = ["a", "b"].map(|name| pacer.scope(name));
        let (granted, in_flight, calls) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self { pacer, scopes, now: Instant::ZERO, asked: 0, waiting: 0, granted, in_flight, calls }
    }

    fn enqueue(&mut self, request: Request) {
        self.pacer.enqueue(self.now, request).expect("not too large");
        self.waiting += 1;
        self.events();
    }

    /// The same for a driver that is told at once where the request need not wait, and whose caller goes on later for all that.
    fn ask(&mut self, request: Request) {
        match self.pacer.enqueue_or_grant(self.now, request).expect("not too large") {
            Enqueued::Granted { ticket, .. } => {
                self.pacer.take_later(ticket);
                self.granted.push_back(ticket);
            }
            Enqueued::Queued { .. } => self.waiting += 1,
        }
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { continue };
            self.waiting -= 1;
            self.granted.push_back(ticket);
        }
    }

    fn poll(&mut self) {
        let Some(ticket) = self.granted.pop_front() else { return };
        // Every second caller keeps its permit until it knows that it may leave.
        let again = match self.calls.len().is_multiple_of(2) {
            true => self.pacer.take(self.now, ticket),
            false if self.pacer.leaves(self.now, ticket) => None,
            false => self.pacer.cancel(self.now, ticket),
        };
        match again {
            Some(request) => self.enqueue(request),
            None => {
                let request = self.pacer.request(ticket).expect("it is in flight");
                let requests = request.cost.get(&Dimension::Requests);
                self.calls.push((self.now, request.scope.clone(), requests));
                self.in_flight.push_back(ticket);
            }
        }
        self.events();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.pacer.poll_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.pacer.handle_timeout(self.now);
            self.events();
        }
        self.now = end;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Enqueue(calls, requests) => (0..calls).for_each(|_| {
                let scope = &self.scopes[self.asked % 2];
                self.asked += 1;
                let cost = Cost::zero().with(Dimension::Requests, requests);
                let request = Request::new(scope, cost);
                if self.asked.is_multiple_of(3) { self.ask(request) } else { self.enqueue(request) }
            }),
            Step::Poll(callers) => (0..callers).for_each(|_| self.poll()),
            Step::Drop => {
                if let Some(ticket) = self.granted.pop_back() {
                    drop(self.pacer.cancel(self.now, ticket));
                    self.events();
                }
            }
            Step::Forget => drop(self.granted.pop_front()),
            Step::Complete => {
                let Some(ticket) = self.in_flight.pop_front() else { return };
                drop(self.pacer.complete(self.now, ticket, Outcome::new(Class::Success)));
                self.events();
            }
            Step::Pass(time) => self.pass(time),
        }
    }

    /// The most requests in any window, against what they may be.
    fn check(&self, limits: &Limits, of: Option<&ScopeId>) {
        let calls: Vec<_> = self.calls.iter().filter(|(_, scope, _)| of.is_none_or(|of| of == scope)).collect();
        for Quota { limit, window, .. } in &limits.quotas {
            for (first, (from, ..)) in calls.iter().enumerate() {
                let within = calls[first..].iter().take_while(|(at, ..)| *at - *from < *window);
                let sum: u64 = within.map(|(.., requests)| requests).sum();
                assert!(sum <= *limit, "{sum} of {limit} within {window:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn whenever_callers_take_it_no_window_holds_more_than_its_limit(account in limits(), tier in limits(), steps in steps()) {
        let mut world = World::new(&account, &tier);
        for step in steps {
            world.step(step);
        }
        // All that are not lost leave, whatever the others keep.
        for _ in 0..2_000 {
            world.poll();
            world.step(Step::Complete);
            world.pass(S / 2);
        }
        prop_assert_eq!((world.waiting, world.granted.len()), (0, 0));
        world.check(&account, None);
        let a = world.scopes[0].clone();
        world.check(&tier, Some(&a));
    }
}

/// A request of the tier that was found to fit, and waits for the account alone, is looked at again once a late call has taken
/// the room.
#[test]
fn what_a_late_call_takes_is_not_granted_to_one_that_waits_for_the_account() {
    let full =
        |limit, window| Limits { quotas: vec![Quota::sliding(Dimension::Requests, limit, window)], burst: Some(limit) };
    let (account, tier) = (full(7, S / 10), full(10, 3 * S));
    let mut world = World::new(&account, &tier);
    let micros = Duration::from_micros;
    for step in [
        Step::Enqueue(7, 3),
        Step::Poll(1),
        Step::Forget,
        Step::Pass(180 * MS),
        Step::Drop,
        Step::Enqueue(5, 1),
        Step::Enqueue(2, 3),
        Step::Pass(micros(860_782)),
        Step::Poll(7),
        Step::Pass(micros(2_554_268)),
        Step::Poll(7),
        Step::Pass(micros(100_002)),
    ] {
        world.step(step);
    }
    (0..world.granted.len()).for_each(|_| world.poll());
    let a = world.scopes[0].clone();
    world.check(&tier, Some(&a));
}

/// One thread was busy for 1.9 s: the calls of two windows are polled together.
#[test]
fn behind_a_busy_thread_the_calls_of_one_window_leave() {
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 10, S)], burst: Some(10) };
    let mut world = World::new(&limits, &Limits::default());
    world.step(Step::Enqueue(10, 1));
    world.step(Step::Poll(10));
    world.step(Step::Enqueue(30, 1));
    world.pass(2_900 * MS);
    assert_eq!((world.granted.len(), world.waiting), (20, 10), "ten a second");
    world.step(Step::Poll(20));
    assert_eq!(world.calls.len(), 20, "ten of them after the first ten");
    world.check(&limits, None);
    // Those that could not leave go first when the next window begins.
    let last = world.now;
    while world.calls.len() < 40 {
        world.pass(MS);
        world.step(Step::Poll(10));
    }
    world.check(&limits, None);
    // A window that was full opens evenly: the first a second later, and nineteen more.
    assert!(world.now - last <= 2_900 * MS, "no pause beside: {:?}", world.now - last);
}

/// Callers that are always polled later than a window is long take as much as those in time: one uses what the next was granted.
#[test]
fn callers_that_are_always_late_take_as_much_as_those_in_time() {
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 10, S / 10)], burst: Some(10) };
    let mut world = World::new(&limits, &Limits::default());
    world.step(Step::Enqueue(3_000, 1));
    let mut late = VecDeque::new();
    for _ in 0..10_000 {
        world.pass(MS);
        let (now, at) = (world.now, world.now + 250 * MS);
        late.extend(world.granted.drain(..).map(|ticket| (at, ticket)));
        while late.front().is_some_and(|(at, _)| *at <= now) {
            let (_, ticket) = late.pop_front().expect("it is due");
            world.granted.push_front(ticket);
            world.poll();
            late.extend(world.granted.drain(..).map(|ticket| (at, ticket)));
        }
        (0..world.in_flight.len()).for_each(|_| world.step(Step::Complete));
    }
    world.check(&limits, None);
    // From the first poll on: ten in a window that is longer by the age of the newest grant, which follow each other after 10 ms,
    // and by two steps.
    assert!(world.calls.len() >= 10 * (10_000 - 250) / (100 + 10 + 2), "{}", world.calls.len());
}

#[test]
fn a_fixed_window_counts_a_late_call_in_the_window_in_which_it_leaves() {
    let quota = Quota { shape: QuotaShape::Fixed, ..Quota::sliding(Dimension::Requests, 2, S) };
    let mut world = World::new(&Limits { quotas: vec![quota], burst: None }, &Limits::default());
    world.step(Step::Enqueue(6, 1));
    world.step(Step::Poll(2));
    world.pass(2_500 * MS);
    world.step(Step::Poll(9));
    assert_eq!(world.calls.len(), 4, "two in the first window, and two in the third");
}

#[test]
fn what_was_not_taken_is_refunded_as_what_was() {
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 1, S)], burst: None };
    for taken in [false, true] {
        let mut world = World::new(&limits, &Limits::default());
        world.step(Step::Enqueue(2, 1));
        world.poll();
        world.pass(1_100 * MS);
        let ticket = world.granted[0];
        if taken {
            assert_eq!(world.pacer.take(world.now, ticket), None);
        }
        drop(world.pacer.cancel(world.now, ticket));
        world.step(Step::Drop);
        assert_eq!(world.pacer.snapshot(world.now).account.quotas[0].remaining, 1, "taken: {taken}");
    }
}

/// What others have instead is not refunded a second time.
#[test]
fn what_another_caller_used_is_not_given_back() {
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 2, S)], burst: Some(2) };
    let mut world = World::new(&limits, &Limits::default());
    world.step(Step::Enqueue(4, 1));
    world.pass(1_900 * MS);
    assert_eq!((world.granted.len(), world.waiting), (4, 0));
    world.step(Step::Poll(2));
    assert_eq!((world.calls.len(), world.granted.len()), (2, 2), "they left in place of the last two");
    for left in [1, 0] {
        assert_eq!(world.pacer.snapshot(world.now).account.quotas[0].remaining, 0);
        world.step(Step::Drop);
        assert_eq!(world.granted.len(), left);
    }
    assert_eq!(world.pacer.snapshot(world.now).account.quotas[0].remaining, 0);
    let account = world.pacer.snapshot(world.now).account;
    assert_eq!((account.totals.sends, account.concurrency.in_flight), (2, 2));
}
