//! The place of a limiter in a fleet: how it is joined, what is known of it, and how it is left.

use std::sync::{Arc, Mutex, PoisonError};

use paceline::{AloneShare, FleetSnapshot, Limiter};
use tokio::sync::{mpsc, oneshot};

use crate::config::FleetConfig;
use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::store::Store;
use crate::task::{self, Task};

/// The place of a limiter in a fleet; what is known of that is in the snapshot of the limiter
/// ([`ScopeSnapshot::fleet`](paceline::ScopeSnapshot::fleet)). When it is dropped without [`leave`](Self::leave), the limiter
/// keeps its place, and gives it up with the process: then the others get its share after a lease and a window.
#[derive(Debug)]
pub struct Fleet {
    limiter: Limiter,
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
        let limits = limiter.divided_limits();
        let alone = AloneShare::of_each(&limits, &config.alone_share)?;
        let name = LedgerName::new(&config.account, &limits, config.lease);
        let store = Store::open(&config.url, name)?;
        let (joined, refused) = oneshot::channel();
        let (leave, left) = mpsc::unbounded_channel();
        let (task, asked) = Task::new(limiter.clone(), (&config, alone), store, joined);
        let problem = task.problem();
        tokio::spawn(task.run(asked, left));
        match refused.await {
            Ok(Err(error)) => Err(error),
            // A task that has ended was refused before; one that goes on has joined or waits.
            Ok(Ok(())) | Err(_) => Ok(Self { limiter: limiter.clone(), problem, leave }),
        }
    }

    /// What this process knows of its fleet: who it is there, how many there are, until when its lease lasts, and of each limit
    /// its share and what is in quarantine. None after [`Limiter::undivide`].
    pub fn view(&self) -> Option<FleetSnapshot> {
        self.limiter.fleet()
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
