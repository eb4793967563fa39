//! Paths of a gateway that lead to no upstream: the program that serves answers them.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::{Value, json};

pub use crate::payload::{BodyInTime, NoBody};

/// A request for such a path. Its body ends with an error once it trickles in.
pub type OwnRequest = Request<BodyInTime>;

/// The body of such an answer, whole or as it comes.
pub type OwnBody = UnsyncBoxBody<Bytes, io::Error>;

/// Answers requests for paths of its own. Pages of the web are refused before.
pub trait OwnRoutes: Send + Sync {
    /// Whether that path is its own.
    fn has(&self, path: &str) -> bool;

    /// Its batches, for the document of the state: an array of objects. Default: none.
    fn batches(&self) -> Value {
        json!([])
    }

    /// The answer to a request for one of its paths.
    fn answer(&self, request: OwnRequest) -> Pin<Box<dyn Future<Output = Response<OwnBody>> + Send>>;
}
