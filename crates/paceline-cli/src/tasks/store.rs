//! Which store: a file, or a database that several workers share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_store::work::{PostgresStore, SqliteStore, WorkClock, WorkError, WorkStore};

use paceline_store::{DiskSpace, is_same_file};

use crate::exit::Failure;

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
            return Ok(Arc::new(PostgresStore::open(&self.store).await.map_err(Failure::refused)?));
        }
        match SqliteStore::open_on(&self.store, clock.clone(), disk.cloned()) {
            Ok(store) => Ok(Arc::new(store)),
            Err(error @ WorkError::IsJournal { .. }) => {
                Err(Failure::refused(format!("{error}; `paceline stats {}` shows that run", self.store)))
            }
            Err(error) => Err(Failure::refused(error)),
        }
    }

    /// The store, which must be there: a mistyped name makes no empty file.
    ///
    /// # Errors
    /// Likewise, and when there is no such file.
    pub(crate) async fn open(&self, clock: &WorkClock) -> Result<Arc<dyn WorkStore>, Failure> {
        self.open_to_work(clock, None).await
    }

    /// The same; a file waits for space on the `disk`.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) async fn open_to_work(
        &self,
        clock: &WorkClock,
        disk: Option<&DiskSpace>,
    ) -> Result<Arc<dyn WorkStore>, Failure> {
        self.refuse_missing()?;
        self.open_on(clock, disk).await
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

    fn is_database(&self) -> bool {
        ["postgres://", "postgresql://"].iter().any(|scheme| self.store.starts_with(scheme))
    }
}
