//! What has to stop for what was refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::tasks::run::same_failure::SameFailure;
use crate::tasks::run::stopped_scopes::{Refusals, StoppedScopes, Why};

/// What has to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tasks::run) enum Stops {
    Run(SameFailure),
    /// A scope, or an address of one, with what was refused there, and the keys of the items that have ended there.
    Scope(Arc<str>, SameFailure, Refusals, BTreeSet<String>),
    /// An item of one that has stopped, which was in flight and has ended.
    ScopeAlready(Arc<str>, String),
}

impl Stops {
    /// Stops the scope that is meant, if one is; returns why the run has to end otherwise.
    pub(in crate::tasks::run) fn stop(self, stopped: &StoppedScopes) -> Option<SameFailure> {
        match self {
            Self::Run(same) => return Some(same),
            Self::Scope(scope, same, refusals, keys) => {
                stopped.stop_for(&scope, Why::SameFailure, &same.cause(), Some(&same.advice()), refusals);
                keys.iter().for_each(|key| stopped.leaves(key, &scope));
            }
            Self::ScopeAlready(scope, key) => stopped.leaves(&key, &scope),
        }
        None
    }
}
