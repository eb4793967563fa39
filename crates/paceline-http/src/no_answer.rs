//! Why a call has no whole answer, and whose matter that is: the server's, the way to it, the configuration's, this machine's.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use paceline::{Attempt, Class, Classify, clock};
use paceline_core::{LimitScope, Outcome, Timestamp, format_duration};
use paceline_providers::{Answer, NoResponse, Provider, Reading, no_response};
use rustls::{AlertDescription, CertificateError};

/// So much of headers is accepted in HTTP/2, and about as much in HTTP/1.
pub(crate) const LARGEST_HEAD: u32 = 400 << 10;

/// Why there is no whole answer. Its words tell what to do where a person has to act, and name no address: that may hold a key.
///
/// Made from an error of `reqwest`, it is [`Classify`]: [`Limiter::run`](paceline::Limiter::run) reads it by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// No server took the call: nothing was done and nothing is billed.
    #[error("no connection: {0}")]
    Connect(String),
    /// The two sides do not trust each other, which no other try changes: what is the matter, and what to do.
    #[error("{0}")]
    Tls(String),
    /// Silence for so long, where that is known: the call may have been done and billed.
    #[error("no answer {}", within(*.0))]
    Timeout(Option<Duration>),
    /// The connection broke after the request had left.
    #[error("connection lost: {0}")]
    Broken(String),
    /// What came back is not HTTP.
    #[error("the response is not HTTP: {0}")]
    Malformed(String),
    /// The answer began, and broke off or could not be decompressed.
    #[error("the response was cut off: {0}")]
    Truncated(String),
    /// The answer has more bytes than so many, the most that the client accepts.
    #[error("the answer is larger than {}", size(*.0))]
    TooLarge(usize),
    /// The headers of the answer are larger, or more, than the client accepts.
    #[error("the headers of the answer are larger than {} KiB or more than 100", LARGEST_HEAD >> 10)]
    HeadTooLarge,
    /// The server answered with that status, and nothing else of the answer is left: neither a wait nor a limit.
    /// [`reqwest::Response::error_for_status`] leaves it so.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// The caller gave the call up: it may have been done and billed.
    #[error("given up")]
    GivenUp,
}

impl From<reqwest::Error> for NoAnswer {
    fn from(error: reqwest::Error) -> Self {
        Self::of(&error, None)
    }
}

impl Classify for NoAnswer {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        let outcome = self.reading(attempt.provider, clock::wall()).outcome_of(attempt.reserved);
        Outcome { reason: Some(self.to_string().into()), ..outcome }
    }
}

impl NoAnswer {
    /// What it means: a failure that may pass, but for an answer that would be as large the next time, and for distrust,
    /// which stops the account like a bad key: a person must act. Only the meaning of a [`Status`](Self::Status) depends on
    /// the provider and the time.
    pub fn reading(&self, provider: Provider, now: Timestamp) -> Reading {
        match self {
            Self::Connect(_) => Reading { unsent: true, ..no_response(NoResponse::Connect) },
            Self::Tls(words) => Reading {
                reach: LimitScope::Account,
                code: Some("tls".to_owned()),
                words: Some(words.clone()),
                ..Reading::new(Class::Account)
            },
            Self::Timeout(_) => no_response(NoResponse::Timeout),
            Self::Broken(_) => no_response(NoResponse::Reset),
            Self::Malformed(_) => no_response(NoResponse::Malformed),
            Self::Truncated(_) => no_response(NoResponse::Truncated),
            Self::TooLarge(_) | Self::HeadTooLarge => {
                Reading { code: Some("response_too_large".to_owned()), ..Reading::new(Class::Invalid) }
            }
            Self::Status(status) => {
                let (status, headers) = (status.as_u16(), &HeaderMap::new());
                paceline_providers::read(provider, &Answer { status, headers, body: b"", path: "" }, now)
            }
            Self::GivenUp => Reading::new(Class::Abandoned),
        }
    }

    /// What became of a call that had so much time.
    pub(crate) fn of(error: &reqwest::Error, timeout: Option<Duration>) -> Self {
        if let Some(words) = causes(error).find_map(|cause| distrust(cause, error.is_connect())) {
            Self::Tls(words)
        } else if let Some(status) = error.status() {
            Self::Status(status)
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse_too_large)) {
            Self::HeadTooLarge
        } else if error.is_connect() {
            Self::Connect(root_cause(error))
        } else if error.is_timeout() {
            Self::Timeout(timeout)
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse)) {
            Self::Malformed(root_cause(error))
        } else if error.is_body() || error.is_decode() {
            Self::Truncated(root_cause(error))
        } else {
            Self::Broken(root_cause(error))
        }
    }

    /// No server took the call: it was not done, and nothing is billed.
    pub const fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Tls(_))
    }
}

fn within(time: Option<Duration>) -> String {
    time.map_or_else(|| "in time".to_owned(), |time| format!("within {}", format_duration(time)))
}

fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Why the two sides do not trust each other, in plain words, with what to do; `greeting`: no request had left yet.
fn distrust(cause: &(dyn Error + 'static), greeting: bool) -> Option<String> {
    Some(match cause.downcast_ref()? {
        rustls::Error::InvalidCertificate(error) => invalid_certificate(error),
        rustls::Error::AlertReceived(
            AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::NoCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate,
        ) => "the server asks for a client certificate that it accepts; name it with client_cert and client_key \
              (--client-cert, --client-key)"
            .to_owned(),
        rustls::Error::InvalidMessage(_) if greeting => {
            "the server does not speak TLS there; check the port, or write http:// if that is meant".to_owned()
        }
        _ => return None,
    })
}

fn invalid_certificate(error: &CertificateError) -> String {
    let authority = "if it is right, name the certificate of its authority with ca_file (--ca-file)";
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; have it renewed, and check the clock of this machine".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clock of this machine".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the server's certificate is for another host; check the address (--base-url)".to_owned()
        }
        CertificateError::Revoked => "the server's certificate is revoked; ask who runs the server".to_owned(),
        CertificateError::UnknownIssuer => {
            format!("the server's certificate is signed by an authority that is not trusted here; {authority}")
        }
        CertificateError::Other(other) => format!("the server's certificate is not trusted ({}); {authority}", other.0),
        other => format!("the server's certificate is not trusted ({other}); {authority}"),
    }
}

/// The innermost cause says what happened; the layers around it say only that something did. They would also repeat
/// the address.
pub(crate) fn root_cause(error: &reqwest::Error) -> String {
    let innermost = causes(error).last().map(ToString::to_string);
    innermost.unwrap_or_else(|| "the request could not be completed".to_owned())
}

pub(crate) fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| {
        // The source of an I/O error is that of what it wraps, which would be left out.
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| cause.source())
    })
}
