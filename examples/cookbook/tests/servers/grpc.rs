//! A server and a generated client of `tonic`, under `PaceLayer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cookbook::grpc::paced;
use futures_util::future;
use paceline::{Class, Classify as _, Limiter, Outcome, Pace, PacerConfig};
use tonic::metadata::MetadataValue;
use tonic::service::InterceptorLayer;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;

use super::nginx::Nginx;

/// Refuses each second call, as long as that may pass; the calls that arrived.
async fn server(refusal: impl Fn() -> Status + Clone + Send + Sync + 'static) -> (Channel, Arc<AtomicU32>) {
    let arrived = Arc::new(AtomicU32::new(0));
    let (counts, (_, health)) = (Arc::clone(&arrived), tonic_health::server::health_reporter());
    let limit = InterceptorLayer::new(move |request: Request<()>| {
        if counts.fetch_add(1, Ordering::Relaxed) % 2 == 0 { Err(refusal()) } else { Ok(request) }
    });
    let service = ServiceBuilder::new().layer(limit).service(health);
    (connect(&serve(Server::builder().add_service(service)).await), arrived)
}

/// Serves on this machine for as long as the test's runtime lives; its address.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address").to_string();
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

fn connect(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}

fn exhausted() -> Status {
    let mut status = Status::resource_exhausted("slow down");
    status.metadata_mut().insert("grpc-retry-pushback-ms", MetadataValue::from_static("5"));
    status
}

fn limiter() -> Limiter {
    Limiter::new(PacerConfig::default().with_pace(Pace::None)).expect("valid")
}

fn check() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

#[tokio::test]
async fn calls_that_a_server_refuses_are_made_again_and_streams_pass() {
    let ((channel, arrived), limiter) = (server(exhausted).await, limiter());
    let client = HealthClient::new(paced(channel, limiter.clone()));
    let calls = (0..20).map(|_| {
        let mut client = client.clone();
        async move { client.check(check()).await }
    });
    for answer in future::join_all(calls).await {
        assert_eq!(answer.expect("an answer").into_inner().status, 1);
    }
    let totals = limiter.snapshot().account.totals;
    assert_eq!(u64::from(arrived.load(Ordering::Relaxed)), totals.sends);
    assert_eq!(
        (totals.by_class[Class::Success as usize], totals.deferrals, totals.retries),
        (20, totals.sends - 20, 0)
    );

    let mut states = client.clone().watch(check()).await.expect("a stream").into_inner();
    assert_eq!(states.message().await.expect("no error").expect("a state").status, 1);
}

/// nginx refuses with a 429 and no word of gRPC.
#[tokio::test]
async fn calls_that_nginx_refuses_are_made_again() {
    let (_, health) = tonic_health::server::health_reporter();
    let nginx = Nginx::limiting_grpc(&serve(Server::builder().add_service(health)).await);
    let limiter = limiter();
    let client = HealthClient::new(paced(connect(nginx.url.trim_start_matches("http://")), limiter.clone()));
    let calls = (0..40).map(|_| {
        let mut client = client.clone();
        async move { client.check(check()).await }
    });
    for answer in future::join_all(calls).await {
        assert_eq!(answer.expect("an answer").into_inner().status, 1);
    }
    let (arrived, refused) = nginx.counts("429");
    let totals = limiter.snapshot().account.totals;
    assert_eq!((arrived as u64, refused as u64), (totals.sends, totals.deferrals));
    assert!(refused > 0, "forty at once are more than it lets through");
}

#[tokio::test]
async fn a_refused_key_stops_what_would_be_refused_as_well() {
    let ((channel, arrived), limiter) = (server(|| Status::unauthenticated("who are you?")).await, limiter());
    let mut client = HealthClient::new(paced(channel, limiter));
    assert_eq!(client.check(check()).await.expect_err("a refusal").code(), Code::Unauthenticated);
    assert!(client.check(check()).await.expect_err("stopped").to_string().contains("stopped"));
    assert_eq!(arrived.load(Ordering::Relaxed), 1);
}

/// A call under `Limiter::run` needs no layer: its status is read as the answer that it came from.
#[tokio::test]
async fn a_status_is_read_by_run() {
    let ((channel, _), limiter) = (server(exhausted).await, limiter());
    let client = HealthClient::new(channel);
    let call = limiter.run(|| {
        let mut client = client.clone();
        async move { client.check(check()).await }
    });
    let call = call.read(|result, attempt| match result {
        Ok(_) => Outcome::new(Class::Success),
        Err(status) => status.clone().into_http::<String>().outcome(attempt),
    });
    assert_eq!(call.await.expect("an answer").into_inner().status, 1);
    assert_eq!(limiter.snapshot().account.totals.deferrals, 1);
}
