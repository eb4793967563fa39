//! Every model that the body of a request names, wherever a server could read it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::outline::Text;

/// Members with a model, models, or what takes the place of a model: strings, and objects of that form.
const NAMES: [&str; 6] =
    ["model", "models", "fallbacks", "fallback_models", "context_window_fallbacks", "content_policy_fallbacks"];

/// Any other name with one of these in it may be one that some server takes for `model`: `modelId`, `fallback_model`,
/// `analysis_models`, `default-model`.
const WITHIN_NAMES: [&str; 2] = ["model", "fallback"];

/// But for those that are known to name none: Bedrock's list of what it returns beside its answer.
const NO_NAMES: [&str; 1] = ["additionalmodelresponsefieldpaths"];

/// Texts of the body itself that name what stands for a model: Azure's and LiteLLM's deployments, agents of Gemini and Mistral,
/// presets of OpenRouter. Deeper they are anything, as the `engine` of a search.
const STAND_INS: [&str; 7] =
    ["engine", "deployment", "deployment_id", "deployment_name", "agent", "agent_id", "preset"];

/// What a proxy adds to the body itself.
pub(super) const EXTRA: &str = "extra_body";

/// Members that hold what is said, what is known of the call, or a schema: a `model` there is a word, and no server's.
const CONTENT: [&str; 24] = [
    "messages",
    "message",
    "input",
    "inputs",
    "instances",
    "content",
    "contents",
    "prompt",
    "system",
    "system_instruction",
    "systemInstruction",
    "instructions",
    "documents",
    "chat_history",
    "labels",
    "parametersJsonSchema",
    "schema",
    "json_schema",
    "input_schema",
    "inputSchema",
    "response_format",
    "responseSchema",
    "response_schema",
    "responseJsonSchema",
];

/// Describes the members of something else, by their names: an object there is no model, but a text is none of a schema.
const PROPERTIES: &str = "properties";

/// What is nested deeper is read by no one here, and so no body that names models: servers have `requests[].request.model`.
const DEEPEST: u8 = 64;

/// Whether a member of a body, or a parameter of a query, of that name names a model or several.
///
/// ```
/// use paceline_providers::names_models;
/// assert!(names_models("Model") && names_models("fallback-model") && names_models("deployment") && !names_models("user"));
/// ```
pub fn names_models(name: &str) -> bool {
    has_model(name) || is_stand_in(name)
}

/// In small letters, and letters and digits alone: `base_model`, `base-model` and `baseModel` are one.
pub(super) fn plain(name: &str) -> String {
    name.chars().map(letter).filter(|letter| letter.is_alphanumeric()).collect()
}

fn has_model(name: &str) -> bool {
    let name = plain(name);
    WITHIN_NAMES.iter().any(|part| name.contains(part)) && !NO_NAMES.contains(&&*name)
}

fn is_stand_in(name: &str) -> bool {
    let name = plain(name);
    STAND_INS.iter().any(|known| plain(known) == name)
}

/// Every model that a server may find in the body of a request, where it is one object that names models by texts, and nothing
/// after it. Servers differ: some take the first of two members of one name and some the last, some read names in any case of
/// letters, OpenRouter goes on to those in `models`, and LiteLLM to `fallbacks`, which may be objects, and it reads `extra_body`.
/// At any depth a text under a name with `model` or `fallback` in it counts, but for what is said, such as `messages`, and
/// schemas; `None` where that is nested deeper than 64.
///
/// ```
/// use paceline_providers::models_of;
/// assert_eq!(models_of(br#"{"model":"a","Model":"b","models":["c"]}"#), Some(vec!["a".into(), "b".into(), "c".into()]));
/// assert_eq!(models_of(br#"{"fallbacks":[{"model":"a"}],"extra_body":{"model":"b"}}"#), Some(vec!["a".into(), "b".into()]));
/// assert_eq!(models_of(br#"{"session":{"model":"a"},"metadata":{"model":"x"}}"#), Some(vec!["a".into()]));
/// assert_eq!(models_of(br#"{"messages":[]}"#), Some(vec![]));
/// assert_eq!(models_of(br#"{"model":7}"#), None);
/// assert_eq!(models_of(br#"{"model":"a"}{"model":"b"}"#), None);
/// ```
pub fn models_of(body: &[u8]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(body);
    json.deserialize_map(Reader { found: &mut found, place: Place::Body, depth: 0 }).ok()?;
    json.end().ok()?;
    Some(found)
}

/// Whether what stands under that name is no server's to read for a model.
fn is_content(name: &str) -> bool {
    is_one_of(&CONTENT, name) || name.to_ascii_lowercase().ends_with("metadata")
}

/// In any case of letters: some servers take `K` (the sign of Kelvin) and `ſ` for letters, too.
pub(super) fn is_one_of(known: &[&str], name: &str) -> bool {
    known.iter().any(|known| name.chars().map(letter).eq(known.chars().map(|letter| letter.to_ascii_lowercase())))
}

const fn letter(letter: char) -> char {
    match letter {
        '\u{212A}' => 'k',
        '\u{17F}' => 's',
        letter => letter.to_ascii_lowercase(),
    }
}

/// Where a value stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The body, or what a proxy adds to it.
    Body,
    /// Anywhere else in it: what is no object and no array of them names nothing.
    Within,
    /// Under a name of a model somewhere within: a text, or several. Anything else is no model's.
    NameWithin,
    /// Under `model` of the body: a text.
    Name,
    /// Under one of the other names of the body: texts, objects, and arrays of these.
    Names,
    /// Another member of an object there: LiteLLM maps a model to an array of others. Anything else has no names.
    Others,
    /// In such an array.
    Other,
    /// Under `properties`.
    Properties,
    /// Under a name of a model there: a text, or several. An object describes a member of that name.
    Property,
}

impl Place {
    /// Where the value of a member of an object in this place stands; `None` where it names nothing.
    fn of(self, key: &str) -> Option<Self> {
        let is_body = matches!(self, Self::Body | Self::Names);
        match key {
            _ if matches!(self, Self::Others | Self::Other | Self::Property) => None,
            key if is_body && is_one_of(&["model"], key) => Some(Self::Name),
            key if self != Self::Properties && is_one_of(&NAMES, key) => {
                Some(if is_body { Self::Names } else { Self::NameWithin })
            }
            key if self == Self::Properties => has_model(key).then_some(Self::Property),
            key if has_model(key) || self == Self::Body && is_stand_in(key) => Some(Self::NameWithin),
            key if self == Self::Body && is_one_of(&[EXTRA], key) => Some(Self::Body),
            _ if self == Self::Names => Some(Self::Others),
            key if is_one_of(&[PROPERTIES], key) => Some(Self::Properties),
            key => (!is_content(key)).then_some(Self::Within),
        }
    }
}

/// Reads the names in a value.
struct Reader<'a> {
    found: &'a mut Vec<String>,
    place: Place,
    depth: u8,
}

impl Reader<'_> {
    /// A value that is no text, no object and no array.
    fn other<E: Error>(&self) -> Result<(), E> {
        if matches!(self.place, Place::Name | Place::Names) {
            return Err(E::custom("a model is named by a text"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.depth > DEEPEST {
            return Err(D::Error::custom("it is nested too deep"));
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if self.place == Place::Name {
            return Err(A::Error::custom("a model is named by a text"));
        }
        // Below a name that is an object, names are those of anything else.
        let within = if self.place == Place::NameWithin { Place::Within } else { self.place };
        while let Some(Text(key)) = entries.next_key()? {
            match within.of(&key) {
                Some(place) => {
                    entries.next_value_seed(Reader { found: self.found, place, depth: self.depth + 1 })?;
                }
                None => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let place = match self.place {
            Place::Name => return Err(A::Error::custom("a model is named by a text")),
            Place::Others => Place::Other,
            Place::Body => Place::Within,
            place => place,
        };
        while elements.next_element_seed(Reader { found: self.found, place, depth: self.depth + 1 })?.is_some() {}
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if matches!(self.place, Place::Name | Place::Names | Place::Other | Place::NameWithin | Place::Property) {
            self.found.push(text.to_owned());
        }
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.place == Place::Names { Ok(()) } else { self.other() }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.other()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.other()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.other()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_a_server_reads_them_and_nowhere_else() {
        for (body, expected) in [
            (r#"{"model":"a","fallbacks":["b",{"model":"c"},{"a":["d"]}]}"#, Some("abcd")),
            (r#"{"fallbacks":[{"model":"a","messages":[{"role":"user","content":["x"]}],"stop":null}]}"#, Some("a")),
            (r#"{"fallbacks":"a","models":null,"context_window_fallbacks":[{"x":["b","c"]}]}"#, Some("abc")),
            (r#"{"extra_body":{"model":"a","extra_body":{"models":["b"]}},"model":"c"}"#, Some("abc")),
            (r#"{"extra_body":null,"tools":[{"type":"t","model":"a"},{"function":{"model":{}}}]}"#, Some("a")),
            (r#"{"metadata":{"model":"x"},"messages":[{"model":"y"}],"input":{"models":["z"]}}"#, Some("")),
            (
                r#"{"model":"a","session":{"model":"b","audio":{"input":{"model":"x"},"output":{"Model":"c"}}}}"#,
                Some("abc"),
            ),
            (
                r#"{"requests":[{"model":"a","content":{}},{"request":{"model":"b"}}],"batch":{"model":"c"}}"#,
                Some("abc"),
            ),
            (r#"{"generationConfig":{"routingConfig":{"manualMode":{"modelName":"a"}}}}"#, Some("a")),
            (r#"{"plugins":[{"id":"web","engine":"exa","models":["a"]}],"modelId":"b","model_name":7}"#, Some("ab")),
            (r#"{"engine":"a","deployment":"b","agent":{"model":"c","type":"t"},"preset":null}"#, Some("abc")),
            (r#"{"tools":[{"function":{"parameters":{"properties":{"model":{"default":"x"}}}}}]}"#, Some("")),
            (r#"{"text":{"format":{"schema":{"model":"x"}}},"request_metadata":{"model":"y"}}"#, Some("")),
            (
                r#"{"tools":[{"type":"t","parameters":{"model":"a","max_model_calls":3}}],"provider":{"allow_fallbacks":true}}"#,
                Some("a"),
            ),
            (r#"{"tools":[{"parameters":{"properties":{"model":"a","models":["b"],"x":{"model":"y"}}}}]}"#, Some("ab")),
            (
                r#"{"base-model":"a","speechModel":"b","default_models":["c"],"fallback":"d","FALLBACK_MODEL":"e"}"#,
                Some("abcde"),
            ),
            (
                r#"{"plugins":[{"analysis_models":["a"]}]," model ":"b","model\u0000":"c","Deployment-Id":"d"}"#,
                Some("abcd"),
            ),
            (
                r#"{"model_kwargs":{"top_k":"5","model":"a"},"model_list":[{"litellm_params":{"model":"b"}}]}"#,
                Some("ab"),
            ),
            (r#"{"grader":{"model":{"name":"x","fallbacks":["a"]},"models":[{"id":"x"}]}}"#, Some("a")),
            (r#"{"extra_body":{"model":7}}"#, None),
            (r#"{"models":[7]}"#, None),
            (r#"{"model":["a"]}"#, None),
            (r#"{"model":null}"#, None),
            (r#"[{"model":"a"}]"#, None),
            (r#"{"model":"a"} {"model":"b"}"#, None),
            (r#"{"model":"a"},"#, None),
        ] {
            assert_eq!(models_of(body.as_bytes()).map(|all| all.concat()).as_deref(), expected, "{body}");
        }
        let nested = |open: &str, inner: &str, close: &str, times| {
            let body = format!(r#"{{"model":"m","a":{}{inner}{}}}"#, open.repeat(times), close.repeat(times));
            models_of(body.as_bytes()).map(|all| all.concat())
        };
        for (open, close) in [(r#"{"b":"#, "}"), ("[", "]"), (r#"[{"extra_body":"#, "}]")] {
            assert_eq!(nested(open, r#"{"model":"x"}"#, close, 15).as_deref(), Some("mx"), "{open}");
            for times in [100, 1_000, 100_000] {
                assert_eq!(
                    nested(open, r#"{"model":"x"}"#, close, times),
                    None,
                    "what is nested deeper could name any"
                );
            }
        }
        let said = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(1_000), "]".repeat(1_000));
        assert_eq!(models_of(said.as_bytes()), Some(vec!["m".to_owned()]), "nothing is built of what is skipped");
        assert_eq!(models_of(r#"{"model":"a","modelſ":["b"]}"#.as_bytes()), Some(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn ordinary_requests_of_sdks_name_their_model_and_no_other() {
        for body in [
            r#"{"model":"m","messages":[{"role":"user","content":"which model?"}],"tools":[{"type":"function","function":{"name":"find_car",
                "strict":true,"parameters":{"type":"object","properties":{"model":{"type":"string","enum":["T","S"],"default":"T"},
                "fallback_model":{"$ref":"/$defs/Model"}},"$defs":{"Model":{"title":"Model","type":"string"}},"required":["model"],
                "additionalProperties":false}}}],"tool_choice":"auto","metadata":{"model":"T"},"stream":true,"stream_options":
                {"include_usage":true},"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"model":"x"}}}}"#,
            r#"{"model":"m","input":[{"role":"user","content":"hi"}],"tools":[{"type":"function","name":"f","parameters":
                {"properties":{"models":{"type":"array","items":{"type":"string"}}}}},{"type":"web_search"}],"reasoning":{"effort":"low"},
                "prompt_cache_key":"k","text":{"format":{"type":"json_schema","name":"n","schema":{}}}}"#,
            r#"{"model":"m","max_tokens":5,"system":"s","messages":[],"tools":[{"name":"f","input_schema":{"properties":{"model":
                {"type":"string"}}}}],"thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":"u"}}"#,
            r#"{"model":"m","messages":[{"model":"x"}],"provider":{"order":["a"],"allow_fallbacks":false},"route":"fallback","transforms":[]}"#,
            r#"{"model":"m","input":["a"],"encoding_format":"float","dimensions":5}"#,
        ] {
            assert_eq!(models_of(body.as_bytes()), Some(vec!["m".to_owned()]), "{body}");
        }
        for body in [
            r#"{"contents":[{"parts":[{"text":"model"}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":{"type":"OBJECT",
                "properties":{"model":{"type":"STRING"}},"required":["model"]}}]}],"generationConfig":{"modelConfig":
                {"featureSelectionPreference":"BALANCED"},"maxOutputTokens":5},"safetySettings":[]}"#,
            r#"{"messages":[],"inferenceConfig":{"maxTokens":5},"additionalModelRequestFields":{"top_k":5},
                "additionalModelResponseFieldPaths":["/stop_sequence"],"toolConfig":{"tools":[{"toolSpec":{"name":"f","inputSchema":
                {"json":{"properties":{"model":{"type":"string"}}}}}}]}}"#,
        ] {
            assert_eq!(models_of(body.as_bytes()), Some(Vec::new()), "their paths name the model: {body}");
        }
    }
}
