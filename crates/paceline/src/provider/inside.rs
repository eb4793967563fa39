//! Refusals inside a success: a 200 that is a throttle, a failure or an incomplete answer.

use paceline_core::Class;
use serde_json::Value;

use super::api::Provider;
use super::body::{Body, Kind};
use super::decide::{Case, Decision, Fault};
use super::stream::Stream;
use super::{codes, wait};

/// What a 2xx carries.
pub(super) enum Inside {
    /// A usable answer, or one that is not ours to judge.
    Nothing,
    /// An error that stands for this status.
    Status(u16),
    /// Something that no status stands for.
    Decided(Decision),
}

const EMPTY: Fault = Fault { code: "empty_answer", words: "the answer is empty" };
const NOT_JSON: Fault = Fault { code: "not_json", words: "the answer is not JSON" };
const GARBLED: Fault = Fault { code: "not_json", words: "an event of the stream is not JSON" };
const CUT: Fault = Fault { code: "truncated", words: "the stream ended early" };

/// What a 2xx carries: only these exact places count, never text inside generated content.
pub(super) fn success(case: &Case<'_>) -> Inside {
    if let Some(stream) = &case.body.stream {
        return finished_stream(case, stream);
    }
    let root = &case.body.root;
    let text = |pointer: &str| case.body.in_error(pointer).and_then(Value::as_str);
    if root.get("ok") == Some(&Value::Bool(false)) && matches!(text(""), Some("ratelimited" | "rate_limited")) {
        return Inside::Status(429);
    }
    let throttled = |error: &Value| error["extensions"]["code"] == "THROTTLED" || error["type"] == "RATE_LIMITED";
    if root.get("errors").and_then(Value::as_array).is_some_and(|errors| errors.iter().any(throttled)) {
        return Inside::Status(429);
    }
    let base = root.get("base_resp").and_then(|base| base["status_code"].as_u64());
    if let Some((_, status)) = codes::BASE_RESP.iter().find(|(code, _)| base == Some(*code)) {
        return Inside::Status(*status);
    }
    if let Some(status) = case.body.in_error("/code").and_then(Value::as_u64).filter(|code| *code >= 400) {
        return Inside::Status(u16::try_from(status).unwrap_or(u16::MAX));
    }
    let failed = root.get("object").is_some_and(|object| object == "response")
        && root.get("status").is_some_and(|status| status == "failed");
    if failed || (case.provider != Provider::Generic && case.body.error().is_some_and(says_something)) {
        return Inside::Status(late_status(case.body));
    }
    if ["UnprocessedItems", "UnprocessedKeys"].into_iter().any(|key| root.get(key).is_some_and(is_not_empty)) {
        return Inside::Decided(Decision::new(Class::Partial, "unprocessed items"));
    }
    if refused_content(case.body) {
        return Inside::Decided(Decision::new(Class::Filtered, "content refused after a 2xx"));
    }
    unusable(case).map_or(Inside::Nothing, Inside::Decided)
}

/// A proxy's page, half an object, nothing: the API itself said none of it, so that it may pass.
fn unusable(case: &Case<'_>) -> Option<Decision> {
    let fault = match (case.body.kind, case.status) {
        (Kind::Object, _) | (Kind::Nothing, 204 | 205) => return None,
        (Kind::Nothing, _) if case.provider != Provider::Generic => EMPTY,
        _ if case.must_be_json => NOT_JSON,
        _ => return None,
    };
    Some(broken(case, "2xx without a usable body", fault))
}

fn broken(case: &Case<'_>, step: &'static str, fault: Fault) -> Decision {
    Decision { hint: wait::in_headers(case), fault: Some(fault), ..Decision::new(Class::Transient, step) }
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
    let must_end = stream.must_end || (stream.is_empty && case.provider != Provider::Generic);
    if stream.failed {
        Inside::Status(late_status(case.body))
    } else if must_end && !stream.ended {
        Inside::Decided(broken(case, "stream without its end", CUT))
    } else if must_end && stream.garbled {
        Inside::Decided(broken(case, "stream with an event that is no JSON", GARBLED))
    } else if stream.ended && !stream.must_end && case.provider != Provider::Generic {
        Inside::Decided(broken(case, "stream of nothing but its end", EMPTY))
    } else if stream.filtered {
        Inside::Decided(Decision::new(Class::Filtered, "content refused in a stream"))
    } else {
        Inside::Nothing
    }
}

fn is_not_empty(value: &Value) -> bool {
    value.as_object().is_some_and(|map| !map.is_empty()) || value.as_array().is_some_and(|list| !list.is_empty())
}

/// Whether no answer is left that may be used.
fn refused_content(body: &Body) -> bool {
    let choices = body.root.get("choices").and_then(Value::as_array);
    let all =
        choices.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one["finish_reason"] == "content_filter"));
    let prompt = body.root.get("promptFeedback").is_some_and(|feedback| feedback["blockReason"].is_string());
    let incomplete = body.root.get("incomplete_details").is_some_and(|details| details["reason"] == "content_filter");
    all || prompt || incomplete
}

/// The status that an error after a 200 would have had: its numeric code, else by its code or type, else 500.
fn late_status(body: &Body) -> u16 {
    let code = body.code();
    let numeric = code.as_deref().and_then(|code| code.parse().ok()).filter(|status| (400..600).contains(status));
    let named = |code: &str| codes::LATE_STATUS.iter().find(|(known, _)| *known == code).map(|(_, status)| *status);
    numeric.or_else(|| named(code.as_deref()?)).or_else(|| body.codes().find_map(named)).unwrap_or(500)
}
