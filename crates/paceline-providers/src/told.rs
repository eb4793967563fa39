//! Answers of each API with usage where it tells it, through the whole reader: of a call that had 6,000 tokens of input and 4,000
//! of output, and allowed an answer of 5.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_core::{Class, Dimension, Timestamp};
use serde_json::{Value, json};

use super::frames::{self, tests::frame};
use super::outline::Asked;
use super::{Answer, Dialect, Provider, TokenRatio};

/// A whole answer.
fn whole(value: &Value) -> (&'static str, Vec<u8>) {
    ("application/json", value.to_string().into_bytes())
}

/// Server-sent events, and what ends a stream of choices.
fn events(values: &[Value]) -> (&'static str, Vec<u8>) {
    let text: String = values.iter().map(|value| format!("data: {value}\n\n")).collect();
    let end = if values.iter().any(|value| value["choices"].is_array()) { "data: [DONE]\n\n" } else { "" };
    ("text/event-stream; charset=utf-8", (text + end).into_bytes())
}

/// Frames of AWS around the events of a model.
fn packed(values: &[Value]) -> (&'static str, Vec<u8>) {
    use base64::Engine as _;
    let pack = |value: &Value| base64::engine::general_purpose::STANDARD.encode(value.to_string());
    let frames = values.iter().flat_map(|value| frame("event", "chunk", &json!({"bytes": pack(value)}).to_string()));
    (frames::MEDIA_TYPE, frames.collect())
}

/// The tokens of input and of output that such an answer is read with, and what counts of it against the limit of a client.
fn counted(
    provider: Provider,
    path: &str,
    fields: &[(&str, &str)],
    answer: (&'static str, Vec<u8>),
) -> (u64, u64, u64) {
    let (kind, body) = answer;
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    for (name, value) in fields {
        headers.insert(name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"));
    }
    let dialect = Dialect::from(provider);
    let request = br#"{"max_tokens":5,"messages":[]}"#;
    let reserved = dialect.charge(path, request, &TokenRatio::default());
    let reserved = dialect.charge_elsewhere(path, request, &Asked::of(request), &reserved, &TokenRatio::default());
    let answer = Answer { status: 200, headers: &headers, body: &body, path };
    let reading = dialect.read(&answer, Timestamp::from_millis(0));
    assert_eq!(reading.class, Class::Success, "{provider} {path}: {:?}", reading.message);
    let used = reading.used_of(&reserved, &reserved).expect("it tells its usage");
    let usage = reading.usage.unwrap_or_default();
    (usage.prompt_tokens(), usage.output_tokens, used.get(&Dimension::Tokens))
}

#[test]
fn usage_is_read_wherever_an_api_tells_it() {
    let chat = json!({"prompt_tokens": 6_000, "completion_tokens": 4_000, "total_tokens": 10_000});
    let cohere = json!({"billed_units": {"input_tokens": 9, "output_tokens": 4}, "tokens": {"input_tokens": 6_000, "output_tokens": 4_000}});
    let metrics = json!({"inputTokenCount": 6_000, "outputTokenCount": 4_000, "invocationLatency": 900});
    let says = |more: Value| {
        let mut choice = json!({"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"});
        choice.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"object": "chat.completion.chunk", "choices": [choice]})
    };
    let mut groq = says(json!({}));
    groq["x_groq"] = json!({"id": "x", "usage": chat});
    let text = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}});
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 6_000, "output_tokens": 1}}});
    let stop = json!({"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics});
    let llama =
        json!({"generation": "hi", "prompt_token_count": null, "generation_token_count": 1, "stop_reason": null});
    let last = json!({"generation": "", "prompt_token_count": null, "generation_token_count": 4_000, "stop_reason": "stop",
        "amazon-bedrock-invocationMetrics": metrics});
    let titan = json!({"inputTextTokenCount": 6_000, "results": [{"tokenCount": 4_000, "outputText": "hi"}]});
    let end = json!({"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": cohere}});
    let old_end = json!({"event_type": "stream-end", "response": {"text": "hi", "meta": cohere}});
    let lines =
        ("application/stream+json", format!("{}\n{old_end}\n", json!({"event_type": "text-generation", "text": "hi"})));
    let research = json!({"prompt_tokens": 1_000, "completion_tokens": 1_000, "total_tokens": 2_000, "citation_tokens": 5_000,
        "reasoning_tokens": 3_000, "num_search_queries": 20});
    let rounds = json!({"input_tokens": 1_000, "output_tokens": 500, "iterations": [
        {"type": "compaction", "input_tokens": 5_000, "output_tokens": 3_500}, {"type": "message", "input_tokens": 1_000, "output_tokens": 500}]});
    let invoke = "/model/meta.llama3-8b-instruct-v1:0/invoke-with-response-stream";
    for (provider, path, answer) in [
        (Provider::Groq, "/openai/v1/chat/completions", events(&[says(json!({})), groq])),
        (Provider::Moonshot, "/v1/chat/completions", events(&[says(json!({"usage": chat}))])),
        (Provider::Cohere, "/v2/chat", events(&[end])),
        (Provider::Cohere, "/v1/chat", events(std::slice::from_ref(&old_end))),
        (Provider::Cohere, "/v1/chat", (lines.0, lines.1.into_bytes())),
        (Provider::Bedrock, "/model/anthropic.claude-v2/invoke-with-response-stream", packed(&[start, text, stop])),
        (Provider::Bedrock, invoke, packed(&[llama, last])),
        (
            Provider::Bedrock,
            "/model/meta.llama/invoke",
            whole(&json!({"generation": "hi", "prompt_token_count": 6_000, "generation_token_count": 4_000})),
        ),
        (Provider::Bedrock, "/model/amazon.titan/invoke", whole(&titan)),
        (Provider::Perplexity, "/chat/completions", whole(&json!({"choices": [], "usage": research}))),
        (Provider::Anthropic, "/v1/messages", whole(&json!({"content": [], "usage": rounds}))),
    ] {
        assert_eq!(counted(provider, path, &[], answer), (6_000, 4_000, 10_000), "{provider} {path}");
    }
    let fields = [("x-amzn-bedrock-input-token-count", "6000"), ("x-amzn-bedrock-output-token-count", "4000")];
    let told = whole(&json!({"outputs": [{"text": "hi"}]}));
    assert_eq!(counted(Provider::Bedrock, "/model/cohere.command/invoke", &fields, told), (6_000, 4_000, 10_000));
}

#[test]
fn what_has_no_answer_tells_its_prompt_alone() {
    let vertex = json!({"predictions": [{"embeddings": {"values": [0.5], "statistics": {"token_count": 2_000, "truncated": false}}},
        {"embeddings": {"statistics": {"token_count": 4_000}}}]});
    for (provider, path, answer) in [
        (Provider::Cohere, "/v2/embed", json!({"embeddings": {}, "meta": {"billed_units": {"input_tokens": 6_000}}})),
        (Provider::Cohere, "/v2/embed", json!({"meta": {"billed_units": {"images": 1, "image_tokens": 6_000}}})),
        (Provider::Gemini, "/v1/projects/p/publishers/google/models/text-embedding-005:predict", vertex),
        (
            Provider::Bedrock,
            "/model/amazon.titan-embed-text-v2:0/invoke",
            json!({"embedding": [0.5], "inputTextTokenCount": 6_000}),
        ),
    ] {
        assert_eq!(counted(provider, path, &[], whole(&answer)), (6_000, 0, 6_000), "{provider} {path}");
    }
    let fields = [("x-amzn-bedrock-input-token-count", "6000")];
    let told =
        counted(Provider::Bedrock, "/model/cohere.embed-v4/invoke", &fields, whole(&json!({"embeddings": [[0.5]]})));
    assert_eq!(told, (6_000, 0, 6_000));
}

#[test]
fn a_stream_whose_lines_end_with_a_carriage_return_is_read() {
    let (kind, body) = events(&[json!({"choices": [], "usage": {"prompt_tokens": 6_000, "completion_tokens": 4_000}})]);
    let body = String::from_utf8(body).expect("text").replace('\n', "\r").into_bytes();
    assert_eq!(counted(Provider::OpenAi, "/v1/chat/completions", &[], (kind, body)), (6_000, 4_000, 10_000));
}

#[test]
fn several_choices_that_tell_their_own_usage_add_up() {
    let choice = |index: u64| {
        json!({"choices": [{"index": index, "delta": {}, "finish_reason": "stop",
            "usage": {"prompt_tokens": 6_000, "completion_tokens": 2_000, "total_tokens": 8_000}}]})
    };
    let told = counted(Provider::Moonshot, "/v1/chat/completions", &[], events(&[choice(0), choice(1)]));
    assert_eq!(told, (6_000, 4_000, 10_000));
}

/// Perplexity and MiniMax end their streams so.
#[test]
fn a_stream_has_ended_once_each_of_its_choices_has() {
    let usage = json!({"prompt_tokens": 6_000, "completion_tokens": 4_000, "total_tokens": 10_000});
    let chunk = |index: u64, finish: Option<&str>| json!({"choices": [{"index": index, "delta": {"content": "hi"}, "finish_reason": finish}], "usage": usage});
    let without_end = |values: &[Value]| {
        let text: String = values.iter().map(|value| format!("data: {value}\n\n")).collect();
        ("text/event-stream", text.into_bytes())
    };
    for (provider, path) in
        [(Provider::Perplexity, "/chat/completions"), (Provider::MiniMax, "/v1/text/chatcompletion_v2")]
    {
        let whole = without_end(&[chunk(0, None), chunk(0, Some("stop"))]);
        assert_eq!(counted(provider, path, &[], whole), (6_000, 4_000, 10_000));
        for cut in [&[chunk(0, None)][..], &[chunk(0, Some("stop")), chunk(1, None)]] {
            let (kind, body) = without_end(cut);
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            let answer = Answer { status: 200, headers: &headers, body: &body, path };
            let read = Dialect::from(provider).read(&answer, Timestamp::from_millis(0));
            assert_eq!(read.code.as_deref(), Some("truncated"), "{provider} {cut:?}");
        }
        let (kind, body) = without_end(&[chunk(0, None), chunk(0, Some("stop"))]);
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let whole = crate::collect(&Answer { status: 200, headers: &headers, body: &body, path }).expect("it ended");
        assert_eq!(whole["choices"][0]["message"]["content"], "hihi");
    }
}

#[test]
fn interactions_tell_their_usage_at_their_end() {
    let usage = json!({"total_tokens": 10_000, "total_input_tokens": 6_000, "total_output_tokens": 3_000, "total_thought_tokens": 1_000});
    for end in ["interaction.completed", "interaction.complete"] {
        let all = [
            json!({"event_type": "interaction.created", "interaction": {"id": "v1_1", "status": "in_progress"}}),
            json!({"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "hi"}}),
            json!({"event_type": end, "interaction": {"id": "v1_1", "status": "completed", "usage": usage}}),
        ];
        for done in ["", "data: [DONE]\n\n"] {
            let (kind, body) = events(&all);
            let body = [&body[..], done.as_bytes()].concat();
            assert_eq!(counted(Provider::Gemini, "/v1beta/interactions", &[], (kind, body)), (6_000, 4_000, 10_000));
        }
    }
}

/// Of a stream that is too long to be kept whole the last events are read.
#[test]
fn the_last_events_of_a_long_stream_are_a_stream_that_ended() {
    let text = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}});
    let usage = json!({"input_tokens": 6_000, "output_tokens": 4_000});
    let last = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage});
    let all = [text, last, json!({"type": "message_stop"})];
    assert_eq!(counted(Provider::Anthropic, "/v1/messages", &[], events(&all)), (6_000, 4_000, 10_000));
    let path = "/model/m/invoke-with-response-stream";
    assert_eq!(counted(Provider::Bedrock, path, &[], packed(&all)), (6_000, 4_000, 10_000));
}

/// As Cohere's chat, whose form around a message is in no bill.
#[test]
fn a_bill_that_has_fewer_tokens_of_the_prompt_is_what_the_prompt_costs() {
    let usage = json!({"billed_units": {"input_tokens": 5, "output_tokens": 18}, "tokens": {"input_tokens": 71, "output_tokens": 18}});
    let body = json!({"message": {"content": []}, "usage": usage}).to_string();
    let answer = Answer { status: 200, headers: &HeaderMap::new(), body: body.as_bytes(), path: "/v2/chat" };
    let usage = Dialect::from(Provider::Cohere).read(&answer, Timestamp::from_millis(0)).usage.expect("it tells");
    assert_eq!((usage.prompt_tokens(), usage.priced_input(), usage.output_tokens), (71, 5, 18));
}

/// What of such an answer counts against the limit of a client, of its prompt and of what it says: of a call whose prompt has
/// some 1,000 tokens, and that allows an answer of 500.
fn halves(provider: Provider, path: &str, kind: &'static str, body: &str) -> (u64, u64) {
    let (class, halves) = halves_of_any(provider, path, kind, body);
    assert_eq!(class, Class::Success, "{provider} {body}");
    halves
}

/// The same of an answer that may be no success, and what it is.
fn halves_of_any(provider: Provider, path: &str, kind: &'static str, body: &str) -> (Class, (u64, u64)) {
    let text = "x ".repeat(2_000);
    let bound = if provider == Provider::Gemini {
        r#""generationConfig":{"maxOutputTokens":500}"#
    } else {
        r#""max_tokens":500"#
    };
    let request = format!(r#"{{{bound},"messages":[{{"content":"{text}"}}]}}"#).into_bytes();
    let (dialect, ratio, asked) = (Dialect::from(provider), TokenRatio::default(), Asked::of(&request));
    let reserved = dialect.charge(path, &request, &ratio);
    let reserved = dialect.charge_elsewhere(path, &request, &asked, &reserved, &ratio);
    let untold = dialect.untold(path, &request, &asked, &reserved).made(&reserved);
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    let reading = dialect
        .read(&Answer { status: 200, headers: &headers, body: body.as_bytes(), path }, Timestamp::from_millis(0));
    let used = reading.used_of(&reserved, &untold).unwrap_or(untold);
    let [all, input, output] =
        [Dimension::Tokens, Dimension::InputTokens, Dimension::OutputTokens].map(|dimension| used.get(&dimension));
    assert_eq!(all, input + output, "{provider} {body}");
    assert!(reserved.get(&Dimension::InputTokens) > 1_000, "{reserved:?}");
    (reading.class, (if input == reserved.get(&Dimension::InputTokens) { RESERVED } else { input }, output))
}

/// Stands for what the prompt had reserved.
const RESERVED: u64 = u64::MAX;

#[test]
fn what_cannot_be_read_of_a_usage_counts_with_its_bound() {
    let chat = |usage: &str| format!(r#"{{"choices":[{{"message":{{"content":"hi"}}}}],"usage":{usage}}}"#);
    for (usage, expected) in [
        (r#"{"prompt_tokens":9,"completion_tokens":7}"#, (9, 7)),
        (r#"{"prompt_tokens":9}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":null}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":-7}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":"7"}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":1e30}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":7.5}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":[7]}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":false,"total_tokens":12}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":null,"total_tokens":12}"#, (9, 3)),
        (r#"{"completion_tokens":7}"#, (RESERVED, 7)),
        (r#"{"prompt_tokens":"9","completion_tokens":7,"total_tokens":16}"#, (RESERVED, 7)),
        (r#"{"prompt_tokens":-9,"completion_tokens":7}"#, (RESERVED, 7)),
        (r#"{"prompt_tokens":"9","completion_tokens":"7","total_tokens":16}"#, (RESERVED, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":7.0,"completion_tokens":3}"#, (9, 7)),
        (r#"{"prompt_tokens":9,"completion_tokens":3,"completion_tokens":7}"#, (9, 7)),
        (r#"{"prompt_tokens":9,"completion_tokens":3,"completion_tokens":"7"}"#, (9, 500)),
        (r#"{"prompt_tokens":9,"completion_tokens":900,"completion_tokens":"7"}"#, (9, 900)),
        (r#"{"prompt_tokens":9,"completion_tokens":7},"usage":{"prompt_tokens":1,"completion_tokens":1}"#, (9, 7)),
        (r#"{"prompt_tokens":9,"completion_tokens":7},"usage":5"#, (RESERVED, 500)),
        ("5", (RESERVED, 500)),
        // An answer of no tokens has those of its texts.
        (r#"{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}"#, (9, 1)),
        (r#"{"prompt_tokens":9,"total_tokens":9}"#, (9, 1)),
    ] {
        let path = "/v1/chat/completions";
        assert_eq!(halves(Provider::OpenAi, path, "application/json", &chat(usage)), expected, "{usage}");
        let stream = format!("data: {}\n\ndata: [DONE]\n\n", chat(usage).replace("message", "delta"));
        assert_eq!(halves(Provider::OpenAi, path, "text/event-stream", &stream), expected, "{usage}");
    }
    let embedded = r#"{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":9}}"#;
    assert_eq!(halves(Provider::OpenAi, "/v1/embeddings", "application/json", embedded), (9, 0), "it has no answer");
}

#[test]
fn nor_does_that_of_a_message() {
    let (path, start) =
        ("/v1/messages", r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#);
    for (usage, expected) in [
        (r#"{"input_tokens":9,"output_tokens":7}"#, (9, 7)),
        (r#"{"input_tokens":9}"#, (9, 500)),
        (r#"{"input_tokens":9,"output_tokens":"7"}"#, (9, 500)),
        (r#"{"input_tokens":9,"cache_read_input_tokens":"2000","output_tokens":7}"#, (RESERVED, 7)),
        (r#"{"input_tokens":9,"cache_read_input_tokens":null,"output_tokens":7}"#, (9, 7)),
        (r#"{"input_tokens":9,"output_tokens":7,"output_tokens":3}"#, (9, 7)),
        (r#"{"output_tokens":7,"iterations":[{"input_tokens":9,"output_tokens":7}]}"#, (9, 7)),
        (r#"{"input_tokens":9,"iterations":[{"input_tokens":9,"output_tokens":7}]}"#, (9, 7)),
        (r#"{"output_tokens":7,"iterations":[{"input_tokens":"9","output_tokens":7}]}"#, (RESERVED, 7)),
        (r#"{"input_tokens":9,"output_tokens":"7","iterations":[{"input_tokens":9,"output_tokens":7}]}"#, (9, 500)),
    ] {
        let whole = format!(r#"{{"content":[{{"type":"text","text":"hi"}}],"usage":{usage}}}"#);
        assert_eq!(halves(Provider::Anthropic, path, "application/json", &whole), expected, "{usage}");
        let delta = format!(r#"{{"type":"message_delta","delta":{{}},"usage":{usage}}}"#);
        let stream = format!("data: {start}\n\ndata: {delta}\n\ndata: {{\"type\":\"message_stop\"}}\n\n");
        assert_eq!(halves(Provider::Anthropic, path, "text/event-stream", &stream), expected, "{usage}");
    }
    let of = |delta: &str| {
        let stream = format!("data: {start}\n\n{delta}data: {{\"type\":\"message_stop\"}}\n\n");
        halves(Provider::Anthropic, path, "text/event-stream", &stream)
    };
    let delta = |usage: &str| format!("data: {{\"type\":\"message_delta\",\"delta\":{{}},\"usage\":{usage}}}\n\n");
    assert_eq!(of(""), (9, 500), "its beginning says nothing of its end");
    assert_eq!(of(&delta(r#"{"output_tokens":7}"#)), (9, 7));
    assert_eq!(of(&[delta(r#"{"output_tokens":700}"#), delta(r#"{"output_tokens":7}"#)].concat()), (9, 700));
    assert_eq!(of(&delta(r#"{"input_tokens":3,"output_tokens":7}"#)), (9, 7), "a count of all so far does not fall");
}

#[test]
fn a_stream_that_its_server_refuses_in_its_middle_counts_with_what_came() {
    let start = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#;
    let text = format!(
        r#"data: {{"type":"content_block_delta","delta":{{"type":"text_delta","text":"{}"}}}}"#,
        "x".repeat(80)
    );
    let error = |kind: &str| format!(r#"data: {{"type":"error","error":{{"type":"{kind}","message":"Try later"}}}}"#);
    for (kind, expected) in [
        ("overloaded_error", Class::Overloaded),
        ("rate_limit_error", Class::Throttled),
        ("api_error", Class::Transient),
    ] {
        for (came, output) in [(start.to_owned(), 1), (format!("{start}\n\n{text}"), 20)] {
            let stream = format!("{came}\n\n{}\n\n", error(kind));
            let found = halves_of_any(Provider::Anthropic, "/v1/messages", "text/event-stream", &stream);
            assert_eq!(found, (expected, (9, output)), "{stream}");
        }
    }
    let refusal = r#"data: {"type":"message_delta","delta":{"stop_reason":"refusal"}}"#;
    let stream = format!("{start}\n\n{refusal}\n\ndata: {{\"type\":\"message_stop\"}}\n\n");
    let found = halves_of_any(Provider::Anthropic, "/v1/messages", "text/event-stream", &stream);
    assert_eq!(found, (Class::Filtered, (9, 500)), "its answer was made to its end");
}

#[test]
fn what_an_answer_says_of_itself_is_no_usage() {
    let (usage, path) = (r#""usage":{"prompt_tokens":9,"completion_tokens":7}"#, "/v1/chat/completions");
    for more in [r#""meta":"eu-1""#, r#""meta":7"#, r#""meta":[{}]"#, r#""response":{"meta":"eu-1"}"#] {
        let body = format!(r#"{{"choices":[],{usage},{more}}}"#);
        assert_eq!(halves(Provider::OpenAi, path, "application/json", &body), (9, 7), "{more}");
        for stream in [format!("data: {body}\n\n"), format!("data: {{{usage}}}\n\ndata: {{{more}}}\n\n")] {
            let stream = stream + "data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
            assert_eq!(halves(Provider::OpenAi, path, "text/event-stream", &stream), (9, 7), "{stream}");
        }
    }
    let path = "/v1beta/models/m:generateContent";
    let body = r#"{"usage":0,"candidates":[],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":7}}"#;
    assert_eq!(halves(Provider::Gemini, path, "application/json", body), (9, 7), "the first place that tells");
}

/// Each of its choices has tokens of its own: what one tells is not what the other has.
#[test]
fn choices_of_which_one_tells_no_tokens_count_with_the_bound() {
    let choice = |index: u64, usage: &str| {
        format!("data: {{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\",\"usage\":{usage}}}]}}\n\n")
    };
    let stream = choice(0, r#"{"prompt_tokens":9,"completion_tokens":7}"#) + &choice(1, r#"{"prompt_tokens":9}"#);
    assert_eq!(halves(Provider::Moonshot, "/v1/chat/completions", "text/event-stream", &stream), (9, 500));
}

#[test]
fn nor_does_that_of_gemini_which_leaves_out_an_answer_of_no_tokens() {
    let path = "/v1beta/models/m:streamGenerateContent";
    for (usage, expected) in [
        (r#"{"promptTokenCount":9,"candidatesTokenCount":7,"totalTokenCount":16}"#, (9, 7)),
        (r#"{"promptTokenCount":9,"thoughtsTokenCount":7,"totalTokenCount":16}"#, (9, 7)),
        (r#"{"promptTokenCount":9,"totalTokenCount":9}"#, (9, 1)),
        (r#"{"promptTokenCount":9}"#, (9, 500)),
        (r#"{"promptTokenCount":9,"candidatesTokenCount":"7","totalTokenCount":16}"#, (9, 500)),
        (r#"{"promptTokenCount":9,"candidatesTokenCount":7,"thoughtsTokenCount":"90"}"#, (9, 500)),
        (r#"{"promptTokenCount":9,"candidatesTokenCount":7,"candidatesTokenCount":3}"#, (9, 7)),
    ] {
        let whole = format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"hi"}}]}},"finishReason":"STOP"}}],"usageMetadata":{usage}}}"#
        );
        assert_eq!(halves(Provider::Gemini, path, "application/json", &whole), expected, "{usage}");
        let stream = format!("data: {whole}\n\n");
        assert_eq!(halves(Provider::Gemini, path, "text/event-stream", &stream), expected, "{usage}");
    }
    let (path, body) =
        ("/v1beta/models/m:embedContent", r#"{"embedding":{"values":[0.5]},"usageMetadata":{"promptTokenCount":9}}"#);
    assert_eq!(halves(Provider::Gemini, path, "application/json", body), (9, 0), "it has no answer");
}
