//! The files that the process may have open: connections of clients leave some to those of upstreams, and to what is written, and
//! one client leaves some to the others.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use http::StatusCode;
use paceline::{Clock, Repeats};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::bounds::{Held, Room};
use crate::clients::Client;
use crate::refusal::{LEAST, Refusal};

/// What requests of clients with keys hold of the files: a connection each, where that carries no other, and one to the
/// upstream for each call that is under way.
#[derive(Debug, Default)]
pub(crate) struct Files {
    held: Held,
    /// They hold half of those that are the clients', ...
    are_scarce: AtomicBool,
    /// ... since just now.
    become_scarce: Notify,
    told: Mutex<Repeats>,
    clock: Clock,
}

/// A file that a request holds: among those of its client, and among all.
#[derive(Debug, Default)]
pub(crate) struct HeldFile {
    own: Room,
    of_all: Room,
}

impl Files {
    /// A request of that client holds so many more, until that is dropped; none of a client without a key.
    pub(crate) fn hold(&self, client: Option<&Client>, files: u64) -> HeldFile {
        let Some(client) = client else { return HeldFile::default() };
        let [own, of_all] = [&client.files, &self.held].map(|held| held.take(files, u64::MAX).unwrap_or_default());
        let are_scarce = self.are_scarce();
        if self.are_scarce.swap(are_scarce, Ordering::Relaxed) != are_scarce && are_scarce {
            self.become_scarce.notify_waiters();
        }
        HeldFile { own, of_all }
    }

    /// The file of a call of that client that is about to leave: none where half of the files are held with it, and its client
    /// holds more than one may then. Calls of requests that came while they were not scarce would hold twice as many.
    pub(crate) fn of_call(&self, client: Option<&Client>) -> Result<HeldFile, Refusal> {
        let mut file = self.hold(client, 1);
        match client {
            Some(client) if self.are_scarce() && file.own.give_back_above(of_one_client()) => Err(self.refusal(client)),
            _ => Ok(file),
        }
    }

    fn are_scarce(&self) -> bool {
        self.held.count() >= half()
    }

    /// A wait of a request of that client, which is refused where half of the files are held and its client holds more of them
    /// than one may then. `file` is what the request holds.
    pub(crate) async fn bounds<T, E: From<Refusal>>(
        &self,
        client: Option<&Client>,
        file: &mut HeldFile,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(client) = client else { return wait.await };
        let mut wait = pin!(wait);
        loop {
            let become_scarce = self.become_scarce.notified();
            if self.are_scarce() && file.own.give_back_above(of_one_client()) {
                file.of_all = Room::default();
                return Err(self.refusal(client).into());
            }
            tokio::select! {
                biased;
                ended = &mut wait => return ended,
                () = become_scarce => {}
            }
        }
    }

    fn refusal(&self, client: &Client) -> Refusal {
        let (name, most, half) = (client.name(), of_one_client(), half());
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = told.came(self.clock.now()) {
            tracing::warn!(
                client = &**name,
                times = (times > 1).then_some(times),
                "requests are refused: those of all clients hold {half} files, half of what they may, and those of this one more than \
                 {most}, an eighth of all; raise `ulimit -n` (LimitNOFILE of a unit) if clients are many"
            );
        }
        let message = format!(
            "requests of the key {name} hold more than {most} files of the gateway already, as many as those of one key may while half of \
             the files are in use; send it later"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(LEAST)
    }
}

/// Of the files that the process may open, clients leave one part in so many to others, up to a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    part: u64,
    most: u64,
}

impl Left {
    /// At first.
    pub(crate) const USUAL: Self = Self { part: 4, most: 64 };

    /// Where requests under way hold all others for long: never less.
    pub(crate) const LEAST: Self = Self { part: 8, most: 32 };

    /// So many of all are the clients'.
    #[cfg(unix)]
    fn out_of(self, all: u64) -> u64 {
        all - (all / self.part).min(self.most)
    }
}

/// Where files are short, the requests of one client hold no more than one of so many: those whose bodies it owes and those that
/// wait make room, and no other begins.
#[cfg(unix)]
const OF_ONE: u64 = 8;

/// Whether this connection took a file that clients leave to others: the system gives the lowest number that is free.
#[cfg(unix)]
pub(crate) fn is_beyond(stream: &TcpStream) -> bool {
    use std::os::fd::AsRawFd as _;
    are_beyond(stream.as_raw_fd(), Left::USUAL)
}

/// Whether the next connection would.
#[cfg(unix)]
pub(crate) fn would_be_beyond(listener: &TcpListener, left: Left) -> bool {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    listener.as_fd().try_clone_to_owned().map_or(true, |next| are_beyond(next.as_raw_fd(), left))
}

#[cfg(unix)]
fn are_beyond(number: i32, left: Left) -> bool {
    most().is_some_and(|most| u64::try_from(number).is_ok_and(|number| number >= left.out_of(most)))
}

/// How many files one client may hold by its requests, where files are short.
#[cfg(unix)]
pub(crate) fn of_one_client() -> u64 {
    most().map_or(u64::MAX, |most| (most / OF_ONE).max(1))
}

/// Half of those that are the clients'.
#[cfg(unix)]
fn half() -> u64 {
    most().map_or(u64::MAX, |most| Left::USUAL.out_of(most) / 2)
}

#[cfg(unix)]
fn most() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(crate) const fn is_beyond(_: &TcpStream) -> bool {
    false
}

/// Likewise.
#[cfg(not(unix))]
pub(crate) const fn would_be_beyond(_: &TcpListener, _: Left) -> bool {
    false
}

/// Likewise.
#[cfg(not(unix))]
pub(crate) const fn of_one_client() -> u64 {
    u64::MAX
}

/// Likewise.
#[cfg(not(unix))]
const fn half() -> u64 {
    u64::MAX
}
