//! The same with the layers of `tower`.

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).ok_or("usage: layer_tower URL")?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let service = ServiceBuilder::new().buffer(64).rate_limit(19, Duration::from_secs(1)).service(client);
    let requests = (0..50).map(|_| Request::get(&url).body(Full::default())).collect::<Result<Vec<_>, _>>()?;
    for answer in join_all(requests.into_iter().map(|request| service.clone().oneshot(request))).await {
        println!("{}", answer?.status());
    }
    Ok(())
}
