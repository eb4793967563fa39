//! The ledgers on real servers, which the tests start and end: redis-server and PostgreSQL have to be installed.

mod alone;
mod conformance;
mod figures;
mod free_ports;
mod learnt;
mod live;
mod no_io;
mod postgres_network;
mod postgres_server;
mod proxy;
mod redis_server;
mod rights;
mod sentinel_set;
mod steady;
mod tls;
mod weights;
