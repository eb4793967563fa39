//! The fleet of a limiter: how it is joined, what is known of it, and how it is left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline::{ConfigError, Limiter};
use paceline_core::fleet::{LEASE, OnLoss};
use tokio::sync::{mpsc, oneshot};

use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::store::Store;
use crate::task::{self, Task};

/// How a limiter joins a fleet.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "the address may have a password")]
#[non_exhaustive]
pub struct FleetConfig {
    /// Where the ledger is: `redis://`, `rediss://` or `postgres://` with a host.
    pub url: String,
    /// Whose limits are divided: the same words in every process that uses the key. They name the keys of the store, so they must
    /// not hold a secret: 1 to 200 bytes, without `{`, `}` and control characters.
    pub account: String,
    /// The part of this process where all want more than there is: 1 to 16. Default 1.
    pub weight: u64,
    /// What it does once the store has been away for a lease. Default [`OnLoss::Strict`]: nothing leaves.
    pub on_loss: OnLoss,
    /// How long this process may go on without a word of the store, the same in all of them: 3 s to 5 minutes. Default 30 s. What
    /// a process held that was killed comes back after a lease and a window.
    pub lease: Duration,
}

impl FleetConfig {
    /// The fleet of that account on that store, with defaults.
    pub fn new(url: impl Into<String>, account: impl Into<String>) -> Self {
        let (weight, on_loss, lease) = (1, OnLoss::default(), LEASE);
        Self { url: url.into(), account: account.into(), weight, on_loss, lease }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: String, expected| Err(ConfigError { key: key.into(), value, expected });
        if !(1..=16).contains(&self.weight) {
            return wrong("weight", self.weight.to_string(), "a whole number from 1 to 16");
        }
        if !(Duration::from_secs(3)..=Duration::from_mins(5)).contains(&self.lease) {
            return wrong("lease", format!("{:?}", self.lease), "a duration from 3 s to 5 minutes");
        }
        let is_bad = |byte: u8| byte.is_ascii_control() || byte == b'{' || byte == b'}';
        if self.account.is_empty() || self.account.len() > 200 || self.account.bytes().any(is_bad) {
            return wrong("account", self.account.clone(), "1 to 200 bytes without braces and control characters");
        }
        Ok(())
    }
}

/// The place of a limiter in a fleet; what is known of that is in the snapshot of the limiter
/// ([`ScopeSnapshot::fleet`](paceline::ScopeSnapshot::fleet)). When it is dropped without [`leave`](Self::leave), the limiter
/// keeps its place, and gives it up with the process: then the others get its share after a lease and a window.
#[derive(Debug)]
pub struct Fleet {
    problem: Arc<Mutex<Option<String>>>,
    leave: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Fleet {
    /// From now on the limiter shares its configured limits with all processes that join a fleet of that account on that store.
    /// Nothing leaves before the ledger has given it a share. A store that is away is waited for; to be called in a runtime of
    /// Tokio, on which a task keeps the share up to date. Before new limits ([`Limiter::reconfigure`]) it has to leave, and after
    /// them to join anew: under limits that its fleet does not divide nothing leaves.
    ///
    /// # Errors
    /// [`FleetError::Config`] where the limiter has no limit that can be divided, or a setting is out of bounds;
    /// [`FleetError::Address`]; [`FleetError::Refused`] and [`FleetError::OtherLimits`] by the store.
    pub async fn join(limiter: &Limiter, config: FleetConfig) -> Result<Self, FleetError> {
        config.check()?;
        limiter.divide()?;
        let name = LedgerName::new(&config.account, &limiter.divided_limits(), config.lease);
        let store = Store::open(&config.url, name)?;
        let (joined, refused) = oneshot::channel();
        let (leave, left) = mpsc::unbounded_channel();
        let (task, asked) = Task::new(limiter.clone(), &config, store, joined);
        let problem = task.problem();
        tokio::spawn(task.run(asked, left));
        match refused.await {
            Ok(Err(error)) => Err(error),
            // A task that has ended was refused before; one that goes on has joined or waits.
            Ok(Ok(())) | Err(_) => Ok(Self { problem, leave }),
        }
    }

    /// Why the store cannot be asked, until it answers.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nothing leaves any more, and the others get at once what this process has not used. It takes at most two seconds; where
    /// the store is away, its share comes back with its lease.
    pub async fn leave(self) {
        let (done, left) = oneshot::channel();
        if self.leave.send(done).is_ok() {
            // An error is a task that has ended.
            let _ = tokio::time::timeout(task::LEAVES_WITHIN, left).await;
        }
    }
}
