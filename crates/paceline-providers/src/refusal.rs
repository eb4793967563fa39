//! A refusal that may pass: throttled for a while or a quota used up, how long it lasts and how far it reaches.

use std::borrow::Cow;

use paceline_core::{Class, LimitScope};

use super::case::{Case, Classification, Hint, RULE};
use super::google_details;
use super::rule::{Place, Rule};
use super::table::{COMMON, Provider, TableRule, contains_any};
use super::{header, names, wait};

/// The decision of a table's rule, with the wait that the answer asks for.
pub(super) fn by_table(case: &Case<'_>, known: &TableRule) -> Classification {
    let TableRule { rule, note } = known;
    let step = step_of(case, known);
    let own = rule.wait.map(|wait| Hint { wait, exact: true, from: "documented wait" });
    let decision = match (rule.class, &own) {
        (Class::Throttled, None) => throttled(case, note.as_deref().unwrap_or_default().to_owned().into()),
        _ => Classification { hint: hint_for(case, rule.class, own), ..Classification::new(rule.class, "") },
    };
    Classification { reach: rule.reach, step: step.into(), ..decision }
}

fn step_of(case: &Case<'_>, TableRule { rule, note }: &TableRule) -> String {
    let found = match &rule.place {
        Some(Place::Code) => {
            names::all(case.headers, case.body).find(|name| rule.equals.iter().any(|known| *known == **name))
        }
        Some(Place::Header(name)) => Some(name.as_str().into()),
        Some(Place::Pointer(pointer)) => Some(pointer.into()),
        Some(Place::NotJson) => Some("no JSON".into()),
        Some(Place::Text(text)) => Some(text.into()),
        None => None,
    };
    let found = found.map_or_else(|| format!("status {}", case.status), Cow::into_owned);
    match note {
        Some(note) => format!("{found}: {note}"),
        None => format!("{found}: {}", rule.class),
    }
}

/// A user's rule, the `number`th of them and written at that place, decides the class and the reach; without a wait of its own,
/// the answer's holds.
pub(super) fn by_user(case: &Case<'_>, rule: &Rule, number: usize, place: Option<&str>) -> Classification {
    let own = rule.wait.map(|wait| Hint { wait, exact: true, from: "rule" });
    let hint = hint_for(case, rule.class, own);
    let place = place.map_or_else(|| " of the configuration".to_owned(), |place| format!(" ({place})"));
    Classification { reach: rule.reach, hint, ..Classification::new(rule.class, format!("{RULE}{number}{place}")) }
}

fn hint_for(case: &Case<'_>, class: Class, own: Option<Hint>) -> Option<Hint> {
    match class {
        Class::Throttled | Class::QuotaExhausted | Class::Partial => own.or_else(|| wait::of_throttle(case)),
        Class::Overloaded | Class::Transient => own.or_else(|| wait::in_headers(case)),
        Class::Success | Class::Account | Class::Invalid | Class::Filtered | Class::Abandoned => None,
    }
}

/// A limit of ours: for a while where the answer says how long, a used-up quota where it speaks of a long period.
pub(super) fn throttled(case: &Case<'_>, step: Cow<'static, str>) -> Classification {
    let message = case.body.message().to_ascii_lowercase();
    let reach = if concerns_everything(case, &message) { LimitScope::Account } else { LimitScope::Scope };
    let ramp = case.body.has_code(&COMMON.ramp);
    let decision = match wait::of_throttle(case) {
        hint @ Some(_) => paused(case, hint, step + " with a wait"),
        None if speaks_of_a_long_period(case, &message) => {
            Classification::new(Class::QuotaExhausted, step + " of a long period without a wait")
        }
        None if says(case, "false") && !case.body.has_code(&COMMON.throttled) && !ramp => {
            Classification::new(Class::QuotaExhausted, step + " that must not be retried")
        }
        None => paused(case, None, step),
    };
    let step = if ramp { "429: traffic rose too fast".into() } else { decision.step };
    Classification { reach, step, ..decision }
}

/// Whether an answer names a limit of a day or longer.
pub(super) fn is_of_a_long_period(case: &Case<'_>) -> bool {
    google_details::is_daily(case.body) || speaks_of_a_long_period(case, &case.body.message().to_ascii_lowercase())
}

fn speaks_of_a_long_period(case: &Case<'_>, message: &str) -> bool {
    let source = case.body.in_error("/metadata/limit_source").and_then(serde_json::Value::as_str);
    contains_any(message, &COMMON.long_periods) || source.is_some_and(|s| contains_any(s, &COMMON.long_periods))
}

/// Limits of a subscription, and refusals of an edge in front of the API, know no model. Discord's own answers name a `Via`:
/// one without it is a ban of the address.
fn concerns_everything(case: &Case<'_>, message: &str) -> bool {
    header::is(case.headers, "anthropic-ratelimit-unified-status", "rejected")
        || message.contains("error code: 1015")
        || (case.provider == Provider::Discord && !case.headers.contains_key("via"))
}

/// Whether the server gives that advice about a retry.
pub(super) fn says(case: &Case<'_>, advice: &str) -> bool {
    ["x-should-retry", "stripe-should-retry"].into_iter().any(|name| header::is(case.headers, name, advice))
}

/// Throttled for a while, or a quota used up when it is for longer.
pub(super) fn paused(case: &Case<'_>, hint: Option<Hint>, step: impl Into<Cow<'static, str>>) -> Classification {
    let long = hint.as_ref().is_some_and(|hint| hint.wait > case.longest_pause);
    let class = if long { Class::QuotaExhausted } else { Class::Throttled };
    Classification { hint, unnamed: long && !is_of_a_long_period(case), ..Classification::new(class, step) }
}

/// A class with the wait that the headers made for it ask for.
pub(super) fn waiting(case: &Case<'_>, class: Class, step: impl Into<Cow<'static, str>>) -> Classification {
    Classification {
        hint: wait::in_headers(case).or_else(|| google_details::delay(case)),
        ..Classification::new(class, step)
    }
}
