//! A client for an address: its proxy, and the TLS of this process.

use paceline_providers::is_loopback;
use reqwest::{Client, ClientBuilder};

/// A client builder for an address, with the proxy that the environment names (`HTTPS_PROXY` and the like). This machine's own
/// addresses get none: a proxy cannot reach them, and calls to them stay on the machine. TLS is that of `ring`, unless the
/// process has installed another for `rustls`; a client for `http://` on this machine trusts none, and reads no certificates.
pub fn client_to(address: &str) -> ClientBuilder {
    install_tls();
    let builder = if is_loopback(address) { Client::builder().no_proxy() } else { Client::builder() };
    if speaks_no_tls(address) { builder.tls_certs_only([]) } else { builder }
}

/// Whether calls to an address never need a certificate: it is this machine's own, and plain.
pub(crate) fn speaks_no_tls(address: &str) -> bool {
    address.starts_with("http://") && is_loopback(address)
}

/// The implementation of TLS for this process; one that it has installed already stays.
pub(crate) fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
