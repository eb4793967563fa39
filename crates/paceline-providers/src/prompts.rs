//! Which paths of the APIs of language models are known to answer a prompt, and nothing else: a call there keeps nothing at the
//! provider that is another's, makes no keys, and tells with its answer what it took. And which are known to show nothing of
//! others where they are read.

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

/// Parts below which models are described.
const MODELS: [&str; 4] = ["models", "model", "engines", "foundationmodels"];

/// Below each such part one answer is read by its id, which a provider makes too long to be guessed. Without an id some
/// list the answers of all.
const BY_ID: [&str; 3] = ["completions", "responses", "interactions"];

/// The last parts of other paths where nothing of a program is read, or what the query names by such an id.
const HARMLESS: [&str; 5] = ["tags", "version", "health", "ping", "generation"];

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

    /// Whether a GET of that path, which is decoded, is known to show nothing of other programs with the same key, by the forms
    /// that the APIs of language models have: models, and one answer by its id. Files, stored prompts and lists are not.
    ///
    /// ```
    /// use paceline_providers::{Dialect, Provider};
    /// let dialect = Dialect::from(Provider::OpenAi);
    /// assert!(dialect.shows_nothing_of_others("/v1/models") && dialect.shows_nothing_of_others("/v1/responses/resp_1"));
    /// assert!(!dialect.shows_nothing_of_others("/v1/files") && !dialect.shows_nothing_of_others("/v1/chat/completions"));
    /// ```
    pub fn shows_nothing_of_others(&self, path: &str) -> bool {
        let parts: Vec<_> = parts(path).filter(|part| !part.is_empty()).collect();
        let Some((last, before)) = parts.split_last() else { return true };
        let is_in = |list: &[&str], part: &String| list.contains(&part.as_str());
        self.provider().is_language_model()
            && !parts.iter().any(|part| is_in(&KEPT, part))
            && (parts.iter().any(|part| is_in(&MODELS, part))
                || before.iter().any(|part| is_in(&BY_ID, part))
                || is_in(&HARMLESS, last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::*;

    #[test]
    fn what_is_read_of_others_is_known_by_its_path() {
        for (provider, path, expected) in [
            (Provider::OpenAi, "/v1/models", true),
            (Provider::OpenAi, "/v1/models/gpt-4o?x=1", true),
            (Provider::OpenAi, "/v1/responses/resp_1", true),
            (Provider::OpenAi, "/v1/responses/resp_1/input_items", true),
            (Provider::OpenAi, "/v1/chat/completions/chatcmpl_1/messages", true),
            (Provider::OpenRouter, "/api/v1/generation?id=gen-1", true),
            (Provider::Gemini, "/v1beta/models", true),
            (Provider::Azure, "/openai/models", true),
            (Provider::OpenAi, "/", true),
            (Provider::OpenAi, "/v1/chat/completions", false),
            (Provider::OpenAi, "/v1/files", false),
            (Provider::OpenAi, "/v1/files/f/content", false),
            (Provider::OpenAi, "/v1/batches", false),
            (Provider::OpenAi, "/v1/organization/admin_api_keys", false),
            (Provider::OpenAi, "/v1/organization/projects/p/models", false),
            (Provider::OpenAi, "/v1/vector_stores/v/files", false),
            (Provider::OpenAi, "/v1/conversations/c/items", false),
            (Provider::Anthropic, "/v1/messages/batches", false),
            (Provider::Gemini, "/v1beta/cachedContents", false),
            (Provider::Gemini, "/v1beta/tunedModels", false),
        ] {
            assert_eq!(Dialect::from(provider).shows_nothing_of_others(path), expected, "{provider} {path}");
        }
    }

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
