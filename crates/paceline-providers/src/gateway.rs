//! What `paceline serve` answers by itself, in place of the API behind it.

use std::time::Duration;

use paceline_core::{Class, LimitScope};

use super::case::{Case, Classification, Hint};
use super::refusal::paused;
use super::table::{COMMON, usual_reach};
use super::{shape, wait};

/// The type of all errors by which the gateway answers by itself.
pub const GATEWAY: &str = "paceline";

/// The field of a request through `paceline serve` that says how many retries its item has left, and of an answer that says how
/// many of them were spent before the gateway gave up.
pub const GATEWAY_RETRIES: &str = "x-paceline-retries";

/// Whether a gateway has given up, and says for that reason not to retry: that is for clients that do not count with it.
pub(super) fn gave_up(case: &Case<'_>) -> bool {
    case.headers.contains_key(GATEWAY_RETRIES)
}

/// The wait that nothing shortens: its header fields ask for a minute at most.
fn known_wait(case: &Case<'_>) -> Option<Hint> {
    in_error(case, "/wait_ms", "wait_ms")
}

/// The wait of its header fields; of its body where those did not come through.
fn asked_wait(case: &Case<'_>) -> Option<Hint> {
    wait::in_headers(case).or_else(|| in_error(case, "/retry_after_ms", "retry_after_ms"))
}

fn in_error(case: &Case<'_>, place: &str, from: &'static str) -> Option<Hint> {
    let wait = Duration::from_millis(case.body.in_error(place)?.as_u64()?);
    Some(Hint { wait, exact: true, from }).filter(|hint| hint.wait <= shape::LONGEST)
}

/// By its own codes, whichever API is behind it. A code that is not known is judged by its status.
pub(super) fn refused(case: &Case<'_>) -> Option<Classification> {
    let text = |place| case.body.in_error(place)?.as_str();
    let code = text("/code").filter(|_| text("/type") == Some(GATEWAY))?;
    let known = COMMON.gateway.get(code)?;
    let step = format!("the gateway's own answer: {code}");
    let reach = if known.of_scope { LimitScope::Scope } else { usual_reach(known.class) };
    let decision = match known.class {
        Class::Throttled => paused(case, known_wait(case).or_else(|| asked_wait(case)), step),
        class => Classification { hint: asked_wait(case), ..Classification::new(class, step) },
    };
    Some(Classification { reach, unsent: known.unsent, ..decision })
}
