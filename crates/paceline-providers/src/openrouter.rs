//! OpenRouter's budgets: of the calls in flight, which refills at once, and of a workspace or key, which opens at a known
//! time.

use paceline_core::{Class, LimitScope};
use serde_json::Value;

use super::case::{Case, Classification, Hint};
use super::refusal::paused;
use super::{shape, wait};

/// A 402 that passes: the user need not pay. It holds every model.
pub(super) fn in_flight(case: &Case<'_>) -> Option<Classification> {
    let hint = wait::in_headers(case);
    let refills = hint.is_some() || source(case) == Some("openrouter_in_flight_budget");
    let decision = || paused(case, hint, "402 with a wait: a budget that refills");
    refills.then(|| Classification { reach: LimitScope::Account, ..decision() })
}

/// A 403 of a budget that is spent: used up until it opens again; without such a time a person must act.
pub(super) fn spent(case: &Case<'_>) -> Option<Classification> {
    source(case).filter(|source| source.ends_with("_budget"))?;
    let opens = case.body.in_error("/metadata/resets_at").and_then(Value::as_str);
    let hint = opens.and_then(|time| shape::reset(time, case.now)).filter(|wait| !wait.duration.is_zero());
    let decision = match hint.map(|wait| Hint::new(wait, "reset in the body")) {
        hint @ Some(_) => paused(case, hint, "403: the budget is spent until its reset"),
        None => Classification::new(Class::Account, "403: the budget is spent"),
    };
    Some(Classification { reach: LimitScope::Account, ..decision })
}

fn source<'a>(case: &Case<'a>) -> Option<&'a str> {
    case.body.in_error("/metadata/limit_source")?.as_str()
}
