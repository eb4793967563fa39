//! Encrypted connections, and whom they trust.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::address::AddressError;

/// Who may be at the other end.
pub(crate) enum Trust {
    /// Any server: the connection is encrypted, but a machine in between can read it.
    Anyone,
    /// A server that has a certificate of these issuers.
    Issuer(RootCertStore),
    /// The same, and the certificate has to be for the host of the address.
    IssuerAndName(RootCertStore),
}

/// A client that trusts so.
pub(crate) fn client(trust: Trust) -> Result<ClientConfig, AddressError> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| AddressError(error.to_string()))?;
    let roots = match trust {
        Trust::IssuerAndName(roots) => return Ok(builder.with_root_certificates(roots).with_no_client_auth()),
        Trust::Issuer(roots) => Some(roots),
        Trust::Anyone => None,
    };
    let verifier = Arc::new(NameIgnored { roots, algorithms });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The issuers in a file of PEM, or those that this machine trusts.
pub(crate) fn roots(file: Option<&str>) -> Result<RootCertStore, AddressError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // Some of a machine's certificates are broken on many machines; what is missing shows when a server is not trusted.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unusable = |why: String| AddressError(format!("the certificates of {file} cannot be read: {why}"));
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("there is none in it".to_owned()));
    }
    Ok(roots)
}

/// Looks at who issued a certificate, if at anything, and not at whom it is for.
#[derive(Debug)]
struct NameIgnored {
    roots: Option<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for NameIgnored {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, between, now, self.algorithms.all)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
