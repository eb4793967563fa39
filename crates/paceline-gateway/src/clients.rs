//! Who may call a gateway: the keys of clients, and what each client may do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use paceline::{Class, ConfigError, Cost, Error, Limiter, MaxWait, Outcome, PacerConfig, Permit, WaitCause, Within};
use paceline_core::format_duration;
use paceline_http::Call;
use paceline_providers::model_of;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::headers::{KEY, OF_CLIENTS};
use crate::refusal::Refusal;

/// What is kept of a client's key. A key is 256 random bits, so no one can find it by trying: a slow hash, as for passwords
/// that people choose, would cost each request time and protect nothing more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// That of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// From its hexadecimal digits; none from any other text.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let is_whole = digits.len() == 64 && digits.is_ascii();
        for (byte, at) in bytes.iter_mut().zip((0..digits.len()).step_by(2)).filter(|_| is_whole) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        is_whole.then_some(Self(bytes))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// A client, as it is configured.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its name, for people and the log.
    pub name: String,
    /// Of its key.
    pub key: KeyHash,
    /// The limits of its own, beside those of the upstreams. None: it has none.
    pub limits: Option<PacerConfig>,
    /// The models that it may name; one that ends in `*` means all that begin so. Empty: all.
    pub models: Vec<String>,
    /// All of its requests wait behind interactive ones.
    pub is_batch: bool,
}

/// Fields by which a request asks a server to take it for one of another method.
const OTHER_METHOD: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Who may call a gateway.
#[derive(Debug, Default)]
pub enum Clients {
    /// Programs that name this machine; keys that they show only tell them apart.
    #[default]
    OfThisMachine,
    /// Every program that reaches the address, but no page of the web.
    Anyone,
    /// Programs that show one of these keys.
    WithKeys(BTreeMap<KeyHash, Arc<Client>>),
}

impl Clients {
    /// Those clients. One that `before` has too goes on with what it has used of its limits.
    ///
    /// # Errors
    /// Limits that cannot be.
    pub fn with_keys(configured: Vec<ClientConfig>, before: &Self) -> Result<Self, ConfigError> {
        let known = |key: &KeyHash| match before {
            Self::WithKeys(clients) => clients.get(key).and_then(|client| client.limiter.clone()),
            Self::OfThisMachine | Self::Anyone => None,
        };
        // All that may fail comes before the first change.
        let fresh = configured.iter().map(|client| client.limits.clone().map(Limiter::new).transpose());
        let fresh = fresh.collect::<Result<Vec<_>, _>>()?;
        let mut clients = BTreeMap::new();
        for (mut client, fresh) in configured.into_iter().zip(fresh) {
            let limiter = match (known(&client.key), client.limits.take()) {
                (Some(known), Some(limits)) => {
                    known.reconfigure(limits)?;
                    Some(known)
                }
                _ => fresh,
            };
            let number = u64::from_be_bytes(client.key.0[..8].try_into().expect("eight bytes"));
            let ClientConfig { name, key, models, is_batch, .. } = client;
            clients.insert(key, Arc::new(Client { name: name.into(), number, limiter, models, is_batch }));
        }
        Ok(Self::WithKeys(clients))
    }

    /// The client that shows one of the keys; its headers lose every key of the gateway's, which are for no upstream.
    ///
    /// # Errors
    /// No header has a key that is known.
    pub(crate) fn admit(
        clients: &BTreeMap<KeyHash, Arc<Client>>,
        headers: &mut HeaderMap,
    ) -> Result<Arc<Client>, Refusal> {
        let known = |value: &HeaderValue| clients.get(&KeyHash::of(key_in(value.to_str().ok()?)));
        let mut shown = None;
        for name in [KEY].into_iter().chain(OF_CLIENTS) {
            if let Some(client) = headers.get_all(&name).iter().find_map(known) {
                shown.get_or_insert_with(|| Arc::clone(client));
                headers.remove(name);
            }
        }
        shown.ok_or_else(|| {
            let message = "the request shows no key of this gateway: expected one that `paceline serve keys add` printed, where \
                           the client has its API key, or in the header x-paceline-key";
            Refusal::new(StatusCode::UNAUTHORIZED, "client_key", message)
        })
    }
}

/// The key in the value of a header: `Bearer KEY`, or the key alone.
fn key_in(value: &str) -> &str {
    let value = value.trim();
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
        _ => value,
    }
}

/// A client with a key.
pub struct Client {
    name: Arc<str>,
    number: u64,
    limiter: Option<Limiter>,
    models: Vec<String>,
    is_batch: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    /// Its name.
    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What separates it from others where clients take turns.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Whether all that it sends waits behind interactive requests.
    pub(crate) const fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Whether it may make the call: it names one of its models, in its body or in its path, or only reads.
    pub(crate) fn may_call(&self, call: &Call) -> Result<(), Refusal> {
        if self.models.is_empty() {
            return Ok(());
        }
        let may_name = |model: &str| {
            self.models.iter().any(|own| match own.strip_suffix('*') {
                Some(begin) => model.starts_with(begin),
                None => model == own,
            })
        };
        let named = model_of(&call.body);
        let is_right = match &named {
            Some(model) => may_name(model),
            // Gemini's paths: `/v1beta/models/gemini-2.5-flash:generateContent`.
            None => {
                let path = call.url.split('?').next().unwrap_or_default();
                let is_other_method = OTHER_METHOD.iter().any(|name| call.headers.contains_key(*name));
                matches!(call.method, Method::GET | Method::HEAD) && !is_other_method
                    || path.split('/').any(|part| may_name(part.split(':').next().unwrap_or_default()))
            }
        };
        if is_right {
            return Ok(());
        }
        let named = named.map_or("no model that can be read".to_owned(), |model| format!("the model {model:?}"));
        let (name, models) = (&self.name, self.models.join(", "));
        let message = format!("the request names {named}: the key {name} is for {models}");
        Err(Refusal::new(StatusCode::FORBIDDEN, "client_key", message))
    }

    /// Whether it may use paths that the gateway's program answers: jobs there make calls that no limit of a client counts.
    pub(crate) fn may_use_own_paths(&self) -> Result<(), Refusal> {
        if self.limiter.is_none() && self.models.is_empty() {
            return Ok(());
        }
        let message =
            format!("the key {} has limits or models of its own, which batches do not keep to: use another", self.name);
        Err(Refusal::new(StatusCode::FORBIDDEN, "client_key", message))
    }

    /// Room under its own limits, once there is some; none where it has none.
    pub(crate) async fn room(&self, cost: &Cost, priority: i32, left: Duration) -> Result<Option<Arc<Spent>>, Refusal> {
        let Some(limiter) = &self.limiter else { return Ok(None) };
        let request = paceline::Request { priority, ..paceline::Request::new(limiter.scope("client"), cost.clone()) };
        let refused = match timeout(left, limiter.acquire_within(request, MaxWait::Known(left))).await {
            Ok(Ok(Within::Granted(permit))) => return Ok(Some(Arc::new(Spent::new(permit)))),
            Ok(Ok(Within::Deferred { until, reason })) => self.too_long(&reason.cause, until - limiter.now()),
            Ok(Err(error @ Error::TooLarge(_))) => {
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the key {}: {error}", self.name))
            }
            Ok(Err(error)) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closed", error.to_string()),
            Err(_) => self.too_long(&WaitCause::Queue, Duration::from_secs(1)),
        };
        Err(refused)
    }

    fn too_long(&self, cause: &WaitCause, wait: Duration) -> Refusal {
        let (name, time) = (&self.name, format_duration(wait));
        let message = format!(
            "the key {name}: the request must wait {time} more for {cause}, and its deadline is sooner; send it later, or allow more \
             time with the header x-paceline-deadline"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message).after(wait).for_limit(cause.to_string())
    }
}

/// What a request takes of its client's limits: what it reserved, and once that is known what its last call used.
pub(crate) struct Spent {
    permit: Option<Permit>,
    used: Mutex<Option<Cost>>,
}

impl Spent {
    const fn new(permit: Permit) -> Self {
        Self { permit: Some(permit), used: Mutex::new(None) }
    }

    /// A call ended, and used so much.
    pub(crate) fn used(&self, cost: Option<Cost>) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = cost;
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let usage = self.used.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // However it ended: the limits of a client count what it asks for, and learn nothing of servers.
        if let Some(permit) = self.permit.take() {
            permit.complete(Outcome { usage, ..Outcome::new(Class::Success) });
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn client(models: &[&str]) -> Client {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        Client { name: "ci".into(), number: 1, limiter: None, models, is_batch: false }
    }

    #[test]
    fn a_hash_is_written_and_read_and_never_shown_by_debug() {
        let hash = KeyHash::of("abc");
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((hash.to_string().as_str(), KeyHash::from_hex(digits)), (digits, Some(hash)));
        assert_eq!(format!("{hash:?}"), "KeyHash(..)");
        for wrong in ["", "ba78", &digits[1..], &digits.replace('b', "x"), &"é".repeat(32)] {
            assert_eq!(KeyHash::from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_are_found_where_sdks_put_them() {
        let configured =
            ClientConfig { name: "ci".into(), key: KeyHash::of("k"), limits: None, models: vec![], is_batch: false };
        let Ok(Clients::WithKeys(clients)) = Clients::with_keys(vec![configured], &Clients::OfThisMachine) else {
            panic!("right")
        };
        for (name, value, known) in [
            ("authorization", "Bearer k", true),
            ("authorization", "bearer  k", true),
            ("authorization", "k", true),
            ("x-api-key", "k", true),
            ("x-goog-api-key", "k", true),
            ("api-key", "k", true),
            ("x-paceline-key", "k", true),
            ("authorization", "Bearer K", false),
            ("authorization", "Basic k", false),
            ("x-other", "k", false),
        ] {
            let field = (HeaderName::from_static(name), value.parse().expect("a value"));
            let mut headers = HeaderMap::from_iter([field]);
            assert_eq!(Clients::admit(&clients, &mut headers).is_ok(), known, "{name}: {value}");
            assert_eq!(headers.is_empty(), known, "the key goes no further");
        }
        let both = [("x-paceline-key", "k"), ("authorization", "Bearer sk-of-the-upstream")];
        let field =
            |(name, value): (&'static str, &str)| (HeaderName::from_static(name), value.parse().expect("a value"));
        let mut headers = HeaderMap::from_iter(both.map(field));
        assert!(Clients::admit(&clients, &mut headers).is_ok());
        assert_eq!(headers["authorization"], "Bearer sk-of-the-upstream", "this one is for the upstream");
        let mut twice = HeaderMap::from_iter([("x-paceline-key", "k"), ("x-api-key", "k")].map(field));
        assert!(Clients::admit(&clients, &mut twice).is_ok() && twice.is_empty(), "wherever it stands");
    }

    #[test]
    fn a_client_with_models_names_one_of_them_or_only_reads() {
        let call = |method: Method, url: &str, body: &str| Call {
            method,
            url: url.to_owned(),
            body: body.to_owned().into(),
            ..Call::default()
        };
        let client = client(&["gpt-4o-mini", "gemini-*"]);
        for (method, url, body, expected) in [
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini"}"#, true),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini-high"}"#, false),
            (Method::POST, "/v1/chat/completions", r#"{"model":"gpt-4o-mini","model":"gpt-5"}"#, false),
            (Method::POST, "/v1/chat/completions", "{}", false),
            (Method::POST, "/v1beta/models/gemini-2.5-pro:generateContent?key=x", "{}", true),
            (Method::POST, "/v1beta/models/other:generateContent?x=/gemini-", "{}", false),
            (Method::GET, "/v1/models", "", true),
            (Method::DELETE, "/v1/files/1", "", false),
        ] {
            assert_eq!(client.may_call(&call(method, url, body)).is_ok(), expected, "{url} {body}");
        }
        let mut read = call(Method::GET, "/v1beta/models/other:generateContent", "{}");
        assert!(client.may_call(&read).is_ok());
        read.headers.insert("x-http-method-override", "POST".parse().expect("a method"));
        assert!(client.may_call(&read).is_err(), "Google's servers take that for a POST");
        assert!(self::client(&[]).may_call(&call(Method::POST, "/v1/x", "{}")).is_ok());
    }
}
