//! Which store: a file, or a database that several workers share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::work::{PostgresStore, SqliteStore, State, WorkClock, WorkError, WorkStore, worker_of};
use paceline_store::{DiskSpace, is_same_file};

use super::groups::Groups;
use crate::database::{self, not_begun};
use crate::exit::Failure;
use crate::text;

/// The store of a command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Store of the items: a file, which `add` creates, or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "STORE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    store: String,
}

impl StoreArgs {
    /// The store, made when it is not there.
    ///
    /// # Errors
    /// Refuses a file that is no store and a database that cannot be reached.
    pub(crate) async fn open_or_make(&self, clock: &WorkClock) -> Result<Arc<dyn WorkStore>, Failure> {
        self.open_on(clock, None).await
    }

    async fn open_on(&self, clock: &WorkClock, disk: Option<&DiskSpace>) -> Result<Arc<dyn WorkStore>, Failure> {
        if self.is_database() {
            return self.database(false).await;
        }
        self.open_file(clock, disk).map(|store| Arc::new(store) as Arc<dyn WorkStore>)
    }

    async fn database(&self, stays: bool) -> Result<Arc<dyn WorkStore>, Failure> {
        let opened = match stays {
            true => PostgresStore::open_to_stay(&self.store).await,
            false => PostgresStore::open(&self.store).await,
        };
        Ok(Arc::new(opened.map_err(not_begun)?))
    }

    fn open_file(&self, clock: &WorkClock, disk: Option<&DiskSpace>) -> Result<SqliteStore, Failure> {
        let folder = Path::new(&self.store).parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some((folder, error)) = folder.and_then(|folder| Some((folder, folder.metadata().err()?))) {
            let (store, folder) = (self.shown(), folder.display());
            return Err(Failure::refused(format!(
                "cannot open the store {store}: its folder {folder} cannot be found: {error}; create the folder, or name another place"
            )));
        }
        match SqliteStore::open_on(&self.store, clock.clone(), disk.cloned()) {
            Ok(store) => Ok(store),
            Err(error @ WorkError::IsJournal { .. }) => {
                Err(Failure::refused(format!("{error}; `paceline stats {}` shows that run", self.store)))
            }
            Err(error) => Err(not_begun(error)),
        }
    }

    /// The store, which must be there: a mistyped name makes no empty file.
    ///
    /// # Errors
    /// Likewise, and when there is no such file.
    pub(crate) async fn open(&self, clock: &WorkClock) -> Result<Arc<dyn WorkStore>, Failure> {
        self.refuse_missing()?;
        if self.is_database() {
            let opened = PostgresStore::open_to_look(&self.store).await;
            return opened.map(|store| Arc::new(store) as Arc<dyn WorkStore>).map_err(not_begun);
        }
        self.open_on(clock, None).await
    }

    /// The store for a worker, and how many items of a file a worker before had that ended without a word. A file waits for space
    /// on the `disk`; the server of a database is waited for, by a worker that `stays` for as long as it takes.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and when another process works on a file.
    pub(crate) async fn open_to_work(
        &self,
        clock: &WorkClock,
        disk: &DiskSpace,
        stays: bool,
    ) -> Result<(Arc<dyn WorkStore>, u64), Failure> {
        self.refuse_missing()?;
        if self.is_database() {
            return Ok((self.database(stays).await?, 0));
        }
        let store = self.open_file(clock, Some(disk))?;
        let left = store.take_over().await.map_err(not_begun)?;
        Ok((Arc::new(store), left))
    }

    /// The groups of a store that may not send, and whether a worker is at work, where that can be told.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn groups(&self, store: &dyn WorkStore) -> Result<Groups, WorkError> {
        let groups = Groups::of(store, self.now(store).await?).await?;
        let is_worked_on = match self.file() {
            // To look at the lock is in the way of a run that begins just then.
            Some(file) => (store.counts().await?.of(State::InFlight) > 0).then(|| worker_of(file).is_some()),
            // What is in flight at a worker that is gone comes back by itself.
            None => store.workers().await?.filter(|workers| *workers > 0).map(|_| true),
        };
        Ok(groups.worked_on(is_worked_on))
    }

    /// The time by which people are told of the store: that of a database, whatever this machine's clock shows. The clock of a
    /// file is its worker's, which may have followed a leap that was taken back since: they are told by what it shows now.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn now(&self, store: &dyn WorkStore) -> Result<Timestamp, WorkError> {
        match self.file() {
            Some(_) => Ok(clock::wall()),
            None => store.now().await,
        }
    }

    /// Whether a worker is at work; none where that cannot be told.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn has_worker(&self, store: &dyn WorkStore) -> Result<Option<bool>, WorkError> {
        Ok(match self.file() {
            Some(file) => Some(worker_of(file).is_some()),
            None => store.workers().await?.map(|workers| workers > 0),
        })
    }

    /// Refuses a file that is not there.
    ///
    /// # Errors
    /// Names the command that makes it.
    pub(crate) fn refuse_missing(&self) -> Result<(), Failure> {
        if self.is_database() || PathBuf::from(&self.store).exists() {
            return Ok(());
        }
        let store = &self.store;
        Err(Failure::refused(format!("there is no store {store}; `paceline tasks add --store {store} ...` makes it")))
    }

    /// Refuses a file to be written that is the store, or belongs to it.
    ///
    /// # Errors
    /// Names the flag and the file.
    pub(crate) fn refuse_as_output(&self, flag: &str, output: Option<&Path>) -> Result<(), Failure> {
        let Some(output) = output.filter(|_| !self.is_database()) else { return Ok(()) };
        let mut own = ["", "-journal", "-wal", "-shm", ".lock"].into_iter().map(|end| format!("{}{end}", self.store));
        if own.any(|own| is_same_file(own.as_ref(), output)) {
            let output = output.display();
            return Err(Failure::refused(format!("{flag} {output} belongs to the store: expected another file")));
        }
        Ok(())
    }

    /// The file, where the items are not in Postgres.
    pub(crate) fn file(&self) -> Option<&Path> {
        (!self.is_database()).then(|| self.store.as_ref())
    }

    /// What people call it: its file.
    pub(crate) fn name(&self) -> String {
        let file = self.file().and_then(Path::file_name);
        file.map_or_else(|| "tasks".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// What a command line calls it; of an address, which may hold a password, nothing.
    pub(crate) fn shown(&self) -> String {
        if self.is_database() { "STORE".to_owned() } else { text::printable(&self.store).into_owned() }
    }

    fn is_database(&self) -> bool {
        database::is_address(&self.store)
    }
}
