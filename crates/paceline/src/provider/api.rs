//! What is known about each API beside its answers: addresses, keys, headers, scopes.

use std::fmt;

use http::header::InvalidHeaderValue;
use http::{HeaderName, HeaderValue};

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
    /// Any HTTP API: standards and widespread habits only.
    #[default]
    Generic,
}

/// One row per provider.
struct Facts {
    name: &'static str,
    key_variable: Option<&'static str>,
    base_url: Option<&'static str>,
    /// The header that carries the key, and what stands before it.
    key_header: (&'static str, &'static str),
    /// Headers that every request needs.
    headers: &'static [(&'static str, &'static str)],
    idempotency_header: Option<&'static str>,
    /// Limits belong to an endpoint and a model; otherwise to the account as one.
    scoped: bool,
}

const OPENAI: Facts = Facts {
    name: "openai",
    key_variable: Some("OPENAI_API_KEY"),
    base_url: Some("https://api.openai.com/v1"),
    key_header: ("authorization", "Bearer "),
    headers: &[],
    idempotency_header: Some("idempotency-key"),
    scoped: true,
};

const AZURE: Facts = Facts {
    name: "azure",
    key_variable: Some("AZURE_OPENAI_API_KEY"),
    base_url: None,
    key_header: ("api-key", ""),
    headers: &[],
    idempotency_header: None,
    scoped: true,
};

const ANTHROPIC: Facts = Facts {
    name: "anthropic",
    key_variable: Some("ANTHROPIC_API_KEY"),
    base_url: Some("https://api.anthropic.com"),
    key_header: ("x-api-key", ""),
    headers: &[("anthropic-version", "2023-06-01")],
    idempotency_header: Some("idempotency-key"),
    scoped: true,
};

const GENERIC: Facts = Facts {
    name: "generic",
    key_variable: None,
    base_url: None,
    key_header: ("authorization", "Bearer "),
    headers: &[],
    idempotency_header: None,
    scoped: false,
};

impl Provider {
    /// All providers, the generic one last.
    pub const ALL: [Self; 4] = [Self::OpenAi, Self::Azure, Self::Anthropic, Self::Generic];

    /// The name used in files, flags and JSON.
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// The provider of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == name)
    }

    /// The environment variable that usually holds the key.
    pub const fn key_variable(self) -> Option<&'static str> {
        self.facts().key_variable
    }

    /// The public address, without a slash at its end; none where every customer has an address of his own.
    pub const fn base_url(self) -> Option<&'static str> {
        self.facts().base_url
    }

    /// The header that authenticates a request. The value is marked sensitive, so that it prints as such.
    ///
    /// # Errors
    /// The key holds bytes that no header may carry, such as a line break.
    pub fn key_header(self, key: &str) -> Result<(HeaderName, HeaderValue), InvalidHeaderValue> {
        let (name, before) = self.facts().key_header;
        let mut value = HeaderValue::from_str(&format!("{before}{key}"))?;
        value.set_sensitive(true);
        Ok((HeaderName::from_static(name), value))
    }

    /// Headers that every request needs beside its key.
    pub fn headers(self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        self.facts().headers.iter().map(pair)
    }

    /// The header that names a request, so that its repetition can be recognised, where the API accepts one.
    pub fn idempotency_header(self) -> Option<HeaderName> {
        self.facts().idempotency_header.map(HeaderName::from_static)
    }

    /// The name of the scope that a call belongs to: its path and model for an LLM API, always the same one otherwise.
    /// A query string does not count.
    pub fn scope_name(self, path: &str, model: Option<&str>) -> String {
        if !self.facts().scoped {
            return "all".to_owned();
        }
        let path = path.split(['?', '#']).next().unwrap_or_default();
        model.map_or_else(|| path.to_owned(), |model| format!("{path} {model}"))
    }

    /// Whether a success is a JSON object: always at the endpoints that answer with nothing else, elsewhere unless the
    /// content type names another format. A page of HTML is nobody's result, but for the content of a file.
    pub(super) fn must_be_json(self, path: &str, content_type: &str) -> bool {
        if self == Self::Generic {
            return false;
        }
        let path = path.split(['?', '#']).next().unwrap_or_default();
        match path.trim_end_matches('/').rsplit('/').next() {
            Some("completions" | "responses" | "messages" | "embeddings" | "moderations" | "count_tokens") => true,
            Some("content") => false,
            _ => {
                let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                matches!(&*media_type, "" | "application/json" | "text/html") || media_type.ends_with("+json")
            }
        }
    }

    /// Whether the provider admits a call only when there is room for all the tokens that it may produce.
    pub(super) const fn reserves_output(self) -> bool {
        !matches!(self, Self::Anthropic)
    }

    const fn facts(self) -> Facts {
        match self {
            Self::OpenAi => OPENAI,
            Self::Azure => AZURE,
            Self::Anthropic => ANTHROPIC,
            Self::Generic => GENERIC,
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
    fn names_are_unique_and_come_back() {
        for provider in Provider::ALL {
            assert_eq!(Provider::from_name(provider.as_str()), Some(provider));
            assert_eq!(provider.headers().count(), provider.facts().headers.len());
            provider.idempotency_header();
        }
        assert_eq!(Provider::from_name("nobody"), None);
    }

    #[test]
    fn keys_travel_in_the_providers_own_header_and_never_print() {
        for (provider, name, value) in [
            (Provider::OpenAi, "authorization", "Bearer k"),
            (Provider::Azure, "api-key", "k"),
            (Provider::Anthropic, "x-api-key", "k"),
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
    fn a_scope_is_an_endpoint_and_a_model() {
        let name = |provider: Provider| provider.scope_name("/v1/chat/completions?x=1", Some("m"));
        assert_eq!(name(Provider::OpenAi), "/v1/chat/completions m");
        assert_eq!(name(Provider::Generic), "all");
        assert_eq!(
            Provider::Azure.scope_name("/openai/deployments/d/embeddings", None),
            "/openai/deployments/d/embeddings"
        );
    }
}
