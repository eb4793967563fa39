//! Batches as OpenAI's clients know them, for any upstream: a client uploads requests as a file, and fetches the answers as one.
//!
//! The work is that of `paceline run`, in this process and under the limiter of the upstream, which live requests use too.

mod api;
mod conclude;
mod disk;
mod error;
mod files;
mod hold;
mod job;
mod object;
mod open;
mod pages;
mod service;
mod upload;
mod waits;

use std::path::Path;
use std::sync::Arc;

use paceline_gateway::Clients;

use self::api::Routes;
use self::object::Batch;
pub(crate) use self::service::Served;
use self::service::Service;

/// In the state folder.
const FOLDER: &str = "batches";

/// A batch that has not ended, for those who change the keys of clients.
pub(super) struct Unfinished(Batch);

impl Unfinished {
    /// Those of the client of that name, as the state folder has them.
    pub(super) fn of(state: &Path, client: &str) -> Vec<Self> {
        let folders = std::fs::read_dir(state.join(FOLDER).join(service::JOBS)).into_iter().flatten();
        let batches = folders.filter_map(|folder| disk::read::<Batch>(&folder.ok()?.path()).ok());
        let of_it = |batch: &Batch| !batch.status.is_final() && batch.paceline.client.as_deref() == Some(client);
        batches.filter(of_it).map(Self).collect()
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.0.id
    }

    /// Why its client may not make it any more, if so.
    pub(super) fn why_not(&self, clients: &Clients) -> Option<String> {
        self.0.paceline.why_not(clients)
    }

    /// Whether the key with that hash asked for it.
    pub(super) fn is_of(&self, hash: &str) -> bool {
        self.0.paceline.client_key.as_deref().is_some_and(|id| hash.starts_with(id))
    }
}

/// The batches of a gateway.
pub(crate) struct Batches(Result<Arc<Service>, String>);

impl Batches {
    /// Those of the folder `batches` in the state folder. A gateway whose folder cannot be used says so to each client.
    pub(crate) fn open(state: Option<&Path>, upstreams: Vec<Served>) -> Self {
        let Some(state) = state else {
            return Self(
                Err("the gateway has no state folder to keep batches in; give it one with --state".to_owned()),
            );
        };
        let folder = state.join(FOLDER);
        let shown = folder.display();
        Self(match Service::open(&folder, upstreams) {
            Ok(Some(service)) => Ok(service),
            Ok(None) => {
                let message = format!(
                    "another gateway has the batches of {shown}: use that one, or give this one a folder of its own with --state"
                );
                tracing::warn!("batches cannot be taken here: {message}");
                Err(message)
            }
            Err(error) => {
                tracing::warn!("batches cannot be taken: {shown}: {error}");
                Err(format!("the gateway cannot use its folder {shown}: {error}"))
            }
        })
    }

    /// What answers their clients.
    pub(crate) fn routes(&self) -> Routes {
        Routes::new(self.0.clone())
    }

    /// Goes on with batches that an earlier gateway did not end, for these clients.
    pub(crate) fn resume(&self, clients: Arc<Clients>) {
        self.keep_to(clients);
        if let Ok(service) = &self.0 {
            service.resume();
        }
    }

    /// Cancels the batches that these clients may not make any more.
    pub(super) fn keep_to(&self, clients: Arc<Clients>) {
        if let Ok(service) = &self.0 {
            service.keep_to(clients);
        }
    }

    /// Goes on with other upstreams, or with what they are now.
    pub(crate) async fn renew(&self, upstreams: Vec<Served>) {
        if let Ok(service) = &self.0 {
            service.renew(upstreams).await;
        }
    }

    /// Stops the batches: calls in flight are answered, and nothing else is sent. The next gateway goes on. Returns how many
    /// calls were cut off, because their answers took too long.
    pub(crate) async fn end(&self) -> u64 {
        match &self.0 {
            Ok(service) => service.end().await,
            Err(_) => 0,
        }
    }
}
