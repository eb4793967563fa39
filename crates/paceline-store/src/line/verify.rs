//! Reads result lines back and verifies their checksums.

use crate::state::State;
use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::CustomId;
use super::write::{FALLBACK, checksum};

/// So every result line begins.
pub(crate) const BEGINNING: &[u8] = b"{\"id\":\"pl-";

/// A whole result line whose checksum is right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerifiedLine {
    pub(crate) ordinal: u64,
    pub(crate) call: u32,
    /// The hash of its `custom_id`, which must be the item's.
    pub(crate) key: [u8; 16],
    pub(crate) status: Option<u16>,
    /// It holds no answer but the result of a fallback.
    pub(crate) fell_back: bool,
    /// The state that a line in the errors file stands for.
    pub(crate) unsuccessful: State,
    pub(crate) code: Option<String>,
    pub(crate) error_type: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
}

/// Reads a line, which must end in a line end; none unless it is whole and its checksum is right.
pub(crate) fn verify_line(line: &[u8]) -> Option<VerifiedLine> {
    let line = line.strip_suffix(b"\n")?;
    let read: ReadLine<'_> = serde_json::from_slice(line).ok()?;
    let (ordinal, call, crc) = parse_id(&read.id)?;
    let (proven, succeeded) = read.proven()?;
    let fell_back = read.source.as_deref() == Some(FALLBACK);
    let of_line = match fell_back {
        // A result that is null is none to serde.
        true => checksum(read.output.unwrap_or(RawValue::NULL), [Some(proven), None], read.metadata),
        false => checksum(proven, [read.headers(), read.error_beside()], read.metadata),
    };
    if of_line != crc {
        return None;
    }
    let details = match succeeded {
        true => serde_json::from_str::<ReadBody>(proven.get()).unwrap_or_default(),
        false => ReadBody { error: read_error(proven), usage: None },
    };
    let error = read.error_beside().and_then(read_error).or(details.error).unwrap_or_default();
    let usage = details.usage.unwrap_or_default();
    let code = error.code.and_then(text);
    let unsuccessful = match (read.response.is_some(), code.as_deref()) {
        (false, Some("skipped")) => State::Skipped,
        (false, Some("cancelled")) => State::Cancelled,
        _ => State::Failed,
    };
    Some(VerifiedLine {
        ordinal,
        call,
        key: read.custom_id.key(),
        status: read.response.map(|response| response.status_code),
        fell_back,
        unsuccessful,
        code,
        error_type: error.kind.and_then(text),
        message: error.message.and_then(text),
        tokens_in: usage.all_in(),
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

/// A line in either form.
#[derive(Deserialize)]
struct ReadLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    custom_id: CustomId,
    #[serde(borrow)]
    response: Option<ReadResponse<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<ReadResult<'a>>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

impl<'a> ReadLine<'a> {
    /// What the checksum is of, and whether it is the body of an answer; otherwise it is an error.
    fn proven(&self) -> Option<(&'a RawValue, bool)> {
        match (&self.result, &self.response) {
            (Some(ReadResult { message: Some(message), error: None }), None) => Some((message, true)),
            (Some(result), None) => Some((result.error?, false)),
            (None, Some(response)) => Some((response.body, true)),
            (None, None) => Some((self.error?, false)),
            (Some(_), Some(_)) => None,
        }
    }

    /// Why the answer is no success, where its status does not say so.
    fn error_beside(&self) -> Option<&'a RawValue> {
        self.error.filter(|_| self.response.is_some())
    }

    /// What the checksum is of besides, where the line has it.
    fn headers(&self) -> Option<&'a RawValue> {
        self.response.as_ref()?.headers
    }
}

#[derive(Deserialize)]
struct ReadResult<'a> {
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReadResponse<'a> {
    status_code: u16,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
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

/// The error of a line without a body: OpenAI's form has it plain, Anthropic's as the `error` of an error response.
fn read_error(proven: &RawValue) -> Option<ReadError> {
    let response = serde_json::from_str::<ReadBody>(proven.get()).unwrap_or_default();
    response.error.or_else(|| serde_json::from_str(proven.get()).ok())
}

#[derive(Default, Deserialize)]
struct ReadUsage {
    #[serde(alias = "prompt_tokens", alias = "input_tokens")]
    tokens_in: Option<u64>,
    #[serde(alias = "completion_tokens", alias = "output_tokens")]
    tokens_out: Option<u64>,
    /// What Anthropic reports beside the tokens of a prompt.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

impl ReadUsage {
    fn all_in(&self) -> u64 {
        let parts = [self.tokens_in, self.cache_read_input_tokens, self.cache_creation_input_tokens];
        parts.into_iter().flatten().fold(0, u64::saturating_add)
    }
}
