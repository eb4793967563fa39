//! Network access by the configuration: trusted certificates, client certificate and proxy.

use std::path::{Path, PathBuf};

use paceline_config::{Access, Proxy};
use paceline_providers::secrets::hidden;
use reqwest::{Certificate, Client, ClientBuilder, Identity};

use crate::sender::client_to;

/// Why the configured certificates or proxy cannot be used.
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
    #[error("{key} {}: expected {expected} in PEM", .path.display())]
    NoPem {
        /// The setting that names it.
        key: &'static str,
        /// Where it is.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// The proxy's address is invalid. It is shown without its password.
    #[error("--proxy {0}: no such address")]
    Proxy(String),
}

/// A client builder with the configured trusted certificates, client certificate and proxy.
///
/// # Errors
/// A file that cannot be read or has other content, or an invalid address of a proxy.
pub fn client(base_url: &str, access: &Access) -> Result<ClientBuilder, AccessError> {
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
        if certificates.is_empty() {
            return Err(no_pem("ca_file", path, "certificates (BEGIN CERTIFICATE)"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    if let Some((certificate, key)) = &access.client {
        let mut both = pem("client_cert", certificate)?;
        if key != certificate {
            both.push(b'\n');
            both.extend(pem("client_key", key)?);
        }
        let expected = "a certificate (BEGIN CERTIFICATE) and, there or in client_key, its PRIVATE KEY";
        let identity = Identity::from_pem(&both).map_err(|_| no_pem("client_cert", certificate, expected))?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

fn pem(key: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    std::fs::read(path).map_err(|source| AccessError::Unreadable { key, path: path.to_owned(), source })
}

fn no_pem(key: &'static str, path: &Path, expected: &'static str) -> AccessError {
    AccessError::NoPem { key, path: path.to_owned(), expected }
}
