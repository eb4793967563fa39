//! How urgently a person wants to know of a scope, and the word for how it fares: one for metrics, pages and terminals.

use core::time::Duration;

use crate::snapshot::{Fault, ScopeSnapshot, ScopeState, Snapshot};
use crate::time::Instant;

/// A shorter pause is no trouble.
const FELT: Duration = Duration::from_secs(1);

/// A server that answers no call for so long is no passing trouble: a person wants to know.
const LASTING: Duration = Duration::from_secs(300);

/// How urgently a person wants to know of a scope, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// Nothing waits.
    None,
    /// Requests wait for a limit.
    Waits,
    /// Nothing leaves for a while, or its server fails.
    Closed,
    /// A person must act.
    Stopped,
    /// Its server has answered no call for five minutes.
    Down,
}

impl Snapshot {
    /// The words that [`word`](Self::word) chooses from.
    pub const WORDS: [&'static str; 6] = ["open", "paced", "held", "closed", "stopped", "down"];

    /// Whose trouble keeps the calls of that scope back most: the account's, where that is worse than the scope's own.
    pub fn holder<'a>(&'a self, scope: &'a ScopeSnapshot, now: Instant) -> &'a ScopeSnapshot {
        let of_account = self.account.trouble(now);
        if of_account >= Trouble::Closed && of_account > scope.trouble(now) { &self.account } else { scope }
    }

    /// The word for how that scope fares: its state, or what keeps its calls back beside its limits, be it of the account.
    pub fn word(&self, scope: &ScopeSnapshot, now: Instant) -> &'static str {
        let holder = self.holder(scope, now);
        match holder.trouble(now) {
            Trouble::Down => "down",
            Trouble::Stopped => "stopped",
            Trouble::Closed if !matches!(holder.state, ScopeState::Held { .. }) => "closed",
            Trouble::Closed | Trouble::Waits | Trouble::None => holder.state.as_str(),
        }
    }
}

impl ScopeSnapshot {
    /// How urgently a person wants to know of it. `now`: the time of the snapshot.
    pub fn trouble(&self, now: Instant) -> Trouble {
        let is_closed = || self.closed_until.is_some_and(|until| until.saturating_since(now) > FELT);
        let lasts = |fault: &Fault| now.saturating_since(fault.since) >= LASTING;
        match self.state {
            ScopeState::Stopped { .. } => Trouble::Stopped,
            _ if self.fault.as_ref().is_some_and(lasts) => Trouble::Down,
            ScopeState::Held { .. } => Trouble::Closed,
            _ if is_closed() || self.lacks_its_share() => Trouble::Closed,
            _ if self.failing_since.is_some() || self.silent.is_some() || self.fault.is_some() => Trouble::Closed,
            _ if self.waiting > 0 => Trouble::Waits,
            _ => Trouble::None,
        }
    }
}
