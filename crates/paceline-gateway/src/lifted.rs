//! What holds or stops an upstream, and how a person ends it: a reload ends stops, and `lift-holds` all of it.

use std::fmt;

use paceline::{ScopeState, Snapshot};

use crate::backend::Backend;

/// What held or stopped an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifted {
    /// Stops, which wait for a person.
    pub stops: usize,
    /// Holds and pauses.
    pub holds: usize,
    /// Clients that alone were to wait.
    pub of_clients: usize,
}

impl fmt::Display for Lifted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = [(self.stops, "stop"), (self.holds, "hold"), (self.of_clients, "wait of one client alone")];
        let told = counted.into_iter().filter(|(count, _)| *count > 0);
        let told: Vec<_> = told
            .map(|(count, what)| match (count, what.split_once(' ')) {
                (1, _) => format!("1 {what}"),
                (_, None) => format!("{count} {what}s"),
                (_, Some((first, rest))) => format!("{count} {first}s {rest}"),
            })
            .collect();
        if told.is_empty() { f.write_str("nothing") } else { f.write_str(&told.join(", ")) }
    }
}

impl Backend {
    /// Ends its holds, pauses and stops, for all and for single clients: a person says that their cause is mended. Returns how
    /// many there were.
    pub fn lift_holds(&self) -> Lifted {
        let lifted = Lifted { of_clients: self.trust.held_clients(self.limiter().now()), ..self.held() };
        self.trust.forget();
        self.stays_down.forget();
        self.notes().outages.end_stops();
        self.limiter().resume(None);
        lifted
    }

    /// Ends its stops, and forgets what clients were refused: a person says that the cause may be mended, as by a restart.
    /// Returns whether there was one.
    pub fn end_stops(&self) -> bool {
        let was_stopped = self.held().stops > 0;
        self.trust.begin_anew();
        self.limiter().end_stops();
        was_stopped
    }

    /// What holds or stops all of its scopes, or one of them.
    fn held(&self) -> Lifted {
        let Snapshot { account, scopes, .. } = self.limiter().snapshot();
        let mut held = Lifted::default();
        for scope in scopes.iter().chain([&account]) {
            match scope.state {
                ScopeState::Stopped { .. } => held.stops += 1,
                ScopeState::Held { .. } => held.holds += 1,
                _ => held.holds += usize::from(scope.closed_until.is_some()),
            }
        }
        held
    }
}
