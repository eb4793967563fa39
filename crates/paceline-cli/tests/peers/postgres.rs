//! The program beside a private Postgres server.

use std::process::Command;

use crate::postgres_server::PostgresServer;

impl PostgresServer {
    /// A command of the program with this server as its store.
    pub(crate) fn command(&self, words: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        // The variables of the tests are none of the program's.
        command.env_remove("PACELINE_SOAK").args(words).args(["--store", &self.url(), "--quiet"]).args(more);
        command
    }
}
