//! The models that a request names: those alone that its client may name, wherever a server could read them.

use std::borrow::Cow;

use http::Method;
use paceline_http::Call;
use paceline_providers::{billed_model, models_in_path, models_of, names_models, path_before};

use crate::headers::names_another_method;
use crate::{form, query, unread};

/// Whether a call changes nothing, whatever its server makes of it.
pub(crate) fn only_reads(call: &Call) -> bool {
    matches!(call.method, Method::GET | Method::HEAD) && !call.headers.keys().any(names_another_method)
}

/// The path of a call as a server reads it, also behind one that has decoded it once.
pub(crate) fn decoded_path(call: &Call) -> Cow<'_, str> {
    query::decoded_often(path_before(&call.url, b"?"))
}

/// Checks that every model that the body, the query and the path of a call name is among `own`, of which one that ends in `*`
/// means all that begin so; or that it names none and only reads. `is_read`: the body of the call is there, whole.
///
/// # Errors
/// What is wrong with the call.
pub(crate) fn check(own: &[String], call: &Call, is_read: bool) -> Result<(), String> {
    let may_name = |model: &str| {
        // Gemini's bodies name them as its paths do.
        let model = model.strip_prefix("models/").unwrap_or(model);
        own.iter().any(|own| match own.strip_suffix('*') {
            Some(begin) => model.starts_with(begin),
            None => model == own,
        })
    };
    // Behind a colon stands what is to be done, or a version that belongs to the name.
    let is_of_own = |part: &str| may_name(part) || part.split_once(':').is_some_and(|(model, _)| may_name(model));
    let (path, only_reads) = (decoded_path(call), only_reads(call));
    let in_body = models_of(&call.body);
    let is_object = in_body.is_some();
    // A server may take the model from the path, and one before it from a form, which is read; of JSON one object is.
    let in_body = match in_body {
        None if unread::is_form(call) => form::models_of(call),
        None => (!looks_like_json(&call.body)).then(Vec::new),
        in_body => in_body,
    };
    let is_legible = is_read && in_body.is_some();
    let in_body = in_body.unwrap_or_default();
    let in_query = in_query(call);
    let in_path: Vec<_> = models_in_path(&path).filter(|_| !only_reads).collect();
    let other = in_body.iter().chain(&in_query).map(String::as_str).find(|model| !may_name(model));
    let other = other.or_else(|| in_path.iter().copied().find(|part| !is_of_own(part)));
    let names_none = (in_body.is_empty() || !is_object) && in_path.is_empty();
    let is_named = !names_none || only_reads || path.split('/').any(is_of_own);
    match other {
        Some(model) => Err(format!("the request names the model {model:?}")),
        None if is_named && is_legible => Ok(()),
        None if !is_read => Err("the body of the request is too large to be read for its model".to_owned()),
        None if is_object || call.body.is_empty() => Err("the request names no model in its body or path".to_owned()),
        None if unread::is_form(call) => Err(
            "the body of the request is a form, which servers may read differently, or whose path names no model: expected one boundary \
             and one plain name for each part, or JSON"
                .to_owned(),
        ),
        None => Err(
            "the body of the request is not one JSON object, nested no deeper than 64, that names its models as texts"
                .to_owned(),
        ),
    }
}

/// The models by any of whose prices a call may be billed: all that its body and its query name, and that of its path; one
/// without a name where it names none.
pub(crate) fn billed(call: &Call) -> Vec<String> {
    let in_body = models_of(&call.body).or_else(|| form::models_of(call)).unwrap_or_default();
    let named = in_body.into_iter().chain(in_query(call)).chain(billed_model(None, &call.url).map(Cow::into_owned));
    // Gemini's bodies name them as its paths do.
    let named = named.map(|model| model.strip_prefix("models/").map(str::to_owned).unwrap_or(model));
    let named: Vec<_> = named.collect();
    if named.is_empty() { vec![String::new()] } else { named }
}

/// Those that the query names.
fn in_query(call: &Call) -> Vec<String> {
    let named = query::parameters(&call.url).filter(|(name, _)| names_models(name));
    named.flat_map(|(_, value)| value.split(',').map(|model| model.trim().to_owned()).collect::<Vec<_>>()).collect()
}

/// Whether a server may read objects there.
fn looks_like_json(body: &[u8]) -> bool {
    body.trim_ascii_start().first().is_some_and(|first| b"{[".contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: Method, url: &str, body: &str) -> Call {
        Call { method, url: url.to_owned(), body: body.to_owned().into(), ..Call::default() }
    }

    fn own() -> [String; 3] {
        ["gpt-4o-mini", "gemini-*", "claude-v2:1"].map(str::to_owned)
    }

    #[test]
    fn a_client_with_models_names_one_of_them_or_only_reads() {
        for (method, url, body, expected) in [
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini"}"#, true),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini-high"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini","model":"gpt-5"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-5","model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"Model":"gpt-5","model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini","mod\u0065l":"gpt-5"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini","models":["gpt-5"]}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini","models":["gemini-3"]}"#, true),
            (Method::POST, "/v1/chat/completions", r#"[{"model":"gpt-4o-mini"},{"model":"gpt-5"}]"#, false),
            (Method::POST, "/v1/chat/completions", "{}", false),
            (Method::POST, "/openai/deployments/gpt-5/chat/completions", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/openai/deployment%73/gpt-5/chat/completions", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/openai/deployments/gpt-4o-mini/chat/completions", "{}", true),
            (Method::POST, "/openai/%2564eployments/gpt-5/chat/completions", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/openai/deployments//gpt-5/chat/completions", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1beta//models///gpt-5:generateContent", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1beta/tunedModels/mine:generateContent", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1beta/dynamic/mine%3AgenerateContent", r#"{"model":"gpt-4o-mini"}"#, false),
            (Method::POST, "/v1beta/tunedModels/gemini-mine:generateContent", "{}", true),
            (Method::POST, "/v1/chat/completions", r#"{"model":" gpt-4o-mini"}"#, false),
            (Method::POST, "/v1beta/models/other:generateContent", r#"{"model":"gemini-2.5-pro"}"#, false),
            (Method::POST, "/v1beta/models/other:generateContent/gemini-2.5-pro", "{}", false),
            (Method::POST, "/model/claude-v2:1/invoke", "{}", true),
            (Method::POST, "/model/claude-v2:2/invoke", "{}", false),
            (Method::GET, "/v1/models/gpt-5", "", true),
            (Method::POST, "/v1beta/models/gemini-2.5-pro:generateContent?key=x", "{}", true),
            (Method::POST, "/v1beta/models/other:generateContent?x=/gemini-", "{}", false),
            (Method::GET, "/v1/models", "", true),
            (Method::DELETE, "/v1/files/1", "", false),
        ] {
            assert_eq!(check(&own(), &call(method, url, body), true).is_ok(), expected, "{url} {body}");
        }
        let mut read = call(Method::GET, "/v1beta/models/other:generateContent", "{}");
        assert!(check(&own(), &read, true).is_ok());
        read.headers.insert("x_http-method_override", "POST".parse().expect("a method"));
        assert!(check(&own(), &read, true).is_err(), "Google's servers take that for a POST");
    }

    #[test]
    fn no_second_place_names_another_model() {
        let (prompt, own_model) = ("/v1/chat/completions", r#"{"model":"gpt-4o-mini"}"#);
        for (url, body, expected) in [
            (prompt, r#"{"model":"gpt-4o-mini","fallbacks":["gpt-5"],"route":"fallback"}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","fallbacks":[{"model":"gpt-5","messages":[]}]}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","fallbacks":[{"gpt-4o-mini":["gpt-5"]}]}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","Fallbacks":"gpt-5"}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","fallbacks":["gemini-3",{"model":"gemini-2"}]}"#, true),
            (prompt, r#"{"model":"gpt-4o-mini","fallbacks":null}"#, true),
            (prompt, r#"{"model":"gpt-4o-mini","extra_body":{"model":"gpt-5"}}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","extra_body":{"model":"gpt-5","model":"gpt-4o-mini"}}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","extra_body":{"fallbacks":["gpt-5"]}}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","extra_body":{"top_k":4}}"#, true),
            (prompt, r#"{"model":"gpt-4o-mini","tools":[{"type":"image_generation","model":"gpt-5"}]}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","metadata":{"model":"T"},"messages":[{"content":"model"}]}"#, true),
            (prompt, r#"{"model":"gpt-4o-mini","session":{"model":"gpt-5"}}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","plugins":[{"id":"p","model":"gpt-5"}]}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","plugins":[{"id":"web","engine":"exa"}]}"#, true),
            ("/models/gemini-2:embedAll", r#"{"requests":[{"model":"models/gemini-2"}]}"#, true),
            ("/models/gemini-2:embedAll", r#"{"requests":[{"model":"models/gpt-5"}]}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","preset":"dear"}"#, false),
            (prompt, r#"{"model":"gpt-4o-mini","Engine":"gpt-5"}"#, false),
            (
                prompt,
                r#"{"model":"gpt-4o-mini","tools":[{"function":{"parameters":{"properties":{"model":{}}}}}]}"#,
                true,
            ),
            ("/v1/embed?deployment=gpt-5", own_model, false),
            (prompt, r#"{"model":"gpt-4o-mini"}{"model":"gpt-5"}"#, false),
            (prompt, "{\"model\":\"gpt-4o-mini\"}\n ", true),
            ("/v1/chat/completions?model=gpt-5", own_model, false),
            ("/v1/chat/completions?x=1;%6Dodel=gpt%2D5", own_model, false),
            ("/v1/chat/completions?models=gpt-4o-mini,gpt-5", own_model, false),
            ("/v1/chat/completions?model=gpt-4o-mini", own_model, true),
            ("/v1/chat/completions?model=gpt-4o-mini", "{}", false),
            ("/openai/deployments/gpt-4o-mini/x", r#"{"messages":[]}{"model":"gpt-5"}"#, false),
            ("/openai/deployments/gpt-4o-mini/x", r#"[{"model":"gpt-5"}]"#, false),
            ("/models/gpt-4o-mini", "RIFF", true),
        ] {
            assert_eq!(check(&own(), &call(Method::POST, url, body), true).is_ok(), expected, "{url} {body}");
        }
        assert!(check(&own(), &call(Method::GET, "/prompt?model=gpt-5", ""), true).is_err(), "some APIs answer that");
    }

    /// A proxy before the API may take its field for the model.
    #[test]
    fn a_form_names_no_other_model_than_the_path() {
        let form = |kind: &'static str, url: &str, body: &str| {
            let mut call = call(Method::POST, url, body);
            call.headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
            call
        };
        let of = |model| format!("--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b--\r\n");
        let (parts, pairs) = ("multipart/form-data; boundary=b", "application/x-www-form-urlencoded");
        let path = "/openai/deployments/gpt-4o-mini/audio/transcriptions";
        for (call, expected) in [
            (form(parts, path, &of("gpt-4o-mini")), true),
            (form(parts, path, &of("gpt-5")), false),
            (form("multipart/form-data; boundary=c", path, &of("gpt-4o-mini")), false),
            (form(pairs, path, "model=gpt-4o-mini"), true),
            (form(pairs, path, "model=gpt-5"), false),
            (form(parts, "/v1/audio/transcriptions", &of("gpt-4o-mini")), false),
        ] {
            assert_eq!(check(&own(), &call, true).is_ok(), expected, "{call:?}");
            assert!(check(&own(), &call, false).is_err(), "what is too large is not read");
        }
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        let unread =
            "the body of the request is not one JSON object, nested no deeper than 64, that names its models as texts";
        for (body, is_read, expected) in [
            ("", true, "the request names no model in its body or path"),
            ("{}", true, "the request names no model in its body or path"),
            ("model=gpt-5", true, unread),
            (r#"{"model":7}"#, true, unread),
            (r#"{"model":"gpt-4o-mini"} {}"#, true, unread),
            ("", false, "the body of the request is too large to be read for its model"),
        ] {
            let call = call(Method::POST, "/v1/chat/completions", body);
            assert_eq!(check(&own(), &call, is_read), Err(expected.to_owned()), "{body}");
        }
    }
}
