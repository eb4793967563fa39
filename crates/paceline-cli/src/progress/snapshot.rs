//! The numbers of a job and its limits as JSON: for `paceline stats`, which reads them from the journal, and for the
//! summary.

use std::sync::Arc;

use paceline::{Instant, ScopeSnapshot, Snapshot, ToWall, scope_json};
use serde_json::{Value, json};

use crate::account::OthersTurn;
use crate::progress::counters::Counters;
use crate::stops::stop::StopReason;

/// How a run stands.
pub(crate) struct Present<'a> {
    pub(crate) in_flight: u64,
    /// Since it began.
    pub(crate) seconds: f64,
    pub(crate) stop: Option<&'a StopReason>,
    /// The turn of another process, for which it waits.
    pub(crate) turn: Option<OthersTurn>,
}

/// The state of a job, as it is kept in the journal, but for its scopes.
pub(crate) fn job(
    figures: &Counters,
    account: &ScopeSnapshot,
    now: Instant,
    present: &Present<'_>,
    wall: ToWall<'_>,
) -> String {
    let totals = figures.totals;
    let Present { in_flight, seconds, stop, turn } = *present;
    let turn = turn.map(|turn| json!({ "process": turn.pid, "waiting_since": turn.since.to_string() }));
    let job = json!({
        "at": paceline::clock::wall().to_string(),
        "run_clock": wall(now).to_string(),
        "input": figures.input,
        "succeeded": figures.succeeded,
        "fallback": figures.fallback,
        "failed": figures.failed,
        "skipped": figures.skipped,
        "cancelled": figures.cancelled,
        "waiting": figures.input.saturating_sub(figures.ended()).saturating_sub(in_flight),
        "in_flight": in_flight,
        "calls": totals.calls,
        "resends": totals.resends,
        "retries": totals.retries,
        "throttled": totals.throttled,
        "abandoned": totals.abandoned,
        "tokens_in": figures.tokens_in,
        "tokens_out": figures.tokens_out,
        "seconds": seconds,
        "last_answer": figures.last_answer.map(|at| wall(at).to_string()),
        "stopped": stop.map(StopReason::as_str),
        "turn": turn,
        "account": scope_json(account, wall),
    });
    job.to_string()
}

/// The key of a scope of which a run tries nothing any more.
pub(crate) const GIVEN_UP: &str = "given_up";

/// Scopes that have changed, as they are kept in the journal: each with its time, because only what changes is written.
pub(crate) fn changed(
    changes: &Snapshot,
    now: Instant,
    wall: ToWall<'_>,
    given_up: impl Fn(&str) -> bool,
) -> Vec<(Arc<str>, String)> {
    let at = wall(now).to_string();
    let text = |each: &ScopeSnapshot| {
        let mut text = scope_json(each, wall);
        text["at"] = at.as_str().into();
        if given_up(&each.name) {
            text[GIVEN_UP] = true.into();
        }
        (Arc::clone(&each.name), text.to_string())
    };
    changes.scopes.iter().map(text).collect()
}

/// All scopes, the account left out.
pub(crate) fn scopes(view: &Snapshot, wall: ToWall<'_>) -> Vec<Value> {
    view.scopes.iter().map(|each| scope_json(each, wall)).collect()
}

#[cfg(test)]
mod tests {
    use paceline_core::{Pacer, PacerConfig, Timestamp};

    use super::*;

    #[test]
    fn a_job_is_one_object_and_each_scope_that_of_the_summary_with_its_time() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let wall: ToWall<'_> = &|at| Timestamp::from_millis((at - Instant::ZERO).as_millis() as i64);
        ["a \"model\"", "another"].iter().for_each(|name| drop(pacer.scope(name)));
        let changes = pacer.changes(Instant::ZERO);
        let present = Present { in_flight: 3, seconds: 1.5, stop: None, turn: None };
        let job: Value =
            serde_json::from_str(&job(&Counters::default(), &changes.account, Instant::ZERO, &present, wall))
                .expect("JSON");
        assert_eq!((&job["in_flight"], &job["account"]["name"]), (&3.into(), &"".into()));
        let written = changed(&changes, Instant::ZERO, wall, |_| false);
        assert_eq!(written.len(), 2);
        for ((name, text), mut shown) in written.iter().zip(scopes(&pacer.snapshot(Instant::ZERO), wall)) {
            shown["at"] = "1970-01-01T00:00:00.000Z".into();
            assert_eq!(
                (serde_json::from_str::<Value>(text).expect("JSON"), shown["name"].as_str()),
                (shown.clone(), Some(&**name))
            );
        }
    }
}
