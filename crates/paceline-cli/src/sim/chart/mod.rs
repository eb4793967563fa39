//! Simulations as pictures.

pub(crate) mod compare;
pub(crate) mod responsive;
pub(crate) mod run;
