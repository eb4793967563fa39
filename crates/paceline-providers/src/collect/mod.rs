//! A stream of events, put together into the object that the same call would have answered without `stream`.

mod chunks;
mod message;

use serde_json::{Map, Value};

use super::stream::{self, Event};
use super::{Answer, header};
use chunks::Chunks;
use message::Message;

/// The object that the events of a stream add up to: a chat completion, a completion, a response or a message.
///
/// A stream that carries an error ends with it; its object is what had come until then, with that `error` in it. `None`
/// where the answer is no stream, or one of another kind, or was cut before its end, or a piece of it cannot be read:
/// half an answer is none.
///
/// ```
/// use paceline_providers::{Answer, collect};
/// let body = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n\
///     data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
/// let answer = Answer { status: 200, headers: &http::HeaderMap::new(), body, path: "/v1/chat/completions" };
/// let whole = collect(&answer).expect("a stream that reached its end");
/// assert_eq!(whole["choices"][0]["message"]["content"], "Hello");
/// ```
pub fn collect(answer: &Answer<'_>) -> Option<Value> {
    let content_type = header::first(answer.headers, "content-type").unwrap_or_default();
    if stream::is_stream(answer.body, content_type) { object_of(answer.body) } else { None }
}

/// Whether the texts of an answer may go on from one event, or from one line of JSON, to the next.
pub fn comes_in_parts(answer: &Answer<'_>) -> bool {
    let content_type = header::first(answer.headers, "content-type").unwrap_or_default();
    let lines = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/stream+json"];
    stream::is_stream(answer.body, content_type) || lines.iter().any(|lines| content_type.starts_with(lines))
}

/// The object that a stream of server-sent events adds up to.
pub(super) fn object_of(stream: &[u8]) -> Option<Value> {
    let mut collected = Collected::default();
    stream::each(stream, |event| collected.take(event));
    collected.into_object()
}

#[derive(Default)]
struct Collected {
    parts: Parts,
    error: Option<Map<String, Value>>,
    ended: bool,
}

/// What has come, in the form of its dialect.
#[derive(Default)]
enum Parts {
    #[default]
    None,
    Chunks(Chunks),
    /// The events of the Responses API repeat their object: the last one is whole.
    Response(Map<String, Value>),
    Message(Message),
    /// Pieces that do not fit each other: the text of the stream is all there is.
    Unknown,
}

impl Collected {
    fn take(&mut self, event: Event) {
        if self.ended {
            return;
        }
        self.ended = event.ends();
        if let Some(error) = event.error() {
            self.error = Some(error);
            self.ended = true;
        }
        self.parts.take(event);
    }

    fn into_object(self) -> Option<Value> {
        // Some have no other end than that of each choice.
        let has_all = matches!(&self.parts, Parts::Chunks(chunks) if chunks.have_ended());
        if !self.ended && !has_all {
            return None;
        }
        let object = match self.parts {
            Parts::Unknown => return None,
            Parts::None => None,
            Parts::Chunks(chunks) => Some(chunks.into_object()),
            Parts::Response(response) => Some(response),
            Parts::Message(message) => Some(message.into_object()),
        };
        let Some(error) = self.error else { return object.map(Value::Object) };
        Some(Value::Object(object.unwrap_or_default().into_iter().chain(error).collect()))
    }
}

impl Parts {
    /// Adds an event; one of another dialect than the first is ignored.
    fn take(&mut self, event: Event) {
        let kind = event.kind().to_owned();
        let mut value = event.value;
        if event.garbled {
            *self = Self::Unknown;
        }
        if let Self::None = self {
            *self = match &*kind {
                "message_start" => Self::Message(Message::default()),
                _ if kind.starts_with("response.") => Self::Response(Map::new()),
                _ if value["choices"].is_array() => Self::Chunks(Chunks::default()),
                _ => return,
            };
        }
        match self {
            Self::Chunks(chunks) => {
                if chunks.take(value).is_err() {
                    *self = Self::Unknown;
                }
            }
            Self::Message(message) => message.take(&kind, value),
            Self::Response(response) => {
                if let Some(Value::Object(latest)) = value.get_mut("response").map(Value::take) {
                    *response = latest;
                }
            }
            Self::None | Self::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests;
