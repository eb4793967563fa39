//! A call, and how it ended.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, Request, Response};
use paceline::{Class, NextAction, UnknownOutcome};
use paceline_providers::secrets::hidden;
use paceline_providers::{Reading, Usage};

use crate::gateway::Steps;
use crate::memory::AnswerMemory;
use crate::no_answer::NoAnswer;

/// One HTTP request.
#[derive(Clone, Default)]
pub struct Call {
    /// Default: `GET`.
    pub method: Method,
    /// The path with its query below the sender's address, or a whole address. Where the sender has an address, a call to another
    /// scheme, host or port carries no secret of the sender.
    pub url: String,
    /// They replace those of the sender, except secrets. What is marked as sensitive is hidden in the answer, too.
    pub headers: HeaderMap,
    /// Sent as JSON unless a header names another type. Empty for no body.
    pub body: Bytes,
    /// The same at each try, so that a server can recognize a retry; sent if the API has a header for it.
    pub idempotency_key: Option<HeaderValue>,
    /// A bound shorter than the sender's timeout, from the first try to connect to the last byte received.
    pub within: Option<Duration>,
    /// The retries that its item has left, for a gateway that the call goes through. Default: as the permit's request says.
    pub retries: Option<u32>,
}

/// A finished call, and its meaning.
#[derive(Debug)]
#[must_use = "it says what follows for the item"]
#[non_exhaustive]
pub struct Exchange {
    /// The whole answer without the secrets of the call, whatever its status; a stream is collected into the object that its
    /// events stand for. Or why there is none.
    pub answer: Result<Response<Bytes>, NoAnswer>,
    /// Its reading, as reported to the pacer.
    pub reading: Reading,
    /// What a stream told that was cut off: of its prompt, and of its answer once it had told all of that.
    pub told: Option<Usage>,
    /// What follows for the item, as the pacer decided.
    pub action: NextAction,
    /// What follows if it is unknown whether the call was executed and it must not be executed twice; else `Resend`.
    pub unknown: UnknownOutcome,
    /// The call tested a failing server.
    pub probe: bool,
    /// From the first try to connect to the last byte received, without the time that a gateway held the call.
    pub latency: Duration,
    /// How long a gateway held the call before.
    pub held: Duration,
    /// Calls that were made for it: one, or as many as a gateway made.
    pub calls: u32,
    /// The retries of the item that a gateway spent on it.
    pub retried: u32,
    /// Of so many of the calls that a gateway made before it is unknown whether they were executed.
    pub unknown_before: u32,
    /// The steps of its fallback that a gateway names.
    pub steps: Steps,
    /// Counts the answer's bytes for [`SenderConfig::most_of_answers`](crate::SenderConfig::most_of_answers) until it is dropped.
    /// A caller that keeps answers drops it, or no further answer is read once they are as many.
    pub memory: AnswerMemory,
}

/// The end of one send whose outcome [`Limiter::run`](paceline::Limiter::run) reports.
#[cfg(feature = "config")]
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) answer: Result<Response<Bytes>, NoAnswer>,
    pub(crate) reading: Reading,
    pub(crate) unknown: UnknownOutcome,
    pub(crate) latency: Duration,
    pub(crate) retried: u32,
}

impl Call {
    /// A `GET` of that path, or of that whole address.
    pub fn get(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// A `POST` of that body to that path, or to that whole address. It is JSON unless a header names another type.
    pub fn post(url: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, url: url.into(), body: body.into(), ..Self::default() }
    }
}

/// Without the values of its headers, which may be keys, and with the length of its body alone.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, url, headers, body, within, retries, .. } = self;
        f.debug_struct("Call")
            .field("method", method)
            .field("url", &without_query(url))
            .field("headers", &headers.keys().collect::<Vec<_>>())
            .field("body", &format_args!("{} bytes", body.len()))
            .field("within", within)
            .field("retries", retries)
            .finish_non_exhaustive()
    }
}

/// An address without a name and a password, and without its query: a key may stand there.
fn without_query(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    hidden(&url[..end]).into_owned()
}

impl<B: Into<Bytes>> From<Request<B>> for Call {
    fn from(request: Request<B>) -> Self {
        let (head, body) = request.into_parts();
        let (method, url, headers) = (head.method, head.uri.to_string(), head.headers);
        Self { method, url, headers, body: body.into(), ..Self::default() }
    }
}

impl Exchange {
    /// The status of the answer; none without one.
    pub fn status(&self) -> Option<u16> {
        self.answer.as_ref().ok().map(|answer| answer.status().as_u16())
    }

    /// The tokens that the call used: as its answer reports, or as far as it did before it was [cut off](Self::told), and none
    /// where it was refused or never arrived. `None` if that is not known, for one thing because it is [unknown](is_unknown)
    /// whether it was executed.
    pub fn used(&self) -> Option<Usage> {
        match (self.told.or(self.reading.usage), &self.answer) {
            (Some(usage), _) => Some(usage),
            (None, answer) if is_unknown(answer, &self.reading) => None,
            (None, Ok(_)) if self.reading.class != Class::Success => Some(Usage::default()),
            (None, Err(error)) if error.is_unsent() => Some(Usage::default()),
            (None, _) => None,
        }
    }
}

/// Whether it is unknown if the call was executed. A call that was never sent was not; of one that was answered
/// [`Reading::leaves_unknown`] says it.
pub fn is_unknown(answer: &Result<Response<Bytes>, NoAnswer>, reading: &Reading) -> bool {
    match answer {
        Err(
            NoAnswer::Timeout(_)
            | NoAnswer::Broken { .. }
            | NoAnswer::KeptBroken(_)
            | NoAnswer::Malformed { .. }
            | NoAnswer::Truncated(_)
            | NoAnswer::Undecodable(_)
            | NoAnswer::TooLarge(_)
            | NoAnswer::HeadTooLarge
            | NoAnswer::Informational(_)
            | NoAnswer::GivenUp,
        ) => true,
        Err(_) => false,
        Ok(answer) => reading.leaves_unknown(answer.status().as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_form_of_a_call_has_no_key_wherever_it_stands() {
        let mut call = Call::post("https://me:SECRET@api.example.com/v1/x?key=SECRET", "SECRET".to_owned());
        call.headers.insert("authorization", HeaderValue::from_static("Bearer SECRET"));
        call.headers.insert("x-mine", HeaderValue::from_static("SECRET"));
        call.idempotency_key = Some(HeaderValue::from_static("SECRET"));
        for printed in [format!("{call:?}"), format!("{call:#?}")] {
            assert!(
                !printed.contains("SECRET") && printed.contains("x-mine") && printed.contains("6 bytes"),
                "{printed}"
            );
        }
    }
}
