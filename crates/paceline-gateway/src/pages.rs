//! The gateway's own pages: whether it lives and is ready, its metrics, its state.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};

use crate::forward::{AnswerBody, whole_body};
use crate::metrics;
use crate::refusal::Refusal;
use crate::server::Gateway;

/// A page by its path; none where no page has that path.
pub(crate) fn page(gateway: &Arc<Gateway>, method: &Method, path: &str) -> Option<Response<AnswerBody>> {
    let page: fn(&Arc<Gateway>) -> Result<Response<AnswerBody>, Refusal> = match path {
        "/healthz" => |_| Ok(text(StatusCode::OK, "text/plain", "ok\n")),
        "/readyz" => |gateway| Ok(ready(gateway)),
        "/metrics" => metrics_page,
        "/api/state" => |gateway| Ok(text(StatusCode::OK, "application/json", gateway.state().to_string())),
        "/api/events" => |gateway| gateway.events(),
        _ => return None,
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let message = format!("{path} is a page of the gateway: expected GET");
        let mut answer = refused(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", message));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(answer);
    }
    Some(page(gateway).unwrap_or_else(refused))
}

fn ready(gateway: &Arc<Gateway>) -> Response<AnswerBody> {
    match gateway.readiness() {
        Ok(()) => text(StatusCode::OK, "text/plain", "ready\n"),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("not ready: {why}\n")),
    }
}

fn metrics_page(gateway: &Arc<Gateway>) -> Result<Response<AnswerBody>, Refusal> {
    match metrics::page(&gateway.upstreams()) {
        Ok(page) => Ok(text(StatusCode::OK, metrics::CONTENT_TYPE, page)),
        Err(error) => {
            let message = format!("the metrics cannot be written: {error}");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_metrics", message))
        }
    }
}

fn text(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = Response::new(whole_body(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // Nothing on the way may answer with the past.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn refused(refusal: Refusal) -> Response<AnswerBody> {
    refusal.into_response().map(whole_body)
}
