//! A process and whatever it began, as one group that can be ended whole.

use tokio::process::{Child, Command};

/// A process and what it began, killed unless it has ended by itself.
pub(crate) struct ProcessGroup {
    leader: Option<u32>,
}

impl ProcessGroup {
    /// Has a command begin a group of its own.
    pub(crate) fn in_own_group(command: &mut Command) {
        #[cfg(unix)]
        command.process_group(0);
        command.kill_on_drop(true);
    }

    /// The group that such a child leads.
    pub(crate) fn of(child: &Child) -> Self {
        Self { leader: child.id() }
    }

    /// Asks all of them to end.
    pub(crate) fn ask_to_end(&self) {
        if let Some(leader) = self.leader {
            signal::terminate(leader);
        }
    }

    /// The leader was waited for: its number may soon be that of another process.
    pub(crate) fn has_ended(mut self) {
        self.leader = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            signal::kill(leader);
        }
    }
}

#[cfg(unix)]
mod signal {
    use rustix::process::{Pid, Signal, kill_process_group};

    pub(super) fn terminate(leader: u32) {
        send(leader, Signal::TERM);
    }

    pub(super) fn kill(leader: u32) {
        send(leader, Signal::KILL);
    }

    fn send(leader: u32, signal: Signal) {
        if let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
            // It fails when no process of the group is left.
            let _ = kill_process_group(leader, signal);
        }
    }
}

/// Elsewhere only the process itself is killed, as it is dropped.
#[cfg(not(unix))]
mod signal {
    pub(super) const fn terminate(_leader: u32) {}

    pub(super) const fn kill(_leader: u32) {}
}
