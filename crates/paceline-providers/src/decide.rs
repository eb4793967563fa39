//! The decision procedure: steps in order, of which the first that has something to say wins.
//!
//! No step asks for the provider's name unless its answers mean something else than all others'; what is a mere
//! comparison stands in the tables. Words inside the message of a 400 or 422 never decide: they are often an echo of the
//! caller's own text. Only a table may know what such a message begins with, where nothing else marks the case.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use paceline_core::{Class, LimitReport, Reach, Timestamp};

use super::api::Provider;
use super::body::Body;
use super::inside::{self, Inside};
use super::rule::{Place, Rule};
use super::table::{COMMON, Table, TableRule, usual_reach};
use super::wait::{self, Hint};
use super::{aws, github, google, header, names, openrouter, shopify};

/// Everything that a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) provider: Provider,
    pub(super) table: &'a Table,
    /// The status of the response, or the one that its body stands for.
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Body<'a>,
    pub(super) limits: &'a [LimitReport],
    pub(super) now: Timestamp,
    /// A success of this call is a JSON object.
    pub(super) must_be_json: bool,
    /// A success of any call is JSON, as the user says.
    pub(super) expects_json: bool,
    /// Further fields that hold a wait.
    pub(super) wait_headers: &'a [HeaderName],
    /// A longer wait is a used-up quota, to be kept on disk, and not a pause.
    pub(super) longest_pause: Duration,
}

/// What an answer is.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) class: Class,
    pub(super) reach: Reach,
    pub(super) hint: Option<Hint>,
    /// A used-up quota that the answer does not name: only its wait is that long.
    pub(super) unnamed: bool,
    /// The rule that decided, for people.
    pub(super) step: Cow<'static, str>,
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
    if case.status == 304 {
        return Decision::new(Class::Success, "304: what the caller has still holds");
    }
    if !(200..300).contains(&case.status) {
        return refused(case);
    }
    match inside::success(case) {
        Inside::Nothing => Decision::new(Class::Success, "2xx"),
        Inside::Decided(decision) => decision,
        Inside::Status(status) => {
            let decision = refused(&Case { status, ..*case });
            let step = format!("{} carries an error that stands for {status}: {}", case.status, decision.step);
            Decision { step: step.into(), ..decision }
        }
    }
}

type Step = fn(&Case<'_>) -> Option<Decision>;

const STEPS: [Step; 10] = [
    aws::cancelled_transaction,
    aws::throttling_reasons,
    rules_of_the_table,
    codes_that_decide_alone,
    unauthorized_or_unpaid,
    forbidden,
    google::exhausted,
    too_large,
    too_many,
    server_verdict,
];

fn refused(case: &Case<'_>) -> Decision {
    STEPS.iter().find_map(|step| step(case)).unwrap_or_else(|| by_status(case))
}

/// The provider's own codes; those of AWS, ACME and Anthropic also where their answers come from an unknown server.
fn rules_of_the_table(case: &Case<'_>) -> Option<Decision> {
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

/// What a rule of a table says, with the wait that the answer asks for.
pub(super) fn by_table(case: &Case<'_>, known: &TableRule) -> Decision {
    let TableRule { rule, note } = known;
    let step = step_of(case, known);
    let own = rule.wait.map(|wait| Hint { wait, exact: true, from: "documented wait" });
    let decision = match (rule.class, &own) {
        (Class::Throttled, None) => throttled(case, note.as_deref().unwrap_or_default().to_owned().into()),
        _ => Decision { hint: hint_for(case, rule.class, own), ..Decision::new(rule.class, "") },
    };
    Decision { reach: rule.reach, step: step.into(), ..decision }
}

fn step_of(case: &Case<'_>, TableRule { rule, note }: &TableRule) -> String {
    let found = match &rule.place {
        Some(Place::Code) => {
            names::all(case.headers, case.body).find(|name| rule.equals.iter().any(|known| *known == **name))
        }
        Some(Place::Header(name)) => Some(name.as_str().into()),
        Some(Place::Pointer(pointer)) => Some(pointer.into()),
        Some(Place::NotJson) => Some("no JSON".into()),
        None => None,
    };
    let found = found.map_or_else(|| format!("status {}", case.status), Cow::into_owned);
    match note {
        Some(note) => format!("{found}: {note}"),
        None => format!("{found}: {}", rule.class),
    }
}

/// A user's rule decides the class and the reach; without a wait of its own, the answer's holds.
pub(super) fn by_user(case: &Case<'_>, rule: &Rule) -> Decision {
    let own = rule.wait.map(|wait| Hint { wait, exact: true, from: "rule" });
    let hint = hint_for(case, rule.class, own);
    Decision { reach: rule.reach, hint, ..Decision::new(rule.class, "rule of the configuration") }
}

fn hint_for(case: &Case<'_>, class: Class, own: Option<Hint>) -> Option<Hint> {
    match class {
        Class::Throttled | Class::QuotaExhausted | Class::Partial => own.or_else(|| wait::of_throttle(case)),
        Class::Overloaded | Class::Transient => own.or_else(|| wait::in_headers(case)),
        Class::Success | Class::Account | Class::Invalid | Class::Filtered | Class::Abandoned => None,
    }
}

/// These beat `Retry-After`, `x-should-retry` and the status.
fn codes_that_decide_alone(case: &Case<'_>) -> Option<Decision> {
    let found = |what: &str, code: &str| Cow::Owned(format!("{what}: {code}"));
    if let Some(code) = case.body.code_of(&COMMON.filtered) {
        return Some(Decision::new(Class::Filtered, found("code of a filter", code)));
    }
    if case.body.message().contains(&COMMON.filtered_phrase) {
        return Some(Decision::new(Class::Filtered, "words of a filter in the message"));
    }
    if let Some(code) = case.body.code_of(&COMMON.account) {
        return Some(Decision::new(Class::Account, found("code of billing", code)));
    }
    let code = case.body.code_of(&COMMON.monthly_cap)?;
    let hint = wait::to_next_month(case.now);
    let decision = Decision::new(Class::QuotaExhausted, found("cap of a month", code));
    Some(Decision { hint, reach: Reach::Account, ..decision })
}

fn unauthorized_or_unpaid(case: &Case<'_>) -> Option<Decision> {
    match case.status {
        401 => Some(Decision::new(Class::Account, "401: the key is refused")),
        402 => Some(openrouter::in_flight(case).unwrap_or_else(|| Decision::new(Class::Account, "402: unpaid"))),
        _ => None,
    }
}

fn forbidden(case: &Case<'_>) -> Option<Decision> {
    if case.status != 403 {
        return None;
    }
    let flagged = ["/metadata/flagged_input", "/metadata/reasons"];
    Some(if github::is_limit(case) {
        github::limit(case)
    } else if flagged.into_iter().any(|place| case.body.in_error(place).is_some()) {
        Decision::new(Class::Filtered, "403 by moderation")
    } else if let Some(spent) = openrouter::spent(case) {
        spent
    } else {
        // A key may lack one model and have the others.
        Decision { reach: Reach::Scope, ..Decision::new(Class::Account, "403: the key may not do this") }
    })
}

fn too_large(case: &Case<'_>) -> Option<Decision> {
    let alone = case.status == 413 && case.body.has_code(&COMMON.throttled);
    alone.then(|| Decision::new(Class::Invalid, "413: the request alone exceeds the limit"))
}

/// 429, and 498 of a tier without capacity.
fn too_many(case: &Case<'_>) -> Option<Decision> {
    let message = case.body.message().to_ascii_lowercase();
    let capacity = case.body.has_code(&COMMON.capacity) || contains_any(&message, &COMMON.capacity_phrases);
    match case.status {
        498 => Some(waiting(case, Class::Overloaded, "498: no capacity")),
        429 if never_fits(&message) || shopify::never_fits(case) => {
            Some(Decision::new(Class::Invalid, "429: requested more than the limit"))
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

/// A limit of ours: for a while where the answer says how long, a used-up quota where it speaks of a long period.
pub(super) fn throttled(case: &Case<'_>, step: Cow<'static, str>) -> Decision {
    let message = case.body.message().to_ascii_lowercase();
    let reach = if concerns_everything(case, &message) { Reach::Account } else { Reach::Scope };
    let ramp = case.body.has_code(&COMMON.ramp);
    let decision = match wait::of_throttle(case) {
        hint @ Some(_) => paused(case, hint, step + " with a wait"),
        None if speaks_of_a_long_period(case, &message) => {
            Decision::new(Class::QuotaExhausted, step + " of a long period without a wait")
        }
        None if says(case, "false") && !case.body.has_code(&COMMON.throttled) && !ramp => {
            Decision::new(Class::QuotaExhausted, step + " that must not be retried")
        }
        None => paused(case, None, step),
    };
    let step = if ramp { "429: traffic rose too fast".into() } else { decision.step };
    Decision { reach, step, ..decision }
}

/// Whether an answer names a limit of a day or longer.
pub(super) fn is_of_a_long_period(case: &Case<'_>) -> bool {
    google::is_daily(case.body) || speaks_of_a_long_period(case, &case.body.message().to_ascii_lowercase())
}

fn speaks_of_a_long_period(case: &Case<'_>, message: &str) -> bool {
    let source = case.body.in_error("/metadata/limit_source").and_then(serde_json::Value::as_str);
    contains_any(message, &COMMON.long_periods) || source.is_some_and(|s| contains_any(s, &COMMON.long_periods))
}

pub(super) fn contains_any(text: &str, phrases: &[String]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase.as_str()))
}

/// Limits of a subscription, and refusals of an edge in front of the API, know no model. Discord's own answers name a `Via`:
/// one without it is a ban of the address.
fn concerns_everything(case: &Case<'_>, message: &str) -> bool {
    header::is(case.headers, "anthropic-ratelimit-unified-status", "rejected")
        || message.contains("error code: 1015")
        || (case.provider == Provider::Discord && !case.headers.contains_key("via"))
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
    says(case, "false").then(|| Decision::new(Class::Invalid, "the server says not to retry"))
}

fn says(case: &Case<'_>, verdict: &str) -> bool {
    ["x-should-retry", "stripe-should-retry"].into_iter().any(|name| header::is(case.headers, name, verdict))
}

fn by_status(case: &Case<'_>) -> Decision {
    let step = |words: &str| Cow::Owned(format!("{}: {words}", case.status));
    match case.status {
        503 | 529 => waiting(case, Class::Overloaded, step("overloaded")),
        409 if case.table.api.conflicts_pass || wait::in_headers(case).is_some() => {
            waiting(case, Class::Transient, step("a conflict that passes"))
        }
        300..=499 | 501 | 505 | 511 if !matches!(case.status, 408 | 423 | 425) => match says(case, "true") {
            true => waiting(case, Class::Transient, step("the server says to retry")),
            false => Decision::new(Class::Invalid, step("the request can never pass")),
        },
        _ => waiting(case, Class::Transient, step("server failure")),
    }
}

/// Throttled for a while, or a quota used up when it is for longer.
pub(super) fn paused(case: &Case<'_>, hint: Option<Hint>, step: impl Into<Cow<'static, str>>) -> Decision {
    let long = hint.as_ref().is_some_and(|hint| hint.wait > case.longest_pause);
    let class = if long { Class::QuotaExhausted } else { Class::Throttled };
    Decision { hint, unnamed: long && !is_of_a_long_period(case), ..Decision::new(class, step) }
}

/// A class with the wait that the headers made for it ask for.
pub(super) fn waiting(case: &Case<'_>, class: Class, step: impl Into<Cow<'static, str>>) -> Decision {
    Decision { hint: wait::in_headers(case).or_else(|| google::delay(case)), ..Decision::new(class, step) }
}

impl Decision {
    /// With the reach that is usual for the class.
    pub(super) fn new(class: Class, step: impl Into<Cow<'static, str>>) -> Self {
        Self { class, reach: usual_reach(class), hint: None, unnamed: false, step: step.into(), fault: None }
    }

    /// Whether something follows that can be waited for.
    pub(super) const fn waits(&self) -> bool {
        matches!(
            self.class,
            Class::Throttled | Class::Overloaded | Class::Transient | Class::QuotaExhausted | Class::Partial
        )
    }
}
