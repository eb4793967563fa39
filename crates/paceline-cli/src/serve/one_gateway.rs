//! One gateway for each state folder: two would let the clients of each use the whole of their limits.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use paceline_gateway::Clients;
use paceline_store::lock_file;

use crate::exit::Failure;

/// The file in the state folder.
const FILE: &str = "gateway.lock";

/// The lock of the state folder, for as long as the gateway serves.
pub(super) struct OnlyGateway {
    /// None where there is no folder.
    path: Option<PathBuf>,
    address: SocketAddr,
    held: Option<File>,
}

impl OnlyGateway {
    /// Takes the folder. Without keys of clients nothing is counted for them, so gateways share the user's own folder then;
    /// one that is named has one gateway.
    ///
    /// # Errors
    /// Another gateway has it.
    pub(super) fn of(
        folder: Option<&Path>,
        is_named: bool,
        clients: &Clients,
        address: SocketAddr,
    ) -> Result<Self, Failure> {
        let mut only = Self { path: folder.map(|folder| folder.join(FILE)), address, held: None };
        match only.take() {
            Err(refused) if is_named || matches!(clients, Clients::WithKeys(_)) => Err(Failure::refused(refused)),
            Ok(()) | Err(_) => Ok(only),
        }
    }

    /// Warns where clients have keys from now on, and another gateway counts for them too.
    pub(super) fn check(&mut self, clients: &Clients) {
        if !matches!(clients, Clients::WithKeys(_)) || self.held.is_some() {
            return;
        }
        if let Err(refused) = self.take() {
            tracing::warn!("limits of clients count twice: {refused}");
        }
    }

    /// # Errors
    /// Who has it, and what to do.
    fn take(&mut self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        match lock_file(path) {
            Ok(Some(mut file)) => {
                let text = format!("process {} at {}\n", std::process::id(), self.address);
                // The lock holds without its text.
                let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
                self.held = Some(file);
                Ok(())
            }
            Ok(None) => {
                let holder = std::fs::read_to_string(path).ok().filter(|holder| !holder.trim().is_empty());
                let holder = holder.map_or_else(String::new, |holder| format!(" ({})", holder.trim()));
                let folder = path.parent().unwrap_or(path).display();
                Err(format!(
                    "another gateway{holder} has the state folder {folder}, and each would let clients use the whole of their limits; \
                     end that one, or name another folder with --state"
                ))
            }
            // A file system without locks.
            Err(error) => {
                tracing::debug!("the state folder cannot be locked: {error}");
                Ok(())
            }
        }
    }
}
