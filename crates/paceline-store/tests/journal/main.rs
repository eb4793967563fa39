//! The journal as its users see it.
#![cfg(test)]

mod crash;
mod schedule;
mod support;
