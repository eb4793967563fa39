//! The numbers of a job and its limits as JSON: for `paceline stats`, which reads them from the journal, and for the
//! summary.

use std::sync::Arc;

use paceline::{Instant, QuotaSnapshot, RateEstimate, ResponsiveCounters, ScopeSnapshot, ScopeState, Snapshot};
use paceline_core::{Class, Dimension, Timestamp};
use serde_json::{Map, Value, json};

use crate::run::calls::stop::StopReason;
use crate::run::progress::counters::Counters;

/// Turns an instant of the limiter into a time of the wall clock.
pub(crate) type ToWall<'a> = &'a dyn Fn(Instant) -> Timestamp;

/// The state of a job, as it is kept in the journal, but for its scopes.
pub(crate) fn job(
    figures: &Counters,
    account: &ScopeSnapshot,
    in_flight: u64,
    now: Instant,
    seconds: f64,
    stop: Option<&StopReason>,
    wall: ToWall<'_>,
) -> String {
    let totals = figures.totals;
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
        "stopped": stop.map(StopReason::as_str),
        "account": scope(account, wall),
    });
    job.to_string()
}

/// Scopes that have changed, as they are kept in the journal: each with its time, because only what changes is written.
pub(crate) fn changed(changes: &Snapshot, now: Instant, wall: ToWall<'_>) -> Vec<(Arc<str>, String)> {
    let at = wall(now).to_string();
    let text = |each: &ScopeSnapshot| {
        let mut text = scope(each, wall);
        text["at"] = at.as_str().into();
        (Arc::clone(&each.name), text.to_string())
    };
    changes.scopes.iter().map(text).collect()
}

/// All scopes, the account left out.
pub(crate) fn scopes(view: &Snapshot, wall: ToWall<'_>) -> Vec<Value> {
    view.scopes.iter().map(|each| scope(each, wall)).collect()
}

fn scope(scope: &ScopeSnapshot, wall: ToWall<'_>) -> Value {
    let time = |at: Instant| wall(at).to_string();
    let (until, reason) = match &scope.state {
        ScopeState::Held { until, cause } => (Some(time(*until)), Some(cause.to_string())),
        ScopeState::Stopped { reason } => (None, Some(reason.to_string())),
        _ => (None, None),
    };
    let concurrency = &scope.concurrency;
    let by_class: Map<String, Value> =
        Class::ALL.iter().map(|class| (class.to_string(), scope.totals.of(*class).into())).collect();
    json!({
        "name": &*scope.name,
        "state": scope.state.as_str(),
        "until": until,
        "reason": reason,
        "waiting": scope.waiting,
        "waits_for": scope.waits_for.as_ref().map(|(policy, _)| policy.to_string()),
        "waits_until": scope.waits_for.as_ref().and_then(|(_, at)| at.map(time)),
        "next_due": scope.next_due.map(time),
        "windows": windows(scope),
        "quotas": scope.quotas.iter().map(|each| quota(each, &time)).collect::<Vec<_>>(),
        "announced": scope.announced.iter().map(|each| quota(each, &time)).collect::<Vec<_>>(),
        "concurrency": {
            "current_limit": concurrency.current_limit,
            "in_flight": concurrency.in_flight,
            "total_acquires": concurrency.total_acquires,
            "total_rate_limits": concurrency.total_rate_limits,
            "total_decreases": concurrency.total_decreases,
            "peak_active": concurrency.peak_active,
            "limit_history": concurrency.limit_history,
            "phase": concurrency.phase.as_str(),
        },
        "belief": scope.estimate.as_ref().map(belief),
        "delay_ms": scope.delay.as_secs_f64() * 1e3,
        "responsive": scope.responsive.as_ref().map(responsive),
        "totals": {
            "sends": scope.totals.sends,
            "resends": scope.totals.resends,
            "retries": scope.totals.retries,
            "deferrals": scope.totals.deferrals,
            "probes": scope.totals.probes,
            "waited_s": scope.totals.waited.as_secs_f64(),
            "by_class": by_class,
        },
    })
}

fn belief(belief: &RateEstimate) -> Value {
    json!({
        "rate": belief.rate,
        "trend": belief.trend.as_str(),
        "refused_ago_s": belief.refused.map(|(ago, _)| ago.as_secs_f64()),
        "tokens_rate": belief.tokens,
        "refused_rate": belief.refused.map(|(_, rate)| rate),
        "cap": belief.cap,
        "gate": belief.gate.as_str(),
        "text": belief.to_string(),
    })
}

fn responsive(counters: &ResponsiveCounters) -> Value {
    json!({
        "invocations": counters.invocations,
        "went_up": counters.went_up,
        "went_down": counters.went_down,
        "slept": counters.slept,
        "sleep_time_ms": counters.sleep_time.as_secs_f64() * 1e3,
        "current_delay_ms": counters.current_delay.as_secs_f64() * 1e3,
        "successes": counters.successes,
    })
}

fn quota(quota: &QuotaSnapshot, time: &dyn Fn(Instant) -> String) -> Value {
    json!({
        "dimension": quota.dimension.as_str(),
        "limit": quota.limit,
        "used": quota.used,
        "remaining": quota.remaining,
        "window_s": quota.window.map(|window| window.as_secs_f64()),
        "next_free": time(quota.next_free),
        "taken": quota.taken.iter().map(|taken| (taken.ago.as_millis(), taken.units)).collect::<Vec<_>>(),
    })
}

/// The request limits, each with the name of its window.
fn windows(scope: &ScopeSnapshot) -> Vec<Value> {
    let requests = || scope.quotas.iter().filter(|quota| quota.dimension == Dimension::Requests);
    let tracked = requests().map(|quota| quota.used).max();
    let window = |quota: &QuotaSnapshot| {
        let name = match quota.window.map(|window| window.as_secs()) {
            Some(1) => "second",
            Some(60) => "minute",
            Some(3_600) => "hour",
            Some(86_400) => "day",
            _ => "window",
        };
        json!({
            format!("requests_last_{name}"): quota.used,
            format!("limit_per_{name}"): quota.limit,
            "window_s": quota.window.map(|window| window.as_secs_f64()),
            "burst_tokens_remaining": scope.burst.map(|(remaining, _)| remaining),
            "burst_limit": scope.burst.map(|(_, limit)| limit),
            "total_requests_tracked": tracked,
        })
    };
    requests().map(window).collect()
}

#[cfg(test)]
mod tests {
    use paceline_core::{Pacer, PacerConfig};

    use super::*;

    #[test]
    fn a_job_is_one_object_and_each_scope_that_of_the_summary_with_its_time() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let wall: ToWall<'_> = &|at| Timestamp::from_millis((at - Instant::ZERO).as_millis() as i64);
        ["a \"model\"", "another"].iter().for_each(|name| drop(pacer.scope(name)));
        let changes = pacer.changes(Instant::ZERO);
        let job: Value =
            serde_json::from_str(&job(&Counters::default(), &changes.account, 3, Instant::ZERO, 1.5, None, wall))
                .expect("JSON");
        assert_eq!((&job["in_flight"], &job["account"]["name"]), (&3.into(), &"".into()));
        let written = changed(&changes, Instant::ZERO, wall);
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
