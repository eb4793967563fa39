//! What a server tells one process of a fleet, all obey; and one call of all of them tests whether it is over.

use std::time::Duration;

use paceline_core::fleet::LEASE;

use super::ms;
use super::network::Weather;
use super::store::Fencing;
use super::traffic::{Terms, Traffic};

/// How long the server refuses all calls.
const CLOSED: Duration = Duration::from_secs(20);

/// A process that was told by another one obeys within this.
const OBEYED: Duration = ms(10);

/// How a fleet met a server that refuses everything for a while, and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateFigures {
    /// Calls that left more than 10 ms after the first process was told.
    pub late: u64,
    /// Calls that left once the pause was over, before the first of them was answered.
    pub canaries: u64,
    /// Calls that left in the second after that.
    pub after: u64,
}

/// So many processes call a server that refuses everything for 20 s. The same arguments give the same figures.
pub fn fleet_gates(members: usize, seed: u64) -> GateFigures {
    let (units, window) = (50 * members as u64, Duration::from_secs(10));
    let terms =
        Terms { units, window, lease: LEASE, weather: Weather::FAIR, fencing: Fencing::ByLease, in_flight: false };
    let mut traffic = Traffic::new(seed, terms);
    for place in 0..members {
        traffic.join(1, 1);
        traffic.demand(place, 2.0);
    }
    traffic.run(Duration::from_secs(15));
    let closed = (traffic.now, traffic.now + CLOSED);
    traffic.closed = Some(closed);
    while traffic.refused.is_empty() {
        traffic.run(ms(1));
    }
    traffic.run(OBEYED);
    let before = traffic.started;
    traffic.run(closed.1 - traffic.now);
    let late = traffic.started - before;
    let before = traffic.started;
    traffic.left_at_answer = None;
    while traffic.left_at_answer.is_none() && traffic.now < closed.1 + CLOSED {
        traffic.run(ms(1));
    }
    // Calls of the same process leave with the answer.
    let canaries = traffic.left_at_answer.unwrap_or(traffic.started) - before;
    traffic.run(Duration::from_secs(1));
    GateFigures { late, canaries, after: traffic.started - before - canaries }
}
