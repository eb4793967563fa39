//! The scopes of a snapshot as they stood when it was written: a scope is written only when it changes, and what is a matter
//! of time goes on without that.

use std::time::Duration;

use paceline_core::Timestamp;
use serde_json::{Value, json};

use crate::text;

/// The scope at that time.
pub(super) fn aged(mut scope: Value, now: Timestamp) -> Value {
    let Some(at) = time(&scope["at"]) else { return scope };
    let since = now.saturating_since(at);
    if scope["waiting"] == 0 && is_over(&scope["waits_until"], now) {
        (scope["waits_for"], scope["waits_until"]) = (Value::Null, Value::Null);
        if scope["state"] == "paced" {
            scope["state"] = "open".into();
        }
    }
    end_hold(&mut scope, now);
    for quota in scope["quotas"].as_array_mut().into_iter().flatten() {
        age_quota(quota, since);
    }
    let seconds = since.as_secs_f64();
    if let Some(ago) = scope["belief"]["refused_ago_s"].as_f64() {
        scope["belief"]["refused_ago_s"] = json!(ago + seconds);
    }
    if let Some(text) = scope["belief"]["text"].as_str().filter(|_| since >= Duration::from_secs(1)) {
        scope["belief"]["text"] = format!("{text}; {} ago", text::duration(since)).into();
    }
    scope
}

/// A hold that is over holds no longer.
pub(super) fn end_hold(scope: &mut Value, now: Timestamp) {
    if scope["state"] == "held" && is_over(&scope["until"], now) {
        (scope["state"], scope["until"], scope["reason"]) = ("open".into(), Value::Null, Value::Null);
    }
}

/// What is left of the lease of a run in a fleet; nothing where it would have had to take a new one.
pub(super) fn age_lease(fleet: &mut Value, now: Timestamp) {
    let left = time(&fleet["lease_until"]).map(|until| until.saturating_since(now).as_millis() as u64);
    fleet["lease_ms"] = left.into();
}

fn is_over(until: &Value, now: Timestamp) -> bool {
    time(until).is_some_and(|until| until <= now)
}

/// An instant as the snapshot has it.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    text::instant(value.as_str()?)
}

/// What has left the window since then is not used any more.
fn age_quota(quota: &mut Value, since: Duration) {
    let Some(window) = quota["window_s"].as_f64() else { return };
    let millis = since.as_millis() as u64;
    let taken = quota["taken"].as_array_mut().into_iter().flatten();
    let mut left = Vec::new();
    for part in taken {
        let (Some(ago), Some(units)) = (part[0].as_u64(), part[1].as_u64()) else { return };
        if ((ago + millis) as f64) < 1e3 * window {
            left.push((ago + millis, units));
        }
    }
    let used: u64 = left.iter().map(|(_, units)| units).sum();
    if let (Some(known), Some(limit)) = (quota["used"].as_u64(), quota["limit"].as_u64()) {
        let used = used.min(known);
        (quota["used"], quota["remaining"]) = (used.into(), limit.saturating_sub(used).into());
    }
    quota["taken"] = json!(left);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_that_has_not_changed_since_is_told_as_it_stands_now() {
        let scope = json!({
            "at": "2026-11-22T10:00:00.000Z", "state": "paced", "until": null, "reason": null, "waiting": 0,
            "waits_for": "the learnt rate", "waits_until": "2026-11-22T10:00:01.000Z",
            "quotas": [{"window_s": 60.0, "limit": 10, "used": 5, "remaining": 5, "taken": [[50_000, 3], [1_000, 2]]}],
            "belief": {"refused_ago_s": 2.0, "text": "estimated limit about 5.00/s"},
        });
        let at = |seconds: u64| text::instant("2026-11-22T10:00:00Z").expect("a time") + Duration::from_secs(seconds);
        assert_eq!(aged(scope.clone(), at(0)), scope, "just written");
        let later = aged(scope.clone(), at(20));
        assert_eq!((&later["state"], &later["waits_for"]), (&"open".into(), &Value::Null));
        let quota = &later["quotas"][0];
        assert_eq!(
            [&quota["used"], &quota["remaining"], &quota["taken"]],
            [&2.into(), &8.into(), &json!([[21_000, 2]])]
        );
        assert_eq!(later["belief"]["refused_ago_s"], 22.0);
        assert_eq!(later["belief"]["text"], "estimated limit about 5.00/s; 20s ago");
        let until = "2026-11-22T10:00:27.000Z";
        let mut fleet = json!({"lease_until": until, "lease_ms": 27_000});
        let left = [20, 30].map(|seconds| {
            age_lease(&mut fleet, at(seconds));
            fleet["lease_ms"].clone()
        });
        assert_eq!(left, [7_000, 0]);
        let mut held = scope;
        (held["state"], held["until"]) = ("held".into(), "2026-11-22T10:00:30.000Z".into());
        assert_eq!([20, 30].map(|now| aged(held.clone(), at(now))["state"].clone()), ["held", "open"]);
    }
}
