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

    /// Goes on with batches that an earlier gateway did not end.
    pub(crate) fn resume(&self) {
        if let Ok(service) = &self.0 {
            service.resume();
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
