//! `paceline serve`: a gateway on this machine, which paces the calls of any program.
//!
//! [`paceline_gateway`] does the work; this module configures its upstreams, keeps what their limiters know, and ends it.

mod args;
mod state;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;

use futures_util::future::join_all;
use paceline::Limiter;
use paceline_config::Upstream;
use paceline_gateway::{Backend, Bounds, Gateway, listen};
use tokio::net::TcpListener;

pub(crate) use self::args::Args;
use self::state::Saved;
use crate::account::{Account, SharedLimits};
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::mock::{self, MockServer};
use crate::run::calls::signals::SignalCount;
use crate::upstream;

/// What has to live as long as the gateway, for one upstream.
struct Kept {
    saved: Saved,
    shared: SharedLimits,
    _in_use: Option<File>,
    _mock: Option<MockServer>,
}

/// Serves until Ctrl-C.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let (bounds, signals) = (Bounds::default(), SignalCount::listen().map_err(Failure::interrupted)?);
    refuse_remote_clients(args.listen)?;
    let (mut upstreams, mut kept) = (Vec::new(), Vec::new());
    for configured in args.upstreams(everywhere)? {
        let (upstream, keeps) = prepare(configured, &args, &bounds).await?;
        upstreams.push(upstream);
        kept.push(keeps);
    }
    let (listener, address) = listen_on(args.listen)?;
    let metrics = args.metrics_listen.map(listen_on).transpose()?;
    let gateway = Gateway::new(upstreams, bounds);
    announce(address, metrics.as_ref().map(|(_, address)| *address), &gateway).map_err(Failure::interrupted)?;
    let metrics = async {
        match metrics {
            Some((listener, _)) => gateway.serve_metrics(listener).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = gateway.serve(listener, signals.first()) => {}
        () = signals.second() => tracing::warn!("answers under way were cut off by the second signal"),
        () = metrics => unreachable!("it goes on for as long as it is polled"),
        _ = join_all(kept.iter_mut().map(Kept::keep)) => unreachable!("it goes on for as long as it is polled"),
    }
    join_all(kept.iter_mut().map(Kept::end)).await;
    Ok(Status::Success)
}

fn listen_on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listened = listen(address).and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    listened.map_err(|error| Failure::refused(format!("cannot listen on {address}: {error}")))
}

/// Sets up an upstream. Nothing is sent yet.
async fn prepare(mut configured: Upstream, args: &Args, bounds: &Bounds) -> Result<(Backend, Kept), Failure> {
    let mock = mock::start_for(&mut configured, None).await?;
    let headers = upstream::headers(&configured)?;
    let limiter = Limiter::new(configured.pacer.clone()).map_err(Failure::refused)?;
    let account = Account::new(configured.base_url.as_deref().unwrap_or_default(), &headers);
    let saved = Saved::open(args.state.as_deref(), &configured.name, &account, limiter.clone())?;
    let in_use = Some(&account).filter(|_| mock.is_none());
    let mut shared = SharedLimits::open(in_use, &configured.pacer, limiter.clone());
    saved.restore(&shared);
    let in_use = in_use.and_then(|account| account.mark(shared.is_shared()));
    let upstream = Backend::new(configured, headers, limiter, bounds).map_err(Failure::refused)?;
    shared.begin();
    Ok((upstream, Kept { saved, shared, _in_use: in_use, _mock: mock }))
}

impl Kept {
    /// For as long as it is polled.
    async fn keep(&mut self) {
        tokio::join!(self.saved.keep(), self.shared.keep());
    }

    async fn end(&mut self) {
        self.saved.save();
        self.shared.end().await;
    }
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
    let line = |name: &str| format!("{name} at http://{address}/{name}\n");
    let mut lines: String = gateway.upstreams().iter().map(|upstream| line(upstream.name())).collect();
    lines.extend(metrics.map(|address| format!("metrics at http://{address}/metrics\n")));
    let mut out = std::io::stdout().lock();
    // At once: a script that has read the first line may have closed the pipe.
    out.write_all(format!("listening on http://{address}\n{lines}").as_bytes())?;
    out.flush()
}
