//! Simulations as pictures.

pub(crate) mod responsive;
