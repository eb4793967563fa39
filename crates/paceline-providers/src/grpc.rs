//! gRPC: the status of a call stands in a header of its own, beside a 200.

use super::case::Case;
use super::header;

/// The HTTP status that a refused call stands for, as `google/rpc/code.proto` maps them; 200 for one that is done. None where the
/// answer is not gRPC, or has its status in the trailers behind its body.
pub(super) fn status(case: &Case<'_>) -> Option<u16> {
    Some(match header::first(case.headers, "grpc-status")? {
        "0" => 200,
        "1" => 499,
        "3" | "9" | "11" => 400,
        "4" => 504,
        "5" => 404,
        "6" | "10" => 409,
        "7" => 403,
        "8" => 429,
        "12" => 501,
        "14" => 503,
        "16" => 401,
        _ => 500,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;
    use paceline_core::{Class, Timestamp};

    use super::super::{Answer, Provider, read};

    #[test]
    fn a_call_is_judged_by_its_own_status_and_waits_as_long_as_the_server_says() {
        for (status, class) in [
            ("0", Class::Success),
            ("2", Class::Transient),
            ("3", Class::Invalid),
            ("4", Class::Transient),
            ("8", Class::Throttled),
            ("13", Class::Transient),
            ("14", Class::Overloaded),
            ("16", Class::Account),
            ("99", Class::Transient),
        ] {
            let headers = [("grpc-status", status), ("grpc-retry-pushback-ms", "250")];
            let headers: HeaderMap = headers
                .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
                .into_iter()
                .collect();
            let answer = Answer { status: 200, headers: &headers, body: b"", path: "" };
            for provider in Provider::ALL {
                let reading = read(provider, &answer, Timestamp::from_millis(0));
                assert_eq!(reading.class, class, "{status} of {provider:?}");
            }
            let waits = matches!(class, Class::Throttled | Class::Overloaded | Class::Transient);
            let reading = read(Provider::Generic, &answer, Timestamp::from_millis(0));
            assert_eq!(reading.wait, waits.then_some(Duration::from_millis(250)), "{status}");
        }
    }
}
