//! Which keys are in force, for requests that wait while one of them is revoked.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use tokio::sync::watch;

use super::{Client, Clients};
use crate::refusal::Refusal;

/// The clients whose keys are in force, by number; none before the first are. Those of all clients.
#[derive(Debug, Default)]
pub(super) struct InForce(watch::Sender<Option<BTreeSet<u64>>>);

impl Clients {
    /// These may call from now on: requests of others that wait are refused.
    pub(crate) fn come_into_force(&self) {
        if let (Self::WithKeys(clients), Some(first)) = (self, self.first()) {
            first.in_force.0.send_replace(Some(clients.values().map(|client| client.number).collect()));
        }
    }
}

impl Client {
    /// A wait of one of its requests, which ends when its key is revoked.
    pub(crate) async fn while_in_force<T, E: From<Refusal>>(
        client: Option<&Arc<Self>>,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(client) = client else { return wait.await };
        let is_gone =
            |numbers: &Option<BTreeSet<u64>>| numbers.as_ref().is_some_and(|numbers| !numbers.contains(&client.number));
        let mut in_force = client.in_force.0.subscribe();
        tokio::select! {
            biased;
            _ = in_force.wait_for(is_gone) => Err(revoked().into()),
            ended = wait => ended,
        }
    }
}

fn revoked() -> Refusal {
    let message = "the key was revoked while the request waited; show one that is in force";
    Refusal::new(StatusCode::UNAUTHORIZED, "client_key", message.to_owned())
}
