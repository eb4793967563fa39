//! The gateway's own pages: whether it lives and is ready, its metrics, its state, and the page for people.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use crate::clients::Client;
use crate::forward::{AnswerBody, whole_body};
use crate::metrics;
use crate::refusal::Refusal;
use crate::server::Gateway;
use crate::web;

/// What browsers and programs get without a key of the gateway's: it says nothing about clients, upstreams or limits.
pub(crate) fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz") || web::file(path).is_some()
}

/// What a page is made of: the gateway, its own address, and the client that asks for it.
type Page = fn(&Arc<Gateway>, &Uri, Option<&Arc<Client>>) -> Result<Response<AnswerBody>, Refusal>;

/// A page by its address, for a client with a key of the gateway's or a program without one; none where no page has that path.
pub(crate) fn page(
    gateway: &Arc<Gateway>,
    method: &Method,
    uri: &Uri,
    client: Option<&Arc<Client>>,
) -> Option<Response<AnswerBody>> {
    let (path, (page, _)) = (uri.path(), at(uri.path())?);
    if !matches!(*method, Method::GET | Method::HEAD) {
        let message = format!("{path} is a page of the gateway: expected GET");
        let mut answer = refused(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", message));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(answer);
    }
    Some(page(gateway, uri, client).unwrap_or_else(refused))
}

/// The page of that path, and whether it is a document that takes time to make.
fn at(path: &str) -> Option<(Page, bool)> {
    Some(match path {
        "/healthz" => (|_, _, _| Ok(text(StatusCode::OK, "text/plain", "ok\n")), false),
        "/readyz" => (|gateway, _, _| Ok(ready(gateway)), false),
        "/metrics" => (|gateway, _, client| metrics_page(gateway, client), true),
        "/api/state" => (state_page, true),
        "/api/events" => {
            (|gateway, uri, client| gateway.events(asked(uri, "changes").is_some(), client.map(Arc::clone)), false)
        }
        "/api/history" => (|gateway, uri, _| history(gateway, uri), true),
        path if web::file(path).is_some() => (|_, uri, _| Ok(file(uri.path())), false),
        _ => return None,
    })
}

/// Whether a page of that path is a document that takes time to make.
pub(crate) fn is_document(path: &str) -> bool {
    at(path).is_some_and(|(_, is_document)| is_document)
}

fn state_page(gateway: &Arc<Gateway>, _: &Uri, client: Option<&Arc<Client>>) -> Result<Response<AnswerBody>, Refusal> {
    gateway.document_for(client, || Ok(document(StatusCode::OK, "application/json", gateway.state())))
}

/// The value of a name in the query of an address; empty where it has none.
fn asked<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy())
}

fn history(gateway: &Arc<Gateway>, uri: &Uri) -> Result<Response<AnswerBody>, Refusal> {
    let [upstream, scope] = ["upstream", "scope"].map(|name| asked(uri, name).unwrap_or_default());
    let Some(columns) = gateway.history(&upstream, &scope) else {
        let message =
            format!("no history is kept of upstream {upstream:?}, scope {scope:?}; see /api/state for their names");
        return Err(Refusal::new(StatusCode::NOT_FOUND, "unknown_route", message));
    };
    Ok(text(StatusCode::OK, "application/json", columns.to_string()))
}

fn file(path: &str) -> Response<AnswerBody> {
    let (kind, content) = web::file(path).expect("the caller has looked");
    let mut response = text(StatusCode::OK, kind, content);
    for (name, value) in web::HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn ready(gateway: &Arc<Gateway>) -> Response<AnswerBody> {
    match gateway.readiness() {
        Ok(amiss) => text(StatusCode::OK, "text/plain", format!("ready\n{amiss}")),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("not ready: {why}\n")),
    }
}

fn metrics_page(gateway: &Arc<Gateway>, client: Option<&Arc<Client>>) -> Result<Response<AnswerBody>, Refusal> {
    let valid = gateway.tls().and_then(|tls| tls.valid());
    let made =
        || metrics::page(&gateway.upstreams(), &gateway.turned_away, valid, &gateway.clients(), gateway.conditions());
    gateway.document_for(client, || match made() {
        Ok(page) => Ok(document(StatusCode::OK, metrics::CONTENT_TYPE, page)),
        Err(error) => {
            let message = format!("the metrics cannot be written: {error}");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_metrics", message))
        }
    })
}

fn text(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<AnswerBody> {
    document(status, kind, text).map(whole_body)
}

fn document(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // Nothing on the way may answer with the past.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn refused(refusal: Refusal) -> Response<AnswerBody> {
    refusal.into_response().map(whole_body)
}
