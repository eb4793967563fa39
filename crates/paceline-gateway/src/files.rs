//! The files that the process may have open: connections of clients leave some to those of upstreams, and to what is written.

use tokio::net::{TcpListener, TcpStream};

/// Of so many files that the process may open, clients leave one to others, ...
#[cfg(unix)]
const LEFT: u64 = 4;

/// ... up to so many.
#[cfg(unix)]
const MOST_LEFT: u64 = 64;

/// Whether this connection took a file that clients leave to others: the system gives the lowest number that is free.
#[cfg(unix)]
pub(crate) fn is_beyond(stream: &TcpStream) -> bool {
    use std::os::fd::AsRawFd as _;
    are_beyond(stream.as_raw_fd())
}

/// Whether the next connection would.
#[cfg(unix)]
pub(crate) fn would_be_beyond(listener: &TcpListener) -> bool {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    listener.as_fd().try_clone_to_owned().map_or(true, |next| are_beyond(next.as_raw_fd()))
}

#[cfg(unix)]
fn are_beyond(number: i32) -> bool {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.is_some_and(|most| u64::try_from(number).is_ok_and(|number| number >= most - (most / LEFT).min(MOST_LEFT)))
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(crate) const fn is_beyond(_: &TcpStream) -> bool {
    false
}

/// Likewise.
#[cfg(not(unix))]
pub(crate) const fn would_be_beyond(_: &TcpListener) -> bool {
    false
}
