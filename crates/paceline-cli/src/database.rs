//! Stores that are databases: how their addresses are recognized, and what it means that one cannot be opened.

use paceline_store::work::WorkError;

use crate::exit::Failure;

/// Whether a store is named by the address of a Postgres database, not by a file.
pub(crate) fn is_address(store: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| store.starts_with(scheme))
}

/// Why a command has not begun: bad usage, but where the server of the store is away or a disk is full, for both may pass.
pub(crate) fn not_begun(error: WorkError) -> Failure {
    match error {
        WorkError::Files(error) if error.is_disk_full() => Failure::DiskFull(error.to_string()),
        error if error.is_unreachable() || error.is_disk_full() => Failure::interrupted(error),
        error => Failure::refused(error),
    }
}
