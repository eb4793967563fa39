//! A call in flight.

use core::num::NonZeroU64;

use crate::cost::Cost;
use crate::time::Instant;

/// What the scope remembers of a call while it is in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flight {
    pub(crate) number: u64,
    /// The era of the learnt pace in which it left.
    pub(crate) era: u64,
    pub(crate) sent: Instant,
    /// As of when its units count: its grant, or when its caller took it. None: others have them, and it has to ask again.
    pub(crate) counted: Option<Instant>,
    /// The number of its grant, where its caller waited and has not taken it yet.
    pub(crate) untaken: Option<NonZeroU64>,
    pub(crate) probe: bool,
    /// Calls of the scope in flight when it left, itself included.
    pub(crate) in_flight: u32,
    /// Its estimated cost in tokens.
    pub(crate) tokens: u64,
    /// What the scope had spent, this call included.
    pub(crate) spent: Cost,
    /// Announced limits were in force when it left, and had room for it.
    pub(crate) server_limited: bool,
    pub(crate) item: u64,
    pub(crate) caller: Option<u64>,
    /// Its item has not failed before, nor was it refused.
    pub(crate) is_first: bool,
}
