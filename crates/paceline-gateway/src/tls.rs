//! TLS for clients: a certificate and its key from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::parse_x509_certificate;

/// Why a certificate cannot be used. The key itself is never named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("{path}: {message}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// Certificate and key do not belong together, or are of a kind that is not known.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// What a gateway shows to clients that connect with TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(crate) config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    /// From when, and until when.
    valid: Option<(Timestamp, Timestamp)>,
    is_of_authority: bool,
}

/// Two files are replaced one after the other.
fn unpaired(certificate: &Path) -> String {
    let certificate = certificate.display();
    format!(
        "this key does not belong to the certificate in {certificate}; if you replace both, replace the other one too"
    )
}

/// How long a certificate is valid still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For long, or it does not say so in the usual form.
    Long,
    /// Until then: two weeks are left, or a third of its life where that is shorter.
    EndsSoon(Timestamp),
    /// It has ended.
    Ended(Timestamp),
}

/// A certificate ends soon when so little is left, or ...
const SOON_MS: i64 = 14 * 86_400_000;

/// ... one part in so many of its life: one of a week is not always at its end.
const PART: i64 = 3;

impl ClientTls {
    /// A certificate, with those between it and its authority behind it, and its private key, both in PEM.
    ///
    /// # Errors
    /// Files that cannot be read, and a key of another certificate.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let wrong = |path: &Path, message: String| TlsError::File { path: path.to_owned(), message };
        let read = |path: &Path| std::fs::read(path).map_err(|error| wrong(path, error.to_string()));
        let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| wrong(certificate, damage(&error)))?;
        let Some(shown) = chain.first().cloned() else {
            return Err(wrong(certificate, "expected a certificate in PEM, and there is none".to_owned()));
        };
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => wrong(key, "expected a private key in PEM, and there is none".to_owned()),
            error => wrong(key, damage(&error)),
        })?;
        let config =
            ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
        let paired = config.with_no_client_auth().with_single_cert(chain, private);
        let mut config = paired.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(key, unpaired(certificate)),
            error => error.into(),
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // What is odd here may still be right for clients.
        let parsed = parse_x509_certificate(&shown).ok().map(|(_, parsed)| {
            let at = |seconds: i64| Timestamp::from_millis(seconds.saturating_mul(1_000));
            let validity = parsed.validity();
            ((at(validity.not_before.timestamp()), at(validity.not_after.timestamp())), parsed.is_ca())
        });
        let (valid, is_of_authority) = (parsed.map(|(valid, _)| valid), parsed.is_some_and(|(_, is_ca)| is_ca));
        Ok(Self { config: Arc::new(config), certificate: shown, valid, is_of_authority })
    }

    /// Until when it is valid, as far as it says so in the usual form.
    pub fn valid_until(&self) -> Option<Timestamp> {
        self.valid.map(|(_, until)| until)
    }

    /// From when on and until when it is valid, as far as it says so in the usual form.
    pub(crate) const fn valid(&self) -> Option<(Timestamp, Timestamp)> {
        self.valid
    }

    /// Whether it ends soon, or has ended.
    pub fn validity(&self, now: Timestamp) -> Validity {
        let Some((from, until)) = self.valid else { return Validity::Long };
        let (from, ends, now) = (from.as_millis(), until.as_millis(), now.as_millis());
        match ends.saturating_sub(now) {
            ..0 => Validity::Ended(until),
            left if left < SOON_MS.min(ends.saturating_sub(from) / PART) => Validity::EndsSoon(until),
            _ => Validity::Long,
        }
    }

    /// Whether it says of itself that it is the certificate of an authority, as those that `openssl req -x509` makes without more
    /// words do: clients that check that refuse it as a server's, and others, such as curl, take it.
    pub const fn is_of_authority(&self) -> bool {
        self.is_of_authority
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

/// What is the matter with a file of PEM. Nothing of its content is repeated.
fn damage(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            return format!(
                "the file is cut off: its line -----END {}----- is missing; write the file anew, whole",
                String::from_utf8_lossy(end_marker)
            );
        }
        pem::Error::Base64Decode(_) => "what stands between BEGIN and END is no base64",
        _ => "a line that begins or ends a part is wrong",
    };
    format!("the file is damaged: {what}; expected PEM, which begins with -----BEGIN; write the file anew")
}
