//! What a success has to match, where the caller gives a JSON schema.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use boon::{CompileError, Compiler, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde_json::Value;

/// The URL of a schema, against which its references are resolved.
const NAME: &str = "schema:///";
/// So many places where an answer does not match are named.
const PLACES: usize = 3;

/// A JSON schema of draft 4, 6, 7, 2019-09 or 2020-12, as its `$schema` says; without one of 2020-12.
///
/// ```
/// use paceline_providers::{Answer, Dialect, Expected, Provider, Schema};
///
/// let schema = serde_json::json!({"required": ["id"], "properties": {"id": {"type": "integer"}}});
/// let dialect = Dialect::from(Provider::Generic).expecting(Expected::Schema(Schema::new(schema)?));
/// let answer = Answer { status: 200, headers: &http::HeaderMap::new(), body: br#"{"id": "a"}"#, path: "/" };
/// let reading = dialect.read(&answer, paceline_core::Timestamp::from_millis(0));
/// assert_eq!(reading.class, paceline_core::Class::Transient);
/// assert_eq!(reading.message.as_deref(), Some("the answer does not match the schema: /id: want integer, but got string"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Schema(Arc<Compiled>);

struct Compiled {
    source: Value,
    schemas: Schemas,
    root: SchemaIndex,
}

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

impl Schema {
    /// Compiles a schema, which stands alone: what it refers to is in it, and nothing is fetched.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn new(source: Value) -> Result<Self, SchemaError> {
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.use_loader(Box::new(Nowhere));
        let refused = |error| SchemaError(reason(&error));
        compiler.add_resource(NAME, source.clone()).map_err(refused)?;
        let root = compiler.compile(NAME, &mut schemas).map_err(refused)?;
        Ok(Self(Arc::new(Compiled { source, schemas, root })))
    }

    /// Where a value does not match and why, as `/choices/0: missing properties 'text'`; `None` if it does.
    pub(crate) fn mismatch(&self, value: &Value) -> Option<String> {
        let error = self.0.schemas.validate(value, self.0.root).err()?;
        let mut places = Vec::new();
        places_of(&error, &mut places);
        Some(places.join("; "))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.0.source).finish()
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.0.source == other.0.source
    }
}

/// Everything outside a schema.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, _: &str) -> Result<Value, Box<dyn Error>> {
        Err("nothing is fetched: put it under $defs of this schema".into())
    }
}

/// The innermost errors, each with its place: those around them add nothing.
fn places_of(error: &ValidationError<'_, '_>, places: &mut Vec<String>) {
    if places.len() == PLACES {
        return;
    }
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        places.push(if place.is_empty() { error.kind.to_string() } else { format!("{place}: {}", error.kind) });
    }
    for cause in &error.causes {
        places_of(cause, places);
    }
}

fn reason(error: &CompileError) -> String {
    match error {
        CompileError::ValidationError { src, .. } => {
            let mut places = Vec::new();
            places_of(src, &mut places);
            places.join("; ")
        }
        other => format!("{other:#}").replace(NAME, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Dialect, Expected, Provider, Reading};
    use http::{HeaderMap, Method};
    use paceline_core::{Class, Timestamp};
    use serde_json::json;

    fn read(schema: Value, provider: Provider, status: u16, body: &str) -> Reading {
        let dialect = Dialect::from(provider).expecting(Expected::Schema(Schema::new(schema).expect("a schema")));
        let answer = Answer { status, headers: &HeaderMap::new(), body: body.as_bytes(), path: "/" };
        dialect.read(&answer, Timestamp::from_millis(0))
    }

    fn refused(schema: Value) -> String {
        Schema::new(schema).expect_err("no schema").to_string()
    }

    #[test]
    fn an_answer_that_does_not_match_says_where() {
        let schema = json!({"properties": {"choices": {"items": {"required": ["text"]}}, "n": {"maximum": 3}}});
        for (status, body, code, message) in [
            (200, r#"{"choices": [{"text": "a"}]}"#, None, None),
            (204, "", None, None),
            (200, "", Some("empty_answer"), Some("the answer is empty")),
            (200, "<html>", Some("not_json"), Some("the answer is not JSON")),
            (
                200,
                r#"{"message": "hi", "choices": [{"text": "a"}, {}], "n": 4}"#,
                Some("schema_mismatch"),
                Some(
                    "the answer does not match the schema: /choices/1: missing properties 'text'; /n: must be <=3, but got 4",
                ),
            ),
        ] {
            let reading = read(schema.clone(), Provider::Generic, status, body);
            let class = if code.is_none() { Class::Success } else { Class::Transient };
            assert_eq!(
                (reading.class, reading.code.as_deref(), reading.message.as_deref()),
                (class, code, message),
                "{body}"
            );
            assert_eq!(reading.outcome().server_works, code.is_some(), "{body}: nothing but the schema refuses it");
        }
        for (body, works) in [("<html>", false), ("", false), (r#"{"n": 4}"#, true)] {
            let reading = read(schema.clone(), Provider::OpenAi, 200, body);
            assert_eq!((reading.class, reading.outcome().server_works), (Class::Transient, works), "{body}");
        }
        let reading = read(schema, Provider::Generic, 429, "{}");
        assert_eq!(reading.class, Class::Throttled, "a refusal is what it is");
    }

    #[test]
    fn what_has_no_body_is_asked_for_none() {
        let (headers, now) = (HeaderMap::new(), Timestamp::from_millis(0));
        for expected in [Expected::Json, Expected::Schema(Schema::new(json!({"type": "object"})).expect("a schema"))] {
            for provider in [Provider::Generic, Provider::OpenAi] {
                let dialect = Dialect::from(provider).expecting(expected.clone());
                let read = |method: Method, status| {
                    let answer = Answer { status, headers: &headers, body: b"", path: "/v1/files" };
                    dialect.read_of(&method, &answer, now).class
                };
                assert_eq!(read(Method::HEAD, 200), Class::Success, "{provider}");
                assert_eq!(read(Method::GET, 304), Class::Success, "{provider}");
                assert_eq!(read(Method::GET, 200), Class::Transient, "{provider}");
                assert_eq!(read(Method::HEAD, 404), Class::Invalid, "{provider}");
            }
        }
    }

    #[test]
    fn a_stream_is_checked_as_the_object_that_it_adds_up_to() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        let of = |content: &str| {
            json!({"properties": {"choices": {"items": {"properties": {
                "message": {"properties": {"content": {"const": content}}}}}}}})
        };
        assert_eq!(read(of("Hello"), Provider::OpenAi, 200, stream).class, Class::Success);
        let reading = read(of("Bye"), Provider::OpenAi, 200, stream);
        let message = "the answer does not match the schema: /choices/0/message/content: value must be 'Bye'";
        assert_eq!((reading.class, reading.message.as_deref()), (Class::Transient, Some(message)));
        let foreign = read(json!(true), Provider::Generic, 200, "event: tick\ndata: 1\n\n");
        assert_eq!(foreign.code.as_deref(), Some("not_json"), "it adds up to nothing");
    }

    #[test]
    fn the_words_are_short_and_hold_no_key() {
        let schema = json!({"properties": {"a": {"pattern": "^x"}}});
        for (text, expected) in [("sk-abcdef", "[key]".to_owned()), (&*"é".repeat(4_000), "é".to_owned())] {
            let message = read(schema.clone(), Provider::Generic, 200, &json!({"a": text}).to_string()).message;
            let message = message.expect("a message");
            assert!(message.len() < 400 && message.contains(&expected) && !message.contains("sk-"), "{message}");
        }
    }

    #[test]
    fn what_is_no_schema_is_refused_with_its_place() {
        for (schema, message) in [
            (json!({"type": "strnig"}), "/type: "),
            (json!({"properties": {"a": {"minimum": "x"}}}), "/properties/a/minimum: want number, but got string"),
            (json!(7), "want boolean or object"),
            (json!({"pattern": "(?=a)"}), "look-around"),
            (json!({"$ref": "#/$defs/a"}), "#/$defs/a"),
            (json!({"$ref": "https://api.example/a.json"}), "https://api.example/a.json: nothing is fetched"),
            (json!({"$ref": "other.json"}), "other.json: nothing is fetched"),
            (json!({"$schema": "https://api.example/draft"}), "https://api.example/draft"),
        ] {
            let error = refused(schema.clone());
            assert!(error.contains(message), "{schema}: {error}");
        }
    }
}
