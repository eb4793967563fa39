//! Work that a call hands to its provider, to be done after its answer: no answer of the call says what that costs.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Dialect;
use super::charge::takes_tokens;
use super::models::{EXTRA, is_one_of};
use super::outline::Text;

/// Parts of paths under which such work is begun, or what it reads is kept: in small letters, without `-` and `_`.
const COLLECTIONS: [&str; 11] = [
    "files",
    "uploads",
    "runs",
    "finetuning",
    "finetunes",
    "evals",
    "async",
    "asyncinvoke",
    "videos",
    // Their answers hold keys with which a program calls the provider past its gateway.
    "realtime",
    "chatkit",
];

/// The same where the path is none that is known to answer a prompt, as that of a model that was tuned is.
const BEGUN: [&str; 3] = ["sessions", "agents", "tunedmodels"];

impl Dialect {
    /// Whether a call that does more than read hands work to the provider of a language model that is done after its answer, such
    /// as a batch, or what such work reads. The path is decoded.
    ///
    /// ```
    /// use paceline_providers::{Dialect, Provider};
    /// let dialect = Dialect::from(Provider::OpenAi);
    /// assert!(dialect.works_later("/v1/batches") && dialect.works_later("/v1/files"));
    /// assert!(!dialect.works_later("/v1/chat/completions"));
    /// ```
    pub fn works_later(&self, path: &str) -> bool {
        let begins = |part: String| BEGUN.contains(&part.as_str());
        self.provider().is_language_model()
            && (parts(path).any(|part| is_later(&part)) || !self.answers_prompt(path) && parts(path).any(begins))
    }

    /// Whether a call that does more than read goes to a model, so that what its body asks for counts. The path is decoded.
    pub fn takes_model(&self, path: &str) -> bool {
        const ANYWHERE: [&str; 3] = ["completions", "embeddings", "responses"];
        let is_of_models = self.provider().is_language_model() && takes_tokens(path);
        is_of_models || parts(path).any(|part| ANYWHERE.contains(&part.as_str()))
    }

    /// Whether the body of such a call is JSON at every API that has that path, and no form with files.
    pub fn takes_json_alone(&self, path: &str) -> bool {
        const PROMPTS: [&str; 6] = ["completions", "converse", "conversestream", "embeddings", "messages", "responses"];
        let generates = |part: &str| part.rsplit_once(':').is_some_and(|(_, action)| action.ends_with("content"));
        parts(path).any(|part| PROMPTS.contains(&part.as_str()) || generates(&part))
    }
}

/// Members of a body, and parameters of a query, that ask for an answer which another call fetches later: `background` of OpenAI
/// and Gemini, `deferred` of xAI.
const LATER: [&str; 2] = ["background", "deferred"];

/// Whether a member of a body, or a parameter of a query, of that name may ask for an answer that another call fetches later.
pub fn names_later(name: &str) -> bool {
    is_one_of(&LATER, name)
}

/// Whether the body of a call to a model asks for an answer that another one fetches later, so that its own tells no usage. Where
/// it has such a member more than once, or in another case of letters, one that says so is enough: servers differ.
///
/// ```
/// use paceline_providers::answers_later;
/// assert!(answers_later(br#"{"background":true,"background":false}"#) && answers_later(br#"{"extra_body":{"Deferred":1}}"#));
/// assert!(!answers_later(br#"{"background":false,"metadata":{"background":true}}"#));
/// ```
pub fn answers_later(body: &[u8]) -> bool {
    let mut is_later = false;
    let read = Later { found: &mut is_later, is_asked: false };
    let is_read = read.deserialize(&mut serde_json::Deserializer::from_slice(body)).is_ok();
    // What is nested too deep to be read here may be read by a server.
    is_later || !is_read && is_json(body)
}

/// Whether a body is one JSON value, and nothing after it.
pub fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

/// Looks for such members in a value.
struct Later<'a> {
    found: &'a mut bool,
    /// It is the value of one.
    is_asked: bool,
}

impl Later<'_> {
    const fn says(self, is_yes: bool) {
        *self.found |= self.is_asked && is_yes;
    }
}

impl<'de> DeserializeSeed<'de> for Later<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Later<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        *self.found |= self.is_asked;
        while let Some(Text(key)) = entries.next_key()? {
            if names_later(&key) || is_one_of(&[EXTRA], &key) {
                entries.next_value_seed(Later { found: self.found, is_asked: names_later(&key) })?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        *self.found |= self.is_asked;
        while elements.next_element_seed(Later { found: self.found, is_asked: false })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.says(true);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, is_yes: bool) -> Result<(), E> {
        self.says(is_yes);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.says(true);
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.says(true);
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.says(true);
        Ok(())
    }
}

/// The parts of a path, in small letters, as servers take them that are lax: without what stands behind `;`, and without `-` and
/// `_`.
pub(super) fn parts(path: &str) -> impl Iterator<Item = String> {
    let plain = |part: &str| {
        let part = part.split(';').next().unwrap_or_default().trim();
        part.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
    };
    path.split(['?', '#']).next().unwrap_or_default().split(['/', '\\']).map(plain)
}

/// Whether work behind such a part of a path is done later.
fn is_later(part: &str) -> bool {
    let (name, action) = part.split_once(':').unwrap_or((part, ""));
    // Gemini answers that one at once.
    let acts_later = action.contains("batch") && action != "batchembedcontents";
    acts_later
        || action.contains("longrunning")
        || name.starts_with("batch")
        || name.ends_with("batches")
        || name.ends_with("jobs")
        || name.ends_with("job")
        || COLLECTIONS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::*;

    #[test]
    fn work_for_later_is_known_by_the_path_of_each_api() {
        let later = |path: &str| Dialect::from(Provider::OpenAi).works_later(path);
        for path in [
            "/v1/batches",
            "/v1//Batches/",
            "/v1/batches/batch_1/cancel",
            "/openai/batches?api-version=x",
            "/v1/files;a",
            "/v1/files ",
            "/v1\\batches",
            "/v1/uploads/u_1/parts",
            "/v1/fine_tuning/jobs",
            "/v1/threads/t_1/runs",
            "/v1/messages/batches",
            "/v1/batch/jobs",
            "/v1beta/models/gemini-2.5-pro:batchGenerateContent",
            "/v1beta/models/gemini-embedding-001:asyncBatchEmbedContent",
            "/upload/v1beta/files",
            "/v1/embed-jobs",
            "/v1/projects/p/locations/l/batchPredictionJobs",
            "/v1/accounts/a/batchInferenceJobs",
            "/model-invocation-job",
            "/async-invoke",
            "/async/chat/completions",
            "/v1/vector_stores/v/file_batches",
            "/v1/videos/v/remix",
            "/v1/realtime/client_secrets",
            "/v1/chatkit/sessions",
            "/v1beta/models/veo-3:predictLongRunning",
            "/v1beta/tunedModels",
            "/v1/sessions",
            "/v1/agents",
            "/v1/agents/x/run",
        ] {
            assert!(later(path), "{path}");
        }
        for path in [
            "/v1/chat/completions?x=/batches",
            "/v1/responses",
            "/v1/embeddings",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/agents/completions",
            "/v1beta/tunedModels/mine:generateContent",
            "/v1/audio/transcriptions",
            "/v1beta/models/gemini-2.5-pro:generateContent",
            "/v1beta/models/gemini-embedding-001:batchEmbedContents",
            "/model/anthropic.claude-v2:1/invoke",
            "/openai/deployments/jobs-4o/chat/completions",
            "",
        ] {
            assert!(!later(path), "{path}");
        }
        assert!(!Dialect::from(Provider::GitHub).works_later("/repos/a/b/batches"), "no work for a model");
    }

    #[test]
    fn a_body_that_asks_for_a_later_answer_is_known_however_it_says_so() {
        for (body, later) in [
            (r#"{"background":"true"}"#, true),
            (r#"{"deferred":1}"#, true),
            (r#"{"background":false}"#, false),
            (r#"{"background":null}"#, false),
            (r#"{"background":true,"background":false}"#, true),
            (r#"{"background":false,"background":true}"#, true),
            (r#"{"Background":true}"#, true),
            (r#"{"bac\u006bground":true}"#, true),
            (r#"{"bac\u212aground":true}"#, true),
            (r#"{"extra_body":{"background":true}}"#, true),
            (r#"[{"background":true}]"#, true),
            (r#"{"background":{}}"#, true),
            (r#"{"background":[]}"#, true),
            (r#"{"background":true"#, true),
            (r#"{"metadata":{"background":true},"messages":[{"deferred":1}]}"#, false),
            (&format!(r#"{{"extra_body":{}1{},"background":true}}"#, "[".repeat(200), "]".repeat(200)), true),
            (&format!(r#"{{"input":{}1{},"background":false}}"#, "[".repeat(200), "]".repeat(200)), false),
            ("no object", false),
            ("", false),
        ] {
            assert_eq!(answers_later(body.as_bytes()), later, "{body}");
        }
    }

    #[test]
    fn calls_to_models_are_known_by_their_api_or_by_their_path() {
        for (provider, path, takes_model, takes_json_alone) in [
            (Provider::OpenAi, "/v1/x", true, false),
            (Provider::OpenAi, "/v1/audio/transcriptions", false, false),
            (Provider::OpenAi, "/v1/images/edits", false, false),
            (Provider::OpenAi, "/models/chat/completions", true, true),
            (Provider::Azure, "/openai/deployments/d/audio/transcriptions", true, false),
            (Provider::Gemini, "/v1beta/models/m:generateContent", true, true),
            (Provider::Bedrock, "/model/m/converse-stream", true, true),
            (Provider::Generic, "/v1//Responses/?x=1", true, true),
            (Provider::Generic, "/v1/responses;x/", true, true),
            (Provider::Generic, "/v1/pictures", false, false),
            (Provider::Generic, "/channels/7/messages", false, true),
        ] {
            let dialect = Dialect::from(provider);
            let found = (dialect.takes_model(path), dialect.takes_json_alone(path));
            assert_eq!(found, (takes_model, takes_json_alone), "{provider} {path}");
        }
    }
}
