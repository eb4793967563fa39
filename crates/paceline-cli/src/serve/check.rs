//! `paceline serve check`: what would be served, or why nothing would. Sends nothing.

use paceline::Quota;
use paceline_config::Upstream;
use paceline_gateway::{Bounds, Clients};
use paceline_providers::secrets::hidden;

use super::args::Flags;
use super::client_keys::Admission;
use super::upstreams::Fresh;
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::output;
use crate::text::counted;
use crate::upstream;

/// Prints a line for each upstream.
///
/// # Errors
/// As `serve` has them before it listens.
pub(super) fn command(flags: &Flags, everywhere: &Everywhere) -> Result<Status, Failure> {
    let clients = Admission::new(flags, flags.listen)?.clients(&Clients::OfThisMachine)?;
    flags.tls()?;
    let configured = flags.upstreams(everywhere)?;
    let mut lines = match clients {
        Clients::OfThisMachine => "clients: programs of this machine, without keys\n".to_owned(),
        Clients::Anyone => "clients: every program that reaches the address\n".to_owned(),
        Clients::WithKeys(keys) => format!("clients: those with one of {}\n", counted(keys.len() as u64, "key")),
    };
    for upstream in configured.upstreams {
        lines += &line(flags, &upstream);
        // Only the mock has no address before it begins.
        if upstream.base_url.is_some() {
            Fresh::new(upstream, &Bounds::default(), None)?;
        }
    }
    let file = configured.file.map_or("no configuration file".to_owned(), |file| file.display().to_string());
    output::print(|out| writeln!(out, "{lines}all is well: {file}; nothing was sent"))?;
    Ok(Status::Success)
}

fn line(flags: &Flags, upstream: &Upstream) -> String {
    let (name, listen) = (&upstream.name, flags.listen);
    let address = upstream.base_url.as_deref().map_or("a mock in the process".into(), hidden);
    let key = upstream::key_sent(upstream).unwrap_or_else(|_| "without a key of its own".to_owned());
    let limit = |quota: &Quota| format!("{} {} per {:?}", quota.limit, quota.dimension, quota.window);
    let limits: Vec<_> = upstream.pacer.limits.quotas.iter().map(limit).collect();
    let limits = if limits.is_empty() { "none configured".to_owned() } else { limits.join(", ") };
    format!("{name} at http://{listen}/{name}: {address}, {key}, limits: {limits}\n")
}
