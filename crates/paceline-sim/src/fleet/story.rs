//! Stories of faults: whatever happens to messages, processes, clocks and the store, no window of all processes together holds
//! more than the limit.

use std::time::Duration;

use paceline_core::{Instant, Rng};

use super::ms;
use super::network::Weather;
use super::store::{Fencing, Store};
use super::traffic::{Terms, Traffic};

/// Faults of a story.
const FAULTS: usize = 14;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Demand,
    Join,
    Storm,
    Kill,
    Leave,
    Suspend,
    Cut,
    CutAll,
    RollBack,
    Flush,
    Restart,
    ClockBack,
    ClockForward,
}

/// Demand moves more often than all else.
const ALL: [Fault; 15] = [
    Fault::Demand,
    Fault::Demand,
    Fault::Demand,
    Fault::Join,
    Fault::Storm,
    Fault::Kill,
    Fault::Leave,
    Fault::Suspend,
    Fault::Cut,
    Fault::CutAll,
    Fault::RollBack,
    Fault::Flush,
    Fault::Restart,
    Fault::ClockBack,
    Fault::ClockForward,
];

/// Those that the wrong way to free a share is tried with.
const SILENT: [Fault; 4] = [Fault::Demand, Fault::Cut, Fault::Kill, Fault::Join];

/// One story of faults: by how many units the fullest window of all processes exceeded their limit. The same arguments tell the
/// same story.
pub fn fleet_story(seed: u64, fencing: Fencing) -> u64 {
    Story::new(seed, fencing, false).tell()
}

/// The same under a limit on the calls in flight: by how many calls their number at the server exceeded it.
pub fn fleet_story_of_places(seed: u64, fencing: Fencing) -> u64 {
    Story::new(seed, fencing, true).tell()
}

struct Story {
    traffic: Traffic,
    rng: Rng,
    /// The store as it was at some time before.
    kept: Option<Store>,
    /// That the store's clock is set forward is noticed by a member that is known: in such a story all of them are, and stay so.
    all_known: bool,
    from: &'static [Fault],
}

impl Story {
    fn new(seed: u64, fencing: Fencing, in_flight: bool) -> Self {
        let mut rng = Rng::new(seed);
        let pick = |rng: &mut Rng, from: &[u64]| from[(rng.next_u64() % from.len() as u64) as usize];
        let units = pick(&mut rng, &[3, 20, 60]);
        let window = ms(pick(&mut rng, &[1_000, 2_000, 6_000]));
        let all_known = seed.is_multiple_of(4) && fencing == Fencing::ByLease;
        let lease = ms(pick(&mut rng, if all_known { &[8_000] } else { &[1_500, 3_000, 8_000] }));
        let weather = Weather {
            loss: if all_known { 0.02 } else { 0.15 } * rng.unit(),
            doubled: 0.15 * rng.unit(),
            delay: ms(pick(&mut rng, &[5, 100, 300])),
            drift: [0.0, 0.004][(rng.next_u64() % 2) as usize],
        };
        let traffic = Traffic::new(rng.next_u64(), Terms { units, window, lease, weather, fencing, in_flight });
        let members = 2 + rng.next_u64() % 5;
        let from: &[Fault] = if fencing == Fencing::ByLease { &ALL } else { &SILENT };
        let mut story = Self { traffic, rng, kept: None, all_known, from };
        (0..members).for_each(|_| story.join());
        // Until no first request is under way any more.
        story.traffic.run(ms(8_000));
        story
    }

    fn join(&mut self) {
        let cost = 1 + self.rng.next_u64() % (self.traffic.terms.units / 8 + 1);
        self.traffic.join(if self.traffic.terms.in_flight { 1 } else { cost }, 1);
        let place = self.traffic.callers.len() - 1;
        let demand = self.most() * self.rng.unit();
        self.traffic.demand(place, demand);
    }

    /// Three times the limit, in units a second.
    fn most(&self) -> f64 {
        let Terms { units, window, .. } = self.traffic.terms;
        3.0 * units as f64 / window.as_secs_f64()
    }

    /// As long as the longest that anything is kept, and then a little.
    fn while_(&mut self) -> Duration {
        let Terms { window, lease, .. } = self.traffic.terms;
        (window + lease).mul_f64(1.5 * self.rng.unit())
    }

    fn tell(mut self) -> u64 {
        for _ in 0..FAULTS {
            let fault = self.from[(self.rng.next_u64() % self.from.len() as u64) as usize];
            let (place, until) = (self.rng.next_u64() as usize, self.traffic.now + self.while_());
            let place = place % self.traffic.callers.len();
            if self.may_happen(fault, place) {
                self.happens(fault, place, until);
            }
            if self.rng.unit() < 0.3 {
                self.kept = Some(self.traffic.fleet.store.clone());
            }
            let next = self.while_() / 4;
            self.traffic.run(next);
        }
        self.traffic.fullest.saturating_sub(self.traffic.terms.units)
    }

    fn may_happen(&self, fault: Fault, place: usize) -> bool {
        match fault {
            Fault::Demand | Fault::Kill | Fault::ClockBack => true,
            Fault::ClockForward => self.all_known,
            Fault::Leave => !self.all_known && !self.traffic.fleet.processes[place].is_away(self.traffic.now),
            _ => !self.all_known,
        }
    }

    fn happens(&mut self, fault: Fault, place: usize, until: Instant) {
        let now = self.traffic.now;
        match fault {
            Fault::Demand => {
                let demand = if self.rng.unit() < 0.4 { 0.0 } else { self.most() * self.rng.unit() };
                self.traffic.demand(place, demand);
            }
            Fault::Join => self.join(),
            Fault::Storm => (0..8).for_each(|_| self.join()),
            Fault::Kill => self.traffic.fleet.processes[place].kill(),
            Fault::Leave => self.traffic.leave(place),
            Fault::Suspend => self.traffic.fleet.processes[place].suspend(until),
            Fault::Cut => self.traffic.fleet.processes[place].cut_off(until),
            Fault::CutAll => self.traffic.fleet.processes.iter_mut().for_each(|process| process.cut_off(until)),
            Fault::RollBack => {
                let kept = self.kept.clone();
                self.traffic.fleet.restart(now, kept, now + ms(1));
            }
            // The run goes on, and with it all connections.
            Fault::Flush => self.traffic.fleet.store.is_flushed(),
            Fault::Restart => self.traffic.fleet.restart(now, None, until),
            Fault::ClockBack => self.traffic.fleet.store.set_clock(-((60e9 * self.rng.unit()) as i64)),
            Fault::ClockForward => self.traffic.fleet.store.set_clock((60e9 * self.rng.unit()) as i64),
        }
    }
}
