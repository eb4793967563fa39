//! Webhooks are delivered to many endpoints. One that is slow or down keeps its own deliveries waiting and no other's, and each
//! event arrives with the same id however often it is sent.

use std::io;
use std::time::Duration;

use http::{Request, Response};
use paceline::{ConfigError, Limiter, PacerConfig, Quota, RunError};

/// An event on its way to an endpoint.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: String,
    pub endpoint: String,
    pub body: String,
}

/// At most 200 calls a second in all. A delivery is tried 8 times.
pub fn limiter() -> Result<Limiter, ConfigError> {
    Limiter::new(PacerConfig::from(Quota::per_second(200)).with_in_flight(256))
}

/// Delivers one event within a day, and returns the last answer, perhaps a refusal. `post` sends a request, and its answer is
/// read by its status: a 410 ends the delivery at once, a `Retry-After` of the endpoint is obeyed, and while it is down one
/// call at a time tests whether it is back.
pub async fn deliver(
    limiter: &Limiter,
    delivery: &Delivery,
    post: impl AsyncFn(Request<String>) -> io::Result<Response<String>>,
) -> Result<Response<String>, RunError<io::Error>> {
    let request = || Request::post(&delivery.endpoint).header("webhook-id", &delivery.id).body(delivery.body.clone());
    let send = async || post(request().map_err(io::Error::other)?).await;
    limiter.run(send).scope(delivery.endpoint.as_str()).within(Duration::from_secs(86_400)).await
}
