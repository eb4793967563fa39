//! No window of the fleet ever holds more than its limit, whatever happens to messages, members, clocks and the store.

use alloc::vec::Vec;
use core::time::Duration;

use proptest::test_runner::{Config, TestRunner};

use super::world::{FAIR, Weather, World, limits};
use crate::fleet::Ledger;
use crate::rng::Rng;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const STEP: Duration = ms(40);

/// What may happen. One seed is one story of these.
#[derive(Clone, Copy, Debug)]
enum Event {
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

struct Story {
    world: World,
    rng: Rng,
    /// What the ledger was at some time before.
    kept: Ledger,
    /// That the store's clock is set forward is noticed by a member that is known: in such a story all of them are.
    all_known: bool,
}

impl Story {
    fn new(seed: u64, wrong: bool) -> Self {
        let mut rng = Rng::new(seed);
        let pick = |rng: &mut Rng, from: &[u64]| from[(rng.next_u64() % from.len() as u64) as usize];
        let limit = pick(&mut rng, &[3, 20, 100]);
        let window = ms(pick(&mut rng, &[1_000, 2_000, 6_000]));
        let all_known = seed.is_multiple_of(4);
        let lease = ms(pick(&mut rng, if all_known { &[8_000] } else { &[1_500, 3_000, 8_000] }));
        let weather = Weather {
            loss: if all_known { 0.02 } else { 0.15 } * rng.unit(),
            doubled: 0.15 * rng.unit(),
            delay: ms(pick(&mut rng, &[5, 100, 300])),
            drift: [0.0, 0.004][(rng.next_u64() % 2) as usize],
        };
        let mut world = World::new(seed, limit, window, lease, weather);
        world.ledger.trusts_last_report = wrong;
        world.alone = if wrong || seed.is_multiple_of(3) { 0 } else { 1 + limit / 8 };
        let members = 2 + rng.next_u64() % 5;
        let kept = world.ledger.clone();
        let mut story = Self { world, rng, kept, all_known };
        (0..members).for_each(|_| story.join());
        // Until no first request is under way any more.
        (0..200).for_each(|_| story.world.tick(STEP));
        story
    }

    fn join(&mut self) {
        let most = 3.0 * self.world.limit as f64 / self.world.window.as_secs_f64();
        let cost = 1 + self.rng.next_u64() % (self.world.limit / 8 + 1);
        let demand = most * self.rng.unit() / cost as f64;
        self.world.join(demand, cost);
    }

    /// As long as the longest that anything is kept, and then a little.
    fn while_(&mut self) -> Duration {
        (self.world.window + self.world.lease).mul_f64(1.5 * self.rng.unit())
    }

    fn happens(&mut self, event: Event) {
        let place = (self.rng.next_u64() % self.world.nodes.len() as u64) as usize;
        let until = self.world.now + self.while_();
        use Event::{Cut, CutAll, Flush, Join, Restart, RollBack, Storm, Suspend};
        match event {
            Join | Storm | Suspend | Cut | CutAll | RollBack | Flush | Restart | Event::Leave if self.all_known => {}
            Event::ClockForward if !self.all_known => {}
            Event::Demand => {
                let most = 3.0 * self.world.limit as f64 / self.world.window.as_secs_f64();
                let demand = if self.rng.unit() < 0.4 { 0.0 } else { most * self.rng.unit() };
                let node = &mut self.world.nodes[place];
                (node.demand, node.waiting) = (demand / node.cost as f64, 0);
            }
            Join => self.join(),
            Storm => (0..8).for_each(|_| self.join()),
            Event::Kill => self.world.nodes[place].dead = true,
            Event::Leave if self.world.nodes[place].dead => {}
            Event::Leave => self.world.leave(place),
            Suspend => self.world.nodes[place].away_until = until,
            Cut => self.world.nodes[place].cut_until = until,
            CutAll => self.world.nodes.iter_mut().for_each(|node| node.cut_until = until),
            RollBack => {
                let kept = self.kept.clone();
                let next = self.world.now + ms(1);
                self.world.roll_back(kept, next);
            }
            // The run goes on, and with it all connections.
            Flush => self.world.ledger = self.lost(),
            Restart => {
                let lost = self.lost();
                self.world.roll_back(lost, until);
            }
            Event::ClockBack => self.world.step -= (60e9 * self.rng.unit()) as i64,
            Event::ClockForward => self.world.step += (60e9 * self.rng.unit()) as i64,
        }
    }

    fn lost(&self) -> Ledger {
        Ledger::new(&limits(self.world.limit, self.world.window), self.world.lease)
    }

    /// Returns by how much the worst window was above the limit.
    fn run(mut self, events: &[Event]) -> u64 {
        for _ in 0..18 {
            let event = events[(self.rng.next_u64() % events.len() as u64) as usize];
            self.happens(event);
            if self.rng.unit() < 0.3 {
                self.kept = self.world.ledger.clone();
            }
            let next = self.world.now + self.while_() / 4;
            while self.world.now < next {
                self.world.tick(STEP);
            }
        }
        self.world.worst.saturating_sub(self.world.limit + 2 * self.world.alone)
    }
}

const ALL: [Event; 14] = [
    Event::Demand,
    Event::Demand,
    Event::Join,
    Event::Storm,
    Event::Kill,
    Event::Leave,
    Event::Suspend,
    Event::Cut,
    Event::CutAll,
    Event::RollBack,
    Event::Flush,
    Event::Restart,
    Event::ClockBack,
    Event::ClockForward,
];

#[test]
fn no_window_holds_more_than_its_limit() {
    let mut runner = TestRunner::new(Config::default());
    let checked = runner.run(&proptest::num::u64::ANY, |seed| {
        proptest::prop_assert_eq!(Story::new(seed, false).run(&ALL), 0);
        Ok(())
    });
    checked.expect("the seed above replays it");
}

/// Two members have something set aside, and one is cut off for several leases: it uses that, and the others all that is
/// divided.
#[test]
fn a_member_that_is_cut_off_goes_on_at_what_was_set_aside_for_it() {
    let (window, lease) = (ms(2_000), ms(3_000));
    let mut world = World::new(5, 20, window, lease, FAIR);
    world.alone = 4;
    (0..3).for_each(|_| world.join(20.0, 1));
    let run = |world: &mut World, time: Duration| {
        let before: Vec<u64> = world.nodes.iter().map(|node| node.granted).collect();
        let end = world.now + time;
        while world.now < end {
            world.tick(STEP);
        }
        let granted = world.nodes.iter().zip(before).map(|(node, before)| node.granted - before);
        granted.collect::<Vec<_>>()
    };
    run(&mut world, 2 * lease);
    assert_eq!(world.worst, 20, "nobody uses what was set aside while the ledger is there");
    world.nodes[0].cut_until = world.now + 10 * lease;
    run(&mut world, 2 * lease + 2 * window);
    let granted = run(&mut world, 4 * window);
    assert!(granted[0] == 4 * 4 && granted[1] + granted[2] >= 4 * 19, "{granted:?}");
    assert!(world.worst > 20 && world.worst <= 24, "{}", world.worst);
    run(&mut world, 10 * lease);
    let granted = run(&mut world, 4 * window);
    assert!(granted[0] > 4 * 5 && world.worst <= 24, "it has its share again: {granted:?}, {}", world.worst);
}

/// A process that ends again and again while the store is away, and is started anew each time.
#[test]
fn what_was_set_aside_is_used_once_by_those_that_are_started_in_place_of_another() {
    let (window, lease) = (ms(2_000), ms(3_000));
    let mut world = World::new(5, 20, window, lease, FAIR);
    world.alone = 4;
    (0..2).for_each(|_| world.join(20.0, 1));
    let run = |world: &mut World, time: Duration| (0..time.as_millis() / 40).for_each(|_| world.tick(STEP));
    run(&mut world, 2 * lease);
    let ledger = world.ledger.clone();
    let down_until = world.now + 20 * lease;
    world.roll_back(ledger, down_until);
    run(&mut world, 2 * lease + window);
    world.worst = 0;
    for _ in 0..8 {
        world.nodes.last_mut().expect("there are two").dead = true;
        world.join(20.0, 1);
        run(&mut world, window.mul_f64(1.2));
    }
    assert_eq!(world.worst, 8);
}

/// A dead member's share, freed once what it reported last has left the window: units that had expired by then were used
/// again.
#[test]
fn a_share_freed_by_its_last_report_breaks_the_limit() {
    let events = [Event::Demand, Event::Cut, Event::Kill, Event::Join];
    let broken = |wrong| (0..40).filter(|seed| Story::new(*seed, wrong).run(&events) > 0).count();
    assert_eq!(broken(false), 0);
    assert!(broken(true) > 0);
}
