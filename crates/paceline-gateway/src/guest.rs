//! A job of this process that sends through the limiter of an upstream, beside the gateway's clients.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use paceline::{Class, Instant};
use paceline_core::LimitReport;
use paceline_http::Call;
use paceline_providers::Reading;

use crate::backend::{Backend, QueuePlace};
use crate::clients::{Client, Clients, number_of};
use crate::headers;
use crate::models::decoded_path;
use crate::notes::{self, Kind};
use crate::record::BATCH;
use crate::trust::Asker;

/// One job among the clients of an upstream: what it asks of the limiter waits behind all that is interactive, and takes turns
/// with other batches.
pub struct Guest {
    backend: Arc<Backend>,
    client: u64,
    owner: Option<Owner>,
    first: u64,
    /// The key that its calls show, which stays the same while it lasts.
    key: HeaderMap,
    may_leave: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The client with a key that asked for a job, and all who have one now.
struct Owner {
    name: String,
    clients: Box<dyn Fn() -> Arc<Clients> + Send + Sync>,
}

/// A call of a job, until its answer is known.
pub struct GuestCall<'a> {
    guest: &'a Guest,
    client: Option<Arc<Client>>,
    scope: &'a Arc<str>,
    path: String,
    left: Instant,
}

/// What the account refuses to its client alone, a job tries again after so long.
const TESTED: Duration = Duration::from_secs(300);

/// The name of a job in the log whose client has no key.
const UNNAMED: &str = "a batch";

impl Guest {
    /// The priority of its requests.
    pub const PRIORITY: i32 = BATCH;

    /// A job of so many items, which get numbers of their own among all requests of the upstream.
    pub fn new(backend: &Arc<Backend>, items: u64) -> Self {
        let first = backend.next_items(items);
        let mut hasher = DefaultHasher::new();
        ("a job", first).hash(&mut hasher);
        let (backend, client, key) = (Arc::clone(backend), hasher.finish(), backend.own_key());
        Self { backend, client, owner: None, first, key, may_leave: Box::new(|| true) }
    }

    /// Of the client of that name, which has a key: what is told to it says nothing of the other `clients`.
    pub fn of_client(mut self, name: &str, clients: impl Fn() -> Arc<Clients> + Send + Sync + 'static) -> Self {
        self.owner = Some(Owner { name: name.to_owned(), clients: Box::new(clients) });
        self
    }

    /// Whose it is, for the limiter.
    pub fn caller(&self) -> Option<u64> {
        self.owner.as_ref().map(|owner| number_of(&owner.name))
    }

    /// Of a client that may have to stop: asked before each of its calls leaves.
    pub fn while_it(mut self, may_leave: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.may_leave = Box::new(may_leave);
        self
    }

    /// Whether a call of it may leave now.
    pub fn may_leave(&self) -> bool {
        (self.may_leave)()
    }

    /// Whether the log is to tell of one more item that has failed.
    pub fn may_tell_failure(&self) -> bool {
        self.backend.may_tell(Kind::FailedItem)
    }

    /// Until when nothing of it is to be sent to a scope, for what its client alone was told: by the limiter's clock.
    pub fn not_before(&self, scope: &Arc<str>) -> Option<Instant> {
        let trust = &self.backend.trust;
        let until = trust.not_before(self.caller(), scope).max(trust.not_before(Some(self.client), scope))?;
        (until > self.backend.limiter().now()).then_some(until)
    }

    /// Leaves out the header fields of a client that do not go on, as for a request that it sends itself, and sets apart what it
    /// calls the request by.
    pub fn leave_out(&self, headers: &mut HeaderMap) {
        let has_key = self.backend.sending.headers.values().any(HeaderValue::is_sensitive);
        headers::leave_out(headers, has_key, self.owner.is_some());
        if let Some(owner) = &self.owner {
            (owner.clients)().remove_keys(headers);
            if has_key {
                headers::set_apart(headers, self.backend.sending.idempotency_header.as_ref(), &owner.name);
            }
        }
    }

    /// A call that leaves now.
    pub fn departs<'a>(&'a self, call: &Call, scope: &'a Arc<str>) -> GuestCall<'a> {
        let client = self.owner.as_ref().and_then(|owner| (owner.clients)().named(&owner.name).cloned());
        let path = decoded_path(call).into_owned();
        GuestCall { guest: self, client, scope, path, left: self.backend.stopwatch.now() }
    }

    /// The number of its item among all requests of the upstream.
    pub const fn item(&self, ordinal: u64) -> u64 {
        self.first + ordinal
    }

    /// A place in the queue for one of its items.
    pub fn place(&self) -> QueuePlace {
        self.backend.place(self.client)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.backend.trust.leaves(self.client);
    }
}

impl GuestCall<'_> {
    fn asker(&self) -> Asker<'_> {
        let name = self.guest.owner.as_ref().map_or(UNNAMED, |owner| &*owner.name);
        Asker {
            client: self.client.as_deref(),
            name,
            scope: self.scope,
            path: &self.path,
            left: self.left,
            status: None,
        }
    }

    /// Leaves out of what the head of its answer announces what is no limit of all.
    pub fn leave_out_announced(&self, limits: &mut Vec<LimitReport>) {
        self.guest.backend.trust.leave_out_announced(&self.guest.backend, limits, self.asker(), true);
    }

    /// What its answer of that status means for all: what one client is refused or told stops none of the others. Returns whether
    /// that is so: the job alone waits then, and loses nothing. What all see of it has no words of the provider's. Where its
    /// client has no key, the answer means what it says, unless it is of a key that was exchanged meanwhile: the job begins anew
    /// with the one in force.
    pub fn weigh(&self, status: Option<u16>, reading: &mut Reading) -> bool {
        let Guest { backend, key, .. } = self.guest;
        if backend.leave_out_former_key(reading, key) {
            let status = status.map(|status| format!(" ({status})")).unwrap_or_default();
            reading.message =
                Some(format!("the key of the upstream was exchanged while the call was in flight{status}"));
            self.stays_away();
            return true;
        }
        let class = reading.class;
        if self.client.is_none() {
            return false;
        }
        backend.trust.weigh(backend, reading, self.asker());
        let is_alone = reading.class != class;
        if !is_alone || reading.class == Class::Account {
            self.note(status, reading);
        }
        let is_of_all =
            matches!(reading.class, Class::Account | Class::Throttled | Class::Overloaded | Class::Transient);
        if let Some(status) = status.filter(|_| is_alone || is_of_all) {
            reading.message = Some(match is_alone {
                true => format!(
                    "the provider refused calls of this client alone ({status}); why is in the log of the gateway"
                ),
                false => notes::words_for_all(reading, Some(status)).into_owned(),
            });
        }
        if is_alone {
            self.stays_away();
        }
        is_alone
    }

    /// The job sends nothing more to the scope for a while, unless its client was told for how long.
    fn stays_away(&self) {
        let Guest { backend, client, .. } = self.guest;
        if self.guest.not_before(self.scope).is_none() {
            backend.trust.stays_away(*client, Some(self.scope), backend.limiter().now(), TESTED);
        }
    }

    /// Its outcome is reported.
    pub fn ends(&self, reading: &Reading) {
        // What is the answer to a client with a key was noted with the words of the provider.
        if self.client.is_none() {
            self.note(None, reading);
        }
    }

    fn note(&self, status: Option<u16>, reading: &Reading) {
        let asker = self.asker();
        let words = notes::words_for_all(reading, status);
        self.guest.backend.note_outage(self.scope, (asker.name, asker.client), reading, &words);
    }
}
