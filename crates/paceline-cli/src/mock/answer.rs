//! The answers of a mock that has admitted a call: whole objects and streams, shaped like the providers'.

use paceline_core::Timestamp;
use serde_json::{Value, json};

use super::call::{Call, Endpoint};

/// The whole answer as one object. `number` makes ids unique.
pub(crate) fn object(call: &Call, number: u64, now: Timestamp) -> Value {
    let created = now.as_millis() / 1_000;
    let text = words(call).collect::<String>();
    match call.endpoint {
        Endpoint::Chat => json!({
            "id": format!("chatcmpl-mock-{number}"),
            "object": "chat.completion",
            "created": created,
            "model": call.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": null,
                "finish_reason": finish_reason(call),
            }],
            "usage": chat_usage(call),
        }),
        Endpoint::Completions => json!({
            "id": format!("cmpl-mock-{number}"),
            "object": "text_completion",
            "created": created,
            "model": call.model,
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason(call)}],
            "usage": chat_usage(call),
        }),
        Endpoint::Embeddings => embeddings(call),
        Endpoint::Responses => response(call, number, created, &text),
        Endpoint::Messages => {
            let content = json!([{"type": "text", "text": text}]);
            message(call, number, content, Some(stop_reason(call)), call.answer_tokens)
        }
        Endpoint::Generate => generated(call, &text, true),
        Endpoint::Converse => json!({
            "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
            "stopReason": stop_reason(call),
            "usage": {
                "inputTokens": call.prompt_tokens,
                "outputTokens": call.answer_tokens,
                "totalTokens": call.prompt_tokens + call.answer_tokens,
            },
            "metrics": {"latencyMs": 1},
        }),
        Endpoint::DynamoDb => match call.operation.as_deref() {
            Some("BatchWriteItem") => json!({"UnprocessedItems": {}}),
            Some("BatchGetItem") => json!({"Responses": {}, "UnprocessedKeys": {}}),
            Some("Query" | "Scan") => json!({"Items": [], "Count": 0, "ScannedCount": 0}),
            _ => json!({}),
        },
        Endpoint::Other => json!({
            "id": format!("mock-{number}"),
            "object": "mock.answer",
            "created": created,
            "path": call.path,
        }),
    }
}

/// The answer in the pieces of a server-sent event stream, in order; the client has all of it when it has the last.
pub(crate) fn stream(call: &Call, number: u64, now: Timestamp) -> Vec<String> {
    let created = now.as_millis() / 1_000;
    match call.endpoint {
        Endpoint::Chat => chat_stream(call, number, created),
        Endpoint::Completions => completion_stream(call, number, created),
        Endpoint::Responses => response_stream(call, number, created),
        Endpoint::Messages => message_stream(call, number),
        Endpoint::Generate => generated_stream(call),
        Endpoint::Embeddings | Endpoint::Converse | Endpoint::DynamoDb | Endpoint::Other => Vec::new(),
    }
}

/// A piece of a stream of choices.
fn chunk(call: &Call, head: &Value, choices: Value, usage: Value) -> String {
    let mut chunk = head.clone();
    chunk["model"] = json!(call.model);
    chunk["choices"] = choices;
    if call.include_usage {
        chunk["usage"] = usage;
    }
    data(&chunk)
}

fn chat_stream(call: &Call, number: u64, created: i64) -> Vec<String> {
    let head = json!({"id": format!("chatcmpl-mock-{number}"), "object": "chat.completion.chunk", "created": created});
    let chunk = |choices: Value, usage: Value| chunk(call, &head, choices, usage);
    let delta = |delta: Value, finish: Value| {
        chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]), Value::Null)
    };
    let mut pieces = vec![delta(json!({"role": "assistant", "content": ""}), Value::Null)];
    pieces.extend(words(call).map(|word| delta(json!({"content": word}), Value::Null)));
    pieces.push(delta(json!({}), finish_reason(call).into()));
    if call.include_usage {
        pieces.push(chunk(json!([]), chat_usage(call)));
    }
    pieces.push(DONE.to_owned());
    pieces
}

fn completion_stream(call: &Call, number: u64, created: i64) -> Vec<String> {
    let head = json!({"id": format!("cmpl-mock-{number}"), "object": "text_completion", "created": created});
    let chunk = |choices: Value, usage: Value| chunk(call, &head, choices, usage);
    let text = |text: &str, finish: Value| {
        chunk(json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": finish}]), Value::Null)
    };
    let mut pieces: Vec<String> = words(call).map(|word| text(word, Value::Null)).collect();
    pieces.push(text("", finish_reason(call).into()));
    if call.include_usage {
        pieces.push(chunk(json!([]), chat_usage(call)));
    }
    pieces.push(DONE.to_owned());
    pieces
}

fn response_stream(call: &Call, number: u64, created: i64) -> Vec<String> {
    let text = words(call).collect::<String>();
    let whole = response(call, number, created, &text);
    let mut started = whole.clone();
    started["status"] = "in_progress".into();
    started["output"] = json!([]);
    started["usage"] = Value::Null;
    started["incomplete_details"] = Value::Null;
    let mut pieces = vec![event("response.created", json!({"response": started}))];
    pieces.extend(words(call).map(|word| {
        let place =
            json!({"item_id": format!("msg_mock_{number}"), "output_index": 0, "content_index": 0, "delta": word});
        event("response.output_text.delta", place)
    }));
    let end = if call.cut { "response.incomplete" } else { "response.completed" };
    pieces.push(event(end, json!({"response": whole})));
    pieces
}

fn message_stream(call: &Call, number: u64) -> Vec<String> {
    let start = message(call, number, json!([]), None, 0);
    let mut pieces = vec![
        event("message_start", json!({"message": start})),
        event("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})),
    ];
    pieces.extend(
        words(call).map(|word| {
            event("content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": word}}))
        }),
    );
    pieces.push(event("content_block_stop", json!({"index": 0})));
    let delta = json!({"stop_reason": stop_reason(call), "stop_sequence": null});
    pieces.push(event("message_delta", json!({"delta": delta, "usage": {"output_tokens": call.answer_tokens}})));
    pieces.push(event("message_stop", json!({})));
    pieces
}

/// One object of Gemini's: the whole answer, or a piece of it, of which the last reports the usage.
fn generated(call: &Call, text: &str, last: bool) -> Value {
    let content = json!({"role": "model", "parts": [{"text": text}]});
    let mut answer = json!({"candidates": [{"index": 0, "content": content}], "modelVersion": call.model});
    if last {
        answer["candidates"][0]["finishReason"] = if call.cut { "MAX_TOKENS" } else { "STOP" }.into();
        answer["usageMetadata"] = json!({
            "promptTokenCount": call.prompt_tokens,
            "candidatesTokenCount": call.answer_tokens,
            "totalTokenCount": call.prompt_tokens + call.answer_tokens,
        });
    }
    answer
}

fn generated_stream(call: &Call) -> Vec<String> {
    let mut pieces: Vec<String> = words(call).map(|word| data(&generated(call, word, false))).collect();
    pieces.push(data(&generated(call, "", true)));
    pieces
}

fn message(call: &Call, number: u64, content: Value, stop: Option<&str>, answer_tokens: u64) -> Value {
    json!({
        "id": format!("msg_mock_{number}"),
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": null,
        "usage": {"input_tokens": call.prompt_tokens, "output_tokens": answer_tokens},
    })
}

fn response(call: &Call, number: u64, created: i64, text: &str) -> Value {
    let (status, details) = match call.cut {
        true => ("incomplete", json!({"reason": "max_output_tokens"})),
        false => ("completed", Value::Null),
    };
    json!({
        "id": format!("resp_mock_{number}"),
        "object": "response",
        "created_at": created,
        "status": status,
        "incomplete_details": details,
        "model": call.model,
        "output": [{
            "type": "message",
            "id": format!("msg_mock_{number}"),
            "status": status,
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }],
        "usage": {
            "input_tokens": call.prompt_tokens,
            "output_tokens": call.answer_tokens,
            "total_tokens": call.prompt_tokens + call.answer_tokens,
        },
    })
}

fn embeddings(call: &Call) -> Value {
    let (texts, numbers) = call.vectors;
    // Any unit vector will do, as long as it is one.
    let share = 1.0 / (numbers.max(1) as f64).sqrt();
    let data: Vec<Value> = (0..texts)
        .map(|index| json!({"object": "embedding", "index": index, "embedding": vec![share; numbers]}))
        .collect();
    let usage = json!({"prompt_tokens": call.prompt_tokens, "total_tokens": call.prompt_tokens});
    json!({"object": "list", "data": data, "model": call.model, "usage": usage})
}

fn chat_usage(call: &Call) -> Value {
    json!({
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.answer_tokens,
        "total_tokens": call.prompt_tokens + call.answer_tokens,
    })
}

const fn finish_reason(call: &Call) -> &'static str {
    if call.cut { "length" } else { "stop" }
}

const fn stop_reason(call: &Call) -> &'static str {
    if call.cut { "max_tokens" } else { "end_turn" }
}

/// One word a token, with the space that follows it.
fn words(call: &Call) -> impl Iterator<Item = &'static str> {
    const WORDS: [&str; 8] = ["An ", "answer ", "of ", "a ", "mock ", "costs ", "you ", "nothing. "];
    let tokens = usize::try_from(call.answer_tokens).unwrap_or(usize::MAX);
    WORDS.into_iter().cycle().take(tokens)
}

/// What ends OpenAI's streams of chunks.
const DONE: &str = "data: [DONE]\n\n";

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A named event; its data carry the name as `type` too.
fn event(name: &str, mut value: Value) -> String {
    value["type"] = name.into();
    format!("event: {name}\ndata: {value}\n\n")
}
