//! How calls to an API are sent.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use paceline::UnknownOutcome;
use paceline_providers::secrets::login_of;
use paceline_providers::{Dialect, path_of};

use crate::exchange::Call;
#[cfg(doc)]
use crate::exchange::Exchange;
use crate::memory::MOST_OF_ANSWERS;
use crate::receive::LARGEST_ANSWER;

/// How calls to an API are sent, each by a [`Sender`](crate::Sender).
#[derive(Clone)]
pub struct SenderConfig {
    /// The base address of the calls' paths, with or without `/v1`. Empty where each call names its whole address.
    pub base_url: String,
    /// How answers are read and calls are charged.
    pub dialect: Dialect,
    /// The headers of every call, such as its key. A value that is marked sensitive, or whose name is one such as
    /// `Authorization`, is a secret: it is removed from every answer. Default: none.
    pub headers: HeaderMap,
    /// Values that calls carry elsewhere, and that are removed from every answer too, such as the logins of proxies. Default:
    /// those of the proxies that the environment names.
    pub secrets: Vec<HeaderValue>,
    /// The longest time from the first byte sent to the last byte received. Default: 600 s.
    pub timeout: Duration,
    /// Without a connection after this long the host is not reachable. Default: 20 s. At most nine tenths of `timeout` count: so
    /// a call that ends without a connection is known not to have been sent.
    pub connect_timeout: Duration,
    /// The most bytes that the body of an answer may have, decompressed. Default: 32 MiB.
    pub largest_answer: usize,
    /// Whether the body of a success is needed. Otherwise one that is larger is no failure: it counts as empty. Default: true.
    pub needs_answers: bool,
    /// The most bytes that all answers of the sender may have together, decompressed, from their first byte until their
    /// [`Exchange::memory`] is dropped. Beyond them one call at a time is read to its end, and the others wait before they read
    /// on; that counts for their timeout. Default: 256 MiB.
    pub most_of_answers: usize,
    /// The header that a call's [`idempotency_key`](Call::idempotency_key) is sent in. Default: as the provider documents it.
    pub idempotency_header: Option<HeaderName>,
    /// Whether a connection is kept for the next call to its host, where each host is a scope. Without that each call has a
    /// connection of its own, which is closed behind it: where files are few, the idle connections of many hosts leave none to
    /// calls. Default: true.
    pub keeps_connections: bool,
    /// What follows if it is unknown whether a call was executed, and a retry would execute it twice. A call whose method is
    /// idempotent, or that carries a key in the idempotency header, is sent again in any case. Default:
    /// [`UnknownOutcome::Resend`] for prompts of language models, which have no effect but their cost, [`UnknownOutcome::Hold`]
    /// for everything else.
    pub unknown_outcome: Option<UnknownOutcome>,
    /// The gateway behind `base_url`, which is `paceline serve`, as messages name it. It is told how long it may hold a call,
    /// 240 s at most, and how many retries the item has left; those that it spent count here. It keeps the limits, so none that
    /// answers announce is reported. Default: none.
    pub gateway: Option<String>,
}

/// The variables that name proxies, also in small letters.
const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

fn logins_of_environment() -> Vec<HeaderValue> {
    let names = PROXIES.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_lowercase()]);
    names.filter_map(|name| login_of(&std::env::var(name).ok()?)).collect()
}

impl SenderConfig {
    /// A configuration with that address, that dialect, and the defaults.
    pub fn new(base_url: impl Into<String>, dialect: impl Into<Dialect>) -> Self {
        let dialect = dialect.into();
        Self {
            base_url: base_url.into(),
            headers: HeaderMap::new(),
            secrets: logins_of_environment(),
            timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(20),
            largest_answer: LARGEST_ANSWER,
            needs_answers: true,
            most_of_answers: MOST_OF_ANSWERS,
            idempotency_header: dialect.provider().idempotency_header(),
            keeps_connections: true,
            unknown_outcome: None,
            gateway: None,
            dialect,
        }
    }

    /// What follows if it is unknown whether a call was executed.
    pub fn unknown_outcome_of(&self, call: &Call) -> UnknownOutcome {
        let is_keyed = match &self.idempotency_header {
            Some(name) => call.idempotency_key.is_some() || call.headers.contains_key(name),
            None => false,
        };
        self.dialect.unknown_outcome(&call.method, path_of(&call.url), is_keyed, self.unknown_outcome)
    }
}

/// Without address and headers: they may hold a password or a key.
impl fmt::Debug for SenderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timeout, connect_timeout, largest_answer, most_of_answers, .. } = self;
        f.debug_struct("SenderConfig")
            .field("timeout", timeout)
            .field("connect_timeout", connect_timeout)
            .field("largest_answer", largest_answer)
            .field("most_of_answers", most_of_answers)
            .finish_non_exhaustive()
    }
}
