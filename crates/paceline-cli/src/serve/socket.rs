//! Where the gateway listens: on a socket that systemd has opened already, else on an address; and what systemd is told.

use std::io;
use std::net::SocketAddr;

use paceline_gateway::listen;
use tokio::net::{TcpListener, TcpSocket};

use crate::exit::Failure;

/// The flag with the address for clients, ...
pub(super) const LISTEN: &str = "--listen";

/// ... and the one with that of the metrics.
pub(super) const METRICS_LISTEN: &str = "--metrics-listen";

/// How the address for clients begins.
pub(super) const fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}

/// Listens for clients: on the socket that systemd hands over (`LISTEN_FDS`), which takes the place of that address.
///
/// # Errors
/// A port that is taken; several sockets of systemd.
pub(super) fn for_clients(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let Some(handed_over) = handed_over().map_err(|error| refused("the socket of LISTEN_FDS", &error))? else {
        return on(LISTEN, address);
    };
    let address = handed_over.local_addr().map_err(|error| refused("the socket of LISTEN_FDS", &error))?;
    Ok((handed_over, address))
}

/// Listens on the address of a flag.
///
/// # Errors
/// A port that is taken.
pub(super) fn on(flag: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listened = listen(address).and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    listened.map_err(|error| refused(&format!("{flag} {address}"), &error))
}

/// Whether a gateway that began now could listen on the address of a flag: not where the port is taken, be it by this gateway,
/// which runs already, or by systemd for it.
///
/// # Errors
/// An address at which this user or this machine may not listen.
pub(super) fn is_free(flag: &str, address: SocketAddr) -> Result<bool, Failure> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    match socket.and_then(|socket| socket.set_reuseaddr(true).and_then(|()| socket.bind(address))) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(refused(&format!("{flag} {address}"), &error)),
    }
}

fn refused(place: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program listens there, perhaps another gateway: end that one, or name another address"
        }
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 is for root, or for a socket of systemd: name another address"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address: name one of its own",
        _ => "",
    };
    Failure::refused(format!("{place}: cannot listen there: {error}{hint}"))
}

#[cfg(unix)]
fn handed_over() -> io::Result<Option<TcpListener>> {
    let mut sockets = listenfd::ListenFd::from_env();
    if sockets.len() > 1 {
        let message =
            format!("it has {} sockets, of which clients would reach one; expected one (ListenStream)", sockets.len());
        return Err(io::Error::other(message));
    }
    let Some(listener) = sockets.take_tcp_listener(0)? else { return Ok(None) };
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener).map(Some)
}

#[cfg(not(unix))]
fn handed_over() -> io::Result<Option<TcpListener>> {
    Ok(None)
}

/// Tells systemd, if it has started the process (`NOTIFY_SOCKET`), that requests are welcome, or no longer.
pub(super) fn tell_systemd(is_ready: bool) {
    #[cfg(unix)]
    {
        let state = if is_ready { sd_notify::NotifyState::Ready } else { sd_notify::NotifyState::Stopping };
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!("systemd cannot be told the state of the gateway: {error}");
        }
    }
    #[cfg(not(unix))]
    let _ = is_ready;
}
