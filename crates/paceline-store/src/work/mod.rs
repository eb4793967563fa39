//! Durable work: items, the decisions about their failures, and the times at which they are tried again.

mod checks;
mod clock;
mod columns;
mod contract;
mod due;
mod error;
mod item;
mod judge;
mod lanes;
mod memory;
mod policy;
#[cfg(feature = "postgres")]
mod postgres;
mod scheduler;
mod share;
mod sqlite;
mod store;

pub use clock::Clock;
pub use contract::{Nonsense, question, read_answer};
pub use due::{Due, Stored, read_due};
pub use error::WorkError;
pub use item::{
    Added, Amend, Ask, Claim, ClaimOutcome, Claimed, Counts, DEFAULT_GROUP, DecisionRecord, Event, Failure, Filter,
    Forgiven, Item, Kept, NewItem, State, Transition, WorkerId,
};
pub use judge::{Case, Judge, Judgement, Judging, by_class};
pub use memory::MemoryStore;
pub use policy::{Idle, OverBound, Policy};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use scheduler::{Ended, Note, Observer, Scheduler, Start, Status, Summary, Task, Wait};
pub use sqlite::SqliteStore;
pub use store::{Pending, WorkStore};
