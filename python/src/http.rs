//! Requests and answers of HTTP: what a request costs and where it belongs, and what its answer means.

use std::sync::Arc;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use paceline_config::CallNames;
use paceline_core::{Class, Dimension, Outcome, UnknownOutcome};
use paceline_providers::{Answer, NoResponse, Reading, model_of, no_response, path_of};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::call::{Call, Follows};
use crate::engine::tell;
use crate::given::said;

/// Where a call goes, and what follows if it may have been done.
#[derive(Clone)]
pub(crate) struct Target {
    path: String,
    scope: Arc<str>,
    unknown: UnknownOutcome,
}

/// Whether the call is to be sent again, after how many seconds, why it is given up; its class, and what the server said.
type Read = (Follows, &'static str, Option<String>);

type Fields = Vec<(PyBackedBytes, PyBackedBytes)>;

/// Makes a call a request of HTTP: its scope and its cost are those of the provider's table, where the program gave none.
#[pyfunction]
#[pyo3(signature = (call, method, url, headers, body, scope=None))]
pub(crate) fn target(
    call: &Bound<'_, Call>,
    method: &str,
    url: &str,
    headers: Fields,
    body: &[u8],
    scope: Option<&str>,
) -> PyResult<()> {
    let (call, engine) = (call.get(), call.get().engine.get());
    let upstream = &engine.upstream;
    let method: Method = method.parse().map_err(|_| PyValueError::new_err(format!("{method:?} is no method")))?;
    let (path, model) = (path_of(url).to_owned(), model_of(body));
    let names = CallNames { path: &path, model: model.as_deref(), body, ..CallNames::default() };
    let scope = scope.map_or_else(|| upstream.scope_name(&names).into(), |scope| engine.scope(scope).name().clone());
    let is_keyed = upstream
        .access
        .idempotency_header
        .as_ref()
        .is_some_and(|key| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(key.as_str().as_bytes())));
    let unknown = upstream.dialect.unknown_outcome(&method, &path, is_keyed, upstream.access.unknown_outcome);
    let (ratio, id) = {
        let mut state = engine.lock();
        (state.ratios.get(&scope).copied().unwrap_or_default(), state.pacer.scope(&scope))
    };
    let charge = upstream.dialect.charge(&path, body, &ratio);
    let given = call.item().reserved.get(&Dimension::Tokens);
    let reserved = if given > 0 { charge.with(Dimension::Tokens, given) } else { charge };
    call.item().aim(Target { path, scope, unknown }, id, reserved);
    Ok(())
}

/// What the head of an answer announces acts at once.
#[pyfunction]
pub(crate) fn observe(call: &Bound<'_, Call>, headers: Fields) {
    let (call, py) = (call.get(), call.py());
    let (engine, Some(ticket)) = (call.engine.get(), call.ticket()) else { return };
    let limits = engine.upstream.dialect.announced(&fields(&headers), engine.clock.get().wall());
    if !limits.is_empty() {
        let ((), news) = engine.change(|state, now| state.pacer.observe(now, ticket, &limits));
        tell(call.engine.bind(py), news);
    }
}

/// What an answer means, and the end of its call. `by_head`: the body is not known, and is no failure of its own.
#[pyfunction]
#[pyo3(signature = (call, status, headers, body, request_body=None, by_head=false))]
pub(crate) fn answer(
    call: &Bound<'_, Call>,
    status: u16,
    headers: Fields,
    body: &[u8],
    request_body: Option<&[u8]>,
    by_head: bool,
) -> Read {
    let (call, py) = (call.get(), call.py());
    let engine = call.engine.get();
    let (reserved, target) = {
        let item = call.item();
        (item.reserved.clone(), item.target.clone())
    };
    let headers = fields(&headers);
    let path = target.as_ref().map_or("", |target| &target.path);
    let answer = Answer { status, headers: &headers, body, path };
    let reading = engine.upstream.dialect.read(&answer, engine.clock.get().wall());
    if let (Some(usage), Some(target), Some(request_body)) = (&reading.usage, &target, request_body) {
        engine.lock().ratios.entry(target.scope.clone()).or_default().settle(request_body, usage);
    }
    let mut outcome = reading.outcome_of(&reserved);
    // A redirect is followed by the client, or shown as what it asked for.
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308) && headers.contains_key(LOCATION);
    if is_redirect || (by_head && (200..300).contains(&status)) {
        outcome.class = Class::Success;
    }
    if let (true, Some(target)) = (reading.leaves_unknown(status), &target) {
        outcome.unknown = target.unknown;
    }
    ended(py, call, outcome)
}

/// The end of a call that got no answer: `connect`, `reset`, `timeout`, `truncated` or `malformed`.
#[pyfunction]
pub(crate) fn no_answer(call: &Bound<'_, Call>, kind: &str, reason: &str) -> PyResult<Read> {
    let (call, py) = (call.get(), call.py());
    let kind = match kind {
        "connect" => NoResponse::Connect,
        "reset" => NoResponse::Reset,
        "timeout" => NoResponse::Timeout,
        "truncated" => NoResponse::Truncated,
        "malformed" => NoResponse::Malformed,
        _ => return Err(PyValueError::new_err(format!("{kind:?} is no way to get no answer"))),
    };
    let reading = Reading { message: Some(reason.to_owned()), ..no_response(kind) };
    let mut outcome = reading.outcome();
    if let (false, Some(target)) = (kind == NoResponse::Connect, &call.item().target) {
        outcome.unknown = target.unknown;
    }
    Ok(ended(py, call, outcome))
}

fn ended(py: Python<'_>, call: &Call, mut outcome: Outcome) -> Read {
    outcome.reason = outcome.reason.as_deref().map(said);
    let (class, reason) = (outcome.class.as_str(), outcome.reason.clone());
    (call.complete(py, outcome), class, reason.map(|reason| reason.to_string()))
}

/// Fields as they came; what no header can hold is passed over.
fn fields(fields: &Fields) -> HeaderMap {
    let field = |(name, value): &(PyBackedBytes, PyBackedBytes)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields.iter().filter_map(field) {
        map.append(name, value);
    }
    map
}
