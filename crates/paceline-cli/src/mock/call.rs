//! What a request asks for, as far as a mock cares: which answer, how long, and what it costs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::request::Parts;
use paceline_core::{Cost, Dimension};
use paceline_providers::Asked;
use paceline_providers::table::{Charge, Counts, Reserves};
use serde_json::{Map, Value};

/// The kinds of answer there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `chat/completions`
    Chat,
    /// `completions`
    Completions,
    /// `embeddings`
    Embeddings,
    /// `responses`
    Responses,
    /// `messages`
    Messages,
    /// `models/MODEL:generateContent`, and `:streamGenerateContent`
    Generate,
    /// `model/MODEL/converse`
    Converse,
    /// An operation of DynamoDB's, which a header names.
    DynamoDb,
    /// Any other path.
    Other,
}

/// A request that was read.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) endpoint: Endpoint,
    pub(crate) path: String,
    /// The operation that `x-amz-target` names.
    pub(crate) operation: Option<String>,
    pub(crate) model: String,
    /// Whether the answer shall come in pieces; only where the endpoint has such a form.
    pub(crate) stream: bool,
    /// Whether the last piece of a completion reports the usage.
    pub(crate) include_usage: bool,
    /// How many vectors an embedding call asks for, and of how many numbers.
    pub(crate) vectors: (usize, usize),
    pub(crate) prompt_tokens: u64,
    pub(crate) answer_tokens: u64,
    /// The asked maximum of the answer.
    pub(crate) most_tokens: Option<u64>,
    /// Whether the asked maximum cut the answer short.
    pub(crate) cut: bool,
}

/// What makes calls the same item: the `Idempotency-Key`, else the path and the body.
pub(crate) fn item(parts: &Parts, body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    match parts.headers.get("idempotency-key") {
        Some(key) => (true, key.as_bytes()).hash(&mut hasher),
        None => (false, parts.uri.path(), body).hash(&mut hasher),
    }
    hasher.finish()
}

impl Call {
    /// Reads a request; none when its body is no JSON object. A GET has none and needs none.
    pub(crate) fn read(parts: &Parts, body: &[u8]) -> Option<Self> {
        let bare = body.is_empty() && parts.method != http::Method::POST;
        let asked = Asked::of(body);
        let body: Map<String, Value> = if bare { Map::new() } else { serde_json::from_slice(body).ok()? };
        let path = parts.uri.path();
        let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
        let operation = target.and_then(|target| target.strip_prefix("DynamoDB_")?.split_once('.'));
        let operation = operation.map(|(_, operation)| operation.to_owned());
        let endpoint = if operation.is_some() { Endpoint::DynamoDb } else { Endpoint::of(path) };
        let most_tokens = asked.longest_answer(path).filter(|_| endpoint.is_prompt());
        let (answer_tokens, cut) = answer_tokens(endpoint, &body, most_tokens);
        let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
        let streams = endpoint.is_prompt() && endpoint != Endpoint::Converse;
        let model = body.get("model").and_then(Value::as_str).or_else(|| endpoint.model_in(path));
        Some(Self {
            endpoint,
            path: path.to_owned(),
            operation,
            model: model.unwrap_or("mock-model").to_owned(),
            stream: streams && (flag(body.get("stream")) || path.ends_with(":streamGenerateContent")),
            include_usage: flag(body.get("stream_options").and_then(|options| options.get("include_usage"))),
            vectors: vectors(&body),
            prompt_tokens: prompt_tokens(&body),
            answer_tokens,
            most_tokens,
            cut,
        })
    }

    /// What the provider charges. It knows its answer beforehand, so the charge is the usage to the token, and as much as was
    /// reserved where none of that comes back.
    pub(crate) fn cost(&self, charge: &Charge) -> Cost {
        let (prompt, answer) = (self.prompt_tokens, self.answer_tokens);
        let used = match charge.counts {
            Counts::All => prompt + answer * u64::from(charge.output_weight(&self.path)),
            Counts::Input => prompt,
        };
        let most = self.most_tokens.unwrap_or(0);
        let reserved = match charge.reserves {
            _ if charge.refunds => 0,
            Reserves::InputAndOutput => prompt.saturating_add(most),
            Reserves::Larger => prompt.max(most),
            Reserves::Input => prompt,
        };
        Cost::request().with(Dimension::Tokens, used.max(reserved))
    }
}

impl Endpoint {
    /// Looks at the end of the path, so that `/v1`, a proxy's prefix or Azure's deployment may stand before it.
    fn of(path: &str) -> Self {
        let mut segments = path.trim_end_matches('/').rsplit('/');
        match (segments.next(), segments.next()) {
            (Some("completions"), Some("chat")) => Self::Chat,
            (Some("completions"), _) => Self::Completions,
            (Some("embeddings"), _) => Self::Embeddings,
            (Some("responses"), _) => Self::Responses,
            (Some("messages"), _) => Self::Messages,
            (Some("converse"), _) => Self::Converse,
            (Some(last), _) if last.ends_with(":generateContent") || last.ends_with(":streamGenerateContent") => {
                Self::Generate
            }
            _ => Self::Other,
        }
    }

    /// Whether it takes a prompt and answers with text.
    const fn is_prompt(self) -> bool {
        !matches!(self, Self::Embeddings | Self::DynamoDb | Self::Other)
    }

    /// The model, where the path names it.
    fn model_in(self, path: &str) -> Option<&str> {
        match self {
            Self::Generate => path.rsplit('/').next()?.split(':').next(),
            Self::Converse => path.trim_end_matches('/').rsplit('/').nth(1),
            _ => None,
        }
    }
}

/// Four characters of what the model would read are a token.
fn prompt_tokens(body: &Map<String, Value>) -> u64 {
    const READ: [&str; 8] =
        ["messages", "input", "prompt", "system", "instructions", "tools", "contents", "systemInstruction"];
    let characters: usize = READ.iter().filter_map(|key| body.get(*key)).map(characters).sum();
    (characters as u64).div_ceil(4).max(1)
}

fn characters(value: &Value) -> usize {
    match value {
        Value::String(text) => text.chars().count(),
        Value::Array(values) => values.iter().map(characters).sum(),
        Value::Object(fields) => fields.values().map(characters).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The length of the answer and whether the asked maximum cut it: 16 to 47 tokens, always the same for the same prompt.
fn answer_tokens(endpoint: Endpoint, body: &Map<String, Value>, most: Option<u64>) -> (u64, bool) {
    if !endpoint.is_prompt() {
        return (0, false);
    }
    let natural = 16 + prompt_tokens(body) * 7 % 32;
    let most = most.unwrap_or(u64::MAX);
    (natural.min(most), most < natural)
}

/// One vector a text; a list of numbers is one text in tokens.
fn vectors(body: &Map<String, Value>) -> (usize, usize) {
    const MOST_NUMBERS: u64 = 4_096;
    let texts = match body.get("input") {
        Some(Value::Array(texts)) if !texts.first().is_some_and(Value::is_number) => texts.len(),
        _ => 1,
    };
    let numbers = body.get("dimensions").and_then(Value::as_u64).unwrap_or(8).min(MOST_NUMBERS);
    (texts, usize::try_from(numbers).unwrap_or(8))
}

#[cfg(test)]
mod tests {
    use paceline_providers::Provider;

    use super::*;

    fn parts(path: &str, key: Option<&str>) -> Parts {
        let mut request = http::Request::post(path);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn read(path: &str, body: &str) -> Call {
        Call::read(&parts(path, None), body.as_bytes()).expect(body)
    }

    #[test]
    fn the_end_of_the_path_decides_the_answer() {
        for (path, endpoint) in [
            ("/v1/chat/completions", Endpoint::Chat),
            ("/chat/completions", Endpoint::Chat),
            ("/openai/deployments/gpt/chat/completions", Endpoint::Chat),
            ("/v1/completions", Endpoint::Completions),
            ("/embeddings/", Endpoint::Embeddings),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/messages", Endpoint::Messages),
            ("/v1/messages/count_tokens", Endpoint::Other),
            ("/v1beta/models/gemini-2.5-flash:generateContent", Endpoint::Generate),
            ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", Endpoint::Generate),
            ("/model/anthropic.claude/converse", Endpoint::Converse),
            ("/", Endpoint::Other),
        ] {
            assert_eq!(read(path, "{}").endpoint, endpoint, "{path}");
        }
    }

    #[test]
    fn tokens_come_from_characters_and_the_asked_maximum() {
        let call =
            read("/chat/completions", r#"{"messages":[{"role":"user","content":"12345678äöüß"}],"max_tokens":5}"#);
        assert_eq!((call.prompt_tokens, call.answer_tokens, call.cut), (4, 5, true));
        let charged = |call: &Call, provider: Provider| call.cost(&provider.table().charge).get(&Dimension::Tokens);
        assert_eq!(charged(&call, Provider::OpenAi), 9);
        let call = read("/chat/completions", r#"{"messages":[],"max_tokens":500}"#);
        assert!(!call.cut && (16..48).contains(&call.answer_tokens));
        assert_eq!(charged(&call, Provider::OpenAi), 500, "what was reserved does not come back");
        assert_eq!(charged(&call, Provider::Mistral), 1 + call.answer_tokens);
        assert_eq!(charged(&call, Provider::Gemini), 1);
        let call = read("/embeddings", r#"{"input":["abcd","efgh"],"dimensions":3}"#);
        assert_eq!((call.vectors, call.prompt_tokens, call.answer_tokens), ((2, 3), 2, 0));
    }

    #[test]
    fn models_and_operations_may_stand_outside_the_body() {
        assert_eq!(read("/v1beta/models/gemini-2.5-flash:generateContent", "{}").model, "gemini-2.5-flash");
        assert!(read("/v1beta/models/g:streamGenerateContent", "{}").stream);
        assert_eq!(read("/model/anthropic.claude/converse", "{}").model, "anthropic.claude");
        let mut put = parts("/", None);
        put.headers.insert("x-amz-target", "DynamoDB_20120810.PutItem".parse().expect("a value"));
        let call = Call::read(&put, b"{}").expect("an object");
        assert_eq!((call.endpoint, call.operation.as_deref()), (Endpoint::DynamoDb, Some("PutItem")));
    }

    #[test]
    fn only_objects_are_requests() {
        for body in ["", "[]", "{", "\"text\""] {
            assert!(Call::read(&parts("/chat/completions", None), body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn items_are_told_apart_by_key_else_by_path_and_body() {
        let item = |path, key, body: &str| super::item(&parts(path, key), body.as_bytes());
        assert_eq!(item("/a", Some("k"), "1"), item("/b", Some("k"), "2"));
        assert_ne!(item("/a", Some("k"), "1"), item("/a", Some("l"), "1"));
        assert_eq!(item("/a", None, "1"), item("/a", None, "1"));
        assert_ne!(item("/a", None, "1"), item("/b", None, "1"));
        assert_ne!(item("/a", None, "1"), item("/a", None, "2"));
    }
}
