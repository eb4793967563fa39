//! The upstreams of a configuration, as limiters and clients of a program.

mod access;
mod client;
#[cfg(feature = "fleet")]
mod fleet;
mod key;
mod proxy;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::{ConfigError, Limiter, PacerConfig};
use paceline_config::{Config, Environment, Overrides, SettingError, Upstream, account_host, account_name};

pub use self::access::{AccessError, client, client_trusting, login_of_proxy, tls};
pub use self::client::{Answered, ByItself, CallFailure, ProfileClient};
#[cfg(feature = "fleet")]
pub use self::fleet::fleet_config;
pub use self::key::{KeyError, headers, warn_if_exposed};
pub use self::proxy::{check_proxy, proxy_of_environment, proxy_to};
use crate::sender::Sender;

/// The profiles of a program: the upstreams of the configuration that `paceline run` reads, each with one limiter.
///
/// A profile is an entry `[upstream.NAME]`, or the name of a known provider. Its limits, retries, deadline, breaker, pace, tiers,
/// rules, header fields, key, headers, certificates and proxy act as they do in `paceline run`. Two things are the command's own:
/// its flags, and that several processes of a user take turns under a configured limit; a limiter counts the calls of its own
/// process, unless the profile names a `fleet`: that is joined (`Profiles::join`, with the feature `fleet`).
///
/// ```
/// # use std::io::{Read as _, Write as _};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("paceline.toml");
/// # std::fs::write(&file, format!("[upstream.default]\nbase_url = 'http://{}'\nrpm = 500\n", server.local_addr()?))?;
/// # std::thread::spawn(move || {
/// #     let (mut stream, _) = server.accept().expect("one call");
/// #     let _ = stream.read(&mut [0; 4_096]);
/// #     stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
/// # });
/// use paceline_http::{Call, Profiles};
///
/// let profiles = Profiles::load(file)?;
/// let client = profiles.client("default")?;
/// let answer = client.send(Call::post("/v1/things", r#"{"name":"first"}"#)).await?;
/// assert_eq!(answer.response.body(), "{}");
/// assert_eq!(profiles.limiter("default")?.snapshot().account.quotas[0].remaining, 499);
/// # Ok(())
/// # }
/// ```
pub struct Profiles {
    config: Config,
    clients: Mutex<BTreeMap<String, Known>>,
    #[cfg(feature = "fleet")]
    fleets: tokio::sync::Mutex<Vec<paceline_fleet::Fleet>>,
}

/// A profile that was asked for.
struct Known {
    client: ProfileClient,
    /// The name of its host and key.
    account: String,
}

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// An unknown name, with the names that exist; or an invalid value, with its key, its source and what was expected.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A certificate or the proxy cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The limits make no sense together.
    #[error(transparent)]
    Limits(#[from] ConfigError),
    /// The fleet cannot be joined.
    #[cfg(feature = "fleet")]
    #[error(transparent)]
    Fleet(#[from] paceline_fleet::FleetError),
}

/// The longest time of one send, from the first try to connect to the last byte received. [`Call::within`](crate::Call::within)
/// shortens it for a call.
const TIMEOUT: Duration = Duration::from_secs(600);

impl Profiles {
    /// Reads a configuration file. The variables of the environment stand above it (`PACELINE_UPSTREAM__NAME__RPM`), as for
    /// `paceline run`.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, or a value of any of its profiles that cannot be: its key, its value, its
    /// place and what was expected. Keys of APIs are read when a client is asked for.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ProfileError> {
        let config = Some(path.as_ref().to_path_buf());
        Self::new(Config::load(of_process(), Overrides { config, ..Overrides::default() })?)
    }

    /// Reads the environment, and the configuration file where `paceline run` finds one without being told: `paceline.toml` in
    /// the current folder, or in `paceline/` of the user's configuration folder. No file at all is fine:
    /// `PACELINE_UPSTREAM__OPENAI__RPM` and the like configure known providers.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_env() -> Result<Self, ProfileError> {
        Self::new(Config::load(of_process(), Overrides::default())?)
    }

    /// The profiles of a configuration that the program has put together itself. Its overrides act in each of them.
    ///
    /// # Errors
    /// A value that cannot be, as for [`load`](Self::load).
    pub fn new(config: Config) -> Result<Self, ProfileError> {
        for name in config.names() {
            config.upstream_of(name)?;
        }
        Ok(Self {
            config,
            clients: Mutex::default(),
            #[cfg(feature = "fleet")]
            fleets: tokio::sync::Mutex::default(),
        })
    }

    /// The configured profiles, in alphabetical order. Known providers that nothing configures are profiles too.
    pub fn names(&self) -> Vec<&str> {
        self.config.names()
    }

    /// The client of a profile: the same limiter and the same connections each time.
    ///
    /// Profiles of one host and key that configure the same share one limiter. Where they differ each counts its own calls, and
    /// the log warns of it.
    ///
    /// # Errors
    /// An unknown name, with the names that exist; a key that is missing or cannot be sent; a certificate or a proxy that cannot
    /// be used; a `fleet` that was not joined (`join`). Nothing is sent yet.
    pub fn client(&self, name: &str) -> Result<ProfileClient, ProfileError> {
        let mut clients = self.clients();
        if let Some(known) = clients.get(name) {
            return Ok(known.client.clone());
        }
        let (known, is_joined) = self.open(name, clients.values())?;
        if !is_joined {
            refuse_fleet(known.client.upstream())?;
        }
        let client = known.client.clone();
        clients.insert(name.to_owned(), known);
        Ok(client)
    }

    /// The client of the profile that `paceline run` takes without `--upstream`: the only configured one, else `openai` where
    /// `OPENAI_API_KEY` is set.
    ///
    /// # Errors
    /// No such choice, with the names that exist; and as [`client`](Self::client).
    pub fn chosen(&self) -> Result<ProfileClient, ProfileError> {
        self.client(self.config.chosen()?)
    }

    /// The limiter of a profile, for a program that sends by itself, such as with an SDK. It reads HTTP responses in the dialect
    /// of the profile, with its rules and header fields. [`ProfileClient::scope`] names the scope of a call, with its tier.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub fn limiter(&self, name: &str) -> Result<Limiter, ProfileError> {
        Ok(self.client(name)?.limiter().clone())
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A profile that was not asked for yet, and whether its limiter is that of another: one that has joined, where they name a
    /// fleet.
    fn open<'a>(&self, name: &str, others: impl Iterator<Item = &'a Known>) -> Result<(Known, bool), ProfileError> {
        let upstream = self.config.upstream_of(name)?;
        let Some(address) = &upstream.base_url else {
            let expected =
                format!("upstream {name} runs in the process of `paceline` alone; name the address of a server");
            return Err(SettingError::Missing { key: format!("upstream.{name}.base_url"), expected }.into());
        };
        warn_of_idle(&upstream);
        check_proxy(&upstream)?;
        let headers = headers(&upstream, self.config.environment())?;
        let account = account_name(&account_host(address), &headers);
        let sender = Sender::to(&upstream, headers, TIMEOUT)?;
        // A gateway counts for all.
        let shares = |other: &&Known| upstream.via.is_none() && other.account == account;
        let is_alike = |other: &Upstream| {
            let (dialect, fleet) = (&upstream.dialect, &upstream.fleet);
            other.pacer == upstream.pacer && other.dialect == *dialect && other.fleet == *fleet
        };
        let other = others.filter(shares).map(|other| &other.client).next();
        let shared = other.filter(|other| is_alike(other.upstream())).map(|other| other.limiter().clone());
        let is_shared = shared.is_some();
        let limiter = match (shared, other) {
            (Some(limiter), _) => limiter,
            (None, other) => {
                if let Some(other) = other {
                    let other = &other.upstream().name;
                    tracing::warn!(
                        "the profiles {other} and {name} call one host with one key and are configured differently: each counts \
                         its own calls alone, so together they may exceed the server's limits"
                    );
                }
                Limiter::new(pacer(&upstream))?.with_dialect(upstream.dialect.clone())
            }
        };
        Ok((Known { client: ProfileClient::new(upstream, sender, limiter), account }, is_shared))
    }
}

/// Refuses a profile with a fleet: a limiter that has not joined would count its own calls alone, beside those of the fleet.
fn refuse_fleet(upstream: &Upstream) -> Result<(), SettingError> {
    let Some(row) = upstream.effective.iter().find(|row| row.key == "fleet") else { return Ok(()) };
    Err(SettingError::Value {
        key: format!("upstream.{}.fleet", upstream.name),
        value: row.value.clone(),
        origin: row.source.clone(),
        expected:
            "none, or that the program joins the fleet: `Profiles::join` in place of `client` (feature `fleet` of \
                   paceline-http)"
                .to_owned(),
    })
}

fn pacer(upstream: &Upstream) -> PacerConfig {
    upstream.pacer.clone().with_deadline(upstream.deadline)
}

fn of_process() -> Environment {
    std::env::vars_os().collect()
}

/// Warns of values that the user set and that change nothing under the pace, with what would make them act. Those that are its
/// gateway's act there: a configuration may be that of both.
pub fn warn_of_idle(upstream: &Upstream) {
    if upstream.via.is_some() {
        return;
    }
    let keys: Vec<&str> = upstream.idle.iter().map(|row| row.key.as_str()).collect();
    if !keys.is_empty() {
        tracing::warn!(
            "no effect under the pace auto, which learns the limit: {}; the pace aimd uses them",
            keys.join(", ")
        );
    }
}

/// Without keys.
impl fmt::Debug for Profiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiles").field("names", &self.names()).finish_non_exhaustive()
    }
}
