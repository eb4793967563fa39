//! The journal as its users see it.
#![cfg(test)]

mod crash;
mod history;
mod replace;
mod schedule;
mod support;
