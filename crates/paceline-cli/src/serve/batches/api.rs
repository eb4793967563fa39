//! The paths `/v1/files` and `/v1/batches`.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError};
use paceline_config::parse_duration;
use paceline_core::LONGEST_DURATION;
use paceline_gateway::{Client, OwnBody, OwnRequest, OwnRoutes};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt as _;
use tower::ServiceExt as _;

use super::error::{ApiError, no_body};
use super::files::{self, FileObject};
use super::object::Batch;
use super::pages::{Page, PageQuery};
use super::service::{Order, Served, Service};
use super::upload;

/// The longest body that asks for a batch: its metadata have at most 9 KiB.
const LONGEST_ORDER: usize = 64 << 10;

/// The newest batches, which the page of the gateway shows.
const MOST_SHOWN: usize = 50;

/// Bytes of a file that are read at once.
const PIECE: usize = 64 << 10;

/// Names a request for a batch: SDKs send the same one when they ask again.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The longest such name, in bytes.
const LONGEST_KEY: usize = 255;

/// Names the upstream of a batch, where the gateway has several.
const UPSTREAM: &str = "x-paceline-upstream";

type Answer<T> = Result<Json<T>, ApiError>;
type AskedPage = Result<Query<PageQuery>, QueryRejection>;

/// Answers the clients of batches.
pub(crate) struct Routes {
    router: Router,
    service: Option<Arc<Service>>,
}

impl Routes {
    /// For those of `service`, or saying why there is none.
    pub(super) fn new(service: Result<Arc<Service>, String>) -> Self {
        let service = match service {
            Ok(service) => service,
            Err(why) => {
                let router = Router::new().fallback(|| async move { ApiError::unavailable(why) });
                return Self { router, service: None };
            }
        };
        let router = Router::new()
            .route("/v1/files", post(upload::upload).get(list_files))
            .route("/v1/files/{id}", get(file).delete(delete_file))
            .route("/v1/files/{id}/content", get(content))
            .route("/v1/batches", post(create).get(list_batches))
            .route("/v1/batches/{id}", get(batch))
            .route("/v1/batches/{id}/cancel", post(cancel))
            .fallback(|| async { ApiError::invalid(None, "no such path").with_status(StatusCode::NOT_FOUND) })
            .method_not_allowed_fallback(|| async {
                ApiError::invalid(None, "no such method here").with_status(StatusCode::METHOD_NOT_ALLOWED)
            })
            .layer(DefaultBodyLimit::max(upload::MOST_READ))
            .with_state(Arc::clone(&service));
        Self { router, service: Some(service) }
    }
}

impl OwnRoutes for Routes {
    fn has(&self, path: &str) -> bool {
        let below =
            |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        below("/v1/files") || below("/v1/batches")
    }

    fn batches(&self) -> Value {
        let all = self.service.iter().flat_map(|service| service.all()).rev();
        all.take(MOST_SHOWN).map(|batch| batch.overview()).collect()
    }

    fn answer(&self, request: OwnRequest) -> Pin<Box<dyn Future<Output = Response<OwnBody>> + Send>> {
        let router = self.router.clone();
        Box::pin(async move {
            let Ok(answer) = router.oneshot(request.map(Body::new)).await;
            answer.map(|body| body.map_err(io::Error::other).boxed_unsync())
        })
    }
}

async fn list_files(State(service): State<Arc<Service>>, query: AskedPage) -> Answer<Page<FileObject>> {
    let query = asked(query)?;
    let mut all = service.files.all();
    all.retain(|file| query.purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose));
    query.of(all, 10_000, 10_000, |file| (file.created_at, &file.id), |id| service.files.gone(id)).map(Json)
}

async fn file(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer<FileObject> {
    service.files.get(&id).map(Json).ok_or_else(|| ApiError::unknown("File", &id))
}

async fn delete_file(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer<Value> {
    service.files.get(&id).ok_or_else(|| ApiError::unknown("File", &id))?;
    tokio::task::block_in_place(|| service.delete_file(&id))?;
    Ok(Json(json!({ "id": id, "object": "file", "deleted": true })))
}

async fn content(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Result<Response<Body>, ApiError> {
    let file = service.files.get(&id).ok_or_else(|| ApiError::unknown("File", &id))?;
    let content = tokio::fs::File::open(service.files.content(&file)).await?;
    let pieces = stream::try_unfold(content, |mut content| async move {
        let mut piece = Vec::with_capacity(PIECE);
        let read = (&mut content).take(PIECE as u64).read_to_end(&mut piece).await?;
        Ok::<_, io::Error>((read > 0).then_some((piece, content)))
    });
    let mut answer = Response::new(Body::from_stream(pieces));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, file.bytes.into());
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    Ok(answer)
}

/// What a client posts for a batch. It may say more, which means nothing here.
#[derive(Debug)]
struct Posted {
    input_file_id: String,
    endpoint: String,
    completion_window: String,
    metadata: Option<BTreeMap<String, String>>,
}

impl Posted {
    fn of(body: &[u8]) -> Result<Self, ApiError> {
        let members: Map<String, Value> = serde_json::from_slice(body).map_err(|_| {
            ApiError::invalid(None, "expected a JSON object with input_file_id, endpoint and completion_window")
        })?;
        let text = |name: &'static str, such_as: &str| match members.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            None | Some(Value::Null) => Err(ApiError::invalid(name, format!("missing: expected a text, {such_as}"))),
            Some(_) => Err(ApiError::invalid(name, format!("expected a text, {such_as}"))),
        };
        let metadata = members.get("metadata").filter(|metadata| !metadata.is_null());
        let metadata = metadata.map(BTreeMap::deserialize).transpose();
        Ok(Self {
            input_file_id: text("input_file_id", "the id of an uploaded file")?,
            endpoint: text("endpoint", "such as /v1/chat/completions")?,
            completion_window: text("completion_window", "such as 24h")?,
            metadata: metadata
                .map_err(|_| ApiError::invalid("metadata", "expected an object whose values are texts"))?,
        })
    }
}

#[derive(Deserialize)]
struct UpstreamQuery {
    upstream: Option<String>,
}

async fn create(
    State(service): State<Arc<Service>>,
    query: Result<Query<UpstreamQuery>, QueryRejection>,
    request: Request,
) -> Answer<Batch> {
    let (head, body) = request.into_parts();
    let named = asked(query)?.upstream.or_else(|| header(&head.headers, UPSTREAM));
    let served = upstream(&service, named)?;
    let idempotency_key = header(&head.headers, IDEMPOTENCY_KEY);
    if idempotency_key.as_ref().is_some_and(|key| key.len() > LONGEST_KEY) {
        let message = format!("expected at most {LONGEST_KEY} bytes");
        return Err(ApiError::invalid("Idempotency-Key", message));
    }
    let wrong = |error: axum::Error| match no_body(&error) {
        Some(error) => error,
        None if error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) => {
            let message = format!(
                "the request has more than {LONGEST_ORDER} bytes: expected a shorter `endpoint` and `metadata`"
            );
            ApiError::invalid(None, message).with_status(StatusCode::PAYLOAD_TOO_LARGE)
        }
        None => ApiError::invalid(None, error.to_string()),
    };
    let body = to_bytes(body, LONGEST_ORDER).await.map_err(wrong)?;
    let Posted { input_file_id, endpoint, completion_window, metadata } = Posted::of(&body)?;
    // One that is gone since then may belong to a batch that is there.
    if let Some(input) = service.files.get(&input_file_id).filter(|input| input.purpose != files::BATCH) {
        let message =
            format!("the file has the purpose {}: expected a file uploaded with the purpose batch", input.purpose);
        return Err(ApiError::invalid("input_file_id", message));
    }
    let window =
        parse_duration(&completion_window).ok().filter(|window| !window.is_zero() && *window <= LONGEST_DURATION);
    let window = window.ok_or_else(|| {
        let message = "expected 24h, or another duration of at most 366 days, such as 7d";
        ApiError::invalid("completion_window", message)
    })?;
    if let Some(message) = metadata.as_ref().and_then(wrong_metadata) {
        return Err(ApiError::invalid("metadata", message));
    }
    let client = head.extensions.get::<Arc<Client>>().map(|client| (client.name().to_string(), client.key_id()));
    let order = Order { input_file_id, endpoint, completion_window, window, metadata, served, client, idempotency_key };
    tokio::task::block_in_place(|| service.create(order)).map(Json)
}

async fn list_batches(State(service): State<Arc<Service>>, query: AskedPage) -> Answer<Page<Batch>> {
    asked(query)?.of(service.all(), 100, 20, |batch| (batch.created_at, &batch.id), |_| None).map(Json)
}

async fn batch(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer<Batch> {
    service.get(&id).map(Json).ok_or_else(|| ApiError::unknown("Batch", &id))
}

async fn cancel(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer<Batch> {
    tokio::task::block_in_place(|| service.cancel(&id, None)).map(Json)
}

fn asked<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(query)| query).map_err(|error| {
        let why = error.source().map_or_else(|| error.body_text(), ToString::to_string);
        ApiError::invalid(None, format!("the query behind ? cannot be read: {why}"))
    })
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The upstream that the client names, or the only one.
fn upstream(service: &Service, named: Option<String>) -> Result<Arc<Served>, ApiError> {
    let upstreams = service.upstreams();
    let names = || upstreams.iter().map(|served| &*served.upstream.name).collect::<Vec<_>>().join(", ");
    let found = match (&named, &upstreams[..]) {
        (Some(name), _) => service.served(name),
        (None, [only]) => Some(Arc::clone(only)),
        (None, _) => None,
    };
    found.ok_or_else(|| {
        let message = match named {
            Some(_) => format!("no such upstream; those here are {}", names()),
            None => format!("which of the upstreams {}? Add the header {UPSTREAM}, or ?upstream=NAME", names()),
        };
        ApiError::invalid("upstream", message)
    })
}

/// What is wrong with metadata, by the hosted service's bounds.
fn wrong_metadata(metadata: &BTreeMap<String, String>) -> Option<&'static str> {
    let too_long = |(key, value): (&String, &String)| key.chars().count() > 64 || value.chars().count() > 512;
    let is_wrong = metadata.len() > 16 || metadata.iter().any(too_long);
    is_wrong.then_some("expected at most 16 pairs, keys of at most 64 characters and values of at most 512")
}
