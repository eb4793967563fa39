//! What the CA's errors mean for a domain, and how far they reach.

use std::time::{Duration, Instant};

use http::HeaderMap;
use instant_acme::{Error, Problem};
use paceline::{Class, LimitScope};
use paceline_providers::{Answer, Provider, Reading};
use paceline_store::work::Failure;

use crate::client::CallError;

/// Makes a call again, at once, for as long as the CA finds its nonce stale. A macro, because the future of a closure that
/// borrows could not be sent to another thread.
macro_rules! again {
    ($call:expr) => {{
        let mut rounds = $crate::errors::NONCES;
        loop {
            match $call.await {
                Err(error) if rounds > 0 && $crate::errors::is_bad_nonce(&error) => rounds -= 1,
                done => break done,
            }
        }
    }};
}
pub(crate) use again;

/// The client crate tries three nonces for each call; so many more rounds of it make twelve. Where three of ten nonces are
/// refused they fail together once in two million calls, and a CA that takes no nonce is not asked without an end.
pub(crate) const NONCES: u32 = 3;

/// What a failed call means for the domain that it was made for.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Api(problem) => of_problem(&problem),
        Error::Other(inner) => match inner.downcast::<CallError>() {
            Ok(error) => of_call(*error),
            Err(other) => Failure::new(Class::Transient, other.to_string()),
        },
        // The order is still in progress; the CA may have sent a time to poll again.
        Error::Timeout(next) => {
            let failure = Failure::new(Class::Transient, "the CA is still working on it");
            match next {
                Some(next) => failure.with_retry_after(from_now(next)),
                None => failure,
            }
        }
        Error::Crypto | Error::KeyRejected | Error::InvalidUri(_) | Error::Http(_) | Error::Unsupported(_) => {
            Failure::new(Class::Invalid, error.to_string())
        }
        // An answer that is no ACME: some proxy's page.
        other => Failure::new(Class::Transient, other.to_string()),
    }
}

/// The same for a new order, which is refused as `unauthorized` only when the account is no good: nothing of the domain
/// has been looked at yet.
pub(crate) fn failure_of_new_order(error: Error) -> Failure {
    let failure = failure(error);
    match failure.code.as_deref() {
        Some("unauthorized") => Failure { class: Class::Account, ..failure },
        _ => failure,
    }
}

/// A problem that stands in an order or a challenge, with the CA's own message.
pub(crate) fn of_problem(problem: &Problem) -> Failure {
    let status = problem.status.unwrap_or(400);
    let body = serde_json::json!({ "type": problem.r#type, "detail": problem.detail, "status": status }).to_string();
    let answer = Answer { status, headers: &HeaderMap::new(), body: body.as_bytes(), path: "" };
    let reading = paceline_providers::read(Provider::Acme, &answer, paceline::clock::wall());
    of_reading(problem.status, reading)
}

/// Whether the call was refused only because its nonce was stale. That is neither a failure nor a throttle: the same call
/// is made again at once.
pub(crate) fn is_bad_nonce(error: &Error) -> bool {
    let kind = match error {
        Error::Api(problem) => problem.r#type.as_deref(),
        _ => None,
    };
    kind == Some("urn:ietf:params:acme:error:badNonce")
}

fn of_call(error: CallError) -> Failure {
    match error {
        CallError::Failed { status, reading } => of_reading(status, *reading),
        // Nothing was sent, so nothing is counted against the domain.
        CallError::NotSent { wait, why } => Failure::new(Class::Abandoned, why).with_retry_after(wait),
        CallError::Stopped { reason } => Failure::new(Class::Account, reason),
    }
}

fn of_reading(status: Option<u16>, reading: Reading) -> Failure {
    // One that is over names no end.
    let has_time = reading.wait.is_some_and(|wait| !wait.is_zero());
    let class = match (reading.class, reading.reach) {
        // A limit of these names alone is no reason to hold the CA, and a paused name none to stop the account.
        (Class::QuotaExhausted, LimitScope::Item) => Class::Throttled,
        (Class::Account, LimitScope::Item) => Class::Invalid,
        // A limit of the account with a time: no item asks for an order before, in this run or the next.
        (Class::Throttled, LimitScope::Scope | LimitScope::Account) if has_time => Class::QuotaExhausted,
        (class, _) => class,
    };
    let message = reading.message.clone().or_else(|| reading.code.clone());
    let message = message.unwrap_or_else(|| class.description().to_owned());
    Failure { status, code: reading.code, retry_after: reading.wait, ..Failure::new(class, message) }
}

#[expect(clippy::disallowed_methods, reason = "the ACME client tells a time of this clock")]
fn from_now(at: Instant) -> Duration {
    at.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, kind: &str, detail: &str, retry_after: Option<&str>) -> Failure {
        let body = format!(r#"{{"type":"urn:ietf:params:acme:error:{kind}","detail":"{detail}","status":{status}}}"#);
        let headers = retry_after.map(|wait| (http::header::RETRY_AFTER, wait.parse().unwrap()));
        let headers: HeaderMap = headers.into_iter().collect();
        let answer = Answer { status, headers: &headers, body: body.as_bytes(), path: "" };
        let reading = paceline_providers::read(Provider::Acme, &answer, paceline::clock::wall());
        let error = CallError::Failed { status: Some(status), reading: Box::new(reading) };
        failure(Error::Other(Box::new(error)))
    }

    #[test]
    fn each_error_reaches_as_far_as_it_should() {
        let many = "too many new orders (300) from this account in the last 3h0m0s";
        let set = "too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s";
        let domain = "too many certificates (50) already issued for 'example.org' in the last 168h0m0s";
        let wrong = "too many failed authorizations (5) for 'a.example.org' in the last 1h0m0s";
        let paused = "Your account is temporarily prevented from requesting certificates for a.example.org";
        for (status, kind, detail, retry_after, class, wait) in [
            // The CA as a whole: its group is held or stopped.
            (429, "rateLimited", many, Some("5"), Class::QuotaExhausted, Some(5)),
            (503, "rateLimited", "slow down", Some("7"), Class::QuotaExhausted, Some(7)),
            (403, "userActionRequired", "Terms of service have changed", None, Class::Account, None),
            (400, "accountDoesNotExist", "unable to find account", None, Class::Account, None),
            (403, "externalAccountRequired", "needed", None, Class::Account, None),
            // The domain, which waits.
            (429, "rateLimited", many, None, Class::Throttled, None),
            (429, "rateLimited", many, Some("0"), Class::Throttled, Some(0)),
            (429, "rateLimited", many, Some("Tue, 14 Nov 2023 22:00:00 GMT"), Class::Throttled, Some(0)),
            (429, "rateLimited", set, Some("90000"), Class::Throttled, Some(90_000)),
            (429, "rateLimited", domain, Some("12240"), Class::Throttled, Some(12_240)),
            (429, "rateLimited", wrong, Some("733"), Class::Throttled, Some(733)),
            (500, "serverInternal", "Error creating new order", Some("60"), Class::Transient, Some(60)),
            (403, "orderNotReady", "Order's status is not ready", None, Class::Transient, None),
            // The domain, which fails.
            (429, "rateLimited", paused, None, Class::Invalid, None),
            (403, "unauthorized", "Invalid response from http://a.example.org", None, Class::Invalid, None),
            (400, "dns", "DNS problem: NXDOMAIN", None, Class::Invalid, None),
            (400, "connection", "Timeout during connect", None, Class::Invalid, None),
            (400, "incorrectResponse", "wrong", None, Class::Invalid, None),
            (403, "caa", "CAA record prevents issuance", None, Class::Invalid, None),
            (400, "rejectedIdentifier", "will not issue", None, Class::Invalid, None),
            (400, "badCSR", "CSR is invalid", None, Class::Invalid, None),
        ] {
            let failure = refused(status, kind, detail, retry_after);
            let waited = failure.retry_after.map(|wait| wait.as_secs());
            assert_eq!((failure.class, waited), (class, wait), "{kind}: {detail}");
            assert_eq!((failure.code.as_deref(), failure.status), (Some(kind), Some(status)));
            assert_eq!(failure.message, detail, "in the CA's own words");
        }
    }

    #[test]
    fn a_problem_inside_an_order_means_what_it_means_as_an_answer() {
        for (kind, class) in [
            ("unauthorized", Class::Invalid),
            ("serverInternal", Class::Transient),
            ("rateLimited", Class::Throttled),
            ("userActionRequired", Class::Account),
        ] {
            let problem = serde_json::json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": "why" });
            let failure = failure(Error::Api(serde_json::from_value(problem).unwrap()));
            assert_eq!((failure.class, failure.message.as_str()), (class, "why"), "{kind}");
        }
    }

    #[test]
    fn an_account_that_may_order_nothing_stops_the_ca() {
        let problem = serde_json::json!({ "type": "urn:ietf:params:acme:error:unauthorized", "detail": "deactivated" });
        let error = || Error::Api(serde_json::from_value(problem.clone()).unwrap());
        assert_eq!(failure_of_new_order(error()).class, Class::Account);
        assert_eq!(failure(error()).class, Class::Invalid);
    }

    #[test]
    fn what_was_not_sent_counts_as_no_try() {
        let error = CallError::NotSent { wait: Duration::from_secs(40), why: "waiting for the gate".to_owned() };
        let failure = failure(Error::Other(Box::new(error)));
        assert_eq!((failure.class, failure.retry_after), (Class::Abandoned, Some(Duration::from_secs(40))));
    }
}
