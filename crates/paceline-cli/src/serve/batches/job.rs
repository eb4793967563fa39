//! The course of one batch: its turn, its run, what it waits for, and its results as files.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paceline::{Limiter, ScopeState, clock};
use paceline_gateway::Guest;
use paceline_store::{End, Finished, JobCounts, Journal, JournalError, JournalItem, Paths, ResultBody, Rows, RunLock};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument as _;

use super::disk;
use super::object::{Batch, Errors, RequestCounts, Status, Usage};
use super::service::{AT_ONCE, Served, Service};
use super::waits::waits_for;
use crate::exit::Failure;
use crate::run::StopReason;
use crate::run::calls::acknowledge::Acknowledge;
use crate::run::calls::budget::Limits;
use crate::run::calls::dispatch::{Dispatcher, Ended};
use crate::run::calls::item::Context;
use crate::run::calls::signals::Interruptions;
use crate::run::calls::stop::AGAIN;
use crate::run::course::Course;
use crate::run::job::holds;
use crate::run::job::load::{self, OpenError};
use crate::run::lines::error::InputError;
use crate::run::lines::input::{Input, Span};
use crate::run::lines::line::{self, Echo};
use crate::run::progress::display::Progress;
use crate::run::settings::{Bounds, Opening};

/// Requests in one batch, as the hosted service has it.
const MOST_LINES: usize = 50_000;

/// How often the counts of a batch are brought up to date.
const TICK: Duration = Duration::from_millis(500);

/// How long a batch waits before it tries again what failed here.
const PAUSE: Duration = Duration::from_secs(5);

/// The files of a job in its folder.
const RESULTS: &str = "results.jsonl";

/// A job that is open and set up.
struct Opened {
    journal: Journal,
    context: Arc<Context>,
    dispatcher: Dispatcher,
    counts: JobCounts,
}

/// Why a job cannot be opened.
enum Unopened {
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
        match error {
            InputError::Parquet { .. } => Self::Input(Errors::of_file(
                "invalid_file",
                "it is a Parquet file: expected one JSON object a line".into(),
            )),
            error => Self::Here(Failure::from(error).into()),
        }
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

/// Why a batch does not go on at once.
enum Hold {
    /// The gateway ends.
    GatewayEnds,
    /// Something is to be mended, or to pass.
    Waits(String),
    /// The same, and calls are stopped until that is mended.
    Stopped(String),
}

impl From<io::Error> for Hold {
    fn from(error: io::Error) -> Self {
        Self::Waits(format!("the gateway's state folder: {error}"))
    }
}

impl From<JournalError> for Hold {
    fn from(error: JournalError) -> Self {
        Self::Waits(error.to_string())
    }
}

impl From<Failure> for Hold {
    fn from(failure: Failure) -> Self {
        Self::Waits(failure.to_string().replace(AGAIN, "and the batch goes on"))
    }
}

impl From<StopReason> for Hold {
    fn from(stop: StopReason) -> Self {
        let advised = |advice: &str| stop.to_string().replace(AGAIN, advice);
        if stop.is_account() {
            return Self::Stopped(advised("then restart the gateway, and the batch goes on"));
        }
        Self::Waits(advised("and the batch goes on"))
    }
}

/// Works on a batch until it has ended, or the gateway ends.
pub(super) async fn tend(service: Arc<Service>, id: String, asked: watch::Receiver<u32>) {
    let Some(batch) = service.get(&id) else { return };
    let name = &batch.paceline.upstream;
    let Some(served) = service.served(name) else {
        service.note(&id, |batch| {
            let name = &batch.paceline.upstream;
            batch.paceline.waits_for = Some(format!("a gateway that serves the upstream {name}: this one does not"));
        });
        return;
    };
    let tended = Tended { service, served, id, asked };
    let span = tracing::info_span!("batch", id = tended.id);
    tended.go_on().instrument(span).await;
}

/// A batch that is worked on.
struct Tended {
    service: Arc<Service>,
    served: Arc<Served>,
    id: String,
    /// How often its run was asked to end.
    asked: watch::Receiver<u32>,
}

impl Tended {
    async fn go_on(self) {
        let queued = format!("its turn: {AT_ONCE} batches of this upstream run at once");
        self.service.note(&self.id, |batch| batch.paceline.waits_for = Some(queued));
        let turn = tokio::select! {
            biased;
            turn = self.served.turns.acquire() => Some(turn),
            () = self.is_asked(0) => None,
            () = self.expires() => None,
        };
        self.service.note(&self.id, |batch| batch.paceline.waits_for = None);
        while !self.service.is_ending() {
            let asked = *self.asked.borrow();
            match self.course().await {
                Ok(()) | Err(Hold::GatewayEnds) => break,
                Err(Hold::Waits(why)) => {
                    self.waits(why);
                    tokio::select! {
                        () = sleep(PAUSE) => {}
                        () = self.is_asked(asked) => {}
                    }
                }
                Err(Hold::Stopped(why)) => {
                    self.waits(why);
                    tokio::select! {
                        () = self.is_resumed() => {}
                        () = self.is_asked(asked) => {}
                        () = self.expires() => {}
                    }
                }
            }
        }
        drop(turn);
    }

    fn waits(&self, why: String) {
        self.service.note(&self.id, |batch| {
            if batch.paceline.waits_for.as_ref() != Some(&why) {
                tracing::warn!("the batch waits: {why}");
            }
            batch.paceline.waits_for = Some(why);
        });
    }

    /// The batch as it is now.
    fn batch(&self) -> Result<Batch, Hold> {
        Ok(self.service.get(&self.id).ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?)
    }

    /// Waits until a client, or the end of the gateway, asks to end the run more often than that.
    async fn is_asked(&self, before: u32) {
        if self.asked.clone().wait_for(|times| *times > before).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until its time is over.
    async fn expires(&self) {
        let left = self.service.get(&self.id).map(|batch| batch.deadline().saturating_since(clock::wall()));
        sleep(left.unwrap_or_default()).await;
    }

    /// Waits until something that is stopped goes on.
    async fn is_resumed(&self) {
        let limiter = self.served.backend.limiter();
        let before = stopped(limiter);
        loop {
            sleep(PAUSE).await;
            if before.is_empty() || !before.is_subset(&stopped(limiter)) {
                return;
            }
        }
    }

    /// Brings the batch to its end.
    async fn course(&self) -> Result<(), Hold> {
        let batch = self.batch()?;
        if batch.paceline.ends_as.is_none() {
            if batch.status == Status::Cancelling && batch.in_progress_at.is_none() {
                self.service.change(&self.id, |batch| batch.enter(Status::Cancelled))?;
                return Ok(());
            }
            let (service, served, asked) = (Arc::clone(&self.service), Arc::clone(&self.served), self.asked.clone());
            match blocking(move || open(&service, &served, &batch, asked)).await? {
                Ok(opened) => self.run(opened).await?,
                Err(Unopened::Input(errors)) => {
                    self.service.change(&self.id, |batch| {
                        batch.errors = Some(errors);
                        batch.enter(Status::Failed);
                    })?;
                    return Ok(());
                }
                Err(Unopened::Here(hold)) => return Err(hold),
            }
        }
        tokio::task::block_in_place(|| self.keep_results())
    }

    /// Sends what has not ended, until nothing is left or the batch is over, and records how it ends.
    async fn run(&self, opened: Opened) -> Result<(), Hold> {
        let Opened { journal, context, dispatcher, counts } = opened;
        let batch = self.service.change(&self.id, |batch| {
            batch.request_counts = RequestCounts::from(&counts);
            if batch.status == Status::Validating {
                batch.enter(Status::InProgress);
            }
        })?;
        let mut stop = (batch.deadline() <= clock::wall()).then_some(StopReason::MaxDuration);
        if stop.is_none() && batch.status != Status::Cancelling {
            match self.dispatch(dispatcher, &journal, &context).await {
                Ok(ended) => stop = ended.stop,
                Err(failure) => {
                    blocking(move || journal.close()).await?.inspect_err(|error| tracing::debug!("{error}")).ok();
                    return Err(failure.into());
                }
            }
        }
        let ends_as = match self.batch()?.status {
            Status::Cancelling => Some(Status::Cancelled),
            _ => (stop == Some(StopReason::MaxDuration)).then_some(Status::Expired),
        };
        let closing = journal.clone();
        let (counts, ends_as) = blocking(move || {
            let ended = conclude(&closing, &context, ends_as);
            // What stopped the journal is told by what was asked of it before.
            let closed = closing.close();
            ended.and_then(|ended| closed.map(|()| ended))
        })
        .await??;
        let Some(ends_as) = ends_as else {
            self.service.note(&self.id, |batch| batch.request_counts = RequestCounts::from(&counts));
            return Err(match stop {
                _ if self.service.is_ending() => Hold::GatewayEnds,
                Some(stop) => stop.into(),
                None => Hold::Waits("requests are left that nothing holds up".to_owned()),
            });
        };
        self.service.change(&self.id, |batch| {
            batch.request_counts = RequestCounts::from(&counts);
            batch.usage = Some(Usage::from(&counts));
            batch.paceline.ends_as = Some(ends_as);
            if batch.status != Status::Cancelling {
                batch.enter(Status::Finalizing);
            }
        })?;
        Ok(())
    }

    /// Sends, and brings the counts of the batch up to date meanwhile.
    async fn dispatch(
        &self,
        dispatcher: Dispatcher,
        journal: &Journal,
        context: &Arc<Context>,
    ) -> Result<Ended, Failure> {
        let running = tokio::spawn(dispatcher.run().in_current_span());
        tokio::select! {
            ended = running => ended.map_err(Failure::interrupted).flatten(),
            () = self.watch(journal, context) => unreachable!("it goes on for as long as it is asked"),
        }
    }

    /// For as long as it is polled.
    async fn watch(&self, journal: &Journal, context: &Arc<Context>) {
        let (mut ticks, mut before) = (interval(TICK), None);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(full) = journal.disk_full() {
                self.service.note(&self.id, |batch| batch.paceline.waits_for = Some(full.to_string()));
            }
            let (journal, context) = (journal.clone(), Arc::clone(context));
            // A full disk holds this up too; what stopped the journal ends the run.
            let look = move || Ok::<_, JournalError>((journal.sums()?, waits_for(&journal, &context)?));
            let Ok(Ok((counts, why))) = blocking(look).await else { continue };
            let counts = RequestCounts::from(&counts);
            let stands = before.replace(counts) == Some(counts);
            self.service.note(&self.id, |batch| {
                batch.request_counts = counts;
                batch.paceline.waits_for = why.filter(|_| stands);
            });
        }
    }

    /// Makes files of the results of a batch whose items have ended. Done again after a kill, it goes on.
    fn keep_results(&self) -> Result<(), Hold> {
        let (service, batch) = (&self.service, self.batch()?);
        let Some(ends_as) = batch.paceline.ends_as else { return Ok(()) };
        let (paths, name) = (paths(service, &batch.id), batch.id.trim_start_matches("batch_"));
        let keep = |results: &Path, what: &str| {
            let (id, filename) = (format!("file-{name}-{what}"), format!("{}_{what}.jsonl", batch.id));
            service.files.adopt(&id, results, filename, "batch_output")
        };
        let (output, errors) = (keep(&paths.output, "output")?, keep(&paths.errors, "error")?);
        service.change(&batch.id, |batch| {
            (batch.output_file_id, batch.error_file_id) = (output, errors);
            batch.enter(ends_as);
        })?;
        if let Err(error) = disk::leave_only_record(&service.folder_of(&batch.id)) {
            tracing::warn!("the files of its run stay until the next start: {error}");
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(Failure::interrupted)
}

fn paths(service: &Service, id: &str) -> Paths {
    Paths::beside(&service.folder_of(id).join(RESULTS))
}

/// The account and the scopes that are stopped until a person acts.
fn stopped(limiter: &Limiter) -> BTreeSet<Arc<str>> {
    let view = limiter.snapshot();
    let all = view.scopes.into_iter().chain([view.account]);
    all.filter(|scope| matches!(scope.state, ScopeState::Stopped { .. })).map(|scope| scope.name).collect()
}

/// Checks the input of a batch, or goes on where an earlier process left it.
fn open(service: &Service, served: &Served, batch: &Batch, asked: watch::Receiver<u32>) -> Result<Opened, Unopened> {
    let (upstream, paths) = (&served.upstream, paths(service, &batch.id));
    let lock = RunLock::take(&paths)?;
    let file = service.files.get(&batch.input_file_id).ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?;
    let mut input = Input::open(&service.files.content(&file))?;
    let unfit = |message| Unopened::Input(Errors::of_file("invalid_endpoint", message));
    let format = served.format(&batch.endpoint).map_err(unfit)?;
    let opening = Opening { most_lines: Some(MOST_LINES), ..Opening::default() };
    let journal = load::open(lock, paths, &mut input, &format, upstream, &opening)?.journal;
    let counts = journal.sums()?;
    let bounds = Bounds {
        budgets: Limits::default(),
        max_wait: None,
        max_items: None,
        max_duration: Some(batch.deadline().saturating_since(clock::wall())),
        stop_after_same: 0,
    };
    let course = Course {
        input,
        format,
        upstream,
        journal: &journal,
        input_cursor: None,
        limiter: served.backend.limiter().clone(),
        guest: Some(Guest::new(&served.backend, counts.input())),
        sender: Arc::clone(&served.sender),
        fallback: None,
        bounds,
        progress: Progress::new(true),
        interruptions: Interruptions::asked(asked),
    };
    // What is held or stopped, the limiter knows: it outlives the run.
    let restore = |_, acknowledge: &Acknowledge| holds::open_all(&journal, || acknowledge.reply());
    let (context, dispatcher) = course.set_up(restore)?;
    Ok(Opened { journal, context, dispatcher, counts })
}

/// How the items of a run stand at its end, and how the batch ends: items that are left end with it where it is over, and else
/// wait.
fn conclude(
    journal: &Journal,
    context: &Context,
    ends_as: Option<Status>,
) -> Result<(JobCounts, Option<Status>), JournalError> {
    let reason = match ends_as {
        Some(Status::Cancelled) => Some(("batch_cancelled", "the batch was cancelled before this request was sent")),
        Some(_) => Some(("batch_expired", "the completion window of the batch ended before this request was answered")),
        None => None,
    };
    let (counts, mut any) = (journal.sums()?, false);
    if let Some((code, message)) = reason
        && counts.waiting + counts.in_flight > 0
    {
        let mut left = Vec::new();
        journal.report(clock::wall(), Rows::NotSimplySucceeded, |row| -> Result<(), JournalError> {
            if row.deferred.is_some() {
                left.push(row.item);
            }
            Ok(())
        })?;
        any = !left.is_empty();
        left.into_iter().for_each(|item| journal.finish(ended(item, context, code, message), drop));
    }
    let counts = if any { journal.sums()? } else { counts };
    let is_done = counts.waiting + counts.in_flight == 0;
    // All of a batch that is over in time has been done, whatever its clock says by now.
    let ends_as = match ends_as {
        Some(Status::Expired) if !any => Some(Status::Completed),
        None => Some(Status::Completed),
        other => other,
    };
    Ok((counts, ends_as.filter(|_| is_done)))
}

/// The end of an item without an answer.
fn ended(item: JournalItem, context: &Context, code: &str, message: &str) -> Finished {
    let bytes = context.input.read(Span { offset: item.src_off, len: item.src_len }).unwrap_or_default();
    let echo = Echo { custom_id: line::custom_id(&bytes, item.line), metadata: None, form: context.format.results() };
    let answer = ResultBody::Error { code, message };
    let line = echo.line(item.ordinal, item.tally.sends(), End::Failed, &answer);
    let mut finished = Finished::new(item.ordinal, End::Failed, line);
    finished.tally = item.tally;
    finished.reason = Some(code.to_owned());
    finished
}
