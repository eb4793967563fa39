//! Durable work: items, the decisions about their failures, and the times at which they are tried again.

mod answers;
mod checks;
mod clock;
mod columns;
mod config;
mod error;
mod fair_share;
mod item;
mod judge;
mod lanes;
mod memory;
mod notes;
mod outcome;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod scheduler;
mod sqlite;
mod store;

pub use crate::state::{Forgiven, State};
pub use answers::NotedAnswers;
pub use clock::WorkClock;
pub use config::{Idle, OverBound, SchedulerConfig};
pub use error::WorkError;
pub use item::{
    Added, Amend, Claim, ClaimOutcome, ClaimRequest, Claimed, DEFAULT_GROUP, DecisionRecord, Failure, Filter,
    HistoryEntry, ItemTime, NewItem, Pruned, PrunedKeys, RecordStatus, Said, StateCounts, Transition, WorkItem,
    WorkerId,
};
pub use judge::{Case, InvalidDecision, Judge, JudgeFuture, Judgement, by_class, encode_request, parse_decision};
pub use memory::MemoryStore;
pub use notes::{NoteChange, ScopeNote};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use scheduler::{
    EndReason, Fallback, Observer, Scheduler, SchedulerEvent, StartDecision, StartDelay, Status, Summary, Task,
};
pub use sqlite::{SqliteStore, lock_of, make_room_beside, worker_of};
pub use store::{StoreFuture, WorkStore};
