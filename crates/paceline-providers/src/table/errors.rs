//! The shapes of errors: how a provider writes them, and which ones a mock sends when.

use std::time::Duration;

use http::HeaderName;
use serde::Deserialize;
use serde_json::Value;

use super::values::{HeaderFields, header_fields, header_name, one_header_name};

/// The shape of a provider's errors.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorShape {
    /// A JSON text in which `$message`, `$type`, `$code`, `$status` and the like stand for values.
    pub body: String,
    /// The same for errors without a code.
    pub plain_body: Option<String>,
    /// Default: `application/json`.
    pub content_type: Option<String>,
    /// Fields that every answer carries.
    #[serde(default, deserialize_with = "header_fields")]
    pub headers: HeaderFields,
    /// A field that carries the code.
    #[serde(default, deserialize_with = "header_name")]
    pub code_header: Option<HeaderName>,
    /// The field that names a request.
    #[serde(deserialize_with = "one_header_name")]
    pub request_id: HeaderName,
    /// The key under which the body names it too.
    pub id_in_body: Option<String>,
    /// The fields that carry the wait of a refusal: `retry-after`, `retry-after-ms`.
    pub wait: Vec<String>,
}

/// The errors of a mock. In their texts `$dimension`, `$short`, `$limit`, `$used`, `$requested`, `$size`, `$model`, `$wait`
/// and `$wait_s` stand for values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockErrors {
    /// A limit is used up.
    pub limit: MockError,
    /// The call is larger than a limit.
    pub too_large: MockError,
    /// Too many calls are in service.
    pub concurrency: MockError,
    /// The service is out of capacity.
    pub overloaded: MockError,
    /// A call that was admitted failed.
    pub fault: MockError,
    /// The call makes no sense.
    pub invalid: MockError,
    /// There is nothing at that path. Default: as `invalid`.
    pub not_found: Option<MockError>,
    /// The body is too long to be read. Default: as `invalid`.
    pub too_long: Option<MockError>,
    /// The value of `$figures` where figures may be shown.
    #[serde(default)]
    pub figures: String,
    /// Its value where they may not.
    #[serde(default)]
    pub no_figures: String,
    /// The value of `$hint` with a wait.
    #[serde(default)]
    pub hint: String,
    /// An entry of `error.details`, for figures.
    pub details: Option<String>,
    /// Another, for the wait.
    pub retry_details: Option<String>,
    /// The wait of a limit is sent as the reset in the headers alone.
    #[serde(default)]
    pub reset_wait: bool,
    /// Limits are sent in the IETF's fields.
    #[serde(default)]
    pub ietf: bool,
}

/// One error of a mock.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockError {
    /// The status; where there is none the mock knows it.
    pub status: Option<u16>,
    /// The code.
    pub code: Option<String>,
    /// The type.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// The message.
    pub message: Option<String>,
}

/// The fields of an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorFields<'a> {
    /// The status.
    pub status: u16,
    /// The code.
    pub code: Option<&'a str>,
    /// The type.
    pub error_type: Option<&'a str>,
    /// The message.
    pub message: Option<&'a str>,
    /// The wait in the body, if it has one.
    pub wait: Option<Duration>,
}

impl ErrorShape {
    /// An error in this shape.
    pub fn render(&self, fields: &ErrorFields<'_>) -> String {
        let ErrorFields { status, code, error_type, message, wait } = *fields;
        let shape = self.plain_body.as_ref().filter(|_| code.is_none()).unwrap_or(&self.body);
        let number = code.and_then(|code| code.parse::<u64>().ok());
        fill(
            shape,
            &[
                ("status", status.into()),
                ("code", code.into()),
                ("code_number", number.into()),
                ("type", error_type.into()),
                ("message", message.into()),
                ("wait_number", wait.map(|wait| wait.as_secs_f64()).into()),
            ],
        )
    }
}

/// A JSON text with its names replaced: a name that stands alone by the value, one inside a text by its text. An unknown
/// name is null; inside a text it is left out.
pub fn fill(shape: &str, values: &[(&str, Value)]) -> String {
    let mut filled = String::with_capacity(shape.len() + 200);
    let (mut rest, mut in_text) = (shape, false);
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        in_text ^= before.matches('"').count() % 2 == 1;
        filled += before;
        let end = after[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(after.len(), |end| end + 1);
        let value = values.iter().find(|(name, _)| *name == &after[1..end]).map(|(_, value)| value);
        let json = value.unwrap_or(&Value::Null).to_string();
        filled += match (in_text, value) {
            (false, _) => &json,
            (true, None | Some(Value::Null)) => "",
            (true, Some(_)) => json.trim_matches('"'),
        };
        rest = &after[end..];
    }
    filled + rest
}
