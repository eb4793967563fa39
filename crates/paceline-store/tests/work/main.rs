//! The work store as its users see it: one suite for every engine, and what each has of its own.
#![cfg(test)]

#[cfg(feature = "postgres-tests")]
mod blocks;
#[cfg(feature = "postgres-tests")]
mod cluster;
mod conformance;
mod ended;
#[cfg(feature = "postgres-tests")]
mod kept_results;
mod kill;
#[cfg(feature = "postgres-tests")]
mod killed_hosts;
#[cfg(feature = "postgres-tests")]
mod leases;
mod limiter_state;
#[cfg(feature = "postgres-tests")]
mod loading;
#[cfg(feature = "postgres-tests")]
mod lost_answers;
mod lost_workers;
mod model;
#[cfg(feature = "postgres-tests")]
mod outages;
mod paced;
#[cfg(feature = "postgres-tests")]
mod postgres;
#[cfg(feature = "postgres-tests")]
mod reach;
mod scheduler;
mod sqlite;
mod support;
mod turns;
mod workers;
