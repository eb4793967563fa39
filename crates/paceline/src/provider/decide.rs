//! The decision procedure: steps in order, of which the first that has something to say wins.
//!
//! No step asks for the provider's name unless its answers mean something else than everybody's. Words inside the
//! message of a 400 or 422 never decide: they are often an echo of the caller's own text.

use std::time::Duration;

use http::HeaderMap;
use paceline_core::{Class, LimitReport, Reach, Timestamp};

use super::api::Provider;
use super::body::Body;
use super::inside::{self, Inside};
use super::wait::{self, Hint};
use super::{codes, header};

/// A longer wait is a used-up quota, to be kept on disk, and not a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// Everything that a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) provider: Provider,
    /// The status of the response, or the one that its body stands for.
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Body,
    pub(super) limits: &'a [LimitReport],
    pub(super) now: Timestamp,
    /// A success of this call is a JSON object.
    pub(super) must_be_json: bool,
}

/// What an answer is.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) class: Class,
    pub(super) reach: Reach,
    pub(super) hint: Option<Hint>,
    /// The rule that decided, for people.
    pub(super) step: &'static str,
    /// What is wrong with an answer that names no error of its own.
    pub(super) fault: Option<Fault>,
}

/// A fault of an answer, as reports name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) words: &'static str,
}

/// The class of an answer. A success that carries a refusal inside is judged by the status that the refusal stands for.
pub(super) fn decide(case: &Case<'_>) -> Decision {
    if !(200..300).contains(&case.status) {
        return refused(case);
    }
    match inside::success(case) {
        Inside::Nothing => Decision::new(Class::Success, "2xx"),
        Inside::Decided(decision) => decision,
        Inside::Status(status) => refused(&Case { status, ..*case }),
    }
}

type Step = fn(&Case<'_>) -> Option<Decision>;

/// Exception names of AWS and problem types of ACME decide before all of these, and Google's error details before
/// [`too_many`]; they take their places here.
const STEPS: [Step; 6] =
    [codes_that_decide_alone, unauthorized_or_unpaid, forbidden, too_large, too_many, server_verdict];

fn refused(case: &Case<'_>) -> Decision {
    STEPS.iter().find_map(|step| step(case)).unwrap_or_else(|| by_status(case))
}

/// These beat `Retry-After`, `x-should-retry` and the status.
fn codes_that_decide_alone(case: &Case<'_>) -> Option<Decision> {
    let message = case.body.message();
    if case.body.has_code(&codes::FILTER) || message.contains(codes::FILTER_PHRASE) {
        return Some(Decision::new(Class::Filtered, "filter code"));
    }
    if case.body.has_code(&codes::BILLING) {
        return Some(Decision::new(Class::Account, "billing code"));
    }
    if case.body.has_code(&codes::MONTHLY_CAP) {
        let hint = wait::to_next_month(case.now);
        return Some(Decision { hint, reach: Reach::Account, ..Decision::new(Class::QuotaExhausted, "monthly cap") });
    }
    let anthropic =
        case.provider == Provider::Anthropic || case.body.root.get("type").is_some_and(|kind| kind == "error");
    if anthropic && case.status == 400 && message.starts_with(codes::USAGE_LIMIT_PHRASE) {
        return Some(Decision::new(Class::Account, "usage limit in the message of a 400"));
    }
    None
}

fn unauthorized_or_unpaid(case: &Case<'_>) -> Option<Decision> {
    match case.status {
        401 => Some(Decision::new(Class::Account, "401")),
        402 => {
            let budget =
                case.body.in_error("/metadata/limit_source").is_some_and(|s| s == "openrouter_in_flight_budget");
            let hint = wait::in_headers(case);
            Some(match hint.is_some() || budget {
                true => paused(hint, "402 with a wait"),
                false => Decision::new(Class::Account, "402"),
            })
        }
        _ => None,
    }
}

fn forbidden(case: &Case<'_>) -> Option<Decision> {
    if case.status != 403 {
        return None;
    }
    let flagged = ["/metadata/flagged_input", "/metadata/reasons"];
    Some(if is_github_limit(case.body) {
        github_limit(case)
    } else if flagged.into_iter().any(|place| case.body.in_error(place).is_some()) {
        Decision::new(Class::Filtered, "403 by moderation")
    } else {
        // A key may lack one model and have the others.
        Decision { reach: Reach::Scope, ..Decision::new(Class::Account, "403") }
    })
}

fn is_github_limit(body: &Body) -> bool {
    let message = body.message().to_ascii_lowercase();
    message.contains(codes::GITHUB_SECONDARY) || message.starts_with(codes::GITHUB_PRIMARY)
}

fn github_limit(case: &Case<'_>) -> Decision {
    Decision { reach: Reach::Account, ..paused(Some(wait::of_github(case)), "GitHub limit") }
}

fn too_large(case: &Case<'_>) -> Option<Decision> {
    let alone = case.status == 413 && case.body.has_code(&codes::THROTTLE);
    alone.then(|| Decision::new(Class::Invalid, "413: the request alone exceeds the limit"))
}

/// 429, and 498 of a tier without capacity.
fn too_many(case: &Case<'_>) -> Option<Decision> {
    let message = case.body.message().to_ascii_lowercase();
    let capacity = case.body.has_code(&codes::CAPACITY) || contains_any(&message, &codes::CAPACITY_PHRASES);
    match case.status {
        498 => return Some(waiting(case, Class::Overloaded, "498: no capacity")),
        429 if never_fits(&message) => {
            return Some(Decision::new(Class::Invalid, "429: requested more than the limit"));
        }
        429 if capacity => return Some(waiting(case, Class::Overloaded, "429 about capacity")),
        429 if case.body.has_code(&codes::LONG_WINDOW) => {
            return Some(waiting(case, Class::QuotaExhausted, "429: usage window of hours"));
        }
        429 if is_github_limit(case.body) => return Some(github_limit(case)),
        429 => {}
        _ => return None,
    }
    let reach = if concerns_everything(case, &message) { Reach::Account } else { Reach::Scope };
    let decision = match wait::of_throttle(case) {
        hint @ Some(_) => paused(hint, "429 with a wait"),
        None if contains_any(&message, &codes::LONG_PERIODS) => {
            Decision::new(Class::QuotaExhausted, "429 of a long period without a wait")
        }
        None if says_no(case) && !case.body.has_code(&codes::THROTTLE) && !case.body.has_code(&codes::RAMP) => {
            Decision::new(Class::QuotaExhausted, "429 that must not be retried")
        }
        None => paused(None, "429"),
    };
    let step = if case.body.has_code(&codes::RAMP) { "429: traffic rose too fast" } else { decision.step };
    Some(Decision { reach, step, ..decision })
}

fn contains_any(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase))
}

/// Limits of a subscription, and refusals of an edge in front of the API, know no model.
fn concerns_everything(case: &Case<'_>, message: &str) -> bool {
    header::is(case.headers, "anthropic-ratelimit-unified-status", "rejected") || message.contains("error code: 1015")
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

/// The server's own opinion. `true` is heard in [`by_status`], where a status would be final.
fn server_verdict(case: &Case<'_>) -> Option<Decision> {
    says_no(case).then(|| Decision::new(Class::Invalid, "the server says not to retry"))
}

fn says_no(case: &Case<'_>) -> bool {
    says(case, "false")
}

fn says(case: &Case<'_>, verdict: &str) -> bool {
    ["x-should-retry", "stripe-should-retry"].into_iter().any(|name| header::is(case.headers, name, verdict))
}

fn by_status(case: &Case<'_>) -> Decision {
    let conflicts_pass = matches!(case.provider, Provider::OpenAi | Provider::Azure | Provider::Anthropic);
    match case.status {
        503 | 529 => waiting(case, Class::Overloaded, "status: overloaded"),
        409 if conflicts_pass || wait::in_headers(case).is_some() => waiting(case, Class::Transient, "409 that passes"),
        300..=499 | 501 | 505 | 511 if !matches!(case.status, 408 | 423 | 425) => match says(case, "true") {
            true => waiting(case, Class::Transient, "the server says to retry"),
            false => Decision::new(Class::Invalid, "status: the request can never pass"),
        },
        _ => waiting(case, Class::Transient, "status: server failure"),
    }
}

/// Throttled for a while, or a quota used up when it is for longer.
fn paused(hint: Option<Hint>, step: &'static str) -> Decision {
    let long = hint.is_some_and(|hint| hint.wait > LONGEST_PAUSE);
    let class = if long { Class::QuotaExhausted } else { Class::Throttled };
    Decision { hint, ..Decision::new(class, step) }
}

/// A class with the wait that the headers made for it ask for.
fn waiting(case: &Case<'_>, class: Class, step: &'static str) -> Decision {
    Decision { hint: wait::in_headers(case), ..Decision::new(class, step) }
}

impl Decision {
    /// With the reach that is usual for the class.
    pub(super) const fn new(class: Class, step: &'static str) -> Self {
        let reach = match class {
            Class::Account => Reach::Account,
            Class::Throttled | Class::QuotaExhausted | Class::Overloaded | Class::Partial => Reach::Scope,
            Class::Success | Class::Transient | Class::Invalid | Class::Filtered | Class::Abandoned => Reach::Item,
        };
        Self { class, reach, hint: None, step, fault: None }
    }

    /// Whether something follows that can be waited for.
    pub(super) const fn waits(&self) -> bool {
        matches!(
            self.class,
            Class::Throttled | Class::Overloaded | Class::Transient | Class::QuotaExhausted | Class::Partial
        )
    }
}
