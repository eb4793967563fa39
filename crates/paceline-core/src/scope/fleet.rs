//! The gate of a scope that it shares with other processes.

use super::Scope;
use crate::admit::PauseCause;
use crate::outcome::Hint;
use crate::time::Instant;

impl Scope {
    /// What another process was asked for: the closure begins now, where none has.
    pub(crate) fn obey_for_others(&mut self, now: Instant, hint: Hint, cause: PauseCause) {
        if self.gate.is_open() {
            self.gate.begins(now);
        }
        self.obey(now, hint, cause);
    }

    /// The call of another process was not refused. Returns whether that opened the gate: not where it is closed for longer.
    pub(crate) fn opened_elsewhere(&mut self, now: Instant) -> bool {
        let reopening = self.gate.opened_elsewhere(now);
        if let Some(reopening) = &reopening {
            self.learnt.reopened(now, reopening);
            self.quotas.forget_burst(now);
        }
        reopening.is_some()
    }

    /// Whether the gate waits for a call that goes first, and it may leave now.
    pub(crate) fn awaits_canary(&self, now: Instant) -> bool {
        self.gate.awaits_canary(now)
    }
}
