//! The hosts that payloads name: only the run knows whether it may send to them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use http::Method;
use serde::Deserialize;

use crate::tasks::address::address_of;

/// So many are named, and so many counted.
const NAMED: usize = 3;
const COUNTED: usize = 1_000;

/// Hosts in the addresses of payloads that are requests.
#[derive(Debug, Default)]
pub(super) struct Hosts(BTreeSet<String>);

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    url: Cow<'a, str>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
}

/// The host of a payload that is a request with a whole address.
fn host_of(payload: &str) -> Option<String> {
    let request = serde_json::from_str::<Request<'_>>(payload).ok()?;
    paceline_providers::host(&request.url)
}

/// The same with the [address](address_of) that the item of that key goes to.
pub(crate) fn host_and_address_of(payload: &str, key: &str) -> Option<(String, String)> {
    let request = serde_json::from_str::<Request<'_>>(payload).ok()?;
    let method = request.method.and_then(|method| method.to_ascii_uppercase().parse().ok()).unwrap_or(Method::POST);
    Some((paceline_providers::host(&request.url)?, address_of(&method, &request.url, key)))
}

impl Hosts {
    pub(super) fn note(&mut self, payload: &str) {
        if let Some(host) = host_of(payload)
            && self.0.len() < COUNTED
        {
            self.0.insert(host);
        }
    }

    /// What a run needs to send to all of them; none where one address may be enough.
    pub(super) fn describe(&self) -> Option<String> {
        let named: Vec<&str> = self.0.iter().take(NAMED).map(String::as_str).collect();
        let more = if self.0.len() > NAMED { ", ..." } else { "" };
        (self.0.len() > 1).then(|| {
            format!(
                "the payloads name several hosts ({}{more}): `tasks run --http` calls all of them with --scope host; without it \
                 only those for the host of --base-url are sent, and the others wait",
                named.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_host_is_told_with_the_flag_that_takes_them() {
        let mut hosts = Hosts::default();
        for payload in [r#"{"url":"https://a.example/1"}"#, r#"{"url":"https://A.example/2"}"#, "7", r#"{"url":"/b"}"#]
        {
            hosts.note(payload);
            assert_eq!(hosts.describe(), None, "{payload}");
        }
        for n in 0..4 {
            hosts.note(&format!(r#"{{"method":"GET","url":"http://b{n}.example:81/"}}"#));
        }
        let words = hosts.describe().expect("five");
        assert!(
            words.contains("(a.example, b0.example:81, b1.example:81, ...)") && words.contains("--scope host"),
            "{words}"
        );
    }
}
