//! Which tables a request to DynamoDB is about.

use serde_json::Value;

use super::outline::{Outline, outline};

/// The tables that a request to DynamoDB is about, as the name of a scope: the one that it names, with its index, or all those
/// of a batch or a transaction in alphabetical order. `None` where it names none.
pub(super) fn tables(body: &[u8]) -> Option<String> {
    const KEYS: Outline =
        Outline { kept: &["IndexName", "RequestItems", "TableName", "TransactItems"], pruned: &[], arrays: false };
    let request = outline(body, &KEYS)?;
    let text = |key: &str| request.get(key).and_then(Value::as_str);
    if let Some(table) = text("TableName") {
        let index = text("IndexName").map_or_else(String::new, |index| format!(", index {index}"));
        return Some(format!("table {}{index}", plain(table)));
    }
    let batch = request.get("RequestItems").and_then(Value::as_object).into_iter().flat_map(|tables| tables.keys());
    let parts = request.get("TransactItems").and_then(Value::as_array).into_iter().flatten();
    let parts = parts.filter_map(Value::as_object).flat_map(|part| part.values());
    let named = parts.filter_map(|operation| operation["TableName"].as_str());
    let mut names: Vec<&str> = batch.map(String::as_str).chain(named).map(plain).collect();
    names.sort_unstable();
    names.dedup();
    match &names[..] {
        [] => None,
        [table] => Some(format!("table {table}")),
        tables => Some(format!("tables {}", tables.join(", "))),
    }
}

/// The name in `arn:aws:dynamodb:eu-west-1:123456789012:table/orders`; any other text as it is.
fn plain(table: &str) -> &str {
    match table.split_once(":table/") {
        Some((arn, name)) if arn.starts_with("arn:") => name,
        _ => table,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_about_the_tables_that_it_names() {
        for (body, expected) in [
            (r#"{"TableName":"orders","Item":{}}"#, Some("table orders")),
            (r#"{"TableName":"orders","IndexName":"by_day"}"#, Some("table orders, index by_day")),
            (r#"{"TableName":"arn:aws:dynamodb:eu-west-1:123456789012:table/orders"}"#, Some("table orders")),
            (r#"{"RequestItems":{"orders":[]}}"#, Some("table orders")),
            (r#"{"RequestItems":{"b":[],"a":[]}}"#, Some("tables a, b")),
            (
                r#"{"TransactItems":[{"Put":{"TableName":"b"}},{"Update":{"TableName":"a"}},{"Put":{"TableName":"b"}}]}"#,
                Some("tables a, b"),
            ),
            (r#"{"TransactItems":[7,{"Put":null}],"RequestItems":"x"}"#, None),
            (r#"{"Statement":"SELECT * FROM orders"}"#, None),
            ("{}", None),
            ("", None),
        ] {
            assert_eq!(tables(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
