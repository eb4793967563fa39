//! Calls of a `tower` service, at most 19 a second.

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use paceline::{Limiter, PaceLayer, Quota};
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).ok_or("usage: layer URL")?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let limiter = Limiter::new(Quota::per_second(19).burst(19))?;
    let service = ServiceBuilder::new().layer(PaceLayer::new(limiter).by_head()).service(client);
    let requests = (0..50).map(|_| Request::get(&url).body(Full::default())).collect::<Result<Vec<_>, _>>()?;
    for answer in join_all(requests.into_iter().map(|request| service.clone().oneshot(request))).await {
        println!("{}", answer?.status());
    }
    Ok(())
}
