//! The progress of a run: for a person, for a script, and for `paceline stats`.

pub(crate) mod counters;
pub(crate) mod display;
pub(crate) mod extract;
pub(crate) mod failures;
pub(crate) mod live_snapshot;
pub(crate) mod minutes;
pub(crate) mod oracle;
pub(crate) mod report;
pub(crate) mod resends;
pub(crate) mod resume_command;
pub(crate) mod snapshot;
pub(crate) mod summary;
pub(crate) mod time_left;
pub(crate) mod wait_line;
