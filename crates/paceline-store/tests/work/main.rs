//! The work store as its users see it: one suite for every engine, and what each has of its own.
#![cfg(test)]

mod conformance;
mod model;
mod scheduler;
mod sqlite;
mod support;
