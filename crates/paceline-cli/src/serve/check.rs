//! `paceline serve check`: what would be served, or why nothing would. Sends nothing.

use std::path::Path;

use paceline::Quota;
use paceline_config::Upstream;
use paceline_gateway::{Bounds, Clients, Gateway};
use paceline_providers::secrets::hidden;

use super::args::Flags;
use super::client_keys::Admission;
use super::socket::{self, LISTEN, METRICS_LISTEN, scheme};
use super::state;
use super::upstreams::Fresh;
use super::whole_file;
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::output;
use crate::text::counted;
use crate::upstream;

/// Stands for the address of a mock, which has none before it begins.
const OF_MOCK: &str = "http://127.0.0.1";

/// Prints a line for each upstream, for who may call, the state folder, and each address that is taken.
///
/// # Errors
/// As `serve` has them. A port that is taken is none: the gateway that is to be changed has it, or systemd for it.
pub(super) fn command(flags: &Flags, everywhere: &Everywhere) -> Result<Status, Failure> {
    let admission = Admission::new(flags, flags.listen);
    let clients = admission.clients(&Clients::OfThisMachine)?;
    let lacks_keys = admission.lacks_keys(&clients);
    let tls = flags.tls()?;
    let configured = flags.upstreams(everywhere)?;
    let state = state::check(flags.state.as_deref())?;
    let mut lines = match &clients {
        Clients::OfThisMachine => "clients: programs of this machine, without keys\n".to_owned(),
        Clients::Anyone => "clients: every program that reaches the address\n".to_owned(),
        clients @ Clients::WithKeys(_) => {
            format!("clients: {}\n", counted(clients.count() as u64, "key"))
        }
    };
    let mut backends = Vec::new();
    for mut upstream in configured.upstreams {
        lines += &line(flags, &upstream);
        upstream.base_url.get_or_insert_with(|| OF_MOCK.to_owned());
        backends.push(Fresh::new(upstream, &Bounds::default(), None)?.backend());
    }
    let gateway = Gateway::new(backends, Bounds::default()).map_err(Failure::refused)?;
    gateway.replace_clients(clients);
    lines += &state
        .as_ref()
        .map_or("state: kept in no folder\n".to_owned(), |folder| format!("state: {}\n", folder.display()));
    let amiss =
        flags.amiss(tls.as_ref()).into_iter().chain(gateway.lacks_prices().map(str::to_owned)).chain(lacks_keys);
    let amiss: String = amiss.map(|what| what + "\n").collect();
    let amiss = amiss + &state.as_deref().map(full).unwrap_or_default() + &taken(flags)?;
    let all = if amiss.is_empty() { "all is well" } else { "all else is well" };
    let file = configured.file.map_or("no configuration file".to_owned(), |file| file.display().to_string());
    output::print(|out| writeln!(out, "{lines}{amiss}{all}: {file}; nothing was sent"))?;
    Ok(Status::Success)
}

/// A line where nothing can be written in the state folder now: its disk is full.
fn full(folder: &Path) -> String {
    whole_file::has_room(folder).err().map_or_else(String::new, |error| {
        format!(
            "state {}: nothing can be written there now: {error}; a gateway starts all the same, but a restart of it would forget what \
             counts against limits, and it takes no batches: make room\n",
            folder.display()
        )
    })
}

/// A line for each address that is taken.
fn taken(flags: &Flags) -> Result<String, Failure> {
    let mut lines = String::new();
    let metrics = flags.metrics_listen()?.map(|address| (METRICS_LISTEN, address));
    for (flag, address) in [(LISTEN, flags.listen)].into_iter().chain(metrics) {
        if !socket::is_free(flag, address)? {
            lines += &format!(
                "{flag} {address}: another program listens there; that is right if it is this gateway, or systemd for it: any other \
                 keeps it from starting\n"
            );
        }
    }
    Ok(lines)
}

fn line(flags: &Flags, upstream: &Upstream) -> String {
    let (name, listen, scheme) = (&upstream.name, flags.listen, scheme(flags.tls_cert.is_some()));
    let address = upstream.base_url.as_deref().map_or("a mock in the process".into(), hidden);
    let key = upstream::key_sent(upstream).unwrap_or_else(|_| "without a key of its own".to_owned());
    let fleet = upstream.fleet.as_ref().map_or("", |_| ", in a fleet, whose store is not asked here");
    format!("{name} at {scheme}://{listen}/{name}: {address}, {key}, limits: {}{fleet}\n", limits_of(upstream))
}

/// The configured limits of an upstream, for people.
pub(super) fn limits_of(upstream: &Upstream) -> String {
    let limit = |quota: &Quota| format!("{} {} per {:?}", quota.limit, quota.dimension, quota.window);
    let limits: Vec<_> = upstream.pacer.limits.quotas.iter().map(limit).collect();
    if limits.is_empty() { "none configured".to_owned() } else { limits.join(", ") }
}
