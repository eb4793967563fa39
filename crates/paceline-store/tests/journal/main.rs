//! The journal as its users see it.
#![cfg(test)]

mod crash;
mod fallback;
mod history;
mod refused;
mod refused_answers;
mod replace;
mod schedule;
mod share;
mod support;
