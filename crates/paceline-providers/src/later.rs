//! Work that a call hands to its provider, to be done after its answer: no answer of the call says what that costs.

use super::{Asked, Dialect};

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
        let path = path.split(['?', '#']).next().unwrap_or_default();
        self.provider().is_language_model() && path.split(['/', '\\']).any(is_later)
    }

    /// Whether a call asks for an answer that another one fetches later, so that its own tells no usage: `background` of OpenAI
    /// and Gemini, `deferred` of xAI.
    pub fn answers_later(&self, path: &str, asked: &Asked) -> bool {
        const ANYWHERE: [&str; 2] = ["/responses", "/completions"];
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        asked.answers_later() && (self.provider().is_language_model() || ANYWHERE.iter().any(|end| path.ends_with(end)))
    }
}

/// Whether work behind a part of a path of that name is done later.
fn is_later(part: &str) -> bool {
    let part = part.split(';').next().unwrap_or_default().trim();
    let part: String = part.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect();
    let (name, action) = part.split_once(':').unwrap_or((&part, ""));
    // Gemini answers that one at once.
    let acts_later = action.contains("batch") && action != "batchembedcontents";
    acts_later
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
        ] {
            assert!(later(path), "{path}");
        }
        for path in [
            "/v1/chat/completions?x=/batches",
            "/v1/responses",
            "/v1/embeddings",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/audio/transcriptions",
            "/v1beta/models/gemini-2.5-pro:generateContent",
            "/v1beta/models/gemini-embedding-001:batchEmbedContents",
            "/model/anthropic.claude-v2:1/invoke",
            "/openai/deployments/jobs-4o/chat/completions",
            "",
        ] {
            assert!(!later(path), "{path}");
        }
        for (body, later) in
            [(r#"{"background":"true"}"#, true), (r#"{"deferred":1}"#, true), (r#"{"background":false}"#, false)]
        {
            assert_eq!(
                Dialect::from(Provider::OpenAi).answers_later("/x", &Asked::of(body.as_bytes())),
                later,
                "{body}"
            );
        }
        let asked = Asked::of(br#"{"background":true}"#);
        for (provider, path, expected) in [
            (Provider::OpenAi, "/v1/x", true),
            (Provider::Generic, "/v1/responses?x=1", true),
            (Provider::Generic, "/v1/pictures", false),
        ] {
            assert_eq!(Dialect::from(provider).answers_later(path, &asked), expected, "{path}");
        }
        assert!(!Dialect::from(Provider::GitHub).works_later("/repos/a/b/batches"), "no work for a model");
    }
}
