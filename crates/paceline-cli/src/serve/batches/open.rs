//! Opening the job of a batch: its input is checked, or an earlier process has begun with it.

use std::io;
use std::sync::Arc;

use paceline::clock;
use paceline_gateway::Guest;
use paceline_store::{JobCounts, Journal, JournalError, Paths, RunLock};
use tokio::sync::watch;

use super::hold::Hold;
use super::object::{Batch, Errors};
use super::service::{Served, Service};
use crate::account::TurnWait;
use crate::budget::Limits;
use crate::calls::dispatch::Dispatcher;
use crate::calls::item::Context;
use crate::exit::Failure;
use crate::job::acknowledge::Acknowledge;
use crate::job::holds;
use crate::job::load::{self, OpenError};
use crate::job_settings::{Bounds, Opening};
use crate::lines::error::InputError;
use crate::lines::input::Input;
use crate::open_job::{OpenJob, Restored};
use crate::progress::display::Progress;
use crate::signals::Interruptions;

/// Requests in one batch, as the hosted service has it.
const MOST_LINES: usize = 50_000;

/// The files of a job in its folder.
const RESULTS: &str = "results.jsonl";

/// A job that is open and set up.
pub(super) struct Opened {
    pub(super) journal: Journal,
    pub(super) context: Arc<Context>,
    pub(super) dispatcher: Dispatcher,
    pub(super) counts: JobCounts,
}

/// Why a job cannot be opened.
pub(super) enum Unopened {
    /// Its input is wrong, so the batch fails.
    Input(Errors),
    /// What is wrong here passes, or can be mended.
    Here(Hold),
}

impl From<OpenError> for Unopened {
    fn from(error: OpenError) -> Self {
        match Errors::of_input(&error) {
            Some(errors) => Self::Input(errors),
            None => Self::Here(Failure::from(error).into()),
        }
    }
}

impl From<InputError> for Unopened {
    fn from(error: InputError) -> Self {
        let what = match error {
            InputError::Parquet { .. } => "a Parquet file",
            InputError::OtherTable { what, .. } => what,
            error => return Self::Here(Failure::from(error).into()),
        };
        let message = format!("the file is {what}: expected one JSON object a line, in UTF-8");
        Self::Input(Errors::of_file("invalid_file", message))
    }
}

impl From<JournalError> for Unopened {
    fn from(error: JournalError) -> Self {
        Self::Here(error.into())
    }
}

impl From<io::Error> for Unopened {
    fn from(error: io::Error) -> Self {
        Self::Here(error.into())
    }
}

/// Checks the input of a batch, or goes on where an earlier process left it.
pub(super) fn open(
    service: &Arc<Service>,
    served: &Served,
    batch: &Batch,
    asked: watch::Receiver<u32>,
) -> Result<Opened, Unopened> {
    let (upstream, paths) = (&served.upstream, paths(service, &batch.id));
    let lock = RunLock::take(&paths)?;
    let file = service.files.get(&batch.input_file_id).ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?;
    let mut input = Input::open(&service.files.content(&file))?;
    let unfit = |message| Unopened::Input(Errors::of_file("invalid_endpoint", message));
    let format = served.format(&batch.endpoint, service.clients()).map_err(unfit)?;
    let opening = Opening { most_lines: Some(MOST_LINES), ..Opening::default() };
    let journal = load::open(lock, paths, &mut input, &format, upstream, &opening)?.journal;
    let counts = journal.sums()?;
    let (asking, id) = (Arc::clone(service), batch.id.clone());
    let may_leave = move || asking.lets_go_on(&id);
    let guest = Guest::new(&served.backend, counts.input()).while_it(may_leave);
    let guest = match &batch.paceline.client {
        Some(name) => {
            let of = Arc::clone(service);
            guest.of_client(name, move || of.clients())
        }
        None => guest,
    };
    let bounds = Bounds {
        budgets: Limits::default(),
        max_wait: None,
        max_items: None,
        max_duration: Some(batch.deadline().saturating_since(clock::wall())),
        stop_after_same: 0,
    };
    let course = OpenJob {
        input,
        format,
        upstream,
        journal: &journal,
        input_cursor: None,
        limiter: served.backend.limiter().clone(),
        guest: Some(Arc::new(guest)),
        sender: Arc::clone(&served.sender),
        fallback: None,
        extract: None,
        bounds,
        progress: Progress::new(true),
        interruptions: Interruptions::asked(asked),
        lock: None,
        hosts: None,
        turn_wait: TurnWait::default(),
    };
    // What is held or stopped, the limiter knows: it outlives the run.
    let restore = |_, acknowledge: &Acknowledge| {
        holds::open_all(&journal, || acknowledge.reply())?;
        Ok(Restored::default())
    };
    let (context, dispatcher) = course.set_up(restore)?;
    Ok(Opened { journal, context, dispatcher, counts })
}

/// The files of its job.
pub(super) fn paths(service: &Service, id: &str) -> Paths {
    Paths::beside(&service.folder_of(id).join(RESULTS))
}
