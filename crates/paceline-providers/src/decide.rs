//! The decision procedure: steps in order; the first that decides wins.
//!
//! No step asks for the provider's name unless its answers mean something else than all others'; what is a mere
//! comparison stands in the tables. Phrases inside the message of a 400 or 422 never decide: they are often an echo of the
//! caller's own text. Only a table may know what such a message begins with, where nothing else marks the case.

use std::borrow::Cow;

use http::StatusCode;
use paceline_core::{Class, LimitReport, LimitScope};

use super::case::{Case, Classification, Fault, Hint};
use super::inside::{self, Inside};
use super::refusal::{by_table, paused, says, throttled, waiting};
use super::table::{COMMON, Provider, Table, contains_any};
use super::{aws, gateway, github, google, names, openrouter, shopify, wait};

/// A limit of one call is used up after each, whatever the call met with.
const ALWAYS_USED_UP: u64 = 1;

/// The class of an answer. A success that carries a refusal inside is judged by the status that the refusal stands for.
pub(super) fn decide(case: &Case<'_>) -> Classification {
    if case.status == 304 {
        return Classification::new(Class::Success, "304: what the caller has still holds");
    }
    if !(200..300).contains(&case.status) {
        return refused(case);
    }
    match inside::success(case) {
        Inside::Nothing => inside::mismatch(case).unwrap_or_else(|| Classification::new(Class::Success, "2xx")),
        Inside::Decided(decision) => decision,
        Inside::Status(status) => {
            let decision = refused(&Case { status, ..*case });
            let step = format!("{} carries an error that stands for {status}: {}", case.status, decision.step);
            Classification { step: step.into(), ..decision }
        }
    }
}

type Step = fn(&Case<'_>) -> Option<Classification>;

const STEPS: [Step; 14] = [
    refused_by_a_proxy,
    gateway::refused,
    aws::cancelled_transaction,
    aws::throttling_reasons,
    rules_of_the_table,
    codes_that_decide_alone,
    unauthorized_or_unpaid,
    nothing_left,
    forbidden,
    google::exhausted,
    too_large,
    too_many,
    server_advice,
    told_when,
];

fn refused(case: &Case<'_>) -> Classification {
    STEPS.iter().find_map(|step| step(case)).unwrap_or_else(|| by_status(case))
}

/// The API itself has not seen such a call, so none of its codes can stand there.
fn refused_by_a_proxy(case: &Case<'_>) -> Option<Classification> {
    (case.status == 407).then(|| Classification {
        fault: Some(Fault::new("proxy_auth", "a proxy on the way asks for a name and a password")),
        ..Classification::new(Class::Account, "407: a proxy refuses the call")
    })
}

/// The provider's own codes; those of AWS, ACME and Anthropic also where their answers come from an unknown server.
fn rules_of_the_table(case: &Case<'_>) -> Option<Classification> {
    let foreign: &[Provider] = if names::is_aws(case.headers) || case.body.root.contains_key("__type") {
        &[Provider::DynamoDb, Provider::Bedrock]
    } else if names::is_acme(case.body) {
        &[Provider::Acme]
    } else if case.body.root.get("type").is_some_and(|kind| kind == "error") {
        &[Provider::Anthropic]
    } else {
        &[]
    };
    let others = foreign.iter().flat_map(|provider| &Table::of(*provider).rules);
    let mut all = case.table.rules.iter().chain(others);
    let matching = all.find(|known| known.rule.matches(case.status, case.headers, case.body))?;
    Some(by_table(case, matching))
}

/// These beat `Retry-After`, `x-should-retry` and the status.
fn codes_that_decide_alone(case: &Case<'_>) -> Option<Classification> {
    let found = |what: &str, code: &str| Cow::Owned(format!("{what}: {code}"));
    if let Some(code) = case.body.code_of(&COMMON.filtered) {
        return Some(Classification::new(Class::Filtered, found("code of a filter", code)));
    }
    if case.body.message().contains(&COMMON.filtered_phrase) {
        return Some(Classification::new(Class::Filtered, "words of a filter in the message"));
    }
    if let Some(code) = case.body.code_of(&COMMON.account) {
        return Some(Classification::new(Class::Account, found("code of billing", code)));
    }
    let code = case.body.code_of(&COMMON.monthly_cap)?;
    let hint = wait::to_next_month(case.now);
    let decision = Classification::new(Class::QuotaExhausted, found("cap of a month", code));
    Some(Classification { hint, reach: LimitScope::Account, ..decision })
}

fn unauthorized_or_unpaid(case: &Case<'_>) -> Option<Classification> {
    match case.status {
        401 => Some(Classification::new(Class::Account, "401: the key is refused")),
        402 => Some(openrouter::in_flight(case).unwrap_or_else(|| Classification::new(Class::Account, "402: unpaid"))),
        _ => None,
    }
}

/// A server that counts may refuse what is too much by a 403, or by a status that no standard knows, such as 420: where nothing
/// is left until a reset, and no code says otherwise, that is the reason. If it is not, the answer after the reset shows that.
fn nothing_left(case: &Case<'_>) -> Option<Classification> {
    let counts = |limit: &LimitReport| limit.limit.is_none_or(|limit| limit > ALWAYS_USED_UP);
    let is_used_up = case.limits.iter().any(|limit| limit.remaining == Some(0) && counts(limit));
    if !may_be_a_limit(case)
        || !is_used_up
        || github::is_limit(case)
        || says(case, "false")
        || has_code_of_its_own(case)
    {
        return None;
    }
    let hint = wait::reset(case).filter(|hint| !hint.wait.is_zero())?;
    let hint = wait::in_headers(case).unwrap_or(hint);
    Some(paused(case, Some(hint), format!("{}: nothing is left of a limit until its reset", case.status)))
}

/// Such a refusal, where the server says when to come back: then it is no refusal for good.
fn told_when(case: &Case<'_>) -> Option<Classification> {
    if !may_be_a_limit(case) || says(case, "false") {
        return None;
    }
    Some(paused(case, Some(time_to_come_back(case)?), format!("{}: the server says when to come back", case.status)))
}

fn time_to_come_back(case: &Case<'_>) -> Option<Hint> {
    wait::retry_after(case).filter(|hint| !hint.wait.is_zero())
}

/// Whether a status without a meaning of its own may stand for a limit.
fn may_be_a_limit(case: &Case<'_>) -> bool {
    let is_unknown = || StatusCode::from_u16(case.status).is_ok_and(|status| status.canonical_reason().is_none());
    case.status == 403 || ((400..500).contains(&case.status) && is_unknown())
}

/// Whether an answer names its error otherwise than by its status, or in words.
fn has_code_of_its_own(case: &Case<'_>) -> bool {
    let status = case.status.to_string();
    let mut names = names::all(case.headers, case.body);
    names.any(|name| *name != *status && !name.contains(char::is_whitespace))
}

fn forbidden(case: &Case<'_>) -> Option<Classification> {
    if case.status != 403 {
        return None;
    }
    let flagged = ["/metadata/flagged_input", "/metadata/reasons"];
    Some(if github::is_limit(case) {
        github::limit(case)
    } else if flagged.into_iter().any(|place| case.body.in_error(place).is_some()) {
        Classification::new(Class::Filtered, "403 by moderation")
    } else if let Some(decision) = openrouter::spent(case).or_else(|| told_when(case)) {
        decision
    } else {
        // A key may lack one model and have the others.
        Classification {
            reach: LimitScope::Scope,
            ..Classification::new(Class::Account, "403: the key may not do this")
        }
    })
}

fn too_large(case: &Case<'_>) -> Option<Classification> {
    let alone = case.status == 413 && case.body.has_code(&COMMON.throttled);
    alone.then(|| Classification::new(Class::Invalid, "413: the request alone exceeds the limit"))
}

/// 429, and 498 of a tier without capacity.
fn too_many(case: &Case<'_>) -> Option<Classification> {
    let message = case.body.message().to_ascii_lowercase();
    let capacity = case.body.has_code(&COMMON.capacity) || contains_any(&message, &COMMON.capacity_phrases);
    match case.status {
        498 => Some(waiting(case, Class::Overloaded, "498: no capacity")),
        429 if never_fits(&message) || shopify::never_fits(case) => {
            Some(Classification::new(Class::Invalid, "429: requested more than the limit"))
        }
        429 if capacity => Some(waiting(case, Class::Overloaded, "429 about capacity")),
        429 if case.body.has_code(&COMMON.long_window) => {
            Some(waiting(case, Class::QuotaExhausted, "429: usage window of hours"))
        }
        429 if github::is_limit(case) => Some(github::limit(case)),
        429 => Some(throttled(case, "429".into())),
        _ => None,
    }
}

/// "Limit 10000, Requested 12500" without a "Used" number: no wait makes it pass.
fn never_fits(message: &str) -> bool {
    let number = |word: &str| message.match_indices(word).find_map(|(at, _)| grouped(&message[at + word.len()..]));
    match (number("limit "), number("requested "), number("used ")) {
        (Some(limit), Some(requested), None) => requested > limit,
        _ => false,
    }
}

/// A whole number that may be grouped by commas.
fn grouped(text: &str) -> Option<u64> {
    let end = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b',').count();
    text[..end].replace(',', "").parse().ok()
}

/// The server's advice about a retry. `true` acts in [`by_status`], where a status would be final.
fn server_advice(case: &Case<'_>) -> Option<Classification> {
    (says(case, "false") && !gateway::gave_up(case))
        .then(|| Classification::new(Class::Invalid, "the server says not to retry"))
}

fn by_status(case: &Case<'_>) -> Classification {
    let step = |message: &str| Cow::Owned(format!("{}: {message}", case.status));
    match case.status {
        503 | 529 => waiting(case, Class::Overloaded, step("overloaded")),
        409 if case.table.api.conflicts_pass || wait::in_headers(case).is_some() => {
            waiting(case, Class::Transient, step("a conflict that passes"))
        }
        300..=499 | 501 | 505 | 511 if !matches!(case.status, 408 | 423 | 425) => match says(case, "true") {
            true => waiting(case, Class::Transient, step("the server says to retry")),
            // Such as a page that is not there yet. It may be so for good, so it takes up retries, and holds no others.
            false if (400..500).contains(&case.status) && time_to_come_back(case).is_some() => {
                waiting(case, Class::Transient, step("the server says when to come back"))
            }
            false => Classification::new(Class::Invalid, step("the request can never pass")),
        },
        _ => waiting(case, Class::Transient, step("server failure")),
    }
}
