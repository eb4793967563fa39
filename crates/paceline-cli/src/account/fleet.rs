//! The place of an account's limiter in a fleet: joined before the first call, left after the last.

use paceline::Limiter;
use paceline_config::FleetSettings;
use paceline_fleet::Fleet;
use paceline_http::fleet_config;

use super::Account;
use crate::exit::Failure;

#[derive(Debug)]
pub(crate) struct FleetPlace {
    settings: FleetSettings,
    account: String,
    joined: Option<Fleet>,
}

impl FleetPlace {
    /// Nothing leaves before the ledger has given a share. A store that is away is waited for; by a process that `stays` also one
    /// that refuses, or whose processes share other limits.
    ///
    /// # Errors
    /// The store refuses, or its processes share other limits.
    pub(super) async fn join(
        settings: &FleetSettings,
        account: &Account,
        limiter: &Limiter,
        stays: bool,
    ) -> Result<Self, Failure> {
        let (settings, account) = (settings.clone(), account.name().to_owned());
        let mut place = Self { settings, account, joined: None };
        place.enter(limiter, stays).await.map_err(Failure::refused)?;
        Ok(place)
    }

    /// Joins anew after [`leave`](Self::leave), and keeps the place for as long as the future is polled.
    pub(super) async fn keep(&mut self, limiter: &Limiter) {
        if self.joined.is_none()
            && let Err(error) = self.enter(limiter, true).await
        {
            tracing::error!("nothing leaves: {error}");
        }
        std::future::pending().await
    }

    async fn enter(&mut self, limiter: &Limiter, stays: bool) -> Result<(), paceline_fleet::FleetError> {
        let mut config = fleet_config(&self.settings, &self.account);
        config.asks_again = stays;
        self.joined = Some(Fleet::join(limiter, config).await?);
        Ok(())
    }

    /// The others get at once what this process has not used.
    pub(super) async fn leave(&mut self) {
        if let Some(fleet) = self.joined.take() {
            fleet.leave().await;
        }
    }
}
