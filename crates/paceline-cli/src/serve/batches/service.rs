//! The batches of a gateway: what is known of them, and the tasks that work on those that have not ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use paceline::clock;
use paceline_config::Upstream;
use paceline_gateway::{Backend, Clients};
use paceline_http::Sender;
use paceline_store::lock_file;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::disk;
use super::error::ApiError;
use super::files::Files;
use super::job;
use super::object::{Batch, Ours, RequestCounts, Status, now};
use crate::account::make_private;
use crate::lines::address::Addresses;
use crate::lines::format::{Format, SHOWS_A_KEY};
use crate::serve::whole_file;

/// The folder of the batches themselves.
pub(super) const JOBS: &str = "jobs";

/// So many batches of one upstream run at once beside one of each client; others wait for their turn.
pub(super) const SHARED: usize = 3;

/// An upstream that batches may be sent to.
pub(crate) struct Served {
    pub(crate) backend: Arc<Backend>,
    pub(crate) upstream: Upstream,
    pub(crate) sender: Arc<Sender>,
    /// Places for batches that run.
    turns: Turns,
}

/// Places for batches of one upstream: some for all clients, and one for each, so that none waits for those of others alone,
/// whose server may not answer.
struct Turns {
    shared: Arc<Semaphore>,
    own: Mutex<BTreeMap<Option<String>, Arc<Semaphore>>>,
}

impl Turns {
    fn new() -> Self {
        Self { shared: Arc::new(Semaphore::new(SHARED)), own: Mutex::default() }
    }

    /// A place for a batch of that client.
    async fn take(&self, client: Option<&str>) -> Option<OwnedSemaphorePermit> {
        let own = {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(own.entry(client.map(str::to_owned)).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        let place = tokio::select! {
            biased;
            place = own.acquire_owned() => place,
            place = Arc::clone(&self.shared).acquire_owned() => place,
        };
        place.ok()
    }
}

/// The files and batches of a gateway.
pub(super) struct Service {
    folder: PathBuf,
    pub(super) files: Files,
    upstreams: RwLock<Vec<Arc<Served>>>,
    batches: Mutex<BTreeMap<String, Known>>,
    tasks: Mutex<JoinSet<()>>,
    /// Who may call the gateway.
    clients: RwLock<Arc<Clients>>,
    /// Whether the gateway ends.
    ending: watch::Sender<bool>,
    /// How many calls runs have cut off, because their answers took too long.
    pub(super) cut_off: AtomicU64,
    _lock: File,
}

/// A batch, and how its run is asked to end.
struct Known {
    batch: Batch,
    /// How often.
    asked: watch::Sender<u32>,
    /// A task works on it.
    begun: bool,
}

/// What a client asks for.
pub(super) struct Order {
    pub(super) input_file_id: String,
    pub(super) endpoint: String,
    pub(super) completion_window: String,
    pub(super) window: Duration,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) served: Arc<Served>,
    /// The name of its key, where it has one, and the id of that.
    pub(super) client: Option<(String, String)>,
    /// What its client calls it, so that asking again makes no second batch.
    pub(super) idempotency_key: Option<String>,
}

impl Order {
    /// Whether its client has asked for that batch under that key: each has names of its own.
    fn is_named(&self, key: &str, batch: &Batch) -> bool {
        let Ours { client, idempotency_key, .. } = &batch.paceline;
        idempotency_key.as_deref() == Some(key) && *client == self.client.as_ref().map(|(name, _)| name.clone())
    }

    /// Whether it asks for that batch.
    fn is_for(&self, batch: &Batch) -> bool {
        let asked = (&self.input_file_id, &self.endpoint, &self.completion_window, &self.metadata);
        let named = &self.served.upstream.name;
        (asked, named)
            == (
                (&batch.input_file_id, &batch.endpoint, &batch.completion_window, &batch.metadata),
                &batch.paceline.upstream,
            )
    }
}

impl Known {
    fn new(batch: Batch) -> Self {
        Self { batch, asked: watch::Sender::new(0), begun: false }
    }
}

impl Served {
    /// An upstream with no batch yet.
    pub(crate) fn new(backend: Arc<Backend>, upstream: Upstream, sender: Arc<Sender>) -> Self {
        Self { backend, upstream, sender, turns: Turns::new() }
    }

    /// The turn of that batch, once it has come.
    pub(super) async fn turn(&self, batch: &Batch) -> Option<OwnedSemaphorePermit> {
        self.turns.take(batch.paceline.client.as_deref()).await
    }

    /// How the lines of a batch for that endpoint are read.
    ///
    /// # Errors
    /// For messages: an endpoint that is no path of the upstream.
    pub(super) fn format(&self, endpoint: &str, clients: Arc<Clients>) -> Result<Format, String> {
        Format::of_hosted_batch(endpoint, self.upstream.provider, &Addresses::of(&self.upstream), clients)
    }
}

impl Service {
    /// What that folder holds; none while another gateway uses it.
    pub(super) fn open(folder: &Path, upstreams: Vec<Served>) -> io::Result<Option<Arc<Self>>> {
        make_private(folder)?;
        let Some(lock) = lock_file(&folder.join("lock")).map_err(io::Error::other)? else { return Ok(None) };
        let (files, jobs) = (Files::open(folder.join("files"))?, folder.join(JOBS));
        make_private(&jobs)?;
        let mut batches = BTreeMap::new();
        for entry in std::fs::read_dir(&jobs)? {
            let path = entry?.path();
            match disk::read::<Batch>(&path) {
                Ok(mut batch) => {
                    batch.paceline.waits_for = None;
                    if batch.status.is_final() {
                        disk::leave_only_record(&path)?;
                    }
                    batches.insert(batch.id.clone(), Known::new(batch));
                }
                // Killed before it had a record, it was never promised to a client.
                Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::remove_dir_all(&path)?,
                Err(error) => tracing::warn!("{} is left alone: {error}", path.display()),
            }
        }
        Ok(Some(Arc::new(Self {
            folder: jobs,
            files,
            upstreams: RwLock::new(upstreams.into_iter().map(Arc::new).collect()),
            batches: Mutex::new(batches),
            tasks: Mutex::default(),
            clients: RwLock::default(),
            ending: watch::Sender::new(false),
            cut_off: AtomicU64::default(),
            _lock: lock,
        })))
    }

    /// Goes on with what has not ended, the oldest first.
    pub(super) fn resume(self: &Arc<Self>) {
        for batch in self.all().into_iter().filter(|batch| !batch.status.is_final()) {
            self.begin(&batch.id);
        }
    }

    /// Goes on with these upstreams: runs end as with the gateway, and go on with what is configured now, the key too.
    pub(super) async fn renew(self: &Arc<Self>, upstreams: Vec<Served>) {
        self.end().await;
        *self.upstreams.write().unwrap_or_else(PoisonError::into_inner) = upstreams.into_iter().map(Arc::new).collect();
        {
            // Under this lock a batch is begun: none is begun twice.
            let mut batches = self.batches();
            for known in batches.values_mut() {
                (known.asked, known.begun) = (watch::Sender::new(0), false);
            }
            self.ending.send_replace(false);
        }
        self.resume();
    }

    /// Ends the runs; the next start goes on with them. Returns how many calls were cut off meanwhile.
    pub(super) async fn end(&self) -> u64 {
        let before = self.cut_off.load(Ordering::Relaxed);
        self.ending.send_replace(true);
        for known in self.batches().values() {
            known.asked.send_modify(|times| *times += 1);
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
        self.cut_off.load(Ordering::Relaxed) - before
    }

    /// Whether the gateway ends.
    pub(super) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// The upstream of that name.
    pub(super) fn served(&self, name: &str) -> Option<Arc<Served>> {
        self.upstreams().into_iter().find(|served| served.upstream.name == name)
    }

    /// All upstreams.
    pub(super) fn upstreams(&self) -> Vec<Arc<Served>> {
        self.upstreams.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a batch, and begins with it. One that was taken already under the same idempotency key is that batch.
    pub(super) fn create(self: &Arc<Self>, order: Order) -> Result<Batch, ApiError> {
        self.check(&order)?;
        // Under this lock no file is deleted that a batch reads, and none is asked for twice.
        let mut batches = self.batches();
        if let Some(key) = &order.idempotency_key
            && let Some(known) = batches.values().find(|known| order.is_named(key, &known.batch))
        {
            let (batch, id) = (&known.batch, &known.batch.id);
            let message =
                || format!("{id} was asked for under this key, and differs: expected the same request, or a new key");
            return if order.is_for(batch) {
                Ok(batch.clone())
            } else {
                Err(ApiError::invalid("Idempotency-Key", message()))
            };
        }
        if self.files.get(&order.input_file_id).is_none() {
            return Err(ApiError::unknown("File", &order.input_file_id));
        }
        let Order { input_file_id, endpoint, completion_window, window, metadata, served, client, idempotency_key } =
            order;
        let (client, client_key) = client.unzip();
        let batch = Batch {
            id: format!("batch_{}", Uuid::now_v7().simple()),
            object: "batch".into(),
            endpoint,
            errors: None,
            input_file_id,
            completion_window,
            status: Status::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at: now(),
            in_progress_at: None,
            // Rounded up: the window is never shorter than the client asked for.
            expires_at: (clock::wall() + window).as_millis() / 1_000 + 1,
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: RequestCounts::default(),
            usage: None,
            metadata,
            paceline: Ours {
                upstream: served.upstream.name.clone(),
                client,
                client_key,
                idempotency_key,
                ..Ours::default()
            },
        };
        let folder = self.folder_of(&batch.id);
        make_private(&folder)?;
        disk::write(&folder, &batch).and_then(|()| whole_file::sync_names(&self.folder)).inspect_err(|_| {
            // What is left has no record, and the next start deletes it.
            drop(std::fs::remove_dir_all(&folder));
        })?;
        batches.insert(batch.id.clone(), Known::new(batch.clone()));
        drop(batches);
        self.begin(&batch.id);
        Ok(batch)
    }

    /// Its endpoint is one of the upstream, and others see no key of a client in what it names.
    fn check(&self, order: &Order) -> Result<(), ApiError> {
        let clients = self.clients();
        let format = order.served.format(&order.endpoint, Arc::clone(&clients));
        format.map_err(|message| ApiError::invalid("endpoint", message))?;
        let has_key = |(name, text): (&String, &String)| clients.have_key_in(name) || clients.have_key_in(text);
        match order.metadata.iter().flatten().any(has_key) {
            true => Err(ApiError::invalid("metadata", SHOWS_A_KEY)),
            false => Ok(()),
        }
    }

    fn begin(self: &Arc<Self>, id: &str) {
        let asked = match self.batches().get_mut(id) {
            Some(known) if !known.begun && !self.is_ending() => {
                known.begun = true;
                known.asked.subscribe()
            }
            _ => return,
        };
        let (service, id) = (Arc::clone(self), id.to_owned());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        if !self.is_ending() {
            tasks.spawn(job::tend(service, id, asked));
        }
    }

    /// These may call the gateway from now on.
    pub(super) fn keep_to(&self, clients: Arc<Clients>) {
        *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
        for batch in self.all().into_iter().filter(|batch| !batch.status.is_final()) {
            self.lets_go_on(&batch.id);
        }
    }

    /// Those that may call the gateway now.
    pub(super) fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the client of a batch may still make it; else it is cancelled. What is done is kept, and calls in flight are
    /// answered.
    pub(super) fn lets_go_on(&self, id: &str) -> bool {
        let clients = self.clients();
        let why = self.batches().get(id).and_then(|known| known.batch.paceline.why_not(&clients));
        let Some(why) = why else { return true };
        if tokio::task::block_in_place(|| self.cancel(id, Some(&why))).is_err() {
            // Without a record of that it stands still.
            self.ask_to_end(id);
        }
        false
    }

    fn ask_to_end(&self, id: &str) {
        if let Some(known) = self.batches().get(id) {
            known.asked.send_modify(|times| *times += 1);
        }
    }

    /// Ends a batch early. `why` is told where no client asks for it.
    pub(super) fn cancel(&self, id: &str, why: Option<&str>) -> Result<Batch, ApiError> {
        let batch = self.get(id).ok_or_else(|| ApiError::unknown("Batch", id))?;
        if batch.status == Status::Cancelling {
            return Ok(batch);
        }
        let mut may = false;
        let batch = self.change(id, |batch| {
            may = matches!(batch.status, Status::Validating | Status::InProgress);
            if may {
                batch.paceline.cancelled_because = why.map(str::to_owned);
                batch.enter(Status::Cancelling);
            }
        })?;
        if !may {
            return Err(ApiError::conflict(format!("Cannot cancel a batch with status '{}'.", batch.status.as_str())));
        }
        if let Some(why) = why {
            tracing::warn!(client = batch.paceline.client, batch = id, "a batch is cancelled: {why}");
        }
        self.ask_to_end(id);
        Ok(batch)
    }

    /// The batch of that id.
    pub(super) fn get(&self, id: &str) -> Option<Batch> {
        self.batches().get(id).map(|known| known.batch.clone())
    }

    /// All batches, the oldest first.
    pub(super) fn all(&self) -> Vec<Batch> {
        let mut all: Vec<_> = self.batches().values().map(|known| known.batch.clone()).collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// Deletes a file, unless a batch reads it.
    pub(super) fn delete_file(&self, id: &str) -> Result<(), ApiError> {
        let batches = self.batches();
        let reads = |known: &&Known| known.batch.input_file_id == id && !known.batch.status.is_final();
        if let Some(known) = batches.values().find(reads) {
            return Err(ApiError::conflict(format!(
                "{} reads the file; cancel it, or wait for its end",
                known.batch.id
            )));
        }
        Ok(self.files.delete(id)?)
    }

    /// Changes a batch and its record; neither where the record cannot be written.
    pub(super) fn change(&self, id: &str, change: impl FnOnce(&mut Batch)) -> io::Result<Batch> {
        let mut batches = self.batches();
        let known = batches.get_mut(id).ok_or(io::ErrorKind::NotFound)?;
        let mut batch = known.batch.clone();
        change(&mut batch);
        disk::write(&self.folder_of(id), &batch)?;
        known.batch = batch.clone();
        Ok(batch)
    }

    /// Changes what no restart needs.
    pub(super) fn note(&self, id: &str, change: impl FnOnce(&mut Batch)) {
        if let Some(known) = self.batches().get_mut(id) {
            change(&mut known.batch);
        }
    }

    /// A text for clients, to whom the folders of the gateway say nothing.
    pub(super) fn without_folders(&self, text: &str) -> String {
        let own = self.folder.ancestors().skip(1).take(2).filter(|folder| !folder.as_os_str().is_empty());
        own.fold(text.to_owned(), |text, folder| text.replace(&format!("{}/", folder.display()), ""))
    }

    /// The folder of a known batch.
    pub(super) fn folder_of(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    fn batches(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn no_client_waits_for_batches_of_others_alone() {
        let turns = Turns::new();
        let take = |client| turns.take(client).now_or_never().flatten();
        let first: Vec<_> = (0..6).map_while(|_| take(Some("first"))).collect();
        assert_eq!(first.len(), 1 + SHARED);
        let second = take(Some("second")).expect("its own");
        assert!(take(Some("second")).is_none() && take(None).is_some(), "one alone");
        drop(first);
        let more: Vec<_> = (0..6).map_while(|_| take(Some("second"))).collect();
        assert_eq!(more.len(), SHARED);
        drop((second, more));
    }
}
