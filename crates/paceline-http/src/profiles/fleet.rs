//! The fleet that a profile names: its limiter joins before its first call.

use paceline_config::FleetSettings;
use paceline_fleet::{Fleet, FleetConfig};

use super::{ProfileClient, ProfileError, Profiles};

/// How a process joins the fleet of its configuration, as one of those that call an [account](paceline_config::account_name).
pub fn fleet_config(settings: &FleetSettings, account: &str) -> FleetConfig {
    let FleetSettings { url, on_loss, lease, weight, alone_share, .. } = settings;
    let mut config = FleetConfig::new(url.as_str(), account);
    (config.on_loss, config.lease, config.weight) = (*on_loss, *lease, *weight);
    config.alone_share.clone_from(alone_share);
    config
}

impl Profiles {
    /// The same as [`client`](Self::client), also for a profile with `fleet`: its limiter joins that, as `paceline run` does, and
    /// both are members of one fleet. Nothing leaves before the store has given a share; one that is away is waited for. To be
    /// called in a runtime of Tokio, on which a task keeps the share up to date. Afterwards `client` and `limiter` know the
    /// profile too.
    ///
    /// # Errors
    /// As `client`; [`ProfileError::Fleet`] where the store refuses, or its processes share other limits.
    pub async fn join(&self, name: &str) -> Result<ProfileClient, ProfileError> {
        // One after the other: two of one account would each have a place.
        let mut fleets = self.fleets.lock().await;
        let (known, is_joined) = {
            let clients = self.clients();
            if let Some(known) = clients.get(name) {
                return Ok(known.client.clone());
            }
            self.open(name, clients.values())?
        };
        if let Some(settings) = known.client.upstream().fleet.as_ref().filter(|_| !is_joined) {
            fleets.push(Fleet::join(known.client.limiter(), fleet_config(settings, &known.account)).await?);
        }
        Ok(self.clients().entry(name.to_owned()).or_insert(known).client.clone())
    }

    /// Nothing leaves any more under the profiles with a `fleet`, and its other processes get at once what this one has not used.
    /// It takes at most two seconds for each. Without it that comes back after a lease and a window. [`join`](Self::join) begins
    /// anew.
    pub async fn leave(&self) {
        let mut fleets = self.fleets.lock().await;
        self.clients().retain(|_, known| known.client.upstream().fleet.is_none());
        for fleet in fleets.drain(..) {
            fleet.leave().await;
        }
    }
}
