//! A `tonic` client whose calls are paced: any generated client takes the service in place of its channel.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use paceline::{Limiter, PaceLayer};
use tonic::Status;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::transport::Channel;
use tower::ServiceBuilder;

/// The message of a call is kept whole, so that it can be sent again: a call that streams its requests is made once its last
/// one is known. Answers may be streams.
pub fn paced(
    channel: Channel,
    limiter: Limiter,
) -> impl GrpcService<Body, ResponseBody = Body, Error: Send, Future: Send> + Clone {
    ServiceBuilder::new()
        .filter_async(async |request: Request<Body>| {
            let (head, body) = request.into_parts();
            Ok::<_, Status>(Request::from_parts(head, Full::new(body.collect().await?.to_bytes())))
        })
        .layer(PaceLayer::new(limiter).by_head())
        .map_request(|request: Request<Full<Bytes>>| request.map(Body::new))
        .service(channel)
}
