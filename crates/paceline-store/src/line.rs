//! Lines of results and errors in the shape of OpenAI's Batch API, each with a proof that it is whole.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::item::State;
use crate::schema::hash;

/// The id that the user gave a request: text, or a number, echoed as it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CustomId {
    /// Text, the usual form.
    Text(String),
    /// A number, which some writers use.
    Number(serde_json::Number),
}

impl CustomId {
    /// What tells ids apart. `7` and `"7"` are one id: many readers of results could not tell them apart either.
    pub(crate) fn key(&self) -> [u8; 16] {
        match self {
            Self::Text(text) => hash(text.as_bytes()),
            Self::Number(number) => hash(number.to_string().as_bytes()),
        }
    }
}

impl From<&str> for CustomId {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for CustomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.pad(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// What a line says.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// An HTTP response, whatever its status: an error of the provider stands in its body.
    Response {
        /// The status.
        status: u16,
        /// The provider's id of the call, empty if it gave none.
        request_id: &'a str,
        /// The body as it came. JSON keeps its numbers and order, without the space between; anything else becomes a
        /// JSON string.
        body: &'a [u8],
    },
    /// A failure without a response. The codes `skipped` and `cancelled` mean those ends.
    Error {
        /// One word.
        code: &'a str,
        /// What happened.
        message: &'a str,
    },
}

/// The line of an item, with its line end. `call` is the number of the send that it answers, from 1, all kinds counted.
///
/// Its `id` is `pl-<ordinal>-<call>-<crc32>`, the checksum being that of the body's bytes in this line, or of those of
/// the error where there is no response.
pub fn encode_line(ordinal: u64, call: u32, custom_id: &CustomId, answer: &Answer<'_>) -> Vec<u8> {
    let (response, error) = match answer {
        Answer::Response { status, request_id, body } => {
            let response = ResponseShape { status_code: *status, request_id, body: &raw_body(body) };
            return encode(ordinal, call, custom_id, response.body.get(), Some(&response), None);
        }
        Answer::Error { code, message } => (None, to_raw_value(&ErrorShape { code, message })),
    };
    let error = error.expect("two strings are always JSON");
    encode(ordinal, call, custom_id, error.get(), response, Some(&error))
}

fn encode(
    ordinal: u64,
    call: u32,
    custom_id: &CustomId,
    proven: &str,
    response: Option<&ResponseShape<'_>>,
    error: Option<&RawValue>,
) -> Vec<u8> {
    let id = format!("pl-{ordinal}-{call}-{:08x}", crc32fast::hash(proven.as_bytes()));
    let shape = LineShape { id: &id, custom_id, response, error };
    let mut line = serde_json::to_vec(&shape).expect("strings, numbers and raw JSON are always JSON");
    line.push(b'\n');
    line
}

#[derive(Serialize)]
struct LineShape<'a> {
    id: &'a str,
    custom_id: &'a CustomId,
    response: Option<&'a ResponseShape<'a>>,
    error: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct ResponseShape<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct ErrorShape<'a> {
    code: &'a str,
    message: &'a str,
}

/// The body as one line of JSON.
fn raw_body(body: &[u8]) -> Box<RawValue> {
    let Ok(text) = std::str::from_utf8(body) else { return binary(body) };
    match serde_json::from_str::<&RawValue>(text) {
        Ok(json) => RawValue::from_string(compact(json.get())).expect("JSON stays JSON without the space between"),
        Err(_) => to_raw_value(text).expect("a string is always JSON"),
    }
}

/// What is no text, an audio file say, was paid for all the same: `{"base64": "..."}`.
fn binary(body: &[u8]) -> Box<RawValue> {
    let data = base64::engine::general_purpose::STANDARD.encode(body);
    to_raw_value(&std::collections::BTreeMap::from([("base64", data)])).expect("a string is always JSON")
}

/// Valid JSON without the space between its tokens; its strings, numbers and order stay as they are.
fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keep = |character: &char| {
        let kept = in_string || !matches!(character, ' ' | '\t' | '\n' | '\r');
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        kept
    };
    json.chars().filter(keep).collect()
}

/// What a whole line proves about its item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) ordinal: u64,
    pub(crate) call: u32,
    /// The hash of its `custom_id`, which must be the item's.
    pub(crate) key: [u8; 16],
    pub(crate) status: Option<u16>,
    /// The end that a line among the errors stands for.
    pub(crate) unsuccessful: State,
    pub(crate) code: Option<String>,
    pub(crate) error_type: Option<String>,
    pub(crate) words: Option<String>,
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
}

/// Reads a line, which must end in a line end; none unless it is whole and its checksum holds.
pub(crate) fn prove(line: &[u8]) -> Option<Proof> {
    let line = line.strip_suffix(b"\n")?;
    let read: ReadLine<'_> = serde_json::from_slice(line).ok()?;
    let (ordinal, call, crc) = parse_id(&read.id)?;
    let proven = match (&read.response, read.error) {
        (Some(response), _) => response.body,
        (None, error) => error?,
    };
    if crc32fast::hash(proven.get().as_bytes()) != crc {
        return None;
    }
    let details = match &read.response {
        Some(_) => serde_json::from_str::<ReadBody>(proven.get()).unwrap_or_default(),
        None => ReadBody { error: serde_json::from_str(proven.get()).ok(), usage: None },
    };
    let error = details.error.unwrap_or_default();
    let usage = details.usage.unwrap_or_default();
    let code = error.code.and_then(text);
    let unsuccessful = match (&read.response, code.as_deref()) {
        (None, Some("skipped")) => State::Skipped,
        (None, Some("cancelled")) => State::Cancelled,
        _ => State::Failed,
    };
    Some(Proof {
        ordinal,
        call,
        key: read.custom_id.key(),
        status: read.response.map(|response| response.status_code),
        unsuccessful,
        code,
        error_type: error.kind.and_then(text),
        words: error.message.and_then(text),
        tokens_in: usage.tokens_in.unwrap_or(0),
        tokens_out: usage.tokens_out.unwrap_or(0),
    })
}

fn parse_id(id: &str) -> Option<(u64, u32, u32)> {
    let mut parts = id.strip_prefix("pl-")?.split('-');
    let ordinal = parts.next()?.parse().ok()?;
    let call = parts.next()?.parse().ok()?;
    let crc = parts.next().filter(|crc| crc.len() == 8)?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    parts.next().is_none().then_some((ordinal, call, crc))
}

/// Text as it is, a number as its digits, nothing else.
fn text(value: serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[derive(Deserialize)]
struct ReadLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    custom_id: CustomId,
    #[serde(borrow)]
    response: Option<ReadResponse<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReadResponse<'a> {
    status_code: u16,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// The parts of a body that most providers have alike.
#[derive(Default, Deserialize)]
struct ReadBody {
    error: Option<ReadError>,
    usage: Option<ReadUsage>,
}

#[derive(Default, Deserialize)]
struct ReadError {
    code: Option<serde_json::Value>,
    #[serde(rename = "type")]
    kind: Option<serde_json::Value>,
    message: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
struct ReadUsage {
    #[serde(alias = "prompt_tokens", alias = "input_tokens")]
    tokens_in: Option<u64>,
    #[serde(alias = "completion_tokens", alias = "output_tokens")]
    tokens_out: Option<u64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(body: &[u8]) -> String {
        let answer = Answer::Response { status: 200, request_id: "req_1", body };
        String::from_utf8(encode_line(7, 2, &"a\"b".into(), &answer)).unwrap()
    }

    #[test]
    fn shape_of_a_response() {
        let body = b"{\n  \"x\": 1.50,\r\n\t\"y\": \"two  \\\" words\"\n}\n";
        let crc = crc32fast::hash(br#"{"x":1.50,"y":"two  \" words"}"#);
        assert_eq!(
            line(body),
            format!(
                "{{\"id\":\"pl-7-2-{crc:08x}\",\"custom_id\":\"a\\\"b\",\"response\":{{\"status_code\":200,\
                 \"request_id\":\"req_1\",\"body\":{{\"x\":1.50,\"y\":\"two  \\\" words\"}}}},\"error\":null}}\n"
            )
        );
    }

    #[test]
    fn shape_of_a_failure_without_a_response() {
        let answer = Answer::Error { code: "timeout", message: "no answer\nwithin 600 s" };
        let line = encode_line(0, 8, &CustomId::Number(7.into()), &answer);
        let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(read["custom_id"], 7);
        assert!(read["response"].is_null());
        assert_eq!(read["error"]["code"], "timeout");
        let proof = prove(&line).unwrap();
        assert_eq!((proof.ordinal, proof.call, proof.unsuccessful), (0, 8, State::Failed));
        assert_eq!(proof.words.as_deref(), Some("no answer\nwithin 600 s"));
    }

    #[test]
    fn bodies_that_are_no_json_become_strings() {
        for (body, expected) in
            [(&b"<html>\n502</html>"[..], "<html>\n502</html>"), (b"", ""), (b"{\"torn\":", "{\"torn\":")]
        {
            let line = line(body);
            assert_eq!(line.matches('\n').count(), 1, "one line for {body:?}");
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(read["response"]["body"], expected);
            assert!(prove(line.as_bytes()).is_some());
        }
    }

    #[test]
    fn bodies_that_are_no_text_are_kept_whole() {
        let line = line(b"\xff\xfe\0bin");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["response"]["body"]["base64"], "//4AYmlu");
        assert!(prove(line.as_bytes()).is_some());
    }

    #[test]
    fn a_proof_carries_what_providers_say() {
        let answer = Answer::Response {
            status: 400,
            request_id: "",
            body: br#"{"error":{"code":null,"type":"invalid_request_error","message":"no"},"usage":{"input_tokens":3,"output_tokens":4}}"#,
        };
        let proof = prove(&encode_line(1, 1, &"a".into(), &answer)).unwrap();
        assert_eq!((proof.status, proof.code, proof.tokens_in, proof.tokens_out), (Some(400), None, 3, 4));
        assert_eq!(proof.error_type.as_deref(), Some("invalid_request_error"));
        assert_eq!(proof.key, CustomId::from("a").key());
    }

    proptest! {
        #[test]
        fn every_body_proves_itself_in_one_line(body in prop::collection::vec(any::<u8>(), 0..200), id in ".*") {
            let answer = Answer::Response { status: 200, request_id: "", body: &body };
            let line = encode_line(3, 1, &id.as_str().into(), &answer);
            prop_assert_eq!(memchr::memchr_iter(b'\n', &line).count(), 1);
            prop_assert_eq!(prove(&line).map(|proof| proof.key), Some(CustomId::from(id.as_str()).key()));
        }

        #[test]
        fn no_change_of_the_body_and_no_cut_goes_unnoticed(text in "[a-z ]{1,40}", at in any::<prop::sample::Index>()) {
            let whole = line(format!("\"{text}\"").as_bytes());
            let body = whole.find("\"body\":\"").unwrap() + "\"body\":\"".len();
            let whole = whole.into_bytes();
            prop_assert!(prove(&whole[..at.index(whole.len())]).is_none());
            let mut changed = whole.clone();
            changed[body + at.index(text.len())] ^= 1;
            prop_assert!(prove(&changed).is_none());
        }
    }
}
