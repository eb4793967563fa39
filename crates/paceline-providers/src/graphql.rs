//! Errors of GraphQL, which come inside a 200.

use serde_json::Value;

use super::body::Body;
use super::case::Case;
use super::table::COMMON;
use super::{github, shopify};

/// The status that the errors of an answer stand for. Errors beside data are the caller's to judge, but for a throttle.
pub(super) fn status(case: &Case<'_>) -> Option<u16> {
    let errors = case.body.root.get("errors")?.as_array()?;
    if errors.iter().any(|error| shopify::is_throttle(error) || github::is_graphql_limit(error)) {
        return Some(429);
    }
    if !case.table.api.graphql || errors.is_empty() || has_data(case.body) {
        return None;
    }
    let known = errors.iter().filter_map(|error| COMMON.graphql.get(name(error)?).copied());
    // Of several the highest: what may pass is tried again. Any other error is one of the query.
    Some(known.max().unwrap_or(400))
}

/// Shopify names an error among its extensions, GitHub by its type.
fn name(error: &Value) -> Option<&str> {
    error["extensions"]["code"].as_str().or_else(|| error["type"].as_str())
}

fn has_data(body: &Body<'_>) -> bool {
    match body.at("/data") {
        None | Some(Value::Null) => false,
        Some(Value::Object(members)) => members.values().any(|member| !member.is_null()),
        Some(_) => true,
    }
}
