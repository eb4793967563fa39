//! What the configuration says about the way to an upstream, as a client and a sender.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use paceline::UnknownOutcome;
use paceline_config::{Access, Proxy, Upstream};
use paceline_providers::secrets::{hidden, login_of};
use paceline_providers::table::Scope;
use reqwest::{Client, ClientBuilder};
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls_platform_verifier::Verifier;

use super::key::warn_if_exposed;
use super::proxy::may_be_proxied;
use crate::connecting::InTurn;
use crate::gateway::LONGEST_HOLD;
use crate::reached::{client_to, install_tls, speaks_no_tls};
use crate::sender::Sender;
use crate::sender_config::SenderConfig;

/// Why the configured address, certificates or proxy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A file cannot be read.
    #[error("{key} {} cannot be read: {source}", hidden(&.path.display().to_string()))]
    Unreadable {
        /// The setting that names it.
        key: &'static str,
        /// Where it is.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("{key} {}: no {expected} can be read; expected PEM", .path.display())]
    NoPem {
        /// The setting that names it.
        key: &'static str,
        /// Where it is.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// The client's certificate and its key cannot be used.
    #[error("client_cert {} and client_key {} cannot be used together: {why}", .certificate.display(), .key.display())]
    Client {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where its key is.
        key: PathBuf,
        /// What the TLS library says.
        why: String,
    },
    /// The system has no certificates of authorities.
    #[error(
        "this machine has no certificates of authorities ({0}); install them (Debian: ca-certificates), or name some with ca_file"
    )]
    NoAuthorities(String),
    /// The proxy's address is invalid. It is shown without its password.
    #[error("--proxy {0}: no such address")]
    Proxy(String),
    /// The environment names a proxy that the client cannot use.
    #[error(
        "the variable {variable} = {shown:?}: expected the address of a proxy such as http://proxy.example.com:3128; correct it, \
         or use no proxy with --proxy none (proxy = \"none\" in the configuration file)"
    )]
    ProxyVariable {
        /// The variable.
        variable: &'static str,
        /// What it says, without a password.
        shown: String,
    },
    /// The TLS library refuses.
    #[error("cannot set up calls to the upstream: {0}")]
    Setup(reqwest::Error),
}

impl SenderConfig {
    /// How calls to an upstream are sent as it is configured, with those [headers](crate::headers) and so much time for each,
    /// beside what a gateway may hold it.
    pub fn of(upstream: &Upstream, headers: HeaderMap, timeout: Duration) -> Self {
        let gateway = upstream.via.as_ref().map(|via| via.gateway.clone());
        let mut sending = Self::new(upstream.base_url.clone().unwrap_or_default(), upstream.dialect.clone());
        sending.secrets.extend(login_of_proxy(&upstream.access));
        Self {
            headers,
            // A call that its gateway holds is no hung one.
            timeout: timeout + if gateway.is_some() { LONGEST_HOLD } else { Duration::ZERO },
            gateway,
            idempotency_header: upstream.access.idempotency_header.clone(),
            unknown_outcome: upstream.access.unknown_outcome,
            ..sending
        }
    }
}

/// The login of the configured proxy, which no answer may repeat.
pub fn login_of_proxy(access: &Access) -> Option<HeaderValue> {
    if let Proxy::At(address) = &access.proxy { login_of(address) } else { None }
}

/// How long a connection to one of many hosts is kept for its next call.
const IDLE_OF_MANY_HOSTS: Duration = Duration::from_secs(20);

/// How long for a call that must not be made twice. A server that closes an idle connection as such a call comes leaves open
/// whether it was done; the shortest waits of usual servers are of two seconds and of five.
const IDLE_OF_CALLS_MADE_ONCE: Duration = Duration::from_secs(1);

/// What a client speaks, the best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl Sender {
    /// What sends calls to an upstream as it is configured, with those [headers](crate::headers) and so much time for each. An
    /// upstream without an address takes calls to whole addresses.
    ///
    /// # Errors
    /// A certificate that cannot be read, a proxy or an address that is none.
    pub fn to(upstream: &Upstream, headers: HeaderMap, timeout: Duration) -> Result<Self, AccessError> {
        Self::by(upstream, SenderConfig::of(upstream, headers, timeout))
    }

    /// The same, where its [configuration](SenderConfig::of) was changed.
    ///
    /// # Errors
    /// As for [`to`](Self::to).
    pub fn by(upstream: &Upstream, config: SenderConfig) -> Result<Self, AccessError> {
        let client = || client(upstream.base_url.as_deref().unwrap_or_default(), &upstream.access);
        if let Some((_, key)) = &upstream.access.client
            && let Ok(file) = File::open(key)
        {
            warn_if_exposed("the client's key", &file, &key.display().to_string());
        }
        let once = || Ok::<_, AccessError>(client()?.pool_idle_timeout(IDLE_OF_CALLS_MADE_ONCE));
        let (keeping, once, spare) = match upstream.dialect.scope() {
            Scope::Host if !config.keeps_connections => (client()?.pool_max_idle_per_host(0), None, None),
            Scope::Host => {
                let keeping = client()?.pool_idle_timeout(IDLE_OF_MANY_HOSTS).connector_layer(InTurn);
                (keeping, Some(once()?.connector_layer(InTurn)), Some(client()?))
            }
            _ => (client()?, Some(once()?), None),
        };
        let once = once.filter(|_| config.unknown_outcome != Some(UnknownOutcome::Resend));
        let sender = Self::new(keeping, config);
        sender.and_then(|sender| sender.with_way(may_be_proxied(upstream), once, spare)).map_err(AccessError::Setup)
    }
}

/// A client builder with the configured trusted certificates, client certificate and proxy.
///
/// # Errors
/// A file that cannot be read or has other content, or an invalid address of a proxy.
pub fn client(base_url: &str, access: &Access) -> Result<ClientBuilder, AccessError> {
    install_tls();
    let builder = match &access.proxy {
        Proxy::At(address) => {
            // The error would repeat the address, which may hold a password.
            let proxy = reqwest::Proxy::all(address).map_err(|_| AccessError::Proxy(hidden(address).into_owned()))?;
            Client::builder().proxy(proxy)
        }
        Proxy::Environment => client_to(base_url),
        Proxy::None => Client::builder().no_proxy(),
    };
    let has_certificates = access.ca_file.is_some() || access.client.is_some();
    if speaks_no_tls(base_url) && !has_certificates && !matches!(access.proxy, Proxy::At(_)) {
        return Ok(builder.tls_certs_only([]));
    }
    Ok(with_tls(builder, tls(access)?))
}

fn with_tls(builder: ClientBuilder, mut tls: ClientConfig) -> ClientBuilder {
    tls.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    builder.tls_backend_preconfigured(tls)
}

/// A client builder for an address, as [`client_to`], which trusts these authorities too, if a file of them is named.
///
/// # Errors
/// A file that cannot be read or has other content.
pub fn client_trusting(address: &str, ca_file: Option<&Path>) -> Result<ClientBuilder, AccessError> {
    let builder = client_to(address);
    let Some(ca_file) = ca_file else { return Ok(builder) };
    Ok(with_tls(builder, tls_of(Some(ca_file), None)?))
}

/// The configured trusted certificates beside those of the system, and the client's certificate, for a client of one's own.
///
/// # Errors
/// A file that cannot be read or has other content.
pub fn tls(access: &Access) -> Result<ClientConfig, AccessError> {
    tls_of(access.ca_file.as_deref(), access.client.as_ref())
}

fn tls_of(ca_file: Option<&Path>, client: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, AccessError> {
    install_tls();
    let provider = CryptoProvider::get_default().expect("it was installed just now");
    let authorities = match ca_file {
        Some(path) => certificates("ca_file", path, "certificate (BEGIN CERTIFICATE)")?,
        None => Vec::new(),
    };
    let verifier =
        Verifier::new_with_extra_roots(authorities, Arc::clone(provider)).map_err(|error| match ca_file {
            Some(path) => no_pem("ca_file", path, "certificate (BEGIN CERTIFICATE)"),
            None => AccessError::NoAuthorities(error.to_string()),
        })?;
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let Some((certificate, key)) = client else { return Ok(builder.with_no_client_auth()) };
    let expected = "certificate (BEGIN CERTIFICATE) with a PRIVATE KEY, there or in client_key,";
    let chain = certificates("client_cert", certificate, expected)?;
    let private = PrivateKeyDer::from_pem_slice(&pem("client_key", key)?);
    let private = private.map_err(|_| no_pem("client_cert", certificate, expected))?;
    builder.with_client_auth_cert(chain, private).map_err(|error| AccessError::Client {
        certificate: certificate.clone(),
        key: key.clone(),
        why: why_unusable(&error),
    })
}

fn certificates(
    key: &'static str,
    path: &Path,
    expected: &'static str,
) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(key, path)?).collect();
    read.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| no_pem(key, path, expected))
}

fn why_unusable(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key belongs to another certificate".to_owned(),
        error => error.to_string(),
    }
}

fn pem(key: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    std::fs::read(path).map_err(|source| AccessError::Unreadable { key, path: path.to_owned(), source })
}

fn no_pem(key: &'static str, path: &Path, expected: &'static str) -> AccessError {
    AccessError::NoPem { key, path: path.to_owned(), expected }
}
