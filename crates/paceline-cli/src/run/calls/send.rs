//! One request over HTTP: out with it, and the whole answer back in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Method, StatusCode};
use paceline_providers::join_url;
use paceline_providers::secrets::Secrets;
use reqwest::{Url, redirect};

use crate::run::calls::no_answer::{LARGEST_ANSWER, LARGEST_HEAD, NoAnswer, is_local, root_cause};
use crate::text;

/// Without a connection after this long the host is not reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What this machine lacks comes back when another call ends. A port stays taken for a minute after its connection.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(90);

/// Sends requests to one upstream. Connections are kept and shared.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    client: reqwest::Client,
    base_url: String,
    headers: HeaderMap,
    secrets: Secrets,
    idempotency: Option<(HeaderName, String)>,
    timeout: Duration,
    /// The user knows that this machine is short of files or ports.
    told: Arc<AtomicBool>,
}

/// What is sent for an item.
#[derive(Debug)]
pub(crate) struct Call {
    /// As the line says.
    pub(crate) method: Method,
    /// As the line says, relative to the upstream's address.
    pub(crate) url: String,
    /// Those of the line, before ours where both have one.
    pub(crate) headers: HeaderMap,
    /// As the line says; empty without one.
    pub(crate) body: Bytes,
    /// The item's ordinal: the same at each try, so that a server can see that two calls are one request.
    pub(crate) ordinal: u64,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// All headers, without the key that the call carried.
    pub(crate) headers: HeaderMap,
    /// The body, complete and decompressed, without it too.
    pub(crate) body: Bytes,
    /// Where it points instead of answering, and why the call did not follow.
    pub(crate) redirect: Option<String>,
}

impl Answer {
    /// The answer to a call of that path, as the library reads it.
    pub(crate) fn to<'a>(&'a self, path: &'a str) -> paceline_providers::Answer<'a> {
        paceline_providers::Answer { status: self.status.as_u16(), headers: &self.headers, body: &self.body, path }
    }

    /// Replaces the events of a stream by the object that they add up to; leaves everything else as it came.
    pub(crate) fn collect_stream(&mut self) {
        if let Some(object) = paceline_providers::collect(&self.to("")) {
            self.body = object.to_string().into();
        }
    }
}

/// How a sender is set up.
#[derive(Clone, Debug)]
pub(crate) struct SenderConfig {
    /// The upstream's address, with or without `/v1`.
    pub(crate) base_url: String,
    /// Authorization and whatever else each call carries; values that are secret are marked sensitive.
    pub(crate) headers: HeaderMap,
    /// From the first byte out to the last byte in.
    pub(crate) timeout: Duration,
    /// The header that makes a repeated call harmless, where the API has one, and the job's name to begin its values.
    pub(crate) idempotency: Option<(HeaderName, String)>,
}

impl Sender {
    /// A sender with its own pool of connections, on what [`client`](crate::upstream::client) has set up.
    ///
    /// # Errors
    /// An address that is no http(s) URL, or what the TLS library says.
    pub(crate) fn new(client: reqwest::ClientBuilder, config: SenderConfig) -> Result<Self, reqwest::Error> {
        let mut headers = config.headers.clone();
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let client = client
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .timeout(config.timeout)
            .connect_timeout(CONNECT_TIMEOUT.min(config.timeout))
            .tcp_nodelay(true)
            .http2_max_header_list_size(LARGEST_HEAD)
            // Every call is decided and counted by the pacer: none may happen below it.
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .build()?;
        client.get(&config.base_url).build()?;
        let SenderConfig { base_url, timeout, idempotency, .. } = config;
        let secrets = Secrets::of(headers.values().filter(|value| value.is_sensitive()));
        Ok(Self { client, base_url, secrets, headers, idempotency, timeout, told: Arc::default() })
    }

    /// Sends one call and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// Says how far the call got when there is no whole answer.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, NoAnswer> {
        let no_answer = |error: reqwest::Error| NoAnswer::of(&error, self.timeout);
        let cut_off = |error| match no_answer(error) {
            NoAnswer::Broken(words) => NoAnswer::Truncated(words),
            other => other,
        };
        let mut response = self.leave(call).await.map_err(no_answer)?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(cut_off)? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                return Err(NoAnswer::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        self.secrets.remove_from_headers(response.headers_mut());
        let redirect = not_followed(&response);
        let headers = std::mem::take(response.headers_mut());
        Ok(Answer { status: response.status(), headers, body: self.secrets.removed_from(body.freeze()), redirect })
    }

    /// Sends a call. One that finds no file descriptor or port on this machine goes again after a short wait and keeps its
    /// permit: nothing was sent, and neither the item nor the server has to do with it.
    async fn leave(&self, call: &Call) -> Result<reqwest::Response, reqwest::Error> {
        let (mut wait, mut waited) = (SHORTEST_WAIT, Duration::ZERO);
        loop {
            let request = self
                .client
                .request(call.method.clone(), join_url(&self.base_url, &call.url))
                .headers(self.headers_of(call))
                .body(call.body.clone());
            match request.send().await {
                Err(error) if waited < LONGEST_WAIT && is_local(&error) => self.tell_shortage(&error),
                sent => return sent,
            }
            tokio::time::sleep(wait).await;
            waited += wait;
            wait = (2 * wait).min(Duration::from_secs(1));
        }
    }

    fn tell_shortage(&self, error: &reqwest::Error) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this machine is short of files or ports ({}): calls wait until others have ended, which costs no retries; raise \
                 `ulimit -n` or lower --concurrency",
                text::printable(&root_cause(error)),
            );
        }
    }

    fn headers_of(&self, call: &Call) -> HeaderMap {
        let mut headers = self.headers.clone();
        if call.body.is_empty() {
            headers.remove(CONTENT_TYPE);
        }
        if let Some((name, job)) = &self.idempotency {
            let value = HeaderValue::from_str(&format!("{job}-{}", call.ordinal));
            headers.insert(name, value.expect("a job's name and a number are digits and letters"));
        }
        // A line replaces what is configured, but no key.
        headers.extend(call.headers.clone());
        for (name, key) in self.headers.iter().filter(|(_, value)| value.is_sensitive()) {
            headers.insert(name, key.clone());
        }
        headers
    }
}

/// Why an answer that points elsewhere was not followed there. A query is not named: it may be secret.
fn not_followed(response: &reqwest::Response) -> Option<String> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    let Some(target) =
        location.to_str().ok().and_then(|location| response.url().join(location).ok()).filter(Url::has_host)
    else {
        return Some("answered with a redirect to something that is no web address".to_owned());
    };
    Some(if target.origin() != response.url().origin() {
        let host = target.origin().ascii_serialization();
        format!(
            "answered with a redirect to {host}, which is not followed because the key would go there; if it is the \
             right place, name it with --base-url"
        )
    } else {
        let path: String = target.path().chars().take(200).collect();
        format!(
            "answered with a redirect to {path}, which is not followed because no limit would count that call; write \
             this path into the url of the lines"
        )
    })
}
