//! How Paceline reaches a Postgres database: the address, as users write it, and whom an encrypted connection trusts.

mod address;
mod password;
mod tls;

pub use address::{Address, AddressError};
