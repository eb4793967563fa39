//! Partially accepted batches: the request for the rest, and the merged answers.

use serde_json::{Map, Value};

/// The member of an answer with the rejected items, and that of a request for them.
const LEFT: [(&str, &str); 2] = [("UnprocessedItems", "RequestItems"), ("UnprocessedKeys", "RequestItems")];

/// Members of an answer that belong to the parts: lists, or lists by table.
const GATHERED: [&str; 2] = ["Responses", "ConsumedCapacity"];

/// The request for the items that an answer rejected, and nothing else; every other member of the request stays. `None` where
/// nothing is left, or one of the two is no JSON object.
///
/// ```
/// use paceline_providers::remainder;
/// let request = br#"{"RequestItems":{"t":[{"a":1},{"b":2}]},"ReturnConsumedCapacity":"TOTAL"}"#;
/// let answer = br#"{"UnprocessedItems":{"t":[{"b":2}]}}"#;
/// let rest = remainder(request, answer).expect("something is left");
/// assert_eq!(rest, br#"{"RequestItems":{"t":[{"b":2}]},"ReturnConsumedCapacity":"TOTAL"}"#);
/// ```
pub fn remainder(request: &[u8], answer: &[u8]) -> Option<Vec<u8>> {
    let mut answer: Map<String, Value> = serde_json::from_slice(answer).ok()?;
    let (left, place) = LEFT.into_iter().find_map(|(key, place)| {
        let left = answer.remove(key)?;
        left.as_object().is_some_and(|tables| !tables.is_empty()).then_some((left, place))
    })?;
    let mut request: Map<String, Value> = serde_json::from_slice(request).ok()?;
    request.insert(place.to_owned(), left);
    serde_json::to_vec(&request).ok()
}

/// The answer to a whole batch, from the answer to a part of it and the one to the rest: what was found in both, and what
/// the later one leaves undone. `None` where one of them is no JSON object.
pub fn joined(earlier: &[u8], later: &[u8]) -> Option<Vec<u8>> {
    let mut earlier: Map<String, Value> = serde_json::from_slice(earlier).ok()?;
    let mut later: Map<String, Value> = serde_json::from_slice(later).ok()?;
    for key in GATHERED {
        if let Some(before) = earlier.remove(key) {
            let after = later.remove(key);
            later.insert(key.to_owned(), gathered(before, after));
        }
    }
    serde_json::to_vec(&later).ok()
}

fn gathered(before: Value, after: Option<Value>) -> Value {
    match (before, after) {
        (before, None) => before,
        (Value::Array(mut before), Some(Value::Array(after))) => {
            before.extend(after);
            before.into()
        }
        (Value::Object(mut before), Some(Value::Object(after))) => {
            for (key, value) in after {
                let known = before.remove(&key);
                let both = known.map_or_else(|| value.clone(), |known| gathered(known, Some(value.clone())));
                before.insert(key, both);
            }
            before.into()
        }
        (_, Some(after)) => after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes(value: &Value) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    #[test]
    fn nothing_is_left_of_a_whole_answer_or_of_none() {
        let request = bytes(&json!({"RequestItems": {"t": [1, 2]}}));
        for answer in [&b"{}"[..], br#"{"UnprocessedItems":{}}"#, br#"{"UnprocessedItems":[1]}"#, b"<html>", b""] {
            assert_eq!(remainder(&request, answer), None);
        }
        assert_eq!(remainder(b"no json", br#"{"UnprocessedKeys":{"t":{}}}"#), None);
    }

    #[test]
    fn parts_of_a_batch_make_the_whole() {
        let first = json!({"Responses": {"a": [1], "b": [2]}, "UnprocessedKeys": {"a": {}}, "ConsumedCapacity": [5]});
        let second = json!({"Responses": {"a": [3], "c": [4]}, "UnprocessedKeys": {}, "ConsumedCapacity": [6]});
        let whole: Value =
            serde_json::from_slice(&joined(&bytes(&first), &bytes(&second)).expect("objects")).expect("JSON");
        assert_eq!(whole["Responses"], json!({"a": [1, 3], "b": [2], "c": [4]}));
        assert_eq!((&whole["UnprocessedKeys"], &whole["ConsumedCapacity"]), (&json!({}), &json!([5, 6])));
        let writes = joined(br#"{"UnprocessedItems":{"t":[1]}}"#, br#"{"UnprocessedItems":{}}"#);
        assert_eq!(writes.as_deref(), Some(&br#"{"UnprocessedItems":{}}"#[..]));
    }
}
