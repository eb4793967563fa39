//! Bodies of requests that are held: what one client leaves of their room to others, and the threads on which large ones are
//! read, so that those that serve wait for none.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::bounds::{Held, Room, share};

/// A larger body is read on a thread for that: JSON of this length is read in less than a millisecond.
pub(crate) const LEAST_LARGE: usize = 64 << 10;

/// A client may hold so many times as many bytes as are free: one alone leaves a quarter of them to the others.
const SHARE: u64 = 3;

/// Those of all clients.
#[derive(Debug)]
pub(crate) struct Bodies {
    held: Held,
    /// A place for each large one that is being read.
    readers: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        // The other processors serve.
        let readers = available_parallelism().map_or(1, |all| (all.get() / 2).max(1));
        Self { held: Held::default(), readers: Arc::new(Semaphore::new(readers)) }
    }
}

/// Those of one client.
#[derive(Clone, Debug)]
pub(crate) struct BodiesOfClient {
    held: Held,
    /// One is read at a time: large ones of other clients wait behind one of each.
    reads: Arc<Semaphore>,
}

impl Default for BodiesOfClient {
    fn default() -> Self {
        Self { held: Held::default(), reads: Arc::new(Semaphore::new(1)) }
    }
}

/// What a request holds of the room for bodies, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct HeldBody {
    own: Room,
    of_all: Room,
}

/// There is no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The client has its share.
    OfClient,
    /// All clients together have all.
    OfAll,
}

impl Bodies {
    /// That of a request of that client, of which nothing has come.
    pub(crate) fn begin(&self, client: &BodiesOfClient) -> HeldBody {
        let [own, of_all] = [&client.held, &self.held].map(|held| held.take(0, u64::MAX).unwrap_or_default());
        HeldBody { own, of_all }
    }

    /// Does `read` with a body of so many bytes, and where that is large on a thread for that, once one is free. Dropped before,
    /// it reads nothing: no client waits for it any more.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        client: &BodiesOfClient,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if bytes <= LEAST_LARGE {
            return read();
        }
        // No one closes them.
        let turn = Arc::clone(&client.reads).acquire_owned().await.ok();
        let reader = Arc::clone(&self.readers).acquire_owned().await.ok();
        let reading = spawn_blocking(move || {
            let _held = (turn, reader);
            read()
        });
        reading.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
    }
}

impl HeldBody {
    /// Takes room for so many more bytes, where all may be `most`.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn grow(&mut self, amount: u64, most: u64) -> Result<(), NoRoom> {
        let left = share(self.of_all.count(), most.saturating_sub(amount), SHARE);
        if left > 0 && !self.own.grow(amount, left) {
            return Err(NoRoom::OfClient);
        }
        if left > 0 && self.of_all.grow(amount, most) { Ok(()) } else { Err(NoRoom::OfAll) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::{spawn, yield_now};

    use super::*;

    #[test]
    fn one_client_leaves_a_quarter_of_the_room_to_others() {
        let (bodies, greedy, other) = (Bodies::default(), BodiesOfClient::default(), BodiesOfClient::default());
        let mut held: Vec<_> = (0..50).map(|_| bodies.begin(&greedy)).collect();
        let taken = held.iter_mut().map_while(|body| body.grow(4, 100).ok()).count();
        assert_eq!((taken, held[taken].grow(4, 100)), (18, Err(NoRoom::OfClient)));
        let mut own = bodies.begin(&other);
        assert_eq!((own.grow(20, 100), own.grow(9, 100)), (Ok(()), Err(NoRoom::OfAll)));
        held.truncate(2);
        assert_eq!(own.grow(10, 100), Ok(()), "what ends makes room");
    }

    /// By one thread: what blocks it ends never.
    #[tokio::test]
    async fn large_bodies_are_read_one_of_a_client_at_a_time_and_no_one_waits_for_them() {
        let (bodies, client) = (Arc::new(Bodies::default()), BodiesOfClient::default());
        let (tell, told) = mpsc::channel::<&str>();
        let (goes_on, goes) = mpsc::channel::<()>();
        let read = |name: &'static str, goes: Option<mpsc::Receiver<()>>, bytes| {
            let (bodies, client, tell) = (Arc::clone(&bodies), client.clone(), tell.clone());
            spawn(async move {
                let read = move || {
                    goes.map(|goes| goes.recv());
                    tell.send(name)
                };
                bodies.read(&client, bytes, read).await
            })
        };
        let first = read("first", Some(goes), LEAST_LARGE + 1);
        yield_now().await;
        let (second, gone) = (read("second", None, LEAST_LARGE + 1), read("gone", None, LEAST_LARGE + 1));
        let small = read("small", None, LEAST_LARGE);
        small.await.expect("it is read").expect("it is told");
        gone.abort();
        assert!(gone.await.is_err());
        goes_on.send(()).expect("the first waits");
        for one in [first, second] {
            one.await.expect("it is read").expect("it is told");
        }
        drop(tell);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["small", "first", "second"]);
    }
}
