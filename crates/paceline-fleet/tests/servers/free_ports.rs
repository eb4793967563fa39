//! Ports of loopback for servers that must be told theirs.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the kernel gives to connections and to servers that ask for any: none of them takes such a port between
/// this look and the start of the server.
const PORTS: std::ops::Range<u32> = 10_000..32_000;

/// How many ports of them this process has looked at.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

/// Ports that were free a moment ago, each handed out once. Another program may still take one.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn free_port() -> u16 {
    for _ in PORTS {
        let count = LOOKED_AT.fetch_add(1, Ordering::Relaxed);
        // Test programs that run at the same time begin far from each other.
        let place = std::process::id().wrapping_mul(7_919).wrapping_add(count) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + place).expect("a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {PORTS:?} is free on loopback");
}
