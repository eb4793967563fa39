//! The course of one batch: its turn, its run, what it waits for, and its results as files.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline::{Limiter, ScopeState, clock};
use paceline_gateway::Backend;
use paceline_store::{Journal, JournalError, ScopeRow, ScopeStatus};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument as _;

use super::conclude::conclude;
use super::disk;
use super::hold::Hold;
use super::object::{Batch, RequestCounts, Status, Usage};
use super::open::{Opened, Unopened, open, paths};
use super::service::{SHARED, Served, Service};
use super::waits::waits_for;
use crate::calls::dispatch::{Dispatcher, Ended};
use crate::calls::item::Context;
use crate::exit::Failure;
use crate::stops::stop::StopReason;

/// How often the counts of a batch are brought up to date.
const TICK: Duration = Duration::from_millis(500);

/// How often the counts of a batch are recorded until it ends, at the most.
const RECORDED: u64 = 16;

/// How long a batch waits before it tries again what failed here.
const PAUSE: Duration = Duration::from_secs(5);

/// How the run of a batch is asked to end: by its client, or the gateway, and where it waits for what may be mended now, to begin
/// anew.
struct Ends {
    asked: watch::Receiver<u32>,
    /// How often what clients were refused was forgotten.
    forgotten: watch::Receiver<u64>,
    is_mended: bool,
    /// What the run is told.
    run: watch::Sender<u32>,
}

impl Ends {
    fn new(asked: &watch::Receiver<u32>, backend: &Backend) -> Self {
        let mut asked = asked.clone();
        let run = watch::Sender::new(*asked.borrow_and_update());
        Self { asked, forgotten: backend.forgotten(), is_mended: false, run }
    }

    /// For as long as it is polled.
    async fn follow(&mut self, journal: &Journal, context: &Context) {
        loop {
            tokio::select! {
                Ok(()) = self.asked.changed() => {}
                Ok(()) = self.forgotten.changed() => self.is_mended |= is_held_up(journal, context).await,
                else => std::future::pending().await,
            }
            // Asked by both it ends no sooner: calls in flight are answered.
            self.run.send_replace(u32::from(self.is_mended).max(*self.asked.borrow()));
        }
    }
}

/// Whether nothing of it is in flight, or one of its scopes is held.
async fn is_held_up(journal: &Journal, context: &Context) -> bool {
    let is_held = |row: ScopeRow| matches!(row.state, ScopeStatus::Held { .. });
    let journal = journal.clone();
    context.in_flight.load(Ordering::Relaxed) == 0
        || blocking(move || journal.scopes())
            .await
            .is_ok_and(|scopes| scopes.is_ok_and(|all| all.into_iter().any(is_held)))
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
        let Some(batch) = self.service.get(&self.id) else { return };
        let queued = format!("its turn: one batch of each client and {SHARED} more of this upstream run at once");
        self.service.note(&self.id, |batch| batch.paceline.waits_for = Some(queued));
        let mut turn = tokio::select! {
            biased;
            turn = self.served.turn(&batch) => turn,
            () = self.is_asked(0) => None,
            () = self.expires() => None,
        };
        self.service.note(&self.id, |batch| batch.paceline.waits_for = None);
        while !self.service.is_ending() {
            let asked = *self.asked.borrow();
            match self.course().await {
                Ok(()) | Err(Hold::GatewayEnds) => break,
                Err(Hold::Mended) => {}
                Err(Hold::Waits(why)) => {
                    self.waits(why);
                    // What is over sends no more, and so needs no place.
                    turn = turn.filter(|_| !self.is_over());
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
        let shown = Some(self.service.without_folders(&why));
        self.service.note(&self.id, |batch| {
            if batch.paceline.waits_for != shown {
                tracing::warn!("the batch waits: {why}");
            }
            batch.paceline.waits_for = shown;
        });
    }

    /// Whether its time is over.
    fn is_over(&self) -> bool {
        self.service.get(&self.id).is_some_and(|batch| batch.deadline() <= clock::wall())
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
            let has_begun = batch.in_progress_at.is_some();
            let (service, served) = (Arc::clone(&self.service), Arc::clone(&self.served));
            let ends = Ends::new(&self.asked, &served.backend);
            let told = ends.run.subscribe();
            match blocking(move || open(&service, &served, &batch, told)).await? {
                Ok(opened) => self.run(opened, ends).await?,
                Err(Unopened::Input(errors)) => {
                    self.service.change(&self.id, |batch| {
                        batch.errors = Some(errors);
                        batch.enter(Status::Failed);
                    })?;
                    return Ok(());
                }
                // Nothing of it was ever sent, and nothing will be.
                Err(Unopened::Here(_)) if !has_begun && self.is_over() => {
                    self.service.change(&self.id, |batch| batch.enter(Status::Expired))?;
                    return Ok(());
                }
                Err(Unopened::Here(hold)) => return Err(hold),
            }
        }
        tokio::task::block_in_place(|| self.keep_results())
    }

    /// Sends what has not ended, until nothing is left or the batch is over, and records how it ends.
    async fn run(&self, opened: Opened, mut ends: Ends) -> Result<(), Hold> {
        let Opened { journal, context, dispatcher, counts } = opened;
        let cut_off_before = counts.totals.abandoned;
        let batch = self.service.change(&self.id, |batch| {
            batch.request_counts = RequestCounts::from(&counts);
            if batch.status == Status::Validating {
                batch.enter(Status::InProgress);
            }
        })?;
        let mut stop = (batch.deadline() <= clock::wall()).then_some(StopReason::MaxDuration);
        if stop.is_none() && batch.status != Status::Cancelling {
            match self.dispatch(dispatcher, &journal, &context, &mut ends).await {
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
        if ends_as == Some(Status::Expired) {
            tracing::info!("the batch expires: its completion window is over");
        }
        let closing = journal.clone();
        let (counts, ends_as) = blocking(move || {
            let ended = conclude(&closing, &context, ends_as);
            // What stopped the journal is told by what was asked of it before.
            let closed = closing.close();
            ended.and_then(|ended| closed.map(|()| ended))
        })
        .await??;
        self.service.cut_off.fetch_add(counts.totals.abandoned.saturating_sub(cut_off_before), Ordering::Relaxed);
        let Some(ends_as) = ends_as else {
            self.service.note(&self.id, |batch| batch.request_counts = RequestCounts::from(&counts));
            return Err(match stop {
                _ if self.service.is_ending() => Hold::GatewayEnds,
                _ if ends.is_mended => Hold::Mended,
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
        ends: &mut Ends,
    ) -> Result<Ended, Failure> {
        let running = tokio::spawn(dispatcher.run().in_current_span());
        tokio::select! {
            ended = running => ended.map_err(Failure::interrupted).flatten(),
            () = self.watch(journal, context) => unreachable!("it goes on for as long as it is asked"),
            () = ends.follow(journal, context) => unreachable!("it goes on for as long as it is asked"),
        }
    }

    /// For as long as it is polled.
    async fn watch(&self, journal: &Journal, context: &Arc<Context>) {
        let (mut ticks, mut before, mut kept) = (interval(TICK), None, RequestCounts::default());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(full) = journal.disk_full() {
                let full = self.service.without_folders(&full.to_string());
                self.service.note(&self.id, |batch| batch.paceline.waits_for = Some(full));
            }
            let (journal, context) = (journal.clone(), Arc::clone(context));
            // A full disk holds this up too; what stopped the journal ends the run.
            let look = move || Ok::<_, JournalError>((journal.sums()?, waits_for(&journal, &context)?));
            let Ok(Ok((counts, why))) = blocking(look).await else { continue };
            let counts = RequestCounts::from(&counts);
            let stands = before.replace(counts) == Some(counts);
            // A start after a kill on a full disk has no other counts than those of the record.
            if counts.ended() >= kept.ended() + (counts.total / RECORDED).max(1) {
                let (service, id) = (Arc::clone(&self.service), self.id.clone());
                // Its run may have ended meanwhile.
                let is_newer = move |batch: &Batch| {
                    batch.status == Status::InProgress && counts.ended() >= batch.request_counts.ended()
                };
                let records = move || {
                    service.change(&id, |batch| {
                        batch.request_counts = if is_newer(batch) { counts } else { batch.request_counts };
                    })
                };
                match blocking(records).await {
                    Ok(Ok(_)) => kept = counts,
                    Ok(Err(error)) => tracing::debug!("the counts of the batch are not recorded: {error}"),
                    Err(error) => tracing::debug!("the counts of the batch are not recorded: {error}"),
                }
            }
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

/// The account and the scopes that are stopped until a person acts.
fn stopped(limiter: &Limiter) -> BTreeSet<Arc<str>> {
    let view = limiter.snapshot();
    let all = view.scopes.into_iter().chain([view.account]);
    all.filter(|scope| matches!(scope.state, ScopeState::Stopped { .. })).map(|scope| scope.name).collect()
}
