//! `paceline mock`: a rate-limited API on this machine.
//!
//! The provider itself is [`paceline_model::ProviderModel`]; this module gives it a clock, a socket and a dialect.

mod answer;
mod args;
mod call;
mod dialect;
mod go_duration;
mod server;
mod tally;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use paceline_config::{MOCK, Upstream};
use paceline_core::{Dimension, Quota, QuotaShape};
use paceline_model::{Hints, ProviderConfig};
use paceline_providers::Provider;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) use self::args::Args;
use self::dialect::Dialect;
use self::server::Mock;
use crate::exit::{Failure, Status};

/// Serves until Ctrl-C.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let server = spawn(args.into_config()?).await?;
    announce(&server.url()).map_err(Failure::interrupted)?;
    tokio::signal::ctrl_c().await.map_err(Failure::interrupted)?;
    Ok(Status::Success)
}

/// What a mock is made of. Default: no limits, honest, OpenAI's dialect, any free port of 127.0.0.1.
#[derive(Clone, Debug)]
pub(crate) struct MockConfig {
    /// Where it listens; port 0 takes any free one.
    pub(crate) listen: SocketAddr,
    /// Its limits, latency and faults.
    pub(crate) provider: ProviderConfig,
    /// The hints in its headers and refusals.
    pub(crate) hints: Hints,
    /// Whose headers and errors it speaks.
    pub(crate) dialect: Dialect,
    /// Decides latencies, faults and lies.
    pub(crate) seed: u64,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            provider: ProviderConfig::default(),
            hints: Hints::Honest,
            dialect: Dialect(Provider::OpenAi),
            seed: 0,
        }
    }
}

/// The mock that the upstream `mock` means where it has no address: starts it, and points the upstream at it.
///
/// # Errors
/// As [`spawn`].
pub(crate) async fn start_for(upstream: &mut Upstream, seed: Option<u64>) -> Result<Option<MockServer>, Failure> {
    let Some(limit) = limit_of(upstream).filter(|_| is_own(upstream)) else { return Ok(None) };
    let provider = ProviderConfig { limits: vec![limit.into()], ..ProviderConfig::default() };
    let server = spawn(MockConfig { provider, seed: seed.unwrap_or_default(), ..MockConfig::default() }).await?;
    upstream.base_url = Some(server.url());
    Ok(Some(server))
}

/// Whether the upstream is the mock that a run starts itself.
pub(crate) fn is_own(upstream: &Upstream) -> bool {
    upstream.name == MOCK && upstream.base_url.is_none()
}

/// The limit of the mock that the upstream means; a run learns it from headers only.
pub(crate) fn limit_of(upstream: &Upstream) -> Option<Quota> {
    (upstream.name == MOCK).then(|| bucket(Dimension::Requests, OWN_RPM, OWN_RPM.div_ceil(60)))
}

/// A bucket that is refilled by `limit` a minute.
fn bucket(dimension: Dimension, limit: u64, burst: u64) -> Quota {
    Quota { dimension, limit, window: MINUTE, shape: QuotaShape::Bucket { burst } }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Requests per minute of the mock that `--upstream mock` starts.
const OWN_RPM: u64 = 1_200;

/// Starts a mock in this process.
///
/// # Errors
/// When the configuration makes no sense or the address cannot be listened on.
async fn spawn(config: MockConfig) -> Result<MockServer, Failure> {
    let listen = config.listen;
    let refused = |error| Failure::refused(format!("cannot listen on {listen}: {error}"));
    let mock = Arc::new(Mock::new(config)?);
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    // Streams come in small pieces; without this each would wait for the acknowledgement of the one before. A socket
    // that refuses it still works.
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    let service = server::router(mock);
    let task = tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(MockServer { address, task })
}

/// A running mock; dropping it closes its address, while calls on open connections go on.
#[derive(Debug)]
pub(crate) struct MockServer {
    address: SocketAddr,
    task: JoinHandle<std::io::Result<()>>,
}

impl MockServer {
    /// Its address, without a path: `http://127.0.0.1:40123`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Scripts wait for this line, so it must not stay in a buffer.
fn announce(url: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {url}")?;
    out.flush()
}

#[cfg(test)]
mod tests;
