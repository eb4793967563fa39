//! Where the gateway listens: on a socket that systemd has opened already, else on an address; and what systemd is told.

use std::io;
use std::net::SocketAddr;

use paceline_gateway::listen;
use tokio::net::TcpListener;

use crate::exit::Failure;

/// Listens for clients: on the first socket that systemd hands over (`LISTEN_FDS`), which takes the place of that address.
///
/// # Errors
/// A port that is taken.
pub(super) fn for_clients(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let Some(handed_over) = handed_over().map_err(|error| refused("the socket of LISTEN_FDS", &error))? else {
        return on(address);
    };
    let address = handed_over.local_addr().map_err(|error| refused("the socket of LISTEN_FDS", &error))?;
    Ok((handed_over, address))
}

/// Listens on an address.
///
/// # Errors
/// A port that is taken.
pub(super) fn on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listened = listen(address).and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    listened.map_err(|error| refused(&address.to_string(), &error))
}

fn refused(place: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program listens there, perhaps another gateway: end it, or name another address (--listen)"
        }
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 is for root, or for a socket of systemd: name another address (--listen)"
        }
        _ => "",
    };
    Failure::refused(format!("cannot listen on {place}: {error}{hint}"))
}

#[cfg(unix)]
fn handed_over() -> io::Result<Option<TcpListener>> {
    let Some(listener) = listenfd::ListenFd::from_env().take_tcp_listener(0)? else { return Ok(None) };
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
