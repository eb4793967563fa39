//! The one thread that owns the journal and the output files, and the queue in front of it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use crate::book::Book;
use crate::command::Command;
use crate::error::Error;
use crate::room::Room;
use crate::turn::turn;

/// What the queue may hold: enough for thousands of usual answers, little beside a usual machine's memory.
const QUEUE_BYTES: usize = 64 << 20;

/// The queue and its thread.
pub(crate) struct Writer {
    queue: Arc<Queue>,
    room: Arc<Room>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(book: Book) -> Result<Self, Error> {
        let (queue, room) = (Arc::new(Queue::default()), Arc::new(Room::of(book.paths())));
        let (served, asked) = (queue.clone(), room.clone());
        let thread = thread::Builder::new()
            .name("paceline-journal".into())
            .spawn(move || serve(&served, &asked, book))
            .map_err(Error::io("start the thread of", "the journal".as_ref()))?;
        Ok(Self { queue, room, thread: Mutex::new(Some(thread)) })
    }

    /// Whether the disk has room for what is queued.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    /// Queues a command; waits while the queue is full. Every command is answered.
    pub(crate) fn send(&self, command: Command) {
        self.queue.push(command);
    }

    /// Asks the database and waits for the answer.
    pub(crate) fn query<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.between_turns(|book| ask(book.connection()))
    }

    /// Does work for which no turn may be under way, and waits until it is done.
    pub(crate) fn between_turns<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Book) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = mpsc::channel();
        self.send(Command::Query(Box::new(move |book| drop(sender.send(book.and_then(work))))));
        receiver.recv().unwrap_or(Err(Error::Closed))
    }

    /// Lets the thread finish what is queued, and waits for it.
    pub(crate) fn close(&self) -> Result<(), Error> {
        lock(&self.queue.state).closed = true;
        self.queue.ready.notify_all();
        self.queue.room.notify_all();
        let thread = lock(&self.thread).take();
        // The last handle may go in a reply, on the very thread that would be waited for.
        let panicked = match thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            Some(thread) => thread.join().is_err(),
            None => false,
        };
        match &lock(&self.queue.state).failed {
            Some(cause) => Err(Error::Stopped { cause: cause.clone() }),
            None if panicked => Err(Error::Closed),
            None => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A caller that wants to know how it went, or to wait for a full disk, calls `close`.
        self.room.hurry();
        let _ = self.close();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Turn after turn: everything that has gathered is one group, so that groups grow by themselves while the disk works. A group
/// begins only when the disk has room for it, or else it is refused but for what only looks.
fn serve(queue: &Queue, room: &Room, mut book: Book) {
    let _gone = Gone(queue);
    while let Some(mut commands) = queue.take() {
        let writes = commands.iter().filter(|command| !command.is_query());
        let (bytes, count) = writes.fold((0, 0), |(bytes, count), command| (bytes + command.bytes() as u64, count + 1));
        if let Err(shortage) = room.wait_for(bytes, count) {
            for command in commands.extract_if(.., |command| !command.is_query()) {
                command.refuse(Error::NoRoom { shortage: shortage.clone() });
            }
        }
        if let Err(cause) = turn(&mut book, commands) {
            return queue.end(Some(cause));
        }
    }
    if let Err(error) = book.close() {
        queue.end(Some(Arc::new(error)));
    }
}

/// However the thread ends, by a panic too, no caller must wait for it.
struct Gone<'a>(&'a Queue);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<Queued>,
    ready: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct Queued {
    commands: Vec<Command>,
    bytes: usize,
    closed: bool,
    failed: Option<Arc<Error>>,
}

impl Queue {
    fn push(&self, command: Command) {
        let bytes = command.bytes();
        let mut state = lock(&self.state);
        // A command larger than the whole queue still passes, alone.
        while !state.closed && !state.commands.is_empty() && state.bytes + bytes > QUEUE_BYTES {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            let error = state.error();
            drop(state);
            return command.refuse(error);
        }
        state.bytes += bytes;
        state.commands.push(command);
        drop(state);
        self.ready.notify_one();
    }

    /// All that is queued; none once the queue is closed and empty.
    fn take(&self) -> Option<Vec<Command>> {
        let mut state = lock(&self.state);
        while state.commands.is_empty() {
            if state.closed {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes = 0;
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        self.room.notify_all();
        Some(commands)
    }

    /// Refuses what is queued and everything after it.
    fn end(&self, cause: Option<Arc<Error>>) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.failed = state.failed.take().or(cause);
        let commands = std::mem::take(&mut state.commands);
        let errors: Vec<_> = commands.iter().map(|_| state.error()).collect();
        drop(state);
        self.room.notify_all();
        for (command, error) in commands.into_iter().zip(errors) {
            command.refuse(error);
        }
    }
}

impl Queued {
    fn error(&self) -> Error {
        self.failed.clone().map_or(Error::Closed, |cause| Error::Stopped { cause })
    }
}

/// A panic elsewhere leaves plain data behind, which stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
