//! The pacer looks at what has changed and at nothing else; one that looks at everything comes to the same.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::admit::MaxWait;
use crate::config::{Background, Concurrency, Limits, Pace, Quota, QuotaShape};
use crate::cost::Dimension;
use crate::outcome::{Class, LimitScope, RefillMode};
use crate::request::Enqueued;
use crate::snapshot::{ScopeSnapshot, ScopeState};

const SCOPES: u64 = 9;

/// Two pacers with the same inputs, one of which looks at every scope each time.
struct Both {
    quick: Pacer,
    naive: Pacer,
    rng: Rng,
    now: Instant,
    waiting: Vec<Ticket>,
    in_flight: Vec<Ticket>,
    /// Requests that the quick one granted without a place in the queue.
    at_once: usize,
    /// The snapshots that a reader of the changes has by now.
    snapshots: BTreeMap<Arc<str>, ScopeSnapshot>,
}

impl Both {
    fn new(seed: u64) -> Self {
        let second = Duration::from_secs(1);
        let tokens = |limit, window| Quota::sliding(Dimension::Tokens, limit, window);
        let config = PacerConfig {
            limits: Limits { quotas: vec![Quota::per_minute(60), tokens(5_000, 60 * second)], burst: Some(5) },
            tiers: vec![
                ("0".into(), Limits { quotas: vec![tokens(700, 10 * second)], burst: None }),
                ("1".into(), Limits { quotas: vec![Quota::per_minute(20)], burst: Some(3) }),
            ],
            concurrency: Concurrency::Aimd { floor: 1, start: 3, max: if seed.is_multiple_of(3) { 4 } else { 40 } },
            pace: [Pace::Auto, Pace::Fixed, Pace::Auto, Pace::Aimd, Pace::Responsive][seed as usize % 5],
            background: [Background::default(), Background { reserve: 0.2, share: 0.3 }][seed as usize / 2 % 2],
            ..PacerConfig::default()
        };
        let quick = Pacer::new(config, seed, Instant::ZERO).expect("sensible");
        let naive = quick.clone();
        Self {
            quick,
            naive,
            rng: Rng::new(seed),
            now: Instant::ZERO,
            waiting: vec![],
            in_flight: vec![],
            at_once: 0,
            snapshots: BTreeMap::new(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// The same input to both; what they say of it is the same, and so is all that can be seen of them.
    fn input<T: PartialEq + core::fmt::Debug>(&mut self, act: impl Fn(&mut Pacer) -> T) -> T {
        self.naive.scopes.iter_mut().for_each(drop);
        let said = act(&mut self.quick);
        assert_eq!(said, act(&mut self.naive));
        while let Some(event) = self.quick.poll_event() {
            assert_eq!(Some(&event), self.naive.poll_event().as_ref());
            match event {
                Event::Granted { ticket, .. } => {
                    self.waiting.retain(|known| *known != ticket);
                    self.in_flight.push(ticket);
                }
                Event::Expired { ticket, .. } | Event::Deferred { ticket, .. } => {
                    self.waiting.retain(|known| *known != ticket);
                }
                _ => {}
            }
        }
        assert_eq!(self.naive.poll_event(), None);
        assert_eq!(self.quick.poll_timeout(), self.naive.poll_timeout());
        assert_eq!(self.quick.agenda, self.naive.agenda);
        assert_eq!(self.quick.snapshot(self.now), self.naive.snapshot(self.now));
        self.check_turn();
        self.check_changes();
        said
    }

    /// A reader that keeps the reported changes knows the same as one that reads every snapshot, but for what is a
    /// matter of time.
    fn check_changes(&mut self) {
        if !self.rng.next_u64().is_multiple_of(8) {
            return;
        }
        let (all, changes) = (self.quick.snapshot(self.now), self.quick.changes(self.now));
        assert_eq!(changes.account, all.account);
        self.snapshots.extend(changes.scopes.into_iter().map(|scope| (scope.name.clone(), scope)));
        assert_eq!(self.snapshots.len(), all.scopes.len());
        for scope in &all.scopes {
            let kept = &self.snapshots[&scope.name];
            if scope.waiting > 0 {
                assert_eq!(kept, scope);
            }
            let lasting = |scope: &ScopeSnapshot| {
                let held = !matches!(scope.state, ScopeState::Open | ScopeState::Paced);
                let concurrency = scope.concurrency.clone();
                (held.then(|| scope.state.clone()), concurrency, scope.totals.clone(), scope.failing_since)
            };
            assert_eq!(lasting(kept), lasting(scope));
        }
    }

    /// Of the heads that their scopes let leave the first that may take a place is asked for, and the account does not let it
    /// leave.
    fn check_turn(&self) {
        let pacer = &self.quick;
        let heads = pacer.scopes.iter().filter_map(|(place, scope)| {
            let head = pacer.head(self.now, scope)?;
            scope.admit(self.now, &pacer.ask(head)).is_now().then_some((head, place))
        });
        let heads: BTreeSet<_> = heads.collect();
        assert!(pacer.agenda.ready().eq(heads.iter().copied()));
        let has_place = |head, place: u32| pacer.admit_place(self.now, place, &pacer.ask(head)).is_now();
        let first = heads.into_iter().find(|(head, place)| has_place(*head, *place));
        assert_eq!(pacer.first_ready(self.now), first);
        let may = |(head, _): (crate::queue::Place, u32)| pacer.admit_account(self.now, &pacer.ask(head)).is_now();
        assert!(!first.is_some_and(may), "it could have left");
    }

    fn step(&mut self) {
        let now = self.now;
        match self.below(34) {
            0..11 => self.enqueue(),
            11 => {
                let all = self.waiting.len() + self.in_flight.len();
                let ticket = self.waiting.iter().chain(&self.in_flight).nth(self.rng.next_u64() as usize % all.max(1));
                if let Some(ticket) = ticket.copied() {
                    self.waiting.retain(|known| *known != ticket);
                    self.in_flight.retain(|known| *known != ticket);
                    self.input(|pacer| pacer.cancel(now, ticket));
                }
            }
            12..21 => self.complete(),
            21..28 => self.pass_time(),
            28 => {
                let (place, all) = (self.below(SCOPES), self.below(4) == 0);
                let until = now + Duration::from_millis(self.below(20_000));
                let kind = self.below(3);
                self.input(|pacer| {
                    let scope = pacer.scope(&name(place));
                    let scope = (!all).then_some(&scope);
                    match kind {
                        0 => pacer.hold(now, scope, until),
                        1 => pacer.stop(now, scope, "a reason".into()),
                        _ => pacer.resume(now, scope),
                    }
                });
            }
            29 => self.input(|pacer| pacer.resume(now, None)),
            30..33 => self.take(),
            _ => {
                let report = self.report();
                if let Some(ticket) = self.in_flight.first().copied() {
                    self.input(|pacer| pacer.observe(now, ticket, core::slice::from_ref(&report)));
                }
            }
        }
    }

    fn report(&mut self) -> LimitReport {
        LimitReport {
            dimension: [Dimension::Requests, Dimension::Tokens][self.below(2) as usize].clone(),
            limit: Some(100),
            remaining: Some(self.below(100)),
            reset: Some(Duration::from_millis(self.below(20_000))),
            window: None,
            restores: [RefillMode::AtOnce, RefillMode::Gradually][self.below(2) as usize],
        }
    }

    fn enqueue(&mut self) {
        let (place, tokens) = (self.below(SCOPES), self.below(500));
        let (priority, item) = (self.below(4) as i32 - 2, Some(self.below(50)));
        let later = |rng: &mut Rng, within: u64| self.now + Duration::from_millis(rng.next_u64() % within);
        let not_before = self.rng.next_u64().is_multiple_of(4).then(|| later(&mut self.rng, 9_000));
        let deadline = self.rng.next_u64().is_multiple_of(5).then(|| later(&mut self.rng, 60_000));
        let max_wait = Duration::from_millis(self.below(9_000));
        let max_wait = [None, Some(MaxWait::Known(max_wait)), Some(MaxWait::Pause(max_wait))][self.below(3) as usize];
        let now = self.now;
        let scope = self.input(|pacer| pacer.scope(&name(place)));
        let cost = Cost::request().with(Dimension::Tokens, tokens);
        // In every second scope callers are known apart.
        let caller = item.map(|item| item % 3).filter(|_| place % 2 == 0);
        let request = Request { priority, item, caller, not_before, deadline, max_wait, ..Request::new(&scope, cost) };
        self.at_once += usize::from(self.quick.leaves_at_once(now, scope.place, &request));
        let ticket = self.input(|pacer| pacer.enqueue(now, request.clone()).expect("it fits"));
        if self.quick.request(ticket).is_some() && !self.in_flight.contains(&ticket) {
            self.waiting.push(ticket);
        }
    }

    fn complete(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let index = self.rng.next_u64() as usize % self.in_flight.len();
        let (ticket, now) = (self.in_flight.swap_remove(index), self.now);
        let class = *Class::ALL.get(self.rng.next_u64() as usize % 20).unwrap_or(&Class::Success);
        let mut outcome = Outcome::new(class);
        if self.rng.next_u64().is_multiple_of(5) {
            outcome = outcome.with_hint(Duration::from_millis(self.rng.next_u64() % 8_000), true);
        }
        if self.rng.next_u64().is_multiple_of(20) {
            outcome.reach = LimitScope::Account;
        }
        let action = self.input(|pacer| pacer.complete(now, ticket, outcome.clone()));
        if let NextAction::Retry { next, .. } | NextAction::Resend { next, .. } = action {
            let ticket = self.input(|pacer| pacer.enqueue(now, (*next).clone()).expect("it fitted"));
            if self.quick.request(ticket).is_some() && !self.in_flight.contains(&ticket) {
                self.waiting.push(ticket);
            }
        }
    }

    /// A caller takes what it was granted, perhaps late.
    fn take(&mut self) {
        let index = self.rng.next_u64() as usize % self.in_flight.len().max(1);
        let (Some(ticket), now) = (self.in_flight.get(index).copied(), self.now) else { return };
        if let Some(request) = self.input(|pacer| pacer.take(now, ticket)) {
            self.in_flight.retain(|known| *known != ticket);
            let ticket = self.input(|pacer| pacer.enqueue(now, request.clone()).expect("it fitted"));
            if self.quick.request(ticket).is_some() && !self.in_flight.contains(&ticket) {
                self.waiting.push(ticket);
            }
        }
    }

    fn pass_time(&mut self) {
        let until = self.now + Duration::from_millis(self.rng.next_u64() % 3_000);
        while let Some(due) = self.quick.poll_timeout().filter(|due| *due <= until) {
            self.now = due;
            self.input(|pacer| pacer.handle_timeout(due));
        }
        self.now = until;
        self.input(|pacer| pacer.handle_timeout(until));
    }
}

fn name(place: u64) -> String {
    format!("{place}")
}

#[test]
fn a_pacer_that_looks_at_every_scope_each_time_comes_to_the_same() {
    let mut at_once = 0;
    for seed in 0..40 {
        let mut both = Both::new(seed);
        for _ in 0..300 {
            both.step();
            // Every second pacer is mostly idle.
            if seed % 2 == 1 {
                both.pass_time();
                both.complete();
            }
        }
        at_once += both.at_once;
    }
    assert!(at_once > 100, "{at_once} requests left without a place in the queue");
}

#[test]
fn a_request_that_nothing_holds_back_leaves_without_a_place_in_the_queue() {
    let now = Instant::from_nanos(9);
    let [before, after] = [8, 10].map(|nanos| Some(Instant::from_nanos(nanos)));
    let mut pacer = Pacer::new(PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() }, 1, now).expect("right");
    let scope = pacer.scope("a");
    pacer.handle_timeout(now);
    let mut leaves = |not_before, deadline| {
        let request = Request { not_before, deadline, ..Request::new(&scope, Cost::request()) };
        matches!(pacer.enqueue_or_grant(now, request), Ok(Enqueued::Granted { .. }))
    };
    assert!(leaves(None, None) && leaves(before, None) && leaves(Some(now), None) && leaves(None, after));
    // One has expired, and the other is not due: the queue takes care of both.
    assert!(!leaves(None, Some(now)) && !leaves(None, before) && !leaves(after, None));
}

#[test]
fn one_scope_tells_the_same_by_itself_as_among_all() {
    let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
    let scopes = ["a", "b", "c"].map(|name| pacer.scope(name));
    for scope in &scopes[..2] {
        pacer.enqueue(Instant::ZERO, Request::new(scope, Cost::request())).expect("small enough");
    }
    pacer.hold(Instant::ZERO, Some(&scopes[1]), Instant::from_nanos(9));
    let all = pacer.snapshot(Instant::ZERO).scopes;
    for (scope, among_all) in scopes.iter().zip(all) {
        assert_eq!(pacer.scope_snapshot(Instant::ZERO, scope), Some(among_all));
    }
    let mut other = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
    assert_eq!(pacer.scope_snapshot(Instant::ZERO, &other.scope("unknown")), None);
}

#[test]
fn changes_cost_what_changed_and_not_what_exists() {
    let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
    let scopes: Vec<_> = (0..1_000).map(|n| pacer.scope(&name(n))).collect();
    let changed = |pacer: &mut Pacer| -> Vec<String> {
        pacer.changes(Instant::ZERO).scopes.iter().map(|scope| scope.name.as_ref().into()).collect()
    };
    assert_eq!((changed(&mut pacer).len(), changed(&mut pacer).len()), (1_000, 0), "what is new is reported once");
    scopes.iter().for_each(|scope| pacer.hold(Instant::ZERO, Some(scope), Instant::from_nanos(9)));
    assert_eq!((changed(&mut pacer).len(), changed(&mut pacer).len()), (1_000, 0), "what is held is reported once");
    pacer.enqueue(Instant::ZERO, Request::new(&scopes[7], Cost::request())).expect("small enough");
    assert_eq!(
        [changed(&mut pacer), changed(&mut pacer)],
        [["7"], ["7"]],
        "what it waits for may change with the account"
    );
    pacer.resume(Instant::ZERO, Some(&scopes[7]));
    assert_eq!((changed(&mut pacer), changed(&mut pacer).len()), (vec!["7".into()], 0), "it has left");
}

/// Ten thousand that wait cost an input no more than a thousand: it checks the smallest bound of each kind, of the scope and of
/// all.
#[test]
fn what_waits_with_a_bound_costs_inputs_and_no_walks() {
    let asked = |waiting: usize| {
        let config = PacerConfig {
            limits: Limits { quotas: vec![Quota::per_minute(6_000)], burst: Some(1) },
            pace: Pace::Fixed,
            ..PacerConfig::default()
        };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        let bounds = [MaxWait::Known(Duration::from_secs(9)), MaxWait::Pause(Duration::from_secs(9))];
        for n in 0..waiting {
            let max_wait = Some(bounds[n % 2]);
            pacer.enqueue(Instant::ZERO, Request { max_wait, ..Request::new(&scope, Cost::request()) }).expect("fits");
        }
        let before = pacer.bounded_waits.asked.get();
        let mut inputs = 0;
        for _ in 0..500 {
            let now = pacer.poll_timeout().unwrap_or(pacer.now);
            pacer.handle_timeout(now);
            inputs += 1;
            while let Some(event) = pacer.poll_event() {
                let Event::Granted { ticket, .. } = event else { panic!("{event:?}") };
                pacer.complete(now, ticket, Outcome::new(Class::Success));
                inputs += 1;
                let other = pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits");
                pacer.cancel(now, other);
                inputs += 2;
            }
        }
        assert!(inputs > 1_000, "{inputs} inputs");
        (pacer.bounded_waits.asked.get() - before) as f64 / f64::from(inputs)
    };
    let [few, many] = [1_000, 10_000].map(asked);
    assert!(many <= 6.0 && many <= few * 1.01, "{many} are asked at an input, and {few} where a tenth waits");
}

#[test]
fn what_exceeds_a_limit_is_refused_whatever_counts_it_and_what_fits_leaves() {
    let window = Duration::from_secs(60);
    for shape in [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 10 }] {
        let quota = Quota { shape, ..Quota::sliding(Dimension::Tokens, 10, window) };
        let config = PacerConfig::from(quota).with_pace(Pace::Fixed);
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("chat");
        let mut enqueue = |tokens| {
            let request = Request::new(&scope, Cost::request().with(Dimension::Tokens, tokens));
            let refused = pacer.enqueue(Instant::ZERO, request).err().map(|error| (error.cost, error.limit));
            (refused, pacer.poll_event().is_some())
        };
        assert_eq!([11, 10].map(&mut enqueue), [(Some((11, 10)), false), (None, true)], "{shape:?}");
    }
}
