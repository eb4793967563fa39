//! `paceline serve`: a gateway on this machine, which paces the calls of any program.
//!
//! [`paceline_gateway`] does the work; this module configures its upstreams, keeps what their limiters know, and ends it.

mod args;
mod check;
mod reload;
mod state;
mod upstreams;

use std::net::SocketAddr;

use paceline_gateway::{Bounds, Gateway, listen};
use tokio::net::TcpListener;

pub(crate) use self::args::Args;
use self::args::{Command, Flags};
use self::reload::Changes;
use self::upstreams::Upstreams;
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::run::calls::signals::{SignalCount, Signals};

/// Serves until Ctrl-C, or does what its command says.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    match args.command {
        None => serve(&args.flags, everywhere).await,
        Some(Command::Check(flags)) => check::command(&flags, everywhere),
    }
}

async fn serve(flags: &Flags, everywhere: &Everywhere) -> Result<Status, Failure> {
    let signals = SignalCount::of(Signals::without_hang_up().map_err(Failure::interrupted)?);
    refuse_remote_clients(flags.listen)?;
    let mut changes = Changes::listen().map_err(Failure::interrupted)?;
    let mut upstreams = Upstreams::open(flags, everywhere, Bounds::default()).await?;
    let (listener, address) = listen_on(flags.listen)?;
    let metrics = flags.metrics_listen.map(listen_on).transpose()?;
    let gateway = Gateway::new(upstreams.backends(), Bounds::default());
    announce(address, metrics.as_ref().map(|(_, address)| *address), &gateway).map_err(Failure::interrupted)?;
    let metrics = async {
        match metrics {
            Some((listener, _)) => gateway.serve_metrics(listener).await,
            None => std::future::pending().await,
        }
    };
    let reloads = async {
        loop {
            changes.next(upstreams.files()).await;
            upstreams.reload(&gateway).await;
        }
    };
    tokio::select! {
        () = gateway.serve(listener, signals.first()) => {}
        () = signals.second() => tracing::warn!("answers under way were cut off by the second signal"),
        () = metrics => unreachable!("it goes on for as long as it is polled"),
        () = reloads => unreachable!("it goes on for as long as it is polled"),
    }
    upstreams.end().await;
    Ok(Status::Success)
}

fn listen_on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listened = listen(address).and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    listened.map_err(|error| Failure::refused(format!("cannot listen on {address}: {error}")))
}

/// Clients have no keys of their own, so each that reaches the gateway spends the upstream's.
fn refuse_remote_clients(address: SocketAddr) -> Result<(), Failure> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "--listen {address}: others could spend your key there; expected an address of this machine alone, such as \
         127.0.0.1:4747 (behind a proxy of your own that knows its clients, or an SSH tunnel)"
    )))
}

/// Scripts wait for the first line, so it must not stay in a buffer.
fn announce(address: SocketAddr, metrics: Option<SocketAddr>, gateway: &Gateway) -> std::io::Result<()> {
    use std::io::Write as _;
    let line = |name: &str| format!("{name} at http://{address}/{name}\n");
    let mut lines: String = gateway.upstreams().iter().map(|upstream| line(upstream.name())).collect();
    lines.extend(metrics.map(|address| format!("metrics at http://{address}/metrics\n")));
    let mut out = std::io::stdout().lock();
    // At once: a script that has read the first line may have closed the pipe.
    out.write_all(format!("listening on http://{address}\n{lines}").as_bytes())?;
    out.flush()
}
