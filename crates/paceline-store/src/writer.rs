//! The writer thread, which alone owns the journal and the output files, and its queue.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use crate::command::Command;
use crate::disk_space::DiskSpace;
use crate::error::JournalError;
use crate::journal_db::JournalDb;
use crate::schema;
use crate::write_batch::write_batch;

/// The capacity of the queue in bytes: enough for thousands of usual answers, little beside a usual machine's memory.
const QUEUE_BYTES: usize = 64 << 20;

/// The queue and its thread.
pub(crate) struct Writer {
    queue: Arc<Queue>,
    disk_space: DiskSpace,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(db: JournalDb) -> Result<Self, JournalError> {
        let (queue, disk_space) = (Arc::new(Queue::default()), db.paths().disk_space());
        let (served, asked) = (queue.clone(), disk_space.clone());
        let thread = thread::Builder::new()
            .name("paceline-journal".into())
            .spawn(move || serve(&served, &asked, db))
            .map_err(JournalError::io("start the thread of", "the journal".as_ref()))?;
        Ok(Self { queue, disk_space, thread: Mutex::new(Some(thread)) })
    }

    /// Whether the disk has space for what is queued.
    pub(crate) fn disk_space(&self) -> &DiskSpace {
        &self.disk_space
    }

    /// Queues a command; waits while the queue is full. Every command is answered.
    pub(crate) fn send(&self, command: Command) {
        self.queue.push(command);
    }

    /// Reads the database and waits for the result.
    pub(crate) fn query<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        self.between_batches(|db| ask(db.connection()))
    }

    /// Does work that must not run within a batch, and waits until it is done.
    pub(crate) fn between_batches<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut JournalDb) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (sender, receiver) = mpsc::channel();
        self.send(Command::Query(Box::new(move |db| drop(sender.send(db.and_then(work))))));
        receiver.recv().unwrap_or(Err(JournalError::Closed))
    }

    /// Waits for the thread to finish what is queued.
    pub(crate) fn close(&self) -> Result<(), JournalError> {
        lock(&self.queue.state).closed = true;
        self.queue.ready.notify_all();
        self.queue.has_space.notify_all();
        let thread = lock(&self.thread).take();
        // The last handle may be dropped in a reply, on the writer thread itself, which cannot join itself.
        let panicked = match thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            Some(thread) => thread.join().is_err(),
            None => false,
        };
        match &lock(&self.queue.state).failed {
            Some(cause) => Err(JournalError::Stopped { cause: cause.clone() }),
            None if panicked => Err(JournalError::Closed),
            None => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A caller that wants the result, or wants to wait for a full disk, calls `close`.
        self.disk_space.fail_when_full();
        let _ = self.close();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Writes batch after batch. All commands that are queued are one batch, so batches grow by themselves while the disk works. A
/// batch begins only when the disk has space for it; at the end of a run what has none is refused.
fn serve(queue: &Queue, disk_space: &DiskSpace, mut db: JournalDb) {
    let _close = CloseOnExit(queue);
    while let Some(mut commands) = queue.take() {
        let writes = commands.iter().filter(|command| !command.is_query());
        let fitting = disk_space.wait_for_batch(writes.map(Command::bytes), || {
            // The log of the database holds pages that stand in it many times. Where this fails, so does what is written next.
            let _ = schema::checkpoint(db.connection());
        });
        refuse_all_but(fitting, &mut commands, disk_space);
        if let Err(cause) = write_batch(&mut db, commands) {
            return queue.end(Some(cause));
        }
    }
    if let Err(error) = db.close() {
        queue.end(Some(Arc::new(error)));
    }
}

/// Refuses the commands that the full disk has no space for.
fn refuse_all_but(fitting: usize, commands: &mut Vec<Command>, disk_space: &DiskSpace) {
    let Some(disk_full) = disk_space.disk_full() else { return };
    let mut writes = 0;
    let has_no_space = |command: &mut Command| {
        writes += usize::from(!command.is_query());
        !command.is_query() && writes > fitting
    };
    for command in commands.extract_if(.., has_no_space) {
        command.refuse(JournalError::DiskFull(disk_full.clone()));
    }
}

/// Closes the queue when the thread ends, by a panic too: no caller must wait for it then.
struct CloseOnExit<'a>(&'a Queue);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<Queued>,
    ready: Condvar,
    has_space: Condvar,
}

#[derive(Default)]
struct Queued {
    commands: Vec<Command>,
    bytes: usize,
    /// The writer waits for commands, and those who push wake it: a call of the system, which it does not need while it writes.
    idle: bool,
    closed: bool,
    failed: Option<Arc<JournalError>>,
}

impl Queue {
    fn push(&self, command: Command) {
        let bytes = command.bytes();
        let mut state = lock(&self.state);
        // A command larger than the whole queue is still accepted, alone.
        while !state.closed && !state.commands.is_empty() && state.bytes + bytes > QUEUE_BYTES {
            state = self.has_space.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            let error = state.error();
            drop(state);
            return command.refuse(error);
        }
        let waits = matches!(command, Command::Leaves { reply: None, .. });
        state.bytes += bytes;
        state.commands.push(command);
        let wakes = !waits && std::mem::take(&mut state.idle);
        drop(state);
        if wakes {
            self.ready.notify_one();
        }
    }

    /// All that is queued; none once the queue is closed and empty.
    fn take(&self) -> Option<Vec<Command>> {
        let mut state = lock(&self.state);
        while state.commands.is_empty() {
            if state.closed {
                return None;
            }
            state.idle = true;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle = false;
        state.bytes = 0;
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        self.has_space.notify_all();
        Some(commands)
    }

    /// Refuses what is queued and everything after it.
    fn end(&self, cause: Option<Arc<JournalError>>) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.failed = state.failed.take().or(cause);
        let commands = std::mem::take(&mut state.commands);
        let errors: Vec<_> = commands.iter().map(|_| state.error()).collect();
        drop(state);
        self.has_space.notify_all();
        for (command, error) in commands.into_iter().zip(errors) {
            command.refuse(error);
        }
    }
}

impl Queued {
    fn error(&self) -> JournalError {
        self.failed.clone().map_or(JournalError::Closed, |cause| JournalError::Stopped { cause })
    }
}

/// A panic elsewhere leaves plain data behind, which stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::item::{End, Finished};

    /// A wait that takes longer has no end.
    const LONGEST_WAIT: Duration = Duration::from_mins(2);

    /// As while a disk is full: nothing is taken, and answers come.
    #[test]
    fn answers_that_wait_take_no_more_memory_than_their_bound() {
        const LINE: usize = 2 << 20;
        let queue = Arc::new(Queue::default());
        let (placed, places) = mpsc::channel();
        let pushes = {
            let queue = queue.clone();
            thread::spawn(move || {
                for ordinal in 0..70 {
                    let finished = Finished::new(ordinal, End::Succeeded, vec![b'x'; LINE]);
                    queue.push(Command::Finish(Box::new(finished), Box::new(|_| {})));
                    placed.send(()).expect("it is waited for");
                }
            })
        };
        let (mut found, mut taken) = (0, 0);
        while taken < 70 {
            while found < 70.min(taken + 31) {
                places.recv_timeout(LONGEST_WAIT).expect("the queue has room for this answer");
                found += 1;
            }
            let bytes = lock(&queue.state).bytes;
            assert!(bytes <= QUEUE_BYTES, "{} MiB wait", bytes >> 20);
            taken += queue.take().expect("it is open").len();
        }
        pushes.join().expect("each found its place");
    }
}
