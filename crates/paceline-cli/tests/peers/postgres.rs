//! The program beside a private Postgres server.

use std::process::Command;

use crate::bounded::BoundedOutput as _;
use crate::postgres_server::PostgresServer;

impl PostgresServer {
    /// A command of the program with this server as its store.
    pub(crate) fn command(&self, words: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        // The variables of the tests are none of the program's.
        command.env_remove("PACELINE_SOAK").args(words).args(["--store", &self.url(), "--quiet"]).args(more);
        command
    }

    /// The rows that it answers to a question, as text.
    pub(crate) fn rows(&self, question: &str) -> String {
        let mut psql = Command::new("psql");
        let output = psql.args(["-h", self.folder(), "-U", "tester", "-Atc", question, "postgres"]).ended_with_output();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}
