//! A permit for every start, and what an item waits for that gets none.

use paceline::config::Upstream;
use paceline::{Error, Limiter, NotNow, Permit};
use paceline_core::{Class, Cost, Limits, Policy, Request, ScopeId};
use paceline_store::work::{Failure, Start, Task, Wait};

use crate::exit;

/// The limiter of a run, and the limits of the whole account.
#[derive(Clone, Debug)]
pub(super) struct Permits {
    limiter: Limiter,
    account: Limits,
    tiers: Vec<Limits>,
}

impl Permits {
    /// # Errors
    /// Names a knob that cannot be.
    pub(super) fn new(upstream: &Upstream) -> Result<Self, exit::Failure> {
        let config = upstream.pacer.clone();
        let (account, tiers) = (config.limits.clone(), config.tiers.iter().map(|(_, limits)| limits.clone()).collect());
        Ok(Self { limiter: Limiter::new(config).map_err(exit::Failure::refused)?, account, tiers })
    }

    pub(super) fn scope(&self, name: &str) -> ScopeId {
        self.limiter.scope(name)
    }

    /// A person may have acted since the run before.
    pub(super) fn begin_run(&self) {
        self.limiter.resume(None);
    }

    /// A permit for an item, or what it waits for.
    pub(super) fn take<F>(&self, task: &Task, scope: ScopeId, cost: Cost) -> Result<Permit, Start<F>> {
        let item = task.item();
        // The bounds on its tries are those of the store, so the pacer is told of none.
        let request = Request { item: item.id, priority: item.priority.into(), ..Request::new(scope, cost) };
        self.limiter.try_acquire(request).map_err(|not_now| match not_now {
            NotNow::Wait { after, policy } => {
                let for_all = self.is_for_all(&policy);
                Start::Later(Wait { after, why: policy.to_string().into(), for_all })
            }
            NotNow::Never(Error::TooLarge(too_large)) => {
                let code = Some("too_large".to_owned());
                Start::Never(Failure { code, ..Failure::new(Class::Invalid, too_large.to_string()) })
            }
            NotNow::Never(Error::Stopped { reason, .. }) => Start::Stopped(reason.to_string()),
            // There is no deadline, and nobody closes the limiter.
            other => Start::Stopped(other.to_string()),
        })
    }

    /// Whether a wait is one for a limit of the whole account, which everybody waits for.
    fn is_for_all(&self, policy: &Policy) -> bool {
        let Policy::Quota { dimension, limit, window } = policy else { return false };
        let is_of = |limits: &Limits| {
            limits
                .quotas
                .iter()
                .any(|quota| (&quota.dimension, &quota.limit, &quota.window) == (dimension, limit, window))
        };
        is_of(&self.account) && !self.tiers.iter().any(is_of)
    }
}
