//! The JSON Schema of the file, for editors: what each kind of value may look like.

use std::borrow::Cow;

use paceline_core::UnknownOutcome;
use paceline_providers::Provider;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};
use serde_json::Value;

use super::names::{self, names};
use super::schema::{ConcurrencySection, FileSection};

/// The JSON Schema of `paceline.toml`, as pretty JSON with a line break at its end.
pub fn json_schema() -> String {
    let mut schema = schema_for!(FileSection).to_value();
    drop_null(&mut schema);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text.push('\n');
    text
}

/// Optional fields may be null, says the generator, but TOML has no null: what is left unsaid is absent.
fn drop_null(schema: &mut Value) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(drop_null),
        Value::Object(parts) => {
            parts.values_mut().for_each(drop_null);
            if let Some(Value::Array(types)) = parts.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = &types[..] {
                    let only = only.clone();
                    parts.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = parts.get_mut("anyOf") {
                choices.retain(|choice| *choice != serde_json::json!({ "type": "null" }));
                if let [Value::Object(only)] = &choices[..] {
                    let only = only.clone();
                    parts.remove("anyOf");
                    parts.extend(only);
                }
            }
        }
        _ => {}
    }
}

/// Makes a marker type whose only use is its schema.
macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, |$generator:ident| $schema:tt) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

kind!(
    /// A number of things: `200000`, `200_000`, `"200k"`.
    Count,
    |_generator| { "anyOf": [
        { "type": "number", "minimum": 0 },
        { "type": "string", "pattern": "^[0-9][0-9_.]*[kKmMgG]?$" },
    ] }
);

kind!(
    /// A duration: `"200ms"`, `"5s"`, `"15m"`, `"1h"`, `"7d"`, or seconds.
    Length,
    |_generator| { "anyOf": [
        { "type": "number", "minimum": 0 },
        { "type": "string", "pattern": "^[0-9][0-9_.]* *(ms|s|m|h|d)?$" },
    ] }
);

kind!(
    /// Limits as people write them.
    LimitList,
    |_generator| { "anyOf": [{ "type": "array", "items": { "type": "string" } }, { "type": "string" }] }
);

kind!(
    /// How a limit is kept.
    LimitShape,
    |_generator| { "enum": ["sliding", "bucket"] }
);

kind!(
    /// A name for a range, or the range.
    JitterChoice,
    |_generator| { "anyOf": [
        { "enum": ["full", "equal", "none"] },
        { "type": "array", "items": { "type": "number", "minimum": 0, "maximum": 1 }, "minItems": 2, "maxItems": 2 },
    ] }
);

kind!(
    /// A dialect.
    ProviderName,
    |_generator| { "enum": Provider::ALL.map(Provider::as_str) }
);

kind!(
    /// What follows from a call of which nothing tells whether it was done.
    UnknownOutcomeName,
    |_generator| { "enum": UnknownOutcome::ALL.map(UnknownOutcome::as_str) }
);

kind!(
    /// What a process of a fleet does without its store.
    FleetOnLossName,
    |_generator| { "enum": ["strict", "keep"] }
);

kind!(
    /// A pace, or a preset.
    PaceName,
    |_generator| { "enum": names::PACES.map(|pace| pace.name) }
);

kind!(
    /// What an answer means.
    ClassName,
    |_generator| { "enum": names::class_names() }
);

kind!(
    /// Names, in a list or with commas.
    NameList,
    |_generator| { "anyOf": [
        { "type": "array", "items": { "type": ["string", "integer"] } },
        { "type": "string" },
    ] }
);

kind!(
    /// Values of headers by name, or lines such as `Name: value`.
    HeaderList,
    |_generator| { "anyOf": [
        { "type": "object", "additionalProperties": { "type": "string" } },
        { "type": "string" },
    ] }
);

kind!(
    /// What a body is.
    BodyName,
    |_generator| { "enum": ["not_json"] }
);

kind!(
    /// A price, or prices by model.
    PriceTable,
    |_generator| { "anyOf": [
        { "type": "object", "additionalProperties": { "type": "string", "pattern": "^ *(in|out|cached|cached_write) *= *[0-9]" } },
        { "type": "string", "pattern": "^ *(in|out|cached|cached_write) *= *[0-9]" },
    ] }
);

kind!(
    /// What is slowed down together.
    ScopeName,
    |_generator| { "enum": names(&names::SCOPES) }
);

kind!(
    /// How a limit comes back.
    RestoresName,
    |_generator| { "enum": names(&names::RESTORES) }
);

kind!(
    /// What a call reserves.
    ReservesName,
    |_generator| { "enum": names(&names::RESERVES) }
);

kind!(
    /// Which tokens count.
    CountsName,
    |_generator| { "enum": names(&names::COUNTS) }
);

kind!(
    /// Whether cached input counts.
    CachedInputName,
    |_generator| { "enum": names(&names::CACHED_INPUT) }
);

kind!(
    /// One status, or a range with both its ends.
    StatusRange,
    |_generator| { "anyOf": [
        { "type": "integer", "minimum": 100, "maximum": 599 },
        { "type": "string", "pattern": "^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$" },
    ] }
);

kind!(
    /// The maximum, or the table.
    ConcurrencyChoice,
    |generator| { "anyOf": [
        generator.subschema_for::<Count>(),
        generator.subschema_for::<ConcurrencySection>(),
    ] }
);
