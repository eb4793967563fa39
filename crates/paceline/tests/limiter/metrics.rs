//! The numbers of a limiter in a recorder of the `metrics` facade.

use ::metrics::Key;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use paceline::Class;

use super::*;

/// `name{label=value,...} value`, one line each, in order.
fn recorded(record: impl FnOnce()) -> Vec<String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    ::metrics::with_local_recorder(&recorder, record);
    let line = |key: &Key, value: &DebugValue| {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Counter(value) => value.to_string(),
            DebugValue::Gauge(value) => value.to_string(),
            DebugValue::Histogram(_) => unreachable!("there is none"),
        };
        format!("{}{{{}}} {value}", key.name(), labels.join(","))
    };
    let all = snapshotter.snapshot().into_vec();
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
