//! What a run shows of itself: to a person, to a script, and to `paceline stats`.

pub(crate) mod again;
pub(crate) mod ahead;
pub(crate) mod extract;
pub(crate) mod figures;
pub(crate) mod minutes;
pub(crate) mod oracle;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod resends;
pub(crate) mod snapshot;
pub(crate) mod standing;
pub(crate) mod summary;
pub(crate) mod wait;
