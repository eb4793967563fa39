//! A fleet in virtual time: members with clocks of their own, a ledger, and a network that loses, delays, doubles and
//! reorders.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::background::Ask;
use crate::config::{Limits, Quota};
use crate::cost::{Cost, Dimension};
use crate::fleet::{
    FleetLimit, Ledger, LimitKind, Member, MemberChange, MemberConfig, MemberId, MemberRequest, OnLoss, Quiet,
    SyncReply,
};
use crate::quota::Quotas;
use crate::rng::Rng;
use crate::time::Instant;

/// What the world does to messages and to whom.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    pub(super) loss: f64,
    pub(super) doubled: f64,
    pub(super) delay: Duration,
    /// Clocks run up to this share faster or slower.
    pub(super) drift: f64,
}

pub(super) const FAIR: Weather = Weather { loss: 0.0, doubled: 0.0, delay: Duration::from_millis(4), drift: 0.0 };

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) rng: Rng,
    /// What the ledger divides.
    pub(super) limit: u64,
    /// What each of two members may use without it, on top of that. Where one has ended, the next that begins has its share.
    pub(super) alone: u64,
    pub(super) window: Duration,
    pub(super) lease: Duration,
    pub(super) ledger: Ledger,
    pub(super) run: u64,
    /// Nothing reaches the store before that.
    pub(super) down_until: Instant,
    /// When the run began, on the store's clock, where it has said that to no member yet.
    began: Option<Instant>,
    /// Added to the store's clock, in nanoseconds.
    pub(super) step: i64,
    pub(super) nodes: Vec<Node>,
    pub(super) weather: Weather,
    pub(super) requests: u64,
    messages: BTreeMap<(Instant, u64), (u64, usize, Message)>,
    sent: u64,
    starts: VecDeque<(Instant, u64)>,
    in_window: u64,
    /// The most that any window held.
    pub(super) worst: u64,
}

#[derive(Clone)]
enum Message {
    Request(MemberRequest),
    Reply(u64, Option<SyncReply>),
    Hint,
}

pub(super) struct Node {
    pub(super) id: u64,
    member: Member,
    window: Quotas,
    allowed: (u64, Instant),
    rate: f64,
    offset: Duration,
    /// Calls a second that want to leave, and what one costs.
    pub(super) demand: f64,
    pub(super) cost: u64,
    alone: bool,
    /// What a call costs that came before those that wait.
    pub(super) first: Option<u64>,
    arrived: f64,
    pub(super) waiting: u64,
    pub(super) granted: u64,
    pub(super) away_until: Instant,
    pub(super) cut_until: Instant,
    pub(super) dead: bool,
}

impl World {
    pub(super) fn new(seed: u64, limit: u64, window: Duration, lease: Duration, weather: Weather) -> Self {
        let ledger = Ledger::found(&limits(limit, window), lease, 1);
        Self {
            now: at(Duration::from_secs(1_000)),
            rng: Rng::new(seed),
            limit,
            alone: 0,
            window,
            lease,
            ledger,
            run: 1,
            down_until: Instant::ZERO,
            began: None,
            step: 0,
            nodes: Vec::new(),
            weather,
            requests: 0,
            messages: BTreeMap::new(),
            sent: 0,
            starts: VecDeque::new(),
            in_window: 0,
            worst: 0,
        }
    }

    /// A process begins.
    pub(super) fn join(&mut self, demand: f64, cost: u64) {
        let id = self.rng.next_u64();
        let rate = 1.0 + self.weather.drift * (2.0 * self.rng.unit() - 1.0);
        let offset = Duration::from_secs(self.rng.next_u64() % 100_000);
        let local = local(offset, rate, self.now);
        let alone = if self.nodes.iter().filter(|node| node.alone && !node.dead).count() < 2 { self.alone } else { 0 };
        let config = MemberConfig {
            id: MemberId(id),
            weight: 1,
            limits: limits(self.limit, self.window),
            on_loss: OnLoss::Strict,
            alone_share: vec![alone],
        };
        let quota = Quota::sliding(Dimension::Tokens, self.limit, self.window);
        let mut window = Quotas::new(&Limits { quotas: vec![quota], burst: None }).expect("a limit");
        window.set_allowance(0, 0);
        let node = Node {
            id,
            member: Member::new(config, id, local),
            window,
            allowed: (0, Instant::MAX),
            rate,
            offset,
            demand,
            cost,
            alone: alone > 0,
            first: None,
            arrived: 0.0,
            waiting: 0,
            granted: 0,
            away_until: self.now,
            cut_until: self.now,
            dead: false,
        };
        self.nodes.push(node);
        if self.down_until <= self.now {
            self.link(self.nodes.len() - 1);
        }
    }

    fn link(&mut self, place: usize) {
        let asked = self.store_clock();
        let quiet = self.began.take().map(|since| Quiet { since, asked });
        let node = &mut self.nodes[place];
        let local = node.clock(self.now);
        node.member.linked(local, self.run, quiet);
    }

    fn store_clock(&self) -> Instant {
        Instant::from_nanos(self.now.as_nanos().saturating_add_signed(self.step))
    }

    /// The store comes back with what it had once, or with nothing: connections are gone, and its run is another one. It is
    /// reached again later.
    pub(super) fn roll_back(&mut self, ledger: Ledger, down_until: Instant) {
        self.ledger = ledger;
        self.run += 1;
        (self.began, self.down_until) = (Some(self.store_clock()), down_until);
        self.messages.clear();
        for node in self.nodes.iter_mut().filter(|node| !node.dead) {
            let local = node.clock(self.now);
            node.member.unlinked(local);
        }
    }

    pub(super) fn leave(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let local = node.clock(self.now);
        let taken = node.window.counters().map(|(_, counter)| counter.taken(local)).collect();
        node.member.leave(local, taken);
        (node.demand, node.waiting, node.alone) = (0.0, 0, false);
        self.settle(place);
    }

    pub(super) fn tick(&mut self, by: Duration) {
        let was_down = self.down_until > self.now;
        self.now += by;
        if was_down && self.down_until <= self.now {
            let alive: Vec<usize> = (0..self.nodes.len()).filter(|place| !self.nodes[*place].dead).collect();
            alive.into_iter().for_each(|place| self.link(place));
        }
        while let Some(message) = self.messages.first_entry().filter(|message| message.key().0 <= self.now) {
            let (run, place, message) = message.remove();
            self.deliver(run, place, message);
        }
        for place in 0..self.nodes.len() {
            let node = &mut self.nodes[place];
            if node.dead || node.away_until > self.now {
                continue;
            }
            node.arrived += node.demand * by.as_secs_f64();
            node.waiting += node.arrived as u64;
            node.arrived %= 1.0;
            // Also right after a suspension: before the member hears of the time.
            self.call(place);
            self.pump(place);
            self.call(place);
        }
    }

    fn call(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let local = node.clock(self.now);
        while node.first.is_some() || node.waiting > 0 {
            let units = node.next();
            let cost = Cost::zero().with(Dimension::Tokens, units);
            if local >= node.allowed.1 || !node.window.admit(local, &Ask::of(&cost)).is_now() {
                break;
            }
            node.window.take(local, local, &cost);
            if node.first.take().is_none() {
                node.waiting -= 1;
            }
            node.granted += units;
            self.starts.push_back((self.now, units));
            self.in_window += units;
        }
        // A window of a clock that is as fast as one may be.
        let window = self.window.div_f64(1.0 + self.weather.drift);
        while let Some((_, units)) = self.starts.front().copied().filter(|(start, _)| *start + window <= self.now) {
            self.in_window -= units;
            self.starts.pop_front();
        }
        self.worst = self.worst.max(self.in_window);
    }

    fn pump(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let local = node.clock(self.now);
        let used = node.window.counters().map(|(_, counter)| counter.used(local)).sum();
        let waiting = node.first.unwrap_or(0) + node.waiting * node.cost;
        node.member.demand(0, used, waiting, node.next());
        node.member.handle_timeout(local);
        self.settle(place);
    }

    /// What the member says, in the order that it asks for.
    fn settle(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        while let Some(change) = node.member.poll_change() {
            if let MemberChange::Allow { units, until, .. } = change {
                node.allowed = (units, until);
                node.window.set_allowance(0, units);
            }
        }
        while let Some(request) = self.nodes[place].member.poll_request() {
            self.requests += 1;
            self.send(place, Message::Request(request));
        }
    }

    fn send(&mut self, place: usize, message: Message) {
        let Weather { loss, doubled, delay, .. } = self.weather;
        if self.nodes[place].cut_until > self.now {
            return;
        }
        let copies = if self.rng.unit() < doubled { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.unit() < loss {
                continue;
            }
            // Now and then one takes much longer: it is overtaken, and comes after it was given up.
            let factor = if self.rng.unit() < doubled { 12.0 } else { 1.0 };
            let due = self.now + delay.mul_f64(self.rng.unit() * factor);
            self.sent += 1;
            self.messages.insert((due, self.sent), (self.run, place, message.clone()));
        }
    }

    fn deliver(&mut self, run: u64, place: usize, message: Message) {
        if run != self.run || self.nodes[place].cut_until.max(self.down_until) > self.now {
            return;
        }
        let store = self.store_clock();
        match message {
            Message::Request(MemberRequest::Sync(request)) => {
                let reply = self.ledger.sync(store, &request);
                self.send(place, Message::Reply(request.seq, reply));
            }
            Message::Request(MemberRequest::Bye(request)) => {
                self.ledger.bye(store, &request);
                self.send(place, Message::Reply(request.seq, None));
            }
            Message::Request(MemberRequest::Board(request)) => unreachable!("no member says {request:?}"),
            message => self.hear(place, message),
        }
        while let Some(MemberId(woken)) = self.ledger.poll_wake() {
            let place = self.nodes.iter().position(|node| node.id == woken && !node.dead);
            if let Some(place) = place {
                self.send(place, Message::Hint);
            }
        }
    }

    fn hear(&mut self, place: usize, message: Message) {
        let node = &mut self.nodes[place];
        if node.dead || node.away_until > self.now {
            return;
        }
        let local = node.clock(self.now);
        match message {
            Message::Reply(_, Some(reply)) => node.member.reply(local, &reply),
            Message::Reply(seq, None) => node.member.bye_done(local, seq),
            Message::Hint => node.member.notice(local),
            Message::Request(_) => unreachable!("the ledger takes requests"),
        }
        self.settle(place);
        self.call(place);
    }
}

impl Node {
    /// What the next call costs.
    fn next(&self) -> u64 {
        self.first.unwrap_or(self.cost)
    }

    pub(super) fn clock(&self, now: Instant) -> Instant {
        local(self.offset, self.rate, now)
    }
}

fn local(offset: Duration, rate: f64, now: Instant) -> Instant {
    at(offset + Duration::from_nanos(now.as_nanos()).mul_f64(rate))
}

pub(super) fn limits(units: u64, window: Duration) -> Vec<FleetLimit> {
    vec![FleetLimit { units, kind: LimitKind::Window(window) }]
}

fn at(duration: Duration) -> Instant {
    Instant::ZERO + duration
}
