//! Why a call has no whole answer: because of the server, the network, the configuration or this machine.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use paceline::{Attempt, Class, Classify, clock};
use paceline_core::{LimitScope, Outcome, Timestamp, format_duration};
use paceline_providers::{Answer, NoResponse, Provider, Reading, no_response};
use rustls::{AlertDescription, CertificateError};

/// So much of headers is accepted in HTTP/2, and about as much in HTTP/1.
pub(crate) const LARGEST_HEAD: u32 = 400 << 10;

/// What the client says where the proxy on the way to an https address answered 407, ...
const UNAUTHORIZED: &str = "tunnel error: proxy authorization required";

/// ... and where it refused otherwise. The type of these errors cannot be named, and the status is lost.
const REFUSED: &str = "tunnel error: unsuccessful";

/// What the client says of a call that waited for a connection which another call had opened, and which ended meanwhile. The type
/// of this error cannot be named either.
const NOT_LEFT: &str = "ALPN upgraded to HTTP/2";

/// The code of a [call that was not taken](NoAnswer::NotTaken).
pub const NOT_TAKEN: &str = "not_taken";

/// Why there is no whole answer. Its message says what to do if a person has to act, and names no address: that may hold a key.
///
/// Made from an error of `reqwest`, it is [`Classify`]: [`Limiter::run`](paceline::Limiter::run) reads it by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// No server received the call: it was not executed and is not billed.
    #[error("no connection: {0}")]
    Connect(String),
    /// No server received the call, for its gateway was not reached.
    #[error("no connection to the gateway at {address}: {why}; is `paceline serve` running there?")]
    NoGateway {
        /// Where the gateway should be.
        address: String,
        /// Why.
        why: String,
    },
    /// The proxy did not let the call through to an `https` address, which may pass. No server received it.
    #[error(
        "no connection: the proxy refused to connect to the server; check the proxy (--proxy, proxy in paceline.toml, or the \
         variable that names it)"
    )]
    Tunnel,
    /// The TLS handshake failed, which no retry changes, as with a certificate that is not trusted: why, and what to do. One that
    /// has expired is a [`Connect`](Self::Connect).
    #[error("{0}")]
    Tls(String),
    /// The proxy refused the call (407), which no retry changes: why, and what to do. No server received it.
    #[error("{0}")]
    Proxy(String),
    /// No answer within that time, if it is known: the call may have been executed and billed.
    #[error("no answer {}", within(*.0))]
    Timeout(Option<Duration>),
    /// The connection broke after the request had left.
    #[error("connection lost: {why}{}", https_hint(*.maybe_tls))]
    Broken {
        /// What was met.
        why: String,
        /// The call was sent without TLS to a server that has answered no call yet: it may speak TLS there.
        maybe_tls: bool,
    },
    /// The same of a connection that was kept from an earlier call, and broke without an answer: its server closes such ones
    /// after a time, just as this call left, and takes it on another.
    #[error("connection lost, which was kept from an earlier call: {0}")]
    KeptBroken(String),
    /// The server said by HTTP/2 that it has not taken the call, and will not: it refused the stream, or ended the connection
    /// (GOAWAY) before it. It was not executed and is not billed.
    #[error("the server did not take the call: {0}")]
    NotTaken(String),
    /// The response is not HTTP.
    #[error("the response is not HTTP: {why}{}", https_hint(*.maybe_tls))]
    Malformed {
        /// What was met.
        why: String,
        /// As of [`Broken`](Self::Broken).
        maybe_tls: bool,
    },
    /// The answer began and broke off.
    #[error("the response was cut off: {0}")]
    Truncated(String),
    /// The body cannot be decompressed as its `content-encoding` says.
    #[error("the response cannot be decompressed: {0}")]
    Undecodable(String),
    /// The answer has more bytes than so many, the most that the client accepts.
    #[error("the answer is larger than {}", size(*.0))]
    TooLarge(usize),
    /// The headers of the answer are larger, or more, than the client accepts.
    #[error("the headers of the answer are larger than {} KiB or more than 100", LARGEST_HEAD >> 10)]
    HeadTooLarge,
    /// More than so many informational answers (1xx) came, and no other.
    #[error("the server sent more than {0} informational answers (1xx), and no other")]
    Informational(u32),
    /// The server answered with that status, and nothing else of the answer is left: neither a wait nor a limit.
    /// [`reqwest::Response::error_for_status`] leaves it so.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// The body of the request is a stream, which cannot be sent again. Nothing was sent.
    #[error(
        "the body of the request is a stream, which cannot be sent a second time; take a permit with Limiter::acquire"
    )]
    Streamed,
    /// The request has no address, or is no HTTP request for another reason. Nothing was sent.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// The caller abandoned the call: it may have been executed and billed.
    #[error("given up")]
    GivenUp,
    /// The caller abandoned the call before there was a connection for it: nothing was sent.
    #[error("given up before it was sent")]
    NeverSent,
}

impl From<reqwest::Error> for NoAnswer {
    fn from(error: reqwest::Error) -> Self {
        Self::of(&error)
    }
}

impl Classify for NoAnswer {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        let dialect = &attempt.dialect;
        let reading = dialect.within_reach(self.reading(dialect.provider(), clock::wall()));
        let outcome = reading.outcome_of(attempt.reserved);
        Outcome { reason: Some(self.to_string().into()), ..outcome }
    }
}

impl NoAnswer {
    /// Its reading: a failure that may pass, except that an answer that is too large would be so the next time, and that a failed
    /// TLS handshake stops the account like a bad key: a person must act. Only the reading of a [`Status`](Self::Status) depends
    /// on the provider and the time.
    pub fn reading(&self, provider: Provider, now: Timestamp) -> Reading {
        match self {
            Self::Connect(_) | Self::NoGateway { .. } | Self::Tunnel => {
                Reading { unsent: true, ..no_response(NoResponse::Connect) }
            }
            Self::NotTaken(_) => {
                Reading { unsent: true, code: Some(NOT_TAKEN.to_owned()), ..no_response(NoResponse::Reset) }
            }
            Self::Tls(message) => Reading {
                reach: LimitScope::Account,
                code: Some("tls".to_owned()),
                message: Some(message.clone()),
                ..Reading::new(Class::Account)
            },
            Self::Proxy(message) => Reading {
                message: Some(message.clone()),
                ..Self::Status(StatusCode::PROXY_AUTHENTICATION_REQUIRED).reading(provider, now)
            },
            Self::Timeout(_) => no_response(NoResponse::Timeout),
            Self::Broken { .. } => no_response(NoResponse::Reset),
            Self::KeptBroken(_) => Reading { wait: Some(Duration::ZERO), ..no_response(NoResponse::Reset) },
            Self::Malformed { .. } | Self::Informational(_) => no_response(NoResponse::Malformed),
            Self::Truncated(_) | Self::Undecodable(_) => no_response(NoResponse::Truncated),
            Self::TooLarge(_) | Self::HeadTooLarge => {
                Reading { code: Some("response_too_large".to_owned()), ..Reading::new(Class::Invalid) }
            }
            Self::Status(status) => {
                let (status, headers) = (status.as_u16(), &HeaderMap::new());
                paceline_providers::read(provider, &Answer { status, headers, body: b"", path: "" }, now)
            }
            Self::Streamed | Self::Unsendable(_) => Reading { unsent: true, ..Reading::new(Class::Invalid) },
            Self::GivenUp => Reading::new(Class::Abandoned),
            Self::NeverSent => Reading { unsent: true, ..Reading::new(Class::Abandoned) },
        }
    }

    /// From an error of a client of `hyper` that calls that scheme; `connecting`: there was no connection yet.
    pub fn of_client(error: &(dyn Error + 'static), connecting: bool, is_plain: bool) -> Self {
        if let Some(failure) = causes(error).find_map(|cause| tls_failure(cause, connecting)) {
            return failure;
        }
        let is = |such: fn(&hyper::Error) -> bool| causes(error).any(|cause| cause.downcast_ref().is_some_and(such));
        if let Some(failure) = Self::of_tunnel(error) {
            failure
        } else if let Some(failure) = Self::of_untaken(error) {
            failure
        } else if connecting || causes(error).any(|cause| cause.to_string() == NOT_LEFT) {
            Self::Connect(root_cause(error))
        } else if is(hyper::Error::is_parse_too_large) {
            Self::HeadTooLarge
        } else if is(hyper::Error::is_parse) {
            Self::Malformed { why: root_cause(error), maybe_tls: is_plain }
        } else {
            Self::Broken { why: root_cause(error), maybe_tls: is_plain }
        }
    }

    /// From an error of `reqwest`.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        let maybe_tls = error.url().is_some_and(|url| url.scheme() == "http");
        if error.is_builder() {
            Self::Unsendable(root_cause(error))
        } else if let Some(failure) = causes(error).find_map(|cause| tls_failure(cause, error.is_connect())) {
            failure
        } else if let Some(failure) = Self::of_tunnel(error) {
            failure
        } else if let Some(failure) = Self::of_untaken(error) {
            failure
        } else if let Some(status) = error.status() {
            Self::Status(status)
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse_too_large)) {
            Self::HeadTooLarge
        } else if error.is_connect() && error.is_timeout() {
            Self::Connect("the host did not answer in time".to_owned())
        } else if error.is_connect() {
            Self::Connect(root_cause(error))
        } else if error.is_timeout() {
            Self::Timeout(None)
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse)) {
            Self::Malformed { why: root_cause(error), maybe_tls }
        } else if error.is_decode() && causes(error).any(is_invalid_data) {
            Self::Undecodable(root_cause(error))
        } else if error.is_body() || error.is_decode() {
            Self::Truncated(root_cause(error))
        } else {
            Self::Broken { why: root_cause(error), maybe_tls }
        }
    }

    /// From what the proxy answered that was asked for a tunnel.
    fn of_tunnel(error: &(dyn Error + 'static)) -> Option<Self> {
        let said = |words| causes(error).any(|cause| cause.to_string() == words);
        if said(UNAUTHORIZED) { Some(Self::proxy()) } else { said(REFUSED).then_some(Self::Tunnel) }
    }

    /// From what a server says by HTTP/2 of a call that it has not acted on.
    fn of_untaken(error: &(dyn Error + 'static)) -> Option<Self> {
        let said = untaken(error)?;
        let why = said.reason().map(|reason| reason.to_string()).unwrap_or_default();
        let what = if said.is_go_away() { "it ends the connection" } else { "it refused the stream" };
        Some(Self::NotTaken(format!("{what} ({why})")))
    }

    /// Whether the server has ended the connection before it took the call, for no fault: on another one it takes it.
    pub fn is_left_out(error: &(dyn Error + 'static)) -> bool {
        untaken(error).is_some_and(|said| said.is_go_away() && said.reason() == Some(h2::Reason::NO_ERROR))
    }

    /// The proxy wants to know who calls.
    pub fn proxy() -> Self {
        let message = "the proxy asks for a name and a password (407), or refuses those that its address has; its address is that \
                       of --proxy http://NAME:PASSWORD@HOST:PORT, of proxy in paceline.toml, or of a variable such as HTTPS_PROXY, \
                       and --proxy none uses no proxy";
        Self::Proxy(message.to_owned())
    }

    /// The same of a call whose connection was kept from an earlier one: what speaks HTTP there is known.
    pub(crate) fn of_kept(self) -> Self {
        match self {
            Self::Broken { why, .. } => Self::KeptBroken(why),
            other => other,
        }
    }

    /// The same of a call through a gateway.
    pub(crate) fn of_gateway(self, address: &str) -> Self {
        match self {
            Self::Connect(why) => Self::NoGateway { address: address.to_owned(), why },
            // Nothing has ever answered there by HTTP, as `paceline serve` does: no call was taken.
            Self::Malformed { why, maybe_tls: true } => Self::Tls(format!(
                "what answers there is no HTTP ({why}); if the gateway speaks TLS there, {GATEWAY_BY_TLS}"
            )),
            other => other,
        }
    }

    /// Whether the call found no server.
    pub const fn is_unreached(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::NoGateway { .. } | Self::Tunnel)
    }

    /// Why the call [found no server](Self::is_unreached), with what to check; none where there is another reason.
    pub fn unreached(&self) -> Option<String> {
        match self {
            Self::Connect(why) => Some(format!("{why}; check the address (--base-url) and the network")),
            Self::NoGateway { why, .. } => {
                Some(format!("{why}; is `paceline serve` running there? check its address (--via)"))
            }
            Self::Tunnel => Some(self.to_string().trim_start_matches("no connection: ").to_owned()),
            _ => None,
        }
    }

    /// Whether the caller abandoned the call.
    pub const fn is_given_up(&self) -> bool {
        matches!(self, Self::GivenUp | Self::NeverSent)
    }

    /// Whether no server received the call, or none took it: it was not executed and is not billed.
    pub const fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::NoGateway { .. }
                | Self::Tunnel
                | Self::NotTaken(_)
                | Self::Tls(_)
                | Self::Proxy(_)
                | Self::NeverSent
                | Self::Streamed
                | Self::Unsendable(_)
        )
    }
}

/// What a server says of a call that it has not acted on (RFC 9113, 8.7): it refused its stream, or its GOAWAY names an earlier
/// one as the last.
fn untaken<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a h2::Error> {
    let is_refused = |said: &h2::Error| said.is_reset() && said.reason() == Some(h2::Reason::REFUSED_STREAM);
    let is_untaken = |said: &&h2::Error| said.is_remote() && (said.is_go_away() || is_refused(said));
    causes(error).find_map(|cause| cause.downcast_ref().filter(is_untaken))
}

/// Whether a server has answered at its address: then it speaks no TLS there, and a later failure has another reason.
#[derive(Debug, Default)]
pub struct HasAnswered(AtomicBool);

impl HasAnswered {
    /// It answers.
    pub fn came(&self) {
        // Read first: calls on many processors would else wait for each other.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A failure without the hint that cannot be right.
    pub fn explain(&self, mut failure: NoAnswer) -> NoAnswer {
        if let NoAnswer::Malformed { maybe_tls, .. } | NoAnswer::Broken { maybe_tls, .. } = &mut failure {
            *maybe_tls &= !self.0.load(Ordering::Relaxed);
        }
        failure
    }
}

/// What a server that speaks TLS does to a call without it looks like many other failures.
const fn https_hint(maybe_tls: bool) -> &'static str {
    if maybe_tls { "; if the server speaks TLS there, write https://" } else { "" }
}

/// What to do about a gateway that speaks TLS, and is called without.
pub const GATEWAY_BY_TLS: &str = "write https:// in --via, and name the certificate of the gateway's authority with ca_file (--ca-file) \
                                  where the system does not trust it";

/// What a decompressor says of bytes that it cannot read.
fn is_invalid_data(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::InvalidData)
}

fn within(time: Option<Duration>) -> String {
    time.map_or_else(|| "in time".to_owned(), |time| format!("within {}", format_duration(time)))
}

fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// A failed TLS handshake, with what to do; `connecting`: no request had been sent yet.
fn tls_failure(cause: &(dyn Error + 'static), connecting: bool) -> Option<NoAnswer> {
    let message = match cause.downcast_ref()? {
        // Those who run the server renew it, and one of several servers may be behind the others: as with one that is down.
        rustls::Error::InvalidCertificate(
            error @ (CertificateError::Expired | CertificateError::ExpiredContext { .. }),
        ) => return Some(NoAnswer::Connect(invalid_certificate(error))),
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
        rustls::Error::InvalidMessage(_) if connecting => {
            "the server does not speak TLS there; check the port, or write http:// if that is meant".to_owned()
        }
        _ => return None,
    };
    Some(NoAnswer::Tls(message))
}

/// How to make a certificate that is a server's own.
pub const SERVERS_OWN: &str = "`openssl req -x509` makes such a one unless it is told -addext basicConstraints=critical,CA:FALSE; make \
                               the server's certificate anew with that";

fn invalid_certificate(error: &CertificateError) -> String {
    let authority = "if it is right, name the certificate of its authority with ca_file (--ca-file)";
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; those who run it have to renew it, if the clock of this machine is right"
                .to_owned()
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
        CertificateError::Other(other) if other.0.to_string().contains("CaUsedAsEndEntity") => format!(
            "the server shows the certificate of an authority (CA:TRUE) as its own, which is not trusted: {SERVERS_OWN}"
        ),
        CertificateError::Other(other) => format!("the server's certificate is not trusted ({}); {authority}", other.0),
        other => format!("the server's certificate is not trusted ({other}); {authority}"),
    }
}

/// The message of the innermost cause. The layers around it add nothing, and would repeat the address.
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let innermost = causes(error).last().map(ToString::to_string);
    innermost.unwrap_or_else(|| "the request could not be completed".to_owned())
}

pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| {
        // The source of an I/O error is that of what it wraps, which would be left out.
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| cause.source())
    })
}
