//! The API in memory and the recorder, as tests of other programs use them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use paceline::RunError;
use paceline::testing::{Hints, Latency, MockAnswer, MockApi, ProviderConfig, Recorder, block_on};

use super::*;

/// An API with these limits, whose calls take 100 ms.
fn api(limits: &[Quota]) -> MockApi {
    let latency = Latency::Uniform { low: S / 10, high: S / 10 };
    let limits = limits.iter().cloned().map(Into::into).collect();
    MockApi::new(ProviderConfig { limits, latency, ..ProviderConfig::default() }).expect("a configuration that can be")
}

async fn statuses(api: &MockApi, calls: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..calls {
        statuses.push(api.call().await.expect("an answer").status().as_u16());
    }
    statuses
}

#[test]
fn an_hour_of_work_passes_at_once_and_its_windows_hold() {
    let api = api(&[requests(50, 60 * S)]);
    block_on(async {
        let limiter = limiter(fixed(vec![requests(50, 60 * S)], None, 5));
        for _ in 0..3_000 {
            assert_eq!(limiter.run(|| api.call()).await.expect("an answer").status(), 200);
        }
    });
    assert_eq!(api.calls().count(), 3_000, "no call was refused");
    let times = api.calls().times();
    assert!(times[1] < 2 * S && times[2_999] > 3_500 * S && times[2_999] < 3_700 * S, "{times:?}");
    api.calls().assert_at_most(50, 60 * S);
}

#[test]
fn what_the_limit_does_not_admit_is_refused_with_the_wait_that_the_hints_allow() {
    block_on(async {
        let waits = async |hints| {
            let api = api(&[requests(1, 7 * S)]).with_hints(hints);
            assert_eq!(statuses(&api, 1).await, [200]);
            let refused = api.call().await.expect("an answer");
            assert_eq!(refused.status(), 429);
            refused.headers().get("retry-after").map(|wait| wait.to_str().expect("digits").to_owned())
        };
        assert_eq!(waits(Hints::Honest).await.as_deref(), Some("7"));
        assert_eq!(waits(Hints::FalseWaits(60)).await.as_deref(), Some("60"));
        assert_eq!(waits(Hints::None).await, None);
    });
}

#[test]
fn answers_of_the_script_come_first_and_use_up_no_limit() {
    block_on(async {
        let api = api(&[requests(1, 60 * S)]);
        api.answer_next([
            MockAnswer::status(503).after(2 * S),
            MockAnswer::status(418).header("x-pot", "tea").body("short"),
        ]);
        let clock = paceline::Clock::new();
        let before = clock.now();
        assert_eq!(statuses(&api, 1).await, [503]);
        assert_eq!(clock.now() - before, 2 * S);
        let teapot = api.call().await.expect("an answer");
        assert_eq!((teapot.headers()["x-pot"].as_bytes(), teapot.body().as_str()), (&b"tea"[..], "short"));
        assert_eq!(statuses(&api, 2).await, [200, 429]);
        assert_eq!(api.calls().count(), 4);
    });
}

#[test]
fn a_connection_that_breaks_is_tried_again_and_one_that_hangs_can_be_given_up() {
    block_on(async {
        let api = api(&[]);
        api.answer_next([MockAnswer::reset(), MockAnswer::never()]);
        let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 1) });
        let send = async || match tokio::time::timeout(9 * S, api.call()).await {
            Ok(answer) => answer,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let failed = limiter.run(send).await.expect_err("the second call hangs");
        assert!(matches!(&failed, RunError::Operation { error, .. } if error.kind() == io::ErrorKind::TimedOut));
        assert_eq!(api.calls().times(), [Duration::ZERO, S]);
    });
}

#[test]
fn a_caller_that_gives_up_leaves_its_place_in_the_service() {
    block_on(async {
        let config = ProviderConfig { concurrency: Some(1), ..ProviderConfig::default() };
        let api = MockApi::new(config).expect("a configuration that can be");
        let gone = tokio::time::timeout(S / 1_000, api.call()).await;
        assert!(gone.is_err(), "it takes 50 ms at least");
        assert_eq!(statuses(&api, 1).await, [200]);
    });
}

#[test]
fn a_recorder_finds_the_worst_window() {
    block_on(async {
        let recorder = Recorder::new();
        assert_eq!(recorder.most_within(S), (0, Duration::ZERO));
        for (wait, units) in [(0, 5), (10, 1), (1, 3), (0, 3), (1, 3)] {
            tokio::time::advance(wait * S).await;
            recorder.record_units(units);
        }
        assert_eq!(recorder.most_within(2 * S), (9, 11 * S), "a call 2 s later is in the next window");
        assert_eq!(recorder.times(), [0, 10, 11, 11, 12].map(|seconds| S * seconds));
        recorder.assert_at_most(9, 2 * S);
        let refused = catch_unwind(AssertUnwindSafe(|| recorder.assert_at_most(8, 2 * S))).expect_err("9 are above 8");
        let message = refused.downcast_ref::<String>().expect("a message");
        assert_eq!(message, "9 within 2s, from 11s after the first call; expected at most 8");
    });
}
