#![doc = include_str!("../README.md")]

mod address;
mod password;
mod tls;

pub use address::{Address, AddressError};
