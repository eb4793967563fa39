//! The calls of a fleet under one told limit: they arrive, wait, leave and end, and what left within a window is counted.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use paceline_core::fleet::{FleetLimit, LimitKind, MemberConfig, MemberId, MemberInput, OnLoss};
use paceline_core::{
    BreakerConfig, Class, Concurrency, Cost, Dimension, Event, Hint, Instant, Limits, NextAction, Outcome, Pace, Pacer,
    PacerConfig, Quota, Request, Rng, Ticket,
};

use super::network::{Network, Weather};
use super::process::{Clock, Process};
use super::store::{Fencing, Store};
use super::{Fleet, ms};

/// Under a limit on a window calls take up to twice this.
const CALL: Duration = ms(150);

/// What a fleet shares, and how it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) units: u64,
    pub(super) window: Duration,
    pub(super) lease: Duration,
    pub(super) weather: Weather,
    pub(super) fencing: Fencing,
    /// The units are calls in flight, of which none takes longer than the window.
    pub(super) in_flight: bool,
}

/// A fleet and its calls.
pub(super) struct Traffic {
    pub(super) fleet: Fleet,
    pub(super) now: Instant,
    pub(super) terms: Terms,
    pub(super) callers: Vec<Callers>,
    rng: Rng,
    /// Calls in flight, by their end.
    ends: BTreeMap<(Instant, u64), (usize, Ticket, Instant)>,
    /// Calls that have left.
    pub(super) started: u64,
    /// How many had left when an answer came, the first since this was emptied.
    pub(super) left_at_answer: Option<u64>,
    /// Answers that a suspended host reads later.
    kept: u64,
    starts: VecDeque<(Instant, u64)>,
    /// When the server is done with the calls that it has.
    at_server: Vec<Instant>,
    in_window: u64,
    /// The most that any window held, or that were in flight.
    pub(super) fullest: u64,
    /// Between these the server refuses all calls, and says how long.
    pub(super) closed: Option<(Instant, Instant)>,
    /// When calls left that were refused.
    pub(super) refused: Vec<Instant>,
}

/// What wants to leave at one process.
pub(super) struct Callers {
    /// Between two calls; none: there are none.
    every: Option<Duration>,
    next: Instant,
    pub(super) cost: u64,
    waiting: VecDeque<Ticket>,
    /// Units that have left.
    pub(super) left: u64,
}

impl Traffic {
    pub(super) fn new(seed: u64, terms: Terms) -> Self {
        let mut rng = Rng::new(seed);
        let store = Store::new(&limits(&terms), terms.lease, terms.fencing);
        let fleet = Fleet::new(store, Network::new(terms.weather, rng.next_u64()));
        Self {
            fleet,
            now: Instant::ZERO + Duration::from_secs(1_000),
            terms,
            callers: Vec::new(),
            rng,
            ends: BTreeMap::new(),
            started: 0,
            left_at_answer: None,
            kept: 0,
            starts: VecDeque::new(),
            at_server: Vec::new(),
            in_window: 0,
            fullest: 0,
            closed: None,
            refused: Vec::new(),
        }
    }

    /// A process of that weight begins, whose calls cost so much each.
    pub(super) fn join(&mut self, cost: u64, weight: u64) {
        let Terms { units, window, weather, .. } = self.terms;
        let rate = 1.0 + weather.drift * (2.0 * self.rng.unit() - 1.0);
        let clock = Clock { offset: Duration::from_secs(self.rng.next_u64() % 100_000), rate };
        let quotas = vec![Quota::sliding(Dimension::Tokens, units, window)];
        let (quotas, places) =
            if self.terms.in_flight { (Vec::new(), u32::try_from(units).ok()) } else { (quotas, None) };
        let config = PacerConfig {
            pace: Pace::Fixed,
            limits: Limits { quotas, burst: None },
            places,
            longest_call: Some(window),
            concurrency: Concurrency::Fixed { max: 100_000 },
            breaker: BreakerConfig { min_distinct_items: u32::MAX, ..BreakerConfig::default() },
            ..PacerConfig::default()
        };
        let id = MemberId(self.rng.next_u64());
        let local = clock.reads(self.now);
        let mut pacer = Pacer::new(config, id.0, local).expect("sound limits");
        pacer.divide(local).expect("a sliding window can be divided");
        let scope = pacer.scope("calls");
        let (limits, on_loss, alone_share) = (limits(&self.terms), OnLoss::Strict, Vec::new());
        let member = MemberConfig { id, weight, limits, on_loss, alone_share };
        self.fleet.join(Process::new(self.now, pacer, scope, member, clock));
        self.callers.push(Callers { every: None, next: self.now, cost, waiting: VecDeque::new(), left: 0 });
    }

    /// From now on so many units a second want to leave at a process. What waited there does not stay behind, where the process
    /// runs.
    pub(super) fn demand(&mut self, place: usize, units: f64) {
        let process = &mut self.fleet.processes[place];
        let (local, is_away) = (process.reads(self.now), process.is_away(self.now));
        if !is_away {
            // What may leave does so first: a call that is withdrawn after it was granted counts as none.
            process.pacer.handle_timeout(local);
            self.depart(place);
        }
        let callers = &mut self.callers[place];
        callers.every = (units > 0.0).then(|| Duration::from_secs_f64(callers.cost as f64 / units));
        callers.next = self.now + callers.every.map_or(Duration::ZERO, |every| every.mul_f64(self.rng.unit()));
        if !is_away {
            let process = &mut self.fleet.processes[place];
            for ticket in callers.waiting.drain(..) {
                process.pacer.cancel(local, ticket);
            }
            process.plan(self.now);
        }
    }

    /// A process leaves the fleet, and sends no more.
    pub(super) fn leave(&mut self, place: usize) {
        self.demand(place, 0.0);
        self.fleet.hear(self.now, place, MemberInput::Leave);
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let arrives = self.callers.iter().enumerate().filter_map(|(place, callers)| self.arrives(place, callers));
            let ends = self.ends.first_key_value().map(|((end, _), _)| *end);
            let next = arrives.chain(ends).chain(self.fleet.next()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.fleet.advance(self.now);
            while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= self.now) {
                let (place, ticket, left) = first.remove();
                self.ended(place, ticket, left);
            }
            for place in 0..self.callers.len() {
                self.arrive(place);
                self.depart(place);
            }
        }
        self.now = end;
    }

    /// When the next call of a process arrives that is to be noticed.
    fn arrives(&self, place: usize, callers: &Callers) -> Option<Instant> {
        let process = &self.fleet.processes[place];
        callers.every.filter(|_| !process.is_dead())?;
        Some(callers.next.max(process.away_until()))
    }

    fn arrive(&mut self, place: usize) {
        let process = &mut self.fleet.processes[place];
        if process.is_away(self.now) {
            return;
        }
        let (local, callers) = (process.reads(self.now), &mut self.callers[place]);
        let Some(every) = callers.every.filter(|_| callers.next <= self.now) else { return };
        // More than two windows full would not be noticed.
        let most = 2 + 2 * self.terms.units / callers.cost;
        while callers.next <= self.now {
            callers.next += every;
            if (callers.waiting.len() as u64) < most {
                let cost = Cost::request().with(Dimension::Tokens, callers.cost);
                let request = Request::new(&process.scope, cost);
                callers.waiting.push_back(process.pacer.enqueue(local, request).expect("it fits the limit"));
            }
        }
        process.plan(self.now);
    }

    /// Counts the calls that leave a process.
    fn depart(&mut self, place: usize) {
        let (process, callers) = (&mut self.fleet.processes[place], &mut self.callers[place]);
        while let Some(event) = process.pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { continue };
            callers.waiting.retain(|waiting| *waiting != ticket);
            callers.left += callers.cost;
            self.starts.push_back((self.now, callers.cost));
            self.in_window += callers.cost;
            self.started += 1;
            let longest = if self.terms.in_flight { self.terms.window - ms(1) } else { 2 * CALL };
            let end = self.now + ms(1) + longest.mul_f64(self.rng.unit());
            self.ends.insert((end, self.started), (place, ticket, self.now));
            self.at_server.push(end);
        }
        self.at_server.retain(|end| *end > self.now);
        if self.terms.in_flight {
            self.fullest = self.fullest.max(self.at_server.len() as u64);
            return;
        }
        // A window of a clock that is as fast as one may be.
        let window = self.terms.window.div_f64(1.0 + self.terms.weather.drift);
        while let Some((_, units)) = self.starts.front().filter(|(start, _)| *start + window <= self.now) {
            self.in_window -= units;
            self.starts.pop_front();
        }
        self.fullest = self.fullest.max(self.in_window);
    }

    fn ended(&mut self, place: usize, ticket: Ticket, left: Instant) {
        let process = &mut self.fleet.processes[place];
        if process.is_away(self.now) {
            if !process.is_dead() {
                self.kept += 1;
                self.ends.insert((process.away_until(), u64::MAX - self.kept), (place, ticket, left));
            }
            return;
        }
        self.left_at_answer.get_or_insert(self.started);
        let local = process.reads(self.now);
        let refused = self.closed.filter(|(from, until)| (*from..*until).contains(&left));
        let outcome = refused.map_or(Outcome::new(Class::Success), |(_, until)| {
            self.refused.push(left);
            Outcome { hint: Some(Hint::new(until - self.now, true)), ..Outcome::new(Class::Throttled) }
        });
        if let NextAction::Retry { next, .. } = process.pacer.complete(local, ticket, outcome) {
            let again = process.pacer.enqueue(local, *next).expect("it had room before");
            self.callers[place].waiting.push_back(again);
        }
        process.plan(self.now);
    }
}

pub(super) fn limits(terms: &Terms) -> Vec<FleetLimit> {
    let kind = if terms.in_flight { LimitKind::Places } else { LimitKind::Window };
    vec![FleetLimit { units: terms.units, kind: kind(terms.window) }]
}
