//! The request of a line.

use std::borrow::Cow;
use std::fmt;

use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use paceline_config::CallNames;
use paceline_providers::billed_model;
use paceline_store::{CustomId, End, LineForm, ResultBody, ResultLine};
use serde_json::value::RawValue;

use crate::lines::address::Addresses;
use crate::lines::headers;
use crate::lines::members::{self, Members};

/// The longest message about a line, in characters.
const LONGEST_MESSAGE: usize = 500;

/// One request, as its line has it.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// The only link from a result to its request: text or a number.
    pub(crate) custom_id: CustomId,
    /// What the result line repeats beside the id.
    pub(crate) metadata: Option<&'a RawValue>,
    /// POST unless the line names another.
    pub(crate) method: Method,
    /// A path relative to the upstream's address: `/v1/chat/completions`.
    pub(crate) url: Cow<'a, str>,
    /// Those that the line sets, none of them the key's.
    pub(crate) headers: HeaderMap,
    /// What is sent, byte for byte as in the file; empty for a call without a body.
    pub(crate) body: Cow<'a, str>,
    /// The part of the file that must not change while the job runs: the body, or the line where there is none.
    pub(crate) hashed: &'a [u8],
    /// The model that the body names.
    pub(crate) model: Option<String>,
    /// `metadata.label`, which a tier may match.
    pub(crate) label: Option<String>,
    /// A key of the line that no part of the call is made of.
    pub(crate) stray: Option<String>,
}

/// The part of the request that its result line repeats.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) custom_id: CustomId,
    pub(crate) metadata: Option<Box<RawValue>>,
    pub(crate) form: LineForm,
}

impl Echo {
    /// The line of an item that ends with its send number `call`.
    pub(crate) fn line(&self, ordinal: u64, call: u32, end: End, answer: &ResultBody<'_>) -> Vec<u8> {
        let Self { custom_id, metadata, form } = self;
        ResultLine { ordinal, call, custom_id, metadata: metadata.as_deref(), form: *form }.encode(end, answer)
    }

    /// The line of an answer to send number `call` that ends nothing.
    pub(crate) fn refused_answer(&self, ordinal: u64, call: u32, answer: &ResultBody<'_>) -> Vec<u8> {
        let Self { custom_id, metadata, form } = self;
        ResultLine { ordinal, call, custom_id, metadata: metadata.as_deref(), form: *form }.encode_refused(answer)
    }
}

/// A line that cannot be sent. The codes are those of the hosted Batch services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    /// Counted from 1.
    pub(crate) line: u64,
    /// `invalid_json_line`, `duplicate_custom_id`, `invalid_url`, ...
    pub(crate) code: &'static str,
    /// The field, where one is to blame.
    pub(crate) param: Option<&'static str>,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what())
    }
}

impl LineError {
    /// The code and the reason.
    pub(crate) fn what(&self) -> String {
        format!("{}: {}", self.code, self.reason())
    }

    /// What is wrong, without saying where.
    pub(crate) fn reason(&self) -> String {
        let Self { param, message, .. } = self;
        param.map_or_else(|| message.clone(), |param| format!("{param}: {message}"))
    }
}

impl std::error::Error for LineError {}

/// What is wrong with a line, whichever it is.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(code: &'static str, param: Option<&'static str>, message: impl Into<String>) -> Self {
        // It quotes what the line holds, and that can be megabytes.
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
            message.truncate(end);
            message.push('\u{2026}');
        }
        Self { code, param, message }
    }

    pub(crate) fn at(self, line: u64) -> LineError {
        let Self { code, param, message } = self;
        LineError { line, code, param, message }
    }
}

/// The id of the request in a line, whatever its form. A line without one, or one that cannot be read, is known by its
/// number.
pub(crate) fn custom_id(bytes: &[u8], number: u64) -> CustomId {
    readable_id(bytes).unwrap_or_else(|| numbered(number))
}

/// The id that a line gives, however wrong the rest of it is.
pub(crate) fn readable_id(bytes: &[u8]) -> Option<CustomId> {
    let members = Members::read(std::str::from_utf8(bytes).ok()?).ok()?;
    given_id(&members).ok().flatten()
}

/// The id of a line that has none of its own: the same at each run, because the input is the same.
pub(crate) fn numbered(number: u64) -> CustomId {
    CustomId::of_line(number)
}

/// The text of a line.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|error| {
        let message = format!(
            "not UTF-8 at column {}; save the file as UTF-8 (iconv -f latin1 -t utf-8)",
            error.valid_up_to() + 1
        );
        Fault::new("invalid_json_line", None, message)
    })
}

const NO_OBJECT: &str = "not a request object: expected one JSON object a line";

/// The forms of a line, and what a shell user does about another.
pub(crate) const FLAGS_FOR_OTHERS: &str = r#", {"custom_id":"1","url":"/v1/chat/completions","body":{...}}, {"custom_id":"1","params":{...}} or a body alone, {"model":"m",...}; for a table use --format csv; for a list of web addresses --format text, of prompts --format text with --model; jq -c . FILE puts each object on one line, jq -Rc '{model:"m",messages:[{role:"user",content:.}]}' FILE makes a body of each line"#;

fn is_web_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.trim_ascii_start().starts_with(scheme))
}

/// The members of the object that a line has to be.
pub(crate) fn members(text: &str) -> Result<Members<'_>, Fault> {
    let invalid = |message: String| Fault::new("invalid_json_line", None, message);
    let message = match text.trim_ascii_start().as_bytes().first() {
        Some(b'{') => return Members::read(text).map_err(|error| invalid(error.to_string())),
        Some(b'[') => "an array: expected one request object a line (jq -c '.[]' makes them of an array)",
        _ if is_web_address(text) => "a web address, where a JSON object was expected: add --format text",
        _ => return Err(invalid(format!("{NO_OBJECT}{FLAGS_FOR_OTHERS}"))),
    };
    Err(invalid(message.to_owned()))
}

/// The value of `custom_id`; none when it is missing or empty.
pub(crate) fn given_id(members: &Members<'_>) -> Result<Option<CustomId>, Fault> {
    let Some(raw) = members.get("custom_id") else { return Ok(None) };
    if let Some(text) = members::text(raw) {
        return Ok(Some(CustomId::Text(text.into_owned())).filter(|_| raw.get() != "\"\""));
    }
    let number = serde_json::from_str::<serde_json::Number>(raw.get()).ok().filter(|it| it.is_i64() || it.is_u64());
    let message = "expected a string or an integer of at most 64 bits";
    number
        .map(|number| Some(CustomId::Number(number)))
        .ok_or_else(|| Fault::new("invalid_custom_id", Some("custom_id"), message))
}

/// The keys of a line of OpenAI's Batch form.
const KEYS: [&str; 6] = ["custom_id", "method", "url", "headers", "body", "metadata"];

/// Lines of OpenAI's Batch form, besides the `custom_id`: `method`, `url`, `headers`, `body` and `metadata`.
///
/// # Errors
/// The first field that is wrong.
pub(crate) fn batch<'a>(
    custom_id: CustomId,
    text: &'a str,
    members: &Members<'a>,
    addresses: &Addresses,
    objects: bool,
) -> Result<Line<'a>, Fault> {
    let method = method(members)?;
    let url = match members.get("url") {
        Some(url) => members::text(url).ok_or_else(|| Fault::new("invalid_url", Some("url"), "expected a string"))?,
        None => Cow::Borrowed(""),
    };
    let url = addresses.of_line(url).map_err(|message| Fault::new("invalid_url", Some("url"), message))?;
    let headers = members.get("headers").map_or_else(|| Ok(HeaderMap::new()), headers::read);
    let headers = headers.map_err(|message| Fault::new("invalid_headers", Some("headers"), message))?;
    let json = members.raw("body").map_or("", RawValue::get);
    let body = body(&method, json, &headers, objects)?;
    let model = model(json, "body")?;
    let metadata = members.get("metadata");
    let label = metadata.and_then(label);
    let hashed = if body.is_empty() { text } else { json }.as_bytes();
    let stray = members.iter().map(|(key, _)| key).find(|key| !KEYS.contains(key)).map(str::to_owned);
    Ok(Line { custom_id, metadata, method, url, headers, body, hashed, model, label, stray })
}

/// The id of a line in a form where each has its own.
pub(crate) fn required_id(members: &Members<'_>) -> Result<CustomId, Fault> {
    let message = match members.raw("id") {
        Some(_) => "missing: rename \"id\" to \"custom_id\"",
        None => "missing or empty: every line needs its own custom_id",
    };
    given_id(members)?.ok_or_else(|| Fault::new("missing_custom_id", Some("custom_id"), message))
}

fn method(members: &Members<'_>) -> Result<Method, Fault> {
    const KNOWN: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let Some(raw) = members.get("method") else { return Ok(Method::POST) };
    let name = members::text(raw);
    let known =
        KNOWN.into_iter().find(|known| name.as_deref().is_some_and(|name| known.as_str().eq_ignore_ascii_case(name)));
    known.ok_or_else(|| {
        let message = format!("{}: expected GET, HEAD, POST, PUT, PATCH or DELETE", raw.get());
        Fault::new("invalid_method", Some("method"), message)
    })
}

/// What is sent for the JSON text in `body`; empty for nothing. `objects`: the API takes nothing but objects.
fn body<'a>(method: &Method, json: &'a str, headers: &HeaderMap, objects: bool) -> Result<Cow<'a, str>, Fault> {
    let wrong = |message: String| Err(Fault::new("invalid_body", Some("body"), message));
    let absent = json.is_empty() || json == "null";
    match *method {
        Method::GET | Method::HEAD | Method::DELETE if absent => Ok(Cow::Borrowed("")),
        Method::GET | Method::HEAD => wrong(format!("a {method} request has no body: put its parameters into url")),
        _ if json.starts_with('{') => Ok(Cow::Borrowed(json)),
        _ if objects => {
            wrong("missing or not an object: expected the request body, as the endpoint takes it".to_owned())
        }
        _ if json.is_empty() => {
            wrong(format!("missing: a {method} request needs JSON, or null for none; for a GET set method to GET"))
        }
        _ if absent => Ok(Cow::Borrowed("")),
        _ if headers.get(CONTENT_TYPE).is_some_and(|kind| !is_json(kind)) => {
            let plain = serde_json::from_str::<String>(json);
            plain.map_or_else(
                |_| wrong("expected a string, because its content-type is not JSON".to_owned()),
                |it| Ok(it.into()),
            )
        }
        _ => Ok(Cow::Borrowed(json)),
    }
}

fn is_json(content_type: &HeaderValue) -> bool {
    let kind = content_type.as_bytes().to_ascii_lowercase();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    kind.ends_with(b"/json") || kind.ends_with(b"+json")
}

/// The model that a body names, where it is an object.
pub(crate) fn model(body: &str, param: &'static str) -> Result<Option<String>, Fault> {
    if !body.starts_with('{') {
        return Ok(None);
    }
    let members =
        Members::read(body).map_err(|error| Fault::new("invalid_json_line", Some(param), error.to_string()))?;
    Ok(members.text("model").map(Cow::into_owned))
}

impl Line<'_> {
    /// The model that its call is billed as: that of its body, or of its path.
    pub(crate) fn billed_model(&self) -> Option<Cow<'_, str>> {
        billed_model(self.model.as_deref(), &self.url)
    }

    /// What its scope follows from. Its group is its label.
    pub(crate) fn names(&self) -> CallNames<'_> {
        let (model, label) = (self.model.as_deref(), self.label.as_deref());
        CallNames { path: &self.url, model, label, group: label, body: self.body.as_bytes() }
    }
}

/// The label in a line's metadata.
pub(crate) fn label(metadata: &RawValue) -> Option<String> {
    Members::read(metadata.get()).ok()?.text("label").map(Cow::into_owned)
}
