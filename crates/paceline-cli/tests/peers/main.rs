//! The real binary against servers that this project did not write: nginx and HAProxy, whose limits are theirs and
//! whose counters are believed before ours; `kill -9` and an outage, with a server that counts from outside; and Postgres,
//! which several workers share.
//!
//! Built with `--features peers` only, because it needs `nginx`, `haproxy`, `redis-server`, `faketime`, `promtool` and Postgres;
//! `scripts/test` installs them. `PACELINE_SOAK=1` runs the long form: 2,000 items, and 5,000 under 50 kills. Tests assert
//! counts; each prints a `measure` line with its time, which depends on the machine and is therefore judged by `scripts/soak`
//! alone.

#[path = "../cli/bounded.rs"]
mod bounded;
mod collect;
mod counting;
mod faked_clock;
mod fleet;
mod fleet_faults;
mod fleet_gateways;
#[path = "../../../paceline-fleet/tests/servers/free_ports.rs"]
mod free_ports;
mod gateway;
mod gateway_killed;
mod gateway_untaken;
mod haproxy;
mod hosts;
mod hosts_stopped;
mod job;
mod job_and_fleet;
mod kill;
mod large;
mod measure;
mod mock;
mod nginx;
mod outage;
mod postgres;
#[path = "../../../paceline-fleet/tests/servers/postgres_server.rs"]
mod postgres_server;
mod promtool;
#[path = "../../../paceline-fleet/tests/servers/proxy.rs"]
mod proxy;
#[path = "../../../paceline-fleet/tests/servers/redis_server.rs"]
mod redis_server;
#[path = "../../../paceline-fleet/tests/servers/sentinel_set.rs"]
mod sentinel_set;
mod smuggling;
mod tasks;
