//! The tokens of an answer that reports none, by the length of its texts: the form around them is none of them.

use serde_json::Value;

use super::prompt::{Prompt, Text, Texts, quarters_of};
use super::reported::Reported;
use super::{Answer, header, stream};

/// Members whose texts are parts of the answer, in every dialect.
const TEXTS: [&str; 14] = [
    "content",
    "text",
    "delta",
    "reasoning",
    "reasoning_content",
    "thinking",
    "partial_json",
    "arguments",
    "refusal",
    // Of Ollama, of TGI, and of the models of Bedrock.
    "response",
    "generated_text",
    "outputText",
    "completion",
    "generation",
];

/// The tokens that a whole answer seems to have.
pub(super) fn tokens_of(answer: &Answer<'_>) -> u64 {
    of_quarters(texts_of(answer).unwrap_or_else(|| Prompt::of(answer.body).quarters))
}

/// The tokens of the texts of a whole answer; none where it has no member that is known to hold one.
pub(super) fn tokens_of_texts(answer: &Answer<'_>) -> u64 {
    of_quarters(texts_of(answer).unwrap_or_default())
}

/// The tokens that seem to have come of an answer that was cut off after so many bytes, of which its body is a part.
pub(super) fn tokens_so_far(answer: &Answer<'_>, came: u64) -> u64 {
    let kept = answer.body.len() as u64;
    match texts_of(answer) {
        Some(texts) => of_quarters(texts.saturating_mul(came.max(kept)) / kept.max(1)),
        None => tokens_in(came.max(kept)),
    }
}

/// The usage that a stream has told so far, and whether nothing more comes of its answer: it is the whole.
pub(super) fn told_so_far(answer: &Answer<'_>) -> Option<(Reported, bool)> {
    let kind = header::first(answer.headers, "content-type").unwrap_or_default();
    let stream = stream::read_any(answer.body, kind)?;
    Some((stream.usage()?, stream.has_all()))
}

/// Whether it is a stream of which no text has come.
pub(super) fn is_silent_stream(answer: &Answer<'_>) -> bool {
    texts_of_events(answer).is_some_and(|texts| texts.is_none_or(|texts| texts == 0))
}

/// The tokens that so many bytes seem to have, of which nothing is known.
pub(super) const fn tokens_in(bytes: u64) -> u64 {
    of_quarters(Prompt::of_unread(bytes).quarters)
}

const fn of_quarters(quarters: u64) -> u64 {
    quarters.div_ceil(4)
}

/// The texts of an answer so far, whether or not it has ended, in quarters of a token; none where it has no member that is known
/// to hold one.
fn texts_of(answer: &Answer<'_>) -> Option<u64> {
    texts_of_events(answer).unwrap_or_else(|| texts_of_json(answer.body))
}

/// The same of a stream; none of what is none.
fn texts_of_events(answer: &Answer<'_>) -> Option<Option<u64>> {
    fn add(texts: &mut Option<u64>, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| add(texts, value)),
            Value::Object(members) => members.iter().for_each(|(key, value)| match value {
                Value::String(text) if TEXTS.contains(&key.as_str()) => {
                    *texts.get_or_insert(0) += quarters_of(text.as_bytes());
                }
                value => add(texts, value),
            }),
            _ => {}
        }
    }
    let kind = header::first(answer.headers, "content-type").unwrap_or_default();
    let mut texts = None;
    let is_stream = stream::each_of_any(answer.body, kind, |event| {
        // What has ended is told once more.
        if ![".done", ".completed"].iter().any(|end| event.kind().ends_with(end)) {
            add(&mut texts, &event.value);
        }
    });
    is_stream.is_some().then_some(texts)
}

/// Of JSON that may be cut off.
fn texts_of_json(body: &[u8]) -> Option<u64> {
    let (mut texts, mut key) = (None, &b""[..]);
    for Text { before, text } in Texts(body) {
        if before == b":" && TEXTS.iter().any(|known| known.as_bytes() == key) {
            *texts.get_or_insert(0) += quarters_of(text);
        }
        key = text;
    }
    texts
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::{CONTENT_TYPE, HeaderValue};

    use super::*;

    fn tokens(kind: &'static str, body: &str, came: Option<u64>) -> u64 {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let answer = Answer { status: 200, headers: &headers, body: body.as_bytes(), path: "/v1/chat/completions" };
        came.map_or_else(|| tokens_of(&answer), |came| tokens_so_far(&answer, came))
    }

    #[test]
    fn the_texts_of_an_answer_count_and_its_form_does_not() {
        for (body, expected) in [
            (r#"{"choices":[{"message":{"role":"assistant","content":"four"}}],"model":"a-long-name-of-a-model"}"#, 1),
            (r#"{"choices":[{"message":{"content":""}}],"id":"chatcmpl-0123456789abcdef"}"#, 0),
            (r#"{"choices":[{"text":"eight..."},{"text":"four"}]}"#, 3),
            (r#"{"choices":[{"message":{"content":null,"tool_calls":[{"function":{"arguments":"{\"a\": 1}"}}]}}]}"#, 3),
            (r#"{"output":[{"content":[{"type":"output_text","text":"four"}]}]}"#, 1),
            (r#"{"content":[{"type":"thinking","thinking":"four"},{"type":"text","text":"four"}]}"#, 2),
            (r#"{"candidates":[{"content":{"parts":[{"text":"\u4e2d"}]}}]}"#, 1),
            (r#"{"choices":[{"message":{"content":"an \"text\":\"x\" inside"#, 6),
            ("sixteen letters.", 4),
            (r#"{"answer":"seventeen"}"#, 6),
        ] {
            assert_eq!(tokens("application/json", body, None), expected, "{body}");
        }
    }

    #[test]
    fn what_came_counts_and_what_was_kept_of_it_says_how_much_of_that_is_text() {
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"four\"}}]}\n\n";
        assert_eq!(tokens("text/event-stream", stream, Some(0)), 1);
        assert_eq!(tokens("text/event-stream", stream, Some(10 * stream.len() as u64)), 10);
        let cut = r#"{"choices":[{"message":{"content":"four"#;
        assert_eq!(tokens("application/json", cut, Some(0)), 1);
        assert_eq!(tokens("application/json", "", Some(400)), 100, "none was kept");
    }
}
