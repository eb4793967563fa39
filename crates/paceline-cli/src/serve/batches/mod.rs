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
pub(crate) use self::service::Served;
use self::service::Service;

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
        let folder = state.join("batches");
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
    pub(crate) fn resume(&self, clients: &Clients) {
        self.keep_to(clients);
        if let Ok(service) = &self.0 {
            service.resume();
        }
    }

    /// Cancels the batches of clients whose keys are revoked: calls in flight are answered, and nothing else of them is sent.
    pub(super) fn keep_to(&self, clients: &Clients) {
        let (Ok(service), Clients::WithKeys(_)) = (&self.0, clients) else { return };
        for batch in service.all().into_iter().filter(|batch| !batch.status.is_final()) {
            let revoked = batch.paceline.client.as_deref().filter(|name| !clients.have(name));
            if let Some((client, Ok(_))) = revoked.map(|client| (client, service.cancel(&batch.id))) {
                tracing::warn!(client, batch = batch.id, "a batch is cancelled, for the key of its client is revoked");
            }
        }
    }

    /// Goes on with other upstreams, or with what they are now.
    pub(crate) async fn renew(&self, upstreams: Vec<Served>) {
        if let Ok(service) = &self.0 {
            service.renew(upstreams).await;
        }
    }

    /// Stops the batches: calls in flight are answered, and nothing else is sent. The next gateway goes on.
    pub(crate) async fn end(&self) {
        if let Ok(service) = &self.0 {
            service.end().await;
        }
    }
}
