//! What outlives a process: the durable journal of a batch run.
//!
//! A [`Journal`] keeps one small row of state for each item in SQLite, while requests stay in the input file and answers
//! go to the output files. Each result is recorded exactly once, whatever moment the process or the machine dies:
//!
//! ```
//! use paceline_core::Timestamp;
//! use paceline_store::{ResultBody, CustomId, End, Finished, InputFingerprint, Journal, LoadedLine, Opened, Options, Paths};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let input = folder.path().join("requests.jsonl");
//! # std::fs::write(&input, "{}\n")?;
//! let now = Timestamp::from_millis(1_700_000_000_000);
//! let paths = Paths::beside(&folder.path().join("results.jsonl"));
//! let journal = match Journal::open(Options::new(paths, InputFingerprint::of(&input)?, now))? {
//!     Opened::Resumed { journal, .. } => journal,
//!     Opened::Changed { .. } => unreachable!("only when it is asked for"),
//!     Opened::New(mut loader) => {
//!         let id = CustomId::from("first");
//!         loader.add(&LoadedLine { custom_id: &id, line: 1, src_off: 0, src_len: 3, body: b"{}", scope: "chat" })?;
//!         loader.finish()?
//!     }
//! };
//! let claim = journal.claim_now(now, 16)?;
//! for item in claim.items {
//!     let answer = ResultBody::Response { status: 200, request_id: "r-1", headers: None, body: br#"{"ok":true}"# };
//!     let line = paceline_store::encode_line(item.ordinal, 1, &CustomId::from("first"), &answer);
//!     journal.finish(Finished::new(item.ordinal, End::Succeeded, line), |kept| assert!(kept.is_ok()));
//! }
//! journal.close()?;
//! # Ok(())
//! # }
//! ```

mod append;
#[cfg(feature = "postgres")]
pub mod blocks;
mod claim;
mod command;
mod disk;
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
