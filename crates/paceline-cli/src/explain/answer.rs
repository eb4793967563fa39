//! Saved answers: as `curl -i` prints one, or one a line as JSON.

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_providers::Answer;
use serde::Deserialize;
use serde_json::{Map, Value};

/// An answer that the user kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Empty where it is not known.
    path: String,
}

/// One of many, with its sender.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) provider: Option<String>,
    pub(crate) saved: Saved,
}

/// Why a text is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// Nothing at all.
    #[error("line 1: expected a status line such as HTTP/1.1 429, as curl -i prints it, and found nothing")]
    Empty,
    /// JSON where a status line belongs.
    #[error(
        "line 1: this is JSON; --jsonl reads {{\"provider\",\"status\",\"headers\",\"body\"}}, a body alone needs its status line before it"
    )]
    Json,
    /// Something else in its place.
    #[error("line {line}: expected a status line such as HTTP/1.1 429, as curl -i prints it, and found {found:?}")]
    Status {
        /// Counted from 1.
        line: usize,
        /// Its beginning.
        found: String,
    },
    /// A line of the head that is no field.
    #[error(
        "line {line}: expected a header such as retry-after: 5, or an empty line before the body, and found {found:?}"
    )]
    Header {
        /// Counted from 1.
        line: usize,
        /// Its beginning.
        found: String,
    },
}

impl Saved {
    /// As the library reads it.
    pub(crate) fn answer(&self) -> Answer<'_> {
        Answer { status: self.status, headers: &self.headers, body: &self.body, path: &self.path }
    }

    /// Reads status line, headers and body. Of several heads (a proxy's, an interim answer, a redirect that was followed)
    /// the last one counts.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, AnswerError> {
        let mut rest = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        if rest.trim_ascii().is_empty() {
            return Err(AnswerError::Empty);
        }
        if rest.trim_ascii_start().starts_with(b"{") || rest.trim_ascii_start().starts_with(b"[{") {
            return Err(AnswerError::Json);
        }
        let mut line = 1;
        loop {
            let (status, headers) = head(&mut rest, &mut line)?;
            if !rest.starts_with(b"HTTP/") {
                return Ok(Self { status, headers, body: rest.to_vec(), path: String::new() });
            }
        }
    }
}

/// Takes one head off the front, with the empty line behind it.
fn head(rest: &mut &[u8], line: &mut usize) -> Result<(u16, HeaderMap), AnswerError> {
    let first = take_line(rest);
    let status = status(&first).ok_or_else(|| AnswerError::Status { line: *line, found: beginning(&first) })?;
    let mut headers = HeaderMap::new();
    loop {
        *line += 1;
        let text = take_line(rest);
        if text.is_empty() {
            *line += 1;
            return Ok((status, headers));
        }
        let field = text.split_once(':').and_then(|(name, value)| {
            let name: HeaderName = name.trim().parse().ok()?;
            Some((name, HeaderValue::from_str(value.trim()).ok()?))
        });
        let (name, value) = field.ok_or_else(|| AnswerError::Header { line: *line, found: beginning(&text) })?;
        headers.append(name, value);
    }
}

/// The next line without its end; empty at the end of the text.
fn take_line(rest: &mut &[u8]) -> String {
    let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
    let line = &rest[..end];
    *rest = rest.get(end + 1..).unwrap_or_default();
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

/// `HTTP/1.1 429 Too Many Requests`, `HTTP/2 429`, or the number alone.
fn status(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let number = if first.starts_with("HTTP/") { words.next()? } else { first };
    number.parse().ok().filter(|status| (100..=999).contains(status))
}

fn beginning(line: &str) -> String {
    crate::text::cut(line, 40)
}

impl Line {
    /// Reads `{"provider","status","headers","body"}`. Headers are an object of texts or lists of texts; a body that is no
    /// text is taken as the JSON it is.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Fields {
            provider: Option<String>,
            status: u16,
            #[serde(default)]
            headers: Map<String, Value>,
            #[serde(default)]
            body: Value,
            #[serde(default)]
            path: String,
        }
        let fields: Fields = serde_json::from_slice(line).map_err(|error| format!("no saved answer: {error}"))?;
        let Fields { provider, status, headers: given, body, path } = fields;
        if !(100..=999).contains(&status) {
            return Err(format!("{status} is no status"));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            let values = match value {
                Value::Array(values) => values,
                value => vec![value],
            };
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let wrong = || format!("{name}: {text:?} is no header");
                let field: HeaderName = name.parse().map_err(|_| wrong())?;
                headers.append(field, HeaderValue::from_str(text.trim()).map_err(|_| wrong())?);
            }
        }
        let body = match body {
            Value::Null => Vec::new(),
            Value::String(text) => text.into_bytes(),
            body => body.to_string().into_bytes(),
        };
        Ok(Self { provider, saved: Saved { status, headers, body, path } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_as_they_are_printed() {
        for (text, status, retry_after, body) in [
            ("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\n\r\n{\"a\":1}\r\n", 429, Some("5"), "{\"a\":1}\r\n"),
            ("HTTP/2 503\nretry-after:7\n\nbusy", 503, Some("7"), "busy"),
            ("HTTP/1.1 200 Connection established\n\nHTTP/1.1 100 Continue\n\nHTTP/2 429 \n\nx", 429, None, "x"),
            ("429\nretry-after: 9\n", 429, Some("9"), ""),
            ("HTTP/1.1 204 No Content", 204, None, ""),
            ("\u{feff}HTTP/1.1 200 OK\n\n\n\n{}", 200, None, "\n\n{}"),
        ] {
            let saved = Saved::parse(text.as_bytes()).expect(text);
            let found = saved.headers.get("retry-after").map(|value| value.to_str().expect("ASCII"));
            assert_eq!((saved.status, found, &*saved.body), (status, retry_after, body.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_named_by_its_line() {
        let error = |text: &str| Saved::parse(text.as_bytes()).expect_err(text);
        assert_eq!(error(" \n"), AnswerError::Empty);
        assert_eq!(error("{\"error\":{}}"), AnswerError::Json);
        assert_eq!(error("hello"), AnswerError::Status { line: 1, found: "hello".to_owned() });
        assert_eq!(
            error("HTTP/1.1 429\na: b\nno header\n"),
            AnswerError::Header { line: 3, found: "no header".to_owned() }
        );
        assert_eq!(
            error("HTTP/1.1 100\n\nHTTP/x many\n"),
            AnswerError::Status { line: 3, found: "HTTP/x many".to_owned() }
        );
    }

    #[test]
    fn lines_carry_headers_and_bodies_of_any_kind() {
        let line = |text: &str| Line::parse(text.as_bytes());
        let read = line(r#"{"provider":"x","status":429,"headers":{"A":["1","2"],"B":3},"body":{"k":"v"},"more":1}"#)
            .expect("a good line");
        assert_eq!(read.provider.as_deref(), Some("x"));
        assert_eq!(read.saved.headers.get_all("a").iter().count(), 2);
        assert_eq!(
            (&*read.saved.body, &read.saved.headers["b"]),
            (&br#"{"k":"v"}"#[..], &HeaderValue::from_static("3"))
        );
        assert_eq!(line(r#"{"status":200,"body":"text"}"#).expect("a good line").saved.body, b"text");
        for bad in ["", "{}", r#"{"status":7}"#, r#"{"status":200,"headers":{"a b":"c"}}"#, "[]"] {
            assert!(line(bad).is_err(), "{bad}");
        }
    }
}
