//! The retry loop.

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Response;
use paceline::{Class, Error, RunError};
use paceline_providers::Provider;

use super::*;

type Reply = Result<Response<&'static str>, io::Error>;

type Last = Result<Response<&'static str>, RunError<io::Error>>;

fn reply(status: u16, headers: &[(&str, &str)]) -> Reply {
    let builder =
        headers.iter().fold(Response::builder().status(status), |builder, (name, value)| builder.header(*name, *value));
    Ok(builder.body("").expect("a response"))
}

/// Runs one item against a server that answers call k with `answer(k)`; returns the last reply and the calls.
async fn run(config: PacerConfig, answer: impl Fn(u32) -> Reply) -> (Last, u32) {
    let limiter = limiter(config);
    let calls = AtomicU32::new(0);
    let result = limiter.run(async || answer(calls.fetch_add(1, Ordering::Relaxed))).await;
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
    (result, calls.into_inner())
}

#[tokio::test(start_paused = true)]
async fn calls_are_one_more_than_retries() {
    for max_retries in [0, 1, 2] {
        let config = PacerConfig { retry: backing_off(S, max_retries), ..fixed(vec![], None, 5) };
        let (last, calls) = run(config, |_| reply(503, &[])).await;
        assert_eq!(calls, 1 + max_retries);
        assert_eq!(last.expect("an answer, though a bad one").status(), 503);
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_retries_spends_the_retries_of_the_item() {
    for (max_retries, of_gateway) in [(0, 2), (1, 2), (2, 2), (2, 1), (7, 2), (2, 0)] {
        let limiter = limiter(PacerConfig { retry: backing_off(S, max_retries), ..fixed(vec![], None, 5) });
        assert_eq!(limiter.retries_left(), None, "there is no call yet");
        let at_the_api = AtomicU32::new(0);
        let call = async || {
            let retried = limiter.retries_left().expect("inside a call").min(of_gateway);
            at_the_api.fetch_add(1 + retried, Ordering::Relaxed);
            Err::<(), _>(retried)
        };
        let ended = limiter.run(call).read(|ended, _| Outcome {
            retried: ended.expect_err("it always fails"),
            ..Outcome::new(Class::Transient)
        });
        let failed = ended.await.expect_err("it always fails");
        assert_eq!(at_the_api.into_inner(), 1 + max_retries, "{of_gateway} of the gateway");
        assert_eq!(failed.calls(), 1 + max_retries);
    }
}

#[tokio::test(start_paused = true)]
async fn deferrals_have_a_bound_of_their_own() {
    let retry = Retry { max_deferrals: Some(2), ..backing_off(S, 0) };
    let (last, calls) = run(PacerConfig { retry, ..fixed(vec![], None, 5) }, |_| reply(429, &[])).await;
    assert_eq!((calls, last.expect("an answer").status().as_u16()), (3, 429));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_pass_is_sent_once() {
    for status in [400, 404, 401] {
        let (last, calls) = run(fixed(vec![], None, 5), |_| reply(status, &[])).await;
        assert_eq!((calls, last.expect("an answer").status().as_u16()), (1, status));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovered_item_returns_its_success() {
    let answers = |call| if call < 3 { reply(503, &[]) } else { reply(200, &[]) };
    let config = PacerConfig { retry: backing_off(S, 7), ..fixed(vec![], None, 5) };
    let (last, calls) = run(config, answers).await;
    assert_eq!((calls, last.expect("an answer").status().as_u16()), (4, 200));
}

#[tokio::test(start_paused = true)]
async fn the_servers_wait_is_a_lower_bound() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 7), ..fixed(vec![], None, 5) });
    let arrivals = Arrivals::at(&limiter);
    let answer = limiter.run(async || {
        arrivals.record();
        if arrivals.seconds().len() == 1 { reply(429, &[("retry-after", "20")]) } else { reply(200, &[]) }
    });
    answer.await.expect("an answer");
    let times = arrivals.seconds();
    assert!(times.len() == 2 && times[1] >= 20.0 && times[1] < 30.0, "{times:?}");
}

#[derive(Debug, thiserror::Error)]
#[error("the cable is cut")]
pub(crate) struct Cut(#[source] pub(crate) io::Error);

#[tokio::test(start_paused = true)]
async fn the_operations_own_error_comes_back_unchanged() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 5) });
    let boxed = || -> Box<dyn std::error::Error + Send + Sync> {
        Box::new(Cut(io::Error::new(io::ErrorKind::ConnectionReset, "a digger")))
    };
    let failed = limiter.run(async || Err::<(), _>(boxed())).await.expect_err("the cable stays cut");
    assert!(failed.calls() == 2 && failed.is_retryable() && !failed.is_rate_limited(), "{failed:?}");
    let error = failed.into_operation().expect("it was called");
    let cut = error.downcast_ref::<Cut>().expect("the type is the operation's");
    assert_eq!(cut.to_string(), "the cable is cut");
    assert_eq!(cut.source().expect("a source").to_string(), "a digger");
    assert_eq!(limiter.snapshot().account.totals.sends, 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_send_the_operations_result_is_worth_more_than_a_local_refusal() {
    let limiter = limiter(PacerConfig { retry: backing_off(60 * S, 7), ..fixed(vec![], None, 5) });
    let deadline = Some(limiter.now() + 90 * S);
    let request = Request { deadline, ..request(&limiter) };
    let result = limiter.run(async || reply(503, &[])).request(request.clone()).await;
    assert_eq!(result.expect("an answer").status(), 503);
    assert_eq!(limiter.snapshot().account.totals.sends, 2, "at 0 s and at 60 s");

    tokio::time::advance(90 * S).await;
    let too_late = limiter.run(async || reply(200, &[])).request(request).await;
    assert!(matches!(too_late, Err(RunError::Limiter(Error::DeadlineExceeded { .. }))), "{too_late:?}");
}

#[tokio::test(start_paused = true)]
async fn retries_take_their_place_in_the_window() {
    let config = fixed(vec![Quota::per_minute(120)], Some(1), 50);
    let limiter = limiter(PacerConfig { retry: backing_off(S / 10, 7), ..config });
    let arrivals = Arrivals::at(&limiter);
    let tasks: Vec<_> = (0..30)
        .map(|item| {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            tokio::spawn(async move {
                let calls = AtomicU32::new(0);
                let send = async || {
                    arrivals.record();
                    if calls.fetch_add(1, Ordering::Relaxed) == 0 { reply(429, &[]) } else { reply(200, &[]) }
                };
                limiter.run(send).item(item).await
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert_eq!(arrivals.seconds().len(), 60);
    assert!(arrivals.most_within(1.0) <= 3, "{:?}", arrivals.seconds());
}

#[tokio::test(start_paused = true)]
async fn a_reader_sees_what_was_reserved_and_says_what_was_used() {
    let limiter = limiter(fixed(vec![Quota::sliding(Dimension::Tokens, 100, 60 * S)], None, 5));
    let reserved = Cost::request().with(Dimension::Tokens, 60);
    let request = Request::new(limiter.scope("test"), reserved.clone());
    let used = limiter.run(async || Ok::<_, io::Error>(10)).request(request).read(|tokens, attempt| {
        assert_eq!(*attempt.reserved, reserved);
        let tokens = *tokens.as_ref().expect("a number");
        Outcome::new(paceline::Class::Success).with_usage(Cost::zero().with(Dimension::Tokens, tokens))
    });
    assert_eq!(used.await.expect("no local refusal"), 10);
    assert_eq!(limiter.snapshot().account.quotas[0].remaining, 90);
}

#[tokio::test(start_paused = true)]
async fn a_response_is_read_in_the_limiters_dialect() {
    for (provider, sends) in [(Provider::Generic, 1), (Provider::Notion, 3)] {
        let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 5) });
        let limiter = limiter.with_provider(provider);
        let conflict = Response::builder().status(409).body(r#"{"object":"error","code":"conflict_error"}"#);
        let conflict = conflict.expect("a response");
        let send = async || Ok::<_, io::Error>(conflict.clone());
        limiter.run(send).await.expect("an answer");
        assert_eq!(limiter.snapshot().account.totals.sends, sends, "{provider}");
    }
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("busy")]
    Busy,
    #[error("come back in {0:?}")]
    Later(Duration),
    #[error("no such page")]
    Gone,
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_program_are_read_as_it_says() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 5) });
    let arrivals = Arrivals::at(&limiter);
    let answers = [Refusal::Busy, Refusal::Later(30 * S), Refusal::Gone];
    let call = AtomicU32::new(0);
    let mut heard = Vec::new();
    let send = async || -> Result<(), &Refusal> {
        arrivals.record();
        Err(&answers[call.fetch_add(1, Ordering::Relaxed) as usize])
    };
    let failed = limiter
        .run(send)
        .notify(|retrying| heard.push((retrying.class, retrying.calls, retrying.delay)))
        .when(|refusal| matches!(refusal, Refusal::Busy))
        .hint(|refusal| if let Refusal::Later(wait) = refusal { Some(*wait) } else { None })
        .await
        .expect_err("it is gone");
    assert!(failed.is_fatal() && failed.calls() == 3 && failed.retry_not_before().is_none(), "{failed:?}");
    assert_eq!(failed.to_string(), "no such page");
    let times: Vec<u64> = arrivals.seconds().iter().map(|time| *time as u64).collect();
    assert_eq!(times, [0, 1, 31]);
    use paceline::Class::{Throttled, Transient};
    assert_eq!(heard, [(Transient, 1, S), (Throttled, 2, 30 * S)]);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_made_again_is_a_line() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 5) });
    let mut lines = Vec::new();
    let send = async || Err::<(), _>(io::Error::other("the server is full"));
    let failed = limiter.run(send).notify(|retrying| lines.push(retrying.to_string())).await;
    assert_eq!(failed.expect_err("it fails twice").calls(), 2);
    assert_eq!(lines, ["transient failure (call 1), next try in 1s at the earliest: the server is full"]);
    let mut lines = Vec::new();
    let refused = limiter
        .run(async || Err::<(), _>(Refusal::Busy))
        .notify(|retrying| lines.push(retrying.to_string()))
        .when(|_| true)
        .await;
    assert_eq!(refused.expect_err("it fails twice").calls(), 2);
    assert_eq!(lines, ["transient failure (call 1), next try in 1s at the earliest"], "it gives no reason");
}

#[tokio::test(start_paused = true)]
async fn an_error_says_whether_another_try_helps() {
    let retry = Retry { max_deferrals: Some(0), ..backing_off(S, 0) };
    let limiter = limiter(PacerConfig { retry, ..fixed(vec![], None, 5) });
    let before = paceline::clock::wall();
    let send = async || Err::<(), _>(Refusal::Later(20 * S));
    let refused = limiter.run(send).when(|_| true).hint(|error| match error {
        Refusal::Later(wait) => Some(*wait),
        _ => None,
    });
    let refused = refused.await.expect_err("no deferral is left");
    assert!(refused.is_rate_limited() && refused.is_retryable(), "{refused:?}");
    assert!(refused.retry_not_before() >= Some(before + 20 * S), "{refused:?}");
    for (kind, fatal) in [(io::ErrorKind::ConnectionReset, false), (io::ErrorKind::NotFound, true)] {
        let failed = limiter.run(async || Err::<(), io::Error>(kind.into())).await.expect_err("it fails");
        assert_eq!((failed.is_fatal(), failed.calls()), (fatal, 1), "{kind}");
    }
    limiter.close();
    let closed = limiter.run(async || Ok::<(), io::Error>(())).await.expect_err("it is closed");
    assert!(closed.is_fatal() && closed.calls() == 0, "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn options_name_the_scope_the_cost_and_the_time() {
    let limiter = limiter(fixed(vec![Quota::per_hour(100).of(Dimension::Tokens)], None, 5));
    let send = async || Ok::<(), io::Error>(());
    let cost = || Cost::request().with(Dimension::Tokens, 60);
    limiter.run(send).scope("chat").cost(cost()).priority(1).await.expect("room");
    let late = limiter.run(send).scope("chat").cost(cost()).within(60 * S).await.expect_err("no room for an hour");
    assert!(matches!(late, RunError::Limiter(Error::DeadlineExceeded { .. })), "{late:?}");
    limiter.run(send).await.expect("tokens are not needed");
    let names: Vec<_> = limiter.snapshot().scopes.iter().map(|scope| scope.name.to_string()).collect();
    assert_eq!(names, ["chat", "default"]);
}

/// A future of a `run` goes wherever its operation goes.
#[test]
fn a_run_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let limiter = limiter(fixed(vec![], None, 5));
    is_send(limiter.run(async || Ok::<(), io::Error>(())).notify(|_| ()).into_future());
}
