//! What is to be simulated, and why it cannot be.

use std::time::Duration;

use paceline_core::{ConfigError, PacerConfig};
use paceline_model::{Hints, ProviderError};

use crate::policy;

/// The processes are a fleet: they share what they learn by a ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSetup {
    /// The longest time that a message to the ledger or from it takes. Default 4 ms.
    pub delay: Duration,
    /// The share of messages that are lost. Default 0.
    pub loss: f64,
    /// What happens, and when.
    pub troubles: Vec<(Duration, FleetTrouble)>,
}

/// What may happen to a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetTrouble {
    /// That process begins only now.
    Late(u32),
    /// That process is killed.
    Kill(u32),
    /// The process is killed that decides for all.
    KillReader,
    /// That process and the ledger do not reach each other for so long.
    Cut(u32, Duration),
    /// No process reaches the ledger for so long.
    CutAll(Duration),
    /// The ledger loses all that it had.
    Lost,
}

impl Default for FleetSetup {
    fn default() -> Self {
        Self { delay: Duration::from_millis(4), loss: 0.0, troubles: Vec::new() }
    }
}

/// What is to be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The policy's name.
    pub policy: String,
    /// The configuration of a pacer that acts in place of a policy known by name; then `policy` only names it. Each client has
    /// one, with all of its limits. Default: none.
    pub pacer: Option<PacerConfig>,
    /// The name of the scope that the calls of such a pacer belong to: a tier's, to be under its limits. Default `sim`.
    pub scope: String,
    /// How many processes divide the items among themselves. Default 1.
    pub clients: u32,
    /// Whether all of them ask one policy. Default: each has its own.
    pub share: bool,
    /// Whether they are a fleet, each with its own pacer of the pace `auto`. Default: they know nothing of each other.
    pub fleet: Option<FleetSetup>,
    /// What the provider says, by the name of the mode. Default `none`.
    pub hints: String,
    /// Of everything that is random. Default 1.
    pub seed: u64,
}

impl Setup {
    /// One client without hints.
    pub fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            pacer: None,
            scope: "sim".to_owned(),
            clients: 1,
            share: false,
            fleet: None,
            hints: "none".to_owned(),
            seed: 1,
        }
    }

    /// Whether its names are known.
    ///
    /// # Errors
    /// The first that is not, and those that are.
    pub fn check(&self) -> Result<(), SimError> {
        let known = || policy::OURS.iter().chain(&policy::PEERS).any(|name| *name == self.policy);
        if self.pacer.is_none() && !known() {
            return Err(SimError::Policy(self.policy.clone()));
        }
        self.hints().map(|_| ())
    }

    pub(crate) fn hints(&self) -> Result<Hints, SimError> {
        let hints = Hints::NAMED.iter().find(|(name, _)| *name == self.hints);
        hints.map(|(_, hints)| *hints).ok_or_else(|| SimError::Hints(self.hints.clone()))
    }
}

/// Why nothing can be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// No such policy.
    #[error("there is no policy named {0:?}, expected one of {names}", names = names(policy::OURS.iter().chain(&policy::PEERS)))]
    Policy(String),
    /// A pacer that cannot be.
    #[error("{0}")]
    Pacer(ConfigError),
    /// No such mode of hints.
    #[error("there are no hints named {0:?}, expected one of {names}", names = names(Hints::NAMED.iter().map(|(name, _)| name)))]
    Hints(String),
    /// No client at all, or more than the items.
    #[error("{clients} clients for {items} items, expected 1 to as many as there are items")]
    Clients {
        /// As asked for.
        clients: u32,
        /// As the scenario has.
        items: u32,
    },
    /// The scenario's provider makes no sense.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

fn names<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names.into_iter().copied().collect::<Vec<_>>().join(", ")
}
