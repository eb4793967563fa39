//! What a limiter counts, for the recorder that a program has installed for the `metrics` facade.

use ::metrics::{counter, gauge};
use paceline_core::{Class, QuotaSnapshot, ScopeSnapshot, ScopeState};

use crate::limiter::Limiter;

impl Limiter {
    /// Gives its numbers to the recorder of the `metrics` facade: before each scrape, or each few seconds. Calls cost nothing by
    /// it; it costs as much as a [`snapshot`](Self::snapshot). `account` names the account in the label of that name; the label
    /// `scope` is empty for the numbers of the whole account. A program with a scope for each customer has a series for each.
    ///
    /// | name | kind | is |
    /// |---|---|---|
    /// | `paceline_calls_total` | counter | calls that left |
    /// | `paceline_outcomes_total` | counter | calls that ended, by `class` |
    /// | `paceline_retries_total` | counter | retries decided after failures |
    /// | `paceline_deferrals_total` | counter | waits decided after refusals by a limit and used-up quotas |
    /// | `paceline_probes_total` | counter | calls that only tested a failing server |
    /// | `paceline_waited_seconds` | gauge | the time that all calls together have waited for their permits |
    /// | `paceline_waiting` | gauge | requests that wait |
    /// | `paceline_in_flight`, `paceline_in_flight_limit` | gauge | calls in flight, and the most that may be |
    /// | `paceline_estimated_calls_per_second` | gauge | the learnt rate, where the pace is learnt |
    /// | `paceline_closed` | gauge | 1 while nothing may leave until a known time, else 0 |
    /// | `paceline_stopped` | gauge | 1 until a person acts, else 0 |
    /// | `paceline_quota_remaining` | gauge | units left of a configured limit, by `dimension` and `window_seconds` |
    ///
    /// The counters of a scope that was evicted begin anew when it comes back; the series stands still until they pass it.
    pub fn record_metrics(&self, account: &str) {
        let snapshot = self.snapshot();
        for scope in [&snapshot.account].into_iter().chain(&snapshot.scopes) {
            record(account, scope);
        }
    }
}

fn record(account: &str, scope: &ScopeSnapshot) {
    let labels = [("account", account.to_owned()), ("scope", scope.name.to_string())];
    let totals = &scope.totals;
    counter!("paceline_calls_total", &labels).absolute(totals.sends);
    counter!("paceline_retries_total", &labels).absolute(totals.retries);
    counter!("paceline_deferrals_total", &labels).absolute(totals.deferrals);
    counter!("paceline_probes_total", &labels).absolute(totals.probes);
    for class in Class::ALL {
        let [account, scope] = labels.clone();
        counter!("paceline_outcomes_total", &[account, scope, ("class", class.as_str().to_owned())])
            .absolute(totals.of(class));
    }
    gauge!("paceline_waited_seconds", &labels).set(totals.waited.as_secs_f64());
    gauge!("paceline_waiting", &labels).set(scope.waiting as f64);
    gauge!("paceline_in_flight", &labels).set(scope.concurrency.in_flight);
    gauge!("paceline_in_flight_limit", &labels).set(scope.concurrency.current_limit);
    if let Some(estimate) = &scope.estimate {
        gauge!("paceline_estimated_calls_per_second", &labels).set(estimate.rate);
    }
    let flag = |yes| if yes { 1.0 } else { 0.0 };
    gauge!("paceline_closed", &labels).set(flag(scope.closed_until.is_some()));
    gauge!("paceline_stopped", &labels).set(flag(matches!(scope.state, ScopeState::Stopped { .. })));
    for QuotaSnapshot { dimension, window, remaining, .. } in &scope.quotas {
        let [account, scope] = labels.clone();
        let window = window.map_or_else(String::new, |window| window.as_secs_f64().to_string());
        let labels = [account, scope, ("dimension", dimension.to_string()), ("window_seconds", window)];
        gauge!("paceline_quota_remaining", &labels).set(*remaining as f64);
    }
}
