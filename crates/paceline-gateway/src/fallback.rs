//! What takes the place of an answer while an upstream stays down: the steps of `fallback_to`.

use std::path::Path;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use paceline_config::FallbackStep;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::backend::{Backend, BackendError};

/// One step, as it is taken.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The value of `x-paceline-fallback` in its answers.
    pub(crate) marker: HeaderValue,
    pub(crate) target: Target,
}

/// Where a step leads.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// An upstream by its name, and the model to ask it for in place of the request's own.
    Upstream { name: String, model: Option<String> },
    /// An answer that is known.
    Static(Response<Bytes>),
}

/// The steps of an upstream, with the answers of their files.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn steps(config: &paceline_config::Upstream) -> Result<Vec<Step>, BackendError> {
    config.fallback_to.iter().map(|step| read(&config.name, step)).collect()
}

fn read(upstream: &str, step: &FallbackStep) -> Result<Step, BackendError> {
    let (marker, target) = match step {
        FallbackStep::Upstream { name, model } => {
            let marker = model.as_ref().map_or_else(|| name.clone(), |model| format!("{name}/{model}"));
            (marker, Target::Upstream { name: name.clone(), model: model.clone() })
        }
        FallbackStep::Static { status, file } => {
            let body = std::fs::read(file)
                .map_err(|error| refused(upstream, step, format!("expected a file that can be read: {error}")))?;
            ("static".to_owned(), Target::Static(answer(*status, file, body)))
        }
        _ => return Err(refused(upstream, step, "expected a step that this gateway knows".to_owned())),
    };
    let marker = HeaderValue::from_str(&marker)
        .map_err(|_| refused(upstream, step, "expected a model whose name fits a header field".to_owned()))?;
    Ok(Step { marker, target })
}

fn answer(status: StatusCode, file: &Path, body: Vec<u8>) -> Response<Bytes> {
    let kind = match file.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        Some("html") => "text/html; charset=utf-8",
        Some("sse") => "text/event-stream",
        _ => "application/octet-stream",
    };
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Refuses steps to upstreams that are not there, or that take calls of another form.
pub(crate) fn check(upstreams: &[impl AsRef<Backend>]) -> Result<(), BackendError> {
    for upstream in upstreams.iter().map(AsRef::as_ref) {
        for step in &upstream.config().fallback_to {
            let FallbackStep::Upstream { name, .. } = step else { continue };
            let other = upstreams.iter().map(AsRef::as_ref).find(|other| other.name() == name);
            let takes = |other: &Backend| other.config().provider.takes_calls_for(upstream.config().provider);
            match other {
                Some(other) if takes(other) => {}
                Some(other) => {
                    let (here, there) = (upstream.config().provider, other.config().provider);
                    let why = format!(
                        "expected an upstream that takes calls for {here}; those for {there} have another form"
                    );
                    return Err(refused(upstream.name(), step, why));
                }
                None => {
                    let served: Vec<_> = upstreams.iter().map(|upstream| upstream.as_ref().name()).collect();
                    let why = format!("expected an upstream that is served here: {}", served.join(", "));
                    return Err(refused(upstream.name(), step, why));
                }
            }
        }
    }
    Ok(())
}

fn refused(upstream: &str, step: &FallbackStep, expected: String) -> BackendError {
    BackendError::Setting {
        name: upstream.to_owned(),
        key: "fallback_to",
        value: step.to_string(),
        expected: expected.into(),
    }
}

/// The body of a request with another model; none where it names none. Every other byte stays.
pub(crate) fn with_model(body: &Bytes, model: &str) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: &'a RawValue,
    }
    let written = serde_json::from_slice::<Named<'_>>(body).ok()?.model.get();
    let begins = written.as_ptr() as usize - body.as_ptr() as usize;
    let rest = &body[begins + written.len()..];
    Some([&body[..begins], serde_json::json!(model).to_string().as_bytes(), rest].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_changes_no_other_byte() {
        let body =
            Bytes::from_static(b" {\"n\":1.50, \"model\" : \"gpt\\u002d4o\",\"messages\":[{\"model\":\"x\"}]}\n");
        let expected = b" {\"n\":1.50, \"model\" : \"mi\\\"ni\",\"messages\":[{\"model\":\"x\"}]}\n";
        assert_eq!(with_model(&body, "mi\"ni").expect("it names a model"), expected[..]);
        for without in [&b"{\"messages\":[]}"[..], b"", b"--part\r\n", b"{\"model\":\"a\",\"model\":\"b\"}"] {
            assert_eq!(with_model(&Bytes::from_static(without), "m"), None);
        }
    }
}
