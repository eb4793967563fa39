//! `paceline serve`: a gateway on this machine, which paces the calls of any program.
//!
//! [`paceline_gateway`] does the work; this module configures its upstreams, keeps what their limiters know, and ends it.

mod args;
mod batches;
mod certificate;
mod check;
mod client_keys;
mod client_notes;
mod client_usage;
mod key_checks;
mod keys;
mod lift_holds;
mod one_gateway;
mod reload;
mod socket;
mod state;
mod upstreams;
mod whole_file;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use paceline_gateway::{Bounds, Clients, Gateway};

pub(crate) use self::args::Args;
use self::args::{Command, Flags};
use self::batches::Batches;
use self::client_keys::Admission;
use self::client_usage::ClientUsage;
use self::one_gateway::OnlyGateway;
use self::reload::{Change, Changes};
use self::socket::METRICS_LISTEN;
use self::upstreams::{Reloaded, Upstreams};
use crate::account::gateways;
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::files;
use crate::signals::{SignalCount, Signals};

/// Serves until Ctrl-C, or does what its command says.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    match args.command {
        None => {
            files::keep_spare();
            serve(&args.flags, everywhere).await
        }
        Some(Command::Check(flags)) => check::command(&flags, everywhere),
        Some(Command::Keys(args)) => keys::command(args, everywhere),
        Some(Command::LiftHolds(args)) => lift_holds::command(args).await,
    }
}

async fn serve(flags: &Flags, everywhere: &Everywhere) -> Result<Status, Failure> {
    let signals = SignalCount::of(Signals::without_hang_up().map_err(Failure::interrupted)?);
    let (listener, address) = socket::for_clients(flags.listen)?;
    let admission = Admission::new(flags, address);
    let mut changes = changes_from_now_on(flags, everywhere, &admission)?;
    let tls = flags.tls()?;
    flags.amiss(tls.as_ref()).iter().for_each(|what| tracing::warn!("{what}"));
    let clients = admission.clients(&Clients::OfThisMachine)?;
    let mut upstreams = Upstreams::open(flags, everywhere, Bounds::default()).await?;
    let mut only =
        OnlyGateway::of(upstreams.folder().map(|folder| &**folder), flags.state.is_some(), &clients, address)?;
    let metrics = flags.metrics_listen()?.map(|address| socket::on(METRICS_LISTEN, address)).transpose()?;
    let batches = Batches::open(upstreams.folder().map(|folder| &**folder), upstreams.for_batches());
    let gateway = Gateway::with_own_routes(upstreams.backends(), batches.routes(), Bounds::default());
    let gateway = gateway.map_err(Failure::refused)?;
    gateway.tell_conditions(upstreams.conditions());
    let usage = ClientUsage::of(upstreams.folder());
    usage.restore(&clients);
    gateway.replace_clients(clients);
    tell_who_may_call(&gateway, &admission, address, flags);
    let tls_is_shown = tls.is_some();
    let _ = tls.map(|tls| gateway.replace_tls(tls));
    announce(address, tls_is_shown, metrics.as_ref().map(|(_, address)| *address), &gateway);
    let _found = announce_to_jobs(address, tls_is_shown, &gateway);
    batches.resume(gateway.clients());
    socket::tell_systemd(true);
    let ends = async {
        signals.first().await;
        socket::tell_systemd(false);
    };
    let end_batches = async {
        signals.first().await;
        batches.end().await
    };
    let metrics = async {
        let Some((listener, _)) = metrics else { return std::future::pending().await };
        gateway.serve_metrics(listener).await;
    };
    let certificate = certificate::watch(&gateway, flags.tls_cert.as_deref());
    let folder = upstreams.folder().map(|folder| folder.place.clone());
    let lifts = lift_holds::follow(folder.as_deref(), &gateway);
    let reloads = async {
        loop {
            let change = changes.next(&watched(&upstreams.watched(), &admission, flags)).await;
            let in_force = watched(upstreams.files(), &admission, flags);
            let admit = || admit_anew((&gateway, &batches), flags, &admission, &usage, &mut only);
            let is_right = read_again(&mut upstreams, (&gateway, &batches), &change, &in_force, admit).await;
            upstreams.conditions().read_again(is_right);
            if !is_right {
                changes.was_refused(change);
            }
        }
    };
    // What ends is not begun anew.
    let reloads = async {
        tokio::select! {
            () = reloads => {}
            () = signals.first() => std::future::pending().await,
        }
    };
    let status = tokio::select! {
        (requests, calls) = async { tokio::join!(gateway.serve(listener, ends), end_batches) } => drained(requests, calls),
        status = hurried(&signals, &gateway) => status,
        _ = async { tokio::join!(usage.keep(&gateway), lifts, certificate, metrics) } => unreachable!("they go on while polled"),
        () = reloads => unreachable!("it goes on for as long as it is polled"),
    };
    usage.save(&gateway.clients());
    upstreams.end().await;
    Ok(status)
}

/// How it ends once what is in flight has had its time: of so many requests of clients, which the gateway has told, and calls of
/// batches that were cut off.
fn drained(requests: u64, calls: u64) -> Status {
    if calls > 0 {
        tracing::warn!("calls of batches that were cut off: {calls}; their batches go on with the next gateway");
    }
    if requests + calls > 0 { Status::Deferred } else { Status::Success }
}

/// Returns at the second signal: what is under way then is cut off.
async fn hurried(signals: &SignalCount, gateway: &Gateway) -> Status {
    signals.second().await;
    if !gateway.is_at_work() {
        return Status::Success;
    }
    tracing::warn!("answers under way are cut off by the second signal");
    Status::Killed(signals.last())
}

/// Looks at the files before they are read: a key that is revoked while the gateway begins must not stay until the next change.
fn changes_from_now_on(flags: &Flags, everywhere: &Everywhere, admission: &Admission) -> Result<Changes, Failure> {
    let mut changes = Changes::listen().map_err(Failure::interrupted)?;
    // Of a wrong configuration the reading tells.
    let files = flags.upstreams(everywhere).map(|configured| configured.files());
    changes.look_at(&watched(&files.unwrap_or_default(), admission, flags));
    Ok(changes)
}

/// That no key is asked for must not be learnt from a bill. A folder that is named is that of a service: what was there may be
/// gone.
fn tell_who_may_call(gateway: &Gateway, admission: &Admission, address: SocketAddr, flags: &Flags) {
    match &*gateway.clients() {
        clients @ Clients::WithKeys(_) => {
            admission.lacks_keys(clients).iter().for_each(|what| tracing::warn!("{what}"));
            warn_of_limits_in_a_fleet(clients, gateway);
            warn_without_prices(gateway);
        }
        Clients::OfThisMachine if let Some(folder) = &flags.state => tracing::warn!(
            "every program of this machine may call without a key, and so may every program that reaches a proxy on it; make a first \
             key with `paceline serve keys add NAME --state {}`, or refuse to start without keys with --require-client-keys",
            folder.display()
        ),
        Clients::OfThisMachine => tracing::info!(
            "every program of this machine may call without a key: `paceline serve keys add NAME` makes keys, and from the first \
             on each client needs one"
        ),
        Clients::Anyone => {
            tracing::info!("every program that reaches {address} may call without a key (--allow-anyone)")
        }
    }
}

/// Nothing passes then, and its clients must not be the first to learn why.
fn warn_without_prices(gateway: &Gateway) {
    gateway.lacks_prices().into_iter().for_each(|why| tracing::warn!("{why}"));
}

/// Each gateway counts by itself what a client has used: that of a fleet must not be learnt from a bill either.
fn warn_of_limits_in_a_fleet(clients: &Clients, gateway: &Gateway) {
    let has_limits = clients.with_limits().any(|(_, limits)| !limits.is_empty());
    let upstreams = gateway.upstreams();
    let mut in_fleet = upstreams.iter().filter(|upstream| upstream.limiter().fleet().is_some());
    if let Some(upstream) = in_fleet.next().filter(|_| has_limits) {
        tracing::warn!(
            upstream = upstream.name(),
            "the limits of clients' keys are not shared in a fleet: each gateway that has a key allows it its limit; divide the limit \
             by the gateways, or give each key to one of them"
        );
    }
}

/// Lets jobs of this user on this machine find the gateway: its page shows how far they are. Not where it wants keys, or shows a
/// certificate that they may not know.
fn announce_to_jobs(address: SocketAddr, has_tls: bool, gateway: &Gateway) -> Option<gateways::Found> {
    if has_tls || matches!(&*gateway.clients(), Clients::WithKeys(_)) {
        return None;
    }
    let host = match address.ip() {
        any if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        host => host,
    };
    let url = format!("http://{}", SocketAddr::new(host, address.port()));
    let found = gateways::announce(&url);
    found.inspect_err(|error| tracing::debug!("jobs on this machine do not find the gateway: {error}")).ok()
}

/// Reads all of it again: with `admit` the certificate and the keys of clients. Returns whether it is right. `files`: those that
/// are in force.
async fn read_again(
    upstreams: &mut Upstreams<'_>,
    (gateway, batches): (&Gateway, &Batches),
    change: &Change,
    files: &[PathBuf],
    admit: impl FnOnce() -> bool,
) -> bool {
    if let Some(error) = reload::unreadable(files) {
        tracing::warn!("nothing is read again, and all stays as it was: {error}");
        return false;
    }
    let are_admitted = admit();
    let reloaded = upstreams.reload(gateway, change.mends(&upstreams.watched())).await;
    if reloaded == Reloaded::Changed {
        batches.renew(upstreams.for_batches()).await;
    }
    reloaded != Reloaded::Refused && are_admitted
}

/// The files that are read again when they change.
fn watched(upstreams: &[PathBuf], admission: &Admission, flags: &Flags) -> Vec<PathBuf> {
    let certificate = flags.tls_cert.iter().chain(&flags.tls_key);
    upstreams.iter().chain(admission.file()).chain(certificate).cloned().collect()
}

/// Reads the certificate and the keys of clients again. A wrong one changes nothing. Returns whether both are right.
fn admit_anew(
    (gateway, batches): (&Gateway, &Batches),
    flags: &Flags,
    admission: &Admission,
    usage: &ClientUsage,
    only: &mut OnlyGateway,
) -> bool {
    let (tls, clients) = (flags.tls(), admission.clients(&gateway.clients()));
    let are_right = tls.is_ok() && clients.is_ok();
    match tls {
        Ok(Some(tls)) => {
            let until = tls.valid_until().map_or_else(String::new, |until| format!(", valid until {until}"));
            let amiss = flags.amiss(Some(&tls));
            if gateway.replace_tls(tls) {
                amiss.iter().for_each(|what| tracing::warn!("{what}"));
                tracing::info!("the certificate was read again{until}");
            }
        }
        Ok(None) => {}
        Err(error) => tracing::warn!("the certificate was not changed, and the former one stays: {error}"),
    }
    match clients {
        Ok(clients) => {
            let former = gateway.clients();
            usage.follow(&clients, &former);
            let closes = !matches!(&*former, Clients::WithKeys(_)) && matches!(&clients, Clients::WithKeys(_));
            gateway.replace_clients(clients);
            batches.keep_to(gateway.clients());
            if closes {
                admission.tell_closed();
            }
            warn_without_prices(gateway);
        }
        Err(error) => tracing::warn!("the keys of clients were read again, and the former ones stay: {error}"),
    }
    only.check(&gateway.clients());
    are_right
}

/// Scripts wait for the first line, so it must not stay in a buffer. Clients need no line, so a full disk is no reason to end.
fn announce(address: SocketAddr, has_tls: bool, metrics: Option<SocketAddr>, gateway: &Gateway) {
    use std::io::Write as _;
    // A start after a kill, or by another version, has to be seen in the log alone.
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, "the gateway begins");
    // What the start has to tell is in the log before a script goes on.
    crate::logging::flush();
    let scheme = socket::scheme(has_tls);
    let line = |name: &str| format!("{name} at {scheme}://{address}/{name}\n");
    let mut lines: String = gateway.upstreams().iter().map(|upstream| line(upstream.name())).collect();
    lines.extend(metrics.map(|address| format!("metrics at http://{address}/metrics\n")));
    let mut out = std::io::stdout().lock();
    // At once: a script that has read the first line may have closed the pipe.
    let text = format!("listening on {scheme}://{address}\n{lines}");
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::warn!("standard output does not take where the gateway listens, and it serves all the same: {error}");
    }
}
