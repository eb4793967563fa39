//! Which paths of the APIs of language models are known to answer a prompt, and nothing else: a call there keeps nothing at the
//! provider that is another's, makes no keys, and tells with its answer what it took.

use super::Dialect;
use super::later::parts;

/// The last parts of such paths: in small letters, without `-` and `_`. The paths are those of the official SDKs.
const LAST: [&str; 31] = [
    "completions",
    "chatcompletionv2",
    "complete",
    "responses",
    "messages",
    "chat",
    "generate",
    "summarize",
    "converse",
    "conversestream",
    "invoke",
    "invokewithresponsestream",
    "interactions",
    "embeddings",
    "multimodalembeddings",
    "contextualizedembeddings",
    "embed",
    "rerank",
    "moderations",
    "classifications",
    "classify",
    "ocr",
    "search",
    "websearch",
    "counttokens",
    "tokenize",
    "tokenizetext",
    "detokenize",
    "imagegeneration",
    "t2av2",
    "apply",
];

/// The same with the part before it.
const LAST_TWO: [(&str, &str); 9] = [
    ("images", "generations"),
    ("image", "generations"),
    ("images", "edits"),
    ("images", "variations"),
    ("audio", "speech"),
    ("audio", "transcriptions"),
    ("audio", "translations"),
    ("responses", "compact"),
    ("responses", "inputtokens"),
];

/// What Google's servers are asked to do, behind the colon of the last part.
const ACTIONS: [&str; 9] = [
    "generatecontent",
    "streamgeneratecontent",
    "embedcontent",
    "batchembedcontents",
    "counttokens",
    "computetokens",
    "predict",
    "rawpredict",
    "streamrawpredict",
];

/// Parts under which a provider keeps something or works on, or that are for administrators.
const KEPT: [&str; 11] = [
    "threads",
    "assistants",
    "conversations",
    "sessions",
    "agents",
    "vectorstores",
    "containers",
    "filesearchstores",
    "organization",
    "organizations",
    "admin",
];

/// Paths below an agent that answer at once, as Mistral's `/v1/agents/completions`.
const OF_AGENTS: &str = "completions";

impl Dialect {
    /// Whether a POST to that path, which is decoded, is known to be answered by a language model and to do nothing else, by the
    /// forms that the APIs of language models have.
    ///
    /// ```
    /// use paceline_providers::{Dialect, Provider};
    /// let dialect = Dialect::from(Provider::OpenAi);
    /// assert!(dialect.answers_prompt("/v1/chat/completions") && !dialect.answers_prompt("/v1/chat/completions/chatcmpl_1"));
    /// assert!(!dialect.answers_prompt("/v1/organization/admin_api_keys") && !dialect.answers_prompt("/v1/vector_stores"));
    /// ```
    pub fn answers_prompt(&self, path: &str) -> bool {
        let parts: Vec<_> = parts(path).filter(|part| !part.is_empty()).collect();
        let Some((last, before)) = parts.split_last() else { return false };
        let next = |at: usize| parts.get(at + 1).map(String::as_str);
        let is_kept = |(at, part): (usize, &String)| {
            KEPT.contains(&part.as_str()) && !(part == "agents" && next(at) == Some(OF_AGENTS))
        };
        if !self.provider().is_language_model() || before.iter().enumerate().any(is_kept) {
            return false;
        }
        let two = before.last().map(|before| (before.as_str(), last.as_str()));
        let action = last.rsplit_once(':').map(|(_, action)| action);
        LAST.contains(&last.as_str())
            || two.is_some_and(|two| LAST_TWO.contains(&two))
            || action.is_some_and(|action| ACTIONS.contains(&action))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::*;

    #[test]
    fn the_paths_of_prompts_are_known_and_what_is_kept_is_none() {
        for (provider, path, expected) in [
            (Provider::OpenAi, "/v1/chat/completions", true),
            (Provider::OpenAi, "/v1//Chat/Completions/?x=1", true),
            (Provider::OpenAi, "/v1/responses", true),
            (Provider::OpenAi, "/v1/responses/compact", true),
            (Provider::OpenAi, "/v1/images/generations", true),
            (Provider::OpenAi, "/v1/audio/transcriptions", true),
            (Provider::Azure, "/openai/deployments/d/chat/completions", true),
            (Provider::Anthropic, "/v1/messages", true),
            (Provider::Anthropic, "/v1/messages/count_tokens", true),
            (Provider::Gemini, "/v1beta/models/g:generateContent", true),
            (Provider::Gemini, "/v1beta/tunedModels/g:streamGenerateContent", true),
            (Provider::Gemini, "/v1beta/models/g:batchEmbedContents", true),
            (Provider::Bedrock, "/model/anthropic.claude-v2:1/invoke-with-response-stream", true),
            (Provider::Mistral, "/v1/agents/completions", true),
            (Provider::Mistral, "/v1/fim/completions", true),
            (Provider::Cohere, "/v2/chat", true),
            (Provider::Cohere, "/v2/rerank", true),
            (Provider::OpenAi, "/v1/chat/completions/chatcmpl_1", false),
            (Provider::OpenAi, "/v1/responses/r/cancel", false),
            (Provider::OpenAi, "/v1/organization/admin_api_keys", false),
            (Provider::OpenAi, "/v1/organization/projects/p/service_accounts", false),
            (Provider::OpenAi, "/v1/organization/x/completions", false),
            (Provider::OpenAi, "/v1/threads/t/messages", false),
            (Provider::OpenAi, "/v1/vector_stores", false),
            (Provider::OpenAi, "/v1/vector_stores/v/search", false),
            (Provider::OpenAi, "/v1/containers", false),
            (Provider::OpenAi, "/v1/conversations", false),
            (Provider::OpenAi, "/v1/agents/x/run", false),
            (Provider::Anthropic, "/v1/sessions", false),
            (Provider::Anthropic, "/v1/sessions/s/messages", false),
            (Provider::Anthropic, "/v1/skills", false),
            (Provider::Anthropic, "/v1/messages/batches", false),
            (Provider::Gemini, "/v1beta/models/g:predictLongRunning", false),
            (Provider::Gemini, "/v1beta/models/g:batchGenerateContent", false),
            (Provider::Gemini, "/v1beta/tunedModels", false),
            (Provider::Gemini, "/v1beta/cachedContents", false),
            (Provider::OpenAi, "/", false),
            (Provider::Generic, "/v1/chat/completions", false),
        ] {
            assert_eq!(Dialect::from(provider).answers_prompt(path), expected, "{provider} {path}");
        }
    }
}
