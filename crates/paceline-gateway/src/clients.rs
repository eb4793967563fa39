//! Who may call a gateway: the keys of clients, and what each client may do.

mod allowed;
mod contexts;
mod hash;
mod room;
pub(crate) mod search;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use paceline::{
    ConfigError, Cost, Dimension, Limiter, LimiterState, PacerConfig, Quota, QuotaSnapshot, Timestamp, clock,
};
use tokio::time::sleep;

use self::contexts::Contexts;
pub use self::hash::KeyHash;
use self::shown::{check_line, each_shown, key_in, remove_keys};
use crate::bodies::BodiesOfClient;
use crate::bounds::{Held, Turn};
use crate::headers::{KEY, OF_CLIENTS};
use crate::query;
use crate::refusal::Refusal;
use crate::uses::Uses;

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
    /// The paths that it may call, and all below them: each begins with `/` and the name of an upstream. Empty: all.
    pub paths: Vec<String>,
    /// All of its requests wait behind interactive ones.
    pub is_batch: bool,
    /// A key that it had before, which is good until then too.
    pub former: Option<(KeyHash, Timestamp)>,
}

/// How often it is looked whether a key has ended.
const LOOKED_AT: Duration = Duration::from_secs(60);

/// Who may call a gateway.
#[derive(Debug, Default)]
pub enum Clients {
    /// Programs that name this machine; keys that they show only tell them apart.
    #[default]
    OfThisMachine,
    /// Every program that reaches the address, but no page of the web.
    Anyone,
    /// Programs that show one of these keys, of which two may be one client's.
    WithKeys(BTreeMap<KeyHash, Arc<Client>>),
}

impl Clients {
    /// Those clients. One that `before` has too goes on with what it has used of its limits: by its key, else by its name, where
    /// the former key of that name is gone.
    ///
    /// # Errors
    /// Limits that cannot be.
    pub fn with_keys(configured: Vec<ClientConfig>, before: &Self) -> Result<Self, ConfigError> {
        let keys: BTreeSet<_> = configured.iter().map(|client| client.key).collect();
        let known = |now: &ClientConfig| {
            let Self::WithKeys(clients) = before else { return None };
            let mut gone = clients.iter().filter(|(key, _)| !keys.contains(key));
            let of_its_name = || gone.find(|(_, client)| *client.name == *now.name).map(|(_, client)| client);
            clients.get(&now.key).or_else(of_its_name)
        };
        // All that may fail comes before the first change.
        let doubts = |limits| PacerConfig { doubts_answers: true, ..limits };
        let fresh = configured.iter().map(|client| client.limits.clone().map(doubts).map(Limiter::new).transpose());
        let fresh = fresh.collect::<Result<Vec<_>, _>>()?;
        let uses = before.first().map(|client| Arc::clone(&client.uses)).unwrap_or_default();
        let (mut clients, others) = (BTreeMap::new(), configured.len().saturating_sub(1));
        for (mut client, fresh) in configured.into_iter().zip(fresh) {
            let before = known(&client);
            let spaced = client.limits.as_ref().and_then(|pacer| pacer.limits.spacing());
            let spaced = spaced.map(|(quota, burst)| (quota.clone(), burst));
            let counted = client.limits.iter().flat_map(|pacer| &pacer.limits.quotas);
            let counts_tokens = counted.clone().any(|quota| quota.dimension.is_of_tokens());
            let counts_money = { counted }.any(|quota| quota.dimension == Dimension::Money);
            let used = before.and_then(|client| client.limiter.clone().or_else(|| client.resting.clone()));
            let (limiter, resting) = match (used, client.limits.take()) {
                (Some(used), Some(limits)) => {
                    used.reconfigure(doubts(limits))?;
                    (Some(used), None)
                }
                (None, Some(_)) => (fresh, None),
                (used, None) => (None, used),
            };
            let number = number_of(&client.name);
            let ClientConfig { name, key, models, paths, is_batch, former, .. } = client;
            let streams = before.map(|client| client.streams.clone()).unwrap_or_default();
            let documents = before.map(|client| client.documents.clone()).unwrap_or_default();
            let document_turn = before.map(|client| client.document_turn.clone()).unwrap_or_default();
            let files = before.map(|client| client.files.clone()).unwrap_or_default();
            let bodies = before.map(|client| client.bodies.clone()).unwrap_or_default();
            let contexts = before.map(|client| Arc::clone(&client.contexts)).unwrap_or_default();
            let (name, hash, uses) = (name.into(), key.to_string().into(), Arc::clone(&uses));
            let client = Client {
                name,
                key: hash,
                shown: key,
                until: None,
                number,
                others,
                limiter,
                resting,
                spaced,
                counts_tokens,
                counts_money,
                models,
                paths,
                is_batch,
                streams,
                documents,
                document_turn,
                files,
                bodies,
                contexts,
                uses,
            };
            if let Some((former, until)) = former {
                clients.insert(former, Arc::new(Client { shown: former, until: Some(until), ..client.clone() }));
            }
            clients.insert(key, Arc::new(client));
        }
        Ok(Self::WithKeys(clients))
    }

    /// Each client once, with its present key.
    fn each(&self) -> impl Iterator<Item = &Arc<Client>> {
        let clients = match self {
            Self::WithKeys(clients) => Some(clients.values()),
            Self::OfThisMachine | Self::Anyone => None,
        };
        clients.into_iter().flatten().filter(|client| client.until.is_none())
    }

    /// How many clients have keys.
    pub fn count(&self) -> usize {
        self.each().count()
    }

    /// Whether a program that was welcome before still is: the client with that key, or one without a key.
    pub(crate) fn still_welcome(&self, client: Option<&Client>) -> bool {
        match (self, client) {
            (Self::OfThisMachine | Self::Anyone, _) => true,
            (Self::WithKeys(_), None) => false,
            (Self::WithKeys(clients), Some(client)) => {
                clients.get(&client.shown).is_some_and(|client| !client.is_over())
            }
        }
    }

    /// A client as it is now, where it may do something else than before.
    pub(crate) fn changed(&self, before: &Arc<Client>) -> Option<Arc<Client>> {
        let Self::WithKeys(clients) = self else { return None };
        let now = clients.get(&before.shown).filter(|now| !Arc::ptr_eq(now, before))?;
        let rights = |client: &Client| {
            let limits = (client.limiter.is_some(), client.counts_tokens, client.counts_money);
            (limits, client.models.clone(), client.paths.clone())
        };
        (rights(now) != rights(before)).then(|| Arc::clone(now))
    }

    /// What counts for each client that has limits of its own, or had some, by the hash of its key: for a program that keeps it
    /// over restarts.
    pub fn limiters(&self) -> impl Iterator<Item = (String, &Limiter)> {
        let counts = self.each().map(|client| (client, client.limiter.as_ref().or(client.resting.as_ref())));
        counts.filter_map(|(client, limiter)| Some((client.key.to_string(), limiter?)))
    }

    /// The name of the client whose present key that is, by its hash in hexadecimal digits.
    pub fn name_of(&self, key: &str) -> Option<&str> {
        let Self::WithKeys(clients) = self else { return None };
        let client = clients.get(&KeyHash::from_hex(key)?).filter(|client| client.until.is_none());
        client.map(|client| &*client.name)
    }

    /// Whether one of them has that name.
    pub fn have(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    /// The client of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Client>> {
        self.each().find(|client| *client.name == *name)
    }

    /// The same as one value for each, to be kept: what calls under way have used beyond what they reserved counts too, and
    /// nothing of those that have not left.
    pub fn states(&self) -> impl Iterator<Item = (String, LimiterState)> {
        let uses = self.first().map(|client| Arc::clone(&client.uses)).unwrap_or_default();
        self.limiters().map(move |(key, limiter)| {
            let state = uses.state_of(&key, limiter);
            (key, state)
        })
    }

    /// Returns once a client may have used more of its limits, or less, since that was told last: one caller is told.
    pub async fn limits_change(&self) {
        match self.first() {
            Some(client) => client.uses.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Has `note` told from now on what each call of a client takes of its limits, before that leaves, and what its answer used
    /// beyond that: by the hash of the client's key, in hexadecimal digits. Clients that are made from these ones go on with it.
    pub fn note_uses(&self, note: impl Fn(&str, &Cost) + Send + Sync + 'static) {
        if let Some(client) = self.first() {
            client.uses.tell(note);
        }
    }

    fn first(&self) -> Option<&Arc<Client>> {
        self.each().next()
    }

    /// The limit that the next request of the client of that name waits for, and for how long, where that is known.
    pub(crate) fn wait_of(&self, name: &str) -> Option<(String, Option<Duration>)> {
        self.named(name)?.waits_for()
    }

    /// Each client that has limits of its own, by name, and what is left of them now.
    pub fn with_limits(&self) -> impl Iterator<Item = (&str, Vec<QuotaSnapshot>)> {
        let limiters = self.each().filter_map(|client| Some((client, client.limiter.as_ref()?)));
        limiters.map(|(client, limiter)| (&*client.name, limiter.snapshot().account.quotas))
    }

    /// The client that shows one of the keys in its headers, or as Google's clients do in its query. The request loses every key
    /// of the gateway's, which are for no upstream.
    ///
    /// # Errors
    /// No key that is known, or one as the method or in the path.
    pub(crate) fn admit<Body>(
        clients: &BTreeMap<KeyHash, Arc<Client>>,
        request: &mut Request<Body>,
    ) -> Result<Arc<Client>, Refusal> {
        let of = |key: &str| clients.get(&KeyHash::of(key_in(key))).filter(|client| !client.is_over());
        let headers = request.headers_mut();
        let mut shown: Option<(Arc<Client>, String)> = None;
        for name in [KEY].into_iter().chain(OF_CLIENTS) {
            let known =
                |value: &HeaderValue| value.to_str().ok().and_then(|key| Some((Arc::clone(of(key)?), key.to_owned())));
            if let Some(known) = headers.get_all(&name).iter().find_map(known) {
                shown.get_or_insert(known);
                headers.remove(name);
            }
        }
        if let Some(all) = request.uri().path_and_query().filter(|all| all.query().is_some()) {
            let keys = query::parameters(all.as_str()).filter(|(name, _)| name.eq_ignore_ascii_case(query::KEY));
            let known = keys.filter_map(|(_, key)| Some((Arc::clone(of(&key)?), key))).next();
            shown = shown.or(known);
            query::remove(request.uri_mut(), |name, value| of(value).or_else(|| of(name)).is_some());
        }
        let known = |key: &str| clients.get(&KeyHash::of(key_in(key))).map(|client| Arc::clone(&client.name));
        let ended = if shown.is_none() { each_shown(request).find_map(|key| known(&key)) } else { None };
        let key = shown.as_ref().map(|(_, key)| key_in(key));
        remove_keys(clients, request, key);
        check_line(clients, key, request)?;
        shown.map(|(client, _)| client).ok_or_else(|| {
            let what = match ended {
                Some(_) => "the key that the request shows has ended, and another took its place",
                None if each_shown(request).next().is_some() => "the key that the request shows is none of this gateway, or was revoked",
                None => "the request shows no key",
            };
            let message = format!(
                "{what}: expected one that `paceline serve keys add` printed, in place of the API key of the client, or in the header \
                 x-paceline-key"
            );
            Refusal::new(StatusCode::UNAUTHORIZED, "client_key", message).of_client(ended)
        })
    }
}

/// What separates the client of that name from others.
pub(crate) fn number_of(name: &str) -> u64 {
    KeyHash::of(name).number()
}

/// The key of a client is revoked while its request waits.
pub(crate) fn revoked() -> Refusal {
    let message = "the key was revoked while the request waited; show one that is in force";
    Refusal::new(StatusCode::UNAUTHORIZED, "client_key", message.to_owned())
}

/// A client with a key: where it has a former one too, one of these for each, with all else in common.
#[derive(Clone)]
pub struct Client {
    name: Arc<str>,
    /// The hash of its present key, in hexadecimal digits, by which its use is known.
    key: Arc<str>,
    /// That of the key that it shows.
    shown: KeyHash,
    /// When that ends, where it is the former one.
    until: Option<Timestamp>,
    number: u64,
    /// How many clients there are beside it.
    others: usize,
    limiter: Option<Limiter>,
    /// What counted while it had limits, where it has none now: it may have some again.
    resting: Option<Limiter>,
    /// The limit under which its requests are spaced, and how many of them may leave at once.
    spaced: Option<(Quota, u64)>,
    /// One of its limits counts tokens, or what they cost.
    counts_tokens: bool,
    /// One of them is in money.
    counts_money: bool,
    models: Vec<String>,
    paths: Vec<String>,
    is_batch: bool,
    /// Of events that it follows.
    pub(crate) streams: Held,
    /// Of documents that are on their way to it.
    pub(crate) documents: Held,
    pub(crate) document_turn: Turn,
    /// Of the process, which its requests hold: a connection each, where that carries no other, and one for each call.
    pub(crate) files: Held,
    pub(crate) bodies: BodiesOfClient,
    pub(crate) contexts: Arc<Contexts>,
    /// Those of all clients.
    uses: Arc<Uses>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    /// Its name.
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What tells the key that it shows from others, and reveals nothing of it.
    pub fn key_id(&self) -> String {
        format!("{:016x}", self.shown.number())
    }

    /// Whether the key that it shows has ended.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= clock::wall())
    }

    /// Returns once the key that it shows has ended.
    pub(crate) async fn key_ends(&self) {
        let Some(until) = self.until else { return std::future::pending().await };
        // The clock of the wall may be set meanwhile.
        while !self.is_over() {
            sleep(until.saturating_since(clock::wall()).min(LOOKED_AT)).await;
        }
    }

    /// What separates it from others where clients take turns.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Whether it has limits of its own.
    pub(crate) const fn has_limits(&self) -> bool {
        self.limiter.is_some()
    }

    /// Whether one of its limits counts tokens, or what they cost.
    pub(crate) const fn counts_tokens(&self) -> bool {
        self.counts_tokens
    }

    /// Whether there are clients beside it and one other.
    pub(crate) const fn has_thirds(&self) -> bool {
        self.others > 1
    }

    /// Whether there are clients beside it.
    pub(crate) const fn has_others(&self) -> bool {
        self.others > 0
    }

    /// Whether all that it sends waits behind interactive requests.
    pub(crate) const fn is_batch(&self) -> bool {
        self.is_batch
    }
}

#[cfg(test)]
impl Clients {
    /// Clients without limits, by their names and keys.
    pub(crate) fn of_keys(keys: &[(&str, &str)]) -> BTreeMap<KeyHash, Arc<Client>> {
        let config = |(name, key): &(&str, &str)| ClientConfig {
            name: (*name).to_owned(),
            key: KeyHash::of(key),
            limits: None,
            models: Vec::new(),
            paths: Vec::new(),
            is_batch: false,
            former: None,
        };
        match Self::with_keys(keys.iter().map(config).collect(), &Self::OfThisMachine) {
            Ok(Self::WithKeys(clients)) => clients,
            _ => panic!("names and keys are unlike"),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn request(target: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let field = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse::<HeaderValue>().expect("a value"))
        };
        let mut request = Request::builder().uri(target).body(()).expect("a request");
        *request.headers_mut() = headers.iter().map(field).collect();
        request
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
        let clients = Clients::of_keys(&[("ci", "k")]);
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
            let mut request = request("/", &[(name, value)]);
            assert_eq!(Clients::admit(&clients, &mut request).is_ok(), known, "{name}: {value}");
            assert_eq!(request.headers().is_empty(), known, "the key goes no further");
        }
        let mut both = request("/", &[("x-paceline-key", "k"), ("authorization", "Bearer sk-of-the-upstream")]);
        assert!(Clients::admit(&clients, &mut both).is_ok());
        assert_eq!(both.headers()["authorization"], "Bearer sk-of-the-upstream", "this one is for the upstream");
        let mut twice = request("/", &[("x-paceline-key", "k"), ("x-api-key", "k"), ("x-other", "k")]);
        assert!(Clients::admit(&clients, &mut twice).is_ok() && twice.headers().is_empty(), "wherever it stands");
    }

    #[test]
    fn no_key_of_a_client_goes_on_in_a_query_or_another_field() {
        let key = "pl_0123456789abcdef";
        let clients = Clients::of_keys(&[("ci", key), ("other", "k")]);
        let header: &[(&'static str, &str)] = &[("authorization", &format!("Bearer {key}"))];
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let twice = encoded.replace('%', "%25");
        for (headers, target, left) in [
            (header, format!("/api/x?a=1&key={key}"), "/api/x?a=1"),
            (header, format!("/api/x?api_key={key}&x={key}"), "/api/x"),
            (header, format!("/api/x?x={encoded}&b=2"), "/api/x?b=2"),
            (header, format!("/api/x?x={twice}"), "/api/x"),
            (header, format!("/api/x?x=Bearer+{key}"), "/api/x"),
            (header, format!("/api/x?x=a,{key},b"), "/api/x"),
            (header, format!("/api/x?{key}"), "/api/x"),
            (header, "/api/x?x=k&y=kk".to_owned(), "/api/x?y=kk"),
            (&[], format!("/api/x?key={key}&a=1"), "/api/x?a=1"),
            (&[], format!("http://h/api/x?%6Bey={encoded}"), "http://h/api/x"),
            (&[("cookie", &format!("a=b; session={key}"))], format!("/api/x?key={key}"), "/api/x"),
        ] {
            let mut request = request(&target, headers);
            let client = Clients::admit(&clients, &mut request).expect("its key is known");
            assert_eq!((&*client.name, &*request.uri().to_string()), ("ci", left), "{target}");
            assert!(request.headers().is_empty(), "{target}");
        }
        let mut elsewhere = request(&format!("/api/x?api_key={key}"), &[]);
        assert!(Clients::admit(&clients, &mut elsewhere).is_err(), "no client shows its key so");
        assert_eq!(elsewhere.uri(), "/api/x");
    }
}
