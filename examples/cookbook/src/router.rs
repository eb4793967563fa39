//! An `axum` router whose handlers call a limited API: each request waits for its turn, and a handler whose answer says that the
//! API refused it is called again.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::error_handling::HandleErrorLayer;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use paceline::{Limiter, PaceLayer, RunError};
use tower::{BoxError, ServiceBuilder};

/// The largest body of a request: it is kept whole, so that a handler can be called again.
const LARGEST_BODY: usize = 1 << 20;

/// How long a client is kept waiting for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// All routes of the router share the limits of the limiter. What they answer may be streams.
pub fn paced(router: Router, limiter: Limiter) -> Router {
    let asked = |limiter: &Limiter, _: &Request<Full<Bytes>>| paceline::Request {
        deadline: Some(limiter.now() + LONGEST_WAIT),
        ..limiter.scope("api").into()
    };
    router.layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(refused))
            .filter_async(async |request: Request<Body>| {
                let (head, body) = request.into_parts();
                Ok::<_, BoxError>(Request::from_parts(head, Full::new(to_bytes(body, LARGEST_BODY).await?)))
            })
            .layer(PaceLayer::new(limiter).by_head().describe(asked))
            .map_request(|request: Request<Full<Bytes>>| request.map(Body::new)),
    )
}

/// What a client gets whose request reached no handler: its body is too large, or its turn would come too late.
async fn refused(error: BoxError) -> (StatusCode, String) {
    let status = if error.is::<RunError<Infallible>>() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::PAYLOAD_TOO_LARGE
    };
    (status, error.to_string())
}
