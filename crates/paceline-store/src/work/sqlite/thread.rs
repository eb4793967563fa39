//! The one thread that owns the database. What gathers while the disk works is one transaction, so groups grow by
//! themselves.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, MAIN_DB};
use tokio::sync::oneshot;

use crate::disk::FileIdentity;
use crate::work::error::WorkError;
use crate::work::store::Pending;

/// The thread and the way to it.
#[derive(Debug)]
pub(super) struct Desk {
    steps: Option<mpsc::SyncSender<Box<dyn Step>>>,
    thread: Option<JoinHandle<()>>,
}

/// Steps that may be queued, and that one transaction may hold. Each is a batch of its caller's.
const QUEUE: usize = 256;

impl Desk {
    /// Starts the thread. `undone` is called when a transaction has failed.
    pub(super) fn start(
        conn: Connection,
        path: PathBuf,
        undone: impl Fn() + Send + 'static,
    ) -> Result<Self, WorkError> {
        let place = Place::of(path)?;
        let (sender, steps) = mpsc::sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("paceline-work".into())
            .spawn(move || serve(&conn, &place, &steps, undone))
            .map_err(crate::JournalError::io("start the thread of", "the store".as_ref()))?;
        Ok(Self { steps: Some(sender), thread: Some(thread) })
    }

    /// Does `work` within a transaction and answers once that is on the disk. It is queued at the call already, not when
    /// the answer is first waited for, and done even if the caller waits no more.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, WorkError> + Send + 'static,
    ) -> Pending<'static, T> {
        let (reply, answer) = oneshot::channel();
        let step = Box::new(Asked { work: Some(work), done: None, reply });
        let queued = self.steps.as_ref().is_some_and(|steps| steps.send(step).is_ok());
        Box::pin(
            async move { if queued { answer.await.unwrap_or(Err(WorkError::Closed)) } else { Err(WorkError::Closed) } },
        )
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        drop(self.steps.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told to the callers that waited for it.
            let _ = thread.join();
        }
    }
}

/// One batch of one caller.
trait Step: Send {
    fn carry_out(&mut self, conn: &Connection) -> Result<(), WorkError>;
    fn settle(self: Box<Self>, failure: Option<&WorkError>);
}

struct Asked<T, F> {
    work: Option<F>,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, WorkError>>,
}

impl<T: Send, F: FnOnce(&Connection) -> Result<T, WorkError> + Send> Step for Asked<T, F> {
    fn carry_out(&mut self, conn: &Connection) -> Result<(), WorkError> {
        if let Some(work) = self.work.take() {
            self.done = Some(work(conn)?);
        }
        Ok(())
    }

    fn settle(self: Box<Self>, failure: Option<&WorkError>) {
        let answer = match (failure, self.done) {
            (None, Some(done)) => Ok(done),
            (Some(failure), _) => Err(failure.clone()),
            (None, None) => Err(WorkError::Closed),
        };
        // The caller that asked may have gone.
        let _ = self.reply.send(answer);
    }
}

/// Where the file stood when it was opened. SQLite goes on with a file that was removed or replaced as if nothing had
/// happened, and no reader would ever see what it records there.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    file: FileIdentity,
}

impl Place {
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

fn serve(conn: &Connection, place: &Place, steps: &mpsc::Receiver<Box<dyn Step>>, undone: impl Fn()) {
    while let Ok(first) = steps.recv() {
        let mut group = vec![first];
        group.extend(steps.try_iter().take(QUEUE - 1));
        let failure = turn(conn, place, &mut group).err();
        if failure.is_some() {
            undone();
        }
        for step in group {
            step.settle(failure.as_ref());
        }
    }
}

/// All steps or none: after an error nothing of the group is recorded, and every caller hears of it.
fn turn(conn: &Connection, place: &Place, group: &mut [Box<dyn Step>]) -> Result<(), WorkError> {
    place.check()?;
    // What may not be written is only looked at.
    let begin = if conn.is_readonly(MAIN_DB).map_err(WorkError::sqlite("read"))? { "BEGIN" } else { "BEGIN IMMEDIATE" };
    conn.execute_batch(begin).map_err(WorkError::sqlite("write"))?;
    let done = group
        .iter_mut()
        .try_for_each(|step| step.carry_out(conn))
        .and_then(|()| conn.execute_batch("COMMIT").map_err(WorkError::sqlite("write")));
    if done.is_err() {
        // The first error is the one to tell. A transaction that failed may have ended by itself.
        let _ = conn.execute_batch("ROLLBACK");
    }
    done
}
