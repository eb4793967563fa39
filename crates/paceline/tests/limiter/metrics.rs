//! The numbers of a limiter in a recorder of the `metrics` facade.

use std::collections::BTreeSet;

use ::metrics::Key;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshot};
use paceline::Class;

use super::*;

fn snapshot_of(record: impl FnOnce()) -> Snapshot {
    let recorder = DebuggingRecorder::new();
    ::metrics::with_local_recorder(&recorder, record);
    recorder.snapshotter().snapshot()
}

/// `name{label=value,...} value`, one line each, in order.
fn recorded(record: impl FnOnce()) -> Vec<String> {
    let line = |key: &Key, value: &DebugValue| {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Counter(value) => value.to_string(),
            DebugValue::Gauge(value) => value.to_string(),
            DebugValue::Histogram(_) => unreachable!("there is none"),
        };
        format!("{}{{{}}} {value}", key.name(), labels.join(","))
    };
    let all = snapshot_of(record).into_vec();
    let mut lines: Vec<String> = all.iter().map(|(key, _, _, value)| line(key.key(), value)).collect();
    lines.sort();
    lines
}

#[tokio::test(start_paused = true)]
async fn the_recorder_gets_the_sums_of_the_account_and_of_each_scope() {
    let limiter = limiter(fixed(vec![requests(3, 60 * S)], None, 5));
    for class in [Class::Success, Class::Transient] {
        let permit = limiter.acquire(request(&limiter)).await.expect("a wait is no error");
        permit.complete(Outcome::new(class));
    }
    let _in_flight = limiter.acquire(request(&limiter)).await.expect("a wait is no error");
    let waiting = limiter.acquire(request(&limiter));
    let waits = tokio::time::timeout(7 * S, waiting).await;
    assert!(waits.is_err(), "the minute is used up");
    limiter.stop(None, "no credit");
    let lines = recorded(|| limiter.record_metrics("production"));
    for expected in [
        "paceline_calls_total{account=production,scope=} 3",
        "paceline_calls_total{account=production,scope=test} 3",
        "paceline_outcomes_total{account=production,scope=test,class=success} 1",
        "paceline_outcomes_total{account=production,scope=test,class=transient} 1",
        "paceline_retries_total{account=production,scope=test} 1",
        "paceline_in_flight{account=production,scope=} 1",
        "paceline_in_flight_limit{account=production,scope=} 5",
        "paceline_waiting{account=production,scope=test} 0",
        "paceline_stopped{account=production,scope=} 1",
        "paceline_quota_remaining{account=production,scope=,dimension=requests,window_seconds=60} 0",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} in {lines:#?}");
    }
}

/// `name kind (labels beside those of each)`, as the table at `Limiter::record_metrics` has them.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../src/metrics.rs");
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = page.lines().filter_map(|line| line.trim().strip_prefix("/// |"));
    rows.map(|row| row.split('|').collect::<Vec<_>>())
        .flat_map(|cells| {
            let labels = cells[2].split_once(", by ").map_or_else(Vec::new, |(_, labels)| quoted(labels)).join(" ");
            let kind = cells[1].trim().to_owned();
            quoted(cells[0]).into_iter().map(move |name| format!("{name} {kind} ({labels})"))
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_documented_numbers_are_those_that_a_recorder_gets() {
    let limiter = limiter(Quota::per_minute(60).into());
    drop(limiter.acquire(request(&limiter)).await.expect("a permit"));
    let all = snapshot_of(|| limiter.record_metrics("production")).into_vec();
    let recorded: BTreeSet<String> = all
        .iter()
        .map(|(key, ..)| {
            let own =
                key.key().labels().map(::metrics::Label::key).filter(|label| !["account", "scope"].contains(label));
            let kind = format!("{:?}", key.kind()).to_lowercase();
            format!("{} {kind} ({})", key.key().name(), own.collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert_eq!(recorded, documented());
}
