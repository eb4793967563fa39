//! Member and ledger together, with nothing but virtual time.

extern crate std;

mod board;
mod liveness;
mod pot;
mod rules;
mod safety;
mod settled;
mod world;
