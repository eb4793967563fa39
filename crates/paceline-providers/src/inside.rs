//! Refusals inside a success: a 200 that is a throttle, a failure or an incomplete answer.

use paceline_core::Class;
use serde_json::Value;

use super::body::{self, Body, Kind};
use super::case::{Case, Classification, Fault};
use super::ending::{Ending, NO_CAPACITY};
use super::expected::{self, SCHEMA_MISMATCH};
use super::refusal::{by_table, waiting};
use super::stream::Stream;
use super::table::COMMON;
use super::{graphql, grpc, wait};

/// What a 2xx carries.
pub(super) enum Inside {
    /// A usable answer, or one that is not ours to judge.
    Nothing,
    /// An error that stands for this status.
    Status(u16),
    /// Something that no status stands for.
    Decided(Classification),
}

const EMPTY: Fault = Fault::new(expected::EMPTY_ANSWER, "the answer is empty");
const NOT_JSON: Fault = Fault::new(expected::NOT_JSON, "the answer is not JSON");
const GARBLED: Fault = Fault::new(expected::NOT_JSON, "an event of the stream is not JSON");
const MISMATCH: Fault = Fault::new(SCHEMA_MISMATCH, "the answer does not match the schema");
const FAILED: Fault = Fault::new("error", "the answer ended in an error");
const STARVED: Fault = Fault::new(NO_CAPACITY, "the service ran out of capacity in the middle of the answer");
const CUT: Fault = Fault::new("truncated", "the stream ended early");

/// What a 2xx carries: only these exact places count, never text inside generated content.
pub(super) fn success(case: &Case<'_>) -> Inside {
    if let Some(stream) = case.body.stream.as_ref().filter(|_| !case.bodiless) {
        return finished_stream(case, stream);
    }
    match grpc::status(case) {
        Some(200) => return Inside::Nothing,
        Some(status) => return Inside::Status(status),
        None => {}
    }
    let root = &case.body.root;
    let text = |pointer: &str| case.body.in_error(pointer).and_then(Value::as_str);
    if root.get("ok") == Some(&Value::Bool(false)) && matches!(text(""), Some("ratelimited" | "rate_limited")) {
        return Inside::Status(429);
    }
    if let Some(decision) = by_rule(case) {
        return Inside::Decided(decision);
    }
    if let Some(status) = graphql::status(case) {
        return Inside::Status(status);
    }
    if let Some(code) = root.get("base_resp").map(|base| &base["status_code"]).filter(|code| code.is_number()) {
        match COMMON.base_resp.get(&code.to_string()) {
            Some(status) => return Inside::Status(*status),
            None if case.table.is_strict() && *code != 0 => return Inside::Status(400),
            None => {}
        }
    }
    if let Some(status) = case.body.in_error("/code").and_then(Value::as_u64).filter(|code| *code >= 400) {
        return Inside::Status(u16::try_from(status).unwrap_or(u16::MAX));
    }
    let failed = root.get("object").is_some_and(|object| object == "response")
        && root.get("status").is_some_and(|status| status == "failed");
    if failed || (case.table.is_strict() && case.body.error().is_some_and(says_something)) {
        return Inside::Status(late_status(case.body));
    }
    if ["UnprocessedItems", "UnprocessedKeys"].into_iter().any(|key| root.get(key).is_some_and(is_not_empty)) {
        return Inside::Decided(Classification::new(Class::Partial, "unprocessed items"));
    }
    if refused_content(case.body) {
        return Inside::Decided(Classification::new(Class::Filtered, "content refused after a 2xx"));
    }
    if every_choice(case.body, |choice| Ending::of(choice) == Ending::Starved) {
        return Inside::Decided(starved(case));
    }
    if every_choice(case.body, |choice| Ending::of(choice) == Ending::Failed) {
        return Inside::Decided(broken(case, "2xx that ended in an error", FAILED));
    }
    unusable(case).map_or(Inside::Nothing, Inside::Decided)
}

/// A rule of the provider's own that speaks of successes.
fn by_rule(case: &Case<'_>) -> Option<Classification> {
    let mut rules = case.table.rules.iter().filter(|known| known.rule.status.is_some());
    let matching = rules.find(|known| known.rule.matches(case.status, case.headers, case.body))?;
    Some(by_table(case, matching))
}

/// A proxy's page, half an object, nothing: the API itself said none of it, so that it may pass. Where nothing but the caller
/// refuses it, the server works.
fn unusable(case: &Case<'_>) -> Option<Classification> {
    let expects = case.expected.is_some();
    let (fault, unexpected) = match (case.body.kind, case.status) {
        (Kind::Object, _) | (Kind::Nothing, 204 | 205) => return None,
        _ if case.bodiless => return None,
        (Kind::Nothing, _) if case.table.is_strict() || expects => (EMPTY, !case.table.is_strict()),
        _ if case.must_be_json => (NOT_JSON, false),
        _ if expects && !case.body.is_json() => (NOT_JSON, true),
        _ => return None,
    };
    Some(Classification { unexpected, ..broken(case, "2xx without a usable body", fault) })
}

/// What is wrong with an answer that nothing else is wrong with: it is not what the user's schema asks for.
pub(super) fn mismatch(case: &Case<'_>) -> Option<Classification> {
    // A 204 has no body, nor has the answer to a HEAD; any other answer without one has been refused.
    let has_body = case.body.kind != Kind::Nothing && !case.bodiless;
    let expected = case.expected.filter(|expected| has_body && expected.is_schema())?;
    let step = "2xx that does not match the schema";
    let unexpected = true;
    let Some(value) = case.body.value() else {
        return Some(Classification { unexpected, ..broken(case, step, NOT_JSON) });
    };
    let message = format!("{}: {}", MISMATCH.message, body::plain(&expected.mismatch(&value)?)).into();
    Some(Classification { unexpected, ..unfit(case, step, Fault { message, ..MISMATCH }) })
}

fn starved(case: &Case<'_>) -> Classification {
    Classification {
        fault: Some(STARVED.quoting(case.body)),
        ..waiting(case, Class::Overloaded, "2xx cut short for lack of capacity")
    }
}

fn broken(case: &Case<'_>, step: &'static str, fault: Fault) -> Classification {
    unfit(case, step, fault.quoting(case.body))
}

fn unfit(case: &Case<'_>, step: &'static str, fault: Fault) -> Classification {
    Classification { hint: wait::in_headers(case), fault: Some(fault), ..Classification::new(Class::Transient, step) }
}

/// Objects of jobs carry an `error` whose members are null while nothing is wrong.
fn says_something(error: &Value) -> bool {
    match error {
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => members.values().any(|member| !member.is_null()),
        _ => false,
    }
}

fn finished_stream(case: &Case<'_>, stream: &Stream) -> Inside {
    // A foreign kind of stream may end as it likes; one without any event is none.
    let must_end = stream.must_end || (stream.is_empty && case.table.is_strict());
    if stream.failed {
        Inside::Status(late_status(case.body))
    } else if must_end && !stream.has_all() {
        Inside::Decided(broken(case, "stream without its end", CUT))
    } else if must_end && stream.garbled {
        Inside::Decided(broken(case, "stream with an event that is no JSON", GARBLED))
    } else if stream.ended && !stream.must_end && case.table.is_strict() {
        Inside::Decided(broken(case, "stream of nothing but its end", EMPTY))
    } else if stream.filtered() {
        Inside::Decided(Classification::new(Class::Filtered, "content refused in a stream"))
    } else if stream.every_choice(Ending::Starved) {
        Inside::Decided(starved(case))
    } else if stream.every_choice(Ending::Failed) {
        Inside::Decided(broken(case, "stream that ended in an error", FAILED))
    } else {
        Inside::Nothing
    }
}

fn is_not_empty(value: &Value) -> bool {
    value.as_object().is_some_and(|map| !map.is_empty()) || value.as_array().is_some_and(|list| !list.is_empty())
}

/// Whether no answer is left that may be used.
fn refused_content(body: &Body) -> bool {
    let prompt = body.root.get("promptFeedback").is_some_and(|feedback| feedback["blockReason"].is_string());
    let incomplete = body.root.get("incomplete_details").is_some_and(|details| details["reason"] == "content_filter");
    let message = body.root.get("stop_reason").is_some_and(|reason| reason == "refusal");
    every_choice(body, |choice| Ending::of(choice) == Ending::Refused) || prompt || incomplete || message
}

fn every_choice(body: &Body, matches: impl Fn(&Value) -> bool) -> bool {
    ["choices", "candidates"].into_iter().any(|key| {
        let choices = body.root.get(key).and_then(Value::as_array);
        choices.is_some_and(|all| !all.is_empty() && all.iter().all(&matches))
    })
}

/// The status that an error after a 200 would have had: its numeric code, else by its code or type, else 500.
fn late_status(body: &Body) -> u16 {
    let code = body.code();
    let numeric = code.as_deref().and_then(|code| code.parse().ok()).filter(|status| (400..600).contains(status));
    let named = |code: &str| COMMON.late_status.get(code).copied();
    numeric.or_else(|| named(code.as_deref()?)).or_else(|| body.codes().find_map(named)).unwrap_or(500)
}
