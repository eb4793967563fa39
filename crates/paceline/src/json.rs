//! A scope's snapshot as JSON: the one document of `stats --json`, of summaries and of the gateway.

use paceline_core::fleet::MemberId;
use paceline_core::{
    Class, Dimension, DividedLimit, FleetShare, FleetSnapshot, Instant, QuotaSnapshot, RateEstimate,
    ResponsiveCounters, ScopeSnapshot, ScopeState, Timestamp, WaitCause,
};
use serde_json::{Map, Value, json};

use crate::clock;

/// Turns an instant of the limiter into a time of the wall clock.
pub type ToWall<'a> = &'a dyn Fn(Instant) -> Timestamp;

/// The numbers of a scope, or of the account, as `paceline stats --json` shows them. Times are RFC 3339 in UTC; names end in
/// `_ms` for milliseconds and in `_s` for seconds.
pub fn scope_json(scope: &ScopeSnapshot, wall: ToWall<'_>) -> Value {
    let time = |at: Instant| wall(at).to_string();
    let (until, reason) = match &scope.state {
        ScopeState::Held { until, cause } => (Some(time(*until)), Some(cause.to_string())),
        ScopeState::Stopped { reason } => (None, Some(reason.to_string())),
        _ => (None, None),
    };
    let concurrency = &scope.concurrency;
    let by_class: Map<String, Value> =
        Class::ALL.iter().map(|class| (class.to_string(), scope.totals.of(*class).into())).collect();
    let mut json = json!({
        "name": &*scope.name,
        "state": scope.state.as_str(),
        "until": until,
        "reason": reason,
        "waiting": scope.waiting,
        "waits_for": scope.waits_for.as_ref().map(|(policy, _)| policy.to_string()),
        // When another process passes its turn on, or a store answers, is not known: the estimate is for callers that bound their
        // wait.
        "waits_until": scope.waits_for.as_ref().filter(|(cause, _)| *cause != WaitCause::Turn && !scope.lacks_its_share()).and_then(|(_, at)| at.map(time)),
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
    });
    if let Some(known) = &scope.fleet {
        json["fleet"] = fleet(known, wall);
    }
    json
}

fn fleet(fleet: &FleetSnapshot, wall: ToWall<'_>) -> Value {
    let limit = |FleetShare { limit, units, alone, quarantine, .. }: &FleetShare| {
        json!({
            "dimension": limit.dimension(),
            "window_ms": (!limit.in_flight).then_some(limit.quota.window.as_secs_f64() * 1e3),
            "tier": limit.tier.as_deref(),
            "limit": limit.quota.limit,
            "share": units,
            "alone_share": alone,
            "quarantine": quarantine,
        })
    };
    let of_each = |units: fn(&FleetShare) -> u64| -> Map<String, Value> {
        fleet.shares.iter().map(|share| (named(&share.limit), units(share).into())).collect()
    };
    let lease_ends = fleet.lease_ends.map(wall);
    json!({
        "members": fleet.members,
        "share": of_each(|share| share.units),
        "lease_ms": lease_ends.map(|ends| ends.saturating_since(clock::wall()).as_millis() as u64),
        "quarantine": of_each(|share| share.quarantine),
        "reader": fleet.reader.map(name),
        "state": fleet.state.as_str(),
        "member": name(fleet.member),
        "weight": fleet.weight,
        "reads": fleet.reads,
        "lease_until": lease_ends.map(|ends| ends.to_string()),
        "limits": fleet.shares.iter().map(limit).collect::<Vec<_>>(),
        "text": fleet.to_string(),
    })
}

/// A divided limit as a key: that of a tier names it.
fn named(limit: &DividedLimit) -> String {
    match &limit.tier {
        Some(tier) => format!("{limit} ({tier})"),
        None => limit.to_string(),
    }
}

/// A member of a fleet, as the store knows it too.
fn name(MemberId(id): MemberId) -> String {
    format!("{id:016x}")
}

fn belief(belief: &RateEstimate) -> Value {
    let mut json = json!({
        "rate": belief.rate,
        "trend": belief.trend.as_str(),
        "refused_ago_s": belief.refused.map(|(ago, _)| ago.as_secs_f64()),
        "tokens_rate": belief.tokens,
        "refused_rate": belief.refused.map(|(_, rate)| rate),
        "cap": belief.cap,
        "gate": belief.gate.as_str(),
        "text": belief.to_string(),
    });
    if let Some(shared) = belief.shared {
        let (decides, reader) = (shared.decides, shared.reader.map(name));
        json["shared"] = json!({ "decides": decides, "reader": reader, "share": shared.share, "era": shared.era });
    }
    json
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
    use std::time::Duration;

    use paceline_core::fleet::{FleetLimit, Grant, LimitKind, Member, MemberConfig, MemberInput, OnLoss, SyncReply};
    use paceline_core::{Limits, Pacer, PacerConfig, Quota};

    use super::*;

    #[test]
    fn a_place_in_a_fleet_has_the_keys_that_scripts_read() {
        let config = PacerConfig::from(Limits::from(Quota::per_minute(60)));
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("right");
        pacer.divide(Instant::ZERO).expect("a window");
        let limits = vec![FleetLimit { units: 60, kind: LimitKind::Window(Duration::from_secs(60)) }];
        let (id, on_loss, alone_share) = (MemberId(10), OnLoss::Strict, Vec::new());
        let mut member = Member::new(MemberConfig { id, weight: 2, limits, on_loss, alone_share }, 1, Instant::ZERO);
        let soon = Instant::ZERO + Duration::from_secs(1);
        pacer.hear(Instant::ZERO, &mut member, MemberInput::Linked { run: 1, quiet: None });
        pacer.hear(soon, &mut member, MemberInput::Time);
        let seq = std::iter::from_fn(|| member.poll_request()).last().expect("it asks").seq();
        let grants = vec![Grant { has: 15, target: 15, contended: false, quarantine: 5 }];
        let (lease, notes) = (Duration::from_secs(30), Vec::new());
        let reply = SyncReply { seq, lease, members: 4, grants, newest: 0, notes };
        pacer.hear(soon, &mut member, MemberInput::Reply(reply));
        let began = clock::wall();
        let account = pacer.snapshot(soon).account;
        let fleet = &scope_json(&account, &|at| began + (at - soon))["fleet"];
        let (share, quarantine) = (json!({ "60 requests per 60s": 15 }), json!({ "60 requests per 60s": 5 }));
        assert_eq!((&fleet["members"], &fleet["state"], &fleet["weight"]), (&json!(4), &json!("live"), &json!(2)));
        assert_eq!((&fleet["share"], &fleet["quarantine"], &fleet["reader"]), (&share, &quarantine, &Value::Null));
        assert!(fleet["lease_ms"].as_u64().is_some_and(|left| left > 0 && left <= 30_000), "{fleet}");
        assert_eq!((&fleet["member"], &fleet["limits"][0]["share"]), (&json!("000000000000000a"), &json!(15)));
        assert_eq!(fleet["text"], "live, 4 members known; here 15 of 60 requests per 60s, 5 in quarantine");
    }
}
