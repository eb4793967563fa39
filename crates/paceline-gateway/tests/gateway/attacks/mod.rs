//! Clients and servers that mean harm, or are broken: what the gateway refuses, what reaches the upstream byte by byte, and
//! that it goes on.

mod bodies;
mod cases;
mod connections;
mod contexts;
mod faults;
mod http2;
mod keys;
mod paths;
mod raw;
mod refusals;
mod smuggling;
mod spending;

use std::time::Duration;

use paceline_gateway::Bounds;

/// Bounds of a gateway that waits for no attacker for long.
fn impatient() -> Bounds {
    let mut bounds = Bounds::default();
    (bounds.slowest_head, bounds.slowest_body) = (Duration::from_millis(200), Duration::from_millis(200));
    (bounds.idle, bounds.first_byte, bounds.unread) =
        (Duration::from_millis(300), Duration::from_millis(300), Duration::from_millis(300));
    bounds
}
