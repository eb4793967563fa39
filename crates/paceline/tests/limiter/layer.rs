//! Services under `PaceLayer`.

use std::cell::Cell;
use std::io;
use std::task::{Context, Poll};

use http::Response;
use paceline::testing::{MockAnswer, MockApi, ProviderConfig, block_on};
use paceline::{ByHead, Class, PaceLayer, RunError};
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt as _, service_fn};

use super::*;

type Call = http::Request<&'static str>;

fn call(path: &'static str) -> Call {
    http::Request::post(path).body("{}").expect("a request")
}

/// A service that calls the API.
fn client(
    api: &MockApi,
) -> impl Service<Call, Response = Response<String>, Error = io::Error, Future: Send> + Clone + Send + use<> {
    let api = api.clone();
    service_fn(move |_| {
        let api = api.clone();
        async move { api.call().await }
    })
}

#[test]
fn all_clones_of_a_service_share_one_limiter_and_no_window_is_exceeded() {
    block_on(async {
        let api = MockApi::new(Quota::per_minute(50)).expect("a limit");
        let limiter = limiter(fixed(vec![requests(50, 60 * S)], None, 100));
        let layer = PaceLayer::new(limiter);
        let services = [0, 1].map(|_| ServiceBuilder::new().layer(layer.clone()).service(client(&api)));
        let calls: Vec<_> = (0..120).map(|n| tokio::spawn(services[n % 2].clone().oneshot(call("/")))).collect();
        for call in calls {
            assert_eq!(call.await.expect("no panic").expect("an answer").status(), 200);
        }
        assert_eq!(api.calls().count(), 120);
        api.calls().assert_at_most(50, 60 * S);
    });
}

#[test]
fn what_may_pass_is_called_again_and_the_last_result_comes_back() {
    block_on(async {
        let api = MockApi::new(Quota::per_minute(50)).expect("a limit");
        let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 5) });
        let mut service = ServiceBuilder::new().layer(PaceLayer::new(limiter.clone())).service(client(&api));
        let throttled = MockAnswer::status(429).header("retry-after", "7");
        api.answer_next([MockAnswer::status(503), throttled, MockAnswer::reset()]);
        let failed = service.ready().await.expect("it is always ready").call(call("/")).await;
        let failed = failed.expect_err("a second failure");
        assert!(matches!(failed, RunError::Operation { class: Class::Transient, calls: 3, .. }), "{failed:?}");
        assert_eq!(service.call(call("/")).await.expect("an answer").status(), 200);
        assert_eq!(limiter.snapshot().account.totals.sends, 4);
        assert!(api.calls().times()[2] >= 8 * S, "1 s of backoff and the 7 s that the API asked for");
    });
}

#[test]
fn each_request_says_what_it_asks_the_limiter_for() {
    block_on(async {
        let api = MockApi::new(ProviderConfig::default()).expect("no limit");
        let limiter = limiter(fixed(vec![], None, 5));
        let describe = |limiter: &Limiter, call: &Call| Request::new(limiter.scope(call.uri().path()), Cost::request());
        let layer = PaceLayer::new(limiter.clone()).describe(describe);
        for path in ["/a", "/b", "/a"] {
            layer.layer(client(&api)).oneshot(call(path)).await.expect("an answer");
        }
        let sends: Vec<_> =
            limiter.snapshot().scopes.iter().map(|scope| (scope.name.to_string(), scope.totals.sends)).collect();
        assert_eq!(sends, [("/a".to_owned(), 2), ("/b".to_owned(), 1)]);
    });
}

/// A service that only one thread at a time may use, and that is ready every second time.
#[derive(Clone)]
struct Moody {
    asked: Cell<u32>,
    ready: bool,
}

impl Service<Call> for Moody {
    type Response = Response<()>;
    type Error = String;
    type Future = std::future::Ready<Result<Response<()>, String>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        if !self.ready {
            return Poll::Ready(Err("it has ended".to_owned()));
        }
        context.waker().wake_by_ref();
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == 2 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, request: Call) -> Self::Future {
        assert_eq!(self.asked.replace(0), 2, "a service is called when it is ready");
        let status = if request.uri().path() == "/throttled" { 429 } else { 200 };
        let response = Response::builder().status(status).header("retry-after", "7").body(());
        std::future::ready(response.map_err(|error| error.to_string()))
    }
}

#[test]
fn the_service_inside_is_ready_before_each_try_and_its_error_is_that_of_the_call() {
    block_on(async {
        let retry = Retry { max_deferrals: Some(1), ..backing_off(S, 1) };
        let limiter = limiter(PacerConfig { retry, ..fixed(vec![], None, 5) });
        let layer = PaceLayer::new(limiter.clone()).by_head();
        let service = |ready| layer.layer(Moody { asked: Cell::new(0), ready });
        assert_eq!(service(true).oneshot(call("/")).await.expect("an answer").status(), 200);
        assert_eq!(service(true).oneshot(call("/throttled")).await.expect("an answer").status(), 429);
        assert_eq!(limiter.snapshot().account.totals.sends, 3);
        let ended = service(false).oneshot(call("/")).await.expect_err("it has ended");
        assert_eq!((ended.to_string().as_str(), ended.calls()), ("it has ended", 2));
    });
}

#[test]
fn a_success_is_one_by_its_head_in_every_dialect() {
    for provider in paceline_providers::Provider::ALL {
        block_on(async {
            let limiter = limiter(fixed(vec![], None, 5)).with_provider(provider);
            let streamed = limiter.run(async || Ok::<_, io::Error>(Response::new(()))).read_by(ByHead).await;
            assert_eq!(streamed.expect("an answer").status(), 200);
            assert_eq!(limiter.snapshot().account.totals.by_class[Class::Success as usize], 1, "{provider:?}");
        });
    }
}

/// gRPC answers a refusal with a 200, and says so beside it.
#[test]
fn a_refusal_by_grpc_is_one_by_its_head() {
    block_on(async {
        let limiter = limiter(fixed(vec![], None, 5));
        let refused = Response::builder().header("grpc-status", "8").header("grpc-retry-pushback-ms", "7000").body(());
        let mut answers = [refused.expect("an answer"), Response::new(())].into_iter();
        let began = limiter.now();
        let call =
            limiter.run(|| std::future::ready(Ok::<_, io::Error>(answers.next().expect("two calls")))).read_by(ByHead);
        call.await.expect("an answer");
        assert_eq!((limiter.snapshot().account.totals.deferrals, limiter.now() - began >= 7 * S), (1, true));
    });
}
