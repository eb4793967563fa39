//! The work: items are claimed, tried and recorded until the run has to end.

mod admission;
pub(crate) mod bounds;
pub(crate) mod disk_watch;
pub(crate) mod dispatch;
pub(crate) mod entry;
pub(crate) mod fallback;
pub(crate) mod feed;
pub(crate) mod handed;
pub(crate) mod held_up;
pub(crate) mod holds;
pub(crate) mod impossible;
pub(crate) mod item;
pub(crate) mod on_their_way;
pub(crate) mod permit_queue;
pub(crate) mod reachability;
pub(crate) mod record;
pub(crate) mod tested;
pub(crate) mod unheard;
