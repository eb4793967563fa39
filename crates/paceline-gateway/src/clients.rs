//! Who may call a gateway: the keys of clients, and what each client may do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use paceline::{Admit, ConfigError, Cost, Error, Limiter, MaxWait, PacerConfig, QuotaSnapshot, WaitCause, Within};
use paceline_core::format_duration;
use paceline_http::Call;
use paceline_providers::models_of;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::bounds::Held;
use crate::headers::{KEY, OF_CLIENTS};
use crate::refusal::Refusal;
use crate::spent::Spent;

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

/// The scope of all that a client sends, in the limiter of its own.
const SCOPE: &str = "client";

/// Where it is not known how long a wait is, another try is worth it after that time.
const LEAST: Duration = Duration::from_secs(1);

/// Fields by which a request asks a server to take it for one of another method.
const OTHER_METHOD: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Parts of paths before the name of a model: Gemini's /v1beta/models/NAME:generateContent, Azure's
/// /openai/deployments/NAME/chat/completions, Bedrock's /model/NAME/invoke. Those servers heed no model in the body.
const BEFORE_MODEL: [&str; 4] = ["models", "deployments", "model", "engines"];

/// The models that a path names by its form.
fn models_in(path: &str) -> impl Iterator<Item = &str> {
    let pairs = path.split('/').zip(path.split('/').skip(1));
    let named = pairs.filter(|(before, _)| BEFORE_MODEL.iter().any(|known| before.eq_ignore_ascii_case(known)));
    named.map(|(_, part)| part).filter(|model| !model.is_empty())
}

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
            Self::WithKeys(clients) => clients.get(key),
            Self::OfThisMachine | Self::Anyone => None,
        };
        // All that may fail comes before the first change.
        let fresh = configured.iter().map(|client| client.limits.clone().map(Limiter::new).transpose());
        let fresh = fresh.collect::<Result<Vec<_>, _>>()?;
        let changed = match before {
            Self::WithKeys(clients) => clients.values().next().map(|client| Arc::clone(&client.changed)),
            Self::OfThisMachine | Self::Anyone => None,
        };
        let changed = changed.unwrap_or_default();
        let mut clients = BTreeMap::new();
        for (mut client, fresh) in configured.into_iter().zip(fresh) {
            let before = known(&client.key);
            let limiter = match (before.and_then(|client| client.limiter.clone()), client.limits.take()) {
                (Some(known), Some(limits)) => {
                    known.reconfigure(limits)?;
                    Some(known)
                }
                _ => fresh,
            };
            let number = u64::from_be_bytes(client.key.0[..8].try_into().expect("eight bytes"));
            let ClientConfig { name, key, models, is_batch, .. } = client;
            let streams = before.map(|client| client.streams.clone()).unwrap_or_default();
            let (name, changed) = (name.into(), Arc::clone(&changed));
            clients.insert(key, Arc::new(Client { name, number, limiter, models, is_batch, streams, changed }));
        }
        Ok(Self::WithKeys(clients))
    }

    /// Whether a program that was welcome before still is: the client with that key, or one without a key.
    pub(crate) fn still_welcome(&self, client: Option<&Client>) -> bool {
        match (self, client) {
            (Self::OfThisMachine | Self::Anyone, _) => true,
            (Self::WithKeys(_), None) => false,
            (Self::WithKeys(clients), Some(client)) => clients.values().any(|known| known.number == client.number),
        }
    }

    /// What counts for each client with limits of its own, by the hash of its key: for a program that keeps it over restarts.
    pub fn limiters(&self) -> impl Iterator<Item = (String, &Limiter)> {
        let clients = match self {
            Self::WithKeys(clients) => Some(clients),
            Self::OfThisMachine | Self::Anyone => None,
        };
        clients.into_iter().flatten().filter_map(|(key, client)| Some((key.to_string(), client.limiter.as_ref()?)))
    }

    /// Returns once a client may have used more of its limits, or less, since that was told last: one caller is told.
    pub async fn limits_change(&self) {
        match self {
            Self::WithKeys(clients) if let Some(client) = clients.values().next() => client.changed.notified().await,
            _ => std::future::pending().await,
        }
    }

    /// The limit that the next request of the client of that name waits for, and for how long, where that is known.
    pub(crate) fn wait_of(&self, name: &str) -> Option<(String, Option<Duration>)> {
        let Self::WithKeys(clients) = self else { return None };
        clients.values().find(|client| *client.name == *name)?.waits_for()
    }

    /// What is left of the limits of the client of that name, where it has some: an array.
    pub(crate) fn limits_of(&self, name: &str) -> Option<Value> {
        let Self::WithKeys(clients) = self else { return None };
        let limiter = clients.values().find(|client| *client.name == *name)?.limiter.as_ref()?;
        let limit = |quota: &QuotaSnapshot| {
            json!({
                "dimension": quota.dimension.as_str(),
                "limit": quota.limit,
                "remaining": quota.remaining,
                "window_s": quota.window.map(|window| window.as_secs_f64()),
            })
        };
        Some(limiter.snapshot().account.quotas.iter().map(limit).collect())
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
            let shows_some = [KEY].iter().chain(&OF_CLIENTS).any(|name| headers.contains_key(name));
            let what = if shows_some {
                "the key that the request shows is none of this gateway, or was revoked"
            } else {
                "the request shows no key"
            };
            let message = format!(
                "{what}: expected one that `paceline serve keys add` printed, where the client has its API key, or in the header \
                 x-paceline-key"
            );
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
    /// Of events that it follows.
    pub(crate) streams: Held,
    /// That of all clients: what one of them has used has changed.
    changed: Arc<Notify>,
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

    /// Whether it may make the call: all models that its body and its path name are its own, or it names none and only reads.
    /// `is_read`: the body of the call is there, whole.
    pub(crate) fn may_call(&self, call: &Call, is_read: bool) -> Result<(), Refusal> {
        if self.models.is_empty() {
            return Ok(());
        }
        let may_name = |model: &str| {
            self.models.iter().any(|own| match own.strip_suffix('*') {
                Some(begin) => model.starts_with(begin),
                None => model == own,
            })
        };
        let path = percent_decode_str(call.url.split('?').next().unwrap_or_default()).decode_utf8_lossy();
        let is_other_method = OTHER_METHOD.iter().any(|name| call.headers.contains_key(*name));
        let only_reads = matches!(call.method, Method::GET | Method::HEAD) && !is_other_method;
        // Behind a colon stands what is to be done, or a version that belongs to the name.
        let is_of_own = |part: &str| may_name(part) || part.split_once(':').is_some_and(|(model, _)| may_name(model));
        let in_body = models_of(&call.body);
        let (is_object, in_body) = (in_body.is_some(), in_body.unwrap_or_default());
        let in_path: Vec<_> = models_in(&path).filter(|_| !only_reads).collect();
        let other = in_body.iter().map(String::as_str).find(|model| !may_name(model));
        let other = other.or_else(|| in_path.iter().copied().find(|part| !is_of_own(part)));
        let names_none = in_body.is_empty() && in_path.is_empty();
        let is_right = if names_none { only_reads || path.split('/').any(is_of_own) } else { other.is_none() };
        if is_right {
            return Ok(());
        }
        let named = match other {
            Some(model) => format!("the request names the model {model:?}"),
            None if !is_read => "the body of the request is too large to be read for its model".to_owned(),
            None if is_object || call.body.is_empty() => "the request names no model".to_owned(),
            None => "the body of the request is no JSON object that names its model as a text".to_owned(),
        };
        let (name, models) = (&self.name, self.models.join(", "));
        let message = format!(
            "{named}: the key {name} is for {models}; name one of those, or ask who runs the gateway for another key"
        );
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
        let request = paceline::Request { priority, ..paceline::Request::new(limiter.scope(SCOPE), cost.clone()) };
        // The requests ahead are no known wait, but how long they will take can be told, before this one is among them.
        if let Admit::At { at, cause } = limiter.admit(&request)
            && at - limiter.now() > left
        {
            return Err(self.too_long(&cause, at - limiter.now()));
        }
        let refused = match timeout(left, limiter.acquire_within(request.clone(), MaxWait::Known(left))).await {
            Ok(Ok(Within::Granted(permit))) => {
                return Ok(Some(Arc::new(Spent::new(permit, Arc::clone(&self.changed)))));
            }
            Ok(Ok(Within::Deferred { until, reason })) => self.too_long(&reason.cause, until - limiter.now()),
            Ok(Err(error @ Error::TooLarge(_))) => {
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the key {}: {error}", self.name))
            }
            Ok(Err(error)) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closed", error.to_string()),
            Err(_) => match limiter.admit(&request) {
                Admit::Now => self.too_long(&WaitCause::Queue, LEAST),
                Admit::At { at, cause } => self.too_long(&cause, at - limiter.now()),
                Admit::OnRelease { cause } => self.too_long(&cause, LEAST),
            },
        };
        Err(refused)
    }

    /// The limit that its next request waits for, and for how long, where that is known.
    pub(crate) fn waits_for(&self) -> Option<(String, Option<Duration>)> {
        let limiter = self.limiter.as_ref()?;
        let (cause, until) = limiter.scope_snapshot(&limiter.scope(SCOPE))?.waits_for?;
        Some((self.limit(&cause), until.map(|until| until - limiter.now())))
    }

    /// What a request of its own waits for: of its limits the one that is named, else that of which the least is left.
    fn limit(&self, cause: &WaitCause) -> String {
        let mut quotas = self.limiter.iter().flat_map(|limiter| limiter.snapshot().account.quotas).collect::<Vec<_>>();
        let left = |quota: &QuotaSnapshot| quota.remaining as f64 / quota.limit.max(1) as f64;
        quotas.sort_by(|a, b| left(a).total_cmp(&left(b)));
        match (cause, quotas.first()) {
            (WaitCause::Queue | WaitCause::Burst, Some(QuotaSnapshot { dimension, limit, window, .. })) => {
                let window = window.map(|window| format!(" per {}", format_duration(window))).unwrap_or_default();
                format!("the limit of this key, {limit} {dimension}{window}")
            }
            (WaitCause::Quota { dimension, limit, window }, _) => {
                format!("the limit of this key, {limit} {dimension} per {}", format_duration(*window))
            }
            _ => cause.to_string(),
        }
    }

    fn too_long(&self, cause: &WaitCause, wait: Duration) -> Refusal {
        let (name, time, limit) = (&self.name, format_duration(wait), self.limit(cause));
        let message = format!(
            "the key {name}: the request must wait {time} more for {limit}, and its deadline is sooner; send it later, or allow more \
             time with the header x-paceline-deadline"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message).after(wait).for_limit(limit)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn client(models: &[&str]) -> Client {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        Client {
            name: "ci".into(),
            number: 1,
            limiter: None,
            models,
            is_batch: false,
            streams: Held::default(),
            changed: Arc::default(),
        }
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
        let client = client(&["gpt-4o-mini", "gemini-*", "claude-v2:1"]);
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
            assert_eq!(client.may_call(&call(method, url, body), true).is_ok(), expected, "{url} {body}");
        }
        let mut read = call(Method::GET, "/v1beta/models/other:generateContent", "{}");
        assert!(client.may_call(&read, true).is_ok());
        read.headers.insert("x-http-method-override", "POST".parse().expect("a method"));
        assert!(client.may_call(&read, true).is_err(), "Google's servers take that for a POST");
        assert!(self::client(&[]).may_call(&call(Method::POST, "/v1/x", "{}"), true).is_ok());
        for (body, is_read, expected) in [
            ("", true, "the request names no model: the key ci "),
            ("{}", true, "the request names no model: the key ci "),
            ("model=gpt-5", true, "the body of the request is no JSON object that names its model as a text: "),
            (r#"{"model":7}"#, true, "the body of the request is no JSON object that names its model as a text: "),
            ("", false, "the body of the request is too large to be read for its model: "),
        ] {
            let refused = client.may_call(&call(Method::POST, "/v1/chat/completions", body), is_read).expect_err(body);
            assert!(refused.message().starts_with(expected), "{}", refused.message());
        }
    }
}
