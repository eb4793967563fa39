//! Member and ledger together, with nothing but virtual time.

extern crate std;

mod liveness;
mod safety;
mod world;
