//! The files that the process may have open: connections of clients leave some to those of upstreams, and to what is written.

use tokio::net::{TcpListener, TcpStream};

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
}

/// Where files are short, the bodies that one client still owes hold no more than one of so many.
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
    most().is_some_and(|most| {
        let first = most - (most / left.part).min(left.most);
        u64::try_from(number).is_ok_and(|number| number >= first)
    })
}

/// How many connections one client may hold by bodies that it owes, where files are short.
#[cfg(unix)]
pub(crate) fn of_one_client() -> u64 {
    most().map_or(u64::MAX, |most| (most / OF_ONE).max(1))
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
