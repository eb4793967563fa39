//! Bodies that cannot be read here: a server may find in them what no limit of their client sees.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use paceline_http::Call;
use paceline_providers::{Dialect, bounds_are_plain, is_json};

use crate::headers::letters_of;

/// What else than UTF-8 a body of JSON may be said to be: all of these are the same for what ASCII has.
const CHARSETS: [&str; 4] = ["utf-8", "utf8", "us-ascii", "iso-8859-1"];

/// Checks that the body of a call says the same to every server.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_coding(call: &Call) -> Result<(), &'static str> {
    let identity = |coding: &str| coding.trim().is_empty() || coding.trim().eq_ignore_ascii_case("identity");
    if texts(&call.headers, &CONTENT_ENCODING).any(|codings| !codings.split(',').all(identity)) {
        return Err("the body of the request is compressed (Content-Encoding): send it as it is");
    }
    // Servers that read fields as CGI does take another sign for the hyphen.
    let is_spelt = |name: &HeaderName| matches!(&*letters_of(name), "contentencoding" | "contenttype");
    if call.headers.keys().any(|name| ![CONTENT_ENCODING, CONTENT_TYPE].contains(name) && is_spelt(name)) {
        return Err(
            "the request has another spelling of Content-Encoding or Content-Type, which some servers take for it",
        );
    }
    if texts(&call.headers, &CONTENT_TYPE).flat_map(charsets).any(|charset| !is_one_of(&CHARSETS, charset)) {
        return Err(
            "the body of the request is in another coding than UTF-8 (charset in Content-Type): send it in UTF-8",
        );
    }
    // A server that believes it finds other members in the texts of that JSON.
    if is_form(call) && call.body.trim_ascii_start().first().is_some_and(|first| b"{[\"".contains(first)) {
        return Err(
            "the body of the request is JSON, and its Content-Type says that it is a form: name application/json",
        );
    }
    // Behind the mark of a byte order, and with the zeros of UTF-16 and UTF-32 left out.
    let is_of_json = |byte: &u8| matches!(byte, b'{' | b'[');
    let mut letters = call.body.iter().filter(|byte| !matches!(byte, 0 | 0xEF | 0xBB | 0xBF | 0xFE | 0xFF));
    let is_json_somehow = letters.find(|byte| !byte.is_ascii_whitespace()).is_some_and(is_of_json);
    if is_json_somehow && !call.body.trim_ascii_start().first().is_some_and(is_of_json) {
        return Err(
            "the body of the request is JSON in another coding than UTF-8, or has the mark of a byte order before it: send \
                    plain UTF-8",
        );
    }
    Ok(())
}

/// Checks that the body of a call to a model is there, whole, and is JSON that bounds its answer alike for every server, or
/// nothing, or a form with files where an API takes one. `is_read`: it is there.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_json(call: &Call, path: &str, dialect: &Dialect, is_read: bool) -> Result<(), &'static str> {
    // No JSON begins so.
    let is_form = || {
        let is_said = texts(&call.headers, &CONTENT_TYPE).any(|kind| starts_with(kind, "multipart/form-data"));
        is_said && call.body.starts_with(b"--") && !dialect.takes_json_alone(path)
    };
    if is_form() {
        return Ok(());
    }
    match &*call.body {
        _ if !is_read => Err("the body of the request is too large to be read here: send a shorter one"),
        [] => Ok(()),
        body if !is_json(body) => {
            Err("the body of the request is no JSON, strictly read (no NaN, no comments): send it as JSON")
        }
        body if !bounds_are_plain(body) => Err(
            "servers read different bounds of the answer in the body of the request: write each of them once (max_tokens, n and the like), \
                    in its own letters, as a number, and none in extra_body",
        ),
        _ => Ok(()),
    }
}

/// Whether the body of a call is said to be a form.
pub(crate) fn is_form(call: &Call) -> bool {
    texts(&call.headers, &CONTENT_TYPE).any(|kind| kind.to_ascii_lowercase().contains("form"))
}

fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"))
}

fn charsets(kind: &str) -> impl Iterator<Item = &str> {
    let parameters = kind.split([';', ',']).filter_map(|parameter| parameter.split_once('='));
    let named = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    named.map(|(_, charset)| charset.trim().trim_matches(['"', '\'']))
}

fn is_one_of(known: &[&str], text: &str) -> bool {
    known.iter().any(|known| text.eq_ignore_ascii_case(known))
}

fn starts_with(text: &str, begin: &str) -> bool {
    text.trim_start().get(..begin.len()).is_some_and(|start| start.eq_ignore_ascii_case(begin))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use paceline_providers::Provider;

    use super::*;

    fn call(fields: &[(&'static str, &'static str)], body: &[u8]) -> Call {
        let field = |(name, value): &(&'static str, &'static str)| {
            (http::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers = fields.iter().map(field).collect();
        Call { headers, body: body.to_vec().into(), ..Call::default() }
    }

    #[test]
    fn a_body_that_servers_may_read_in_another_coding_is_none() {
        let utf_16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        for (fields, body, expected) in [
            (&[][..], &b"{}"[..], true),
            (&[("content-type", "application/json")], b" \n{\"a\":\"\xC3\xA9\"}", true),
            (&[("content-type", "application/json; charset=UTF-8")], b"{}", true),
            (&[("content-type", "application/json;charset=\"utf-8\"")], b"{}", true),
            (&[("content-encoding", "identity")], b"{}", true),
            (&[("content-encoding", "gzip")], b"\x1F\x8B\x08", false),
            (&[("content-encoding", "identity, gzip")], b"{}", false),
            (&[("content-encoding", "zstd")], b"{}", false),
            (&[("content_encoding", "gzip")], b"{}", false),
            (&[("content-type", "application/json"), ("content_type", "text/plain")], b"{}", false),
            (&[("content-type", "application/x-www-form-urlencoded")], br#"{"model":"m","x":"&model=gpt-5&"}"#, false),
            (&[("content-type", "Multipart/Form-Data; boundary=x")], b"\"--x\"", false),
            (&[("content-type", "application/x-www-form-urlencoded")], b"model=m", true),
            (&[("content-type", "application/json; charset=utf-7")], b"{}", false),
            (&[("content-type", "application/json; charset=utf-8; charset=utf-16")], b"{}", false),
            (&[], b"\xEF\xBB\xBF{}", false),
            (&[], &utf_16("{}"), false),
            (&[], &utf_16("\u{FEFF} {}"), false),
            (&[], b"\0{\0}", false),
            (&[], b"RIFF\0\0{", true),
            (&[], b"\x89PNG", true),
            (&[], b"", true),
        ] {
            // `{` of UTF-16 in the usual order of bytes begins like one of UTF-8: it is no JSON, which is checked, too.
            let is_taken = check_coding(&call(fields, body)).is_ok() && (!body.starts_with(b"{") || is_json(body));
            assert_eq!(is_taken, expected, "{fields:?} {body:?}");
        }
    }

    #[test]
    fn a_body_for_a_model_is_json_or_nothing_or_a_form_with_files_where_there_may_be_one() {
        let form: &[(&str, &str)] = &[("content-type", "multipart/form-data; boundary=x")];
        let dialect = Dialect::from(Provider::Azure);
        for (path, fields, body, is_read, expected) in [
            ("/v1/responses", &[][..], &br#"{"model":"m"}"#[..], true, true),
            ("/v1/responses", &[], b"", true, true),
            ("/v1/responses", &[], b"", false, false),
            ("/v1/responses", &[], br#"{"temperature":NaN}"#, true, false),
            ("/v1/responses", &[], br#"{"a":1,}"#, true, false),
            ("/v1/responses", &[], br#"{"n":1,"N":100}"#, true, false),
            ("/v1/responses", &[], b"model=m&background=true", true, false),
            ("/v1/responses", &[], br#"{"a":1}{"background":true}"#, true, false),
            ("/v1/responses", form, b"--x\r\n", true, false),
            ("/v1//Responses;a/", form, b"--x\r\n", true, false),
            ("/openai/deployments/d/audio/transcriptions", form, b"--x\r\n", true, true),
            ("/openai/deployments/d/audio/transcriptions", form, b"--x\r\n", false, true),
            ("/openai/deployments/d/audio/transcriptions", form, br#"{"a":NaN}"#, true, false),
            ("/openai/deployments/d/audio/transcriptions", &[], b"--x\r\n", true, false),
        ] {
            let found = check_json(&call(fields, body), path, &dialect, is_read);
            assert_eq!(found.is_ok(), expected, "{path} {fields:?} {body:?}: {found:?}");
        }
    }
}
