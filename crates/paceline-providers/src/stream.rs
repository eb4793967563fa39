//! Answers that arrive as server-sent events: the errors that come after the 200, the end, and the usage.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::ending::{Ending, OF_MESSAGES, OF_RESPONSES};
use super::frames::{self, Frame};
use super::reported::{PLACES, Reported};
use super::twice::Twice;

/// Before a text that begins with it, it says that the text is UTF-8, and belongs to none of its lines.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Whether a body holds server-sent events: no line of them begins like JSON, whatever the content type says.
pub(super) fn is_stream(body: &[u8], content_type: &str) -> bool {
    let text = without_mark(body).trim_ascii_start();
    let begins = |start: &[u8]| text.starts_with(start);
    begins(b"event:")
        || begins(b"data:")
        || content_type.starts_with(LINES_OF_JSON)
        || (content_type.starts_with("text/event-stream") && !begins(b"{") && !begins(b"["))
}

fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body)
}

/// The content of a finished stream, read after its end.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The first error event, in the form of an error body; empty when there was none.
    pub(super) error: Map<String, Value>,
    /// An error event arrived.
    pub(super) failed: bool,
    /// An event that ends the dialect's streams arrived.
    pub(super) ended: bool,
    /// At least one event of a dialect whose streams end with such an event.
    pub(super) must_end: bool,
    /// At least one event that begins like an object is none.
    pub(super) garbled: bool,
    /// No event came, comments and pings aside.
    pub(super) is_empty: bool,
    /// The content was refused as a whole.
    filtered: bool,
    /// It ended at the limit on its tokens, as a whole.
    at_limit: bool,
    /// The choices that came, and why each has ended, if it has, by its index.
    choices: BTreeMap<u64, Option<Ending>>,
    /// The tokens that the events reported, ...
    usage: Option<Reported>,
    /// ... and those that each choice did, by its index.
    of_choices: BTreeMap<u64, Reported>,
}

/// One event of a stream.
pub(super) struct Event {
    /// Its `event` field.
    name: String,
    /// Its data; null where they are no JSON.
    pub(super) value: Value,
    /// Its data are `[DONE]`.
    done: bool,
    /// It has no data.
    empty: bool,
    /// Its data begin like an object and are none: a piece of the answer is missing.
    pub(super) garbled: bool,
}

/// The media type of a stream of JSON, an object in each line, as Cohere's older chat has it.
const LINES_OF_JSON: &str = "application/stream+json";

/// Hands out the events of a whole body. Comments and blank lines are none.
pub(super) fn each(body: &[u8], mut take: impl FnMut(Event)) {
    let (mut name, mut data) = (String::new(), String::new());
    let text = String::from_utf8_lossy(without_mark(body));
    // A line may end with either or with both.
    let text = if text.contains('\r') { Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n")) } else { text };
    for line in text.lines().chain([""]) {
        if line.is_empty() {
            if !name.is_empty() || !data.is_empty() {
                take(Event::new(std::mem::take(&mut name), &data));
            }
            data.clear();
        } else if let Some(value) = field(line, "event") {
            value.clone_into(&mut name);
        } else if let Some(value) = field(line, "data") {
            if !data.is_empty() {
                data.push('\n');
            }
            data.push_str(value);
        } else if line.starts_with('{') && name.is_empty() && data.is_empty() {
            take(Event::new(String::new(), line));
        }
    }
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = line.strip_prefix(name)?.strip_prefix(':')?;
    Some(value.strip_prefix(' ').unwrap_or(value))
}

/// Hands out the events of a body that comes in parts, also in the binary form of AWS; none where it does not. Returns whether it
/// is cut off within a frame.
pub(super) fn each_of_any(body: &[u8], content_type: &str, mut take: impl FnMut(Event)) -> Option<bool> {
    if content_type.starts_with(frames::MEDIA_TYPE) {
        return Some(frames::each(body, |frame| take(Event::of_frame(frame))).is_err());
    }
    is_stream(body, content_type).then(|| each(body, take)).map(|()| false)
}

/// Whether an answer of that content type comes in events or, from AWS, in frames.
pub fn is_made_of_events(content_type: &str) -> bool {
    let kind = content_type.trim_start();
    kind.starts_with("text/event-stream") || kind.starts_with(frames::MEDIA_TYPE)
}

/// Where the first event of such a body begins at that byte or behind it, or its first frame; where there is none yet, its end.
///
/// ```
/// let body = b"data: 1\n\ndata: 2\n\n";
/// let of = |at| paceline_providers::event_from("text/event-stream", body, at);
/// assert_eq!([of(0), of(1), of(9), of(10)], [0, 9, 9, 18]);
/// ```
///
/// A line may end with a carriage return, a line feed or both.
pub fn event_from(content_type: &str, body: &[u8], at: usize) -> usize {
    if content_type.trim_start().starts_with(frames::MEDIA_TYPE) {
        return frames::frame_from(body, at);
    }
    if at == 0 { 0 } else { (at..body.len()).find(|at| is_behind_blank_line(body, *at)).unwrap_or(body.len()) }
}

/// Whether the byte before is the last of a blank line.
fn is_behind_blank_line(body: &[u8], at: usize) -> bool {
    // Of `\r\n` both belong to the end of the line.
    let is_inside_end = body[..at].ends_with(b"\r") && body[at..].starts_with(b"\n");
    let without_end = |text: &[u8]| {
        let end = [&b"\r\n"[..], b"\n", b"\r"].into_iter().find(|end| text.ends_with(end))?;
        Some(text.len() - end.len())
    };
    let ends_twice = |text: &[u8]| without_end(text).and_then(|len| without_end(&text[..len])).is_some();
    !is_inside_end && ends_twice(&body[..at])
}

/// Reads the events of a whole body that comes in parts.
pub(super) fn read_any(body: &[u8], content_type: &str) -> Option<Stream> {
    let mut stream = Stream { is_empty: true, ..Stream::default() };
    // Half a frame is no end, whatever came before it.
    if each_of_any(body, content_type, |event| stream.take(&event))? {
        (stream.must_end, stream.ended) = (true, stream.failed);
        stream.choices.clear();
    }
    Some(stream)
}

impl Event {
    /// An exception is an error with that code; every other frame is an event of that name.
    /// Bedrock packs the events that are a model's own.
    fn of_frame(frame: Frame<'_>) -> Self {
        let packed = frame.payload["bytes"].as_str().filter(|_| !frame.failed);
        if let Some(event) = packed.and_then(|packed| STANDARD.decode(packed).ok()) {
            return Self::new(String::new(), &String::from_utf8_lossy(&event));
        }
        let name = if frame.failed { "error" } else { frame.name };
        let value = match frame.failed {
            true => json!({"error": {"code": frame.name, "message": frame.payload["message"]}}),
            false => frame.payload,
        };
        Self { name: name.to_owned(), value, done: false, empty: false, garbled: false }
    }

    fn new(name: String, data: &str) -> Self {
        let data = data.trim();
        let read = serde_json::from_str(data).map(|Twice(value)| value);
        let garbled = read.is_err() && data.starts_with('{');
        Self { name, value: read.unwrap_or_default(), done: data == "[DONE]", empty: data.is_empty(), garbled }
    }

    /// What it is: its `type`, else its name.
    pub(super) fn kind(&self) -> &str {
        // In other APIs that is a word of the user's own, such as `error`.
        let of_interaction = || self.value["event_type"].as_str().filter(|kind| kind.starts_with("interaction."));
        self.value["type"].as_str().or_else(of_interaction).unwrap_or(&self.name)
    }

    /// Whether the streams of some dialect end with it.
    pub(super) fn ends(&self) -> bool {
        let finished = |candidate: &Value| candidate["finishReason"].is_string();
        self.done
            || matches!(self.kind(), "message_stop" | "messageStop" | "response.completed" | "response.incomplete")
            || matches!(self.kind(), "interaction.completed" | "interaction.complete")
            || self.value["candidates"].as_array().is_some_and(|all| all.iter().any(finished))
            || self.value["promptFeedback"]["blockReason"].is_string()
    }

    /// Whether it is one of a dialect whose streams end with an event of their own.
    fn must_be_followed_by_an_end(&self) -> bool {
        let kind = self.kind();
        matches!(kind, "message_start" | "messageStart")
            || ["content_block_", "contentBlock"].iter().any(|begin| kind.starts_with(begin))
            || ["response.", "interaction."].iter().any(|begin| kind.starts_with(begin))
            || ["choices", "candidates"].into_iter().any(|key| self.value[key].is_array())
    }

    /// The error that it carries, in the form of an error body.
    pub(super) fn error(&self) -> Option<Map<String, Value>> {
        let (kind, value) = (self.kind(), &self.value);
        let error = match kind {
            "response.failed" => value["response"]["error"].clone(),
            // The Responses API puts code and message of such an event at its top.
            "error" if value["error"].is_null() => value.clone(),
            // OpenRouter puts an error that came after the answer began into its choice.
            _ if value["error"].is_null() => value["choices"][0]["error"].clone(),
            _ => value["error"].clone(),
        };
        let announced = self.name == "error" || kind == "error" || kind == "response.failed";
        match json!({ "error": error }) {
            Value::Object(root) if announced || !error.is_null() => Some(root),
            _ => None,
        }
    }
}

impl Stream {
    /// Whether the content was refused, and no choice is left that may be used.
    pub(super) fn filtered(&self) -> bool {
        self.filtered || self.every_choice(Ending::Refused)
    }

    /// Whether choices ended, and all of them in this way.
    pub(super) fn every_choice(&self, ending: Ending) -> bool {
        !self.choices.is_empty() && self.choices.values().all(|known| *known == Some(ending))
    }

    /// Whether the answer, or one of its choices, ended at the limit on its tokens.
    pub(super) fn is_at_limit(&self) -> bool {
        self.at_limit || self.choices.values().any(|ending| *ending == Some(Ending::AtLimit))
    }

    /// Whether the answer is whole, though the stream has no end of its own: each choice that came has ended. Some APIs send no
    /// other end.
    pub(super) fn has_all(&self) -> bool {
        self.ended || (!self.choices.is_empty() && self.choices.values().all(Option::is_some))
    }

    fn take(&mut self, event: &Event) {
        self.is_empty &= event.done || event.empty || event.kind() == "ping";
        self.ended |= event.ends();
        self.garbled |= event.garbled;
        self.must_end |= event.must_be_followed_by_an_end();
        if let Some(error) = event.error() {
            if !self.failed {
                self.error = error;
            }
            self.failed = true;
            self.ended = true;
        }
        let choices = ["choices", "candidates"].into_iter().filter_map(|key| event.value[key].as_array()).flatten();
        for choice in choices {
            let has_ended = ["finish_reason", "finishReason"].iter().any(|key| choice[*key].is_string());
            let known = self.choices.entry(choice["index"].as_u64().unwrap_or(0)).or_default();
            *known = if has_ended { Some(Ending::of(choice)) } else { *known };
        }
        self.filtered |= event.value["response"]["incomplete_details"]["reason"] == "content_filter"
            || event.value["promptFeedback"]["blockReason"].is_string()
            || event.value["delta"]["stop_reason"] == "refusal";
        self.at_limit |= event.value["delta"]["stop_reason"] == OF_MESSAGES
            || event.value["response"]["incomplete_details"]["reason"] == OF_RESPONSES;
        for usage in PLACES.iter().filter_map(|place| Reported::in_place(place, |at| event.value.pointer(at))) {
            self.usage = Some(self.usage.map_or(usage, |before| before.updated(usage)));
        }
        // Moonshot's tell their own.
        for choice in event.value["choices"].as_array().into_iter().flatten() {
            if let Some(usage) = Reported::read(&choice["usage"]) {
                self.of_choices.insert(choice["index"].as_u64().unwrap_or(0), usage);
            }
        }
    }

    /// The tokens that the events reported.
    pub(super) fn usage(&self) -> Option<Reported> {
        let of_choices = || self.of_choices.values().copied().reduce(Reported::beside_choice);
        self.usage.or_else(of_choices).filter(Reported::tells)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reported::CachePercent;
    use super::*;
    use proptest::proptest;

    fn read(body: &[u8]) -> Stream {
        read_any(body, "text/event-stream").unwrap_or_default()
    }

    fn total(stream: &Stream) -> Option<u64> {
        stream.usage().map(|usage| usage.counted(false, CachePercent::default()).total())
    }

    #[test]
    fn comments_and_pings_are_no_content_and_done_ends() {
        let stream = read(b": keep-alive\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\ndata: [DONE]");
        assert!(stream.ended && !stream.must_end && stream.error.is_empty() && stream.usage().is_none());
    }

    #[test]
    fn what_an_event_of_a_log_is_called_is_no_error_of_the_stream() {
        let stream = read(b"data: {\"event_type\":\"error\",\"host\":\"a\"}\n\n");
        assert!(!stream.failed && stream.error.is_empty());
    }

    #[test]
    fn a_cut_stream_has_no_end() {
        let chunk =
            "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\"[DONE]\"}}]}\r\n\r\n";
        let stream = read(format!("{chunk}data: {{\"object\":\"chat.com").as_bytes());
        assert!(stream.must_end && !stream.ended);
        assert!(read(format!("{chunk}data: [DONE]\r\n\r\n").as_bytes()).ended);
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_is_no_part_of_it() {
        let body = "\u{feff}data: {\"error\":{\"code\":\"server_error\"}}\n\ndata: \u{feff}[DONE]\n\n";
        for content_type in ["text/event-stream", ""] {
            let stream = read_any(body.as_bytes(), content_type).expect("a stream");
            assert_eq!(stream.error["error"]["code"], "server_error", "{content_type:?}");
        }
        assert!(!is_stream("\u{feff}{}".as_bytes(), "text/event-stream"), "JSON");
        assert!(read("\u{feff}\u{feff}event: error\n\n".as_bytes()).error.is_empty(), "one of them is stripped");
    }

    #[test]
    fn events_begin_behind_a_blank_line_however_lines_end() {
        let ends = [["\n", "\n"], ["\r\n", "\r\n"], ["\r", "\r"], ["\n", "\r\n"], ["\r\n", "\n"], ["\r\n", "\r"]];
        for [line, blank] in ends {
            let (first, second) = (format!("data: 1{line}id: 1{line}{blank}"), format!("data: 2{line}{blank}"));
            let body = format!("{first}{second}");
            let of = |at| event_from("text/event-stream", body.as_bytes(), at);
            assert_eq!(of(0), 0);
            for at in 1..=first.len() {
                assert_eq!(of(at), first.len(), "{body:?} from {at}");
            }
            for at in first.len() + 1..=body.len() {
                assert_eq!(of(at), body.len(), "{body:?} from {at}");
            }
        }
    }

    #[test]
    fn anthropic_reports_input_first_and_output_last() {
        let stream = read(
            b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
              event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n\
              event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        let usage = stream.usage().expect("usage").counted(false, CachePercent::default());
        assert_eq!((usage.input_tokens, usage.output_tokens, stream.ended), (25, 15, true));
    }

    #[test]
    fn openai_reports_usage_in_the_last_chunk() {
        let stream = read(
            b"data: {\"object\":\"chat.completion.chunk\",\"usage\":null,\"choices\":[]}\n\n\
              data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n\
              data: [DONE]\n\n",
        );
        assert_eq!(total(&stream), Some(11));
        let stream = read(
            b"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":3}}}\n\n",
        );
        assert_eq!((total(&stream), stream.ended), (Some(7), true));
    }

    #[test]
    fn errors_in_every_dialect_look_alike() {
        for (body, place, expected) in [
            (
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
                "type",
                "overloaded_error",
            ),
            ("data: {\"error\":{\"code\":\"server_error\",\"message\":\"m\"}}\n\n", "code", "server_error"),
            (
                "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\"}\n\n",
                "code",
                "rate_limit_exceeded",
            ),
            (
                "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"slow_down\"}}}\n\n",
                "code",
                "slow_down",
            ),
        ] {
            assert_eq!(read(body.as_bytes()).error["error"][place], *expected, "{body}");
        }
        assert!(!read(b"event: error\ndata: oops\n\n").error.is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(body: Vec<u8>, lines in "((event|data): ?[\\[{\"errortyp:,}\\]]{0,20}\r?\n){0,6}") {
            read(&body);
            read(lines.as_bytes());
        }
    }
}
