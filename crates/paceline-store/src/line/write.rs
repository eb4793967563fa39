//! Writes an answer as a result line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::{CustomId, LineForm, ResultBody, ResultLine};
use crate::item::End;

/// The line of `head` for `answer`, with its line end.
pub(super) fn line(head: &ResultLine<'_>, end: End, answer: &ResultBody<'_>) -> Vec<u8> {
    match head.form {
        LineForm::OpenAi => openai(head, None, answer),
        LineForm::Anthropic => anthropic(head, end, answer),
    }
}

/// The line of an answer that the user's expectation refused.
pub(super) fn refused_answer(head: &ResultLine<'_>, answer: &ResultBody<'_>) -> Vec<u8> {
    openai(head, Some(head.call), answer)
}

fn openai(head: &ResultLine<'_>, attempt: Option<u32>, answer: &ResultBody<'_>) -> Vec<u8> {
    let ResultLine { custom_id, metadata, .. } = *head;
    let error = match *answer {
        ResultBody::Response { status, request_id, headers, body } => {
            let body = raw_body(body);
            let response = OpenAiResponse { status_code: status, request_id, headers, body: &body };
            let id = id(head, &body, [headers, None]);
            return finish(&OpenAi { id: &id, custom_id, attempt, response: Some(response), error: None, metadata });
        }
        ResultBody::Unusable { status, request_id, headers, body, code, message } => {
            let (error, body) = (raw(&OpenAiError { code, message, line: None }), raw_body(body));
            let response = Some(OpenAiResponse { status_code: status, request_id, headers, body: &body });
            let id = id(head, &body, [headers, Some(&error)]);
            return finish(&OpenAi { id: &id, custom_id, attempt, response, error: Some(&error), metadata });
        }
        ResultBody::Fallback { code, message, output } => {
            let (error, output) = (raw(&OpenAiError { code, message, line: None }), raw_body(output));
            let id = id(head, &output, [Some(&error), None]);
            let line = OpenAi { id: &id, custom_id, attempt, response: None, error: Some(&error), metadata };
            return finish(&FellBack { line, source: FALLBACK, output: &output });
        }
        ResultBody::Error { code, message } => OpenAiError { code, message, line: None },
        ResultBody::Refused { code, message, line } => OpenAiError { code, message, line: Some(line) },
    };
    let error = raw(&error);
    let id = id(head, &error, [None, None]);
    finish(&OpenAi { id: &id, custom_id, attempt, response: None, error: Some(&error), metadata })
}

/// The source of a fallback's result.
pub(super) const FALLBACK: &str = "fallback";

/// A line without an answer, and what a fallback made of its item.
#[derive(Serialize)]
struct FellBack<'a, Line> {
    #[serde(flatten)]
    line: Line,
    source: &'a str,
    output: &'a RawValue,
}

#[derive(Serialize)]
struct OpenAi<'a> {
    id: &'a str,
    custom_id: &'a CustomId,
    /// The number of the call, where the answer ends nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    response: Option<OpenAiResponse<'a>>,
    error: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct OpenAiResponse<'a> {
    status_code: u16,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a RawValue>,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

fn anthropic(head: &ResultLine<'_>, end: End, answer: &ResultBody<'_>) -> Vec<u8> {
    let ResultLine { custom_id, metadata, .. } = *head;
    let (kind, text) = match answer {
        ResultBody::Response { body, .. } if end == End::Succeeded => ("succeeded", raw_body(body)),
        ResultBody::Response { status, request_id, body, .. } => {
            ("errored", refusal(*status, request_id, raw_body(body), None))
        }
        ResultBody::Unusable { status, request_id, body, code, message, .. } => {
            ("errored", refusal(*status, request_id, raw_body(body), Some((code, message))))
        }
        ResultBody::Fallback { code, message, output } => {
            let (error, output) = (no_response(code, message), raw_body(output));
            let id = id(head, &output, [Some(&error), None]);
            let result = AnthropicResult { kind: "errored", message: None, error: Some(&error) };
            let line = Anthropic { id: &id, custom_id, result, metadata };
            return finish(&FellBack { line, source: FALLBACK, output: &output });
        }
        ResultBody::Error { code, message } => ("errored", no_response(code, message)),
        ResultBody::Refused { code, message, line } => {
            let kind = "invalid_request_error";
            let error = AnthropicError { kind, code: Some(code), message, line: Some(*line) };
            ("errored", raw(&AnthropicErrorResponse { kind: "error", error, request_id: None, body: None }))
        }
    };
    let id = id(head, &text, [None, None]);
    let (message, error) = if kind == "succeeded" { (Some(&*text), None) } else { (None, Some(&*text)) };
    let result = AnthropicResult { kind, message, error };
    finish(&Anthropic { id: &id, custom_id, result, metadata })
}

/// A failure without a response.
fn no_response(code: &str, message: &str) -> Box<RawValue> {
    let error = AnthropicError { kind: "api_error", code: Some(code), message, line: None };
    raw(&AnthropicErrorResponse { kind: "error", error, request_id: None, body: None })
}

/// Anthropic's own error as it is; anything else, a proxy's page say, inside such an error. `why`: the code and the message of
/// what is wrong with it, where the status does not say that.
fn refusal(status: u16, request_id: &str, body: Box<RawValue>, why: Option<(&str, &str)>) -> Box<RawValue> {
    let own = serde_json::from_str::<OwnError>(body.get());
    if own.is_ok_and(|own| own.kind == "error" && own.error.contains_key("type")) {
        return body;
    }
    let by_status = format!("status {status}");
    let (code, message) = why.map_or((None, &*by_status), |(code, message)| (Some(code), message));
    let error = AnthropicError { kind: error_type(status), code, message, line: None };
    let request_id = Some(request_id).filter(|id| !id.is_empty());
    raw(&AnthropicErrorResponse { kind: "error", error, request_id, body: Some(&body) })
}

/// The members that mark an error of Anthropic's.
#[derive(Deserialize)]
struct OwnError {
    #[serde(rename = "type")]
    kind: String,
    error: BTreeMap<String, IgnoredAny>,
}

/// The type that Anthropic's own errors have with such a status.
const fn error_type(status: u16) -> &'static str {
    match status {
        400 | 413 => "invalid_request_error",
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        _ => "api_error",
    }
}

#[derive(Serialize)]
struct Anthropic<'a> {
    id: &'a str,
    custom_id: &'a CustomId,
    result: AnthropicResult<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct AnthropicResult<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct AnthropicErrorResponse<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
    request_id: Option<&'a str>,
    /// What came, where it is no error of Anthropic's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Our own code, where there was no response, or its status does not say what is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

/// The `id` of a line, with its checksum.
fn id(head: &ResultLine<'_>, proven: &RawValue, beside: [Option<&RawValue>; 2]) -> String {
    format!("pl-{}-{}-{:08x}", head.ordinal, head.call, checksum(proven, beside, head.metadata))
}

/// The checksum of what a line holds; `beside`: what stands beside the proven part, headers first.
pub(super) fn checksum(proven: &RawValue, beside: [Option<&RawValue>; 2], metadata: Option<&RawValue>) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    let [first, second] = beside;
    for part in [Some(proven), first, second, metadata].into_iter().flatten() {
        crc.update(part.get().as_bytes());
    }
    crc.finalize()
}

fn finish(shape: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(shape).expect("strings, numbers and raw JSON are always JSON");
    line.push(b'\n');
    line
}

fn raw(shape: &impl Serialize) -> Box<RawValue> {
    to_raw_value(shape).expect("strings and raw JSON are always JSON")
}

/// The body as one line of JSON.
fn raw_body(body: &[u8]) -> Box<RawValue> {
    let Ok(text) = std::str::from_utf8(body) else { return binary(body) };
    // A byte order mark before JSON is no part of it.
    match serde_json::from_str::<&RawValue>(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(json) if is_deep(json.get()) => raw(&text),
        Ok(json) => {
            let compact = compact(json.get());
            match text_alone(&compact).map_or(compact, Cow::Owned) {
                Cow::Borrowed(_) => json.to_owned(),
                Cow::Owned(json) => RawValue::from_string(json).expect("JSON stays JSON with these changes"),
            }
        }
        Err(_) => raw(&text),
    }
}

/// What is no text, an audio file say, was paid for all the same: `{"base64": "..."}`.
fn binary(body: &[u8]) -> Box<RawValue> {
    let data = base64::engine::general_purpose::STANDARD.encode(body);
    raw(&BTreeMap::from([("base64", data)]))
}

/// Valid JSON without the space between its tokens; its strings, numbers and order stay as they are.
fn compact(json: &str) -> Cow<'_, str> {
    let (mut kept, mut from) = (String::new(), 0);
    for (at, _) in outside_strings(json).filter(|(_, byte)| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
        if from == 0 {
            kept.reserve(json.len());
        }
        kept.push_str(&json[from..at]);
        from = at + 1;
    }
    if from == 0 {
        return Cow::Borrowed(json);
    }
    kept.push_str(&json[from..]);
    Cow::Owned(kept)
}

/// Valid JSON in which each half of a pair of surrogates is a `\ufffd`, for readers that take texts alone, such as jq; none where
/// it has no such half.
fn text_alone(json: &str) -> Option<String> {
    let unit = |at: usize| {
        let escape = json.get(at..at + 6).filter(|escape| escape.starts_with("\\u"))?;
        u16::from_str_radix(&escape[2..], 16).ok()
    };
    let (mut whole, mut done, mut at) = (String::new(), 0, 0);
    while let Some(escape) = json[at..].find('\\').map(|found| at + found) {
        at = escape + 2;
        let Some(first) = unit(escape) else { continue };
        at = escape + 6;
        match first {
            0xD800..0xDC00 if unit(at).is_some_and(|second| (0xDC00..0xE000).contains(&second)) => at += 6,
            0xD800..0xE000 => {
                whole += &json[done..escape];
                whole += "\\ufffd";
                done = at;
            }
            _ => {}
        }
    }
    (done > 0).then(|| whole + &json[done..])
}

/// So deep a body may be nested: some programs read a line of 128 levels at the most, of which a few are around it.
const DEEPEST: usize = 100;

/// Whether valid JSON is nested deeper than some programs read it.
fn is_deep(json: &str) -> bool {
    if memchr::memchr2_iter(b'[', b'{', json.as_bytes()).nth(DEEPEST).is_none() {
        return false;
    }
    let mut depth = 0_usize;
    outside_strings(json).any(|(_, byte)| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        depth > DEEPEST
    })
}

/// The bytes of valid JSON that are in no string, each with its place.
fn outside_strings(json: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    let (mut in_string, mut escaped) = (false, false);
    json.bytes().enumerate().filter(move |(_, byte)| {
        let is_outside = !in_string;
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ => {}
        }
        is_outside && !in_string
    })
}
