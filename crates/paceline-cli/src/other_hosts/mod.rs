//! The other hosts of a job that many work on: what a host knows of them and of the whole job, and its sign of life to them.

pub(crate) mod host_view;
pub(crate) mod others;
pub(crate) mod pulse;
