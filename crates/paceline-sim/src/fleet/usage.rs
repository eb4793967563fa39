//! What a fleet makes of a told limit in fair weather.

use std::time::Duration;

use paceline_core::fleet::LEASE;

use super::network::Weather;
use super::store::Fencing;
use super::traffic::{Terms, Traffic};

/// Where the calls are that want to leave: half as many again as the limit lets pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Demand {
    /// The same at every process, and twice the limit at each.
    Equal,
    /// Nine tenths of it at a tenth of the processes, which are others each time.
    Moves {
        /// How long it stays.
        every: Duration,
    },
}

/// A fleet in fair weather.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetJob {
    /// Units in any window, of all processes together.
    pub units: u64,
    /// The window.
    pub window: Duration,
    /// Processes.
    pub members: usize,
    /// Their weights, in turns.
    pub weights: &'static [u64],
    /// What wants to leave, and where.
    pub demand: Demand,
    /// It is looked at from the fourth window on for so long.
    pub time: Duration,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetUse {
    /// The part of the limit that was used.
    pub used: f64,
    /// How alike the processes were served for each unit of their weight: 1 is equal.
    pub jain: f64,
    /// Units by which the fullest window exceeded the limit.
    pub over: u64,
}

/// What a fleet makes of its limit. The same arguments give the same figures.
pub fn fleet_use(job: &FleetJob, seed: u64) -> FleetUse {
    let FleetJob { units, window, members, weights, demand, time } = *job;
    let terms =
        Terms { units, window, lease: LEASE, weather: Weather::FAIR, fencing: Fencing::ByLease, in_flight: false };
    let mut traffic = Traffic::new(seed, terms);
    let weight = |place: usize| weights[place % weights.len()];
    (0..members).for_each(|place| traffic.join(1, weight(place)));
    let limit = units as f64 / window.as_secs_f64();
    let mut turn = 0;
    let mut lasts = |traffic: &mut Traffic, time: Duration| match demand {
        Demand::Equal => {
            if turn == 0 {
                (0..members).for_each(|place| traffic.demand(place, 2.0 * limit));
            }
            turn += 1;
            traffic.run(time);
        }
        Demand::Moves { every } => {
            let (hot, end) = ((members / 10).max(1), traffic.now + time);
            while traffic.now < end {
                for place in 0..members {
                    let is_hot = place / hot == turn % (members / hot);
                    let (part, among) = if is_hot { (0.9, hot) } else { (0.1, members - hot) };
                    traffic.demand(place, 1.5 * limit * part / among as f64);
                }
                turn += 1;
                traffic.run(every.min(end - traffic.now));
            }
        }
    };
    lasts(&mut traffic, 3 * window);
    let before: Vec<u64> = traffic.callers.iter().map(|callers| callers.left).collect();
    lasts(&mut traffic, time);
    let left: Vec<u64> = traffic.callers.iter().zip(before).map(|(callers, before)| callers.left - before).collect();
    let used = left.iter().sum::<u64>() as f64 / (limit * time.as_secs_f64());
    let by_weight = left.iter().enumerate().map(|(place, left)| *left as f64 / weight(place) as f64);
    FleetUse { used, jain: crate::measures::jain(by_weight), over: traffic.fullest.saturating_sub(units) }
}
