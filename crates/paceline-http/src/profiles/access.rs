//! What the configuration says about the way to an upstream, as a client and a sender.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderMap;
use paceline_config::{Access, Proxy, Upstream};
use paceline_providers::secrets::hidden;
use reqwest::{Certificate, Client, ClientBuilder, Identity};

use super::key::warn_if_exposed;
use crate::no_answer::{causes, root_cause};
use crate::sender::{Sender, SenderConfig, client_to, install_tls};

/// Why the configured address, certificates or proxy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A file cannot be read.
    #[error("{key} {} cannot be read: {source}", .path.display())]
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

impl Sender {
    /// What sends calls to an upstream as it is configured, with those [headers](crate::headers) and so much time for each. An
    /// upstream without an address takes calls to whole addresses.
    ///
    /// # Errors
    /// A certificate that cannot be read, a proxy or an address that is none.
    pub fn to(upstream: &Upstream, headers: HeaderMap, timeout: Duration) -> Result<Self, AccessError> {
        let base_url = upstream.base_url.clone().unwrap_or_default();
        let client = client(&base_url, &upstream.access)?;
        if let Some((_, key)) = &upstream.access.client
            && let Ok(file) = File::open(key)
        {
            warn_if_exposed("the client's key", &file, &key.display().to_string());
        }
        let config = SenderConfig {
            headers,
            timeout,
            idempotency_header: upstream.access.idempotency_header.clone(),
            unknown_outcome: upstream.access.unknown_outcome,
            ..SenderConfig::new(base_url, upstream.dialect.clone())
        };
        Self::new(client, config).map_err(AccessError::Setup)
    }
}

/// A client builder with the configured trusted certificates, client certificate and proxy.
///
/// # Errors
/// A file that cannot be read or has other content, or an invalid address of a proxy.
pub fn client(base_url: &str, access: &Access) -> Result<ClientBuilder, AccessError> {
    install_tls();
    let mut builder = match &access.proxy {
        Proxy::At(address) => {
            // The error would repeat the address, which may hold a password.
            let proxy = reqwest::Proxy::all(address).map_err(|_| AccessError::Proxy(hidden(address).into_owned()))?;
            Client::builder().proxy(proxy)
        }
        Proxy::Environment => client_to(base_url),
        Proxy::None => Client::builder().no_proxy(),
    };
    if let Some(path) = &access.ca_file {
        let certificates = Certificate::from_pem_bundle(&pem("ca_file", path)?).unwrap_or_default();
        // Alone, as below: the error of the whole client would not name the file.
        let usable = Client::builder().tls_certs_only(certificates.clone()).build().is_ok();
        if certificates.is_empty() || !usable {
            return Err(no_pem("ca_file", path, "certificate (BEGIN CERTIFICATE)"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    if let Some((certificate, key)) = &access.client {
        let mut both = pem("client_cert", certificate)?;
        if key != certificate {
            both.push(b'\n');
            both.extend(pem("client_key", key)?);
        }
        let expected = "certificate (BEGIN CERTIFICATE) with a PRIVATE KEY, there or in client_key,";
        let identity = Identity::from_pem(&both).map_err(|_| no_pem("client_cert", certificate, expected))?;
        let alone = Client::builder().tls_certs_only([]).identity(identity.clone()).build();
        alone.map_err(|error| AccessError::Client {
            certificate: certificate.clone(),
            key: key.clone(),
            why: why_unusable(&error),
        })?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

fn why_unusable(error: &reqwest::Error) -> String {
    let mismatch = |cause: &rustls::Error| matches!(cause, rustls::Error::InconsistentKeys(_));
    match causes(error).filter_map(|cause| cause.downcast_ref()).any(mismatch) {
        true => "the key belongs to another certificate".to_owned(),
        false => root_cause(error),
    }
}

fn pem(key: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    std::fs::read(path).map_err(|source| AccessError::Unreadable { key, path: path.to_owned(), source })
}

fn no_pem(key: &'static str, path: &Path, expected: &'static str) -> AccessError {
    AccessError::NoPem { key, path: path.to_owned(), expected }
}
