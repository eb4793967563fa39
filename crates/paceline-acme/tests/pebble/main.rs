//! The real program against Pebble, the test CA of Let's Encrypt, which refuses three of ten nonces here. A front before it
//! counts what arrives, and refuses or fails as a test asks for.
//!
//! Built with `--features peers` only, because it needs `pebble` and `pebble-challtestsrv`; `scripts/test` installs them.
//! `PACELINE_SOAK=1` kills the program 50 times instead of 8.

mod agent;
mod failures;
#[path = "../../../paceline-fleet/tests/servers/free_ports.rs"]
mod free_ports;
mod front;
mod kills;
mod pebble;
mod renewals;
