//! The cost that an answer reports.

use http::HeaderMap;
use serde_json::Value;

use super::body::Body;
use super::reported::Reported;
use super::table::{CachedInput, Charge};
use super::usage::Usage;

/// More than any call can cost: a larger number is a mistake.
const MOST: f64 = 1e9;

/// The reported cost, in the parts that count.
pub(super) fn of(body: &Body<'_>, headers: &HeaderMap, charge: &Charge) -> Option<Usage> {
    let in_body = match &body.stream {
        Some(stream) => stream.usage(),
        None => Reported::of(|place| body.in_root(place)),
    };
    match in_body.or_else(|| Reported::in_head(headers)) {
        Some(reported) => Some(counted(reported, charge)),
        None => Some(Usage { units: units(body)?, ..Usage::default() }),
    }
}

/// As the table of the provider says.
pub(super) fn counted(reported: Reported, charge: &Charge) -> Usage {
    reported.counted(charge.cached_input == CachedInput::Free, charge.cache_percent)
}

/// What an answer says that its call was charged, rounded up.
fn units(body: &Body<'_>) -> Option<u64> {
    let units = |capacity: &Value| capacity["CapacityUnits"].as_f64();
    let consumed = body.root.get("ConsumedCapacity").and_then(|consumed| match consumed {
        Value::Array(tables) => tables.iter().map(units).sum(),
        one => units(one),
    });
    let points = || body.in_root("/extensions/cost/actualQueryCost")?.as_f64();
    let units = consumed.or_else(points).filter(|units| (0.0..=MOST).contains(units))?;
    Some(units.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Provider;
    use super::*;
    use crate::body::Wanted;

    #[test]
    fn charges_that_answers_report() {
        let wanted = Wanted { keys: None, arrays: false };
        for (body, expected) in [
            (r#"{"ConsumedCapacity":{"TableName":"t","CapacityUnits":2.5}}"#, Some(3)),
            (r#"{"ConsumedCapacity":[{"CapacityUnits":2.0},{"CapacityUnits":5.0}]}"#, Some(7)),
            (r#"{"ConsumedCapacity":[{"CapacityUnits":2.0},{}]}"#, None),
            (r#"{"ConsumedCapacity":{"CapacityUnits":-1}}"#, None),
            (r#"{"ConsumedCapacity":{"CapacityUnits":1e99}}"#, None),
            (r#"{"extensions":{"cost":{"actualQueryCost":46}}}"#, Some(46)),
            (r#"{"extensions":{"cost":{"actualQueryCost":null}}}"#, None),
            ("{}", None),
        ] {
            assert_eq!(units(&Body::of_success(body.as_bytes(), "", wanted)), expected, "{body}");
        }
    }

    #[test]
    fn what_a_cache_held_counts_in_budgets_and_costs_what_the_table_says() {
        let messages = json!({"input_tokens": 20, "cache_read_input_tokens": 2_000, "cache_creation_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}, "output_tokens": 10});
        let chat = json!({"prompt_tokens": 90, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}});
        let converse =
            json!({"inputTokens": 20, "cacheReadInputTokens": 2_000, "cacheWriteInputTokens": 8, "outputTokens": 1});
        let gemini = json!({"promptTokenCount": 70, "cachedContentTokenCount": 60, "candidatesTokenCount": 3});
        // Against limits, all, as priced.
        for (provider, usage, expected) in [
            (Provider::Anthropic, &messages, [120, 2_120, 20 + 200 + 75 + 80]),
            (Provider::Generic, &messages, [2_120, 2_120, 2_120]),
            (Provider::Bedrock, &messages, [120, 2_120, 2_175]),
            (Provider::Bedrock, &converse, [28, 2_028, 2_030]),
            (Provider::OpenAi, &chat, [90, 90, 90]),
            (Provider::Groq, &chat, [26, 90, 90]),
            (Provider::Gemini, &gemini, [70, 70, 70]),
        ] {
            let usage = counted(Reported::read(usage).expect("usage"), &provider.table().charge);
            let found = [usage.input_tokens, usage.prompt_tokens(), usage.priced_input()];
            assert_eq!(found, expected, "{provider} {usage:?}");
        }
        let one = json!({"input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 1});
        let usage = counted(Reported::read(&one).expect("usage"), &Provider::Anthropic.table().charge);
        assert_eq!((usage.priced_input(), usage.cache_price), (1, -90), "only where it is told in whole tokens");
    }
}
