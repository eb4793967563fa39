//! A configured limit holds over a restart: what its windows still counted when the run before stood last is counted by
//! this one. The snapshot in the journal is at most half a second old when a run is killed, and exact when it ends.

use std::time::Duration;

use paceline::Limiter;
use paceline_core::{Dimension, Timestamp};
use serde::Deserialize;

#[derive(Deserialize)]
struct Told {
    at: jiff::Timestamp,
    account: Level,
    scopes: Vec<Level>,
}

#[derive(Deserialize)]
struct Level {
    name: String,
    quotas: Vec<Counted>,
}

#[derive(Deserialize)]
struct Counted {
    dimension: String,
    window_s: Option<f64>,
    /// Milliseconds before `at`, and units.
    taken: Vec<(u64, u64)>,
}

/// Charges the limiter with what a snapshot tells. One of an older version tells nothing.
pub(crate) fn restore(snapshot: &str, limiter: &Limiter, now: Timestamp) {
    let Ok(told) = serde_json::from_str::<Told>(snapshot) else { return };
    let since = now.saturating_since(Timestamp::from_millis(told.at.as_millisecond()));
    for quota in &told.account.quotas {
        charge(limiter, None, quota, since);
    }
    for level in &told.scopes {
        level.quotas.iter().for_each(|quota| charge(limiter, Some(&level.name), quota, since));
    }
}

fn charge(limiter: &Limiter, scope: Option<&str>, quota: &Counted, since: Duration) {
    let Some(window) = quota.window_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) else { return };
    let taken: Vec<(Duration, u64)> =
        quota.taken.iter().map(|(ago, units)| (since + Duration::from_millis(*ago), *units)).collect();
    limiter.charge(scope.map(|name| limiter.scope(name)), &Dimension::from_name(&quota.dimension), window, &taken);
}
