//! A job of this process that sends through the limiter of an upstream, beside the gateway's clients.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crate::backend::{Backend, QueuePlace};
use crate::clients::number_of;
use crate::record::BATCH;

/// One job among the clients of an upstream: what it asks of the limiter waits behind all that is interactive, and takes turns
/// with other batches.
pub struct Guest {
    backend: Arc<Backend>,
    client: u64,
    caller: Option<u64>,
    first: u64,
    may_leave: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Guest {
    /// The priority of its requests.
    pub const PRIORITY: i32 = BATCH;

    /// A job of so many items, which get numbers of their own among all requests of the upstream.
    pub fn new(backend: &Arc<Backend>, items: u64) -> Self {
        let first = backend.next_items(items);
        let mut hasher = DefaultHasher::new();
        ("a job", first).hash(&mut hasher);
        let (backend, client) = (Arc::clone(backend), hasher.finish());
        Self { backend, client, caller: None, first, may_leave: Box::new(|| true) }
    }

    /// Of the client of that name, which has a key: what of it fails says nothing of other clients.
    pub fn of_client(self, name: &str) -> Self {
        Self { caller: Some(number_of(name)), ..self }
    }

    /// Whose it is, for the limiter.
    pub const fn caller(&self) -> Option<u64> {
        self.caller
    }

    /// Of a client that may have to stop: asked before each of its calls leaves.
    pub fn while_it(self, may_leave: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { may_leave: Box::new(may_leave), ..self }
    }

    /// Whether a call of it may leave now.
    pub fn may_leave(&self) -> bool {
        (self.may_leave)()
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
