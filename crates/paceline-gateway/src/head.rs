//! What the head of a request may not be: proxies and servers read it differently, and one that stands before or behind the
//! gateway must see the same requests.

use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode, Version};

use crate::refusal::Refusal;

/// By HTTP/1 hyper takes no more; by HTTP/2 it counts their bytes alone.
const MOST_FIELDS: usize = 100;

/// Refuses a head that hyper takes and that RFC 9112 does not: 3.2 asks for one `Host`, 6.1 for codings that are known.
pub(crate) fn check<Body>(request: &Request<Body>) -> Result<(), Refusal> {
    let (headers, authority) = (request.headers(), request.uri().authority());
    if request.method() == Method::CONNECT {
        let message = "CONNECT is not supported: the gateway is no proxy; name it as the base address of the client";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message));
    }
    if headers.len() > MOST_FIELDS {
        let message = format!("the head has {} fields: expected {MOST_FIELDS} at most", headers.len());
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "bad_request", message));
    }
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Refusal::bad_request("the target of the request names a user: expected a host alone"));
    }
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_host(host) => {}
        (None, _) if request.version() != Version::HTTP_11 => {}
        _ => {
            return Err(Refusal::bad_request("Host: expected one field, with a name or an address and perhaps a port"));
        }
    }
    // HTTP/1 has it in one field, and a target with a host takes that field's place (RFC 9112, 3.2.2; RFC 9113, 8.3.1).
    let is_other =
        |host: &HeaderValue| authority.is_some_and(|authority| *authority != *String::from_utf8_lossy(host.as_bytes()));
    if request.version() == Version::HTTP_2 && headers.get(HOST).is_some_and(is_other) {
        return Err(Refusal::bad_request("Host: expected the same as :authority, or none"));
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => {
            let message = "Transfer-Encoding: expected chunked alone";
            Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message))
        }
    }
}

fn is_host(host: &HeaderValue) -> bool {
    Authority::try_from(host.as_bytes()).is_ok_and(|host| !host.as_str().contains('@'))
}
