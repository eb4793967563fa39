//! Streams by the public references of the APIs, and the objects that they must become.

use http::{HeaderMap, HeaderValue};
use proptest::proptest;
use serde_json::json;

use super::*;

fn collected(body: &str) -> Option<Value> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("text/event-stream; charset=utf-8"));
    collect(&Answer { status: 200, headers: &headers, body: body.as_bytes(), path: "" })
}

/// A stream as OpenAI's: data only, and `[DONE]` at its end.
fn chunks(values: &[Value]) -> String {
    values.iter().map(|value| format!("data: {value}\n\n")).chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// A stream whose events carry their name twice, as Anthropic's and that of the Responses API.
fn events(values: &[Value]) -> String {
    values
        .iter()
        .map(|value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().expect("a type")))
        .collect()
}

fn chat(choices: &Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "service_tier": "default",
        "system_fingerprint": "fp", "choices": choices, "usage": null, "obfuscation": "x9"})
}

fn delta(index: u64, delta: &Value, finish: &Value) -> Value {
    chat(&json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}]))
}

#[test]
fn a_chat_of_two_choices_and_its_usage() {
    let none = Value::Null;
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11});
    let mut last = chat(&json!([]));
    last["usage"] = usage.clone();
    let stream = chunks(&[
        delta(1, &json!({"role": "assistant", "content": "", "refusal": null}), &none),
        delta(0, &json!({"role": "assistant", "content": "", "refusal": null}), &none),
        delta(0, &json!({"content": "Hé"}), &none),
        delta(1, &json!({"refusal": "I ca"}), &none),
        delta(0, &json!({"content": "llo"}), &none),
        delta(1, &json!({"refusal": "n't"}), &none),
        delta(1, &json!({}), &json!("stop")),
        delta(0, &json!({}), &json!("length")),
        last,
    ]);
    let choice = |index: u64, content: &str, refusal: Value, finish: &str| {
        json!({"index": index, "message": {"role": "assistant", "content": content, "refusal": refusal},
            "logprobs": null, "finish_reason": finish})
    };
    let expected = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
        "service_tier": "default", "system_fingerprint": "fp", "usage": usage,
        "choices": [choice(0, "Héllo", Value::Null, "length"), choice(1, "", json!("I can't"), "stop")]});
    assert_eq!(collected(&stream), Some(expected.clone()));
    assert_eq!(collected(&stream.replace('\n', "\r\n")), Some(expected));
}

#[test]
fn tool_calls_come_in_fragments_of_their_arguments() {
    let call = |call: Value| delta(0, &json!({"tool_calls": [call]}), &Value::Null);
    let begun = |index: u64, id: &str, name: &str| json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
    let more = |index: u64, arguments: &str| json!({"index": index, "function": {"arguments": arguments}});
    let stream = chunks(&[
        delta(0, &json!({"role": "assistant", "content": null}), &Value::Null),
        call(begun(1, "call_b", "time")),
        call(begun(0, "call_a", "weather")),
        call(more(0, "{\"city\":")),
        // Some servers repeat what they have said.
        call(
            json!({"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "\"Rom"}}),
        ),
        call(more(1, "{}")),
        call(more(0, "\"}")),
        delta(0, &json!({"role": "assistant"}), &json!("tool_calls")),
    ]);
    let object = collected(&stream).expect("whole");
    let function = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    assert_eq!(
        object["choices"][0],
        json!({"index": 0, "logprobs": null, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": null, "refusal": null,
            "tool_calls": [function("call_a", "weather", "{\"city\":\"Rom\"}"), function("call_b", "time", "{}")]}})
    );
    assert!(object.get("usage").is_none(), "nothing told it");
}

#[test]
fn log_probabilities_reasoning_and_keys_of_other_servers_are_kept() {
    let part = |token: &str, reasoning: Value, finish: Value| {
        json!({"id": "", "model": "", "created": 0, "object": "chat.completion.chunk", "provider": "p", "choices": [{
            "index": 0, "delta": {"content": token, "reasoning_content": reasoning},
            "logprobs": {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []}]}, "finish_reason": finish,
            "content_filter_results": {"hate": {"filtered": false, "severity": "safe"}}}]})
    };
    let mut second = part("b", json!("so"), Value::Null);
    (second["id"], second["model"], second["created"]) = (json!("id"), json!("m"), json!(7));
    let stream = chunks(&[part("a", json!("Hm, "), Value::Null), second, part("c", Value::Null, json!("stop"))]);
    let object = collected(&stream).expect("whole");
    assert_eq!(
        (&object["id"], &object["model"], &object["created"], &object["provider"]),
        (&json!("id"), &json!("m"), &json!(7), &json!("p"))
    );
    let choice = &object["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["message"]["reasoning_content"]),
        (&json!("abc"), &json!("Hm, so"))
    );
    assert_eq!(choice["logprobs"]["content"].as_array().map(Vec::len), Some(3));
    assert_eq!(choice["content_filter_results"]["hate"]["severity"], "safe");
}

#[test]
fn a_completion_without_chat() {
    let part = |text: &str, finish: Value| {
        json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [{"index": 0, "text": text,
            "logprobs": {"tokens": [text], "text_offset": [0]}, "finish_reason": finish}]})
    };
    let object = collected(&chunks(&[part("one ", Value::Null), part("two", json!("stop"))])).expect("whole");
    let choice = json!({"index": 0, "text": "one two", "finish_reason": "stop",
        "logprobs": {"tokens": ["one ", "two"], "text_offset": [0, 0]}});
    assert_eq!(
        object,
        json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]})
    );
}

#[test]
fn a_response_is_the_one_of_its_last_event() {
    for (end, status) in [("response.completed", "completed"), ("response.incomplete", "incomplete")] {
        let whole =
            json!({"id": "resp_1", "object": "response", "status": status, "error": null, "output": [{"id": "msg_1"}]});
        let stream = events(&[
            json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
            json!({"type": "response.output_text.delta", "delta": "hi"}),
            json!({"type": end, "response": whole}),
        ]);
        assert_eq!(collected(&stream), Some(whole));
    }
}

#[test]
fn a_message_of_every_kind_of_block() {
    let start =
        |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let more = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let citation = json!({"type": "char_location", "cited_text": "c"});
    let stream = events(&[
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 25, "cache_read_input_tokens": 4, "output_tokens": 1}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        more(0, json!({"type": "thinking_delta", "thinking": "Let "})),
        json!({"type": "ping"}),
        more(0, json!({"type": "thinking_delta", "thinking": "me."})),
        more(0, json!({"type": "signature_delta", "signature": "EqQB"})),
        stop(0),
        start(1, json!({"type": "redacted_thinking", "data": "xyz"})),
        stop(1),
        start(2, json!({"type": "text", "text": ""})),
        more(2, json!({"type": "text_delta", "text": "Hel"})),
        more(2, json!({"type": "citations_delta", "citation": citation})),
        more(2, json!({"type": "text_delta", "text": "lo"})),
        stop(2),
        start(3, json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}})),
        more(3, json!({"type": "input_json_delta", "partial_json": ""})),
        more(3, json!({"type": "input_json_delta", "partial_json": "{\"a\": [1,"})),
        more(3, json!({"type": "input_json_delta", "partial_json": " 2]}"})),
        stop(3),
        start(4, json!({"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}})),
        stop(4),
        start(5, json!({"type": "tool_use", "id": "toolu_3", "name": "h", "input": {}})),
        more(5, json!({"type": "input_json_delta", "partial_json": "{\"cut"})),
        json!({"type": "an_event_of_next_year", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": null},
            "usage": {"input_tokens": null, "output_tokens": 15}}),
        json!({"type": "message_stop"}),
    ]);
    assert_eq!(
        collected(&stream),
        Some(json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "max_tokens",
        "stop_sequence": null, "usage": {"input_tokens": 25, "cache_read_input_tokens": 4, "output_tokens": 15},
        "content": [
            {"type": "thinking", "thinking": "Let me.", "signature": "EqQB"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "Hello", "citations": [citation]},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, 2]}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            {"type": "tool_use", "id": "toolu_3", "name": "h", "input": "{\"cut"},
        ]}))
    );
}

#[test]
fn an_error_ends_a_stream_and_stands_beside_what_had_come() {
    let error = json!({"type": "overloaded_error", "message": "Overloaded"});
    let first = events(&[json!({"type": "error", "error": error})]);
    assert_eq!(collected(&first), Some(json!({"error": error})));
    let late = events(&[
        json!({"type": "message_start", "message": {"id": "msg_1", "content": []}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
        json!({"type": "error", "error": error}),
    ]);
    assert_eq!(collected(&late), Some(json!({"id": "msg_1", "content": [{"text": "Hel"}], "error": error})));
    let mut chunk = delta(0, &json!({"content": "Hel"}), &json!("error"));
    chunk["error"] = json!({"code": 502, "message": "Provider disconnected"});
    let object = collected(&chunks(&[chunk])).expect("an error");
    assert_eq!((&object["error"]["code"], &object["choices"][0]["message"]["content"]), (&json!(502), &json!("Hel")));
    let failed = json!({"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "m"}});
    assert_eq!(collected(&events(&[json!({"type": "response.failed", "response": failed})])), Some(failed));
}

#[test]
fn what_is_cut_foreign_or_of_no_single_shape_stays_text() {
    let whole = chunks(&[delta(0, &json!({"content": "Hel"}), &Value::Null)]);
    assert!(collected(&whole).is_some());
    assert_eq!(collected(whole.trim_end_matches("data: [DONE]\n\n")), None);
    for text in [
        "",
        ": keep-alive\n\n",
        "event: price\ndata: {\"usd\":3}\n\ndata: [DONE]\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
        "{\"choices\":[]}",
    ] {
        assert_eq!(collected(text), None, "{text}");
    }
    assert_eq!(collected(&format!("data: {{\"choices\":[{{\n\n{whole}")), None, "a piece is missing");
    let parts = json!([{"type": "thinking", "thinking": "Hm"}]);
    let mixed = [delta(0, &json!({"content": parts}), &Value::Null), delta(0, &json!({"content": "x"}), &Value::Null)];
    assert_eq!(collected(&chunks(&mixed)), None, "text after a list");
}

proptest! {
    #[test]
    fn a_text_comes_out_as_it_went_in_wherever_it_is_cut(text in "\\PC{0,60}", cuts: Vec<proptest::sample::Index>) {
        let letters: Vec<char> = text.chars().collect();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(letters.len() + 1)).chain([0, letters.len()]).collect();
        places.sort_unstable();
        let pieces: Vec<String> = places.windows(2).map(|place| letters[place[0]..place[1]].iter().collect()).collect();
        let chat: Vec<Value> = pieces.iter().map(|piece| delta(0, &json!({"content": piece}), &Value::Null)).collect();
        assert_eq!(collected(&chunks(&chat)).expect("whole")["choices"][0]["message"]["content"], *text);
        let mut message = vec![json!({"type": "message_start", "message": {}})];
        message.extend(pieces.iter().map(|piece| {
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
        }));
        message.push(json!({"type": "message_stop"}));
        assert_eq!(collected(&events(&message)).expect("whole")["content"][0]["text"], *text);
    }

    #[test]
    fn never_panics(lines in "((data: ?(\\{\"(choices|type|delta|index|message|response)\":(\\[\\{\\}\\]|\"error\"|\"message_start\"|3|\\{\\})\\}|\\[DONE\\])|event: error)\r?\n{1,2}){0,8}") {
        collected(&lines);
    }
}

#[test]
fn a_list_that_comes_backwards_stays_text_instead_of_taking_for_ever() {
    let calls = |count: u64| -> Value { (0..count).rev().map(|index| json!({"index": index})).collect() };
    let stream = |count| collected(&chunks(&[delta(0, &json!({"tool_calls": calls(count)}), &json!("stop"))]));
    assert!(stream(100).is_some());
    assert!(stream(200_000).is_none());
}
