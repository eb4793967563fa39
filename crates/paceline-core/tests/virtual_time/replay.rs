//! The same seed and the same inputs give the same outputs, bit for bit.

use std::fmt::Write as _;
use std::time::Duration;

use crate::job::{at, run};
use paceline_core::{Class, Limits, Outcome, PacerConfig, Quota, Rng};

/// A job of 10,000 items against a server that throttles, fails and is overloaded at random.
fn transcript(seed: u64) -> String {
    let limits = Limits { quotas: vec![Quota::per_minute(6_000)], burst: Some(50) };
    let config = PacerConfig { limits, ..PacerConfig::default() };
    let mut rng = Rng::new(seed);
    let job = run(config, 10_000, at(1e6), |_, _| {
        let latency = Duration::from_secs_f64(0.05 + rng.unit());
        let outcome = match rng.next_u64() % 100 {
            0..4 => Outcome::new(Class::Throttled),
            4..6 => Outcome::new(Class::Throttled).with_hint(Duration::from_millis(rng.next_u64() % 3_000), true),
            6..9 => Outcome::new(Class::Transient),
            9..11 => Outcome::new(Class::Overloaded),
            _ => Outcome::new(Class::Success),
        };
        (latency, outcome)
    });
    assert_eq!(job.succeeded.len() + job.failed.len(), 10_000);
    let mut text = String::new();
    for arrival in &job.arrivals {
        writeln!(text, "{} {}", arrival.at.as_nanos(), arrival.item).expect("a String takes everything");
    }
    text
}

#[test]
fn ten_thousand_items_replay_byte_for_byte() {
    let first = transcript(42);
    assert!(first == transcript(42), "two runs of seed 42 differ");
    assert!(first != transcript(43), "another seed gives another run");
}
