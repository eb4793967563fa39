//! Discrete events in virtual time: clients, the network to the provider and back, and the results of the items.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_core::{Class, Dimension, Instant, LimitReport, QuotaShape, RefillMode, Rng};
use paceline_model::{Admission, Cause, Hints, ProviderModel, Refusal, Service, ToldWait};

use super::{Setup, SimError};
use crate::fleet::{Fleet, Process};
use crate::policy::{self, CallResult, Fate, Next, Policy, Setting, Wait, Work};
use crate::record::Record;
use crate::scenario::{Item, Scenario};
use crate::setup::FleetTrouble;
use crate::trace::{PaceNow, Recorder, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client's policy is due.
    Wake(u32),
    /// A call reaches the provider.
    Arrive(u32),
    /// The service of a call ends, unless calls came or went since: then the number differs.
    End(u32, u64),
    /// An answer reaches its client.
    Answer(u32),
    /// The number of workers changes.
    Workers,
    /// Something happens in the fleet.
    Fleet,
    /// A trouble of the fleet.
    Trouble(u32),
}

/// A call under way.
#[derive(Clone, Debug)]
struct Call {
    item: u32,
    lane: u32,
    sent: Instant,
    in_flight: u32,
    class: Class,
    wait: Option<ToldWait>,
    limits: Vec<LimitReport>,
    service: Option<Service>,
}

/// A policy, and the work of the clients that ask it.
struct Lane<'a> {
    policy: Box<dyn Policy>,
    work: Work<'a>,
    in_flight: u32,
    /// Calls that its workers can have under way.
    most: u32,
    /// The next question that is planned.
    wake: Option<Instant>,
}

/// Clients, provider, and what is planned.
pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    hints: Hints,
    items: &'a [Item],
    pub(crate) provider: ProviderModel,
    clients_a_lane: u32,
    lanes: Vec<Lane<'a>>,
    fleet: Option<Rc<RefCell<Fleet>>>,
    /// The next event of the fleet that is planned.
    fleet_wakes: Option<Instant>,
    troubles: Vec<(Duration, FleetTrouble)>,
    calls: Vec<Call>,
    /// Places in `calls` that are free.
    free: Vec<u32>,
    /// Calls in service where they slow each other down.
    sharing: Vec<u32>,
    /// Counts the changes of `sharing`.
    changes: u64,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Events of the same instant happen in the order in which they were planned.
    planned: u64,
    now: Instant,
    network: Rng,
    refusals: Rng,
    lies: Rng,
    pub(crate) record: Record,
    /// None where only the figures at the end are wanted.
    pub(crate) recorder: Option<Recorder>,
}

impl<'a> World<'a> {
    /// Nothing has happened; every client is about to begin, the first at once, the others within a second.
    pub(crate) fn new(
        scenario: &'a Scenario,
        setup: &Setup,
        hints: Hints,
        items: &'a [Item],
        provider: ProviderModel,
        seeds: &mut Rng,
    ) -> Result<Self, SimError> {
        let [network, refusals, lies, starts] = [(); 4].map(|()| seeds.next_u64());
        let lanes = if setup.share { 1 } else { setup.clients };
        let clients_a_lane = setup.clients / lanes;
        let most = scenario.most_workers().saturating_mul(clients_a_lane);
        let fleet = setup.fleet.as_ref().map(|fleet| Rc::new(RefCell::new(Fleet::of(fleet, setup.seed))));
        let troubles = setup.fleet.as_ref().map_or_else(Vec::new, |fleet| fleet.troubles.clone());
        let lane = |index: u32| {
            let (scope, seed) = (setup.scope.as_str(), seeds.next_u64());
            let setting = Setting { scenario, processes: lanes, scope, in_flight: most, seed, fleet: fleet.as_ref() };
            let policy = match &setup.pacer {
                Some(config) => policy::configured(config, &setting).map_err(SimError::Pacer)?,
                None => policy::named(&setup.policy, &setting).ok_or_else(|| SimError::Policy(setup.policy.clone()))?,
            };
            Ok(Lane { policy, work: Work::new(items, index, lanes), in_flight: 0, most, wake: None })
        };
        let mut world = Self {
            scenario,
            hints,
            items,
            provider,
            clients_a_lane,
            lanes: (0..lanes).map(lane).collect::<Result<_, SimError>>()?,
            fleet,
            fleet_wakes: None,
            troubles,
            calls: Vec::new(),
            free: Vec::new(),
            sharing: Vec::new(),
            changes: 0,
            events: BinaryHeap::new(),
            planned: 0,
            now: Instant::ZERO,
            network: Rng::new(network),
            refusals: Rng::new(refusals),
            lies: Rng::new(lies),
            record: Record::new(setup.clients, scenario.items),
            recorder: None,
        };
        let mut starts = Rng::new(starts);
        for lane in 0..lanes {
            let start = if lane == 0 { 0.0 } else { starts.unit() };
            let late = world.troubles.iter().find(|(_, trouble)| *trouble == FleetTrouble::Late(lane));
            let start = late.map_or(Duration::from_secs_f64(start), |(at, _)| *at);
            world.wake(lane, Instant::ZERO + start);
            if let Some(fleet) = &world.fleet {
                fleet.borrow_mut().processes[lane as usize].suspend(Instant::ZERO + start);
            }
        }
        for index in 0..world.troubles.len() {
            world.plan(Instant::ZERO + world.troubles[index].0, Event::Trouble(index as u32));
        }
        world.plan_fleet();
        world.count_workers();
        for step in scenario.workers.iter().filter(|step| !step.at.is_zero()) {
            world.plan(Instant::ZERO + step.at, Event::Workers);
        }
        Ok(world)
    }

    /// Every policy notes from now on what its calls wait for.
    pub(crate) fn watch(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.policy.watch());
    }

    /// What the calls of the first client waited for, the longest time between two of them, and when it ended.
    pub(crate) fn waited(&mut self) -> (Vec<Wait>, Duration, Instant) {
        let (waits, longest) = self.lanes[0].policy.waited(self.now);
        (waits, longest, self.now)
    }

    /// How many calls of the first client tested whether a failing server is back.
    pub(crate) fn probes(&self) -> u64 {
        self.lanes[0].policy.probes(self.now)
    }

    /// Lets everything happen up to `end`, or until every item has ended, or `stop` is true.
    pub(crate) fn run(&mut self, end: Instant, stop: &AtomicBool) {
        while let Some(Reverse((at, _, event))) = self.events.pop()
            && at <= end
            && !self.record.is_over()
            && !stop.load(Ordering::Relaxed)
        {
            if self.recorder.is_some() {
                self.trace(at);
            }
            self.now = at;
            match event {
                Event::Wake(lane) if self.lanes[lane as usize].wake == Some(at) => {
                    self.lanes[lane as usize].wake = None;
                    self.ask(lane);
                }
                Event::Arrive(call) => self.arrive(call),
                Event::End(call, changes) if changes == self.changes || !self.provider.is_shared() => self.end(call),
                Event::Answer(call) => self.answer(call),
                Event::Workers => self.workers_change(),
                Event::Fleet if self.fleet_wakes == Some(at) => self.fleet_acts(),
                Event::Trouble(index) => self.trouble(self.troubles[index as usize].1),
                Event::Wake(_) | Event::End(..) | Event::Fleet => {}
            }
            self.plan_fleet();
        }
        if let Some(recorder) = &self.recorder {
            self.trace(if self.record.is_over() { recorder.ends() } else { end });
        }
    }

    /// Ends the spans that end by then.
    fn trace(&mut self, by: Instant) {
        while let Some(ends) = self.recorder.as_ref().map(Recorder::ends).filter(|ends| *ends <= by) {
            let pace = self.pace(ends);
            if let Some(recorder) = &mut self.recorder {
                let capacity = self.scenario.capacity(self.provider.schedule(), recorder.current().start);
                recorder.close(capacity, pace);
            }
        }
    }

    fn pace(&self, now: Instant) -> PaceNow {
        let alone = self.lanes.len() == 1;
        let at_work = |client: &usize| alone || self.record.is_open(*client);
        let policies = (0..self.lanes.len()).filter(at_work).map(|lane| &self.lanes[lane].policy);
        let Some(first) = policies.clone().next() else { return PaceNow::default() };
        PaceNow {
            rate: policies.clone().map(|policy| policy.rate(now)).sum(),
            limit: policies.map(|policy| policy.limit(now)).sum(),
            delay: first.delay(now).filter(|delay| !delay.is_zero()),
            description: first.explain(now),
        }
    }

    /// Counts something in the present span, where there is one.
    fn count(&mut self, what: fn(&mut Span) -> &mut u32) {
        if let Some(recorder) = &mut self.recorder {
            *what(recorder.current()) += 1;
        }
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    /// Updates the number of workers of every policy.
    fn count_workers(&mut self) {
        let most = self.scenario.workers(self.now).saturating_mul(self.clients_a_lane);
        for lane in self.lanes.iter_mut().filter(|lane| lane.most != most) {
            lane.most = most;
            lane.policy.workers(self.now, most);
        }
    }

    fn workers_change(&mut self) {
        self.count_workers();
        (0..self.lanes.len()).for_each(|lane| self.ask(u32::try_from(lane).expect("lanes are counted in 32 bits")));
    }

    /// Asks the policy at `at`, unless it is asked before.
    fn wake(&mut self, lane: u32, at: Instant) {
        let wake = &mut self.lanes[lane as usize].wake;
        if wake.is_none_or(|planned| at < planned) {
            *wake = Some(at);
            self.plan(at, Event::Wake(lane));
        }
    }

    /// Sends all calls that a policy allows, while there is work.
    fn ask(&mut self, index: u32) {
        let opens = self.scenario.duty.map_or(self.now, |duty| duty.opens(self.now));
        if opens > self.now {
            return self.wake(index, opens);
        }
        loop {
            let lane = &mut self.lanes[index as usize];
            if lane.in_flight >= lane.most {
                return;
            }
            match lane.policy.next(self.now, &mut lane.work) {
                Next::Send(item) => self.send(index, item),
                Next::Lose(item) => self.record.lost(item, self.now),
                Next::At(at) => return self.wake(index, at),
                Next::OnEvent => return,
            }
        }
    }

    /// Plans when something happens in the fleet.
    fn plan_fleet(&mut self) {
        let Some(next) = self.fleet.as_ref().and_then(|fleet| fleet.borrow().next()) else { return };
        let next = next.max(self.now);
        if self.fleet_wakes.is_none_or(|planned| next < planned) {
            self.fleet_wakes = Some(next);
            self.plan(next, Event::Fleet);
        }
    }

    /// What is due in the fleet happens; then calls may leave anywhere.
    fn fleet_acts(&mut self) {
        self.fleet_wakes = None;
        let Some(fleet) = &self.fleet else { return };
        fleet.borrow_mut().advance(self.now);
        for lane in 0..self.lanes.len() {
            let place = u32::try_from(lane).expect("lanes are counted in 32 bits");
            if self.fleet.as_ref().is_some_and(|fleet| !fleet.borrow().processes[lane].is_away(self.now)) {
                self.ask(place);
            }
        }
    }

    fn trouble(&mut self, trouble: FleetTrouble) {
        let Some(fleet) = &self.fleet else { return };
        let (mut fleet, now) = (fleet.borrow_mut(), self.now);
        match trouble {
            FleetTrouble::Late(_) => {}
            FleetTrouble::Kill(place) => fleet.processes[place as usize].kill(),
            FleetTrouble::KillReader => {
                let reader = fleet.processes.iter_mut().find(|process| !process.is_dead() && process.decides(now));
                reader.into_iter().for_each(Process::kill);
            }
            FleetTrouble::Cut(place, time) => fleet.processes[place as usize].cut_off(now + time),
            FleetTrouble::CutAll(time) => fleet.processes.iter_mut().for_each(|process| process.cut_off(now + time)),
            FleetTrouble::Lost => fleet.restart(now, None, now + Duration::from_millis(1)),
        }
    }

    fn send(&mut self, index: u32, item: u32) {
        let lane = &mut self.lanes[index as usize];
        lane.in_flight += 1;
        let call = Call {
            item,
            lane: index,
            sent: self.now,
            in_flight: lane.in_flight,
            class: Class::Success,
            wait: None,
            limits: Vec::new(),
            service: None,
        };
        self.record.sent(item, self.now);
        if let Some(recorder) = &mut self.recorder {
            recorder.sent();
        }
        let place = match self.free.pop() {
            Some(place) => {
                self.calls[place as usize] = call;
                place
            }
            None => {
                self.calls.push(call);
                u32::try_from(self.calls.len() - 1).expect("fewer than 2^32 calls in flight")
            }
        };
        let at = self.now + self.way();
        self.plan(at, Event::Arrive(place));
    }

    /// The time from the client to the provider, or back.
    fn way(&mut self) -> Duration {
        self.scenario.net.mul_f64(0.5 * (0.8 + 0.4 * self.network.unit()))
    }

    fn arrive(&mut self, place: u32) {
        let item = &self.items[self.calls[place as usize].item as usize];
        match self.provider.arrive_with(self.now, &item.cost, item.service) {
            Admission::Admitted(service) => self.admitted(place, service),
            Admission::Refused(refusal) => self.refused(place, &refusal),
        }
        self.calls[place as usize].limits = self.reports();
    }

    fn admitted(&mut self, place: u32, service: Service) {
        let tokens = self.items[self.calls[place as usize].item as usize].cost.get(&Dimension::Tokens);
        self.record.admitted(self.now, tokens);
        self.count(|span| &mut span.admitted);
        let call = &mut self.calls[place as usize];
        call.class = if service.fault { Class::Transient } else { Class::Success };
        call.service = Some(service);
        if self.provider.is_shared() {
            self.sharing.push(place);
            self.plan_next_end();
        } else {
            self.plan(self.provider.due(&service, 1.0), Event::End(place, 0));
        }
    }

    fn refused(&mut self, place: u32, refusal: &Refusal) {
        let chance = matches!(refusal.cause, Cause::Chance { .. });
        // What no policy could have prevented is no waste.
        if !chance {
            self.record.refused(self.now);
        }
        self.count(|span| &mut span.refused);
        let call = &mut self.calls[place as usize];
        call.class = match refusal.cause {
            Cause::Overloaded | Cause::Chance { status: 503 | 529 } => Class::Overloaded,
            Cause::Limit { .. } | Cause::Concurrency { .. } | Cause::TooLarge { .. } | Cause::Chance { .. } => {
                Class::Throttled
            }
        };
        call.wait = if chance {
            refusal.wait.map(|wait| ToldWait { wait, exact: false })
        } else {
            self.hints.wait(refusal.wait, &mut self.lies)
        };
        let work = self.scenario.refuse.mul_f64(-libm::log(1.0 - self.refusals.unit()));
        let at = self.now + work + self.way();
        self.plan(at, Event::Answer(place));
    }

    /// Calls came or went, so that the planned end does not hold any more.
    fn plan_next_end(&mut self) {
        self.changes += 1;
        let due = |place: &u32| {
            let service = self.calls[*place as usize].service.as_ref().expect("calls in service have a service");
            (self.provider.due(service, 1.0), *place)
        };
        if let Some((at, place)) = self.sharing.iter().map(due).min() {
            self.plan(at, Event::End(place, self.changes));
        }
    }

    fn end(&mut self, place: u32) {
        self.provider.finish(self.now);
        if self.provider.is_shared() {
            self.sharing.retain(|other| *other != place);
            self.plan_next_end();
        }
        let at = self.now + self.way();
        self.plan(at, Event::Answer(place));
    }

    fn answer(&mut self, place: u32) {
        let call = self.calls[place as usize].clone();
        self.free.push(place);
        if let Some(recorder) = &mut self.recorder {
            recorder.ended();
        }
        let lane = &mut self.lanes[call.lane as usize];
        lane.in_flight -= 1;
        let answer = CallResult {
            item: call.item,
            class: call.class,
            sent: call.sent,
            in_flight: call.in_flight,
            wait: call.wait,
            limits: &call.limits,
            cost: &self.items[call.item as usize].cost,
        };
        match lane.policy.answered(self.now, &answer) {
            Fate::Done => {
                self.record.succeeded(call.item, self.now);
                self.count(|span| &mut span.succeeded);
            }
            Fate::Lost => {
                self.record.lost(call.item, self.now);
                self.count(|span| &mut span.lost);
            }
            Fate::Again => {}
        }
        self.ask(call.lane);
    }

    /// The limits that the headers announce.
    fn reports(&mut self) -> Vec<LimitReport> {
        if !self.hints.has_headers() {
            return Vec::new();
        }
        let shapes = self.scenario.provider.limits.iter().map(|limit| limit.quota.shape);
        let announced = self.provider.states(self.now).into_iter().zip(shapes).filter_map(|(truth, shape)| {
            let state = self.hints.state(&truth)?;
            Some(LimitReport {
                dimension: state.dimension,
                limit: Some(state.limit),
                remaining: Some(state.remaining),
                reset: Some(state.reset),
                window: Some(state.window),
                restores: if shape == QuotaShape::Fixed { RefillMode::AtOnce } else { RefillMode::Gradually },
            })
        });
        announced.collect()
    }
}
