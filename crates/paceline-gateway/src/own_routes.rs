//! Paths of a gateway that lead to no upstream: the program that serves answers them.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

/// A request for such a path.
pub type OwnRequest = Request<Incoming>;

/// The body of such an answer, whole or as it comes.
pub type OwnBody = UnsyncBoxBody<Bytes, io::Error>;

/// Answers requests for paths of its own. Pages of the web are refused before.
pub trait OwnRoutes: Send + Sync {
    /// Whether that path is its own.
    fn has(&self, path: &str) -> bool;

    /// The answer to a request for one of its paths.
    fn answer(&self, request: OwnRequest) -> Pin<Box<dyn Future<Output = Response<OwnBody>> + Send>>;
}
