use serde_json::json;

use super::*;

#[test]
fn usage_in_every_dialect() {
    for (usage, expected) in [
        (json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}), Some((9, 2))),
        (json!({"input_tokens": 4, "output_tokens": 3, "total_tokens": 7}), Some((4, 3))),
        (json!({"prompt_tokens": 8, "total_tokens": 8}), Some((8, 0))),
        (json!({"total_tokens": 8}), Some((8, 0))),
        (
            json!({"input_tokens": 10, "cache_creation_input_tokens": 90, "cache_read_input_tokens": 500, "output_tokens": 1}),
            Some((600, 1)),
        ),
        (json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 1}), Some((10, 1))),
        (json!({"prompt_tokens": 99, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 9}), Some((99, 0))),
        (json!({"promptTokenCount": 70, "cachedContentTokenCount": 60, "candidatesTokenCount": 3}), Some((70, 3))),
        (
            json!({"inputTokens": 5, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 4, "outputTokens": 6}),
            Some((99, 6)),
        ),
        // Of proxies that leave what the cache held out of the prompt.
        (
            json!({"prompt_tokens": 60, "completion_tokens": 5, "total_tokens": 65, "prompt_tokens_details": {"cached_tokens": 2_000}}),
            Some((2_060, 5)),
        ),
        (json!({"output_tokens": 15}), Some((0, 15))),
        (
            json!({"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 20, "totalTokenCount": 30}),
            Some((7, 23)),
        ),
        (
            json!({"promptTokenCount": 7, "toolUsePromptTokenCount": 100, "candidatesTokenCount": 3, "totalTokenCount": 110}),
            Some((107, 3)),
        ),
        (json!({"inputTokens": 5, "outputTokens": 6, "totalTokens": 11}), Some((5, 6))),
        (
            json!({"inputTokens": 5, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 4, "outputTokens": 6, "totalTokens": 105}),
            Some((99, 6)),
        ),
        // The reasoning of xAI's models is in the total alone.
        (
            json!({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
                "prompt_tokens_details": {"cached_tokens": 6}, "completion_tokens_details": {"reasoning_tokens": 94}}),
            Some((32, 103)),
        ),
        (json!({"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 40}), Some((50, 5))),
        (json!({"prompt_tokens": 50, "total_tokens": 80}), Some((50, 30))),
        (json!({"input_tokens": 4, "output_tokens": 3, "total_tokens": 30}), Some((4, 26))),
        (
            json!({"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 71.0, "output_tokens": 2.0}}),
            Some((71, 2)),
        ),
        (json!({"billed_units": {"images": 1, "image_tokens": 40, "input_tokens": 2}}), Some((42, 0))),
        (json!({"input_tokens": 100, "image_tokens": 40, "output_tokens": 2}), Some((100, 2))),
        (json!({"prompt_tokens": "9"}), None),
        (json!({"prompt_tokens": i64::MAX, "completion_tokens": 1}), Some((0, 1))),
        (json!({"prompt_tokens": u64::MAX}), None),
        (json!({"prompt_tokens": u64::MAX, "completion_tokens": 5, "total_tokens": 7}), Some((0, 5))),
        (json!({"prompt_tokens": u64::MAX, "total_tokens": 7}), None),
        (json!({}), None),
        (json!(null), None),
    ] {
        let found =
            Reported::read(&usage).filter(Reported::tells).map(|usage| usage.counted(false, CachePercent::default()));
        let found = found.map(|usage| (usage.input_tokens, usage.output_tokens));
        assert_eq!(found, expected, "{usage}");
    }
}

#[test]
fn a_prompt_that_is_to_be_kept_costs_what_its_write_costs() {
    let percent = CachePercent { read: 10, write: 125, write_for_an_hour: 200 };
    for (request, expected) in [
        (json!({"messages": [{"content": "x"}]}), 100),
        (json!({"system": [{"text": "x", "cache_control": {"type": "ephemeral"}}]}), 125),
        (json!({"cache_control": {"type": "ephemeral", "ttl": "5m"}}), 125),
        (json!({"tools": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}], "cache_control": {}}), 200),
        (json!({"system": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}), 125),
        (json!({"system": [{"text": "x", "cache_control": null}]}), 100),
        (json!({"messages": [{"content": "{\"cache_control\": {\"ttl\": \"1h\"}}"}]}), 100),
    ] {
        for text in [request.to_string(), serde_json::to_string_pretty(&request).expect("JSON")] {
            assert_eq!(percent.dearest(text.as_bytes()), expected, "{text}");
        }
        let of_another = CachePercent::default().dearest(request.to_string().as_bytes());
        assert_eq!(of_another, expected, "whose table says nothing, asked for a model of the same");
    }
    assert_eq!(percent.dearest(br#"{"cache_control": {"type""#), 100, "half an object");
}

#[test]
fn writes_of_unknown_length_stay_as_long_as_the_request_asks_for() {
    let percent = CachePercent { read: 10, write: 125, write_for_an_hour: 200 };
    let hour = json!({"system": [{"cache_control": {"ttl": "1h"}}, {"cache_control": {}}]}).to_string();
    let minutes = json!({"system": [{"cache_control": {"type": "ephemeral"}}]}).to_string();
    let unsplit = json!({"input_tokens": 20, "cache_creation_input_tokens": 1_000, "output_tokens": 1});
    let mut split = unsplit.clone();
    split["cache_creation"] = json!({"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 0});
    for (usage, request, expected) in [
        (&unsplit, &hour, 2_020),
        (&unsplit, &minutes, 1_270),
        (&unsplit, &"{}".to_owned(), 1_270),
        (&split, &hour, 1_270),
    ] {
        let usage = Reported::read(usage).expect("usage").counted(true, percent);
        assert_eq!(percent.as_asked(usage, request.as_bytes()).priced_input(), expected, "{usage:?} {request}");
    }
}

/// As OpenRouter and LiteLLM tell of models that are Anthropic's; LiteLLM asks for them by itself where it is set up so.
#[test]
fn writes_of_an_api_in_the_form_of_openai_cost_more_whether_or_not_they_are_asked_for() {
    let (minutes, hour) = (r#"{"cache_control":{}}"#, r#"{"cache_control":{"ttl":"1h"}}"#);
    let openrouter = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "total_tokens": 2_070,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2_000}});
    let litellm = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "cache_creation_input_tokens": 2_000});
    let mut split = litellm.clone();
    split["cache_creation"] = json!({"ephemeral_5m_input_tokens": 2_000, "ephemeral_1h_input_tokens": 0});
    for (usage, request, expected) in [
        (&openrouter, minutes, 2_560),
        (&openrouter, hour, 4_060),
        (&openrouter, "{}", 2_560),
        (&litellm, "{}", 2_560),
        (&litellm, minutes, 2_560),
        (&split, hour, 4_060),
    ] {
        let counted = Reported::read(usage).expect("usage").counted(false, CachePercent::default());
        let counted = CachePercent::default().as_asked(counted, request.as_bytes());
        assert_eq!((counted.prompt_tokens(), counted.priced_input()), (2_060, expected), "{usage} {request}");
    }
}

#[test]
fn what_a_cache_was_read_for_is_a_part_of_the_prompt_by_whatever_name() {
    for usage in [
        json!({"prompt_tokens": 90, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}),
        json!({"prompt_tokens": 90, "completion_tokens": 5, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 26}),
        json!({"prompt_tokens": 90, "completion_tokens": 5, "cached_tokens": 64}),
    ] {
        let usage = Reported::read(&usage).expect("usage").counted(false, CachePercent::default());
        assert_eq!((usage.prompt_tokens(), usage.cached_tokens), (90, 64));
    }
}

#[test]
fn the_last_event_of_a_stream_may_tell_the_prompt_again_without_its_cache() {
    let read = |usage| Reported::read(&usage).expect("usage");
    let first = read(json!({"input_tokens": 20, "cache_read_input_tokens": 2_000, "output_tokens": 1}));
    let last = read(json!({"input_tokens": 20, "output_tokens": 15}));
    let usage = first.updated(last).counted(false, CachePercent::default());
    assert_eq!((usage.prompt_tokens(), usage.output_tokens), (2_020, 15));
}
