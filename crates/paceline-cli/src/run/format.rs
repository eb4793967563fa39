//! How the lines of an input are to be read.

use paceline::provider::Provider;
use paceline_store::LineForm;

use super::line::{self, Line, LineError};

/// Reads the lines of one input for one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    base: String,
    /// The API takes nothing but objects.
    objects: bool,
}

impl Format {
    /// For calls below the address `base`.
    pub(crate) fn new(provider: Provider, base: &str) -> Self {
        Self { base: base.to_owned(), objects: provider != Provider::Generic }
    }

    /// Reads a line and checks every field.
    ///
    /// # Errors
    /// The first field that is wrong. `number` is only used to say where.
    pub(crate) fn read<'a>(&self, bytes: &'a [u8], number: u64) -> Result<Line<'a>, LineError> {
        let members = line::members(bytes).map_err(|fault| fault.at(number))?;
        line::batch(bytes, &members, &self.base, self.objects).map_err(|fault| fault.at(number))
    }

    /// The shape of the result lines.
    pub(crate) const fn results(&self) -> LineForm {
        LineForm::OpenAi
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_store::CustomId;

    fn read(provider: Provider, line: &str) -> Result<Line<'_>, LineError> {
        Format::new(provider, "http://h").read(line.as_bytes(), 7)
    }

    fn error(provider: Provider, line: &str) -> String {
        read(provider, line).map(|_| ()).expect_err(line).to_string()
    }

    #[test]
    fn fields_are_checked_before_anything_is_sent() {
        for (line, expected) in [
            ("{", "invalid_json_line: EOF while parsing an object at column 1"),
            ("[]", "invalid_json_line: not a request object: expected it to begin with {"),
            (
                r#"{"custom_id":"a","url":"/x","body":{},"url":"/y"}"#,
                "invalid_json_line: duplicate key `url`: which of its values is meant?",
            ),
            (
                r#"{"custom_id":"a","url":"/x","body":{"model":"m","model":"n"}}"#,
                "invalid_json_line: body: duplicate key `model`: which of its values is meant?",
            ),
            (
                r#"{"custom_id":true,"url":"/x","body":{}}"#,
                "invalid_custom_id: custom_id: expected a text or a whole number of at most 64 bits",
            ),
            (
                r#"{"custom_id":99999999999999999999,"url":"/x","body":{}}"#,
                "invalid_custom_id: custom_id: expected a text or a whole number of at most 64 bits",
            ),
            (
                r#"{"url":"/x","body":{}}"#,
                "missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
            ),
            (
                r#"{"custom_id":"","url":"/x","body":{}}"#,
                "missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
            ),
            (
                r#"{"custom_id":"a","body":{}}"#,
                "invalid_url: url: missing: expected a path such as /v1/chat/completions",
            ),
            (r#"{"custom_id":"a","url":7,"body":{}}"#, "invalid_url: url: expected a text"),
            (
                r#"{"custom_id":"a","url":"/x"}"#,
                "invalid_body: body: missing: expected any JSON, or null for a POST request without one",
            ),
            (
                r#"{"custom_id":"a","method":"GET","url":"/x","body":{}}"#,
                "invalid_body: body: a GET request has none: put its parameters into url",
            ),
            (
                r#"{"custom_id":"a","method":"get","url":"/x"}"#,
                "invalid_method: method: \"get\": expected GET, HEAD, POST, PUT, PATCH or DELETE",
            ),
            (
                r#"{"custom_id":"a","url":"/x","body":{},"headers":{"host":"y"}}"#,
                "invalid_headers: headers: `host` is not a line's to set: the upstream's configuration and the connection do",
            ),
            (
                r#"{"custom_id":"a","url":"/x","body":[],"headers":{"content-type":"text/plain"}}"#,
                "invalid_body: body: expected a text, as its content-type is not JSON",
            ),
        ] {
            assert_eq!(error(Provider::Generic, line), format!("line 7: {expected}"));
        }
        let error = Format::new(Provider::Generic, "http://h").read(b"{\"a\":\"\xff\"}", 7).expect_err("no text");
        assert_eq!(error.to_string(), "line 7: invalid_json_line: not UTF-8 at column 7");
    }

    #[test]
    fn a_language_model_takes_objects_and_other_apis_any_json() {
        for (body, sent) in [("[1, 2]", "[1, 2]"), ("\"x\"", "\"x\""), ("null", ""), ("0", "0"), ("{ }", "{ }")] {
            let line = format!(r#"{{"custom_id":"a","url":"/x","body":{body}}}"#);
            assert_eq!(read(Provider::Generic, &line).expect("any JSON").body, sent);
            assert_eq!(read(Provider::OpenAi, &line).is_ok(), body.starts_with('{'), "{body}");
        }
        let form =
            r#"{"custom_id":1,"url":"/x","body":"a=\u00e4&b","headers":{"content-type":"text/plain; charset=utf-8"}}"#;
        assert_eq!(read(Provider::Generic, form).expect("plain text").body, "a=ä&b");
    }

    #[test]
    fn methods_without_a_body_are_known_by_their_line() {
        for method in ["GET", "HEAD", "DELETE"] {
            let text = format!(r#"{{"custom_id":3,"method":"{method}","url":"/x?y=1"}}"#);
            let line = read(Provider::OpenAi, &text).expect("a good line");
            assert_eq!((line.method.as_str(), &*line.body, line.hashed), (method, "", text.as_bytes()));
        }
    }

    #[test]
    fn the_body_keeps_its_bytes_and_the_line_its_metadata() {
        let text =
            r#"{"custom_id":-3,"url":"/x","body":{ "model" : "m", "x":1e400 },"metadata":{"label":"slow", "n":[1.0]}}"#;
        let line = read(Provider::OpenAi, text).expect("a good line");
        assert_eq!(line.body, r#"{ "model" : "m", "x":1e400 }"#);
        assert_eq!(line.hashed, line.body.as_bytes());
        assert_eq!((line.model.as_deref(), line.label.as_deref()), (Some("m"), Some("slow")));
        assert_eq!(line.metadata.map(|it| it.get()), Some(r#"{"label":"slow", "n":[1.0]}"#));
        assert_eq!(line.custom_id, CustomId::Number((-3).into()));
    }

    #[test]
    fn an_id_is_found_in_whatever_can_be_read() {
        for (line, expected) in
            [(r#"{"custom_id":"a","url":7}"#, "a"), (r#"{"custom_id":7}"#, "7"), ("{}", "line-5"), ("\u{1}", "line-5")]
        {
            assert_eq!(line::custom_id(line.as_bytes(), 5).to_string(), expected);
        }
    }
}
