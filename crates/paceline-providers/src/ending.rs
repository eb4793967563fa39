//! Why a choice of an answer ended.

use serde_json::Value;

use super::body::Body;

/// Why a choice ended for which DeepSeek had no capacity left.
pub(super) const NO_CAPACITY: &str = "insufficient_system_resource";

/// Why a choice, or a candidate, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Because of its content.
    Refused,
    /// The service ran out of capacity.
    Starved,
    /// In an error.
    Failed,
    /// At the limit on its tokens.
    AtLimit,
    /// Any other way, or not at all.
    Usual,
}

impl Ending {
    pub(super) fn of(choice: &Value) -> Self {
        const OF_GOOGLE: [&str; 5] = ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"];
        match (choice["finish_reason"].as_str(), choice["finishReason"].as_str()) {
            (Some("content_filter"), _) => Self::Refused,
            (_, Some(reason)) if OF_GOOGLE.contains(&reason) => Self::Refused,
            (Some(NO_CAPACITY), _) => Self::Starved,
            (Some("error"), _) => Self::Failed,
            (Some("length"), _) | (_, Some("MAX_TOKENS")) => Self::AtLimit,
            _ => Self::Usual,
        }
    }
}

/// Whether an answer, or one of its choices, ended at the limit on its tokens.
pub(super) fn is_at_limit(body: &Body) -> bool {
    if let Some(stream) = &body.stream {
        return stream.is_at_limit();
    }
    let choices = ["choices", "candidates"].into_iter().filter_map(|key| body.root.get(key)?.as_array()).flatten();
    let message = body.root.get("stop_reason").is_some_and(|reason| reason == OF_MESSAGES);
    let response = body.root.get("incomplete_details").is_some_and(|details| details["reason"] == OF_RESPONSES);
    message || response || choices.map(Ending::of).any(|ending| ending == Ending::AtLimit)
}

/// Why a message of Anthropic's form ended at the limit on its tokens.
pub(super) const OF_MESSAGES: &str = "max_tokens";

/// Why a response of OpenAI's did.
pub(super) const OF_RESPONSES: &str = "max_output_tokens";

#[cfg(test)]
mod tests {
    use crate::{Answer, Dialect, Provider};

    #[test]
    fn an_answer_that_ends_at_the_limit_on_its_tokens_is_a_success_that_says_so() {
        let read = |provider: Provider, path: &str, body: &str| {
            let answer = Answer { status: 200, headers: &http::HeaderMap::new(), body: body.as_bytes(), path };
            let reading = Dialect::from(provider).read(&answer, paceline_core::Timestamp::from_millis(0));
            (reading.class, reading.at_token_limit)
        };
        let chat =
            |ending: &str| format!(r#"{{"choices":[{{"finish_reason":"stop"}},{{"finish_reason":"{ending}"}}]}}"#);
        let message = |ending: &str| format!(r#"{{"type":"message","content":[],"stop_reason":"{ending}"}}"#);
        let gemini = |ending: &str| format!(r#"{{"candidates":[{{"finishReason":"{ending}"}}]}}"#);
        let response = |reason: &str| {
            format!(r#"{{"object":"response","status":"incomplete","incomplete_details":{{"reason":"{reason}"}}}}"#)
        };
        let streamed = |ending: &str| {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{ending}\"}}]}}\n\ndata: [DONE]\n\n"
            )
        };
        let (chats, messages) = ("/v1/chat/completions", "/v1/messages");
        for (provider, path, body, is_cut) in [
            (Provider::OpenAi, chats, chat("length"), true),
            (Provider::OpenAi, chats, chat("stop"), false),
            (Provider::Generic, chats, chat("length"), true),
            (Provider::OpenAi, chats, streamed("length"), true),
            (Provider::OpenAi, chats, streamed("stop"), false),
            (Provider::OpenAi, "/v1/responses", response("max_output_tokens"), true),
            (Provider::Anthropic, messages, message("max_tokens"), true),
            (Provider::Anthropic, messages, message("end_turn"), false),
            (Provider::Gemini, "/v1beta/models/m:generateContent", gemini("MAX_TOKENS"), true),
            (Provider::Gemini, "/v1beta/models/m:generateContent", gemini("STOP"), false),
        ] {
            assert_eq!(read(provider, path, &body), (paceline_core::Class::Success, is_cut), "{body}");
        }
    }
}
