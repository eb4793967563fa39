//! The names that errors go by: codes, types, exceptions and problems, wherever an answer carries them.

use std::borrow::Cow;

use http::HeaderMap;
use serde_json::Value;

use super::body::Body;
use super::header;

/// Where a body carries names beside the places of [`Body::codes`].
const PLACES: [&str; 5] = ["/error/status", "/error/code", "/code", "/type", "/errors/0/code"];

/// The prefix of ACME's problem types.
const ACME: &str = "urn:ietf:params:acme:error:";

/// Every name that an answer gives to its error, numbers as their digits.
pub(super) fn all<'a>(headers: &'a HeaderMap, body: &'a Body<'_>) -> impl Iterator<Item = Cow<'a, str>> {
    let placed = PLACES.iter().filter_map(|place| match body.in_root(place)? {
        Value::String(name) => Some(Cow::Borrowed(name.strip_prefix(ACME).unwrap_or(name))),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    });
    let exception = of_aws(headers, body).into_iter().map(Cow::Borrowed);
    exception.chain(body.codes().map(Cow::Borrowed)).chain(placed)
}

/// The name of an AWS exception, without the namespace before `#` and the address behind `:`.
pub(super) fn of_aws<'a>(headers: &'a HeaderMap, body: &'a Body<'_>) -> Option<&'a str> {
    let in_body = || {
        let name = body.in_root("/__type").or_else(|| body.in_root("/code").filter(|_| is_aws(headers)))?;
        name.as_str()
    };
    let name = header::first(headers, "x-amzn-errortype").or_else(in_body)?;
    let name = name.split(':').next().unwrap_or_default();
    let name = name.rsplit('#').next().unwrap_or_default().trim();
    (!name.is_empty()).then_some(name)
}

/// The name that stands for a code where an answer has none: of an AWS exception, an ACME problem, a GraphQL error.
pub(super) fn special(headers: &HeaderMap, body: &Body<'_>) -> Option<String> {
    let acme = || body.in_root("/type")?.as_str()?.strip_prefix(ACME);
    let graphql = || body.in_root("/errors/0/extensions/code").or_else(|| body.in_root("/errors/0/type"))?.as_str();
    of_aws(headers, body).or_else(acme).or_else(graphql).map(str::to_owned)
}

/// Whether an answer comes from AWS.
pub(super) fn is_aws(headers: &HeaderMap) -> bool {
    headers.contains_key("x-amzn-requestid") || headers.contains_key("x-amzn-errortype")
}

/// Whether an answer is a problem of ACME's.
pub(super) fn is_acme(body: &Body<'_>) -> bool {
    body.in_root("/type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with(ACME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn an_exception_is_named_by_header_type_or_code() {
        for (header, body, expected) in [
            (Some("ThrottlingException:http://internal.amazon.com/coral/"), "{}", Some("ThrottlingException")),
            (
                None,
                r#"{"__type":"com.amazonaws.dynamodb.v20120810#RequestLimitExceeded"}"#,
                Some("RequestLimitExceeded"),
            ),
            (None, r#"{"__type":"a#b#Name:x#y"}"#, Some("Name")),
            (Some("FromHeader"), r#"{"__type":"FromBody"}"#, Some("FromHeader")),
            (None, r#"{"code":"NoAws"}"#, None),
            (None, r##"{"__type":"#:"}"##, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = header {
                headers.insert("x-amzn-errortype", HeaderValue::from_static(value));
            }
            assert_eq!(of_aws(&headers, &Body::of_refusal(body.as_bytes(), "")), expected, "{body}");
        }
        let headers =
            HeaderMap::from_iter([("x-amzn-requestid".parse().expect("a name"), HeaderValue::from_static("1"))]);
        assert_eq!(of_aws(&headers, &Body::of_refusal(br#"{"code":"Throttling"}"#, "")), Some("Throttling"));
    }

    #[test]
    fn names_stand_in_many_places() {
        let body = br#"{"code":1300,"type":"urn:ietf:params:acme:error:dns",
            "error":{"status":"NOT_FOUND","code":404,"details":[{"reason":"API_KEY_INVALID"}]},"errors":[{"code":971}]}"#;
        let (headers, body) = (HeaderMap::new(), Body::of_refusal(body, ""));
        let names: Vec<_> = all(&headers, &body).collect();
        assert_eq!(names, ["API_KEY_INVALID", "NOT_FOUND", "404", "1300", "dns", "971"]);
    }
}
