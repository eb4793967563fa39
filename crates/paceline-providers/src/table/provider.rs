//! What is known about each API beside its answers: addresses, keys, headers, scopes.

use std::fmt;

use http::header::InvalidHeaderValue;
use http::{HeaderName, HeaderValue};

use super::{Kind, Table};
use crate::address::path_before;

/// A dialect: how an API says that it is limited, and how it is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// OpenAI, and servers that copy its limits as well as its API.
    OpenAi,
    /// Azure OpenAI: the same API with other headers; limits belong to a deployment.
    Azure,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's Gemini API and Vertex AI.
    Gemini,
    /// Amazon Bedrock's runtime.
    Bedrock,
    /// Mistral's API.
    Mistral,
    /// Cohere's API.
    Cohere,
    /// Groq's API.
    Groq,
    /// Together AI's API.
    Together,
    /// Fireworks AI's API.
    Fireworks,
    /// OpenRouter.
    OpenRouter,
    /// DeepSeek's API.
    DeepSeek,
    /// xAI's API.
    XAi,
    /// Perplexity's API.
    Perplexity,
    /// Moonshot's Kimi API.
    Moonshot,
    /// Zhipu's GLM API.
    Zhipu,
    /// MiniMax's API.
    MiniMax,
    /// JSON services of AWS.
    Aws,
    /// Amazon DynamoDB.
    DynamoDb,
    /// GitHub, REST and GraphQL.
    GitHub,
    /// Slack's Web API.
    Slack,
    /// Stripe.
    Stripe,
    /// Shopify's Admin API.
    Shopify,
    /// Notion's API.
    Notion,
    /// Discord's API.
    Discord,
    /// X's API.
    X,
    /// Cloudflare's API.
    Cloudflare,
    /// ACME certificate authorities, such as Let's Encrypt.
    Acme,
    /// Any HTTP API: standards and widespread habits only.
    #[default]
    Generic,
}

/// Name and table of each provider, in declaration order.
const FILES: [(Provider, &str, &str); Provider::ALL.len()] = [
    (Provider::OpenAi, "openai", include_str!("../tables/openai.toml")),
    (Provider::Azure, "azure", include_str!("../tables/azure.toml")),
    (Provider::Anthropic, "anthropic", include_str!("../tables/anthropic.toml")),
    (Provider::Gemini, "gemini", include_str!("../tables/gemini.toml")),
    (Provider::Bedrock, "bedrock", include_str!("../tables/bedrock.toml")),
    (Provider::Mistral, "mistral", include_str!("../tables/mistral.toml")),
    (Provider::Cohere, "cohere", include_str!("../tables/cohere.toml")),
    (Provider::Groq, "groq", include_str!("../tables/groq.toml")),
    (Provider::Together, "together", include_str!("../tables/together.toml")),
    (Provider::Fireworks, "fireworks", include_str!("../tables/fireworks.toml")),
    (Provider::OpenRouter, "openrouter", include_str!("../tables/openrouter.toml")),
    (Provider::DeepSeek, "deepseek", include_str!("../tables/deepseek.toml")),
    (Provider::XAi, "xai", include_str!("../tables/xai.toml")),
    (Provider::Perplexity, "perplexity", include_str!("../tables/perplexity.toml")),
    (Provider::Moonshot, "moonshot", include_str!("../tables/moonshot.toml")),
    (Provider::Zhipu, "zhipu", include_str!("../tables/zhipu.toml")),
    (Provider::MiniMax, "minimax", include_str!("../tables/minimax.toml")),
    (Provider::Aws, "aws", include_str!("../tables/aws.toml")),
    (Provider::DynamoDb, "dynamodb", include_str!("../tables/dynamodb.toml")),
    (Provider::GitHub, "github", include_str!("../tables/github.toml")),
    (Provider::Slack, "slack", include_str!("../tables/slack.toml")),
    (Provider::Stripe, "stripe", include_str!("../tables/stripe.toml")),
    (Provider::Shopify, "shopify", include_str!("../tables/shopify.toml")),
    (Provider::Notion, "notion", include_str!("../tables/notion.toml")),
    (Provider::Discord, "discord", include_str!("../tables/discord.toml")),
    (Provider::X, "x", include_str!("../tables/x.toml")),
    (Provider::Cloudflare, "cloudflare", include_str!("../tables/cloudflare.toml")),
    (Provider::Acme, "acme", include_str!("../tables/acme.toml")),
    (Provider::Generic, "generic", include_str!("../tables/generic.toml")),
];

impl Provider {
    /// All providers, in declaration order; the generic one is the last.
    pub const ALL: [Self; 29] = [
        Self::OpenAi,
        Self::Azure,
        Self::Anthropic,
        Self::Gemini,
        Self::Bedrock,
        Self::Mistral,
        Self::Cohere,
        Self::Groq,
        Self::Together,
        Self::Fireworks,
        Self::OpenRouter,
        Self::DeepSeek,
        Self::XAi,
        Self::Perplexity,
        Self::Moonshot,
        Self::Zhipu,
        Self::MiniMax,
        Self::Aws,
        Self::DynamoDb,
        Self::GitHub,
        Self::Slack,
        Self::Stripe,
        Self::Shopify,
        Self::Notion,
        Self::Discord,
        Self::X,
        Self::Cloudflare,
        Self::Acme,
        Self::Generic,
    ];

    /// The name used in files, flags and JSON.
    pub const fn as_str(self) -> &'static str {
        FILES[self as usize].1
    }

    /// The provider of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == name)
    }

    /// Everything that is known about it.
    pub fn table(self) -> &'static Table {
        Table::of(self)
    }

    /// Its table as it is written.
    pub(super) const fn table_text(self) -> &'static str {
        FILES[self as usize].2
    }

    /// Whether a call of that path is a prompt for a model, of which a second one has no effect but its cost: at an API of
    /// language models every call, elsewhere those of the paths under which any server takes prompts.
    pub(crate) fn is_prompt(self, path: &str) -> bool {
        const ANYWHERE: [&str; 2] = ["/completions", "/embeddings"];
        let path = path_before(path, b"?#");
        self.is_language_model() || ANYWHERE.iter().any(|end| path.trim_end_matches('/').ends_with(end))
    }

    /// Whether its calls are prompts for a model, which take objects and answer with objects.
    pub fn is_language_model(self) -> bool {
        self.table().kind == Kind::LanguageModel
    }

    /// The environment variable that usually holds the key.
    pub fn key_variable(self) -> Option<&'static str> {
        self.table().api.key_variable.as_deref()
    }

    /// The public address, without a slash at its end; none where every customer has an address of his own.
    pub fn base_url(self) -> Option<&'static str> {
        self.table().api.base_url.as_deref()
    }

    /// The environment variables in which the provider's own libraries look for another address, the first of them first.
    pub fn base_url_variables(self) -> impl Iterator<Item = &'static str> {
        self.table().api.base_url_variables.iter().map(String::as_str)
    }

    /// Where requests go that name no path.
    pub fn endpoint(self) -> Option<&'static str> {
        self.table().api.endpoint.as_deref()
    }

    /// Whether a call for the other provider has the right form here: both are one, take prompts under one path, or one of
    /// them is generic, of which nothing is known.
    pub fn takes_calls_for(self, other: Self) -> bool {
        let is_generic = |provider| provider == Self::Generic;
        self == other
            || is_generic(self)
            || is_generic(other)
            || self.endpoint().is_some_and(|endpoint| other.endpoint() == Some(endpoint))
    }

    /// The key of a chat completion's body that bounds its answer, in tokens.
    pub fn answer_bound(self) -> &'static str {
        &self.table().api.answer_bound
    }

    /// The header that authenticates a request. The value is marked sensitive, so that it prints as such.
    ///
    /// # Errors
    /// The key holds bytes that no header may carry, such as a line break.
    pub fn key_header(self, key: &str) -> Result<(HeaderName, HeaderValue), InvalidHeaderValue> {
        let api = &self.table().api;
        let mut value = HeaderValue::from_str(&format!("{}{key}", api.key_prefix))?;
        value.set_sensitive(true);
        Ok((api.key_header.clone(), value))
    }

    /// Headers that every request needs beside its key.
    pub fn headers(self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.table().api.headers.clone().into_iter()
    }

    /// The header that names a request, so that its repetition can be recognised, where the API accepts one.
    pub fn idempotency_header(self) -> Option<HeaderName> {
        self.table().api.idempotency_header.clone()
    }

    /// The name of the scope that a call belongs to; see [`Dialect::scope_name`](crate::Dialect::scope_name).
    pub fn scope_name(self, path: &str, model: Option<&str>, body: &[u8]) -> String {
        self.table().api.scope_name(path, model, body)
    }

    /// Whether a success is a JSON object: always at the endpoints that answer with nothing else, elsewhere unless the
    /// content type names another format. A page of HTML is no call's result, but for the content of a file.
    pub(crate) fn must_be_json(self, path: &str, content_type: &str) -> bool {
        if !self.is_language_model() {
            return false;
        }
        let path = path_before(path, b"?#");
        match path.trim_end_matches('/').rsplit('/').next() {
            Some("completions" | "responses" | "messages" | "embeddings" | "moderations" | "count_tokens") => true,
            Some("content") => false,
            _ => {
                let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                matches!(&*media_type, "" | "application/json" | "text/html") || media_type.ends_with("+json")
            }
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_name_a_request_are_those_of_the_tables() {
        let mut names: Vec<_> = Provider::ALL.iter().map(|provider| &provider.table().errors.request_id).collect();
        let mut known = std::collections::BTreeSet::new();
        names.retain(|name| *name != crate::dialect::NONCE && known.insert(name.as_str()));
        assert_eq!(crate::table::COMMON.request_ids.iter().collect::<Vec<_>>(), names);
    }

    #[test]
    fn names_are_unique_and_come_back() {
        for provider in Provider::ALL {
            assert_eq!(Provider::from_name(provider.as_str()), Some(provider));
            assert_eq!(FILES[provider as usize].0, provider, "in declaration order");
            provider.table();
        }
        assert_eq!(Provider::from_name("nobody"), None);
    }

    #[test]
    fn keys_travel_in_the_providers_own_header_and_never_print() {
        for (provider, name, value) in [
            (Provider::OpenAi, "authorization", "Bearer k"),
            (Provider::Azure, "api-key", "k"),
            (Provider::Anthropic, "x-api-key", "k"),
            (Provider::Discord, "authorization", "Bot k"),
            (Provider::Gemini, "x-goog-api-key", "k"),
            (Provider::Generic, "authorization", "Bearer k"),
        ] {
            let (header, sent) = provider.key_header("k").expect("a plain key");
            assert_eq!((header.as_str(), sent.as_bytes()), (name, value.as_bytes()));
            assert_eq!(format!("{sent:?}"), "Sensitive");
        }
        assert!(Provider::OpenAi.key_header("two\nlines").is_err());
    }

    #[test]
    fn what_a_success_must_be_follows_the_path_and_then_the_content_type() {
        for (path, content_type, must) in [
            ("/v1/chat/completions", "text/plain", true),
            ("/v1/messages/?beta=true", "audio/mpeg", true),
            ("/openai/deployments/d/embeddings", "", true),
            ("/v1/audio/speech", "audio/mpeg", false),
            ("/v1/audio/speech", "Text/HTML; charset=utf-8", true),
            ("/v1/audio/transcriptions", "text/plain; charset=utf-8", false),
            ("/v1/files/f/content", "text/html", false),
            ("/v1/files", "application/problem+json", true),
            ("/v1/anything", "", true),
            ("", "application/octet-stream", false),
        ] {
            assert_eq!(Provider::OpenAi.must_be_json(path, content_type), must, "{path} {content_type}");
            assert!(!Provider::Generic.must_be_json(path, content_type), "{path} {content_type}");
        }
    }

    #[test]
    fn calls_have_the_same_form_where_prompts_have_the_same_path() {
        use Provider::{Anthropic, Gemini, Generic, OpenAi, OpenRouter, Stripe};
        for (one, other, expected) in [
            (OpenAi, OpenRouter, true),
            (OpenAi, Anthropic, false),
            (Anthropic, Generic, true),
            (Gemini, Gemini, true),
            (Gemini, Stripe, false),
        ] {
            let both = (one.takes_calls_for(other), other.takes_calls_for(one));
            assert_eq!(both, (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn a_scope_is_an_endpoint_and_a_model() {
        let name = |provider: Provider| provider.scope_name("/v1/chat/completions?x=1", Some("m"), b"{}");
        assert_eq!(name(Provider::OpenAi), "/v1/chat/completions m");
        assert_eq!(name(Provider::Generic), "all");
        assert_eq!(name(Provider::Slack), "/v1/chat/completions");
        assert_eq!(Provider::GitHub.scope_name("/repos/a/b", None, b""), "all");
        assert_eq!(Provider::GitHub.scope_name("/search/code?q=x", None, b""), "code_search");
        assert_eq!(Provider::GitHub.scope_name("/search/issues", None, b""), "search");
        assert_eq!(
            Provider::Azure.scope_name("/openai/deployments/d/embeddings", None, b""),
            "/openai/deployments/d/embeddings"
        );
    }
}
