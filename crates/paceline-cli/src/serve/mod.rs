//! `paceline serve`: a gateway on this machine, which paces the calls of any program.
//!
//! [`paceline_gateway`] does the work; this module configures its upstreams, keeps what their limiters know, and ends it.

mod args;
mod batches;
mod state;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use paceline::Limiter;
use paceline_config::Upstream;
use paceline_gateway::{Backend, Bounds, Gateway, listen};
use paceline_http::Sender;

pub(crate) use self::args::Args;
use self::batches::{Batches, Served};
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
    let state = state::folder(args.state.as_deref())?;
    let (mut served, mut kept) = (Vec::new(), Vec::new());
    for configured in args.upstreams(everywhere)? {
        let (upstream, keeps) = prepare(configured, state.as_deref(), args.lift_holds, &bounds).await?;
        served.push(upstream);
        kept.push(keeps);
    }
    let refused = |error| Failure::refused(format!("cannot listen on {}: {error}", args.listen));
    let listener = listen(args.listen).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let upstreams: Vec<_> = served.iter().map(|served| Arc::clone(&served.backend)).collect();
    let batches = Batches::open(state.as_deref(), served);
    let gateway = Gateway::with_own_routes(upstreams, batches.routes(), bounds).map_err(Failure::refused)?;
    announce(address, &gateway).map_err(Failure::interrupted)?;
    batches.resume();
    let end_batches = async {
        signals.first().await;
        batches.end().await;
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(gateway.serve(listener, signals.first()), end_batches) } => {}
        () = signals.second() => tracing::warn!("answers under way were cut off by the second signal"),
        _ = join_all(kept.iter_mut().map(Kept::keep)) => unreachable!("it goes on for as long as it is polled"),
    }
    join_all(kept.iter_mut().map(Kept::end)).await;
    Ok(Status::Success)
}

/// Sets up an upstream. Nothing is sent yet.
async fn prepare(
    mut configured: Upstream,
    state: Option<&Path>,
    lift_holds: bool,
    bounds: &Bounds,
) -> Result<(Served, Kept), Failure> {
    paceline_http::warn_of_idle(&configured);
    args::warn_of_jobs_settings(&configured);
    let mock = mock::start_for(&mut configured, None).await?;
    let headers = upstream::headers(&configured)?;
    configured.pacer.background = configured.background;
    let limiter = Limiter::new(configured.pacer.clone()).map_err(Failure::refused)?.with_name(&*configured.name);
    let account = Account::new(configured.base_url.as_deref().unwrap_or_default(), &headers);
    let saved = Saved::open(state, &configured.name, &account, limiter.clone());
    let in_use = Some(&account).filter(|_| mock.is_none());
    let mut shared = SharedLimits::open(in_use, &configured.pacer, limiter.clone());
    saved.restore(&shared, lift_holds);
    let in_use = in_use.and_then(|account| account.mark(shared.is_shared()));
    let backend = Backend::new(configured.clone(), headers.clone(), limiter, bounds).map_err(Failure::refused)?;
    let sender = Sender::to(&configured, headers, bounds.first_byte).map_err(Failure::refused)?;
    shared.begin();
    Ok((
        Served::new(Arc::new(backend), configured, Arc::new(sender)),
        Kept { saved, shared, _in_use: in_use, _mock: mock },
    ))
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
fn announce(address: SocketAddr, gateway: &Gateway) -> std::io::Result<()> {
    let names = gateway.upstreams().map(|upstream| upstream.name());
    let lines: String = names.map(|name| format!("{name} at http://{address}/{name}\n")).collect();
    let mut out = std::io::stdout().lock();
    // At once: a script that has read the first line may have closed the pipe.
    out.write_all(format!("listening on http://{address}\n{lines}").as_bytes())?;
    out.flush()
}
