//! Certificates for tests: an authority of our own, a server that it vouches for, and a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use crate::support::Job;

/// An authority, whose certificate is `ca.pem`.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    der: CertificateDer<'static>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

#[derive(Debug)]
struct Renewing {
    keys: [Arc<CertifiedKey>; 2],
    is_renewed: Arc<AtomicBool>,
}

impl ResolvesServerCert for Renewing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.keys[usize::from(self.is_renewed.load(Ordering::Relaxed))]))
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Self { issuer: Issuer::new(params, key), pem, der }
    }

    /// A certificate for a host, or for a client of that name.
    pub(crate) fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Signed { certificate: pem, key: key.serialize_pem(), der, key_der: key.serialize_der() }
    }

    /// What a server of that name needs; of clients it wants a certificate of this authority, if it is so strict.
    pub(crate) fn server(&self, name: &str, strict: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = if strict {
            let mut roots = RootCertStore::empty();
            roots.add(self.der.clone()).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let Signed { der, key_der, .. } = self.sign(name);
        let key = PrivateKeyDer::try_from(key_der).expect("a key");
        Arc::new(builder.with_single_cert(vec![der], key).expect("they belong together"))
    }

    /// The same with a certificate that has ended, until it is renewed.
    pub(crate) fn renewing_server(&self, name: &str, is_renewed: &Arc<AtomicBool>) -> Arc<ServerConfig> {
        let certified = |years| {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
            params.not_after = date_time_ymd(years, 1, 1);
            let der = params.signed_by(&key, &self.issuer).expect("a certificate").der().clone();
            let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
            let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("a key");
            Arc::new(CertifiedKey::new(vec![der], key))
        };
        let shown = Renewing { keys: [certified(2020), certified(4000)], is_renewed: Arc::clone(is_renewed) };
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        Arc::new(builder.with_cert_resolver(Arc::new(shown)))
    }

    /// Puts the certificate of this authority, and one of a client with its key, into a job's folder.
    pub(crate) fn put_into(&self, job: &Job) {
        let client = self.sign("a-client");
        for (file, text) in [("ca.pem", &self.pem), ("client.pem", &client.certificate), ("client.key", &client.key)] {
            std::fs::write(job.path(file), text).expect("writable");
        }
    }
}
