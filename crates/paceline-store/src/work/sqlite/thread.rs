//! The one thread that owns the database. Steps that are queued while the disk works become one transaction, so batches grow by
//! themselves.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, MAIN_DB};
use tokio::sync::oneshot;

use super::log::make_room;
use crate::disk::FileIdentity;
use crate::disk_space::DiskSpace;
use crate::work::error::WorkError;
use crate::work::store::StoreFuture;

/// The thread and its queue.
#[derive(Debug)]
pub(super) struct StoreThread {
    steps: Option<mpsc::SyncSender<Box<dyn Step>>>,
    thread: Option<JoinHandle<()>>,
}

/// Steps that may be queued, and that one transaction may hold. Each is a batch of its caller's.
const QUEUE: usize = 256;

impl StoreThread {
    /// Starts the thread, which waits for space on the `disk` before each transaction. `on_rollback` is called after one that
    /// failed.
    pub(super) fn start(
        conn: Connection,
        path: PathBuf,
        disk: Option<DiskSpace>,
        on_rollback: impl Fn() + Send + 'static,
    ) -> Result<Self, WorkError> {
        let place = OpenedFile::of(path)?;
        let (sender, steps) = mpsc::sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("paceline-work".into())
            .spawn(move || serve(&conn, &place, disk.as_ref(), &steps, on_rollback))
            .map_err(crate::JournalError::io("start the thread of", "the store".as_ref()))?;
        Ok(Self { steps: Some(sender), thread: Some(thread) })
    }

    /// Does `work` within a transaction; the result is ready once that is on the disk. The call itself queues the work, so it is
    /// done even if the caller never polls the future or drops it. It is done again after a transaction that found the disk full.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, WorkError> + Send + 'static,
    ) -> StoreFuture<'static, T> {
        let (reply, answer) = oneshot::channel();
        let step = Box::new(QueuedStep { work, done: None, reply });
        let queued = self.steps.as_ref().is_some_and(|steps| steps.send(step).is_ok());
        Box::pin(
            async move { if queued { answer.await.unwrap_or(Err(WorkError::Closed)) } else { Err(WorkError::Closed) } },
        )
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        drop(self.steps.take());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, its callers got `Closed`.
            let _ = thread.join();
        }
    }
}

/// One batch of one caller.
trait Step: Send {
    fn execute(&mut self, conn: &Connection) -> Result<(), WorkError>;
    fn reply(self: Box<Self>, failure: Option<&WorkError>);
}

struct QueuedStep<T, F> {
    work: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, WorkError>>,
}

impl<T: Send, F: FnMut(&Connection) -> Result<T, WorkError> + Send> Step for QueuedStep<T, F> {
    fn execute(&mut self, conn: &Connection) -> Result<(), WorkError> {
        self.done = Some((self.work)(conn)?);
        Ok(())
    }

    fn reply(self: Box<Self>, failure: Option<&WorkError>) {
        let answer = match (failure, self.done) {
            (None, Some(done)) => Ok(done),
            (Some(failure), _) => Err(failure.clone()),
            (None, None) => Err(WorkError::Closed),
        };
        // The caller may have dropped its future.
        let _ = self.reply.send(answer);
    }
}

/// The path and identity of the file that was opened. SQLite goes on with a file that was removed or replaced as if nothing had
/// happened, and no reader would ever see what it records there.
#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    file: FileIdentity,
}

impl OpenedFile {
    fn of(path: PathBuf) -> Result<Self, WorkError> {
        let file = FileIdentity::at(&path).map_err(crate::JournalError::io("find", &path))?;
        Ok(Self { path, file })
    }

    fn check(&self) -> Result<(), WorkError> {
        if FileIdentity::at(&self.path).is_ok_and(|file| file == self.file) {
            return Ok(());
        }
        Err(WorkError::Gone { path: self.path.clone() })
    }
}

fn serve(
    conn: &Connection,
    place: &OpenedFile,
    disk: Option<&DiskSpace>,
    steps: &mpsc::Receiver<Box<dyn Step>>,
    on_rollback: impl Fn(),
) {
    while let Ok(first) = steps.recv() {
        let mut group = vec![first];
        group.extend(steps.try_iter().take(QUEUE - 1));
        let failure = transact(conn, place, disk, &mut group, &on_rollback).err();
        for step in group {
            step.reply(failure.as_ref());
        }
    }
}

/// The same once there is space for it: another program may take what was there a moment ago. Before a disk counts as full, the
/// log is moved into the database. One that is full although it says that it has space is believed the second time.
fn transact(
    conn: &Connection,
    place: &OpenedFile,
    disk: Option<&DiskSpace>,
    group: &mut [Box<dyn Step>],
    on_rollback: impl Fn(),
) -> Result<(), WorkError> {
    let mut was_full = false;
    loop {
        let waited = disk.is_some_and(|disk| disk.wait_for_changes(group.len() as u64, || make_room(conn)));
        let done = turn(conn, place, group);
        let Err(error) = &done else { return done };
        on_rollback();
        let is_full = disk.is_some() && error.is_full();
        if !is_full || (was_full && !waited) {
            return done;
        }
        was_full = true;
        make_room(conn);
    }
}

/// Commits all steps or none: after an error nothing of the batch is recorded, and every caller gets the error.
fn turn(conn: &Connection, place: &OpenedFile, group: &mut [Box<dyn Step>]) -> Result<(), WorkError> {
    place.check()?;
    // A read-only database can begin no write transaction.
    let begin = if conn.is_readonly(MAIN_DB).map_err(WorkError::sqlite("read"))? { "BEGIN" } else { "BEGIN IMMEDIATE" };
    conn.execute_batch(begin).map_err(WorkError::sqlite("write"))?;
    let done = group
        .iter_mut()
        .try_for_each(|step| step.execute(conn))
        .and_then(|()| conn.execute_batch("COMMIT").map_err(WorkError::sqlite("write")));
    if done.is_err() {
        // The first error is the one to report. A transaction that failed may have ended by itself.
        let _ = conn.execute_batch("ROLLBACK");
    }
    done
}
