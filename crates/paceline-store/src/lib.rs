#![doc = include_str!("../README.md")]

mod append;
#[cfg(feature = "postgres")]
pub mod blocks;
mod claim;
mod command;
mod disk;
mod disk_full;
mod disk_space;
mod error;
mod heads;
mod history;
mod item;
mod journal;
mod journal_db;
mod line;
mod line_file;
mod load;
mod lock;
mod merge;
mod options;
mod output;
mod paths;
mod query;
mod reader;
mod recover;
mod refused;
mod refused_answers;
mod replace;
mod report;
mod rescope;
mod schema;
mod scope;
mod share;
mod snapshot;
mod state;
mod unanswered;
mod usage;
pub mod work;
mod write_batch;
mod writer;

pub use append::{Appended, AppendedLine, InputCursor};
pub use disk::{create_in_place_of, is_same_file, private_file};
pub use disk_space::{DiskSpace, Room};
pub use error::{DiskFull, JournalError, is_disk_full};
pub use history::Minute;
pub use item::{
    CallTotals, ClaimExcept, ClaimedItem, ClaimedItems, CutOff, Departure, End, FinishStatus, Finished, JournalItem,
    LastAnswer, LoadedLine, ModelUsage, RefusedLine, Rescheduled, Tally, Unanswered,
};
pub use journal::{Journal, Opened};
pub use line::{CustomId, LineForm, ResultBody, ResultLine, encode_line};
pub use line_file::{KnownResults, LineFile, may_hold_results};
pub use load::Loader;
pub use lock::{Holder, RunLock, lock_file};
pub use merge::{Conflict, Conflicts};
pub use options::Options;
pub use paths::{InputFingerprint, Paths, beside_database};
pub use reader::Reader;
pub use recover::Recovery;
pub use refused::{Duplicate, Duplicates};
pub use replace::LastFailure;
pub use report::{DeferReason, Deferred, JobCounts, ReportRow, Rows, ScopeItems};
pub use schema::{ACCOUNT, hash};
pub use scope::{ScopeRow, ScopeStatus};
pub use share::{EndedLine, EndedLines, LeftBlock, TakenBlock};
pub use snapshot::{SnapshotUpdate, StoredSnapshot};
pub use state::{Forgiven, State};
