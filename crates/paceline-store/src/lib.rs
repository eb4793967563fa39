//! What outlives a process: the durable journal of a batch run.
//!
//! A [`Journal`] keeps one small row of state for each item in SQLite, while requests stay in the input file and answers
//! go to the output files. Each result is recorded exactly once, whatever moment the process or the machine dies:
//!
//! ```
//! use paceline_core::Timestamp;
//! use paceline_store::{Answer, CustomId, End, Finished, InputMark, Journal, NewItem, Opened, Options, Paths};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let input = folder.path().join("requests.jsonl");
//! # std::fs::write(&input, "{}\n")?;
//! let now = Timestamp::from_millis(1_700_000_000_000);
//! let paths = Paths::beside(&folder.path().join("results.jsonl"));
//! let journal = match Journal::open(Options::new(paths, InputMark::of(&input)?, now))? {
//!     Opened::Resumed { journal, .. } => journal,
//!     Opened::Changed { .. } => unreachable!("only when it is asked for"),
//!     Opened::New(mut loader) => {
//!         let id = CustomId::from("first");
//!         loader.add(&NewItem { custom_id: &id, line: 1, src_off: 0, src_len: 3, body: b"{}", scope: "chat" })?;
//!         loader.finish()?
//!     }
//! };
//! let claim = journal.claim_now(now, 16)?;
//! for item in claim.items {
//!     let answer = Answer::Response { status: 200, request_id: "r-1", body: br#"{"ok":true}"# };
//!     let line = paceline_store::encode_line(item.ordinal, 1, &CustomId::from("first"), &answer);
//!     journal.finish(Finished::new(item.ordinal, End::Succeeded, line), |kept| assert!(kept.is_ok()));
//! }
//! journal.close()?;
//! # Ok(())
//! # }
//! ```

mod book;
mod claim;
mod command;
mod disk;
mod error;
mod further;
mod heads;
mod history;
mod item;
mod journal;
mod line;
mod line_file;
mod load;
mod lock;
mod merge;
mod output;
mod paths;
mod query;
mod reader;
mod recover;
mod refused;
mod replace;
mod report;
mod rescope;
mod room;
mod schema;
mod scope;
mod snapshot;
mod spent;
mod turn;
pub mod work;
mod writer;

pub use disk::{create_in_place_of, private_file};
pub use error::Error;
pub use further::{Further, Taken, Unread};
pub use history::Minute;
pub use item::{
    Claim, Claimed, End, Finished, Forgiven, Item, Kept, Last, NewItem, RefusedLine, Rescheduled, State, Tally, Totals,
    Unanswered,
};
pub use journal::{Journal, Opened, Options};
pub use line::{Answer, CustomId, LineForm, ResultLine, encode_line};
pub use line_file::LineFile;
pub use load::Loader;
pub use lock::RunLock;
pub use merge::{Conflict, Conflicts};
pub use paths::{InputMark, Paths};
pub use reader::Reader;
pub use recover::Recovery;
pub use refused::{Duplicate, Duplicates};
pub use report::{Counts, DeferReason, Deferred, ReportRow, Rows};
pub use room::Shortage;
pub use schema::{ACCOUNT, hash};
pub use scope::{ScopeRow, ScopeState};
pub use snapshot::{Snapshot, SnapshotUpdate};
pub use spent::Spent;
