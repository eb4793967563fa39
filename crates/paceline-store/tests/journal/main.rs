//! The journal as its users see it.
#![cfg(test)]

mod crash;
mod history;
mod schedule;
mod support;
