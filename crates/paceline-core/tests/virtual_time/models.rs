//! Several models of one account in one job: each has its own pace, and the account's ceiling holds over all.

use std::time::Duration;

use paceline_core::{Class, Concurrency, Instant, Limits, Outcome, Pace, PacerConfig, Quota};

use crate::job::{Job, at, run_models, seconds};

const MS: Duration = Duration::from_millis(1);

/// Every third item is of the throttled model.
fn model(item: u64) -> &'static str {
    if item.is_multiple_of(3) { "slow" } else { "fast" }
}

/// Allows the slow model 5 calls a second, stored up to 5, and refuses more in one of its ways.
struct SlowModel {
    stored: f64,
    last: Instant,
    refusal: Outcome,
}

impl SlowModel {
    fn new(refusal: Outcome) -> Self {
        Self { stored: 5.0, last: Instant::ZERO, refusal }
    }

    fn answer(&mut self, now: Instant, item: u64) -> (Duration, Outcome) {
        if model(item) == "fast" {
            return (200 * MS, Outcome::new(Class::Success));
        }
        self.stored = (self.stored + 5.0 * (now - self.last).as_secs_f64()).min(5.0);
        self.last = now;
        if self.stored < 1.0 {
            return (20 * MS, self.refusal.clone());
        }
        self.stored -= 1.0;
        (200 * MS, Outcome::new(Class::Success))
    }
}

fn refusals() -> [Outcome; 4] {
    let throttled = || Outcome::new(Class::Throttled);
    [
        throttled(),
        throttled().with_hint(200 * MS, true),
        throttled().with_hint(30_000 * MS, false),
        Outcome::new(Class::Overloaded),
    ]
}

/// When the last item of the fast model had succeeded.
fn fast_done(job: &Job) -> f64 {
    job.succeeded.iter().filter(|(item, _)| model(*item) == "fast").map(|(_, at)| seconds(*at)).fold(0.0, f64::max)
}

#[test]
fn a_throttled_model_takes_no_more_than_a_twentieth_of_anothers_rate() {
    // Room for both under the account's calls in flight: one config finds the pace, one has the fast model's.
    let tier = Limits { quotas: vec![Quota::per_minute(1_800)], burst: Some(30) };
    let configured = PacerConfig {
        concurrency: Concurrency::Fixed { max: 20 },
        tiers: vec![("fast".into(), tier)],
        ..PacerConfig::default()
    };
    let found = PacerConfig::default();
    for config in [found, configured] {
        let all_fast = |_, _| (200 * MS, Outcome::new(Class::Success));
        let alone = run_models(config.clone(), 2_000, at(4_000.0), |_| "fast", all_fast).makespan();
        for refusal in refusals() {
            let mut server = SlowModel::new(refusal.clone());
            let both = run_models(config.clone(), 3_000, at(4_000.0), model, |now, item| server.answer(now, item));
            assert!(both.arrivals.len() > both.succeeded.len(), "some were refused");
            let beside = fast_done(&both);
            assert!(beside <= alone / 0.95, "{beside} s beside {refusal:?}, {alone} s alone");
        }
    }
}

#[test]
fn the_accounts_ceiling_holds_over_all_models_and_what_one_leaves_is_the_others() {
    let limits = Limits { quotas: vec![Quota::per_minute(1_200)], burst: Some(20) };
    let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut server = SlowModel::new(Outcome::new(Class::Throttled).with_hint(3_600_000 * MS, false));
    let job = run_models(config, 3_000, at(600.0), model, |now, item| server.answer(now, item));
    assert!(job.most_in(60_000 * MS) <= 1_200);
    let done = fast_done(&job);
    assert!((95.0..=2_000.0 / 20.0 / 0.95).contains(&done), "2,000 calls at 20 a second took {done} s");
    assert!(job.waiting > 900, "the slow model waits for its hour");
}
