//! A request as a line says it, in the form of OpenAI's Batch API.

use std::borrow::Cow;
use std::fmt;

use http::Method;
use paceline_store::CustomId;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One request as it stands in its line.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// The only link from a result to its request: text or a number.
    pub(crate) custom_id: CustomId,
    /// POST unless the line says otherwise.
    pub(crate) method: Method,
    /// A path relative to the upstream's address: `/v1/chat/completions`.
    pub(crate) url: Cow<'a, str>,
    /// The body, byte for byte as it stands in the file.
    pub(crate) body: &'a [u8],
    /// The model that the body names.
    pub(crate) model: Option<String>,
    /// `metadata.label`, which a tier may match.
    pub(crate) label: Option<String>,
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
        write!(f, "line {}: {}: ", self.line, self.code)?;
        if let Some(param) = self.param {
            write!(f, "{param}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for LineError {}

impl<'a> Line<'a> {
    /// Reads a line and checks every field.
    ///
    /// # Errors
    /// The first field that is wrong. `line` is only used to say where.
    pub(crate) fn parse(bytes: &'a [u8], line: u64) -> Result<Self, LineError> {
        let wrong = |code, param, message: String| LineError { line, code, param, message };
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(wrong(
                "invalid_json_line",
                None,
                "not a request object: expected it to begin with {".to_owned(),
            ));
        }
        let raw: RawLine<'a> = serde_json::from_slice(bytes)
            .map_err(|error| wrong("invalid_json_line", None, format!("not a request object: {error}")))?;
        let custom_id = match raw.custom_id {
            Some(id) if id != CustomId::from("") => id,
            _ => {
                let message = "missing or empty: every line needs its own custom_id".to_owned();
                return Err(wrong("missing_custom_id", Some("custom_id"), message));
            }
        };
        let method = match raw.method.as_deref() {
            None => Method::POST,
            Some(name) => match name {
                "POST" => Method::POST,
                "PUT" => Method::PUT,
                "PATCH" => Method::PATCH,
                _ => {
                    let message = format!("`{name}`: expected POST, PUT or PATCH");
                    return Err(wrong("invalid_method", Some("method"), message));
                }
            },
        };
        let url = raw.url.unwrap_or_default();
        check_url(&url).map_err(|message| wrong("invalid_url", Some("url"), message))?;
        let body = raw.body.map_or("", RawValue::get);
        if !body.starts_with('{') {
            let message = "missing or no object: expected the request body as for the live endpoint".to_owned();
            return Err(wrong("invalid_body", Some("body"), message));
        }
        let model = serde_json::from_str::<Model<'_>>(body).ok().and_then(|body| body.model).map(Cow::into_owned);
        let label = raw.metadata.and_then(|metadata| metadata.label);
        Ok(Self { custom_id, method, url, body: body.as_bytes(), model, label })
    }
}

/// A key must not travel to a host that the line chose: only paths below the upstream's address are accepted.
fn check_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err("missing: expected a path such as /v1/chat/completions".to_owned());
    }
    if !url.starts_with('/') || url.starts_with("//") || url.contains('\\') {
        return Err(format!(
            "`{url}` is no path below the upstream's address: expected one such as /v1/chat/completions; \
             the address itself is set with --base-url or in paceline.toml"
        ));
    }
    let path = url.split(['?', '#']).next().unwrap_or(url);
    if path.split('/').any(|part| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")) {
        return Err(format!("`{url}` contains . or .. as a part: expected a plain path"));
    }
    match url.parse::<http::uri::PathAndQuery>() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("`{url}` is no path: {error}")),
    }
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(default)]
    custom_id: Option<CustomId>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    url: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    label: Option<String>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> Result<String, &'static str> {
        Line::parse(line.as_bytes(), 7).map(|line| line.custom_id.to_string()).map_err(|error| {
            assert_eq!(error.line, 7);
            error.code
        })
    }

    #[test]
    fn fields_are_checked_before_anything_is_sent() {
        let line = |id: &str, url: &str| format!(r#"{{"custom_id":{id},"method":"POST","url":"{url}","body":{{}}}}"#);
        assert_eq!(code(&line("\"a\"", "/v1/embeddings")), Ok("a".to_owned()));
        assert_eq!(code(&line("17", "/v1/embeddings?x=1")), Ok("17".to_owned()));
        assert_eq!(code(r#"{"custom_id":"no method","url":"/x","body":{}}"#), Ok("no method".to_owned()));
        for (text, expected) in [
            ("{", "invalid_json_line"),
            ("[]", "invalid_json_line"),
            ("null", "invalid_json_line"),
            (r#"{"custom_id":true,"url":"/x","body":{}}"#, "invalid_json_line"),
            (r#"{"url":"/x","body":{}}"#, "missing_custom_id"),
            (r#"{"custom_id":"","url":"/x","body":{}}"#, "missing_custom_id"),
            (r#"{"custom_id":"a","body":{}}"#, "invalid_url"),
            (r#"{"custom_id":"a","url":"/x"}"#, "invalid_body"),
            (r#"{"custom_id":"a","url":"/x","body":[1]}"#, "invalid_body"),
            (r#"{"custom_id":"a","method":"GET","url":"/x","body":{}}"#, "invalid_method"),
        ] {
            assert_eq!(code(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn no_line_can_send_the_key_to_another_host() {
        for url in ["https://evil.example/v1", "//evil.example/v1", "evil", "/\\\\evil", "/v1/../../x", "/a/%2e%2E/b"] {
            assert!(check_url(url).is_err(), "{url}");
        }
        assert_eq!(check_url("/v1/a..b/@x?redirect=https://y"), Ok(()));
    }

    #[test]
    fn the_body_keeps_its_bytes_and_its_label() {
        let text = r#"{"custom_id":"a","url":"/x","body":{ "model" : "m", "x":1e400 },"metadata":{"label":"slow"}}"#;
        let line = Line::parse(text.as_bytes(), 1).expect("a good line");
        assert_eq!(line.body, br#"{ "model" : "m", "x":1e400 }"#);
        assert_eq!((line.model.as_deref(), line.label.as_deref()), (Some("m"), Some("slow")));
    }
}
