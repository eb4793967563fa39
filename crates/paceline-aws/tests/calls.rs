//! Results as the SDK has them, under `Limiter::run` in virtual time.
#![cfg(test)]
#![expect(clippy::result_large_err, reason = "the SDK returns its errors by value")]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Mutex;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{ConnectorError, SdkError};
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use paceline::testing::block_on;
use paceline::{Class, Limiter, PacerConfig, Retry, RunError};
use paceline_aws::{Aws, Batch, BatchError};

type Sent<T> = Result<T, SdkError<fmt::Error, HttpResponse>>;

/// What the SDK makes of an answer that is no success.
fn refused<T>(status: u16, exception: &str) -> Sent<T> {
    let body = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{exception}","message":"no"}}"#);
    let status = StatusCode::try_from(status).expect("a status");
    Err(SdkError::service_error(fmt::Error, HttpResponse::new(status, SdkBody::from(body))))
}

fn limiter() -> Limiter {
    Limiter::new(PacerConfig::default().with_retry(Retry { max_retries: 2, ..Retry::default() })).expect("valid")
}

/// Runs calls with those results.
fn run<T>(
    limiter: &Limiter,
    results: impl IntoIterator<Item = Sent<T>>,
) -> Result<T, RunError<SdkError<fmt::Error, HttpResponse>>> {
    let results = Mutex::new(results.into_iter().collect::<VecDeque<_>>());
    block_on(limiter.run(async || results.lock().expect("no panic").pop_front().expect("no more calls")).read_by(Aws))
}

#[test]
fn the_exception_decides_what_a_refusal_means() {
    let limiter = limiter();
    let throttled = || refused(400, "ProvisionedThroughputExceededException");
    let passes = [throttled(), throttled(), throttled(), refused(500, "InternalServerError"), Ok(7)];
    assert_eq!(run(&limiter, passes).expect("all of them may pass"), 7);
    let totals = limiter.snapshot().account.totals;
    assert_eq!((totals.sends, totals.deferrals, totals.retries), (5, 3, 1));

    for (exception, class) in [("ValidationException", Class::Invalid), ("UnrecognizedClientException", Class::Account)]
    {
        let failed = run::<()>(&limiter, [refused(400, exception)]).expect_err("a person must act");
        assert!(matches!(failed, RunError::Operation { class: found, calls: 1, .. } if found == class), "{failed:?}");
        limiter.resume(None);
    }
}

#[test]
fn a_call_without_an_answer_may_pass_unless_it_cannot_be_built() {
    let dispatch = |error| Err(SdkError::dispatch_failure(error));
    let passes: [Sent<u32>; 3] =
        [dispatch(ConnectorError::io("reset".into())), Err(SdkError::timeout_error("no answer")), Ok(7)];
    assert_eq!(run(&limiter(), passes).expect("both may pass"), 7);
    let stays: [Sent<u32>; 2] =
        [Err(SdkError::construction_failure("no region")), dispatch(ConnectorError::user("a body too many".into()))];
    for result in stays {
        let failed = run(&limiter(), [result]).expect_err("no retry mends it");
        assert!(matches!(failed, RunError::Operation { class: Class::Invalid, calls: 1, .. }), "{failed:?}");
    }
}

#[test]
fn a_call_that_found_no_server_counts_against_no_bound() {
    let once = Limiter::new(PacerConfig::default().with_max_retries(0)).expect("valid");
    let gone = |kind: io::ErrorKind| Err(SdkError::dispatch_failure(ConnectorError::io(io::Error::from(kind).into())));
    let passes: [Sent<u32>; 2] = [gone(io::ErrorKind::ConnectionRefused), Ok(7)];
    assert_eq!(run(&once, passes).expect("it was not sent"), 7);
    let failed = run(&once, [gone(io::ErrorKind::ConnectionReset) as Sent<u32>]).expect_err("it may have been done");
    assert_eq!(failed.calls(), 1);
}

#[test]
fn what_an_answer_left_of_a_batch_is_sent_and_nothing_else() {
    let (limiter, batch, sent) = (limiter(), Batch::new(vec![1, 2, 3, 4, 5]), Mutex::new(Vec::new()));
    // Each answer accepts two of them; the second call fails.
    let send = async |items: Vec<u32>| {
        let mut sent = sent.lock().expect("no panic");
        sent.push(items.clone());
        if sent.len() == 2 { refused(500, "InternalServerError") } else { Ok(items) }
    };
    let rest = |accepted: Vec<u32>| accepted.get(2..).map(<[u32]>::to_vec);
    block_on(limiter.run(|| batch.send(&send, rest))).expect("all are accepted in the end");
    assert_eq!(*sent.lock().expect("no panic"), [&[1, 2, 3, 4, 5][..], &[3, 4, 5], &[3, 4, 5], &[5]]);
    assert!(batch.left().is_empty());
    assert_eq!(limiter.snapshot().account.totals.by_class[Class::Partial as usize], 2);
}

#[test]
fn a_batch_that_ends_early_has_what_is_left() {
    let retry = Retry { max_deferrals: Some(1), ..Retry::default() };
    let limiter = Limiter::new(PacerConfig::default().with_retry(retry)).expect("valid");
    let batch = Batch::new(vec![1, 2, 3]);
    let one_each = async |items: Vec<u32>| Sent::Ok(items);
    let failed = block_on(limiter.run(|| batch.send(one_each, |items| Some(items[1..].to_vec()))));
    let RunError::Operation { error: BatchError::Partial, calls: 2, .. } =
        failed.expect_err("two calls are not enough")
    else {
        panic!("another error")
    };
    assert_eq!(batch.left(), [3]);
}
